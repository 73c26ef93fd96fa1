//! Users, as the caller's user namespace shows them.

use std::fs;
use std::sync::OnceLock;

/// Returns the number under which a user namespace shows every user that it does not have, the
/// machine's root among them (`man 7 user_namespaces`, "Unmapped user and group IDs"); `None` on a
/// machine itself, which has all. The user namespace may have a user of that number too.
#[must_use]
pub fn outside() -> Option<u32> {
    static OUTSIDE: OnceLock<Option<u32>> = OnceLock::new();
    *OUTSIDE.get_or_init(|| {
        let map = fs::read_to_string("/proc/self/uid_map").ok()?;
        let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?;
        if has_all(&map) { None } else { overflow.trim().parse().ok() }
    })
}

/// Says whether a map of users has all of them (`man 7 user_namespaces`, "User and group ID
/// mappings").
fn has_all(map: &str) -> bool {
    let words: Vec<&str> = map.split_whitespace().collect();
    words == ["0", "0", "4294967295"]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_every_user_and_a_user_namespace_some() {
        assert!(has_all("         0          0 4294967295\n"));
        assert!(!has_all("         0       1000          1\n         1     100000      65536\n"));
        assert!(!has_all("0 65534 1\n") && !has_all(""));
    }
}
