//! Why an object is not taken as it is written, and what holds instead.
//!
//! # What cannot be read fails closed
//!
//! In a NetworkPolicy a rule that cannot be read allows nothing. In a ClusterNetworkPolicy it
//! matches nothing if its action is Accept, and denies everything if its action is Deny or Pass. A
//! requirement of a selector that cannot be read counts as met, so the policy selects all the pods
//! that were meant and perhaps more. If nothing of a cluster-wide subject can be read, the policy
//! selects no pod: one misspelt object must not close the cluster. A policy of another version
//! counts as one with a fault, so it closes the pods that it selects.
//!
//! An `ipBlock` with host bits (`10.0.0.1/8`) is read without them, and a notice says so: API
//! servers accept it, and the suite of sig-network writes such blocks. In `networks` of a
//! ClusterNetworkPolicy they are refused.

use std::fmt;

use ipnet::IpNet;
use thiserror::Error;

pub(crate) use cni::text::printable;

use crate::policy::Direction;

/// What is wrong with an object: which, where, the cause, and what follows.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{object}: refused: {path}: {cause}; {effect}")]
pub struct Refusal {
    /// The object's kind and name.
    pub object: String,
    /// The key that has the fault.
    pub path: String,
    /// What is wrong with it.
    pub cause: Cause,
    /// What holds instead.
    pub effect: Effect,
}

impl Refusal {
    pub(crate) fn new(object: &str, (path, cause): (String, Cause), effect: Effect) -> Self {
        let path = if path.is_empty() { "the object".to_owned() } else { printable(&path) };
        Refusal { object: printable(object), path, cause, effect }
    }
}

/// What can be wrong with a key.
///
/// The text follows the object's name and the key.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each text says what the variant and its fields are")]
pub enum Cause {
    #[error("it is missing")]
    Missing,
    #[error("it is empty")]
    Empty,
    #[error("it has {bytes} bytes, and at most {most} are read")]
    TooLong { bytes: usize, most: usize },
    #[error("it has {count} entries, and at most {most} are allowed")]
    TooMany { count: usize, most: usize },
    #[error(
        "it has {count} different selectors of peers and names of ports, and at most {most} are \
         enforced"
    )]
    TooManySets { count: usize, most: usize },
    #[error("it cannot be read: {why}")]
    Malformed { why: String },
    #[error("{why}")]
    Invalid { why: String },
    #[error("{text} is not {wanted}")]
    NotA { text: String, wanted: String },
    #[error("{value} is not in {least}..{most}")]
    OutOfRange { value: i64, least: u64, most: u64 },
    #[error("{prefix} has bits set after its length: {network} may be meant")]
    HostBits { prefix: IpNet, network: IpNet },
    #[error("{except} is not a part of {cidr}")]
    NotInside { except: IpNet, cidr: IpNet },
    #[error("the range ends at {last}, before its beginning at {first}")]
    Reversed { first: u16, last: u16 },
    #[error("it is not known here (known: {known})")]
    UnknownKey { known: String },
    #[error("it has {count} of {known}, and exactly one is needed")]
    NotOne { count: usize, known: String },
    #[error("{found:?} is not read here, {read} is")]
    OtherVersion { found: String, read: String },
    #[error("domain names are not supported here: the packet filter sees addresses")]
    DomainNames,
}

/// What holds instead of what was written. It never lets more through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// The object is ignored: it cannot be identified, or is of another version.
    PassedOver,
    /// The rule allows nothing.
    RuleAllowsNothing,
    /// The rule denies everything.
    RuleDeniesAll,
    /// The policy allows its pods nothing of one direction.
    AllowsNone(Direction),
    /// The policy allows its pods nothing.
    AllowsNothing,
    /// The same, and its pods are those that the readable part of its selector selects.
    AllowsNothingReadable,
    /// The policy denies its pods all of one direction.
    DeniesDirection(Direction),
    /// The policy denies its pods everything.
    DeniesAll,
    /// The same, and its pods are those that the readable part of its selector selects.
    DeniesAllReadable,
    /// The policy selects no pod.
    SelectsNone,
    /// The policy is for no network.
    NoNetwork,
    /// The policy is for every further network of its pods.
    EveryNetwork,
    /// Traffic from outside the node reaches the namespace's pods only as policies allow it.
    DefaultDeny,
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Effect::PassedOver => "the object is ignored",
            Effect::RuleAllowsNothing => "the rule allows nothing",
            Effect::RuleDeniesAll => "the rule denies everything",
            Effect::AllowsNone(Direction::Ingress) => "the policy allows no ingress",
            Effect::AllowsNone(Direction::Egress) => "the policy allows no egress",
            Effect::AllowsNothing => "the policy allows nothing",
            Effect::AllowsNothingReadable => {
                "the policy allows nothing, for all pods that the rest of the selector selects"
            }
            Effect::DeniesDirection(Direction::Ingress) => "the policy denies all ingress",
            Effect::DeniesDirection(Direction::Egress) => "the policy denies all egress",
            Effect::DeniesAll => "the policy denies everything",
            Effect::DeniesAllReadable => {
                "the policy denies everything, for all pods that the rest of the selector selects"
            }
            Effect::SelectsNone => "the policy selects no pod",
            Effect::NoNetwork => "the policy is for no network",
            Effect::EveryNetwork => "the policy is for every further network of its pods",
            Effect::DefaultDeny => "the namespace's pods are denied what no policy allows",
        })
    }
}

impl Cause {
    /// A text that is not what is wanted there.
    pub(crate) fn not_a(text: &str, wanted: &str) -> Self {
        Cause::NotA { text: format!("{:?}", cni::text::shortened(text)), wanted: wanted.to_owned() }
    }
}
