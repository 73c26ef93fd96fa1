//! What an administrator may ask of a point-to-point network, checked.

use cni::{Error, code};
use cni_plugin::{Call, Delegate};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::shared::parent::parse_mtu;
use crate::shared::rules::MasqueradeBackend;

/// The least MTU that the kernel takes for a pair (linux include/uapi/linux/if_ether.h ETH_MIN_MTU).
const MTU_MIN: u32 = 68;
/// The largest (ETH_MAX_MTU).
const MTU_MAX: u32 = 65535;

/// The keys as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Raw {
    cni_version: String,
    name: String,
    r#type: String,
    ip_masq: bool,
    ip_masq_backend: Option<String>,
    mtu: i64,
    ipam: Option<IgnoredAny>,
    dns: Option<IgnoredAny>,
    args: Option<IgnoredAny>,
    capabilities: Option<IgnoredAny>,
    runtime_config: Option<IgnoredAny>,
    prev_result: Option<IgnoredAny>,
}

/// A point-to-point network as this plugin understands it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Config {
    pub(super) masquerade: Option<MasqueradeBackend>,
    pub(super) mtu: Option<u32>,
}

impl Config {
    /// Reads and checks the configuration of a call.
    pub(super) fn of(call: &Call<'_>) -> Result<Self, Error> {
        let raw: Raw = call.read_config()?;
        Ok(Config {
            masquerade: MasqueradeBackend::parse(raw.ip_masq, raw.ip_masq_backend.as_deref())?,
            mtu: parse_mtu(raw.mtu)?.map(check_mtu).transpose()?,
        })
    }
}

fn check_mtu(mtu: u32) -> Result<u32, Error> {
    if (MTU_MIN..=MTU_MAX).contains(&mtu) {
        return Ok(mtu);
    }
    Err(Error::new(code::INVALID_CONFIG, format!("invalid MTU {mtu}")).with_details(format!(
        "key \"mtu\" of a pair is between {MTU_MIN} and {MTU_MAX} bytes, or 0"
    )))
}

/// Returns the address plugin, without which there is nothing to route.
pub(super) fn ipam<'c>(call: &'c Call<'_>) -> Result<Delegate<'c>, Error> {
    call.ipam().ok_or_else(|| {
        Error::new(code::INVALID_CONFIG, "no plugin name provided").with_details(
            "ptp routes addresses: give the network an \"ipam\" object with a \"type\"",
        )
    })
}
