//! Packet filters: the expressions of nftables' rules as the kernel keeps them, so that what they do
//! to a packet can be computed, and tables of the older iptables as text.

use serde::{Deserialize, Serialize};

/// All packet filters of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ruleset {
    /// Tables of nftables.
    pub tables: Vec<Table>,
    /// What was left out because there was too much of it, one line each.
    pub left_out: Vec<String>,
    /// Tables of the older iptables (not those of its nf_tables back end).
    pub legacy: Vec<LegacyTable>,
}

impl Ruleset {
    /// Says whether a rule lets packets wait for a program.
    #[must_use]
    pub fn has_queues(&self) -> bool {
        let rules =
            self.tables.iter().flat_map(|table| &table.chains).flat_map(|chain| &chain.rules);
        let is_queue = |step: &Step| matches!(step, Step::Queue { .. });
        let mut legacy = self.legacy.iter().flat_map(|table| &table.rules);
        rules.flat_map(|rule| &rule.steps).any(is_queue)
            || legacy.any(|rule| rule.contains("QUEUE"))
    }
}

/// A family of nftables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// Both.
    Inet,
    /// ARP.
    Arp,
    /// Frames of bridges.
    Bridge,
    /// Frames of a link.
    Netdev,
}

impl Family {
    /// Returns nft's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Family::Ip => "ip",
            Family::Ip6 => "ip6",
            Family::Inet => "inet",
            Family::Arp => "arp",
            Family::Bridge => "bridge",
            Family::Netdev => "netdev",
        }
    }
}

/// A table of nftables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Table {
    /// Its family.
    pub family: Family,
    /// Its name.
    pub name: String,
    /// A table that sees no packets (NFT_TABLE_F_DORMANT).
    #[serde(default)]
    pub dormant: bool,
    /// Its chains.
    pub chains: Vec<Chain>,
    /// Its sets and maps that rules look up.
    #[serde(default)]
    pub sets: Vec<Set>,
}

/// A chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Chain {
    /// Its name.
    pub name: String,
    /// Where it is hooked, if it is a base chain.
    pub base: Option<Base>,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
}

/// Where a base chain is hooked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Base {
    /// The hook.
    pub hook: Hook,
    /// Lower is earlier.
    pub priority: i32,
    /// Its type: `filter`, `nat` or `route`.
    pub kind: String,
    /// Whether packets that no rule judges are dropped.
    pub drops: bool,
    /// The link of a chain of family netdev.
    #[serde(default)]
    pub device: Option<String>,
}

/// A hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hook {
    /// Before the routing decision.
    Prerouting,
    /// To a program of this namespace.
    Input,
    /// To another host.
    Forward,
    /// From a program of this namespace.
    Output,
    /// After the routing decision.
    Postrouting,
    /// As a link receives a frame.
    Ingress,
    /// As a link sends a frame.
    Egress,
}

impl Hook {
    /// Returns nft's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Hook::Prerouting => "prerouting",
            Hook::Input => "input",
            Hook::Forward => "forward",
            Hook::Output => "output",
            Hook::Postrouting => "postrouting",
            Hook::Ingress => "ingress",
            Hook::Egress => "egress",
        }
    }
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    /// The kernel's number for it.
    pub handle: u64,
    /// Its comment.
    #[serde(default)]
    pub comment: Option<String>,
    /// Its expressions, in order.
    pub steps: Vec<Step>,
}

/// An expression of a rule. A register holds bytes in the packet's order; registers are numbered in
/// units of four bytes (NFT_REG32_00 is 0).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Step {
    /// Loads a property of the packet.
    Meta {
        /// Which.
        key: Meta,
        /// Where to.
        to: u32,
    },
    /// Loads bytes of the packet.
    Payload {
        /// The header from which the offset counts.
        base: Header,
        /// The offset, in bytes.
        offset: u32,
        /// How many bytes.
        len: u32,
        /// Where to.
        to: u32,
    },
    /// Ends the rule unless the comparison holds.
    Compare {
        /// How.
        op: Comparison,
        /// What.
        from: u32,
        /// With what.
        with: Vec<u8>,
    },
    /// Ends the rule unless the value is in a range, or outside.
    Range {
        /// Outside.
        invert: bool,
        /// What.
        from: u32,
        /// The first value.
        first: Vec<u8>,
        /// The last value.
        last: Vec<u8>,
    },
    /// `to = (from & mask) ^ xor`.
    Bitwise {
        /// From where.
        from: u32,
        /// Where to.
        to: u32,
        /// The mask.
        mask: Vec<u8>,
        /// What is flipped.
        xor: Vec<u8>,
    },
    /// Ends the rule unless the value is in a set, or unless it is not.
    Lookup {
        /// The set or map.
        set: String,
        /// The value.
        from: u32,
        /// The rule goes on if the value is not in the set.
        invert: bool,
        /// The register that gets what the map has for it; a verdict map judges at once.
        to: Option<MapTo>,
    },
    /// Loads a property of the connection.
    Connection {
        /// Which.
        key: Connection,
        /// Where to.
        to: u32,
    },
    /// Loads the type of an address for this host (RTN_*), or another result of its routes.
    Fib {
        /// The source's, instead of the destination's.
        source: bool,
        /// The result is the type of the address; otherwise a link.
        kind: bool,
        /// Where to.
        to: u32,
    },
    /// Puts bytes into a register.
    Immediate {
        /// Where to.
        to: u32,
        /// What.
        data: Vec<u8>,
    },
    /// Judges.
    Verdict(Verdict),
    /// Refuses.
    Reject {
        /// The answer, in nft's words: `icmpx admin-prohibited`, `tcp reset`.
        with: String,
    },
    /// Translates the destination, and judges.
    DestinationNat {
        /// The register with the address.
        address: Option<u32>,
        /// The register with the port.
        port: Option<u32>,
    },
    /// Translates the destination to this host, and judges.
    Redirect {
        /// The register with the port.
        port: Option<u32>,
    },
    /// Translates the source, and judges.
    SourceNat,
    /// Translates the source to one address, and judges.
    SourceNatTo {
        /// The register with the address.
        address: u32,
    },
    /// Marks the packet, and goes on.
    Mark {
        /// The register with the mark.
        from: u32,
    },
    /// Counts packets and bytes.
    Counter {
        /// How many packets.
        packets: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// Writes bytes of the packet, and goes on.
    Write {
        /// The header from which the offset counts.
        base: Header,
        /// The offset, in bytes.
        offset: u32,
        /// How many bytes.
        len: u32,
        /// From where.
        from: u32,
    },
    /// Lets the packet wait for a program, which judges.
    Queue {
        /// The first of the queues of which one gets it.
        first: u16,
        /// The last one.
        last: u16,
        /// If no program reads the queue, the packet passes the base chain; without this it is
        /// dropped.
        bypass: bool,
    },
    /// Goes on for as many packets as are allowed, or for the others.
    Limit {
        /// For the others.
        over: bool,
        /// What is limited, in nft's words: `ct count over 5`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        says: Option<String>,
    },
    /// Changes or notes something, and goes on: a mark, a log.
    Effect {
        /// Its name.
        name: String,
    },
    /// Changes a register, or ends the rule, in a way that is not known here.
    Unknown {
        /// Its name.
        name: String,
    },
}

/// Where the value of a map goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MapTo {
    /// It is the verdict.
    Verdict,
    /// Into a register.
    Register(u32),
}

/// A property of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Meta {
    /// The name of the link by which it came in, padded to 16 bytes.
    IifName,
    /// The name of the link by which it leaves.
    OifName,
    /// The index of the link by which it came in, in the host's byte order.
    Iif,
    /// The index of the link by which it leaves.
    Oif,
    /// The transport protocol.
    L4Proto,
    /// The family (NFPROTO_*).
    NfProto,
    /// The EtherType, in the network's byte order.
    Protocol,
    /// The mark, in the host's byte order.
    Mark,
    /// Anything else, by its number (NFT_META_*).
    Other(u32),
}

/// A header of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Header {
    /// Ethernet's.
    Link,
    /// IP's.
    Network,
    /// That of TCP or UDP.
    Transport,
}

/// How values are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Comparison {
    /// Equal.
    Equal,
    /// Not equal.
    NotEqual,
    /// Less.
    Less,
    /// Less or equal.
    LessOrEqual,
    /// Greater.
    Greater,
    /// Greater or equal.
    GreaterOrEqual,
}

/// A property of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Connection {
    /// Its state, as bits (NF_CT_STATE_BIT) in the host's byte order.
    State,
    /// Its status, as bits (IPS_*).
    Status,
    /// Its mark.
    Mark,
    /// Anything else, by its number (NFT_CT_*).
    Other(u32),
}

/// What a rule, or an element of a verdict map, says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// The packet passes this base chain.
    Accept,
    /// It is dropped.
    Drop,
    /// The next rule is asked.
    Continue,
    /// The calling chain goes on.
    Return,
    /// Another chain is asked, and this one goes on after it.
    Jump(String),
    /// Another chain is asked in place of this one.
    Goto(String),
    /// A program judges, but it is not known by which queue it gets the packet.
    Queue,
}

/// A set or map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Set {
    /// Its name.
    pub name: String,
    /// Its elements, as far as they were read.
    pub elements: Vec<Element>,
    /// Not all of its elements were read: a value that is not found may be in it.
    #[serde(default)]
    pub truncated: bool,
}

/// An element: one value, or a range of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Element {
    /// The value, or the first of the range.
    pub first: Vec<u8>,
    /// The last value of the range; of concatenated values each part is a range of its own.
    #[serde(default)]
    pub last: Option<Vec<u8>>,
    /// How long each part of a concatenated value is, in bytes; empty for one part.
    #[serde(default)]
    pub parts: Vec<u32>,
    /// What a map has for it.
    #[serde(default)]
    pub data: Option<Vec<u8>>,
    /// What a verdict map says.
    #[serde(default)]
    pub verdict: Option<Verdict>,
}

/// A table of the older iptables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LegacyTable {
    /// Whether it is of IPv4.
    pub ipv4: bool,
    /// Its name, such as `filter`.
    pub name: String,
    /// The policies of its chains that are built in.
    pub policies: Vec<(String, String)>,
    /// Its other chains; one may have no rules.
    #[serde(default)]
    pub chains: Vec<String>,
    /// Its rules, as `iptables-save` writes them: `-A FORWARD -j DROP`.
    pub rules: Vec<String>,
}
