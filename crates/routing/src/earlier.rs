//! Prefixes that this node had before, and in which pods of it may still live.
//!
//! A node gets other prefixes when its Node is made again, or when the list gives it others. Its
//! pods keep their addresses until they end. So the node keeps the prefixes that these addresses
//! are of: it publishes them ([`Node::kept`](crate::Node)), and gives no address of them to a new
//! pod. A prefix that another node has been given by then is that node's.
//!
//! Another node's prefix always comes before a kept one, so a node can claim in this way only what
//! no other node has. New pods get addresses of the new prefix only, or the old one would never be
//! empty.
//!
//! What the node had is known from the record of nodes on its disk, and from the `unreachable`
//! routes with protocol 79 that an earlier run made; they are there even if the record is lost.
//! After a boot they are gone, and so are the pods. A pod may live in a prefix if a route leads to
//! a single address of it, or if a bridge with a port has an address of it: then host-local's
//! records decide, and without records that can be read the prefix is kept. Records without such a
//! bridge do not count, because they outlive a boot. When a link or a route goes away, the service
//! looks again.
//!
//! From the deletion of a Node until it is there again, other nodes have no route to its pods. The
//! network configuration gets the new prefix at once, on another bridge (`nw-pods1`), because
//! `bridge` refuses one that has another IPv4 address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::annotation::MOST_KEPT;
use crate::cluster::News;
use crate::reader::overlap;

/// What the host shows of its pods.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pods {
    /// The addresses to each of which there is a route of its own, by a link that is not a tunnel.
    pub routed: Vec<IpAddr>,
    /// The addresses of bridges that have a port.
    pub bridges: Vec<IpAddr>,
    /// The addresses that are recorded as given to a pod; `None` if the records cannot be read, or
    /// are not there.
    pub recorded: Option<Vec<IpAddr>>,
}

impl Pods {
    /// Reports whether a pod may have an address of a prefix. A record alone does not count: it may
    /// be from before the host was started. If the records cannot be read, a pod may have one.
    #[must_use]
    pub fn may_live_in(&self, prefix: IpNet) -> bool {
        let has = |addresses: &[IpAddr]| addresses.iter().any(|address| prefix.contains(address));
        has(&self.routed) || (has(&self.bridges) && self.recorded.as_deref().is_none_or(has))
    }
}

/// The prefixes that this node has or had, as far as pods may live in them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EarlierPrefixes {
    /// All prefixes that it has, or had and in which pods may live.
    had: BTreeSet<IpNet>,
    kept: BTreeSet<IpNet>,
    /// Those that another node has by now.
    given: BTreeMap<IpNet, String>,
}

impl EarlierPrefixes {
    /// Takes note of prefixes that this node has, or had before.
    pub fn had(&mut self, prefixes: impl IntoIterator<Item = IpNet>) {
        self.had.extend(prefixes);
    }

    /// Reports whether there is a prefix about which [`EarlierPrefixes::judge`] has to decide.
    #[must_use]
    pub fn differs(&self, own: &[IpNet]) -> bool {
        self.had.iter().any(|prefix| !own.contains(prefix))
    }

    /// Decides what is kept beside the prefixes that this node has now. `owner` is the node to which
    /// a prefix, or a part of it, was given. Returns what has changed, for the log.
    pub fn judge(
        &mut self,
        own: &[IpNet],
        pods: &Pods,
        owner: impl Fn(IpNet) -> Option<String>,
    ) -> Vec<News> {
        let mut news = Vec::new();
        let (kept, given) = (std::mem::take(&mut self.kept), std::mem::take(&mut self.given));
        for prefix in std::mem::take(&mut self.had) {
            if own.iter().any(|own| overlap(*own, prefix)) {
                continue;
            }
            let is_known = kept.contains(&prefix) || given.contains_key(&prefix);
            if !pods.may_live_in(prefix) {
                if is_known {
                    let text = format!("the last pod in the earlier prefix {prefix} is gone");
                    news.push(News { warning: false, node: None, text });
                }
                continue;
            }
            self.had.insert(prefix);
            match owner(prefix) {
                Some(owner) => {
                    if given.get(&prefix) != Some(&owner) {
                        news.push(News::warning(Some(&owner), loss(prefix, &owner)));
                    }
                    self.given.insert(prefix, owner);
                }
                // Others would read no more.
                None if MOST_KEPT <= self.kept.len() => {}
                None => {
                    if !kept.contains(&prefix) {
                        let text = format!(
                            "pods still live in {prefix}, which this node had before: it stays \
                             routed until the last of them is gone"
                        );
                        news.push(News { warning: false, node: None, text });
                    }
                    self.kept.insert(prefix);
                }
            }
        }
        self.had.extend(own);
        news
    }

    /// Returns the prefixes that are kept.
    #[must_use]
    pub fn kept(&self) -> Vec<IpNet> {
        self.kept.iter().copied().collect()
    }

    /// Reports whether pods may live in a prefix that is not one of this node's now.
    #[must_use]
    pub fn has_any(&self) -> bool {
        !self.kept.is_empty() || !self.given.is_empty()
    }

    /// Returns a sentence for each prefix that another node has.
    #[must_use]
    pub fn losses(&self) -> Vec<String> {
        self.given.iter().map(|(prefix, owner)| loss(*prefix, owner)).collect()
    }
}

fn loss(prefix: IpNet, owner: &str) -> String {
    format!(
        "pods still live in {prefix}, which this node had before and which is node {owner}'s now: \
         other nodes do not reach them any more"
    )
}
