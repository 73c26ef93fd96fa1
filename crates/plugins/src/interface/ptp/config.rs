//! The configuration of a point-to-point network, read and checked.

use cni::{IfName, code};
use cni_plugin::{Call, Delegate};
use serde::Deserialize;

use crate::shared::failure::Failure;
use crate::shared::mtu::{Mtu, RawMtu};
use crate::shared::rules::{MasqueradeBackend, RawSources};
use crate::shared::shared_object::AtTheEnd;
use crate::shared::{forwarding, host_name};

/// The keys as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Raw {
    ip_masq: bool,
    ip_masq_backend: Option<String>,
    #[serde(rename = "outboundAddr4")]
    outbound_addr4: String,
    #[serde(rename = "outboundAddr6")]
    outbound_addr6: String,
    mtu: RawMtu,
    host_ifname: String,
    restore_forwarding: bool,
    allow_address_conflict: bool,
    runtime_config: RawRuntime,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawRuntime {
    host_ifname: String,
}

/// A point-to-point network as this plugin understands it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    pub(super) masquerade: Option<MasqueradeBackend>,
    pub(super) mtu: Mtu,
    /// The name of the host's end.
    pub(super) host_ifname: Option<IfName>,
    /// What becomes of the host's forwarding after the last container.
    pub(super) forwarding: AtTheEnd,
}

impl Config {
    /// Reads and checks the configuration of a call.
    pub(super) fn of(call: &Call<'_>) -> Result<Self, Failure> {
        let raw: Raw = call.read_config()?;
        Ok(Config {
            masquerade: MasqueradeBackend::parse(
                raw.ip_masq,
                raw.ip_masq_backend.as_deref(),
                &RawSources { v4: &raw.outbound_addr4, v6: &raw.outbound_addr6 },
            )?,
            mtu: raw.mtu.of_pair()?,
            host_ifname: host_name::parse(&raw.host_ifname, &raw.runtime_config.host_ifname)?,
            forwarding: forwarding::at_the_end(raw.restore_forwarding),
        })
    }
}

/// Returns the IPAM plugin, without which there is nothing to route.
pub(super) fn ipam<'c>(call: &'c Call<'_>) -> Result<Delegate<'c>, Failure> {
    call.ipam().ok_or_else(|| {
        Failure::new(code::INVALID_CONFIG, "no plugin name provided").with_details(
            "ptp routes addresses: give the network an \"ipam\" object with a \"type\"",
        )
    })
}
