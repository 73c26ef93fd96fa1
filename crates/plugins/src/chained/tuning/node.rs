//! The kernel and the files: reads them and applies steps.

use cni::{AttachmentKey, IfName, code};
use cni_plugin::{Call, codes};
use kernel::netns::Netns;
use kernel::route::{Change, Link, LinkSet, RouteSocket};
use kernel::sysctl::{Sysctl as KernelSysctl, SysctlError};
use serde_json::json;
use state::{Index, Record, Release};

use super::config::{Config, LinkValues, Sysctl};
use super::plan::{Apply, LinkState, RecordData, Step, SysctlState};
use super::sysctl::{self, is_of_interface, same_value};
use crate::shared::attachment;
use crate::shared::failure::Failure;

/// The plugin's name in the index.
pub(super) const PLUGIN: &str = super::INFO.name;

/// Why a sysctl may not exist.
pub(super) const MISSING: &str =
    "its kernel module may not be loaded, or its interface not be there";

/// The prefix of the names of a container's sysctls in the index. The container's ID, a colon and
/// the path follow.
const CLAIM: &str = "sysctl:";

/// One attachment's part of the node. Sysctls are those of the calling thread's namespace; the link
/// is in the namespace that the socket was opened in.
pub(super) struct Node<'a> {
    call: &'a Call<'a>,
    index: Index,
    key: AttachmentKey,
    boot_id: String,
    netns: Option<Netns>,
    netlink: Option<RouteSocket>,
    /// The record as it was written last.
    written: Option<RecordData>,
}

impl<'a> Node<'a> {
    /// Creates the attachment's view of the node, without a namespace at first.
    pub(super) fn new(call: &'a Call<'a>, key: &AttachmentKey) -> Result<Self, Failure> {
        let boot_id = state::boot_id()?;
        Ok(Node {
            call,
            index: Index::new(call.roots()),
            key: key.clone(),
            boot_id,
            netns: None,
            netlink: None,
            written: None,
        })
    }

    /// Sets the container's namespace, which the calling thread has entered, for the record.
    pub(super) fn set_netns(&mut self, netns: &Netns) {
        self.netns = Some(netns.clone());
    }

    /// Reads the attachment's record, and what it holds. A damaged one is skipped with a warning.
    pub(super) fn recorded(&self) -> Option<(RecordData, Record)> {
        let read = self.index.get(&self.key, PLUGIN);
        for damaged in &read.damaged {
            self.call.warn(damaged);
        }
        let record = read.found?;
        match serde_json::from_value(record.data.clone()) {
            Ok(recorded) => Some((recorded, record)),
            Err(error) => {
                self.call.warn(format_args!("ignored the record of {}: {error}", self.key));
                None
            }
        }
    }

    /// Reports whether a record is from this boot and of that namespace.
    pub(super) fn is_of(&self, record: &Record, netns: &Netns) -> bool {
        record.boot_id == self.boot_id
            && (record.netns_id.is_none() || record.noted().is_some_and(|noted| noted.is(netns)))
    }

    /// Finds the attachment's link.
    pub(super) fn link(&mut self) -> Result<Option<Link>, Failure> {
        let ifname = self.key.ifname.clone();
        Ok(self.netlink()?.link_by_name(ifname.as_str())?)
    }

    /// Finds the link that was recorded: by its ifindex, since the container may have renamed it.
    pub(super) fn recorded_link(&mut self, ifindex: Option<u32>) -> Result<Option<Link>, Failure> {
        match ifindex {
            Some(ifindex) => Ok(self.netlink()?.link_by_index(ifindex)?),
            None => self.link(),
        }
    }

    fn netlink(&mut self) -> Result<&mut RouteSocket, Failure> {
        if self.netlink.is_none() {
            self.netlink = Some(RouteSocket::open()?);
        }
        Ok(self.netlink.as_mut().expect("it was opened just now"))
    }

    fn object(&self, path: &str) -> String {
        format!("{CLAIM}{}:{path}", self.key.container_id)
    }

    /// Records, for CHECK, that a sysctl reads differently from what was written.
    fn record_what_became(&mut self, path: &str, became: &str) -> Result<(), Failure> {
        let known = self.written.iter_mut().flat_map(|recorded| &mut recorded.sysctls);
        for known in known.filter(|known| known.path == path) {
            known.became = Some(became.to_owned());
        }
        self.write_record()
    }

    fn write_record(&self) -> Result<(), Failure> {
        let Some(recorded) = &self.written else {
            return attachment::remove_record(&self.index, &self.key, PLUGIN);
        };
        let netns = self.netns.as_ref().expect("only ADD writes a record, in the namespace");
        attachment::write_record(self.call, &self.index, PLUGIN, recorded, netns)
    }

    /// Claims a sysctl. A container's calls do not overlap (CNI 1.1.0 §3 "Lifecycle & Ordering"),
    /// so its objects need no lock.
    fn claim(&self, path: &str, was: Option<&str>) -> Result<(), Failure> {
        let object = self.object(path);
        let new = self.index.hold(&object, &self.key)?;
        let others = || self.index.is_held_by_others(&object, &self.key);
        let left_behind = new && !others()?;
        let known = || self.index.known_note(&object);
        if left_behind || known()?.is_none() {
            self.index.note(&object, &json!({ "was": was }))?;
        }
        Ok(())
    }

    /// Releases a claim and returns the sysctl's original value, if no other attachment of the
    /// container claims it.
    fn release(&self, path: &str) -> Result<Option<String>, Failure> {
        let object = self.object(path);
        let released = self.index.release(&object, &self.key)?;
        if matches!(released, Release::Held) {
            return Ok(None);
        }
        let note = self.index.take_note(&object)?;
        for damaged in &note.damaged {
            self.call.warn(damaged);
        }
        Ok(note.found.as_ref().and_then(|note| note["was"].as_str()).map(str::to_owned))
    }
}

impl Apply for Node<'_> {
    fn apply(&mut self, step: &Step) -> Result<(), Failure> {
        match step {
            Step::WriteRecord(recorded) => {
                self.written.clone_from(recorded);
                self.write_record()
            }
            Step::WriteBackup { path, values: Some(values) } => super::backup::write(path, values),
            Step::WriteBackup { path, values: None } => super::backup::remove(path),
            Step::SetLink { ifindex, to } => {
                let ifname = self.key.ifname.clone();
                let change = Change::SetLink { ifindex: *ifindex, set: link_set(to) };
                self.netlink()?.apply(&[change]).map_err(|error| {
                    Failure::from(error).context(format_args!("set {to} of {ifname}"))
                })
            }
            Step::ClaimSysctl { path, was } => self.claim(path, was.as_deref()),
            Step::WriteSysctl { path, value } => match write(path, value)? {
                Some(became) => self.record_what_became(path, &became),
                None => Ok(()),
            },
            Step::RestoreSysctl { path, value } => restore(path, value),
            Step::ReleaseSysctl { path } => match self.release(path)? {
                Some(was) => restore(path, &was),
                None => Ok(()),
            },
            Step::ForgetSysctl { path } => self.release(path).map(drop),
        }
    }
}

/// Lists which attachment claims which sysctl, on the whole node.
pub(super) fn claims(index: &Index) -> Vec<(AttachmentKey, String)> {
    let mut claims = Vec::new();
    for object in index.objects().found {
        let Some((_, path)) = object.strip_prefix(CLAIM).and_then(|rest| rest.split_once(':'))
        else {
            continue;
        };
        let holders = index.holders(&object).found;
        claims.extend(holders.into_iter().map(|key| (key, path.to_owned())));
    }
    claims
}

/// Lists which sysctls an attachment claims, for when its record is lost.
pub(super) fn claims_of(index: &Index, key: &AttachmentKey) -> Vec<String> {
    let own = format!("{CLAIM}{}:", key.container_id);
    let objects = index.objects().found.into_iter().filter(|object| object.starts_with(&own));
    let held = objects.filter(|object| index.holders(object).found.contains(key));
    held.map(|object| object[own.len()..].to_owned()).collect()
}

/// Returns the link's values.
pub(super) fn link_state(link: &Link) -> LinkState {
    LinkState {
        ifindex: link.index,
        values: LinkValues {
            mac: link.mac,
            mtu: Some(link.mtu),
            promisc: Some(link.promiscuous()),
            allmulti: Some(link.all_multicast()),
            tx_queue_length: Some(link.tx_queue_len),
        },
    }
}

/// Refuses values that the link does not support.
pub(super) fn check_link(config: &Config, link: &Link) -> Result<(), Failure> {
    let refuse = |msg: String| Err(Failure::new(code::INVALID_CONFIG, msg));
    if config.link.mac.is_some() && link.mac.is_none() {
        return refuse(format!("link {:?} has no Ethernet address to change", link.name));
    }
    let least = link.min_mtu.unwrap_or(0);
    let most = link.max_mtu.filter(|most| *most != 0).unwrap_or(u32::MAX);
    match config.link.mtu {
        Some(mtu) if !(least..=most).contains(&mtu) => {
            refuse(format!("invalid MTU {mtu}: link {:?} takes {least} to {most}", link.name))
        }
        _ => Ok(()),
    }
}

/// Reads the configuration's sysctls in the calling thread's namespace.
///
/// # Errors
/// Code 100 for one that does not exist or cannot be read.
pub(super) fn read_sysctls(
    sysctls: &[Sysctl],
    ifname: &IfName,
) -> Result<Vec<SysctlState>, Failure> {
    let state = |sysctl: &Sysctl| {
        let (path, value) = read_first(sysctl.key.paths())?.ok_or_else(|| missing(sysctl))?;
        Ok(SysctlState { path: path.to_owned(), value, own: is_of_interface(path, ifname) })
    };
    sysctls.iter().map(state).collect()
}

/// Refuses sysctls that the calling thread's namespace, a fresh one, shows not to be there, and those
/// that ADD would have to write although `/proc/sys` is read-only (STATUS).
///
/// # Errors
/// Code 100, in the words of ADD.
pub(super) fn look(sysctls: &[Sysctl]) -> Result<(), Failure> {
    sysctls.iter().try_for_each(|sysctl| {
        let paths: Vec<String> = sysctl.key.paths().map(sysctl::of_every_interface).collect();
        match read_first(paths.iter().map(String::as_str))? {
            None if paths.iter().all(|path| sysctl::is_known_before(path)) => Err(missing(sysctl)),
            Some((path, value))
                if value.as_ref().is_none_or(|value| !same_value(value, &sysctl.value))
                    && name(path)?.is_read_only() =>
            {
                let (path, value) = (sysctl.key.path(), &sysctl.value);
                let text = format!("sysctl {path:?} cannot be set to {value:?}");
                Err(Failure::new(codes::KERNEL, text)
                    .with_details("/proc/sys is mounted read-only: mount it writable"))
            }
            _ => Ok(()),
        }
    })
}

fn missing(sysctl: &Sysctl) -> Failure {
    let text = format!("sysctl {:?} does not exist in the container", sysctl.key.path());
    Failure::new(codes::KERNEL, text).with_details(MISSING)
}

/// Reads the first of these sysctls that exists, in the calling thread's namespace. Returns its path,
/// and its value unless the kernel does not say it: some can only be written
/// (`net.ipv4.route.flush`), and `stable_secret` has no value before it is written (EIO). Whether it
/// can be written is what decides.
pub(super) fn read_first<'p>(
    paths: impl Iterator<Item = &'p str>,
) -> Result<Option<(&'p str, Option<String>)>, Failure> {
    for path in paths {
        match name(path)?.read() {
            Ok(value) => return Ok(Some((path, Some(value)))),
            Err(error) if error.is_missing() => {}
            Err(SysctlError::Read { .. }) => return Ok(Some((path, None))),
            Err(error) => return Err(Failure::from(error)),
        }
    }
    Ok(None)
}

/// Writes a sysctl in the calling thread's namespace. Returns what it reads afterwards, if that is
/// something else.
pub(super) fn write(path: &str, value: &str) -> Result<Option<String>, Failure> {
    let sysctl = name(path)?;
    sysctl.write(as_written(value))?;
    Ok(sysctl.read().ok().filter(|now| !same_value(now, value)))
}

/// Returns the text to write for a value. Writing zero bytes has no effect; an empty line empties
/// lists such as `ip_local_reserved_ports`.
fn as_written(value: &str) -> &str {
    if value.is_empty() { "\n" } else { value }
}

/// Writes a sysctl that may have been deleted with its interface.
fn restore(path: &str, value: &str) -> Result<(), Failure> {
    match name(path)?.write_if_different(as_written(value)) {
        Err(error) if !error.is_missing() => Err(Failure::from(error)),
        _ => Ok(()),
    }
}

fn name(path: &str) -> Result<KernelSysctl, Failure> {
    Ok(KernelSysctl::parse(path)?)
}

fn link_set(values: &LinkValues) -> LinkSet {
    LinkSet {
        mac: values.mac,
        mtu: values.mtu,
        promiscuous: values.promisc,
        all_multicast: values.allmulti,
        tx_queue_len: values.tx_queue_length,
        ..LinkSet::default()
    }
}
