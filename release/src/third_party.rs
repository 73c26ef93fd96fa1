//! The licences of what is linked into the executables: a distributor of the executables must show
//! them.
//!
//! The crates are those of the bill of materials; the texts are in their sources. Equal texts are
//! written once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The beginnings of the names of files with licences, copyrights and notices in the sources of
/// crates.
const NAMES: [&str; 5] = ["license", "licence", "copying", "copyright", "notice"];

/// The texts of what the linker adds, by the names in the bill of materials.
const LINKED: [(&str, &str); 4] = [
    ("rust-std", include_str!("../licences/rust-std.txt")),
    ("musl", include_str!("../licences/musl.txt")),
    ("libunwind", include_str!("../licences/libunwind.txt")),
    ("libgcc", include_str!("../licences/libgcc.txt")),
];

/// Crates whose packages have no licence's text; the licence's name is all that they say.
const WITHOUT_TEXT: &str = "The package has no text of its licence.";

/// The texts, each with the crates that have it.
#[derive(Debug, Default)]
pub(crate) struct Licences {
    /// Crates as `name version`, with their licence.
    crates: BTreeMap<String, String>,
    /// Which crates have a text.
    texts: BTreeMap<String, BTreeSet<String>>,
}

/// The licences are not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ThirdPartyError {
    #[error("the bill of materials: {what}")]
    Bill { what: String },
    #[error("the sources of {name} are not here")]
    Sources { name: String },
    #[error("read {path:?}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl Licences {
    /// Adds what an executable has by its bill.
    pub(crate) fn add(
        &mut self,
        executable: &str,
        bill: &[u8],
        sources: &[PathBuf],
    ) -> Result<(), ThirdPartyError> {
        let wrong = |what: &str| ThirdPartyError::Bill { what: format!("{what} ({executable})") };
        let bill: Value =
            serde_json::from_slice(bill).map_err(|error| wrong(&error.to_string()))?;
        let components = bill["components"].as_array().ok_or_else(|| wrong("no components"))?;
        for component in components {
            let text = |value: &Value| value.as_str().map(str::to_owned);
            let (name, version) = (text(&component["name"]), text(&component["version"]));
            let (Some(name), Some(version)) = (name, version) else {
                return Err(wrong("a component without name or version"));
            };
            let licence = text(&component["licenses"][0]["expression"]).unwrap_or_default();
            let who = format!("{name} {version}");
            let purl = component["purl"].as_str().unwrap_or_default();
            let is_ours = name.starts_with("netwright");
            if is_ours || self.crates.insert(who.clone(), licence).is_some() {
                continue;
            }
            if purl.starts_with("pkg:cargo/") {
                let folder = format!("{name}-{version}");
                let mut found = sources.iter().map(|sources| sources.join(&folder));
                let folder = found.find(|folder| folder.is_dir());
                let folder =
                    folder.ok_or_else(|| ThirdPartyError::Sources { name: who.clone() })?;
                for text in texts_in(&folder)? {
                    self.texts.entry(text).or_default().insert(who.clone());
                }
            } else {
                let text = LINKED.iter().find(|(linked, _)| *linked == name);
                let (_, text) = text.ok_or_else(|| wrong(&format!("{name} is not known")))?;
                self.texts.entry(text.trim().to_owned()).or_default().insert(who);
            }
        }
        Ok(())
    }

    /// Returns all of them as one text.
    pub(crate) fn text(&self) -> String {
        let mut text = String::from(
            "The executables of Netwright contain the following, under these licences. The texts\n\
             follow; a text that several have is there once.\n\n",
        );
        for (who, licence) in &self.crates {
            let has_text = self.texts.values().any(|owners| owners.contains(who));
            let note = if has_text { String::new() } else { format!(" ({WITHOUT_TEXT})") };
            let _ = writeln!(text, "{who}: {licence}{note}");
        }
        for (licence, owners) in &self.texts {
            let owners: Vec<&str> = owners.iter().map(String::as_str).collect();
            let _ = write!(text, "\n{}\n{}\n\n{licence}\n", "-".repeat(80), owners.join(", "));
        }
        text
    }
}

/// Returns the licences' texts in a crate's folder, without differences of line ends.
fn texts_in(folder: &Path) -> Result<Vec<String>, ThirdPartyError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        |source| ThirdPartyError::Read { path, source }
    };
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed(folder))? {
        let path = entry.map_err(failed(folder))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        if NAMES.iter().any(|start| name.starts_with(start)) && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    let mut texts = Vec::new();
    for path in paths {
        let bytes = fs::read(&path).map_err(failed(&path))?;
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        texts.push(lines.join("\n").trim_matches('\n').to_owned());
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::{Licences, ThirdPartyError};

    const BILL: &str = r#"{"components": [
        {"name": "a", "version": "1.0.0", "purl": "pkg:cargo/a@1.0.0", "licenses": [{"expression": "MIT"}]},
        {"name": "b", "version": "2.0.0", "purl": "pkg:cargo/b@2.0.0", "licenses": [{"expression": "MIT"}]},
        {"name": "c", "version": "3.0.0", "purl": "pkg:cargo/c@3.0.0", "licenses": [{"expression": "Zlib"}]},
        {"name": "musl", "version": "1.2.5", "purl": "pkg:generic/musl@1.2.5", "licenses": [{"expression": "MIT"}]},
        {"name": "netwright-cni", "version": "0.1.0", "purl": "pkg:cargo/netwright-cni@0.1.0", "licenses": []}
    ]}"#;

    const OTHER: &str =
        r#"{"components": [{"name": "libc", "version": "1", "purl": "pkg:generic/libc@1"}]}"#;

    #[test]
    fn equal_texts_are_there_once() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("a-1.0.0/LICENSE-MIT", "Permission is granted\r\n");
        write("a-1.0.0/src/license.rs", "code");
        write("b-2.0.0/license.txt", "Permission is granted\n\n");
        write("b-2.0.0/NOTICE", "Made by B.\n");
        write("c-3.0.0/README.md", "read me");
        let sources = [dir.path().to_owned()];
        let mut licences = Licences::default();
        licences.add("netwright", BILL.as_bytes(), &sources).unwrap();
        licences.add("netwrightd", BILL.as_bytes(), &sources).unwrap();
        let text = licences.text();
        let (_, text) = text.split_once("\n\n").unwrap();
        let line = "-".repeat(80);
        assert_eq!(
            text,
            format!(
                "a 1.0.0: MIT\nb 2.0.0: MIT\n\
                 c 3.0.0: Zlib (The package has no text of its licence.)\n\
                 musl 1.2.5: MIT\n\
                 \n{line}\nmusl 1.2.5\n\n{}\n\
                 \n{line}\nb 2.0.0\n\nMade by B.\n\
                 \n{line}\na 1.0.0, b 2.0.0\n\nPermission is granted\n",
                include_str!("../licences/musl.txt").trim()
            )
        );
    }

    #[test]
    fn what_is_not_known_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let sources = [dir.path().to_owned()];
        let add = |bill: &str| Licences::default().add("x", bill.as_bytes(), &sources);
        assert!(matches!(add(BILL), Err(ThirdPartyError::Sources { name }) if name == "a 1.0.0"));
        for bill in ["", "{}", r#"{"components": [{"name": "a"}]}"#, OTHER] {
            assert!(matches!(add(bill), Err(ThirdPartyError::Bill { .. })), "{bill}");
        }
    }
}
