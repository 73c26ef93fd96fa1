//! Names of tables, chains and verdicts.

use std::fmt;

/// The packets a table sees (NFPROTO_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4 and IPv6.
    Inet,
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// ARP.
    Arp,
    /// Frames of bridges.
    Bridge,
    /// Packets of one link, before all others.
    Netdev,
}

impl Family {
    /// All families.
    pub const ALL: [Self; 6] =
        [Self::Inet, Self::Ip, Self::Ip6, Self::Arp, Self::Bridge, Self::Netdev];

    /// `linux include/uapi/linux/netfilter.h` NFPROTO_*.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Inet => 1,
            Self::Ip => 2,
            Self::Arp => 3,
            Self::Netdev => 5,
            Self::Bridge => 7,
            Self::Ip6 => 10,
        }
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.number() == number)
    }

    /// The name nft gives it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Inet => "inet",
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
            Self::Arp => "arp",
            Self::Bridge => "bridge",
            Self::Netdev => "netdev",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A table, by family and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableRef {
    /// Its family.
    pub family: Family,
    /// Its name.
    pub name: String,
}

impl TableRef {
    /// Names a table.
    #[must_use]
    pub fn new(family: Family, name: impl Into<String>) -> Self {
        Self { family, name: name.into() }
    }
}

impl fmt::Display for TableRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family, self.name)
    }
}

/// A netfilter hook with its priority and policy, for a base chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    /// The point in a packet's path.
    pub point: HookPoint,
    /// The order among the chains of one hook: lower first.
    pub priority: i32,
    /// Its type: what its rules may do.
    pub kind: ChainType,
    /// What happens to packets that reach its end; `None`: accept.
    pub policy: Option<Policy>,
}

impl Hook {
    /// A NAT chain where destinations are translated (priority `dstnat`, -100).
    #[must_use]
    pub fn prerouting_dstnat() -> Self {
        Self::nat(HookPoint::Prerouting, -100)
    }

    /// A NAT chain where destinations of the host's own packets are translated (priority -100).
    #[must_use]
    pub fn output_dstnat() -> Self {
        Self::nat(HookPoint::Output, -100)
    }

    /// A NAT chain where sources are translated (priority `srcnat`, 100).
    #[must_use]
    pub fn postrouting_srcnat() -> Self {
        Self::nat(HookPoint::Postrouting, 100)
    }

    /// A NAT chain with policy accept.
    #[must_use]
    pub fn nat(point: HookPoint, priority: i32) -> Self {
        Self { point, priority, kind: ChainType::Nat, policy: Some(Policy::Accept) }
    }

    /// A filter chain with policy accept.
    #[must_use]
    pub fn filter(point: HookPoint, priority: i32) -> Self {
        Self { point, priority, kind: ChainType::Filter, policy: Some(Policy::Accept) }
    }
}

/// A point in a packet's path (NF_INET_*, NF_BR_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HookPoint {
    /// Received packets, not yet routed.
    Prerouting,
    /// Packets to this host.
    Input,
    /// Packets to other hosts.
    Forward,
    /// Packets from this host.
    Output,
    /// Packets about to leave.
    Postrouting,
    /// Before all others, per link (families inet and netdev).
    Ingress,
    /// After all others, per link (family netdev, kernel 5.16).
    Egress,
}

impl HookPoint {
    /// `linux include/uapi/linux/netfilter.h` NF_INET_*, NF_NETDEV_*.
    pub(crate) fn number(self, family: Family) -> u32 {
        match self {
            Self::Prerouting => 0,
            Self::Input => 1,
            Self::Forward => 2,
            Self::Output => 3,
            Self::Postrouting => 4,
            Self::Ingress if family == Family::Netdev => 0,
            Self::Ingress => 5,
            // NF_NETDEV_EGRESS; other families have no such hook.
            Self::Egress if family == Family::Netdev => 1,
            Self::Egress => u32::MAX,
        }
    }

    pub(crate) fn from_number(number: u32, family: Family) -> Option<Self> {
        let all = match family {
            Family::Netdev => &[Self::Ingress, Self::Egress][..],
            // NF_ARP_IN and NF_ARP_OUT have numbers of their own.
            Family::Arp if number == 0 => return Some(Self::Input),
            Family::Arp if number == 1 => return Some(Self::Output),
            _ => &[
                Self::Prerouting,
                Self::Input,
                Self::Forward,
                Self::Output,
                Self::Postrouting,
                Self::Ingress,
            ],
        };
        all.iter().copied().find(|point| point.number(family) == number)
    }

    /// The name nft gives it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Prerouting => "prerouting",
            Self::Input => "input",
            Self::Forward => "forward",
            Self::Output => "output",
            Self::Postrouting => "postrouting",
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}

/// What the rules of a base chain may do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChainType {
    /// Accept and drop packets.
    Filter,
    /// Translate addresses; sees only the first packet of a flow.
    Nat,
    /// Mark packets, which then are routed again.
    Route,
    /// A name unknown to this code.
    Other(String),
}

impl ChainType {
    /// The name nft gives it.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
            Self::Route => "route",
            Self::Other(name) => name,
        }
    }

    pub(crate) fn from_name(name: String) -> Self {
        match name.as_str() {
            "filter" => Self::Filter,
            "nat" => Self::Nat,
            "route" => Self::Route,
            _ => Self::Other(name),
        }
    }
}

/// What happens to packets that reach the end of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// They go on to the next chain.
    Accept,
    /// They are dropped.
    Drop,
}

/// What a rule or an element of a verdict map decides.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The packet leaves this base chain and goes on to the next.
    Accept,
    /// The packet is gone.
    Drop,
    /// The next rule.
    Continue,
    /// Goes back to the rule after the jump.
    Return,
    /// Jumps to another chain, and back at its end.
    Jump(String),
    /// Goes to another chain, without coming back here.
    Goto(String),
    /// A number unknown to this code, such as a queue's.
    Other(i32),
}

impl Verdict {
    /// `linux include/uapi/linux/netfilter/nf_tables.h` NFT_*, `netfilter.h` NF_*.
    pub(crate) fn code(&self) -> i32 {
        match self {
            Self::Drop => 0,
            Self::Accept => 1,
            Self::Continue => -1,
            Self::Jump(_) => -3,
            Self::Goto(_) => -4,
            Self::Return => -5,
            Self::Other(code) => *code,
        }
    }

    pub(crate) fn from_code(code: i32, chain: Option<String>) -> Self {
        match (code, chain) {
            (0, _) => Self::Drop,
            (1, _) => Self::Accept,
            (-1, _) => Self::Continue,
            (-3, Some(chain)) => Self::Jump(chain),
            (-4, Some(chain)) => Self::Goto(chain),
            (-5, _) => Self::Return,
            (code, _) => Self::Other(code),
        }
    }

    /// The chain it leads to.
    #[must_use]
    pub fn chain(&self) -> Option<&str> {
        match self {
            Self::Jump(chain) | Self::Goto(chain) => Some(chain),
            _ => None,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accept => f.write_str("accept"),
            Self::Drop => f.write_str("drop"),
            Self::Continue => f.write_str("continue"),
            Self::Return => f.write_str("return"),
            Self::Jump(chain) => write!(f, "jump {chain}"),
            Self::Goto(chain) => write!(f, "goto {chain}"),
            Self::Other(code) => write!(f, "verdict {code}"),
        }
    }
}
