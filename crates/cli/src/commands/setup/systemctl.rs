//! Asks and controls systemd through `systemctl`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cni::code;
use cni::text::one_line;
use doctor::programs;

use super::record::UnitState;
use crate::failure::Failure;

/// Exists where systemd is the first process (`man 3 sd_booted`).
const BOOTED: &str = "/run/systemd/system";

/// How long a call may take: a service may take 90 s to start (`man 5 systemd-system.conf`
/// "DefaultTimeoutStartSec"), and one that it waits for as long again.
const TIMEOUT: Duration = Duration::from_secs(300);

/// What systemd knows of a unit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) name: String,
    /// systemd has read a file of it.
    pub(super) is_loaded: bool,
    /// Its file has changed since.
    pub(super) is_outdated: bool,
    pub(super) is: UnitState,
    pub(super) file: PathBuf,
}

/// Says whether systemd is the first process.
pub(super) fn is_booted() -> bool {
    Path::new(BOOTED).is_dir()
}

/// Runs `systemctl`, and returns what it prints.
pub(super) fn call(words: &[&str]) -> Result<String, Failure> {
    let said = words.join(" ");
    let failed = |why: &dyn std::fmt::Display| {
        Failure::new(code::IO_FAILURE, format!("systemctl {said}")).because(why)
    };
    #[expect(clippy::disallowed_methods, reason = "the one program that speaks for systemd")]
    let mut command = Command::new("systemctl");
    let output = programs::output(command.arg("--no-pager").args(words), TIMEOUT)
        .map_err(|error| failed(&error))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let why = one_line(String::from_utf8_lossy(&output.stderr).trim());
    Err(failed(&if why.is_empty() { output.status.to_string() } else { why }))
}

/// Returns what systemd knows of these units, in the same order.
pub(super) fn units(names: &[String]) -> Result<Vec<Unit>, Failure> {
    let mut words = vec![
        "show",
        "--property=Id,LoadState,ActiveState,UnitFileState,FragmentPath,NeedDaemonReload",
    ];
    words.extend(names.iter().map(String::as_str));
    let text = call(&words)?;
    // A unit that is an alias has another name.
    let shown: Vec<Unit> =
        text.split("\n\n").filter(|block| !block.trim().is_empty()).map(unit).collect();
    if shown.len() != names.len() {
        return Err(Failure::new(
            code::DECODE_FAILURE,
            format!("systemctl show: it has {} answers for {} units", shown.len(), names.len()),
        ));
    }
    Ok(shown
        .into_iter()
        .zip(names)
        .map(|(unit, name)| Unit { name: name.clone(), ..unit })
        .collect())
}

fn unit(block: &str) -> Unit {
    let of = |key: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.unwrap_or_default()
    };
    Unit {
        name: String::new(),
        is_loaded: of("LoadState") == "loaded",
        is_outdated: of("NeedDaemonReload") == "yes",
        is: UnitState {
            enabled: matches!(of("UnitFileState"), "enabled" | "enabled-runtime"),
            active: matches!(of("ActiveState"), "active" | "activating" | "reloading"),
        },
        file: of("FragmentPath").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_systemd_shows_is_read() {
        let block = "Id=cni-dhcp.socket\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\n\
                     FragmentPath=/lib/systemd/system/cni-dhcp.socket\nNeedDaemonReload=no";
        let read = unit(block);
        assert!(read.is_loaded && !read.is_outdated);
        assert_eq!(read.is, UnitState { enabled: true, active: true });
        assert_eq!(read.file, Path::new("/lib/systemd/system/cni-dhcp.socket"));
        let none = "Id=x.service\nLoadState=not-found\nActiveState=inactive\nUnitFileState=\nFragmentPath=";
        assert_eq!(unit(none), Unit::default());
    }
}
