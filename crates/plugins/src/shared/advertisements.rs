//! Router advertisements on links of the host that lead to containers: a container that sends them must not become the
//! host's router (CVE-2020-10749). The switch `accept_ra` counts while the host does not forward IPv6, and at its value 2
//! always.
//!
//! A bridge's port is such a link too. The kernel gives frames to 01:80:c2:00:00:00 to :0f to the port itself and not to its
//! bridge (linux net/bridge/br_input.c `br_handle_frame`), whatever is in them.
//!
//! A kernel without IPv6 has no such switch, and takes no advertisements.

use cni::Error;
use cni_plugin::codes;
use kernel::sysctl::{Sysctl, SysctlError};

use super::drift;
use super::repair::Repair;

/// Value of the switch with which no advertisement is taken.
const REFUSED: &str = "0";

/// Returns the value of a link's switch if it takes advertisements.
#[must_use]
pub fn taken_by(ifname: &str) -> Option<String> {
    switch(ifname).and_then(|switch| switch.read()).ok().filter(|value| value != REFUSED)
}

/// Has a link take none.
///
/// # Errors
/// Code 100 when the kernel refuses. Where there is no such switch nothing is taken, which is success.
pub fn refuse(ifname: &str) -> Result<(), Error> {
    match switch(ifname).and_then(|switch| switch.write(REFUSED)) {
        Err(error) if !error.is_missing() => Err(Error::from_chain(codes::KERNEL, &error)),
        _ => Ok(()),
    }
}

/// Gives a link its switch back, unless somebody else has changed it since.
///
/// # Errors
/// Code 100 when the kernel refuses. A link that is gone is success.
pub fn put_back(ifname: &str, was: &str) -> Result<(), Error> {
    let done = switch(ifname).and_then(|switch| match switch.read()?.as_str() {
        REFUSED => switch.write(was),
        _ => Ok(()),
    });
    match done {
        Err(error) if !error.is_missing() => Err(Error::from_chain(codes::KERNEL, &error)),
        _ => Ok(()),
    }
}

/// Verifies that a link takes none.
///
/// # Errors
/// Code 104 when it does.
pub fn check(ifname: &str) -> Result<(), Error> {
    match taken_by(ifname) {
        Some(value) => Err(drift(format!(
            "link {ifname:?} takes router advertisements from containers (accept_ra is {value})"
        ))),
        None => Ok(()),
    }
}

/// Has a link of ours take none again.
pub fn refuse_again(ifname: &str, repair: &mut Repair) {
    if let Err(drift) = check(ifname) {
        let done = switch(ifname).and_then(|switch| switch.write(REFUSED));
        let done = done.map_err(|error| Error::from_chain(codes::KERNEL, &error));
        repair.note(super::repair::told(&drift), done);
    }
}

fn switch(ifname: &str) -> Result<Sysctl, SysctlError> {
    Sysctl::of_link("net/ipv6/conf", ifname, "accept_ra")
}
