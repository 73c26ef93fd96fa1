//! Kubernetes' objects in files: YAML with several documents, JSON, and lists.
//!
//! A file is read whole or not at all. The service keeps what a file said before it became
//! unreadable, because it is not known which object a broken document was.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use serde_json::Value;
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{Error, SnippetMode};

/// The namespace of objects that name none.
const DEFAULT_NAMESPACE: &str = "default";

/// The longest file, in bytes: some 15,000 pods as an API server writes them.
const LONGEST: u64 = 64 << 20;
/// The most files of one folder.
const MOST_FILES: usize = 4096;
/// The most aliases (`*name`) and anchors (`&name`) of a document. People write a few.
const MOST_ALIASES: usize = 1000;
/// The most that aliases may add to a document, in the parser's events. Ten lines can ask for
/// billions.
const MOST_REPLAYED: usize = 100_000;
/// The deepest nesting. An object of Kubernetes has some twenty levels.
const DEEPEST: usize = 64;

/// The error of a document in which aliases refer to aliases.
const MULTIPLIED: &str = "its aliases (*name) expand to far more than is written: write it out";

/// One file.
#[derive(Debug)]
pub(crate) struct ObjectFile {
    /// Where it is.
    pub(crate) path: PathBuf,
    /// Its objects, in their order; or why it cannot be read, in a sentence without the path.
    pub(crate) objects: Result<Vec<Value>, String>,
    /// Where in the file each object is.
    pub(crate) places: Vec<Place>,
}

/// Where in a file an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// The document, from 1.
    pub(crate) document: usize,
    /// The place in the document's list, from 1, if it is a list.
    pub(crate) item: Option<usize>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "document {}", self.document)?;
        self.item.map_or(Ok(()), |item| write!(f, ", item {item}"))
    }
}

/// Reads files, and those of folders whose names end in `.yaml`, `.yml` or `.json`, in the order of
/// their names. Hidden files and folders in folders are passed over.
///
/// A file that cannot be read does not stop the others.
///
/// # Errors
/// A file or folder that was named is not there or cannot be opened: a sentence.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Vec<ObjectFile>, String> {
    let mut all = Vec::new();
    for path in paths {
        let found = path.metadata().map_err(|error| absent(path, &error))?;
        if found.is_dir() {
            all.extend(list(path)?.into_iter().map(read_file));
        } else {
            let file = open(path).map_err(|why| format!("{}: {why}", path.display()))?;
            all.push(of_text(path.clone(), take(file).and_then(text)));
        }
    }
    Ok(all)
}

/// Reads what was written to standard input.
pub(crate) fn read_stream(name: &str, from: impl std::io::Read) -> ObjectFile {
    let path = PathBuf::from(name);
    of_text(path, take(from).and_then(text))
}

/// Says why a path that was named cannot be used.
fn absent(path: &Path, error: &std::io::Error) -> String {
    let path_shown = path.display();
    match std::fs::read_link(path) {
        Ok(target) if error.kind() == std::io::ErrorKind::NotFound => {
            format!("{path_shown}: it is a link to {}, which does not exist", target.display())
        }
        _ if error.kind() == std::io::ErrorKind::NotFound => {
            format!("{path_shown}: there is no such file or folder")
        }
        _ => format!("{path_shown}: {error}"),
    }
}

/// Returns the files of a folder that may have objects.
fn list(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error: std::io::Error| format!("{}: list the folder: {error}", folder.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if hidden || !["yaml", "yml", "json"].contains(&ending) || path.is_dir() {
            continue;
        }
        if files.len() == MOST_FILES {
            return Err(format!(
                "{}: it has more than {MOST_FILES} files with objects",
                folder.display()
            ));
        }
        files.push(path);
    }
    files.sort();
    Ok(files)
}

fn read_file(path: PathBuf) -> ObjectFile {
    let text = open(&path).and_then(take).and_then(text);
    of_text(path, text)
}

fn of_text(path: PathBuf, text: Result<String, String>) -> ObjectFile {
    let is_json = path.extension().is_some_and(|ending| ending == "json");
    match text.and_then(|text| parse(&text, is_json)) {
        Ok(found) => {
            let (objects, places) = found.into_iter().unzip();
            ObjectFile { path, objects: Ok(objects), places }
        }
        Err(why) => {
            let objects = Err(cni::text::one_line(why));
            ObjectFile { path, objects, places: Vec::new() }
        }
    }
}

/// Opens a file without waiting: a pipe without a writer is refused.
fn open(path: &Path) -> Result<File, String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::NOENT => match std::fs::read_link(path) {
            Ok(target) => format!("it is a link to {}, which does not exist", target.display()),
            Err(_) => "it no longer exists".to_owned(),
        },
        Errno::LOOP => "it is a link that leads back to itself".to_owned(),
        Errno::ACCESS | Errno::PERM => format!("it may not be read: {errno}"),
        other => format!("it cannot be opened: {other}"),
    })?;
    let found = rustix::fs::fstat(&opened).map_err(|errno| format!("examine it: {errno}"))?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => return Err("it is a folder".to_owned()),
        _ => return Err("it is not a file but a device, a pipe or a socket".to_owned()),
    }
    match u64::try_from(found.st_size).unwrap_or_default() {
        size if LONGEST < size => Err(too_long(&size.to_string(), LONGEST)),
        _ => Ok(File::from(opened)),
    }
}

fn too_long(size: &str, most: u64) -> String {
    format!("it has {size} bytes, and at most {most} are read: split it")
}

fn take(from: impl std::io::Read) -> Result<Vec<u8>, String> {
    take_at_most(LONGEST, from)
}

/// Reads a file that may have grown meanwhile, or a stream.
fn take_at_most(most: u64, from: impl std::io::Read) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = from.take(most + 1).read_to_end(&mut bytes);
    read.map_err(|error| format!("it cannot be read: {error}"))?;
    match u64::try_from(bytes.len()).unwrap_or(u64::MAX) {
        length if most < length => Err(too_long("more", most)),
        _ => Ok(bytes),
    }
}

fn text(bytes: Vec<u8>) -> Result<String, String> {
    let text = String::from_utf8(bytes).map_err(|error| {
        let sound = error.utf8_error().valid_up_to();
        let lines = error.as_bytes()[..sound].iter().filter(|byte| **byte == b'\n').count();
        format!("line {}: it is not text in UTF-8", lines + 1)
    })?;
    if let Some(at) = text.find('\0') {
        let line = text[..at].matches('\n').count() + 1;
        return Err(format!("line {line}: it has a NUL byte, which no text has"));
    }
    if text.trim().is_empty() {
        return Err("it is empty; to remove what it said, remove the file".to_owned());
    }
    Ok(text)
}

/// Reads all documents.
fn parse(text: &str, is_json: bool) -> Result<Vec<(Value, Place)>, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut found = Vec::new();
    // YAML's objects may be written with braces too.
    if is_json || text.trim_start().starts_with('{') {
        match parse_json(text, &mut found) {
            Err(why) if is_json => return Err(why),
            Err(_) => found.clear(),
            Ok(()) => return Ok(found),
        }
    }
    let mut number = 0;
    for (before, document) in documents(text) {
        if !document.lines().any(has_content) {
            continue;
        }
        number += 1;
        let value =
            parse_yaml(document, before).map_err(|why| format!("document {number}: {why}"))?;
        unfold(value, number, &mut found)?;
    }
    Ok(found)
}

fn parse_json(text: &str, found: &mut Vec<(Value, Place)>) -> Result<(), String> {
    let documents = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    for (number, value) in documents.enumerate() {
        let value = value.map_err(|error| cni::json::explain(text.as_bytes(), &error).to_string());
        let value = value?;
        unfold(value, number + 1, found)?;
    }
    Ok(())
}

/// Divides YAML into its documents, each with the number of lines before it.
///
/// A line that begins with `---` ends a document wherever it stands, also in a text of several lines
/// (YAML 1.2.2 §9.1.2).
fn documents(text: &str) -> Vec<(usize, &str)> {
    let mut all = Vec::new();
    let (mut start, mut at, mut before) = (0, 0, 0);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let rest = line.strip_prefix("---").or_else(|| line.strip_prefix("..."));
        if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n'])) {
            all.push((before, &text[start..at]));
            // What follows on the same line belongs to the document.
            start = at + 3;
            before = number;
        }
        at += line.len();
    }
    all.push((before, &text[start..]));
    all
}

/// Reports whether a line is more than a comment or a directive.
fn has_content(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !line.starts_with(['#', '%'])
}

fn parse_yaml(document: &str, before: usize) -> Result<Value, String> {
    let longest = document.len();
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_aliases: MOST_ALIASES,
            max_anchors: MOST_ALIASES,
            max_depth: DEEPEST,
            // What is written is bounded by its length, and what aliases add by their limits.
            max_events: longest.saturating_mul(4).saturating_add(MOST_REPLAYED),
            max_nodes: longest.saturating_mul(2).saturating_add(MOST_REPLAYED),
            max_total_scalar_bytes: longest.saturating_mul(4).saturating_add(MOST_REPLAYED),
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MOST_REPLAYED,
        },
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(document, options).map_err(|error| {
        let why = yaml_fault(&error);
        match error.location() {
            Some(place) => {
                let line = u64::try_from(before).unwrap_or_default() + place.line();
                format!("line {line}: {why}")
            }
            None => why,
        }
    })
}

/// Says what is wrong with YAML, without the place.
fn yaml_fault(error: &Error) -> String {
    match error.without_snippet() {
        Error::Budget { breach: BudgetBreach::Depth { .. }, .. } => {
            format!("it is nested more than {DEEPEST} levels deep")
        }
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the key {key:?} is there twice")
        }
        Error::Budget { .. } => MULTIPLIED.to_owned(),
        other => {
            let text = other
                .render_with_options(serde_saphyr::render_options! { snippets: SnippetMode::Off });
            let first = text.lines().next().unwrap_or_default();
            let first = first.strip_prefix("error: ").unwrap_or(first);
            if first.starts_with("alias ") && first.contains("exceeded") {
                return MULTIPLIED.to_owned();
            }
            // The caller names the place before it, counted from the file's beginning.
            first.split(" at line ").next().unwrap_or(first).to_owned()
        }
    }
}

/// Adds an object, or those of a list.
fn unfold(value: Value, document: usize, found: &mut Vec<(Value, Place)>) -> Result<(), String> {
    let Value::Object(mut object) = value else {
        let what = match &value {
            Value::Null => return Ok(()),
            Value::Array(_) => "a list; a list of objects has kind: List and the objects in items",
            Value::String(_) => "a text",
            _ => "a value",
        };
        return Err(format!("document {document}: it is not an object but {what}"));
    };
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (kind, version) = (text("kind"), text("apiVersion"));
    // A PodList of the API has objects without a kind of their own.
    let Some(of) = kind.strip_suffix("List") else {
        let place = Place { document, item: None };
        if kind.is_empty() {
            return Err(format!("{place}: the object has no kind"));
        }
        found.push((created(Value::Object(object)), place));
        return Ok(());
    };
    let items = match object.remove("items") {
        Some(Value::Array(items)) => items,
        None | Some(Value::Null) => Vec::new(),
        Some(_) => return Err(format!("document {document}: items of {kind} is not a list")),
    };
    for (number, mut item) in items.into_iter().enumerate() {
        let place = Place { document, item: Some(number + 1) };
        let Some(fields) = item.as_object_mut() else {
            return Err(format!("{place}: it is not an object"));
        };
        if !fields.contains_key("kind") {
            if of.is_empty() {
                return Err(format!("{place}: the object has no kind"));
            }
            fields.insert("kind".to_owned(), of.into());
            fields.entry("apiVersion").or_insert_with(|| version.as_str().into());
        }
        found.push((created(item), place));
    }
    Ok(())
}

/// Gives an object what an API server gives it: the namespace `default` if none is named, and, to a
/// pod, a UID. An object that says no version, which such a server refuses, says an empty one.
fn created(mut object: Value) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.entry("apiVersion").or_insert_with(|| "".into());
    }
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    let of_cluster = ["Namespace", "Node", "ClusterNetworkPolicy"].contains(&kind.as_str());
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return object;
    };
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    if !of_cluster && text(metadata.get("namespace")).is_empty() {
        metadata.insert("namespace".to_owned(), DEFAULT_NAMESPACE.into());
    }
    if kind == "Pod" && text(metadata.get("uid")).is_empty() {
        let name = text(metadata.get("name"));
        let uid = format!("Pod {}/{name}", text(metadata.get("namespace")));
        metadata.insert("uid".to_owned(), uid.into());
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use std::os::unix::fs::symlink;

    /// Shows what is read of a text: kind and name with the place of each object, or the fault.
    fn shown(text: &[u8], name: &str) -> String {
        let read = of_text(PathBuf::from(name), super::text(text.to_vec()));
        let objects = match read.objects {
            Err(why) => return format!("{why}\n"),
            Ok(objects) => objects,
        };
        let line = |(object, place): (Value, Place)| {
            let name = object.pointer("/metadata/name").and_then(Value::as_str);
            format!("{place}: {} {}\n", object["kind"], name.unwrap_or("-"))
        };
        objects.into_iter().zip(read.places).map(line).collect()
    }

    fn check(text: &str, expected: Expect) {
        expected.assert_eq(&shown(text.as_bytes(), "a.yaml"));
    }

    #[test]
    fn documents_and_lists() {
        check(
            "# a comment\n---\nkind: Pod\nmetadata: {name: a}\n--- # another\n\n---\nkind: Pod\nmetadata:\n  name: b\n...\n",
            expect![[r#"
                document 1: "Pod" a
                document 2: "Pod" b
            "#]],
        );
        check(
            "kind: List\nitems:\n- {kind: Pod, metadata: {name: a}}\n- {kind: Node, metadata: {name: b}}\n",
            expect![[r#"
                document 1, item 1: "Pod" a
                document 1, item 2: "Node" b
            "#]],
        );
        check(
            "{kind: PodList, apiVersion: v1, items: [{metadata: {name: a}}]}",
            expect![[r#"
                document 1, item 1: "Pod" a
            "#]],
        );
        // Two objects one after the other, as programs write JSON.
        check(
            "{\"kind\": \"Pod\",\n\t\"metadata\": {\"name\": \"a\"}}\n{\"kind\": \"NodeList\", \"items\": null}",
            expect![[r#"
                document 1: "Pod" a
            "#]],
        );
        // A text of several lines may have what looks like a document's beginning.
        check(
            "kind: ConfigMap\nmetadata: {name: a}\ndata:\n  b: |\n    ---\n    kind: Pod\n",
            expect![[r#"
                document 1: "ConfigMap" a
            "#]],
        );
        check("# only a comment\n", expect![""]);
        check(
            "x: &a {name: n}\nkind: Pod\nmetadata: *a\n",
            expect![[r#"
                document 1: "Pod" -
            "#]],
        );
    }

    #[test]
    fn faults_are_told_with_their_place() {
        check(
            " \n\n",
            expect![[r#"
            it is empty; to remove what it said, remove the file
        "#]],
        );
        check(
            "kind: Pod\n---\nmetadata: {name: a\nspec: 1\n",
            expect![[r#"
                document 2: line 4: while parsing a flow mapping, did not find expected ',' or '}'
            "#]],
        );
        check(
            "kind: Pod\n---\nkind: Pod\nspec: 1\nspec: 2\n",
            expect![[r#"
                document 2: line 5: the key "spec" is there twice
            "#]],
        );
        check(
            "- a\n- b\n",
            expect![[r#"
            document 1: it is not an object but a list; a list of objects has kind: List and the objects in items
        "#]],
        );
        check(
            "just a text\n",
            expect![[r#"
            document 1: it is not an object but a text
        "#]],
        );
        check(
            "metadata: {name: a}\n",
            expect![[r#"
            document 1: the object has no kind
        "#]],
        );
        check(
            "kind: List\nitems: {a: 1}\n",
            expect![[r#"
            document 1: items of List is not a list
        "#]],
        );
        check(
            "kind: List\nitems: [1]\n",
            expect![[r#"
            document 1, item 1: it is not an object
        "#]],
        );
        check(
            "kind: Pod\nx: *nobody\n",
            expect![[r#"
            document 1: line 2: alias references unknown anchor
        "#]],
        );
        check(
            "kind: Pod\na: \"b\0c\"\n",
            expect![[r#"
            line 2: it has a NUL byte, which no text has
        "#]],
        );
        expect![[r#"
            line 2: it is not text in UTF-8
        "#]]
        .assert_eq(&shown(b"kind: Pod\na: \xff\n", "a.yaml"));
        expect![[r#"
            there is no comma between this and what is before it at line 2 column 2
        "#]]
        .assert_eq(&shown(b"{\"kind\": \"Pod\"\n \"a\": 1}", "a.json"));
        // What cannot be seen is named, also in a later document.
        expect![[r#"
            U+00A0 (a non-breaking space) is not allowed here at line 2 column 9
        "#]]
        .assert_eq(&shown("{\"kind\": \"Pod\"}\n{\"kind\":\u{a0}\"Pod\"}".as_bytes(), "a.json"));
        expect![[r#"
            JSON has no comments at line 1 column 17
        "#]]
        .assert_eq(&shown(b"{\"kind\": \"Pod\", // mine\n}", "a.json"));
    }

    #[test]
    fn what_would_take_all_memory_is_refused() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..10 {
            let all = vec![format!("*a{}", level - 1); 10].join(", ");
            bomb.push_str(&format!("a{level}: &a{level} [{all}]\n"));
        }
        let said = shown(bomb.as_bytes(), "a.yaml");
        assert!(said.contains("its aliases (*name) expand to far more"), "{said}");
        let deep = format!("kind: Pod\nspec: {}{}\n", "[".repeat(200), "]".repeat(200));
        let said = shown(deep.as_bytes(), "a.yaml");
        assert!(said.contains("nested more than 64 levels deep"), "{said}");
        let deep = format!("{{\"kind\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        let said = shown(deep.as_bytes(), "a.json");
        assert!(said.contains("recursion limit exceeded"), "{said}");
        let said = take_at_most(1000, std::io::repeat(b'a')).unwrap_err();
        assert_eq!(said, "it has more bytes, and at most 1000 are read: split it");
        assert_eq!(take_at_most(1000, &[b'a'; 1000][..]).unwrap().len(), 1000);
    }

    #[test]
    fn files_of_a_folder_and_what_is_wrong_with_each() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let pod = "kind: Pod\n";
        for name in ["b.yaml", "a.yml", "c.json~", ".hidden.yaml", "README.md"] {
            std::fs::write(at(name), pod).unwrap();
        }
        std::fs::write(at("c.json"), "{\"kind\": \"Node\"}").unwrap();
        std::fs::create_dir(at("folder.yaml")).unwrap();
        symlink("nowhere", at("d.yaml")).unwrap();
        symlink("e.yaml", at("e.yaml")).unwrap();
        symlink("b.yaml", at("f.yaml")).unwrap();
        File::create(at("g.yaml")).unwrap().set_len(LONGEST + 1).unwrap();
        std::os::unix::net::UnixListener::bind(at("h.yaml")).unwrap();
        let pipe = rustix::fs::CWD;
        rustix::fs::mknodat(pipe, at("i.yaml"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let read = read(&[folder.path().to_owned()]).unwrap();
        let lines: String = read
            .iter()
            .map(|file| {
                let name = file.path.file_name().unwrap().display();
                match &file.objects {
                    Ok(objects) => format!("{name}: {}\n", objects.len()),
                    Err(why) => format!("{name}: {why}\n"),
                }
            })
            .collect();
        expect![[r#"
            a.yml: 1
            b.yaml: 1
            c.json: 1
            d.yaml: it is a link to nowhere, which does not exist
            e.yaml: it is a link that leads back to itself
            f.yaml: 1
            g.yaml: it has 67108865 bytes, and at most 67108864 are read: split it
            h.yaml: it cannot be opened: No such device or address
            i.yaml: it is not a file but a device, a pipe or a socket
        "#]]
        .assert_eq(&lines);
        let refused = |name: &str| {
            let said = super::read(&[at(name)]).unwrap_err();
            said.replace(&folder.path().display().to_string(), "")
        };
        assert_eq!(refused("none"), "/none: there is no such file or folder");
        assert_eq!(refused("d.yaml"), "/d.yaml: it is a link to nowhere, which does not exist");
    }
}
