//! Router advertisements on host links that lead to containers. A container that sends them must
//! not become the host's router (CVE-2020-10749). The sysctl `accept_ra` takes effect while the
//! host does not forward IPv6, and with the value 2 always.
//!
//! A bridge port is such a link too. The kernel delivers frames to 01:80:c2:00:00:00 to :0f, with
//! any content, to the port itself and not to its bridge (linux net/bridge/br_input.c
//! `br_handle_frame`).
//!
//! A kernel without IPv6 does not have this sysctl, and accepts no advertisements.

use cni_plugin::codes;
use kernel::sysctl::{Sysctl, SysctlError};

use super::failure::Failure;

/// The value of the sysctl with which the kernel accepts no advertisement.
const REFUSED: &str = "0";

/// Returns the value of a link's sysctl if the link accepts advertisements.
///
/// # Errors
/// Code 100 when the kernel does not tell. A link that is gone accepts none.
pub fn accepting_value(ifname: &str) -> Result<Option<String>, Failure> {
    match accept_ra(ifname).and_then(|sysctl| sysctl.read()) {
        Ok(value) => Ok(Some(value).filter(|value| value != REFUSED)),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Makes a link accept none.
///
/// # Errors
/// Code 100 when the kernel refuses. Without this sysctl the kernel accepts nothing, which is
/// success.
pub fn refuse(ifname: &str) -> Result<(), Failure> {
    match accept_ra(ifname).and_then(|sysctl| sysctl.write(REFUSED)) {
        Err(error) if !error.is_missing() => Err(error.into()),
        _ => Ok(()),
    }
}

/// Restores a link's sysctl, unless another program has changed it since.
///
/// # Errors
/// Code 100 when the kernel refuses. A link that is gone is success.
pub fn restore(ifname: &str, was: &str) -> Result<(), Failure> {
    let done = accept_ra(ifname).and_then(|sysctl| match sysctl.read()?.as_str() {
        REFUSED => sysctl.write(was),
        _ => Ok(()),
    });
    match done {
        Err(error) if !error.is_missing() => Err(Failure::from_chain(codes::KERNEL, &error)),
        _ => Ok(()),
    }
}

/// Describes what is wrong if a link accepts advertisements.
///
/// # Errors
/// As [`accepting_value`].
pub fn check(ifname: &str) -> Result<Option<String>, Failure> {
    let found = accepting_value(ifname)?;
    Ok(found.map(|value| {
        format!(
            "link {ifname:?} takes router advertisements from containers (accept_ra is {value})"
        )
    }))
}

fn accept_ra(ifname: &str) -> Result<Sysctl, SysctlError> {
    Sysctl::of_link("net/ipv6/conf", ifname, "accept_ra")
}
