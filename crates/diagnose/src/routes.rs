//! Where a namespace's routes and routing rules lead a packet.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::filter::Truth;
use crate::model::{Link, Namespace, NextHop, Route, RouteKind, RouteRule, RuleAction};

/// linux include/uapi/linux/rtnetlink.h `RT_TABLE_*`.
pub(crate) const TABLE_DEFAULT: u32 = 253;
pub(crate) const TABLE_MAIN: u32 = 254;
pub(crate) const TABLE_LOCAL: u32 = 255;

/// The priority of the rule by which the kernel asks the tables of VRFs (`l3mdev`).
const VRF_PRIORITY: u32 = 1000;

/// Where a packet goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteDecision<'n> {
    /// By a link.
    By {
        /// The link.
        link: &'n Link,
        /// The gateway; `None`: the destination is on the link.
        via: Option<IpAddr>,
        /// The route.
        route: &'n Route,
        /// The rule that asked the route's table; `None`: one that every host has.
        rule: Option<&'n RouteRule>,
    },
    /// To this namespace: a link of it has the address.
    Local(&'n Link),
    /// It is refused, or dropped, by a route or by a routing rule.
    Refused {
        /// The route.
        route: Option<&'n Route>,
        /// The rule that refuses, or that asked the route's table.
        rule: Option<&'n RouteRule>,
    },
    /// There is no route.
    Nowhere,
    /// That is not known.
    Unknown,
}

/// What a table says.
enum TableAnswer<'n> {
    Found(RouteDecision<'n>),
    /// The next rule is asked.
    Nothing,
}

/// Looks up where a packet goes. `from` is `None` if the kernel is to choose the source, and `iif`
/// if it is a packet of this namespace's own.
#[must_use]
pub fn look_up<'n>(
    namespace: &'n Namespace,
    from: Option<IpAddr>,
    to: IpAddr,
    iif: Option<&str>,
    mark: Option<u32>,
) -> RouteDecision<'n> {
    let packet = Packet { from, to, iif, mark };
    let mut rules = namespace.rules.iter().filter(|rule| rule.ipv4 == to.is_ipv4()).peekable();
    if rules.peek().is_none() {
        return by_default(namespace, packet);
    }
    let vrf = iif.and_then(|name| vrf_of(namespace, name));
    for rule in rules {
        match applies(rule, packet) {
            Truth::No => continue,
            Truth::Maybe => {
                // It makes no difference if its table has nothing for the packet.
                if let RuleAction::Table(table) = rule.action
                    && matches!(in_table(namespace, packet, table, None), TableAnswer::Nothing)
                {
                    continue;
                }
                return RouteDecision::Unknown;
            }
            Truth::Yes => {}
        }
        let found = match rule.action {
            RuleAction::Table(0) => in_vrf(namespace, packet, vrf, rule),
            RuleAction::Table(table) => {
                let found = in_table(namespace, packet, table, own(rule));
                unless_suppressed(found, rule.suppress)
            }
            RuleAction::Blackhole | RuleAction::Unreachable | RuleAction::Prohibit => {
                return RouteDecision::Refused { route: None, rule: Some(rule) };
            }
            _ if rule.priority == VRF_PRIORITY => in_vrf(namespace, packet, vrf, rule),
            _ => return RouteDecision::Unknown,
        };
        if let TableAnswer::Found(routed) = found {
            return routed;
        }
    }
    RouteDecision::Nowhere
}

/// Passes over a route that is too short for a rule (linux net/ipv4/fib_rules.c `fib4_rule_suppress`).
fn unless_suppressed<'n>(found: TableAnswer<'n>, suppress: Option<u32>) -> TableAnswer<'n> {
    let is_short =
        |route: &Route| suppress.is_some_and(|length| u32::from(route.to.prefix_len()) <= length);
    match found {
        TableAnswer::Found(RouteDecision::By { route, .. }) if is_short(route) => {
            TableAnswer::Nothing
        }
        other => other,
    }
}

/// A rule that no host has without a person or a program that made it.
fn own(rule: &RouteRule) -> Option<&RouteRule> {
    let table = RuleAction::Table;
    let is_usual = [table(TABLE_LOCAL), table(TABLE_MAIN), table(TABLE_DEFAULT)]
        .contains(&rule.action)
        && rule.from.is_none()
        && rule.to.is_none();
    (!is_usual).then_some(rule)
}

#[derive(Debug, Clone, Copy)]
struct Packet<'p> {
    from: Option<IpAddr>,
    to: IpAddr,
    iif: Option<&'p str>,
    mark: Option<u32>,
}

/// The rules that every namespace has.
fn by_default<'n>(namespace: &'n Namespace, packet: Packet<'_>) -> RouteDecision<'n> {
    for table in [TABLE_LOCAL, TABLE_MAIN, TABLE_DEFAULT] {
        if let TableAnswer::Found(routed) = in_table(namespace, packet, table, None) {
            return routed;
        }
    }
    RouteDecision::Nowhere
}

/// Says whether a rule is about a packet (linux net/core/fib_rules.c `fib_rule_match`).
fn applies(rule: &RouteRule, packet: Packet<'_>) -> Truth {
    let has = |net: Option<IpNet>, address: Option<IpAddr>| match net {
        Some(net) if 0 < net.prefix_len() => {
            Truth::known(address.is_some_and(|address| net.contains(&address)))
        }
        _ => Truth::Yes,
    };
    // A packet of this namespace's own comes in by loopback here.
    let iif = packet.iif.unwrap_or("lo");
    let mark = match (rule.mark, packet.mark) {
        (None, _) => Truth::Yes,
        (Some((value, mask)), Some(mark)) => Truth::known(mark & mask == value & mask),
        (Some(_), None) => Truth::Maybe,
    };
    has(rule.from, packet.from)
        .and(has(rule.to, Some(packet.to)))
        .and(Truth::known(rule.iif.as_deref().is_none_or(|name| name == iif)))
        // Only sockets that are bound to a link have one before they are routed.
        .and(Truth::known(rule.oif.is_none()))
        .and(mark)
        .unless(rule.invert)
}

fn in_table<'n>(
    namespace: &'n Namespace,
    packet: Packet<'_>,
    table: u32,
    rule: Option<&'n RouteRule>,
) -> TableAnswer<'n> {
    if table == TABLE_LOCAL {
        return match local(namespace, packet.to) {
            Some(link) => TableAnswer::Found(RouteDecision::Local(link)),
            None => TableAnswer::Nothing,
        };
    }
    // Older kernels list a last route of IPv6 that refuses what no other one takes.
    let is_last = |route: &Route| route.to.prefix_len() == 0 && route.metric == u32::MAX;
    let fits =
        |route: &&Route| route.table == table && route.to.contains(&packet.to) && !is_last(route);
    let best = namespace
        .routes
        .iter()
        .filter(fits)
        .min_by_key(|route| (u8::MAX - route.to.prefix_len(), route.metric));
    let Some(route) = best else { return TableAnswer::Nothing };
    TableAnswer::Found(match route.kind {
        RouteKind::Unicast => by_hops(namespace, route, rule),
        RouteKind::Blackhole | RouteKind::Unreachable | RouteKind::Prohibit => {
            RouteDecision::Refused { route: Some(route), rule }
        }
        RouteKind::Throw => return TableAnswer::Nothing,
        _ => RouteDecision::Unknown,
    })
}

/// The link that has an address. Every host has those of loopback.
fn local(namespace: &Namespace, to: IpAddr) -> Option<&Link> {
    if to.is_loopback() {
        return namespace.link("lo").or_else(|| namespace.links.first());
    }
    namespace.owner_of(to)
}

/// Of several next hops the first whose link carries something stands for all: some of the packets
/// go by it.
fn by_hops<'n>(
    namespace: &'n Namespace,
    route: &'n Route,
    rule: Option<&'n RouteRule>,
) -> RouteDecision<'n> {
    let hops = || hops_of(namespace, route);
    let found = hops().find(|(_, link)| link.up && link.carrier).or_else(|| hops().next());
    match found {
        Some((hop, link)) => RouteDecision::By { link, via: hop.via, route, rule },
        None => RouteDecision::Unknown,
    }
}

/// Returns the next hops of a route with their links.
pub(crate) fn hops_of<'n>(
    namespace: &'n Namespace,
    route: &'n Route,
) -> impl Iterator<Item = (&'n NextHop, &'n Link)> {
    route.hops.iter().filter_map(move |hop| Some((hop, namespace.link_of(hop.link?)?)))
}

/// The table of the VRF to which a link, or the bridge above it, belongs.
fn vrf_of(namespace: &Namespace, link: &str) -> Option<u32> {
    let master = namespace.link(link)?.master?;
    let master = namespace.link_of(master)?;
    match master.vrf_table {
        Some(table) => Some(table),
        None => namespace.link_of(master.master?)?.vrf_table,
    }
}

fn in_vrf<'n>(
    namespace: &'n Namespace,
    packet: Packet<'_>,
    vrf: Option<u32>,
    rule: &'n RouteRule,
) -> TableAnswer<'n> {
    match vrf {
        Some(table) => in_table(namespace, packet, table, Some(rule)),
        None => TableAnswer::Nothing,
    }
}

#[cfg(test)]
pub(crate) mod samples {
    use super::*;
    use crate::model::{Address, NextHop};

    pub(crate) fn link(index: u32, name: &str, addresses: &[&str]) -> Link {
        let address = |text: &&str| Address {
            address: text.parse().unwrap(),
            duplicate: false,
            tentative: false,
        };
        Link {
            index,
            name: name.to_owned(),
            mtu: 1500,
            up: true,
            carrier: true,
            addresses: addresses.iter().map(address).collect(),
            ..Link::default()
        }
    }

    pub(crate) fn route(to: &str, link: u32, via: Option<&str>) -> Route {
        Route {
            to: to.parse().unwrap(),
            table: TABLE_MAIN,
            kind: RouteKind::Unicast,
            metric: 0,
            hops: vec![NextHop { via: via.map(|via| via.parse().unwrap()), link: Some(link) }],
            source: None,
            mtu: None,
            protocol: None,
        }
    }

    pub(crate) fn rule(priority: u32, action: RuleAction) -> RouteRule {
        RouteRule {
            ipv4: true,
            priority,
            from: None,
            to: None,
            iif: None,
            oif: None,
            mark: None,
            invert: false,
            suppress: None,
            action,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::samples::{link, route, rule};
    use super::*;

    fn host() -> Namespace {
        Namespace {
            links: vec![
                link(1, "lo", &["127.0.0.1/8"]),
                link(2, "up0", &["192.0.2.2/24"]),
                link(3, "cni0", &["10.88.0.1/24"]),
                link(4, "tun0", &[]),
            ],
            routes: vec![
                route("0.0.0.0/0", 2, Some("192.0.2.1")),
                route("192.0.2.0/24", 2, None),
                route("10.88.0.0/24", 3, None),
            ],
            ..Namespace::default()
        }
    }

    fn to(namespace: &Namespace, to: &str) -> String {
        let from = Some("10.88.0.2".parse().unwrap());
        match look_up(namespace, from, to.parse().unwrap(), Some("cni0"), Some(0)) {
            RouteDecision::By { link, via: Some(via), .. } => format!("{} via {via}", link.name),
            RouteDecision::By { link, .. } => link.name.clone(),
            RouteDecision::Local(link) => format!("local {}", link.name),
            RouteDecision::Refused { route: Some(route), .. } => format!("refused by {}", route.to),
            RouteDecision::Refused { .. } => "refused by a rule".to_owned(),
            RouteDecision::Nowhere => "nowhere".to_owned(),
            RouteDecision::Unknown => "unknown".to_owned(),
        }
    }

    #[test]
    fn the_longest_prefix_and_the_lowest_metric_win() {
        let mut host = host();
        assert_eq!(to(&host, "198.51.100.1"), "up0 via 192.0.2.1");
        assert_eq!(to(&host, "10.88.0.2"), "cni0");
        assert_eq!(to(&host, "10.88.0.1"), "local cni0");
        assert_eq!(to(&host, "2001:db8::1"), "nowhere");
        host.routes.push(route("10.88.0.0/25", 4, None));
        assert_eq!(to(&host, "10.88.0.2"), "tun0");
        assert_eq!(to(&host, "10.88.0.200"), "cni0");
        host.routes.push(Route { metric: 10, ..route("10.88.0.0/25", 3, None) });
        assert_eq!(to(&host, "10.88.0.2"), "tun0");
        host.routes.push(Route { kind: RouteKind::Blackhole, ..route("198.51.100.0/24", 0, None) });
        assert_eq!(to(&host, "198.51.100.1"), "refused by 198.51.100.0/24");
        host.routes.remove(0);
        assert_eq!(to(&host, "203.0.113.1"), "nowhere");
    }

    #[test]
    fn of_several_next_hops_one_that_carries_stands_for_all() {
        let mut host = host();
        let second = NextHop { via: Some("10.9.0.1".parse().unwrap()), link: Some(4) };
        host.routes[0].hops.push(second);
        assert_eq!(to(&host, "198.51.100.1"), "up0 via 192.0.2.1");
        host.links[1].carrier = false;
        assert_eq!(to(&host, "198.51.100.1"), "tun0 via 10.9.0.1");
        host.links[3].up = false;
        assert_eq!(to(&host, "198.51.100.1"), "up0 via 192.0.2.1");
        for hop in &mut host.routes[0].hops {
            hop.link = Some(99);
        }
        assert_eq!(to(&host, "198.51.100.1"), "unknown");
    }

    #[test]
    fn rules_are_asked_in_order() {
        let mut host = host();
        let usual =
            [rule(0, RuleAction::Table(TABLE_LOCAL)), rule(32766, RuleAction::Table(TABLE_MAIN))];
        let pool: IpNet = "10.88.0.0/24".parse().unwrap();
        let with = |own: RouteRule| {
            let [local, main] = usual.clone();
            vec![local, own, main]
        };
        host.rules = with(RouteRule { from: Some(pool), ..rule(100, RuleAction::Blackhole) });
        assert_eq!(to(&host, "198.51.100.1"), "refused by a rule");
        assert_eq!(to(&host, "10.88.0.1"), "local cni0");
        host.rules = with(RouteRule { to: Some(pool), ..rule(100, RuleAction::Blackhole) });
        assert_eq!(to(&host, "198.51.100.1"), "up0 via 192.0.2.1");
        host.rules = with(RouteRule { mark: Some((1, 1)), ..rule(100, RuleAction::Blackhole) });
        assert_eq!(to(&host, "198.51.100.1"), "up0 via 192.0.2.1");
        host.rules = with(RouteRule {
            mark: Some((1, 1)),
            invert: true,
            ..rule(100, RuleAction::Unreachable)
        });
        assert_eq!(to(&host, "198.51.100.1"), "refused by a rule");
        host.rules = with(rule(100, RuleAction::Table(7)));
        assert_eq!(to(&host, "198.51.100.1"), "up0 via 192.0.2.1");
        host.routes.push(Route { table: 7, ..route("0.0.0.0/0", 4, None) });
        assert_eq!(to(&host, "198.51.100.1"), "tun0");
        host.rules = with(rule(100, RuleAction::Other));
        assert_eq!(to(&host, "198.51.100.1"), "unknown");
        // No link belongs to a VRF, so the rule about VRFs is about no packet.
        host.rules = with(rule(VRF_PRIORITY, RuleAction::Other));
        assert_eq!(to(&host, "198.51.100.1"), "up0 via 192.0.2.1");
    }

    #[test]
    fn a_mark_that_is_not_known_makes_the_way_unknown() {
        let mut host = host();
        host.rules = vec![
            rule(0, RuleAction::Table(TABLE_LOCAL)),
            RouteRule { mark: Some((1, 1)), ..rule(100, RuleAction::Blackhole) },
            rule(32766, RuleAction::Table(TABLE_MAIN)),
        ];
        let to = "198.51.100.1".parse().unwrap();
        assert_eq!(look_up(&host, None, to, Some("cni0"), None), RouteDecision::Unknown);
    }
    /// `wg-quick` lets the main table lead only to networks, and all else into its tunnel.
    #[test]
    fn a_rule_may_leave_default_routes_to_the_next_one() {
        let mut host = Namespace {
            links: vec![link(2, "eth0", &["10.88.0.2/24"]), link(7, "wg0", &["10.9.0.2/24"])],
            routes: vec![
                route("0.0.0.0/0", 2, Some("10.88.0.1")),
                route("10.88.0.0/24", 2, None),
                Route { table: 51820, ..route("0.0.0.0/0", 7, None) },
            ],
            ..Namespace::default()
        };
        host.rules = vec![
            rule(0, RuleAction::Table(255)),
            RouteRule { suppress: Some(0), ..rule(32764, RuleAction::Table(254)) },
            RouteRule {
                mark: Some((0xca6c, u32::MAX)),
                invert: true,
                ..rule(32765, RuleAction::Table(51820))
            },
            rule(32766, RuleAction::Table(254)),
        ];
        let by =
            |to: &str, mark: u32| match look_up(&host, None, to.parse().unwrap(), None, Some(mark))
            {
                RouteDecision::By { link, .. } => link.name.clone(),
                other => format!("{other:?}"),
            };
        assert_eq!(by("198.51.100.1", 0), "wg0");
        assert_eq!(by("10.88.0.9", 0), "eth0");
        assert_eq!(by("198.51.100.1", 0xca6c), "eth0");
    }
}
