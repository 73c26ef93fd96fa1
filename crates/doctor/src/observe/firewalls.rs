//! Reads which firewalls a command of their own changes now. One that is off, or gone, may have left
//! chains, which no such command changes.

use std::fs;
use std::path::Path;

use diagnose::model::Program;

use super::legacy::installed;

/// Where ufw keeps whether it is switched on (`man 8 ufw-framework`).
const UFW: &str = "/etc/ufw/ufw.conf";

/// Returns the firewalls that are on and whose command is there. Another one may have rules, too.
pub(super) fn read(programs: &[Program]) -> Vec<String> {
    let is_running = |name: &str| programs.iter().any(|program| program.name == name);
    let all = [
        ("firewalld", "firewall-cmd", is_running("firewalld")),
        ("ufw", "ufw", is_enabled(Path::new(UFW))),
    ];
    let of_use =
        all.into_iter().filter(|(_, command, is_on)| *is_on && installed(command).is_some());
    of_use.map(|(name, ..)| name.to_owned()).collect()
}

/// Says whether a file of ufw switches it on; the last line that sets it counts.
fn is_enabled(file: &Path) -> bool {
    let text = fs::read_to_string(file).unwrap_or_default();
    let mut values = text.lines().filter_map(|line| line.trim().strip_prefix("ENABLED="));
    values.next_back().is_some_and(|value| value.trim_matches(['"', '\'', ' ']) == "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ufw_is_on_if_its_file_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ufw.conf");
        assert!(!is_enabled(&file));
        for (text, expected) in [
            ("ENABLED=no\n", false),
            ("# ENABLED=yes\nENABLED=no\n", false),
            ("ENABLED=yes\nLOGLEVEL=low\n", true),
            ("ENABLED=\"yes\"", true),
            ("LOGLEVEL=yes\n", false),
        ] {
            fs::write(&file, text).unwrap();
            assert_eq!(is_enabled(&file), expected, "{text:?}");
        }
    }
}
