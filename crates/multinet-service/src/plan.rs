//! Decides which networks a pod is to have, from what is known, without asking anything.
//!
//! A refusal does not name the pod: it becomes an Event of the pod, and the plugin's error says
//! which pod it is about.

use node_api::Refusal;
use node_api::multinet::{Device, Plan, PlanRequest, PlannedNetwork, Settings};
use npwg::Selection;
use npwg::annotation::PodRequest;
use npwg::definition::Definition;
use npwg::policy::Policy;
use plugins::netwright_multi;

use super::devices::Devices;
use super::facts::{DefinitionFacts, PodFacts};

/// Reasons of a pod's Events.
pub(super) const REFUSED: &str = "NetworkRefused";
pub(super) const NOT_FOUND: &str = "NoNetworkFound";

/// What applies where the plugin's configuration says nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Defaults {
    pub(super) cluster_network: Option<String>,
    pub(super) default_networks: Vec<String>,
    pub(super) system_namespaces: Vec<String>,
    pub(super) multus_namespace: String,
    pub(super) policy: Policy,
}

/// Why there is no plan, and the reason in the pod's Event; some refusals are not reported to the
/// pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NoPlan {
    pub(super) refusal: Refusal,
    pub(super) event: Option<&'static str>,
}

/// A network that the pod is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WantedNetwork {
    pub(super) what: NetworkSource,
    /// It is the default network.
    pub(super) default: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NetworkSource {
    /// A pod's annotation selects it.
    Selected(Box<Selection>),
    /// The node's configuration names it: a definition, or a network on the node.
    Named { namespace: String, name: String, text: String },
}

/// The result of looking up a definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Lookup {
    Definition(DefinitionFacts),
    /// The API server has none of that name.
    Nothing,
    /// It is not known whether it exists, for this reason.
    Unknown(String),
}

impl Defaults {
    /// Returns the defaults, overridden by the plugin's configuration.
    pub(super) fn under(&self, settings: &Settings) -> Self {
        let mut all = self.clone();
        let set = settings.clone();
        all.cluster_network = set.cluster_network.or(all.cluster_network);
        all.default_networks = set.default_networks.unwrap_or(all.default_networks);
        all.system_namespaces = set.system_namespaces.unwrap_or(all.system_namespaces);
        all.multus_namespace = set.multus_namespace.unwrap_or(all.multus_namespace);
        // The author of the node's plugin configuration may forbid more, but not allow what the
        // daemon forbids.
        all.policy.namespace_isolation |= set.namespace_isolation.unwrap_or_default();
        match set.global_namespaces {
            Some(global) if self.policy.namespace_isolation => {
                all.policy.global_namespaces.retain(|namespace| global.contains(namespace));
            }
            Some(global) => all.policy.global_namespaces = global,
            None => {}
        }
        all
    }

    fn named(&self, text: &str) -> NetworkSource {
        let (namespace, name) = text.split_once('/').unwrap_or((&self.multus_namespace, text));
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        NetworkSource::Named { namespace, name, text: text.to_owned() }
    }

    /// Returns the default network of pods without an annotation for it.
    pub(super) fn cluster(&self) -> Result<WantedNetwork, NoPlan> {
        let name = self.cluster_network.as_deref().ok_or_else(|| {
            let refusal = Refusal::new(cni::code::INVALID_CONFIG, "no default network is named")
                .with_details("set \"clusterNetwork\" in the plugin's configuration, or --cluster-network of netwrightd multinet");
            NoPlan { refusal, event: None }
        })?;
        Ok(WantedNetwork { what: self.named(name), default: true })
    }
}

/// Returns the networks that a pod wants, the default one first; without a pod, the default network
/// alone.
pub(super) fn wanted(
    request: &PlanRequest,
    pod: Option<&PodFacts>,
    defaults: &Defaults,
) -> Result<Vec<WantedNetwork>, NoPlan> {
    let Some(pod) = pod else { return Ok(vec![defaults.cluster()?]) };
    let (space, ifname) = (&defaults.multus_namespace, &request.sandbox.ifname);
    let asked = PodRequest::read(&pod.annotations, &pod.namespace, space, ifname)
        .map_err(|error| refused(error.to_string()))?;
    let mut all = Vec::new();
    all.push(match asked.default {
        Some(selection) => {
            let allowed = defaults.policy.allow_default(&pod.namespace, &selection, space);
            allowed.map_err(|error| refused(error.to_string()))?;
            refuse_claim(&selection)?;
            WantedNetwork { what: NetworkSource::Selected(Box::new(selection)), default: true }
        }
        None => defaults.cluster()?,
    });
    if !defaults.system_namespaces.contains(&pod.namespace) {
        let named = defaults.default_networks.iter().map(|name| defaults.named(name));
        all.extend(named.map(|what| WantedNetwork { what, default: false }));
    }
    for selection in asked.networks {
        let allowed = defaults.policy.allow(&pod.namespace, &selection);
        allowed.map_err(|error| refused(error.to_string()))?;
        refuse_claim(&selection)?;
        all.push(WantedNetwork {
            what: NetworkSource::Selected(Box::new(selection)),
            default: false,
        });
    }
    Ok(all)
}

fn refused(text: String) -> NoPlan {
    let refusal = Refusal::new(cni::code::INVALID_CONFIG, text);
    NoPlan { refusal, event: Some(REFUSED) }
}

fn refuse_claim(selection: &Selection) -> Result<(), NoPlan> {
    let Some(claim) = &selection.ipam_claim else { return Ok(()) };
    Err(refused(format!(
        "network {:?}: addresses of a claim (\"ipam-claim-reference\": {claim:?}) are not supported",
        selection.full_name()
    )))
}

/// Plans the networks that a pod of this namespace wants, with the definitions that were found.
pub(super) fn networks(
    pod: &str,
    wanted: &[(WantedNetwork, Lookup)],
    is_on_node: impl Fn(&str) -> bool,
    devices: &mut Devices,
    policy: &Policy,
) -> Result<Vec<PlannedNetwork>, NoPlan> {
    // First the devices that annotations name, so that no other network gets one of them.
    let chosen = wanted.iter().map(|(one, found)| one.chosen_device(pod, found, devices, policy));
    let chosen = chosen.collect::<Result<Vec<_>, NoPlan>>()?;
    let all = wanted.iter().zip(chosen).map(|((one, found), chosen)| {
        let device = |resource: &str| devices.next(resource);
        let mut planned = one.planned(found, &is_on_node, chosen.is_none().then_some(device))?;
        planned.device = chosen.or(planned.device);
        Ok(planned)
    });
    all.collect()
}

impl Lookup {
    /// Returns the resource whose devices the network takes.
    pub(super) fn resource(&self) -> Option<&str> {
        match self {
            Lookup::Definition(definition) => definition.resource.as_deref(),
            Lookup::Nothing | Lookup::Unknown(_) => None,
        }
    }
}

impl WantedNetwork {
    /// Returns the device that the annotation names: one of those allocated to the pod, or one that
    /// a rule grants, which is not a device of the network's resource.
    fn chosen_device(
        &self,
        pod: &str,
        found: &Lookup,
        devices: &mut Devices,
        policy: &Policy,
    ) -> Result<Option<Device>, NoPlan> {
        let NetworkSource::Selected(selection) = &self.what else { return Ok(None) };
        let Some(id) = selection.device_id.clone() else { return Ok(None) };
        let taken = found.resource().map(|resource| (resource, devices.take(resource, &id)));
        if let Some((resource, Ok(true))) = taken {
            return Ok(Some(Device { id, resource: resource.to_owned() }));
        }
        match (policy.allow_device(pod, selection, &id), taken) {
            (Ok(()), _) => Ok(Some(Device { id, resource: String::new() })),
            (Err(_), Some((resource, Err(why)))) => {
                Err(no_device(&selection.full_name(), resource, &why))
            }
            (Err(error), _) => Err(refused(error.to_string())),
        }
    }

    /// Returns the namespace and name of the definition that it may be.
    pub(super) fn definition(&self) -> (&str, &str) {
        match &self.what {
            NetworkSource::Selected(selection) => (&selection.namespace, &selection.name),
            NetworkSource::Named { namespace, name, .. } => (namespace, name),
        }
    }

    /// Plans the network, with the definition that was found. `is_on_node` says whether the node
    /// has a network of a name; `device` hands out a device of a resource, if the network is to
    /// have one.
    fn planned(
        &self,
        found: &Lookup,
        is_on_node: impl Fn(&str) -> bool,
        device: Option<impl FnOnce(&str) -> Result<String, String>>,
    ) -> Result<PlannedNetwork, NoPlan> {
        let (namespace, name) = self.definition();
        let id = format!("{namespace}/{name}");
        let mut planned = match (&self.what, found) {
            (_, Lookup::Definition(definition)) => read(definition, &id)?,
            (NetworkSource::Named { text, .. }, Lookup::Nothing) => on_node(text),
            // Definitions come first. But while it is not known whether there is one, the node's
            // network is better than none.
            (NetworkSource::Named { text, .. }, Lookup::Unknown(_)) if is_on_node(text) => {
                on_node(text)
            }
            (NetworkSource::Selected(_), Lookup::Nothing) => {
                let text = format!("there is no NetworkAttachmentDefinition {id:?}");
                let refusal = Refusal::new(cni::code::INVALID_CONFIG, text);
                return Err(NoPlan { refusal, event: Some(NOT_FOUND) });
            }
            (_, Lookup::Unknown(reason)) => {
                let text = format!("NetworkAttachmentDefinition {id:?} is not known: {reason}");
                return Err(NoPlan { refusal: Refusal::for_now(text), event: Some(REFUSED) });
            }
        };
        planned.default = self.default;
        if let NetworkSource::Selected(selection) = &self.what {
            planned.ifname = selection.interface.as_ref().map(|ifname| ifname.as_str().to_owned());
            planned.runtime_config =
                Some(selection.runtime_config()).filter(|asked| !asked.is_empty());
            planned.cni_args.clone_from(&selection.cni_args);
            planned.args = selection.args();
            planned.default_route.clone_from(&selection.default_route);
        }
        if let (Some(resource), Some(device)) = (found.resource(), device) {
            let id = device(resource).map_err(|why| no_device(&id, resource, &why))?;
            planned.device = Some(Device { id, resource: resource.to_owned() });
        }
        Ok(planned)
    }
}

fn no_device(network: &str, resource: &str, why: &str) -> NoPlan {
    let text = format!("network {network:?} needs a device of {resource:?}: {why}");
    NoPlan { refusal: Refusal::for_now(text), event: Some(REFUSED) }
}

/// Returns the plan of these networks.
pub(super) fn plan(pod: Option<&PodFacts>, networks: Vec<PlannedNetwork>) -> Plan {
    Plan { uid: pod.map(|pod| pod.uid.clone()).unwrap_or_default(), networks }
}

fn on_node(name: &str) -> PlannedNetwork {
    PlannedNetwork { name: name.to_owned(), on_node: name.to_owned(), ..PlannedNetwork::default() }
}

fn read(definition: &DefinitionFacts, id: &str) -> Result<PlannedNetwork, NoPlan> {
    let config = Some(definition.config.as_str());
    let read = Definition::of(&definition.name, config, &netwright_multi::is_called_by).map_err(
        |error| {
            let text = format!("NetworkAttachmentDefinition {id:?}: {error}");
            let refusal = Refusal::new(cni::code::INVALID_CONFIG, text);
            NoPlan { refusal, event: Some(REFUSED) }
        },
    )?;
    let name = id.to_owned();
    Ok(match read {
        Definition::Here(list) => {
            PlannedNetwork { name, list: Some(list), ..PlannedNetwork::default() }
        }
        Definition::OnNode(on_node) => {
            PlannedNetwork { name, on_node, ..PlannedNetwork::default() }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::facts::{DEFAULT_NETWORK, NETWORKS};
    use super::*;

    fn defaults() -> Defaults {
        Defaults {
            cluster_network: Some("cluster".to_owned()),
            default_networks: vec!["ops".to_owned()],
            system_namespaces: vec!["kube-system".to_owned()],
            multus_namespace: "kube-system".to_owned(),
            policy: Policy::default(),
        }
    }

    fn pod(namespace: &str, annotations: &[(&str, &str)]) -> PodFacts {
        let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let (name, uid) = ("p".to_owned(), "7".to_owned());
        PodFacts::new(namespace.to_owned(), name, uid, annotations.iter().map(own))
    }

    fn names(pod: &PodFacts, defaults: &Defaults) -> Result<Vec<String>, String> {
        let request = PlanRequest {
            sandbox: node_api::multinet::Sandbox { ifname: "eth0".into(), ..Default::default() },
            ..PlanRequest::default()
        };
        let wanted = wanted(&request, Some(pod), defaults);
        let name = |wanted: WantedNetwork| {
            let (namespace, name) = wanted.definition();
            format!("{}{namespace}/{name}", if wanted.default { "*" } else { "" })
        };
        wanted.map(|all| all.into_iter().map(name).collect()).map_err(|no| no.refusal.msg)
    }

    #[test]
    fn the_default_network_comes_first_then_those_of_all_pods_then_the_annotations() {
        let asked = pod("ns", &[(NETWORKS, "b, other/a@x0")]);
        assert_eq!(
            names(&asked, &defaults()).unwrap(),
            ["*kube-system/cluster", "kube-system/ops", "ns/b", "other/a"]
        );
        let system = pod("kube-system", &[]);
        assert_eq!(names(&system, &defaults()).unwrap(), ["*kube-system/cluster"]);
        let other = pod("ns", &[(DEFAULT_NETWORK, "mine")]);
        assert_eq!(names(&other, &defaults()).unwrap()[0], "*kube-system/mine");
    }

    #[test]
    fn the_plugins_configuration_may_forbid_more_and_not_less() {
        let asked = pod("ns", &[(NETWORKS, "other/a")]);
        let stricter = Settings { namespace_isolation: Some(true), ..Settings::default() };
        let text = names(&asked, &defaults().under(&stricter)).unwrap_err();
        assert!(text.contains("pods of namespace \"ns\" may not use"), "{text}");
        let looser = Settings { namespace_isolation: Some(false), ..Settings::default() };
        let mut strict = defaults();
        strict.policy.namespace_isolation = true;
        assert!(names(&asked, &strict.under(&looser)).is_err());
        let global = Settings { global_namespaces: Some(vec!["other".into()]), ..looser };
        assert!(names(&asked, &strict.under(&global)).is_err());
        strict.policy.global_namespaces = vec!["other".into(), "more".into()];
        assert!(names(&asked, &strict.under(&global)).is_ok());
        let fewer = Settings { global_namespaces: Some(vec!["more".into()]), ..global };
        assert!(names(&asked, &strict.under(&fewer)).is_err());
    }

    #[test]
    fn a_refusal_leaves_it_to_others_to_name_the_pod() {
        let asked = pod("ns", &[(NETWORKS, "a,,b")]);
        let text = names(&asked, &defaults()).unwrap_err();
        // The plugin and the Event say which pod it is.
        assert!(text.starts_with("annotation k8s.v1.cni.cncf.io/networks:"), "{text}");
    }

    #[test]
    fn what_a_network_comes_to() {
        let named = defaults().cluster().unwrap();
        let no_device = Some(|_: &str| Err("none".to_owned()));
        let planned = |wanted: &WantedNetwork, found: &Lookup, on_node: bool| {
            wanted.planned(found, |_| on_node, no_device).map_err(|no| (no.refusal.retry, no.event))
        };
        assert_eq!(planned(&named, &Lookup::Nothing, false).unwrap().on_node, "cluster");
        let unknown = Lookup::Unknown("the API server is gone".to_owned());
        assert_eq!(planned(&named, &unknown, true).unwrap().on_node, "cluster");
        assert_eq!(planned(&named, &unknown, false), Err((true, Some(REFUSED))));
        let definition = |config: &str, resource: Option<&str>| {
            Lookup::Definition(DefinitionFacts {
                namespace: "kube-system".to_owned(),
                name: "cluster".to_owned(),
                config: config.to_owned(),
                resource: resource.map(str::to_owned),
            })
        };
        let bridge = r#"{"cniVersion":"1.0.0","type":"bridge"}"#;
        let here = planned(&named, &definition(bridge, None), false).unwrap();
        assert_eq!(here.name, "kube-system/cluster");
        assert!(here.list.is_some() && here.default);
        assert_eq!(planned(&named, &definition("{", None), false), Err((false, Some(REFUSED))));
        let device = definition(bridge, Some("v/nic"));
        assert_eq!(planned(&named, &device, false), Err((true, Some(REFUSED))));
        let given = named.planned(&device, |_| false, Some(|_: &str| Ok("0000:01".to_owned())));
        let given = given.unwrap();
        assert_eq!(given.device.unwrap().id, "0000:01");
        let asked = pod("ns", &[(NETWORKS, "a")]);
        let all = wanted(&PlanRequest::default(), Some(&asked), &defaults()).unwrap();
        assert_eq!(planned(&all[2], &Lookup::Nothing, true), Err((false, Some(NOT_FOUND))));
        assert_eq!(plan(Some(&asked), Vec::new()).uid, "7");
    }
}
