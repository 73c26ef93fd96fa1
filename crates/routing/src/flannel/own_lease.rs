//! This node's lease: which of all leases it is, and what it is to be.
//!
//! A node's identity in etcd is its address: a lease with it is this node's, whichever program wrote
//! it. An address may change while etcd does not answer, so what this node has wanted a lease to say
//! counts too, and a lease that it may have created unheard is given up once it holds another.

use std::net::IpAddr;

use ipnet::IpNet;

use super::lease;
use super::leases::{Lease, Leases, Windows};
use crate::cluster::NodeRecord;
use crate::earlier::Pods;
use crate::settings::{OwnNode, Settings};
use crate::source_node::SourceNode;
use net::{IpFamily, PerFamily};

/// How many of the values that this node's lease was to have are remembered as its own, and how many
/// leases that it has left: as many as the addresses that a node may have one after the other while
/// etcd does not answer.
const WRITTEN: usize = 4;

/// What this node's lease is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredLease {
    /// The last part of its key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// What there is under the key.
    pub there: ObservedLease,
    /// Leases of this node that are no longer of the cluster's prefixes, or that it no longer
    /// holds: each with its revision.
    pub outdated: Vec<(String, u64)>,
}

/// What there is under the key of a desired lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObservedLease {
    /// Nothing, by a list of this revision.
    Nothing {
        /// etcd's revision.
        listed: u64,
    },
    /// This node's lease.
    Lease {
        /// The revision at which it was changed last.
        modified: u64,
        /// Its grant.
        grant: Option<String>,
        /// It says what it is to say.
        is_right: bool,
    },
}

impl DesiredLease {
    /// Reports whether it is to be written.
    #[must_use]
    pub fn is_write(&self) -> bool {
        !matches!(self.there, ObservedLease::Lease { is_right: true, .. })
    }
}

/// What there is of this node's lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// It is there.
    Held(Lease),
    /// It is to be made, for these prefixes.
    Wanted(Vec<IpNet>),
    /// There is none, and none can be made: the reason.
    None(String),
}

/// All leases, and what is known of this node's.
#[derive(Debug)]
pub struct OwnLease {
    leases: Leases,
    /// There was a list.
    listed: bool,
    /// It may have changed which leases are other nodes', since that was asked for.
    is_other: bool,
    windows: Windows,
    /// The configured addresses of this node.
    configured: Vec<IpAddr>,
    /// The addresses by which others reach this node, as they were found last.
    addresses: PerFamily<Option<IpAddr>>,
    /// The addresses by which connections may have been made, of those that the host still has.
    present: Vec<IpAddr>,
    /// This node's lease, as it was last.
    held: Option<Lease>,
    /// The key of the lease that this node has wanted last.
    desired: Option<String>,
    /// What the lease was to say, the newest last. An earlier value may still reach etcd after the
    /// node's address has changed once more.
    written: Vec<Vec<u8>>,
    /// Leases that this node has held or wanted to create, and may not hold now though they are
    /// there. If no answer has come, one may be created unheard.
    left: Vec<String>,
    /// Prefixes to take if they are free: those of an earlier choice, and those of `subnet.env`.
    chosen: Vec<IpNet>,
    of_file: Vec<IpNet>,
}

impl OwnLease {
    /// Knows nothing of leases yet. `configured` are the addresses that the configuration gives this
    /// node, and `of_file` the prefixes that `subnet.env` has: flanneld takes them again.
    #[must_use]
    pub fn new(windows: Windows, configured: Vec<IpAddr>, of_file: Vec<IpNet>) -> Self {
        OwnLease {
            leases: Leases::default(),
            listed: false,
            is_other: false,
            windows,
            configured,
            addresses: PerFamily::default(),
            present: Vec::new(),
            held: None,
            desired: None,
            written: Vec::new(),
            left: Vec::new(),
            chosen: Vec::new(),
            of_file,
        }
    }

    /// Returns all leases.
    #[must_use]
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Reports whether there was a list.
    #[must_use]
    pub fn listed(&self) -> bool {
        self.listed
    }

    /// Returns this node's lease, as it was last.
    #[must_use]
    pub fn held(&self) -> Option<&Lease> {
        self.held.as_ref()
    }

    /// Returns the addresses by which others reach this node, as they were found last.
    #[must_use]
    pub fn addresses(&self) -> &PerFamily<Option<IpAddr>> {
        &self.addresses
    }

    /// Takes a complete list.
    pub fn list(&mut self, all: Vec<Lease>, revision: u64) {
        self.leases.list(all, revision);
        self.listed = true;
    }

    /// Takes a lease that is new, or has changed. Returns whether it may concern this node's.
    pub fn put(&mut self, lease: Lease) -> bool {
        let key = lease.key.clone();
        let did = self.concerns_own(&key);
        self.leases.put(lease);
        did || self.concerns_own(&key)
    }

    /// Takes that a lease was deleted, or has expired. Returns whether it may concern this node's.
    pub fn remove(&mut self, key: &str, revision: u64) -> bool {
        let concerns = self.concerns_own(key);
        self.leases.remove(key, revision);
        self.left.retain(|left| left != key);
        concerns
    }

    /// Takes that it is to be decided again which lease is this node's.
    pub fn own_may_be_other(&mut self) {
        self.is_other = true;
    }

    /// Reports whether it is to be decided which lease is this node's. A node without one takes what
    /// is free.
    #[must_use]
    pub fn is_undecided(&self) -> bool {
        self.is_other || (self.listed && self.held.is_none())
    }

    /// Returns the nodes of all other leases, if these may be others since the last call.
    pub fn take_others(&mut self, settings: &Settings) -> Option<Vec<NodeRecord>> {
        let own = self.held.as_ref().map(|held| held.key.as_str());
        std::mem::take(&mut self.is_other).then(|| self.leases.others(own, settings))
    }

    /// Takes note of the addresses of the link with the default route: connections are made by
    /// them. `has` says whether the host has an address. Returns whether one has gone since the last
    /// time.
    pub fn has_moved(
        &mut self,
        found: &PerFamily<Option<IpAddr>>,
        has: impl Fn(&IpAddr) -> bool,
    ) -> bool {
        let before = self.present.len();
        self.present.retain(has);
        let has_moved = self.present.len() < before;
        for address in found.iter().filter_map(|(_, address)| *address) {
            if !self.present.contains(&address) {
                self.present.push(address);
            }
        }
        has_moved
    }

    /// Takes the addresses of the link with the default route: others reach this node by them, or by
    /// the configured ones.
    pub fn find_addresses(&mut self, found: &PerFamily<Option<IpAddr>>) {
        self.addresses = addresses(&self.configured, &self.windows, self.addresses, found);
    }

    /// Finds this node's lease, or what it is to be. `before` is what was known of this node until
    /// then, and `random` any number.
    pub fn claim(&mut self, before: Option<&SourceNode>, standby: bool, random: u64) -> Claim {
        for (family, leased) in self.windows.iter() {
            if leased.is_some() && self.addresses.get(family).is_none() {
                return Claim::None(no_address(family));
            }
        }
        let Some(address) = self.addresses.v4 else { return Claim::None(no_address(IpFamily::V4)) };
        let had = before.map_or(&[][..], |before| &before.prefixes[..]);
        let wanted = self.wanted().cloned();
        let held = self.held.as_ref().or(wanted.as_ref());
        let own = self.leases.own(address, held, &self.written, had, &self.windows).cloned();
        let was = std::mem::replace(&mut self.held, own.clone());
        let key = |lease: &Option<Lease>| lease.as_ref().map(|lease| lease.key.clone());
        if key(&was) != key(&own) {
            self.is_other = true;
            if let Some(key) = key(&was).filter(|key| self.leases.get(key).is_some()) {
                self.leave(key);
            }
        }
        if let Some(own) = own {
            self.chosen.clear();
            return Claim::Held(own);
        }
        if standby {
            return Claim::None(format!(
                "etcd has no lease of {address}, which is this node's address: flanneld makes it \
                 when it runs here"
            ));
        }
        let tried = [had, &self.chosen, &self.of_file];
        match self.leases.choose(tried, &self.windows, random) {
            Ok(prefixes) => {
                self.chosen.clone_from(&prefixes);
                Claim::Wanted(prefixes)
            }
            Err(none) => Claim::None(none.to_string()),
        }
    }

    /// Returns what this node's lease is to be, as it follows from what this node is; `None` if it
    /// stays as it is for now. `there` is what it is. `pods` reads what the host shows of its pods.
    ///
    /// # Errors
    /// Why there can be no lease.
    pub fn desire(
        &mut self,
        settings: &Settings,
        own: &OwnNode,
        there: Option<&Lease>,
        pods: impl FnOnce() -> Pods,
    ) -> Result<Option<DesiredLease>, String> {
        let Some(of_flannel) = &settings.flannel else { return Ok(None) };
        let lacks = |(family, leased): (IpFamily, &Option<_>)| {
            leased.is_some() && own.node.underlay.get(family).is_none()
        };
        if self.windows.iter().any(lacks) {
            // The link with that address is gone for now.
            return Ok(None);
        }
        let value = lease::value(&own.node, of_flannel);
        if lease::address(value.as_bytes()) != self.addresses.v4 {
            let backend = of_flannel.backend.name();
            return Err(format!("flannel's backend {backend} cannot be used with the key path"));
        }
        let (key, there) = match there {
            Some(lease) => {
                let is_right = lease.value == value.as_bytes();
                let (modified, grant) = (lease.modified, lease.grant.clone());
                (Some(lease.key.clone()), ObservedLease::Lease { modified, grant, is_right })
            }
            None => {
                let listed = self.leases.revision();
                (lease::key(&own.node), ObservedLease::Nothing { listed })
            }
        };
        let (Some(key), Some(address)) = (key, self.addresses.v4) else { return Ok(None) };
        let outdated = self.leases.outdated(address, &self.windows);
        let mut outdated: Vec<(String, u64)> =
            outdated.map(|lease| (lease.key.clone(), lease.modified)).collect();
        outdated.extend(self.given_up(pods));
        let desired = DesiredLease { key, value, there, outdated };
        self.remember(&desired);
        Ok(Some(desired))
    }

    /// Returns leases that this node has made itself and does not hold, each with its revision: it
    /// was started with another address for a while, and leased another prefix for it. A lease in
    /// which pods may live stays.
    fn given_up(&mut self, pods: impl FnOnce() -> Pods) -> Vec<(String, u64)> {
        let mut unheld = self.unheld();
        if !unheld.is_empty() {
            let pods = pods();
            let is_used = |key: &str| {
                let prefixes = self.leases.prefixes_of(key);
                prefixes.iter().any(|prefix| pods.may_live_in(*prefix))
            };
            unheld.retain(|(key, _)| !is_used(key));
        }
        unheld
    }

    /// Returns leases that this node has made itself and does not hold, while it holds one. One that
    /// another node wrote or an administrator reserved is none of these.
    fn unheld(&mut self) -> Vec<(String, u64)> {
        let (leases, written) = (&self.leases, &self.written);
        let Some(held) = &self.held else { return Vec::new() };
        let is_ours = |lease: &Lease| lease.grant.is_some() && written.contains(&lease.value);
        self.left.retain(|key| *key != held.key && leases.get(key).is_none_or(is_ours));
        let left = self.left.iter().filter_map(|key| leases.get(key));
        left.map(|lease| (lease.key.clone(), lease.modified)).collect()
    }

    /// Remembers what this node's lease is to be.
    fn remember(&mut self, desired: &DesiredLease) {
        let value = desired.value.as_bytes();
        if self.written.last().is_none_or(|last| last != value) {
            self.written.retain(|before| before != value);
            self.written.push(value.to_vec());
            let old = self.written.len().saturating_sub(WRITTEN);
            self.written.drain(..old);
        }
        if matches!(desired.there, ObservedLease::Nothing { .. }) {
            self.leave(desired.key.clone());
        }
        self.desired = Some(desired.key.clone());
    }

    /// Remembers a lease that may be this node's and not the one that it holds.
    fn leave(&mut self, key: String) {
        self.left.retain(|left| *left != key);
        self.left.push(key);
        let old = self.left.len().saturating_sub(WRITTEN);
        self.left.drain(..old);
    }

    /// Returns the lease that this node has wanted last, if etcd has it as this node has wanted it
    /// at some time. It may have been created unheard, with an address that the node had then.
    fn wanted(&self) -> Option<&Lease> {
        self.leases.get(self.desired.as_ref()?).filter(|lease| self.written.contains(&lease.value))
    }

    /// Reports whether a change of a lease may concern this node's.
    fn concerns_own(&self, key: &str) -> bool {
        let has_address = |lease: &Lease| {
            let address = lease::address(&lease.value);
            address.is_some() && address == self.addresses.v4
        };
        let is_it = |lease: &Lease| lease.key == key;
        self.held.as_ref().is_some_and(is_it)
            || self.wanted().is_some_and(is_it)
            || self.leases.get(key).is_some_and(has_address)
    }
}

/// Finds the addresses by which others reach this node, of the families that the cluster has: the
/// configured ones, else those of the link with the default route. While that has none, the earlier
/// ones count.
#[must_use]
pub fn addresses(
    configured: &[IpAddr],
    windows: &Windows,
    before: PerFamily<Option<IpAddr>>,
    found: &PerFamily<Option<IpAddr>>,
) -> PerFamily<Option<IpAddr>> {
    PerFamily::with(|family| {
        windows.get(family).as_ref()?;
        if configured.is_empty() {
            return found.get(family).or(*before.get(family));
        }
        configured.iter().copied().find(|address| IpFamily::of(*address) == family)
    })
}

/// Says that this node has no address of a family.
#[must_use]
pub fn no_address(family: IpFamily) -> String {
    format!(
        "no link with a default route has an {family} address, by which others are to reach this \
         node: set underlay"
    )
}

#[cfg(test)]
mod tests {
    use crate::flannel::config::Config;

    use super::*;

    const TEXT: &str = r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}"#;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// What is known before anything was heard.
    fn unheard() -> OwnLease {
        OwnLease::new(Config::read(TEXT).unwrap().windows().unwrap(), Vec::new(), Vec::new())
    }

    fn claim(lease: &mut OwnLease) -> Claim {
        lease.claim(None, false, 0)
    }

    #[test]
    fn an_address_that_has_gone_is_noticed_once() {
        let mut source = unheard();
        let mut look = |default: Option<&str>, all: &[&str]| {
            let found = PerFamily { v4: default.map(ip), v6: None };
            source.has_moved(&found, |address| all.iter().any(|of| ip(of) == *address))
        };
        let (first, other) = ("192.0.2.1", "192.0.2.2");
        assert!(!look(Some(first), &[first]));
        assert!(!look(Some(first), &[first, other]));
        // The default route goes before the address.
        assert!(!look(None, &[first]));
        assert!(look(None, &[]));
        assert!(!look(None, &[]));
        assert!(!look(Some(other), &[other]));
        assert!(look(Some(first), &[first]));
        assert!(!look(Some(first), &[first]));
    }

    #[test]
    fn configured_addresses_come_before_found_ones_and_these_before_earlier_ones() {
        let windows = unheard().windows;
        let one = |address: &str| PerFamily { v4: Some(ip(address)), v6: None };
        let (found, before) = (one("192.0.2.1"), one("192.0.2.2"));
        let configured = [ip("2001:db8::3"), ip("192.0.2.3")];
        let none = PerFamily::default();
        assert_eq!(addresses(&configured, &windows, before, &found), one("192.0.2.3"));
        assert_eq!(addresses(&[], &windows, before, &found), found);
        assert_eq!(addresses(&[], &windows, before, &none), before);
        assert_eq!(addresses(&[], &PerFamily::default(), before, &found), none);
    }

    /// A lease of the node with this address.
    fn lease(key: &str, address: &str) -> Lease {
        let value = format!(r#"{{"PublicIP":"{address}"}}"#).into_bytes();
        let grant = Some("7".to_owned());
        Lease { key: key.to_owned(), value, created: 2, modified: 2, grant }
    }

    /// This node has wanted to create a lease, and has another address before it hears of it.
    fn created_unheard(created: &Lease) -> OwnLease {
        let mut source = unheard();
        source.addresses.v4 = lease::address(&created.value);
        assert!(matches!(claim(&mut source), Claim::Wanted(_)));
        source.remember(&DesiredLease {
            key: created.key.clone(),
            value: String::from_utf8(created.value.clone()).unwrap(),
            there: ObservedLease::Nothing { listed: 1 },
            outdated: Vec::new(),
        });
        source.addresses.v4 = Some(ip("192.0.2.2"));
        source
    }

    #[test]
    fn a_lease_that_was_created_unheard_is_this_nodes_though_its_address_has_changed() {
        let created = lease("10.244.1.0-24", "192.0.2.1");
        let mut source = created_unheard(&created);
        // Another node was first.
        assert!(!source.put(lease("10.244.1.0-24", "192.0.2.3")));
        assert!(matches!(claim(&mut source), Claim::Wanted(_)));
        assert!(source.put(created.clone()));
        assert_eq!(claim(&mut source), Claim::Held(created));
        assert!(source.unheld().is_empty());
    }

    #[test]
    fn a_lease_that_was_created_unheard_is_given_up_if_another_is_held() {
        let created = lease("10.244.1.0-24", "192.0.2.1");
        let mut source = created_unheard(&created);
        let held = lease("10.244.2.0-24", "192.0.2.2");
        source.put(held.clone());
        assert_eq!(claim(&mut source), Claim::Held(held));
        assert!(source.unheld().is_empty());
        source.put(created.clone());
        assert_eq!(source.given_up(Pods::default), [(created.key.clone(), 2)]);
        // Pods may live in it.
        let routed = vec![ip("10.244.1.7")];
        assert!(source.given_up(|| Pods { routed, ..Pods::default() }).is_empty());
        // By now it is another node's.
        source.put(lease("10.244.1.0-24", "192.0.2.3"));
        assert!(source.unheld().is_empty());
    }

    #[test]
    fn on_standby_flanneld_makes_the_lease() {
        let mut source = unheard();
        source.addresses.v4 = Some(ip("192.0.2.1"));
        let Claim::None(why) = source.claim(None, true, 0) else { panic!("a claim") };
        assert!(why.starts_with("etcd has no lease of 192.0.2.1"), "{why}");
    }
}
