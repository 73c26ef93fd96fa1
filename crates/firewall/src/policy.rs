//! Ingress policy: which containers reach which.
//!
//! | policy | between bridges under a policy | within the bridge, routed | within the bridge, bridged |
//! |---|---|---|---|
//! | `open` | as other rules decide | passes | passes |
//! | `same-bridge` | dropped | passes | passes |
//! | `isolated` | dropped | dropped | dropped between isolated ports |
//!
//! Like the reference, we match on the bridge, so a forged source address gains nothing. The
//! element is the bridge's and exists while any attachment asks for it. Frames that stay within a
//! bridge do not pass the hooks of `inet` unless `br_netfilter` is on; `bridge netwright` stops
//! them by port. With `br_netfilter` on, an isolated bridge passes nothing between any two of its
//! ports, like the reference.

use std::str::FromStr;

use crate::element::{Element, Set, ifname};
use crate::plan::{Plan, SharedObject};

/// The sets of this concern.
pub const SETS: &[Set] =
    &[Set::PolicyBridges, Set::PolicySame, Set::PolicyIsolated, Set::IsolatedPorts];

/// What may reach a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IngressPolicy {
    /// Everything that no other rule forbids.
    #[default]
    Open,
    /// Nothing from other bridges that have a policy.
    SameBridge,
    /// Nothing from the same bridge either.
    Isolated,
}

/// The text is not a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown ingress policy: {policy:?}")]
pub struct UnknownPolicy {
    /// The text.
    pub policy: String,
}

impl FromStr for IngressPolicy {
    type Err = UnknownPolicy;

    /// Reads `open`, `same-bridge` or `isolated`; an empty string is `open`.
    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        match text {
            "" | "open" => Ok(IngressPolicy::Open),
            "same-bridge" => Ok(IngressPolicy::SameBridge),
            "isolated" => Ok(IngressPolicy::Isolated),
            _ => Err(UnknownPolicy { policy: text.to_owned() }),
        }
    }
}

/// Plans what a policy needs beside the reference's chains, which do not see frames that stay
/// within a bridge.
#[must_use]
pub fn plan_within_bridge(policy: IngressPolicy, port: &str) -> Plan {
    let mut plan = Plan::default();
    if policy == IngressPolicy::Isolated {
        plan.push(Element::new(Set::IsolatedPorts, vec![ifname(port)]));
    }
    plan
}

/// Plans a policy for an attachment of `bridge` whose port is `port`.
#[must_use]
pub fn plan(policy: IngressPolicy, bridge: &str, port: &str) -> Plan {
    let mut plan = Plan::default();
    if policy == IngressPolicy::Open {
        return plan;
    }
    plan.share(SharedObject::Policy(bridge.to_owned()));
    if policy == IngressPolicy::Isolated {
        plan.share(SharedObject::Isolation(bridge.to_owned()));
        plan.join(plan_within_bridge(policy, port));
    }
    plan
}
