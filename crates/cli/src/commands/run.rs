//! `run`: runs a command in its own namespace, attached for as long as it runs.
//!
//! One thread lives in the namespace and starts the command from there. Its `/proc` entry is the
//! path by which plugins reach the namespace, so that nothing has to be mounted and nothing remains
//! when this process is killed: the command is killed with it, the namespace ends, and `gc` finds
//! that the path leads nowhere.

mod enter;
mod resolv;
mod signals;

use std::ffi::OsString;
use std::io;
use std::net::IpAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, ExitStatus};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use cni::{AddResult, ContainerId, code};
use cni_runtime::Member;
use kernel::netlink::Errno;
use kernel::netns::{self, Netns, NetnsError};
use kernel::route::{Change, LinkSet, RouteKind, RouteSocket};

use super::{Outcome, gc};
use crate::args::{Common, Run};
use crate::failure::Failure;
use crate::net::session::{PluginSource, Session};
use crate::net::several::Plan;
use crate::net::spec::{Addresses, NetworkSpec};
use crate::net::{attach, container, default};
use crate::shell::{Format, Shell};
use crate::world::World;
pub(crate) use enter::enter;
use resolv::Resolv;
use signals::Signals;

/// The network could not be set up; container engines use this code.
pub(crate) const EXIT_NO_NETWORK: u8 = 125;
/// The command was found and could not be started (POSIX sh, "Exit Status for Commands").
pub(crate) const EXIT_NOT_STARTED: u8 = 126;
/// The command was not found.
pub(crate) const EXIT_NOT_FOUND: u8 = 127;

/// What the shell adds to a signal's number.
const EXIT_SIGNALLED: i32 = 128;

pub(crate) fn main(args: &Run, common: &Common, world: &World, shell: &mut Shell) -> Outcome {
    let done = run(args, common, world, shell);
    done.map_err(|failure| failure.exit(EXIT_NO_NETWORK))
}

fn run(args: &Run, common: &Common, world: &World, shell: &mut Shell) -> Outcome {
    // Before anything is made: from here on only SIGKILL keeps us from removing it again.
    let signals = Signals::catch()
        .map_err(|error| Failure::of(code::IO_FAILURE, &error).context("catch signals"))?;
    let session = Session::open(world, common, shell, PluginSource::WithOwn)?;
    let id = match &args.name {
        Some(name) => container::id(name, "--name")?,
        None => made_up_id()?,
    };
    let namespace = Namespace::create()?;
    let specs = specs(args, world)?;
    let mut plan = Plan::new(&specs, &args.attach.publish, &id, &namespace.path, &session, world)?;
    with_arguments(&mut plan, args, world)?;
    let lists: Vec<_> = plan.members.iter().map(|member| &member.list).collect();
    attach::refuse_unread_labels(&lists, &args.labels)?;
    for Member { list, .. } in &mut plan.members {
        *list = attach::labelled(list.clone(), &args.labels)?;
    }

    let waiting = shell.waiting("attaching");
    let attached = plan.attach(&session, shell);
    drop(waiting);
    let is_attached = attached.is_ok();
    let outcome = match (attached, signals.fatal()) {
        (Err(failure), _) => Err(failure),
        // A signal asked us to stop before the command was started.
        (Ok(_), Some(signal)) => Ok(EXIT_SIGNALLED + signal),
        (Ok(results), None) => {
            let resolv = resolv_conf(args, &results, &namespace, shell);
            let beside = session.roots.run.clone();
            let start =
                Start { command: command(args, common), format: common.output, resolv, beside };
            namespace.run(start, &signals)
        }
    };
    if is_attached {
        plan.detach(&session, shell);
    }
    gc::prune(&session, shell);
    outcome.map(|code| ExitCode::from(u8::try_from(code & 0xff).unwrap_or(u8::MAX)))
}

/// Returns the networks to attach to. Options beside `--net` apply to the first of them.
fn specs(args: &Run, world: &World) -> Result<Vec<NetworkSpec>, Failure> {
    let mut specs = args.net.clone();
    if specs.is_empty() {
        specs.push(NetworkSpec::new(default::NAME));
    }
    let first = &mut specs[0].addresses;
    let Addresses { ip, mac, ifname } = args.attach.addresses.clone();
    let twice = (mac.is_some() && first.mac.is_some())
        || (ifname.is_some() && first.ifname.is_some())
        || (!ip.is_empty() && !first.ip.is_empty());
    if twice {
        return Err(Failure::usage("the first --net already has what --ip, --mac or --ifname set"));
    }
    first.ip.extend(ip);
    first.mac = first.mac.or(mac);
    if first.ifname.is_none() {
        let chosen = Addresses { ifname, ..Addresses::default() };
        first.ifname = Some(attach::ifname(&chosen, world)?);
    }
    Ok(specs)
}

/// Adds `--arg` and `--cap`, which every network gets.
fn with_arguments(plan: &mut Plan, args: &Run, world: &World) -> Result<(), Failure> {
    if args.attach.args.is_empty() && args.attach.capabilities.is_empty() {
        return Ok(());
    }
    let only_arguments = crate::args::Attach {
        args: args.attach.args.clone(),
        capabilities: args.attach.capabilities.clone(),
        ..crate::args::Attach::default()
    };
    let lists: Vec<_> = plan.members.iter().map(|member| &member.list).collect();
    attach::refuse_untaken(&lists, &args.attach)?;
    for Member { list, attachment } in &mut plan.members {
        let more = attach::describe(
            list,
            attachment.container_id.clone(),
            attachment.ifname.clone(),
            &attachment.netns,
            &only_arguments,
            world,
        )?;
        let both = attachment.args.iter().chain(more.args.iter());
        let pairs = both.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        attachment.args = cni::Args::from_pairs(pairs);
        attachment.capability_args.extend(more.capability_args);
    }
    Ok(())
}

/// Makes up a container ID that no other run has.
fn made_up_id() -> Result<ContainerId, Failure> {
    use std::io::Read;
    let mut random = [0_u8; 4];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut random))
        .map_err(|error| Failure::of(code::IO_FAILURE, &error).context("read /dev/urandom"))?;
    let id = format!("run-{}-{:08x}", std::process::id(), u32::from_ne_bytes(random));
    Ok(ContainerId::new(&id)?)
}

/// Returns the content of a resolv.conf for the command alone; `None` if the host's will do, or if no
/// server is known that the command reaches.
fn resolv_conf(
    args: &Run,
    results: &[AddResult],
    namespace: &Namespace,
    shell: &Shell,
) -> Option<String> {
    let chosen = resolv::choose(&args.dns, results);
    // The probe says itself what it does not reach.
    if !args.command.is_empty() {
        warn_of_servers(&chosen, namespace, shell);
    }
    match chosen {
        Resolv::Own(text) => Some(text),
        Resolv::Hosts | Resolv::Unreachable => None,
    }
}

fn warn_of_servers(chosen: &Resolv, namespace: &Namespace, shell: &Shell) {
    let what = if *chosen == Resolv::Unreachable {
        format!("reaches no name server of {}", resolv::FILE)
    } else {
        let Ok(mut socket) = namespace.socket() else { return };
        let lost = resolv::without_route(chosen, &mut |server| has_route(&mut socket, server));
        if lost.is_empty() {
            return;
        }
        let names: Vec<String> = lost.iter().map(ToString::to_string).collect();
        format!("has no route to name server {}", names.join(", "))
    };
    shell.warn(format_args!(
        "the command resolves no names: the container {what}; name one with --dns ADDRESS"
    ));
}

/// Says whether a route leads to an address; what the kernel does not tell counts as one.
fn has_route(socket: &mut RouteSocket, address: IpAddr) -> bool {
    match socket.route_to(address) {
        Ok(route) => route.is_some_and(|route| {
            use RouteKind::{Blackhole, Prohibit, Unreachable};
            !matches!(route.kind, Blackhole | Prohibit | Unreachable)
        }),
        // An IPv4 route that drops.
        Err(error) => !matches!(error.errno(), Some(Errno::INVAL | Errno::ACCES)),
    }
}

/// A command to start.
#[derive(Debug)]
struct Start {
    command: Vec<OsString>,
    /// The form of errors.
    format: Format,
    /// What `/etc/resolv.conf` is for the command alone, if not the host's.
    resolv: Option<String>,
    /// A folder of ours.
    beside: PathBuf,
}

/// Returns the command to start: the one given, or the probe.
fn command(args: &Run, common: &Common) -> Vec<OsString> {
    if !args.command.is_empty() {
        return args.command.clone();
    }
    let own = std::process::id();
    let output = if common.output == Format::Json { "json" } else { "text" };
    [
        format!("/proc/{own}/exe"),
        "probe".to_owned(),
        "--to".to_owned(),
        args.to.clone(),
        "--home".to_owned(),
        format!("/proc/{own}/ns/net"),
        "--output".to_owned(),
        output.to_owned(),
    ]
    .into_iter()
    .map(OsString::from)
    .collect()
}

/// A namespace that lives as long as its thread and the processes started from there.
struct Namespace {
    /// The path at which plugins find it.
    path: String,
    start: Option<Sender<Start>>,
    started: Receiver<std::io::Result<Child>>,
    thread: Option<JoinHandle<()>>,
}

impl Namespace {
    fn create() -> Result<Self, Failure> {
        let (made, is_made) = channel();
        let (start, to_start) = channel::<Start>();
        let (report, started) = channel();
        let thread = std::thread::Builder::new()
            .name("netns".to_owned())
            .spawn(move || {
                let path = enter_namespace();
                let failed = path.is_err();
                if made.send(path).is_err() || failed {
                    return;
                }
                let Ok(command) = to_start.recv() else { return };
                let _ = report.send(enter::spawn(&command));
                // The namespace and the command's death signal depend on this thread: it waits
                // until it may end.
                let _ = to_start.recv();
            })
            .map_err(|error| Failure::of(code::IO_FAILURE, &error).context("start a thread"))?;
        let path = is_made.recv().unwrap_or_else(|_| {
            Err(Failure::new(code::INTERNAL, "the namespace's thread ended"))
        })?;
        Ok(Namespace { path, start: Some(start), started, thread: Some(thread) })
    }

    /// Opens a socket in the namespace.
    fn socket(&self) -> Result<RouteSocket, Failure> {
        let refused = |error: &dyn std::error::Error| Failure::of(code::INVALID_NETNS, error);
        let netns = Netns::open(Path::new(&self.path)).map_err(|error| refused(&error))?;
        let opened = netns::within(&netns, RouteSocket::open).map_err(|error| refused(&error))?;
        opened.map_err(|error| refused(&error))
    }

    /// Runs a command and returns its exit code, as shells do.
    fn run(&self, command: Start, signals: &Signals) -> Result<i32, Failure> {
        let start = self.start.as_ref().expect("it is taken when the value is dropped");
        let gone = || Failure::new(code::INTERNAL, "the namespace's thread ended");
        start.send(command).map_err(|_| gone())?;
        let mut child =
            self.started.recv().map_err(|_| gone())?.map_err(|error| {
                Failure::of(code::IO_FAILURE, &error).context("start the command")
            })?;
        signals.forward_to(&child);
        let status = child.wait().map_err(|error| {
            Failure::of(code::IO_FAILURE, &error).context("wait for the command")
        })?;
        Ok(code_of(status))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.start.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn code_of(status: ExitStatus) -> i32 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, signal) => EXIT_SIGNALLED + signal.unwrap_or_default(),
    }
}

/// Moves this thread into a new namespace with `lo` up; returns the path by which others find it.
fn enter_namespace() -> Result<String, Failure> {
    let refused = |error: &dyn std::error::Error| Failure::of(code::INVALID_NETNS, error);
    netns::unshare_net().map_err(|error| match &error {
        // ENOSPC means the limit on namespaces here, not disk space.
        NetnsError::Unshare { source } if source.kind() == io::ErrorKind::StorageFull => {
            Failure::new(code::INVALID_NETNS, "the limit on network namespaces is reached")
                .hint("end some, or raise the limit: sysctl -w user.max_net_namespaces=NUMBER")
        }
        error => refused(error),
    })?;
    let mut netlink = RouteSocket::open().map_err(|error| refused(&error))?;
    let lo = netlink.link_by_name("lo").map_err(|error| refused(&error))?;
    if let Some(lo) = lo {
        let up = Change::SetLink { ifindex: lo.index, set: LinkSet::default().up(true) };
        netlink.apply(&[up]).map_err(|error| refused(&error))?;
    }
    let own = std::fs::read_link("/proc/thread-self").map_err(|error| refused(&error))?;
    Ok(PathBuf::from("/proc").join(own).join("ns/net").to_string_lossy().into_owned())
}
