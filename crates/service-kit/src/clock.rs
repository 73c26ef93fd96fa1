//! The clocks, and the kernel's randomness.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Returns the time since the machine started, in milliseconds. It counts while the machine sleeps.
pub fn boot_ms() -> u64 {
    millis(clock_gettime(ClockId::Boottime))
}

/// Returns the time since 1970, in milliseconds. The clock may jump.
pub fn wall_ms() -> u64 {
    millis(clock_gettime(ClockId::Realtime))
}

/// Returns a time as Kubernetes' API writes it (RFC 3339, whole seconds), from milliseconds since
/// 1970.
pub fn rfc3339(millis: u64) -> String {
    let seconds = i64::try_from(millis / 1000).unwrap_or_default();
    jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string()
}

fn millis(time: Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(time.tv_nsec).unwrap_or_default();
    seconds.saturating_mul(1000).saturating_add(nanos / 1_000_000)
}

/// Returns a random number: no two callers get the same one.
pub fn seed() -> u64 {
    let mut octets = [0; 8];
    // Early in a boot the kernel may have no randomness yet. Then the time serves, as nothing here
    // is secret.
    match rustix::rand::getrandom(&mut octets, rustix::rand::GetRandomFlags::NONBLOCK) {
        Ok(8) => u64::from_ne_bytes(octets),
        _ => wall_ms().rotate_left(32) ^ boot_ms(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_as_the_api_has_them() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_400_000), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(1_795_296_896_123), "2026-11-21T21:34:56Z");
    }
}
