//! The first process of a lab's PID namespace.

use std::fs;
use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::Lab;
use crate::place::Place as _;
use crate::real::cgroup::Cgroup;
use crate::service::TIMEOUT;

/// It ends when its standard input is closed, which also happens when we are killed.
#[derive(Debug)]
pub(super) struct Init {
    child: Child,
    /// A process whose namespaces are the lab's.
    pid: i32,
    stdin: Option<ChildStdin>,
    /// The control group for a service manager and its services; removed after them.
    _cgroup: Option<Cgroup>,
}

/// A mount namespace that is a peer of the lab's, except for `/proc`.
const PROC: &str = "mount --make-private /proc && mount -t proc proc /proc";

/// systemd as the first process, and one beside it that has the lab's mounts. Only systemd sees the
/// control groups of version 2 where it looks for them. It cannot write to what belongs to the
/// machine (`/dev`, and `/proc/sys` except for the network's part).
const SYSTEMD: &str = r#"
set -e
rm -rf /etc/systemd /run/lab-units
mkdir -p /etc/systemd/system/service.d /etc/systemd/system-generators /run/lab-units /var/log
for name in basic sysinit shutdown sockets network network-online multi-user; do
    printf '[Unit]\nDescription=%s\nDefaultDependencies=no\n' $name >/run/lab-units/$name.target
done
printf '[Service]\nStandardError=append:/var/log/%%n.log\nEnvironment=NETWRIGHT_LOG=debug\n' \
    >/etc/systemd/system/service.d/log.conf
sleep infinity &
echo ready
exec >/var/log/systemd.log 2>&1
exec unshare --mount --cgroup --uts --ipc --propagation unchanged sh -ec '
    mount --make-rprivate /sys
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mount --make-rprivate /proc
    mount --bind /proc/sys /proc/sys
    mount --bind /proc/sys/net /proc/sys/net
    mount -o remount,bind,ro /proc/sys
    mount --make-rprivate /dev
    mount -o remount,bind,ro /dev
    exec env -i container=lab \
        SYSTEMD_UNIT_PATH=/etc/systemd/system:/run/systemd/generator:/run/lab-units \
        SYSTEMD_GENERATOR_PATH=/etc/systemd/system-generators \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        /lib/systemd/systemd --system --unit=basic.target --log-target=console --show-status=no'
"#;

impl Init {
    /// A process that prints a given text once, which shows that it runs, and then does nothing.
    ///
    /// Processes that daemons leave must be reaped: the kernel does that, since SIGCHLD is ignored
    /// (which `exec` keeps).
    pub(super) fn start(keeper: i32) -> Self {
        let script = format!("{PROC} && exec env --ignore-signal=CHLD cat");
        let mut child = spawn(keeper, &[&UNSHARE[..], &["sh", "-c", &script]].concat());
        let stdin = tell(&mut child, READY);
        wait_until_ready(&mut child);
        let children = children(child.id());
        let pid = *children.first().unwrap_or_else(|| panic!("{} has no child", child.id()));
        Self { child, pid, stdin, _cgroup: None }
    }

    /// systemd.
    pub(super) fn service_manager(keeper: i32) -> Self {
        let cgroup = Cgroup::new();
        let group = cgroup.unified();
        let script = format!("exec 2>&3 3>&-\n{PROC}\n{SYSTEMD}");
        // After ending systemd we wait for its end, which is the end of everything in the
        // namespace. systemd also ends with this shell, which a signal may end. We ignore what
        // `unshare` reports about its child's end.
        let around = "read go; setpriv --pdeathsig KILL -- \"$@\" 3>&2 2>/dev/null & unshare=$!; cat >/dev/null; \
                      kill -KILL $(cat /proc/$unshare/task/$unshare/children); wait";
        let words = [&["sh", "-c", around, "sh"], &UNSHARE[..], &["sh", "-c", &script]].concat();
        let mut child = spawn(keeper, &words);
        fs::write(group.join("cgroup.procs"), child.id().to_string())
            .unwrap_or_else(|error| panic!("enter {}: {error}", group.display()));
        let stdin = tell(&mut child, "go\n");
        wait_until_ready(&mut child);
        let pid = beside(child.id()).unwrap_or_else(|| panic!("nothing runs beside systemd"));
        Self { child, pid, stdin, _cgroup: Some(cgroup) }
    }

    /// A process whose namespaces are the lab's.
    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// Ends it, and with it everything in its namespace.
    pub(super) fn end(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}

const UNSHARE: [&str; 7] =
    ["unshare", "--pid", "--mount", "--fork", "--kill-child", "--propagation", "unchanged"];

fn spawn(keeper: i32, words: &[&str]) -> Child {
    let child = Command::new("nsenter")
        .arg(format!("--target={keeper}"))
        .args(["--mount", "--net", "--wdns=/"])
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    child.unwrap_or_else(|error| panic!("nsenter (util-linux): {error}"))
}

/// The pause between checks of systemd. Each check starts three programs, and systemd needs the
/// processor to start.
const PAUSE: Duration = Duration::from_millis(100);

/// What a first process prints once it runs.
const READY: &str = "ready\n";

/// Writes to a process that continues as long as the returned value is open.
fn tell(child: &mut Child, what: &str) -> Option<ChildStdin> {
    let mut stdin = child.stdin.take();
    // `wait_until_ready` reports one that has ended.
    let _ = stdin.as_mut().map(|stdin| stdin.write_all(what.as_bytes()));
    stdin
}

fn wait_until_ready(child: &mut Child) {
    let mut said = [0_u8; READY.len()];
    let stdout = child.stdout.as_mut().map(|out| out.read_exact(&mut said));
    assert!(
        matches!(stdout, Some(Ok(()))) && said == READY.as_bytes(),
        "the lab's first process did not start: its error is above"
    );
}

fn children(pid: u32) -> Vec<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Returns the process beside systemd: systemd's first child. systemd is the child of `unshare`,
/// which is the child of the process `pid`.
fn beside(pid: u32) -> Option<i32> {
    let below = |pids: Vec<i32>| -> Vec<i32> {
        pids.into_iter().filter_map(|pid| u32::try_from(pid).ok()).flat_map(children).collect()
    };
    below(below(children(pid))).first().copied()
}

/// Waits until systemd has started.
pub(super) fn wait_for_service_manager(lab: &Lab) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let said = lab.try_sh("systemctl is-system-running");
        if said.status.success() {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "systemd did not start: {}{}",
            String::from_utf8_lossy(&said.stdout),
            fs::read_to_string(lab.path("/var/log/systemd.log")).unwrap_or_default()
        );
        thread::sleep(PAUSE);
    }
}
