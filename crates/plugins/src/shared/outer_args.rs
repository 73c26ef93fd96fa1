//! What a runtime says of an attachment by `CNI_ARGS` and `args.cni` (CNI conventions, "dynamic
//! plugin specific fields"), for plugins whose configuration holds or names other configurations:
//! `chain`, `flannel`, `multi`, `netwright-multi`.
//!
//! A plugin within must not miss it: network policy goes by the container's labels. What concerns
//! the container reaches every network. What concerns its one interface on the network, such as an
//! address, reaches the network of the interface that the runtime named, and no further network.

use cni::json::Object;
use cni::{Args, Error, NetworkList, code, set_cni_args};
use cni_plugin::Call;
use serde::Deserialize;

use super::failure::Failure;

/// The keys of `args.cni` that concern one interface, in lower case.
const OF_INTERFACE: [&str; 3] = ["ips", "mac", "ovnport"];

/// The keys of `CNI_ARGS` that concern one interface.
const PAIRS_OF_INTERFACE: [&str; 4] = ["GATEWAY", "IP", "MAC", "OvnPort"];

/// Which of a container's interfaces an inner configuration is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interface {
    /// The one that the runtime named.
    Runtimes,
    /// Another.
    Further,
}

/// The key as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Raw {
    args: RawArgs,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawArgs {
    cni: Object,
}

/// `args.cni` of a call's configuration.
#[derive(Debug)]
pub(crate) struct OuterArgs(Object);

impl OuterArgs {
    /// Reads it.
    ///
    /// # Errors
    /// Code 6 when `args` or `args.cni` is not an object.
    pub(crate) fn of(call: &Call<'_>) -> Result<Self, Failure> {
        Ok(OuterArgs(call.read_config::<Raw>()?.args.cni))
    }

    /// Puts it into a plugin's object, where it wins over what is there.
    ///
    /// # Errors
    /// Code 6 when `args` or `args.cni` of the object is not an object.
    pub(crate) fn put_into(&self, object: &mut Object) -> Result<(), Failure> {
        if self.0.is_empty() {
            return Ok(());
        }
        let put = set_cni_args(object, &self.0);
        Ok(put.map_err(|error| Error::new(code::DECODE_FAILURE, error.to_string()))?)
    }

    /// Returns a network's list with it in every plugin's object, where it wins over what is there.
    ///
    /// # Errors
    /// Code 6 when `args` or `args.cni` of a plugin is not an object.
    pub(crate) fn in_list(
        &self,
        list: NetworkList,
        interface: Interface,
    ) -> Result<NetworkList, Failure> {
        let mut values = self.0.clone();
        if interface == Interface::Further {
            for (key, _) in self.0.iter() {
                if OF_INTERFACE.contains(&key.to_ascii_lowercase().as_str()) {
                    values.remove(key);
                }
            }
        }
        if values.is_empty() { Ok(list) } else { Ok(list.with_cni_args(&values)?) }
    }
}

/// Returns the pairs of `CNI_ARGS` that are for an interface.
pub(crate) fn pairs(args: &Args, interface: Interface) -> Vec<(String, String)> {
    let is_for = |key: &str| interface == Interface::Runtimes || !PAIRS_OF_INTERFACE.contains(&key);
    let kept = args.iter().filter(|(key, _)| is_for(key));
    kept.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}
