//! Waits for duplicate address detection.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::place::Place;

/// The flag of an address under detection (linux include/uapi/linux/if_addr.h `IFA_F_TENTATIVE`).
const TENTATIVE: u32 = 0x40;

/// How often the table is read.
const PAUSE: Duration = Duration::from_millis(20);

/// Waits until no IPv6 address of a place is under duplicate address detection, but no longer than
/// `most`. Detection takes a second or two, and does not end on a link without a carrier. Starts no
/// program.
pub fn wait_for_detection(place: &impl Place, most: Duration) {
    place.enter(|| {
        let end = Instant::now() + most;
        while is_detecting() && Instant::now() < end {
            thread::sleep(PAUSE);
        }
    });
}

/// Reads the table of the calling thread's namespace. A line has the address, the link's index, the
/// length of the prefix, the scope and the flags, all in hexadecimal, and the link's name.
fn is_detecting() -> bool {
    let table = fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default();
    let flags = |line: &str| u32::from_str_radix(line.split_whitespace().nth(4)?, 16).ok();
    table.lines().filter_map(flags).any(|flags| flags & TENTATIVE != 0)
}
