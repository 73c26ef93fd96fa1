//! The configuration of a port, read and checked.

use std::collections::BTreeMap;

use cni::{IfName, code};
use cni_plugin::Call;
use kernel::mac::MacAddr;
use ovsdb::Remote;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::defaults;
use super::extras::{Mirror, Qos, RawMirror, RawQos, RawTunnel, Tunnel};
use super::place::Place;
use super::rows::OWN_PREFIX;
use super::vlans::{RawTrunk, Vlans};
use crate::shared::failure::Failure;
use crate::shared::mac::parse_mac;
use crate::shared::mtu::{ETHERNET_MTU, RawMtu};

/// The bridge on which OVN binds its ports.
const OVN_BRIDGE: &str = "br-int";

/// The OpenFlow port numbers that may be configured (`man 5 ovs-vswitchd.conf.db`, Interface).
const OFPORTS: std::ops::RangeInclusive<i64> = 1..=65_279;

/// The keys as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Raw {
    bridge: String,
    vlan: Option<i64>,
    trunk: Option<Vec<RawTrunk>>,
    vlan_mode: String,
    mtu: RawMtu,
    #[serde(rename = "deviceID")]
    device_id: String,
    #[serde(rename = "ofport_request")]
    ofport_request: Option<i64>,
    #[serde(rename = "interface_type")]
    interface_type: String,
    #[serde(rename = "configuration_path")]
    configuration_path: String,
    #[serde(rename = "socket_file")]
    socket_file: String,
    #[serde(rename = "private_key")]
    private_key: String,
    certificate: String,
    #[serde(rename = "ca_cert")]
    ca_cert: String,
    #[serde(rename = "link_state_check_retries")]
    link_state_check_retries: Option<IgnoredAny>,
    #[serde(rename = "link_state_check_interval")]
    link_state_check_interval: Option<IgnoredAny>,
    port: String,
    create_bridge: bool,
    datapath_type: String,
    fail_mode: String,
    controllers: Vec<String>,
    external_ids: BTreeMap<String, String>,
    protected: bool,
    qos: Option<RawQos>,
    tunnel: Option<RawTunnel>,
    vni: Option<i64>,
    remotes: Vec<String>,
    mirrors: Vec<RawMirror>,
    allow_address_conflict: bool,
    args: RawArgs,
    runtime_config: RawRuntime,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawArgs {
    cni: RawCniArgs,
}

/// Values of any type: those that are not text are ignored, as with the reference.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawCniArgs {
    mac: Value,
    ovn_port: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawRuntime {
    mac: String,
}

/// The kind of the container's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PortKind {
    /// One end of a pair whose other end is the port.
    Veth,
    /// A port that the switch itself creates.
    Internal,
}

/// How a missing bridge is created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NewBridge {
    pub(super) datapath_type: String,
    pub(super) fail_mode: Option<String>,
    pub(super) controllers: Vec<String>,
}

/// A network as this plugin understands it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Config {
    pub(super) remote: Remote,
    pub(super) bridge: String,
    pub(super) create: Option<NewBridge>,
    pub(super) kind: PortKind,
    pub(super) vlans: Vlans,
    pub(super) mtu: Option<u32>,
    pub(super) mac: Option<MacAddr>,
    pub(super) ofport: Option<i64>,
    pub(super) interface_type: String,
    pub(super) ovn_port: Option<String>,
    pub(super) pod_uid: String,
    pub(super) external_ids: BTreeMap<String, String>,
    pub(super) protected: bool,
    pub(super) qos: Qos,
    pub(super) tunnel: Option<Tunnel>,
    pub(super) mirrors: Vec<Mirror>,
}

impl Config {
    /// Reads and checks the configuration of a call, merged over the file of defaults.
    ///
    /// `CNI_ARGS` takes precedence over `args.cni`, and `runtimeConfig.mac` over both.
    pub(super) fn of(call: &Call<'_>) -> Result<Self, Failure> {
        let document = defaults::document(call)?;
        let raw: Raw = cni::json::from_slice(&document).map_err(|error| {
            Failure::new(code::DECODE_FAILURE, format!("failed to load netconf: {error}"))
        })?;
        let args = call.args(&["MAC", "OvnPort", "K8S_POD_UID"])?;
        let first = |texts: [Option<&str>; 3]| {
            texts.into_iter().flatten().find(|text| !text.is_empty()).map(ToOwned::to_owned)
        };
        let cni = &raw.args.cni;
        let mac = first([Some(raw.runtime_config.mac.as_str()), args.get("MAC"), cni.mac.as_str()]);
        let ovn_port = first([None, args.get("OvnPort"), cni.ovn_port.as_str()]);
        let pod_uid = args.get("K8S_POD_UID").unwrap_or_default().to_owned();
        Config::check(raw, mac, ovn_port, pod_uid)
    }

    fn check(
        raw: Raw,
        mac: Option<String>,
        ovn_port: Option<String>,
        pod_uid: String,
    ) -> Result<Self, Failure> {
        if !raw.device_id.is_empty() {
            return Err(Failure::new(code::UNSUPPORTED_FIELD, "deviceID is not supported")
                .with_details("ports on virtual functions of a network card cannot be made yet"));
        }
        let bridge = match (raw.bridge.as_str(), &ovn_port) {
            ("", Some(_)) => OVN_BRIDGE.to_owned(),
            ("", None) => {
                return Err(invalid("failed to get bridge name", "give the network a \"bridge\""));
            }
            (name, _) => name.to_owned(),
        };
        let create = new_bridge(&raw, &bridge)?;
        let kind = port_kind(&raw)?;
        if let Some(port) = raw.ofport_request.filter(|port| !OFPORTS.contains(port)) {
            return Err(invalid(
                format!("invalid ofport_request {port}"),
                format!(
                    "key \"ofport_request\" is a number from {} to {}",
                    OFPORTS.start(),
                    OFPORTS.end()
                ),
            ));
        }
        if let Some(key) = raw.external_ids.keys().find(|key| is_ours(key)) {
            return Err(invalid(
                format!("externalIds has the key {key:?}, which is ours"),
                "choose keys of your own: ours say whose a port is",
            ));
        }
        let qos = raw.qos.as_ref().map(RawQos::check).transpose()?.unwrap_or_default();
        if kind == PortKind::Internal && qos != Qos::default() {
            return Err(invalid(
                "qos has no effect on a port that the switch makes",
                "use \"port\": \"veth\": the kernel drops all limits of a link that moves into the container",
            ));
        }
        let mirrors = raw.mirrors.iter().map(RawMirror::check).collect::<Result<Vec<_>, _>>()?;
        let place = Place {
            socket_file: raw.socket_file,
            private_key: raw.private_key,
            certificate: raw.certificate,
            ca_cert: raw.ca_cert,
        };
        Ok(Config {
            remote: place.remote()?,
            bridge,
            create,
            kind,
            vlans: Vlans::parse(raw.vlan, raw.trunk.as_deref(), &raw.vlan_mode)?,
            mtu: raw.mtu.within(&ETHERNET_MTU)?,
            mac: mac.as_deref().map(parse_mac).transpose()?,
            ofport: raw.ofport_request,
            interface_type: raw.interface_type,
            ovn_port,
            pod_uid,
            external_ids: raw.external_ids,
            protected: raw.protected,
            qos,
            tunnel: tunnel(raw.tunnel, raw.vni, raw.remotes)?,
            mirrors,
        })
    }
}

fn port_kind(raw: &Raw) -> Result<PortKind, Failure> {
    match (raw.port.as_str(), raw.interface_type.as_str()) {
        ("internal", "" | "internal") | ("", "internal") => Ok(PortKind::Internal),
        ("" | "veth", "" | "system") => Ok(PortKind::Veth),
        ("" | "veth" | "internal", other) => Err(invalid(
            format!("interface_type {other:?} cannot be a container's"),
            "a veth pair's is empty or \"system\", that of a port of the switch's own \"internal\"",
        )),
        (other, _) => {
            Err(invalid(format!("unknown port {other:?}"), "key \"port\" is veth or internal"))
        }
    }
}

fn new_bridge(raw: &Raw, bridge: &str) -> Result<Option<NewBridge>, Failure> {
    if !raw.create_bridge {
        let keys = [
            ("datapathType", raw.datapath_type.is_empty()),
            ("failMode", raw.fail_mode.is_empty()),
            ("controllers", raw.controllers.is_empty()),
        ];
        return match keys.iter().find(|(_, absent)| !absent) {
            None => Ok(None),
            Some((key, _)) => Err(invalid(
                format!("{key} is for a bridge that is made"),
                "set \"createBridge\", or leave it to the program that makes the bridge",
            )),
        };
    }
    IfName::new(bridge).map_err(|error| {
        invalid(
            format!("invalid bridge name {bridge:?}: {}", error.msg),
            "key \"bridge\": with \"createBridge\" it is a link too, whose name has 15 characters at most",
        )
    })?;
    if !["", "standalone", "secure"].contains(&raw.fail_mode.as_str()) {
        return Err(invalid(
            format!("unknown failMode {:?}", raw.fail_mode),
            "it is standalone or secure",
        ));
    }
    if !["", "system", "netdev"].contains(&raw.datapath_type.as_str()) {
        return Err(invalid(
            format!("unknown datapathType {:?}", raw.datapath_type),
            "it is system (the kernel's) or netdev (in user space)",
        ));
    }
    Ok(Some(NewBridge {
        datapath_type: raw.datapath_type.clone(),
        fail_mode: (!raw.fail_mode.is_empty()).then(|| raw.fail_mode.clone()),
        controllers: raw.controllers.clone(),
    }))
}

/// Reads a tunnel. The keys `vni` and `remotes` are short for those of `tunnel`, for users who can
/// only write flat keys.
fn tunnel(
    tunnel: Option<RawTunnel>,
    vni: Option<i64>,
    remotes: Vec<String>,
) -> Result<Option<Tunnel>, Failure> {
    match (tunnel, vni) {
        (None, None) if remotes.is_empty() => Ok(None),
        (Some(tunnel), None) if remotes.is_empty() => tunnel.check().map(Some),
        (None, vni) => RawTunnel::flat(vni, remotes).check().map(Some),
        (Some(_), _) => Err(invalid(
            "\"tunnel\" and the keys \"vni\" and \"remotes\" exclude each other",
            "say everything in \"tunnel\"",
        )),
    }
}

/// Returns whether a key of `external_ids` is one of those that hold a row's owner.
fn is_ours(key: &str) -> bool {
    key.starts_with(OWN_PREFIX)
        || ["owner", "contNetns", "contIface", "contPodUid", "iface-id", "attached-mac"]
            .contains(&key)
}

/// Returns the error for a mistake in the configuration.
pub(super) fn invalid(message: impl Into<String>, details: impl Into<String>) -> Failure {
    Failure::new(code::INVALID_CONFIG, message.into()).with_details(details.into())
}
