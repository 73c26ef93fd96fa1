//! A private host for a test.

mod init;
mod loopback;
mod setup;
mod sysctl;

pub(crate) use setup::unshare;

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::LinkNameSpaceType;

use self::init::Init;
use crate::place::{Place, enter_namespaces, guarded};
use crate::service::{TIMEOUT, wait_until};

/// How long a killed process may take to disappear before a lab reports it.
const KILL_DEADLINE: Duration = Duration::from_secs(5);

/// The route of the address that [`Lab::outside`] gives the host, 2001:db8:ffff::1/128, as a line
/// of the kernel's table begins (linux net/ipv6/route.c `ipv6_route_native_seq_show`).
const OWN_ROUTE: &str = "20010db8ffff00000000000000000001 80 ";

/// A private "host": a mount and a network namespace that a test owns.
///
/// Inside it `/run`, `/dev/shm`, `/etc`, `/var`, `/opt` and `/usr/local` are private (the last four
/// start as the machine's, without everything about container networking), `/sys` shows the lab's
/// own links, `lo` is up and nothing else exists: no links, no rules, no forwarding, and sysctls as
/// the kernel was compiled with, whatever the machine's are. The rest of the file system, including
/// `/tmp` and `/var/tmp`, is the machine's, and so are the checkout and what cargo built.
///
/// It is a [`Place`]: programs run in it with [`Place::command`] and [`Place::sh`], Rust code with
/// [`Place::enter`]. Its containers keep the lab alive. When the last of them is dropped the lab is
/// removed, with the processes started in it. The kernel also removes it when the test process is
/// killed.
#[derive(Debug, Clone)]
pub struct Lab {
    inner: Arc<Inner>,
}

/// A network namespace in a [`Lab`], mounted at `/run/netns/NAME` there, as `ip netns add` does.
///
/// New and empty: `lo` is down, as in the namespace that a container runtime passes to the first
/// plugin. Deleted on drop.
#[derive(Debug)]
pub struct Container {
    lab: Arc<Inner>,
    name: String,
    netns: Arc<OwnedFd>,
    sleeper: Option<Child>,
}

/// A network namespace in a [`Lab`] that another program made and will delete, entered to inspect
/// it.
///
/// It keeps the namespace alive, as any open descriptor does: drop it before the namespace must
/// disappear.
#[derive(Debug)]
pub struct Visit {
    lab: Arc<Inner>,
    name: String,
    netns: Arc<OwnedFd>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    keeper: Keeper,
    init: Option<Init>,
    dir: tempfile::TempDir,
}

/// The thread whose namespaces are the lab's. It only has to live: `/proc/TID/root` and
/// `/proc/TID/ns` need a live task.
#[derive(Debug)]
struct Keeper {
    tid: i32,
    mount: Arc<OwnedFd>,
    net: Arc<OwnedFd>,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Lab {
    /// Makes a lab. The name appears in messages and in the scratch directory's name.
    ///
    /// # Panics
    /// When the namespaces cannot be created: that needs root. A test that may run without it needs
    /// `testkit::require!("root")`.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self::build(name, |_| None)
    }

    /// Makes a lab with a PID namespace of its own, for programs that leave processes behind
    /// (podman, daemons).
    ///
    /// Programs started in it see its own `/proc`. When the lab is removed, the kernel kills every
    /// process in it, also when the test process dies. Code run with [`Place::enter`] stays in the
    /// test's PID namespace and `/proc`.
    #[must_use]
    pub fn with_processes(name: &str) -> Self {
        Self::build(name, |keeper| Some(Init::start(keeper)))
    }

    /// Makes a lab like [`Lab::with_processes`] whose first process is systemd. Its only units are
    /// those in the lab's `/etc/systemd/system`, which is empty, and a few targets. It starts
    /// services from the units that are shipped, with all the confinement that they request.
    /// `systemctl` works in it; a service's output is in the lab's `/var/log/UNIT.log`.
    ///
    /// A test that uses it needs `testkit::require!("root", "file:/lib/systemd/systemd")`.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn with_systemd(name: &str) -> Self {
        let lab = Self::build(name, |keeper| Some(Init::service_manager(keeper)));
        init::wait_for_service_manager(&lab);
        lab
    }

    fn build(name: &str, init: impl FnOnce(i32) -> Option<Init>) -> Self {
        let dir = tempfile::Builder::new()
            .prefix(&format!("nwt-{name}-"))
            .tempdir_in(setup::TEMPORARY)
            .unwrap_or_else(|error| panic!("lab {name}: scratch directory in /var/tmp: {error}"));
        let keeper = Keeper::start(dir.path())
            .unwrap_or_else(|error| panic!("lab {name}: {error} (root is needed)"));
        let init = init(keeper.tid);
        Self { inner: Arc::new(Inner { name: name.to_owned(), keeper, init, dir }) }
    }

    /// A path of the lab's network namespace that is valid in every mount namespace of the machine.
    #[must_use]
    pub fn netns_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.inner.keeper.tid))
    }

    /// Returns the machine's path of a path in the lab: for files that the test itself reads or
    /// writes.
    #[must_use]
    pub fn path(&self, inside: impl AsRef<Path>) -> PathBuf {
        self.inner.path(inside.as_ref())
    }

    /// A directory of the machine's disk with the same path inside and outside, removed with the
    /// lab.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.inner.dir.path()
    }

    /// Makes an empty network namespace at `/run/netns/NAME` in the lab.
    #[must_use]
    pub fn container(&self, name: &str) -> Container {
        let netns = self.enter(|| setup::create_netns(name));
        let netns = netns.unwrap_or_else(|error| {
            panic!("lab {}: create netns \"{name}\": {error}", self.inner.name)
        });
        Container {
            lab: Arc::clone(&self.inner),
            name: name.to_owned(),
            netns: Arc::new(netns),
            sleeper: None,
        }
    }

    /// Opens a network namespace that something in the lab made. A path below `/proc` is one of the
    /// machine's.
    #[must_use]
    pub fn visit(&self, netns: impl AsRef<Path>) -> Visit {
        let path = netns.as_ref();
        let opened = self.enter(|| fs::File::open(path));
        let opened = opened.unwrap_or_else(|error| {
            panic!("lab {}: open netns {}: {error}", self.inner.name, path.display())
        });
        Visit {
            lab: Arc::clone(&self.inner),
            name: path.display().to_string(),
            netns: Arc::new(opened.into()),
        }
    }

    /// Connects "the outside" to the host: namespace `outside`, on a veth pair with the host's
    /// `up0`.
    ///
    /// | | host, `up0` | outside, `eth0` |
    /// |---|---|---|
    /// | IPv4 | 198.51.100.1/24 | 198.51.100.2/24 |
    /// | IPv6 | 2001:db8:ffff::1/64 | 2001:db8:ffff::2/64 |
    ///
    /// The host's default routes go there. The outside has no route back to any container subnet,
    /// so an answer shows that the source address was translated. Forwarding stays as it was (off).
    #[must_use]
    pub fn outside(&self) -> Container {
        let outside = self.container("outside");
        // One start of `ip` does everything in a place, because starting it is slow, above all in
        // the virtual machine.
        let batch = |commands: String| format!("ip -batch - <<END\n{commands}END\n");
        // The links go up before they get addresses: a link whose carrier comes after its addresses
        // can be used only a second later. Duplicate address detection is off, because no other
        // host is on that cable.
        let link = |name, end| {
            format!(
                "link set {name} addrgenmode none\nlink set {name} up\naddr add fe80::{end}/64 dev {name} nodad\n"
            )
        };
        let addresses = |name, end| {
            format!(
                "addr add 198.51.100.{end}/24 dev {name}\naddr add 2001:db8:ffff::{end}/64 dev {name} nodad\n"
            )
        };
        let pair = "link add up0 type veth peer name eth0 netns outside\n";
        self.sh(&batch(format!("{pair}{}", link("up0", 1))));
        outside.sh(&batch(format!("link set lo up\n{}{}", link("eth0", 2), addresses("eth0", 2))));
        self.sh(&batch(addresses("up0", 1)));
        // The kernel adds the address's own route some time after the address.
        wait_until("the route of the host's address", || {
            let routes = self.enter(|| fs::read_to_string("/proc/thread-self/net/ipv6_route"));
            routes.is_ok_and(|routes| routes.contains(OWN_ROUTE))
        });
        let default = |gateway: &str| format!("route add default via {gateway}\n");
        self.sh(&batch(default("198.51.100.2") + &default("2001:db8:ffff::2")));
        outside
    }

    /// The processes whose mount namespace is the lab's. Dropping the lab now would kill them.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        self.inner.processes()
    }
}

impl Place for Lab {
    fn command(&self, program: &str) -> Command {
        self.inner.command(program, None)
    }

    fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let keeper = &self.inner.keeper;
        enter_namespaces(
            &[
                (keeper.mount.as_fd(), LinkNameSpaceType::Mount),
                (keeper.net.as_fd(), LinkNameSpaceType::Network),
            ],
            work,
        )
    }

    fn place_name(&self) -> String {
        format!("host of lab {}", self.inner.name)
    }

    fn shell(&self, script: &str) -> io::Result<Output> {
        self.inner.shell(script, None)
    }
}

impl Container {
    /// The name under `/run/netns`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The namespace's path inside the lab: what a runtime there would pass as `CNI_NETNS`.
    #[must_use]
    pub fn netns(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.name)
    }

    /// A path of the namespace that is valid outside the lab too.
    #[must_use]
    pub fn netns_path(&self) -> PathBuf {
        self.lab.path(&self.netns())
    }

    /// The PID of an idle process in the namespace; started on first use, ends with the container.
    ///
    /// In a lab made by [`Lab::with_processes`] it is the PID outside; programs in the lab see
    /// another.
    pub fn pid(&mut self) -> u32 {
        if self.sleeper.is_none() {
            let child = self.command("sleep").arg("infinity").stdin(Stdio::null()).spawn();
            let child = child.unwrap_or_else(|error| panic!("sleep in {}: {error}", self.name));
            self.wait_until_inside(child.id());
            self.sleeper = Some(child);
        }
        self.sleeper.as_ref().map(Child::id).unwrap_or_default()
    }

    /// Deletes the namespace's name now, as `ip netns del` does; processes in it keep the namespace
    /// itself.
    pub fn delete(&self) {
        let path = self.netns();
        let lab = &self.lab;
        let keeper = &lab.keeper;
        enter_namespaces(&[(keeper.mount.as_fd(), LinkNameSpaceType::Mount)], || {
            setup::delete_netns(&path);
        });
    }

    fn wait_until_inside(&self, pid: u32) {
        let want = fs::metadata(self.netns_path());
        let want = want.unwrap_or_else(|error| panic!("netns {}: {error}", self.name));
        let deadline = Instant::now() + TIMEOUT;
        let ours = |at: &fs::Metadata| {
            use std::os::unix::fs::MetadataExt as _;
            at.ino() == want.ino()
        };
        while !fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|at| ours(&at)) {
            assert!(Instant::now() < deadline, "process {pid} did not enter netns {}", self.name);
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Place for Container {
    fn command(&self, program: &str) -> Command {
        self.lab.command(program, Some(&self.netns_path()))
    }

    fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let mount = &self.lab.keeper.mount;
        enter_namespaces(
            &[
                (mount.as_fd(), LinkNameSpaceType::Mount),
                (self.netns.as_fd(), LinkNameSpaceType::Network),
            ],
            work,
        )
    }

    fn place_name(&self) -> String {
        format!("container {} of lab {}", self.name, self.lab.name)
    }

    fn shell(&self, script: &str) -> io::Result<Output> {
        self.lab.shell(script, Some(&self.netns_path()))
    }
}

impl Place for Visit {
    fn command(&self, program: &str) -> Command {
        self.lab.command(program, Some(&self.descriptor()))
    }

    fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let mount = &self.lab.keeper.mount;
        enter_namespaces(
            &[
                (mount.as_fd(), LinkNameSpaceType::Mount),
                (self.netns.as_fd(), LinkNameSpaceType::Network),
            ],
            work,
        )
    }

    fn place_name(&self) -> String {
        format!("{} of lab {}", self.name, self.lab.name)
    }

    fn shell(&self, script: &str) -> io::Result<Output> {
        self.lab.shell(script, Some(&self.descriptor()))
    }
}

impl Visit {
    /// A path of the namespace, for programs.
    fn descriptor(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.netns.as_raw_fd()))
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if let Some(mut sleeper) = self.sleeper.take() {
            let _ = sleeper.kill();
            let _ = sleeper.wait();
        }
        self.delete();
    }
}

impl Inner {
    fn command(&self, program: &str, netns: Option<&Path>) -> Command {
        self.entering(guarded("nsenter"), program, netns)
    }

    /// `nsenter` into the lab; it opens every namespace before it enters the first, so the paths
    /// are the machine's.
    fn entering(&self, mut command: Command, program: &str, netns: Option<&Path>) -> Command {
        let target = self.init.as_ref().map_or(self.keeper.tid, Init::pid);
        command.arg(format!("--target={target}")).arg("--mount");
        if self.init.is_some() {
            command.arg("--pid");
        }
        match netns {
            Some(path) => command.arg(format!("--net={}", path.display())),
            None => command.arg("--net"),
        };
        if let Ok(cwd) = std::env::current_dir() {
            command.arg(format!("--wdns={}", cwd.display()));
        }
        command.arg("--").arg(program);
        command
    }

    /// Runs a shell script, from a thread in the namespaces: the two programs of
    /// [`Inner::command`] take longer to start than most scripts take to run, above all in the
    /// virtual machine.
    ///
    /// Only a new process enters a PID namespace, and the namespace's end also ends the script. If
    /// a network namespace is gone, `nsenter` reports that.
    fn shell(&self, script: &str, netns: Option<&Path>) -> io::Result<Output> {
        match netns.map(fs::File::open).transpose() {
            Ok(opened) if self.init.is_none() => {
                let keeper = &self.keeper;
                let net = opened.as_ref().map_or_else(|| keeper.net.as_fd(), AsFd::as_fd);
                enter_namespaces(
                    &[
                        (keeper.mount.as_fd(), LinkNameSpaceType::Mount),
                        (net, LinkNameSpaceType::Network),
                    ],
                    || Command::new("sh").args(["-c", script]).stdin(Stdio::null()).output(),
                )
            }
            _ => {
                let mut command = self.entering(Command::new("nsenter"), "sh", netns);
                command.args(["-c", script]).stdin(Stdio::null()).output()
            }
        }
    }

    fn path(&self, inside: &Path) -> PathBuf {
        let relative = inside.strip_prefix("/").unwrap_or(inside);
        PathBuf::from(format!("/proc/{}/root", self.keeper.tid)).join(relative)
    }

    fn processes(&self) -> Vec<u32> {
        use std::os::unix::fs::MetadataExt as _;
        let keys = [Some(self.keeper.tid), self.init.as_ref().map(Init::pid)];
        let inode =
            |pid: String| fs::metadata(format!("/proc/{pid}/ns/mnt")).ok().map(|at| at.ino());
        let lab: Vec<u64> =
            keys.iter().flatten().filter_map(|pid| inode(pid.to_string())).collect();
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        let pids =
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| inode(pid.to_string()).is_some_and(|at| lab.contains(&at))).collect()
    }

    /// Kills what runs in the lab and waits until it is gone.
    fn kill_processes(&self) {
        let deadline = Instant::now() + KILL_DEADLINE;
        loop {
            let pids = self.processes();
            let alive: Vec<_> = pids.iter().filter(|pid| !is_zombie(**pid)).collect();
            if alive.is_empty() {
                return;
            }
            if Instant::now() > deadline {
                eprintln!("lab {}: processes {alive:?} do not die", self.name);
                return;
            }
            for pid in alive {
                let raw = i32::try_from(*pid).ok().and_then(rustix::process::Pid::from_raw);
                if let Some(pid) = raw {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(init) = &mut self.init {
            init.end();
        }
        self.kill_processes();
        drop(self.keeper.stop.take());
        if let Some(thread) = self.keeper.thread.take() {
            let _ = thread.join();
        }
    }
}

fn is_zombie(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X']))
}

impl Keeper {
    fn start(scratch: &Path) -> Result<Self, setup::SetupError> {
        let (ready_tx, ready_rx) = mpsc::channel();
        let (stop, stopped) = mpsc::channel::<()>();
        let scratch = scratch.to_owned();
        let thread = thread::spawn(move || {
            let made = setup::private_host(&scratch);
            let ok = made.is_ok();
            let _ = ready_tx.send(made.map(|namespaces| (rustix::thread::gettid(), namespaces)));
            if ok {
                let _ = stopped.recv(); // until the sender is dropped
            }
        });
        let (tid, namespaces) = ready_rx.recv().map_err(|_| setup::SetupError::died())??;
        Ok(Self {
            tid: tid.as_raw_nonzero().get(),
            mount: Arc::new(namespaces.mount),
            net: Arc::new(namespaces.net),
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}
