//! What a runtime says about one attachment.

use std::collections::BTreeMap;

use cni::{Args, ContainerId, Error, IfName, code};
use serde_json::value::RawValue;

/// The values a runtime provides for capabilities, by name; each is kept as the JSON text it was.
pub type CapabilityArgs = BTreeMap<String, Box<RawValue>>;

/// One container's interface on one network, as the runtime describes it to plugins.
///
/// The same description belongs to every verb of the attachment's life. On DEL an empty `netns` says that
/// the namespace is gone.
#[derive(Debug, Clone)]
pub struct Attachment {
    /// The container (`CNI_CONTAINERID`).
    pub container_id: ContainerId,
    /// The interface's name in the container (`CNI_IFNAME`).
    pub ifname: IfName,
    /// The path of the container's network namespace (`CNI_NETNS`).
    pub netns: String,
    /// The pairs of `CNI_ARGS`.
    pub args: Args,
    /// Values for capabilities; each plugin gets those that its configuration asks for.
    pub capability_args: CapabilityArgs,
}

impl Attachment {
    /// Describes an attachment without arguments.
    #[must_use]
    pub fn new(container_id: ContainerId, ifname: IfName, netns: impl Into<String>) -> Self {
        Attachment {
            container_id,
            ifname,
            netns: netns.into(),
            args: Args::default(),
            capability_args: CapabilityArgs::new(),
        }
    }

    /// Sets the pairs of `CNI_ARGS`.
    #[must_use]
    pub fn with_args(mut self, args: Args) -> Self {
        self.args = args;
        self
    }

    /// Provides one capability, such as `portMappings`.
    ///
    /// # Errors
    /// Code 6 when the value cannot be written as JSON.
    pub fn with_capability<T: serde::Serialize + ?Sized>(
        mut self,
        name: &str,
        value: &T,
    ) -> Result<Self, Error> {
        let raw = serde_json::value::to_raw_value(value).map_err(|error| {
            Error::new(code::DECODE_FAILURE, format!("write capability {name:?} as JSON: {error}"))
        })?;
        self.capability_args.insert(name.to_owned(), raw);
        Ok(self)
    }

    /// Provides every capability of a JSON object, as `CAP_ARGS` of cnitool holds it.
    ///
    /// # Errors
    /// Code 6 when the text is not a JSON object.
    pub fn with_capabilities_json(mut self, document: &str) -> Result<Self, Error> {
        let given: CapabilityArgs = cni::json::from_str(document).map_err(|error| {
            Error::new(code::DECODE_FAILURE, format!("error parsing capability arguments: {error}"))
        })?;
        self.capability_args.extend(given);
        Ok(self)
    }
}
