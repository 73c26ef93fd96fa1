//! Reads which packet queues have a program that reads them (nfnetlink_queue), and which of these
//! programs do not judge.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// What the kernel shows of the packet filter of the calling thread's namespace.
const FOLDER: &str = "/proc/thread-self/net/netfilter";

/// How often a queue in which packets wait is looked at once more, and the time between. A program
/// that judges no packet meanwhile is not busy.
const LOOKS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(50);

/// How many packets may wait (linux net/netfilter/nfnetlink_queue.c `NFQNL_QMAX_DEFAULT`). What comes
/// then is dropped, or passes if the program wants that (NFQA_CFG_F_FAIL_OPEN).
const MOST: u32 = 1024;

/// The queues of a namespace.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Queues {
    /// Those that a program reads.
    pub(super) read: Vec<u16>,
    /// Those of them in which packets wait, and of which the program judges none.
    pub(super) stuck: Vec<u16>,
}

/// A queue at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Queue {
    number: u16,
    /// How many packets wait.
    waiting: u32,
    /// How many packets were dropped since too many waited.
    dropped: u32,
    /// How many packets have left it: they were judged.
    judged: u32,
}

impl Queue {
    /// Says whether packets wait, and may not pass because too many do.
    fn holds(&self) -> bool {
        0 < self.waiting && (self.waiting < MOST || 0 < self.dropped)
    }

    /// Says whether nothing was judged since a look before.
    fn is_as_before(&self, before: &Queue) -> bool {
        self.number == before.number && self.judged == before.judged && self.holds()
    }
}

/// Returns the queues in the calling thread's namespace that a program reads. A kernel that has not
/// loaded the module for queues shows none, and drops the packets for them.
///
/// # Errors
/// Why that is not known.
pub(super) fn read() -> Result<Queues, String> {
    let all = shown()?;
    let mut stuck: Vec<Queue> = all.iter().copied().filter(Queue::holds).collect();
    for _ in 0..LOOKS {
        if stuck.is_empty() {
            break;
        }
        thread::sleep(PAUSE);
        let now = shown()?;
        stuck.retain(|before| now.iter().any(|queue| queue.is_as_before(before)));
    }
    let numbers = |queues: &[Queue]| queues.iter().map(|queue| queue.number).collect();
    Ok(Queues { read: numbers(&all), stuck: numbers(&stuck) })
}

fn shown() -> Result<Vec<Queue>, String> {
    let path = Path::new(FOLDER).join("nfnetlink_queue");
    match fs::read_to_string(&path) {
        Ok(text) => Ok(parse(&text)),
        Err(error) if error.kind() == ErrorKind::NotFound && Path::new(FOLDER).exists() => {
            Ok(Vec::new())
        }
        Err(error) => {
            let what = "whether a program reads the queue that a rule fills is not known";
            Err(format!("{what}: {}: {error}", path.display()))
        }
    }
}

/// Reads a line for each queue: its number, the port of its reader, how many packets wait, how they
/// are copied, how many were dropped since too many waited, and how many since the reader could not
/// be told, and the number of the last packet (linux net/netfilter/nfnetlink_queue.c `seq_show`).
fn parse(text: &str) -> Vec<Queue> {
    let queue = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let field = |at: usize| fields.get(at)?.parse::<u32>().ok();
        let (waiting, lost, last) = (field(2)?, field(6)?, field(7)?);
        Some(Queue {
            number: fields.first()?.parse().ok()?,
            waiting,
            dropped: field(5)?,
            judged: last.wrapping_sub(waiting).wrapping_sub(lost),
        })
    };
    text.lines().filter_map(queue).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_queue_has_a_line() {
        let shown = "    7  12345     0 2 65535     0     0        0  1\n\
                     65535 4294963159     3 2 65535     0     2      112  1\n";
        let queue = |number, waiting, judged| Queue { number, waiting, dropped: 0, judged };
        assert_eq!(parse(shown), [queue(7, 0, 0), queue(65535, 3, 107)]);
        assert_eq!(parse(""), []);
    }

    #[test]
    fn a_queue_is_stuck_while_packets_wait_and_none_is_judged() {
        let queue = |waiting, judged| Queue { number: 7, waiting, dropped: 0, judged };
        assert!(queue(5, 40).is_as_before(&queue(3, 40)));
        assert!(!queue(5, 41).is_as_before(&queue(3, 40)));
        assert!(!queue(0, 40).is_as_before(&queue(3, 40)));
        // Further packets may pass it.
        assert!(!queue(MOST, 40).holds());
        assert!(Queue { dropped: 1, ..queue(MOST, 40) }.holds());
    }
}
