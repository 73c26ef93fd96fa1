//! Anti-spoofing: a bridge port can send only with its own hardware address.
//!
//! In `bridge netwright`, prerouting, before anything learns the address: a frame from an interface
//! in `spoof_ports` whose (interface, source address) is not in `spoof_allowed` is dropped.

use crate::element::{Element, Field, Set, ifname};
use crate::plan::Plan;

/// The sets of this concern.
pub const SETS: &[Set] = &[Set::SpoofPorts, Set::SpoofAllowed];

/// Plans the check of one bridge port: only `macs` may send through it.
#[must_use]
pub fn plan(host_ifname: &str, macs: &[[u8; 6]]) -> Plan {
    let mut plan = Plan::default();
    plan.push(Element::new(Set::SpoofPorts, vec![ifname(host_ifname)]));
    for mac in macs {
        plan.push(Element::new(Set::SpoofAllowed, vec![ifname(host_ifname), Field::Mac(*mac)]));
    }
    plan
}
