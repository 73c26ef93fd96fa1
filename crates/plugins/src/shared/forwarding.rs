//! The host's forwarding, for containers whose packets go through it: held while one of a family is attached.

use cni::{AttachmentKey, Error, IpConfig};
use state::Index;

use super::drift;
use super::failures::Failures;
use super::shared_object::{FORWARD_V4, FORWARD_V6, HostSwitch};

const SWITCHES: [(HostSwitch, bool, &str); 2] =
    [(FORWARD_V4, true, "IPv4"), (FORWARD_V6, false, "IPv6")];

fn needed(ips: &[IpConfig]) -> impl Iterator<Item = (HostSwitch, &'static str)> {
    let has = |v4| ips.iter().any(|ip| ip.address.addr().is_ipv4() == v4);
    let switches = SWITCHES.into_iter().filter(move |(_, v4, _)| has(*v4));
    switches.map(|(switch, _, family)| (switch, family))
}

/// Switches it on for each family of the addresses, and holds it for the attachment.
///
/// # Errors
/// As [`HostSwitch::hold`].
pub fn hold(index: &Index, key: &AttachmentKey, ips: &[IpConfig]) -> Result<(), Error> {
    needed(ips).try_for_each(|(switch, _)| switch.hold(index, key))
}

/// Verifies that the host forwards what comes from the addresses and goes to them.
///
/// # Errors
/// Code 104 when it does not; as [`HostSwitch::is_on`].
pub fn check(ips: &[IpConfig]) -> Result<(), Error> {
    for (switch, family) in needed(ips) {
        if !switch.is_on()? {
            return Err(drift(format!("{family} forwarding is off")));
        }
    }
    Ok(())
}

/// Lets go of it for an attachment; the last one switches it off if the first switched it on.
pub fn release(index: &Index, key: &AttachmentKey, failures: &mut Failures) {
    for (switch, ..) in SWITCHES {
        failures.note("let go of forwarding", switch.release(index, key));
    }
}

/// Puts it back if nobody holds it.
pub fn collect(index: &Index, failures: &mut Failures) {
    for (switch, ..) in SWITCHES {
        failures.note("put back forwarding", switch.collect(index));
    }
}
