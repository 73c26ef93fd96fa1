//! The clocks, as the DHCP clients read them.

use dhcp::{Now, Timestamp, UnixTime};
pub(crate) use service_kit::clock::seed;
use service_kit::clock::{boot_ms, wall_ms};

/// Reads both clocks.
pub(crate) fn now() -> Now {
    Now { at: Timestamp::from_millis(boot_ms()), wall: UnixTime::from_millis(wall_ms()) }
}
