//! What a server granted.

use std::net::Ipv6Addr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Duid;
use crate::saved::{self, SavedLeaseError};
use crate::{Moment, Timestamp};

/// What a server granted: the addresses of one identity association.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The addresses. DHCPv6 sends no prefix length: they are /128, and routers announce what is on
    /// the link.
    pub addresses: Vec<Address>,
    /// The server's DUID (option 2), as received.
    #[serde(with = "crate::hex")]
    pub server: Vec<u8>,
    /// Name servers (option 23).
    pub dns: Vec<Ipv6Addr>,
    /// The search list (option 24).
    pub search: Vec<String>,
    /// When the last message before the server's reply was sent: all times count from then.
    pub obtained: Moment,
    /// T1: when to renew; `None`: never.
    pub t1_s: Option<u32>,
    /// T2: when to ask any server; `None`: never.
    pub t2_s: Option<u32>,
    /// Every option of the reply as received, including those above.
    pub options: Vec<RawOption>,
}

/// An address and its lifetimes, which count from [`Lease::obtained`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The address.
    pub address: Ipv6Addr,
    /// How long new connections may use it; `None` for ever.
    pub preferred_s: Option<u32>,
    /// How long anything may use it; `None` for ever.
    pub valid_s: Option<u32>,
}

impl Lease {
    /// When the last address ends, on the clock since boot of the boot the lease was obtained in.
    pub fn expires_at(&self) -> Option<Timestamp> {
        let ends = self.addresses.iter().map(|address| address.valid_s);
        let last = ends.reduce(|a, b| Some(a?.max(b?)))??;
        Some(self.obtained.at_ms + Duration::from_secs(u64::from(last)))
    }

    /// Whether both would be configured alike: everything is equal except times and the server.
    pub fn configures_like(&self, other: &Lease) -> bool {
        let addresses = |lease: &Lease| -> Vec<Ipv6Addr> {
            lease.addresses.iter().map(|address| address.address).collect()
        };
        addresses(self) == addresses(other) && self.dns == other.dns && self.search == other.search
    }

    /// The value of an option.
    pub fn option(&self, code: u16) -> Option<&[u8]> {
        RawOption::find(&self.options, code)
    }
}

/// An option as it travels.
pub type RawOption = crate::RawOption<u16>;

/// A lease in the form kept on disk, with what is needed to renew or release it.
///
/// It is written and read with serde, in a format that contains its version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Disk", try_from = "Disk")]
pub struct SavedLease {
    /// The client's identifier.
    pub duid: Duid,
    /// The identity association.
    pub iaid: u32,
    /// The lease.
    pub lease: Lease,
}

/// A file of version 1.
#[derive(Serialize, Deserialize)]
struct Disk {
    version: u32,
    duid: Duid,
    iaid: u32,
    lease: Lease,
}

impl From<SavedLease> for Disk {
    fn from(saved: SavedLease) -> Self {
        let SavedLease { duid, iaid, lease } = saved;
        Disk { version: saved::VERSION, duid, iaid, lease }
    }
}

impl TryFrom<Disk> for SavedLease {
    type Error = SavedLeaseError;

    fn try_from(disk: Disk) -> Result<Self, SavedLeaseError> {
        let Disk { version: found, duid, iaid, lease } = disk;
        saved::check_version(found)?;
        Ok(SavedLease { duid, iaid, lease })
    }
}
