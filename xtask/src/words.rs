//! The words of the code: a name is the field's (docs/GLOSSARY.md), a type is named by a noun, and the
//! subject of a commit fits in a line.
//!
//! `xtask/words.txt` lists words that names, or sentences, no longer have, with the number of places
//! where each is left. That number only goes down: a run fails if there is one more, and if there are
//! fewer than the list says.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::run::{Program, root};
use crate::spec::{files_below, read};

const LIST: &str = "xtask/words.txt";

/// The folders with code, and those with pages.
const CODE: [&str; 5] = ["crates", "fuzz", "release", "xtask", "benches"];
const PAGES: [&str; 1] = ["docs"];

/// The longest subject of a commit, in characters (CONTRIBUTING.md).
const SUBJECT: usize = 72;

/// How many places of a word are named.
const NAMED: usize = 5;

/// Participles that do not end with "ed".
const PARTICIPLES: [&str; 60] = [
    "Begun",
    "Borne",
    "Bound",
    "Broken",
    "Brought",
    "Built",
    "Caught",
    "Chosen",
    "Dealt",
    "Done",
    "Drawn",
    "Driven",
    "Fallen",
    "Fed",
    "Felt",
    "Forgotten",
    "Found",
    "Frozen",
    "Given",
    "Gone",
    "Got",
    "Grown",
    "Heard",
    "Held",
    "Hidden",
    "Hung",
    "Kept",
    "Known",
    "Laid",
    "Led",
    "Left",
    "Lent",
    "Lost",
    "Made",
    "Meant",
    "Met",
    "Paid",
    "Said",
    "Seen",
    "Sent",
    "Shown",
    "Sold",
    "Sought",
    "Spent",
    "Stolen",
    "Stood",
    "Struck",
    "Stuck",
    "Sworn",
    "Taken",
    "Thought",
    "Thrown",
    "Told",
    "Torn",
    "Understood",
    "Woken",
    "Won",
    "Worn",
    "Wound",
    "Written",
];

/// Where a word is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// The parts of a name in code: `put_back` has the parts `put` and `back`, and the word
    /// `put_back` too.
    Name,
    /// The whole name of a type.
    Type,
    /// Sentences: pages, comments and messages.
    Prose,
}

/// A line of the list.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    kind: Kind,
    word: String,
    left: usize,
    /// What to say instead; for a type that stays, why.
    instead: String,
}

/// The list, and the commit after which subjects are read.
#[derive(Debug, PartialEq, Eq)]
struct List {
    since: String,
    entries: Vec<Entry>,
}

/// The text of a file, with its path below the root.
struct Source {
    path: String,
    text: String,
}

/// Counts the words, and compares them with the list.
///
/// # Errors
/// Every word that is there more or less often than the list says, each type that is named by a
/// participle and not listed, and each subject that is too long.
pub(crate) fn check() -> Result<String, String> {
    let root = root();
    let list = parse(&read(&root.join(LIST))?)?;
    let sources = sources(&root)?;
    let mut problems = judge(&list, &sources);
    let subjects = subjects(&list.since);
    problems.extend(subjects.iter().flatten().filter_map(|subject| too_long(subject)));
    if !problems.is_empty() {
        return Err(format!("{} problems with words\n{}", problems.len(), problems.join("\n")));
    }
    let left: usize = list.entries.iter().map(|entry| entry.left).sum();
    let subjects = match subjects {
        Some(subjects) => format!("{} subjects of commits", subjects.len()),
        None => "the history is not here, so no subject was read".to_owned(),
    };
    Ok(format!("{} words are to go from {left} places; {subjects}", list.entries.len()))
}

/// Writes the numbers of today into the list, where they are lower.
///
/// # Errors
/// When a file cannot be read or written.
pub(crate) fn lower() -> Result<String, String> {
    let root = root();
    let path = root.join(LIST);
    let text = read(&path)?;
    let list = parse(&text)?;
    let counted = Counted::of(&list, &sources(&root)?);
    let mut left = list.entries.iter().zip(&counted.listed);
    let lines = text.lines().map(|line| {
        if entry(line).is_none() {
            return line.to_owned();
        }
        match left.next() {
            Some((entry, places)) if places.len() < entry.left => {
                let (from, to) = (format!(" {} ", entry.left), format!(" {} ", places.len()));
                line.replacen(&from, &to, 1)
            }
            _ => line.to_owned(),
        }
    });
    let lines: Vec<String> = lines.collect();
    fs::write(&path, lines.join("\n") + "\n").map_err(|error| format!("{LIST}: {error}"))?;
    Ok(format!("wrote {LIST}"))
}

/// Reads the list: `KIND WORD LEFT INSTEAD…`, and `since COMMIT`.
fn parse(text: &str) -> Result<List, String> {
    let mut list = List { since: String::new(), entries: Vec::new() };
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(commit) = line.strip_prefix("since ") {
            list.since = commit.trim().to_owned();
            continue;
        }
        let entry = entry(line).ok_or_else(|| {
            format!("{LIST}:{}: not \"name|type|prose WORD NUMBER INSTEAD\": {line}", number + 1)
        })?;
        list.entries.push(entry);
    }
    Ok(list)
}

fn entry(line: &str) -> Option<Entry> {
    let mut parts = line.splitn(4, ' ');
    let kind = match parts.next()? {
        "name" => Kind::Name,
        "type" => Kind::Type,
        "prose" => Kind::Prose,
        _ => return None,
    };
    // A phrase has `_` where its words are apart.
    let word = parts.next()?.to_owned();
    let left = parts.next()?.parse().ok()?;
    let instead = parts.next().filter(|text| !text.trim().is_empty())?.to_owned();
    Some(Entry { kind, word, left, instead })
}

/// Reads the code and the pages. The list itself and this file have the words by intent.
fn sources(root: &Path) -> Result<Vec<Source>, String> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for (folders, ending) in [(&CODE[..], "rs"), (&PAGES[..], "md")] {
        for folder in folders {
            paths.extend(files_below(&root.join(folder), ending)?);
        }
    }
    paths.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|name| root.join(name)));
    paths.retain(|path| !path.ends_with("xtask/src/words.rs"));
    paths.sort();
    let source = |path: PathBuf| {
        let text = read(&path)?;
        let path = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        Ok(Source { path, text })
    };
    paths.into_iter().map(source).collect()
}

/// The places of each listed word, as `FILE:LINE`, and of each type.
#[derive(Debug, Default)]
struct Counted {
    /// In the order of the list.
    listed: Vec<Vec<String>>,
    types: BTreeMap<String, Vec<String>>,
}

impl Counted {
    fn of(list: &List, sources: &[Source]) -> Self {
        let mut counted = Self { listed: vec![Vec::new(); list.entries.len()], ..Self::default() };
        let phrases: Vec<String> =
            list.entries.iter().map(|entry| entry.word.replace('_', " ")).collect();
        for source in sources {
            let is_code = source.path.ends_with(".rs");
            for (number, line) in source.text.lines().enumerate() {
                let place = || format!("{}:{}", source.path, number + 1);
                let (code, sentences) = match is_code {
                    true => apart(line),
                    false => (String::new(), line.to_owned()),
                };
                let names: Vec<String> = identifiers(&code).flat_map(words_of).collect();
                let sentences = sentences.to_lowercase();
                let defined = defined_type(&code);
                if let Some(name) = defined {
                    counted.types.entry(name.to_owned()).or_default().push(place());
                }
                let each = list.entries.iter().zip(&phrases).zip(&mut counted.listed);
                for ((entry, phrase), places) in each {
                    let times = match entry.kind {
                        Kind::Name => names.iter().filter(|name| **name == entry.word).count(),
                        Kind::Type => usize::from(defined == Some(entry.word.as_str())),
                        Kind::Prose => times(&sentences, phrase),
                    };
                    places.extend((0..times).map(|_| place()));
                }
            }
        }
        counted
    }
}

/// Says how often a phrase is in a sentence, as whole words.
fn times(sentence: &str, phrase: &str) -> usize {
    let is_apart = |one: Option<char>| one.is_none_or(|one| !one.is_alphanumeric());
    let all = sentence.match_indices(phrase).filter(|(at, found)| {
        is_apart(sentence[..*at].chars().next_back())
            && is_apart(sentence[at + found.len()..].chars().next())
    });
    all.count()
}

fn judge(list: &List, sources: &[Source]) -> Vec<String> {
    let counted = Counted::of(list, sources);
    let mut problems = Vec::new();
    for (entry, places) in list.entries.iter().zip(&counted.listed) {
        let Entry { word, left, instead, .. } = entry;
        let (now, first) = (places.len(), &places[..places.len().min(NAMED)]);
        if *left < now {
            let first = first.join(", ");
            problems
                .push(format!("{word}: in {now} places, {left} may be left ({first}): {instead}"));
        } else if now < *left {
            problems.push(format!(
                "{word}: in {now} places, {LIST} says {left}: cargo xtask words --lower"
            ));
        }
    }
    let listed: BTreeSet<&str> = list.entries.iter().map(|entry| entry.word.as_str()).collect();
    for (name, places) in &counted.types {
        if is_participle(name) && !listed.contains(name.as_str()) {
            problems.push(format!(
                "{}: type {name} is named by a participle: name what it is",
                places[0]
            ));
        }
    }
    problems
}

/// Says whether a type's name is a participle alone.
fn is_participle(name: &str) -> bool {
    let is_one_word = name.chars().skip(1).all(|one| one.is_ascii_lowercase());
    is_one_word && (PARTICIPLES.contains(&name) || (name.ends_with("ed") && !name.ends_with("eed")))
}

/// Returns a line's code without its strings and comment, and those.
fn apart(line: &str) -> (String, String) {
    let (mut code, mut sentences) = (String::new(), String::new());
    let mut is_string = false;
    let mut before = ' ';
    let mut rest = line.chars().peekable();
    while let Some(one) = rest.next() {
        match one {
            '"' if before != '\\' && before != '\'' => {
                is_string = !is_string;
                code.push(' ');
                sentences.push(' ');
            }
            '/' if !is_string && rest.peek() == Some(&'/') => {
                sentences.extend(rest.by_ref());
            }
            one if is_string => sentences.push(one),
            one => code.push(one),
        }
        before = if before == '\\' && one == '\\' { ' ' } else { one };
    }
    (code, sentences)
}

fn identifiers(code: &str) -> impl Iterator<Item = &str> {
    let is_part = |one: char| one.is_alphanumeric() || one == '_';
    code.split(move |one: char| !is_part(one)).filter(|name| !name.is_empty())
}

/// Returns the words of a name in lower case, and each two neighbours with `_` between them.
fn words_of(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut is_lower = false;
    let mut begins = true;
    for one in name.chars() {
        if one == '_' {
            begins = true;
            continue;
        }
        if begins || (one.is_uppercase() && is_lower) {
            words.push(String::new());
        }
        (begins, is_lower) = (false, !one.is_uppercase());
        if let Some(word) = words.last_mut() {
            word.extend(one.to_lowercase());
        }
    }
    let pairs: Vec<String> = words.windows(2).map(|pair| pair.join("_")).collect();
    words.into_iter().chain(pairs).collect()
}

/// Returns the name of the type that a line of code defines.
fn defined_type(code: &str) -> Option<&str> {
    let mut words = code.split_whitespace().peekable();
    while words.peek().is_some_and(|word| word.starts_with("pub") || word.ends_with(')')) {
        words.next();
    }
    let kinds = ["struct", "enum", "trait", "type", "union"];
    words.next().filter(|word| kinds.contains(word))?;
    identifiers(words.next()?).next()
}

/// The subjects since a commit; `None` if the history is not there.
fn subjects(since: &str) -> Option<Vec<String>> {
    let line = format!("git log --no-merges --format=%s {since}..HEAD");
    let known = Program::new(&format!("git cat-file -e {since}")).output();
    let text = known.and_then(|_| Program::new(&line).output()).ok()?;
    Some(text.lines().map(str::to_owned).collect())
}

fn too_long(subject: &str) -> Option<String> {
    let length = subject.chars().count();
    (SUBJECT < length).then(|| {
        format!("the subject of a commit has {length} characters, {SUBJECT} fit: {subject}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(list: &str, code: &str) -> Vec<String> {
        let source = Source { path: "crates/a/src/b.rs".to_owned(), text: code.to_owned() };
        judge(&parse(list).unwrap(), &[source])
    }

    #[test]
    fn one_more_and_one_less_are_told() {
        let list = "name obey 1 apply\n";
        assert_eq!(judged(list, "fn obey_all() {}\n"), [""; 0]);
        let twice = judged(list, "fn obey_all() {}\nfn main() { obey() }\n");
        assert_eq!(
            twice,
            ["obey: in 2 places, 1 may be left (crates/a/src/b.rs:1, crates/a/src/b.rs:2): apply"]
        );
        let none = judged(list, "// obey\nfn apply() { \"obey\" }\n");
        assert_eq!(none, ["obey: in 0 places, xtask/words.txt says 1: cargo xtask words --lower"]);
    }

    #[test]
    fn a_type_is_named_by_a_noun() {
        let code =
            "pub(super) struct Found<'a> {}\nenum Speed {}\nstruct FoundLink;\n// struct Held\n";
        let told = judged("", code);
        assert_eq!(
            told,
            ["crates/a/src/b.rs:1: type Found is named by a participle: name what it is"]
        );
        assert_eq!(judged("type Found 1 stays\n", code), [""; 0]);
    }

    #[test]
    fn names_and_sentences_are_apart() {
        let line = r#"let put_back = say("any more \" fn"); // is no link"#;
        let (code, sentences) = apart(line);
        assert!(!code.contains("more") && !sentences.contains("put_back"), "{code}|{sentences}");
        assert!(sentences.contains("is no link") && sentences.contains("any more"));
        assert_eq!(words_of("take_BackNow"), ["take", "back", "now", "take_back", "back_now"]);
        assert_eq!(judged("prose any_more 1 no longer\n", line), [""; 0]);
        assert_eq!(judged("prose any_mor 0 none\n", line), [""; 0]);
    }

    #[test]
    fn a_subject_fits_in_a_line() {
        assert_eq!(too_long(&"x".repeat(72)), None);
        assert!(too_long(&"ü".repeat(73)).is_some());
    }

    #[test]
    fn a_line_of_the_list_is_whole() {
        for wrong in ["name obey apply", "verb obey 1 apply", "name obey 1 "] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let list = parse("# note\nsince abc\nname obey 1 apply it\n").unwrap();
        assert_eq!((list.since.as_str(), list.entries.len()), ("abc", 1));
    }
}
