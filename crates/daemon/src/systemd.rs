//! What systemd knows of the services, and what it has to do with them, by `systemctl`. Only the
//! commands of `netwrightd agent` use this, never a service.

use std::path::Path;
use std::process::{Command, Stdio};

use agent::Config;
use agent::change::Change;
use agent::keys;
use agent::report::{AGENT, Report, State};
use agent::units::{self, TARGET};

/// There where systemd is the first process (`man 3 sd_booted`).
const BOOTED: &str = "/run/systemd/system";

/// Reports whether systemd starts the services: its target is active.
pub(crate) fn manages() -> bool {
    Path::new(BOOTED).is_dir() && systemctl(&["is-active", "--quiet", TARGET]).is_ok()
}

/// Has systemd read the configuration, and start, stop and restart services as it says. Returns what
/// failed.
pub(crate) fn apply(change: &Change, new: &Config) -> Vec<String> {
    let mut failed = Vec::new();
    let mut call = |words: &[&str], unit: &str| {
        if let Err(error) = systemctl(&[words, &[unit]].concat()) {
            failed.push(error);
        }
    };
    for service in &change.stop {
        if let Some((socket, _)) = units::socket(service, &agent::Config::default()) {
            call(&["stop"], &socket);
        }
        call(&["stop"], &units::service(service));
    }
    call(&["daemon-reload"], "");
    for changed in &change.restart {
        if let Some((socket, _)) = units::socket(changed.service, &agent::Config::default()) {
            // The path of its socket may be another one.
            call(&["stop"], &units::service(changed.service));
            call(&["restart"], &socket);
        }
        call(&["restart"], &units::service(changed.service));
    }
    // Starts every unit that the target wants by now, also a service that failed because of a wrong
    // configuration.
    call(&["start"], TARGET);
    for service in keys::services() {
        let unit = units::service(service);
        if change.start.contains(&service) {
            call(&["start"], &unit);
        }
    }
    for changed in change.tell.iter().filter(|changed| changed.service != AGENT) {
        call(&["reload"], &units::service(changed.service));
    }
    // The status of no service shows which configuration the agent's own process has read: so it
    // always reads it again.
    let word = if new.agent.listen.is_some() { "reload-or-restart" } else { "stop" };
    call(&[word], &units::service(AGENT));
    failed
}

/// Adds what systemd knows of a service that does not answer.
pub(crate) fn known(report: Report) -> Report {
    let unit = units::service(&report.service);
    let shown = "--property=ActiveState,SubState,Result,ExecMainStatus,NRestarts";
    let Ok(text) = systemctl(&["show", shown, &unit]) else { return report };
    let of = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.unwrap_or_default().to_owned()
    };
    let state = match of("ActiveState").as_str() {
        "active" | "activating" | "reloading" if of("SubState") != "auto-restart" => {
            State::Starting
        }
        "deactivating" => State::Stopping,
        "inactive" => State::Stopped,
        _ => State::Failed,
    };
    let why = (state == State::Failed)
        .then(|| format!("systemd says {}, exit code {}", of("Result"), of("ExecMainStatus")));
    let hint = match state {
        State::Failed if of("ExecMainStatus") == "78" => Some("netwrightd config check".to_owned()),
        State::Failed => Some(format!("journalctl --unit {unit}")),
        State::Stopped if report.enabled => Some(format!("systemctl start {TARGET}")),
        _ => None,
    };
    Report { state, why, hint, restarts: of("NRestarts").parse().unwrap_or_default(), ..report }
}

/// Runs `systemctl`; returns what it prints.
fn systemctl(words: &[&str]) -> Result<String, String> {
    #[expect(clippy::disallowed_methods, reason = "the one program that speaks for systemd")]
    let mut command = Command::new("systemctl");
    command.arg("--no-pager").args(words.iter().filter(|word| !word.is_empty()));
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("run systemctl: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("systemctl {}: {}", words.join(" ").trim(), cni::text::one_line(said.trim())))
}
