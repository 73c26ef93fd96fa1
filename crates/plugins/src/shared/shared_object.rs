//! Objects of the host that several attachments share. Each attachment holds the object, the first
//! that needs it changes it, and the last restores it.

use cni::AttachmentKey;
use cni_plugin::{Call, codes};
use kernel::route::RouteSocket;
use kernel::routers::{self, Listener};
use kernel::sysctl::{Sysctl, SysctlError};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use state::{Index, RestoreOutcome, SharedChange, SharedObject};

use super::failure::Failure;
use super::readiness;

/// Lists the attachments of a network that hold an object. Those of the firewall are left out: it
/// collects its own.
#[must_use]
pub fn holders_of_network(index: &Index, network: &str) -> Vec<AttachmentKey> {
    let objects = index.objects().found;
    let held = objects.iter().filter(|object| HELD.iter().any(|kind| object.starts_with(kind)));
    let holders = held.flat_map(|object| index.holders(object).found);
    holders.filter(|key| key.network.as_str() == network).collect()
}

/// The prefixes of the names that [`holders_of_network`] considers.
const HELD: [&str; 2] = ["bridge ", "sysctl "];

/// What becomes of a sysctl of ours when the last attachment leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtTheEnd {
    /// It stays on: another program may rely on it by now.
    Keep,
    /// It is switched off again.
    Restore,
}

/// Why an attachment releases a sysctl.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseReason {
    /// Its container has lived, or that is unknown.
    Ended,
    /// Its ADD failed: no other program has relied on it.
    Undone,
}

impl ReleaseReason {
    /// Returns why an attachment that a call removes releases it.
    #[must_use]
    pub fn of(call: &Call<'_>) -> Self {
        if call.is_undo() { ReleaseReason::Undone } else { ReleaseReason::Ended }
    }
}

/// In a sysctl's note: the hash of the attachment that switched it on.
const BY: &str = "by";

/// In a sysctl's note: the first other attachment that held it, a [`SecondHolder`]. `true` says that
/// some did.
const OTHER: &str = "other";

/// In a sysctl's note: the interfaces that forwarded by themselves while the sysctl was off.
/// Writing it sets every interface's own (linux net/ipv4/devinet.c `inet_forward_change`,
/// net/ipv6/addrconf.c `addrconf_forward_change`).
const ALONE: &str = "alone";

/// In a sysctl's note: the links whose `accept_ra` was set from 1 to 2 before the sysctl was switched
/// on, or while it is on ([`routers`]).
const LISTENING: &str = "listening";

/// In a sysctl's note: the ifindexes of those links, by name. A link that has the name later is
/// another one.
const LISTENING_AT: &str = "listeningAt";

/// In a sysctl's note: whether all that held it asked for [`AtTheEnd::Restore`].
const RESTORE: &str = "putBack";

/// The first attachment that held a sysctl besides the one that switched it on, and what its hold
/// changed in the note. An ADD that is undone restores the note from this.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SecondHolder {
    hash: String,
    #[serde(rename = "putBack")]
    restore: bool,
}

impl SecondHolder {
    fn of(note: &Value) -> Option<Self> {
        SecondHolder::deserialize(&note[OTHER]).ok()
    }
}

/// A sysctl of the host that attachments need on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedSysctl {
    key: &'static str,
    /// The folder of the interfaces' own values.
    each: &'static str,
}

/// The name of the value for all interfaces, among the names of interfaces.
const ALL: &str = "all";

/// IPv4 forwarding.
pub const FORWARD_V4: SharedSysctl =
    SharedSysctl { key: "net/ipv4/ip_forward", each: "net/ipv4/conf" };
/// IPv6 forwarding.
pub const FORWARD_V6: SharedSysctl =
    SharedSysctl { key: routers::FORWARDING, each: "net/ipv6/conf" };

impl SharedSysctl {
    /// Returns its name in the index.
    #[must_use]
    pub fn object(self) -> String {
        format!("sysctl {}", self.key)
    }

    fn shared(self, index: &Index) -> SharedObject<'_> {
        SharedObject::new(index, self.object())
    }

    /// Returns its name as `sysctl` spells it.
    #[must_use]
    pub fn name(self) -> String {
        self.key.replace('/', ".")
    }

    /// Switches it on and holds it for the attachment. If it was on before any of ours needed it,
    /// we do not restore it, and it costs one read. Links that listen to routers go on listening
    /// beside it ([`routers`]), for as long as it is on.
    ///
    /// It is restored at the end only if all that held it since ask for [`AtTheEnd::Restore`].
    ///
    /// # Errors
    /// Code 100 when the kernel refuses, 105 or 11 when our own files fail.
    pub fn hold(
        self,
        index: &Index,
        key: &AttachmentKey,
        at_the_end: AtTheEnd,
    ) -> Result<(), Failure> {
        let object = self.shared(index);
        if !object.has_note()? && self.is_on()? {
            return Ok(());
        }
        let held = object.hold(key, || {
            let on = self.is_on()?;
            let before = object.note()?;
            // A damaged note also means that the sysctl was ours.
            let ours = before.is_some() || object.has_note()?;
            if on && !ours {
                // Another program switched it on just now.
                return Ok(None);
            }
            let listening = if on { Vec::new() } else { self.listening()? };
            let restore = at_the_end == AtTheEnd::Restore;
            let mut note = match &before {
                Some(before) => Some(with_holder(before.clone(), key, restore)),
                None if ours => None,
                None => {
                    let (hash, alone) = (key.hash(), self.forward_alone()?);
                    Some(json!({ "was": "0", RESTORE: restore, BY: hash, ALONE: alone }))
                }
            };
            if let Some(note) = &mut note {
                remember(note, &listening);
            }
            let note = note.filter(|note| before.as_ref() != Some(note));
            Ok(Some(SharedChange { note, apply: move || self.switch_on(on, &listening) }))
        });
        held.map(drop)
    }

    fn switch_on(self, on: bool, listening: &[Listener]) -> Result<(), Failure> {
        for one in listening {
            routers::keep(&one.link)?;
        }
        if on {
            return Ok(());
        }
        self.sysctl()?.write("1").map_err(|error| match error.is_forbidden() {
            true => self.unwritable(),
            false => refused(error),
        })
    }

    /// Refuses it if it is off and cannot be switched on because `/proc/sys` is read-only.
    ///
    /// # Errors
    /// As [`SharedSysctl::hold`].
    pub(crate) fn refuse_unwritable(self) -> Result<(), Failure> {
        let sysctl = self.sysctl()?;
        match !self.is_on()? && sysctl.is_read_only() {
            true => Err(self.unwritable()),
            false => Ok(()),
        }
    }

    /// Names the command. It keeps links listening to routers as ADD would.
    fn unwritable(self) -> Failure {
        let what = format!("the host does not forward ({} is 0)", self.name());
        let listening = self.listening().unwrap_or_default();
        let mut by_hand: Vec<String> =
            listening.iter().filter_map(|one| routers::by_hand(&one.link)).collect();
        by_hand.push(format!("{}=1", self.name()));
        readiness::unwritable(&what, &by_hand.join(" "))
    }

    /// Lists the links that would ignore routers once the sysctl is on.
    fn listening(self) -> Result<Vec<Listener>, Failure> {
        if self != FORWARD_V6 {
            return Ok(Vec::new());
        }
        Ok(RouteSocket::open().and_then(|mut host| routers::listening(&mut host))?)
    }

    /// Lists the interfaces that forward by themselves while the sysctl is off.
    fn forward_alone(self) -> Result<Vec<String>, Failure> {
        let mut alone = Vec::new();
        for name in Sysctl::links_in(self.each).map_err(refused)? {
            if name == ALL {
                continue;
            }
            let own = Sysctl::of_link(self.each, &name, "forwarding").and_then(|own| own.read());
            match own {
                Ok(value) if value != "0" => alone.push(name),
                // An interface that is gone by now, or has no IPv6, forwards nothing.
                Err(error) if !error.is_missing() => return Err(refused(error)),
                _ => {}
            }
        }
        Ok(alone)
    }

    /// Switches it off, switches those interfaces on again that forwarded by themselves before, and
    /// restores how links listen to routers. If the machine forbids it, the attachment ends all the
    /// same, and the next one that ends, or GC, tries again.
    fn restore(self, note: Option<&Value>) -> Result<RestoreOutcome, Failure> {
        match self.sysctl()?.write_if_different("0") {
            Err(error) if error.is_forbidden() => {
                tracing::warn!(%error, "it stays on");
                return Ok(RestoreOutcome::Postponed);
            }
            done => done.map_err(refused)?,
        };
        for link in names_in(note, LISTENING) {
            routers::restore(link).map_err(refused)?;
        }
        for name in names_in(note, ALONE) {
            let own = Sysctl::of_link(self.each, name, "forwarding").map_err(refused)?;
            match own.write("1") {
                Err(error) if !error.is_missing() => return Err(refused(error)),
                _ => {}
            }
        }
        Ok(RestoreOutcome::Done)
    }

    /// Releases it. The last attachment switches it off if the first switched it on and all asked
    /// for that. Otherwise it stays on, since others may rely on it by now, and the index remembers
    /// that it was ours. An attachment whose ADD is undone switches it off if it switched it on and
    /// no other has held it.
    ///
    /// # Errors
    /// As [`SharedSysctl::hold`].
    pub fn release(
        self,
        index: &Index,
        key: &AttachmentKey,
        leaving: ReleaseReason,
    ) -> Result<(), Failure> {
        let object = self.shared(index);
        if !index.may_exist(object.name())? {
            return Ok(());
        }
        let _lock = object.lock()?;
        let released = index.release(object.name(), key)?;
        if leaving == ReleaseReason::Undone {
            self.forget_other(index, key)?;
        }
        let is_own = |note: &Value| note[BY].as_str() == Some(&key.hash()) && note[OTHER].is_null();
        let is_undone = |note: &Value| leaving == ReleaseReason::Undone && is_own(note);
        object.settle(released, || self.restore_if_due(&object, &is_undone))
    }

    /// Removes from the note what the hold of an attachment changed there, after its ADD is undone.
    fn forget_other(self, index: &Index, key: &AttachmentKey) -> Result<(), Failure> {
        let object = self.object();
        let note = index.known_note(&object)?;
        let Some(mut note) = note else { return Ok(()) };
        let Some(other) = SecondHolder::of(&note).filter(|other| other.hash == key.hash()) else {
            return Ok(());
        };
        let holders = index.holders(&object).found;
        if holders.iter().all(|holder| note[BY].as_str() == Some(&holder.hash())) {
            note[RESTORE] = json!(other.restore);
            if let Some(fields) = note.as_object_mut() {
                fields.remove(OTHER);
            }
        } else {
            // More have come since.
            note[OTHER] = json!(true);
        }
        Ok(index.note(&object, &note)?)
    }

    /// Settles it if no attachment holds it: an ADD was killed between switching it on and holding
    /// it.
    ///
    /// # Errors
    /// As [`SharedSysctl::hold`].
    pub fn collect(self, index: &Index) -> Result<(), Failure> {
        let object = self.shared(index);
        object.collect(|| self.restore_if_due(&object, &|_| false))
    }

    /// Restores it or leaves it on, as the note says and as `is_undone` says of the note. A note of an
    /// earlier release, or a damaged one, asks for nothing.
    fn restore_if_due(
        self,
        object: &SharedObject<'_>,
        is_undone: &dyn Fn(&Value) -> bool,
    ) -> Result<RestoreOutcome, Failure> {
        let note = object.note()?;
        if note.as_ref().is_some_and(|note| note[RESTORE] == true || is_undone(note)) {
            return self.restore(note.as_ref());
        }
        Ok(match self.is_on()? && object.has_note()? {
            true => RestoreOutcome::Left,
            false => RestoreOutcome::Done,
        })
    }

    /// Returns whether it is on.
    ///
    /// # Errors
    /// Code 100 when the kernel refuses to report it.
    pub fn is_on(self) -> Result<bool, Failure> {
        self.sysctl()?.read().map(|value| value != "0").map_err(refused)
    }

    fn sysctl(self) -> Result<Sysctl, Failure> {
        Sysctl::parse(self.key).map_err(refused)
    }
}

/// Lists the links that came after the host began to forward IPv6 because of us, and so ignore routers.
/// Those that an administrator has set back are not among them.
///
/// # Errors
/// As [`SharedSysctl::hold`].
pub fn links_that_ignore_routers(index: &Index) -> Result<Vec<String>, Failure> {
    let object = FORWARD_V6.shared(index);
    if !object.has_note()? || !FORWARD_V6.is_on()? {
        return Ok(Vec::new());
    }
    let note = object.note()?;
    let found = note.map_or_else(|| Ok(Vec::new()), |note| newly_ignoring(&note))?;
    Ok(found.into_iter().map(|one| one.link).collect())
}

/// Makes the links of [`links_that_ignore_routers`] listen, and returns their names.
///
/// # Errors
/// As [`SharedSysctl::hold`].
pub fn listen_on_new_links(index: &Index) -> Result<Vec<String>, Failure> {
    if links_that_ignore_routers(index)?.is_empty() {
        return Ok(Vec::new());
    }
    let object = FORWARD_V6.shared(index);
    let _lock = object.lock()?;
    let Some(mut note) = object.note()? else { return Ok(Vec::new()) };
    let new = newly_ignoring(&note)?;
    remember(&mut note, &new);
    index.note(object.name(), &note)?;
    for one in &new {
        routers::keep(&one.link)?;
    }
    Ok(new.into_iter().map(|one| one.link).collect())
}

/// Lists the links that ignore routers and are not in the note, or are other links than those that had
/// the names.
fn newly_ignoring(note: &Value) -> Result<Vec<Listener>, Failure> {
    let mut found = RouteSocket::open().and_then(|mut host| routers::ignoring(&mut host))?;
    found.retain(|one| {
        let known = names_in(Some(note), LISTENING).any(|name| name == one.link);
        let at = note[LISTENING_AT][&one.link].as_u64();
        !known || at.is_some_and(|at| at != u64::from(one.ifindex))
    });
    Ok(found)
}

/// Adds to a sysctl's note what another attachment that holds it asks for.
fn with_holder(mut note: Value, key: &AttachmentKey, restore: bool) -> Value {
    let hash = key.hash();
    if note[BY].as_str() != Some(&hash) && note[OTHER].is_null() {
        note[OTHER] = json!(SecondHolder { hash, restore: note[RESTORE] == true });
    }
    note[RESTORE] = json!(restore && note[RESTORE] == true);
    note
}

/// Adds links to those in a sysctl's note that go on listening to routers.
fn remember(note: &mut Value, listening: &[Listener]) {
    if listening.is_empty() {
        return;
    }
    let mut all: Vec<String> = names_in(Some(note), LISTENING).map(str::to_owned).collect();
    let mut at = note[LISTENING_AT].as_object().cloned().unwrap_or_else(Map::new);
    for one in listening {
        if !all.contains(&one.link) {
            all.push(one.link.clone());
        }
        at.insert(one.link.clone(), json!(one.ifindex));
    }
    note[LISTENING] = json!(all);
    note[LISTENING_AT] = json!(at);
}

/// Returns the names in a list of a sysctl's note.
fn names_in<'n>(note: Option<&'n Value>, list: &str) -> impl Iterator<Item = &'n str> {
    let names = note.and_then(|note| note[list].as_array());
    names.into_iter().flatten().filter_map(Value::as_str)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn refused(error: SysctlError) -> Failure {
    Failure::from_chain(codes::KERNEL, &error)
}
