//! An endpoint's life: plugins make an interface in a namespace of ours, Docker takes it from
//! there, and gives it back.
//!
//! Docker before 28 wants the interface before the container's namespace exists; Docker 28 and
//! later want it afterwards. So plugins never see the container's namespace: CreateEndpoint runs
//! ADD in a namespace that holds the interface, Join moves it to the host and tells Docker its name
//! there, and DeleteEndpoint brings it back to where ADD made it and runs DEL there.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Instant;

use cni::json::Object;
use cni::{Args, AttachmentKey, ContainerId, Error, IfName, NetworkList, NetworkName, code};
use cni_plugin::codes;
use cni_runtime::Attachment;
use cnm::network::{
    CreateEndpoint, CreatedEndpoint, EndpointInterface, EndpointName, InterfaceName, Join,
    JoinAnswer, OperInfo, StaticRoute,
};
use cnm::options;
use firewall::pods::PodsTable;
use ipnet::IpNet;
use kernel::netns::Netns;
use serde_json::json;
use service_kit::log;

use super::driver::{Driver, texts};
use super::handover::{self, Holder};
use super::journal::{Endpoint, Layout, Network, Phase, short};
use super::sandbox::Engine;
use super::{orphans, policy_routing, ports};

/// Capabilities, by the names of the CNI conventions.
const IPS: &str = "ips";
const MAC: &str = "mac";
/// The prefix of `--driver-opt` names that go to plugins: `--driver-opt cap.bandwidth={…}`.
const CAPABILITY_PREFIX: &str = "cap.";
/// The prefix of those that are labels: `--driver-opt label.app=web`.
const LABEL_PREFIX: &str = "label.";
/// The `CNI_ARGS` by which plugins and their operators recognise us.
const ARG_NETWORK: &str = "CNM_NETWORK";
const ARG_ENDPOINT: &str = "CNM_ENDPOINT";

impl Driver {
    pub(super) fn create_endpoint(&self, asked: CreateEndpoint) -> Result<CreatedEndpoint, Error> {
        let _held = self.hold(&asked.endpoint_id)?;
        let network = self.journal.known_network(&asked.network_id)?;
        if let Some(there) = self.journal.endpoint(&asked.endpoint_id)? {
            if there.asked == asked && matches!(there.phase, Phase::Added | Phase::Joined) {
                // A repeated call: the answer was lost.
                return Ok(there.answer);
            }
            // The previous driver ended during it.
            orphans::end(&there.id);
            self.remove_endpoint(&there, Some(&network))?;
        }
        let list = network.list_without_ports()?;
        ports::refuse_lists_own(&list)?;
        self.evict(&asked)?;
        let mut endpoint = Endpoint::new(asked);
        let attachment = describe(&list, &network, &endpoint)?;
        let list = labelled(list, &endpoint)?;
        self.record(&mut endpoint, Phase::Adding)?;
        match self.make(&list, &network, &mut endpoint, attachment) {
            Ok(()) => Ok(endpoint.answer),
            Err(error) => {
                // If something remains, the record stays and a later collection removes it.
                if let Err(left) = self.remove_endpoint(&endpoint, Some(&network)) {
                    tracing::warn!(error = %left, "a part of a failed endpoint could not be removed");
                }
                Err(error)
            }
        }
    }

    /// Runs ADD, and reads what it made.
    fn make(
        &self,
        list: &NetworkList,
        network: &Network,
        endpoint: &mut Endpoint,
        attachment: Attachment,
    ) -> Result<(), Error> {
        let holder = Holder::of(self.run_dir(), endpoint);
        let netns = holder.create()?;
        let attachment = Attachment { netns: holder.path().display().to_string(), ..attachment };
        let deadline = Instant::now() + self.timeout;
        let added = self.runtime.add_list(list, &attachment, Some(deadline));
        let added = added.map_err(|error| error.to_cni())?;
        refuse_judged_inside(&netns)?;
        endpoint.layout = handover::look(&netns, &network.ifname)?;
        let wanted = endpoint.asked.interface.clone().unwrap_or_default();
        endpoint.answer = answer(&wanted, &endpoint.layout, &list.name)?;
        endpoint.result = Some(added.document.get().to_owned());
        self.record(endpoint, Phase::Added)
    }

    /// Removes the endpoint that has an address of this one. Docker gives no address of a network
    /// twice: such an endpoint is left over from a container that is gone, and Docker did not
    /// report that.
    fn evict(&self, asked: &CreateEndpoint) -> Result<(), Error> {
        let wanted = addresses_of(asked);
        if wanted.is_empty() {
            return Ok(());
        }
        for other in self.endpoints_of(&asked.network_id) {
            let has = addresses_of(&other.asked);
            if other.id == asked.endpoint_id || !has.iter().any(|one| wanted.contains(one)) {
                continue;
            }
            self.remove_forgotten(&other, "whose address Docker gave to another")?;
        }
        Ok(())
    }

    /// Removes an endpoint that Docker has forgotten, unless it has gone meanwhile.
    pub(super) fn remove_forgotten(&self, other: &Endpoint, why: &str) -> Result<(), Error> {
        let _held = self.hold(&other.id)?;
        if self.journal.endpoint(&other.id)?.is_none() {
            return Ok(());
        }
        let _about = log::about(other.subject());
        tracing::warn!("removing an endpoint {why}");
        let network = self.journal.network(&other.network)?;
        self.remove_endpoint(other, network.as_ref())
    }

    pub(super) fn join(&self, asked: &Join, engine: Option<Engine>) -> Result<JoinAnswer, Error> {
        let _held = self.hold(&asked.endpoint_id)?;
        let network = self.journal.known_network(&asked.network_id)?;
        let mut endpoint = self.known_endpoint(&asked.endpoint_id)?;
        let sandbox = Some(PathBuf::from(&asked.sandbox_key)).filter(|path| path.is_absolute());
        match endpoint.phase {
            Phase::Added => {}
            // A repeated call: the answer was lost.
            Phase::Joined if endpoint.sandbox == sandbox => {}
            phase => {
                return Err(Error::new(
                    codes::CONFLICT,
                    format!("endpoint {} cannot join: it is {phase:?}", short(&endpoint.id)),
                ));
            }
        }
        let holder = Holder::of(self.run_dir(), &endpoint);
        let joined = joined(&network, &endpoint);
        if endpoint.phase == Phase::Added {
            endpoint.sandbox = sandbox;
            endpoint.engine = engine.map(|engine| engine.to_string());
            endpoint.joined = Some(joined.clone());
            self.record(&mut endpoint, Phase::Joined)?;
        }
        handover::hand_over(&holder, &network.ifname, &endpoint.src_name)?;
        Ok(joined)
    }

    pub(super) fn leave(&self, asked: &EndpointName) -> Result<(), Error> {
        let _held = self.hold(&asked.endpoint_id)?;
        // Docker moves the link back only after Leave: DeleteEndpoint does the rest.
        match self.journal.endpoint(&asked.endpoint_id)? {
            Some(mut endpoint) if endpoint.phase == Phase::Joined => {
                self.record(&mut endpoint, Phase::Left)?;
                let sandbox =
                    endpoint.sandbox.as_deref().map(handover::open_if_there).transpose()?;
                match sandbox.flatten() {
                    Some(sandbox) => policy_routing::remove(&sandbox, &endpoint.layout.tables),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    pub(super) fn delete_endpoint(&self, asked: &EndpointName) -> Result<(), Error> {
        let _held = self.hold(&asked.endpoint_id)?;
        let endpoint = match self.journal.endpoint(&asked.endpoint_id) {
            Ok(Some(endpoint)) => endpoint,
            Ok(None) => return Ok(()),
            Err(lost) => return self.remove_lost_endpoint(&asked.endpoint_id, &lost),
        };
        if endpoint.phase == Phase::Adding {
            orphans::end(&endpoint.id);
        }
        let network = self.journal.network(&endpoint.network).ok().flatten();
        self.remove_endpoint(&endpoint, network.as_ref())
    }

    /// Removes everything of an endpoint. The caller holds it.
    pub(super) fn remove_endpoint(
        &self,
        endpoint: &Endpoint,
        network: Option<&Network>,
    ) -> Result<(), Error> {
        let _about = log::about(endpoint.subject());
        let removed = match network {
            Some(network) => self.undo(endpoint, network),
            // Its network's record is damaged or gone: the runtime's cache says what was done.
            None => self.undo_from_cache(endpoint),
        };
        if let Err(error) = removed {
            let mut endpoint = endpoint.clone();
            self.record(&mut endpoint, Phase::Deleting)?;
            return Err(error);
        }
        Holder::of(self.run_dir(), endpoint).remove()?;
        self.journal.remove_endpoint(&endpoint.id)
    }

    fn undo(&self, endpoint: &Endpoint, network: &Network) -> Result<(), Error> {
        let list = network.list_without_ports()?;
        let holder = Holder::of(self.run_dir(), endpoint);
        let mut attachment = describe(&list, network, endpoint)?;
        let key = self.runtime.key(&list, &attachment)?;
        let withdrawn = self.withdraw_ports(endpoint, network);
        let back = handover::reclaim_link(&holder, &network.ifname, endpoint, &alias(&key));
        if let Err(error) = back {
            tracing::warn!(%error, "an interface was not moved back");
        }
        if holder.open()?.is_some() {
            attachment.netns = holder.path().display().to_string();
        }
        let deadline = Instant::now() + self.timeout;
        let deleted = self.runtime.del_list(&list, &attachment, Some(deadline));
        deleted.map_err(|error| error.to_cni())?;
        withdrawn
    }

    pub(super) fn known_endpoint(&self, id: &str) -> Result<Endpoint, Error> {
        self.journal.endpoint(id)?.ok_or_else(|| {
            Error::new(
                code::INVALID_CONFIG,
                format!("endpoint {} is not known to netwright", short(id)),
            )
            .with_details("it was never made, or was removed: restart the container")
        })
    }

    /// Returns the alias of the endpoint's link.
    pub(super) fn alias_of(&self, endpoint: &Endpoint) -> Result<String, Error> {
        let network = self.journal.known_network(&endpoint.network)?;
        let key = AttachmentKey {
            network: NetworkName::new(&network.list()?.name)?,
            container_id: ContainerId::new(&endpoint.id)?,
            ifname: IfName::new(&network.ifname)?,
        };
        Ok(alias(&key))
    }

    pub(super) fn oper_info(&self, asked: &EndpointName) -> Result<OperInfo, Error> {
        // Docker calls this after DeleteEndpoint too.
        let Some(endpoint) = self.journal.endpoint(&asked.endpoint_id)? else {
            return Ok(OperInfo::default());
        };
        let network = self.journal.network(&endpoint.network)?;
        let name = network.and_then(|network| network.list().ok()).map(|list| list.name);
        let addresses: Vec<String> =
            endpoint.layout.addresses.iter().map(ToString::to_string).collect();
        let ports: Vec<String> = endpoint.ports.iter().map(ToString::to_string).collect();
        let mut value = texts([
            ("netwright.network", name.unwrap_or_default()),
            ("netwright.container_id", endpoint.id.clone()),
            ("netwright.addresses", addresses.join(" ")),
            ("netwright.ports", ports.join(" ")),
        ]);
        value.retain(|_, text| !text.is_empty());
        Ok(OperInfo { value })
    }
}

/// Refuses a network that network policy judges in the namespace in which it was made: Docker takes
/// the link away from there, and what judges it would stay behind.
fn refuse_judged_inside(netns: &Netns) -> Result<(), Error> {
    // A kernel without nftables has no such table.
    let table = PodsTable::open_inside(netns).and_then(|mut table| table.exists());
    if !table.unwrap_or_default() {
        return Ok(());
    }
    let text = "network policy judges this network in the container's namespace, from which Docker \
                takes the link away";
    Err(Error::new(code::INVALID_CONFIG, text)
        .with_details("take the plugin policy out of the list, or attach by ptp or bridge"))
}

/// Returns the alias of an attachment's links.
pub(super) fn alias(key: &AttachmentKey) -> String {
    plugins::shared::owner::alias(key)
}

/// Describes the attachment to plugins, without the namespace.
fn describe(
    list: &NetworkList,
    network: &Network,
    endpoint: &Endpoint,
) -> Result<Attachment, Error> {
    let container_id = ContainerId::new(&endpoint.id)?;
    let mut attachment = Attachment::new(container_id, IfName::new(&network.ifname)?, "");
    let has = |name: &str| {
        list.plugins.iter().any(|plugin| plugin.capabilities.iter().any(|has| has == name))
    };
    let wanted = endpoint.asked.interface.clone().unwrap_or_default();
    let mut args = vec![
        ("IgnoreUnknown".to_owned(), "1".to_owned()),
        (ARG_NETWORK.to_owned(), endpoint.network.clone()),
        (ARG_ENDPOINT.to_owned(), endpoint.id.clone()),
    ];
    let ips: Vec<String> =
        [wanted.address, wanted.address_ipv6].into_iter().filter(|text| !text.is_empty()).collect();
    if !ips.is_empty() {
        if has(IPS) {
            attachment = attachment.with_capability(IPS, &ips)?;
        } else {
            args.push(("IP".to_owned(), ips.join(",")));
        }
    }
    if !wanted.mac_address.is_empty() {
        if has(MAC) {
            attachment = attachment.with_capability(MAC, &wanted.mac_address)?;
        } else {
            args.push(("MAC".to_owned(), wanted.mac_address));
        }
    }
    attachment.args = Args::from_pairs(args);
    for (key, value) in endpoint.asked.options.iter() {
        let is_label = key.strip_prefix(LABEL_PREFIX).is_some_and(|name| !name.is_empty());
        if is_label || key.starts_with(options::DOCKER_PREFIX) {
            continue;
        }
        let text: String = serde_json::from_str(value.get()).unwrap_or_default();
        // `docker run --network name=…,driver-opt=…` writes keys in lower case.
        let name = key.strip_prefix(CAPABILITY_PREFIX).and_then(|name| {
            let mut all = list.plugins.iter().flat_map(|plugin| &plugin.capabilities);
            all.find(|has| has.eq_ignore_ascii_case(name))
        });
        let Some(name) = name else {
            return Err(Error::new(
                code::INVALID_CONFIG,
                format!("unknown option {key:?} for network {:?}", list.name),
            )
            .with_details("--driver-opt takes label.KEY=VALUE, and cap.NAME=JSON, NAME being a capability that a plugin of the network has"));
        };
        let raw = serde_json::from_str(&text).map_err(|error| {
            let error = cni::json::explain(text.as_bytes(), &error);
            Error::new(code::INVALID_CONFIG, format!("option {key:?} is not JSON: {error}"))
        })?;
        if list.is_unchanged_by(&text) {
            let says = format!("option {key:?}: {} changes nothing", text.trim());
            return Err(Error::new(code::INVALID_CONFIG, says)
                .with_details("give it a value, or leave it out"));
        }
        attachment.capability_args.insert(name.clone(), raw);
    }
    Ok(attachment)
}

/// Returns the list with the endpoint's labels in `args.cni` of every plugin (CNI conventions,
/// "labels").
fn labelled(list: NetworkList, endpoint: &Endpoint) -> Result<NetworkList, Error> {
    let mut labels = Vec::new();
    for (key, value) in endpoint.asked.options.iter() {
        if let Some(name) = key.strip_prefix(LABEL_PREFIX) {
            let text: String = serde_json::from_str(value.get()).unwrap_or_default();
            labels.push(json!({ "key": name, "value": text }));
        }
    }
    if labels.is_empty() {
        return Ok(list);
    }
    let mut args = Object::new();
    args.set_value("labels", &labels);
    list.with_cni_args(&args)
}

/// Returns the addresses that Docker chose.
fn addresses_of(asked: &CreateEndpoint) -> Vec<IpAddr> {
    let Some(interface) = &asked.interface else { return Vec::new() };
    let texts = [&interface.address, &interface.address_ipv6];
    texts.into_iter().filter_map(|text| Some(text.parse::<IpNet>().ok()?.addr())).collect()
}

/// Fills in what Docker left open; what Docker chose must have been applied.
fn answer(
    wanted: &EndpointInterface,
    layout: &Layout,
    list: &str,
) -> Result<CreatedEndpoint, Error> {
    let mut interface = EndpointInterface::default();
    let fill = |wanted: &str, v4: bool| -> Result<String, Error> {
        let mut of_family = layout.addresses.iter().filter(|ip| ip.addr().is_ipv4() == v4);
        let Ok(wanted) = wanted.parse::<IpNet>() else {
            return Ok(of_family.next().map(ToString::to_string).unwrap_or_default());
        };
        if of_family.any(|ip| ip.addr() == wanted.addr()) {
            return Ok(String::new());
        }
        Err(Error::new(
            codes::ADDRESS,
            format!("network list {list:?} did not give the address {}", wanted.addr()),
        )
        .with_details(
            "its IPAM plugin does not honour requested addresses: create the network with --ipam-driver null",
        ))
    };
    interface.address = fill(&wanted.address, true)?;
    interface.address_ipv6 = fill(&wanted.address_ipv6, false)?;
    if wanted.mac_address.is_empty() {
        interface.mac_address.clone_from(&layout.mac);
    } else if !wanted.mac_address.eq_ignore_ascii_case(&layout.mac) {
        return Err(Error::new(
            codes::CONFLICT,
            format!(
                "network list {list:?} did not give the hardware address {}",
                wanted.mac_address
            ),
        )
        .with_details("none of its plugins honours a requested hardware address"));
    }
    Ok(CreatedEndpoint { interface: Some(interface) })
}

/// Returns what Docker is to do with the link.
fn joined(network: &Network, endpoint: &Endpoint) -> JoinAnswer {
    let layout = &endpoint.layout;
    let gateway = |v4: bool| {
        let of_family = |route: &&super::journal::LayoutRoute| {
            route.destination.prefix_len() == 0 && route.destination.addr().is_ipv4() == v4
        };
        let found = layout.routes.iter().filter(of_family).find_map(|route| route.gateway);
        found.filter(|_| !network.internal).map(|gateway| gateway.to_string()).unwrap_or_default()
    };
    let (gateway, gateway_ipv6) = (gateway(true), gateway(false));
    let static_routes: Vec<StaticRoute> =
        layout.routes.iter().filter_map(|route| static_route(network, layout, route)).collect();
    let leads_out = static_routes.iter().any(|route| route.destination.ends_with("/0"));
    JoinAnswer {
        interface_name: Some(InterfaceName {
            src_name: endpoint.src_name.clone(),
            dst_prefix: network.prefix.clone(),
        }),
        disable_gateway_service: gateway.is_empty() && gateway_ipv6.is_empty() && !leads_out,
        gateway,
        gateway_ipv6,
        static_routes,
    }
}

/// Returns a route for Docker to make; `None` for those it makes anyway, and for those that would
/// collide with an existing one.
fn static_route(
    network: &Network,
    layout: &Layout,
    route: &super::journal::LayoutRoute,
) -> Option<StaticRoute> {
    let default = route.destination.prefix_len() == 0;
    let by_address = layout.addresses.iter().any(|ip| ip.trunc() == route.destination.trunc());
    if route.by_kernel || by_address || (default && (network.internal || route.gateway.is_some())) {
        return None;
    }
    Some(StaticRoute {
        destination: route.destination.to_string(),
        route_type: match route.gateway {
            Some(_) => StaticRoute::NEXT_HOP,
            None => StaticRoute::CONNECTED,
        },
        next_hop: route.gateway.map(|gateway| gateway.to_string()).unwrap_or_default(),
    })
}
