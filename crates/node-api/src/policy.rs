//! The protocol between the plugin `policy` and `netwrightd policy`, and what the plugin records.
//!
//! The plugin connects to a Unix socket ([`SOCKET`]), which only root may use, and sends requests;
//! the daemon answers each message with one. [`crate::line`] defines the form of a message.
//!
//! | request of the plugin | when | answer of the daemon |
//! |---|---|---|
//! | [`Request::Start`] | at ADD and repair, when the record is written and the addresses are closed | [`Answer::Enforced`] or [`Answer::Refused`] |
//! | [`Request::End`] | at DEL, when the link is down and before the record goes | [`Answer::Ok`], also if nothing is known of it, when connection tracking has forgotten the connections of its addresses; or [`Answer::Refused`] |
//! | [`Request::Verdicts`] | at CHECK | [`Answer::Enforced`] or [`Answer::Refused`] |
//! | [`Request::Collect`] | at GC, when the stale records are gone | [`Answer::Ok`] or [`Answer::Refused`] |
//! | [`Request::Status`] | at STATUS | [`Answer::Ok`] or [`Answer::Refused`] |
//!
//! Records say which addresses of which pods are on this node; messages only make the daemon look
//! at once. So no message is left for a daemon that is absent: it lists the records
//! ([`AttachmentRecord`]) when it starts.
//!
//! # Order
//!
//! Plugin and daemon write the packet filter and list the records under the lock [`LOCK`]. ADD
//! takes it, closes its addresses (they lead to the chains of unknown pods, and no longer to any
//! other chain), writes its record, and releases the lock. Then it sends [`Request::Start`],
//! without the lock. So when that request arrives, the addresses are closed, and the daemon must
//! not expect the verdicts that it wrote before. The request is idempotent. The daemon answers it
//! without waiting for a server, except in the moment after its start, when it waits for its first
//! lists. A pod that the daemon does not know yet stays closed ([`Enforcement::known`]).
//!
//! [`Request::End`] comes while the record is still there. From then on the daemon does not count
//! this record, until another [`Request::Start`] of the same owner.
//!
//! ```
//! use netwright_node_api::policy::{Owner, Request};
//! use netwright_node_api::{LineError, Message};
//!
//! let owner = Owner { network: "pods".into(), container: "c1".into(), ifname: "eth0".into(), ..Owner::default() };
//! let line = Request::End(owner.clone()).to_line()?;
//! assert_eq!(
//!     line,
//!     b"{\"version\":1,\"end\":{\"network\":\"pods\",\"container\":\"c1\",\"ifname\":\"eth0\"}}\n"
//! );
//! assert_eq!(Request::from_line(&line)?, Request::End(owner));
//! # Ok::<(), LineError>(())
//! ```

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::line::message;
use crate::{Pod, Refusal};

/// The version of these messages.
pub const VERSION: u32 = 1;

/// Where the daemon listens.
pub const SOCKET: &str = "/run/netwright/policy.sock";

/// The plugin's type: the name of its records.
pub const PLUGIN: &str = "policy";

/// The name of the lock under which the table is written and the records are listed
/// (`state::Index::lock`).
pub const LOCK: &str = "policy";

/// Returns the file that exists from the moment the service was taken off the node until it starts
/// again, below the folder of our state (`state::Roots::lib`). ADD reads it where no daemon answers.
#[must_use]
pub fn taken_off(lib: &Path) -> PathBuf {
    lib.join("policy/taken-off")
}

/// The interface of a container's own network. Runtimes give the first network this name; the
/// programs that attach further networks give their interfaces other names.
pub const OWN_IFNAME: &str = "eth0";

/// Reports whether an interface of a container is that of a further network. MultiNetworkPolicies
/// are about these interfaces, and no other policies are.
#[must_use]
pub fn is_further(ifname: &str) -> bool {
    ifname != OWN_IFNAME
}

/// A request from the plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// An attachment has these addresses: give it the verdicts of its pod.
    Start(StartRequest),
    /// An attachment goes: take its verdicts away.
    End(Owner),
    /// Does the packet filter have what this attachment needs?
    Verdicts(Owner),
    /// Records have gone: list them.
    Collect(CollectRequest),
    /// Would an attachment that starts now get the verdicts of its pod?
    Status(StatusRequest),
}

/// An answer from the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// To [`Request::Start`] and [`Request::Verdicts`]: the kernel has the verdicts.
    Enforced(Enforcement),
    /// A refusal, with the reason. To [`Request::Verdicts`]: what differs.
    Refused(Refusal),
    /// The request was carried out.
    Ok,
}

/// The attachment that a request is about.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Owner {
    /// The network's name.
    pub network: String,
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

/// [`Request::Start`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StartRequest {
    /// The attachment.
    pub owner: Owner,
    /// Its addresses, sorted, each once.
    pub addresses: Vec<IpAddr>,
    /// The host's side of its link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// On a further network: the interface of this node at which the packet filter sees its
    /// packets. That is the bridge, or the host's side of the link if the host routes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meets: Option<String>,
    /// On a further network whose packets do not pass this node: they are judged in the container's
    /// own namespace, at its interface. Then the link has no side here.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub inside: bool,
    /// The labels that the runtime gave it (`args.cni.labels`). In a cluster those of the pod's
    /// object count, not these.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// [`Request::Collect`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CollectRequest {
    /// The network's name.
    pub network: String,
}

/// [`Request::Status`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatusRequest {
    /// The network's name.
    pub network: String,
}

/// [`Answer::Enforced`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Enforcement {
    /// Whether the pod is known. One that is not known is closed until it is.
    pub known: bool,
    /// Why it is not known, or what else its user should know: one sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
}

/// What the plugin records of an attachment: the data of its `state::Record`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AttachmentRecord {
    /// What ADD tells the daemon.
    pub started: StartRequest,
    /// The ifindex of the link's host side: a later link may have its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// The bridge whose port it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bridge: Option<String>,
}

message!(Request, VERSION, {
    start: Start(StartRequest),
    end: End(Owner),
    verdicts: Verdicts(Owner),
    collect: Collect(CollectRequest),
    status: Status(StatusRequest),
}, {});

message!(Answer, VERSION, {
    enforced: Enforced(Enforcement),
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
        let (network, container, ifname) = ("pods".into(), "c1".into(), "eth0".into());
        Owner { network, container, ifname, ..Owner::default() }
    }

    fn started() -> StartRequest {
        let pod = Pod { namespace: "ns".into(), name: "web-0".into(), uid: "7".into() };
        StartRequest {
            owner: Owner { netns: "/run/netns/c1".into(), pod: Some(pod), ..owner() },
            addresses: vec!["192.0.2.5".parse().unwrap(), "2001:db8::5".parse().unwrap()],
            interface: Some("veth1".into()),
            meets: None,
            inside: false,
            labels: BTreeMap::from([("app".to_owned(), "web".to_owned())]),
        }
    }

    #[test]
    fn what_the_plugin_says() {
        requests(
            r#"{"version":1,"start":{"owner":{"network":"pods","container":"c1","ifname":"eth0","netns":"/run/netns/c1","pod":{"namespace":"ns","name":"web-0","uid":"7"}},"addresses":["192.0.2.5","2001:db8::5"],"interface":"veth1","labels":{"app":"web"}}}"#,
            &Request::Start(started()),
        );
        requests(
            r#"{"version":1,"start":{"owner":{"network":"pods","container":"c1","ifname":"eth0"},"addresses":[]}}"#,
            &Request::Start(StartRequest { owner: owner(), ..StartRequest::default() }),
        );
        assert!(!is_further("eth0") && is_further("net1") && is_further("eth1"));
        let further = Owner { ifname: "net1".into(), ..owner() };
        let meets = Some("br1".to_owned());
        requests(
            r#"{"version":1,"start":{"owner":{"network":"pods","container":"c1","ifname":"net1"},"addresses":[],"meets":"br1"}}"#,
            &Request::Start(StartRequest {
                owner: further.clone(),
                meets,
                ..StartRequest::default()
            }),
        );
        requests(
            r#"{"version":1,"start":{"owner":{"network":"pods","container":"c1","ifname":"net1"},"addresses":[],"inside":true}}"#,
            &Request::Start(StartRequest {
                owner: further,
                inside: true,
                ..StartRequest::default()
            }),
        );
        requests(
            r#"{"version":1,"verdicts":{"network":"pods","container":"c1","ifname":"eth0"}}"#,
            &Request::Verdicts(owner()),
        );
        requests(
            r#"{"version":1,"collect":{"network":"pods"}}"#,
            &Request::Collect(CollectRequest { network: "pods".into() }),
        );
        requests(
            r#"{"version":1,"status":{"network":"pods"}}"#,
            &Request::Status(StatusRequest { network: "pods".into() }),
        );
    }

    #[test]
    fn what_the_daemon_answers() {
        let known = Enforcement { known: true, notice: None };
        answers(r#"{"version":1,"enforced":{"known":true}}"#, &Answer::Enforced(known));
        let notice = Some("the API does not answer".to_owned());
        answers(
            r#"{"version":1,"enforced":{"known":false,"notice":"the API does not answer"}}"#,
            &Answer::Enforced(Enforcement { known: false, notice }),
        );
        answers(r#"{"version":1,"ok":{}}"#, &Answer::Ok);
    }

    #[test]
    fn what_is_recorded() {
        let recorded =
            AttachmentRecord { started: started(), index: Some(7), bridge: Some("br0".to_owned()) };
        let text = serde_json::to_string(&recorded).unwrap();
        assert!(text.ends_with(r#""labels":{"app":"web"}},"index":7,"bridge":"br0"}"#), "{text}");
        assert_eq!(serde_json::from_str::<AttachmentRecord>(&text).unwrap(), recorded);
    }
}
