//! Compares two releases: which file of which artefact differs.

use std::collections::{BTreeMap, BTreeSet};

use crate::archive::{gunzip, untar};
use crate::tree::{Entry, Tree};
use crate::{deb, oci, rpm};

/// The list of hashes, which differs whenever anything does.
pub(crate) const SUMS: &str = "SHA256SUMS";

/// The end of an image's name.
pub(crate) const IMAGE: &str = ".oci.tar";

/// Returns what differs, a line each; nothing if all is equal. A folder is its files by their
/// names.
pub(crate) fn folders(
    one: &BTreeMap<String, Vec<u8>>,
    other: &BTreeMap<String, Vec<u8>>,
) -> Vec<String> {
    let mut lines = Vec::new();
    let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    for name in names {
        match (one.get(name), other.get(name)) {
            (Some(_), None) => lines.push(format!("{name}: only in the first")),
            (None, Some(_)) => lines.push(format!("{name}: only in the second")),
            (Some(a), Some(b)) if a != b && name != SUMS => lines.extend(artefacts(name, a, b)),
            _ => {}
        }
    }
    lines
}

/// Returns what differs between two artefacts of one name, which are not equal.
fn artefacts(name: &str, a: &[u8], b: &[u8]) -> Vec<String> {
    let (Some(a_parts), Some(b_parts)) = (parts(name, a), parts(name, b)) else {
        return vec![format!("{name}: {}", bytes(a, b))];
    };
    let mut lines = Vec::new();
    let keys: BTreeSet<&String> = a_parts.keys().chain(b_parts.keys()).collect();
    for part in keys {
        let empty = Tree::default();
        let tree = |parts: &BTreeMap<String, Tree>| parts.get(part).unwrap_or(&empty).clone();
        let before = if part.is_empty() { name.to_owned() } else { format!("{name}: {part}") };
        let lines_of_part = trees(&tree(&a_parts), &tree(&b_parts));
        lines.extend(lines_of_part.into_iter().map(|line| format!("{before}: {line}")));
    }
    if lines.is_empty() {
        lines.push(format!("{name}: the same files, packed in another way"));
    }
    lines
}

/// Returns the trees in an artefact, by the names of its parts; nothing for one that has none or is
/// damaged.
fn parts(name: &str, bytes: &[u8]) -> Option<BTreeMap<String, Tree>> {
    let part = |name: &str, tree| (name.to_owned(), tree);
    if name.ends_with(".tar.gz") || name.ends_with(".tgz") {
        return Some(BTreeMap::from([part("", untar(&gunzip(bytes).ok()?).ok()?)]));
    }
    if name.ends_with(".deb") {
        let deb::Contents { control, data } = deb::read(bytes).ok()?;
        return Some(BTreeMap::from([part("control", control), part("data", data)]));
    }
    if name.ends_with(".rpm") {
        return Some(BTreeMap::from([part("", rpm::read(bytes)?)]));
    }
    if name.ends_with(IMAGE) {
        let mut parts = BTreeMap::new();
        for (architecture, layers) in oci::read(bytes).ok()? {
            for (number, layer) in layers.into_iter().enumerate() {
                parts.insert(format!("{architecture}, layer {}", number + 1), layer);
            }
        }
        return Some(parts);
    }
    None
}

fn trees(a: &Tree, b: &Tree) -> Vec<String> {
    let paths: BTreeSet<&str> = a.entries().chain(b.entries()).map(|(path, _)| path).collect();
    let line = |path: &&str| match (a.get(path), b.get(path)) {
        (Some(_), None) => Some(format!("{path} is only in the first")),
        (None, Some(_)) => Some(format!("{path} is only in the second")),
        (Some(a), Some(b)) if a != b => Some(format!("{path}: {}", entries(a, b))),
        _ => None,
    };
    paths.iter().filter_map(line).collect()
}

fn entries(a: &Entry, b: &Entry) -> String {
    if a.content == b.content {
        return format!("mode {:o} and {:o}", a.mode, b.mode);
    }
    bytes(a.bytes(), b.bytes())
}

/// Says how bytes differ.
fn bytes(a: &[u8], b: &[u8]) -> String {
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    format!("differs from byte {same} on ({} and {} bytes)", a.len(), b.len())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::folders;
    use crate::goods::Architecture::{Aarch64, X86_64};
    use crate::goods::tests::{built, texts};
    use crate::make::artefacts;

    fn release() -> BTreeMap<String, Vec<u8>> {
        artefacts(&texts(), &[built(X86_64), built(Aarch64)]).unwrap()
    }

    #[test]
    fn two_releases_of_the_same_are_equal() {
        assert_eq!(folders(&release(), &release()), [""; 0]);
    }

    /// A flipped byte may make an artefact unreadable; then its own name is all there is to say.
    #[test]
    fn one_flipped_byte_is_found_in_each_artefact() {
        let first = release();
        for (name, bytes) in &first {
            let mut second = first.clone();
            let place = bytes.len() / 2;
            second.get_mut(name).unwrap()[place] ^= 1;
            let said = folders(&first, &second);
            if name == super::SUMS {
                assert_eq!(said, [""; 0], "what it lists is compared itself");
            } else {
                assert!(said.iter().all(|line| line.starts_with(name.as_str())), "{said:?}");
                assert!(!said.is_empty(), "{name}");
            }
        }
    }

    #[test]
    fn the_file_that_differs_is_named() {
        let first = release();
        let mut other = built(X86_64);
        other.programs[0].bytes.push(0);
        let second = artefacts(&texts(), &[other, built(Aarch64)]).unwrap();
        let said: Vec<String> = folders(&first, &second)
            .into_iter()
            .map(|line| line.split(": differs from byte ").next().unwrap().to_owned())
            .collect();
        let archive = "netwright-0.1.0-x86_64-unknown-linux-musl";
        assert_eq!(
            said,
            [
                "netwright-0.1.0-1.x86_64.rpm: header".to_owned(),
                "netwright-0.1.0-1.x86_64.rpm: usr/bin/netwright".to_owned(),
                format!("{archive}.tar.gz: {archive}/bin/netwright"),
                "netwright-0.1.0.oci.tar: amd64, layer 2: opt/netwright/netwright".to_owned(),
                "netwright_0.1.0-1_amd64.deb: control: md5sums".to_owned(),
                "netwright_0.1.0-1_amd64.deb: data: usr/bin/netwright".to_owned(),
            ]
        );
    }

    #[test]
    fn an_artefact_of_another_version_is_named() {
        let first = release();
        let mut second = first.clone();
        second.insert("netwright-0.0.9.oci.tar".to_owned(), Vec::new());
        assert_eq!(folders(&first, &second), ["netwright-0.0.9.oci.tar: only in the second"]);
        assert_eq!(folders(&second, &first), ["netwright-0.0.9.oci.tar: only in the first"]);
    }
}
