//! How packets get to peers: a backend is a file here, and a line in the table.
//!
//! A backend says what a node offers of it, whether both ends can use it, what it takes of each
//! packet, and which kernel objects it needs, as data: the tunnel of this node, and the nexthop of
//! a peer with the entries that this stands on. Nothing else knows a tunnel's backend by its name but
//! flannel's dialect, which has backends of its own, and the settings of VXLAN's numbers. From the
//! table follow the field of [`Offers`], the key of the annotation, and the words of the path and of
//! the setting.
//!
//! Native and learned paths are no backends: nothing of ours is programmed for them.

mod direct;
mod table;
pub(crate) mod terms;
pub(crate) mod vxlan;

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::identity::TunnelLink;
use crate::node::{Node, Underlay};
use crate::object::{Encapsulation, Key, Nexthop, Numbers, Tunnel, Value};
use crate::path::{Argument, Ends, Hop, Way};
use crate::reader::{Fault, KeyedValue};
use crate::settings::{ExistingTunnel, Keys, LinkName, OwnNode, Settings};
use net::{IpFamily, MacAddr, PerFamily};

use self::terms::{NoTerms, OfferField, PlainOf, plain_field, read_field};

// In the order in which a path is looked for. The name is the word for the path, the setting and the
// key of the annotation; the type is what a node says of it: whether it offers it, or with what.
table::backends! {
    direct: bool = direct::Direct;
    vxlan: Option<vxlan::End> = vxlan::Vxlan;
}

/// A way to peers for which objects of ours are programmed.
pub(crate) trait Backend: Sync {
    /// Says in a node's offers that it can be reached so, with the hardware addresses of its tunnels
    /// over each family.
    fn offer(
        &self,
        settings: &Settings,
        mac: &dyn Fn(IpFamily) -> Option<MacAddr>,
        offers: &mut Offers,
    );

    /// Reports whether a node offers it that is not asked to offer one backend alone.
    fn is_usual(&self) -> bool {
        false
    }

    /// Reports whether packets come by it as pods send them.
    fn is_plain(&self) -> bool {
        false
    }

    /// Reports whether it carries packets of one family in those of the other, too.
    fn crosses_families(&self) -> bool {
        false
    }

    /// Returns the peer's underlay address if both ends offer the path.
    ///
    /// # Errors
    /// What stands against it.
    fn offered<'a>(
        &self,
        ends: Ends<'a>,
        family: IpFamily,
        underlay: IpFamily,
    ) -> Result<IpAddr, Argument<'a>>;

    /// Says whether the kernel's way to that address carries it. A tunnel needs any way: one that is
    /// missing now may come back by itself, and then the tunnel needs no change.
    fn carried<'a>(&self, address: IpAddr, way: &'a Way) -> Verdict<'a> {
        match way {
            Way::Missing => Verdict::LastResort(address),
            _ => Verdict::Possible(Argument::BothOffer(address)),
        }
    }

    /// Returns how many bytes of a packet of the underlay it takes for itself.
    fn overhead(&self, _underlay: IpFamily) -> u32 {
        0
    }

    /// Returns the tunnel over a family that other nodes know by a hardware address, if its tunnels have
    /// such: of `links`, which are there already, or else the one that is to be made.
    fn known_tunnel(
        &self,
        _settings: &Settings,
        _links: &[TunnelLink],
        _underlay: IpFamily,
    ) -> Option<ExistingTunnel> {
        None
    }

    /// Returns how its tunnel over a family is called, if it has tunnels; `taken_over` is the one
    /// that other nodes know by a hardware address.
    fn tunnel_name(
        &self,
        _settings: &Settings,
        _taken_over: Option<&ExistingTunnel>,
        _underlay: IpFamily,
    ) -> Option<LinkName> {
        None
    }

    /// Returns this node's tunnel over a family, if it needs one.
    fn tunnel(
        &self,
        _settings: &Settings,
        _own: &OwnNode,
        _underlay: IpFamily,
    ) -> Option<(LinkName, Tunnel)> {
        None
    }

    /// Returns the numbers of this node's tunnels, if it offers them: a link with others is an earlier
    /// configuration's.
    fn numbers(&self, _offers: &Offers) -> Option<Numbers> {
        None
    }

    /// Returns what a person calls the first of these numbers.
    fn id_name(&self) -> &'static str {
        "ID"
    }

    /// Returns which packets belong to the tunnels of nodes that offer this: the packet filter takes
    /// them of nodes alone.
    fn encapsulation(&self, _offers: &Offers) -> Option<Encapsulation> {
        None
    }

    /// Returns the hardware addresses of a node's tunnels over each family: no other node has them.
    fn macs(&self, _node: &Node) -> PerFamily<Option<MacAddr>> {
        PerFamily::default()
    }

    /// Returns how a source calls the hardware address over a family.
    fn mac_key(&self, keys: &Keys<'_>, _underlay: IpFamily) -> String {
        keys.of_offer("")
    }

    /// Says what of a node's offer does not go with this node's, beside hardware addresses.
    ///
    /// # Errors
    /// What is wrong with it, after the source's key.
    fn judge(&self, _own: &Node, _peer: &Node, _keys: &Keys<'_>) -> Result<(), Fault> {
        Ok(())
    }

    /// Returns what the link carries by which its packets leave pods' side, in bytes.
    fn link_mtu(
        &self,
        settings: &Settings,
        own: &OwnNode,
        underlay: IpFamily,
        hop: Option<&Hop>,
    ) -> Option<u32>;

    /// Returns what a peer needs; `None` if that is not known.
    fn of_peer(&self, peer: PeerEnd<'_>) -> Option<PeerObjects>;
}

/// Whether a path can be taken now.
pub(crate) enum Verdict<'a> {
    /// It can, and why.
    Possible(Argument<'a>),
    /// It cannot, and why not.
    Impossible(Argument<'a>),
    /// It can if nothing else can: there is no route to the address now.
    LastResort(IpAddr),
}

/// A peer, as its objects are planned.
#[derive(Clone, Copy)]
pub(crate) struct PeerEnd<'a> {
    pub(crate) own: &'a OwnNode,
    pub(crate) peer: &'a Node,
    /// The family of its pods' addresses, and of the packets around theirs.
    pub(crate) family: IpFamily,
    pub(crate) underlay: IpFamily,
    /// The way to its underlay address, if one is known.
    pub(crate) hop: Option<&'a Hop>,
}

/// What a peer needs of this node's kernel, beside its routes.
pub(crate) struct PeerObjects {
    /// Where its routes lead.
    pub(crate) nexthop: Nexthop,
    /// What that stands on.
    pub(crate) entries: Vec<(Key, Value)>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::Path;

    /// One that two backends had, or none, would be planned by the wrong one, or not at all.
    #[test]
    fn each_path_of_ours_is_by_one_backend() {
        assert_eq!([Path::Native, Path::Learned, Path::None].map(Path::backend), [None; 3]);
        let all = BackendId::ALL.iter().copied();
        for (id, underlay) in all.flat_map(|of| IpFamily::ALL.map(|to| (of, to))) {
            let (path, backend) = (id.path(underlay), id.backend());
            assert_eq!(path.backend(), Some(id));
            assert_eq!(Path::try_from(path.to_string()), Ok(path));
            assert_eq!(path.underlay(underlay), Some(underlay));
            // Only a tunnel has an underlay of its own.
            let other = underlay.other();
            let of_other = if path.is_tunnel() { underlay } else { other };
            assert_eq!(path.underlay(other), Some(of_other), "{path}");
            assert_eq!(path.is_tunnel(), 0 < backend.overhead(underlay), "{path}");
        }
    }
}
