//! Bridges that show the packets within their frames to the packet filter of IP.
//!
//! Frames between two ports of a bridge meet no filter of IP unless `br_netfilter` shows them. Its
//! sysctl `net.bridge.bridge-nf-call-iptables` concerns every bridge of the host. Each bridge also
//! has a setting of its own for this, and we switch only that on: other bridges stay as they are.
//! Attachments share the setting, and the last one restores it.
//!
//! Frames with a tag are shown only if `net.bridge.bridge-nf-filter-vlan-tagged` is on. A bridge
//! that distinguishes VLANs sends such frames by its trunks, so there that sysctl is switched on too.
//! It concerns only bridges that show their packets at all.

use std::net::IpAddr;

use cni::AttachmentKey;
use cni_plugin::codes;
use kernel::route::{BridgeOptions, Change, LinkSet, RouteSocket};
use kernel::sysctl::{Sysctl, SysctlError};
use serde::{Deserialize, Serialize};
use serde_json::json;
use state::{Index, RestoreOutcome, SharedChange, SharedObject};
use wanted::ShownPackets;

use super::link::{Bridge, HostSide};
use crate::shared::drift;
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;

/// What is missing without the kernel's module.
pub(super) const NOT_LOADED: &str = "the kernel's module br_netfilter is not loaded";

/// The prefix of the names of these shared objects.
const PREFIX: &str = "frames ";
/// The name of the object that is not a bridge: no link can have this name.
const TAGGED: &str = "/tagged";

/// The sysctl by which frames with a tag are shown.
const SHOWS_TAGGED: &str = "net/bridge/bridge-nf-filter-vlan-tagged";
/// A sysctl that is there only with the module.
const OF_MODULE: &str = "net/bridge/bridge-nf-call-iptables";

/// What a bridge must show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) ipv4: bool,
    pub(super) ipv6: bool,
    /// Frames with a tag too.
    pub(super) tagged: bool,
}

/// How a bridge was before the first attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    /// Its ifindex: a later bridge may have its name.
    index: u32,
    ipv4: bool,
    ipv6: bool,
}

impl Need {
    /// Returns what a container with these addresses needs of its bridge.
    pub(super) fn of(addresses: &[IpAddr], bridge: &Bridge) -> Self {
        Need {
            ipv4: addresses.iter().any(IpAddr::is_ipv4),
            ipv6: addresses.iter().any(IpAddr::is_ipv6),
            tagged: bridge.info.vlan_filtering,
        }
    }

    /// Describes it as what an attachment wants.
    pub(super) fn wanted(self, bridge: &str) -> ShownPackets {
        let Need { ipv4, ipv6, tagged } = self;
        ShownPackets { bridge: bridge.to_owned(), ipv4, ipv6, tagged }
    }

    /// Reads it from such a description.
    pub(super) fn from_wanted(wanted: &ShownPackets) -> Self {
        Need { ipv4: wanted.ipv4, ipv6: wanted.ipv6, tagged: wanted.tagged }
    }

    /// Returns the changes that a bridge needs.
    fn changes(self, bridge: &Bridge) -> BridgeOptions {
        BridgeOptions {
            shows_ipv4: (self.ipv4 && !bridge.info.shows_ipv4).then_some(true),
            shows_ipv6: (self.ipv6 && !bridge.info.shows_ipv6).then_some(true),
            ..BridgeOptions::default()
        }
    }
}

/// Reports whether the kernel's module is loaded.
pub(super) fn is_loaded() -> bool {
    Sysctl::parse(OF_MODULE).and_then(|sysctl| sysctl.read()).is_ok()
}

/// Refuses a port of a bridge whose packets cannot be shown. Changes nothing.
///
/// # Errors
/// Code 100.
pub(super) fn require(link: &HostSide) -> Result<(), Failure> {
    let Some(bridge) = &link.bridge else { return Ok(()) };
    if is_loaded() {
        return Ok(());
    }
    let text = format!(
        "network policy cannot judge frames between the ports of bridge {:?}: {NOT_LOADED}",
        bridge.name
    );
    Err(Failure::new(codes::KERNEL, text).with_details(
        "load it when the machine starts (/etc/modules-load.d), and write \
         net.bridge.bridge-nf-call-iptables=0 and net.bridge.bridge-nf-call-ip6tables=0 if other \
         bridges are to stay as they are; or attach by ptp",
    ))
}

/// Says what differs if a bridge does not show what is needed.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub(super) fn difference(bridge: &Bridge, need: Need) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    if !is_loaded() {
        found.push(format!("bridge {:?} shows no packets: {NOT_LOADED}", bridge.name));
        return Ok(found);
    }
    let changes = need.changes(bridge);
    for (family, missing) in [("IPv4", changes.shows_ipv4), ("IPv6", changes.shows_ipv6)] {
        if missing.is_some() {
            let name = &bridge.name;
            found.push(format!(
                "bridge {name:?} does not show {family} packets between its ports to the packet filter"
            ));
        }
    }
    if need.tagged && !shows_tagged()? {
        found.push(format!("sysctl {} is off", SHOWS_TAGGED.replace('/', ".")));
    }
    Ok(found)
}

/// Makes a bridge show what is needed, and holds that for the attachment.
///
/// # Errors
/// Code 100 when the kernel refuses, 104 when the bridge is gone, 105 or 11 when our own files fail.
pub(super) fn hold(
    host: &mut RouteSocket,
    index: &Index,
    key: &AttachmentKey,
    bridge: &Bridge,
    need: Need,
) -> Result<(), Failure> {
    let object = SharedObject::new(index, object(&bridge.name));
    let held = object.hold(key, || {
        let Some(now) = Bridge::read(host, bridge.index)?.filter(|now| now.name == bridge.name)
        else {
            return Err(drift(format!("bridge {:?} is gone", bridge.name)));
        };
        let (ipv4, ipv6) = (now.info.shows_ipv4, now.info.shows_ipv6);
        let is_new = read_note(&object)?.is_none_or(|note| note.index != now.index);
        let note = is_new.then(|| json!(Note { index: now.index, ipv4, ipv6 }));
        let apply = move || {
            set(host, now.index, need.changes(&now))?;
            if need.tagged { hold_tagged(index, key) } else { Ok(()) }
        };
        Ok(Some(SharedChange { note, apply }))
    });
    held.map(drop)
}

/// Releases the bridge that an attachment holds, if there is one, and what it holds of all bridges.
/// The last attachment restores what was there.
///
/// # Errors
/// As [`hold`].
pub(super) fn release(
    index: &Index,
    key: &AttachmentKey,
    bridge: Option<&str>,
) -> Result<(), Failure> {
    let Some(bridge) = bridge else { return Ok(()) };
    release_objects(index, key, [object(bridge), tagged()])
}

/// Releases one bridge, but not the sysctl for all bridges.
///
/// # Errors
/// As [`hold`].
pub(super) fn release_bridge(
    index: &Index,
    key: &AttachmentKey,
    bridge: &str,
) -> Result<(), Failure> {
    release_object(index, key, &object(bridge))
}

/// Releases all that an attachment holds, if its record does not name the bridge.
///
/// # Errors
/// As [`hold`].
pub(super) fn release_all(index: &Index, key: &AttachmentKey) -> Result<(), Failure> {
    release_objects(index, key, objects(index))
}

fn release_objects(
    index: &Index,
    key: &AttachmentKey,
    objects: impl IntoIterator<Item = String>,
) -> Result<(), Failure> {
    let mut failures = Failures::new();
    for object in objects {
        failures.note_as_it_is(release_object(index, key, &object));
    }
    failures.into_result()
}

/// Lists the attachments that hold a bridge.
pub(super) fn holders(index: &Index) -> Vec<AttachmentKey> {
    objects(index).iter().flat_map(|object| index.holders(object).found).collect()
}

fn release_object(index: &Index, key: &AttachmentKey, object: &str) -> Result<(), Failure> {
    let shared = SharedObject::new(index, object);
    shared.release(key, || match object == tagged() {
        true => restore_tagged(&shared),
        false => restore(&shared).map(|()| RestoreOutcome::Done),
    })
}

/// Restores a bridge. We switched on what is on now, or another program did that relied on our
/// setting.
fn restore(object: &SharedObject<'_>) -> Result<(), Failure> {
    let Some(note) = read_note(object)? else { return Ok(()) };
    let mut host = RouteSocket::open()?;
    let Some(now) = Bridge::read(&mut host, note.index)? else { return Ok(()) };
    if self::object(&now.name) != object.name() {
        return Ok(());
    }
    let options = BridgeOptions {
        shows_ipv4: (now.info.shows_ipv4 && !note.ipv4).then_some(false),
        shows_ipv6: (now.info.shows_ipv6 && !note.ipv6).then_some(false),
        ..BridgeOptions::default()
    };
    match set(&mut host, now.index, options) {
        Err(_) if Bridge::read(&mut host, now.index)?.is_none() => Ok(()),
        done => done,
    }
}

fn set(host: &mut RouteSocket, ifindex: u32, bridge: BridgeOptions) -> Result<(), Failure> {
    if bridge == BridgeOptions::default() {
        return Ok(());
    }
    let set = LinkSet { bridge, ..LinkSet::default() };
    Ok(host.apply_one(&Change::SetLink { ifindex, set })?)
}

/// Switches the sysctl on, and holds it for the attachment. If it was on before an attachment of
/// ours needed it, it is left to the program that switched it on.
fn hold_tagged(index: &Index, key: &AttachmentKey) -> Result<(), Failure> {
    let object = SharedObject::new(index, tagged());
    let held = object.hold(key, || {
        let (on, ours) = (shows_tagged()?, object.has_note()?);
        if on && !ours {
            return Ok(None);
        }
        let note = (!ours).then(|| json!({ "was": "0" }));
        let apply = || Ok(Sysctl::parse(SHOWS_TAGGED)?.write_if_different("1").map(drop)?);
        Ok(Some(SharedChange { note, apply }))
    });
    held.map(drop)
}

/// Switches the sysctl off again. If the machine forbids it, the attachment ends all the same, and
/// the next one that ends tries again.
fn restore_tagged(object: &SharedObject<'_>) -> Result<RestoreOutcome, Failure> {
    if !object.has_note()? {
        return Ok(RestoreOutcome::Done);
    }
    match Sysctl::parse(SHOWS_TAGGED)?.write_if_different("0") {
        Err(error) if error.is_forbidden() => {
            tracing::warn!(%error, "it stays on");
            Ok(RestoreOutcome::Postponed)
        }
        // The module is gone, and its sysctls with it.
        Err(error) if !error.is_missing() => Err(error.into()),
        _ => Ok(RestoreOutcome::Done),
    }
}

fn shows_tagged() -> Result<bool, SysctlError> {
    Ok(Sysctl::parse(SHOWS_TAGGED)?.read()? != "0")
}

fn read_note(object: &SharedObject<'_>) -> Result<Option<Note>, Failure> {
    Ok(object.note()?.and_then(|note| Note::deserialize(note).ok()))
}

fn object(bridge: &str) -> String {
    format!("{PREFIX}{bridge}")
}

fn tagged() -> String {
    object(TAGGED)
}

fn objects(index: &Index) -> Vec<String> {
    let mut objects = index.objects().found;
    objects.retain(|object| object.starts_with(PREFIX));
    objects
}
