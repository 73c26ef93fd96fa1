//! Names of chains and sets.
//!
//! A name is a hash of what it stands for, so that it is the same on each node and after each
//! restart. It has 100 bits: no user can find a selector whose set gets the name of another user's
//! set.

use std::fmt::Display;

use sha2::{Digest as _, Sha256};

use crate::policy::{Direction, Tier};
use crate::program::Name;
use net::IpFamily;

/// How many letters of 5 bits a hash has.
const LETTERS: u32 = 20;

/// The letters of Base32 (RFC 4648 §6), in lower case.
const ALPHABET: [char; 32] = [
    'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k', 'l', 'm', 'n', 'o', 'p', 'q', 'r', 's',
    't', 'u', 'v', 'w', 'x', 'y', 'z', '2', '3', '4', '5', '6', '7',
];

/// Returns the hash of a text.
pub(crate) fn hash(text: &str) -> String {
    let digest = Sha256::digest(text);
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    let mut bits = u128::from_be_bytes(bytes);
    let mut hash = String::new();
    for _ in 0..LETTERS {
        bits = bits.rotate_left(5);
        let letter = usize::try_from(bits % 32).expect("it is below 32");
        hash.push(ALPHABET[letter]);
    }
    hash
}

fn letter(direction: Direction) -> char {
    match direction {
        Direction::Ingress => 'i',
        Direction::Egress => 'o',
    }
}

/// The chain of pods that the same policies select; its hash is of these.
pub(crate) fn class(direction: Direction, hash: &str) -> Name {
    format!("c{}-{hash}", letter(direction))
}

/// The chain of such pods' policies of one tier.
pub(crate) fn tier(direction: Direction, tier: Tier, hash: &str) -> Name {
    let kind = if tier == Tier::Admin { 'a' } else { 'b' };
    format!("{kind}{}-{hash}", letter(direction))
}

/// The chain of a policy.
pub(crate) fn policy(direction: Direction, salt: &str, id: &impl Display) -> Name {
    format!("p{}-{}", letter(direction), hash(&format!("{salt}{id}")))
}

/// The chain of the ports of one rule of a policy.
pub(crate) fn part(policy: &str, rule: usize) -> Name {
    format!("{policy}-{rule}")
}

/// The chain of pods about whose node the same policies decide; its hash is of these.
pub(crate) fn own_class(hash: &str) -> Name {
    format!("cn-{hash}")
}

/// The chain of what such policies of one tier say of the node.
pub(crate) fn own_tier(tier: Tier, hash: &str) -> Name {
    let kind = if tier == Tier::Admin { 'a' } else { 'b' };
    format!("{kind}n-{hash}")
}

/// What the chains of the ports of such a policy's rules are named after.
pub(crate) fn own_policy(salt: &str, id: &impl Display) -> Name {
    format!("pn-{}", hash(&format!("{salt}{id}")))
}

/// The set of the addresses of such pods.
pub(crate) fn own_pods(family: IpFamily, hash: &str) -> Name {
    format!("from{}-{hash}", family.digit())
}

/// The set of the addresses of this node.
pub(crate) fn own_addresses(family: IpFamily) -> Name {
    format!("own{}-node", family.digit())
}

/// The kinds of sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Pods,
    Nodes,
    Block,
    Port,
    Contested,
}

/// A set.
pub(crate) fn set(kind: Kind, family: IpFamily, hash: &str) -> Name {
    let kind = match kind {
        Kind::Pods => "sel",
        Kind::Nodes => "node",
        Kind::Block => "blk",
        Kind::Port => "port",
        Kind::Contested => "many",
    };
    format!("{kind}{}-{hash}", family.digit())
}
