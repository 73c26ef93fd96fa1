//! VXLAN tunnels (RFC 7348): one link of this node over each family, and for each peer an entry of
//! its forwarding table and a neighbour.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::terms::Terms;
use super::{Backend, BackendId, Offers, PeerEnd, PeerObjects};
use crate::identity::{Mark, TunnelLink};
use crate::node::{Dialect, Node, Underlay};
use crate::object::{Encapsulation, Key, Nexthop, Numbers, Tunnel, TunnelKind, Value};
use crate::path::{Argument, Ends, Hop, Offer};
use crate::reader::{self, Fault, KeyedValue};
use crate::refused::Cause;
use crate::settings::{ExistingTunnel, Keys, LinkName, OwnNode, Settings, Tunnels};
use net::{IpFamily, MacAddr, PerFamily};

pub(super) struct Vxlan;

/// Its line in the table.
const ID: BackendId = BackendId::Vxlan;

const OFFER: Offer = Offer { name: "VXLAN", over: None };

/// The outer UDP header, VXLAN's own, and the inner Ethernet header, in bytes.
const HEADERS: u32 = UDP_HEADER + 8 + 14;

/// The length of a UDP header, in bytes.
const UDP_HEADER: u32 = 8;

/// UDP, among the protocols of IP.
const UDP: u8 = 17;

/// A node's end of VXLAN tunnels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct End {
    /// The network identifier (RFC 7348 §5).
    pub vni: u32,
    /// The UDP port.
    pub port: u16,
    /// The hardware address of the tunnel over IPv4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac4: Option<MacAddr>,
    /// The hardware address of the tunnel over IPv6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac6: Option<MacAddr>,
}

/// The same in the annotation.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlainEnd {
    vni: u32,
    port: u16,
    mac4: Option<MacAddr>,
    mac6: Option<MacAddr>,
}

impl End {
    /// Returns the hardware address of the tunnel over a family.
    #[must_use]
    pub fn mac(&self, underlay: IpFamily) -> Option<MacAddr> {
        match underlay {
            IpFamily::V4 => self.mac4,
            IpFamily::V6 => self.mac6,
        }
    }

    fn numbers(&self) -> Numbers {
        Numbers { id: Some(self.vni), port: Some(self.port) }
    }
}

impl Terms for End {
    type Plain = PlainEnd;

    fn read(at: &KeyedValue<'_>, underlay: Underlay) -> Result<Self, Fault> {
        let mac = |key: &str| at.get(key)?.map(|mac| mac.mac()).transpose();
        let (mac4, mac6) = (mac("mac4")?, mac("mac6")?);
        let (vni, port) = (at.required("vni")?.vni()?, at.required("port")?.port()?);
        let end = End { vni, port, mac4, mac6 };
        // A tunnel starts at an underlay address of its family.
        for (family, key) in [(IpFamily::V4, "mac4"), (IpFamily::V6, "mac6")] {
            if end.mac(family).is_some() && underlay.get(family).is_none() {
                let why = format!("there is no underlay address of {family} for it");
                return Err(at.required(key)?.fault(Cause::Invalid { why }));
            }
        }
        if (mac4, mac6) == (None, None) {
            let why = "it has neither mac4 nor mac6".to_owned();
            return Err(at.fault(Cause::Invalid { why }));
        }
        Ok(end)
    }

    fn of_plain(plain: PlainEnd, underlay: Underlay) -> Option<Self> {
        let PlainEnd { vni, port, mac4, mac6 } = plain;
        let end = End { vni, port, mac4, mac6 };
        let is_right = |family: IpFamily| {
            let mac = end.mac(family);
            mac.is_none_or(|mac| mac.is_unicast() && underlay.get(family).is_some())
        };
        let is_whole = (mac4, mac6) != (None, None) && port != 0;
        let (least, most) = reader::VNI;
        let is_vni = (least..=most).contains(&u64::from(vni));
        (is_whole && is_vni && IpFamily::ALL.into_iter().all(is_right)).then_some(end)
    }
}

/// Returns how a tunnel is called that is not there yet: as flanneld calls it where this node
/// speaks its dialect, so that it can be given back.
fn tunnel_name(settings: &Settings, underlay: IpFamily) -> String {
    let [ours, flannels] = tunnel_names(settings, underlay);
    if settings.flannel.is_some() { flannels } else { ours }
}

/// Returns how a tunnel of this cluster may be called: as ours are, and as flanneld's are.
fn tunnel_names(settings: &Settings, underlay: IpFamily) -> [String; 2] {
    let vni = settings.vxlan.vni;
    match underlay {
        IpFamily::V4 => ["nw-vxlan4".to_owned(), format!("flannel.{vni}")],
        IpFamily::V6 => ["nw-vxlan6".to_owned(), format!("flannel-v6.{vni}")],
    }
}

/// Finds the tunnel over a family that is there already: that of an earlier run, under either of its
/// names, or flanneld's where this node takes its place.
fn find_tunnel(
    settings: &Settings,
    links: &[TunnelLink],
    family: IpFamily,
) -> Option<ExistingTunnel> {
    let names = tunnel_names(settings, family);
    let flannels = settings.flannel.as_ref().map(|_| &*names[1]);
    let Tunnels { vni, port } = settings.vxlan;
    let is_it = |link: &&TunnelLink| {
        let is_of_cluster = link.backend == ID
            && link.numbers == Numbers { id: Some(vni), port: Some(port) }
            && link.local.is_some_and(|local| IpFamily::of(local) == family);
        let is_ours = link.mark == Mark::Ours && names.iter().any(|name| **name == *link.name);
        is_of_cluster && (is_ours || flannels == Some(&*link.name))
    };
    let link = links.iter().find(is_it)?;
    // The address of our tunnel follows from the node, and another program may have changed the
    // link's.
    let mac = link.mac.filter(|_| link.mark != Mark::Ours);
    Some(ExistingTunnel { name: link.name.clone(), mac })
}

/// Returns how a source calls a value of a family.
fn key(keys: &Keys<'_>, family: IpFamily, flannels: &str, ours: &str) -> String {
    keys.of_data(family, flannels).unwrap_or_else(|| keys.of_offer(&format!("vxlan.{ours}")))
}

impl Backend for Vxlan {
    fn offer(
        &self,
        settings: &Settings,
        mac: &dyn Fn(IpFamily) -> Option<MacAddr>,
        offers: &mut Offers,
    ) {
        let Tunnels { vni, port } = settings.vxlan;
        let (mac4, mac6) = (mac(IpFamily::V4), mac(IpFamily::V6));
        offers.vxlan = Some(End { vni, port, mac4, mac6 });
    }

    fn is_usual(&self) -> bool {
        true
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
            kind: TunnelKind { backend: ID, numbers: vxlan.numbers(), learning: false },
            local: own.node.underlay.get(underlay)?,
            underlay: uplink.name.clone(),
            mac: Some(vxlan.mac(underlay)?),
            mtu: self.link_mtu(settings, own, underlay, None)?,
            up: true,
            altered: false,
        };
        Some((own.tunnel(ID, underlay)?.clone(), tunnel))
    }

    fn known_tunnel(
        &self,
        settings: &Settings,
        links: &[TunnelLink],
        underlay: IpFamily,
    ) -> Option<ExistingTunnel> {
        let new = || ExistingTunnel { name: tunnel_name(settings, underlay).into(), mac: None };
        Some(find_tunnel(settings, links, underlay).unwrap_or_else(new))
    }

    fn tunnel_name(
        &self,
        settings: &Settings,
        taken_over: Option<&ExistingTunnel>,
        underlay: IpFamily,
    ) -> Option<LinkName> {
        Some(match taken_over {
            Some(taken) => taken.name.clone(),
            None => tunnel_name(settings, underlay).into(),
        })
    }

    fn numbers(&self, offers: &Offers) -> Option<Numbers> {
        Some(offers.vxlan?.numbers())
    }

    fn id_name(&self) -> &'static str {
        "VNI"
    }

    /// The port and the VNI: other tunnels may use the same port, which is the kernel's own default.
    /// RFC 7348 §5: the VNI is 4 bytes behind the UDP header.
    fn encapsulation(&self, offers: &Offers) -> Option<Encapsulation> {
        let vxlan = offers.vxlan?;
        let [_, vni @ ..] = vxlan.vni.to_be_bytes();
        let content = Some((UDP_HEADER + 4, vni.to_vec()));
        Some(Encapsulation { protocol: UDP, port: Some(vxlan.port), content })
    }

    fn macs(&self, node: &Node) -> PerFamily<Option<MacAddr>> {
        PerFamily::with(|family: IpFamily| node.offers.vxlan?.mac(family))
    }

    fn mac_key(&self, keys: &Keys<'_>, underlay: IpFamily) -> String {
        let ours = match underlay {
            IpFamily::V4 => "mac4",
            IpFamily::V6 => "mac6",
        };
        key(keys, underlay, "VtepMAC", ours)
    }

    fn judge(&self, own: &Node, peer: &Node, keys: &Keys<'_>) -> Result<(), Fault> {
        let (Some(theirs), Some(ours)) = (peer.offers.vxlan, own.offers.vxlan) else {
            return Ok(());
        };
        // Where it can be reached in another way, the tunnel's numbers do not matter.
        if (Offers { vxlan: None, ..peer.offers }) != Offers::default() {
            return Ok(());
        }
        if theirs.vni != ours.vni {
            let cause = Cause::OtherVni { vni: theirs.vni, own: ours.vni };
            return Err((key(keys, IpFamily::V4, "VNI", "vni"), cause));
        }
        if theirs.port != ours.port {
            let cause = Cause::OtherPort { port: theirs.port, own: ours.port };
            // flannel's records have no port: all flannelds of a cluster have the same.
            return Err((key(keys, IpFamily::V4, "Port", "port"), cause));
        }
        Ok(())
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
        let link = own.tunnel(ID, underlay)?.clone();
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
