//! The links by which packets leave this host for everywhere.

use ipnet::IpNet;

use super::{IpFamily, Link, Route, RouteFilter, RouteKind, RouteSocket};
use crate::netlink::NetlinkError;

/// The longest prefix of a route that stands for a default route: VPNs add two or a few routes that
/// cover all addresses, and leave the default route as it is.
const NEARLY_ALL_V4: u8 = 1;
const NEARLY_ALL_V6: u8 = 3;

impl Route {
    /// Returns the links by which packets leave: its own, or those of its next hops.
    pub fn links(&self) -> impl Iterator<Item = u32> + '_ {
        self.oif.into_iter().chain(self.next_hops.iter().filter_map(|hop| hop.oif))
    }

    /// Returns the largest packet, in bytes, that fits by one of its links: an administrator may
    /// have given the route a smaller MTU than the link's.
    #[must_use]
    pub fn mtu_by(&self, link: &Link) -> u32 {
        self.mtu.map_or(link.mtu, |mtu| mtu.min(link.mtu))
    }

    /// Whether packets to nearly everywhere leave by it.
    fn leads_everywhere(&self) -> bool {
        let longest = match self.destination {
            IpNet::V4(_) => NEARLY_ALL_V4,
            IpNet::V6(_) => NEARLY_ALL_V6,
        };
        self.kind == RouteKind::Unicast && self.destination.prefix_len() <= longest
    }
}

/// Returns the link of the default route with the lowest metric, of routes of one family.
pub fn default_link<'r>(routes: impl IntoIterator<Item = &'r Route>) -> Option<u32> {
    let is_default = |route: &&Route| route.kind == RouteKind::Unicast && route.is_default();
    let defaults = routes.into_iter().filter(is_default);
    let with_link =
        defaults.filter_map(|route| Some((route.priority.unwrap_or(0), route.links().next()?)));
    with_link.min_by_key(|&(priority, _)| priority).map(|(_, link)| link)
}

impl RouteSocket {
    /// Returns the largest packet, in bytes, that leaves this host by the default routes of a table:
    /// the smallest MTU of all their links, whatever their metrics, because another one takes over
    /// when a link goes down. `None` without a default route.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn uplink_mtu(&mut self, table: u32) -> Result<Option<u32>, NetlinkError> {
        let mut least = None;
        for family in [IpFamily::V4, IpFamily::V6] {
            let filter = RouteFilter { family, table: Some(table), oif: None };
            let routes =
                self.routes_as(filter, |route| route.leads_everywhere().then_some(route))?;
            let links = |route| Route::links(route).map(move |index| (route, index));
            for (route, index) in routes.iter().flat_map(links) {
                let link = self.link_by_index(index)?.filter(|link| !link.loopback());
                let mtu = link.map(|link| route.mtu_by(&link));
                least = least.into_iter().chain(mtu).min();
            }
        }
        Ok(least)
    }
}
