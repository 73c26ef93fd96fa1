//! Programs that serve while a test runs, and waiting for conditions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long anything may take that a test waits for. It only prevents that a test hangs: on a busy
/// machine everything takes many times as long as on an idle one.
pub const TIMEOUT: Duration = Duration::from_secs(180);
/// The pause between checks of a condition, at least and at most. It is twice as long as a check
/// takes: one that starts programs leaves the processor to what it waits for.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// A program whose standard error goes to a file. It is killed when this is dropped; if the test
/// fails, its log is printed.
#[derive(Debug)]
pub struct Service {
    child: Child,
    log: PathBuf,
}

impl Service {
    /// Starts a program; its log is appended to the file.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    #[track_caller]
    pub fn start(mut command: Command, log: &Path) -> Self {
        let out = fs::OpenOptions::new().create(true).append(true).open(log);
        let out = out.unwrap_or_else(|error| panic!("{}: {error}", log.display()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(out);
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Service { child, log: log.to_owned() }
    }

    /// Waits until a condition of the program holds.
    ///
    /// # Panics
    /// When it ends first, or takes too long.
    #[track_caller]
    pub fn wait_until(&mut self, what: &str, mut does: impl FnMut() -> bool) {
        wait_until(what, || {
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("it ended, {status}, before {what}");
            }
            does()
        });
    }

    /// Returns its log so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its process, for ending it in another way.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Waits until it ends by itself.
    ///
    /// # Panics
    /// When it does not succeed.
    #[track_caller]
    pub fn ended(mut self) {
        let status = self.child.wait();
        assert!(status.is_ok_and(|status| status.success()), "it failed:\n{}", self.log());
    }

    /// Ends it as a service manager does; returns its exit code.
    ///
    /// # Panics
    /// When it is gone already.
    #[track_caller]
    pub fn stop(mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it runs");
        self.child.wait().expect("it is ours").code()
    }

    /// Kills it without a warning.
    pub fn kill(self) {
        drop(self);
    }
}

impl Drop for Service {
    #[expect(clippy::print_stderr, reason = "people read it when the test fails")]
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("--- {}:\n{}", self.log.display(), self.log());
        }
    }
}

/// Waits until a path exists.
///
/// # Panics
/// When it takes too long.
#[track_caller]
pub fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    wait(what, look, String::new)
}

/// Waits until a condition holds.
///
/// # Panics
/// When it takes too long.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(what, || is_so().then_some(()));
}

/// Waits until a condition holds.
///
/// # Panics
/// When it takes too long. The message has what `tell` returns then, such as the actual state.
#[track_caller]
pub fn wait_until_or_tell(
    what: &str,
    mut is_so: impl FnMut() -> bool,
    tell: impl FnOnce() -> String,
) {
    wait(what, || is_so().then_some(()), || format!("; {}", tell()));
}

#[track_caller]
fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>, tell: impl FnOnce() -> String) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let begin = Instant::now();
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within {TIMEOUT:?}{}", tell());
        thread::sleep((2 * begin.elapsed()).clamp(PAUSE.0, PAUSE.1));
    }
}
