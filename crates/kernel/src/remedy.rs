//! What an operator can do about an error that the system returned.
//!
//! The command line, the plugins and the daemon all use this module, so that each says the same
//! about the same error. A caller adds only what it alone knows, such as the option that names
//! another folder.

use rustix::thread::{CapabilitySet, CapabilitySets};

/// The system's messages in lower case, and what an operator does about each. The wording is that
/// of musl, glibc, Go and [`Errno`](crate::Errno).
const REMEDIES: [(&[&str], &str); 2] = [
    (&["quota exceeded"], "the quota is used up: make room on the file system of the named path"),
    (&["read-only file system"], "what the message names is mounted read-only: mount it writable"),
];

const NO_SPACE: &str = "the disk is full: make room on the file system of the named path (`df`, and `df -i` for files)";

/// What a file system without room says, and what netlink adds to it: no disk holds what netlink is
/// asked for.
const FULL: (&str, &str) = ("no space left on device", " (enospc)");

/// The kernel's messages to a process that lacks a privilege.
const REFUSALS: [&str; 2] = ["permission denied", "operation not permitted"];

/// The remedy for a user who is not root.
pub const BE_ROOT: &str = "run as root";

/// Root lacks a privilege only if it was taken away.
const NOT_EVEN_ROOT: &str = "root is refused too: a container without the capability (CAP_NET_ADMIN, CAP_SYS_ADMIN), a \
                             security module (SELinux, AppArmor) or the file's mode and attributes can be the reason";

/// Returns the remedy for the first system error that a text ends with or contains, if that error
/// has one.
///
/// ```
/// assert_eq!(kernel::remedy::of("cannot list /etc/x: Not a directory (os error 20)"), None);
/// ```
#[must_use]
pub fn of(text: &str) -> Option<&'static str> {
    remedy(text, is_root())
}

/// Says whether this process runs as root.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Says whether this process runs as root without the capability to configure networks.
#[must_use]
pub fn lacks_net_admin() -> bool {
    let has = |sets: CapabilitySets| sets.effective.contains(CapabilitySet::NET_ADMIN);
    is_root() && rustix::thread::capabilities(None).is_ok_and(|sets| !has(sets))
}

fn remedy(text: &str, root: bool) -> Option<&'static str> {
    let text = text.to_lowercase();
    let says = |words: &[&str]| words.iter().any(|words| text.contains(words));
    if says(&REFUSALS) {
        return Some(if root { NOT_EVEN_ROOT } else { BE_ROOT });
    }
    let mut full = text.match_indices(FULL.0).map(|(at, words)| at + words.len());
    if full.any(|end| !text[end..].starts_with(FULL.1)) {
        return Some(NO_SPACE);
    }
    REMEDIES.iter().find(|(words, _)| says(words)).map(|(_, remedy)| *remedy)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::Errno;

    /// The texts that Rust's library, our netlink and Go produce for an error number.
    fn texts(number: i32, go: &str) -> [String; 3] {
        let io = io::Error::from_raw_os_error(number);
        [
            format!("create \"/run/x\": {io}"),
            format!("netlink: {}", Errno(number)),
            format!("mkdir /run/x: {go}"),
        ]
    }

    #[test]
    fn a_right_that_is_missing_is_roots_or_nobodys() {
        for (number, go) in [(1, "operation not permitted"), (13, "permission denied")] {
            for text in texts(number, go) {
                assert_eq!(remedy(&text, false), Some(BE_ROOT), "{text}");
                assert_eq!(remedy(&text, true), Some(NOT_EVEN_ROOT), "{text}");
            }
        }
    }

    #[test]
    fn a_full_disk_is_no_question_of_rights() {
        let [file, netlink, _] = texts(28, "");
        assert_eq!(remedy(&file, false), Some(NO_SPACE));
        assert_eq!(remedy("write /run/x: No space left on device", false), Some(NO_SPACE));
        assert_eq!(remedy(&netlink, false), None, "no disk holds what netlink is asked for");
        let quota = io::Error::from_raw_os_error(122).to_string();
        assert!(remedy(&quota, false).is_some_and(|text| text.starts_with("the quota")), "{quota}");
    }

    #[test]
    fn a_read_only_mount_is_named_as_what_it_is() {
        let [file, _, go] = texts(30, "read-only file system");
        for text in [file, go] {
            let told = remedy(&text, true).unwrap_or_default();
            assert!(told.contains("mounted read-only"), "{text}: {told}");
        }
        let [file, ..] = texts(2, "");
        assert_eq!(remedy(&file, false), None);
    }
}
