//! The host's links and their qdiscs.

use cni::{AddResult, AttachmentKey, code};
use cni_plugin::codes;
use kernel::route::{
    Change, FilterInfo, Link, LinkKind, LinkSet, NewLink, Qdisc, RouteSocket, TcHandle,
};
use wanted::Limits;

use super::RecordData;
use super::plan::{self, Hook, QUEUE_PLACE, Shape};
use crate::shared::failure::Failure;
use crate::shared::owner;
use crate::shared::steps::{self, Step};

/// The prefix of the reference's names for the ifb link, and how many digits follow.
const IFB_PREFIX: &str = "bwp";
const IFB_DIGITS: usize = 12;

/// The host's end of a pair and everything of ours around it.
#[derive(Debug)]
pub(super) struct Node<'s> {
    socket: &'s mut RouteSocket,
    alias: String,
    pub(super) host: Link,
    pub(super) root: LinkQdiscs,
    hook: Hook,
    filters: Vec<FilterInfo>,
    /// The link for traffic from the container, if it exists.
    pub(super) ifb: Option<Link>,
    pub(super) ifb_root: LinkQdiscs,
    /// The name that such a link would get.
    free_name: Option<String>,
}

/// The qdiscs of a link.
#[derive(Debug, Default)]
pub(super) struct LinkQdiscs {
    pub(super) root: Option<Qdisc>,
    /// The qdisc inside it.
    pub(super) inside: Option<Qdisc>,
}

/// What [`Node::shape`] created.
#[derive(Debug, Default)]
pub(super) struct ShapingOutcome {
    /// The link for traffic from the container.
    pub(super) ifb: Option<Link>,
    /// Whether packets queue fairly.
    pub(super) fair: bool,
}

/// Finds the host's end of the container's interface by the reference's rule: the peer of a pair
/// that `prevResult` lists on the host.
///
/// # Errors
/// Code 7 in the reference's words.
pub(super) fn find_host(
    socket: &mut RouteSocket,
    inside: &mut RouteSocket,
    ifname: &str,
    result: &AddResult,
) -> Result<Link, Failure> {
    if result.interfaces.is_empty() {
        return Err(unusable("no interfaces provided".to_owned()));
    }
    let no_peer = |why: String| {
        unusable(format!("container interface {ifname} has no veth peer: {why}"))
            .with_details("only pairs of links (veth) can be shaped, as bridge and ptp make them")
    };
    let link = inside.link_by_name(ifname)?.ok_or_else(|| no_peer("Link not found".to_owned()))?;
    let peer = match (link.kind.as_deref(), link.peer_index) {
        (Some("veth"), Some(peer)) => peer,
        (kind, _) => return Err(no_peer(format!("it is a {} link", kind.unwrap_or("physical")))),
    };
    let host = socket.link_by_index(peer)?;
    // An ifindex counts in its own namespace: here it may be another link's.
    let host = host
        .filter(|host| host.is_kind("veth") && host.peer_index == Some(link.index))
        .ok_or_else(|| unusable(format!("veth peer with index {peer} is not in host ns")))?;
    if result.interfaces.iter().any(|listed| listed.sandbox.is_empty() && listed.name == host.name)
    {
        return Ok(host);
    }
    Err(unusable("no veth peer of container interface found in host ns".to_owned())
        .with_details(format!("prevResult does not list {:?} without a sandbox", host.name)))
}

fn unusable(message: String) -> Failure {
    Failure::new(code::INVALID_CONFIG, message)
}

/// Returns the names that an attachment's ifb link may have: the reference's, and another for a
/// further interface of the same container in the same network, for which the reference uses the
/// same name.
pub(super) fn ifb_names(key: &AttachmentKey) -> [String; 2] {
    let by_container = format!("{}{}", key.network, key.container_id);
    let theirs = cni::owner::sha512_hex(&by_container, IFB_DIGITS);
    let ours = &key.hash()[..IFB_DIGITS];
    [format!("{IFB_PREFIX}{theirs}"), format!("{IFB_PREFIX}{ours}")]
}

/// Finds an attachment's ifb link: the one with its mark, or one that has the reference's name and
/// no mark. Also returns a free name, if there is one.
pub(super) fn find_ifb(
    socket: &mut RouteSocket,
    key: &AttachmentKey,
) -> Result<(Option<Link>, Option<String>), Failure> {
    let alias = owner::alias(key);
    let (mut unmarked, mut free) = (None, None);
    for (attempt, name) in ifb_names(key).into_iter().enumerate() {
        match socket.link_by_name(&name)? {
            None => free = free.or(Some(name)),
            Some(link) if !link.is_kind("ifb") => {}
            Some(link) => match &link.alias {
                Some(mark) if *mark == alias => return Ok((Some(link), free)),
                None if attempt == 0 => unmarked = Some(link),
                _ => {}
            },
        }
    }
    Ok((unmarked, free))
}

impl<'s> Node<'s> {
    /// Reads everything.
    pub(super) fn observe(
        socket: &'s mut RouteSocket,
        key: &AttachmentKey,
        host: Link,
    ) -> Result<Self, Failure> {
        let root = LinkQdiscs::on(socket, host.index)?;
        let hook = socket.qdisc(host.index, TcHandle::INGRESS)?;
        let filters = match &hook {
            Some(_) => socket.filters(host.index, TcHandle::INGRESS_FILTERS)?,
            None => Vec::new(),
        };
        let (ifb, free_name) = find_ifb(socket, key)?;
        let ifb_root = match &ifb {
            Some(ifb) => LinkQdiscs::on(socket, ifb.index)?,
            None => LinkQdiscs::default(),
        };
        let hook = Hook { qdisc: hook.map(|found| found.qdisc), ours: false };
        let alias = owner::alias(key);
        Ok(Self { socket, alias, host, root, hook, filters, ifb, ifb_root, free_name })
    }

    /// Takes over what an earlier ADD has recorded about this link. Returns whether the hook for
    /// filters is ours, or will be once it is created.
    pub(super) fn recall(&mut self, recorded: Option<&RecordData>) -> bool {
        let known = recorded.filter(|recorded| recorded.host_index == self.host.index);
        self.hook.ours = self.hook.qdisc.is_none() || known.is_some_and(|known| known.own_hook);
        self.hook.ours
    }

    /// Reports whether traffic from the container is redirected to its link.
    pub(super) fn is_redirected(&self) -> bool {
        let to = self.ifb.as_ref().map(|ifb| ifb.index);
        to.is_some() && self.filters.iter().any(|filter| filter.redirects_to == to)
    }

    /// Enforces the limits: creates what is missing, changes what differs, removes what is no
    /// longer wanted. On failure everything is as before.
    pub(super) fn shape(&mut self, limits: &Limits) -> Result<ShapingOutcome, Failure> {
        let mtu = self.host.mtu;
        let shape = |limit: &Option<_>| limit.as_ref().map(|limit| Shape::of(limit, mtu));
        let (ingress, egress) = (shape(&limits.ingress), shape(&limits.egress));
        let host = (self.host.index, self.host.name.as_str());
        let mut steps = self.root.steps(host, ingress.as_ref())?;
        let made = match (&self.ifb, &egress) {
            (None, Some(_)) => Some(self.create_ifb()?),
            _ => None,
        };
        let ifb = made.as_ref().or(self.ifb.as_ref()).cloned();
        let wanted = egress.is_some();
        if let (Some(ifb), true) = (&ifb, wanted) {
            // The bucket comes before the redirection to it. Later it is deleted with its link.
            steps.extend(self.ifb_root.steps((ifb.index, &ifb.name), egress.as_ref())?);
            steps.extend(made.is_none().then(|| self.renew(ifb)).flatten());
        }
        let to = ifb.as_ref().map_or(plan::NOWHERE, |ifb| ifb.index);
        steps.extend(plan::redirection(self.host.index, &self.hook, &self.filters, to, wanted));
        let done = self.apply(&steps);
        let fair = match (done, &made) {
            (Ok(fair), _) => fair,
            (Err(error), Some(made)) => return Err(self.without(made.index, error)),
            (Err(error), None) => return Err(error),
        };
        if egress.is_some() {
            return Ok(ShapingOutcome { ifb, fair });
        }
        if let Some(ifb) = ifb {
            self.socket.delete_link(ifb.index)?;
        }
        Ok(ShapingOutcome { ifb: None, fair })
    }

    fn create_ifb(&mut self) -> Result<Link, Failure> {
        let name = self.free_name.clone().ok_or_else(|| {
            Failure::new(codes::CONFLICT, "adding link: file exists").with_details(format!(
                "links {IFB_PREFIX}… of these digits belong to others; see `ip link show type ifb`"
            ))
        })?;
        let link = NewLink {
            mtu: Some(self.host.mtu),
            up: true,
            tx_queue_len: Some(0),
            alias: Some(self.alias.clone()),
            ..NewLink::new(name, LinkKind::Ifb)
        };
        self.socket.create_link(&link).map_err(|error| Failure::from(error).context("adding link"))
    }

    /// Updates the link that an earlier ADD, or the reference, has created.
    fn renew(&self, ifb: &Link) -> Option<Step> {
        let mark = ifb.alias.as_deref() != Some(&self.alias);
        let set = LinkSet {
            mtu: (ifb.mtu != self.host.mtu).then_some(self.host.mtu),
            up: (!ifb.up()).then_some(true),
            alias: mark.then(|| self.alias.clone()),
            ..LinkSet::default()
        };
        let change = Change::SetLink { ifindex: ifb.index, set: set.clone() };
        (set != LinkSet::default()).then(|| Step::one_way(change))
    }

    fn without(&mut self, ifindex: u32, error: Failure) -> Failure {
        match self.socket.delete_link(ifindex) {
            Ok(_) => error,
            Err(also) => error.with_details(format!("could not delete the ifb link: {also}")),
        }
    }

    /// Does all steps, or undoes those that were done. Returns whether packets queue fairly.
    fn apply(&mut self, steps: &[Step]) -> Result<bool, Failure> {
        let queued = steps::apply(self.socket, steps).map_err(|error| error.with_details(HINT))?;
        Ok(queued || self.root.is_fair() || self.ifb_root.is_fair())
    }
}

/// What the kernel must support.
pub(super) const HINT: &str = "the kernel needs CONFIG_NET_SCH_TBF, and for egress CONFIG_IFB, CONFIG_NET_SCH_INGRESS, \
                    CONFIG_NET_CLS_U32 and CONFIG_NET_ACT_MIRRED";

impl LinkQdiscs {
    fn on(socket: &mut RouteSocket, ifindex: u32) -> Result<Self, Failure> {
        let root = socket.qdisc(ifindex, TcHandle::ROOT)?;
        let inside = match &root {
            Some(_) => socket.qdisc(ifindex, QUEUE_PLACE)?,
            None => None,
        };
        Ok(Self { root: root.map(|found| found.qdisc), inside: inside.map(|found| found.qdisc) })
    }

    /// Reports whether packets queue fairly inside the bucket.
    pub(super) fn is_fair(&self) -> bool {
        self.inside.as_ref().is_some_and(|inside| inside.kind.name() == "fq_codel")
    }

    fn steps(&self, link: (u32, &str), wanted: Option<&Shape>) -> Result<Vec<Step>, Failure> {
        plan::bucket(link, self.root.as_ref(), self.is_fair(), wanted)
    }
}
