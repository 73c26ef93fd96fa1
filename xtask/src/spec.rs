//! The ledgers in `docs/spec`: every rule of a specification has a test that exists, or a written
//! reason; every promise of `docs/guarantees.md` has a test.
//!
//! The files use a subset of TOML: `[[rule]]`, keys with strings, and lists of strings.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::run::root;

/// The document whose lists have the promises, `- **ID**: promise`, and the ledger of their tests.
const GUARANTEES: &str = "docs/guarantees.md";
const PROMISES: &str = "docs/spec/guarantees.toml";

/// How long a promise may be. Conditions and exceptions are on other pages.
const PROMISE_CHARS: usize = 300;

/// The words for a rule's level (RFC 2119).
const LEVELS: [&str; 5] = ["MUST", "MUST NOT", "SHOULD", "SHOULD NOT", "MAY"];

/// One rule as written in a ledger.
#[derive(Debug, Default, PartialEq, Eq)]
struct Rule {
    line: usize,
    keys: Vec<(String, Value)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Text(String),
    List(Vec<String>),
}

impl Rule {
    fn text(&self, key: &str) -> Option<&str> {
        self.keys.iter().find_map(|(name, value)| match value {
            Value::Text(text) if name == key => Some(text.as_str()),
            _ => None,
        })
    }

    fn list(&self, key: &str) -> Option<&[String]> {
        self.keys.iter().find_map(|(name, value)| match value {
            Value::List(list) if name == key => Some(list.as_slice()),
            _ => None,
        })
    }
}

/// Checks every ledger; the error lists every problem.
pub(crate) fn check() -> Result<String, String> {
    let root = root();
    let mut tests = tests_below(&root.join("crates"), "")?;
    for package in ["fuzz", "release", "xtask"] {
        tests.extend(tests_below(&root, package)?);
    }
    let (mut problems, mut tested, mut reasoned) = (Vec::new(), 0, 0);
    for path in files_below(&root.join("docs/spec"), "toml")? {
        let name = path.strip_prefix(&root).unwrap_or(&path).display().to_string();
        if name == PROMISES {
            continue;
        }
        let rules = rules_of(&path, &name)?;
        tested += rules.iter().filter(|rule| rule.list("tests").is_some()).count();
        reasoned += rules.iter().filter(|rule| rule.text("reason").is_some()).count();
        problems.extend(judge(&rules, &tests).into_iter().map(|what| format!("{name}:{what}")));
    }
    if tested == 0 {
        problems.push("docs/spec holds no rule with a test".to_owned());
    }
    let document = read(&root.join(GUARANTEES))?;
    let promises = rules_of(&root.join(PROMISES), PROMISES)?;
    problems.extend(judge_promises(&document, &promises, &tests));
    if problems.is_empty() {
        let rules = tested + reasoned;
        Ok(format!(
            "{rules} rules: {tested} with tests, {reasoned} with a reason; {} promises",
            promises.len()
        ))
    } else {
        Err(format!("{} problems in docs\n{}", problems.len(), problems.join("\n")))
    }
}

/// Compares the lists of [`GUARANTEES`] with the ledger [`PROMISES`]: each item has an entry with a
/// test, and each entry an item. Returns what is wrong, each as `FILE:LINE: ID: PROBLEM`.
fn judge_promises(document: &str, ledger: &[Rule], tests: &BTreeSet<String>) -> Vec<String> {
    let mut problems = Vec::new();
    let known: BTreeSet<_> = ledger.iter().filter_map(|rule| rule.text("id")).collect();
    let mut promised = BTreeSet::new();
    for (number, item) in items(document) {
        let (id, promise) = id_and_promise(&item).unwrap_or(("an item without ID", &item));
        let mut tell = |what: String| problems.push(format!("{GUARANTEES}:{number}: {id}: {what}"));
        if !promised.insert(id.to_owned()) {
            tell("is there twice".to_owned());
        }
        if !known.contains(id) {
            tell(format!("is not in {PROMISES}"));
        }
        let length = promise.chars().count();
        if length == 0 || PROMISE_CHARS < length {
            tell(format!("has {length} characters, and may have 1 to {PROMISE_CHARS}"));
        }
    }
    let mut ids = BTreeSet::new();
    for rule in ledger {
        let id = rule.text("id").unwrap_or("a rule without id");
        let line = rule.line;
        let mut tell = |what: String| problems.push(format!("{PROMISES}:{line}: {id}: {what}"));
        if !ids.insert(id) {
            tell("is there twice".to_owned());
        }
        if !promised.contains(id) {
            tell(format!("is not in {GUARANTEES}"));
        }
        for (key, value) in &rule.keys {
            match (key.as_str(), value) {
                ("id" | "note", Value::Text(_)) | ("tests" | "full", Value::List(_)) => {}
                _ => tell(format!("unknown key {key}")),
            }
        }
        let names = ["tests", "full"].into_iter().filter_map(|key| rule.list(key)).flatten();
        let names: Vec<_> = names.collect();
        if names.is_empty() {
            tell("names no test".to_owned());
        }
        for name in names.into_iter().filter(|name| !tests.contains(*name)) {
            tell(format!("there is no test {name}"));
        }
    }
    problems
}

/// Returns the items of a document's lists, each with its line number and in one line.
fn items(document: &str) -> Vec<(usize, String)> {
    let mut items: Vec<(usize, String)> = Vec::new();
    let mut within = false;
    for (line, number) in document.lines().zip(1..) {
        if let Some(first) = line.strip_prefix("- ") {
            items.push((number, first.trim().to_owned()));
            within = true;
        } else if let (true, Some(next), Some((_, item))) =
            (within, line.strip_prefix("  "), items.last_mut())
        {
            item.push(' ');
            item.push_str(next.trim());
        } else {
            within = false;
        }
    }
    items
}

/// Takes `**ID**: promise` apart.
fn id_and_promise(item: &str) -> Option<(&str, &str)> {
    let (id, promise) = item.strip_prefix("**")?.split_once("**:")?;
    Some((id, promise.trim()))
}

/// Returns what is wrong with rules, each as `LINE: ID: PROBLEM`.
fn judge(rules: &[Rule], tests: &BTreeSet<String>) -> Vec<String> {
    let mut problems = Vec::new();
    let mut ids = BTreeSet::new();
    for rule in rules {
        let id = rule.text("id").unwrap_or("a rule without id");
        let mut tell = |what: String| problems.push(format!("{}: {id}: {what}", rule.line));
        if !ids.insert(id) {
            tell("is there twice".to_owned());
        }
        for key in ["id", "section", "level", "text"] {
            if rule.text(key).is_none_or(str::is_empty) {
                tell(format!("has no {key}"));
            }
        }
        if rule.text("level").is_some_and(|level| !LEVELS.contains(&level)) {
            tell(format!("level is none of {}", LEVELS.join(", ")));
        }
        for (key, _) in &rule.keys {
            if !["id", "section", "level", "text", "tests", "reason", "test", "owner"]
                .contains(&key.as_str())
            {
                tell(format!("unknown key {key}"));
            }
        }
        match (rule.list("tests"), rule.text("reason"), rule.text("test")) {
            (Some([]), None, None) => tell("names no test".to_owned()),
            (Some(names), None, None) => {
                for name in names.iter().filter(|name| !tests.contains(*name)) {
                    tell(format!("there is no test {name}"));
                }
            }
            (None, Some(reason), None) => {
                if reason.is_empty() {
                    tell("the reason is empty".to_owned());
                }
                for name in names_in(reason).filter(|name| !tests.contains(*name)) {
                    tell(format!("the reason names {name}, which is no test"));
                }
            }
            (None, None, Some("pending")) => {
                tell(format!("pending, with {}", rule.text("owner").unwrap_or("no owner")));
            }
            _ => tell("needs exactly one of tests, reason and test = \"pending\"".to_owned()),
        }
    }
    problems
}

/// Finds `crate::module::test` in prose.
fn names_in(prose: &str) -> impl Iterator<Item = &str> {
    let part_of_name = |c: char| c.is_ascii_alphanumeric() || "_-:".contains(c);
    let words = prose.split(move |c| !part_of_name(c)).map(|word| word.trim_matches(':'));
    words.filter(|word| 2 <= word.matches("::").count())
}

/// Reads the ledger in a file. The error begins with the file's name and the line number.
fn rules_of(path: &Path, name: &str) -> Result<Vec<Rule>, String> {
    parse(&read(path)?).map_err(|problem| format!("{name}:{problem}"))
}

/// Reads a ledger. The error begins with the line number.
fn parse(text: &str) -> Result<Vec<Rule>, String> {
    let mut rules: Vec<Rule> = Vec::new();
    let mut lines = text.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line == "[[rule]]" {
            rules.push(Rule { line: number, keys: Vec::new() });
            continue;
        }
        let wrong = |what: &str| format!("{number}: {what}: {line}");
        let (key, value) =
            line.split_once('=').ok_or_else(|| wrong("neither [[rule]] nor KEY = VALUE"))?;
        let (key, mut value) = (key.trim().to_owned(), value.trim().to_owned());
        while value.starts_with('[') && !value.ends_with(']') {
            let (next, _) = lines.next().ok_or_else(|| wrong("the list has no end"))?;
            value.push_str(next.trim());
        }
        let value = parse_value(&value).ok_or_else(|| wrong("not a string or list of strings"))?;
        let rule = rules.last_mut().ok_or_else(|| wrong("before the first [[rule]]"))?;
        if rule.keys.iter().any(|(known, _)| *known == key) {
            return Err(wrong("a key given twice"));
        }
        rule.keys.push((key, value));
    }
    Ok(rules)
}

fn parse_value(text: &str) -> Option<Value> {
    let Some(mut rest) = text.strip_prefix('[') else {
        let (string, rest) = parse_string(text)?;
        return rest.is_empty().then_some(Value::Text(string));
    };
    let mut list = Vec::new();
    loop {
        rest = rest.trim_start();
        if let Some(end) = rest.strip_prefix(']') {
            return end.is_empty().then_some(Value::List(list));
        }
        let (string, after) = parse_string(rest)?;
        list.push(string);
        rest = after.trim_start();
        rest = match rest.strip_prefix(',') {
            Some(after) => after,
            None if rest == "]" => rest,
            None => return None,
        };
    }
}

/// Takes a basic string off the front; the only supported escapes are those of quote and backslash.
fn parse_string(text: &str) -> Option<(String, &str)> {
    let inner = text.strip_prefix('"')?;
    let mut string = String::new();
    let mut chars = inner.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((string, inner.get(at + 1..)?)),
            '\\' => match chars.next()? {
                (_, escaped @ ('"' | '\\')) => string.push(escaped),
                _ => return None,
            },
            _ => string.push(c),
        }
    }
    None
}

/// Lists every test of a folder's crates, or of the named crate, as `crate::module::name`, where
/// `module` is the file below `tests/it` or `src`. A test in a file's own `mod tests` is listed
/// with and without that part.
fn tests_below(crates: &Path, name: &str) -> Result<BTreeSet<String>, String> {
    let mut tests = BTreeSet::new();
    for path in files_below(&crates.join(name), "rs")? {
        let relative = path.strip_prefix(crates).unwrap_or(&path);
        let Some(module) = module_of(relative) else { continue };
        for name in tests_in(&read(&path)?) {
            tests.insert(format!("{module}::{name}"));
            tests.insert(format!("{module}::tests::{name}"));
        }
    }
    Ok(tests)
}

/// `cni/tests/it/golden.rs` is `cni::golden`, `plugins/src/shared.rs` is `plugins::shared`.
fn module_of(file: &Path) -> Option<String> {
    let path = file.with_extension("");
    let mut parts: Vec<&str> = path.iter().map(|part| part.to_str()).collect::<Option<_>>()?;
    let skipped = match parts.get(1..)? {
        ["tests", "it" | "torture", ..] => 2,
        ["src", ..] => 1,
        _ => return None,
    };
    parts.drain(1..=skipped);
    if parts.last().is_some_and(|last| ["main", "lib"].contains(last)) {
        parts.pop();
    }
    Some(parts.join("::"))
}

/// Names the functions that follow `#[test]`.
fn tests_in(source: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut marked = false;
    for line in source.lines().map(str::trim_start) {
        if line.starts_with("#[test]") {
            marked = true;
        } else if let Some(rest) = line.strip_prefix("fn ").filter(|_| marked) {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            names.push(end.map_or(rest, |end| &rest[..end]));
            marked = false;
        } else if !line.starts_with('#') && !line.starts_with("//") {
            marked = false;
        }
    }
    names
}

/// Returns the files below a folder whose name has this extension, in order.
pub(crate) fn files_below(dir: &Path, extension: &str) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        let entries =
            fs::read_dir(&dir).map_err(|error| format!("read {}: {error}", dir.display()))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

pub(crate) fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("read {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::{judge, judge_promises, module_of, names_in, parse, tests_in};

    const RULE: &str = "[[rule]]\nid = \"a\"\nsection = \"s\"\nlevel = \"MUST\"\ntext = \"t\"\n";

    fn problems(ledger: &str) -> Vec<String> {
        let tests = BTreeSet::from(["c::m::there".to_owned(), "c::m::too".to_owned()]);
        judge(&parse(ledger).unwrap(), &tests)
    }

    #[test]
    fn promises_have_tests() {
        let tests = BTreeSet::from(["c::m::there".to_owned(), "c::m::too".to_owned()]);
        let judged = |items: &str, ledger: &str| {
            let document = format!("# Words\n\nMore.\n\n{items}\n\nMore words.\n");
            judge_promises(&document, &parse(ledger).unwrap(), &tests)
        };
        let none: [&str; 0] = [];
        let good = "[[rule]]\nid = \"add-1\"\ntests = [\"c::m::there\"]\nfull = [\"c::m::too\"]\nnote = \"n\"\n";
        assert_eq!(judged("- **add-1**: It holds.", good), none);
        let full = "[[rule]]\nid = \"add-1\"\nfull = [\"c::m::too\"]\n";
        assert_eq!(judged("- **add-1**: It holds,\n  **also**: here.", full), none);
        assert_eq!(
            judged("- **add-1**: It holds.\n- **add-1**: Again.\n- **add-2**: c::m::there.", good),
            [
                "docs/guarantees.md:6: add-1: is there twice",
                "docs/guarantees.md:7: add-2: is not in docs/spec/guarantees.toml"
            ]
        );
        assert_eq!(
            judged("- **add-1**: It holds.\n- Words.", good),
            ["docs/guarantees.md:6: an item without ID: is not in docs/spec/guarantees.toml"]
        );
        let wrong = |length: usize| {
            [format!("docs/guarantees.md:5: add-1: has {length} characters, and may have 1 to 300")]
        };
        assert_eq!(judged("- **add-1**:", good), wrong(0));
        let long = format!("- **add-1**: {}\n  {}", "ä".repeat(99), "b".repeat(200));
        assert_eq!(judged(&long, good), none);
        assert_eq!(judged(&format!("{long}c"), good), wrong(301));
        assert_eq!(
            judged("", good),
            ["docs/spec/guarantees.toml:1: add-1: is not in docs/guarantees.md"]
        );
        assert_eq!(
            judged("- **add-1**: It holds.", &format!("{good}{full}")),
            ["docs/spec/guarantees.toml:6: add-1: is there twice"]
        );
        for (keys, problem) in [
            ("", "names no test"),
            ("tests = []", "names no test"),
            ("tests = [\"c::m::gone\"]", "there is no test c::m::gone"),
            ("tests = [\"c::m::too\"]\nfull = [\"c::m::gone\"]", "there is no test c::m::gone"),
            ("tests = [\"c::m::too\"]\nreason = \"r\"", "unknown key reason"),
            ("tests = [\"c::m::too\"]\nfull = \"c::m::too\"", "unknown key full"),
        ] {
            let found = judged("- **a**: It.", &format!("[[rule]]\nid = \"a\"\n{keys}\n"));
            assert_eq!(found, [format!("docs/spec/guarantees.toml:1: a: {problem}")], "{keys}");
        }
    }

    #[test]
    fn rules_are_read() {
        let text = format!(
            "# words\n\n{RULE}tests = [\n    \"c::m::there\",\n    \"c::m::too\",\n]\n{RULE}reason = \"a \\\"b\\\" \\\\ = ]\"\n"
        );
        let rules = parse(&text).unwrap();
        assert_eq!((rules.len(), rules[0].line, rules[1].line), (2, 3, 12));
        assert_eq!(rules[0].list("tests").unwrap(), ["c::m::there", "c::m::too"]);
        assert_eq!(rules[1].text("reason"), Some(r#"a "b" \ = ]"#));
        for (wrong, words) in [
            ("id = \"a\"", "1: before the first [[rule]]"),
            ("[[rule]]\nid", "2: neither"),
            ("[[rule]]\nid = 5", "2: not a string"),
            ("[[rule]]\nid = \"a", "2: not a string"),
            ("[[rule]]\nid = \"a\" \"b\"", "2: not a string"),
            ("[[rule]]\nid = \"\\n\"", "2: not a string"),
            ("[[rule]]\nid = \"a\"\nid = \"b\"", "3: a key given twice"),
            ("[[rule]]\ntests = [\"a\" \"b\"]", "2: not a string"),
            ("[[rule]]\ntests = [\n\"a\",", "2: the list has no end"),
        ] {
            let error = parse(wrong).unwrap_err();
            assert!(error.starts_with(words), "{wrong}: {error}");
        }
    }

    #[test]
    fn gaps_are_found() {
        let with = |line: &str| problems(&format!("{RULE}{line}\n"));
        let none: [&str; 0] = [];
        assert_eq!(with("tests = [\"c::m::there\"]"), none);
        assert_eq!(with("reason = \"because, and see c::m::too.\""), none);
        assert_eq!(with("tests = [\"c::m::gone\"]"), ["1: a: there is no test c::m::gone"]);
        assert_eq!(with("tests = []"), ["1: a: names no test"]);
        assert_eq!(with("reason = \"\""), ["1: a: the reason is empty"]);
        assert_eq!(
            with("reason = \"see c::m::gone\""),
            ["1: a: the reason names c::m::gone, which is no test"]
        );
        assert_eq!(with("test = \"pending\"\nowner = \"c\""), ["1: a: pending, with c"]);
        let one = "1: a: needs exactly one of tests, reason and test = \"pending\"";
        assert_eq!(with(""), [one]);
        assert_eq!(with("test = \"later\""), [one]);
        assert_eq!(with("tests = [\"c::m::there\"]\nreason = \"r\""), [one]);
        assert_eq!(with("reason = \"r\"\nreasons = \"s\""), ["1: a: unknown key reasons"]);
        let twice = format!("{RULE}reason = \"r\"\n{RULE}reason = \"r\"\n");
        assert_eq!(problems(&twice), ["7: a: is there twice"]);
        let loose = "[[rule]]\nid = \"b\"\nsection = \"s\"\nlevel = \"OUGHT\"\nreason = \"r\"";
        assert_eq!(
            problems(loose),
            ["1: b: has no text", "1: b: level is none of MUST, MUST NOT, SHOULD, SHOULD NOT, MAY"]
        );
    }

    #[test]
    fn tests_are_found_by_their_place() {
        let module = |path: &str| module_of(Path::new(path));
        assert_eq!(module("cni/tests/it/golden.rs").as_deref(), Some("cni::golden"));
        assert_eq!(
            module("plugins/tests/it/tuning/add.rs").as_deref(),
            Some("plugins::tuning::add")
        );
        assert_eq!(module("plugins/src/shared.rs").as_deref(), Some("plugins::shared"));
        assert_eq!(module("cni/src/lib.rs").as_deref(), Some("cni"));
        assert_eq!(module("cni/examples/x.rs"), None);
        let source = "#[test]\nfn one() {}\nfn no() {}\n    #[test]\n    /// words\n    #[cfg(x)]\n    fn two(x in 0..5) {\n#[test]\nstruct S;\nfn neither() {}";
        assert_eq!(tests_in(source), ["one", "two"]);
        assert_eq!(
            names_in("(see cni-plugin::a::b), c::d, e::f::g: h").collect::<Vec<_>>(),
            ["cni-plugin::a::b", "e::f::g"]
        );
    }
}
