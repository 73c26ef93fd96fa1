//! The network sysctls of a new namespace.
//!
//! The kernel copies IPv4's `conf/all` and `conf/default` of the machine's own namespace into every
//! new one, and IPv6's too if `net.core.devconf_inherit_init_net` says so (linux net/ipv4/devinet.c
//! `devinet_init_net`, net/ipv6/addrconf.c `addrconf_init_net`). A machine that runs Docker or
//! Kubernetes forwards, so a lab there would forward as well. A fresh host has the values that the
//! kernel was compiled with.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

/// A key below `conf/INTERFACE`, with its values in `all`, `default` and `lo`.
type Key = (&'static str, [&'static str; 3]);

/// The devices of a new namespace. `all` first: some of its keys change the others.
const DEVICES: [&str; 3] = ["all", "default", "lo"];

const IPV4: [Key; 24] = [
    ("forwarding", ["0"; 3]),
    ("accept_local", ["0"; 3]),
    ("accept_redirects", ["1"; 3]),
    ("accept_source_route", ["0", "1", "1"]),
    ("arp_accept", ["0"; 3]),
    ("arp_announce", ["0"; 3]),
    ("arp_filter", ["0"; 3]),
    ("arp_ignore", ["0"; 3]),
    ("arp_notify", ["0"; 3]),
    ("bootp_relay", ["0"; 3]),
    ("drop_gratuitous_arp", ["0"; 3]),
    ("drop_unicast_in_l2_multicast", ["0"; 3]),
    ("force_igmp_version", ["0"; 3]),
    ("ignore_routes_with_linkdown", ["0"; 3]),
    ("log_martians", ["0"; 3]),
    ("promote_secondaries", ["0"; 3]),
    ("proxy_arp", ["0"; 3]),
    ("proxy_arp_pvlan", ["0"; 3]),
    ("route_localnet", ["0"; 3]),
    ("rp_filter", ["0"; 3]),
    ("secure_redirects", ["1"; 3]),
    ("send_redirects", ["1"; 3]),
    ("shared_media", ["1"; 3]),
    ("src_valid_mark", ["0"; 3]),
];

const IPV6: [Key; 16] = [
    ("forwarding", ["0"; 3]),
    ("disable_ipv6", ["0"; 3]),
    ("accept_dad", ["0", "1", "-1"]),
    ("accept_ra", ["1"; 3]),
    ("accept_ra_defrtr", ["1"; 3]),
    ("accept_ra_pinfo", ["1"; 3]),
    ("accept_redirects", ["1"; 3]),
    ("accept_source_route", ["0"; 3]),
    ("addr_gen_mode", ["0"; 3]),
    ("autoconf", ["1"; 3]),
    ("dad_transmits", ["1"; 3]),
    ("drop_unicast_in_l2_multicast", ["0"; 3]),
    ("ignore_routes_with_linkdown", ["0"; 3]),
    ("keep_addr_on_down", ["0"; 3]),
    ("proxy_ndp", ["0"; 3]),
    ("use_tempaddr", ["0", "0", "-1"]),
];

/// Gives the calling thread's new network namespace the values that the kernel was compiled with.
///
/// # Errors
/// With the key that could not be read or written.
pub(super) fn reset() -> Result<(), (String, io::Error)> {
    for (family, keys) in [("ipv4", &IPV4[..]), ("ipv6", &IPV6[..])] {
        let conf = Path::new("/proc/sys/net").join(family).join("conf");
        for (number, device) in DEVICES.iter().enumerate() {
            let path = conf.join(device);
            let failed = |key: &str, error| (format!("set {}", path.join(key).display()), error);
            let folder = match File::open(&path) {
                Ok(folder) => folder,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed("", error)),
            };
            for (key, values) in keys {
                set(&folder, key, values[number]).map_err(|error| failed(key, error))?;
            }
        }
    }
    Ok(())
}

/// Writes a value if another is set, with as few system calls as that takes: each namespace of each
/// test has more than a hundred. A key that this kernel does not have needs none.
fn set(folder: &File, key: &str, value: &str) -> io::Result<()> {
    let file = match openat(folder, key, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let mut now = [0; 16];
    let length = file.read_at(&mut now, 0)?;
    if now[..length].trim_ascii_end() == value.as_bytes() {
        return Ok(());
    }
    file.write_all_at(value.as_bytes(), 0)
}
