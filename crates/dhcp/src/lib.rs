//! DHCP clients as state machines: no sockets, no clock, no files. Time and packets are passed in,
//! actions are returned.
//!
//! - [`v4`] is the client of RFC 2131 with all its states, including the conflict detection of RFC
//!   5227.
//! - [`v6`] is the stateful client of RFC 8415 for addresses.
//! - [`frame`] is what a DHCPv4 client sends and receives while it has no address: UDP and ARP in
//!   Ethernet frames.
//!
//! The daemon owns sockets, timers and disks and decides nothing about the protocol; this crate
//! knows nothing of containers. So a test can try every schedule of loss, delay, restart and expiry
//! in no time.
//!
//! # Driving a client
//!
//! A client has four calls and two queries, the same for [`v4::Client`] and [`v6::Client`]:
//!
//! | | |
//! |---|---|
//! | `new(config, start, now, seed)` | starts, with nothing or with a saved lease |
//! | `on_packet(now, payload, …)` | a packet arrived |
//! | `on_timer(now)` | time has passed |
//! | `on_arp`, `on_conflict`, `on_carrier`, `renew`, `release`, `stop` | something else happened |
//! | `next_deadline()` | when to call `on_timer`, if nothing happens before |
//! | `poll_action()` | what to do now; call it after each call above, until it returns nothing |
//!
//! ```
//! use netwright_dhcp::v4::{Action, Client, Config, Start};
//! use netwright_dhcp::{Now, Timestamp, UnixTime};
//!
//! let clock = |ms| Now { at: Timestamp::from_millis(ms), wall: UnixTime::from_millis(1_700_000_000_000 + ms) };
//! let mut client = Client::new(Config::new("02:00:00:00:00:01".parse()?), Start::Fresh, clock(0), 42);
//!
//! // DISCOVER is to be sent, and again in about four seconds.
//! let Some(Action::Send(discover)) = client.poll_action() else { panic!("nothing to do") };
//! assert!(discover.to.is_broadcast());
//! let deadline = client.next_deadline().expect("a client without lease waits for one");
//! assert!((3000..=5000).contains(&deadline.as_millis()));
//!
//! client.on_timer(clock(deadline.as_millis()));
//! assert!(matches!(client.poll_action(), Some(Action::Send(_))));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Time
//!
//! Every call takes [`Now`], two clocks read together, because neither is enough alone. Everything
//! that runs uses the clock since boot ([`Timestamp`], CLOCK_BOOTTIME): setting the date changes no
//! lease, and suspend does not stop it. A saved lease contains both and the boot's identifier
//! ([`Moment`]). After a restart of the process the clock since boot gives its age; after a reboot
//! the wall clock does. If the lease then seems to be from the future, its age is unknown, and it
//! counts as expired.
//!
//! A lease counts from the time of the *request*, so a client never trusts it longer than the
//! server does.
//!
//! # What a client never does
//!
//! - Go on with an expired lease: the first call after its end gives it up, whether a late timer or
//!   the reply that would have renewed it.
//! - Change state for a packet unless it answers the last request and comes from the server that
//!   was asked.
//! - Send without pause, whatever servers answer.
//! - Panic, whatever the bytes. An invalid option is dropped alone; text for a resolver's
//!   configuration must be a name; lists from outside are bounded.
//!
//! # DHCPv4
//!
//! RFC 2131 figure 5, with the check of the address:
//!
//! ```text
//!                Start::Fresh                                         Start::Reboot
//!                     │                                                     │ lease over: Deconfigure, INIT
//!                     ▼            DISCOVER 4, 8, 16, 32, 64 s …            ▼
//!   after a while ┌──────┐         ┌───────────┐                      ┌───────────┐
//!  ┌─────────────▶│ INIT ├────────▶│ SELECTING │◀──── 4 × REQUEST ─┐  │ REBOOTING │ REQUEST with option 50
//!  │              └──────┘         └─────┬─────┘      no answer    │  └─────┬─────┘
//!  │                                OFFER│                         │        │ ACK: Configure, BOUND
//!  │                                     ▼                         │        │ no answer: BOUND, RENEWING or REBINDING
//!  │              NAK             ┌────────────┐                   │        │            by the lease's age
//!  ├──────────────────────────────┤ REQUESTING ├───────────────────┘        │ NAK: Deconfigure, INIT
//!  │                              └──────┬─────┘                            │
//!  │                                  ACK│                                  │
//!  │   in use: DECLINE, 10 s             ▼                                  │
//!  ├──────────────────────────────┬───────────┐                             │
//!  │                              │  PROBING  │ ARP                         │
//!  │                              └──────┬────┘                             │
//!  │                      no host has it │ Configure, announce              │
//!  │                                     ▼                                  │
//!  │   conflict twice in 10 s     ┌───────────┐◀────────────────────────────┘
//!  ├──────────────────────────────┤   BOUND   │◀─────────────┐
//!  │   Deconfigure, DECLINE       └──────┬────┘              │
//!  │                                   T1│                   │ ACK: Configure
//!  │   NAK: Deconfigure           ┌──────▼────┐              │
//!  ├──────────────────────────────┤ RENEWING  ├──────────────┤  unicast to the server
//!  │                              └──────┬────┘              │
//!  │                                   T2│                   │
//!  │   NAK or end: Deconfigure    ┌──────▼────┐              │
//!  └──────────────────────────────┤ REBINDING ├──────────────┘  broadcast to all
//!                                 └───────────┘
//! ```
//!
//! [`release`](v4::Client::release) leads from every state to the end. So does
//! [`Action::Failed`](v4::Action::Failed) for a client that never had a lease, when its time for
//! getting one is over.
//!
//! | subject | specification | remarks |
//! |---|---|---|
//! | messages, states | RFC 2131 §4.3, §4.4, table 5 | the first usable offer is accepted; no random wait before the first DISCOVER: containers wait |
//! | sending again | RFC 2131 §4.1, §4.4.5 | renewals of short leases are tried four times; with a minute between tries there would be only one |
//! | T1, T2 | RFC 2131 §4.4.5 | ½ and ⅞, earlier by up to a sixteenth at random |
//! | conflicts | RFC 5227 §2.1, §2.3, §2.4 | [`ProbeTiming::quick`](v4::ProbeTiming::quick) takes a third of a second, [`rfc5227`](v4::ProbeTiming::rfc5227) four to seven |
//! | long options, overload | RFC 3396, RFC 2132 §9.3 | long options both ways, overload in replies only |
//! | routes | RFC 3442, RFC 2132 §5.8 | only option 121 if it is present |
//! | search list | RFC 3397 | compressed names |
//! | client identifier | RFC 2132 §9.14, RFC 6842 | a reply with another one is not for us |
//!
//! Not implemented: DHCPINFORM, authentication (RFC 3118), FORCERENEW, rapid commit (RFC 4039).
//!
//! # DHCPv6
//!
//! ```text
//!   Start::Fresh ──▶ INIT ──▶ SOLICITING ──ADVERTISE──▶ REQUESTING ──REPLY──▶ BOUND ◀──────────────┐
//!                     ▲           │ REPLY with rapid commit: Configure           │ T1             │ REPLY: Configure
//!                     │           └─────────────────────────────────────────▶    ├──▶ RENEWING ───┤
//!                     │                                                          │ T2             │
//!                     ├── every address over: Deconfigure ───────────────────────┴──▶ REBINDING ──┘
//!                     ├── conflict: DECLINE until answered, four times at most
//!                     └── NotOnLink: Deconfigure
//!
//!   Start::Reboot ──▶ CONFIRMING ──Success, or no answer in ten seconds──▶ BOUND, RENEWING or REBINDING by the lease's age
//! ```
//!
//! | subject | specification | remarks |
//! |---|---|---|
//! | messages | RFC 8415 §18.2 | all to [`v6::SERVERS`]; Server Unicast is not used |
//! | sending again | RFC 8415 §15, §7.6 | SOL_MAX_RT (§21.24) is taken from servers |
//! | choice of server | RFC 8415 §18.2.1, §18.2.9 | the first offer by default; [`first_offer`](v6::Config::first_offer) |
//! | NoBinding | RFC 8415 §18.2.10.1 | the server is asked to bind what is in use |
//! | addresses | RFC 8415 §18.2.10.1, §21.6 | each has its own end; those a reply does not name keep theirs |
//! | duplicates | RFC 4862 §5.4 | the kernel detects them; call [`on_conflict`](v6::Client::on_conflict) |
//! | identifiers | RFC 8415 §11, §12 | DUID-UUID or DUID-LL |
//!
//! Not implemented: prefix delegation, temporary addresses, Information-request, Reconfigure,
//! authentication.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod frame;
mod hex;
mod link;
mod names;
mod option;
mod random;
mod received;
mod saved;
mod setback;
mod time;
pub mod v4;
pub mod v6;

pub use link::{MacAddr, MacAddrError};
pub use option::RawOption;
pub use received::{Ignored, Received};
pub use saved::SavedLeaseError;
pub use time::{Moment, Now, Timestamp, UnixTime};
