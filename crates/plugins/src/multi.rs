//! `multi`: several networks for one container, for runtimes that support only one.
//!
//! The key `networks` lists them: networks from a folder of configurations, or configurations
//! written in place. For the runtime the first is the container's network: it has the interface
//! that the runtime named and gets what the runtime requests. Its result is the plugin's result,
//! with the links of the other networks added (NPWG "Kubernetes Network Custom Resource Definition
//! De-facto Standard" v1.3, §4). Every other network has an interface of its own.
//!
//! - ADD attaches to the networks in order; if one fails, ADD detaches from those before it.
//! - DEL detaches from the networks that ADD attached to, the last first, even if the files have
//!   changed since; a failure does not stop the others. GC does the same for attachments that are
//!   gone. It does not run the networks' own GC: others may be attached to them too.
//! - CHECK and STATUS ask every network.
//! - One network has the default route: the chosen one, else the first that gives one.
//!
//! `members` implements the records and how they are removed.
//!
//! Each network is an attachment of its own. `cni-runtime` records it as a runtime does, in a
//! folder for each container below `lib/multi`; so `list`, `inspect` and repair see it.
//! `netwright-multi` uses the same code, with its files in `lib/netwright-multi`; only its list of
//! networks comes from elsewhere.

mod config;
pub mod default_route;
pub(crate) mod members;
pub mod whole;

use cni::json::{JsonError, UnknownKey};
use cni::{AddResult, AttachmentKey, Error, NetworkList};
use cni_plugin::{Call, Info, Inner, Plugin, Role};
use cni_runtime::CachedAttachment;
use serde::{Deserialize, Serialize};
use state::{Index, Record, Roots};

use crate::engine::StaleAttachment;
use crate::shared::attachment;
use crate::shared::common_keys;
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;
use config::Config;
use default_route::DefaultRoute;
use members::{Container, RecordedMember};

/// What the plugin is.
pub const INFO: Info = Info::new("multi").role(Role::Interface).inner(Inner::Networks("networks"));

/// The plugin's type.
const NAME: &str = INFO.name;

/// Returns the networks that form one attachment, as the plugin of several networks recorded them;
/// none for another plugin's record.
#[must_use]
pub fn parts(roots: &Roots, record: &Record) -> Vec<CachedAttachment> {
    match crate::info(&record.plugin).and_then(|info| info.inner) {
        Some(Inner::Networks(_) | Inner::Delegates(_)) => {
            members::parts(roots, &record.plugin, &record.attachment)
        }
        Some(Inner::Plugins(_) | Inner::Delegate { .. }) | None => Vec::new(),
    }
}

/// The plugin.
#[derive(Debug)]
pub struct Multi;

/// The record of a container's networks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RecordData {
    /// In the order of ADD.
    members: Vec<RecordedMember>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    default_route: Option<DefaultRoute>,
}

impl Plugin for Multi {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn add(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        let netns = call.open_netns()?;
        let inside = members::look_into(&netns)?;
        let is_taken = |name: &str| matches!(inside.link_index(name), Ok(Some(_)));
        let config = Config::of(call, is_taken)?;
        let index = Index::new(call.roots());
        let container = container(call, call.attachment());
        let _lock = container.lock()?;
        container.refuse_existing(&index, &netns, |record| {
            // It belongs to a container of that name that is gone. The plugins of a network that this
            // one has too go on from there, and give it the same address.
            let again: Vec<RecordedMember> =
                config.members.iter().filter_map(|one| RecordedMember::of(one).ok()).collect();
            let mut failures = Failures::new();
            if let Ok(mut recorded) = serde_json::from_value::<RecordData>(record) {
                recorded.members.retain(|one| !again.contains(one));
                container.detach(&recorded.members, Some(""), &mut failures);
            }
            failures.into_result()
        })?;
        members::refuse_interfaces(&inside, &config.members)?;
        // First, so that DEL knows what to remove whenever this call ends.
        attachment::write_record(call, &index, NAME, &RecordData::of(&config)?, &netns)?;
        let chosen = config.default_route.as_ref();
        let attached = container.attach(&config.members, |results| {
            for (member, result) in config.members.iter().zip(results.iter()) {
                let given = member.attachment.require_given(result);
                given.map_err(|error| {
                    error.context(format_args!("network {:?}", member.list.name))
                })?;
            }
            default_route::settle(&container.runtime, &netns, chosen, &config.members, results)
        });
        Ok(attached.map(merged).map_err(|failed| {
            match failed.is_undone().then(|| container.forget(&index)) {
                Some(Err(left)) => failed.error.with_left(format!("could not forget it: {left}")),
                _ => failed.error,
            }
        })?)
    }

    fn del(&self, call: &Call<'_>) -> Result<(), Error> {
        let index = Index::new(call.roots());
        let container = container(call, call.attachment());
        let _lock = container.lock_for_removal()?;
        let recorded = attachment::recorded::<RecordData>(&index, call.attachment(), NAME);
        let mut failures = Failures::new();
        // The runtime knows best where the container is, or that it is gone.
        let netns = Some(call.env().netns.as_str());
        match recorded {
            Some(recorded) => container.detach(&recorded.members, netns, &mut failures),
            // An ADD that was killed before it recorded anything has attached to nothing. If the
            // record was lost, the networks are still listed in the folder and in the
            // configuration.
            None => {
                container.detach_recorded(netns, &mut failures)?;
                let config = Config::of(call, |_| false);
                for member in config.map(|config| config.members).unwrap_or_default().iter().rev() {
                    let key = container.runtime.key(&member.list, &member.attachment)?;
                    container.detach_one(&key, netns, Some(member), &mut failures);
                }
            }
        }
        if failures.is_empty() {
            failures.note("forget the networks", container.forget(&index));
        }
        Ok(failures.into_result()?)
    }

    fn check(&self, call: &Call<'_>) -> Result<(), Error> {
        let expected = call.require_prev_result("Required prevResult missing")?;
        let recorded: RecordData = members::recorded(call, NAME)?;
        container(call, call.attachment()).check(&recorded.members, &expected)?;
        match &recorded.default_route {
            Some(chosen) => Ok(default_route::check(call, chosen)?),
            None => Ok(()),
        }
    }

    fn repair(&self, call: &Call<'_>) -> Result<Vec<String>, Error> {
        let recorded: RecordData = members::recorded(call, NAME)?;
        Ok(container(call, call.attachment()).repair(&recorded.members)?)
    }

    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        let index = Index::new(call.roots());
        let mut failures = Failures::new();
        for record in attachment::stale_records(call, &index, NAME) {
            let container = container(call, &record.attachment);
            let collected = container.collect(&StaleAttachment::of(record.clone()), &index, || {
                let mut own = Failures::new();
                if let Ok(recorded) = serde_json::from_value::<RecordData>(record.data) {
                    container.detach(&recorded.members, None, &mut own);
                }
                if own.is_empty() {
                    own.note("forget the networks", container.forget(&index));
                }
                own.into_result()
            });
            failures.note(format_args!("collect {}", record.attachment), collected);
        }
        Ok(failures.into_result()?)
    }

    fn validate(&self, call: &Call<'_>) -> Result<(), Error> {
        Ok(config::validate(call)?)
    }

    fn networks(&self, call: &Call<'_>) -> Result<Vec<NetworkList>, Error> {
        Ok(config::lists(call)?)
    }

    fn status(&self, call: &Call<'_>) -> Result<(), Error> {
        members::ready(call, call.env().plugin_path(), &config::lists(call)?)
    }

    fn unknown_keys(&self, config: &str) -> Result<Vec<UnknownKey>, JsonError> {
        common_keys::unknown::<config::Raw>(config, false)
    }
}

fn container<'c>(call: &'c Call<'c>, outer: &AttachmentKey) -> Container<'c> {
    Container::new(call, NAME, outer, call.env().plugin_path())
}

/// Returns the links of all results, and the addresses of the first: runtimes treat every address
/// as the container's own.
fn merged(mut results: Vec<AddResult>) -> AddResult {
    let others: Vec<_> = results.drain(1..).flat_map(|result| result.interfaces).collect();
    let mut first = results.remove(0);
    first.interfaces.extend(others);
    first
}

impl RecordData {
    fn of(config: &Config) -> Result<Self, Failure> {
        let members = config.members.iter().map(RecordedMember::of);
        let members = members.collect::<Result<_, Failure>>()?;
        Ok(RecordData { members, default_route: config.default_route.clone() })
    }
}
