//! Masquerade: packets that leave a network take the host's address.
//!
//! In postrouting, the map `masquerade4` (`masquerade6`) is looked up with a packet's input
//! interface and source address, and jumps to the chain of the attachment's network and prefix:
//!
//! ```text
//! chain masquerade-5d41402abc4b2a76 { comment "blue 10.1.0.0/24"
//!     ip daddr 10.1.0.0/24 return        # neighbours see each other as they are
//!     ip daddr 224.0.0.0/4 return        # multicast must keep its source
//!     masquerade
//! }
//! ```
//!
//! The interface is part of the key because networks may use the same addresses. Frames that
//! `br_netfilter` shows to this hook while they are bridged have no such interface (it passes none)
//! and are never masqueraded, so the sysctl `bridge-nf-call-iptables` makes no difference.
//!
//! The attachments of a network share the chain. The kernel itself counts the elements that jump to
//! it (`NFTA_CHAIN_USE`). So the call that removes the last element also removes the chain, in the
//! same transaction, and we keep no count that could disagree with the kernel's.

use ipnet::IpNet;

use crate::element::{Element, Field, Set, Value, ifname};
use crate::plan::Plan;

/// The sets of this concern.
pub const SETS: &[Set] = &[Set::Masquerade4, Set::Masquerade6];

/// How many hexadecimal digits of the hash a chain's name contains.
const DIGITS: usize = 16;

/// Plans the masquerade of one address of a container.
///
/// `host_ifname` is the interface by which the container's packets enter the host's routing: the
/// bridge (or its VLAN interface), or the host's end of the pair. `address` carries the prefix
/// length of the network.
///
/// ```
/// # use netwright_firewall::masquerade;
/// let plan = masquerade::plan("blue", "cni0", "10.1.0.2/24".parse()?);
/// assert_eq!(
///     plan.to_string(),
///     "inet netwright masquerade4 { \"cni0\" . 10.1.0.2 : jump masquerade-3fa00219006beb80 }\n"
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn plan(network: &str, host_ifname: &str, address: IpNet) -> Plan {
    let set = match address {
        IpNet::V4(_) => Set::Masquerade4,
        IpNet::V6(_) => Set::Masquerade6,
    };
    let key = vec![ifname(host_ifname), Field::Address(address.addr())];
    let value = Value::Masquerade { network: network.to_owned(), prefix: address.trunc() };
    Plan { own: vec![Element::with_value(set, key, value)], shared: Vec::new() }
}

/// Returns the name of the chain for what leaves a prefix of a network.
#[must_use]
pub fn chain_name(network: &str, prefix: IpNet) -> String {
    let text = format!("{network}\0{}", prefix.trunc());
    format!("masquerade-{}", cni::owner::sha512_hex(&text, DIGITS))
}
