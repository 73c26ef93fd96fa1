//! Ports that cannot be published without harm: a program of the host uses them, or the host does
//! not have their address.
//!
//! A forwarded port takes precedence over a program that listens on it; the program then no longer
//! receives connections. A port counts as taken if `bind` in the caller's network namespace says so
//! ([`kernel::listen`]). Ports of other containers are not bound and so count as free here;
//! [`Firewall::add`](crate::Firewall::add) refuses them.
//!
//! Where Netwright acts as the runtime, it refuses these ports before it calls a plugin. The plugin
//! `portmap` only warns: the runtimes that call it check themselves, and many then hold the port
//! for that very container.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use cni::{NetworkList, PluginConfig};
use kernel::listen::{self, Answer, Holder, Process, Transport};
use kernel::route::{RouteKind, RouteSocket};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::element::Protocol;
use crate::hostport::Forward;

/// The capability, by its name in the CNI conventions.
pub const PORT_MAPPINGS: &str = "portMappings";

/// Programs that hold ports on behalf of containers: podman's, Docker's, those of rootless
/// runtimes, CRI-O.
const ON_BEHALF: [&str; 6] =
    ["conmon", "docker-proxy", "rootlessport", "rootlesskit", "slirp4netns", "crio"];

/// A port that cannot be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenPort {
    protocol: Protocol,
    at: SocketAddr,
    why: TakenReason,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TakenReason {
    /// A program has it.
    Held(Option<Holder>),
    /// The host does not have the address.
    NoSuchAddress,
}

/// The families in which ports are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Families {
    /// IPv4.
    pub ipv4: bool,
    /// IPv6.
    pub ipv6: bool,
}

impl Families {
    /// Both.
    pub const ALL: Families = Families { ipv4: true, ipv6: true };
}

/// A mapping of the capability `portMappings` (CNI conventions), with the fields that matter here.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Mapping {
    host_port: i64,
    container_port: u16,
    protocol: String,
    #[serde(rename = "hostIP")]
    host_ip: String,
}

/// Reads the capability `portMappings`, its keys in any case. Invalid mappings are skipped: the
/// plugin reports them.
#[must_use]
pub fn forwards(mappings: &str) -> Vec<Forward> {
    let mappings: Vec<Box<RawValue>> = cni::json::from_str(mappings).unwrap_or_default();
    let read = |raw: &RawValue| {
        let mapping: Mapping = cni::json::from_str(raw.get()).ok()?;
        let host_port = u16::try_from(mapping.host_port).ok()?;
        let forward = forward(host_port, &mapping.protocol, &mapping.host_ip)?;
        Some(Forward { container_port: mapping.container_port, ..forward })
    };
    mappings.iter().filter_map(|raw| read(raw)).collect()
}

/// Lists the host ports that a network's plugins would publish: those `asked` for by the capability
/// `portMappings`, and those that the list itself names. A key `runtimeConfig` may belong to a
/// plugin, to a network of `multi`, or to a list within.
#[must_use]
pub fn of_list(list: &NetworkList, asked: Option<&str>) -> Vec<Forward> {
    let takes = |plugin: &PluginConfig| plugin.capabilities.iter().any(|has| has == PORT_MAPPINGS);
    let asked = asked.filter(|_| list.plugins.iter().any(takes));
    let mut found = asked.map(forwards).unwrap_or_default();
    for plugin in &list.plugins {
        let mut object = plugin.object.clone();
        if asked.is_some() && takes(plugin) {
            // The runtime's capability replaces it.
            object.remove("runtimeConfig");
        }
        let object = serde_json::from_slice(&object.to_vec()).unwrap_or_default();
        named_in(&object, &mut found);
    }
    found
}

/// Collects the mappings below every `runtimeConfig`, in any case, as plugins read keys.
fn named_in(value: &Value, found: &mut Vec<Forward>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| named_in(value, found)),
        Value::Object(object) => {
            for (key, value) in object {
                named_in(value, found);
                let Some(config) =
                    value.as_object().filter(|_| key.eq_ignore_ascii_case("runtimeConfig"))
                else {
                    continue;
                };
                let mappings =
                    config.iter().filter(|(key, _)| key.eq_ignore_ascii_case(PORT_MAPPINGS));
                found.extend(mappings.flat_map(|(_, mappings)| forwards(&mappings.to_string())));
            }
        }
        _ => {}
    }
}

/// Describes a published port; an empty protocol is TCP, an empty address every address.
#[must_use]
pub fn forward(host_port: u16, protocol: &str, host_ip: &str) -> Option<Forward> {
    let protocol = if protocol.is_empty() { "tcp" } else { protocol };
    let host_ip = match host_ip {
        "" => None,
        // An IPv4-mapped IPv6 address is IPv4, as the plugin reads it.
        text => Some(text.parse::<IpAddr>().ok()?.to_canonical()),
    };
    let protocol = Protocol::parse(protocol)?;
    (host_port != 0).then_some(Forward { protocol, host_port, container_port: 0, host_ip })
}

/// Lists the ports that cannot be published, each once. Ports about which the kernel does not
/// answer are left out.
#[must_use]
pub fn find(forwards: &[Forward], families: Families) -> Vec<TakenPort> {
    forwards.iter().filter_map(|forward| first(forward, families)).collect()
}

fn first(forward: &Forward, families: Families) -> Option<TakenPort> {
    let transport = match forward.protocol {
        Protocol::Tcp => Transport::Tcp,
        Protocol::Udp => Transport::Udp,
        Protocol::Sctp => Transport::Sctp,
    };
    let everywhere = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
    let addresses = match &forward.host_ip {
        Some(address) => std::slice::from_ref(address),
        None => &everywhere[..],
    };
    let wanted = |ip: &&IpAddr| if ip.is_ipv4() { families.ipv4 } else { families.ipv6 };
    addresses.iter().filter(wanted).find_map(|ip| {
        let at = SocketAddr::new(*ip, forward.host_port);
        if is_for_many(*ip) {
            let why = TakenReason::NoSuchAddress;
            return Some(TakenPort { protocol: forward.protocol, at, why });
        }
        let why = match listen::ask(transport, at) {
            Answer::Taken => TakenReason::Held(listen::holder(transport, at, &ON_BEHALF)),
            Answer::NoSuchAddress => TakenReason::NoSuchAddress,
            Answer::Free | Answer::Unknown(_) => return None,
        };
        Some(TakenPort { protocol: forward.protocol, at, why })
    })
}

/// Reports whether an address is not one host's, although programs may bind it: a multicast group, or
/// a broadcast address, also of a subnet that this host is in.
fn is_for_many(ip: IpAddr) -> bool {
    let IpAddr::V4(ipv4) = ip else { return ip.is_multicast() };
    if ipv4.is_multicast() || ipv4.is_broadcast() {
        return true;
    }
    if ipv4.is_unspecified() {
        return false;
    }
    // Without the kernel's answer the address counts as a host's.
    let found = RouteSocket::open().and_then(|mut route| route.route_to(ip)).ok().flatten();
    found.is_some_and(|route| route.kind == RouteKind::Broadcast)
}

impl TakenPort {
    /// Whether the holder is known and holds the port on behalf of containers, or is a program that
    /// started the caller.
    #[must_use]
    pub fn is_on_behalf(&self) -> bool {
        self.process().is_some_and(|process| {
            process.is_ancestor || ON_BEHALF.contains(&process.name.as_str())
        })
    }

    /// Whether the holder is known to be unrelated to containers and to the caller.
    #[must_use]
    pub fn is_strangers(&self) -> bool {
        self.process().is_some() && !self.is_on_behalf()
    }

    fn process(&self) -> Option<&Process> {
        match &self.why {
            TakenReason::Held(Some(holder)) => holder.process.as_ref(),
            TakenReason::Held(None) | TakenReason::NoSuchAddress => None,
        }
    }
}

/// A sentence that names the port and its holder.
impl fmt::Display for TakenPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (port, protocol) = (self.at.port(), self.protocol);
        match self.at.ip() {
            ip if ip.is_unspecified() => write!(f, "host port {port}/{protocol}")?,
            _ => write!(f, "host port {}/{protocol}", self.at)?,
        }
        match &self.why {
            TakenReason::NoSuchAddress => {
                write!(f, ": the host does not have address {}", self.at.ip())
            }
            TakenReason::Held(None) => f.write_str(" is held by a program of this host"),
            TakenReason::Held(Some(holder)) => match &holder.process {
                Some(process) => {
                    write!(f, " is held by program {:?} (process {})", process.name, process.pid)
                }
                None => write!(
                    f,
                    " is held by a program of this host that cannot be seen from here (user {})",
                    holder.uid
                ),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_read_as_runtimes_write_them() {
        let read = |text: &str| format!("{:?}", forwards(text));
        assert_eq!(
            read(r#"[{"HostPort": 53, "containerPort": 53, "protocol": "UDP", "hostIP": "::1"}]"#),
            "[Forward { protocol: Udp, host_port: 53, container_port: 53, host_ip: Some(::1) }]"
        );
        assert_eq!(
            read(r#"[{"hostPort": 80, "containerPort": 80}]"#),
            "[Forward { protocol: Tcp, host_port: 80, container_port: 80, host_ip: None }]"
        );
        for (text, ip) in [("::ffff:192.0.2.1", "192.0.2.1"), ("::ffff:0.0.0.0", "0.0.0.0")] {
            let mapped = forwards(&format!(r#"[{{"hostPort": 80, "hostIP": "{text}"}}]"#));
            assert_eq!(mapped[0].host_ip, Some(ip.parse().unwrap()), "{text}");
        }
        for nonsense in [
            "",
            "{}",
            r#"[{"hostPort": 0}]"#,
            r#"[{"hostPort": 70000}]"#,
            r#"[{"hostPort": 1, "protocol": "icmp"}]"#,
            r#"[{"hostPort": 1, "hostIP": "x"}]"#,
        ] {
            assert_eq!(read(nonsense), "[]", "{nonsense}");
        }
    }

    #[test]
    fn an_address_for_many_is_not_the_hosts() {
        for address in ["255.255.255.255", "224.0.0.1", "127.255.255.255", "ff02::1"] {
            for protocol in ["tcp", "udp"] {
                let forward = forward(40_000, protocol, address).unwrap();
                let found = find(&[forward], Families::ALL);
                assert!(
                    matches!(found[..], [TakenPort { why: TakenReason::NoSuchAddress, .. }]),
                    "{address}"
                );
            }
        }
        let own = forward(40_000, "tcp", "127.0.0.1").unwrap();
        assert!(
            find(&[own], Families::ALL).iter().all(|taken| taken.why != TakenReason::NoSuchAddress)
        );
    }

    #[test]
    fn a_lists_own_ports_count_too() {
        let list = |plugins: &str| {
            let text = format!(r#"{{"cniVersion": "1.0.0", "name": "n", "plugins": [{plugins}]}}"#);
            NetworkList::parse(text.as_bytes()).unwrap()
        };
        let own = r#""runtimeConfig": {"portMappings": [{"hostPort": 1}]}"#;
        let able = r#""capabilities": {"portMappings": true}"#;
        let asked = r#"[{"hostPort": 9}]"#;
        for (plugins, asked, ports) in [
            (format!(r#"{{"type": "portmap", {own}}}"#), None, &[1][..]),
            // No plugin takes the capability.
            (format!(r#"{{"type": "portmap", {own}}}"#), Some(asked), &[1]),
            (format!(r#"{{"type": "portmap", {own}, {able}}}"#), None, &[1]),
            (format!(r#"{{"type": "portmap", {own}, {able}}}"#), Some(asked), &[9]),
            (
                format!(r#"{{"type": "multi", {able}, "networks": [{{"name": "a", {own}}}]}}"#),
                Some(asked),
                &[9, 1],
            ),
            (
                format!(
                    r#"{{"type": "multi", "networks": [{{"config": {{"plugins": [{{"type": "portmap", {own}}}]}}}}]}}"#
                ),
                None,
                &[1],
            ),
            (
                r#"{"type": "portmap", "RuntimeConfig": {"PortMappings": [{"hostPort": 2}]}}"#
                    .to_owned(),
                None,
                &[2],
            ),
            (r#"{"type": "portmap", "runtimeConfig": {"portMappings": 5}}"#.to_owned(), None, &[]),
        ] {
            let found = of_list(&list(&plugins), asked);
            let found: Vec<u16> = found.iter().map(|forward| forward.host_port).collect();
            assert_eq!(found, ports, "{plugins}");
        }
    }

    #[test]
    fn the_port_and_its_holder_are_named() {
        let taken =
            |at: &str, why| TakenPort { protocol: Protocol::Tcp, at: at.parse().unwrap(), why };
        let held = |name: &str, is_ancestor| {
            let process = Some(Process { pid: 812, name: name.to_owned(), is_ancestor });
            TakenReason::Held(Some(Holder { uid: 0, process }))
        };
        let sshd = taken("0.0.0.0:22", held("sshd", false));
        assert_eq!(sshd.to_string(), "host port 22/tcp is held by program \"sshd\" (process 812)");
        assert!(sshd.is_strangers() && !sshd.is_on_behalf());
        let on_behalf = ON_BEHALF.iter().map(|name| held(name, false));
        for ours in on_behalf.chain([held("anybody", true)]) {
            let ours = taken("0.0.0.0:22", ours);
            assert!(ours.is_on_behalf() && !ours.is_strangers());
        }
        let unseen =
            taken("[2001:db8::1]:22", TakenReason::Held(Some(Holder { uid: 7, process: None })));
        assert_eq!(
            unseen.to_string(),
            "host port [2001:db8::1]:22/tcp is held by a program of this host that cannot be seen from here (user 7)"
        );
        assert!(!unseen.is_strangers() && !unseen.is_on_behalf());
        assert_eq!(
            taken("192.0.2.9:80", TakenReason::NoSuchAddress).to_string(),
            "host port 192.0.2.9:80/tcp: the host does not have address 192.0.2.9"
        );
    }
}
