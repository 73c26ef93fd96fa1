//! What IPVS does with packets that policies are to judge.
//!
//! IPVS takes a packet for one of its services from the hook input to the hook output (linux
//! net/netfilter/ipvs/ip_vs_core.c `ip_vs_ops4`, ip_vs_xmit.c `ip_vs_nat_send_or_cont`), past the hook
//! forward. So where it has services, policies are asked at output too.

use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};

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
