//! Programs that manage a host's links, on a bus of their own in a lab: Debian's NetworkManager and
//! systemd-networkd.

use std::fs;
use std::path::{Path, PathBuf};

use testkit::{Lab, Place, RunningProgram, reference, wait_until};

/// A bus that permits every client everything and starts no services.
const BUS: &str = r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path=/run/dbus/system_bus_socket</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow send_destination="*"/><allow receive_sender="*"/><allow own="*"/></policy>
</busconfig>"#;

/// NetworkManager changes only its own namespace, and nothing by default.
const CONFIG: &str = "[main]\nplugins=keyfile\nauth-polkit=false\nno-auto-default=*\ndhcp=internal\ndns=none\n\
                      rc-manager=unmanaged\nhostname-mode=none\n[logging]\nlevel=WARN\n[connectivity]\nenabled=false\n\
                      [keyfile]\nunmanaged-devices=interface-name:up0\n";

/// Mounts a `/sys` that shows the links of the program's own namespace, as on a lab's host, and
/// permits no writes. Then no program waits for udev to announce links.
const OWN_SYS: &str =
    "{ mount -t sysfs sysfs /sys 2>/dev/null || :; } && mount -o remount,bind,ro /sys";

/// A file of `deploy`.
fn deployed(path: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(path);
    path.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Starts a program that sees the links of its namespace in `/sys`.
fn start(at: &impl Place, command: &str) -> RunningProgram {
    let script = format!("{OWN_SYS} && exec {command}");
    at.start("unshare", &["--mount", "--propagation", "private", "sh", "-c", &script])
}

/// A bus for a lab, which ends after the programs that use it.
fn bus(lab: &Lab) -> RunningProgram {
    lab.sh("mkdir -p /run/dbus");
    let config = lab.dir().join("bus.xml");
    fs::write(&config, BUS).unwrap();
    let config = format!("--config-file={}", config.display());
    let bus = lab.start("dbus-daemon", &[&config, "--nofork", "--nopidfile"]);
    wait_until("the bus", || lab.try_sh("test -S /run/dbus/system_bus_socket").status.success());
    bus
}

/// NetworkManager on a bus of its own, on the host of a lab or in one of its containers.
pub(crate) struct NetworkManager<'l, P> {
    lab: &'l Lab,
    at: &'l P,
    _bus: RunningProgram,
    _daemon: RunningProgram,
}

impl<'l, P: Place> NetworkManager<'l, P> {
    /// Starts it, with files of `deploy/network-manager`.
    pub(crate) fn start(lab: &'l Lab, at: &'l P, files: &[&str]) -> Self {
        let usr: Vec<String> = reference::network_manager()
            .unwrap()
            .iter()
            .map(|folder| folder.canonicalize().unwrap().display().to_string())
            .collect();
        lab.sh(&format!(
            "mount -t overlay overlay -o lowerdir={}:/usr /usr && \
             mkdir -p /run/NetworkManager /var/lib/NetworkManager /etc/NetworkManager/system-connections \
             /etc/NetworkManager/conf.d",
            usr.join(":")
        ));
        let bus = bus(lab);
        let config = lab.dir().join("nm.conf");
        fs::write(&config, CONFIG).unwrap();
        let state = lab.dir().join("nm.state");
        let command = format!(
            "NetworkManager --no-daemon --config={} --state-file={}",
            config.display(),
            state.display()
        );
        for file in files {
            Self::copy(lab, file);
        }
        let daemon = start(at, &command);
        wait_until("NetworkManager", || at.try_sh("nmcli general status").status.success());
        NetworkManager { lab, at, _bus: bus, _daemon: daemon }
    }

    fn copy(lab: &Lab, file: &str) {
        let file = deployed(&format!("network-manager/{file}"));
        lab.sh(&format!("cp {} /etc/NetworkManager/conf.d/", file.display()));
    }

    /// Gives it a file of `deploy/network-manager`.
    pub(crate) fn takes(&self, file: &str) {
        Self::copy(self.lab, file);
        self.does("general reload conf");
    }

    /// Runs `nmcli`, which must succeed.
    #[track_caller]
    pub(crate) fn does(&self, what: &str) {
        self.at.sh(&format!("nmcli --wait 30 {what}"));
    }

    /// Runs `nmcli`, and does not wait for the requested change.
    #[track_caller]
    pub(crate) fn begins(&self, what: &str) {
        self.at.sh(&format!("nmcli --wait 0 {what}"));
    }

    /// Runs `nmcli`, which must fail, and returns its output.
    #[track_caller]
    pub(crate) fn refuses(&self, what: &str) -> String {
        let output = self.at.try_sh(&format!("nmcli --wait 30 {what} 2>&1"));
        assert!(!output.status.success(), "{what}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Whether a device is in a state, such as `cni0:connected`.
    pub(crate) fn has(&self, what: &str) -> bool {
        let shown = self.at.sh("nmcli -t -f DEVICE,STATE,CONNECTION device");
        shown.lines().any(|line| line.starts_with(what))
    }
}

/// Our files of `deploy/systemd-networkd`, each with its folder below `/etc/systemd`.
const OURS: [(&str, &str); 2] =
    [("network", "00-netwright.network"), ("networkd.conf.d", "90-netwright.conf")];

/// systemd-networkd on a bus of its own, on the host of a lab or in one of its containers.
pub(crate) struct Networkd<'l, P> {
    lab: &'l Lab,
    at: &'l P,
    log: PathBuf,
    daemon: Option<RunningProgram>,
    _bus: RunningProgram,
}

impl<'l, P: Place> Networkd<'l, P> {
    /// Prepares it with these files of `/etc/systemd/network`, each by its name and content.
    pub(crate) fn new(lab: &'l Lab, at: &'l P, files: &[(&str, &str)]) -> Self {
        let folders = "/etc/systemd/network /etc/systemd/networkd.conf.d";
        lab.sh(&format!(
            "rm -rf {folders} /etc/systemd/networkd.conf; mkdir -p /run/systemd {folders}"
        ));
        for (name, text) in files {
            fs::write(lab.path("/etc/systemd/network").join(name), text).unwrap();
        }
        let bus = bus(lab);
        let log = lab.dir().join("networkd.log");
        Networkd { lab, at, log, daemon: None, _bus: bus }
    }

    /// Starts it as at a boot, without its state of the last run.
    pub(crate) fn starts(&mut self) {
        self.lab.sh("rm -rf /run/systemd/netif");
        self.goes_on();
    }

    fn goes_on(&mut self) {
        let command = format!(
            "env SYSTEMD_LOG_TARGET=console /lib/systemd/systemd-networkd >>{} 2>&1",
            self.log.display()
        );
        self.daemon = Some(start(self.at, &command));
    }

    /// Ends it as its service manager does.
    pub(crate) fn stops(&mut self) {
        let Some(mut daemon) = self.daemon.take() else { return };
        let pid = rustix::process::Pid::from_child(daemon.child());
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        daemon.child().wait().unwrap();
    }

    /// Ends it, and starts it again.
    pub(crate) fn starts_again(&mut self) {
        self.stops();
        self.goes_on();
    }

    /// Gives it our files of `deploy/systemd-networkd`. It reads them when it starts.
    pub(crate) fn gets_our_files(&self) {
        for (folder, name) in OURS {
            let file = deployed(&format!("systemd-networkd/{name}"));
            self.lab.sh(&format!("cp {} /etc/systemd/{folder}/", file.display()));
        }
    }

    /// Removes our files.
    pub(crate) fn loses_our_files(&self) {
        for (folder, name) in OURS {
            self.lab.sh(&format!("rm /etc/systemd/{folder}/{name}"));
        }
    }

    /// Runs `networkctl`, which must succeed.
    #[track_caller]
    pub(crate) fn does(&self, what: &str) {
        let done = self.at.try_sh(&format!("networkctl {what}"));
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "networkctl {what}: {said}\n{}", self.log());
    }

    /// Waits until it has finished with a link, which then has this state: `configured` or
    /// `unmanaged`.
    #[track_caller]
    pub(crate) fn has(&self, link: &str, state: &str) {
        let is_so = || {
            let shown = self.at.try_sh(&format!("networkctl --no-legend --no-pager list {link}"));
            let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
            shown.split_whitespace().next_back() == Some(state)
        };
        wait_until(&format!("{link} to be {state}"), is_so);
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl<P> Drop for Networkd<'_, P> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            eprintln!("--- systemd-networkd:\n{log}");
        }
    }
}
