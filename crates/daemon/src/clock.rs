//! The clocks, as the DHCP clients read them.

use dhcp::{Now, Timestamp, UnixTime};
use service_kit::clock::{boot_ms, wall_ms};
pub(crate) use service_kit::clock::{rfc3339, seed};

/// Reads both clocks.
pub(crate) fn now() -> Now {
    Now { at: Timestamp::from_millis(boot_ms()), wall: UnixTime::from_millis(wall_ms()) }
}
