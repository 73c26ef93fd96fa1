//! The work of a program itself, as a number that other load does not change: its instructions,
//! counted one by one.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};

use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Runs a program and counts its instructions in user mode, from when it waits for its standard
/// input to its end. Processes that it starts are not counted.
///
/// # Panics
/// If it cannot be traced (`man 2 ptrace`).
#[expect(clippy::zombie_processes, reason = "waitpid waits for it, as its tracer")]
pub(crate) fn instructions(command: &mut Command, input: &[u8]) -> u64 {
    let mut child = command.stdin(Stdio::piped()).spawn().expect("the program starts");
    while !waits(&child) {
        std::thread::yield_now();
    }
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process ID"));
    ptrace::seize(pid, ptrace::Options::PTRACE_O_EXITKILL).expect("it can be traced");
    ptrace::interrupt(pid).expect("it can be stopped");
    let mut stdin = child.stdin.take().expect("it is a pipe");
    stdin.write_all(input).expect("it reads");
    drop(stdin);
    let mut count = 0;
    loop {
        let signal = match waitpid(pid, Some(WaitPidFlag::__WALL)).expect("it is ours") {
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => return count,
            WaitStatus::Stopped(_, signal) if signal != nix::sys::signal::Signal::SIGTRAP => {
                Some(signal)
            }
            _ => None,
        };
        count += 1;
        ptrace::step(pid, signal).expect("it can go on");
    }
}

/// Whether it waits for a pipe to be filled (`man 5 proc_pid_syscall`: `read`, of the file 0).
fn waits(child: &Child) -> bool {
    let said = std::fs::read_to_string(format!("/proc/{}/syscall", child.id()));
    said.is_ok_and(|said| said.starts_with("0 0x0 "))
}
