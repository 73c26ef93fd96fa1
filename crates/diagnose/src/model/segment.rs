//! The settings of links that share a parent, distinguish VLANs, tunnel, or lose packets.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Which of its siblings a macvlan may talk to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MacvlanMode {
    /// Not to its siblings.
    Private,
    /// To its siblings through an outer switch.
    Vepa,
    /// To its siblings directly.
    Bridge,
    /// It has the parent for itself.
    Passthru,
}

/// How an ipvlan forwards. The kernel has one mode for all ipvlans of a parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IpvlanMode {
    /// As a switch.
    L2,
    /// As a router, with the routes of the parent's namespace.
    L3,
    /// The same, and the parent's namespace sees what comes in.
    L3s,
}

/// Which of its siblings an ipvlan may talk to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IpvlanReach {
    /// All, directly.
    Bridge,
    /// None.
    Private,
    /// All, through an outer switch.
    Vepa,
}

/// What an ipvlan does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ipvlan {
    /// How it forwards.
    pub mode: IpvlanMode,
    /// Which of its siblings it may talk to.
    pub reach: IpvlanReach,
}

/// A VLAN, or a range of them, of a bridge's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortVlan {
    /// The first.
    pub first: u16,
    /// The last.
    pub last: u16,
    /// Frames that come in without a tag belong to it.
    pub pvid: bool,
    /// Its frames leave without a tag.
    pub untagged: bool,
}

/// A queueing discipline, or a filter of traffic control, that loses packets on purpose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Loss {
    /// What it is, as `tc` calls it: `netem`, `blackhole`, `matchall`.
    pub kind: String,
    /// It is a filter; otherwise a queueing discipline.
    pub filter: bool,
    /// It is about packets that leave by the link; otherwise about those that come in.
    pub leaving: bool,
    /// The order of a filter.
    pub preference: u16,
    /// The EtherType of the frames that it looks at; `None`: every one.
    pub protocol: Option<u16>,
    /// How many of a thousand packets are lost, at least 1; `None`: only the packets that match a
    /// filter's further conditions, or that an earlier filter leaves to it.
    pub per_mille: Option<u16>,
}

/// A filter of traffic control that is asked first, and sends all frames to another link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Redirect {
    /// What it is, as `tc` calls it: `matchall`, `u32`.
    pub kind: String,
    /// It is about frames that leave by the link; otherwise about those that come in.
    pub leaving: bool,
    /// Its order.
    pub preference: u16,
    /// The EtherType of the frames; `None`: every one.
    pub protocol: Option<u16>,
    /// The index of the other link.
    pub to: u32,
}

/// A peer of a WireGuard tunnel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Peer {
    /// Its public key.
    pub key: String,
    /// Where it is, as far as that is known.
    pub endpoint: Option<SocketAddr>,
    /// The addresses whose packets go to it.
    pub allowed: Vec<IpNet>,
}

/// A forwarding entry of a VXLAN tunnel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TunnelEnd {
    /// The hardware address whose frames it leads; `None`: all that have no entry of their own.
    pub mac: Option<String>,
    /// The machine to which they go.
    pub to: IpAddr,
}

impl PortVlan {
    /// Says whether a VLAN is in it.
    #[must_use]
    pub fn contains(&self, vlan: u16) -> bool {
        (self.first..=self.last).contains(&vlan)
    }
}

impl MacvlanMode {
    /// Returns the word of `ip link` for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            MacvlanMode::Private => "private",
            MacvlanMode::Vepa => "vepa",
            MacvlanMode::Bridge => "bridge",
            MacvlanMode::Passthru => "passthru",
        }
    }
}
