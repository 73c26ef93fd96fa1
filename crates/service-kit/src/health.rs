//! What a service knows of itself: whether it can do its work, what it logged last, and whether its
//! loop goes on. [`crate::attendant`] reports it to clients of the status socket, and this file to
//! a service manager.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use agent::metrics::Figure;
use agent::report::{LogLine, Report, State, UnmetNeed, pid_namespace};
use jiff::Timestamp;
use tracing::Level;

use crate::notify;

/// What a service knows of itself; copies share it.
#[derive(Debug, Clone)]
pub struct Health(Arc<HealthState>);

/// What copies share.
#[derive(Debug)]
struct HealthState {
    service: &'static str,
    manager: Manager,
    /// How long a turn may take.
    watchdog: Duration,
    /// The wall clock, which may jump: only people read it.
    wall: fn() -> Timestamp,
    /// Whether the last notification to the service manager failed.
    unheard: AtomicBool,
    /// What the service counts.
    figures: OnceLock<Figures>,
    inner: Mutex<Inner>,
}

/// Returns figures of a service, in a thread that is not its loop's.
struct Figures(Box<dyn Fn() -> Vec<Figure> + Send + Sync>);

impl std::fmt::Debug for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Figures").finish_non_exhaustive()
    }
}

/// The service manager, as its environment names it (`man 3 sd_notify`, `man 3 sd_watchdog_enabled`).
#[derive(Debug, Clone, Default)]
pub struct Manager {
    /// Its socket.
    pub socket: Option<OsString>,
    /// How often the manager wants to hear that the service goes on. The service notifies it when
    /// its loop comes round after a quarter of that, and in any case after three quarters.
    pub watchdog: Option<Duration>,
}

#[derive(Debug)]
struct Inner {
    phase: Phase,
    /// What the last report said, and since when.
    state: (State, Timestamp),
    /// When the loop came round last.
    turned: Instant,
    /// When the service manager was last notified that the loop came round.
    told: Instant,
    /// What is needed and missing, and why.
    missing: BTreeMap<&'static str, String>,
    /// The socket at which the service serves.
    socket: Option<PathBuf>,
    unconfined: Vec<String>,
    contained: bool,
    /// The values that the service runs with.
    values: BTreeMap<String, String>,
    outdated: Vec<String>,
    reloads: u64,
    did: Option<LogLine>,
    failed: Option<LogLine>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Starting,
    Serving,
    Stopping,
}

impl Health {
    /// Starts with a service that does not serve yet.
    pub fn new(service: &'static str, manager: Manager, watchdog: Duration) -> Self {
        Self::by(Timestamp::now, service, manager, watchdog)
    }

    fn by(
        wall: fn() -> Timestamp,
        service: &'static str,
        manager: Manager,
        watchdog: Duration,
    ) -> Self {
        let now = Instant::now();
        let inner = Inner {
            phase: Phase::Starting,
            state: (State::Starting, wall()),
            turned: now,
            told: now,
            missing: BTreeMap::new(),
            socket: None,
            unconfined: Vec::new(),
            contained: false,
            values: BTreeMap::new(),
            outdated: Vec::new(),
            reloads: 0,
            did: None,
            failed: None,
        };
        let (unheard, inner) = (AtomicBool::new(false), Mutex::new(inner));
        let figures = OnceLock::new();
        Health(Arc::new(HealthState { service, manager, watchdog, wall, unheard, figures, inner }))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the service's name.
    pub fn service(&self) -> &'static str {
        self.0.service
    }

    /// Sets what returns the service's figures. Each report calls it.
    pub fn counts(&self, figures: impl Fn() -> Vec<Figure> + Send + Sync + 'static) {
        let _ = self.0.figures.set(Figures(Box::new(figures)));
    }

    /// Notes that a runtime confines the service's container.
    pub fn is_contained(&self) {
        self.inner().contained = true;
    }

    /// Notes which steps of the confinement were not permitted.
    pub fn is_less_confined(&self, steps: Vec<String>) {
        let mut inner = self.inner();
        inner.unconfined = steps;
        // The log has named these steps already, and they are not failures.
        inner.failed = None;
    }

    /// Notes the values of keys that the service runs with.
    pub fn runs_with(&self, values: impl IntoIterator<Item = (String, String)>) {
        self.inner().values.extend(values);
    }

    /// Notes new values of some of these keys.
    pub fn runs_with_new(&self, values: impl IntoIterator<Item = (String, String)>) {
        let mut inner = self.inner();
        for (key, value) in values {
            if let Some(known) = inner.values.get_mut(&key) {
                *known = value;
            }
        }
    }

    /// Notes that the service serves, at this socket if it has one, and tells the service manager.
    pub fn serves(&self, socket: Option<&Path>) {
        {
            let mut inner = self.inner();
            inner.phase = Phase::Serving;
            inner.socket = socket.map(Path::to_owned);
            inner.turned = Instant::now();
            self.settle(&mut inner, false);
        }
        self.notify("READY=1");
    }

    /// Notes that the service is about to end, and tells the service manager.
    pub fn stops(&self) {
        {
            let mut inner = self.inner();
            inner.phase = Phase::Stopping;
            self.settle(&mut inner, false);
        }
        self.notify("STOPPING=1");
    }

    /// Notes whether something that the service needs is there, or else why it is not. Tells the
    /// service manager of a change.
    pub fn needs(&self, what: &'static str, found: Result<(), String>) {
        let changed = {
            let mut inner = self.inner();
            let changed = match &found {
                Ok(()) => inner.missing.remove(what).is_some(),
                Err(why) => inner.missing.insert(what, why.clone()).is_none(),
            };
            self.settle(&mut inner, false);
            changed
        };
        match (changed, found) {
            (false, _) => {}
            (true, Ok(())) => self.notify("STATUS=ready"),
            (true, Err(why)) => {
                self.notify(&format!("STATUS=waiting: {what}: {}", cni::text::one_line(why)));
            }
        }
    }

    /// Notes that the loop came round.
    pub fn turns(&self) {
        let now = Instant::now();
        let tell = {
            let mut inner = self.inner();
            inner.turned = now;
            let due = self.0.manager.watchdog.is_some_and(|limit| limit / 4 <= now - inner.told);
            if due {
                inner.told = now;
            }
            due
        };
        if tell {
            self.notify("WATCHDOG=1");
        }
    }

    /// Returns how long a loop may wait, once it has come round: at most `wanted`, and less where
    /// the watchdog needs a turn sooner. A loop that has something to do in half the watchdog's
    /// time needs no turn for it.
    pub fn pause(&self, wanted: Duration) -> Duration {
        let wanted = wanted.min(self.0.watchdog / 2);
        let Some(limit) = self.0.manager.watchdog else { return wanted };
        let since = self.inner().told.elapsed();
        wanted.min((limit * 3 / 4).saturating_sub(since))
    }

    /// Notes an event of the log.
    pub fn logged(&self, level: Level, text: &str) {
        if Level::INFO < level {
            return;
        }
        let said = LogLine { at: seconds((self.0.wall)()), text: text.to_owned() };
        let mut inner = self.inner();
        match level <= Level::WARN {
            true => inner.failed = Some(said),
            false => inner.did = Some(said),
        }
    }

    /// Tells the service manager that the configuration is being read again.
    pub fn tell_reloading(&self) {
        if self.inner().phase == Phase::Serving {
            let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let micros = Duration::try_from(time).unwrap_or_default().as_micros();
            self.notify(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
        }
    }

    /// Notes that the configuration was read again, and which changed keys do not count yet. Tells
    /// the service manager.
    pub fn reloaded(&self, outdated: Vec<String>) {
        let serves = {
            let mut inner = self.inner();
            inner.reloads += 1;
            inner.outdated = outdated;
            inner.phase == Phase::Serving
        };
        if serves {
            self.notify("READY=1");
        }
    }

    /// Notes that the configuration is wrong and the one before goes on.
    pub fn refused(&self) {
        self.inner().reloads += 1;
    }

    /// Returns everything that is known.
    pub fn report(&self) -> Report {
        // Called before the lock is taken: the service's loop may hold a lock that the figures
        // need.
        let figures = self.0.figures.get().map(|figures| (figures.0)()).unwrap_or_default();
        let mut inner = self.inner();
        let mut missing: Vec<UnmetNeed> = inner
            .missing
            .iter()
            .map(|(what, why)| UnmetNeed { what: (*what).to_owned(), why: why.clone() })
            .collect();
        let mut hint = None;
        if inner.phase == Phase::Serving
            && let Some(path) = &inner.socket
            && let Err(error) = path.symlink_metadata()
        {
            let why = format!("{}: {error}", path.display());
            missing.push(UnmetNeed { what: "socket".to_owned(), why });
            hint = Some("restart the service: its socket was removed".to_owned());
        }
        let state = self.settle(&mut inner, hint.is_some());
        if !inner.outdated.is_empty() {
            hint = Some("netwrightd agent reload".to_owned());
        }
        Report {
            service: self.0.service.to_owned(),
            state,
            since: Some(seconds(inner.state.1)),
            why: (state == State::Hung)
                .then(|| format!("it has not gone on for {} s", inner.turned.elapsed().as_secs())),
            pid: Some(std::process::id()),
            pid_namespace: pid_namespace(),
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            reloads: inner.reloads,
            missing,
            values: inner.values.clone(),
            outdated: inner.outdated.clone(),
            unconfined: inner.unconfined.clone(),
            contained: inner.contained,
            did: inner.did.clone(),
            failed: inner.failed.clone(),
            figures,
            hint,
            ..Report::default()
        }
    }

    /// Decides the state, and notes since when it is so.
    fn settle(&self, inner: &mut Inner, lacks_socket: bool) -> State {
        let state = match inner.phase {
            Phase::Stopping => State::Stopping,
            _ if self.0.watchdog < inner.turned.elapsed() => State::Hung,
            Phase::Starting => State::Starting,
            Phase::Serving if inner.missing.is_empty() && !lacks_socket => State::Ready,
            Phase::Serving => State::Waiting,
        };
        if inner.state.0 != state {
            inner.state = (state, (self.0.wall)());
        }
        state
    }

    /// Notifies the service manager.
    pub fn notify(&self, state: &str) {
        let sent = notify::send(self.0.manager.socket.as_deref(), state);
        let was_heard = !self.0.unheard.swap(sent.is_err(), Ordering::SeqCst);
        if let (Err(error), true) = (sent, was_heard) {
            tracing::warn!(%error, state, "cannot notify the service manager");
        }
    }
}

/// Returns the time in RFC 3339, to the second.
pub fn now() -> String {
    seconds(Timestamp::now())
}

fn seconds(time: Timestamp) -> String {
    format!("{time:.0}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicI64;

    #[test]
    fn ready_is_able_to_work() {
        let health = Health::new("repair", Manager::default(), Duration::from_secs(60));
        let state = || health.report().state;
        assert_eq!(state(), State::Starting);
        health.serves(None);
        assert_eq!(state(), State::Ready);
        health.needs("API server", Err("refused".to_owned()));
        assert_eq!(health.report().trouble().unwrap(), "waiting: API server: refused");
        health.needs("API server", Ok(()));
        assert_eq!(state(), State::Ready);
        health.stops();
        assert_eq!(state(), State::Stopping);
        let health = Health::new("repair", Manager::default(), Duration::ZERO);
        health.serves(None);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(health.report().state, State::Hung);
    }

    #[test]
    fn a_clock_that_is_set_back_changes_only_what_people_read() {
        static WALL: AtomicI64 = AtomicI64::new(1_800_000_000);
        let wall = || Timestamp::from_second(WALL.load(Ordering::SeqCst)).unwrap();
        // The loop has to come round twice in this time; the wall clock does not matter.
        let day = Duration::from_secs(24 * 3600);
        let manager = Manager { watchdog: Some(day), ..Manager::default() };
        let health = Health::by(wall, "repair", manager, day);
        health.serves(None);
        WALL.fetch_sub(3 * 24 * 3600, Ordering::SeqCst);
        health.turns();
        let report = health.report();
        assert_eq!(
            (report.state, report.since.unwrap().as_str()),
            (State::Ready, "2027-01-15T08:00:00Z")
        );
        assert_eq!(health.pause(day), day / 2);
        health.logged(Level::INFO, "repaired");
        assert_eq!(health.report().did.unwrap().at, "2027-01-12T08:00:00Z");
        health.needs("cache", Err("refused".to_owned()));
        let report = health.report();
        assert_eq!(
            (report.state, report.since.unwrap().as_str()),
            (State::Waiting, "2027-01-12T08:00:00Z")
        );
        WALL.fetch_add(30 * 24 * 3600, Ordering::SeqCst);
        assert_eq!(health.report().state, State::Waiting);
    }

    /// A loop that comes round once a minute by itself does not wake up besides.
    #[test]
    fn the_watchdog_needs_a_turn_of_loops_that_would_wait_longer() {
        let minute = Duration::from_secs(60);
        let of = |manager: Duration| {
            let manager = Manager { watchdog: Some(manager), ..Manager::default() };
            let health = Health::new("routing", manager, 2 * minute);
            health.turns();
            health
        };
        let health = of(2 * minute);
        assert_eq!(health.pause(minute), minute);
        assert_eq!(health.pause(60 * minute), minute);
        // The manager wants to hear of it sooner, or has waited for half the time already.
        let pause = of(minute).pause(60 * minute);
        assert!(minute / 2 < pause && pause <= minute * 3 / 4, "{pause:?}");
        let waited = Instant::now().checked_sub(minute / 2).unwrap();
        let health = of(minute);
        health.inner().told = waited;
        assert!(health.pause(60 * minute) <= minute / 4);
        health.turns();
        assert!(minute / 2 < health.pause(60 * minute));
    }

    #[test]
    fn a_service_goes_on_whatever_became_of_its_managers_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let told = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        let manager = Manager { socket: Some(path.clone().into()), watchdog: Some(Duration::ZERO) };
        let health = Health::new("dhcp", manager, Duration::from_secs(60));
        health.serves(None);
        let mut octets = [0; 64];
        let count = told.recv(&mut octets).unwrap();
        assert_eq!(&octets[..count], b"READY=1");
        // It does not read, and its queue is full: nothing waits for it.
        (0..1000).for_each(|_| health.turns());
        assert!(health.0.unheard.load(Ordering::SeqCst));
        // It is gone, and then a file is in its place.
        drop(told);
        health.turns();
        std::fs::remove_file(&path).unwrap();
        health.turns();
        std::fs::write(&path, "").unwrap();
        health.turns();
        health.stops();
        assert_eq!(health.report().state, State::Stopping);
    }

    #[test]
    fn a_socket_that_was_removed_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        std::fs::write(&path, "").unwrap();
        let health = Health::new("dhcp", Manager::default(), Duration::from_secs(60));
        health.serves(Some(&path));
        assert_eq!(health.report().state, State::Ready);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(health.report().state, State::Waiting);
    }

    #[test]
    fn what_was_logged_last_is_known() {
        let health = Health::new("dhcp", Manager::default(), Duration::from_secs(60));
        health.logged(Level::INFO, "bound");
        health.logged(Level::WARN, "lost");
        health.logged(Level::DEBUG, "heard");
        let report = health.report();
        assert_eq!(report.did.unwrap().text, "bound");
        assert_eq!(report.failed.unwrap().text, "lost");
    }
}
