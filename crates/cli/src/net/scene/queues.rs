//! Reads which packet queues have a program that reads them (nfnetlink_queue).

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// What the kernel shows of the packet filter of the calling thread's namespace.
const FOLDER: &str = "/proc/thread-self/net/netfilter";

/// Returns the numbers of the queues in the calling thread's namespace that a program reads. A
/// kernel that has not loaded the module for queues shows none, and drops the packets for them.
///
/// # Errors
/// Why that is not known.
pub(super) fn read() -> Result<Vec<u16>, String> {
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

/// Reads a line for each queue, which begins with its number (linux
/// net/netfilter/nfnetlink_queue.c `seq_show`).
fn parse(text: &str) -> Vec<u16> {
    let number = |line: &str| line.split_whitespace().next()?.parse().ok();
    text.lines().filter_map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_queue_has_a_line() {
        let shown = "    7  12345     0 2 65535     0     0        0  1\n\
                     65535 4294963159     3 2 65535     0     0      112  1\n";
        assert_eq!(parse(shown), [7, 65535]);
        assert_eq!(parse(""), [0_u16; 0]);
    }
}
