//! Finds the containers with their attachments, and what differs from what ADD made.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::UNIX_EPOCH;

use cni::order::{gather, sort_by};
use cni::{AttachmentKey, NetworkList};
use cni_runtime::{CachedAttachment, KnownAttachment, Presence, RepairObstacle};
use diagnose::model::{Attachment, Container, Drift, Port, Transport, UnfinishedAdd};
use firewall::element::Protocol;
use firewall::hostport::Forward;
use kernel::living::Census;
use kernel::netns::Netns;
use plugins::multi::whole::{AttachmentList, with_parts};
use plugins::recorded::is_by_others;
use serde::Deserialize;
use state::Roots;

use super::wanted_items;
use crate::dockers::{self, Endpoint};
use crate::node::{Choice, Node};
use crate::presence;
use crate::runtime_names::RuntimeNames;

/// A container, and what is known of its attachments.
#[derive(Debug)]
pub(super) struct Subject {
    pub(super) container: Container,
    /// In the order of the container's attachments.
    known: Vec<KnownAttachment>,
    /// The attachments that are parts of others: their plugins are not asked separately.
    parts: BTreeSet<AttachmentKey>,
    /// Whether its namespace is read.
    pub(super) is_read: bool,
    /// Whether its plugins are asked.
    pub(super) is_asked: bool,
}

/// Returns the containers of what is known, by their IDs.
pub(super) fn of(
    known: Vec<KnownAttachment>,
    node: &Node<'_>,
    names: &RuntimeNames,
) -> Vec<Subject> {
    let AttachmentList { known, parts, .. } = with_parts(node.roots, known);
    let mut found: BTreeMap<String, Subject> = BTreeMap::new();
    for one in known {
        let docker = dockers::endpoint(&one, node.roots);
        let id = one.key.container_id.to_string();
        let subject = found.entry(id).or_insert_with_key(|id| Subject::new(id));
        let container = &mut subject.container;
        if container.netns.is_empty() {
            container.netns = dockers::netns(&one, docker.as_ref());
        }
        if container.name.is_none() {
            container.name = pod(&one);
        }
        container.alive = match (container.alive, one.presence) {
            (Some(true), _) | (_, Presence::Alive) => Some(true),
            (None, Presence::Gone) if subject.known.is_empty() => Some(false),
            (Some(false), Presence::Gone) => Some(false),
            _ => None,
        };
        let mut attachment = attachment(&one, docker.as_ref());
        if parts.contains(&one.key) {
            attachment.unfinished = None;
            subject.parts.insert(one.key.clone());
        }
        container.attachments.push(attachment);
        subject.known.push(one);
    }
    let mut found: Vec<Subject> = found.into_values().collect();
    for subject in &mut found {
        let container = &mut subject.container;
        if container.name.is_none() && container.alive == Some(true) {
            container.name = names.of(&container.netns);
        }
        subject.is_read = container.alive == Some(true);
        subject.is_asked = container.alive != Some(false);
    }
    found
}

/// How many others on the same networks are read too when only one container is asked for.
const OTHERS: usize = 16;

/// Reads only the container that a name means, and some of those on its networks. A name that means
/// no container changes nothing, unless it means a namespace: then that is a container without
/// attachments.
pub(super) fn choose(
    subjects: &mut Vec<Subject>,
    choice: &Choice,
    roots: &Roots,
    names: &RuntimeNames,
) {
    let chosen = chosen(subjects, choice, roots, names);
    if chosen.is_empty() {
        if let Some(subject) = bare(choice).or_else(|| of_runtime(&choice.text, names)) {
            subjects.iter_mut().for_each(Subject::pass_over);
            subjects.push(subject);
            sort_by(subjects, |one, other| one.container.id.cmp(&other.container.id));
        }
        return;
    }
    let of_chosen = subjects.iter().filter(|one| chosen.contains(&one.container.id));
    let attachments = of_chosen.flat_map(|one| &one.container.attachments);
    let networks: BTreeSet<String> =
        gather(attachments.map(|attachment| attachment.network.clone()));
    let mut left = OTHERS;
    for subject in subjects {
        if chosen.contains(&subject.container.id) {
            continue;
        }
        let mut of = subject.container.attachments.iter().map(|one| &one.network);
        let is_near = subject.is_read && of.any(|network| networks.contains(network));
        subject.pass_over();
        if is_near && 0 < left {
            left -= 1;
            subject.is_read = true;
        }
    }
}

/// Returns the IDs of the containers that a name means.
fn chosen(
    subjects: &[Subject],
    choice: &Choice,
    roots: &Roots,
    names: &RuntimeNames,
) -> BTreeSet<String> {
    let text = choice.text.as_str();
    let ids = |is: &dyn Fn(&Subject) -> bool| -> BTreeSet<String> {
        let found = subjects.iter().filter(|subject| is(subject));
        gather(found.map(|subject| subject.container.id.clone()))
    };
    let exact = ids(&|subject| {
        let container = &subject.container;
        let pod = container.name.as_deref();
        container.id == text
            || pod == Some(text)
            || pod.and_then(|pod| pod.rsplit('/').next()) == Some(text)
            || subject
                .known
                .iter()
                .any(|one| dockers::endpoint(one, roots).is_some() && dockers::is_meant(one, text))
    });
    if !exact.is_empty() {
        return exact;
    }
    let path = choice.netns.to_string_lossy();
    let identity = presence::identity(&path).or_else(|| names.namespace(text));
    let by_place = ids(&|subject| {
        let netns = &subject.container.netns;
        *netns == path
            || subject.container.id == choice.id.as_str()
            || identity.is_some() && presence::identity(netns) == identity
    });
    if !by_place.is_empty() {
        return by_place;
    }
    ids(&|subject| subject.container.id.starts_with(text))
}

/// Returns the namespace that a name means, as a container of which nothing is known.
fn bare(choice: &Choice) -> Option<Subject> {
    let netns = choice.netns.to_string_lossy();
    presence::identity(&netns)?;
    let mut subject = Subject::new(choice.id.as_str());
    subject.container.name = Some(choice.text.clone());
    subject.container.netns = netns.into_owned();
    subject.container.alive = Some(true);
    subject.is_read = true;
    Some(subject)
}

/// Returns the container that Docker or podman has attached to a network of its own.
fn of_runtime(text: &str, names: &RuntimeNames) -> Option<Subject> {
    let found = names.find(text)?;
    names.own_of(found)?;
    let mut subject = Subject::new(&found.id);
    subject.container.name = Some(found.name.clone());
    subject.container.netns = found.path()?;
    subject.container.alive = Some(true);
    subject.is_read = true;
    Some(subject)
}

impl Subject {
    fn new(id: &str) -> Self {
        Subject {
            container: Container { id: id.to_owned(), ..Container::default() },
            known: Vec::new(),
            parts: BTreeSet::new(),
            is_read: false,
            is_asked: false,
        }
    }

    fn pass_over(&mut self) {
        self.is_read = false;
        self.is_asked = false;
    }

    /// Asks the plugins of each attachment what differs.
    pub(super) fn ask(&mut self, node: &Node<'_>) {
        for (known, attachment) in self.known.iter().zip(&mut self.container.attachments) {
            let is_part = self.parts.contains(&known.key);
            if known.presence == Presence::Gone || is_part || attachment.unfinished.is_some() {
                continue;
            }
            match differences(known, node) {
                Ok(drifts) => {
                    (attachment.drifts, attachment.not_checked) = without_unknown(drifts);
                }
                Err(reason) => attachment.not_checked = reason,
            }
        }
    }

    /// Says whether its records are gone by now. Then a DEL detached it while we looked at it, and
    /// what we found is not reported.
    pub(super) fn is_detached(&self) -> bool {
        let is_gone = |known: &KnownAttachment| known.file().is_some_and(|file| !file.exists());
        !self.known.is_empty() && self.known.iter().all(is_gone)
    }

    /// Says whether no ADD of it has completed, and none is running.
    pub(super) fn is_unfinished(&self) -> bool {
        let mut attachments = self.container.attachments.iter();
        !self.known.is_empty() && attachments.all(|one| one.unfinished.is_some())
    }

    /// Finds its namespace by what plugins recorded about it, when its path does not lead there.
    pub(super) fn elsewhere(&self, census: &Census) -> Option<Netns> {
        let records = self.known.iter().flat_map(|known| &known.records);
        state::noted_in(records).iter().find_map(|noted| census.find(noted))
    }
}

/// Asks the plugins of an attachment.
///
/// # Errors
/// Why they were not asked; `None` when the user need not know the reason.
fn differences(known: &KnownAttachment, node: &Node<'_>) -> Result<Vec<Drift>, Option<String>> {
    match known.apart(node.roots) {
        None => {}
        // An ADD that is still running.
        Some(RepairObstacle::Unfinished)
            if known.cached.as_ref().is_some_and(CachedAttachment::is_under_way) =>
        {
            return Err(None);
        }
        // Docker has moved the interface; the service of Docker's driver compares those.
        Some(RepairObstacle::Dockers) => return Err(None),
        Some(apart) => return Err(Some(why(apart).to_owned())),
    }
    let repairs = match node.runtime.survey(known, node.deadline()) {
        // Its network sets "disableCheck", or its version has no CHECK: an administrator has chosen
        // that.
        Ok(repairs) if repairs.skipped => return Err(None),
        Ok(repairs) => repairs,
        Err(error) => return Err(Some(cni::text::one_line(&error))),
    };
    let drift = |failure: &cni_runtime::PluginFailure| {
        let error = failure.error.to_cni();
        let items = error.differences.iter().map(wanted_items::item).collect();
        Drift {
            plugin: failure.plugin_type.clone(),
            code: error.code,
            what: error.msg,
            details: error.details,
            items,
        }
    };
    Ok(repairs.left.iter().map(drift).collect())
}

/// Returns the differences that were seen, and why a plugin could not look. One that lacked a right
/// or the time has seen no difference.
fn without_unknown(drifts: Vec<Drift>) -> (Vec<Drift>, Option<String>) {
    let is_unknown = |drift: &Drift| {
        drift.code == cni::code::TRY_AGAIN_LATER
            || super::is_refused(&drift.what)
            || super::is_refused(&drift.details)
    };
    let (unknown, seen): (Vec<Drift>, Vec<Drift>) = drifts.into_iter().partition(is_unknown);
    let reason = |drift: &Drift| format!("{}: {}", drift.plugin, cni::text::one_line(&drift.what));
    (seen, unknown.first().map(reason))
}

fn why(apart: RepairObstacle) -> &'static str {
    match apart {
        RepairObstacle::Dockers => {
            "it is of a container of Docker's, which `netwrightd repair` repairs"
        }
        RepairObstacle::Elsewhere => "its runtime keeps its cache elsewhere",
        RepairObstacle::Unfinished => "its ADD has not completed, and does not go on",
        RepairObstacle::Unseen => "its network namespace cannot be seen",
    }
}

fn attachment(known: &KnownAttachment, docker: Option<&Endpoint>) -> Attachment {
    let ifname = known.key.ifname.as_str();
    let list = known.cached.as_ref().and_then(|cached| cached.list().ok());
    let mut found = Attachment {
        network: known.key.network.to_string(),
        ifname: ifname.to_owned(),
        plugins: types(list.as_ref(), known),
        ports: ports(known, docker),
        labels: list.as_ref().map(labels).unwrap_or_default(),
        since_s: since(known.file()),
        unfinished: unfinished(known).filter(|_| docker.is_none()),
        dockers: docker.is_some(),
        by_others: is_by_others(known),
        ..Attachment::default()
    };
    if let Some(result) = known.result() {
        for ip in result.container_ips(ifname) {
            found.addresses.push(ip.address);
            found.gateways.extend(ip.gateway);
        }
        found.gateways.dedup();
        let to = result.routes.iter().map(|route| route.dst);
        found.default_routes = to.filter(|to| to.prefix_len() == 0).collect();
        let mac = result.container_interface(ifname).map(|link| link.mac.clone());
        found.mac = mac.filter(|mac| !mac.is_empty());
        let on_host = result.interfaces.iter().filter(|link| link.sandbox.is_empty());
        found.host_links = on_host.map(|link| link.name.clone()).collect();
    }
    found
}

/// Returns an ADD that has not completed and is no longer running.
fn unfinished(known: &KnownAttachment) -> Option<UnfinishedAdd> {
    let cached = known.cached.as_ref()?;
    let ended = cached.result.is_none() && !cached.is_under_way();
    ended.then(|| UnfinishedAdd { error: cached.failed.clone() })
}

/// Returns the types of the plugins: of the configuration with which it was attached, or of their
/// records.
fn types(list: Option<&NetworkList>, known: &KnownAttachment) -> Vec<String> {
    match list {
        Some(list) => list.plugins.iter().map(|plugin| plugin.plugin_type.clone()).collect(),
        None => known.records.iter().map(|record| record.plugin.clone()).collect(),
    }
}

fn ports(known: &KnownAttachment, docker: Option<&Endpoint>) -> Vec<Port> {
    let ports = dockers::ports(known, docker).into_iter();
    let port = |port: Forward| {
        let transport = match port.protocol {
            Protocol::Tcp => Transport::Tcp,
            Protocol::Udp => Transport::Udp,
            // A scene does not have it.
            Protocol::Sctp => return None,
        };
        Some(Port {
            transport,
            host: port.host_port,
            host_ip: port.host_ip,
            container: port.container_port,
        })
    };
    ports.filter_map(port).collect()
}

/// Returns the pod of an attachment, as the kubelet's runtimes name it (CNI conventions do not, but
/// all use these arguments). Others may use them for the name of a container.
fn pod(known: &KnownAttachment) -> Option<String> {
    let args = &known.cached.as_ref()?.attachment.args;
    let given = |key| args.get(key).filter(|value| !value.is_empty());
    let name = given("K8S_POD_NAME")?;
    Some(match given("K8S_POD_NAMESPACE") {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    })
}

/// Returns the labels that a runtime gave (CNI conventions, `args.cni.labels`).
fn labels(list: &NetworkList) -> BTreeMap<String, String> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Keys {
        args: Args,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Args {
        cni: CniArgs,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct CniArgs {
        labels: Vec<Label>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Label {
        key: String,
        value: String,
    }
    let keys = list.plugins.iter().filter_map(|plugin| plugin.object.read::<Keys>().ok());
    gather(keys.flat_map(|keys| keys.args.cni.labels).map(|label| (label.key, label.value)))
}

/// Returns when a file was written, in seconds since 1970.
fn since(file: Option<&Path>) -> Option<u64> {
    let written = file?.metadata().ok()?.modified().ok()?;
    written.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::{Drift, without_unknown};

    #[test]
    fn a_plugin_that_had_no_time_has_seen_no_difference() {
        let drift = |plugin: &str, code: u32, what: &str| Drift {
            plugin: plugin.to_owned(),
            code,
            what: what.to_owned(),
            details: String::new(),
            items: Vec::new(),
        };
        let late = drift("portmap", 11, "the deadline passed before it could be started");
        let real = drift("bridge", 100, "eth0 is down");
        let (seen, reason) = without_unknown(vec![real.clone(), late.clone()]);
        assert_eq!(seen, std::slice::from_ref(&real));
        let told = "portmap: the deadline passed before it could be started";
        assert_eq!(reason.as_deref(), Some(told));
        assert_eq!(without_unknown(vec![real.clone()]), (vec![real], None));
    }
}
