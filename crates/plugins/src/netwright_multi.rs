//! `netwright-multi`: the networks of a Kubernetes pod.
//!
//! The plugin holds no credentials and does not access the API. `netwrightd` tells it over a Unix
//! socket which networks a pod should have ([`node_api::multinet`]), and receives the outcome. The plugin
//! attaches in the same way as `multi` ([`crate::multi`]): the default network first, one after the
//! other, all or none (NPWG "Kubernetes Network Custom Resource Definition De-facto Standard"
//! v1.3).
//!
//! - ADD returns the default network's result; the daemon writes all networks into the pod's status
//!   annotation.
//! - DEL, CHECK, GC and repair need only what ADD recorded: no daemon, no API, no definition.
//! - Without a daemon, a container that is not a pod gets the default network, and the ADD of a pod
//!   fails with "try again". A pod must not run without the interfaces that its annotations ask
//!   for, and only the daemon knows those. Where the runtime passes the annotations on and none asks
//!   for a network, the pod gets the default network (`plainPodsWithoutDaemon`).
//! - The default network is selected by its name.
//! - While a pod runs, the daemon can have single networks attached and detached
//!   ([`node_api::multinet::ATTACH`]).

mod attach;
mod config;
mod daemon;
mod devices;
mod plan;
mod recorded;
mod running;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use cni::json::{JsonError, UnknownKey};
use cni::{AddResult, AttachmentKey, Error, NetworkList, code};
use cni_plugin::{Call, Info, Inner, Plugin, Role};
use node_api::multinet::{Answer, DetachReport, Request};
use node_api::wait;
use state::Index;

use crate::engine::StaleAttachment;
use crate::multi::default_route;
use crate::multi::members::{self, Container};
use crate::shared::attachment;
use crate::shared::common_keys;
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;
use config::Config;
pub use config::POD_ANNOTATIONS;
use daemon::{Daemon, is_absent};
use plan::Plan;
use recorded::RecordData;

/// What the plugin is. Configurations for Multus use its other names.
pub const INFO: Info = Info::new("netwright-multi")
    .aliases(&["multus", "multus-shim"])
    .role(Role::Interface)
    .inner(Inner::Delegates("delegates"));

/// The plugin's type.
const NAME: &str = INFO.name;

/// Reports whether a configuration with this type calls the plugin, which a network of a pod may
/// not: it would attach the pod's networks again.
#[must_use]
pub fn is_called_by(plugin_type: &str) -> bool {
    INFO.answers_to(plugin_type)
}

/// How long a call waits for the file which shows that the default network is ready (Multus).
const READINESS_TIMEOUT: Duration = Duration::from_secs(45);

/// The plugin.
#[derive(Debug)]
pub struct NetwrightMulti;

impl Plugin for NetwrightMulti {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn add(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        let config = Config::of(call)?;
        match &config.attach {
            Some(planned) => Ok(running::add(call, &config, planned)?),
            None => Ok(attach::add(call, &config)?),
        }
    }

    fn del(&self, call: &Call<'_>) -> Result<(), Error> {
        // An unreadable configuration is not a reason to leave anything behind.
        let config = Config::of(call).ok();
        if let Some(config) = &config
            && let Some(ifname) = &config.detach
        {
            return Ok(running::del(call, config, ifname)?);
        }
        let index = Index::new(call.roots());
        let mut failures = Failures::new();
        let container = container(call, config.as_ref(), call.attachment());
        // An ADD for the pod does not delay its end forever.
        let _lock = container.lock_for_removal()?;
        let recorded = attachment::recorded::<RecordData>(&index, call.attachment(), NAME);
        // The runtime knows best where the container is, or that it is gone.
        let netns = Some(call.env().netns.as_str());
        match &recorded {
            Some(recorded) => leave(&container, recorded, netns, &mut failures),
            // An ADD that was killed before it recorded anything has attached to nothing. If the
            // record was lost, the networks are still listed in the folder, and the default network
            // may be on the node.
            None => {
                let detached = container.detach_recorded(netns, &mut failures);
                failures.note("read what is recorded", detached);
                leave_earlier(call, config.as_ref(), netns, &mut failures);
                if let Some(config) = &config {
                    leave_default(call, config, &container, netns, &mut failures);
                }
            }
        }
        if failures.is_empty() {
            failures.note("forget the networks", container.forget(&index));
        }
        if let (true, Some(recorded)) = (failures.is_empty(), recorded) {
            tell_detached(call, call.attachment(), recorded);
        }
        Ok(failures.into_result()?)
    }

    fn check(&self, call: &Call<'_>) -> Result<(), Error> {
        let expected = call.require_prev_result("Required prevResult missing")?;
        let recorded: RecordData = members::recorded(call, NAME)?;
        let config = Config::of(call)?;
        container(call, Some(&config), call.attachment()).check(&recorded.members, &expected)?;
        if let Some(chosen) = &recorded.default_route {
            default_route::check(call, chosen)?;
        }
        let mut without = recorded.networks.iter().filter(|network| network.without_default);
        Ok(without.try_for_each(|network| default_route::check_without(call, &network.ifname))?)
    }

    fn repair(&self, call: &Call<'_>) -> Result<Vec<String>, Error> {
        let recorded: RecordData = members::recorded(call, NAME)?;
        let config = Config::of(call)?;
        Ok(container(call, Some(&config), call.attachment()).repair(&recorded.members)?)
    }

    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        let index = Index::new(call.roots());
        let config = Config::of(call).ok();
        let mut failures = Failures::new();
        for record in attachment::stale_records(call, &index, NAME) {
            let container = container(call, config.as_ref(), &record.attachment);
            let collected = container.collect(&StaleAttachment::of(record.clone()), &index, || {
                let mut own = Failures::new();
                let recorded = serde_json::from_value::<RecordData>(record.data).ok();
                if let Some(recorded) = &recorded {
                    leave(&container, recorded, None, &mut own);
                }
                if own.is_empty() {
                    own.note("forget the networks", container.forget(&index));
                }
                if let (true, Some(recorded)) = (own.is_empty(), recorded) {
                    tell_detached(call, &record.attachment, recorded);
                }
                own.into_result()
            });
            failures.note(format_args!("collect {}", record.attachment), collected);
        }
        Ok(failures.into_result()?)
    }

    fn validate(&self, call: &Call<'_>) -> Result<(), Error> {
        Ok(Config::of(call).map(drop)?)
    }

    /// The pod's further networks are known with the pod.
    fn networks(&self, call: &Call<'_>) -> Result<Vec<NetworkList>, Error> {
        Ok(Config::of(call)?.default_network()?.into_iter().collect())
    }

    fn status(&self, call: &Call<'_>) -> Result<(), Error> {
        let config = Config::of(call)?;
        if let Some(file) = config.readiness.as_deref().filter(|file| !file.exists()) {
            let text = format!("the default network is not ready: no {}", file.display());
            return Err(Error::new(code::PLUGIN_NOT_AVAILABLE, text));
        }
        let default = config.default_network().map_err(attachment::unavailable)?;
        if let Some(list) = &default {
            let runtime = members::runtime(call, config.plugin_path.clone());
            let asked = runtime.status_list(list, call.context().deadline);
            asked.map_err(|error| {
                Failure::from(error).context(format_args!("network {:?}", list.name))
            })?;
        }
        let daemon = Daemon::new(config.socket, call.context().deadline);
        match daemon.ask_now(&Request::Status) {
            Ok(Answer::Refused(refusal)) => Err(match Failure::from(refusal) {
                error if error.code() == code::LIMITED_CONNECTIVITY => error,
                error => error.with_code(code::PLUGIN_NOT_AVAILABLE),
            }
            .into()),
            Ok(_) => Ok(()),
            // ADD waits for it.
            Err(error) if daemon.is_away(&error) => Ok(()),
            // Most pods start without it. A node that is not ready would lose those that run.
            Err(error) if config.plain_pods && default.is_some() && is_absent(&error) => Ok(()),
            Err(error) => Err(Error::from_chain(code::PLUGIN_NOT_AVAILABLE, &error)
                .context("netwrightd does not answer: pods are not attached")
                .with_details("is \"netwrightd multinet\" running? its own log says more")),
        }
    }

    fn unknown_keys(&self, config: &str) -> Result<Vec<UnknownKey>, JsonError> {
        common_keys::unknown::<config::Raw>(config, false)
    }

    fn ignored_keys(&self) -> &'static [(&'static str, &'static str)] {
        config::IGNORED
    }
}

fn container<'c>(
    call: &'c Call<'c>,
    config: Option<&Config>,
    outer: &AttachmentKey,
) -> Container<'c> {
    let path = config.map(|config| config.plugin_path.clone());
    Container::new(call, NAME, outer, path.unwrap_or_else(|| call.env().plugin_path()))
}

fn wait_until_ready(call: &Call<'_>, config: &Config) -> Result<(), Failure> {
    let Some(file) = &config.readiness else { return Ok(()) };
    let end = Instant::now() + READINESS_TIMEOUT;
    let end = call.context().deadline.map_or(end, |deadline| deadline.min(end));
    wait::until(file, end, || file.exists().then_some(())).ok_or_else(|| {
        let text = format!("the default network is not ready: no {}", file.display());
        Failure::new(code::TRY_AGAIN_LATER, text).with_details(
            "\"readinessindicatorfile\" names it; the default network's own pods make it",
        )
    })
}

/// Detaches from everything, and removes the files.
fn leave(
    container: &Container<'_>,
    recorded: &RecordData,
    netns: Option<&str>,
    failures: &mut Failures,
) {
    container.detach(&recorded.members, netns, failures);
    remove_files(recorded, failures);
}

/// Detaches what the runtime attached for the pod's interface under another network name, by the
/// runtime's own record: before this plugin was the node's network, or while the network had
/// another name. The runtime calls DEL only for its present network, and would keep its entry
/// forever.
fn leave_earlier(
    call: &Call<'_>,
    config: Option<&Config>,
    netns: Option<&str>,
    failures: &mut Failures,
) {
    let path = config.map(|config| config.plugin_path.clone());
    let runtime = members::runtime(call, path.unwrap_or_else(|| call.env().plugin_path()));
    // The folder is the runtime's, and DEL does not need it.
    let Ok(listing) = runtime.cached_attachments(Some(call.container_id())) else { return };
    for mut cached in listing.attachments {
        let key = cached.key();
        // An unreadable entry gives no information.
        let Ok(list) = cached.list() else { continue };
        if key.ifname != *call.ifname() || key == *call.attachment() {
            continue;
        }
        let what = format!("network {:?}, as it was attached", key.network.as_str());
        if config::refuse_ourselves(list).is_err() {
            // Its DEL would call this plugin again.
            let left = leave_renamed(call, config, &key, netns).and_then(|()| {
                let forgotten = runtime.cache().forget(&key).map(drop);
                Ok(forgotten?)
            });
            failures.note(what, left);
            continue;
        }
        if let Some(netns) = netns {
            netns.clone_into(&mut cached.attachment.netns);
        }
        let deleted = runtime.del_cached(&cached, call.context().deadline).map(drop);
        failures.note(what, deleted);
    }
}

/// Detaches from the networks to which this plugin attached a pod while its own network had another
/// name.
fn leave_renamed(
    call: &Call<'_>,
    config: Option<&Config>,
    outer: &AttachmentKey,
    netns: Option<&str>,
) -> Result<(), Failure> {
    let index = Index::new(call.roots());
    let recorded = attachment::recorded::<RecordData>(&index, outer, NAME);
    let Some(recorded) = recorded else { return Ok(()) };
    let container = container(call, config, outer);
    let mut failures = Failures::new();
    leave(&container, &recorded, netns, &mut failures);
    if failures.is_empty() {
        failures.note("forget the networks", container.forget(&index));
    }
    if failures.is_empty() {
        tell_detached(call, outer, recorded);
    }
    failures.into_result()
}

/// Detaches from the node's default network if there is no record of it.
fn leave_default(
    call: &Call<'_>,
    config: &Config,
    container: &Container<'_>,
    netns: Option<&str>,
    failures: &mut Failures,
) {
    // A network that cannot be attached to was not attached.
    let Ok(Some(list)) = config.default_network() else { return };
    let Ok(plan) = Plan::alone(call, config, list) else { return };
    for member in &plan.members {
        if let Ok(key) = container.runtime.key(&member.list, &member.attachment) {
            container.detach_one(&key, netns, Some(member), failures);
        }
    }
}

fn remove_files(recorded: &RecordData, failures: &mut Failures) {
    for network in &recorded.networks {
        remove_file(network.device_file.as_ref(), failures);
    }
}

fn remove_file(file: Option<&PathBuf>, failures: &mut Failures) {
    if let Some(file) = file {
        failures.note(format_args!("remove {}", file.display()), devices::remove(file));
    }
}

/// Notifies the daemon that a pod has no networks left.
fn tell_detached(call: &Call<'_>, key: &AttachmentKey, recorded: RecordData) {
    if recorded.pod.is_some() {
        let sandbox = attach::sandbox(call, key);
        let daemon = Daemon::new(recorded.socket, call.context().deadline);
        daemon.tell(&Request::Detached(DetachReport { sandbox, pod: recorded.pod }));
    }
}
