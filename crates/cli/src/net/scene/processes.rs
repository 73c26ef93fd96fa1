//! Reads the processes: the programs that change the node's network, the process that has each
//! socket, and one process of each namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use scene::Program;

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
    /// It is stopped, and so is each other one that was found to have the socket.
    pub(super) stopped: bool,
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
    /// counts; if it is stopped, the others are looked for, too.
    pub(super) fn owners(&self, mut sockets: BTreeSet<u32>, of: &BTreeSet<u64>) -> Owners {
        let mut owners = Owners::default();
        let mut left = DESCRIPTORS;
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
            let mut stopped = None;
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
                let is_stopped = *stopped.get_or_insert_with(|| is_stopped(*pid));
                let owner = Owner { pid: *pid, name: name.clone(), stopped: true };
                let owner = owners.found.entry(inode).or_insert(owner);
                if !is_stopped {
                    owner.stopped = false;
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

/// Says whether a process is stopped, by a signal or by a debugger.
fn is_stopped(pid: u32) -> bool {
    let bytes = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    says_stopped(&String::from_utf8_lossy(&bytes))
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
        let owner = Owner { pid: own.pid, name: own.name, stopped: false };
        assert_eq!(owners.found, BTreeMap::from([(inode, owner)]));
        let owners = processes.owners(BTreeSet::from([inode]), &BTreeSet::new());
        assert_eq!(owners.found, BTreeMap::new());
    }

    #[test]
    fn a_process_is_stopped_or_not() {
        assert!(says_stopped("812 (nginx) T 1 812 812 0 -1 4194304"));
        assert!(says_stopped("812 (a) R (b) t 1 812"));
        assert!(!says_stopped("812 (T) S 1 812 812 0"));
        assert!(!says_stopped(""));
    }
}
