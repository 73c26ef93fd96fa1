//! What is written down of a pod's networks: all that DEL, CHECK and GC need.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cni::{Error, IfName, code};
use cni_plugin::codes;
use npwg::wire::Pod;
use serde::{Deserialize, Serialize};

use super::config::Config;
use super::plan::Plan;
use crate::multi::default_route::DefaultRoute;
use crate::multi::members::Fact;

/// How long one waits who changes what a pod is attached to for another who does.
const PATIENCE: Duration = Duration::from_secs(30);
/// The pause between looks.
const PAUSE: Duration = Duration::from_millis(5);

/// What is written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Facts {
    /// In the order of ADD.
    pub(super) members: Vec<Fact>,
    /// What is known of each beside.
    #[serde(default)]
    pub(super) networks: Vec<Known>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) default_route: Option<DefaultRoute>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pod: Option<Pod>,
    /// Where the daemon listens.
    pub(super) socket: PathBuf,
}

/// What is known of one network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Known {
    /// The interface.
    pub(super) ifname: IfName,
    /// How the status calls it.
    pub(super) name: String,
    /// Whether it is to have no default route.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) without_default: bool,
    /// The file that tells of its device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) device_file: Option<PathBuf>,
}

impl Facts {
    pub(super) fn of(plan: &Plan, pod: Option<Pod>, config: &Config) -> Result<Self, Error> {
        let known = |(member, network): (&cni_runtime::Member, &super::plan::Network)| Known {
            ifname: member.attachment.ifname.clone(),
            name: network.name.clone(),
            without_default: network.without_default,
            device_file: network.device.as_ref().map(|device| device.path.clone()),
        };
        Ok(Facts {
            members: plan.members.iter().map(Fact::of).collect::<Result<_, _>>()?,
            networks: plan.members.iter().zip(&plan.networks).map(known).collect(),
            default_route: plan.default_route.clone(),
            pod,
            socket: config.socket.clone(),
        })
    }
}

/// Keeps others from changing what a pod is attached to, until it is dropped.
///
/// The lock is on the folder of what the pod's networks were (`man 2 flock`), which goes with them; `None` when there is none. It is not the
/// attachment's own lock, which the plugins of its networks take.
///
/// # Errors
/// Code 11 when another holds it too long, 105 when it cannot be asked for.
pub(super) fn lock(folder: &Path) -> Result<Option<File>, Error> {
    let failed = |error: &std::io::Error| {
        Error::from_chain(codes::STATE, error).context(format_args!("lock {}", folder.display()))
    };
    let file = match File::open(folder) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(&error)),
    };
    let end = Instant::now() + PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::Error(error)) => return Err(failed(&error)),
            Err(TryLockError::WouldBlock) if end <= Instant::now() => {
                let text = format!("{} is held by another call", folder.display());
                return Err(Error::new(code::TRY_AGAIN_LATER, text));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
        }
    }
}
