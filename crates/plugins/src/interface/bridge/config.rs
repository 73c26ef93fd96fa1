//! The configuration of a bridge network, read and checked.

use std::collections::BTreeSet;

use cni::{IfName, code};
use cni_plugin::Call;
use kernel::mac::MacAddr;
use serde::Deserialize;
use wanted::{Gateways, Port, PortVlans};

use super::vrf;
use crate::shared::failure::Failure;
use crate::shared::mac::parse_mac;
use crate::shared::mtu::{Mtu, RawMtu};
use crate::shared::rules::{MasqueradeBackend, RawSources};
use crate::shared::shared_object::AtTheEnd;
use crate::shared::{forwarding, host_name};

/// The bridge of a configuration that does not name one.
pub(super) const DEFAULT_BRIDGE: &str = "cni0";

/// The highest VLAN ID (IEEE 802.1Q; 4095 is reserved).
const VLAN_MAX: i64 = 4094;

/// The keys as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Raw {
    bridge: String,
    is_gateway: bool,
    is_default_gateway: bool,
    force_address: bool,
    ip_masq: bool,
    ip_masq_backend: Option<String>,
    #[serde(rename = "outboundAddr4")]
    outbound_addr4: String,
    #[serde(rename = "outboundAddr6")]
    outbound_addr6: String,
    mtu: RawMtu,
    host_ifname: String,
    hairpin_mode: bool,
    promisc_mode: bool,
    restore_forwarding: bool,
    allow_address_conflict: bool,
    vrf: String,
    vlan: i64,
    vlan_trunk: Option<Vec<Option<RawTrunk>>>,
    preserve_default_vlan: bool,
    macspoofchk: bool,
    enabledad: bool,
    disable_container_interface: bool,
    port_isolation: bool,
    args: RawArgs,
    runtime_config: RawRuntime,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawTrunk {
    id: Option<i64>,
    #[serde(rename = "minID")]
    min_id: Option<i64>,
    #[serde(rename = "maxID")]
    max_id: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawArgs {
    cni: RawMac,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawMac {
    mac: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawRuntime {
    mac: String,
    host_ifname: String,
}

/// VLANs of a bridge port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Vlans {
    /// The untagged VLAN; `None` when the configuration has neither `vlan` nor a trunk.
    pub(super) native: Option<u16>,
    /// The tagged VLANs.
    pub(super) tagged: BTreeSet<u16>,
    /// VLAN 1 stays on the port.
    pub(super) keep_default: bool,
    /// Whether the configuration has VLANs at all (even an empty trunk counts).
    pub(super) wanted: bool,
    /// The access VLAN as configured, which names the gateway's link.
    pub(super) access: Option<u16>,
}

/// A bridge network as this plugin understands it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    pub(super) bridge: IfName,
    pub(super) gateway: bool,
    pub(super) default_gateway: bool,
    pub(super) force_address: bool,
    pub(super) masquerade: Option<MasqueradeBackend>,
    pub(super) mtu: Mtu,
    /// The name of the host's end.
    pub(super) host_ifname: Option<IfName>,
    pub(super) hairpin: bool,
    pub(super) promisc: bool,
    pub(super) vlans: Vlans,
    pub(super) check_spoofing: bool,
    pub(super) detect_duplicates: bool,
    pub(super) leave_down: bool,
    /// There is an IPAM plugin: without one, ADD makes no gateway.
    pub(super) has_ipam: bool,
    pub(super) isolated: bool,
    pub(super) mac: Option<MacAddr>,
    /// The VRF of the host that the link with the gateways belongs to.
    pub(super) vrf: Option<IfName>,
    /// What becomes of the host's forwarding after the last container.
    pub(super) forwarding: AtTheEnd,
}

impl Config {
    /// Reads and checks the configuration of a call.
    ///
    /// MAC precedence, last wins: `CNI_ARGS` `MAC`, `args.cni.mac`, `runtimeConfig.mac`.
    pub(super) fn of(call: &Call<'_>) -> Result<Self, Failure> {
        let raw: Raw = call.read_config()?;
        let args = call.args(&["MAC"])?;
        let mac = [Some(raw.runtime_config.mac.as_str()), Some(&raw.args.cni.mac), args.get("MAC")]
            .into_iter()
            .flatten()
            .find(|text| !text.is_empty())
            .map(parse_mac)
            .transpose()?;
        Config::check(&raw, mac, call.ipam().is_some())
    }

    /// Describes the bridge, as a configuration alone can.
    pub(super) fn wanted_bridge(&self) -> wanted::Bridge {
        wanted::Bridge {
            link: self.bridge.to_string(),
            ours: false,
            mac: None,
            mtu: self.mtu.configured(),
            promiscuous: self.promisc,
            vlan_filtering: self.vlans.wanted,
            no_link_local_learning: self.check_spoofing,
            hears_routers: false,
            vrf: self.vrf_of(self.vlans.access.is_none()),
        }
    }

    /// Returns the VRF for the bridge itself, or for the link that carries the gateway of a VLAN.
    fn vrf_of(&self, carries_gateways: bool) -> Option<String> {
        self.vrf.as_ref().filter(|_| carries_gateways).map(ToString::to_string)
    }

    /// Describes the host's end as a port of the bridge.
    pub(super) fn wanted_port(&self, link: &str) -> Port {
        let vlans = self.vlans.wanted.then(|| PortVlans {
            native: self.vlans.native,
            tagged: self.vlans.tagged.iter().copied().collect(),
            keep_default: self.vlans.keep_default,
        });
        let (link, bridge) = (link.to_owned(), self.bridge.to_string());
        Port { link, bridge, hairpin: self.hairpin, isolated: self.isolated, vlans }
    }

    /// Describes the gateways, still without addresses.
    ///
    /// # Errors
    /// Code 7 when the link of the VLAN has no name.
    pub(super) fn wanted_gateways(&self) -> Result<Gateways, Failure> {
        let link = match self.vlans.access {
            Some(vlan) => gateway_name(&self.bridge, vlan)?,
            None => self.bridge.clone(),
        };
        Ok(Gateways {
            link: link.to_string(),
            bridge: self.bridge.to_string(),
            vlan: self.vlans.access,
            mac: None,
            addresses: Vec::new(),
            ours: false,
            vrf: self.vrf_of(self.vlans.access.is_some()),
        })
    }

    fn check(raw: &Raw, mac: Option<MacAddr>, has_ipam: bool) -> Result<Self, Failure> {
        if has_ipam && raw.disable_container_interface {
            return Err(invalid("cannot use IPAM when DisableContainerInterface flag is set"));
        }
        if raw.hairpin_mode && raw.promisc_mode {
            return Err(invalid("cannot set hairpin mode and promiscuous mode at the same time"));
        }
        let bridge = if raw.bridge.is_empty() { DEFAULT_BRIDGE } else { &raw.bridge };
        let bridge = IfName::new(bridge).map_err(|error| {
            Failure::new(
                code::INVALID_CONFIG,
                format!("invalid bridge name {bridge:?}: {}", error.msg),
            )
            .with_details("key \"bridge\" is the name of a link: 15 characters at most, none of them / or : or white space")
        })?;
        let host_ifname = host_name::parse(&raw.host_ifname, &raw.runtime_config.host_ifname)?;
        if host_ifname.as_ref() == Some(&bridge) {
            return Err(invalid(&format!("hostIfname {:?} is the bridge's name", bridge.as_str())));
        }
        let vlans = vlans(raw)?;
        let gateway = raw.is_gateway || raw.is_default_gateway;
        if let (true, Some(vlan)) = (gateway, vlans.access) {
            gateway_name(&bridge, vlan)?;
        }
        let vrf = vrf::parse(&raw.vrf, gateway)?;
        Ok(Config {
            bridge,
            gateway,
            default_gateway: raw.is_default_gateway,
            force_address: raw.force_address,
            masquerade: MasqueradeBackend::parse(
                raw.ip_masq,
                raw.ip_masq_backend.as_deref(),
                &RawSources { v4: &raw.outbound_addr4, v6: &raw.outbound_addr6 },
            )?,
            mtu: raw.mtu.of_pair()?,
            host_ifname,
            hairpin: raw.hairpin_mode,
            promisc: raw.promisc_mode,
            vlans,
            check_spoofing: raw.macspoofchk,
            detect_duplicates: raw.enabledad,
            leave_down: raw.disable_container_interface,
            has_ipam,
            isolated: raw.port_isolation,
            mac,
            vrf,
            forwarding: forwarding::at_the_end(raw.restore_forwarding),
        })
    }
}

/// Returns the name of the link that carries a VLAN's gateway.
pub(super) fn gateway_name(bridge: &IfName, vlan: u16) -> Result<IfName, Failure> {
    let name = format!("{bridge}.{vlan}");
    IfName::new(&name).map_err(|error| {
        invalid(&format!("the gateway of VLAN {vlan} needs a link named {name:?}: {}", error.msg))
            .with_details("choose a shorter bridge name")
    })
}

fn vlans(raw: &Raw) -> Result<Vlans, Failure> {
    let access = match raw.vlan {
        0 => None,
        id => Some(vlan_id(id).filter(|id| i64::from(*id) <= VLAN_MAX).ok_or_else(|| {
            invalid(&format!("invalid VLAN ID {id} (must be between 0 and {VLAN_MAX})"))
                .with_details("key \"vlan\": 0 stands for none")
        })?),
    };
    let tagged = trunk(raw.vlan_trunk.as_deref().unwrap_or_default())?;
    // A trunk without a native VLAN keeps VLAN 1 for untagged frames.
    let native = access.or((!tagged.is_empty()).then_some(1));
    Ok(Vlans {
        native,
        wanted: access.is_some() || raw.vlan_trunk.is_some(),
        tagged,
        keep_default: raw.preserve_default_vlan,
        access,
    })
}

fn trunk(entries: &[Option<RawTrunk>]) -> Result<BTreeSet<u16>, Failure> {
    let mut ids = BTreeSet::new();
    for entry in entries {
        let Some(entry) = entry else {
            return Err(invalid("incorrect trunk parameter: null is not a VLAN"));
        };
        match (entry.min_id, entry.max_id) {
            (Some(low), Some(high)) => {
                let low = vlan_id(low).ok_or_else(|| not_a_vlan("minID", low))?;
                let high = vlan_id(high).ok_or_else(|| not_a_vlan("maxID", high))?;
                if high < low {
                    return Err(invalid("minID is greater than maxID in trunk parameter")
                        .with_details(format!(
                            "key \"vlanTrunk\": write minID {high} and maxID {low}"
                        )));
                }
                ids.extend(low..=high);
            }
            (None, Some(_)) => return Err(incomplete("minID")),
            (Some(_), None) => return Err(incomplete("maxID")),
            (None, None) if entry.id.is_none() => {
                return Err(invalid("incorrect trunk parameter: neither id nor minID and maxID"));
            }
            (None, None) => {}
        }
        if let Some(id) = entry.id {
            ids.insert(vlan_id(id).ok_or_else(|| not_a_vlan("id", id))?);
        }
    }
    Ok(ids)
}

fn not_a_vlan(key: &str, id: i64) -> Failure {
    invalid(&format!("incorrect trunk {key} parameter")).with_details(format!(
        "key \"vlanTrunk\": {key} is {id}, and a VLAN ID is a number from 1 to {VLAN_MAX}"
    ))
}

fn incomplete(missing: &str) -> Failure {
    invalid(&format!("minID and maxID should be configured simultaneously, {missing} is missing"))
}

fn vlan_id(id: i64) -> Option<u16> {
    (1..=VLAN_MAX).contains(&id).then(|| u16::try_from(id).ok()).flatten()
}

fn invalid(msg: &str) -> Failure {
    Failure::new(code::INVALID_CONFIG, msg)
}

#[cfg(test)]
impl Config {
    /// Reads and checks a configuration without a call.
    pub(super) fn of_text(json: &str) -> Result<Self, Failure> {
        let raw: Raw = cni::json::from_str(json).unwrap();
        let all: serde_json::Value = serde_json::from_str(json).unwrap();
        Config::check(&raw, None, all.get("ipam").is_some())
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn check(json: &str, expected: Expect) {
        let text = match Config::of_text(json) {
            Ok(config) => format!("{:?}", config.vlans),
            Err(error) => format!("{} {error}", error.code()),
        };
        expected.assert_eq(&text);
    }

    #[test]
    fn flags_that_exclude_each_other() {
        check(
            r#"{"ipam":{},"disableContainerInterface":true}"#,
            expect!["7 cannot use IPAM when DisableContainerInterface flag is set"],
        );
        check(
            r#"{"hairpinMode":true,"promiscMode":true}"#,
            expect!["7 cannot set hairpin mode and promiscuous mode at the same time"],
        );
        check(
            r#"{"ipMasq":true,"ipMasqBackend":"ipset"}"#,
            expect![[
                r#"7 unknown ipmasq backend "ipset"; ipMasqBackend is "nftables" or "iptables""#
            ]],
        );
    }

    #[test]
    fn vlan_validation() {
        check(
            r#"{"vlan":4095}"#,
            expect![[
                r#"7 invalid VLAN ID 4095 (must be between 0 and 4094); key "vlan": 0 stands for none"#
            ]],
        );
        check(
            r#"{"vlan":-1}"#,
            expect![[
                r#"7 invalid VLAN ID -1 (must be between 0 and 4094); key "vlan": 0 stands for none"#
            ]],
        );
        check(
            r#"{"vlanTrunk":[{"minID":5}]}"#,
            expect!["7 minID and maxID should be configured simultaneously, maxID is missing"],
        );
        check(
            r#"{"vlanTrunk":[{"maxID":5}]}"#,
            expect!["7 minID and maxID should be configured simultaneously, minID is missing"],
        );
        check(
            r#"{"vlanTrunk":[{"minID":6,"maxID":5}]}"#,
            expect![[
                r#"7 minID is greater than maxID in trunk parameter; key "vlanTrunk": write minID 5 and maxID 6"#
            ]],
        );
        check(
            r#"{"vlanTrunk":[{"minID":0,"maxID":5}]}"#,
            expect![[
                r#"7 incorrect trunk minID parameter; key "vlanTrunk": minID is 0, and a VLAN ID is a number from 1 to 4094"#
            ]],
        );
        check(
            r#"{"vlanTrunk":[{"minID":1,"maxID":4095}]}"#,
            expect![[
                r#"7 incorrect trunk maxID parameter; key "vlanTrunk": maxID is 4095, and a VLAN ID is a number from 1 to 4094"#
            ]],
        );
        check(
            r#"{"vlanTrunk":[{"id":0}]}"#,
            expect![[
                r#"7 incorrect trunk id parameter; key "vlanTrunk": id is 0, and a VLAN ID is a number from 1 to 4094"#
            ]],
        );
        check(
            r#"{"vlanTrunk":[null]}"#,
            expect!["7 incorrect trunk parameter: null is not a VLAN"],
        );
    }

    #[test]
    fn trunks_are_a_union_with_vlan_1_native() {
        check(
            r#"{"vlanTrunk":[{"id":7},{"minID":3,"maxID":5},{"id":4}]}"#,
            expect![
                "Vlans { native: Some(1), tagged: {3, 4, 5, 7}, keep_default: false, wanted: true, access: None }"
            ],
        );
        check(
            r#"{"vlan":9,"vlanTrunk":[],"preserveDefaultVlan":true}"#,
            expect![
                "Vlans { native: Some(9), tagged: {}, keep_default: true, wanted: true, access: Some(9) }"
            ],
        );
    }

    #[test]
    fn the_gateway_link_of_a_vlan_must_have_a_name() {
        check(
            r#"{"bridge":"verylongbridge1","vlan":10,"isGateway":true}"#,
            expect![[
                r#"7 the gateway of VLAN 10 needs a link named "verylongbridge1.10": interface name is too long; choose a shorter bridge name"#
            ]],
        );
    }
}
