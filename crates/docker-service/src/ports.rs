//! Publishes ports: runs the chain's plugins that have the capability when Docker says that the
//! endpoint is on the container's gateway network, and undoes that when it no longer is.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::time::Instant;

use cni::{ContainerId, Error, IfName, NetworkList, code};
use cni_plugin::codes;
use cni_runtime::Attachment;
use cnm::network::{EndpointName, ExternalConnectivity};
use cnm::options::{self, PortBinding};
use firewall::taken::{self, Families, TakenPort};
use kernel::living::Census;
use serde_json::value::RawValue;

use super::driver::Driver;
use super::handover::Holder;
use super::journal::{Endpoint, Network, PORT_MAPPINGS, Phase, PortMapping, short};
use super::sandbox::Engine;

/// The ID to hold while ports are chosen; no endpoint has this ID.
const CHOOSING: &str = "ports";

/// How many ports of the host are tried where any may be used.
const TRIES: usize = 64;

impl Driver {
    pub(super) fn publish(
        &self,
        asked: &ExternalConnectivity,
        engine: Option<Engine>,
    ) -> Result<(), Error> {
        let _held = self.hold(&asked.endpoint_id)?;
        let bindings = options::port_map(&asked.options).map_err(|error| {
            Error::new(code::DECODE_FAILURE, format!("read the ports to publish: {error}"))
        })?;
        self.note_way_out(&asked.endpoint_id)?;
        if bindings.is_empty() {
            return Ok(());
        }
        let network = self.journal.known_network(&asked.network_id)?;
        let mut endpoint = self.known_endpoint(&asked.endpoint_id)?;
        if endpoint.phase != Phase::Joined {
            return Err(Error::new(
                codes::CONFLICT,
                format!("endpoint {} publishes no ports before it has joined", short(&endpoint.id)),
            ));
        }
        let list = port_plugins(&network, &endpoint)?;
        if list.plugins.is_empty() {
            return Err(Error::new(
                code::INVALID_CONFIG,
                format!("network {:?} cannot publish ports", list.name),
            )
            .with_details("none of its plugins has the capability portMappings: add {\"type\": \"portmap\", \"capabilities\": {\"portMappings\": true}} to the list"));
        }
        if let Some(engine) = engine {
            self.evict_holders(&bindings, &endpoint, engine)?;
        }
        self.reserve_ports(&bindings, &mut endpoint, &network)?;
        let attachment = self.describe_ports(&endpoint, &network)?;
        let deadline = Instant::now() + self.timeout;
        let added = self.port_runtime.add_list(&list, &attachment, Some(deadline));
        if let Err(error) = added {
            endpoint.ports.clear();
            self.record(&mut endpoint, Phase::Joined)?;
            return Err(error.to_cni());
        }
        Ok(())
    }

    /// Records that the endpoint is on the container's gateway network, for the repair service.
    fn note_way_out(&self, id: &str) -> Result<(), Error> {
        match self.journal.endpoint(id)? {
            Some(endpoint) if !endpoint.leads_out => {
                self.journal.note_endpoint(&Endpoint { leads_out: true, ..endpoint })
            }
            _ => Ok(()),
        }
    }

    /// Chooses ports and records them for this endpoint, one endpoint at a time.
    fn reserve_ports(
        &self,
        bindings: &[PortBinding],
        endpoint: &mut Endpoint,
        network: &Network,
    ) -> Result<(), Error> {
        let _ports = self.hold(CHOOSING)?;
        let ports = self.choose_ports(bindings, endpoint)?;
        if endpoint.ports == ports {
            // A repeated call: the answer was lost. ADD refuses what exists, so remove it first.
            super::orphans::end(&endpoint.id);
            self.withdraw_ports(endpoint, network)?;
        }
        endpoint.ports = ports;
        self.record(endpoint, Phase::Joined)
    }

    /// Removes endpoints that a killed engine has forgotten and that hold a port which is to be
    /// published.
    fn evict_holders(
        &self,
        bindings: &[PortBinding],
        endpoint: &Endpoint,
        engine: Engine,
    ) -> Result<(), Error> {
        let wanted = |held: &PortMapping| {
            bindings.iter().any(|binding| candidates(binding).any(|port| port == held.host_port))
        };
        let census = Census::new();
        for other in self.journal.endpoints() {
            if other.id == endpoint.id
                || !other.ports.iter().any(wanted)
                || !engine.has_lost(&other, &census)
            {
                continue;
            }
            let why = "whose container is gone and whose port another container publishes";
            self.remove_forgotten(&other, why)?;
        }
        Ok(())
    }

    pub(super) fn withdraw(&self, asked: &EndpointName) -> Result<(), Error> {
        let _held = self.hold(&asked.endpoint_id)?;
        let Some(mut endpoint) = self.journal.endpoint(&asked.endpoint_id)? else { return Ok(()) };
        let Some(network) = self.journal.network(&endpoint.network)? else { return Ok(()) };
        self.withdraw_ports(&endpoint, &network)?;
        endpoint.ports.clear();
        endpoint.leads_out = false;
        let phase = endpoint.phase;
        self.record(&mut endpoint, phase)
    }

    pub(super) fn withdraw_ports(
        &self,
        endpoint: &Endpoint,
        network: &Network,
    ) -> Result<(), Error> {
        if endpoint.ports.is_empty() {
            return Ok(());
        }
        let list = port_plugins(network, endpoint)?;
        if list.plugins.is_empty() {
            return Ok(());
        }
        let mut attachment = self.describe_ports(endpoint, network)?;
        if Holder::of(self.run_dir(), endpoint).open()?.is_none() {
            attachment.netns = String::new();
        }
        let deadline = Instant::now() + self.timeout;
        let deleted = self.port_runtime.del_list(&list, &attachment, Some(deadline));
        deleted.map(drop).map_err(|error| error.to_cni())
    }

    fn describe_ports(&self, endpoint: &Endpoint, network: &Network) -> Result<Attachment, Error> {
        let netns = Holder::of(self.run_dir(), endpoint).path().display().to_string();
        let container_id = ContainerId::new(&endpoint.id)?;
        let attachment = Attachment::new(container_id, IfName::new(&network.ifname)?, netns);
        attachment.with_capability(PORT_MAPPINGS, &endpoint.ports)
    }

    /// Chooses ports of the host where the user left the choice open.
    fn choose_ports(
        &self,
        bindings: &[PortBinding],
        endpoint: &Endpoint,
    ) -> Result<Vec<PortMapping>, Error> {
        // A repeated call keeps the earlier choice.
        if endpoint.ports.len() == bindings.len() {
            let same = endpoint.ports.iter().zip(bindings).all(|(port, binding)| {
                port.container_port == binding.port
                    && options::protocol_name(binding.proto) == Some(port.protocol.as_str())
                    && port.host_ip == binding.host_ip
                    && (binding.host_port == 0
                        || candidates(binding).any(|one| one == port.host_port))
            });
            if same {
                return Ok(endpoint.ports.clone());
            }
        }
        let mut chosen: Vec<PortMapping> = Vec::new();
        let others: Vec<PortMapping> = self
            .journal
            .endpoints()
            .into_iter()
            .filter(|other| other.id != endpoint.id)
            .flat_map(|other| other.ports)
            .collect();
        for binding in bindings {
            let protocol = options::protocol_name(binding.proto).ok_or_else(|| {
                Error::new(
                    code::INVALID_CONFIG,
                    format!(
                        "port {}: protocol {} cannot be published",
                        binding.port, binding.proto
                    ),
                )
            })?;
            let mapping = |host_port| PortMapping {
                host_port,
                container_port: binding.port,
                protocol: protocol.to_owned(),
                host_ip: binding.host_ip.clone(),
            };
            let free = |port: &u16| {
                let one = mapping(*port);
                !chosen.iter().chain(&others).any(|other| other.meets(&one))
            };
            let fixed = binding.host_port != 0 && candidates(binding).count() == 1;
            let port = if fixed {
                // Only the plugin can say, and explain, that another container has the port. It
                // never refuses the port of a program.
                refuse_a_programs(&mapping(binding.host_port))?;
                Some(binding.host_port)
            } else if binding.host_port == 0 {
                (0..TRIES).filter_map(|_| any_port(binding, protocol)).find(free)
            } else {
                let is_free = |port: &u16| programs(&mapping(*port)).is_none();
                candidates(binding).filter(is_free).find(free)
            };
            let port = port.ok_or_else(|| {
                Error::new(
                    codes::HOST_PORT,
                    format!("no free port of the host for {}/{protocol}", binding.port),
                )
            })?;
            chosen.push(mapping(port));
        }
        Ok(chosen)
    }
}

/// Returns the part of the chain that publishes ports, with the result of the whole chain.
fn port_plugins(network: &Network, endpoint: &Endpoint) -> Result<NetworkList, Error> {
    let mut list = network.list()?;
    list.plugins.retain(|plugin| plugin.capabilities.iter().any(|has| has == PORT_MAPPINGS));
    if let Some(result) = &endpoint.result {
        let raw = RawValue::from_string(result.clone())
            .map_err(|error| Error::new(codes::STATE, format!("the recorded result: {error}")))?;
        if let Some(first) = list.plugins.first_mut() {
            first.object.set("prevResult", raw);
        }
    }
    Ok(list)
}

impl PortMapping {
    /// Says whether the two cannot be published at once.
    fn meets(&self, other: &Self) -> bool {
        let any = |text: &str| matches!(text, "" | "0.0.0.0" | "::");
        self.host_port == other.host_port
            && self.protocol == other.protocol
            && (any(&self.host_ip) || any(&other.host_ip) || self.host_ip == other.host_ip)
    }
}

/// Shows it as `docker ps` does.
impl fmt::Display for PortMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = if self.host_ip.is_empty() { "0.0.0.0" } else { &self.host_ip };
        let (port, to) = (self.host_port, self.container_port);
        match host.contains(':') {
            true => write!(f, "[{host}]:{port}->{to}/{}", self.protocol),
            false => write!(f, "{host}:{port}->{to}/{}", self.protocol),
        }
    }
}

/// Returns the host ports to try.
fn candidates(binding: &PortBinding) -> impl Iterator<Item = u16> {
    binding.host_port..=binding.host_port_end.max(binding.host_port)
}

fn host_address(binding: &PortBinding) -> IpAddr {
    binding.host_ip.parse().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
}

/// Returns a port that the kernel reports as free.
fn any_port(binding: &PortBinding, protocol: &str) -> Option<u16> {
    let at = SocketAddr::new(host_address(binding), 0);
    let bound = match protocol {
        "udp" => UdpSocket::bind(at).and_then(|socket| socket.local_addr()),
        _ => TcpListener::bind(at).and_then(|socket| socket.local_addr()),
    };
    bound.ok().map(|at| at.port())
}

/// Finds a program of the host that has a port, or reports that the host does not have the address.
fn programs(port: &PortMapping) -> Option<TakenPort> {
    let forward = taken::forward(port.host_port, &port.protocol, &port.host_ip);
    taken::find(forward.as_slice(), Families::ALL).pop()
}

/// Refuses a network list with a fixed port that a program of the host has: that port is published
/// with the endpoint.
///
/// # Errors
/// Code 103 with the port and the program that has it.
pub(super) fn refuse_lists_own(list: &NetworkList) -> Result<(), Error> {
    match taken::find(&taken::of_list(list, None), Families::ALL).first() {
        Some(taken) => Err(Error::new(codes::HOST_PORT, taken.to_string())),
        None => Ok(()),
    }
}

fn refuse_a_programs(port: &PortMapping) -> Result<(), Error> {
    match programs(port) {
        Some(taken) => Err(Error::new(codes::HOST_PORT, taken.to_string())),
        None => Ok(()),
    }
}
