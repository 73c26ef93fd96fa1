//! Attaches and detaches networks while a pod runs, when the daemon requests it because a pod's
//! annotation changed.
//!
//! The default network stays, and so do the default routes: if they were moved under a running pod,
//! no network would be left to return them to.

use cni::{AddResult, IfName, code};
use cni_plugin::{Call, codes};
use cni_runtime::Member;
use kernel::netns::Netns;
use node_api::multinet::PlannedNetwork;
use npwg::annotation;
use state::{Index, Record};

use super::attach::attach;
use super::config::{Config, invalid};
use super::plan::{self, Plan};
use super::recorded::RecordData;
use super::{NAME, remove_file};
use crate::multi::default_route;
use crate::multi::members::{self, Container, RecordedMember};
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;

/// Attaches a running pod to one more network, and returns that network's result.
pub(super) fn add(
    call: &Call<'_>,
    config: &Config,
    planned: &PlannedNetwork,
) -> Result<AddResult, Failure> {
    let index = Index::new(call.roots());
    let unknown =
        || Failure::new(code::UNKNOWN_CONTAINER, format!("{} is not attached", call.attachment()));
    let outer = recorded(call, &index).ok_or_else(unknown)?.attachment;
    let container = Container::new(call, NAME, &outer, config.plugin_path.clone());
    let _lock = container.lock()?;
    // Read again, since under the lock it does not change.
    let mut record = index.get(&outer, NAME).found.ok_or_else(unknown)?;
    let before: RecordData = read(&record)?;
    if planned.default {
        return Err(invalid("the default network is there already, and stays"));
    }
    if planned.default_route.as_ref().is_some_and(|gateways| !gateways.is_empty()) {
        return Err(invalid("the default route cannot be moved while the pod runs")
            .with_details("\"default-route\" is followed when the pod starts"));
    }
    let netns = own_netns(call, &index, &record)?;
    let inside = members::look_into(&netns)?;
    let ifname = match &planned.ifname {
        Some(name) => IfName::new(name)?,
        None => {
            let is_taken = |name: &str| matches!(inside.link_index(name), Ok(Some(_)));
            let mut asked: Vec<Option<IfName>> =
                before.members[1..].iter().map(|member| Some(member.ifname.clone())).collect();
            asked.push(None);
            annotation::interface_names(&asked, is_taken).pop().expect("as many as were asked for")
        }
    };
    let mut plan = Plan::default();
    let list = plan::list(call, config, planned)?;
    plan.add(call, config, planned, list, ifname)?;
    members::refuse_interfaces(&inside, &plan.members)?;
    let others = members_of(&container, &before)?;
    let new = RecordData::of(&plan, before.pod.clone(), config)?;
    let mut after = before.clone();
    after.members.extend(new.members);
    after.networks.extend(new.networks);
    put(&index, &mut record, &after)?;
    let attached = attach(call, config, &container, &netns, &plan, &|results| {
        // The network that has the default routes keeps them.
        let (mut all, mut given): (Vec<Member>, Vec<AddResult>) = others.iter().cloned().unzip();
        all.extend(plan.members.iter().cloned());
        given.append(results);
        let chosen = before.default_route.as_ref();
        default_route::settle(&container.runtime, &netns, chosen, &all, &mut given)?;
        results.extend(given.pop());
        Ok(())
    });
    attached.map(|mut results| results.swap_remove(0)).map_err(|failed| {
        if !failed.is_undone() {
            return failed.error;
        }
        let mut failures = Failures::new();
        for network in &plan.networks {
            remove_file(network.device.as_ref().map(|device| &device.path), &mut failures);
        }
        failures.note("forget it", put(&index, &mut record, &before));
        match failures.into_result() {
            Ok(()) => failed.error,
            Err(left) => failed.error.with_left(left.to_string()),
        }
    })
}

/// Detaches a running pod from the network of this interface. If the pod does not have it, that is
/// success.
///
/// The pod's namespace must be visible. While the pod runs, a namespace that is not visible here is
/// not gone, and its addresses are in use.
pub(super) fn del(call: &Call<'_>, config: &Config, ifname: &str) -> Result<(), Failure> {
    let index = Index::new(call.roots());
    let Some(record) = recorded(call, &index) else { return Ok(()) };
    let outer = record.attachment;
    let container = Container::new(call, NAME, &outer, config.plugin_path.clone());
    let _lock = container.lock()?;
    let Some(mut record) = index.get(&outer, NAME).found else { return Ok(()) };
    let mut recorded = read(&record)?;
    let place = recorded.members.iter().position(|member| member.ifname.as_str() == ifname);
    let Some(place) = place else { return Ok(()) };
    if place == 0 {
        return Err(invalid("the default network stays as long as the pod"));
    }
    own_netns(call, &index, &record)?;
    let member = recorded.members.remove(place);
    let mut failures = Failures::new();
    container.detach(&[member], Some(call.env().netns.as_str()), &mut failures);
    if failures.is_empty() {
        for known in recorded.networks.extract_if(.., |known| known.ifname.as_str() == ifname) {
            remove_file(known.device_file.as_ref(), &mut failures);
        }
        recorded.default_route.take_if(|chosen| chosen.ifname.as_str() == ifname);
        failures.note("write it down", put(&index, &mut record, &recorded));
    }
    failures.into_result()
}

/// Returns the pod's record, under any name that its runtime gives the network.
fn recorded(call: &Call<'_>, index: &Index) -> Option<Record> {
    let ours = |record: &Record| {
        record.plugin == NAME && record.attachment.ifname == call.attachment().ifname
    };
    let records = index.of_container(call.container_id().as_str()).found;
    records.into_iter().find(ours)
}

/// Opens the running pod's namespace, which must be the one that it was attached in. The kernel
/// reuses the number of a deleted namespace; only the cookie distinguishes the two.
fn own_netns(call: &Call<'_>, index: &Index, record: &Record) -> Result<Netns, Failure> {
    let netns = call.open_netns()?;
    let others = index.of_container(call.container_id().as_str()).found;
    let noted = state::noted_in(std::iter::once(record).chain(&others));
    if record.noted().is_none() || noted.first().is_none_or(|noted| noted.is(&netns)) {
        return Ok(netns);
    }
    let text = format!("{} leads to another namespace than the pod's", call.env().netns);
    Err(Failure::new(code::INVALID_NETNS, text).with_details("nothing was changed"))
}

fn read(record: &Record) -> Result<RecordData, Failure> {
    serde_json::from_value(record.data.clone()).map_err(|error| {
        let text = format!("the record of {} is illegible: {error}", record.attachment);
        Failure::new(codes::STATE, text)
    })
}

fn put(index: &Index, record: &mut Record, recorded: &RecordData) -> Result<(), Failure> {
    record.data = serde_json::to_value(recorded).expect("a record has string keys only");
    index.put(record).map_err(|error| Failure::from_chain(codes::STATE, &error))
}

/// Returns the recorded networks of a pod.
fn members_of(
    container: &Container<'_>,
    recorded: &RecordData,
) -> Result<Vec<(Member, AddResult)>, Failure> {
    let member = |member: &RecordedMember| {
        let cached = container.runtime.cached_attachment(&member.key(&container.outer));
        let cached = cached?;
        let (Some(cached), what) = (cached, format!("network {:?}", member.network.as_str()))
        else {
            let text = format!("nothing is recorded of network {:?}", member.network.as_str());
            return Err(Failure::new(code::UNKNOWN_CONTAINER, text));
        };
        let result = cached.result().map_err(|error| error.context(what))?.unwrap_or_default();
        Ok((Member { list: cached.list()?, attachment: cached.attachment }, result))
    };
    recorded.members.iter().map(member).collect()
}
