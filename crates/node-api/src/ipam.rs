//! The protocol between the plugin `cluster-ipam` and `netwrightd ipam`.
//!
//! The plugin connects to a Unix socket ([`SOCKET`]), which only root may use, and sends requests;
//! the daemon answers each message with one. [`crate::line`] defines the form of a message.
//!
//! | request of the plugin | when | answer of the daemon |
//! |---|---|---|
//! | [`Request::Assign`] | at ADD | [`Answer::Assigned`] or [`Answer::Refused`] |
//! | [`Request::Release`] | at DEL | [`Answer::Ok`], also if there is nothing to release |
//! | [`Request::Held`] | at CHECK | [`Answer::Assigned`], empty if it holds nothing, or [`Answer::Refused`] |
//! | [`Request::Collect`] | at GC | [`Answer::Ok`] or [`Answer::Refused`] |
//! | [`Request::Status`] | at STATUS | [`Answer::Ok`] or [`Answer::Refused`] |
//!
//! [`Request::Assign`] is idempotent: the same container and interface get the same addresses
//! again. DEL does not depend on an answer: a plugin that reaches no daemon leaves the message in
//! the daemon's [inbox], in a file with the name that [`Request::todo_name`] gives.
//! Until the daemon has carried it out, the address stays assigned. If an ADD of the same container
//! and interface comes meanwhile, the daemon first carries out the message and then answers.
//!
//! ```
//! use netwright_node_api::ipam::{Owner, Request};
//! use netwright_node_api::{LineError, Message};
//!
//! let owner = Owner { container: "c1".into(), ifname: "eth0".into(), ..Owner::default() };
//! let line = Request::Release(owner.clone()).to_line()?;
//! assert_eq!(line, b"{\"version\":1,\"release\":{\"container\":\"c1\",\"ifname\":\"eth0\"}}\n");
//! assert_eq!(Request::from_line(&line)?, Request::Release(owner));
//! # Ok::<(), LineError>(())
//! ```

use std::net::IpAddr;
use std::str::FromStr;

use cni::GcAttachment;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::line::{is_false, message};
use crate::{Pod, Refusal, inbox};

/// The version of these messages.
pub const VERSION: u32 = 1;

/// Where the daemon listens.
pub const SOCKET: &str = "/run/netwright/ipam.sock";

/// A request from the plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Assign an address of each range.
    Assign(AssignRequest),
    /// Free everything this owner has.
    Release(Owner),
    /// Which addresses does this owner have in this network?
    Held(HeldRequest),
    /// Only these attachments of this network exist.
    Collect(CollectRequest),
    /// Could [`Request::Assign`] be answered?
    Status(StatusRequest),
}

/// An answer from the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// These.
    Assigned(Vec<AssignedAddress>),
    /// A refusal, with the reason.
    Refused(Refusal),
    /// The request was carried out.
    Ok,
}

/// The owner of an address: an interface of a container. The pod is for information only, but
/// sticky addresses belong to it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Owner {
    /// `CNI_CONTAINERID`.
    pub container: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// `CNI_NETNS`; may be empty, or lead nowhere.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub netns: String,
    /// The pod, if the runtime names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
}

/// [`Request::Assign`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AssignRequest {
    /// The network.
    pub network: NetworkSpec,
    /// The owner that asks.
    pub owner: Owner,
    /// The requested addresses: each in one of the ranges, at most one per range. A range without a
    /// request gives any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub wanted: Vec<IpAddr>,
}

/// [`Request::Held`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeldRequest {
    /// The network.
    pub network: NetworkSpec,
    /// The owner that asks.
    pub owner: Owner,
}

/// [`Request::Collect`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CollectRequest {
    /// The network's name: [`NetworkSpec::network`].
    pub network: String,
    /// The existing attachments; all other addresses of the network on this node are freed.
    pub valid: Vec<GcAttachment>,
}

/// [`Request::Status`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatusRequest {
    /// The network.
    pub network: NetworkSpec,
}

/// A network's configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NetworkSpec {
    /// The network's name in CNI; GC collects allocations by it.
    pub network: String,
    /// `network_name`: the space in which addresses are unique; empty: the unnamed one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub space: String,
    /// `enable_overlapping_ranges`: whether an address is unique over all ranges of the space, or
    /// only over the ranges of the same subnet.
    pub overlapping: bool,
    /// One address of each range is assigned, in this order.
    pub ranges: Vec<RangeSpec>,
    /// The prefix length of a node's blocks of IPv4 addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_v4: Option<u8>,
    /// The prefix length of a node's blocks of IPv6 addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_v6: Option<u8>,
    /// Whether a pod that is recreated under its name gets its addresses again.
    #[serde(skip_serializing_if = "is_false")]
    pub sticky: bool,
}

impl NetworkSpec {
    /// Creates a network of that name without ranges.
    #[must_use]
    pub fn new(network: &str) -> Self {
        NetworkSpec { network: network.to_owned(), ..NetworkSpec::default() }
    }
}

impl Default for NetworkSpec {
    fn default() -> Self {
        NetworkSpec {
            network: String::new(),
            space: String::new(),
            overlapping: true,
            ranges: Vec::new(),
            block_v4: None,
            block_v6: None,
            sticky: false,
        }
    }
}

/// A range's configuration.
///
/// It is read from Whereabouts' notation: `192.0.2.0/24`, or `192.0.2.10-192.0.2.20/24`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeSpec {
    /// The subnet; its addresses get its prefix length.
    pub subnet: IpNet,
    /// The first address that may be assigned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<IpAddr>,
    /// The last address that may be assigned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<IpAddr>,
    /// Addresses that are never assigned. Those outside the subnet are ignored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<IpNet>,
    /// The gateway: returned with each address, never assigned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

impl FromStr for RangeSpec {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<Self, RangeError> {
        let wrong = || RangeError(text.to_owned());
        let (ends, prefix) = text.trim().split_once('/').ok_or_else(wrong)?;
        let prefix: u8 = prefix.trim().parse().map_err(|_| wrong())?;
        let (first, last) = match ends.split_once('-') {
            Some((first, last)) => {
                let address = |text: &str| text.trim().parse::<IpAddr>().map_err(|_| wrong());
                (Some(address(first)?), Some(address(last)?))
            }
            None => (None, None),
        };
        let base = match first {
            Some(first) => first,
            None => ends.trim().parse().map_err(|_| wrong())?,
        };
        let subnet = IpNet::new(base, prefix).map_err(|_| wrong())?.trunc();
        Ok(RangeSpec { subnet, first, last, exclude: Vec::new(), gateway: None })
    }
}

/// A text is not a range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a range: write a subnet such as 192.0.2.0/24, or 192.0.2.10-192.0.2.20/24")]
pub struct RangeError(String);

/// An address of an owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignedAddress {
    /// With the prefix length of its range's subnet.
    pub address: IpNet,
    /// The range's gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

impl Owner {
    /// Returns 32 hexadecimal digits that identify container and interface.
    #[must_use]
    pub fn hash(&self) -> String {
        inbox::name(&self.container, &self.ifname)
    }
}

impl Request {
    /// Returns the name of the file in which the request is left when no daemon answers; `None` if
    /// it is not left.
    #[must_use]
    pub fn todo_name(&self) -> Option<String> {
        match self {
            Request::Release(owner) => Some(owner.hash()),
            // GC's list is valid only at the time of the call: an ADD may follow.
            Request::Collect(_) | Request::Assign(_) | Request::Held(_) | Request::Status(_) => {
                None
            }
        }
    }
}

message!(Request, VERSION, {
    assign: Assign(AssignRequest),
    release: Release(Owner),
    held: Held(HeldRequest),
    collect: Collect(CollectRequest),
    status: Status(StatusRequest),
}, {});

message!(Answer, VERSION, {
    assigned: Assigned(Vec<AssignedAddress>),
    refused: Refused(Refusal),
}, { ok: Ok });

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Self {
        Answer::Refused(refusal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Message;

    #[track_caller]
    fn requests(text: &str, request: &Request) {
        let line = request.to_line().unwrap();
        assert_eq!(String::from_utf8(line.clone()).unwrap(), format!("{text}\n"));
        assert_eq!(Request::from_line(&line).unwrap(), *request);
    }

    #[track_caller]
    fn answers(text: &str, answer: &Answer) {
        let line = answer.to_line().unwrap();
        assert_eq!(String::from_utf8(line.clone()).unwrap(), format!("{text}\n"));
        assert_eq!(Answer::from_line(&line).unwrap(), *answer);
    }

    fn owner() -> Owner {
        Owner { container: "c1".into(), ifname: "net1".into(), ..Owner::default() }
    }

    #[test]
    fn what_the_plugin_says() {
        let pod = Pod { namespace: "ns".into(), name: "web-0".into(), uid: "7".into() };
        let mut network = NetworkSpec::new("blue");
        let mut range: RangeSpec = "192.0.2.10-192.0.2.20/24".parse().unwrap();
        range.exclude = vec!["192.0.2.12/32".parse().unwrap()];
        range.gateway = Some("192.0.2.1".parse().unwrap());
        network.ranges = vec![range, "2001:db8::/64".parse().unwrap()];
        network.sticky = true;
        requests(
            r#"{"version":1,"assign":{"network":{"network":"blue","overlapping":true,"ranges":[{"subnet":"192.0.2.0/24","first":"192.0.2.10","last":"192.0.2.20","exclude":["192.0.2.12/32"],"gateway":"192.0.2.1"},{"subnet":"2001:db8::/64"}],"sticky":true},"owner":{"container":"c1","ifname":"net1","netns":"/run/netns/c1","pod":{"namespace":"ns","name":"web-0","uid":"7"}},"wanted":["192.0.2.15"]}}"#,
            &Request::Assign(AssignRequest {
                network,
                owner: Owner { netns: "/run/netns/c1".into(), pod: Some(pod), ..owner() },
                wanted: vec!["192.0.2.15".parse().unwrap()],
            }),
        );
        requests(
            r#"{"version":1,"held":{"network":{"network":"blue","overlapping":true,"ranges":[]},"owner":{"container":"c1","ifname":"net1"}}}"#,
            &Request::Held(HeldRequest { network: NetworkSpec::new("blue"), owner: owner() }),
        );
        requests(
            r#"{"version":1,"collect":{"network":"blue","valid":[{"containerID":"c1","ifname":"net1"}]}}"#,
            &Request::Collect(CollectRequest {
                network: "blue".into(),
                valid: vec![GcAttachment { container_id: "c1".into(), ifname: "net1".into() }],
            }),
        );
        requests(
            r#"{"version":1,"status":{"network":{"network":"blue","overlapping":true,"ranges":[]}}}"#,
            &Request::Status(StatusRequest { network: NetworkSpec::new("blue") }),
        );
    }

    #[test]
    fn what_the_daemon_answers() {
        answers(
            r#"{"version":1,"assigned":[{"address":"192.0.2.15/24","gateway":"192.0.2.1"},{"address":"2001:db8::1/64"}]}"#,
            &Answer::Assigned(vec![
                AssignedAddress {
                    address: "192.0.2.15/24".parse().unwrap(),
                    gateway: Some("192.0.2.1".parse().unwrap()),
                },
                AssignedAddress { address: "2001:db8::1/64".parse().unwrap(), gateway: None },
            ]),
        );
        answers(r#"{"version":1,"assigned":[]}"#, &Answer::Assigned(Vec::new()));
        answers(r#"{"version":1,"ok":{}}"#, &Answer::Ok);
    }

    #[test]
    fn what_is_left_has_a_file_for_each_attachment() {
        let release = Request::Release(owner());
        assert_eq!(release.todo_name(), Some(owner().hash()));
        let other = Owner { netns: "/x".into(), ..owner() };
        assert_eq!(other.hash(), owner().hash());
        let held = Request::Held(HeldRequest::default());
        assert_eq!(held.todo_name(), None);
    }

    #[test]
    fn what_is_no_message() {
        let refused = |line: &str| Request::from_line(line.as_bytes()).unwrap_err().to_string();
        assert_eq!(refused(r#"{"version":1}"#), "a message without a known key");
        assert_eq!(refused("{}"), "a message of version 0; this is version 1");
        assert!(
            refused(r#"{"version":1,"assign":{"network":{"ranges":[{"subnet":"tea"}]}}}"#)
                .starts_with("not a message: assign.network.ranges[0].subnet: "),
        );
    }
}
