//! The contents of the shipped executables: a bill of materials for each, in CycloneDX's JSON
//! (1.6).
//!
//! `cargo xtask dist` writes it beside the executable. It names the linked crates, with the
//! checksums of `Cargo.lock`, and what else a static executable contains: Rust's standard library,
//! musl, and an unwinder. The same sources and tools give the same text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::deny::packages;
use crate::musl::{LinkSettings, Way};
use crate::run::{Program, root};

/// The second half of the file's name.
const EXTENSION: &str = "cdx.json";

/// A component, as `cargo tree` or a package manager describes it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Component {
    name: String,
    version: String,
    licence: String,
    repository: String,
    purl: String,
    sha256: String,
}

/// A graph of components: which needs which, by their purls.
#[derive(Debug, Default, PartialEq, Eq)]
struct Graph {
    components: BTreeMap<String, Component>,
    needs: BTreeMap<String, BTreeSet<String>>,
    root: String,
}

/// Writes an executable's bill of materials beside it.
pub(crate) fn write(package: &str, executable: &Path, linked: &LinkSettings) -> Result<(), String> {
    let mut graph = crates_of(package, linked.triple())?;
    for component in toolchain(linked)? {
        let (root, purl) = (graph.root.clone(), component.purl.clone());
        graph.needs.entry(root).or_default().insert(purl.clone());
        graph.needs.entry(purl.clone()).or_default();
        graph.components.insert(purl, component);
    }
    let sum = Program::new("sha256sum").arg(executable.display().to_string()).output()?;
    let sum = sum.split_whitespace().next().unwrap_or_default().to_owned();
    if let Some(root) = graph.components.get_mut(&graph.root) {
        root.sha256 = sum;
    }
    let path = executable.with_extension(EXTENSION);
    fs::write(&path, document(&graph)).map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns the crates that are linked into a package's executable.
fn crates_of(package: &str, triple: &str) -> Result<Graph, String> {
    let line = format!(
        "cargo tree --locked --target {triple} --package {package} --edges normal,no-proc-macro --prefix depth --charset ascii --format"
    );
    let tree = Program::new(&line).arg("{p}|{l}|{r}").output()?;
    let lock =
        fs::read_to_string(root().join("Cargo.lock")).map_err(|e| format!("Cargo.lock: {e}"))?;
    graph(&tree, &lock)
}

fn graph(tree: &str, lock: &str) -> Result<Graph, String> {
    let checksums: BTreeMap<(&str, &str), &str> = packages(lock)
        .filter_map(|package| Some(((package.name, package.version), package.checksum?)))
        .collect();
    let mut graph = Graph::default();
    // The last component at each depth: the one at the previous depth needs the next.
    let mut path: Vec<String> = Vec::new();
    for line in tree.lines() {
        let (depth, component) = read(line).ok_or_else(|| format!("cargo tree said: {line}"))?;
        let sha256 = checksums.get(&(component.name.as_str(), component.version.as_str()));
        let component = Component { sha256: sha256.unwrap_or(&"").to_string(), ..component };
        path.truncate(depth);
        match path.last() {
            Some(parent) => {
                graph.needs.entry(parent.clone()).or_default().insert(component.purl.clone());
            }
            None => graph.root.clone_from(&component.purl),
        }
        path.push(component.purl.clone());
        graph.needs.entry(component.purl.clone()).or_default();
        graph.components.insert(component.purl.clone(), component);
    }
    Ok(graph)
}

/// Reads `2serde v1.0.0 (/path)|MIT OR Apache-2.0|https://… (*)`.
fn read(line: &str) -> Option<(usize, Component)> {
    let mut fields = line.strip_suffix(" (*)").unwrap_or(line).split('|');
    let (package, licence, repository) = (fields.next()?, fields.next()?, fields.next()?);
    let digits = package.chars().take_while(char::is_ascii_digit).count();
    let depth = package.get(..digits)?.parse().ok()?;
    let mut words = package.get(digits..)?.split(' ');
    let name = words.next()?.to_owned();
    let version = words.next()?.trim_start_matches('v').to_owned();
    let component = Component {
        purl: format!("pkg:cargo/{name}@{version}"),
        // Old manifests write this for OR.
        licence: licence.replace('/', " OR "),
        repository: repository.to_owned(),
        sha256: String::new(),
        name,
        version,
    };
    Some((depth, component))
}

/// The components that the linker adds.
fn toolchain(linked: &LinkSettings) -> Result<Vec<Component>, String> {
    let version = |line: &str| Program::new(line).output().map(|text| text.trim().to_owned());
    let rust = version("rustc --version")?;
    let rust = rust.split(' ').nth(1).unwrap_or_default().to_owned();
    let component =
        |name: &str, version: String, kind: &str, licence: &str, repository: &str| Component {
            purl: format!("pkg:{kind}/{name}@{version}"),
            name: name.to_owned(),
            version,
            licence: licence.to_owned(),
            repository: repository.to_owned(),
            sha256: String::new(),
        };
    let std = |rust| {
        let repository = "https://github.com/rust-lang/rust";
        component("rust-std", rust, "generic", "MIT OR Apache-2.0", repository)
    };
    let musl = |version, kind| {
        component("musl", version, kind, "MIT", "https://git.musl-libc.org/cgit/musl")
    };
    // Rust's target for musl comes with musl, and with LLVM's unwinder.
    if linked.way() == Way::Target {
        let repository = "https://github.com/llvm/llvm-project";
        let licence = "Apache-2.0 WITH LLVM-exception";
        let unwinder = component("libunwind", rust.clone(), "generic", licence, repository);
        return Ok(vec![std(rust), musl(musl_of_rust(linked.triple())?, "generic"), unwinder]);
    }
    let debians = version("dpkg-query --show --showformat=${Version} musl-dev")?;
    let licence = "GPL-3.0-or-later WITH GCC-exception-3.1";
    let gcc = version("gcc -dumpfullversion")?;
    let repository = "https://gcc.gnu.org/git/gcc.git";
    let unwinder = component("libgcc", gcc, "generic", licence, repository);
    Ok(vec![std(rust), musl(debians, "deb/debian"), unwinder])
}

/// Returns the version of musl that comes with Rust's target for it: the archive has it as a text.
fn musl_of_rust(triple: &str) -> Result<String, String> {
    let dir = Program::new("rustc --print target-libdir --target").arg(triple).output()?;
    let path = Path::new(dir.trim_end()).join("self-contained/libc.a");
    let archive = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let version = version_of_musl(&archive);
    version.ok_or_else(|| format!("{} does not say its version", path.display()))
}

/// Finds musl's version (`src/internal/version.c`): a C string such as `1.2.5`.
fn version_of_musl(archive: &[u8]) -> Option<String> {
    let mut texts = archive.split(|byte| *byte == 0).filter_map(|text| str::from_utf8(text).ok());
    let is_version = |text: &&str| {
        let parts: Vec<&str> = text.split('.').collect();
        let numbers = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        parts.len() == 3 && parts[0] == "1" && parts.iter().all(numbers)
    };
    texts.find(is_version).map(str::to_owned)
}

fn document(graph: &Graph) -> String {
    let mut text = String::from(
        "{\n  \"$schema\": \"http://cyclonedx.org/schema/bom-1.6.schema.json\",\n  \"bomFormat\": \"CycloneDX\",\n  \
         \"specVersion\": \"1.6\",\n  \"version\": 1,\n  \"metadata\": { \"component\": ",
    );
    if let Some(root) = graph.components.get(&graph.root) {
        text += &component(root, "application");
    }
    text += " },\n  \"components\": [\n";
    let others = graph.components.values().filter(|component| component.purl != graph.root);
    let others: Vec<String> =
        others.map(|one| format!("    {}", component(one, "library"))).collect();
    text += &others.join(",\n");
    text += "\n  ],\n  \"dependencies\": [\n";
    let needs = graph.needs.iter().map(|(one, needed)| {
        let needed: Vec<String> = needed.iter().map(|purl| quoted(purl)).collect();
        format!("    {{ \"ref\": {}, \"dependsOn\": [{}] }}", quoted(one), needed.join(", "))
    });
    text += &needs.collect::<Vec<_>>().join(",\n");
    text += "\n  ]\n}\n";
    text
}

fn component(one: &Component, kind: &str) -> String {
    let purl = quoted(&one.purl);
    let mut text = format!(
        "{{ \"type\": \"{kind}\", \"bom-ref\": {purl}, \"name\": {}, \"version\": {}",
        quoted(&one.name),
        quoted(&one.version)
    );
    if !one.sha256.is_empty() {
        let _ = write!(
            text,
            ", \"hashes\": [{{ \"alg\": \"SHA-256\", \"content\": {} }}]",
            quoted(&one.sha256)
        );
    }
    let _ = write!(
        text,
        ", \"licenses\": [{{ \"expression\": {} }}], \"purl\": {purl}",
        quoted(&one.licence)
    );
    if !one.repository.is_empty() {
        let _ = write!(
            text,
            ", \"externalReferences\": [{{ \"type\": \"vcs\", \"url\": {} }}]",
            quoted(&one.repository)
        );
    }
    text + " }"
}

/// A text in JSON's notation.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(letter));
            }
            letter => quoted.push(letter),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    const TREE: &str = "0netwright v0.1.0 (/w/crates/cli)|Apache-2.0|https://example.com/n\n\
        1a v1.0.0|MIT/Apache-2.0|https://example.com/a\n\
        2b v2.0.0|MIT|\n\
        1b v2.0.0|MIT| (*)\n";
    const LOCK: &str =
        "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"r\"\nchecksum = \"0a\"\n";

    #[test]
    fn who_needs_whom_is_read() {
        let graph = graph(TREE, LOCK).unwrap();
        assert_eq!(graph.root, "pkg:cargo/netwright@0.1.0");
        let needs = |purl: &str| graph.needs[purl].iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!(needs("pkg:cargo/netwright@0.1.0"), ["pkg:cargo/a@1.0.0", "pkg:cargo/b@2.0.0"]);
        assert_eq!(needs("pkg:cargo/a@1.0.0"), ["pkg:cargo/b@2.0.0"]);
        assert_eq!(needs("pkg:cargo/b@2.0.0"), [""; 0]);
        assert_eq!(graph.components["pkg:cargo/a@1.0.0"].sha256, "0a");
        assert_eq!(graph.components["pkg:cargo/a@1.0.0"].licence, "MIT OR Apache-2.0");
        assert!(super::graph("nonsense", LOCK).is_err());
    }

    /// The requirements of CycloneDX 1.6 for a document, as far as ours uses it.
    fn valid(document: &str) -> Value {
        let bill: Value = serde_json::from_str(document).unwrap();
        assert_eq!(
            (&bill["bomFormat"], &bill["specVersion"]),
            (&"CycloneDX".into(), &"1.6".into())
        );
        let of = |value: &Value| value.as_array().unwrap().clone();
        let mut components = of(&bill["components"]);
        components.push(bill["metadata"]["component"].clone());
        let mut known = BTreeSet::new();
        for one in &components {
            let text = |key: &str| one[key].as_str().filter(|text| !text.is_empty());
            for key in ["name", "version"] {
                assert!(text(key).is_some(), "{key} of {one}");
            }
            assert!(["application", "library"].contains(&text("type").unwrap()), "{one}");
            assert!(text("purl").unwrap().starts_with("pkg:"), "{one}");
            assert!(!one["licenses"][0]["expression"].as_str().unwrap().contains('/'), "{one}");
            for hash in one["hashes"].as_array().into_iter().flatten() {
                let content = hash["content"].as_str().unwrap();
                assert!(
                    content.len() == 64 && content.bytes().all(|b| b.is_ascii_hexdigit()),
                    "{one}"
                );
            }
            assert!(known.insert(text("bom-ref").unwrap().to_owned()), "listed twice: {one}");
        }
        let edges = of(&bill["dependencies"]);
        assert_eq!(edges.len(), known.len());
        for edge in edges {
            assert!(known.contains(edge["ref"].as_str().unwrap()), "{edge}");
            for needed in of(&edge["dependsOn"]) {
                assert!(known.contains(needed.as_str().unwrap()), "{edge}");
            }
        }
        bill
    }

    #[test]
    fn the_bills_of_what_ships_are_valid_and_whole() {
        let linked = LinkSettings::prepare().unwrap();
        for crate::executable::ShippedExecutable { package, .. } in crate::executable::SHIPPED {
            let mut graph = crates_of(package, linked.triple()).unwrap();
            let root = graph.components.get_mut(&graph.root).unwrap();
            assert_eq!(root.name, package);
            root.sha256 = "ab".repeat(32);
            let bill = valid(&document(&graph));
            let components = bill["components"].as_array().unwrap();
            let name = |name: &str| components.iter().find(|one| one["name"] == name);
            let rustix = name("rustix").unwrap();
            assert!(rustix["hashes"][0]["content"].is_string(), "{rustix}");
            assert!(name("serde_derive").is_none(), "it runs in the compiler");
            assert!(name("netwright-cni").unwrap()["hashes"].is_null());
            assert_eq!(
                document(&graph),
                document(
                    &crates_of(package, linked.triple())
                        .map(|mut again| {
                            again.components.get_mut(&graph.root).unwrap().sha256 = "ab".repeat(32);
                            again
                        })
                        .unwrap()
                )
            );
        }
    }

    #[test]
    fn a_bill_is_written_beside_its_executable() {
        let dir = crate::run::target_dir().join("sbom-test");
        fs::create_dir_all(&dir).unwrap();
        let executable = dir.join("netwright");
        fs::write(&executable, "abc").unwrap();
        let linked = LinkSettings::prepare().unwrap();
        write("netwright", &executable, &linked).unwrap();
        let bill = valid(&fs::read_to_string(dir.join("netwright.cdx.json")).unwrap());
        let sum = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(bill["metadata"]["component"]["hashes"][0]["content"], sum);
        let names = bill["components"].as_array().unwrap().iter().map(|one| one["name"].as_str());
        let names: Vec<_> = names.map(Option::unwrap).collect();
        for name in ["rust-std", "musl", unwinder(&linked), "rustix", "netwright-kernel"] {
            assert!(names.contains(&name), "{name}: {names:?}");
        }
        fs::remove_dir_all(dir).unwrap();
    }

    fn unwinder(linked: &LinkSettings) -> &'static str {
        if linked.way() == Way::Target { "libunwind" } else { "libgcc" }
    }

    #[test]
    fn musls_version_is_read_from_its_archive() {
        let archive = b"!<arch>\n1.2.3.lo\x000\x001.2\x001.x.5\x00.1.2.4\x001.2.5\x009.9.9\x00";
        assert_eq!(version_of_musl(archive).as_deref(), Some("1.2.5"));
        assert_eq!(version_of_musl(b"no version"), None);
    }

    #[test]
    fn the_toolchain_is_named() {
        let linked = LinkSettings::prepare().unwrap();
        let Ok(parts) = toolchain(&linked) else { return };
        let names: Vec<_> = parts.iter().map(|part| part.name.as_str()).collect();
        assert_eq!(names, ["rust-std", "musl", unwinder(&linked)]);
        assert!(
            parts.iter().all(|part| part.version.starts_with(|c: char| c.is_ascii_digit())),
            "{parts:?}"
        );
    }

    #[test]
    fn texts_are_quoted_as_json() {
        let text = "a\"b\\c\nd\u{1}é";
        assert_eq!(serde_json::from_str::<String>(&quoted(text)).unwrap(), text);
    }
}
