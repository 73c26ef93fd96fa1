//! `multi`: several networks for one container, for runtimes that know of one.
//!
//! The key `networks` names them: networks of a folder of configurations, or configurations written in place. The first is the
//! container's network as far as the runtime is concerned: it has the interface that the runtime named and what the runtime asks for,
//! and its result is the result, to which the links of the others are added (NPWG "Kubernetes Network Custom Resource Definition
//! De-facto Standard" v1.3, §4). Every other has an interface of its own.
//!
//! - ADD attaches in order, one after the other; if one fails, those before it are detached.
//! - DEL detaches from what was attached to then, whatever the files say by now, the last first; a failure keeps none of the
//!   others. So does GC for attachments that are gone. The networks' own GC is not run: others may be attached to them, too.
//! - CHECK and STATUS ask every network.
//! - One network has the default route: the one that is chosen, else the first that gives one.
//!
//! Each attachment is recorded as a runtime records it ([`cni_runtime::Cache`], in a folder of ours); which ones belong together is in
//! our record.

mod config;
pub mod default_route;

use std::path::PathBuf;
use std::sync::Arc;

use cni::json::{JsonError, UnknownKey, unknown_keys};
use cni::{AddResult, AttachmentKey, Error, IfName, NetworkName, code};
use cni_plugin::{Call, Plugin, codes};
use cni_runtime::{Cache, CachedAttachment, Member, Runtime};
use kernel::netns::Netns;
use kernel::route::RouteSocket;
use serde::{Deserialize, Serialize};
use state::Index;

use crate::shared::failures::Failures;
use crate::shared::{attachment, drift, kernel_error};
use config::Config;
use default_route::DefaultRoute;

/// The plugin's type.
const NAME: &str = "multi";

/// The plugin.
#[derive(Debug)]
pub struct Multi;

/// What is written down of a container's networks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Facts {
    /// In the order of ADD.
    members: Vec<Fact>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    default_route: Option<DefaultRoute>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Fact {
    network: NetworkName,
    ifname: IfName,
}

impl Plugin for Multi {
    fn name(&self) -> &'static str {
        NAME
    }

    fn add(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        let netns = call.open_netns()?;
        let inside = RouteSocket::open_in(&netns).map_err(kernel_error)?;
        let is_taken = |name: &str| matches!(inside.link_index(name), Ok(Some(_)));
        let config = Config::of(call, is_taken)?;
        let index = Index::new(call.roots());
        let key = call.attachment();
        if let Some(record) = index.get(key, NAME).found {
            if attachment::recorded_netns(&record)?.is_some_and(|was| was.id() == netns.id()) {
                let text = format!("{key} already exists, or an ADD of it was killed");
                return Err(Error::new(codes::EXISTS, text)
                    .with_details("nothing was changed; run DEL before another ADD"));
            }
            // Of a container of that name that is gone.
            let mut failures = Failures::new();
            if let Ok(facts) = serde_json::from_value::<Facts>(record.data) {
                detach(call, &facts, key, Some(""), &mut failures);
            }
            failures.into_result()?;
        }
        // A network's ADD would refuse it too, and the others would have to be undone.
        for member in &config.members {
            let ifname = member.attachment.ifname.as_str();
            attachment::refuse_existing(&inside, ifname, || {
                format!("interface {ifname:?} already exists in the container")
            })?;
        }
        // First, so that DEL knows what to take away whenever this call ends.
        attachment::write_down(call, &index, NAME, &Facts::of(&config)?, netns.id())?;
        match attach(call, &config, &netns) {
            Ok(result) => Ok(result),
            Err((error, false)) => Err(error),
            Err((error, true)) => match forget(call, &index, key) {
                Ok(()) => Err(error),
                Err(left) => Err(error.with_details(format!("could not forget it: {left}"))),
            },
        }
    }

    fn del(&self, call: &Call<'_>) -> Result<(), Error> {
        let index = Index::new(call.roots());
        let recorded = attachment::read_facts::<Facts>(&index, call.attachment(), NAME);
        let mut failures = Failures::new();
        match recorded {
            Some(facts) => {
                // The runtime knows best where the container is, and that it is gone.
                let netns = Some(call.env().netns.as_str());
                detach(call, &facts, call.attachment(), netns, &mut failures);
            }
            // An ADD that was killed before it wrote anything down has attached to nothing; where the record was lost, what was
            // attached to is still in the folder, and in the configuration.
            None => {
                let runtime = runtime(call, call.attachment());
                let netns = Some(call.env().netns.as_str());
                let listing = runtime.cached_attachments(None).map_err(|error| error.to_cni())?;
                for cached in listing.attachments {
                    detach_one(call, &runtime, &cached.key(), netns, None, &mut failures);
                }
                let config = Config::of(call, |_| false);
                for member in config.map(|config| config.members).unwrap_or_default().iter().rev() {
                    let key = runtime.key(&member.list, &member.attachment)?;
                    detach_one(call, &runtime, &key, netns, Some(member), &mut failures);
                }
            }
        }
        if failures.is_empty() {
            failures.note("forget the networks", forget(call, &index, call.attachment()));
        }
        failures.into_result()
    }

    fn check(&self, call: &Call<'_>) -> Result<(), Error> {
        let expected = call.require_prev_result("Required prevResult missing")?;
        let facts = recorded(call)?;
        let runtime = runtime(call, call.attachment());
        for (place, fact) in facts.members.iter().enumerate() {
            let cached = runtime.cached_attachment(&fact.key(call.attachment()));
            let cached = cached.map_err(|error| error.to_cni())?.ok_or_else(|| {
                drift(format!("nothing is recorded of network {:?}", fact.network.as_str()))
            })?;
            if place == 0 {
                check_addresses(call, &expected, &cached)?;
            }
            let list = cached.list()?;
            let checked = runtime.check_list(&list, &cached.attachment, call.context().deadline);
            checked.map_err(|error| {
                error.to_cni().context(format_args!("network {:?}", fact.network.as_str()))
            })?;
        }
        match &facts.default_route {
            Some(chosen) => default_route::check(call, chosen),
            None => Ok(()),
        }
    }

    fn repair(&self, call: &Call<'_>) -> Result<Vec<String>, Error> {
        let facts = recorded(call)?;
        let runtime = runtime(call, call.attachment());
        let (mut lines, mut failures) = (Vec::new(), Failures::new());
        for fact in &facts.members {
            let cached = runtime.cached_attachment(&fact.key(call.attachment()));
            let Some(cached) = cached.map_err(|error| error.to_cni())? else { continue };
            let list = cached.list()?;
            let repaired = runtime.repair_list(&list, &cached.attachment, call.context().deadline);
            let repaired = repaired.map_err(|error| error.to_cni());
            let what = format!("network {:?}", fact.network.as_str());
            let done = failures.note(what, repaired).unwrap_or_default();
            lines.extend(done.put_back.into_iter().map(|(_, line)| line));
        }
        failures.into_result().map(|()| lines)
    }

    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        let index = Index::new(call.roots());
        let mut failures = Failures::new();
        for record in attachment::stale_records(call, &index, NAME) {
            let key = record.attachment;
            let mut own = Failures::new();
            if let Ok(facts) = serde_json::from_value::<Facts>(record.data) {
                detach(call, &facts, &key, None, &mut own);
            }
            if own.is_empty() {
                own.note("forget the networks", forget(call, &index, &key));
            }
            failures.note(format_args!("collect {key}"), own.into_result());
        }
        failures.into_result()
    }

    fn status(&self, call: &Call<'_>) -> Result<(), Error> {
        let runtime = plain_runtime(call);
        config::lists(call)?.iter().try_for_each(|list| {
            let asked = runtime.status_list(list, call.context().deadline);
            asked.map_err(|error| error.to_cni().context(format_args!("network {:?}", list.name)))
        })
    }

    fn unknown_keys(&self, config: &str) -> Result<Vec<UnknownKey>, JsonError> {
        unknown_keys::<config::Raw>(config)
    }
}

/// Attaches to all networks, or to none. An error says too whether nothing is left.
fn attach(call: &Call<'_>, config: &Config, netns: &Netns) -> Result<AddResult, (Error, bool)> {
    let runtime = runtime(call, call.attachment());
    let deadline = call.context().deadline;
    let added = runtime
        .add_several(&config.members, deadline)
        .map_err(|error| (error.to_cni(), error.left.is_empty()))?;
    let mut results: Vec<AddResult> = added.into_iter().map(|one| one.result).collect();
    let (chosen, members) = (config.default_route.as_ref(), &config.members);
    let settled = default_route::settle(&runtime, netns, chosen, members, &mut results);
    settled.map_err(|error| {
        let left = runtime.del_several(members, deadline);
        (left.tell(error), left.is_empty())
    })?;
    // The links of all, and the addresses of the first: runtimes take every address for the container's own.
    let others: Vec<_> = results.drain(1..).flat_map(|result| result.interfaces).collect();
    let mut first = results.remove(0);
    first.interfaces.extend(others);
    Ok(first)
}

/// Verifies that the previous result lists no address of the container's that its first network has not given.
fn check_addresses(
    call: &Call<'_>,
    expected: &AddResult,
    cached: &CachedAttachment,
) -> Result<(), Error> {
    let Some(raw) = &cached.result else {
        return Err(drift(format!("network {:?} was not attached", cached.network.as_str())));
    };
    let given = AddResult::parse(raw.get().as_bytes(), call.version())?;
    let ifname = call.ifname().as_str();
    let mut expected = expected.container_ips(ifname);
    let unknown =
        expected.find(|ip| !given.container_ips(ifname).any(|own| own.address == ip.address));
    match unknown {
        Some(ip) => Err(drift(format!(
            "network {:?} gave {ifname} no address {}",
            cached.network.as_str(),
            ip.address
        ))),
        None => Ok(()),
    }
}

impl Facts {
    fn of(config: &Config) -> Result<Self, Error> {
        let fact = |member: &Member| {
            let network = NetworkName::new(&member.list.name)?;
            Ok(Fact { network, ifname: member.attachment.ifname.clone() })
        };
        let members = config.members.iter().map(fact).collect::<Result<_, Error>>()?;
        Ok(Facts { members, default_route: config.default_route.clone() })
    }
}

impl Fact {
    /// Whose it is, for the container of the outer attachment.
    fn key(&self, outer: &AttachmentKey) -> AttachmentKey {
        AttachmentKey {
            network: self.network.clone(),
            container_id: outer.container_id.clone(),
            ifname: self.ifname.clone(),
        }
    }
}

fn recorded(call: &Call<'_>) -> Result<Facts, Error> {
    let key = call.attachment();
    attachment::read_facts(&Index::new(call.roots()), key, NAME)
        .ok_or_else(|| Error::new(code::UNKNOWN_CONTAINER, format!("{key} is not attached")))
}

/// Detaches from all that is recorded, the last first.
fn detach(
    call: &Call<'_>,
    facts: &Facts,
    outer: &AttachmentKey,
    netns: Option<&str>,
    failures: &mut Failures,
) {
    let runtime = runtime(call, outer);
    for fact in facts.members.iter().rev() {
        detach_one(call, &runtime, &fact.key(outer), netns, None, failures);
    }
}

/// Detaches from one network: as it was when it was attached, else as it is configured now. `netns` is where the container is by now, if
/// that is known.
fn detach_one(
    call: &Call<'_>,
    runtime: &Runtime<'_>,
    key: &AttachmentKey,
    netns: Option<&str>,
    configured: Option<&Member>,
    failures: &mut Failures,
) {
    let deadline = call.context().deadline;
    let what = format!("network {:?}", key.network.as_str());
    match runtime.cached_attachment(key) {
        Ok(Some(mut cached)) => {
            if let Some(netns) = netns {
                netns.clone_into(&mut cached.attachment.netns);
            }
            let deleted = runtime.del_cached(&cached, deadline).map(drop);
            failures.note(what, deleted.map_err(|error| error.to_cni()));
        }
        Ok(None) => {
            if let Some(member) = configured {
                let deleted = runtime.del_list(&member.list, &member.attachment, deadline);
                failures.note(what, deleted.map(drop).map_err(|error| error.to_cni()));
            }
        }
        Err(error) => {
            failures.note(what, Err::<(), _>(error.to_cni()));
        }
    }
}

/// What calls the networks' plugins: as this call's were, in this process where they are ours.
fn runtime<'c>(call: &'c Call<'c>, outer: &AttachmentKey) -> Runtime<'c> {
    plain_runtime(call).with_cache(Cache::new(folder(call, outer)))
}

/// The same, for what is about no attachment.
fn plain_runtime<'c>(call: &'c Call<'c>) -> Runtime<'c> {
    Runtime::new(call.env().plugin_path(), Arc::new(call.context().executor))
}

/// Where a container's attachments are recorded: a folder for each, which goes with it.
fn folder(call: &Call<'_>, outer: &AttachmentKey) -> PathBuf {
    let AttachmentKey { network, container_id, ifname } = outer;
    let name = format!("{network}:{container_id}:{ifname}");
    call.roots().lib.join(NAME).join(name)
}

/// Forgets an attachment: first what its networks were, then that it was.
fn forget(call: &Call<'_>, index: &Index, outer: &AttachmentKey) -> Result<(), Error> {
    match std::fs::remove_dir_all(folder(call, outer)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            let what = format!("remove {}", folder(call, outer).display());
            Err(Error::from_chain(codes::STATE, &error).context(what))
        }
        _ => attachment::forget(index, outer, NAME),
    }
}
