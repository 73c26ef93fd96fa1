//! What an attachment of `bandwidth` wants, for CHECK and repair.

use kernel::route::{Link, QdiscKind};
use wanted::{Item, Limit, Limits, Place, Reason, Shaping, State, Wanted};

use super::node::{self, LinkQdiscs, Node};
use super::plan::{self, Shape};
use super::{Bandwidth, NAME, shape};
use crate::engine::{Attachment, Comparison, Mismatch, Picture, Wants, sound, unknown};
use crate::shared::failure::Failure;
use crate::shared::{attachment, drift};

impl Wants for Bandwidth {
    /// The reference's words.
    const NO_PREVIOUS: &'static str = "must be called as a chained plugin";
    /// The host's end of the pair.
    type Observation = Link;

    fn is_nothing(limits: &Limits) -> bool {
        limits.is_empty()
    }

    /// Finds the host's end, which by now may be another link than the one that ADD shaped.
    fn observe(
        attached: &Attachment<'_, Self>,
        picture: &mut Picture<'_>,
    ) -> Result<Link, Failure> {
        let recorded = attached.recorded;
        let namespaces = picture.namespaces.get()?;
        let (host, inside) = (&mut namespaces.host, &mut namespaces.inside);
        let host = node::find_host(host, inside, attached.ifname, attached.result)?;
        if recorded.is_none_or(|recorded| recorded.host_index == host.index) {
            picture.know(Place::Host, &host);
            return Ok(host);
        }
        let text = format!("link {:?} is another link than the one that ADD saw", host.name);
        Err(drift(text).with_details("what ADD did to that one is not done to this one"))
    }

    fn wanted(attached: &Attachment<'_, Self>, host: &Link) -> Wanted {
        let (limits, recorded) = (attached.config, attached.recorded);
        let mut wanted = Wanted::new();
        let shaping = Shaping {
            link: host.name.clone(),
            limits: *limits,
            fair: recorded.is_some_and(|recorded| recorded.fair),
            recorded: recorded.is_some(),
        };
        let because = Reason::Key("bandwidth".to_owned());
        wanted.push(Item::host(State::Shaping(shaping), because));
        wanted
    }

    fn compare(_: &Limits, picture: &mut Picture<'_>, item: &Item) -> Comparison {
        let State::Shaping(wanted) = &item.state else {
            return Err(unknown(item));
        };
        let Some(host) = picture.link(Place::Host, &wanted.link)? else { return sound() };
        let key = picture.call.attachment();
        let node = Node::observe(&mut picture.namespaces.get()?.host, key, host)?;
        Ok(differences(wanted, &node).into_iter().map(Mismatch::new).collect())
    }

    /// Does what ADD would do.
    fn restore(
        _: &Limits,
        picture: &mut Picture<'_>,
        item: &Item,
    ) -> Result<Option<String>, Failure> {
        let State::Shaping(wanted) = &item.state else {
            return Err(unknown(item));
        };
        let Some(host) = picture.link(Place::Host, &wanted.link)? else { return Ok(None) };
        let (call, index) = (picture.call, picture.index);
        let before = attachment::recorded(index, call.attachment(), NAME);
        let namespaces = picture.namespaces.get()?;
        shape(call, index, namespaces, host, &wanted.limits, before).map(|_| None)
    }
}

/// Compares buckets, queues, and the redirection to them. Returns what differs, each in one clause.
fn differences(wanted: &Shaping, node: &Node<'_>) -> Vec<String> {
    let (name, mtu) = (&node.host.name, node.host.mtu);
    let mut differences = Vec::new();
    if let Some(limit) = &wanted.limits.ingress {
        differences.extend(of_bucket(name, &node.root, limit, mtu, wanted));
    }
    let Some(limit) = &wanted.limits.egress else { return differences };
    let Some(ifb) = &node.ifb else {
        differences.push("get ifb device: Link not found".to_owned());
        return differences;
    };
    if !ifb.up() {
        differences.push(format!("link {:?} is down", ifb.name));
    }
    differences.extend(of_bucket(&ifb.name, &node.ifb_root, limit, mtu, wanted));
    if !node.is_redirected() {
        let text = format!("what comes in by link {name:?} is not led to {:?} any more", ifb.name);
        differences.push(text);
    }
    differences
}

fn of_bucket(
    name: &str,
    standing: &LinkQdiscs,
    limit: &Limit,
    mtu: u32,
    wanted: &Shaping,
) -> Option<String> {
    let Some(root) = &standing.root else {
        return Some(format!("Failed to find qdisc: link {name:?} has none"));
    };
    let QdiscKind::Tbf(read) = &root.kind else {
        return Some(format!("link {name:?} has {root}, not a bucket (tbf)"));
    };
    let asked = limit.bytes_per_s();
    if read.rate != asked {
        return Some(format!(
            "Rate doesn't match: link {name:?} has {} bytes/s, the configuration asks for {asked}",
            read.rate
        ));
    }
    // A bucket that the reference created before us may stay until DEL.
    let theirs = !wanted.recorded && plan::is_references(limit, read);
    if !theirs && !plan::is_for(limit, mtu, read) {
        let bucket = Shape::of(limit, mtu).bucket;
        return Some(format!(
            "the bucket of link {name:?} does not match: {read:?}, it should be {bucket:?}"
        ));
    }
    let lost = wanted.fair && !standing.is_fair();
    lost.then(|| format!("the queue (fq_codel) of link {name:?} is gone"))
}
