//! Routes to the underlay addresses of peers on the same segment.

use std::net::IpAddr;

use super::{Backend, Offers, PeerEnd, PeerObjects, Verdict};
use crate::object::Nexthop;
use crate::path::{Argument, Ends, Hop, Offer, Way};
use crate::settings::{OwnNode, Settings};
use net::{IpFamily, MacAddr};

pub(super) struct Direct;

const OFFER: Offer = Offer { name: "direct paths", over: None };

impl Backend for Direct {
    fn offer(
        &self,
        _settings: &Settings,
        _mac: &dyn Fn(IpFamily) -> Option<MacAddr>,
        offers: &mut Offers,
    ) {
        offers.direct = true;
    }

    fn is_usual(&self) -> bool {
        true
    }

    fn is_plain(&self) -> bool {
        true
    }

    fn offered<'a>(
        &self,
        ends: Ends<'a>,
        _family: IpFamily,
        underlay: IpFamily,
    ) -> Result<IpAddr, Argument<'a>> {
        ends.both_offer(OFFER, |node| node.offers.direct)?;
        ends.both_have_underlay(underlay)
    }

    fn carried<'a>(&self, address: IpAddr, way: &'a Way) -> Verdict<'a> {
        match way {
            Way::OnLink(hop) => Verdict::Possible(Argument::OnSegment { address, hop }),
            Way::ByGateway(hop) => Verdict::Impossible(Argument::BehindGateway { address, hop }),
            Way::Missing => Verdict::Impossible(Argument::NoRoute(address)),
            Way::Unknown => Verdict::Impossible(Argument::WayUnknown(address)),
        }
    }

    fn link_mtu(
        &self,
        _settings: &Settings,
        own: &OwnNode,
        underlay: IpFamily,
        hop: Option<&Hop>,
    ) -> Option<u32> {
        let uplink = own.uplinks.get(underlay).as_ref()?;
        (hop?.link == uplink.name).then_some(uplink.mtu)
    }

    fn of_peer(&self, peer: PeerEnd<'_>) -> Option<PeerObjects> {
        let link = peer.hop?.link.clone();
        let gateway = peer.peer.underlay.get(peer.underlay)?;
        // The kernel has reported that the address is on the link. Some clouds give addresses
        // without a prefix.
        let nexthop = Nexthop { link, gateway, onlink: true };
        Some(PeerObjects { nexthop, entries: Vec::new() })
    }
}
