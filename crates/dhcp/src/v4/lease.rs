//! What a server granted.

use std::net::Ipv4Addr;
use std::time::Duration;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use crate::saved::{self, SavedLeaseError};
use crate::{MacAddr, Moment, Timestamp};

/// What a server granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The address, with the prefix length of the subnet mask (option 1).
    pub address: Ipv4Net,
    /// The server (option 54).
    pub server: Ipv4Addr,
    /// The hardware address from which its last message came: its own or a router's.
    pub server_mac: Option<MacAddr>,
    /// The first router (option 3).
    pub gateway: Option<Ipv4Addr>,
    /// Routes: only those of option 121 if it is present (RFC 3442), else those of option 33 and a
    /// default route through `gateway`.
    pub routes: Vec<Route>,
    /// Name servers (option 6).
    pub dns: Vec<Ipv4Addr>,
    /// The domain (option 15).
    pub domain: Option<String>,
    /// The search list (option 119).
    pub search: Vec<String>,
    /// The link's MTU (option 26).
    pub mtu: Option<u16>,
    /// The container's name (option 12).
    pub host_name: Option<String>,
    /// The subnet's broadcast address (option 28).
    pub broadcast: Option<Ipv4Addr>,
    /// When the REQUEST that the server granted was sent: all times count from then (RFC 2131
    /// §4.4.1).
    pub obtained: Moment,
    /// Its length; `None` for ever.
    pub lease_s: Option<u32>,
    /// T1: when to renew it.
    pub t1_s: u32,
    /// T2: when to ask any server.
    pub t2_s: u32,
    /// Every option of the reply as received, including those above.
    pub options: Vec<RawOption>,
}

impl Lease {
    /// The lease's end, on the clock since boot of the boot it was obtained in.
    pub fn expires_at(&self) -> Option<Timestamp> {
        let lasts = Duration::from_secs(u64::from(self.lease_s?));
        Some(self.obtained.at_ms + lasts)
    }

    /// Whether both would be configured alike: everything is equal except times and the server.
    pub fn configures_like(&self, other: &Lease) -> bool {
        self.address == other.address
            && self.gateway == other.gateway
            && self.routes == other.routes
            && self.dns == other.dns
            && self.domain == other.domain
            && self.search == other.search
            && self.mtu == other.mtu
            && self.host_name == other.host_name
            && self.broadcast == other.broadcast
    }

    /// The value of an option.
    pub fn option(&self, code: u8) -> Option<&[u8]> {
        RawOption::find(&self.options, code)
    }
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Where to.
    pub destination: Ipv4Net,
    /// The router; `None`: the destination is on the link.
    pub gateway: Option<Ipv4Addr>,
}

impl Route {
    /// The route's scope.
    pub fn scope(&self) -> Scope {
        if self.gateway.is_some() { Scope::Universe } else { Scope::Link }
    }
}

/// How far away a route's destination is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// RT_SCOPE_UNIVERSE: behind a router.
    Universe,
    /// RT_SCOPE_LINK: on the link itself (router 0.0.0.0, RFC 3442 "Local Subnet Routes").
    Link,
}

/// An option as it travels.
pub type RawOption = crate::RawOption<u8>;

/// A lease in the form kept on disk, with what is needed to renew or release it:
/// [`Start::Reboot`](super::Start) takes it, and [`release_message`](super::release_message).
///
/// It is written and read with serde, in a format that contains its version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Disk", try_from = "Disk")]
pub struct SavedLease {
    /// The interface's hardware address.
    pub mac: MacAddr,
    /// Option 61, as the server knows it.
    pub client_id: Option<Vec<u8>>,
    /// The lease.
    pub lease: Lease,
}

/// A file of version 1.
#[derive(Serialize, Deserialize)]
struct Disk {
    version: u32,
    mac: MacAddr,
    #[serde(with = "crate::hex::option")]
    client_id: Option<Vec<u8>>,
    lease: Lease,
}

impl From<SavedLease> for Disk {
    fn from(saved: SavedLease) -> Self {
        let SavedLease { mac, client_id, lease } = saved;
        Disk { version: saved::VERSION, mac, client_id, lease }
    }
}

impl TryFrom<Disk> for SavedLease {
    type Error = SavedLeaseError;

    fn try_from(disk: Disk) -> Result<Self, SavedLeaseError> {
        let Disk { version: found, mac, client_id, lease } = disk;
        saved::check_version(found)?;
        Ok(SavedLease { mac, client_id, lease })
    }
}
