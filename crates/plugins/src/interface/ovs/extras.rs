//! What may be configured in addition to a port: shaping, tunnels, mirrors.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Deserialize;

use crate::shared::failure::Failure;

use super::config::invalid;

/// The highest VXLAN or Geneve network identifier.
const VNI_MAX: i64 = (1 << 24) - 1;

/// How many hosts a tunnel may lead to: each is a port of the bridge.
const REMOTES_MAX: usize = 1024;

/// The key `qos` as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RawQos {
    ingress_rate: i64,
    ingress_burst: i64,
    egress_rate: i64,
    egress_burst: i64,
    queues: BTreeMap<String, RawQueue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawQueue {
    min_rate: i64,
    max_rate: i64,
    burst: i64,
    priority: Option<i64>,
}

/// Shaping. Ingress and egress are seen from the switch: traffic from the container, and traffic to
/// it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Qos {
    /// Bits per second from the container; more is dropped.
    pub(super) ingress_bits: Option<i64>,
    /// Bits that may arrive at once.
    pub(super) ingress_burst_bits: i64,
    /// Bits per second to the container.
    pub(super) egress_bits: Option<i64>,
    /// `burst` of the egress in bits.
    pub(super) egress_burst_bits: i64,
    /// Queues of the egress by number, with their `Queue.other_config`.
    pub(super) queues: BTreeMap<u32, BTreeMap<String, String>>,
}

impl RawQos {
    pub(super) fn check(&self) -> Result<Qos, Failure> {
        let rates = [
            ("qos.ingressRate", self.ingress_rate),
            ("qos.ingressBurst", self.ingress_burst),
            ("qos.egressRate", self.egress_rate),
            ("qos.egressBurst", self.egress_burst),
        ];
        if let Some((key, rate)) = rates.iter().find(|(_, rate)| *rate < 0) {
            return Err(invalid(
                format!("invalid {key} {rate}"),
                "rates are bits per second, bursts are bits",
            ));
        }
        // The database counts in units of 1000.
        if self.ingress_rate != 0 && self.ingress_rate < 1000 {
            return Err(invalid(
                format!("invalid qos.ingressRate {}", self.ingress_rate),
                "the switch limits to thousands of bits per second",
            ));
        }
        let mut queues = BTreeMap::new();
        for (number, queue) in &self.queues {
            let id: u32 = number.parse().map_err(|_| {
                invalid(
                    format!("invalid queue {number:?}"),
                    "a key of \"qos.queues\" is a queue's number",
                )
            })?;
            let numbers = [
                ("min-rate", queue.min_rate),
                ("max-rate", queue.max_rate),
                ("burst", queue.burst),
                ("priority", queue.priority.unwrap_or_default()),
            ];
            if let Some((key, value)) = numbers.iter().find(|(_, value)| *value < 0) {
                return Err(invalid(
                    format!("invalid {key} {value} of queue {id}"),
                    "it is not negative",
                ));
            }
            let given = |(key, value): &(&str, i64)| {
                *value != 0 || (*key == "priority" && queue.priority.is_some())
            };
            let config = numbers.iter().filter(|pair| given(pair));
            queues.insert(
                id,
                config.map(|(key, value)| ((*key).to_owned(), value.to_string())).collect(),
            );
        }
        Ok(Qos {
            ingress_bits: (self.ingress_rate != 0).then_some(self.ingress_rate),
            ingress_burst_bits: self.ingress_burst,
            egress_bits: (self.egress_rate != 0).then_some(self.egress_rate),
            egress_burst_bits: self.egress_burst,
            queues,
        })
    }
}

impl Qos {
    /// Returns whether the port needs a row of the table `QoS`.
    pub(super) fn shapes_egress(&self) -> bool {
        self.egress_bits.is_some() || !self.queues.is_empty()
    }
}

/// The key `tunnel` as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawTunnel {
    r#type: String,
    vni: Option<i64>,
    remotes: Vec<String>,
    local: String,
    port: Option<u16>,
}

/// Tunnels to other hosts that have the same network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tunnel {
    /// `vxlan` or `geneve`.
    pub(super) kind: &'static str,
    /// The network's number.
    pub(super) vni: u32,
    /// The other hosts.
    pub(super) remotes: Vec<IpAddr>,
    /// This host's address.
    pub(super) local: Option<IpAddr>,
    /// The UDP port.
    pub(super) port: Option<u16>,
}

impl RawTunnel {
    /// Creates a VXLAN tunnel from the flat keys.
    pub(super) fn flat(vni: Option<i64>, remotes: Vec<String>) -> Self {
        RawTunnel { vni, remotes, ..RawTunnel::default() }
    }

    pub(super) fn check(&self) -> Result<Tunnel, Failure> {
        let kind = match self.r#type.as_str() {
            "" | "vxlan" => "vxlan",
            "geneve" => "geneve",
            other => {
                return Err(invalid(
                    format!("unknown tunnel type {other:?}"),
                    "key \"tunnel.type\" is vxlan or geneve",
                ));
            }
        };
        let vni = self.vni.unwrap_or(-1);
        let vni = (0..=VNI_MAX).contains(&vni).then(|| u32::try_from(vni).ok()).flatten();
        let Some(vni) = vni else {
            let vni = self.vni.map_or("none".to_owned(), |vni| vni.to_string());
            return Err(invalid(
                format!("invalid tunnel vni {vni}"),
                format!("key \"tunnel.vni\" is a number from 0 to {VNI_MAX}"),
            ));
        };
        let address = |key: &str, text: &String| {
            text.parse::<IpAddr>().map_err(|_| {
                invalid(format!("invalid {key} {text:?}"), "write an IP address of the other host")
            })
        };
        let local = match &self.local {
            none if none.is_empty() => None,
            text => Some(address("tunnel.local", text)?),
        };
        let remotes = self.remotes.iter().map(|text| address("tunnel.remotes", text));
        let mut remotes = remotes.collect::<Result<Vec<_>, _>>()?;
        remotes.sort_unstable();
        remotes.dedup();
        // This lets every host use the same list of all hosts.
        remotes.retain(|remote| Some(*remote) != local);
        if remotes.is_empty() || REMOTES_MAX < remotes.len() {
            return Err(invalid(
                format!("tunnel.remotes has {} hosts", remotes.len()),
                format!("a tunnel leads to at least one other host, and to {REMOTES_MAX} at most"),
            ));
        }
        Ok(Tunnel { kind, vni, remotes, local, port: self.port })
    }
}

/// An entry of the key `mirrors` as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawMirror {
    pub(super) name: String,
    pub(super) ingress: bool,
    pub(super) egress: bool,
    pub(super) output: bool,
}

/// How a mirror uses the port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mirror {
    /// Its name.
    pub(super) name: String,
    /// Whether traffic that the container sends is mirrored.
    pub(super) ingress: bool,
    /// Whether traffic that the container receives is mirrored.
    pub(super) egress: bool,
    /// Whether mirrored traffic goes to this port.
    pub(super) output: bool,
}

impl RawMirror {
    pub(super) fn check(&self) -> Result<Mirror, Failure> {
        if self.name.is_empty() {
            return Err(invalid("a mirror has no name", "an entry of \"mirrors\" has a \"name\""));
        }
        if self.output == (self.ingress || self.egress) {
            return Err(invalid(
                format!("mirror {:?} neither takes nor gives, or does both", self.name),
                "an entry of \"mirrors\" has \"ingress\" or \"egress\", or both, or else \"output\"",
            ));
        }
        Ok(Mirror {
            name: self.name.clone(),
            ingress: self.ingress,
            egress: self.egress,
            output: self.output,
        })
    }
}
