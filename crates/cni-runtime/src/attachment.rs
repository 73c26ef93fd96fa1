//! The description of one attachment, as a runtime gives it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cni::{AddResult, Args, ContainerId, Error, IfName, code};
use serde_json::value::RawValue;

/// The values a runtime provides for capabilities, by name; each is kept as its original JSON text.
pub type CapabilityArgs = BTreeMap<String, Box<RawValue>>;

/// One container's interface on one network, as the runtime describes it to plugins.
///
/// The same description serves every verb of the attachment's life. On DEL an empty `netns` says
/// that the namespace is gone.
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
    /// The PID namespace of the process that ran ADD, unless that is the machine's own
    /// ([`kernel::living::own_pid_ns`]). ADD sets it; the cache records it.
    pub pid_ns: Option<u64>,
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
            pid_ns: None,
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

    /// Refuses a result without an address or a hardware address that was requested, by capability
    /// (`ips`, `mac`) or by argument (`IP`, `MAC`): a plugin that does not support such a request
    /// ignores it. Results of versions before 0.3.0 list no interface, and so contain no hardware
    /// address.
    ///
    /// # Errors
    /// Code 7 with the requested address and the addresses given.
    pub fn require_given(&self, result: &AddResult) -> Result<(), Error> {
        let ifname = self.ifname.as_str();
        let given: Vec<IpAddr> = result.container_ips(ifname).map(|ip| ip.address.addr()).collect();
        for text in self.asked("ips", "IP") {
            let address = text.split('/').next().and_then(|address| address.parse().ok());
            let Some(address): Option<IpAddr> = address else { continue };
            if !given.contains(&address) {
                let given: Vec<_> = given.iter().map(ToString::to_string).collect();
                let given = if given.is_empty() { "none".to_owned() } else { given.join(", ") };
                return Err(not_given("address", &address.to_string(), &given));
            }
        }
        let Some(link) = result.container_interface(ifname) else { return Ok(()) };
        for text in self.asked("mac", "MAC") {
            if !link.mac.is_empty() && !link.mac.eq_ignore_ascii_case(&text) {
                return Err(not_given("hardware address", &text, &link.mac));
            }
        }
        Ok(())
    }

    /// Returns what is requested by a capability or, where that is not used, by an argument.
    fn asked(&self, capability: &str, argument: &str) -> Vec<String> {
        if let Some(raw) = self.capability_args.get(capability) {
            return match serde_json::from_str(raw.get()) {
                Ok(serde_json::Value::String(text)) => vec![text],
                Ok(serde_json::Value::Array(items)) => {
                    items.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect()
                }
                // The plugin reports what is wrong with it.
                _ => Vec::new(),
            };
        }
        let given = self.args.iter().find(|(key, _)| *key == argument);
        given.map_or_else(Vec::new, |(_, value)| value.split(',').map(str::to_owned).collect())
    }

    /// Provides every capability of a JSON object, such as cnitool's `CAP_ARGS`.
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

fn not_given(what: &str, asked: &str, given: &str) -> Error {
    Error::new(
        code::INVALID_CONFIG,
        format!("the {what} {asked} was asked for, and {given} was given"),
    )
    .with_details("no plugin of the network honours a requested address")
}
