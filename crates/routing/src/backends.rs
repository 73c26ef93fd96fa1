//! How packets get to peers: a backend is a file here, and a line in [`ALL`].
//!
//! A backend says whether both ends can use it, what it takes of each packet, and which kernel
//! objects it needs, as data: the tunnel of this node, and the nexthop of a peer with the entries
//! that this stands on. Choosing a path, planning, MTUs and changes of a path know none by name.
//!
//! Native and learned paths are no backends: nothing of ours is programmed for them.

mod direct;
mod vxlan;

use std::net::IpAddr;

use crate::node::Node;
use crate::object::{Key, Nexthop, Tunnel, Value};
use crate::path::{Argument, Ends, Hop, Path, Way};
use crate::settings::{LinkName, OwnNode, Settings};
use net::IpFamily;

/// All backends, in the order in which a path is looked for.
pub(crate) const ALL: [&dyn Backend; 2] = [&direct::Direct, &vxlan::Vxlan];

/// A way to peers for which objects of ours are programmed.
pub(crate) trait Backend: Sync {
    /// Returns the path by it, with packets of a family around those of pods if it is a tunnel.
    fn path(&self, underlay: IpFamily) -> Path;

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

    /// Returns this node's tunnel over a family, if it needs one.
    fn tunnel(
        &self,
        _settings: &Settings,
        _own: &OwnNode,
        _underlay: IpFamily,
    ) -> Option<(LinkName, Tunnel)> {
        None
    }

    /// Reports whether a tunnel that is there is as this node's configuration has it.
    fn is_configured(&self, _own: &OwnNode, _there: &Tunnel) -> bool {
        false
    }

    /// Reports whether a node that offers it has an address on its tunnel that answers.
    fn has_tunnel_address(&self, _node: &Node) -> bool {
        false
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

    /// One that two backends had, or none, would be planned by the wrong one, or not at all.
    #[test]
    fn each_path_of_ours_is_by_one_backend() {
        let [v4, v6] = IpFamily::ALL.map(|underlay| Path::Vxlan { underlay });
        let is_by = |path: Path| {
            let paths = |of: &&dyn Backend| IpFamily::ALL.map(|underlay| of.path(underlay));
            ALL.iter().filter(|of| paths(of).contains(&path)).count()
        };
        assert_eq!([Path::Direct, v4, v6].map(is_by), [1, 1, 1]);
        assert_eq!([Path::Native, Path::Learned, Path::None].map(is_by), [0, 0, 0]);
        for (backend, underlay) in ALL.into_iter().flat_map(|of| IpFamily::ALL.map(|to| (of, to))) {
            let path = backend.path(underlay);
            assert_eq!(path.underlay(underlay), Some(underlay));
            // Only a tunnel has an underlay of its own.
            let other = underlay.other();
            let of_other = if path.is_tunnel() { underlay } else { other };
            assert_eq!(path.underlay(other), Some(of_other), "{path}");
            assert_eq!(path.is_tunnel(), 0 < backend.overhead(underlay), "{path}");
        }
    }
}
