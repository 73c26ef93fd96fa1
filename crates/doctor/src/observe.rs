//! Reads a node as it is: its own namespace and its containers', what is configured and what runs.
//!
//! It is one pass, by netlink and files; nothing is changed. Each namespace is entered once, by a
//! thread that leaves it as soon as it is read. What cannot be read is a [`Hole`], never an error
//! and never an absence. What containers and other programs can make large is read up to a limit,
//! and a hole says what was left out.
//!
//! Kernel parameters of a link have the link's name in theirs as it is:
//! `net.ipv4.conf.eth0.10.rp_filter` is that of link `eth0.10`.

mod containers;
mod firewalls;
mod flows;
mod folders;
mod hooks;
mod legacy;
mod names;
mod namespace;
mod networks;
mod processes;
mod queues;
pub mod services;
mod switches;
mod wanted_items;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use cni::order;
use cni_runtime::{ConfigFolder, Inventory};
use diagnose::model::{Container, Hole, Part, Scene};
use kernel::living::Census;
use kernel::netns::{Netns, NetnsError};
use kernel::remedy;
use kernel::sysctl::Sysctl;

use crate::node::{Choice, Node};
use crate::runtime_names::RuntimeNames;
use containers::Subject;
use legacy::LegacyReader;
use namespace::{ObservedNamespace, with_causes};
use processes::{Halt, Processes};
use switches::Switch;

/// How many threads read namespaces at once.
const READERS: usize = 4;
/// For how many skipped files the reasons are reported.
const NOTICES: usize = 8;

/// Reads the node. With `only`, only the namespace of that container and a few on the same networks
/// are read, and only its plugins are asked; a name that means nothing changes nothing. `progress`
/// gets the name of each step as it begins.
///
/// It asks plugins, which change nothing: STATUS and VERSION of each network's, and those of each
/// attachment what differs from what ADD made.
///
/// **Namespace**: that of the node. Threads of our own enter the containers'.
///
/// **Privileges**: root with `CAP_SYS_ADMIN` and `CAP_NET_ADMIN`. Without them the scene has more
/// holes: there is no error.
#[must_use]
pub fn read(node: &Node<'_>, only: Option<&Choice>, progress: &mut dyn FnMut(&str)) -> Scene {
    let mut picture = Picture::begin(node.version);
    let legacy = LegacyReader::default();
    progress("reading the node's network namespace");
    let own = namespace::node(&legacy);
    let mut inodes = vec![(None, own.inodes)];
    picture.scene.host = own.namespace;
    picture.holes(None, own.holes);

    progress("looking for containers");
    let names = RuntimeNames::read();
    let mut subjects = picture.subjects(node, &names);
    if let Some(choice) = only {
        containers::choose(&mut subjects, choice, node.roots, &names);
    }
    let readings = picture.insides(&mut subjects, node, &legacy, progress);
    let switches = picture.networks(node, &subjects, progress);
    picture.scene.folders = folders::read(node);
    picture.services(node);

    progress("looking for programs");
    let processes = Processes::read();
    let first = processes.first_of_each();
    for (mut subject, reading) in subjects.into_iter().zip(readings) {
        // A DEL was removing what differed or could not be read.
        if subject.is_detached() {
            continue;
        }
        let id = subject.container.id.clone();
        match reading {
            Some(Ok((netns, read))) => {
                subject.container.inside = Some(read.namespace);
                inodes.push((Some((id.clone(), netns)), read.inodes));
                picture.holes(Some(&id), read.holes);
                let pid = first.get(&netns).copied();
                let found = names::read(pid, &subject.container.netns);
                subject.container.nameservers = found.servers;
                subject.container.names = found.files;
                for reason in found.unread {
                    picture.hole(Part::Names, Some(&id), reason);
                }
            }
            Some(Err(reason)) => picture.hole(Part::Namespace, Some(&id), reason),
            // After an ADD that failed, its namespace may be gone.
            None if subject.container.alive.is_none() && !subject.is_unfinished() => {
                let reason = "it cannot be seen from here whether it exists";
                picture.hole(Part::Namespace, Some(&id), reason);
            }
            None => {}
        }
        picture.scene.containers.push(subject.container);
    }
    switches::look(&mut picture.scene, &switches);
    picture.programs(&processes, &inodes);
    match flows::read(&picture.scene) {
        Ok(flows) => picture.scene.flows = flows,
        Err(reason) => picture.hole(Part::Conntrack, None, reason),
    }
    picture.end()
}

/// Returns the text of the hosts file that the first process of a namespace sees; empty if there is
/// none.
pub(crate) fn hosts_of(netns: &Netns) -> String {
    let first = Processes::read().first_of_each();
    first.get(&netns.id().ino).map(|pid| names::hosts(*pid)).unwrap_or_default()
}

/// A namespace's number and what was read of it, or why it was not.
type Reading = Result<(u64, ObservedNamespace), String>;

/// A container with its namespace's number; `None` is the node.
type ContainerPlace = Option<(String, u64)>;

/// A scene that is being read.
#[derive(Debug)]
struct Picture {
    scene: Scene,
}

impl Picture {
    #[expect(clippy::disallowed_methods, reason = "a scene says when it was read")]
    fn begin(version: &str) -> Self {
        let of = |name| Sysctl::parse(name).and_then(|sysctl| sysctl.read()).unwrap_or_default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let scene = Scene {
            node: of("kernel.hostname"),
            kernel: of("kernel.osrelease"),
            netwright: version.to_owned(),
            at_s: now.map(|since| since.as_secs()).unwrap_or_default(),
            ..Scene::default()
        };
        Picture { scene }
    }

    fn end(mut self) -> Scene {
        order::sort(&mut self.scene.holes);
        self.scene.holes.dedup();
        self.scene
    }

    fn hole(&mut self, part: Part, container: Option<&str>, reason: impl Into<String>) {
        let container = container.map(str::to_owned);
        self.scene.holes.push(Hole { part, container, reason: reason.into() });
    }

    fn holes(&mut self, container: Option<&str>, holes: Vec<(Part, String)>) {
        for (part, reason) in holes {
            self.hole(part, container, reason);
        }
    }

    /// Reads the attachments.
    fn subjects(&mut self, node: &Node<'_>, names: &RuntimeNames) -> Vec<Subject> {
        let Inventory { known, notices, .. } = match node.runtime.everything(node.roots) {
            Ok(everything) => everything,
            Err(error) => {
                let reason = (node.advise)(error.to_cni()).to_string();
                self.hole(Part::Attachments, None, reason);
                return Vec::new();
            }
        };
        // A damaged file of an attachment that records name is reported with the attachment.
        let is_told = |notice: &String| {
            known
                .iter()
                .filter_map(|one| one.damaged.as_ref())
                .any(|file| notice.contains(&format!("{:?}", file.path)))
        };
        let untold: Vec<&String> = notices.iter().filter(|notice| !is_told(notice)).collect();
        for notice in untold.iter().take(NOTICES) {
            self.hole(Part::Attachments, None, notice.as_str());
        }
        if NOTICES < untold.len() {
            let reason = format!("{} more files", untold.len() - NOTICES);
            self.hole(Part::Attachments, None, reason);
        }
        containers::of(known, node, names)
    }

    /// Reads the containers' namespaces, and meanwhile asks the plugins what differs.
    fn insides(
        &mut self,
        subjects: &mut [Subject],
        node: &Node<'_>,
        legacy: &LegacyReader,
        progress: &mut dyn FnMut(&str),
    ) -> Vec<Option<Reading>> {
        let paths: Vec<Option<String>> = subjects
            .iter()
            .map(|subject| subject.is_read.then(|| subject.container.netns.clone()))
            .collect();
        let wanted = paths.iter().flatten().count();
        let next = AtomicUsize::new(0);
        let mut readings: Vec<Option<Reading>> = paths.iter().map(|_| None).collect();
        let (paths, next) = (&paths, &next);
        thread::scope(|scope| {
            let readers: Vec<_> = (0..READERS.min(wanted))
                .map(|_| scope.spawn(move || read_next(paths, next, legacy)))
                .collect();
            self.ask(subjects, node, progress);
            for (at, reading) in readers.into_iter().filter_map(|one| one.join().ok()).flatten() {
                readings[at] = Some(reading);
            }
        });
        let census = Census::new();
        for (subject, reading) in subjects.iter().zip(&mut readings) {
            if !subject.is_read {
                continue;
            }
            // A reader that panicked has left out its readings.
            let failed = reading.get_or_insert_with(|| Err("it was not read".to_owned()));
            // Another path may still lead to it.
            if failed.is_err()
                && let Some(netns) = subject.elsewhere(&census)
            {
                *failed = enter(&netns, legacy);
            }
        }
        readings
    }

    fn ask(&mut self, subjects: &mut [Subject], node: &Node<'_>, progress: &mut dyn FnMut(&str)) {
        if !remedy::is_root() || !node.has_own_plugins {
            let is_any = subjects.iter().any(|subject| subject.is_asked);
            if is_any {
                let what = "they were not compared with what ADD made";
                self.hole(Part::Attachments, None, format!("{what}: {}", remedy::BE_ROOT));
            }
            return;
        }
        let count = subjects.iter().filter(|subject| subject.is_asked).count();
        let asked = subjects.iter_mut().filter(|subject| subject.is_asked);
        for (number, subject) in asked.enumerate() {
            let called = subject.container.called();
            progress(&format!("checking {called}, {} of {count}", number + 1));
            subject.ask(node);
        }
    }

    fn networks(
        &mut self,
        node: &Node<'_>,
        subjects: &[Subject],
        progress: &mut dyn FnMut(&str),
    ) -> Vec<Switch> {
        let folder = match ConfigFolder::scan(node.conf_dir) {
            Ok(folder) => folder,
            Err(error) => {
                let reason = (node.advise)(error.to_cni()).to_string();
                self.hole(Part::Networks, None, reason);
                return Vec::new();
            }
        };
        let containers: Vec<&Container> =
            subjects.iter().map(|subject| &subject.container).collect();
        let asks = remedy::is_root() && node.has_own_plugins;
        let found = networks::read(node, &folder, &containers, asks, progress);
        self.scene.networks = found.networks;
        self.scene.broken = found.broken;
        self.scene.plugins = found.plugins;
        self.scene.pools = found.pools;
        for reason in found.unread {
            self.hole(Part::Pools, None, reason);
        }
        for reason in found.unasked {
            self.hole(Part::Networks, None, reason);
        }
        if !asks {
            let reason = format!("no plugin was asked: {}", remedy::BE_ROOT);
            self.hole(Part::Networks, None, reason);
        }
        found.switches
    }

    fn services(&mut self, node: &Node<'_>) {
        match services::read(node.roots) {
            Ok(found) => self.scene.services = found,
            Err(reason) => self.hole(Part::Services, None, reason),
        }
    }

    /// Adds the node's programs, and to each socket the process that has it.
    fn programs(&mut self, processes: &Processes, inodes: &[(ContainerPlace, Vec<u32>)]) {
        let Ok(own) = Netns::current_id() else {
            self.hole(Part::Processes, None, "/proc is not mounted");
            return;
        };
        if let Some(reason) = &processes.unread {
            self.hole(Part::Processes, None, reason.clone());
        }
        self.scene.programs = processes.programs(own.ino);
        self.scene.firewalls = firewalls::read(&self.scene.programs);
        let sockets: BTreeSet<u32> =
            order::gather(inodes.iter().flat_map(|(_, inodes)| inodes).copied());
        let namespaces: BTreeSet<u64> = order::gather(
            inodes.iter().map(|(of, _)| of.as_ref().map_or(own.ino, |(_, netns)| *netns)),
        );
        let owners = processes.owners(sockets, &namespaces);
        if let Some(reason) = &owners.unread {
            self.hole(Part::Processes, None, reason.clone());
        }
        for (of, inodes) in inodes {
            let listeners = match of {
                None => &mut self.scene.host.listeners,
                Some((id, _)) => {
                    let place = self.scene.containers.binary_search_by(|one| one.id.cmp(id));
                    let container = place.ok().and_then(|at| self.scene.containers.get_mut(at));
                    match container.and_then(|container| container.inside.as_mut()) {
                        Some(inside) => &mut inside.listeners,
                        None => continue,
                    }
                }
            };
            for (listener, inode) in listeners.iter_mut().zip(inodes) {
                if let Some(owner) = owners.found.get(inode) {
                    listener.pid = Some(owner.pid);
                    listener.program = Some(owner.name.clone());
                    listener.stopped = owner.halt == Some(Halt::Stopped);
                    listener.frozen = match &owner.halt {
                        Some(Halt::Frozen(by)) => Some(by.clone()),
                        _ => None,
                    };
                }
            }
        }
    }
}

/// Says whether a text reports a right that this process lacks. If the process has all rights, the
/// same words report a fault: a plugin that may not be executed, a folder that is immutable.
fn is_refused(text: &str) -> bool {
    let text = text.to_lowercase();
    let tells = text.contains("operation not permitted") || text.contains("permission denied");
    tells && !has_rights(&std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default())
}

/// Says whether a process may see and change networks, by what `/proc` shows of it (`man 7
/// capabilities`: CAP_NET_ADMIN, CAP_SYS_ADMIN).
fn has_rights(status: &str) -> bool {
    const NEEDED: u64 = 1 << 12 | 1 << 21;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    effective.is_some_and(|mask| mask & NEEDED == NEEDED)
}

/// Reads namespaces until all are read.
fn read_next(
    paths: &[Option<String>],
    next: &AtomicUsize,
    legacy: &LegacyReader,
) -> Vec<(usize, Reading)> {
    let mut done = Vec::new();
    loop {
        let at = next.fetch_add(1, Ordering::Relaxed);
        match paths.get(at) {
            None => return done,
            Some(None) => {}
            Some(Some(path)) => {
                let reading = match Netns::open(Path::new(path)) {
                    Ok(netns) => enter(&netns, legacy),
                    Err(error) => Err(told_of(&error)),
                };
                done.push((at, reading));
            }
        }
    }
}

fn enter(netns: &Netns, legacy: &LegacyReader) -> Reading {
    let read = namespace::container(netns, legacy).map_err(|error| told_of(&error))?;
    Ok((netns.id().ino, read))
}

fn told_of(error: &NetnsError) -> String {
    match error.leads_nowhere() {
        true => format!("its path leads nowhere: {}", with_causes(error)),
        false => with_causes(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_read_as_the_kernel_shows_them() {
        let status = |mask: &str| format!("Name:\tx\nCapPrm:\t0\nCapEff:\t{mask}\nCapBnd:\t0\n");
        assert!(has_rights(&status("000001ffffffffff")));
        // A container's usual ones.
        assert!(!has_rights(&status("00000000a80425fb")));
        assert!(!has_rights(&status("0000000000000000")));
        assert!(!has_rights(""));
        assert!(!is_refused("no such file or directory"));
    }
}
