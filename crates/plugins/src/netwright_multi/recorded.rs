//! The record of a pod's networks: everything that DEL, CHECK and GC need.

use std::path::PathBuf;

use cni::IfName;
use node_api::Pod;
use serde::{Deserialize, Serialize};

use super::config::Config;
use super::plan::Plan;
use crate::multi::default_route::DefaultRoute;
use crate::multi::members::RecordedMember;
use crate::shared::failure::Failure;

/// The record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RecordData {
    /// In the order of ADD.
    pub(super) members: Vec<RecordedMember>,
    /// What else is known of each.
    #[serde(default)]
    pub(super) networks: Vec<NetworkRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) default_route: Option<DefaultRoute>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pod: Option<Pod>,
    /// The socket on which the daemon listens.
    pub(super) socket: PathBuf,
}

/// What else is known of one network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NetworkRecord {
    /// The interface.
    pub(super) ifname: IfName,
    /// Its name in the status.
    pub(super) name: String,
    /// Whether it must not have a default route.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) without_default: bool,
    /// The file that describes its device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) device_file: Option<PathBuf>,
}

impl RecordData {
    pub(super) fn of(plan: &Plan, pod: Option<Pod>, config: &Config) -> Result<Self, Failure> {
        let known =
            |(member, network): (&cni_runtime::Member, &super::plan::Network)| NetworkRecord {
                ifname: member.attachment.ifname.clone(),
                name: network.name.clone(),
                without_default: network.without_default,
                device_file: network.device.as_ref().map(|device| device.path.clone()),
            };
        Ok(RecordData {
            members: plan.members.iter().map(RecordedMember::of).collect::<Result<_, _>>()?,
            networks: plan.members.iter().zip(&plan.networks).map(known).collect(),
            default_route: plan.default_route.clone(),
            pod,
            socket: config.socket.clone(),
        })
    }
}
