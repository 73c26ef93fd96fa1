//! A link to be made.

use super::AF_UNSPEC;
use super::link::{iff, ifla};
use super::link_kind::{LinkKind, encode_queues, header, put_netns};
use super::link_set::LinkSet;
use crate::mac::MacAddr;
use crate::netns::Netns;
use crate::wire::Writer;

/// A link to create (RTM_NEWLINK); `None` is left to the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewLink {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: LinkKind,
    /// Its address.
    pub mac: Option<MacAddr>,
    /// Its MTU in bytes.
    pub mtu: Option<u32>,
    /// The bridge or VRF it joins.
    pub master: Option<u32>,
    /// The link it is created on, for macvlan, ipvlan and VLAN (IFLA_LINK); an index in the
    /// socket's namespace.
    pub parent: Option<u32>,
    /// Whether it is created up.
    pub up: bool,
    /// Free text; the kernel takes at most 255 bytes.
    pub alias: Option<String>,
    /// Length of its transmit queue in packets.
    pub tx_queue_len: Option<u32>,
    /// The number of its queues, in each direction (IFLA_NUM_TX_QUEUES, IFLA_NUM_RX_QUEUES);
    /// `None`: the kernel's choice.
    ///
    /// By default a veth end has as many as there are processors, and uses one; reducing them to
    /// one waits for an RCU grace period, twice per pair. With 1 there is nothing to reduce.
    pub queues: Option<u32>,
    /// Its device group.
    pub group: Option<u32>,
    /// Where it is created; `None`: in the socket's namespace.
    pub netns: Option<Netns>,
    /// As port of the bridge `master`: frames may leave by the port they came in.
    pub hairpin: Option<bool>,
    /// As port of the bridge `master`: no frames to other isolated ports.
    pub isolated: Option<bool>,
    /// It has only the IPv6 addresses it is given; see [`LinkSet::no_own_ipv6`].
    pub no_own_ipv6: bool,
}

impl NewLink {
    /// A link with only name and kind set.
    #[must_use]
    pub fn new(name: impl Into<String>, kind: LinkKind) -> Self {
        Self {
            name: name.into(),
            kind,
            mac: None,
            mtu: None,
            master: None,
            parent: None,
            up: false,
            alias: None,
            tx_queue_len: None,
            queues: None,
            group: None,
            netns: None,
            hairpin: None,
            isolated: None,
            no_own_ipv6: false,
        }
    }

    /// The settings that the kernel does not accept with a new link, to be set afterwards.
    pub(crate) fn afterwards(&self) -> Option<LinkSet> {
        let set = LinkSet {
            alias: self.alias.clone(),
            hairpin: self.hairpin,
            isolated: self.isolated,
            no_own_ipv6: self.no_own_ipv6,
            ..LinkSet::default()
        };
        (set != LinkSet::default()).then_some(set)
    }

    /// Writes `struct ifinfomsg` and the attributes.
    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.raw(&header(AF_UNSPEC, 0, if self.up { iff::UP } else { 0 }, iff::UP));
        put_name(writer, &self.name);
        if let Some(mac) = self.mac {
            writer.put(ifla::ADDRESS, &mac.0);
        }
        if let Some(mtu) = self.mtu {
            writer.put_u32(ifla::MTU, mtu);
        }
        if let Some(parent) = self.parent {
            writer.put_u32(ifla::LINK, parent);
        }
        if let Some(master) = self.master {
            writer.put_u32(ifla::MASTER, master);
        }
        encode_queues(self.queues, writer);
        if let Some(length) = self.tx_queue_len {
            writer.put_u32(ifla::TXQLEN, length);
        }
        if let Some(group) = self.group {
            writer.put_u32(ifla::GROUP, group);
        }
        put_netns(writer, self.netns.as_ref());
        self.kind.encode(writer);
    }
}

/// Writes IFLA_IFNAME of a new link.
pub(crate) fn put_name(writer: &mut Writer, name: &str) {
    if name.contains('%') {
        // The kernel would replace it with a number (`dev_alloc_name`), and the caller would not
        // know the name.
        writer.set_problem("a name contains a per cent sign");
    }
    writer.put_text(ifla::IFNAME, name);
}
