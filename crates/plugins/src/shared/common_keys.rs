//! The keys that the configuration of every plugin may have (CNI 1.1.0 §1 "Plugin configuration
//! objects" and "Deriving execution configuration").
//!
//! A plugin's own type has only the keys that the plugin reads. These are known besides.

use cni::json::{JsonError, UnknownKey, unknown_keys_besides};
use serde::de::DeserializeOwned;

/// The keys of any plugin.
const ANY: &[&str] = &[
    "cniVersion",
    "name",
    "type",
    "args",
    "capabilities",
    "runtimeConfig",
    "prevResult",
    cni::FOLLOWED_BY,
];

/// The keys that a plugin has besides if it creates an interface.
const INTERFACE: &[&str] = &["ipam", "dns"];

/// Lists the keys of a configuration that neither the plugin's own type `T` nor every plugin of its
/// role reads.
///
/// # Errors
/// When the configuration cannot be read at all.
pub(crate) fn unknown<T: DeserializeOwned>(
    config: &str,
    creates_interface: bool,
) -> Result<Vec<UnknownKey>, JsonError> {
    unknown_keys_besides::<T>(config, &known(creates_interface))
}

fn known(creates_interface: bool) -> Vec<&'static str> {
    let more = if creates_interface { INTERFACE } else { &[] };
    [ANY, more].concat()
}
