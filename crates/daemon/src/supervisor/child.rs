//! One service's process: when it starts, and how it ended.

use std::time::{Duration, Instant};

use agent::report::{Report, State};
use rustix::process::{Pid, WaitStatus};
use service_kit::health;

/// The first and the longest pause before a service that ended starts again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));
/// The pause before one is killed again that did not end when it was killed.
const KILL_AGAIN: Duration = Duration::from_secs(1);
/// How long a service must have run before it ended, so that it starts again after the first pause.
const LONG_RUN: Duration = Duration::from_secs(60);

/// Exit codes of a service that would end in the same way again: wrong flags and a wrong
/// configuration.
const REFUSED: [i32; 2] = [2, 78];

/// A service and its process.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) service: &'static str,
    /// Whether the configuration wants it.
    pub(super) wanted: bool,
    life: Life,
    /// How often it ended early, one time after the other.
    failures: u32,
    restarts: u32,
    /// How it ended last.
    why: Option<String>,
    /// Since when it is as it is.
    since: String,
    /// Since when it does not answer.
    silent: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// It does not run.
    Off,
    /// It starts then.
    Due(Instant),
    Running {
        pid: Pid,
        started: Instant,
    },
    /// It was asked to end, and is killed then.
    Ending {
        pid: Pid,
        deadline: Instant,
    },
}

/// How a process ended (`man 2 wait`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    /// With an exit code.
    Code(i32),
    /// By a signal.
    Signal(i32),
}

impl From<WaitStatus> for Exit {
    fn from(status: WaitStatus) -> Self {
        match status.terminating_signal() {
            Some(signal) => Exit::Signal(signal),
            None => Exit::Code(status.exit_status().unwrap_or_default()),
        }
    }
}

/// Why a process ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ExitReason {
    /// It was asked to.
    Asked,
    /// Its configuration is wrong.
    Refused(String),
    /// By itself. It starts again after the pause.
    Failed(String, Duration),
}

impl Child {
    /// Returns a service that does not run and is not wanted.
    pub(super) fn new(service: &'static str) -> Self {
        Child {
            service,
            wanted: false,
            life: Life::Off,
            failures: 0,
            restarts: 0,
            why: None,
            since: health::now(),
            silent: None,
        }
    }

    fn becomes(&mut self, life: Life) {
        (self.life, self.since, self.silent) = (life, health::now(), None);
    }

    /// Wants it: it starts at once, or once the process that is ending has ended.
    pub(super) fn start(&mut self) {
        (self.wanted, self.failures, self.why) = (true, 0, None);
        if matches!(self.life, Life::Off | Life::Due(_)) {
            self.becomes(Life::Due(Instant::now()));
        }
    }

    /// Notes that it is asked to end. Returns its process, if it has one that was not asked yet.
    pub(super) fn ends(&mut self, deadline: Instant) -> Option<Pid> {
        match self.life {
            Life::Running { pid, .. } => {
                self.becomes(Life::Ending { pid, deadline });
                Some(pid)
            }
            Life::Due(_) => {
                self.becomes(Life::Off);
                None
            }
            Life::Off | Life::Ending { .. } => None,
        }
    }

    /// Returns its process.
    pub(super) fn pid(&self) -> Option<Pid> {
        match self.life {
            Life::Running { pid, .. } | Life::Ending { pid, .. } => Some(pid),
            Life::Off | Life::Due(_) => None,
        }
    }

    /// Reports whether it has a process.
    pub(super) fn is_alive(&self) -> bool {
        self.pid().is_some()
    }

    /// Reports whether it is wanted and waits for another configuration.
    pub(super) fn waits_for_a_reload(&self) -> bool {
        self.wanted && self.life == Life::Off
    }

    /// Returns when something is to be done about it.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.life {
            Life::Due(due) => Some(due),
            Life::Ending { deadline, .. } => Some(deadline),
            Life::Off | Life::Running { .. } => None,
        }
    }

    /// Reports whether it is to start now.
    pub(super) fn is_to_start(&self, now: Instant) -> bool {
        matches!(self.life, Life::Due(due) if due <= now)
    }

    /// Returns its process if that did not end in time. The next time is one more second away.
    pub(super) fn is_to_be_killed(&mut self, now: Instant) -> Option<Pid> {
        match &mut self.life {
            Life::Ending { pid, deadline } if *deadline <= now => {
                *deadline = now + KILL_AGAIN;
                Some(*pid)
            }
            _ => None,
        }
    }

    /// Notes its process.
    pub(super) fn started(&mut self, pid: Pid, now: Instant) {
        self.becomes(Life::Running { pid, started: now });
        if 0 < self.failures {
            self.restarts += 1;
        }
    }

    /// Notes that it could not be started. Returns the pause before the next attempt.
    pub(super) fn not_started(&mut self, error: &std::io::Error, now: Instant) -> Duration {
        self.fails(format!("it could not be started: {error}"), now)
    }

    fn fails(&mut self, why: String, now: Instant) -> Duration {
        self.failures += 1;
        let doubled = PAUSES.0.saturating_mul(1 << (self.failures - 1).min(10));
        let pause = doubled.min(PAUSES.1);
        self.becomes(Life::Due(now + pause));
        self.why = Some(why);
        pause
    }

    /// Notes that its process ended.
    pub(super) fn ended(&mut self, exit: Exit, now: Instant) -> ExitReason {
        let why = match exit {
            Exit::Code(code) => format!("it ended with exit code {code}"),
            Exit::Signal(signal) => format!("signal {signal} ended it"),
        };
        let started = match self.life {
            Life::Running { started, .. } => started,
            Life::Off | Life::Due(_) | Life::Ending { .. } => {
                self.becomes(if self.wanted { Life::Due(now) } else { Life::Off });
                return ExitReason::Asked;
            }
        };
        if matches!(exit, Exit::Code(code) if REFUSED.contains(&code)) {
            let why = format!("{why}: its configuration is wrong");
            self.becomes(Life::Off);
            self.why = Some(why.clone());
            return ExitReason::Refused(why);
        }
        if LONG_RUN <= now.saturating_duration_since(started) {
            self.failures = 0;
        }
        let pause = self.fails(why.clone(), now);
        ExitReason::Failed(why, pause)
    }

    /// Notes that it answers.
    pub(super) fn goes_on(&mut self) {
        self.silent = None;
    }

    /// Notes that it does not go on. Returns its process if that has been so for too long.
    pub(super) fn hangs(&mut self, now: Instant, watchdog: Duration) -> Option<Pid> {
        let Life::Running { pid, .. } = self.life else { return None };
        let since = *self.silent.get_or_insert(now);
        (watchdog <= now.saturating_duration_since(since)).then_some(pid)
    }

    /// Returns what is known of its process.
    pub(super) fn report(&self, now: Instant) -> Report {
        let (state, why) = match self.life {
            Life::Off if self.wanted => (State::Failed, self.why.clone()),
            Life::Off => (State::Stopped, None),
            Life::Due(due) => match &self.why {
                Some(why) => {
                    let seconds = due.saturating_duration_since(now).as_secs_f32().ceil();
                    (State::Failed, Some(format!("{why}; it starts again in {seconds} s")))
                }
                None => (State::Starting, None),
            },
            Life::Running { .. } => (State::Starting, None),
            Life::Ending { .. } => (State::Stopping, None),
        };
        let hint = self.waits_for_a_reload().then(|| "netwrightd config check".to_owned());
        Report {
            service: self.service.to_owned(),
            state,
            enabled: self.wanted,
            since: Some(self.since.clone()),
            why,
            pid: self.pid().and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok()),
            restarts: self.restarts,
            ended: self.why.clone(),
            hint,
            ..Report::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(child: &mut Child, now: Instant) {
        assert!(child.is_to_start(now));
        child.started(Pid::INIT, now);
    }

    #[test]
    fn a_service_that_ends_starts_again_later_each_time() {
        let mut child = Child::new("repair");
        child.start();
        let mut now = Instant::now() + Duration::from_millis(1);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            running(&mut child, now);
            let ExitReason::Failed(why, pause) = child.ended(Exit::Signal(9), now) else {
                panic!()
            };
            assert_eq!(why, "signal 9 ended it");
            assert!(!child.is_to_start(now) && child.due() == Some(now + pause));
            pauses.push(pause.as_millis());
            now += pause;
        }
        assert_eq!(pauses[..4], [100, 200, 400, 800]);
        assert_eq!(pauses[8..], [25_600, 51_200, 60_000, 60_000]);
        let report = child.report(now - Duration::from_secs(3));
        assert_eq!(report.why.unwrap(), "signal 9 ended it; it starts again in 3 s");
        // After a long run it starts anew.
        running(&mut child, now);
        assert_eq!(child.restarts, 12);
        now += LONG_RUN;
        assert_eq!(
            child.ended(Exit::Code(1), now),
            ExitReason::Failed("it ended with exit code 1".to_owned(), PAUSES.0)
        );
    }

    #[test]
    fn a_wrong_configuration_waits_for_another_one() {
        let mut child = Child::new("ipam");
        child.start();
        let now = Instant::now() + Duration::from_millis(1);
        running(&mut child, now);
        assert!(matches!(child.ended(Exit::Code(78), now), ExitReason::Refused(_)));
        assert!(child.waits_for_a_reload() && child.due().is_none());
        assert_eq!(child.report(now).state, State::Failed);
        child.start();
        assert!(child.is_to_start(Instant::now()));
    }

    #[test]
    fn a_restart_waits_for_the_end() {
        let mut child = Child::new("dhcp");
        child.start();
        let now = Instant::now() + Duration::from_millis(1);
        running(&mut child, now);
        assert_eq!(child.ends(now + TIME), Some(Pid::INIT));
        assert_eq!(child.ends(now + TIME), None);
        child.start();
        assert!(!child.is_to_start(now + TIME) && child.report(now).state == State::Stopping);
        assert_eq!(child.is_to_be_killed(now + TIME), Some(Pid::INIT));
        assert_eq!(child.ended(Exit::Code(0), now), ExitReason::Asked);
        assert!(child.is_to_start(now) && child.restarts == 0);
        running(&mut child, now);
        child.wanted = false;
        child.ends(now + TIME);
        assert_eq!(child.ended(Exit::Code(0), now), ExitReason::Asked);
        assert_eq!((child.due(), child.report(now).state), (None, State::Stopped));
    }

    const TIME: Duration = Duration::from_secs(5);

    #[test]
    fn one_that_hangs_is_killed_in_time() {
        let mut child = Child::new("dhcp");
        child.start();
        let now = Instant::now() + Duration::from_millis(1);
        running(&mut child, now);
        assert_eq!(child.hangs(now, TIME), None);
        child.goes_on();
        assert_eq!(child.hangs(now + TIME, TIME), None);
        assert_eq!(child.hangs(now + TIME * 2, TIME), Some(Pid::INIT));
        assert_eq!(child.hangs(now + TIME * 2, Duration::ZERO), Some(Pid::INIT));
    }
}
