//! Looks after the links of all attachments, for `netwrightd policy`.
//!
//! Verdicts are by the pods' addresses. So they hold only as long as a link passes no other address,
//! and as the packet filter sees its packets:
//!
//! | needed | where it is missing |
//! |---|---|
//! | the link's elements, and the rules that use them ([`pod_link`]) | they are written again |
//! | the name by which these rules know the link | the link is renamed |
//! | the bridge at which ADD found it; or none | the link is closed |
//! | that the bridge shows its packets to the packet filter (`frames`) | this is switched on |
//!
//! What cannot be put right closes the link: it passes no address, in whatever place it is
//! ([`closed`]). A look decides anew, so the link is opened when what was missing is there again, by
//! whatever hand. A link that has become a port of something that no filter of ours sees is set
//! down; the plugin that made it sets it up.
//!
//! Plugins change the same things. So a look changes what belongs to an attachment only under the
//! attachment's lock, after reading its record again. It does not wait for that lock: whoever has it
//! may wait for the daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ::firewall::element::Element;
use ::firewall::{Exchange, Firewall, Plan, pod_link};
use cni::{AttachmentKey, Error};
use kernel::netns::Netns;
use kernel::route::{Change, Link, LinkSet, RouteSocket};
use node_api::policy::{AttachmentRecord, PLUGIN};
use state::{AttachmentLock, Index, Record};

use super::frames::{self, Need};
use super::link::{self, Bridge};
use super::{CONCERNS, plan, plan_of};
use crate::shared::attachment::recorded_in;
use crate::shared::failure::Failure;

/// How long a look waits for the lock of the packet filter: the caller has other things to do.
const LOCK_TIME: Duration = Duration::from_secs(1);

/// How long a look waits for an attachment's lock.
const AT_ONCE: Duration = Duration::ZERO;

/// The links of all attachments of a node.
#[derive(Debug)]
pub struct Guard {
    index: Index,
    /// What the records said when they could be read, by the attachment's hash.
    known: BTreeMap<String, PodLink>,
    /// The links whose changes matter.
    watched: BTreeSet<u32>,
    /// Why the last look found links closed, by the attachment's hash.
    closed: BTreeMap<String, String>,
}

/// An attachment whose link passes the node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PodLink {
    key: AttachmentKey,
    recorded: AttachmentRecord,
    /// The path of the container's namespace.
    netns: Option<PathBuf>,
}

/// What a look found.
#[derive(Debug, Default)]
pub struct Findings {
    /// What was put right: a sentence for each.
    pub mended: Vec<String>,
    /// Why links are closed that would be open otherwise.
    pub closed: Vec<String>,
    /// The addresses of the pods to which that applies.
    pub addresses: BTreeSet<IpAddr>,
    /// The attachments that are to be looked at again soon: another process is at work on them.
    pub busy: BTreeSet<String>,
}

/// The links of this host at one moment.
struct Host {
    links: BTreeMap<u32, Link>,
    shows_frames: bool,
}

/// How a link is, compared with what its attachment needs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Judgement {
    /// What its name should be, if it has another one.
    rename_to: Option<String>,
    /// The bridge does not show its packets.
    show: Option<(Bridge, Need)>,
    /// It is a port of something that shows its packets to no filter.
    set_down: bool,
    /// Why it must pass nothing as it is.
    why: Option<String>,
    /// What closes it then.
    closes: Plan,
}

/// What links are to pass.
type Plans<'g> = BTreeMap<&'g str, Option<Plan>>;

impl Guard {
    /// Makes one that has looked at nothing yet.
    #[must_use]
    pub fn new(index: Index) -> Self {
        Guard { index, known: BTreeMap::new(), watched: BTreeSet::new(), closed: BTreeMap::new() }
    }

    /// Reports whether a change of a link is a reason to look.
    #[must_use]
    pub fn watches(&self, ifindex: u32) -> bool {
        self.watched.contains(&ifindex)
    }

    /// Watches a link of an attachment that has just started, until the next look knows it.
    pub fn watch(&mut self, host_ifname: &str) {
        let found = RouteSocket::open().and_then(|mut host| host.link_by_name(host_ifname));
        if let Ok(Some(link)) = found {
            self.watched.extend([link.index].into_iter().chain(link.master));
        }
    }

    /// Compares all links with what their attachments need, and puts right what is not so. Leaves
    /// out attachments that `ends` names: their DEL is on its way.
    ///
    /// # Errors
    /// The kernel does not answer or refuses, or the lock of the packet filter cannot be taken in
    /// time. Then links may be open that should not be.
    pub fn look(&mut self, ends: impl Fn(&AttachmentKey) -> bool) -> Result<Findings, Error> {
        Ok(self.look_at_all(ends)?)
    }

    fn look_at_all(&mut self, ends: impl Fn(&AttachmentKey) -> bool) -> Result<Findings, Failure> {
        let mut all = self.list();
        all.retain(|_, one| !ends(&one.key));
        self.known.clone_from(&all);
        if all.is_empty() {
            (self.watched, self.closed) = (BTreeSet::new(), BTreeMap::new());
            return Ok(Findings::default());
        }
        let (mut looked, mut socket) = (Findings::default(), RouteSocket::open()?);
        let mut host = Host::read(&mut socket)?;
        if self.change_links(&all, &host, &mut socket, &mut looked) {
            host = Host::read(&mut socket)?;
        }
        self.watched = host.watched(&all);
        let plans = self.plans(&all, &host, &mut socket, &mut looked)?;
        self.write(&all, &plans, &mut looked)?;
        looked.closed = self.closed.values().cloned().collect();
        Ok(looked)
    }

    /// Lists the attachments. A record that cannot be read counts as it was.
    fn list(&self) -> BTreeMap<String, PodLink> {
        let listed = self.index.list();
        let own = listed.found.iter().filter(|record| record.plugin == PLUGIN);
        let mut all: BTreeMap<String, PodLink> = own
            .filter_map(|record| Some((record.attachment.hash(), PodLink::of(record)?)))
            .collect();
        for damaged in listed.damaged.iter().filter(|damaged| damaged.may_be_of(PLUGIN)) {
            let known = self.known.iter().filter(|(hash, _)| match damaged.hash() {
                Some(of) => of == hash.as_str(),
                None => true,
            });
            for (hash, one) in known {
                all.entry(hash.clone()).or_insert_with(|| one.clone());
            }
        }
        all
    }

    /// Takes the lock of an attachment, if it is as it was listed.
    fn lock(&self, one: &PodLink, looked: &mut Findings) -> Option<AttachmentLock> {
        let lock = match self.index.lock_attachment(&one.key, AT_ONCE) {
            Ok(lock) => lock?,
            Err(_) => {
                looked.busy.insert(one.key.to_string());
                return None;
            }
        };
        let now = self.index.of_attachment(&one.key);
        let own = now.found.iter().find(|record| record.plugin == PLUGIN);
        let is_same = match own {
            Some(record) => PodLink::of(record).as_ref() == Some(one),
            None => now.damaged.iter().any(|damaged| damaged.may_be_of(PLUGIN)),
        };
        if !is_same {
            looked.busy.insert(one.key.to_string());
        }
        is_same.then_some(lock)
    }

    /// Gives links their names again, and makes bridges show their packets. Returns whether it has
    /// tried any of that. A failure shows when the links are judged again.
    fn change_links(
        &self,
        all: &BTreeMap<String, PodLink>,
        host: &Host,
        socket: &mut RouteSocket,
        looked: &mut Findings,
    ) -> bool {
        let mut misnamed = Vec::new();
        let mut has_tried = false;
        for one in all.values() {
            let Some(link) = host.link_of(one) else { continue };
            let Judgement { rename_to, show, .. } = host.judge(one, link);
            if let Some(name) = rename_to {
                misnamed.push((one, link, name));
            }
            let Some((bridge, need)) = show else { continue };
            has_tried = true;
            let Some(_lock) = self.lock(one, looked) else { continue };
            let held = frames::hold(socket, &self.index, &one.key, &bridge, need);
            if note(one, held, &format!("show the packets of bridge {:?}", bridge.name)) {
                looked.mends(
                    one,
                    format!("bridge {:?} did not show packets to the packet filter", bridge.name),
                );
            }
        }
        // Names that two links have exchanged get free first.
        for (one, link, _) in &misnamed {
            let is_wanted = |name: &String| *name == link.name;
            if misnamed.iter().any(|(_, _, name)| is_wanted(name)) {
                has_tried = true;
                let Some(_lock) = self.lock(one, looked) else { continue };
                note(
                    one,
                    rename(socket, link.index, &format!("nw-{}", link.index)),
                    "rename its link",
                );
            }
        }
        for (one, link, name) in misnamed {
            has_tried = true;
            let Some(_lock) = self.lock(one, looked) else { continue };
            if note(one, rename(socket, link.index, &name), "rename its link") {
                looked.mends(one, format!("link {name:?} was renamed to {:?}", link.name));
            }
        }
        has_tried
    }

    /// Returns what links are to pass, by the attachments' hashes; `None` for a link that is gone.
    /// Sets links down whose packets no rule sees. Leaves out what another process is at work on.
    fn plans<'g>(
        &mut self,
        all: &'g BTreeMap<String, PodLink>,
        host: &Host,
        socket: &mut RouteSocket,
        looked: &mut Findings,
    ) -> Result<Plans<'g>, Failure> {
        let (mut plans, mut closed) = (BTreeMap::new(), BTreeMap::new());
        for (hash, one) in all {
            let Some(link) = host.link_of(one) else {
                plans.insert(hash.as_str(), None);
                continue;
            };
            let Judgement { closes, set_down, why, .. } = host.judge(one, link);
            let Some(why) = why else {
                plans.insert(hash.as_str(), Some(plan_of(&one.recorded)));
                continue;
            };
            // An ADD may just be about to make it right.
            let Some(_lock) = self.lock(one, looked) else {
                closed.extend(self.closed.get_key_value(hash).map(|(a, b)| (a.clone(), b.clone())));
                continue;
            };
            if set_down && link.up() {
                let set = LinkSet::default().up(false);
                socket.apply_one(&Change::SetLink { ifindex: link.index, set })?;
            }
            closed.insert(hash.clone(), format!("{}: {why}", one.key));
            plans.insert(hash.as_str(), Some(closes));
        }
        self.closed = closed;
        Ok(plans)
    }

    /// Writes elements and rules that are not as they are to be.
    fn write(
        &self,
        all: &BTreeMap<String, PodLink>,
        plans: &Plans<'_>,
        looked: &mut Findings,
    ) -> Result<(), Failure> {
        let mut firewall = Firewall::open_within(&self.index, LOCK_TIME)?;
        let owned = firewall.owned(CONCERNS)?;
        let mut whole = Plan::default();
        whole.own.extend(plans.values().flatten().flat_map(|plan| &plan.own).cloned());
        let altered = firewall.altered(&whole)?;
        if !altered.is_empty() {
            firewall.mend(&whole)?;
            looked.mended.extend(altered);
            looked.addresses.extend(all.values().flat_map(|one| &one.recorded.started.addresses));
        }
        let (mut exchanges, mut locks) = (Vec::new(), Vec::new());
        for (hash, plan) in plans {
            let one = &all[*hash];
            let found = owned.get(*hash).map(Vec::as_slice).unwrap_or_default();
            let (add, remove) = match plan {
                Some(plan) => difference(plan, found),
                // DEL removes what the record names.
                None => (Plan::default(), difference(&plan_of(&one.recorded), found).1),
            };
            if add.is_empty() && remove.is_empty() {
                continue;
            }
            let Some(lock) = self.lock(one, looked) else { continue };
            locks.push(lock);
            if let Some(first) = add.own.first()
                && !self.closed.contains_key(*hash)
            {
                looked.mends(one, format!("missing: {first}"));
            }
            exchanges.push(Exchange { key: one.key.clone(), add, remove });
        }
        Ok(firewall.exchange(&exchanges)?)
    }
}

impl PodLink {
    /// Reads it, if its link passes the node.
    fn of(record: &Record) -> Option<Self> {
        let recorded: AttachmentRecord = recorded_in(record)?;
        let has_link = recorded.started.interface.is_some() && recorded.index.is_some();
        let (key, netns) = (record.attachment.clone(), record.netns.clone());
        has_link.then_some(PodLink { key, recorded, netns })
    }

    /// Reports whether the container's interface is the other end of a link. Links of other
    /// projects' plugins have no mark of ours, and a later link may have the index of one.
    fn has_other_end_of(&self, link: &Link) -> bool {
        let netns = self.netns.as_deref().and_then(|path| Netns::open(path).ok());
        let inside = netns.and_then(|netns| RouteSocket::open_in(&netns).ok());
        let found =
            inside.and_then(|mut inside| inside.link_by_name(self.key.ifname.as_str()).ok());
        let found = found.flatten();
        found.is_some_and(|inside| {
            inside.peer_index == Some(link.index) && link.peer_index == Some(inside.index)
        })
    }

    fn name(&self) -> &str {
        self.recorded.started.interface.as_deref().unwrap_or_default()
    }
}

impl Findings {
    fn mends(&mut self, one: &PodLink, what: String) {
        self.mended.push(format!("{}: {what}", one.key));
        self.addresses.extend(&one.recorded.started.addresses);
    }
}

impl Host {
    fn read(socket: &mut RouteSocket) -> Result<Self, Failure> {
        let links = socket.links()?.into_iter().map(|link| (link.index, link)).collect();
        Ok(Host { links, shows_frames: frames::is_loaded() })
    }

    /// Returns the link of an attachment, whatever its name is now.
    fn link_of(&self, one: &PodLink) -> Option<&Link> {
        let found = self.links.get(&one.recorded.index?)?;
        let is_own = link::is_named(found, &one.recorded)
            || link::is_marked(found, &one.key)
            || (found.is_kind("veth") && one.has_other_end_of(found));
        is_own.then_some(found)
    }

    fn master_of(&self, link: &Link) -> Option<&Link> {
        self.links.get(&link.master?)
    }

    /// Returns the links of attachments, their bridges, and other links that have the name of one.
    fn watched(&self, all: &BTreeMap<String, PodLink>) -> BTreeSet<u32> {
        let links = || all.values().filter_map(|one| self.link_of(one));
        let names: BTreeSet<&str> = all.values().map(PodLink::name).collect();
        let named = self.links.values().filter(|link| names.contains(link.name.as_str()));
        let own = links().map(|link| link.index);
        own.chain(links().filter_map(|link| link.master))
            .chain(named.map(|link| link.index))
            .collect()
    }

    fn judge(&self, one: &PodLink, link: &Link) -> Judgement {
        let mut judged = Judgement { closes: closed(&link.name), ..Judgement::default() };
        let (name, wanted) = (one.name(), one.recorded.bridge.as_deref());
        if link.name != name {
            judged.rename_to = Some(name.to_owned());
            judged.why = Some(format!("link {name:?} was renamed to {:?}", link.name));
        }
        let master = self.master_of(link);
        let bridge = master.cloned().and_then(Bridge::of);
        let now = bridge.as_ref().map(|bridge| bridge.name.as_str());
        if now != wanted {
            let named =
                |bridge: Option<&str>| bridge.map_or("none".to_owned(), |b| format!("{b:?}"));
            let (now, before) = (named(now), named(wanted));
            judged.why = Some(format!("link {name:?} is a port of bridge {now}, not of {before}"));
        }
        match (master, bridge) {
            (Some(master), None) if !master.is_kind("vrf") => {
                judged.set_down = true;
                judged.why = Some(format!(
                    "link {name:?} is a port of {:?}, which shows its packets to no filter",
                    master.name
                ));
            }
            (_, Some(bridge)) if judged.why.is_none() => {
                judged.closes = plan(&one.recorded, &[]);
                self.judge_frames(one, bridge, &mut judged);
            }
            _ => {}
        }
        judged
    }

    fn judge_frames(&self, one: &PodLink, bridge: Bridge, judged: &mut Judgement) {
        let need = Need::of(&one.recorded.started.addresses, &bridge);
        let found = match self.shows_frames {
            true => frames::difference(&bridge, need).map_err(|failure| failure.to_string()),
            false => {
                Err(format!("bridge {:?} shows no packets: {}", bridge.name, frames::NOT_LOADED))
            }
        };
        match found {
            Ok(found) if found.is_empty() => {}
            Ok(found) => {
                judged.why = Some(found.join("; "));
                judged.show = Some((bridge, need));
            }
            Err(why) => judged.why = Some(why),
        }
    }
}

/// Plans that a link passes no address, whether the host routes its packets or a bridge passes them
/// on.
#[must_use]
pub(super) fn closed(host_ifname: &str) -> Plan {
    pod_link::plan(host_ifname, pod_link::Place::Bridged, &[])
}

/// Returns what is missing of a plan, and what is there beside it.
fn difference(plan: &Plan, found: &[Element]) -> (Plan, Vec<Element>) {
    let mut add = plan.clone();
    add.own.retain(|element| !found.contains(element));
    let remove = found.iter().filter(|element| !plan.own.contains(element)).cloned();
    (add, remove.collect())
}

fn rename(socket: &mut RouteSocket, ifindex: u32, name: &str) -> Result<(), Failure> {
    let set = LinkSet { name: Some(name.to_owned()), ..LinkSet::default() };
    Ok(socket.apply_one(&Change::SetLink { ifindex, set })?)
}

/// Logs a failure, which the next judgement shows too. Returns whether it was none.
fn note(one: &PodLink, done: Result<(), Failure>, what: &str) -> bool {
    if let Err(failure) = &done {
        tracing::debug!(attachment = %one.key, error = %failure, "cannot {what}");
    }
    done.is_ok()
}
