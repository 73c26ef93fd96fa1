//! This node's lease in etcd, what the others say, and flanneld's configuration there.
//!
//! The loop looks at the leases as it looks at the kernel: whenever one that concerns this node has
//! changed, it finds out which is this node's, and what it is to be. The thread writes it, and what
//! it has written comes back as a change like any other.
//!
//! A node's identity in etcd is its address: a lease with it is this node's, whichever program
//! wrote it. Keys, values, the choice of the prefix and the end after 24 hours are flannel's, so
//! the source `etcd` needs `flannel` to be `replace` or `standby`, also in a cluster that has no
//! flanneld. Every write is a transaction that fails if etcd has something else under the key. For
//! a new lease it also fails if any key begins with the lease's IPv4 prefix, and with two families
//! if any node has made a lease since the list was read: otherwise two nodes could take one IPv6
//! prefix, because etcd compares nothing but the key. The grant is renewed every hour, so that etcd
//! may be away for 23 hours at any time.
//!
//! flanneld reads no list of prefixes that a node has kept, so only this node routes such a prefix.
//! Like flanneld, the service reads the configuration once; if there is none yet, it is ready and
//! says in its status what it lacks.

use std::net::IpAddr;
use std::time::Duration;

use agent::config;
use ipnet::IpNet;
use kernel::route::RouteSocket;
use routing::cluster::Event;
use routing::flannel::leases::{Lease, Windows};
use routing::flannel::{self, subnet_env::SubnetEnv};
use routing::settings::OwnNode;
use routing::{IpFamily, PerFamily, Routing, Settings, SourceNode, Todo};

use super::super::Stop;
use super::super::etcd::EtcdError;
use super::super::setup::{Process, failed, runtime};
use super::SIGNALS;
use super::context::Context;
use super::etcd_leases::{DesiredLease, EtcdLeases, LeasesEvent, ObservedLease, Registry};
use super::files::{self, Disk};
use super::host::Host;
use super::schedule::Due;
use super::source::{NodeSource, Origin, add_new, identify};
use crate::bell::Bell;
use crate::poll::{Interest, Poller};

/// What the service's status calls these.
const ETCD: &str = "etcd";
const CONFIGURATION: &str = "flanneld's configuration";
const LEASE: &str = "lease of this node";

/// The pause between attempts to read the configuration.
const RETRY: Duration = Duration::from_secs(2);

/// flanneld's configuration, as etcd has it.
#[derive(Debug)]
pub(super) struct Configuration {
    pub(super) text: String,
    pub(super) read: flannel::config::Config,
    pub(super) windows: Windows,
}

impl Configuration {
    /// Reads it.
    ///
    /// # Errors
    /// What is wrong, after `what`.
    fn of(text: String, what: &str) -> Result<Self, String> {
        let wrong = |(key, cause)| format!("{what}: {key}: {cause}");
        let read = flannel::config::Config::read(&text).map_err(wrong)?;
        let windows = read.windows().map_err(wrong)?;
        Ok(Configuration { text, read, windows })
    }

    /// Reads it from etcd, or if etcd does not answer, from the disk.
    fn find(
        asked: Result<Option<String>, EtcdError>,
        key: &str,
        disk: &Disk,
    ) -> Result<Self, String> {
        match asked {
            Ok(Some(text)) => Configuration::of(text, &format!("etcd's {key}")),
            Ok(None) => Err(format!("etcd has no {key}: write flanneld's configuration there")),
            Err(EtcdError::Refused(why)) => Err(format!("read {key}: etcd refuses: {why}")),
            Err(EtcdError::Away(why)) => match disk.configuration() {
                Ok(Some(text)) => {
                    tracing::warn!(why, "etcd is away: its last known configuration is used");
                    Configuration::of(text, "etcd's last known configuration")
                }
                Ok(None) => Err(format!("read {key}: {why}")),
                Err(damaged) => Err(format!("read {key}: {why}; and {damaged}")),
            },
        }
    }

    /// Reads it once. If it is wrong or missing, the last one on the disk serves: an administrator
    /// who removes the service needs the configuration that it has run with.
    pub(super) fn read_once(config: &config::Routing, disk: &Disk) -> Result<Self, Stop> {
        runtime(1)?.block_on(async {
            let registry = Registry::open(config)?;
            let asked = registry.configuration().await;
            let found = Self::find(asked, &registry.configuration_key(), disk);
            let known = |why| match disk.configuration() {
                Ok(Some(text)) => Configuration::of(text, "etcd's last known configuration"),
                Ok(None) | Err(_) => Err(why),
            };
            found.or_else(known).map_err(Stop::Failed)
        })
    }

    /// Waits for it, and keeps it on the disk. `None` if the service is to end.
    pub(super) fn wait(
        config: &config::Routing,
        disk: &Disk,
        process: &Process,
        signals: &Bell,
    ) -> Result<Option<Self>, Stop> {
        let runtime = runtime(1)?;
        let registry = {
            let _context = runtime.enter();
            Registry::open(config)?
        };
        let poller = Poller::new().map_err(failed)?;
        poller.add(signals, SIGNALS, Interest::Read).map_err(failed)?;
        let mut told = None;
        loop {
            process.health.turns();
            let asked = runtime.block_on(registry.configuration());
            let why = match Self::find(asked, &registry.configuration_key(), disk) {
                Ok(found) => {
                    process.health.needs(CONFIGURATION, Ok(()));
                    // On standby nothing is written.
                    if config.flannel.0 == config::RoutingFlannel::Replace
                        && let Err(error) = disk.write_configuration(&found.text)
                    {
                        tracing::warn!(%error, "flanneld's configuration is not kept");
                    }
                    return Ok(Some(found));
                }
                Err(why) => why,
            };
            process.health.needs(CONFIGURATION, Err(why.clone()));
            if told.as_ref() != Some(&why) {
                tracing::warn!(why, "waiting for flanneld's configuration");
                if told.is_none() {
                    // The process that started the service does not wait for long: so it is
                    // notified now.
                    process.tell_ready(None);
                }
                told = Some(why);
            }
            if !poller.wait(Some(process.health.pause(RETRY))).map_err(failed)?.is_empty() {
                signals.heard();
                return Ok(None);
            }
        }
    }
}

/// Returns the prefixes that `subnet.env` has: flanneld takes them again.
pub(super) fn prefixes_of_file(config: &config::Routing) -> Vec<IpNet> {
    let path = config.subnet_env();
    let text = path.and_then(|path| std::fs::read_to_string(path).ok());
    let env = text.and_then(|text| SubnetEnv::read(&text).ok());
    env.map_or(Vec::new(), |env| env.subnets)
}

/// Removes this node's lease from etcd. One that a person has reserved stays.
pub(super) fn forget(
    config: &config::Routing,
    settings: &Settings,
    node: &str,
    windows: &Windows,
) -> Result<(), Stop> {
    let said = |why: String| Stop::Failed(format!("remove this node's lease: {why}"));
    let mut netlink = RouteSocket::open().map_err(failed)?;
    let own = Routing::new(settings.clone(), node).cluster().own().clone();
    let host = Host::read(&mut netlink, &own, &[]).map_err(failed)?;
    let addresses = find_addresses(&config.underlay, windows, PerFamily::default(), &host);
    let address = addresses.v4.ok_or_else(|| said(no_address(IpFamily::V4)))?;
    runtime(1)?.block_on(async {
        let registry = Registry::open(config)?;
        registry.forget(address).await.map_err(|error| said(error.to_string()))
    })
}

fn no_address(family: IpFamily) -> String {
    format!(
        "no link with a default route has an {family} address, by which others are to reach this \
         node: set underlay"
    )
}

/// Finds the addresses by which others reach this node, of the families that the cluster has: the
/// configured ones, else those of the link with the default route. While that has none, the earlier
/// ones count.
fn find_addresses(
    told: &[IpAddr],
    windows: &Windows,
    before: PerFamily<Option<IpAddr>>,
    host: &Host,
) -> PerFamily<Option<IpAddr>> {
    let found = host.default_addresses();
    PerFamily::with(|family| {
        windows.get(family).as_ref()?;
        if told.is_empty() {
            return found.get(family).or(*before.get(family));
        }
        told.iter().copied().find(|address| IpFamily::of(*address) == family)
    })
}

/// What there is of this node's lease.
enum Claim {
    /// It is there.
    Held(Lease),
    /// It is to be made, for these prefixes.
    Wanted(Vec<IpNet>),
    /// There is none, and none can be made: the reason.
    None(String),
}

impl EtcdLeases {
    /// Finds this node's lease, or what it is to be.
    fn claim(&mut self, before: Option<&SourceNode>, standby: bool) -> Claim {
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
            self.is_new = true;
            if let Some(key) = key(&was).filter(|key| self.leases.get(key).is_some()) {
                self.leave(key);
            }
            match (&was, &own) {
                (_, Some(own)) => tracing::info!(lease = own.key, "this node's lease"),
                (Some(was), None) => {
                    tracing::warn!(lease = was.key, "this node's lease is gone");
                }
                (None, None) => {}
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
        match self.leases.choose(tried, &self.windows, crate::clock::seed()) {
            Ok(prefixes) => {
                self.chosen.clone_from(&prefixes);
                Claim::Wanted(prefixes)
            }
            Err(none) => Claim::None(none.to_string()),
        }
    }

    /// Returns leases that this node has made itself and does not hold, each with its revision: it
    /// was started with another address for a while, and leased another prefix for it. A lease in
    /// which pods may live stays.
    fn given_up(&mut self, host: &Host) -> Vec<(String, u64)> {
        let mut unheld = self.unheld();
        if !unheld.is_empty() {
            let pods = host.pods(files::recorded());
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

    /// Takes note of the addresses of the link with the default route: connections are made by
    /// them. `has` says whether the host has an address. Returns whether one has gone since the last
    /// time.
    fn has_moved(
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

    /// Reports whether a change of a lease may concern this node's.
    fn concerns_own(&self, key: &str) -> bool {
        let has_address = |lease: &Lease| {
            let address = flannel::lease::address(&lease.value);
            address.is_some() && address == self.addresses.v4
        };
        let is_it = |lease: &Lease| lease.key == key;
        self.held.as_ref().is_some_and(is_it)
            || self.wanted().is_some_and(is_it)
            || self.leases.get(key).is_some_and(has_address)
    }
}

impl NodeSource {
    /// Takes what was heard of leases. Returns what follows for other nodes, and whether this node is
    /// to be looked at again.
    pub(super) fn take_leases(&mut self, context: &Context, heard: LeasesEvent) -> (Todo, Due) {
        let Origin::Etcd(source) = &mut self.origin else { return Default::default() };
        // Whether it is to be decided again which lease is this node's.
        let mut is_own = false;
        let event = match heard {
            LeasesEvent::Listed(all, revision) => {
                source.leases.list(all, revision);
                source.listed = true;
                self.prefixes = source.leases.prefixes().collect();
                is_own = true;
                Event::Answers
            }
            LeasesEvent::Changed(lease) => {
                let key = lease.key.clone();
                is_own = source.concerns_own(&key);
                source.leases.put(lease);
                is_own |= source.concerns_own(&key);
                add_new(&mut self.prefixes, source.leases.prefixes_of(&key));
                let Some(seen) = source.leases.seen(&key, &context.settings) else {
                    return (Todo::default(), Due::look_if(is_own));
                };
                Event::Changed(seen)
            }
            LeasesEvent::Deleted(key, revision) => {
                is_own = source.concerns_own(&key);
                source.leases.remove(&key, revision);
                source.left.retain(|left| *left != key);
                Event::Deleted(flannel::lease::name(&key))
            }
            LeasesEvent::Silent(why) => {
                context.health.needs(ETCD, Err(why));
                Event::Silent
            }
            LeasesEvent::Answers => Event::Answers,
            LeasesEvent::Written(done) => {
                context.health.needs(LEASE, done);
                return Default::default();
            }
            LeasesEvent::IsConfigured(is_so) => {
                let other = "etcd has another one by now, which takes effect after a restart of \
                             the service, as with flanneld";
                if !is_so {
                    tracing::warn!("flanneld's configuration: {other}");
                }
                let found = if is_so { Ok(()) } else { Err(other.to_owned()) };
                context.health.needs(CONFIGURATION, found);
                return Default::default();
            }
        };
        source.is_new |= is_own;
        // A node without a lease takes what is free.
        let mut due = Due::look_if(source.is_new || (source.listed && source.held.is_none()));
        if event != Event::Silent {
            context.health.needs(ETCD, Ok(()));
        }
        let todo = if is_own { Todo::default() } else { context.event(event) };
        if context.routing().has_earlier() {
            // Another node may have leased what is kept here.
            due |= Due::LOOK;
        }
        (todo, due)
    }

    /// Finds out which lease is this node's, and says what it is to be. Returns whether this node has
    /// lost an address by which connections to etcd may have been made.
    pub(super) fn settle_lease(&mut self, context: &Context, host: &Host) -> bool {
        let Origin::Etcd(source) = &mut self.origin else { return false };
        let has = |address: &IpAddr| host.uplink(*address).is_some();
        let has_moved = source.has_moved(&host.default_addresses(), has);
        if has_moved {
            source.reconnect();
        }
        source.addresses = find_addresses(&source.told, &source.windows, source.addresses, host);
        if !source.listed {
            return has_moved;
        }
        let before = self.own.as_ref().ok().cloned();
        match source.claim(before.as_ref(), context.settings.standby) {
            Claim::Held(lease) => {
                let prefixes = source.leases.prefixes_of(&lease.key).to_vec();
                let (addresses, value) = (source.addresses, &lease.value);
                let node = SourceNode::of_lease(prefixes, value, &addresses, before.as_ref());
                if context.settings.standby {
                    context.health.needs(LEASE, Ok(()));
                } else if let Ok(own) = identify(context, &node, host) {
                    source.set_desired_by(context, &own, Some(&lease), host);
                }
                self.own = Ok(node);
            }
            Claim::Wanted(prefixes) => {
                let addresses = source.addresses;
                if before.is_none() {
                    let shown: Vec<String> = prefixes.iter().map(ToString::to_string).collect();
                    self.own = Err(format!("{} is being leased from etcd", shown.join(", ")));
                }
                let node = SourceNode::of_lease(prefixes, &[], &addresses, before.as_ref());
                match identify(context, &node, host) {
                    Ok(own) => source.set_desired_by(context, &own, None, host),
                    Err(why) if before.is_none() => self.own = Err(why),
                    Err(_) => {}
                }
            }
            Claim::None(why) => {
                context.health.needs(LEASE, Err(why.clone()));
                if before.is_none() {
                    self.own = Err(why);
                }
            }
        }
        has_moved
    }

    /// Passes on again which leases are other nodes', if that may have changed.
    pub(super) fn relist_leases(&mut self, context: &Context) -> Option<Todo> {
        let Origin::Etcd(source) = &mut self.origin else { return None };
        if !std::mem::take(&mut source.is_new) {
            return None;
        }
        let own = source.held.as_ref().map(|held| held.key.as_str());
        let others = source.leases.others(own, &context.settings);
        Some(context.event(Event::Listed(others)))
    }
}

impl EtcdLeases {
    /// Says what this node's lease is to be, as it follows from what this node is. `there` is what it
    /// is.
    fn set_desired_by(
        &mut self,
        context: &Context,
        own: &OwnNode,
        there: Option<&Lease>,
        host: &Host,
    ) {
        let Some(of_flannel) = &context.settings.flannel else { return };
        let lacks = |(family, leased): (IpFamily, &Option<_>)| {
            leased.is_some() && own.node.underlay.get(family).is_none()
        };
        if self.windows.iter().any(lacks) {
            // The link with that address is gone for now: the lease stays as it is.
            return;
        }
        let value = flannel::lease::value(&own.node, of_flannel);
        if flannel::lease::address(value.as_bytes()) != self.addresses.v4 {
            let backend = of_flannel.backend.name();
            let why = format!("flannel's backend {backend} cannot be used with the key path");
            return context.health.needs(LEASE, Err(why));
        }
        let (key, there) = match there {
            Some(lease) => {
                let is_right = lease.value == value.as_bytes();
                let (modified, grant) = (lease.modified, lease.grant.clone());
                (Some(lease.key.clone()), ObservedLease::Lease { modified, grant, is_right })
            }
            None => {
                let listed = self.leases.revision();
                (flannel::lease::key(&own.node), ObservedLease::Nothing { listed })
            }
        };
        let (Some(key), Some(address)) = (key, self.addresses.v4) else { return };
        let outdated = self.leases.outdated(address, &self.windows);
        let mut outdated: Vec<(String, u64)> =
            outdated.map(|lease| (lease.key.clone(), lease.modified)).collect();
        outdated.extend(self.given_up(host));
        self.set_desired(DesiredLease { key, value, there, outdated });
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;

    use super::super::super::outlet;
    use super::*;

    const KEY: &str = "/coreos.com/network/config";
    const TEXT: &str = r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}"#;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// What is known before anything was heard.
    fn unheard() -> EtcdLeases {
        let windows = Configuration::of(TEXT.to_owned(), KEY).unwrap().windows;
        EtcdLeases::new(outlet::pair().unwrap().0, watch::channel(None).0, windows)
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

    /// A lease of the node with this address.
    fn lease(key: &str, address: &str) -> Lease {
        let value = format!(r#"{{"PublicIP":"{address}"}}"#).into_bytes();
        let grant = Some("7".to_owned());
        Lease { key: key.to_owned(), value, created: 2, modified: 2, grant }
    }

    /// This node has wanted to create a lease, and has another address before it hears of it.
    fn created_unheard(created: &Lease) -> EtcdLeases {
        let mut source = unheard();
        source.addresses.v4 = flannel::lease::address(&created.value);
        assert!(matches!(source.claim(None, false), Claim::Wanted(_)));
        let value = String::from_utf8(created.value.clone()).unwrap();
        let there = ObservedLease::Nothing { listed: 1 };
        source.set_desired(DesiredLease {
            key: created.key.clone(),
            value,
            there,
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
        source.leases.put(lease("10.244.1.0-24", "192.0.2.3"));
        assert!(!source.concerns_own("10.244.1.0-24"));
        assert!(matches!(source.claim(None, false), Claim::Wanted(_)));
        source.leases.put(created.clone());
        assert!(source.concerns_own("10.244.1.0-24"));
        assert!(matches!(source.claim(None, false), Claim::Held(held) if held == created));
        assert!(source.unheld().is_empty());
    }

    #[test]
    fn a_lease_that_was_created_unheard_is_given_up_if_another_is_held() {
        let created = lease("10.244.1.0-24", "192.0.2.1");
        let mut source = created_unheard(&created);
        let held = lease("10.244.2.0-24", "192.0.2.2");
        source.leases.put(held.clone());
        assert!(matches!(source.claim(None, false), Claim::Held(found) if found == held));
        assert!(source.unheld().is_empty());
        source.leases.put(created.clone());
        assert_eq!(source.unheld(), vec![(created.key.clone(), 2)]);
        // By now it is another node's.
        source.leases.put(lease("10.244.1.0-24", "192.0.2.3"));
        assert!(source.unheld().is_empty());
    }

    /// While etcd is away, what the disk has counts if it is whole, and no other cluster is ever read
    /// from it.
    #[test]
    fn a_damaged_configuration_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::new(folder.path());
        let find = || {
            let away = Err(EtcdError::Away("nobody answers".to_owned()));
            Configuration::find(away, KEY, &disk).map(|found| found.text)
        };
        assert_eq!(find(), Err(format!("read {KEY}: nobody answers")));
        disk.write_configuration(TEXT).unwrap();
        assert_eq!(find(), Ok(TEXT.to_owned()));
        let path = folder.path().join("flannel-config");
        let kept = std::fs::read_to_string(&path).unwrap();
        for (bad, why) in [
            (kept.replacen("10.244.", "10.245.", 1), "its sum is wrong"),
            (TEXT.to_owned(), "it has no sum"),
        ] {
            std::fs::write(&path, bad).unwrap();
            let said = format!(
                "read {KEY}: nobody answers; and the copy of flanneld's configuration on the \
                 disk cannot be used: {why} ({})",
                path.display()
            );
            assert_eq!(find(), Err(said));
        }
        // What etcd says is kept anew.
        disk.write_configuration(TEXT).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), kept);
    }
}
