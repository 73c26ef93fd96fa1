//! This node's lease in etcd, what the others say, and flanneld's configuration there.
//!
//! The loop looks at the leases as it looks at the kernel: whenever one that concerns this node has
//! changed, the crate `routing` decides which is this node's, and what it is to be. The thread
//! writes it, and what it has written comes back as a change like any other.
//!
//! Keys, values, the choice of the prefix and the end after 24 hours are flannel's, so the source
//! `etcd` needs `flannel` to be `replace` or `standby`, also in a cluster that has no flanneld.
//! Every write is a transaction that fails if etcd has something else under the key. For a new
//! lease it also fails if any key begins with the lease's IPv4 prefix, and with two families if any
//! node has made a lease since the list was read: otherwise two nodes could take one IPv6 prefix,
//! because etcd compares nothing but the key. The grant is renewed every hour, so that etcd may be
//! away for 23 hours at any time.
//!
//! flanneld reads no list of prefixes that a node has kept, so only this node routes such a prefix.
//! Like flanneld, the service reads the configuration once; if there is none yet, it is ready and
//! says in its status what it lacks.

use std::net::IpAddr;
use std::time::Duration;

use agent::config;
use cluster_client::etcd::EtcdError;
use ipnet::IpNet;
use kernel::route::RouteSocket;
use routing::cluster::Event;
use routing::flannel::leases::{Lease, Windows};
use routing::flannel::own_lease::{Claim, OwnLease, addresses, no_address};
use routing::flannel::{self, subnet_env::SubnetEnv};
use routing::settings::OwnNode;
use routing::{IpFamily, PerFamily, Routing, Settings, SourceNode, Todo};
use service_kit::asynchronous::runtime;
use service_kit::bell::Bell;
use service_kit::poll::{Interest, Poller};
use service_kit::process::Process;
use service_kit::stop::{Stop, failed};

use super::context::Context;
use super::etcd_leases::{EtcdLeases, LeasesEvent, Registry};
use super::files::{self, Disk};
use super::host::Host;
use super::schedule::Due;
use super::source::{NodeSource, Origin, add_new, identify};

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
        poller.add(signals, 0, Interest::Read).map_err(failed)?;
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
    let found = host.default_addresses();
    let addresses = addresses(&config.underlay, windows, PerFamily::default(), &found);
    let address = addresses.v4.ok_or_else(|| said(no_address(IpFamily::V4)))?;
    runtime(1)?.block_on(async {
        let registry = Registry::open(config)?;
        registry.forget(address).await.map_err(|error| said(error.to_string()))
    })
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
                source.own.list(all, revision);
                self.prefixes = source.own.leases().prefixes().collect();
                is_own = true;
                Event::Answers
            }
            LeasesEvent::Changed(lease) => {
                let key = lease.key.clone();
                is_own = source.own.put(lease);
                let leases = source.own.leases();
                add_new(&mut self.prefixes, leases.prefixes_of(&key));
                let Some(seen) = leases.seen(&key, &context.settings) else {
                    return (Todo::default(), Due::look_if(is_own));
                };
                Event::Changed(seen)
            }
            LeasesEvent::Deleted(key, revision) => {
                is_own = source.own.remove(&key, revision);
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
        if is_own {
            source.own.own_may_be_other();
        }
        let mut due = Due::look_if(source.own.is_undecided());
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
        let found = host.default_addresses();
        let has_moved = source.own.has_moved(&found, has);
        if has_moved {
            source.reconnect();
        }
        source.own.find_addresses(&found);
        if !source.own.listed() {
            return has_moved;
        }
        let before = self.own.as_ref().ok().cloned();
        let addresses = *source.own.addresses();
        match source.claim(before.as_ref(), context.settings.standby) {
            Claim::Held(lease) => {
                let prefixes = source.own.leases().prefixes_of(&lease.key).to_vec();
                let value = &lease.value;
                let node = SourceNode::of_lease(prefixes, value, &addresses, before.as_ref());
                if context.settings.standby {
                    context.health.needs(LEASE, Ok(()));
                } else if let Ok(own) = identify(context, &node, host) {
                    source.write_for(context, &own, Some(&lease), host);
                }
                self.own = Ok(node);
            }
            Claim::Wanted(prefixes) => {
                if before.is_none() {
                    let shown: Vec<String> = prefixes.iter().map(ToString::to_string).collect();
                    self.own = Err(format!("{} is being leased from etcd", shown.join(", ")));
                }
                let node = SourceNode::of_lease(prefixes, &[], &addresses, before.as_ref());
                match identify(context, &node, host) {
                    Ok(own) => source.write_for(context, &own, None, host),
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
        let others = source.own.take_others(&context.settings)?;
        Some(context.event(Event::Listed(others)))
    }
}

impl EtcdLeases {
    /// Finds this node's lease, or what it is to be.
    fn claim(&mut self, before: Option<&SourceNode>, standby: bool) -> Claim {
        let key = |own: &OwnLease| own.held().map(|lease| lease.key.clone());
        let was = key(&self.own);
        let claim = self.own.claim(before, standby, service_kit::clock::seed());
        match (was, key(&self.own)) {
            (was, Some(lease)) if was.as_ref() != Some(&lease) => {
                tracing::info!(lease, "this node's lease");
            }
            (Some(lease), None) => tracing::warn!(lease, "this node's lease is gone"),
            _ => {}
        }
        claim
    }

    /// Has this node's lease written as it follows from what this node is. `there` is what it is.
    fn write_for(&mut self, context: &Context, own: &OwnNode, there: Option<&Lease>, host: &Host) {
        let pods = || host.pods(files::recorded());
        match self.own.desire(&context.settings, own, there, pods) {
            Ok(Some(desired)) => self.set_desired(desired),
            Ok(None) => {}
            Err(why) => context.health.needs(LEASE, Err(why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "/coreos.com/network/config";
    const TEXT: &str = r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}"#;

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
