//! What an interface had before it moved into a VRF. It stays in the record until the interface has
//! it again, so the next ADD completes one that was killed in between.

use std::net::IpAddr;

use ipnet::IpNet;
use kernel::route::{NextHop, Route, RouteProtocol, Scope};
use serde::{Deserialize, Serialize};

/// What the kernel removes from an interface that moves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MoveLoss {
    /// The interface's ifindex.
    pub(super) ifindex: u32,
    /// Its IPv6 addresses.
    pub(super) addresses: Vec<IpNet>,
    /// Its sysctl `keep_addr_on_down`, which ADD changes for a moment.
    pub(super) keep_addr_on_down: Option<String>,
    routes: Vec<SavedRoute>,
}

/// A unicast route, as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SavedRoute {
    destination: IpNet,
    gateway: Option<IpAddr>,
    oif: Option<u32>,
    table: u32,
    priority: Option<u32>,
    scope: Option<u8>,
    protocol: Option<u8>,
    mtu: Option<u32>,
    advmss: Option<u32>,
    onlink: bool,
    source: Option<IpAddr>,
    next_hops: Vec<(Option<IpAddr>, Option<u32>, u16, bool)>,
}

impl MoveLoss {
    pub(super) fn new(
        ifindex: u32,
        addresses: Vec<IpNet>,
        routes: &[Route],
        keep_addr_on_down: Option<String>,
    ) -> Self {
        let routes = routes.iter().map(SavedRoute::of).collect();
        Self { ifindex, addresses, keep_addr_on_down, routes }
    }

    /// Returns the unicast routes that use the interface.
    pub(super) fn routes(&self) -> Vec<Route> {
        self.routes.iter().map(SavedRoute::route).collect()
    }
}

impl SavedRoute {
    fn of(route: &Route) -> Self {
        let hop = |hop: &NextHop| (hop.gateway, hop.oif, hop.weight, hop.onlink);
        Self {
            destination: route.destination,
            gateway: route.gateway,
            oif: route.oif,
            table: route.table,
            priority: route.priority,
            scope: route.scope.map(|scope| scope.0),
            protocol: route.protocol.map(|protocol| protocol.0),
            mtu: route.mtu,
            advmss: route.advmss,
            onlink: route.onlink,
            source: route.source,
            next_hops: route.next_hops.iter().map(hop).collect(),
        }
    }

    fn route(&self) -> Route {
        let hop = |&(gateway, oif, weight, onlink): &_| NextHop { gateway, oif, weight, onlink };
        Route {
            gateway: self.gateway,
            oif: self.oif,
            table: self.table,
            priority: self.priority,
            scope: self.scope.map(Scope),
            protocol: self.protocol.map(RouteProtocol),
            mtu: self.mtu,
            advmss: self.advmss,
            onlink: self.onlink,
            source: self.source,
            next_hops: self.next_hops.iter().map(hop).collect(),
            ..Route::new(self.destination)
        }
    }
}

#[cfg(test)]
mod tests {
    use kernel::route::RouteKind;

    use super::*;

    #[test]
    fn routes_come_back_as_they_were() {
        let hop = NextHop {
            gateway: Some("10.1.0.9".parse().unwrap()),
            oif: Some(7),
            weight: 3,
            onlink: true,
        };
        let full = Route {
            destination: "10.7.0.0/16".parse().unwrap(),
            gateway: Some("fe80::1".parse().unwrap()),
            oif: Some(7),
            table: 77,
            priority: Some(5),
            scope: Some(Scope::UNIVERSE),
            protocol: Some(RouteProtocol::DHCP),
            kind: RouteKind::Unicast,
            mtu: Some(1400),
            advmss: Some(1360),
            onlink: true,
            source: Some("10.1.0.3".parse().unwrap()),
            next_hops: vec![hop],
            nexthop: None,
        };
        let routes = [full, Route::new("::/0".parse().unwrap())];
        let addresses = vec!["2001:db8::3/64".parse().unwrap()];
        let moving = MoveLoss::new(7, addresses, &routes, Some("0".to_owned()));
        let text = serde_json::to_string(&moving).unwrap();
        let read: MoveLoss = serde_json::from_str(&text).unwrap();
        assert_eq!(read, moving);
        assert_eq!(read.routes(), routes);
    }
}
