//! Turns the daemon's list of a pod's networks into attachments that can be made.

use std::collections::BTreeSet;

use cni::json::Object;
use cni::{Args, ContainerId, IfName, NetworkList};
use cni_plugin::Call;
use cni_runtime::{Attachment, Member};
use node_api::multinet;
use node_api::multinet::PlannedNetwork;
use npwg::annotation::{self, MAX_NETWORKS};
use npwg::device;
use npwg::request::{NetworkRequest, RequestError, UnservedPolicy};

use super::config::{Config, POD_ANNOTATIONS, invalid, values, written};
use super::devices::DeviceFile;
use crate::multi::default_route::DefaultRoute;
use crate::shared::failure::Failure;
use crate::shared::outer_args::{self, Interface, OuterArgs};

/// The capability by which a plugin gets its device.
const DEVICE_ID: &str = "deviceID";

/// The checked networks of a pod.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The pod's UID in the API.
    pub(super) uid: String,
    /// The networks to attach to, in this order.
    pub(super) members: Vec<Member>,
    /// What else is known of each.
    pub(super) networks: Vec<Network>,
    /// The network that should have the default routes.
    pub(super) default_route: Option<DefaultRoute>,
}

/// Recorded about a network that its plugins need not know.
#[derive(Debug)]
pub(super) struct Network {
    /// Its name in the status.
    pub(super) name: String,
    /// Whether it is the default network.
    pub(super) default: bool,
    /// What was requested on it.
    pub(super) ask: NetworkRequest,
    /// Whether it must not have a default route.
    pub(super) without_default: bool,
    /// The file that describes its device.
    pub(super) device: Option<DeviceFile>,
}

impl Plan {
    /// Plans the default network alone.
    pub(super) fn alone(
        call: &Call<'_>,
        config: &Config,
        list: NetworkList,
    ) -> Result<Self, Failure> {
        let planned =
            PlannedNetwork { name: list.name.clone(), default: true, ..PlannedNetwork::default() };
        let mut plan = Plan::default();
        plan.add(call, config, &planned, list, call.ifname().clone())?;
        Ok(plan)
    }

    /// Checks everything first, so that no network is changed if a later one is invalid. An
    /// interface without a configured name does not get one that is `taken`.
    pub(super) fn of(
        call: &Call<'_>,
        config: &Config,
        said: &multinet::Plan,
        taken: impl Fn(&str) -> bool,
    ) -> Result<Self, Failure> {
        let (Some(first), false) = (said.networks.first(), MAX_NETWORKS < said.networks.len())
        else {
            return Err(invalid(format!("a plan of {} networks", said.networks.len())));
        };
        if !first.default || said.networks[1..].iter().any(|network| network.default) {
            return Err(invalid("a plan whose first network is not the one default network"));
        }
        let ifnames = ifnames(call, &said.networks, taken)?;
        let mut plan = Plan { uid: said.uid.clone(), ..Plan::default() };
        for (planned, ifname) in said.networks.iter().zip(ifnames) {
            let within = |error: Failure| error.context(format_args!("network {:?}", planned.name));
            let list = list(call, config, planned).map_err(within)?;
            plan.add(call, config, planned, list, ifname).map_err(within)?;
        }
        Ok(plan)
    }

    /// Adds a network, with what is requested on it.
    pub(super) fn add(
        &mut self,
        call: &Call<'_>,
        config: &Config,
        planned: &PlannedNetwork,
        list: NetworkList,
        ifname: IfName,
    ) -> Result<(), Failure> {
        let mut ask = NetworkRequest {
            runtime_config: planned.runtime_config.clone().unwrap_or_default(),
            cni_args: planned.cni_args.clone().unwrap_or_default(),
            allocated: None,
        };
        match &planned.device {
            // The pod chose it: only plugins that ask for devices get it.
            Some(device) if device.resource.is_empty() => {
                ask.runtime_config.set_value(DEVICE_ID, &device.id);
            }
            device => ask.allocated = device.as_ref().map(|device| device.id.clone()),
        }
        let refused = |error: RequestError| invalid(error.to_string()).with_details(hint(&error));
        if config.unserved == UnservedPolicy::Refuse {
            ask.refuse_unserved(&list).map_err(refused)?;
        }
        let interface = if planned.default { Interface::Runtimes } else { Interface::Further };
        // What is requested on the network wins.
        let list = OuterArgs::of(call)?.in_list(list, interface)?;
        let list = ask.apply(&list).map_err(refused)?;
        let mut attachment = attachment(call, ifname.clone(), interface, planned)?;
        let given = &mut attachment.capability_args;
        if let (true, Some(runtime)) = (planned.default, &config.runtime_config) {
            // What the runtime requests is for the default network only (NPWG standard,
            // "runtimeConfig").
            *given = values(runtime);
            // They may be long, and are kept with the attachment.
            if !list.plugins.iter().any(|one| one.capabilities.iter().any(|c| c == POD_ANNOTATIONS))
            {
                given.remove(POD_ANNOTATIONS);
            }
        }
        given.append(&mut values(&ask.runtime_config));
        let name = if planned.name.is_empty() { list.name.clone() } else { planned.name.clone() };
        let device = planned.device.as_ref().map(|found| {
            let file = DeviceFile::of(&config.device_info, found, &list.name, &attachment);
            let mut own = Object::new();
            own.set_value(DEVICE_ID, &found.id);
            own.set_value(device::CAPABILITY, &file.path.to_string_lossy());
            attachment.capability_args.append(&mut values(&own));
            file
        });
        let without_default = planned.default_route.as_ref().is_some_and(Vec::is_empty);
        if let Some(gateways) =
            planned.default_route.clone().filter(|gateways| !gateways.is_empty())
            && let Some(other) = self.default_route.replace(DefaultRoute { ifname, gateways })
        {
            return Err(invalid(format!("{} has the default route already", other.ifname)));
        }
        self.members.push(Member { list, attachment });
        self.networks.push(Network {
            name,
            default: planned.default,
            ask,
            without_default,
            device,
        });
        Ok(())
    }
}

/// Returns a network's configuration: the daemon's, or the node's.
///
/// # Errors
/// Code 7 when there is none, or an invalid one.
pub(super) fn list(
    call: &Call<'_>,
    config: &Config,
    planned: &PlannedNetwork,
) -> Result<NetworkList, Failure> {
    match (&planned.list, planned.on_node.as_str()) {
        (Some(object), _) => written(call, object),
        (None, "") if planned.default => match config.default_network()? {
            Some(list) => Ok(list),
            None => config.on_node(config.settings.cluster_network.as_deref().unwrap_or_default()),
        },
        (None, "") => Err(invalid("has no configuration")),
        (None, name) => config.on_node(name),
    }
}

fn hint(error: &RequestError) -> String {
    match error {
        RequestError::Unserved { asked, .. } => {
            format!("a plugin that can takes \"capabilities\": {{{asked:?}: true}}")
        }
        _ => String::new(),
    }
}

/// Returns the interface of each network.
fn ifnames(
    call: &Call<'_>,
    networks: &[PlannedNetwork],
    taken: impl Fn(&str) -> bool,
) -> Result<Vec<IfName>, Failure> {
    let default = call.ifname();
    let mut asked = Vec::new();
    let mut seen = BTreeSet::from([default.clone()]);
    for network in &networks[1..] {
        let ifname = network.ifname.as_deref().map(IfName::new).transpose();
        let ifname =
            ifname.map_err(|error| error.context(format_args!("network {:?}", network.name)))?;
        if let Some(ifname) = &ifname
            && !seen.insert(ifname.clone())
        {
            let text =
                format!("network {:?}: interface {ifname} is another network's", network.name);
            return Err(invalid(text));
        }
        asked.push(ifname);
    }
    let is_taken = |name: &str| name == default.as_str() || taken(name);
    let mut names = annotation::interface_names(&asked, is_taken);
    names.insert(0, default.clone());
    Ok(names)
}

/// Creates an attachment of the container, with the arguments that the runtime gave for it and
/// those of the network.
fn attachment(
    call: &Call<'_>,
    ifname: IfName,
    interface: Interface,
    planned: &PlannedNetwork,
) -> Result<Attachment, Failure> {
    let env = call.env();
    let container = ContainerId::new(&env.container_id)?;
    let args = Args::parse_lenient(&env.args);
    let own = planned.args.iter().map(|(key, value)| (key.clone(), value.clone()));
    let mut pairs = outer_args::pairs(&args, interface);
    pairs.retain(|(key, _)| !planned.args.contains_key(key));
    pairs.extend(own);
    if !planned.args.is_empty() && args.get("IgnoreUnknown").is_none() {
        // Plugins that do not know our arguments must not refuse them.
        pairs.insert(0, ("IgnoreUnknown".to_owned(), "true".to_owned()));
    }
    let attachment = Attachment::new(container, ifname, env.netns.clone());
    Ok(attachment.with_args(Args::from_pairs(pairs)))
}
