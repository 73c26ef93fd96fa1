//! The clocks, and the kernel's randomness.

use dhcp::{Now, Timestamp, UnixTime};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Reads both clocks.
pub(crate) fn now() -> Now {
    Now {
        at: Timestamp::from_millis(millis(clock_gettime(ClockId::Boottime))),
        wall: UnixTime::from_millis(millis(clock_gettime(ClockId::Realtime))),
    }
}

fn millis(time: Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(time.tv_nsec).unwrap_or_default();
    seconds.saturating_mul(1000).saturating_add(nanos / 1_000_000)
}

/// Returns a number that no other caller gets.
pub(crate) fn seed() -> u64 {
    let mut octets = [0; 8];
    // Early in a boot the kernel may have no randomness yet. Then the time serves, as nothing here
    // is secret.
    match rustix::rand::getrandom(&mut octets, rustix::rand::GetRandomFlags::NONBLOCK) {
        Ok(8) => u64::from_ne_bytes(octets),
        _ => now().wall.as_millis().rotate_left(32) ^ now().at.as_millis(),
    }
}
