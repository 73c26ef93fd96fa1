//! The shared parts of the tests on a whole host: the executable under test, and `netwright run` as
//! a guard.

use std::io::{BufRead as _, BufReader};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::{Lab, Place, Snapshot, Visit};

use crate::support::assert_as_before;

/// The executable under test.
pub(crate) const NETWRIGHT: &str = env!("CARGO_BIN_EXE_netwright");

/// The daemon's executable, which the same `cargo` builds beside ours.
pub(crate) fn netwrightd() -> PathBuf {
    let path = Path::new(NETWRIGHT).with_file_name("netwrightd");
    assert!(path.exists(), "{} is missing: cargo build -p netwright-daemon", path.display());
    path
}

/// How long a process of ours may take to end.
const END: Duration = Duration::from_secs(10);

/// Puts our plugins where runtimes look, without a configuration.
pub(crate) fn install(lab: &Lab) -> &'static str {
    lab.sh(&format!("{NETWRIGHT} install --no-config --bin-dir /opt/cni/bin"));
    "/opt/cni/bin"
}

/// A `netwright run` whose command waits.
#[derive(Debug)]
pub(crate) struct Run<'lab> {
    lab: &'lab Lab,
    child: Child,
}

/// A running `netwright run`, seen from within.
#[derive(Debug)]
pub(crate) struct RunView {
    /// The namespace. Drop it before the run must end: an open namespace stays.
    pub(crate) netns: Visit,
    /// The address of eth0.
    pub(crate) v4: IpAddr,
    /// The address of eth0 that is not link-local.
    pub(crate) v6: IpAddr,
    /// The process ID of the command.
    pub(crate) command: u32,
}

impl<'lab> Run<'lab> {
    /// Starts `netwright run OPTIONS -- COMMAND` and does not wait for it.
    pub(crate) fn spawn(lab: &'lab Lab, options: &[&str]) -> Self {
        let child = lab
            .command(NETWRIGHT)
            .arg("run")
            .args(options)
            .args(["--", "sh", "-c", "echo $$; exec cat >/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self { lab, child }
    }

    /// Waits until the command runs.
    pub(crate) fn ready(&mut self) -> RunView {
        let mut line = String::new();
        let stdout = self.child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let pid =
            line.trim().parse().unwrap_or_else(|_| panic!("the command did not start: {line:?}"));
        let netns = self.lab.visit(format!("/proc/{pid}/ns/net"));
        let address = |family| address_of(&netns, "eth0", family);
        RunView { v4: address("inet"), v6: address("inet6"), netns, command: pid }
    }

    /// The process ID of `netwright run` itself.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets the command end by itself.
    pub(crate) fn end(mut self) -> ExitStatus {
        drop(self.child.stdin.take());
        self.wait()
    }

    /// Waits for the end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + END;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "netwright run does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asserts that attachments which runtimes made and removed have left nothing.
///
/// The packet filter's tables may stay, empty: `gc` removes empty tables, and must find nothing
/// else to do.
pub(crate) fn assert_nothing_left(before: &Snapshot, lab: &Lab) {
    let collected = lab.sh(&format!("{NETWRIGHT} gc"));
    assert!(collected.contains("removed 0, kept 0"), "{collected}");
    assert_as_before(before, lab);
}

/// What stays after the last container of a runtime besides what the runtime leaves: the folders of
/// host-local, which has the last address, and of tuning, as with the reference's plugins.
const STAYS: [&str; 3] = [
    "files: /run/cni is new: `mode 700, owner 0:0, directory`",
    "files: /run/cni/tuning is new: `mode 700, owner 0:0, directory`",
    "files: /var/lib/cni/networks is new: `mode 755, owner 0:0, directory`",
];

/// Asserts that a runtime's containers have left only what the runtime itself leaves, given as
/// parts of lines of [`Snapshot::diff`].
///
/// The packet filter's tables stay too, empty; `gc`, which then removes them, shows that they are.
#[track_caller]
pub(crate) fn assert_only_left(lab: &Lab, before: &Snapshot, by_runtime: &[&str]) {
    let lines = left(lab, before, by_runtime);
    assert!(lines.is_empty(), "the host is not as it was:\n  {}", lines.join("\n  "));
}

/// What runtimes' containers have left besides what the runtime itself leaves.
#[track_caller]
pub(crate) fn left(lab: &Lab, before: &Snapshot, by_runtime: &[&str]) -> Vec<String> {
    let collected = lab.sh(&format!("{NETWRIGHT} gc"));
    assert!(collected.contains("removed 0, kept 0"), "{collected}");
    let expected = |line: &String| {
        let folder = line.strip_prefix("files: /var/lib/cni/networks/");
        let file = folder.and_then(|rest| rest.split(' ').next());
        let of_folder = file.is_some_and(|file| {
            let name = file.split_once('/').map_or("", |(_, name)| name);
            name.is_empty() || name == "lock" || name.starts_with("last_reserved_ip.")
        });
        of_folder || by_runtime.iter().chain(&STAYS).any(|text| line.contains(text))
    };
    let after = Snapshot::take(lab);
    before.diff(&after).into_iter().filter(|line| !expected(line)).collect()
}

/// Serves a page that names the container, in both families; busybox runs it.
pub(crate) const SERVE: &str = "mkdir -p /www; echo hello from $(hostname) >/www/index.html; exec httpd -f -p '[::]:80' -h /www";

/// Asks a web server until it answers.
#[track_caller]
pub(crate) fn fetch(from: &impl Place, url: &str) -> String {
    from.sh(&format!(
        "curl --silent --show-error --globoff --retry 50 --retry-connrefused --retry-delay 0 --retry-max-time 10 \
         --max-time 10 '{url}'"
    ))
}

/// The global address of an interface. `family` is `inet` or `inet6`.
pub(crate) fn address_of(place: &impl Place, ifname: &str, family: &str) -> IpAddr {
    let links: Value =
        serde_json::from_str(&place.sh(&format!("ip -json address show dev {ifname}"))).unwrap();
    let addresses = links[0]["addr_info"].as_array().unwrap().iter();
    let mut found = addresses.filter(|at| at["family"] == family && at["scope"] == "global");
    let address = found.next().unwrap_or_else(|| panic!("no {family} address: {links}"));
    address["local"].as_str().unwrap().parse().unwrap()
}

/// The address of the default gateway. `family` is `-4` or `-6`.
pub(crate) fn gateway_of(place: &impl Place, family: &str) -> IpAddr {
    let routes = place.sh(&format!("ip -json {family} route show default"));
    let routes: Value = serde_json::from_str(&routes).unwrap();
    let gateway = routes[0]["gateway"].as_str();
    gateway.unwrap_or_else(|| panic!("no default route: {routes}")).parse().unwrap()
}

/// `ADDRESS:PORT`, with brackets where they belong.
pub(crate) fn at(address: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(address, port).to_string()
}
