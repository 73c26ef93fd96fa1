//! A container is no router of the host, although the host hears its routers by the container's
//! bridge.
//!
//! In `bridge netwright`, input, which sees the frames that a bridge hands to the host: what comes
//! in by a port in `no_routers` is dropped if it is a router's advertisement or a redirect (RFC
//! 4861 §4.2, §4.5). Frames between the ports do not pass this hook, so routers that are containers
//! still serve others.
//!
//! The match must see what the host will see:
//!
//! - The kernel finds the type behind extension headers (linux
//!   include/net/netfilter/nf_tables_ipv6.h `nft_set_pktinfo_ipv6_validate`), as the host does.
//! - It removes one tag of a frame before this hook, and the host removes further tags of VLAN 0
//!   (linux net/core/dev.c `__netif_receive_skb_core`). So a frame in which a tag is left is dropped.
//! - The host ignores neighbour discovery in fragments (RFC 6980), unless the bridge has joined
//!   them, as it does with `br_netfilter`. That is before this hook.

use kernel::nft::{NewRule, TableRef, Value, field};

use crate::element::{Element, Set, ifname};
use crate::plan::Plan;
use crate::pod_link::{REDIRECT, ROUTER_ADVERTISEMENT};

/// The sets of this concern.
pub const SETS: &[Set] = &[Set::NoRouters];

/// The chain of `bridge netwright` that sees what is for the host.
pub(crate) const CHAIN: &str = "netwright-routers";

/// EtherTypes (RFC 9542) of tags: 802.1Q and 802.1ad.
const TAGS: [u16; 2] = [0x8100, 0x88a8];

/// Plans that the host does not hear the container behind a port of a bridge as a router.
#[must_use]
pub fn plan(host_ifname: &str) -> Plan {
    let mut plan = Plan::default();
    plan.push(Element::new(Set::NoRouters, vec![ifname(host_ifname)]));
    plan
}

/// Returns the rules. All that bridges hand to the host meets them, so a frame looks up its port only
/// if it is of such a kind.
pub(crate) fn rules(table: &TableRef) -> Vec<NewRule> {
    let rule = || NewRule::new(table, CHAIN);
    let types = [ROUTER_ADVERTISEMENT, REDIRECT].into_iter();
    let messages = types.map(|kind| rule().is(field::icmp6_type(), Value::Icmp6Type(kind)));
    let tagged = TAGS.into_iter().map(|tag| rule().is(field::protocol(), Value::EtherType(tag)));
    let of_port = |rule: NewRule| rule.in_set(&[field::iifname()], Set::NoRouters.name());
    messages.chain(tagged).map(|rule| of_port(rule).counter().drop()).collect()
}
