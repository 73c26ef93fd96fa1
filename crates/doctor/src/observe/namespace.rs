//! Reads one network namespace, all of it in one visit.

mod map;
mod segments;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::net::SocketAddr;

use cni::code;
use diagnose::model::{
    Address, ConntrackTable, Fdb, Link, Listener, Namespace, Part, ProxiedAddress, Transport,
};
use firewall::ruleset::{self, Limits, ReadFault};
use kernel::netlink::{Errno, NetlinkError, nothing_if};
use kernel::netns::{Netns, NetnsError, within};
use kernel::route::{IpFamily, NeighbourState, RouteFilter, RouteSocket};
use kernel::sockets;
use kernel::sysctl::Sysctl;
use kernel::xfrm;

use self::map::{neighbour, policy, route, rule, settings_of, to_link, to_neighbour};
use super::hooks;
use super::legacy::LegacyReader;
use super::queues;

/// How many links, routes, neighbours, forwarding entries and sockets each are kept: of the node,
/// and of a container, whose user may make any number.
const OF_THE_NODE: usize = 50_000;
const OF_ONE_CONTAINER: usize = 2_000;
/// How many policies of IPsec are kept.
const POLICIES: usize = 2_000;
/// For how many bridge ports the forwarding entries are read: the kernel's time grows with the
/// square of their number.
const PORTS: usize = 2_000;

/// The node's kernel parameters that are read besides those of its links.
const OF_NODE: &[&str] = &[
    "net.bridge.bridge-nf-call-arptables",
    "net.bridge.bridge-nf-call-ip6tables",
    "net.bridge.bridge-nf-call-iptables",
    "net.ipv4.conf.all.accept_local",
    "net.ipv4.conf.all.arp_filter",
    "net.ipv4.conf.all.arp_ignore",
    "net.ipv4.conf.all.forwarding",
    "net.ipv4.conf.all.proxy_arp",
    "net.ipv4.conf.all.route_localnet",
    "net.ipv4.conf.all.rp_filter",
    "net.ipv4.conf.all.src_valid_mark",
    "net.ipv4.conf.default.rp_filter",
    "net.ipv4.icmp_echo_ignore_all",
    "net.ipv4.ip_forward",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.neigh.default.gc_thresh2",
    "net.ipv4.neigh.default.gc_thresh3",
    "net.ipv6.bindv6only",
    "net.ipv6.conf.all.accept_ra",
    "net.ipv6.conf.all.disable_ipv6",
    "net.ipv6.conf.all.forwarding",
    "net.ipv6.conf.all.proxy_ndp",
    "net.ipv6.conf.default.disable_ipv6",
    "net.ipv6.neigh.default.gc_thresh2",
    "net.ipv6.neigh.default.gc_thresh3",
    "net.ipv6.route.max_size",
    "net.netfilter.nf_conntrack_count",
    "net.netfilter.nf_conntrack_max",
];

/// Those of a container.
const OF_CONTAINER: &[&str] = &[
    "net.ipv4.conf.all.arp_filter",
    "net.ipv4.conf.all.arp_ignore",
    "net.ipv4.conf.all.rp_filter",
    "net.ipv4.icmp_echo_ignore_all",
    "net.ipv4.ip_default_ttl",
    "net.ipv4.ip_forward",
    "net.ipv6.bindv6only",
    "net.ipv6.conf.all.disable_ipv6",
    "net.ipv6.conf.all.forwarding",
    "net.netfilter.nf_conntrack_count",
    "net.netfilter.nf_conntrack_max",
];

/// The number of neighbours, which is not a kernel parameter but is compared with one: its name in
/// a scene, and the kernel's table of all namespaces.
const NEIGHBOURS: [(&str, &str); 2] = [
    ("net.ipv4.neigh.entries", "/proc/net/stat/arp_cache"),
    ("net.ipv6.neigh.entries", "/proc/net/stat/ndisc_cache"),
];

/// A namespace as it was read.
#[derive(Debug)]
pub(super) struct ObservedNamespace {
    /// How many of each kind are kept.
    kept: usize,
    pub(super) namespace: Namespace,
    /// The inodes of the listeners' sockets, in their order.
    pub(super) inodes: Vec<u32>,
    /// What could not be read, and why.
    pub(super) holes: Vec<(Part, String)>,
}

/// Reads the node's own namespace: the calling thread's.
pub(super) fn node(legacy: &LegacyReader) -> ObservedNamespace {
    let mut read = ObservedNamespace::new(OF_THE_NODE);
    read.routing(true);
    read.parameters(OF_NODE);
    for (name, table) in NEIGHBOURS {
        if let Some(entries) = entries(table) {
            read.namespace.sysctls.insert(name.to_owned(), entries.to_string());
        }
    }
    read.filters(ruleset::NODE, legacy);
    read.policies();
    read.other_filters();
    read.sockets();
    read
}

/// Reads a container's namespace. The thread enters it once.
///
/// # Errors
/// When it cannot be entered.
pub(super) fn container(
    netns: &Netns,
    legacy: &LegacyReader,
) -> Result<ObservedNamespace, NetnsError> {
    within(netns, || {
        let mut read = ObservedNamespace::new(OF_ONE_CONTAINER);
        read.routing(false);
        read.parameters(OF_CONTAINER);
        read.filters(ruleset::CONTAINER, legacy);
        read.sockets();
        read
    })
}

/// Returns an error with its causes, in one line.
pub(super) fn with_causes(error: &dyn Error) -> String {
    cni::Error::from_chain(code::IO_FAILURE, error).msg
}

impl ObservedNamespace {
    fn new(kept: usize) -> Self {
        let namespace = Namespace::default();
        ObservedNamespace { kept, namespace, inodes: Vec::new(), holes: Vec::new() }
    }

    fn hole(&mut self, part: Part, reason: impl Into<String>) {
        self.holes.push((part, reason.into()));
    }

    /// Takes what was asked for, or leaves a hole.
    fn or_hole<T: Default>(&mut self, part: Part, found: Result<T, NetlinkError>) -> T {
        found.unwrap_or_else(|error| {
            self.hole(part, with_causes(&error));
            T::default()
        })
    }

    /// Notes a hole if the socket has just left something out because it was too much.
    fn note_cut(&mut self, part: Part, what: &str, socket: &mut RouteSocket) {
        if socket.take_cut() {
            let kept = self.kept;
            self.hole(part, format!("there are more than {kept} {what}, and the rest is left out"));
        }
    }

    fn routing(&mut self, is_node: bool) {
        let mut socket = match RouteSocket::open() {
            Ok(socket) => socket,
            Err(error) => {
                for part in [Part::Links, Part::Routes, Part::Neighbours] {
                    self.hole(part, with_causes(&error));
                }
                return;
            }
        };
        socket.set_most(self.kept);
        self.links(&mut socket, is_node);
        self.segments(&mut socket, is_node);
        let is_vxlan = |link: &&Link| link.kind.as_deref() == Some("vxlan");
        let vxlans: BTreeSet<u32> =
            cni::order::gather(self.namespace.links.iter().filter(is_vxlan).map(|link| link.index));
        for family in [IpFamily::V4, IpFamily::V6] {
            self.routes(&mut socket, family);
            let found = optional(socket.neighbours(family, None), family);
            let found = self.or_hole(Part::Neighbours, found);
            self.note_cut(Part::Neighbours, "neighbours", &mut socket);
            // Those of a tunnel lead to other nodes, whoever has learnt them.
            let kept = found.into_iter().filter_map(|one| {
                let is_known = vxlans.contains(&one.ifindex) && one.mac.is_some();
                neighbour(&one).or_else(|| is_known.then(|| to_neighbour(&one)))
            });
            self.namespace.neighbours.extend(kept);
            if is_node {
                self.proxied(&mut socket, family);
            }
        }
        self.forwarding_entries(&mut socket);
    }

    fn links(&mut self, socket: &mut RouteSocket, is_node: bool) {
        let found = self.or_hole(Part::Links, socket.links_with_settings());
        self.note_cut(Part::Links, "links", socket);
        let addresses = self.or_hole(Part::Links, socket.addresses(None));
        self.note_cut(Part::Links, "addresses", socket);
        let mut by_link: BTreeMap<u32, Vec<Address>> = BTreeMap::new();
        for address in addresses {
            by_link.entry(address.ifindex).or_default().push(Address {
                address: address.address,
                duplicate: address.dad_failed(),
                tentative: address.tentative(),
            });
        }
        for (link, settings) in &found {
            if settings.xdp {
                let name = &link.name;
                let reason = format!("a program of BPF (XDP) sees the packets of {name} first");
                self.holes.push((Part::Unjudged, reason));
            }
            // A port of a bridge takes no packets itself.
            if link.port.is_none() && !link.loopback() {
                settings_of(link, *settings, is_node, &mut self.namespace.sysctls);
            }
        }
        let links = found.into_iter().map(|(link, settings)| {
            let addresses = by_link.remove(&link.index).unwrap_or_default();
            to_link(link, settings.of_function, addresses)
        });
        let mut links: Vec<Link> = links.collect();
        cni::order::sort_by_key(&mut links, |link| link.index);
        self.namespace.links = links;
    }

    fn routes(&mut self, socket: &mut RouteSocket, family: IpFamily) {
        let found = optional(socket.routes(RouteFilter::all(family)), family);
        let found = self.or_hole(Part::Routes, found);
        self.note_cut(Part::Routes, "routes", socket);
        self.namespace.routes.extend(found.into_iter().filter_map(route));
        let found = optional(socket.rules(family), family);
        let found = self.or_hole(Part::Routes, found);
        self.note_cut(Part::Routes, "routing rules", socket);
        let has_vrfs = self.namespace.links.iter().any(|link| link.vrf_table.is_some());
        let rules = found.into_iter().filter(|rule| has_vrfs || !rule.of_vrf);
        self.namespace.rules.extend(rules.map(rule));
    }

    fn proxied(&mut self, socket: &mut RouteSocket, family: IpFamily) {
        let found = optional(socket.proxied(family), family);
        let found = self.or_hole(Part::Neighbours, found);
        self.note_cut(Part::Neighbours, "addresses for which the node answers", socket);
        let kept = found.into_iter();
        let kept = kept.map(|one| ProxiedAddress { link: one.ifindex, address: one.address });
        self.namespace.proxied.extend(kept);
    }

    fn forwarding_entries(&mut self, socket: &mut RouteSocket) {
        let links = &self.namespace.links;
        let ports = links.iter().filter(|link| link.port_state.is_some()).count();
        if ports == 0 {
            return;
        }
        if PORTS < ports {
            let what = "their forwarding entries were not read";
            self.hole(Part::Neighbours, format!("bridges have {ports} ports: {what}"));
            return;
        }
        let found = self.or_hole(Part::Neighbours, socket.fdb_of_all());
        self.note_cut(Part::Neighbours, "forwarding entries", socket);
        let kept = found.into_iter().filter_map(|entry| {
            let own = entry.state.is_permanent();
            let is_configured = own || entry.state.0 & NeighbourState::NOARP.0 != 0;
            is_configured.then(|| Fdb {
                port: entry.ifindex,
                mac: entry.mac.to_string(),
                vlan: entry.vlan,
                own,
            })
        });
        self.namespace.fdb = kept.collect();
    }

    fn parameters(&mut self, names: &[&str]) {
        let mut refused = None;
        for name in names {
            match Sysctl::parse(name).and_then(|sysctl| sysctl.read()) {
                Ok(value) => {
                    self.namespace.sysctls.insert((*name).to_owned(), value);
                }
                // The parameter does not exist without IPv6, bridges or connection tracking; others
                // do not exist outside the machine's own namespace.
                Err(error) if error.is_missing() => {}
                Err(error) => refused = Some(with_causes(&error)),
            }
        }
        if let Some(reason) = refused {
            self.hole(Part::Sysctls, reason);
        }
        let number = |name| u64::try_from(self.namespace.number(name)?).ok();
        let count = number("net.netfilter.nf_conntrack_count");
        let max = number("net.netfilter.nf_conntrack_max");
        self.namespace.conntrack = count.zip(max).map(|(count, max)| ConntrackTable { count, max });
    }

    fn filters(&mut self, limits: Limits, legacy: &LegacyReader) {
        self.namespace.filter = match ruleset::read(limits) {
            Ok(ruleset) => ruleset,
            // A kernel without nftables has no rules of it.
            Err(ReadFault::Failed(error)) if is_without_nftables(&error) => {
                diagnose::model::filter::Ruleset::default()
            }
            Err(ReadFault::Failed(error)) => {
                self.hole(Part::Nftables, with_causes(&error));
                diagnose::model::filter::Ruleset::default()
            }
            Err(ReadFault::Changed(ruleset)) => {
                self.hole(Part::Nftables, "the rules changed while they were read, twice");
                ruleset
            }
        };
        let found = legacy.read();
        self.namespace.filter.legacy = found.tables;
        self.namespace.filter.left_out.extend(found.left_out);
        if let Some(reason) = found.unread {
            self.hole(Part::LegacyIptables, reason);
        }
        if self.namespace.filter.has_queues() {
            match queues::read() {
                Ok(found) => {
                    self.namespace.queues = Some(found.read);
                    self.namespace.stuck_queues = found.stuck;
                }
                Err(reason) => self.hole(Part::Unjudged, reason),
            }
        }
    }

    /// Reads policies of IPsec, if one of them drops packets. What is not known of them shows when
    /// a probe ends there.
    fn policies(&mut self) {
        let found = xfrm::policies().unwrap_or_default();
        if found.iter().any(|policy| policy.blocks) {
            self.namespace.policies = found.iter().take(POLICIES).filter_map(policy).collect();
        }
    }

    /// Reports filters that a scene does not hold.
    fn other_filters(&mut self) {
        match hooks::others() {
            Ok(found) => {
                self.holes.extend(found.into_iter().map(|line| (Part::Unjudged, line)));
            }
            Err(error) if is_without_nftables(&error) => {}
            Err(error) => self.hole(Part::OtherFilters, with_causes(&error)),
        }
    }

    fn sockets(&mut self) {
        let found = match sockets::waiting(self.kept) {
            Ok(found) => found,
            Err(error) => {
                self.hole(Part::Listeners, with_causes(&error));
                return;
            }
        };
        if found.more {
            self.hole(Part::Listeners, format!("there are more than {}", self.kept));
        }
        for socket in found.sockets {
            self.inodes.push(socket.inode);
            self.namespace.listeners.push(Listener {
                transport: if socket.is_tcp { Transport::Tcp } else { Transport::Udp },
                at: SocketAddr::new(socket.at.ip().to_canonical(), socket.at.port()),
                v6only: socket.v6only,
                pid: None,
                program: None,
                // linux include/net/sock.h `sk_acceptq_is_full`.
                full: socket.unaccepted.and_then(|(now, most)| (most < now).then_some(now)),
                stopped: false,
                frozen: None,
            });
        }
    }
}

/// Takes the refusal of a kernel without IPv6 as an empty answer.
fn optional<T>(
    found: Result<Vec<T>, NetlinkError>,
    family: IpFamily,
) -> Result<Vec<T>, NetlinkError> {
    match family {
        IpFamily::V4 => found,
        IpFamily::V6 => nothing_if(found, &[Errno::OPNOTSUPP, Errno::AFNOSUPPORT]),
    }
}

/// EINVAL: the kernel has no such subsystem of nfnetlink; EPROTONOSUPPORT: no nfnetlink at all.
fn is_without_nftables(error: &NetlinkError) -> bool {
    match error {
        NetlinkError::Refused { errno, .. } => *errno == Errno::INVAL,
        NetlinkError::Open { step: "socket", source } => source.raw_os_error() == Some(93),
        _ => false,
    }
}

/// Returns how many entries a table of neighbours has: the first number, in hexadecimal, of the
/// line below its heading.
fn entries(table: &str) -> Option<u64> {
    let text = std::fs::read_to_string(table).ok()?;
    let first = text.lines().nth(1)?.split_whitespace().next()?;
    u64::from_str_radix(first, 16).ok()
}
