//! Objects of the host that several attachments share: held by each, changed by the first that needs it,
//! put back by the last.

use std::time::Duration;

use cni::{AttachmentKey, Error, code};
use cni_plugin::codes;
use kernel::sysctl::{Sysctl, SysctlError};
use serde_json::json;
use state::{FileError, Index, LockError, Release};

/// How long a shared object's lock may be waited for. It is held for a few milliseconds at a time; whoever
/// holds it longer is stuck, and is named in the error.
pub const LOCK_PATIENCE: Duration = Duration::from_secs(30);

/// Returns the error object for a file of ours that failed.
#[must_use]
pub fn file_error(error: &FileError) -> Error {
    Error::from_chain(codes::STATE, error).with_details("check space and permissions of that path")
}

/// Returns the error object for a lock that was not to be had.
#[must_use]
pub fn lock_error(error: &LockError) -> Error {
    let code = if error.is_busy() { code::TRY_AGAIN_LATER } else { codes::STATE };
    Error::from_chain(code, error)
}

/// Lists the attachments of a network that hold something that is not the firewall's, which collects its own.
#[must_use]
pub fn holders_of_network(index: &Index, network: &str) -> Vec<AttachmentKey> {
    let objects = index.objects().found;
    let held = objects.iter().filter(|object| HELD.iter().any(|kind| object.starts_with(kind)));
    let holders = held.flat_map(|object| index.holders(object).found);
    holders.filter(|key| key.network.as_str() == network).collect()
}

/// How the names of what [`holders_of_network`] looks at begin.
const HELD: [&str; 2] = ["bridge ", "sysctl "];

/// A switch of the host that attachments need on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostSwitch {
    key: &'static str,
}

/// IPv4 forwarding.
pub const FORWARD_V4: HostSwitch = HostSwitch { key: "net/ipv4/ip_forward" };
/// IPv6 forwarding.
pub const FORWARD_V6: HostSwitch = HostSwitch { key: "net/ipv6/conf/all/forwarding" };

impl HostSwitch {
    fn object(self) -> String {
        format!("sysctl {}", self.key)
    }

    /// Switches it on and holds it for the attachment. A switch that was on before any of ours came is
    /// nobody's to put back and costs one read.
    ///
    /// # Errors
    /// Code 100 when the kernel refuses, 105 or 11 when our own files do.
    pub fn hold(self, index: &Index, key: &AttachmentKey) -> Result<(), Error> {
        let object = self.object();
        let noted = || index.has_note(&object).map_err(|error| file_error(&error));
        if !noted()? && self.is_on()? {
            return Ok(());
        }
        let _lock = index.lock(&object, LOCK_PATIENCE).map_err(|error| lock_error(&error))?;
        let on = self.is_on()?;
        if on && !noted()? {
            // Somebody else switched it on just now.
            return Ok(());
        }
        if !on {
            index.note(&object, &json!({ "was": "0" })).map_err(|error| file_error(&error))?;
        }
        index.hold(&object, key).map_err(|error| file_error(&error))?;
        if !on {
            self.sysctl()?.write("1").map_err(refused)?;
        }
        Ok(())
    }

    /// Lets go of it; the last attachment switches it off if the first switched it on.
    ///
    /// # Errors
    /// As [`HostSwitch::hold`].
    pub fn release(self, index: &Index, key: &AttachmentKey) -> Result<(), Error> {
        let object = self.object();
        // Who holds it, or held it, holds what was switched, whatever became of the note.
        let noted = index.has_note(&object).map_err(|error| file_error(&error))?;
        if !noted && !index.holds(&object, key) {
            return Ok(());
        }
        let _lock = index.lock(&object, LOCK_PATIENCE).map_err(|error| lock_error(&error))?;
        // Held by nobody, and yet with a note: an ADD was killed between the two.
        if let Release::Held = index.release(&object, key).map_err(|error| file_error(&error))? {
            return Ok(());
        }
        self.put_back(index)
    }

    /// Puts it back if nobody holds it: an ADD was killed between switching it on and its hold on it.
    ///
    /// # Errors
    /// As [`HostSwitch::hold`].
    pub fn collect(self, index: &Index) -> Result<(), Error> {
        let object = self.object();
        if !index.has_note(&object).map_err(|error| file_error(&error))? {
            return Ok(());
        }
        let _lock = index.lock(&object, LOCK_PATIENCE).map_err(|error| lock_error(&error))?;
        match index.is_held(&object).map_err(|error| file_error(&error))? {
            true => Ok(()),
            false => self.put_back(index),
        }
    }

    fn put_back(self, index: &Index) -> Result<(), Error> {
        self.sysctl()?.write_if_different("0").map_err(refused)?;
        index.take_note(&self.object()).map(drop).map_err(|error| file_error(&error))
    }

    /// Says whether it is on.
    ///
    /// # Errors
    /// Code 100 when the kernel refuses to tell.
    pub fn is_on(self) -> Result<bool, Error> {
        self.sysctl()?.read().map(|value| value != "0").map_err(refused)
    }

    fn sysctl(self) -> Result<Sysctl, Error> {
        Sysctl::parse(self.key).map_err(refused)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn refused(error: SysctlError) -> Error {
    Error::from_chain(codes::KERNEL, &error)
}
