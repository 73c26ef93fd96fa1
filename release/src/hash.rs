//! Hashes as text, and the list of them that lies beside a release (`man 1 sha256sum`).

use std::fmt::Write as _;

use md5::Md5;
use sha2::{Digest, Sha256};

/// Returns the SHA-256 of bytes, in hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    digits(&Sha256::digest(bytes))
}

/// Returns the MD5 of bytes: what Debian's packages say of their files.
pub(crate) fn md5(bytes: &[u8]) -> String {
    digits(&Md5::digest(bytes))
}

/// Returns the same as bytes: what packages of RPM say of themselves.
pub(crate) fn md5_bytes(bytes: &[u8]) -> Vec<u8> {
    Md5::digest(bytes).to_vec()
}

fn digits(hash: &[u8]) -> String {
    let mut text = String::with_capacity(2 * hash.len());
    for byte in hash {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Writes the list of hashes of files, in the order of their names.
pub(crate) fn list<'f>(files: impl Iterator<Item = (&'f str, &'f [u8])>) -> String {
    let mut lines: Vec<_> = files.map(|(name, bytes)| (name, sha256(bytes))).collect();
    lines.sort();
    lines.iter().map(|(name, hash)| format!("{hash}  {name}\n")).collect()
}

/// A list of hashes and files do not agree.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Disagreement {
    #[error("line {line} of the list is no hash and name")]
    Line { line: usize },
    #[error("{name} is in the list, and missing")]
    Missing { name: String },
    #[error("{name} is there, and not in the list")]
    Unlisted { name: String },
    #[error("{name} has not the hash of the list")]
    Different { name: String },
}

/// Compares a list with the files that are there, each by its name and hash.
pub(crate) fn check(list: &str, files: &[(String, String)]) -> Vec<Disagreement> {
    let mut problems = Vec::new();
    let mut listed = Vec::new();
    for (number, line) in list.lines().enumerate() {
        match line.split_once("  ") {
            Some((hash, name)) if hash.len() == 64 && !name.is_empty() => listed.push((name, hash)),
            _ => problems.push(Disagreement::Line { line: number + 1 }),
        }
    }
    for (name, hash) in &listed {
        match files.iter().find(|(there, _)| there == name) {
            None => problems.push(Disagreement::Missing { name: (*name).to_owned() }),
            Some((_, is)) if is != hash => {
                problems.push(Disagreement::Different { name: (*name).to_owned() });
            }
            Some(_) => {}
        }
    }
    for (name, _) in files {
        if !listed.iter().any(|(known, _)| known == name) {
            problems.push(Disagreement::Unlisted { name: name.clone() });
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::{Disagreement, check, list, md5, sha256};
    use crate::tests::said_in;

    #[test]
    fn hashes_are_those_of_the_standards() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(b"abc"), abc, "FIPS 180-2, appendix B.1");
        assert_eq!(md5(b"abc"), "900150983cd24fb0d6963f7d28e17f72", "RFC 1321, appendix A.5");
    }

    #[test]
    fn sha256sum_agrees_with_the_list() {
        let dir = tempfile::tempdir().unwrap();
        let files = [("b", &b"two"[..]), ("a.tar.gz", &b"one"[..])];
        for (name, bytes) in files {
            std::fs::write(dir.path().join(name), bytes).unwrap();
        }
        std::fs::write(dir.path().join("SHA256SUMS"), list(files.into_iter())).unwrap();
        let said = said_in(dir.path(), "sha256sum", &["--check", "--strict", "SHA256SUMS"]);
        assert_eq!(said, "a.tar.gz: OK\nb: OK\n");
    }

    #[test]
    fn what_does_not_agree_is_named() {
        let is = |name: &str, text: &str| (name.to_owned(), sha256(text.as_bytes()));
        let text = list([("a", &b"1"[..]), ("b", &b"2"[..])].into_iter());
        assert_eq!(check(&text, &[is("a", "1"), is("b", "2")]), []);
        let name = "b".to_owned();
        assert_eq!(check(&text, &[is("a", "1")]), [Disagreement::Missing { name: name.clone() }]);
        assert_eq!(check(&text, &[is("a", "1"), is("b", "3")]), [Disagreement::Different { name }]);
        let more = [is("a", "1"), is("b", "2"), is("c", "3")];
        assert_eq!(check(&text, &more), [Disagreement::Unlisted { name: "c".to_owned() }]);
        assert_eq!(check("nonsense\n", &[]), [Disagreement::Line { line: 1 }]);
    }
}
