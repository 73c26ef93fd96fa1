//! A guard that runs the driver, and the networks of these tests.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use testkit::real::{Docker, Engine};
use testkit::{Lab, Place, Snapshot, TIMEOUT, Visit};

use crate::system::{NETWRIGHT, assert_only_left, netwrightd};

/// The driver's socket.
pub(crate) const SOCKET: &str = "/run/docker/plugins/netwright.sock";

/// A list as an administrator writes it.
pub(crate) const LAN: &str = r#"{
  "cniVersion": "1.0.0", "name": "lan",
  "plugins": [
    {"type": "bridge", "bridge": "lan0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
     "capabilities": {"ips": true, "mac": true},
     "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
              "ranges": [[{"subnet": "10.71.0.0/24"}], [{"subnet": "fd71::/64"}]]}},
    {"type": "portmap", "capabilities": {"portMappings": true}},
    {"type": "firewall"}
  ]
}"#;

/// A running `netwrightd docker`.
#[derive(Debug)]
pub(crate) struct Driver<'lab> {
    lab: &'lab Lab,
    child: Option<Child>,
    flags: Vec<String>,
    socket: String,
}

impl<'lab> Driver<'lab> {
    /// Starts it and waits until it listens.
    pub(crate) fn start(lab: &'lab Lab) -> Self {
        Self::start_at(lab, SOCKET, &[])
    }

    /// Starts it with a socket elsewhere and further flags.
    pub(crate) fn start_at(lab: &'lab Lab, socket: &str, flags: &[&str]) -> Self {
        let mut flags: Vec<_> = flags.iter().map(|&flag| flag.to_owned()).collect();
        if !flags.iter().any(|flag| flag == "--timeout") {
            // A plugin may take long on a busy machine; few tests judge how long.
            flags.extend(["--timeout", "60s"].map(str::to_owned));
        }
        let mut driver = Driver { lab, child: None, flags, socket: socket.to_owned() };
        driver.again();
        driver
    }

    /// Starts it again.
    pub(crate) fn again(&mut self) {
        let before = self.starts();
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log_file()).unwrap();
        let child = self
            .lab
            .command(netwrightd().to_str().unwrap())
            .args(["docker", "--socketpath", &self.socket])
            .args(&self.flags)
            .env("NETWRIGHT_LOG", "info")
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
        let deadline = Instant::now() + TIMEOUT;
        while self.starts() <= before {
            assert!(Instant::now() < deadline, "the driver does not listen:\n{}", self.log());
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn starts(&self) -> usize {
        self.log().matches(" ready ").count()
    }

    /// Kills it, as a crash would.
    pub(crate) fn kill(&mut self) {
        for pid in self.pids() {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).unwrap();
            // A process that the driver had started may have ended since the look.
            if let Err(errno) = kill_process(pid, Signal::KILL) {
                assert_eq!(errno, Errno::SRCH);
            }
        }
        let mut child = self.child.take().unwrap();
        // The process that started it in the lab ends with it.
        child.wait().unwrap();
    }

    fn pids(&self) -> Vec<u32> {
        let mut pids = self.lab.processes();
        let executable = netwrightd();
        pids.retain(|pid| {
            fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == executable)
        });
        pids
    }

    /// The processor time of the driver itself, and of the plugins it has run.
    pub(crate) fn worked(&self) -> [Duration; 2] {
        let stats =
            self.pids().into_iter().map(|pid| fs::read_to_string(format!("/proc/{pid}/stat")));
        let mut worked = [Duration::ZERO; 2];
        for stat in stats.flatten() {
            // `man 5 proc_pid_stat`: fields 14 to 17, in ticks of 10 ms; the second field is a name
            // in parentheses.
            let (_, rest) = stat.rsplit_once(") ").unwrap();
            let ticks: Vec<u64> =
                rest.split(' ').skip(14 - 3).take(4).map(|field| field.parse().unwrap()).collect();
            worked[0] += Duration::from_millis(10 * (ticks[0] + ticks[1]));
            worked[1] += Duration::from_millis(10 * (ticks[2] + ticks[3]));
        }
        worked
    }

    /// The socket's path outside the lab.
    pub(crate) fn socket(&self) -> PathBuf {
        self.lab.path(&self.socket)
    }

    fn log_file(&self) -> PathBuf {
        self.lab.dir().join("driver.log")
    }

    /// The driver's log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// The host ports that it has published, as its journal has them.
    pub(crate) fn ports(&self) -> Vec<u64> {
        let endpoints = self.lab.path("/var/lib/netwright/docker/endpoints");
        let files =
            fs::read_dir(endpoints).unwrap().map(|file| fs::read(file.unwrap().path()).unwrap());
        let read = files.map(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).unwrap());
        let ports =
            read.flat_map(|endpoint| endpoint["ports"].as_array().cloned().unwrap_or_default());
        ports.filter_map(|port| port["hostPort"].as_u64()).collect()
    }
}

impl Drop for Driver<'_> {
    #[expect(clippy::print_stderr, reason = "people read it when the test fails")]
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!(
                "the driver's log ends:\n{}",
                lines[lines.len().saturating_sub(40)..].join("\n")
            );
        }
    }
}

/// Writes a network list where runtimes look.
pub(crate) fn write_network(lab: &Lab, name: &str, conflist: &str) {
    lab.sh("mkdir -p /etc/cni/net.d");
    fs::write(lab.path(format!("/etc/cni/net.d/{name}.conflist")), conflist).unwrap();
}

/// A `netwright run` in a lab with its own PID namespace, whose command waits.
#[derive(Debug)]
pub(crate) struct CniContainer {
    child: Child,
}

impl CniContainer {
    /// Starts it, and returns its namespace too.
    pub(crate) fn run(lab: &Lab, options: &[&str]) -> (Self, Visit) {
        let mut child = lab
            .command(NETWRIGHT)
            .arg("run")
            .args(options)
            .args(["--", "sh", "-c", "readlink /proc/self/ns/net; exec cat >/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        // Its process ID is one of its own PID namespace, so the test finds it by its network
        // namespace.
        let netns = |pid: &u32| fs::read_link(format!("/proc/{pid}/ns/net")).unwrap_or_default();
        let found = lab.processes().into_iter().find(|pid| netns(pid) == Path::new(line.trim()));
        let pid = found.unwrap_or_else(|| panic!("the command did not start: {line:?}"));
        (CniContainer { child }, lab.visit(format!("/proc/{pid}/ns/net")))
    }

    /// Lets the command end by itself.
    pub(crate) fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// Asserts that containers and networks left only what the engine itself leaves, and the driver's
/// folders.
#[track_caller]
pub(crate) fn assert_nothing_left(lab: &Lab, before: &Snapshot) {
    assert_nothing_left_but(lab, before, &[]);
}

/// The same, with more that the engine leaves: parts of lines.
#[track_caller]
pub(crate) fn assert_nothing_left_but(lab: &Lab, before: &Snapshot, more: &[&str]) {
    let folder = "files: /run/netwright/docker/ports/results is new";
    assert_only_left(lab, before, &[&Docker::LEAVES[..], &[folder], more].concat());
}

/// Prints a count or a measurement with an engine, for people who read a run's log.
macro_rules! figure {
    ($engine:expr, $($text:tt)+) => {
        $crate::docker::support::write_figure($engine, &format!($($text)+))
    };
}

pub(crate) use figure;

#[expect(clippy::print_stderr, reason = "where tests' output is collected")]
pub(crate) fn write_figure(engine: Engine, text: &str) {
    eprintln!("DOCKER {engine:?}: {text}");
}
