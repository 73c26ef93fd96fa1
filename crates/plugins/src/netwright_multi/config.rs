//! The keys: those of Multus that apply here, and a few of our own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cni::json::Object;
use cni::{NetworkList, code};
use cni_plugin::Call;
use cni_runtime::{ConfigFolder, LoadError};
use node_api::multinet::{PlannedNetwork, SOCKET, Settings};
use node_api::socket_in;
use npwg::annotation::PodRequest;
use npwg::definition;
use npwg::device;
use npwg::request::UnservedPolicy;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::shared::failure::Failure;

/// The capability by which runtimes say what annotations a pod has (containerd, CRI-O).
pub const POD_ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

/// The keys that Multus reads and this plugin ignores, with the reason.
pub(super) const IGNORED: &[(&str, &str)] = &[
    ("kubeconfig", "the plugin has no credentials: netwrightd multinet does"),
    ("cniDir", STATE),
    ("retryDeleteOnError", "what could not be removed is always kept for another try"),
    ("logFile", LOG),
    ("logLevel", LOG),
    ("logToStderr", LOG),
    ("logOptions", LOG),
    ("socketDir", "\"socket\" says where the daemon listens"),
];

const LOG: &str =
    "the plugin logs to standard error, which the runtime keeps; NETWRIGHT_LOG says how much";
const STATE: &str = "what is known of attachments is where all our plugins keep it";

/// The keys as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Raw {
    runtime_config: Option<Object>,
    conf_dir: Option<PathBuf>,
    bin_dir: Option<PathBuf>,
    cluster_network: Option<String>,
    delegates: Vec<Object>,
    default_networks: Option<Vec<String>>,
    system_namespaces: Option<Vec<String>>,
    multus_namespace: Option<String>,
    namespace_isolation: Option<bool>,
    global_namespaces: Option<Namespaces>,
    readinessindicatorfile: Option<PathBuf>,
    /// The socket on which the daemon listens.
    socket: Option<PathBuf>,
    /// The folder of device information files.
    device_info_dir: Option<PathBuf>,
    /// Whether requests that no plugin of a network can serve are ignored, as with Multus.
    pass_over_unserved: bool,
    /// Whether pods that ask for no network start with the default network while there is no
    /// daemon. `netwrightd multinet` sets it if its answer for such pods would be the same.
    plain_pods_without_daemon: bool,
    /// ADD: also attach the running pod to this ([`node_api::multinet::ATTACH`]).
    #[serde(rename = "netwright/attach")]
    attach: Option<PlannedNetwork>,
    /// DEL: detach the running pod from the network of this interface ([`node_api::multinet::DETACH`]).
    #[serde(rename = "netwright/detach")]
    detach: Option<String>,
    // Keys of Multus without an effect here: the plugin has no credentials and no log file, and its
    // state is in our folder.
    #[serde(rename = "kubeconfig")]
    _kubeconfig: Option<IgnoredAny>,
    #[serde(rename = "cniDir")]
    _cni_dir: Option<IgnoredAny>,
    #[serde(rename = "logFile")]
    _log_file: Option<IgnoredAny>,
    #[serde(rename = "logLevel")]
    _log_level: Option<IgnoredAny>,
    #[serde(rename = "logToStderr")]
    _log_to_stderr: Option<IgnoredAny>,
    #[serde(rename = "logOptions")]
    _log_options: Option<IgnoredAny>,
    #[serde(rename = "retryDeleteOnError")]
    _retry_delete_on_error: Option<IgnoredAny>,
    #[serde(rename = "socketDir")]
    _socket_dir: Option<IgnoredAny>,
}

/// A list, or, as with Multus, a text with commas.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Namespaces {
    List(Vec<String>),
    Text(String),
}

/// The checked configuration.
#[derive(Debug)]
pub(super) struct Config {
    /// The settings that the daemon follows.
    pub(super) settings: Settings,
    /// What the runtime requests of the default network.
    pub(super) runtime_config: Option<Object>,
    /// What to do about requests that no plugin can serve.
    pub(super) unserved: UnservedPolicy,
    /// Whether pods that ask for no network need no daemon.
    pub(super) plain_pods: bool,
    /// The socket on which the daemon listens.
    pub(super) socket: PathBuf,
    /// The folder of device information files.
    pub(super) device_info: PathBuf,
    /// The file that must exist before anything is attached.
    pub(super) readiness: Option<PathBuf>,
    /// The folders in which plugins are looked up.
    pub(super) plugin_path: Vec<PathBuf>,
    /// The network to which the running pod is attached in addition.
    pub(super) attach: Option<PlannedNetwork>,
    /// The interface to remove from the running pod.
    pub(super) detach: Option<String>,
    folders: Vec<PathBuf>,
    written: Option<NetworkList>,
}

impl Config {
    pub(super) fn of(call: &Call<'_>) -> Result<Self, Failure> {
        let raw: Raw = call.read_config()?;
        let written = match raw.delegates.as_slice() {
            [] => None,
            [one] => Some(written(call, one)?),
            [_, ..] => {
                return Err(invalid("\"delegates\" holds more than the default network")
                    .with_details("name further networks of every pod in \"defaultNetworks\""));
            }
        };
        match (&raw.cluster_network, &written) {
            (None, None) if raw.attach.is_none() && raw.detach.is_none() => {
                return Err(invalid(
                    "needs \"clusterNetwork\": the name of the network every pod has",
                ));
            }
            (Some(_), Some(_)) => {
                return Err(invalid(
                    "has \"clusterNetwork\" and \"delegates\": which is the default network?",
                ));
            }
            (Some(name), None) if name.is_empty() => {
                return Err(invalid("\"clusterNetwork\" is empty"));
            }
            _ => {}
        }
        let mut plugin_path = call.env().plugin_path();
        if let Some(dir) = raw.bin_dir {
            plugin_path.retain(|known| *known != dir);
            plugin_path.insert(0, dir);
        }
        let folders = match raw.conf_dir {
            Some(dir) => vec![dir],
            None => npwg::CONF_DIRS.map(PathBuf::from).to_vec(),
        };
        let split = |text: &str| {
            let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
            names.map(str::to_owned).collect()
        };
        let global_namespaces = raw.global_namespaces.map(|namespaces| match namespaces {
            Namespaces::List(list) => list,
            Namespaces::Text(text) => split(&text),
        });
        Ok(Config {
            settings: Settings {
                cluster_network: raw.cluster_network,
                default_networks: raw.default_networks,
                system_namespaces: raw.system_namespaces,
                multus_namespace: raw.multus_namespace.filter(|namespace| !namespace.is_empty()),
                namespace_isolation: raw.namespace_isolation,
                global_namespaces,
            },
            runtime_config: raw.runtime_config,
            unserved: if raw.pass_over_unserved {
                UnservedPolicy::PassOver
            } else {
                UnservedPolicy::Refuse
            },
            plain_pods: raw.plain_pods_without_daemon,
            socket: raw.socket.unwrap_or_else(|| socket_in(&call.roots().run, SOCKET)),
            device_info: raw.device_info_dir.unwrap_or_else(|| device::FOLDER.into()),
            readiness: raw.readinessindicatorfile.filter(|file| !file.as_os_str().is_empty()),
            plugin_path,
            attach: raw.attach,
            detach: raw.detach,
            folders,
            written,
        })
    }

    /// Reports whether a pod starts with the default network while there is no daemon: the runtime
    /// says what annotations the pod has, and none asks for a network.
    pub(super) fn is_plain(&self, namespace: &str, ifname: &str) -> bool {
        let given = self.runtime_config.as_ref().and_then(|given| given.get(POD_ANNOTATIONS));
        // One without any has null.
        let read = |given: &RawValue| serde_json::from_str::<Option<_>>(given.get()).ok();
        let Some(annotations) = given.and_then(read) else { return false };
        let annotations = annotations.unwrap_or_default();
        let of_all = self.settings.default_networks.as_ref().is_some_and(|all| !all.is_empty());
        let asked = PodRequest::read(&annotations, namespace, namespace, ifname);
        self.plain_pods && !of_all && asked.is_ok_and(|asked| asked == PodRequest::default())
    }

    /// Returns the default network, if the node has it; `None` if only the cluster does.
    ///
    /// # Errors
    /// Code 7 when its file cannot be used, 11 when it is being written.
    pub(super) fn default_network(&self) -> Result<Option<NetworkList>, Failure> {
        if let Some(list) = &self.written {
            return Ok(Some(list.clone()));
        }
        let name = self.settings.cluster_network.as_deref().unwrap_or_default();
        self.look_up(name)
    }

    /// Returns the network of this name, or of this file, on the node.
    ///
    /// # Errors
    /// Code 7 when there is none or its file cannot be used, 11 when it is being written.
    pub(super) fn on_node(&self, name: &str) -> Result<NetworkList, Failure> {
        self.look_up(name)?.ok_or_else(|| {
            let folders: Vec<_> =
                self.folders.iter().map(|dir| dir.display().to_string()).collect();
            invalid(format!("no network {name:?} in {}", folders.join(", ")))
                .with_details("\"confDir\" says where networks are")
        })
    }

    fn look_up(&self, name: &str) -> Result<Option<NetworkList>, Failure> {
        let path = Path::new(name);
        if path.is_absolute() {
            if path.is_dir() {
                return Err(invalid(format!("network {name:?} is a folder"))
                    .with_details("networks are chosen by name: name the one that is meant"));
            }
            let list = cni_runtime::load_file(path);
            return list.map(Some).map_err(|refusal| invalid(refusal.to_string()));
        }
        let mut unfinished = None;
        for folder in &self.folders {
            let scanned = ConfigFolder::scan(folder)?;
            match scanned.find(name) {
                Ok(list) => return refuse_ourselves(list.clone()).map(Some),
                Err(LoadError::NotFound { .. }) => {}
                Err(error @ LoadError::Unfinished { .. }) => unfinished = Some(error.into()),
                Err(error) => return Err(error.into()),
            }
        }
        unfinished.map_or(Ok(None), Err)
    }
}

/// Reads a configuration from the daemon or from the plugin's own. Its name is its own, else the
/// plugin's; so is its version.
///
/// # Errors
/// Code 7 when it is invalid.
pub(super) fn written(call: &Call<'_>, object: &Object) -> Result<NetworkList, Failure> {
    let mut object = object.clone();
    if object.get("cniVersion").is_none() {
        object.set_value("cniVersion", call.version().as_str());
    }
    let text = String::from_utf8_lossy(&object.to_vec()).into_owned();
    let list = definition::list(call.network().as_str(), &text, &super::is_called_by)
        .map_err(|error| invalid(error.to_string().replace("spec.config", "configuration")))?;
    Ok(NetworkList::parse(&list.to_vec())?)
}

/// Returns a network unless its plugins would attach the pod's networks again.
///
/// # Errors
/// Code 7 for one that does.
pub(super) fn refuse_ourselves(list: NetworkList) -> Result<NetworkList, Failure> {
    if list.plugins.iter().any(|plugin| super::is_called_by(&plugin.plugin_type)) {
        let text = format!("network {:?} would attach the pod's networks again", list.name);
        return Err(invalid(text).with_details("name the network that is meant to be the default"));
    }
    Ok(list)
}

/// Returns values by capability.
pub(super) fn values(object: &Object) -> BTreeMap<String, Box<RawValue>> {
    cni::order::gather(object.iter().map(|(key, value)| (key.to_owned(), value.to_owned())))
}

pub(super) fn invalid(text: impl Into<String>) -> Failure {
    Failure::new(code::INVALID_CONFIG, text)
}
