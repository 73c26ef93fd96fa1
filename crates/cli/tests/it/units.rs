//! systemd starts the units in `deploy/systemd`, as an administrator does it, and their services do
//! their work within them.

mod dhcp;
mod docker;
mod looks;
mod pods;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;

use serde_json::Value;
use testkit::{Lab, Place};

use crate::system::NETWRIGHT;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/systemd")
}

/// A host with systemd, plugins and units.
struct Host<'l> {
    lab: &'l Lab,
}

impl<'l> Host<'l> {
    /// Sets up plugins and units in a lab with systemd. No service is enabled.
    fn new(lab: &'l Lab) -> Self {
        lab.sh("mkdir -p /etc/netwright && : >/etc/netwright/netwrightd.toml");
        lab.sh(&format!(
            "{NETWRIGHT} setup --yes --no-config --no-packet --bin-dir /opt/cni/bin --program-dir /opt/cni/bin"
        ));
        Host { lab }
    }

    /// Writes a configuration, and starts what it enables.
    fn enable(&self, configuration: &str) {
        fs::write(self.lab.path("/etc/netwright/netwrightd.toml"), configuration).unwrap();
        self.systemctl("daemon-reload");
        self.systemctl("start netwright.target");
    }

    /// Adds settings to a unit, as `systemctl edit` does.
    fn edit(&self, unit: &str, settings: &str) {
        self.lab.sh(&format!(
            "mkdir -p /etc/systemd/system/{unit}.d && \
             printf '[Service]\n{settings}\n' >/etc/systemd/system/{unit}.d/override.conf"
        ));
        self.systemctl("daemon-reload");
    }

    /// Runs `systemctl`; the failure shows the services' logs.
    #[track_caller]
    fn systemctl(&self, words: &str) -> String {
        let output = self.lab.try_sh(&format!("systemctl --no-pager {words}"));
        assert!(
            output.status.success(),
            "systemctl {words}: {}{}",
            String::from_utf8_lossy(&output.stderr),
            self.said()
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A service's log.
    fn log(&self, unit: &str) -> String {
        fs::read_to_string(self.lab.path(format!("/var/log/{unit}.log"))).unwrap_or_default()
    }

    fn said(&self) -> String {
        self.lab.sh("systemctl --no-pager status '*.service' '*.socket' 2>&1; tail -n 40 /var/log/systemd.log /var/log/*.service.log 2>&1; true")
    }

    /// Asserts that a service runs within its unit's settings, and was not denied anything.
    #[track_caller]
    fn assert_confined(&self, unit: &str) {
        let status = self.main_process(unit);
        let of = |key: &str| status.get(key).map_or("", String::as_str);
        assert_eq!(of("Seccomp"), "2", "{unit} has no filter of system calls");
        assert_eq!(of("NoNewPrivs"), "1", "{unit}");
        let bits = u64::from_str_radix(of("CapBnd"), 16).unwrap();
        let wanted = setting(unit, "CapabilityBoundingSet").len();
        assert_eq!(bits.count_ones(), u32::try_from(wanted).unwrap(), "{unit}: {bits:x}");
        let log = self.log(unit);
        let denied = |line: &&str| {
            ["not permitted", "ermission denied", "EPERM", "EACCES", "ead-only file system"]
                .iter()
                .any(|words| line.contains(words))
        };
        let denied: Vec<&str> = log.lines().filter(denied).collect();
        assert!(denied.is_empty(), "{unit}: {denied:#?}");
    }

    /// The kernel's data of a service's main process.
    fn main_process(&self, unit: &str) -> BTreeMap<String, String> {
        let pid = self.systemctl(&format!("show --property MainPID --value {unit}"));
        let status = self.lab.sh(&format!("cat /proc/{}/status", pid.trim()));
        let lines = status.lines().filter_map(|line| line.split_once(':'));
        lines.map(|(key, value)| (key.to_owned(), value.trim().to_owned())).collect()
    }
}

impl Drop for Host<'_> {
    #[expect(clippy::print_stderr, reason = "people read it when the test fails")]
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.said());
        }
        // Each service has folders in the machine's /tmp and /var/tmp, which go when it ends.
        let _ = self.lab.try_sh("systemctl stop 'netwrightd@*.socket' 'netwrightd@*.service'");
    }
}

/// Calls an installed plugin for container `c1` as a runtime does; `environment` adds variables, or
/// replaces them.
#[track_caller]
fn call(
    lab: &Lab,
    plugin: &str,
    verb: &str,
    environment: &[(&str, &str)],
    config: &Value,
) -> Value {
    let mut child = lab
        .command(&format!("/opt/cni/bin/{plugin}"))
        .envs([("CNI_COMMAND", verb), ("CNI_CONTAINERID", "c1"), ("CNI_NETNS", "/run/netns/c1")])
        .envs([("CNI_IFNAME", "eth0"), ("CNI_PATH", "/opt/cni/bin")])
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(config.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{verb}: {said}{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&said).unwrap_or_default()
}

/// The words of a unit's setting.
fn setting(unit: &str, key: &str) -> Vec<String> {
    let drop_in = format!("{unit}.d/10-netwright.conf");
    let text = fs::read_to_string(folder().join(drop_in)).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{key}=")));
    let line = line.unwrap_or_else(|| panic!("{unit} has no {key}"));
    line.split_whitespace().map(str::to_owned).collect()
}
