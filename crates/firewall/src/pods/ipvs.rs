//! What IPVS does with packets that policies are to judge.
//!
//! IPVS takes a packet for one of its services from the hook input to the hook output (linux
//! net/netfilter/ipvs/ip_vs_core.c `ip_vs_ops4`, ip_vs_xmit.c `ip_vs_nat_send_or_cont`), past the hook
//! forward. So where it has services, policies are asked at output too.
//!
//! There a packet that IPVS masquerades already has the pod's address as its destination, and its
//! source is not translated yet, as at forward. With `net.ipv4.vs.conntrack`, which kube-proxy sets
//! to 1, its connection is tracked, so replies pass by their state. Most packets at output are the
//! node's own, so the first rules let them pass: those with a socket of a process, and those of the
//! kernel, which have an address of the node. Both rules are needed, because the address of a VRF
//! is not found to be the node's, and the kernel's packets have no socket.
//!
//! The chains exist only if IPVS has services, so that other nodes do not pay for two more hooks.
//! The kernel does not report the first service: `netwrightd policy` looks once a second until it
//! finds one, and each run of the plugin looks too. The chains then stay until the service starts
//! again, or there would be a gap when a program deletes all services and makes them again.
//!
//! Source addresses are checked at postrouting, by a chain of type nat, which sees only the first
//! packet of a flow. Not used: postrouting for the verdicts, where the kernel allows no reset; the
//! hook input, where it is not known where a service leads to; prerouting for sources, where a
//! packet to the node and one to a service look the same.
//!
//! # What is not judged
//!
//! - Between IPVS's first service and the next look, nothing judges what IPVS sends on. If the
//!   service is away, this lasts until it is back or a pod comes.
//! - Direct routing and tunnels of IPVS, and connections that are not tracked: no rule sees the
//!   pod's address. The log, `netwright policy list` and STATUS name these.
//! - What a pod sends on a further network to a service of IPVS: at output no rule sees by which
//!   interface it came in. If its address is also that of a pod of this node on its own network, it
//!   is judged as that pod's.
//! - A forged source, if the link is in a VRF, connections are not tracked, or the flow is known.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::net::{IpAddr, Ipv4Addr};

use kernel::sysctl::Sysctl;

/// Where the kernel lists the services of IPVS; it is not there without IPVS.
const LIST: &str = "/proc/thread-self/net/ip_vs";

/// How many lines come before the services (linux net/netfilter/ipvs/ip_vs_ctl.c
/// `ip_vs_info_seq_show`).
const HEADING: usize = 3;

/// The heading has some 200 bytes.
const ENOUGH: u64 = 4096;

/// A program that makes services makes them alike, so the first thousands show how it makes them.
const PLENTY: u64 = 256 << 10;

/// The list of a hundred thousand endpoints has less.
const ALL: u64 = 16 << 20;

/// Whether what IPVS sends on belongs to connections that are tracked.
const CONNTRACK: &str = "net/ipv4/vs/conntrack";

/// The forwarding methods of IPVS that keep a packet's destination (ip_vs_ctl.c `ip_vs_fwd_name`).
const KEEPS_DESTINATION: [&str; 2] = ["Route", "Tunnel"];

/// The warning where IPVS keeps a packet's destination.
const UNTRANSLATED: &str = "IPVS sends packets of some services on by direct routing or in a tunnel: \
    network policies see no pod's address there, so on this node they judge neither egress by such \
    a service nor ingress of the pod; let IPVS masquerade, as kube-proxy does";

/// The warning where IPVS keeps packets out of connection tracking.
const UNTRACKED: &str = "connections by services of IPVS are not tracked \
    (net.ipv4.vs.conntrack is 0): their replies are not known as such, and network policies may \
    drop them; set it to 1, as kube-proxy does";

/// Says whether IPVS has services in the network namespace of the calling thread.
#[must_use]
pub fn has_services() -> bool {
    let mut head = Vec::new();
    let read = File::open(LIST).and_then(|file| file.take(ENOUGH).read_to_end(&mut head));
    read.is_ok() && services(head.as_slice()).next().is_some()
}

/// Says which packets of IPVS network policies judge wrongly in the network namespace of the
/// calling thread.
#[must_use]
pub fn judged_wrongly() -> Vec<&'static str> {
    let Ok(file) = File::open(LIST) else { return Vec::new() };
    let mut services = services(BufReader::new(file.take(PLENTY))).peekable();
    let mut all = Vec::new();
    if services.peek().is_some() && !is_tracked() {
        all.push(UNTRACKED);
    }
    if services.any(|line| keeps_destination(&line)) {
        all.push(UNTRANSLATED);
    }
    all
}

/// The services of IPVS.
#[derive(Debug, Default)]
pub struct Services {
    /// Protocol, address, and port; zero stands for every port.
    at: BTreeSet<(u8, IpAddr, u16)>,
    /// There are more, by the marks of packets.
    by_mark: bool,
}

impl Services {
    /// Reads those of the network namespace of the calling thread. Without IPVS there are none.
    #[must_use]
    pub fn read() -> Self {
        let Ok(file) = File::open(LIST) else { return Services::default() };
        Services::of(BufReader::new(file.take(ALL)))
    }

    /// Reads a list as the kernel writes it.
    #[must_use]
    pub fn of(list: impl BufRead) -> Self {
        let mut all = Services::default();
        for line in services(list) {
            match service(&line) {
                Some(service) => drop(all.at.insert(service)),
                None => all.by_mark |= line.starts_with("FWM"),
            }
        }
        all
    }

    /// Reports whether packets of a protocol (its number in the IP header) to an address and port
    /// are for a service. Which packets services by mark take is not known.
    #[must_use]
    pub fn has(&self, protocol: u8, address: IpAddr, port: u16) -> bool {
        [port, 0].into_iter().any(|port| self.at.contains(&(protocol, address, port)))
    }

    /// Reports whether there are services by the marks of packets.
    #[must_use]
    pub fn by_mark(&self) -> bool {
        self.by_mark
    }
}

/// Reads a line about a service.
fn service(line: &str) -> Option<(u8, IpAddr, u16)> {
    let mut words = line.split_whitespace();
    let protocol = match words.next()? {
        "TCP" => 6,
        "UDP" => 17,
        "SCTP" => 132,
        _ => return None,
    };
    let (address, port) = words.next()?.rsplit_once(':')?;
    let address = match address.strip_prefix('[') {
        Some(v6) => IpAddr::V6(v6.strip_suffix(']')?.parse().ok()?),
        None => IpAddr::V4(Ipv4Addr::from(u32::from_str_radix(address, 16).ok()?)),
    };
    Some((protocol, address, u16::from_str_radix(port, 16).ok()?))
}

/// The lines about services and about where they lead.
fn services(list: impl BufRead) -> impl Iterator<Item = String> {
    let lines = list.lines().map_while(Result::ok).skip(HEADING);
    lines.filter(|line| !line.trim().is_empty())
}

fn keeps_destination(line: &str) -> bool {
    let mut words = line.split_whitespace();
    words.next() == Some("->")
        && words.nth(1).is_some_and(|method| KEEPS_DESTINATION.contains(&method))
}

/// A kernel without `CONFIG_IP_VS_NFCT` does not have the parameter, and tracks nothing.
fn is_tracked() -> bool {
    match Sysctl::parse(CONNTRACK).and_then(|sysctl| sysctl.read()) {
        Ok(value) => value.trim() != "0",
        Err(error) => !error.is_missing(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Linux 6.1 writes it.
    const EMPTY: &str = "IP Virtual Server version 1.2.1 (size=4096)\n\
         Prot LocalAddress:Port Scheduler Flags\n  \
         -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n";

    #[test]
    fn services_are_found() {
        assert_eq!(services(EMPTY.as_bytes()).count(), 0);
        assert_eq!(services("".as_bytes()).count(), 0);
        let one = "TCP  0A60000C:0050 rr  \n";
        assert_eq!(services(format!("{EMPTY}{one}").as_bytes()).count(), 1);
    }

    #[test]
    fn addresses_of_services_are_read() {
        let list = "TCP  0A60000C:0050 rr  \n  \
             -> 0AF40102:1538      Masq    1      0          0         \n\
             UDP  [fd00:0096:0000:0000:0000:0000:0000:000a]:0035 rr  \n\
             SCTP 0A60000D:0000 wlc persistent 10800 FFFFFFFF\n";
        let services = Services::of(format!("{EMPTY}{list}").as_bytes());
        let has =
            |protocol, address: &str, port| services.has(protocol, address.parse().unwrap(), port);
        assert!(has(6, "10.96.0.12", 80) && has(17, "fd00:96::a", 53));
        assert!(has(132, "10.96.0.13", 1) && has(132, "10.96.0.13", 65_535));
        assert!(!has(6, "10.96.0.12", 81) && !has(17, "10.96.0.12", 80));
        assert!(!has(6, "10.244.1.2", 5432) && !has(17, "fd00:96::b", 53));
        assert!(!services.by_mark());
        assert!(Services::of(format!("{EMPTY}FWM  00000001 rr  \n").as_bytes()).by_mark());
    }

    #[test]
    fn the_way_to_an_endpoint_is_read() {
        let methods = [("Masq", false), ("Local", false), ("Route", true), ("Tunnel", true)];
        for (method, keeps) in methods {
            let v4 = format!("  -> 0AF40102:1538      {method:<7} 1      0          0");
            let v6 = format!(
                "  -> [fd00:0244:0001:0000:0000:0000:0000:0002]:1538      {method:<7} 1      0          0"
            );
            assert_eq!(keeps_destination(&v4), keeps, "{v4}");
            assert_eq!(keeps_destination(&v6), keeps, "{v6}");
        }
        assert!(!keeps_destination("TCP  0A60000C:0050 rr  "));
    }
}
