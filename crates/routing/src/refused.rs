//! Why a peer is not taken as it says it is.

use std::net::IpAddr;

use ipnet::IpNet;
use thiserror::Error;

pub(crate) use cni::text::printable;

use crate::time::Time;
use net::IpFamily;
use net::MacAddr;

/// What is wrong with a record, and where: the node, the key, the cause.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("node {node}: refused: {key}: {cause}")]
pub struct Refusal {
    /// The node that the record is about.
    pub node: String,
    /// The key that has the fault: an annotation, a field of the object, a key of a file.
    pub key: String,
    /// What is wrong with it.
    pub cause: Cause,
}

impl Refusal {
    /// Creates one.
    #[must_use]
    pub fn new(node: &str, key: impl Into<String>, cause: Cause) -> Self {
        Refusal { node: printable(node), key: printable(&key.into()), cause }
    }
}

/// What can be wrong with a key.
///
/// The text follows the node's name and the key.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each text says what the variant and its fields are")]
pub enum Cause {
    #[error("it is missing")]
    Missing,
    #[error("it has {bytes} bytes, and at most {most} are read")]
    TooLong { bytes: usize, most: usize },
    #[error("it has {count} entries, and at most {most} are taken")]
    TooMany { count: usize, most: usize },
    #[error("it cannot be read: {why}")]
    Malformed { why: String },
    #[error("{why}")]
    Invalid { why: String },
    #[error("it has version {version}, and this netwrightd reads version {known}")]
    Version { version: u64, known: u32 },
    #[error("{text} is not {wanted}")]
    NotA { text: String, wanted: String },
    #[error("{value} is not in {least}..{most}")]
    OutOfRange { value: u64, least: u64, most: u64 },
    #[error("{prefix} has bits set after its length: {network} may be meant")]
    HostBits { prefix: IpNet, network: IpNet },
    #[error("{value} is not an {family} address")]
    WrongFamily { value: String, family: IpFamily },
    #[error("{prefix} is outside the cluster's {family} ranges ({ranges})")]
    OutsideRanges { prefix: IpNet, family: IpFamily, ranges: String },
    #[error("it is outside space-ranges ({ranges})")]
    OutsideSpaces { ranges: String },
    #[error("it overlaps {theirs} of space {space}, which node {node} holds")]
    OverlapsBlock { theirs: IpNet, space: String, node: String },
    #[error("{prefix} and {other} overlap")]
    OverlapsItself { prefix: IpNet, other: IpNet },
    #[error("{prefix} overlaps {own}, which is this node's")]
    OverlapsOwn { prefix: IpNet, own: IpNet },
    #[error("{prefix} has this node's address {address} in it")]
    HasOwnAddress { prefix: IpNet, address: IpAddr },
    #[error("{prefix} overlaps {range}, a range for services")]
    OverlapsServices { prefix: IpNet, range: IpNet },
    #[error("{prefix} overlaps {theirs}, which is node {peer}'s since {since}")]
    OverlapsPeer { prefix: IpNet, theirs: IpNet, peer: String, since: Time },
    #[error("{address} is not among the Node's addresses ({addresses})")]
    NotOfNode { address: IpAddr, addresses: String },
    #[error("{address} is this node's")]
    OwnAddress { address: IpAddr },
    #[error("{address} is node {peer}'s since {since}")]
    AddressOfPeer { address: IpAddr, peer: String, since: Time },
    #[error("{address} is in the cluster's range {range}: a tunnel to it would run through itself")]
    InsideRange { address: IpAddr, range: IpNet },
    #[error("{address} is in {own}, which is this node's: packets to it would stay here")]
    InsideOwn { address: IpAddr, own: IpNet },
    #[error(
        "{address} is in {theirs}, which is node {peer}'s since {since}: packets to it would go there"
    )]
    InsidePeer { address: IpAddr, theirs: IpNet, peer: String, since: Time },
    #[error("{prefix} has {address} in it, which is node {peer}'s since {since}")]
    HasAddressOfPeer { prefix: IpNet, address: IpAddr, peer: String, since: Time },
    #[error("{address} is {what}, and no other node can reach it")]
    Unreachable { address: IpAddr, what: String },
    #[error("{mac} is not the hardware address of one link")]
    NotUnicast { mac: MacAddr },
    #[error("{mac} is this node's")]
    OwnMac { mac: MacAddr },
    #[error("{mac} is node {peer}'s since {since}")]
    MacOfPeer { mac: MacAddr, peer: String, since: Time },
    #[error("it is {vni}, and this node's is {own}")]
    OtherVni { vni: u32, own: u32 },
    #[error("it is {port}, and this node's is {own}")]
    OtherPort { port: u16, own: u16 },
    #[error("the entry before it has the name too")]
    NameTwice,
    #[error("it is not known here{}", nearest.as_ref().map_or(String::new(), |known| format!(": {known:?} may be meant")))]
    UnknownKey { nearest: Option<String> },
    #[error("nothing it offers is known here")]
    NothingOffered,
    #[error("flanneld's backend {backend:?} is not one of vxlan and host-gw")]
    OtherBackend { backend: String },
}

impl Cause {
    /// A text that is not what is wanted there.
    pub(crate) fn not_a(text: &str, wanted: &str) -> Self {
        Cause::NotA { text: format!("{:?}", cni::text::shortened(text)), wanted: wanted.to_owned() }
    }
}
