//! Runs ADD: from a pod's name to its interfaces.

use cni::json::Object;
use cni::{AddResult, AttachmentKey, Version, code};
use cni_plugin::Call;
use cni_runtime::Member;
use kernel::netns::Netns;
use node_api::Pod;
use node_api::multinet::{
    Answer, AttachReport, FailureReport, NetworkResult, PlanRequest, Request, Sandbox,
};
use npwg::request::UnservedPolicy;
use state::Index;

use super::config::{Config, POD_ANNOTATIONS, invalid};
use super::daemon::{Daemon, is_absent, unanswered};
use super::devices::DeviceFile;
use super::plan::{Network, Plan};
use super::recorded::RecordData;
use super::{NAME, leave, remove_files, wait_until_ready};
use crate::multi::default_route;
use crate::multi::members::{self, AttachFailure, Container};
use crate::shared::attachment;
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;

/// Attaches a pod to all of its networks, or to none, and returns the default network's result.
pub(super) fn add(call: &Call<'_>, config: &Config) -> Result<AddResult, Failure> {
    let netns = call.open_netns()?;
    let pod = Pod::of_args(&call.env().args);
    wait_until_ready(call, config)?;
    let inside = members::look_into(&netns)?;
    let is_taken = |name: &str| matches!(inside.link_index(name), Ok(Some(_)));
    let index = Index::new(call.roots());
    let container = Container::new(call, NAME, call.attachment(), config.plugin_path.clone());
    let begin = || {
        let lock = container.lock()?;
        container.refuse_existing(&index, &netns, |record| {
            // It belongs to a container of that name that is gone.
            let mut failures = Failures::new();
            if let Ok(recorded) = serde_json::from_value::<RecordData>(record) {
                leave(&container, &recorded, Some(""), &mut failures);
            }
            failures.into_result()
        })?;
        Ok::<_, Failure>(lock)
    };
    // The daemon may need time for the plan, and a DEL must not wait for that.
    drop(begin()?);
    let daemon = Daemon::new(config.socket.clone(), call.context().deadline);
    let report = Report { daemon: &daemon, sandbox: sandbox(call, call.attachment()), pod };
    let plan = report.plan(call, config, is_taken)?;
    let recorded = members::refuse_interfaces(&inside, &plan.members)
        .and_then(|()| RecordData::of(&plan, report.pod_of(&plan), config));
    let recorded = recorded.inspect_err(|error| report.failed("", error))?;
    let _lock = begin()?;
    // First, so that DEL knows what to remove whenever this call ends.
    attachment::write_record(call, &index, NAME, &recorded, &netns)?;
    let attached = attach(call, config, &container, &netns, &plan, &|results| {
        report.attached(call, config, &plan, results)
    });
    attached.map(|mut results| results.swap_remove(0)).map_err(|failed| {
        let mut failures = Failures::new();
        if failed.is_undone() {
            remove_files(&recorded, &mut failures);
            failures.note("forget it", container.forget(&index));
        }
        let name = failed.place.and_then(|place| plan.networks.get(place));
        let name = name.map_or("", |network| network.name.as_str());
        let error = if name.is_empty() {
            failed.error
        } else {
            failed.error.context(format_args!("network {name:?}"))
        };
        report.failed(name, &error);
        let error = report.about(error);
        match failures.into_result() {
            Ok(()) => error,
            Err(left) => error.with_left(left.to_string()),
        }
    })
}

/// Attaches to the networks of a plan, or to none. Success means that everything requested was
/// given, the default routes are where they should be, and `accept` agrees.
pub(super) fn attach(
    call: &Call<'_>,
    config: &Config,
    container: &Container<'_>,
    netns: &Netns,
    plan: &Plan,
    accept: &dyn Fn(&mut Vec<AddResult>) -> Result<(), Failure>,
) -> Result<Vec<AddResult>, AttachFailure> {
    let devices = plan.networks.iter().filter_map(|network| network.device.as_ref());
    let prepared = devices.into_iter().try_for_each(DeviceFile::prepare);
    prepared.map_err(|error| AttachFailure { error, place: None })?;
    container.attach(&plan.members, |results| {
        for ((member, network), result) in
            plan.members.iter().zip(&plan.networks).zip(&mut *results)
        {
            verify(call, config, member, network, result)?;
            if network.without_default {
                default_route::withhold(&container.runtime, netns, member, result)?;
            }
        }
        let chosen = plan.default_route.as_ref();
        default_route::settle(&container.runtime, netns, chosen, &plan.members, results)?;
        accept(results)
    })
}

/// Verifies that everything requested was given.
fn verify(
    call: &Call<'_>,
    config: &Config,
    member: &Member,
    network: &Network,
    result: &AddResult,
) -> Result<(), Failure> {
    let ifname = member.attachment.ifname.as_str();
    match (network.ask.verify(&network.name, ifname, result), config.unserved) {
        (Ok(()), _) => Ok(()),
        (Err(error), UnservedPolicy::Refuse) => Err(invalid(error.to_string())),
        (Err(error), UnservedPolicy::PassOver) => {
            call.warn(error);
            Ok(())
        }
    }
}

/// The messages to and from the daemon in an ADD.
struct Report<'r> {
    daemon: &'r Daemon,
    sandbox: Sandbox,
    pod: Option<Pod>,
}

impl Report<'_> {
    /// Asks which networks the sandbox should have. A sandbox that is not a pod has the node's
    /// default network, if the node has one.
    fn plan(
        &self,
        call: &Call<'_>,
        config: &Config,
        is_taken: impl Fn(&str) -> bool,
    ) -> Result<Plan, Failure> {
        if self.pod.is_none()
            && let Some(list) = config.default_network()?
        {
            return Plan::alone(call, config, list);
        }
        let mut runtime_config = config.runtime_config.clone();
        // The daemon knows them, and they may be longer than a message.
        if let Some(given) = &mut runtime_config {
            given.remove(POD_ANNOTATIONS);
        }
        let request = Request::Plan(PlanRequest {
            sandbox: self.sandbox.clone(),
            pod: self.pod.clone(),
            settings: config.settings.clone(),
            runtime_config,
        });
        let pod = self.pod.as_ref();
        let is_plain =
            pod.is_some_and(|pod| config.is_plain(&pod.namespace, call.ifname().as_str()));
        let asked = match is_plain {
            // A daemon that is being replaced comes back; one that is gone is not waited for.
            true => self.daemon.ask_unless_gone(&request),
            false => self.daemon.ask(&request),
        };
        match asked {
            Ok(Answer::Plan(said)) => Plan::of(call, config, &said, is_taken).map_err(|error| {
                self.failed("", &error);
                self.about(error)
            }),
            Ok(Answer::Refused(refusal)) => Err(self.about(refusal.into())),
            Ok(Answer::Ok) => Err(self.about(invalid("the daemon made no plan"))),
            Err(error) if is_plain && is_absent(&error) => match config.default_network()? {
                Some(list) => Plan::alone(call, config, list),
                None => Err(self.about(unanswered(&error))),
            },
            Err(error) => Err(self.about(unanswered(&error))),
        }
    }

    /// Returns the pod, with its UID in the API.
    fn pod_of(&self, plan: &Plan) -> Option<Pod> {
        let mut pod = self.pod.clone()?;
        if !plan.uid.is_empty() {
            pod.uid.clone_from(&plan.uid);
        }
        Some(pod)
    }

    /// Reports what was attached; the daemon may refuse it by now.
    fn attached(
        &self,
        call: &Call<'_>,
        config: &Config,
        plan: &Plan,
        results: &[AddResult],
    ) -> Result<(), Failure> {
        let Some(pod) = self.pod_of(plan) else { return Ok(()) };
        let places = plan.members.iter().zip(&plan.networks).zip(results);
        let results =
            places.map(|((member, network), result)| network_result(call, member, network, result));
        let results = results.collect::<Result<_, Failure>>()?;
        let (sandbox, settings) = (self.sandbox.clone(), config.settings.clone());
        let attached = AttachReport { sandbox, pod, results, settings };
        let reported = self.daemon.report(&Request::Attached(attached));
        Ok(reported?)
    }

    /// Reports why nothing is attached.
    fn failed(&self, network: &str, error: &Failure) {
        let Some(pod) = self.pod.clone() else { return };
        self.daemon.tell(&Request::Failed(FailureReport {
            sandbox: self.sandbox.clone(),
            pod,
            network: network.to_owned(),
            code: error.code(),
            msg: error.message().to_owned(),
            details: error.details().to_owned(),
        }));
    }

    /// Adds the pod's name to an error.
    fn about(&self, error: Failure) -> Failure {
        match &self.pod {
            Some(pod) => error.context(format_args!("pod {}/{}", pod.namespace, pod.name)),
            None => error,
        }
    }
}

/// Returns what a network gave, for the daemon.
fn network_result(
    call: &Call<'_>,
    member: &Member,
    network: &Network,
    result: &AddResult,
) -> Result<NetworkResult, Failure> {
    let text = result.write(Version::CURRENT)?;
    let result =
        Object::parse(&text).map_err(|error| Failure::new(code::INTERNAL, error.to_string()))?;
    let device = network.device.as_ref();
    Ok(NetworkResult {
        name: network.name.clone(),
        ifname: member.attachment.ifname.to_string(),
        default: network.default,
        result,
        device_info: device.and_then(|device| device.read(|warning| call.warn(warning))),
    })
}

/// Returns the runtime's view of the pod.
pub(super) fn sandbox(call: &Call<'_>, of: &AttachmentKey) -> Sandbox {
    Sandbox {
        container: of.container_id.to_string(),
        ifname: of.ifname.to_string(),
        netns: call.env().netns.clone(),
    }
}
