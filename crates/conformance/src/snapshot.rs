//! Everything that a plugin could leave behind or change, as text that can be compared.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use kernel::netns::{Netns, within};
use kernel::nft::NftSocket;
use kernel::route::{
    Address, IpFamily, RouteFilter, RouteProtocol, RouteSocket, TABLE_LOCAL, TcHandle,
};

use crate::case::{OrBroken as _, Outcome};
use crate::lab::{NETNS, OWN};

/// Folders that plugins write to.
const FOLDERS: [&str; 3] = ["/run", "/var", "/etc/cni"];

/// Sysctls that are counters, or change by themselves.
const VOLATILE: [&str; 5] =
    ["nf_conntrack_count", "stable_secret", "dad_transmits_count", "random_id", "route/flush"];

/// Duplicate address detection takes a random second before its first probe and one after it.
const SETTLE: Duration = Duration::from_secs(5);

/// The state at one moment. Each fact has a kind (`link`, `address`, …), a name and a value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Snapshot(BTreeMap<(&'static str, String), String>);

impl Snapshot {
    /// Records the private machine: its own namespace and its files.
    pub(crate) fn of_machine() -> Outcome<Self> {
        let here = Netns::current().or_broken("open the own namespace")?;
        let mut found = Self::of_netns(&here)?;
        for dir in FOLDERS {
            found.files(Path::new(dir));
        }
        Ok(found)
    }

    /// Records a namespace.
    pub(crate) fn of_netns(netns: &Netns) -> Outcome<Self> {
        let mut found = Self::default();
        found.links(netns).or_broken("list links")?;
        found.nftables(netns).or_broken("list nftables")?;
        within(netns, || found.sysctls(Path::new("/proc/sys/net"))).or_broken("read sysctls")?;
        Ok(found)
    }

    /// Drops what only contains other things: nftables' tables, chains and rules without addresses,
    /// empty folders and locks.
    pub(crate) fn without_frames(mut self) -> Self {
        self.0.retain(|(kind, _), _| !matches!(*kind, "table" | "chain" | "rule" | "set"));
        self.0.retain(|(kind, name), value| {
            let frame = value.starts_with("directory")
                || value.starts_with("0 bytes")
                || name.contains("/last_reserved_ip");
            *kind != "file" || !frame
        });
        self
    }

    /// Lists what differs from an earlier moment: `+` is new, `-` is gone, `~` is changed.
    pub(crate) fn since(&self, before: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        for ((kind, name), value) in &self.0 {
            match before.0.get(&(*kind, name.clone())) {
                None => lines.push(format!("+ {kind} {name} {value}")),
                Some(old) if old != value => {
                    lines.push(format!("~ {kind} {name}: {old} -> {value}"));
                }
                Some(_) => {}
            }
        }
        for (kind, name) in before.0.keys().filter(|key| !self.0.contains_key(*key)) {
            lines.push(format!("- {kind} {name}"));
        }
        // A link's sysctls come and go with it and give no further information.
        let links: Vec<String> = lines
            .iter()
            .filter_map(|line| line.strip_prefix("+ link ").or(line.strip_prefix("- link ")))
            .filter_map(|rest| rest.split(' ').next().map(|name| format!("/{name}/")))
            .collect();
        lines.retain(|line| {
            !line.contains(" sysctl ") || !links.iter().any(|link| line.contains(link.as_str()))
        });
        lines.retain(|line| !stays_on(line));
        lines
    }

    fn add(&mut self, kind: &'static str, name: String, value: String) {
        let mut key = (kind, name);
        while self.0.contains_key(&key) {
            key.1.push_str(" (again)");
        }
        self.0.insert(key, value);
    }

    fn links(&mut self, netns: &Netns) -> Result<(), kernel::NetlinkError> {
        let mut netlink = RouteSocket::open_in(netns)?;
        let end = Instant::now() + SETTLE;
        let unsettled = |address: &Address| {
            address.tentative() && !address.dad_failed() && !is_link_local(address)
        };
        while netlink.addresses(None)?.iter().any(unsettled) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        let links = netlink.links()?;
        let name_of = |index: u32| {
            let link = links.iter().find(|link| link.index == index);
            link.map_or_else(|| index.to_string(), |link| link.name.clone())
        };
        for link in &links {
            let value = format!(
                "{} {} mtu {} {} alias {:?} master {:?} qlen {} {:?} {:?}",
                link.kind.as_deref().unwrap_or("-"),
                link.mac.map(|mac| mac.to_string()).unwrap_or_default(),
                link.mtu,
                if link.up() { "up" } else { "down" },
                link.alias,
                link.master.map(name_of),
                link.tx_queue_len,
                link.port.map(|port| (port.hairpin, port.isolated)),
                link.bridge,
            );
            self.add("link", link.name.clone(), value);
            for (place, parent) in [("root", TcHandle::ROOT), ("ingress", TcHandle::INGRESS)] {
                if let Some(qdisc) = netlink.qdisc(link.index, parent)?
                    && !matches!(qdisc.qdisc.kind.name(), "noqueue" | "pfifo_fast" | "mq" | "noop")
                {
                    self.add(
                        "qdisc",
                        format!("{} {place}", link.name),
                        qdisc.qdisc.kind.name().to_owned(),
                    );
                }
            }
        }
        for address in netlink.addresses(None)? {
            // The kernel creates these when a link comes up, in its own time.
            if is_link_local(&address) {
                continue;
            }
            let name = format!("{} {}", name_of(address.ifindex), address.address);
            self.add("address", name, format!("{:?}", address.scope));
        }
        for family in [IpFamily::V4, IpFamily::V6] {
            for route in netlink.routes(RouteFilter { family, table: None, oif: None })? {
                // The kernel's own routes follow addresses and carriers, in its own time; so do
                // link-local ones.
                let kernels =
                    route.table == TABLE_LOCAL || route.protocol == Some(RouteProtocol::KERNEL);
                let destination = route.destination.to_string();
                if kernels || destination.starts_with("fe80:") || destination.starts_with("ff00:") {
                    continue;
                }
                let name = format!(
                    "{destination} via {:?} dev {} table {}",
                    route.gateway,
                    route.oif.map(name_of).unwrap_or_default(),
                    route.table
                );
                self.add("route", name, format!("{:?} {:?}", route.kind, route.priority));
            }
            for rule in netlink.rules(family)? {
                self.add("routing rule", format!("{rule:?}"), String::new());
            }
        }
        Ok(())
    }

    fn nftables(&mut self, netns: &Netns) -> Result<(), kernel::NetlinkError> {
        let mut nft = NftSocket::open_in(netns)?;
        let chains = nft.chains(None)?;
        for info in nft.tables(None)? {
            let table = format!("{:?} {}", info.table.family, info.table.name);
            self.add("table", table.clone(), String::new());
            for chain in chains.iter().filter(|chain| chain.table == info.table) {
                self.add("chain", format!("{table} {}", chain.name), format!("{:?}", chain.hook));
                for rule in nft.rules(&info.table, &chain.name)? {
                    let text = format!("{:?} {:?}", rule.comment, rule.exprs);
                    self.add("rule", format!("{table} {} {text}", chain.name), String::new());
                }
            }
            for set in nft.sets(&info.table)? {
                self.add("set", format!("{table} {}", set.name), String::new());
                for element in nft.elements(&info.table, &set.name)? {
                    self.add("element", format!("{table} {} {element:?}", set.name), String::new());
                }
            }
        }
        Ok(())
    }

    fn sysctls(&mut self, dir: &Path) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.sysctls(&path);
            } else if !VOLATILE.iter().any(|name| path.ends_with(name)) {
                // Some sysctls can only be written, some have no value yet.
                if let Ok(value) = fs::read_to_string(&path) {
                    self.add("sysctl", path.display().to_string(), value.trim_end().to_owned());
                }
            }
        }
    }

    fn files(&mut self, path: &Path) {
        let Ok(meta) = fs::symlink_metadata(path) else { return };
        if path == Path::new(OWN) || path == Path::new(NETNS) {
            return;
        }
        // Netwright's index of an address pool differs after every call; only its existence
        // counts.
        if path.parent().is_some_and(|parent| parent.ends_with("run/netwright/addresses")) {
            return self.add("file", path.display().to_string(), "an index".to_owned());
        }
        // A lock that no process holds does not count; plugins create their locks when they first
        // need them.
        let is_lock = path.file_name().is_some_and(|name| name == "lock")
            || path.extension().is_some_and(|extension| extension == "lock");
        if meta.is_file() && meta.len() == 0 && is_lock {
            return;
        }
        let content = if meta.is_dir() {
            "directory".to_owned()
        } else if meta.is_file() {
            let bytes = fs::read(path).unwrap_or_default();
            let shown: String = String::from_utf8_lossy(&bytes).chars().take(200).collect();
            format!("{} bytes {shown:?}", bytes.len())
        } else {
            format!("{:?}", meta.file_type())
        };
        self.add("file", path.display().to_string(), format!("{content} mode {:o}", meta.mode()));
        if meta.is_dir() {
            for entry in fs::read_dir(path).into_iter().flatten().flatten() {
                self.files(&entry.path());
            }
        }
    }
}

fn is_link_local(address: &Address) -> bool {
    matches!(address.address, ipnet::IpNet::V6(net) if net.addr().is_unicast_link_local())
}

/// Says whether a line reports that forwarding is on and was off, or what the kernel changes along
/// with it. It may stay on after the last container: other programs may rely on it by then.
fn stays_on(line: &str) -> bool {
    let Some(rest) = line.strip_prefix("~ sysctl /proc/sys/net/") else { return is_memory(line) };
    let switch = rest.starts_with("ipv4/ip_forward:") || rest.contains("/forwarding:");
    (switch && rest.ends_with(" 0 -> 1")) || rest == "ipv4/conf/all/accept_redirects: 1 -> 0"
}

/// Says whether a line reports a folder in our own plugins' state that holds notes: which sysctls
/// stay on because of them, and which modules this boot's kernel lacks. Neither belongs to an
/// attachment; `gc --all` removes both.
fn is_memory(line: &str) -> bool {
    ["left", "lacking"].iter().any(|folder| {
        let rest =
            line.strip_prefix("+ file /run/netwright/").and_then(|at| at.strip_prefix(folder));
        rest.is_some_and(|rest| rest.starts_with('/') || rest.starts_with(" directory"))
    })
}

#[cfg(test)]
mod tests {
    use super::Snapshot;

    fn with(facts: &[(&'static str, &str, &str)]) -> Snapshot {
        let mut found = Snapshot::default();
        for (kind, name, value) in facts {
            found.add(kind, (*name).to_owned(), (*value).to_owned());
        }
        found
    }

    #[test]
    fn forwarding_may_be_on_afterwards_and_not_off() {
        let name = "/proc/sys/net/ipv4/ip_forward";
        let (off, on) = (with(&[("sysctl", name, "0")]), with(&[("sysctl", name, "1")]));
        assert_eq!(on.since(&off), Vec::<String>::new());
        assert_eq!(off.since(&on), [format!("~ sysctl {name}: 1 -> 0")]);
    }

    #[test]
    fn differences_are_named_and_a_links_sysctls_are_part_of_it() {
        let before = with(&[("link", "a", "up"), ("file", "/run/x", "1"), ("sysctl", "/f", "0")]);
        let after = with(&[
            ("link", "a", "down"),
            ("link", "veth1", "up"),
            ("sysctl", "/proc/sys/net/ipv4/conf/veth1/x", "1"),
            ("sysctl", "/f", "1"),
        ]);
        assert_eq!(
            after.since(&before),
            ["~ link a: up -> down", "+ link veth1 up", "~ sysctl /f: 0 -> 1", "- file /run/x"]
        );
        assert!(after.since(&after).is_empty());
    }

    #[test]
    fn frames_do_not_count_where_they_need_not() {
        let found = with(&[
            ("table", "t", ""),
            ("element", "e", ""),
            ("file", "/run/lock/x", "0 bytes \"\""),
            ("file", "/run/y", "directory mode 1"),
            ("file", "/run/z", "3 bytes \"abc\""),
        ]);
        let rest = found.without_frames();
        assert_eq!(rest.since(&Snapshot::default()).len(), 2);
    }
}
