//! Objects of the host that several attachments share: held by each, changed by the first that needs it,
//! put back by the last.

use std::time::Duration;

use cni::{AttachmentKey, Error, code};
use cni_plugin::{Call, codes};
use kernel::route::RouteSocket;
use kernel::sysctl::{Sysctl, SysctlError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use state::{FileError, Index, LockError, Release};

use super::kernel_error;

/// How long a shared object's lock may be waited for. It is held for a few milliseconds at a time; whoever
/// holds it longer is stuck, and is named in the error.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the error object for a file of ours that failed.
#[must_use]
pub fn file_error(error: &FileError) -> Error {
    Error::from_chain(codes::STATE, error)
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

/// What becomes of a switch of ours when the last attachment leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtTheEnd {
    /// It stays on: another program may have come to rely on it.
    StaysOn,
    /// It is switched off again.
    PutBack,
}

/// Why an attachment lets go of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// Its container has lived, or nobody knows.
    Ended,
    /// Its ADD failed: nobody has relied on it.
    Undone,
}

impl Leaving {
    /// Says why one lets go that a call removes.
    #[must_use]
    pub fn of(call: &Call<'_>) -> Self {
        if call.is_undo() { Leaving::Undone } else { Leaving::Ended }
    }
}

/// In a switch's note: which attachment switched it on, by its hash.
const BY: &str = "by";

/// In a switch's note: the first other attachment that held it, an [`Other`]. `true` says that some did.
const OTHER: &str = "other";

/// In a switch's note: the interfaces that forwarded by themselves while the switch was off. Whoever writes it sets every
/// interface's own (linux net/ipv4/devinet.c `inet_forward_change`, net/ipv6/addrconf.c `addrconf_forward_change`).
const ALONE: &str = "alone";

/// In a switch's note: whether all that held it asked for [`AtTheEnd::PutBack`].
const PUT_BACK: &str = "putBack";

/// The first attachment that held a switch beside the one that switched it on, and what its hold changed in the note: if its ADD
/// is undone, the note is as it was.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Other {
    hash: String,
    put_back: bool,
}

impl Other {
    fn of(note: &Value) -> Option<Self> {
        Other::deserialize(&note[OTHER]).ok()
    }
}

/// A switch of the host that attachments need on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedSysctl {
    key: &'static str,
    /// Where interfaces have theirs.
    each: &'static str,
}

/// The name of what new interfaces begin with, beside those of interfaces.
const NEW: &str = "default";

/// IPv4 forwarding.
pub const FORWARD_V4: SharedSysctl =
    SharedSysctl { key: "net/ipv4/ip_forward", each: "net/ipv4/conf" };
/// IPv6 forwarding.
pub const FORWARD_V6: SharedSysctl =
    SharedSysctl { key: "net/ipv6/conf/all/forwarding", each: "net/ipv6/conf" };

impl SharedSysctl {
    /// How the index names it.
    #[must_use]
    pub fn object(self) -> String {
        format!("sysctl {}", self.key)
    }

    /// Its name as `sysctl` has it.
    #[must_use]
    pub fn name(self) -> String {
        self.key.replace('/', ".")
    }

    /// Switches it on and holds it for the attachment. A switch that was on before any of ours came
    /// is not ours to put back, and costs one read.
    ///
    /// It is put back at the end only if all that held it since say [`AtTheEnd::PutBack`].
    ///
    /// # Errors
    /// Code 100 when the kernel refuses, 105 or 11 when our own files do.
    pub fn hold(
        self,
        index: &Index,
        key: &AttachmentKey,
        at_the_end: AtTheEnd,
    ) -> Result<(), Error> {
        let object = self.object();
        let noted = || index.has_note(&object).map_err(|error| file_error(&error));
        if !noted()? && self.is_on()? {
            return Ok(());
        }
        let _lock = index.lock(&object, LOCK_TIMEOUT).map_err(|error| lock_error(&error))?;
        let on = self.is_on()?;
        let note = index.known_note(&object).map_err(|error| file_error(&error))?;
        // A garbled one says too that it was ours.
        let ours = note.is_some() || noted()?;
        if on && !ours {
            // Somebody else switched it on just now.
            return Ok(());
        }
        let put_back = at_the_end == AtTheEnd::PutBack;
        let hash = key.hash();
        if !ours {
            let alone = self.forward_alone()?;
            let made = json!({ "was": "0", PUT_BACK: put_back, BY: hash, ALONE: alone });
            index.note(&object, &made).map_err(|error| file_error(&error))?;
        } else if let Some(mut made) = note {
            let before = made.clone();
            let is_first = made[BY].as_str() == Some(&hash);
            if !is_first && made[OTHER].is_null() {
                made[OTHER] = json!(Other { hash, put_back: made[PUT_BACK] == true });
            }
            made[PUT_BACK] = json!(put_back && made[PUT_BACK] == true);
            if made != before {
                index.note(&object, &made).map_err(|error| file_error(&error))?;
            }
        }
        index.hold(&object, key).map_err(|error| file_error(&error))?;
        if !on {
            self.sysctl()?.write("1").map_err(refused)?;
        }
        Ok(())
    }

    /// Lists the interfaces that forward by themselves, while the switch is off.
    fn forward_alone(self) -> Result<Vec<String>, Error> {
        let links = RouteSocket::open().and_then(|mut host| host.links()).map_err(kernel_error)?;
        let names = links.into_iter().map(|link| link.name).chain([NEW.to_owned()]);
        // One that is gone by now, or has no IPv6, forwards nothing.
        let forwards = |name: &String| {
            let own = Sysctl::of_link(self.each, name, "forwarding").and_then(|own| own.read());
            own.is_ok_and(|value| value != "0")
        };
        Ok(names.filter(forwards).collect())
    }

    /// Switches it off, and interfaces on again that forwarded by themselves before.
    fn put_back(self, note: Option<&Value>) -> Result<(), Error> {
        self.sysctl()?.write_if_different("0").map_err(refused)?;
        let alone = note.and_then(|note| note[ALONE].as_array()).into_iter().flatten();
        for name in alone.filter_map(Value::as_str) {
            let own = Sysctl::of_link(self.each, name, "forwarding").map_err(refused)?;
            match own.write("1") {
                Err(error) if !error.is_missing() => return Err(refused(error)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Lets go of it. The last attachment switches it off if the first switched it on and all asked
    /// for that; otherwise it stays on, since others may rely on it by now, and that it was ours is
    /// remembered. One whose ADD is undone switches it off if it switched it on and no other has held it.
    ///
    /// # Errors
    /// As [`SharedSysctl::hold`].
    pub fn release(
        self,
        index: &Index,
        key: &AttachmentKey,
        leaving: Leaving,
    ) -> Result<(), Error> {
        let object = self.object();
        // Who holds it, or held it, holds what was switched, whatever became of the note.
        let noted = index.has_note(&object).map_err(|error| file_error(&error))?;
        if !noted && !index.holds(&object, key) {
            return Ok(());
        }
        let _lock = index.lock(&object, LOCK_TIMEOUT).map_err(|error| lock_error(&error))?;
        let released = index.release(&object, key).map_err(|error| file_error(&error))?;
        if leaving == Leaving::Undone {
            self.forget_other(index, key)?;
        }
        // Held by nobody, and yet with a note: an ADD was killed between the two.
        if released == Release::Held {
            return Ok(());
        }
        let is_own = |note: &Value| note[BY].as_str() == Some(&key.hash()) && note[OTHER].is_null();
        self.settle(index, &|note| leaving == Leaving::Undone && is_own(note))
    }

    /// Takes out of the note what the hold of an attachment changed there whose ADD is undone.
    fn forget_other(self, index: &Index, key: &AttachmentKey) -> Result<(), Error> {
        let object = self.object();
        let note = index.known_note(&object).map_err(|error| file_error(&error))?;
        let Some(mut note) = note else { return Ok(()) };
        let Some(other) = Other::of(&note).filter(|other| other.hash == key.hash()) else {
            return Ok(());
        };
        let holders = index.holders(&object).found;
        if holders.iter().all(|holder| note[BY].as_str() == Some(&holder.hash())) {
            note[PUT_BACK] = json!(other.put_back);
            if let Some(fields) = note.as_object_mut() {
                fields.remove(OTHER);
            }
        } else {
            // More have come since.
            note[OTHER] = json!(true);
        }
        index.note(&object, &note).map_err(|error| file_error(&error))
    }

    /// Settles it if nobody holds it: an ADD was killed between switching it on and its hold on it.
    ///
    /// # Errors
    /// As [`SharedSysctl::hold`].
    pub fn collect(self, index: &Index) -> Result<(), Error> {
        let object = self.object();
        if !index.has_note(&object).map_err(|error| file_error(&error))? {
            return Ok(());
        }
        let _lock = index.lock(&object, LOCK_TIMEOUT).map_err(|error| lock_error(&error))?;
        match index.is_held(&object).map_err(|error| file_error(&error))? {
            true => Ok(()),
            false => self.settle(index, &|_| false),
        }
    }

    /// Puts it back or leaves it on, as the note says, and `is_undone` of the note. Nobody holds it any more. A note of an earlier
    /// release, or a garbled one, asks for nothing.
    fn settle(self, index: &Index, is_undone: &dyn Fn(&Value) -> bool) -> Result<(), Error> {
        let object = self.object();
        let note = index.known_note(&object).map_err(|error| file_error(&error))?;
        if !note.as_ref().is_some_and(|note| note[PUT_BACK] == true || is_undone(note)) {
            return match self.is_on()? && index.has_note(&object).map_err(|e| file_error(&e))? {
                true => index.leave(&object).map_err(|error| file_error(&error)),
                false => index.take_note(&object).map(drop).map_err(|error| file_error(&error)),
            };
        }
        self.put_back(note.as_ref())?;
        index.take_note(&object).map(drop).map_err(|error| file_error(&error))
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
