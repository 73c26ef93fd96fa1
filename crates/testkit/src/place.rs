//! Runs programs and code inside a namespace.

use std::io;
use std::os::fd::BorrowedFd;
use std::panic::resume_unwind;
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::lab::unshare;

/// Removes ` linkdown` from what `ip route` shows. The word stands there until the kernel has looked
/// at a new link's carrier, which takes it some time on a busy host (linux `net/core/link_watch.c`).
#[must_use]
pub fn without_linkdown(shown: &str) -> String {
    shown.replace(" linkdown", "")
}

/// A place where programs and code can run: a lab's host or a container in it.
pub trait Place {
    /// Returns a command that will run here, in the current directory as the lab sees it.
    ///
    /// It is killed when the thread that started it ends.
    fn command(&self, program: &str) -> Command;

    /// Runs Rust code here, on a thread of its own, and returns its result. A panic continues in
    /// the caller.
    ///
    /// Sockets and files that it opens can be used anywhere afterwards.
    fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T;

    /// Returns the name of this place for messages.
    fn place_name(&self) -> String;

    /// Runs a shell script here and returns its standard output, [without
    /// ` linkdown`](without_linkdown).
    ///
    /// # Panics
    /// When it fails, with what it wrote to standard error.
    #[track_caller]
    fn sh(&self, script: &str) -> String {
        let output = self.try_sh(script);
        assert!(
            output.status.success(),
            "`{script}` in {} failed ({}): {}{}",
            self.place_name(),
            output.status,
            String::from_utf8_lossy(&output.stderr),
            String::from_utf8_lossy(&output.stdout),
        );
        without_linkdown(&String::from_utf8_lossy(&output.stdout))
    }

    /// Runs a shell script here and returns its output, whether it succeeds or not.
    #[track_caller]
    fn try_sh(&self, script: &str) -> Output {
        let output = self.shell(script);
        output.unwrap_or_else(|error| panic!("sh in {}: {error}", self.place_name()))
    }

    /// Runs a shell script here, as [`Place::try_sh`] does.
    ///
    /// # Errors
    /// When the shell cannot be started.
    fn shell(&self, script: &str) -> io::Result<Output>;

    /// Starts a program that runs until the guard is dropped. Its output goes where the test's
    /// goes.
    #[track_caller]
    fn start(&self, program: &str, args: &[&str]) -> RunningProgram {
        let child = self.command(program).args(args).stdin(Stdio::null()).spawn();
        let child =
            child.unwrap_or_else(|error| panic!("{program} in {}: {error}", self.place_name()));
        RunningProgram { child }
    }
}

/// A program that is killed when this is dropped.
#[derive(Debug)]
pub struct RunningProgram {
    child: Child,
}

impl RunningProgram {
    /// The process.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }
}

impl From<Child> for RunningProgram {
    fn from(child: Child) -> Self {
        RunningProgram { child }
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command that is killed when the thread that started it, or the whole test process, is gone.
pub(crate) fn guarded(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", program]);
    command
}

/// Runs `work` on a thread of its own in the given namespaces.
pub(crate) fn enter_namespaces<T: Send>(
    namespaces: &[(BorrowedFd<'_>, LinkNameSpaceType)],
    work: impl FnOnce() -> T + Send,
) -> T {
    let inside = || {
        let cwd = std::env::current_dir().ok();
        // A thread that shares its root and working directory with others may not change mount
        // namespaces.
        unshare(UnshareFlags::FS)
            .unwrap_or_else(|error| panic!("unshare working directory: {error}"));
        for (fd, kind) in namespaces {
            move_into_link_name_space(*fd, Some(*kind))
                .unwrap_or_else(|error| panic!("enter {kind:?} namespace: {error}"));
        }
        if let Some(cwd) = cwd {
            let _ = rustix::process::chdir(&cwd);
        }
        work()
    };
    let name = thread::current().name().unwrap_or("lab").to_owned();
    thread::scope(|scope| {
        let thread = thread::Builder::new().name(name).spawn_scoped(scope, inside);
        let thread = thread.unwrap_or_else(|error| panic!("start a thread: {error}"));
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}
