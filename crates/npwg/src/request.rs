//! Translates a pod's requests on a network into the input of the network's plugins.

use std::net::IpAddr;

use cni::json::{JsonError, Object};
use cni::{AddResult, NetworkList};

use crate::selection;

/// The requests on one network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkRequest {
    /// By capability ([`crate::selection::Selection::runtime_config`]).
    pub runtime_config: Object,
    /// For `args.cni` of each plugin.
    pub cni_args: Object,
    /// The device that the kubelet allocated. A device that the pod chose is only in
    /// [`NetworkRequest::runtime_config`], for the plugin that declares the capability.
    pub allocated: Option<String>,
}

/// How to handle a request that no plugin of the network can serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnservedPolicy {
    /// Refuse it, as the standard requires.
    Refuse,
    /// Ignore it, as Multus does.
    PassOver,
}

/// Why a network cannot serve the requests.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// No plugin has the capability.
    #[error("network {network:?} cannot serve {asked:?}: none of its plugins has the capability")]
    Unserved {
        /// The network.
        network: String,
        /// The capability.
        asked: String,
    },
    /// The configuration cannot be changed as requested.
    #[error("network {network:?}: \"args\" of plugin {plugin_type:?} is not an object: {error}")]
    Args {
        /// The network.
        network: String,
        /// The plugin.
        plugin_type: String,
        /// Why.
        #[source]
        error: Box<JsonError>,
    },
    /// The resulting configuration is invalid.
    #[error("network {network:?}: {error}")]
    Config {
        /// The network.
        network: String,
        /// Why.
        #[source]
        error: Box<cni::Error>,
    },
    /// The network assigned another address than requested.
    #[error("network {network:?} did not give the address {address} that was asked for")]
    OtherAddress {
        /// The network.
        network: String,
        /// The address.
        address: IpAddr,
    },
    /// The network assigned another hardware address than requested.
    #[error("network {network:?} gave the hardware address {given} in place of {asked}")]
    OtherMac {
        /// The network.
        network: String,
        /// The requested one.
        asked: String,
        /// The actual one.
        given: String,
    },
}

impl NetworkRequest {
    /// Refuses requests for which no plugin of the network has the capability (NPWG v1.3 §4.1.2.1).
    ///
    /// # Errors
    /// [`RequestError::Unserved`].
    pub fn refuse_unserved(&self, list: &NetworkList) -> Result<(), RequestError> {
        let is_served = |asked: &str| {
            list.plugins.iter().any(|plugin| plugin.capabilities.iter().any(|has| has == asked))
        };
        let mut asked = self.runtime_config.iter().map(|(asked, _)| asked);
        match asked.find(|asked| !is_served(asked)) {
            Some(asked) => {
                Err(RequestError::Unserved { network: list.name.clone(), asked: asked.to_owned() })
            }
            None => Ok(()),
        }
    }

    /// Returns the network's list with the requests in every plugin's object: `cni-args` in
    /// `args.cni`, where requested values win, and the allocated device as `deviceID` and
    /// `pciBusID`.
    ///
    /// # Errors
    /// [`RequestError::Args`], [`RequestError::Config`].
    pub fn apply(&self, list: &NetworkList) -> Result<NetworkList, RequestError> {
        if self.cni_args.is_empty() && self.allocated.is_none() {
            return Ok(list.clone());
        }
        let network = || list.name.clone();
        let mut objects = Vec::new();
        for plugin in &list.plugins {
            let mut object = plugin.object.clone();
            if !self.cni_args.is_empty() {
                cni::set_cni_args(&mut object, &self.cni_args).map_err(|error| {
                    RequestError::Args {
                        network: network(),
                        plugin_type: plugin.plugin_type.clone(),
                        error: Box::new(error),
                    }
                })?;
            }
            if let Some(id) = &self.allocated {
                object.set_value("deviceID", id);
                object.set_value("pciBusID", id);
            }
            objects.push(object);
        }
        let config = |error| RequestError::Config { network: network(), error: Box::new(error) };
        let mut source = Object::parse(&list.source).map_err(|error| {
            config(cni::Error::new(cni::code::DECODE_FAILURE, error.to_string()))
        })?;
        source.set_value("plugins", &objects);
        NetworkList::parse(&source.to_vec()).map_err(config)
    }

    /// Verifies that a network assigned what was requested: a plugin may have the capability and
    /// ignore the value (NPWG v1 §4.1.2.1.3.2).
    ///
    /// # Errors
    /// [`RequestError::OtherAddress`], [`RequestError::OtherMac`].
    pub fn verify(
        &self,
        network: &str,
        ifname: &str,
        given: &AddResult,
    ) -> Result<(), RequestError> {
        let asked: Vec<String> = value(&self.runtime_config, "ips").unwrap_or_default();
        for address in asked.iter().filter_map(|ip| selection::address(ip)) {
            if !given.ips.iter().any(|ip| ip.address.addr() == address) {
                return Err(RequestError::OtherAddress { network: network.to_owned(), address });
            }
        }
        let asked: Option<String> = value(&self.runtime_config, "mac");
        let link = given.container_interface(ifname).filter(|link| !link.mac.is_empty());
        if let (Some(asked), Some(link)) = (asked, link)
            && !asked.eq_ignore_ascii_case(&link.mac)
        {
            let network = network.to_owned();
            return Err(RequestError::OtherMac { network, asked, given: link.mac.clone() });
        }
        Ok(())
    }
}

fn value<T: serde::de::DeserializeOwned>(object: &Object, key: &str) -> Option<T> {
    object.get(key).and_then(|raw| cni::json::from_raw(raw).ok())
}
