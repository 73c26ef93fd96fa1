//! What leads packets past the hooks at which policies are asked.

use std::fs::File;
use std::io::Read as _;

/// Where the kernel lists the services of IPVS; it is not there without IPVS.
const IPVS: &str = "/proc/thread-self/net/ip_vs";

/// The heading has some 200 bytes.
const ENOUGH: u64 = 4096;

/// What is said where IPVS has services.
pub const LED_PAST: &str = "IPVS has services on this node, and leads their packets past the packet \
    filter's hook for what is forwarded: network policies are not asked about them here; kube-proxy \
    has other modes, nftables and iptables";

/// Says whether IPVS has services in the network namespace of the calling thread.
#[must_use]
pub fn is_led_past() -> bool {
    let mut head = Vec::new();
    let read = File::open(IPVS).and_then(|file| file.take(ENOUGH).read_to_end(&mut head));
    read.is_ok() && has_services(&String::from_utf8_lossy(&head))
}

/// Services come behind three lines (linux net/netfilter/ipvs/ip_vs_ctl.c `ip_vs_info_seq_show`).
fn has_services(listed: &str) -> bool {
    listed.lines().skip(3).any(|line| !line.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Linux 6.1 writes it.
    #[test]
    fn services_are_found() {
        let heading = "IP Virtual Server version 1.2.1 (size=4096)\n\
             Prot LocalAddress:Port Scheduler Flags\n  \
             -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n";
        assert!(!has_services(heading) && !has_services(""));
        let service =
            "TCP  0A60000C:0050 rr  \n  -> 0AF40102:1538      Masq    1      0          0\n";
        assert!(has_services(&format!("{heading}{service}")));
    }
}
