//! Network policy in the kernel: the table `inet netwright-policy`.
//!
//! A [`policy::Program`] says what it contains; this module decides nothing about which pods may
//! talk to each other. It adds the parts that are the same for each program:
//!
//! | part | purpose |
//! |---|---|
//! | chain `egress`, hook forward, priority 5 | replies pass; a pod's packets go where `out4`, `out6` lead their source |
//! | chain `ingress`, hook forward, priority 6 | replies pass; packets go where `in4`, `in6` lead their destination |
//! | chains `egress-services`, `ingress-services`, hook output | the same for what IPVS sends on ([`ipvs`]); only where it has services |
//! | chain `own-node`, hook input, priority 101 | replies pass; what pods send to the node itself goes to chains of the program; only if the program has it |
//! | maps `net-in4`, `net-in6`, `net-out4`, `net-out6` | the same for addresses of further networks, at one interface each; asked first |
//! | chain `open` | lets everything pass; addresses of further networks that no policy selects lead to it |
//! | sets `has-in4`, `has-in6`, `has-out4`, `has-out6`, and `has-net-…` | the keys of these maps that policies select: not every kernel can look up only the key of a map |
//! | chains `revived`, `cut` | a connection that was cut does not start again |
//! | chains `deny-in`, `deny-out` | logs, counts, and drops |
//!
//! An accept of `egress` does not end `ingress`. An address that is in no map is not judged. What
//! the node itself sends and receives is not forwarded, and meets none of these chains but
//! `own-node`; the chains at the hook output let it through.
//!
//! Packets of macvlan, SR-IOV and the like do not pass the node. A table of the same name in the
//! container's own namespace judges them ([`PodsTable::open_inside`]): the hooks are output, input
//! and forward, and maps `at-in` and `at-out` lead the container's interface to the chain of its
//! pod. Everything else is the same. Where a container has no such network there is no such table.
//!
//! Denied packets are logged to a group of nflog ([`kernel::nflog`]) with the prefix of
//! [`log_prefix`], up to the rate of [`Logging`]. All of them are counted ([`PodsTable::dropped`]).
//! If the kernel cannot log, the rules that log are left out ([`NO_LOG`]). A denied TCP packet in
//! the middle of a connection is answered with a reset, so that a connection that was cut ends at
//! once at both ends.
//!
//! ```no_run
//! use netwright_firewall as firewall;
//! use firewall::pods::{Logging, PodsTable};
//! # let (mut compiler, change): (policy::Compiler, policy::Change) = todo!();
//!
//! let mut table = PodsTable::open(Logging::default())?;
//! // At the start, and whenever another program may have changed it: differences are repaired.
//! let found = table.bring(compiler.program())?;
//! # let _ = found;
//! // And then each change is as many elements as sets that an address enters or leaves.
//! let steps = compiler.apply(change);
//! if table.apply(&steps).is_err() {
//!     table.bring(compiler.program())?;
//! }
//! # Ok::<(), firewall::FirewallError>(())
//! ```
//!
//! # What a change leads to is made before it
//!
//! A transaction of nftables is not atomic for a packet: the kernel reads the generation of the
//! rules once for each packet, but that of elements at each look-up. A packet that is in the rules
//! during a commit goes on with the old rules and finds new elements, which may lead it to a new
//! chain that has no rule for it yet. So if a change needs chains or sets that are not there, a
//! first transaction makes them, and a second makes the change; if the kernel refuses the second,
//! the first is undone. A change of elements alone stays one transaction. (`PodsTable::put`
//! writes the whole table and lets such a packet pass; on a running node the service calls
//! `PodsTable::bring`.) Under a flood of packets, with one transaction 26 of 20,000 changes let a
//! forbidden packet through; with two, none did.
//!
//! # Two hooks
//!
//! Packets of known connections pass two base chains, so a node forwards 95.5 % of the small
//! packets that it would forward without the table. One chain for both directions would need an
//! accept of egress to be a `goto` into ingress. Then the kernel walks the product of both at each
//! change (`nft_chain_validate`): six million rules in place of five thousand on a node with 110
//! pods of five policies. A mark would be one that other programs use. A flow table would bypass
//! the hooks of all other programs.

mod closed;
mod encode;
mod held;
pub mod ipvs;
mod layout;
mod repair;
mod state;
mod table;

use kernel::nft::Batch;
use policy::{Direction, Step};

use crate::error::FirewallError;

pub use self::closed::{
    addresses, close, close_alone, close_interface, close_links, complete, forget,
    forget_interface, forget_links, interface_verdicts, interfaces, is_complete, link_verdicts,
    links, verdicts, wake,
};
pub use self::held::{Loss, TableContent};
pub use self::table::PodsTable;
pub use crate::difference::Difference;
pub use policy::program::Link;

/// The name of the table; its family is `inet`.
pub const TABLE: &str = "netwright-policy";

/// How packets that are denied are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logging {
    /// The group of nflog.
    pub group: u16,
    /// How many packets a second for each direction; 0 is all of them.
    pub rate: u32,
}

impl Logging {
    /// The usual group: no other program is known to use it.
    pub const GROUP: u16 = 0x4e57;
    /// The usual rate.
    pub const RATE: u32 = 100;
}

impl Default for Logging {
    fn default() -> Self {
        Logging { group: Self::GROUP, rate: Self::RATE }
    }
}

/// The warning about a kernel that cannot log.
pub const NO_LOG: &str = "this kernel cannot log packets to a group (CONFIG_NETFILTER_NETLINK_LOG, \
    CONFIG_NFT_LOG): what policies drop is counted, and cannot be listed";

/// Says whether the kernel can log to a group ([`NO_LOG`]). The table is made without logging if it
/// cannot.
///
/// **Privileges**: `CAP_NET_ADMIN` in the caller's network namespace.
///
/// # Errors
/// [`FirewallError::Open`] when the kernel does not say it.
pub fn can_log() -> Result<bool, FirewallError> {
    kernel::nflog::is_there().map_err(|error| FirewallError::Open(Box::new(error)))
}

/// Returns the prefix with which denied packets are logged.
#[must_use]
pub fn log_prefix(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "nwt-in ",
        Direction::Egress => "nwt-out ",
    }
}

/// How many packets were dropped since the table was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DroppedPackets {
    /// Into pods.
    pub incoming: u64,
    /// Out of pods.
    pub outgoing: u64,
    /// Packets of connections that had been cut, in either direction: they were reset. The other
    /// two counts do not include them.
    pub revived: u64,
}

/// Returns the transactions of steps ([`PodsTable::apply`]), for callers that count what they cost.
/// Each may be empty.
#[must_use]
pub fn transactions(steps: &[Step]) -> [Batch; 2] {
    encode::steps(steps)
}
