//! Reads the processes: the programs that change the node's network, the process that has each
//! socket, and one process of each namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use diagnose::model::Program;

/// How many processes are looked at.
const PROCESSES: usize = 200_000;
/// How many descriptors are looked at to find the process that has a socket.
const DESCRIPTORS: usize = 400_000;

/// Programs that change a node's network, by their processes' names: the kernel keeps 15 letters.
const PROGRAMS: &[(&str, &str)] = &[
    ("NetworkManager", "NetworkManager"),
    ("aardvark-dns", "podman"),
    ("calico-node", "calico-node"),
    ("cilium-agent", "cilium-agent"),
    ("conmon", "podman"),
    ("containerd", "containerd"),
    ("crio", "crio"),
    ("dhcpcd", "dhcpcd"),
    ("dockerd", "dockerd"),
    ("firewalld", "firewalld"),
    ("flanneld", "flanneld"),
    ("k3s-agent", "k3s"),
    ("k3s-server", "k3s"),
    ("kube-proxy", "kube-proxy"),
    ("kube-router", "kube-router"),
    ("kubelet", "kubelet"),
    ("libvirtd", "libvirtd"),
    ("netavark", "podman"),
    ("ovn-controller", "ovn-controller"),
    ("ovs-vswitchd", "ovs-vswitchd"),
    ("podman", "podman"),
    ("systemd-network", "systemd-networkd"),
    ("tailscaled", "tailscaled"),
    ("virtnetworkd", "libvirtd"),
];

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Process {
    pid: u32,
    name: String,
    /// The inode of its network namespace; `None` if it may not be seen.
    netns: Option<u64>,
}

/// All processes, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Processes {
    all: Vec<Process>,
    /// Why not all were read.
    pub(super) unread: Option<String>,
}

/// The processes that have the sockets.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// The process, by a socket's inode.
    pub(super) found: BTreeMap<u32, Owner>,
    /// Why not all were found.
    pub(super) unread: Option<String>,
}

/// A process that has a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) pid: u32,
    pub(super) name: String,
    /// It does not run, and neither does any other one that was found to have the socket.
    pub(super) halt: Option<Halt>,
}

/// Why a process does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Halt {
    /// It is stopped, by a signal or by a debugger.
    Stopped,
    /// A control group is frozen: the file that says so.
    Frozen(String),
}

impl Processes {
    /// Reads them from `/proc`.
    pub(super) fn read() -> Self {
        let mut found = Self::default();
        let entries = match fs::read_dir("/proc") {
            Ok(entries) => entries,
            Err(error) => {
                found.unread = Some(format!("/proc: {error}"));
                return found;
            }
        };
        let pid = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
        let mut pids: Vec<u32> = entries.filter_map(|entry| pid(entry.ok()?)).collect();
        cni::order::sort(&mut pids);
        if PROCESSES < pids.len() {
            found.unread =
                Some(format!("there are {} processes, and {PROCESSES} were looked at", pids.len()));
            pids.truncate(PROCESSES);
        }
        found.all = pids.into_iter().filter_map(process).collect();
        found
    }

    /// Returns the programs that change the network of a namespace and are in it, one process of
    /// each.
    pub(super) fn programs(&self, netns: u64) -> Vec<Program> {
        let mut found: Vec<Program> = Vec::new();
        for process in self.all.iter().filter(|process| process.netns == Some(netns)) {
            let known = PROGRAMS.iter().find(|(name, _)| *name == process.name);
            let Some((_, name)) = known else { continue };
            if !found.iter().any(|one| one.name == *name) {
                found.push(Program { name: (*name).to_owned(), pid: process.pid });
            }
        }
        found
    }

    /// Returns the first process of each namespace.
    pub(super) fn first_of_each(&self) -> BTreeMap<u64, u32> {
        let mut found = BTreeMap::new();
        for process in &self.all {
            if let Some(netns) = process.netns {
                found.entry(netns).or_insert(process.pid);
            }
        }
        found
    }

    /// Finds out which processes of these namespaces have these sockets. Of several the first
    /// counts; if it does not run, the others are looked for, too.
    pub(super) fn owners(&self, mut sockets: BTreeSet<u32>, of: &BTreeSet<u64>) -> Owners {
        let mut owners = Owners::default();
        let mut left = DESCRIPTORS;
        let mut groups = BTreeMap::new();
        sockets.remove(&0);
        for process in &self.all {
            if sockets.is_empty() {
                break;
            }
            if !process.netns.is_some_and(|netns| of.contains(&netns)) {
                continue;
            }
            if left == 0 {
                owners.unread =
                    Some(format!("{DESCRIPTORS} descriptors were looked at, and there are more"));
                break;
            }
            let folder = format!("/proc/{}/fd", process.pid);
            let mut halt = None;
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                if left == 0 {
                    break;
                }
                left -= 1;
                let Some(inode) = socket(&entry.path()) else { continue };
                if !sockets.contains(&inode) {
                    continue;
                }
                let Process { pid, name, .. } = process;
                let halt = halt.get_or_insert_with(|| halted(*pid, &mut groups));
                let owner = Owner { pid: *pid, name: name.clone(), halt: halt.clone() };
                let owner = owners.found.entry(inode).or_insert(owner);
                if halt.is_none() {
                    owner.halt = None;
                    sockets.remove(&inode);
                }
            }
        }
        owners
    }
}

/// Returns the socket to which a descriptor leads.
fn socket(descriptor: &Path) -> Option<u32> {
    let leads = fs::read_link(descriptor).ok()?;
    leads.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Says why a process does not run; `None` if it does, or if that is not known. `known` has what is
/// known of control groups, by the lines that name them: a container's processes have the same.
fn halted(pid: u32, known: &mut BTreeMap<String, Option<Halt>>) -> Option<Halt> {
    let text = |file: &str| {
        let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    if says_stopped(&text("stat")) {
        return Some(Halt::Stopped);
    }
    let halt = known.entry(text("cgroup")).or_insert_with_key(|lines| {
        let by = |(kind, path)| frozen(Path::new(CGROUPS), kind, path);
        groups(lines).find_map(by).map(Halt::Frozen)
    });
    halt.clone()
}

/// How a hierarchy of control groups says that a group is frozen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Freezer {
    /// Where the hierarchy may be.
    at: &'static [&'static str],
    /// The file that says whether a group is frozen, by itself or by one above it, and the line.
    is: [&'static str; 2],
    /// The file by which it is frozen itself, and what it has then.
    by: [&'static str; 2],
}

/// Where control groups are (`man 7 cgroups`).
const CGROUPS: &str = "/sys/fs/cgroup";

/// Version 2, which may be beside version 1 (linux Documentation/admin-guide/cgroup-v2.rst).
const UNIFIED: Freezer =
    Freezer { at: &["", "unified"], is: ["cgroup.events", "frozen 1"], by: ["cgroup.freeze", "1"] };

/// Version 1 (linux Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst).
const FREEZER: Freezer = Freezer {
    at: &["freezer"],
    is: ["freezer.state", "FROZEN"],
    by: ["freezer.self_freezing", "1"],
};

/// How deep a group is looked for that freezes those below it.
const DEEP: usize = 32;

/// Returns the control groups of a process that may freeze it. A line has the hierarchy's number,
/// its controllers, and the path of the group.
fn groups(lines: &str) -> impl Iterator<Item = (Freezer, &str)> {
    lines.lines().filter_map(|line| {
        let (number, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        // One that is not below the root that is seen here.
        if path.split('/').any(|part| part == "..") {
            return None;
        }
        let path = path.trim_start_matches('/');
        if number == "0" {
            return Some((UNIFIED, path));
        }
        controllers.split(',').any(|one| one == "freezer").then_some((FREEZER, path))
    })
}

/// Returns the file of the group that freezes another one.
fn frozen(root: &Path, kind: Freezer, path: &str) -> Option<String> {
    let has = |group: &Path, [file, line]: [&str; 2]| {
        let text = fs::read_to_string(group.join(file)).unwrap_or_default();
        text.lines().any(|one| one.trim() == line)
    };
    let mut hierarchies = kind.at.iter().map(|at| root.join(at));
    let top = hierarchies.find(|top| has(&top.join(path), kind.is))?;
    let group = top.join(path);
    let mut above = group.ancestors().take(DEEP).take_while(|group| group.starts_with(&top));
    let by = above.find(|group| has(group, kind.by))?;
    // What is written there to let the processes go on is in a file of another name.
    let file = if kind == FREEZER { FREEZER.is[0] } else { UNIFIED.by[0] };
    Some(by.join(file).to_str()?.to_owned())
}

/// Reads the state, behind the name in parentheses, which may contain some itself (`man 5
/// proc_pid_stat`).
fn says_stopped(stat: &str) -> bool {
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    matches!(state, Some('T' | 't'))
}

/// Reads a process; `None` if it has ended.
fn process(pid: u32) -> Option<Process> {
    // A process may give itself any bytes for a name.
    let bytes = fs::read(format!("/proc/{pid}/comm")).ok()?;
    let name = String::from_utf8_lossy(&bytes).trim_end().to_owned();
    let netns = fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let netns = netns.and_then(|link| namespace(link.to_str()?));
    Some(Process { pid, name, netns })
}

/// Reads `net:[4026531840]`.
fn namespace(link: &str) -> Option<u64> {
    link.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn programs_are_known_by_their_names_in_the_namespace() {
        let process = |pid, name: &str, netns| Process { pid, name: name.to_owned(), netns };
        let all = vec![
            process(1, "systemd", Some(7)),
            process(40, "systemd-network", Some(7)),
            process(41, "firewalld", Some(8)),
            process(42, "dockerd", None),
            process(50, "conmon", Some(7)),
            process(51, "conmon", Some(7)),
        ];
        let processes = Processes { all, unread: None };
        let found: Vec<(String, u32)> =
            processes.programs(7).into_iter().map(|one| (one.name, one.pid)).collect();
        assert_eq!(found, [("systemd-networkd".to_owned(), 40), ("podman".to_owned(), 50)]);
        assert_eq!(processes.first_of_each(), BTreeMap::from([(7, 1), (8, 41)]));
        assert!(PROGRAMS.iter().all(|(name, _)| name.len() <= 15));
        assert!(PROGRAMS.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn this_process_has_its_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let path = format!("/proc/self/fd/{}", listener.as_raw_fd());
        let inode = socket(Path::new(&path)).unwrap();
        let own = process(std::process::id()).unwrap();
        let netns = own.netns.unwrap();
        let processes = Processes { all: vec![own.clone()], unread: None };
        let owners = processes.owners(BTreeSet::from([inode, 0]), &BTreeSet::from([netns]));
        let owner = Owner { pid: own.pid, name: own.name, halt: None };
        assert_eq!(owners.found, BTreeMap::from([(inode, owner)]));
        let owners = processes.owners(BTreeSet::from([inode]), &BTreeSet::new());
        assert_eq!(owners.found, BTreeMap::new());
    }

    #[test]
    fn a_control_group_is_frozen_by_itself_or_by_one_above_it() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let write = |file: &str, text: &str| {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let frozen = |lines: &str| {
            let found = groups(lines).find_map(|(kind, path)| frozen(root, kind, path));
            found.map(|file| file.strip_prefix(root.to_str().unwrap()).unwrap().to_owned())
        };
        let unified = "0::/pods/web\n";
        assert_eq!(frozen(unified), None);
        write("pods/web/cgroup.events", "populated 1\nfrozen 0\n");
        assert_eq!(frozen(unified), None);
        write("pods/web/cgroup.events", "populated 1\nfrozen 1\n");
        write("pods/web/cgroup.freeze", "0\n");
        write("pods/cgroup.freeze", "1\n");
        assert_eq!(frozen(unified).as_deref(), Some("/pods/cgroup.freeze"));
        let lines = "6:cpu,freezer:/a\n4:memory:/m\n0::/\n";
        assert_eq!(frozen(lines), None);
        write("freezer/a/freezer.state", "FROZEN\n");
        write("freezer/a/freezer.self_freezing", "1\n");
        assert_eq!(frozen(lines).as_deref(), Some("/freezer/a/freezer.state"));
        assert_eq!(frozen("6:freezer:/../a\nnonsense\n"), None);
    }

    #[test]
    fn a_process_is_stopped_or_not() {
        assert!(says_stopped("812 (nginx) T 1 812 812 0 -1 4194304"));
        assert!(says_stopped("812 (a) R (b) t 1 812"));
        assert!(!says_stopped("812 (T) S 1 812 812 0"));
        assert!(!says_stopped(""));
    }
}
