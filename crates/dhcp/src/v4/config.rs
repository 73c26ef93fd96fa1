//! A client's configuration.

use std::time::Duration;

use super::RawOption;
use crate::MacAddr;

/// The parameters requested by default, in order of preference.
///
/// Classless routes come before routers, as RFC 3442 ("DHCP Client Behavior") requires.
pub const DEFAULT_REQUEST: &[u8] = &[1, 121, 33, 3, 6, 15, 119, 26, 12, 28, 42];

/// The longest client identifier made from a key, not counting its type octet. The reference has
/// the same limit.
const MAX_KEY: usize = 254;

/// Option 61 as the reference DHCP daemon derives it from an attachment: a zero (RFC 2132 §9.14:
/// not a hardware address) and the first 254 octets of `<container ID>/<network>/<interface>`.
pub fn key_client_id(key: &str) -> Vec<u8> {
    let key = key.as_bytes();
    let mut id = vec![0];
    id.extend_from_slice(&key[..key.len().min(MAX_KEY)]);
    id
}

/// A client's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The interface's hardware address (`chaddr`).
    pub mac: MacAddr,
    /// Option 61, including its type octet. Without one the server identifies the client by the
    /// hardware address.
    pub client_id: Option<Vec<u8>>,
    /// Option 55: the requested parameters, by code and in order of preference. If empty, the
    /// option is not sent.
    pub request: Vec<u8>,
    /// Further options for every DISCOVER and REQUEST. They override those the client sends by
    /// itself, except those that the protocol consists of (50, 52, 53, 54). An option 61 here is
    /// the client identifier, also in DECLINE and RELEASE. A whole message must fit the link's MTU.
    pub send: Vec<RawOption>,
    /// Asks servers to broadcast their replies (RFC 2131 §4.1). Needed only where unicast to an
    /// address that is not configured yet does not arrive.
    pub broadcast: bool,
    /// Option 57: the longest accepted message, as an IP packet: the link's MTU. At least 576.
    pub max_message_size: u16,
    /// When to resend, and when to stop.
    pub timing: Timing,
    /// How an address is checked before use; `None` uses it unchecked.
    pub probe: Option<ProbeTiming>,
    /// What to do when another host claims the address.
    pub defence: Defence,
    /// The current boot (`/proc/sys/kernel/random/boot_id`), so that a saved lease of this boot is
    /// aged by the clock since boot. See [`Moment::age`](crate::Moment::age).
    pub boot_id: Option<String>,
}

impl Config {
    /// The defaults for an interface: no client identifier, [`DEFAULT_REQUEST`], the RFC's timing,
    /// a quick probe.
    pub fn new(mac: MacAddr) -> Self {
        Config {
            mac,
            client_id: None,
            request: DEFAULT_REQUEST.to_vec(),
            send: Vec::new(),
            broadcast: false,
            max_message_size: 1500,
            timing: Timing::default(),
            probe: Some(ProbeTiming::quick()),
            defence: Defence::GiveUp,
            boot_id: None,
        }
    }
}

/// When messages are sent again (RFC 2131 §4.1, §4.4.5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timing {
    /// The wait after the first message; each further wait is twice as long.
    pub initial: Duration,
    /// The longest wait.
    pub longest: Duration,
    /// Each wait is randomly longer or shorter by up to this.
    pub jitter: Duration,
    /// How many REQUESTs to send for one offer, or for a saved lease, before the client gives it
    /// up.
    pub request_tries: u32,
    /// How long [`Start::Fresh`](super::Start) tries before [`Action::Failed`](super::Action).
    /// `None`: for ever. A client that once had a lease never stops trying.
    pub acquire: Option<Duration>,
    /// The shortest wait between renewals.
    pub renew_shortest: Duration,
    /// The wait after a DECLINE (RFC 2131 §3.1, 5: at least ten seconds).
    pub after_decline: Duration,
}

impl Default for Timing {
    /// RFC 2131: 4, 8, 16, 32, 64 seconds, each ± 1; for ever.
    fn default() -> Self {
        Timing {
            initial: Duration::from_secs(4),
            longest: Duration::from_secs(64),
            jitter: Duration::from_secs(1),
            request_tries: 4,
            acquire: None,
            renew_shortest: Duration::from_secs(60),
            after_decline: Duration::from_secs(10),
        }
    }
}

impl Timing {
    /// Maps the reference daemon's flags: `-timeout` is the first wait (its default of ten seconds
    /// is longer than the RFC's four, which stay the upper bound), `-resendmax` the longest,
    /// `-resendtimeout` the end.
    pub fn from_flags(timeout: Duration, resend_max: Duration, resend_timeout: Duration) -> Self {
        let default = Timing::default();
        let shortest = Duration::from_millis(100);
        let longest = resend_max.max(shortest);
        let initial = timeout.clamp(shortest, default.initial).min(longest);
        Timing {
            initial,
            longest,
            jitter: default.jitter.min(initial / 2),
            acquire: Some(resend_timeout),
            ..default
        }
    }
}

/// How an address is checked with ARP before it is used (RFC 5227 §1.1, §2.1.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeTiming {
    /// PROBE_WAIT: the longest wait before the first probe.
    pub wait: Duration,
    /// PROBE_NUM: how many probes.
    pub probes: u32,
    /// PROBE_MIN: the shortest wait between probes.
    pub shortest: Duration,
    /// PROBE_MAX: the longest wait between probes.
    pub longest: Duration,
    /// ANNOUNCE_WAIT: the wait after the last probe.
    pub announce_wait: Duration,
    /// ANNOUNCE_NUM: how many announcements to send once the address is in use.
    pub announcements: u32,
    /// ANNOUNCE_INTERVAL: the wait between announcements.
    pub announce_interval: Duration,
}

impl ProbeTiming {
    /// The RFC's own times: four to seven seconds until the address is in use.
    pub fn rfc5227() -> Self {
        ProbeTiming {
            wait: Duration::from_secs(1),
            probes: 3,
            shortest: Duration::from_secs(1),
            longest: Duration::from_secs(2),
            announce_wait: Duration::from_secs(2),
            announcements: 2,
            announce_interval: Duration::from_secs(2),
        }
    }

    /// A third of a second: hosts on a wire or a bridge answer within milliseconds, and a container
    /// waits.
    pub fn quick() -> Self {
        ProbeTiming {
            wait: Duration::ZERO,
            probes: 3,
            shortest: Duration::from_millis(80),
            longest: Duration::from_millis(120),
            announce_wait: Duration::from_millis(120),
            announcements: 2,
            announce_interval: Duration::from_secs(2),
        }
    }
}

/// What to do when another host claims an address in use (RFC 5227 §2.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defence {
    /// (b): announce it once; at the second conflict within ten seconds decline it and start again.
    GiveUp,
    /// (c): announce it, at most once in ten seconds, and never give it up.
    Forever,
}
