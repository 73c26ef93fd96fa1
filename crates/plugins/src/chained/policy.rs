//! `policy`: brings a container under network policy before its first packet.
//!
//! `netwrightd policy` knows the policies and writes the verdicts of addresses into the packet
//! filter. This plugin closes the container's addresses, records their owner, and asks the daemon
//! to give them the verdicts of their pod. Without a daemon they stay closed: only the node reaches
//! the container until a daemon reads the record.
//!
//! | step of ADD | what holds if it ends here |
//! |---|---|
//! | look, refuse | what the earlier plugins made; nothing has changed |
//! | record | the same; a daemon that finds the record takes the container over |
//! | close the link: it passes no address ([`firewall::pod_link`]) | closed |
//! | close the addresses ([`firewall::pods`]) | closed |
//! | make the bridge show its packets to the filter (`frames`) | closed |
//! | make connection tracking forget connections of the addresses, and discard packets that wait for these (`ends`) | closed |
//! | let the link pass its own addresses | closed |
//! | tell the daemon | the verdicts of the pod, or closed |
//!
//! Where the daemon was taken off the node, nobody will know better: the last step fails, and ADD
//! undoes the others.
//!
//! Where `policy` follows a plugin of ours, that plugin has closed the link before it came up
//! (`shared::gate`), and the first step finds it closed. If an ADD of this plugin fails, such a link
//! stays closed until the plugin that made it removes it.
//!
//! Packets of a known connection meet no verdict. So what connection tracking knew of the addresses
//! before they were closed, from a former container or from packets to an address that nobody had,
//! would open them again. Packets that the host has routed to an address that nobody had wait until
//! somebody answers for it, and meet no verdict any more.
//!
//! DEL sets the host's side of the link down first, so the address carries nothing when it loses its
//! verdicts. Then connection tracking forgets the connections of its addresses. The daemon does both
//! before it answers. DEL needs no daemon: without an answer it does them itself.
//!
//! If the packets of a further network do not pass the node, ADD closes the link in the container's
//! own namespace (`inside`), instead of all steps between record and daemon. DEL sets the
//! container's link down, and removes the table there if the namespace lives.
//!
//! | module | what |
//! |---|---|
//! | `config` | the configuration, checked |
//! | `link` | the host's side of the container's link: what packets pass |
//! | `ends` | addresses, and on further networks the interface at which they are valid |
//! | `inside` | the table in the container's own namespace |
//! | `guard` | the links of all attachments, for the daemon |
//! | `frames` | bridges that show their packets to the filter: shared objects |
//! | `table` | verdicts, written under the lock that the daemon takes too |
//! | `daemon` | what the daemon is asked |
//! | `wanted` | what CHECK compares and repair restores |

mod config;
mod daemon;
mod ends;
mod frames;
mod guard;
mod inside;
mod link;
mod table;
mod wanted;

use std::net::IpAddr;

use ::firewall::element::Element;
use ::firewall::{Concern, Plan, pod_link};
use cni::{AddResult, AttachmentKey, Error, code};
use cni_plugin::{Call, Info, Role};
use kernel::netns::Netns;
use kernel::route::{Change, Link, LinkSet, RouteSocket};
use node_api::policy::{AttachmentRecord, OWN_IFNAME, Owner, PLUGIN, StartRequest, is_further};
use node_api::{Pod, socket_in};
use state::{Index, Roots};

use self::config::Config;
use self::daemon::Daemon;
use self::ends::Ends;
use self::frames::Need;
use self::link::{HostSide, Side};
use self::table::ForgetOutcome;
use crate::engine::{Addition, Collection, Kind, NetnsEntry, Removal, Undo};
use crate::shared::attachment::{is_stale, recorded_in, unavailable};
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;
use crate::shared::filter::{remove_own, remove_stale, with_firewall};
use crate::shared::gate;
use crate::shared::namespaces::Namespaces;
use crate::shared::pair;

pub use self::guard::{Findings, Guard};

/// What the plugin is.
pub const INFO: Info = Info::new(PLUGIN).role(Role::Chained);

/// The plugin's type, and the name of its records.
const NAME: &str = INFO.name;
/// What it has in the tables of all plugins.
const CONCERNS: &[Concern] = &[Concern::PodLink];
const NO_PREVIOUS: &str = "missing prevResult from earlier plugin";

/// Attachments of `policy`.
#[derive(Debug)]
pub(crate) struct Policy;

impl Kind for Policy {
    const INFO: Info = INFO;
    const ENTER: NetnsEntry = NetnsEntry::Never;
    type Raw = config::Raw;
    type Config = Config;
    type RecordData = AttachmentRecord;
    type Cache = ();

    fn config(call: &Call<'_>) -> Result<Config, Failure> {
        Config::of(call)
    }

    /// Reports whether pods would be judged now. A daemon that is missing, or does not know its
    /// policies yet, is tolerated for a while, since ADD closes the addresses that no daemon has
    /// judged yet.
    fn status(call: &Call<'_>) -> Result<(), Failure> {
        let config = Config::of(call)?;
        ::firewall::usable().map_err(unavailable)?;
        if !frames::is_loaded() {
            call.warn(format_args!("{}: containers on a bridge are refused", frames::NOT_LOADED));
        }
        if let Ok(false) = ::firewall::pods::can_log() {
            call.warn(format_args!("{}", ::firewall::pods::NO_LOG));
        }
        for warning in ::firewall::pods::ipvs::judged_wrongly() {
            call.warn(format_args!("{warning}"));
        }
        let asked = Daemon::new(call, config.socket).status(call);
        asked.map_err(|failure| match failure.code() {
            code::LIMITED_CONNECTIVITY => failure,
            _ => failure.with_code(code::PLUGIN_NOT_AVAILABLE),
        })
    }

    fn attach(attaching: &mut Addition<'_, Self>) -> Result<AddResult, Failure> {
        let (call, index, config) = (attaching.call, attaching.index, attaching.config);
        let result = call.require_prev_result(NO_PREVIOUS)?;
        ::firewall::others_delete();
        let mut namespaces = Namespaces::open(call.open_netns()?)?;
        let ifname = call.ifname().as_str();
        let side = link::find(&mut namespaces, ifname, &result)?;
        if let Side::Host(link) = &side {
            frames::require(link)?;
        }
        let wanted = recorded(call, config, &side, &result)?;
        let before = attaching.earlier_record();
        let earlier: Option<AttachmentRecord> = before.as_ref().and_then(recorded_in);
        let is_first = before.is_none();
        attaching.replace_record(before, &wanted, &namespaces.netns)?;
        let mut undo = Undo::new();
        let Namespaces { host, netns, .. } = &mut namespaces;
        let enforced = match &side {
            Side::Host(link) => {
                let wanted = (&wanted, earlier.as_ref());
                enforce(index, attaching.key(), host, link, wanted, &mut undo)
            }
            Side::Inside => {
                let wanted = (&wanted, earlier.as_ref());
                enforce_inside(index, netns, ifname, wanted, &mut undo)
            }
        };
        match enforced {
            Err(cause) if is_first => return Err(undo.run(cause)),
            // The container keeps what an earlier ADD closed or opened.
            enforced => enforced?,
        }
        if let Some(earlier) = earlier {
            remove_what_changed(call, index, &earlier, &wanted)?;
            if earlier.started.inside && !wanted.started.inside {
                inside::forget(index, &namespaces.netns, ifname)?;
            }
        }
        match Daemon::new(call, config.socket.clone()).start(call, &wanted.started) {
            Err(cause) if is_first => return Err(undo.run(cause)),
            told => told?,
        }
        Ok(result)
    }

    /// If the link cannot be set down, its addresses keep their verdicts. A lost record leaves
    /// verdicts behind unless the call has `prevResult`: the daemon, or GC, removes them when it
    /// lists the records.
    fn take_down(removal: &Removal<'_, Self>, failures: &mut Failures) {
        ::firewall::others_delete();
        let (index, key, recorded) = (removal.index, removal.key, removal.recorded.as_ref());
        // GC calls this with a key without a record only if the key holds something, or only its
        // link is left.
        if recorded.is_none() && removal.is_own_call() && index.made_nothing(key, NAME) {
            return;
        }
        if let Some(recorded) = recorded.filter(|recorded| recorded.started.inside) {
            let daemon = Daemon::new(removal.call, config::socket_of(removal.call));
            let tell = || {
                let _told = daemon.end(removal.call, &recorded.started.owner);
            };
            return inside::take_down(removal, tell, failures);
        }
        if recorded.is_none() && removal.is_own_call() && is_further(key.ifname.as_str()) {
            inside::take_down_unrecorded(removal, failures);
        }
        let off = traffic_off(removal);
        let Some((is_off, is_moved)) = failures.note("set the host's side of the link down", off)
        else {
            return;
        };
        let ends = match recorded {
            Some(recorded) => Ends::of(&recorded.started),
            None => Ends::unrecorded(key, &removal.prev_result().unwrap_or_default()),
        };
        if is_off {
            let daemon = Daemon::new(removal.call, config::socket_of(removal.call));
            let owner = match recorded {
                Some(recorded) => recorded.started.owner.clone(),
                None => Owner { pod: None, ..owner(removal.call, key) },
            };
            let told = recorded.is_some() && daemon.end(removal.call, &owner);
            if !told {
                let forgotten = table::forget(index, key, &ends);
                // Without a record, they may be addresses of a container that is not ours.
                if recorded.is_some()
                    && let Ok(ForgetOutcome::Gone(gone)) = &forgotten
                    && let Err(error) = gone.end_flows()
                {
                    removal.call.warn(format_args!("connections of its addresses stay: {error}"));
                }
                table::note(removal.call, forgotten, failures);
            }
        }
        // The daemon may have closed a link that was moved, by elements that no record names.
        let plan = recorded.filter(|_| !is_moved).map(plan_of);
        failures.note("packet filter", remove_own(index, key, plan.as_ref(), CONCERNS));
        let released = match recorded {
            Some(recorded) => frames::release(index, key, recorded.bridge.as_deref()),
            None => frames::release_all(index, key),
        };
        failures.note("frames", released);
    }

    /// Lists the attachments that hold something, and those of which only the link is left: the
    /// link is set down before its verdicts are removed (`collect`). If an ADD has not reached this
    /// plugin yet, the plugin that made the link has a record.
    fn unrecorded(call: &Call<'_>, index: &Index, failures: &mut Failures) -> Vec<AttachmentKey> {
        let mut found = failures.note("list links", pair::marked(call)).unwrap_or_default();
        found.retain(|key| is_stale(call, key) && index.of_attachment(key).found.is_empty());
        found.extend(frames::holders(index));
        found
    }

    fn collect(collecting: &Collection<'_, Self>, failures: &mut Failures) {
        let Collection { call, index, spared, .. } = collecting;
        // The plugin that made a link may have closed it, and this one's ADD is still to come.
        let stays = |hash: &str| {
            spared.contains(hash) || index.of_hash(hash).found.iter().any(gate::closed_by)
        };
        let collected = with_firewall(index, |firewall| {
            firewall.gc(call.network().as_str(), &stays, CONCERNS).map(drop)
        });
        failures.note("packet filter", collected);
        let daemon = Daemon::new(call, config::socket_of(call));
        if !daemon.collect(call, call.network().as_str()) {
            failures.note("remove the verdicts of network policy", table::sweep(index));
        }
    }
}

/// Plugins of ours whose interfaces are always refused as a container's own one: packets of these
/// do not pass the node's packet filter. Interfaces of other plugins are judged when they exist
/// (`link::find`).
const NOT_FILTERED: [&str; 7] = ["dummy", "host-device", "ipvlan", "macvlan", "ovs", "tap", "vlan"];

/// Those of them that cannot be judged in the container either.
const NEVER: &[&str] = &["tap"];

/// What to do where [`behind`] finds something.
pub const INSTEAD: &str = "attach by ptp or bridge where network policy is to hold";

/// Returns the plugin before [`PLUGIN`] in a list whose interface it refuses, so that the list can
/// be refused before anything is made. Without the interface's name, returns only a plugin that is
/// refused under any name.
#[must_use]
pub fn behind<T: AsRef<str>>(
    ifname: Option<&str>,
    types: impl IntoIterator<Item = T>,
) -> Option<T> {
    let is_own = ifname.is_some_and(|ifname| !is_further(ifname));
    let not_judged: &[&str] = if is_own { &NOT_FILTERED } else { NEVER };
    let mut refused = None;
    for name in types {
        if name.as_ref() == NAME {
            return refused;
        }
        if refused.is_none() && not_judged.contains(&name.as_ref()) {
            refused = Some(name);
        }
    }
    None
}

/// Says why a list is refused, given the plugin that [`behind`] finds in it.
#[must_use]
pub fn why_not(refused: &str) -> String {
    format!(
        "network policy cannot judge packets of {refused:?}, which pass this node's packet filter by"
    )
}

/// Says that a list is refused for a container's own interface, given the plugin that [`behind`]
/// then finds in it.
#[must_use]
pub fn only_further(refused: &str) -> String {
    format!(
        "network policy judges packets of {refused:?} in the container, and only on further networks: \
         as {OWN_IFNAME} it is refused"
    )
}

/// Closes an interface of a container in the container's own namespace, until an ADD of this
/// plugin opens it.
///
/// # Errors
/// Code 101 when the kernel refuses, 11 when the lock cannot be taken in time.
pub(crate) fn close_inside(index: &Index, netns: &Netns, ifname: &str) -> Result<(), Failure> {
    inside::close(index, netns, ifname)
}

/// Removes what [`close_inside`] did.
///
/// # Errors
/// As [`close_inside`].
pub(crate) fn forget_inside(index: &Index, netns: &Netns, ifname: &str) -> Result<(), Failure> {
    inside::forget(index, netns, ifname)
}

/// Removes the table of verdicts if neither an attachment nor a daemon needs it: no attachment is
/// recorded, and no daemon listens at its usual place.
///
/// # Errors
/// Code 101 when the kernel refuses, 105 or 11 when our own files fail.
pub fn prune(roots: &Roots) -> Result<(), Error> {
    let socket = socket_in(&roots.run, node_api::policy::SOCKET);
    if socket.exists() { Ok(()) } else { Ok(table::remove_unused(&Index::new(roots))?) }
}

/// Removes the table of verdicts, even while attachments need it.
///
/// # Errors
/// Code 101 when the kernel refuses.
pub fn remove_table() -> Result<(), Error> {
    Ok(table::remove()?)
}

/// Returns whose attachment it is.
fn owner(call: &Call<'_>, key: &AttachmentKey) -> Owner {
    Owner {
        network: key.network.to_string(),
        container: key.container_id.to_string(),
        ifname: key.ifname.to_string(),
        netns: call.env().netns.clone(),
        pod: Pod::of_args(&call.env().args),
    }
}

/// Returns what ADD records and tells the daemon.
fn recorded(
    call: &Call<'_>,
    config: &Config,
    side: &Side,
    result: &AddResult,
) -> Result<AttachmentRecord, Failure> {
    let addresses = link::addresses(result, call.ifname().as_str());
    if addresses.is_empty() {
        let ifname = call.ifname();
        return Err(Failure::new(
            code::INVALID_CONFIG,
            format!("network policy judges by addresses, and interface {ifname} has none"),
        )
        .with_details("prevResult lists no address of it"));
    }
    let owner = owner(call, call.attachment());
    let started =
        StartRequest { owner, addresses, labels: config.labels.clone(), ..StartRequest::default() };
    Ok(at(side, started, call.ifname().as_str()))
}

/// Adds where an attachment is judged.
fn at(side: &Side, started: StartRequest, ifname: &str) -> AttachmentRecord {
    match side {
        Side::Host(link) => AttachmentRecord {
            started: StartRequest {
                interface: Some(link.name.clone()),
                meets: link.meets(ifname),
                ..started
            },
            index: Some(link.index),
            bridge: link.bridge.as_ref().map(|bridge| bridge.name.clone()),
        },
        Side::Inside => AttachmentRecord {
            started: StartRequest { inside: true, ..started },
            ..AttachmentRecord::default()
        },
    }
}

/// Returns what the recorded link passes.
fn plan_of(recorded: &AttachmentRecord) -> Plan {
    plan(recorded, &recorded.started.addresses)
}

fn plan(recorded: &AttachmentRecord, addresses: &[IpAddr]) -> Plan {
    let place = match recorded.bridge {
        Some(_) => pod_link::Place::Bridged,
        None => pod_link::Place::Routed,
    };
    let interface = recorded.started.interface.as_deref();
    interface.map(|interface| pod_link::plan(interface, place, addresses)).unwrap_or_default()
}

/// Closes a container: see the table of the module. `undo` gets what undoes it. Connections that a
/// living container has go on: those of addresses that an `earlier` ADD has closed.
fn enforce<'a>(
    index: &'a Index,
    key: &'a AttachmentKey,
    host: &mut RouteSocket,
    link: &HostSide,
    (wanted, earlier): (&AttachmentRecord, Option<&AttachmentRecord>),
    undo: &mut Undo<'a>,
) -> Result<(), Failure> {
    let addresses = &wanted.started.addresses;
    let (all, passes_nothing) = (plan_of(wanted), plan(wanted, &[]));
    let (mut passes_own, own) =
        (all.clone(), |element: &Element| passes_nothing.own.contains(element));
    passes_own.own.retain(|element| !own(element));
    let was_closed = with_firewall(index, |firewall| firewall.has(key, &passes_nothing))?;
    let made = if was_closed { passes_own.clone() } else { all };
    undo.push("let the link pass everything", move || {
        remove_own(index, key, Some(&made), CONCERNS)
    });
    if !was_closed {
        with_firewall(index, |firewall| firewall.add(key, &passes_nothing))?;
    }
    let ends = Ends::of(&wanted.started);
    let closed = ends.clone();
    undo.push("remove the verdicts", move || table::forget(index, key, &closed)?.required());
    table::close(index, &ends)?;
    if let Some(bridge) = &link.bridge {
        let name = bridge.name.clone();
        undo.push("put the bridge back", move || frames::release(index, key, Some(&name)));
        frames::hold(host, index, key, bridge, Need::of(addresses, bridge))?;
    }
    // As late as possible: a packet may be under way that has passed the filter before.
    let new = ends.without(&earlier.map(|earlier| Ends::of(&earlier.started)).unwrap_or_default());
    new.forget_flows()?;
    new.discard_waiting(host)?;
    with_firewall(index, |firewall| firewall.add(key, &passes_own))
}

/// Closes a container in its own namespace.
fn enforce_inside<'a>(
    index: &'a Index,
    netns: &Netns,
    ifname: &'a str,
    (wanted, earlier): (&AttachmentRecord, Option<&AttachmentRecord>),
    undo: &mut Undo<'a>,
) -> Result<(), Failure> {
    if inside::difference(netns, ifname)?.is_some() {
        let of_undo = netns.clone();
        undo.push("remove the verdicts", move || inside::forget(index, &of_undo, ifname));
    }
    inside::close(index, netns, ifname)?;
    let known = |address: &IpAddr| {
        earlier.is_some_and(|earlier| earlier.started.addresses.contains(address))
    };
    let addresses = wanted.started.addresses.iter().copied().filter(|address| !known(address));
    Ok(ends::forget_flows_inside(netns, addresses)?)
}

/// Removes what an earlier ADD of the attachment made, and this one does not want.
fn remove_what_changed(
    call: &Call<'_>,
    index: &Index,
    earlier: &AttachmentRecord,
    now: &AttachmentRecord,
) -> Result<(), Failure> {
    let key = call.attachment();
    remove_stale(index, key, &plan_of(earlier), &plan_of(now))?;
    match (&earlier.bridge, &now.bridge) {
        // The new bridge may need what is switched on for all bridges.
        (Some(before), Some(bridge)) if before != bridge => {
            frames::release_bridge(index, key, before)?;
        }
        (Some(before), None) => frames::release(index, key, Some(before.as_str()))?,
        _ => {}
    }
    let gone = Ends::of(&earlier.started).without(&Ends::of(&now.started));
    let mut failures = Failures::new();
    table::note(call, table::forget(index, key, &gone), &mut failures);
    failures.into_result()
}

/// Sets the host's side of the link down. Says whether the addresses carry nothing now, and whether
/// the link is elsewhere than where ADD found it. The plugin that made the link deletes it
/// afterwards, in any state.
fn traffic_off(removal: &Removal<'_, Policy>) -> Result<(bool, bool), Failure> {
    let mut host = RouteSocket::open()?;
    let found = match &removal.recorded {
        Some(recorded) => link::recorded(&mut host, removal.key, recorded)?,
        None if !removal.is_own_call() => link::marked(&mut host, removal.key)?,
        None => {
            let result = removal.prev_result().unwrap_or_default();
            match link::listed(&mut host, removal.key, &result)? {
                link::ListedLink::Own(link) => Some(*link),
                link::ListedLink::Gone => None,
                link::ListedLink::Anothers => return Ok((false, false)),
            }
        }
    };
    let is_moved = match (&removal.recorded, &found) {
        (Some(recorded), Some(link)) => is_moved(&mut host, recorded, link)?,
        _ => false,
    };
    let Some(link) = found.filter(Link::up) else { return Ok((true, is_moved)) };
    let set = LinkSet::default().up(false);
    match host.apply_one(&Change::SetLink { ifindex: link.index, set }) {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok((true, is_moved)),
    }
}

/// Reports whether a link has another name than ADD recorded, or is a port of another bridge.
fn is_moved(
    host: &mut RouteSocket,
    recorded: &AttachmentRecord,
    link: &Link,
) -> Result<bool, Failure> {
    let master = link.master.map(|master| host.link_by_index(master)).transpose()?.flatten();
    let bridge = master.and_then(link::Bridge::of).map(|bridge| bridge.name);
    Ok(!link::is_named(link, recorded) || bridge != recorded.bridge)
}
