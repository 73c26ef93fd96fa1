//! Routers that announce themselves.

use crate::Place;

/// Lets a place advertise itself by its link `eth0` as the router of a host, and waits until the host
/// has processed that: it gets a default route, and an address in 2001:db8:bad::/64, if it takes
/// advertisements on that link.
///
/// # Panics
/// When one of the links has no link-local address, or nothing arrives. Needs socat.
#[track_caller]
pub fn advertise(host: &impl Place, from: &impl Place, link: &str) {
    host.sh(&format!("timeout 60 sh -c 'until ip -6 addr show dev {link} scope link | grep -q inet6; do sleep 0.01; done'"));
    from.sh("timeout 60 sh -c 'until ip -6 addr show dev eth0 scope link -tentative | grep -q inet6; do sleep 0.01; done'");
    let shown = host.sh(&format!("ip -6 -br addr show dev {link} scope link"));
    let to = shown.split_whitespace().find_map(|word| word.strip_suffix("/64"));
    let to = to.expect("the link has a link-local address");
    // RFC 4861 §4.2: lifetime 1800 s, and a prefix for addresses.
    let header = r"\x86\0\0\0\x40\0\x07\x08\0\0\0\0\0\0\0\0";
    let prefix = r"\x03\x04\x40\xc0\0\0\x0e\x10\0\0\x0e\x10\0\0\0\0\x20\x01\x0d\xb8\x0b\xad\0\0\0\0\0\0\0\0\0\0";
    from.sh(&format!(
        "/usr/bin/printf '{header}{prefix}' | socat -u STDIN 'IP6-SENDTO:[{to}%eth0]:58,ipv6-unicast-hops=255'"
    ));
    host.sh("timeout 60 sh -c 'until grep -q \"Icmp6InRouterAdvertisements[[:space:]]*[1-9]\" /proc/net/snmp6; do sleep 0.01; done'");
}
