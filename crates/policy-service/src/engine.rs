//! The decisions: the engine takes what sources, records and plugins say, and returns what is to be
//! done.
//!
//! Until every kind was listed once, the engine gathers objects, and nothing of the packet filter is
//! changed. Then it compiles this node's program, and turns each change into steps.
//!
//! An address of a record is closed until its pod is known. From then on it belongs to that pod;
//! the pod's status does not matter.

mod beyond;
mod closed;
mod inside;
mod known;
mod local;
mod networks;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use policy::isolation::Isolation;
use policy::object::Uid;
use policy::{Change, Compiler, Networks, Pod, PolicyId, Program, Refusal, Step, World};

use self::beyond::BeyondPods;
use self::closed::ClosedAttachments;
pub(super) use self::inside::{Container, Site};
pub(super) use self::known::{AddressTarget, Place};
use super::concern::Concern;
use super::further::FurtherNetworks;
use super::kinds::{Key, Kind, Object, ObjectContent};
use super::lists::{BRAKE, CONFIRM, FEW, Lists, Origin};
use super::records::{Id, Records};
use super::said::Remarks;
use super::tell::{ServerWrite, WriteQueue};

/// The most objects that cannot be read and are remembered.
const MOST_UNREADABLE: usize = 100;

/// What a source says.
#[derive(Debug)]
pub(super) enum Event {
    /// A list of a kind begins.
    Begin(Kind),
    /// It has this object.
    Listed(Object),
    /// It is complete.
    Complete(Kind),
    /// An object is new, or has changed.
    Changed(Object),
    /// An object was deleted.
    Gone(Key),
    /// An object cannot be identified, or is of another version.
    Unreadable(Refusal),
    /// Everything is read anew: what could not be read before is forgotten.
    Reread,
    /// What people should know of files besides their objects.
    Remarks(Remarks),
    /// The source does not answer about a kind.
    Silent(Kind, String),
    /// It answers again, and nothing has changed.
    Answers(Kind),
}

/// What is to be done. The steps, or the whole program, come first.
#[derive(Debug, Default)]
pub(super) struct Todo {
    /// The steps of one transaction.
    pub(super) steps: Vec<Step>,
    /// The packet filter is to be brought to the program, from any state.
    pub(super) bring: bool,
    /// Programs of containers' namespaces may have changed in more than elements of sets.
    pub(super) inside: bool,
    /// The attachments that plugins have closed in containers' namespaces.
    pub(super) closed: BTreeSet<Id>,
    /// The connections that are to be judged again, after that.
    pub(super) concern: Concern,
    /// The kinds that are to be listed again.
    pub(super) relist: Vec<Kind>,
    /// What is to be written to the server.
    pub(super) tell: Vec<ServerWrite>,
    /// How many policies there are has changed.
    pub(super) save: bool,
    /// What the log is to say.
    pub(super) news: Vec<News>,
}

/// Something that the log is to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct News {
    pub(super) warning: bool,
    pub(super) text: String,
}

/// How many policies there were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PolicyCounts {
    pub(super) network_policies: usize,
    pub(super) cluster_network_policies: usize,
    pub(super) multi_network_policies: usize,
}

impl Todo {
    /// Adds what else is to be done, without the steps: they are in the programs that are brought.
    pub(super) fn add(&mut self, more: Todo) {
        self.inside |= more.inside || !more.steps.is_empty();
        self.closed.extend(more.closed);
        self.concern.add(more.concern);
        self.relist.extend(more.relist);
        self.tell.extend(more.tell);
        self.save |= more.save;
        self.news.extend(more.news);
    }
}

impl PolicyCounts {
    fn of(&self, kind: Kind) -> usize {
        match kind {
            Kind::NetworkPolicies => self.network_policies,
            Kind::ClusterNetworkPolicies => self.cluster_network_policies,
            Kind::MultiNetworkPolicies => self.multi_network_policies,
            _ => 0,
        }
    }
}

#[derive(Debug)]
enum Phase {
    /// Not everything was listed.
    Gathering(Box<World>),
    /// The program is enforced.
    Standing(Box<Compiler>),
}

impl Phase {
    fn world(&self) -> &World {
        match self {
            Phase::Gathering(world) => world,
            Phase::Standing(compiler) => compiler.world(),
        }
    }
}

/// A pod of this node, as its source says it.
#[derive(Debug)]
struct Local {
    pod: Pod,
    /// The UID by which the kubelet calls a static pod.
    static_uid: Option<Uid>,
    /// What it says of further networks.
    further: FurtherNetworks,
    /// One of its containers may change what is judged in its own namespace.
    may_undo: bool,
}

/// All decisions of the service.
#[derive(Debug)]
pub(super) struct Engine {
    node: String,
    phase: Phase,
    /// The further networks of pods.
    networks: Networks,
    lists: Lists,
    records: Records,
    local: BTreeMap<Uid, Local>,
    /// The pods of other nodes that say that they have addresses of attachments here, as they say it.
    withheld: BTreeMap<Uid, Pod>,
    /// Pods that exist because of a record, where no source knows pods.
    of_records: BTreeMap<Id, Uid>,
    tell: WriteQueue,
    /// The pods whose policies are beyond what is enforced; the log has said so.
    beyond: BeyondPods,
    closed: ClosedAttachments,
    unreadable: BTreeMap<String, Refusal>,
    remarks: Remarks,
    /// How many policies an earlier run knew.
    before: PolicyCounts,
    /// Why links of pods are closed.
    closed_links: Vec<String>,
    /// The first lists lack most of those policies: when they are asked for again.
    doubt: Option<Instant>,
    /// The kinds of which another list is awaited for that reason.
    confirming: BTreeSet<Kind>,
    /// The lists are believed.
    believed: bool,
    todo: Todo,
}

impl Engine {
    pub(super) fn new(
        node: &str,
        origin: Origin,
        isolation: Isolation,
        before: PolicyCounts,
    ) -> Self {
        Engine {
            node: node.to_owned(),
            phase: Phase::Gathering(Box::new(World::new(Some(isolation)))),
            networks: Networks::new(node),
            lists: Lists::new(origin),
            records: Records::default(),
            local: BTreeMap::new(),
            withheld: BTreeMap::new(),
            of_records: BTreeMap::new(),
            tell: WriteQueue::new(node),
            beyond: BeyondPods::new(),
            closed: ClosedAttachments::default(),
            unreadable: BTreeMap::new(),
            remarks: Remarks::default(),
            before,
            closed_links: Vec::new(),
            doubt: None,
            confirming: BTreeSet::new(),
            believed: false,
            todo: Todo::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn knowing(world: World) -> Self {
        let isolation = super::isolate::isolation(&agent::config::Policy::default());
        let mut engine = Engine::new("one", Origin::Files, isolation, PolicyCounts::default());
        engine.phase = Phase::Gathering(Box::new(world));
        engine
    }

    /// Returns this node's name.
    pub(super) fn node(&self) -> &str {
        &self.node
    }

    /// Returns the objects, also before they are complete.
    pub(super) fn world(&self) -> &World {
        self.phase.world()
    }

    /// Returns what the packet filter is to be for the pods' own network; `None` before that is known.
    pub(super) fn program(&self) -> Option<&Program> {
        match &self.phase {
            Phase::Gathering(_) => None,
            Phase::Standing(compiler) => Some(compiler.program()),
        }
    }

    // What sources say.

    /// Takes which addresses this host has: not all that the API server has of this node need be
    /// among them.
    pub(super) fn take_host(&mut self, addresses: BTreeSet<IpAddr>) {
        match &mut self.phase {
            Phase::Gathering(world) => world.set_host(&self.node, addresses),
            Phase::Standing(compiler) => compiler.set_host(addresses),
        }
    }

    /// Takes what a source says. The program follows when the engine
    /// [catches up](Engine::catch_up).
    pub(super) fn hear(&mut self, event: Event, now: Instant) {
        match event {
            Event::Begin(kind) => {
                let known = self.keys(kind).next().is_some();
                self.lists.begin(kind, known);
            }
            Event::Listed(object) | Event::Changed(object) => self.take(object),
            Event::Gone(key) => {
                if let Some(kind) = key.kind() {
                    self.lists.forget(kind, &key);
                    self.answers(kind);
                }
                self.remove(key);
            }
            Event::Complete(kind) => self.complete(kind, now),
            Event::Unreadable(refused) => {
                if self.unreadable.len() < MOST_UNREADABLE {
                    let text = refused.to_string();
                    let is_new = self.unreadable.insert(text.clone(), refused).is_none();
                    // Files are read again and again, and their reader has logged it.
                    if is_new && self.lists.origin() == Origin::Server {
                        self.news(true, text);
                    }
                }
            }
            Event::Reread => self.unreadable.clear(),
            Event::Remarks(remarks) => self.remarks = remarks,
            Event::Silent(kind, why) => {
                let text = format!("{kind}: {why}; what is enforced stays");
                if self.lists.fall_silent(kind, why) {
                    self.news(true, text);
                }
            }
            Event::Answers(kind) => self.answers(kind),
        }
    }

    fn answers(&mut self, kind: Kind) {
        if self.lists.answers(kind) {
            self.news(false, format!("{kind}: the source answers again"));
        }
    }

    fn news(&mut self, warning: bool, text: String) {
        self.todo.news.push(News { warning, text });
    }

    /// Returns the names of all objects of a kind that a source has reported.
    fn keys(&self, kind: Kind) -> Box<dyn Iterator<Item = Key> + '_> {
        let world = self.world();
        match kind {
            Kind::Namespaces => {
                Box::new(world.namespaces().map(|one| Key::Namespace(one.name.clone())))
            }
            Kind::Nodes => Box::new(world.nodes().map(|one| Key::Node(one.name.clone()))),
            Kind::Pods => {
                let of_records: BTreeSet<&Uid> = self.of_records.values().collect();
                let said = world.pods().filter(move |pod| !of_records.contains(&pod.uid));
                Box::new(said.map(|pod| Key::Pod(pod.uid.clone())))
            }
            Kind::NetworkPolicies | Kind::ClusterNetworkPolicies => {
                let keys = world.policies().map(|policy| Key::Policy(policy.id.clone()));
                Box::new(keys.filter(move |key| key.kind() == Some(kind)))
            }
            Kind::MultiNetworkPolicies => {
                let policies = self.networks.policies();
                Box::new(policies.map(|policy| Key::Policy(policy.policy.id.clone())))
            }
        }
    }

    fn take(&mut self, object: Object) {
        let key = object.key();
        let Some(kind) = key.kind() else { return };
        self.answers(kind);
        self.lists.see(kind, &key);
        let Object { what, meta } = object;
        match what {
            ObjectContent::Namespace(namespace) => {
                self.tell.namespace(&namespace, meta);
                self.change(namespace.into());
            }
            ObjectContent::Node(node) => {
                if self.world().node(&node.name) != Some(&node) {
                    self.change(node.into());
                }
            }
            ObjectContent::Pod(pod) => self.take_pod(*pod, meta),
            ObjectContent::Policy(policy) => {
                self.tell.policy(&policy, meta);
                self.todo.save |= self.world().policy(&policy.id).is_none();
                self.change((*policy).into());
            }
            ObjectContent::MultiPolicy(policy) => {
                self.tell.policy(&policy.policy, meta);
                self.take_multi_policy(*policy);
            }
        }
    }

    fn remove(&mut self, key: Key) {
        self.tell.forget(&key);
        match &key {
            Key::Pod(uid) => {
                // An address that a record has is closed from now on, until another pod has it.
                let uid = uid.clone();
                let addresses = self.addresses_of(&uid);
                let local = self.local.remove(&uid);
                self.withheld.remove(&uid);
                self.change(key.removal());
                self.lead(addresses.iter().copied());
                if let Some(Local { pod, .. }) = &local {
                    self.put_namesakes(&(pod.namespace.clone(), pod.name.clone()));
                    self.put_sharing(addresses.iter().chain(pod.own_addresses()).copied());
                }
                self.remove_further(&uid, local.map(|local| local.pod));
                return;
            }
            Key::Policy(id @ PolicyId::MultiNetwork { .. }) => {
                self.todo.save = true;
                let id = id.clone();
                self.networks.policy(&id, None, self.phase.world());
                return;
            }
            Key::Policy(_) => self.todo.save = true,
            Key::Namespace(_) | Key::Node(_) => {}
        }
        let is_namespace = matches!(key, Key::Namespace(_));
        self.change(key.removal());
        if is_namespace {
            self.imply_namespaces();
        }
    }

    fn complete(&mut self, kind: Kind, now: Instant) {
        self.answers(kind);
        let (mut count, mut unseen) = (0, Vec::new());
        if self.lists.compares(kind) {
            for key in self.keys(kind) {
                count += 1;
                if !self.lists.has_seen(kind, &key) {
                    unseen.push(key);
                }
            }
        }
        let judged = self.lists.complete(kind, count, unseen, now);
        if let Some((count, grace)) = judged.kept
            && self.lists.origin() == Origin::Server
        {
            let text = format!(
                "a list of {kind} lacks {count} that were there; they are kept for {} s, and then \
                 listed again; if the list is right, run `netwright policy accept`",
                grace.as_secs()
            );
            self.news(true, text);
        }
        for key in judged.gone {
            self.remove(key);
        }
        if self.confirming.remove(&kind) && self.confirming.is_empty() {
            self.believed = true;
        }
        self.stand(now);
    }

    /// Begins to enforce once everything was listed.
    fn stand(&mut self, now: Instant) {
        if !self.lists.are_complete() || self.program().is_some() || self.doubts(now) {
            return;
        }
        let Phase::Gathering(world) = &mut self.phase else { return };
        let world = std::mem::take(world);
        let mut compiler = Compiler::new(*world, &self.node);
        for attachment in self.records.all() {
            for address in attachment.own() {
                compiler.start(*address, self.wanted(*address));
            }
        }
        self.phase = Phase::Standing(Box::new(compiler));
        self.todo.bring = true;
        self.todo.save = true;
        self.news(false, "all objects are known: policies are enforced".to_owned());
    }

    /// Reports whether the first lists lack most of the policies that there were: then they are
    /// asked for again before they are believed, and what the packet filter has stays meanwhile.
    /// Files are read when they change, and are believed once they have the policies again.
    fn doubts(&mut self, now: Instant) -> bool {
        let origin = self.lists.origin();
        if self.believed {
            return false;
        }
        if self.doubt.is_some() && origin == Origin::Server {
            return true;
        }
        let known = self.known();
        let lost = |kind| self.before.of(kind).saturating_sub(known.of(kind));
        let is_most = |kind: &Kind| self.before.of(*kind) < lost(*kind).saturating_mul(2);
        let Some(kind) = Kind::POLICIES.into_iter().find(is_most) else {
            self.doubt = None;
            return false;
        };
        if self.doubt.is_some() {
            return true;
        }
        let grace = if FEW < lost(kind) { BRAKE } else { CONFIRM };
        self.doubt = Some(now + grace);
        let then = match origin {
            Origin::Server => "they are listed again",
            Origin::Files => "what the files say counts",
        };
        let text = format!(
            "there are {} {kind}, but there were {}: for {} s the packet filter stays as it is and \
             new pods are closed, and then {then}; if the list is right, run \
             `netwright policy accept`",
            known.of(kind),
            self.before.of(kind),
            grace.as_secs()
        );
        self.news(true, text);
        true
    }

    /// Believes what the lists say: an administrator has confirmed it.
    pub(super) fn accept(&mut self, now: Instant) {
        self.believed = true;
        for kind in Kind::ALL {
            for key in self.lists.let_go(kind) {
                self.remove(key);
            }
        }
        self.stand(now);
    }

    // What is to be done.

    fn change(&mut self, change: Change) {
        let namespace = match &change {
            Change::Namespace(name, _) => Some(name.clone()),
            _ => None,
        };
        match &mut self.phase {
            Phase::Gathering(world) => world.change(change),
            Phase::Standing(compiler) => compiler.change(change),
        }
        if let Some(name) = namespace {
            self.follow(|networks, world| networks.namespace(&name, world));
        }
    }

    /// Brings the program to the objects that were heard.
    pub(super) fn catch_up(&mut self) {
        if let Phase::Standing(compiler) = &mut self.phase {
            self.todo.steps.extend(compiler.settle());
        }
        self.follow(|networks, _| networks.settle());
    }

    /// Reports whether there is something to be done by now.
    pub(super) fn has_todo(&self) -> bool {
        let Todo { steps, bring, inside, closed, .. } = &self.todo;
        *bring || *inside || !steps.is_empty() || !closed.is_empty()
    }

    /// Returns when [`Engine::tick`] has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        let tell = self.program().and_then(|_| self.tell.due());
        let doubt = self.doubt.filter(|_| self.program().is_none());
        [self.lists.due(), tell, doubt, self.closed.due()].into_iter().flatten().min()
    }

    /// Does what is due.
    pub(super) fn tick(&mut self, now: Instant) {
        self.tell_closed(now);
        for kind in self.lists.to_confirm(now) {
            match (self.lists.origin(), kind) {
                // A server would have to list all pods again for that, which costs too much. Files
                // have no server to ask.
                (Origin::Files, _) | (Origin::Server, Kind::Pods) => {
                    for key in self.lists.let_due_go(kind, now) {
                        self.remove(key);
                    }
                }
                (Origin::Server, kind) => {
                    self.lists.ask(kind, now);
                    self.todo.relist.push(kind);
                }
            }
        }
        let is_due = self.program().is_none() && self.doubt.is_some_and(|due| due <= now);
        if is_due && self.lists.origin() == Origin::Files {
            self.believed = true;
            self.stand(now);
        } else if is_due {
            self.confirming = Kind::POLICIES.into();
            self.todo.relist.extend(Kind::POLICIES);
            self.doubt = Some(now + CONFIRM);
        }
    }

    /// Returns all connections that this node judges in its own table.
    pub(super) fn all_concern(&self) -> Concern {
        let mut all = Concern::default();
        let programs = self.program().into_iter().chain(self.networks.programs());
        programs.for_each(|program| all.add(Concern::all(program)));
        all
    }

    /// Returns what is to be done.
    pub(super) fn take_todo(&mut self, now: Instant) -> Todo {
        self.catch_up();
        self.tell_who_is_beyond();
        self.wait_for_closed(now);
        let mut todo = std::mem::take(&mut self.todo);
        let Phase::Standing(compiler) = &self.phase else {
            todo.tell = self.tell.take_pods(now);
            return todo;
        };
        let world = compiler.world();
        for program in [compiler.program()].into_iter().chain(self.networks.programs()) {
            todo.concern.add(match todo.bring {
                true => Concern::all(program),
                false => Concern::of(&todo.steps, program),
            });
        }
        if todo.inside || todo.bring {
            // No step says where an interface of a container leads.
            let inside = self.records.all().filter(|one| one.inside.is_some());
            todo.concern.local.extend(inside.flat_map(|one| &one.addresses));
        }
        if self.lists.origin() == Origin::Server {
            self.tell.look(world, now);
            todo.tell = self.tell.take_due(world, now);
        }
        todo
    }
}

/// The UID of no pod.
fn nobody() -> Uid {
    Arc::from("")
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
