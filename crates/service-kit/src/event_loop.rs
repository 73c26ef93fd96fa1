//! The loop of a service that one thread runs: it waits for descriptors and for the time, until a
//! signal ends it.
//!
//! Each round tells the watchdog that the service goes on. A signal comes first, a changed
//! configuration next, and then what is ready, by the numbers that the service gave: the lowest first.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use agent::{Config, LoadedConfig};

use crate::bell::Bell;
use crate::poll::{Interest, Poller};
use crate::process::{Attendance, MoreAnswers, Process, stop_signals};
use crate::stop::{Stop, failed};

/// The numbers of the loop's own descriptors. A service's own are smaller.
const SIGNALS: u64 = u64::MAX;
const CHANGES: u64 = u64::MAX - 1;

/// What a service does in its loop.
pub trait Rounds {
    /// Returns how long it is until something is due.
    fn until_due(&self) -> Duration;

    /// Takes what may change while the service runs.
    fn reconfigure(&mut self, _new: &Config) {}

    /// Handles what is ready, and does what is due. `ready` has the numbers of [`EventLoop::watch`].
    ///
    /// # Errors
    /// Why the service cannot go on.
    fn round(&mut self, ready: &[u64]) -> io::Result<()>;

    /// Reports whether the service has nothing more to do.
    fn is_done(&self) -> bool {
        false
    }
}

/// What the loop waits for.
#[derive(Debug)]
pub struct EventLoop<'p> {
    process: &'p Process,
    poller: Poller,
    signals: Bell,
    attendance: Option<Attendance>,
}

impl<'p> EventLoop<'p> {
    /// Listens for signals from now on.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(process: &'p Process) -> Result<Self, Stop> {
        let (poller, signals) = (Poller::new().map_err(failed)?, stop_signals().map_err(failed)?);
        poller.add(&signals, SIGNALS, Interest::Read).map_err(failed)?;
        Ok(EventLoop { process, poller, signals, attendance: None })
    }

    /// Starts the thread that answers at the service's status socket and reads the configuration
    /// again on SIGHUP. `loaded` is what the service runs with.
    ///
    /// # Errors
    /// What the system says.
    pub fn attend(&mut self, loaded: &LoadedConfig) -> Result<(), Stop> {
        self.attend_with(loaded, Box::new(|_| None))
    }

    /// Does the same; `more` answers what only this service can be asked.
    ///
    /// # Errors
    /// What the system says.
    pub fn attend_with(&mut self, loaded: &LoadedConfig, more: MoreAnswers) -> Result<(), Stop> {
        let attendance = self.process.attend_with(self.process.health.service(), loaded, more)?;
        self.watch(attendance.changes.descriptor(), CHANGES)?;
        self.attendance = Some(attendance);
        Ok(())
    }

    /// Waits for something to read from a descriptor, which has this number from now on.
    ///
    /// # Errors
    /// What the system says.
    pub fn watch(&self, descriptor: impl AsFd, number: u64) -> Result<(), Stop> {
        self.poller.add(descriptor, number, Interest::Read).map_err(failed)
    }

    /// Returns the bell that a signal rings, for who waits for something before the loop begins.
    pub fn signals(&self) -> &Bell {
        &self.signals
    }

    /// Returns the descriptors, for a service that waits for others from round to round.
    pub fn poller(&self) -> Poller {
        self.poller.clone()
    }

    /// Serves until a signal ends it, and tells the service manager that the service ends.
    ///
    /// # Errors
    /// Why the service cannot go on.
    pub fn serve(&self, service: &mut impl Rounds) -> Result<(), Stop> {
        let served = self.rounds(service);
        self.process.tell_stopping();
        served.map_err(failed)
    }

    fn rounds(&self, service: &mut impl Rounds) -> io::Result<()> {
        let health = &self.process.health;
        while !service.is_done() {
            health.turns();
            let mut ready = self.poller.wait(Some(health.pause(service.until_due())))?;
            ready.sort_unstable();
            if ready.last() == Some(&SIGNALS) {
                self.signals.heard();
                break;
            }
            if ready.last() == Some(&CHANGES) {
                ready.pop();
                let new = self.attendance.as_ref().and_then(|of| of.changes.take());
                new.iter().for_each(|new| service.reconfigure(new));
            }
            service.round(&ready)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::{Health, Manager};
    use crate::log;
    use crate::process::LONG;
    use std::sync::Arc;

    fn process() -> Process {
        Process {
            environment: Vec::new(),
            health: Health::new("repair", Manager::default(), LONG),
            log: log::start("repair", None, &agent::config::Log::default(), None, false, None),
            reread: Arc::new(|| Err(Stop::Said(1))),
            hung_up: Arc::default(),
            socket: Arc::default(),
            follows: None,
            again: Arc::default(),
        }
    }

    /// A service that rings the bell of signals in a round.
    struct Counter {
        rounds: Vec<Vec<u64>>,
        intervals: Vec<Duration>,
        bells: [Bell; 2],
        signals: Bell,
        most: usize,
    }

    impl Rounds for Counter {
        fn until_due(&self) -> Duration {
            LONG
        }

        fn reconfigure(&mut self, new: &Config) {
            self.intervals.push(new.repair.interval);
        }

        fn round(&mut self, ready: &[u64]) -> io::Result<()> {
            self.rounds.push(ready.to_vec());
            // The bells stay readable: a signal comes first all the same.
            self.signals.ring();
            Ok(())
        }

        fn is_done(&self) -> bool {
            self.rounds.len() == self.most
        }
    }

    /// Runs a loop in which two bells and a changed configuration are ready.
    fn run(most: usize) -> Counter {
        let process = process();
        let mut events = EventLoop::new(&process).unwrap();
        let changes = crate::attendant::Changes::new().unwrap();
        events.watch(changes.descriptor(), CHANGES).unwrap();
        let mut new = Config::default();
        new.repair.interval = Duration::from_secs(7);
        changes.put(new);
        events.attendance = Some(Attendance::without_thread(changes));
        let bells = [Bell::new().unwrap(), Bell::new().unwrap()];
        for (bell, number) in bells.iter().zip([9, 3]) {
            events.watch(bell, number).unwrap();
            bell.ring();
        }
        let signals = events.signals.clone();
        let (rounds, intervals) = (Vec::new(), Vec::new());
        let mut service = Counter { rounds, intervals, bells, signals, most };
        events.serve(&mut service).unwrap();
        assert!(service.bells.iter().all(Bell::heard));
        service
    }

    #[test]
    fn a_signal_comes_first_and_a_configuration_next() {
        let service = run(usize::MAX);
        assert_eq!(service.rounds, [[3, 9]], "the second round is the signal's");
        assert_eq!(service.intervals, [Duration::from_secs(7)]);
    }

    #[test]
    fn a_service_that_is_done_waits_for_nothing() {
        assert!(run(0).rounds.is_empty());
        assert_eq!(run(1).rounds.len(), 1);
    }
}
