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
//! If the network has a source address of its own, the last rule is `snat to ADDRESS`.
//!
//! The interface is part of the key because networks may use the same addresses. Frames that
//! `br_netfilter` shows to this hook while they are bridged have no such interface (it passes none)
//! and are never masqueraded, so the sysctl `bridge-nf-call-iptables` makes no difference.
//!
//! The attachments of a network share the chain. The kernel itself counts the elements that jump to
//! it (`NFTA_CHAIN_USE`). So the call that removes the last element also removes the chain, in the
//! same transaction, and we keep no count that could disagree with the kernel's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::element::{Element, Field, Set, Value, ifname};
use crate::plan::Plan;

/// The sets of this concern.
pub const SETS: &[Set] = &[Set::Masquerade4, Set::Masquerade6];

/// How many hexadecimal digits of the hash a chain's name contains.
const DIGITS: usize = 16;

/// The addresses that packets to the outside take, if it is not that of the link by which they leave.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sources {
    /// The one of IPv4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v4: Option<Ipv4Addr>,
    /// The one of IPv6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v6: Option<Ipv6Addr>,
}

impl Sources {
    /// Returns the one of an address's family.
    #[must_use]
    pub fn of(&self, address: IpAddr) -> Option<IpAddr> {
        match address {
            IpAddr::V4(_) => self.v4.map(IpAddr::V4),
            IpAddr::V6(_) => self.v6.map(IpAddr::V6),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What leaves a prefix of a network, and the address that it takes: what a chain is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outbound {
    /// The network's name.
    pub network: String,
    /// The prefix.
    pub prefix: IpNet,
    /// The address; that of the link by which a packet leaves if `None`.
    pub source: Option<IpAddr>,
}

impl Outbound {
    /// Returns the name of its chain.
    #[must_use]
    pub fn chain_name(&self) -> String {
        let mut text = format!("{}\0{}", self.network, self.prefix.trunc());
        if let Some(source) = self.source {
            text += &format!("\0{source}");
        }
        format!("masquerade-{}", cni::owner::sha512_hex(&text, DIGITS))
    }
}

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
    plan_from(network, host_ifname, address, Sources::default())
}

/// The same, with source addresses of the network's own.
#[must_use]
pub fn plan_from(network: &str, host_ifname: &str, address: IpNet, sources: Sources) -> Plan {
    let set = match address {
        IpNet::V4(_) => Set::Masquerade4,
        IpNet::V6(_) => Set::Masquerade6,
    };
    let key = vec![ifname(host_ifname), Field::Address(address.addr())];
    let source = sources.of(address.addr());
    let value = Value::Masquerade { network: network.to_owned(), prefix: address.trunc(), source };
    Plan { own: vec![Element::with_value(set, key, value)], shared: Vec::new() }
}
