//! What a node publishes about itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::backends::BackendId;
use crate::blocks::Block;
use crate::time::Time;
use net::{IpFamily, MacAddr};

pub use crate::backends::Offers;
pub use crate::backends::terms::NoTerms;
pub use crate::backends::vxlan::End as Vxlan;

/// A node: this one, or a peer. The dialects read and write it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Its name. A lease of flannel has none; the last part of its key stands for it.
    pub name: String,
    /// What tells it from an earlier node of the same name; empty if the source has no such thing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// When the source says it was created. Of two nodes that want the same, the older has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Time>,
    /// The addresses of its pods, as the source that decides about them says: `spec.podCIDRs`, the
    /// key of the lease, or the file.
    pub prefixes: Vec<IpNet>,
    /// Prefixes that it had before, and where pods of it still live. The node itself says so: they
    /// yield to the prefixes of all other nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<IpNet>,
    /// The blocks of spaces that it holds, in order. No dialect has them: their own records say so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<Block>,
    /// The addresses by which other nodes reach it.
    pub underlay: Underlay,
    /// Its further addresses, as far as the source has them: nobody but nodes sends packets of tunnels
    /// there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// How it can be reached.
    pub offers: Offers,
    /// The lowest MTU of the links that have its underlay addresses, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Its zone, as `topology.kubernetes.io/zone` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Which program wrote it.
    pub dialect: Dialect,
}

impl Node {
    /// Returns all that its pods have addresses of: its prefixes, the kept ones, its blocks.
    pub fn all_prefixes(&self) -> impl Iterator<Item = IpNet> {
        let blocks = self.blocks.iter().map(|block| block.prefix);
        self.prefixes.iter().chain(&self.kept).copied().chain(blocks)
    }

    /// Returns those of a family.
    pub fn prefixes_of(&self, family: IpFamily) -> impl Iterator<Item = IpNet> {
        self.all_prefixes().filter(move |prefix| IpFamily::of_prefix(*prefix) == family)
    }

    /// Returns the address of its tunnels of a family: the first of its first prefix, as flanneld
    /// has it. The first of a block may be a pod's.
    #[must_use]
    pub fn tunnel_address(&self, family: IpFamily) -> Option<IpAddr> {
        self.first_prefix(family).map(|first| first.network())
    }

    /// Returns the address of its pods' gateway, which it has as long as it has pods: the second of
    /// its first prefix, as `host-local` has it.
    #[must_use]
    pub fn gateway_address(&self, family: IpFamily) -> Option<IpAddr> {
        let prefix = self.first_prefix(family)?;
        let second: IpAddr = match prefix.network() {
            IpAddr::V4(first) => Ipv4Addr::from_bits(first.to_bits() | 1).into(),
            IpAddr::V6(first) => Ipv6Addr::from_bits(first.to_bits() | 1).into(),
        };
        Some(second).filter(|second| prefix.contains(second))
    }

    /// Returns the hardware addresses of its tunnels, those over IPv4 first.
    pub fn macs(&self) -> impl Iterator<Item = MacAddr> {
        self.macs_over().map(|(_, _, mac)| mac)
    }

    /// Returns the same, with what each is of.
    pub(crate) fn macs_over(&self) -> impl Iterator<Item = (BackendId, IpFamily, MacAddr)> {
        BackendId::ALL
            .iter()
            .flat_map(|id| {
                let macs = id.backend().macs(self);
                IpFamily::ALL.map(|over| Some((*id, over, (*macs.get(over))?)))
            })
            .flatten()
    }

    /// Returns the hardware address of its tunnel over a family.
    pub(crate) fn mac(&self, underlay: IpFamily) -> Option<MacAddr> {
        self.macs_over().find(|(_, over, _)| *over == underlay).map(|(_, _, mac)| mac)
    }

    /// Reports whether it has tunnels, and so an address on them that answers.
    #[must_use]
    pub fn has_tunnels(&self) -> bool {
        BackendId::ALL.iter().any(|id| id.backend().numbers(&self.offers).is_some())
    }

    fn first_prefix(&self, family: IpFamily) -> Option<IpNet> {
        let mut prefixes = self.prefixes.iter().chain(&self.kept).copied();
        prefixes.find(|prefix| IpFamily::of_prefix(*prefix) == family)
    }
}

/// Addresses by which other nodes reach a node, at most one of each family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Underlay {
    /// The IPv4 address.
    #[serde(default, rename = "ipv4", skip_serializing_if = "Option::is_none")]
    pub v4: Option<Ipv4Addr>,
    /// The IPv6 address.
    #[serde(default, rename = "ipv6", skip_serializing_if = "Option::is_none")]
    pub v6: Option<Ipv6Addr>,
}

impl Underlay {
    /// Returns the address of a family.
    #[must_use]
    pub fn get(self, family: IpFamily) -> Option<IpAddr> {
        match family {
            IpFamily::V4 => self.v4.map(IpAddr::V4),
            IpFamily::V6 => self.v6.map(IpAddr::V6),
        }
    }

    /// Returns the addresses, IPv4's first.
    pub fn iter(self) -> impl Iterator<Item = IpAddr> {
        IpFamily::ALL.into_iter().filter_map(move |family| self.get(family))
    }

    /// Sets the address of its family.
    pub fn set(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.v4 = Some(address),
            IpAddr::V6(address) => self.v6 = Some(address),
        }
    }
}

/// Which program wrote a node's record, and so what its node can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Dialect {
    /// `netwrightd`: it carries either family over either, and several prefixes.
    Netwright,
    /// flanneld: it carries a family over its own.
    Flannel,
}
