//! VXLAN tunnels (RFC 7348): one link of this node over each family, and for each peer an entry of
//! its forwarding table and a neighbour.

use std::net::IpAddr;

use super::{Backend, PeerEnd, PeerObjects};
use crate::node::{Dialect, Node};
use crate::object::{Key, Nexthop, Tunnel, TunnelKind, Value};
use crate::path::{Argument, Ends, Hop, Offer, Path};
use crate::settings::{LinkName, OwnNode, Settings};
use net::IpFamily;

pub(super) struct Vxlan;

const OFFER: Offer = Offer { name: "VXLAN", over: None };

/// The outer UDP header, VXLAN's own, and the inner Ethernet header, in bytes.
const HEADERS: u32 = 8 + 8 + 14;

impl Backend for Vxlan {
    fn path(&self, underlay: IpFamily) -> Path {
        Path::Vxlan { underlay }
    }

    fn crosses_families(&self) -> bool {
        true
    }

    fn offered<'a>(
        &self,
        ends: Ends<'a>,
        family: IpFamily,
        underlay: IpFamily,
    ) -> Result<IpAddr, Argument<'a>> {
        ends.both_offer(OFFER, |node| node.offers.vxlan.is_some())?;
        let (Some(own), Some(theirs)) = (ends.own.offers.vxlan, ends.peer.offers.vxlan) else {
            unreachable!("both offer it");
        };
        ends.same("VNI", own.vni, theirs.vni)?;
        ends.same("VXLAN's port", own.port.into(), theirs.port.into())?;
        if family != underlay {
            for node in [ends.own, ends.peer] {
                if node.dialect == Dialect::Flannel {
                    return Err(Argument::NotOver { flannels: &node.name, family, underlay });
                }
            }
        }
        let address = ends.both_have_underlay(underlay)?;
        ends.both_offer(Offer { over: Some(underlay), ..OFFER }, |node| {
            node.offers.vxlan.is_some_and(|vxlan| vxlan.mac(underlay).is_some())
        })?;
        Ok(address)
    }

    fn overhead(&self, underlay: IpFamily) -> u32 {
        let outer = match underlay {
            IpFamily::V4 => 20,
            IpFamily::V6 => 40,
        };
        outer + HEADERS
    }

    fn tunnel(
        &self,
        settings: &Settings,
        own: &OwnNode,
        underlay: IpFamily,
    ) -> Option<(LinkName, Tunnel)> {
        let vxlan = own.node.offers.vxlan?;
        let uplink = own.uplinks.get(underlay).as_ref()?;
        let tunnel = Tunnel {
            kind: TunnelKind::Vxlan { vni: vxlan.vni, port: vxlan.port, learning: false },
            local: own.node.underlay.get(underlay)?,
            underlay: uplink.name.clone(),
            mac: Some(vxlan.mac(underlay)?),
            mtu: self.link_mtu(settings, own, underlay, None)?,
            up: true,
            altered: false,
        };
        Some((own.tunnels.get(underlay).clone(), tunnel))
    }

    fn is_configured(&self, own: &OwnNode, there: &Tunnel) -> bool {
        let TunnelKind::Vxlan { vni, port, .. } = there.kind;
        own.node.offers.vxlan.is_some_and(|vxlan| (vni, port) == (vxlan.vni, vxlan.port))
    }

    fn has_tunnel_address(&self, node: &Node) -> bool {
        node.offers.vxlan.is_some()
    }

    fn link_mtu(
        &self,
        settings: &Settings,
        own: &OwnNode,
        underlay: IpFamily,
        _hop: Option<&Hop>,
    ) -> Option<u32> {
        let uplink = own.uplinks.get(underlay).as_ref()?;
        let base = settings.underlay_mtu.unwrap_or(uplink.mtu);
        Some(base.saturating_sub(self.overhead(underlay)))
    }

    fn of_peer(&self, end: PeerEnd<'_>) -> Option<PeerObjects> {
        let PeerEnd { own, peer, family, underlay, .. } = end;
        let link = own.tunnels.get(underlay).clone();
        let mac = peer.offers.vxlan?.mac(underlay)?;
        let to = peer.underlay.get(underlay)?;
        // Linux refuses an IPv6 gateway that a route by another link leads to, so a change of
        // path could not keep it (net/ipv6/route.c ip6_route_check_nh_onlink). A link-local
        // one is not compared.
        let gateway = match family {
            // A node with blocks and no prefix of the family has none.
            IpFamily::V4 => peer.tunnel_address(family).or(peer.underlay.get(family))?,
            IpFamily::V6 => mac.link_local().into(),
        };
        let entries = vec![
            (Key::Fdb { link: link.clone(), mac }, Value::Fdb { to }),
            (Key::Neighbour { link: link.clone(), address: gateway }, Value::Neighbour { mac }),
        ];
        Some(PeerObjects { nexthop: Nexthop { link, gateway, onlink: true }, entries })
    }
}
