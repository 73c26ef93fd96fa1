//! A virtual clock, and a test bench for a client of either family.

use std::fmt::Debug;
use std::time::Duration;

use netwright_dhcp::{MacAddr, Now, ReceiveOutcome, Timestamp, UnixTime};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
pub(crate) const SERVER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xfe]);
pub(crate) const OTHER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x66]);

/// The clocks' initial value.
pub(crate) const BOOT: u64 = 1_000_000;
pub(crate) const WALL: u64 = 1_700_000_000_000;

pub(crate) fn seconds(s: u64) -> Duration {
    Duration::from_secs(s)
}

/// Both clocks, this long after the beginning.
pub(crate) fn after(since: Duration) -> Now {
    at(BOOT + u64::try_from(since.as_millis()).unwrap())
}

/// Both clocks, at a time since boot.
pub(crate) fn at(ms: u64) -> Now {
    Now { at: Timestamp::from_millis(ms), wall: UnixTime::from_millis(WALL + ms - BOOT) }
}

/// The common functions of the clients of both families, under the same names.
pub(crate) trait Machine: Sized {
    type Config: Clone + Debug;
    type Start;
    type Action: Debug;
    type Transmit: Clone + Debug;
    type Lease: Clone + Debug + PartialEq;
    type SavedLease: Serialize + DeserializeOwned;

    fn begin(config: Self::Config, start: Self::Start, now: Now, seed: u64) -> Self;
    fn start(saved: Option<Self::SavedLease>) -> Self::Start;
    fn poll_action(&mut self) -> Option<Self::Action>;
    fn next_deadline(&self) -> Option<Timestamp>;
    fn on_timer(&mut self, now: Now);
    fn on_carrier(&mut self, now: Now);
    fn renew(&mut self, now: Now);
    /// A packet arrives, from [`SERVER_MAC`] where that matters.
    fn on_packet(&mut self, now: Now, payload: &[u8]) -> ReceiveOutcome;
    fn lease(&self) -> Option<&Self::Lease>;
    fn saved(&self) -> Option<Self::SavedLease>;

    fn wants(action: &Self::Action) -> BenchAction<'_, Self>;
    fn payload(transmit: &Self::Transmit) -> &[u8];
    /// An action in one line.
    fn short(action: &Self::Action) -> String;
}

/// An action in the form that both families have.
#[derive(Debug)]
pub(crate) enum BenchAction<'a, C: Machine> {
    Send(&'a C::Transmit),
    Configure(&'a C::Lease, Option<&'a C::Lease>),
    Deconfigure(&'a C::Lease),
    Other,
}

/// Implements [`Machine`] for a client; the braces have the parts that differ.
macro_rules! machine {
    ($family:ident { $($own:item)* }) => {
        impl $crate::bench::Machine for netwright_dhcp::$family::Client {
            type Config = netwright_dhcp::$family::Config;
            type Start = netwright_dhcp::$family::Start;
            type Action = netwright_dhcp::$family::Action;
            type Transmit = netwright_dhcp::$family::Transmit;
            type Lease = netwright_dhcp::$family::Lease;
            type SavedLease = netwright_dhcp::$family::SavedLease;

            fn begin(config: Self::Config, start: Self::Start, now: netwright_dhcp::Now, seed: u64) -> Self {
                Self::new(config, start, now, seed)
            }
            fn start(saved: Option<Self::SavedLease>) -> Self::Start {
                use netwright_dhcp::$family::Start;
                saved.map_or(Start::Fresh, |saved| Start::Reboot(Box::new(saved)))
            }
            fn poll_action(&mut self) -> Option<Self::Action> {
                Self::poll_action(self)
            }
            fn next_deadline(&self) -> Option<netwright_dhcp::Timestamp> {
                Self::next_deadline(self)
            }
            fn on_timer(&mut self, now: netwright_dhcp::Now) {
                Self::on_timer(self, now);
            }
            fn on_carrier(&mut self, now: netwright_dhcp::Now) {
                Self::on_carrier(self, now);
            }
            fn renew(&mut self, now: netwright_dhcp::Now) {
                Self::renew(self, now);
            }
            fn lease(&self) -> Option<&Self::Lease> {
                Self::lease(self)
            }
            fn saved(&self) -> Option<Self::SavedLease> {
                Self::saved(self)
            }
            fn wants(action: &Self::Action) -> $crate::bench::BenchAction<'_, Self> {
                use $crate::bench::BenchAction;
                match action {
                    netwright_dhcp::$family::Action::Send(transmit) => BenchAction::Send(transmit),
                    netwright_dhcp::$family::Action::Configure { lease, previous } => {
                        BenchAction::Configure(lease.as_ref(), previous.as_deref())
                    }
                    netwright_dhcp::$family::Action::Deconfigure { lease, .. } => BenchAction::Deconfigure(lease.as_ref()),
                    _ => BenchAction::Other,
                }
            }
            fn payload(transmit: &Self::Transmit) -> &[u8] {
                &transmit.payload
            }
            $($own)*
        }
    };
}

pub(crate) use machine;

/// A client on the bench.
#[derive(Debug)]
pub(crate) struct Bench<C: Machine> {
    pub(crate) client: C,
    pub(crate) since: Duration,
    /// The actions that the test has not yet looked at.
    pub(crate) actions: Vec<C::Action>,
    /// The last message sent.
    pub(crate) sent: Option<C::Transmit>,
}

impl<C: Machine> Bench<C> {
    pub(crate) fn new(config: C::Config, start: C::Start) -> Self {
        Self::at(config, start, Duration::ZERO)
    }

    pub(crate) fn at(config: C::Config, start: C::Start, since: Duration) -> Self {
        let client = C::begin(config, start, after(since), 1);
        let mut bench = Bench { client, since, actions: Vec::new(), sent: None };
        bench.drain();
        bench
    }

    pub(crate) fn now(&self) -> Now {
        after(self.since)
    }

    fn drain(&mut self) {
        while let Some(action) = self.client.poll_action() {
            if let BenchAction::Send(transmit) = C::wants(&action) {
                self.sent = Some(transmit.clone());
            }
            self.actions.push(action);
        }
    }

    /// The payload sent last.
    pub(crate) fn last(&self) -> Vec<u8> {
        C::payload(self.sent.as_ref().unwrap()).to_vec()
    }

    pub(crate) fn packet(&mut self, payload: &[u8]) -> ReceiveOutcome {
        let received = self.client.on_packet(self.now(), payload);
        self.drain();
        received
    }

    /// Lets time pass; the timer is punctual.
    pub(crate) fn run(&mut self, until: Duration) {
        while let Some(deadline) = self.deadline().filter(|deadline| *deadline <= until) {
            self.since = self.since.max(deadline);
            self.client.on_timer(self.now());
            self.drain();
            assert!(self.deadline().is_none_or(|next| self.since < next), "it spins");
        }
        self.since = until;
    }

    /// Lets time pass until the next deadline; returns that time.
    pub(crate) fn step(&mut self) -> Duration {
        let deadline = self.deadline().unwrap();
        self.run(deadline);
        deadline
    }

    /// Lets time pass until the next deadline; returns how long that was.
    pub(crate) fn wait(&mut self) -> Duration {
        let before = self.since;
        self.step() - before
    }

    pub(crate) fn deadline(&self) -> Option<Duration> {
        let deadline = self.client.next_deadline()?;
        Some(deadline.since(Timestamp::from_millis(BOOT)))
    }

    pub(crate) fn with(&mut self, change: impl FnOnce(&mut C, Now)) {
        let now = self.now();
        change(&mut self.client, now);
        self.drain();
    }

    /// The actions since the last call of this function, in short form.
    pub(crate) fn took(&mut self) -> Vec<String> {
        std::mem::take(&mut self.actions).iter().map(C::short).collect()
    }

    pub(crate) fn lease(&self) -> &C::Lease {
        self.client.lease().unwrap()
    }

    pub(crate) fn saved(&self) -> Box<C::SavedLease> {
        Box::new(self.client.saved().unwrap())
    }
}
