//! Runs programs of this machine to their end, each with a deadline.

use std::io::{self, ErrorKind, Read};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How often to look whether a program has ended.
const LOOK: Duration = Duration::from_millis(2);

/// How long a program that has ended may leave its output open in a child process.
const REST: Duration = Duration::from_secs(1);

/// Runs a program without input, and returns what it printed. After the timeout it is killed, and
/// the error is [`ErrorKind::TimedOut`].
///
/// # Errors
/// It cannot be started or waited for, or has not ended in time. How it ended is in the output.
pub fn output(command: &mut Command, timeout: Duration) -> io::Result<Output> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let stdout = child.stdout.take().map(read);
    let stderr = child.stderr.take().map(read);
    let deadline = Instant::now() + timeout;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if deadline < Instant::now() {
            let _ = child.kill();
            let _ = child.wait();
            return Err(io::Error::new(
                ErrorKind::TimedOut,
                format!("it did not end within {} s", timeout.as_secs()),
            ));
        }
        std::thread::sleep(LOOK);
    };
    let printed = |pipe: Option<Receiver<Vec<u8>>>| {
        pipe.and_then(|pipe| pipe.recv_timeout(REST).ok()).unwrap_or_default()
    };
    Ok(Output { status, stdout: printed(stdout), stderr: printed(stderr) })
}

fn read(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error counts.
        let _ = pipe.read_to_end(&mut bytes);
        let _ = send.send(bytes);
    });
    receive
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "programs are what is tested")]
    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn more_than_a_pipe_holds_is_read() {
        let output = output(&mut sh("head -c 200000 /dev/zero; echo no >&2; exit 3"), REST * 60);
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!((output.stdout.len(), output.stderr.as_slice()), (200_000, &b"no\n"[..]));
    }

    #[test]
    fn a_program_that_does_not_end_is_killed() {
        let error = output(&mut sh("exec sleep 1000"), Duration::from_millis(20)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}
