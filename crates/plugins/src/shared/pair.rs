//! The pair of links between host and container that `bridge`, `ptp` and `ovs` create.
//!
//! One message creates it: the container's end appears in its namespace with its final name and
//! address. The host's end is named after the attachment and carries its owner in its alias, so DEL
//! finds it even if everything else is lost.
//!
//! Both ends stay down until the container's end is configured, and the host's end comes up last.
//! If only one end is up, it has no carrier. The next request about it then waits for a grace
//! period of the kernel (linux net/core/link_watch.c `linkwatch_sync_dev`), which was 0.3 to 0.7 ms
//! of each ADD. Each end has one queue, because removing the others costs a grace period too.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use cni::{AttachmentKey, Command, IfName};
use cni_plugin::{Call, codes};
use firewall::Plan;
use ipnet::IpNet;
use kernel::mac::MacAddr;
use kernel::netns::Netns;
use kernel::route::{Change, Link, LinkKind, NewLink, OperState, RouteSocket, VethPeer};
use serde_json::{Value, json};
use state::Index;
use wanted::{Item, Place, Reason, State};

use crate::engine::{self, Addition, Attachment, Kind, Picture, Removal};

use super::failure::Failure;
use super::failures::Failures;
use super::{advertisements, attachment, host_name, owner, rules, shared_object};

/// How many queues each end has: the one that the kernel would use, without the others that it
/// would create and not use.
const VETH_QUEUES: u32 = 1;

/// How long the kernel may take to detect a carrier: it checks once a second, and may be busy.
const CARRIER_TIMEOUT: Duration = Duration::from_millis(2550);

/// The field of records with the name of the host's end.
const HOST_IFNAME: &str = "host_ifname";

/// The pause between two checks; detection takes a fraction of a millisecond.
const CARRIER_POLL_INTERVAL: Duration = Duration::from_micros(200);

/// The properties that may differ between pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewPair<'a> {
    /// The name of the host's end; without one it is named after the attachment.
    pub host_ifname: Option<&'a IfName>,
    /// The hardware address of the container's end.
    pub mac: MacAddr,
    /// The MTU of both ends.
    pub mtu: Option<u32>,
    /// The bridge that the host's end becomes a port of.
    pub master: Option<u32>,
}

/// A pair that was created. Both ends are down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// Name of the host's end.
    pub host_ifname: String,
    /// Ifindex of the host's end.
    pub host_index: u32,
    /// Hardware address of the host's end.
    pub host_mac: MacAddr,
    /// Ifindex of the container's end, in its namespace.
    pub container_index: u32,
    /// The MTU of both ends.
    pub mtu: u32,
}

/// Refuses an interface name that the container has already, in the reference's words, the name of
/// another's link for the host's end, and a pair of the attachment that leads elsewhere:
/// `engine::refuse_leftover`. A pair that the kernel is about to delete is no obstacle.
///
/// # Errors
/// Code 106; 108 for the host's end; code 100 when the kernel does not answer.
pub fn refuse_existing(
    host: &mut RouteSocket,
    inside: &RouteSocket,
    call: &Call<'_>,
    name: Option<&IfName>,
) -> Result<(), Failure> {
    let key = call.attachment();
    attachment::refuse_existing(inside, call.ifname().as_str(), || {
        let ifname = call.ifname();
        let host_ifname = name.map_or_else(|| owner::host_ifname(key, 0), IfName::to_string);
        format!(
            "container veth name (\"{ifname}\") peer provided (\"{host_ifname}\") already exists"
        )
    })?;
    if let Some(name) = name
        && let Some(link) = host.link_by_name(name.as_str())?
    {
        return match is_of(&link, key) {
            true => engine::refuse_leftover(call, host, &link),
            false if is_ending(host, &link)? => Ok(()),
            false => Err(host_name::taken(name.as_str(), link.alias.as_deref())),
        };
    }
    // Asking for the index alone is cheap, and the first name is nearly always free.
    if host.link_index(&owner::host_ifname(key, 0))?.is_none() {
        return Ok(());
    }
    match host_end(host, key, None)? {
        Some(link) => engine::refuse_leftover(call, host, &link),
        None => Ok(()),
    }
}

/// Creates both ends at once. Both stay down: if one end is up while the other is down, the kernel
/// waits for a grace period. A host name that belongs to another is skipped; a leftover of our own
/// is deleted, and so is the link of another attachment that has the configured name, if the kernel
/// is about to delete it.
///
/// # Errors
/// Code 100 with the kernel's words; 106 when every name is taken.
pub fn create(
    host: &mut RouteSocket,
    call: &Call<'_>,
    netns: &Netns,
    wanted: NewPair<'_>,
) -> Result<Pair, Failure> {
    let key = call.attachment();
    let alias = owner::alias(key);
    let host_mac = owner::host_mac(key);
    let (mut attempt, mut cleared) = (0, false);
    while attempt < owner::HOST_IFNAME_ATTEMPTS {
        let host_ifname = match wanted.host_ifname {
            Some(name) => name.to_string(),
            None => owner::host_ifname(key, attempt),
        };
        let peer = VethPeer {
            mac: Some(wanted.mac),
            mtu: wanted.mtu,
            netns: Some(netns.clone()),
            queues: Some(VETH_QUEUES),
            ..VethPeer::new(call.ifname().as_str())
        };
        let new = NewLink {
            mac: Some(host_mac),
            mtu: wanted.mtu,
            master: wanted.master,
            queues: Some(VETH_QUEUES),
            alias: Some(alias.clone()),
            // Frames that a bridge port receives go to the bridge, except those to
            // 01:80:c2:00:00:0X.
            no_own_ipv6: wanted.master.is_some(),
            ..NewLink::new(&host_ifname, LinkKind::Veth(peer))
        };
        let error = match host.create_link(&new) {
            Ok(link) => {
                if let Err(error) = advertisements::refuse(&host_ifname) {
                    let _ = host.apply_one(&Change::DelLink { ifindex: link.index });
                    return Err(error);
                }
                let container_index = link.peer_index.ok_or_else(|| {
                    Failure::new(codes::CONFLICT, format!("the peer of {host_ifname:?} vanished"))
                })?;
                return Ok(Pair {
                    host_ifname,
                    host_index: link.index,
                    container_index,
                    host_mac,
                    mtu: link.mtu,
                });
            }
            Err(error) => error,
        };
        if !error.is_exists() {
            return Err(Failure::from(error));
        }
        match host.link_by_name(&host_ifname)? {
            // Its name is then free, and is the one by which the attachment is known.
            Some(link)
                if !cleared
                    && (is_of(&link, key)
                        || (wanted.host_ifname.is_some() && is_ending(host, &link)?)) =>
            {
                host.delete_link(link.index)?;
                cleared = true;
            }
            Some(link) if wanted.host_ifname.is_some() => {
                return Err(host_name::taken(&host_ifname, link.alias.as_deref()));
            }
            Some(_) => attempt += 1,
            // The host's name is free, so the container's is taken.
            None => return Err(Failure::from(error)),
        }
    }
    Err(Failure::new(codes::EXISTS, format!("every name for the host's end of {key} is taken"))
        .with_details("links veth… with this attachment's names belong to others"))
}

/// Records a configured name of the host's end before the link is made: only the record shows it if
/// ADD is killed. What an earlier ADD recorded stays beside it.
///
/// # Errors
/// Code 105.
pub(crate) fn record_name<K: Kind>(
    attaching: &Addition<'_, K>,
    name: Option<&IfName>,
    netns: &Netns,
) -> Result<(), Failure> {
    let Some(name) = name else { return Ok(()) };
    let earlier = attaching.earlier_record().map(|record| record.data);
    let mut data = earlier.filter(Value::is_object).unwrap_or_else(|| json!({}));
    data[HOST_IFNAME] = json!(name.as_str());
    attaching.record(&data, netns)
}

/// Returns the name of the host's end in the record of a `bridge` or `ptp`.
#[must_use]
pub fn recorded_name(data: &Value) -> Option<&str> {
    data[HOST_IFNAME].as_str().filter(|name| !name.is_empty())
}

/// Waits until the kernel has detected that an end has its carrier: only then does it use IPv6
/// addresses there. Newer kernels detect it when they are asked; older ones soon, or within a
/// second if both ends have the same ifindex. An end that stays without a carrier is not an error
/// here.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub fn wait_for_carrier(socket: &mut RouteSocket, ifindex: u32) -> Result<(), Failure> {
    let deadline = Instant::now() + CARRIER_TIMEOUT;
    while let Some(link) = socket.link_by_index(ifindex)? {
        let ready = matches!(link.oper_state, OperState::Up | OperState::Unknown);
        if ready || deadline < Instant::now() {
            break;
        }
        std::thread::sleep(CARRIER_POLL_INTERVAL);
    }
    Ok(())
}

/// Finds the host's end of an attachment's pair by its names, the `recorded` one first.
fn host_end(
    host: &mut RouteSocket,
    key: &AttachmentKey,
    recorded: Option<&str>,
) -> Result<Option<Link>, Failure> {
    // The record may be that of an earlier ADD, while a later one has created its pair and failed.
    let derived = (0..owner::HOST_IFNAME_ATTEMPTS).map(|attempt| owner::host_ifname(key, attempt));
    let recorded = recorded.filter(|name| !name.is_empty()).map(str::to_owned);
    let others = derived.filter(|name| recorded.as_ref() != Some(name));
    let names: Vec<String> = recorded.iter().cloned().chain(others).collect();
    for name in names {
        if let Some(link) = host.link_by_name(&name)?
            && is_of(&link, key)
        {
            return Ok(Some(link));
        }
    }
    Ok(None)
}

/// Finds the container's end of an attachment's pair, even if the container has renamed it. `recorded`
/// is the recorded host's end.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub fn container_end(
    inside: &mut RouteSocket,
    key: &AttachmentKey,
    recorded: Option<&str>,
) -> Result<Option<Link>, Failure> {
    let mut host = RouteSocket::open()?;
    let Some(end) = host_end(&mut host, key, recorded)? else { return Ok(None) };
    let Some(peer) = end.peer_index else { return Ok(None) };
    let found = inside.link_by_index(peer)?;
    Ok(found.filter(|link| link.is_kind("veth") && link.peer_index == Some(end.index)))
}

/// Deletes the pair: by the host's end, which carries the owner's mark, or by the container's end
/// if another project's plugin created it. `recorded` is the recorded host's end.
///
/// # Errors
/// Code 100 when the kernel refuses.
pub fn remove(
    call: &Call<'_>,
    key: &AttachmentKey,
    recorded: Option<&str>,
    netns: Option<&Netns>,
) -> Result<(), Failure> {
    let mut host = RouteSocket::open()?;
    if let Some(end) = host_end(&mut host, key, recorded)? {
        return Ok(host.delete_link(end.index).map(drop)?);
    }
    let alias = owner::alias(key);
    let is_call = call.command() == Command::Del;
    let netns = netns.filter(|netns| !is_call || !call.is_another(netns));
    let Some(netns) = netns else { return Ok(()) };
    let mut inside = RouteSocket::open_in(netns)?;
    let Some(link) = inside.link_by_name(key.ifname.as_str())? else {
        return Ok(());
    };
    if !link.is_kind("veth") {
        call.warn(format_args!("interface {:?} is not a veth link, and stays", link.name));
        return Ok(());
    }
    if let Some(owner) = foreign_owner(&mut host, &link, &alias)? {
        call.warn(format_args!("interface {:?} belongs to {owner}; it is left alone", link.name));
        return Ok(());
    }
    Ok(inside.delete_link(link.index).map(drop)?)
}

/// Takes down what `bridge` and `ptp` make alike: the pair, by its recorded end on the `host`, and the
/// elements of the packet filter, as recorded.
pub(crate) fn take_down<K: Kind>(
    removal: &Removal<'_, K>,
    host: Option<&str>,
    filter: Option<(&Plan, &[IpNet])>,
    failures: &mut Failures,
) {
    let Removal { call, index, key, netns, .. } = removal;
    let removed = remove(call, key, host, netns.as_ref());
    if failures.note("remove the link", removed).is_some() {
        removal.set_link_gone();
    }
    failures.note("remove filter rules", rules::remove(call, index, key, filter));
}

/// Describes both ends as items: the container's link, and the host's under this name, with what ADD
/// reported of it. `ours` says whether the plugin marked it.
pub(crate) fn wanted_ends<K: Kind>(
    host: &str,
    ours: bool,
    attached: &Attachment<'_, K>,
) -> Vec<Item> {
    let (link, of) = (|| host.to_owned(), attached.ifname.to_owned());
    let veth = State::Link { link: of.clone(), kinds: vec!["veth".to_owned()] };
    let mut items = vec![
        Item::container(veth, Reason::Created),
        Item::host(State::Peer { link: link(), of }, Reason::Created),
    ];
    let mut links = attached.result.interfaces.iter();
    let reported = links.find(|link| link.name == host && link.sandbox.is_empty());
    if let Some(mtu) = reported.map(|link| link.mtu).filter(|mtu| *mtu != 0) {
        items.push(Item::host(State::Mtu { link: link(), mtu }, Reason::Created));
    }
    if ours {
        let alias = owner::alias(attached.key);
        items.push(Item::host(State::Mark { link: link(), alias }, Reason::Ownership));
    }
    items
}

/// Reports whether the host's end of a pair is marked as the attachment's: another project's plugin
/// marks none.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub(crate) fn is_marked(
    picture: &mut Picture<'_>,
    host: &str,
    key: &AttachmentKey,
) -> Result<bool, Failure> {
    if host.is_empty() {
        return Ok(false);
    }
    Ok(picture.link(Place::Host, host)?.is_some_and(|link| is_of(&link, key)))
}

/// Reports whether a link on the host is the attachment's: by its mark, or, without one, by its
/// address ([`owner::host_mac`]).
fn is_of(link: &Link, key: &AttachmentKey) -> bool {
    match &link.alias {
        Some(alias) => *alias == owner::alias(key),
        None => link.mac == Some(owner::host_mac(key)),
    }
}

/// Returns the owner of the host's end of a pair, if it has a mark other than `alias`.
fn foreign_owner(
    host: &mut RouteSocket,
    link: &Link,
    alias: &str,
) -> Result<Option<String>, Failure> {
    let Some(peer) = link.peer_index else { return Ok(None) };
    let peer = host.link_by_index(peer)?;
    let marked = peer.and_then(|peer| peer.alias);
    Ok(marked
        .filter(|mark| mark.starts_with(owner::PREFIX) && mark != alias)
        .map(|mark| mark.trim_start_matches(owner::PREFIX).to_owned()))
}

/// Says whether a link is the host's end of an attachment's pair whose container has ended, and that
/// the kernel is about to delete.
fn is_ending(host: &mut RouteSocket, link: &Link) -> Result<bool, Failure> {
    let is_marked = link.alias.as_deref().is_some_and(owner::is_of_attachment);
    Ok(is_marked && host.is_ending(link)?)
}

/// Deletes a link if it is the host's end of such a pair; says whether it was.
///
/// # Errors
/// Code 100 when the kernel does not answer, or refuses.
pub(crate) fn delete_if_ending(host: &mut RouteSocket, link: &Link) -> Result<bool, Failure> {
    let is_ending = is_ending(host, link)?;
    if is_ending {
        host.delete_link(link.index)?;
    }
    Ok(is_ending)
}

/// Says which of the containers have a pair of this network that leads into a namespace that exists.
/// Pairs that the kernel is about to delete are deleted: until then, a container that has ended
/// answers for its addresses.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub(crate) fn with_pair(
    call: &Call<'_>,
    containers: &HashSet<&str>,
) -> Result<HashSet<String>, Failure> {
    let mut host = RouteSocket::open()?;
    let links = host.links()?;
    // Another link of an attachment, such as that of `bandwidth`, leads into no container.
    let veths = links.iter().filter(|link| link.is_kind("veth"));
    let pairs: Vec<(&Link, String)> = veths
        .filter_map(|link| Some((link, owner::of_network(link, call.network())?.container_id)))
        .map(|(link, id)| (link, id.as_str().to_owned()))
        .filter(|(_, id)| containers.contains(id.as_str()))
        .collect();
    let all: Vec<&Link> = pairs.iter().map(|(link, _)| *link).collect();
    let ending = host.ending(&all).unwrap_or_default();
    let mut found = HashSet::new();
    for (link, container) in pairs {
        let has_ended = ending.iter().any(|one| one.index == link.index);
        if !has_ended || host.delete_link(link.index).is_err() {
            found.insert(container);
        }
    }
    Ok(found)
}

/// Lists the attachments of this network whose marks are on links of the host.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub fn marked(call: &Call<'_>) -> Result<Vec<AttachmentKey>, Failure> {
    let links = RouteSocket::open().and_then(|mut host| host.links());
    Ok(links?.iter().filter_map(|link| owner::of_network(link, call.network())).collect())
}

/// Lists the attachments of this network that may exist without a record: their marks are on links of
/// the host, or they hold a shared object, as an ADD does that was killed early.
pub(crate) fn unrecorded(
    call: &Call<'_>,
    index: &Index,
    failures: &mut Failures,
) -> Vec<AttachmentKey> {
    let mut found = failures.note("list links", marked(call)).unwrap_or_default();
    found.extend(shared_object::holders_of_network(index, call.network().as_str()));
    found
}
