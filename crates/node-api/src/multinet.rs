//! The protocol between the plugin `netwright-multi` and `netwrightd`.
//!
//! The plugin connects to a Unix socket ([`SOCKET`]), which only root may use, and sends requests;
//! the daemon answers each message with one. [`crate::line`] defines the form of a message.
//!
//! | request of the plugin | when | answer of the daemon |
//! |---|---|---|
//! | [`Request::Plan`] | at ADD, before anything is created | [`Answer::Plan`] or [`Answer::Refused`] |
//! | [`Request::Attached`] | at ADD, when every network is attached | [`Answer::Ok`], or [`Answer::Refused`]: then the ADD is undone |
//! | [`Request::Failed`] | at ADD, when it was undone | [`Answer::Ok`] |
//! | [`Request::Detached`] | at DEL, when nothing is left | [`Answer::Ok`] |
//! | [`Request::Status`] | at STATUS | [`Answer::Ok`] or [`Answer::Refused`] |
//!
//! [`Request::Attached`], [`Request::Failed`] and [`Request::Detached`] do not depend on an answer: a
//! plugin that reaches no daemon leaves the message in the daemon's [inbox], in one
//! file per sandbox ([`Request::todo_name`]) that contains the line as it would have been sent. A
//! later message about the same sandbox replaces it.
//!
//! # While a pod runs
//!
//! The daemon attaches and detaches single networks of a running pod by calling the plugin
//! `netwright-multi` for its sandbox. ADD has a [`PlannedNetwork`] under the key [`ATTACH`], and
//! its result is that network's; DEL has an interface's name under [`DETACH`]. The plugin does not
//! report these calls to the daemon.
//!
//! ```
//! use netwright_node_api::multinet::{PlanRequest, Request, Sandbox};
//! use netwright_node_api::{LineError, Message, Pod};
//!
//! let asked = Request::Plan(PlanRequest {
//!     sandbox: Sandbox { container: "c1".into(), ifname: "eth0".into(), netns: "/run/netns/c1".into() },
//!     pod: Some(Pod { namespace: "default".into(), name: "web-0".into(), uid: String::new() }),
//!     ..PlanRequest::default()
//! });
//! let line = asked.to_line()?;
//! assert!(line.ends_with(b"\n"));
//! assert_eq!(Request::from_line(&line)?, asked);
//! # Ok::<(), LineError>(())
//! ```

use std::collections::BTreeMap;
use std::net::IpAddr;

use cni::json::Object;
use serde::{Deserialize, Serialize};

use crate::line::{is_false, message};
use crate::{Pod, Refusal, inbox};

/// The version of these messages.
pub const VERSION: u32 = 1;

/// Where the daemon listens.
pub const SOCKET: &str = "/run/netwright/multinet.sock";

/// The configuration key with which ADD gets one more network for a sandbox that already has some.
pub const ATTACH: &str = "netwright/attach";

/// The configuration key with which DEL gets the one interface of a sandbox to remove.
pub const DETACH: &str = "netwright/detach";

/// A request from the plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Which networks does this sandbox get?
    Plan(PlanRequest),
    /// The sandbox has its networks.
    Attached(AttachReport),
    /// The sandbox has none: one could not be attached.
    Failed(FailureReport),
    /// The sandbox no longer has any.
    Detached(DetachReport),
    /// Could [`Request::Plan`] be answered?
    Status,
}

/// An answer from the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// To [`Request::Plan`]: these networks.
    Plan(Plan),
    /// A refusal, with the reason.
    Refused(Refusal),
    /// The request was carried out.
    Ok,
}

/// The runtime's view of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sandbox {
    /// `CNI_CONTAINERID`.
    pub container: String,
    /// `CNI_IFNAME`: the default network's interface.
    pub ifname: String,
    /// `CNI_NETNS`; may be empty, or lead nowhere, at DEL.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub netns: String,
}

/// [`Request::Plan`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PlanRequest {
    /// The sandbox to attach.
    pub sandbox: Sandbox,
    /// The pod it belongs to; `None` if the runtime names no pod: then it gets only the default
    /// network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
    /// The plugin's configuration.
    pub settings: Settings,
    /// The `runtimeConfig` from the runtime. It belongs to the default network and need not be
    /// returned; a daemon may read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_config: Option<Object>,
}

/// The part of the plugin's configuration that the daemon must follow. For absent values the
/// daemon's own apply.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Settings {
    /// The default network: `[namespace/]name` of a definition (in [`Settings::multus_namespace`]
    /// by default), or the name of a network on the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_network: Option<String>,
    /// Further networks for every pod outside [`Settings::system_namespaces`]; named the same way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_networks: Option<Vec<String>>,
    /// The namespaces whose pods get no [`Settings::default_networks`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_namespaces: Option<Vec<String>>,
    /// Where definitions of [`Settings::cluster_network`] and [`Settings::default_networks`] are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multus_namespace: Option<String>,
    /// Whether pods may use only definitions of their own namespace and of
    /// [`Settings::global_namespaces`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_isolation: Option<bool>,
    /// The namespaces whose definitions every pod may use, in addition to `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global_namespaces: Option<Vec<String>>,
}

impl Settings {
    fn is_default(&self) -> bool {
        *self == Settings::default()
    }
}

/// [`Answer::Plan`]: the networks of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Plan {
    /// The pod's UID in the API; empty if there is no pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// In the order of ADD. The first is the default network and the only one with
    /// [`PlannedNetwork::default`].
    pub networks: Vec<PlannedNetwork>,
}

/// One network of a [`Plan`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PlannedNetwork {
    /// Its name in the status: `<namespace>/<name>` of its definition, else the name of a network
    /// on the node.
    pub name: String,
    /// Whether it is the default network.
    #[serde(skip_serializing_if = "is_false")]
    pub default: bool,
    /// Its configuration: a network list with a name. If absent, the node has it, see
    /// [`PlannedNetwork::on_node`]. If that is empty too, the default network is the one that the
    /// plugin's configuration names or contains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub list: Option<Object>,
    /// The name of a network that the plugin finds in its `confDir`, if there is no
    /// [`PlannedNetwork::list`].
    #[serde(skip_serializing_if = "String::is_empty")]
    pub on_node: String,
    /// The requested interface; absent: [`Sandbox::ifname`] for the default network, `net` and its
    /// position for others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ifname: Option<String>,
    /// The requests by capability: `ips`, `mac`, `portMappings`, `bandwidth`, `infinibandGUID`. The
    /// plugin refuses what no plugin of the network can serve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_config: Option<Object>,
    /// `cni-args`: merged into `args.cni` of every plugin of the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cni_args: Option<Object>,
    /// Further pairs for `CNI_ARGS`, such as `IP` and `MAC`, which Multus passes too.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub args: BTreeMap<String, String>,
    /// Its device. An allocated device becomes `deviceID` and `pciBusID` of every plugin, and
    /// `deviceID` of `runtimeConfig`. A device that the pod chose becomes only `deviceID` of
    /// `runtimeConfig`, which the plugin refuses if no plugin of the network has the capability.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
    /// `default-route`: absent if not requested; empty for no default route by this network; else
    /// the gateways of the pod's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_route: Option<Vec<IpAddr>>,
}

/// A device of a network (NPWG "Device Information Specification" 1.1.0).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Device {
    /// Its ID, as its device plugin names it.
    pub id: String,
    /// The resource from which it was allocated, such as `vendor.example/nic`; empty if it was not
    /// allocated: the annotation named it, and a rule granted it. The plugin finds the device
    /// plugin's file by both.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource: String,
}

/// [`Request::Attached`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AttachReport {
    /// The attached sandbox.
    pub sandbox: Sandbox,
    /// The pod it belongs to, with [`Plan::uid`].
    pub pod: Pod,
    /// The result of each network, in the order of ADD.
    pub results: Vec<NetworkResult>,
    /// [`PlanRequest::settings`], which the daemon follows while the pod runs, too.
    #[serde(skip_serializing_if = "Settings::is_default")]
    pub settings: Settings,
}

/// The result of a network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NetworkResult {
    /// [`PlannedNetwork::name`].
    pub name: String,
    /// The interface.
    pub ifname: String,
    /// Whether it is the default network.
    #[serde(skip_serializing_if = "is_false")]
    pub default: bool,
    /// The result of ADD, with its `cniVersion`. It contains only those default routes that exist.
    pub result: Object,
    /// The content of its device information file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_info: Option<Object>,
}

/// [`Request::Failed`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FailureReport {
    /// The sandbox that could not be attached.
    pub sandbox: Sandbox,
    /// The pod it belongs to.
    pub pod: Pod,
    /// [`PlannedNetwork::name`] of the network that failed; empty if none of them did.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network: String,
    /// The code with which ADD failed.
    pub code: u32,
    /// The reason: the text of the pod's Event.
    pub msg: String,
    /// More.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub details: String,
}

/// [`Request::Detached`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DetachReport {
    /// The sandbox that was attached.
    pub sandbox: Sandbox,
    /// The pod it belonged to, as far as still known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
}

impl Request {
    /// Returns the sandbox it is about.
    #[must_use]
    pub fn sandbox(&self) -> Option<&Sandbox> {
        match self {
            Request::Plan(plan) => Some(&plan.sandbox),
            Request::Attached(attached) => Some(&attached.sandbox),
            Request::Failed(failed) => Some(&failed.sandbox),
            Request::Detached(detached) => Some(&detached.sandbox),
            Request::Status => None,
        }
    }

    /// Returns the name of the file in which the request is left when no daemon answers; `None` if
    /// it is not left.
    #[must_use]
    pub fn todo_name(&self) -> Option<String> {
        match self {
            Request::Plan(_) | Request::Status => None,
            _ => self.sandbox().map(|of| inbox::name(&of.container, &of.ifname)),
        }
    }
}

message!(Request, VERSION, {
    plan: Plan(PlanRequest),
    attached: Attached(AttachReport),
    failed: Failed(FailureReport),
    detached: Detached(DetachReport),
}, { status: Status });

message!(Answer, VERSION, { plan: Plan(Plan), refused: Refused(Refusal) }, { ok: Ok });

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Self {
        Answer::Refused(refusal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Message;
    use crate::line::{LineError, MAX_MESSAGE};

    fn object(text: &str) -> Object {
        Object::parse(text.as_bytes()).unwrap()
    }

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

    fn sandbox() -> Sandbox {
        Sandbox { container: "c1".into(), ifname: "eth0".into(), netns: "/run/netns/c1".into() }
    }

    fn pod() -> Pod {
        Pod { namespace: "ns".into(), name: "web".into(), uid: "7".into() }
    }

    #[test]
    fn what_the_plugin_says() {
        requests(
            r#"{"version":1,"plan":{"sandbox":{"container":"c1","ifname":"eth0","netns":"/run/netns/c1"},"pod":{"namespace":"ns","name":"web","uid":"7"},"settings":{"clusterNetwork":"cluster"},"runtimeConfig":{"mac":"02:00:00:00:00:01"}}}"#,
            &Request::Plan(PlanRequest {
                sandbox: sandbox(),
                pod: Some(pod()),
                settings: Settings {
                    cluster_network: Some("cluster".into()),
                    ..Settings::default()
                },
                runtime_config: Some(object(r#"{"mac":"02:00:00:00:00:01"}"#)),
            }),
        );
        requests(
            r#"{"version":1,"attached":{"sandbox":{"container":"c1","ifname":"eth0","netns":"/run/netns/c1"},"pod":{"namespace":"ns","name":"web","uid":"7"},"results":[{"name":"ns/a","ifname":"net1","result":{"cniVersion":"1.0.0"}}]}}"#,
            &Request::Attached(AttachReport {
                sandbox: sandbox(),
                pod: pod(),
                results: vec![NetworkResult {
                    name: "ns/a".into(),
                    ifname: "net1".into(),
                    result: object(r#"{"cniVersion":"1.0.0"}"#),
                    ..NetworkResult::default()
                }],
                ..AttachReport::default()
            }),
        );
        requests(
            r#"{"version":1,"failed":{"sandbox":{"container":"c1","ifname":"eth0","netns":"/run/netns/c1"},"pod":{"namespace":"ns","name":"web","uid":"7"},"network":"ns/a","code":7,"msg":"no"}}"#,
            &Request::Failed(FailureReport {
                sandbox: sandbox(),
                pod: pod(),
                network: "ns/a".into(),
                code: 7,
                msg: "no".into(),
                details: String::new(),
            }),
        );
        requests(
            r#"{"version":1,"detached":{"sandbox":{"container":"c1","ifname":"eth0"}}}"#,
            &Request::Detached(DetachReport {
                sandbox: Sandbox { netns: String::new(), ..sandbox() },
                pod: None,
            }),
        );
        requests(r#"{"version":1,"status":{}}"#, &Request::Status);
    }

    #[test]
    fn what_the_daemon_answers() {
        let network = PlannedNetwork {
            name: "ns/a".into(),
            list: Some(object(r#"{"name":"a","plugins":[{"type":"macvlan"}]}"#)),
            ifname: Some("data0".into()),
            runtime_config: Some(object(r#"{"ips":["192.0.2.5/24"]}"#)),
            default_route: Some(vec!["192.0.2.1".parse().unwrap()]),
            device: Some(Device {
                id: "0000:03:02.1".into(),
                resource: "vendor.example/nic".into(),
            }),
            ..PlannedNetwork::default()
        };
        answers(
            r#"{"version":1,"plan":{"uid":"7","networks":[{"name":"cluster","default":true,"onNode":"cluster"},{"name":"ns/a","list":{"name":"a","plugins":[{"type":"macvlan"}]},"ifname":"data0","runtimeConfig":{"ips":["192.0.2.5/24"]},"device":{"id":"0000:03:02.1","resource":"vendor.example/nic"},"defaultRoute":["192.0.2.1"]}]}}"#,
            &Answer::Plan(Plan {
                uid: "7".into(),
                networks: vec![
                    PlannedNetwork {
                        name: "cluster".into(),
                        default: true,
                        on_node: "cluster".into(),
                        ..PlannedNetwork::default()
                    },
                    network,
                ],
            }),
        );
        answers(
            r#"{"version":1,"refused":{"code":11,"msg":"the API server does not answer","retry":true}}"#,
            &Answer::Refused(Refusal::for_now("the API server does not answer")),
        );
        answers(r#"{"version":1,"ok":{}}"#, &Answer::Ok);
    }

    #[test]
    fn a_message_is_one_line_whatever_it_holds() {
        let result = object("{\n\t\"cniVersion\": \"1.0.0\",\r\n\t\"ips\": [\n]\n}");
        let results = vec![NetworkResult { result, ..NetworkResult::default() }];
        let said = Request::Attached(AttachReport { results, ..AttachReport::default() });
        let line = said.to_line().unwrap();
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        Request::from_line(&line).unwrap();
    }

    #[test]
    fn what_is_no_message() {
        let refused = |line: &str| Answer::from_line(line.as_bytes()).unwrap_err().to_string();
        assert_eq!(
            refused("tea"),
            "not a message: tea is not a value of JSON: a text needs quotation marks at line 1 column 1"
        );
        assert_eq!(refused("{}"), "a message of version 0; this is version 1");
        assert_eq!(
            refused(r#"{"version":2,"plan":"tea"}"#),
            "a message of version 2; this is version 1"
        );
        assert_eq!(refused(r#"{"version":1}"#), "a message without a known key");
        assert_eq!(
            refused(r#"{"version":1,"ok":{},"refused":{}}"#),
            "a message without a known key"
        );
        assert_eq!(
            refused(r#"{"version":1,"plan":{"networks":[{"defaultRoute":["tea"]}]}}"#),
            "not a message: plan.networks[0].defaultRoute[0]: invalid IP address syntax at line 1 column 51"
        );
        let long = vec![b' '; MAX_MESSAGE + 1];
        assert_eq!(Answer::from_line(&long), Err(LineError::TooLong(MAX_MESSAGE + 1)));
    }

    #[test]
    fn keys_of_newer_versions_are_passed_over() {
        let line = br#"{"version":1,"plan":{"weather":"fine","networks":[{"name":"a","colour":1}]},"id":3}"#;
        let Answer::Plan(plan) = Answer::from_line(line).unwrap() else { panic!("a plan") };
        assert_eq!(plan.networks[0].name, "a");
    }

    #[test]
    fn each_sandbox_has_one_file_to_leave_messages_in() {
        let detached = Request::Detached(DetachReport { sandbox: sandbox(), pod: None });
        let failed =
            Request::Failed(FailureReport { sandbox: sandbox(), ..FailureReport::default() });
        assert_eq!(detached.todo_name(), failed.todo_name());
        assert_eq!(detached.todo_name().unwrap().len(), 32);
        assert_eq!(Request::Status.todo_name(), None);
    }
}
