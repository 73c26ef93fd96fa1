//! A client's configuration.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::RawOption;
use crate::MacAddr;

/// The options requested by default: name servers, search list (RFC 3646), and how long servers
/// want clients to wait (RFC 8415 §18.2, SOL_MAX_RT).
pub const DEFAULT_REQUEST: &[u16] = &[23, 24, 82];

/// A DHCP unique identifier (RFC 8415 §11): it permanently identifies a client to every server.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Duid(#[serde(with = "crate::hex")] Vec<u8>);

impl Duid {
    /// A DUID-UUID (type 4, RFC 6355) derived from the key, for instance `<container
    /// ID>/<network>/<interface>`. The UUID is of version 8, made from SHA-256.
    pub fn from_key(key: &str) -> Self {
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&Sha256::digest(key.as_bytes())[..16]);
        // RFC 9562 §5.8: version 8, variant 10.
        uuid[6] = uuid[6] & 0x0f | 0x80;
        uuid[8] = uuid[8] & 0x3f | 0x80;
        Duid([&[0, 4], &uuid[..]].concat())
    }

    /// A DUID-LL (type 3, RFC 8415 §11.4) of an Ethernet address.
    pub fn from_mac(mac: MacAddr) -> Self {
        Duid([&[0, 3, 0, 1], &mac.0[..]].concat())
    }

    /// The octets sent in option 1.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Duid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::hex::encode(&self.0))
    }
}

/// Derives an identity association's number (RFC 8415 §12) from the key.
pub fn key_iaid(key: &str) -> u32 {
    let digest = Sha256::digest(key.as_bytes());
    u32::from_be_bytes([digest[16], digest[17], digest[18], digest[19]])
}

/// A client's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The client's identifier (option 1).
    pub duid: Duid,
    /// The number of the one identity association it requests (option 3).
    pub iaid: u32,
    /// Option 6: the requested options.
    pub request: Vec<u16>,
    /// Further options for SOLICIT, REQUEST, RENEW, REBIND and CONFIRM.
    pub send: Vec<RawOption>,
    /// Accepts the addresses of the first reply if a server offers that (option 14), saving two
    /// messages.
    pub rapid_commit: bool,
    /// Accepts the first offer, instead of waiting a second for a preferred server (RFC 8415
    /// §18.2.1).
    pub first_offer: bool,
    /// When to stop.
    pub timing: Timing,
    /// The current boot; see [`Moment::age`](crate::Moment::age).
    pub boot_id: Option<String>,
}

impl Config {
    /// The defaults: [`DEFAULT_REQUEST`], rapid commit, the first offer, the RFC's timing.
    pub fn new(duid: Duid, iaid: u32) -> Self {
        Config {
            duid,
            iaid,
            request: DEFAULT_REQUEST.to_vec(),
            send: Vec::new(),
            rapid_commit: true,
            first_offer: true,
            timing: Timing::default(),
            boot_id: None,
        }
    }
}

/// The configurable times. The rest are RFC 8415 §7.6's constants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timing {
    /// SOL_MAX_DELAY: the longest wait before the first SOLICIT. The RFC's second spreads out hosts
    /// that start together; containers wait for it.
    pub first_delay: Duration,
    /// How long [`Start::Fresh`](super::Start) tries before [`Action::Failed`](super::Action).
    /// `None`: for ever. A client that once had a lease never stops trying.
    pub acquire: Option<Duration>,
    /// The wait after a DECLINE has been answered before the next SOLICIT.
    pub after_decline: Duration,
}

impl Default for Timing {
    /// The RFC's delay; for ever; ten seconds as in DHCPv4.
    fn default() -> Self {
        Timing {
            first_delay: Duration::from_secs(1),
            acquire: None,
            after_decline: Duration::from_secs(10),
        }
    }
}
