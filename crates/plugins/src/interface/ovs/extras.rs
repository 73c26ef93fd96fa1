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

/// The lowest rate and burst of `qos`: the database counts policing in thousands of bits.
const RATE_MIN: i64 = 1000;

/// The highest rate of `qos`: Open vSwitch before 3.2 tells the kernel bytes per second in 32 bits,
/// and a higher one wraps around.
const RATE_MAX: i64 = 34_359_738_360;

/// The lowest `maxRate` of a queue: `linux-htb` raises a lower one (Open vSwitch
/// lib/netdev-linux.c `htb_parse_class_details__`).
const QUEUE_RATE_MIN: i64 = 12_000;

/// The highest number of a queue (`HTB_N_QUEUES`): `linux-htb` makes none for a higher one.
const QUEUE_MAX: u32 = 0xf000 - 1;

/// The key `qos` as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RawQos {
    ingress_rate: Option<i64>,
    ingress_burst: Option<i64>,
    egress_rate: Option<i64>,
    egress_burst: Option<i64>,
    queues: BTreeMap<String, RawQueue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawQueue {
    min_rate: i64,
    max_rate: Option<i64>,
    burst: i64,
    priority: Option<i64>,
}

/// Shaping. Ingress and egress are seen from the switch: traffic from the container, and traffic to
/// it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Qos {
    /// Bits per second from the container; more is dropped.
    pub(super) ingress_bits: Option<i64>,
    /// Bits that may arrive at once; the switch chooses if there is none.
    pub(super) ingress_burst_bits: Option<i64>,
    /// Bits per second to the container.
    pub(super) egress_bits: Option<i64>,
    /// Queues of the egress by number, with their `Queue.other_config`.
    pub(super) queues: BTreeMap<u32, BTreeMap<String, String>>,
}

impl RawQos {
    /// Refuses everything that Open vSwitch would ignore or replace by another value.
    pub(super) fn check(&self) -> Result<Qos, Failure> {
        let numbers = [
            ("qos.ingressRate", self.ingress_rate),
            ("qos.ingressBurst", self.ingress_burst),
            ("qos.egressRate", self.egress_rate),
        ];
        for (key, number) in numbers {
            let Some(number) = number else { continue };
            if !(RATE_MIN..=RATE_MAX).contains(&number) {
                return Err(invalid(
                    format!("invalid {key} {number}"),
                    format!(
                        "rates are bits per second and bursts are bits, from {RATE_MIN} to \
                         {RATE_MAX}; without the key nothing is limited"
                    ),
                ));
            }
        }
        if self.ingress_burst.is_some() && self.ingress_rate.is_none() {
            return Err(invalid(
                "qos.ingressBurst has no effect without qos.ingressRate",
                "give \"qos\" an \"ingressRate\" too, or leave \"ingressBurst\" out",
            ));
        }
        if self.egress_burst.is_some() {
            return Err(invalid(
                "qos.egressBurst has no effect: Open vSwitch has bursts for single queues alone",
                "give a queue of \"qos.queues\" a \"burst\"; queue \"0\" has what no flow assigns",
            ));
        }
        let mut queues = BTreeMap::new();
        for (number, queue) in &self.queues {
            let id = number.parse().ok().filter(|id| *id <= QUEUE_MAX).ok_or_else(|| {
                invalid(
                    format!("invalid queue {number:?}"),
                    format!("a key of \"qos.queues\" is a queue's number, from 0 to {QUEUE_MAX}"),
                )
            })?;
            queues.insert(id, queue.check(id)?);
        }
        Ok(Qos {
            ingress_bits: self.ingress_rate,
            ingress_burst_bits: self.ingress_burst,
            egress_bits: self.egress_rate,
            queues,
        })
    }
}

impl RawQueue {
    /// Returns the queue's `other_config`.
    fn check(&self, id: u32) -> Result<BTreeMap<String, String>, Failure> {
        let numbers = [
            ("min-rate", "minRate", Some(self.min_rate).filter(|rate| *rate != 0)),
            ("max-rate", "maxRate", self.max_rate),
            ("burst", "burst", Some(self.burst).filter(|burst| *burst != 0)),
            ("priority", "priority", self.priority),
        ];
        let refused = |key, value, why: String| {
            Err(invalid(format!("invalid {key} {value} of queue {id}"), why))
        };
        for (_, key, value) in numbers {
            let Some(value) = value else { continue };
            if value < 0 {
                return refused(key, value, "it is not negative".to_owned());
            }
            if RATE_MAX < value {
                return refused(key, value, format!("it is {RATE_MAX} at most"));
            }
        }
        if let Some(max) = self.max_rate {
            if max < QUEUE_RATE_MIN {
                let why = format!(
                    "the switch limits no queue to less than {QUEUE_RATE_MIN} bits per second"
                );
                return refused("maxRate", max, why);
            }
            if max < self.min_rate {
                let why = format!("it is less than its minRate, {}", self.min_rate);
                return refused("maxRate", max, why);
            }
        }
        let given = numbers.into_iter().filter_map(|(name, _, value)| Some((name, value?)));
        Ok(given.map(|(name, value)| (name.to_owned(), value.to_string())).collect())
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
