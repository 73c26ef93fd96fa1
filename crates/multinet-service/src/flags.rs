//! The settings.

use std::path::{Path, PathBuf};

use agent::config::StatusForm;
use npwg::policy::Policy;
use npwg::status::Form;
use service_kit::command_line::Invocation;
use service_kit::stop::Stop;

use super::plan::Defaults;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flags {
    /// The folder of the node's networks, if not where the plugin looks by default.
    pub(super) conf_dir: Option<PathBuf>,
    pub(super) conflist: Option<PathBuf>,
    pub(super) checkpoint: PathBuf,
    pub(super) kubeconfig: Option<PathBuf>,
    pub(super) label_node: bool,
    pub(super) node: String,
    pub(super) path: Vec<PathBuf>,
    pub(super) socket: PathBuf,
    pub(super) status: Form,
    pub(super) defaults: Defaults,
}

/// The file of the key `config`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct File {
    cluster_network: Option<String>,
    default_networks: Option<Vec<String>>,
    system_namespaces: Option<Vec<String>>,
    multus_namespace: Option<String>,
    policy: Option<Policy>,
}

impl Flags {
    /// Returns the folders of the node's networks, which are also those of the plugin
    /// `netwright-multi`.
    pub(super) fn conf_dirs(&self) -> Vec<PathBuf> {
        match &self.conf_dir {
            Some(dir) => vec![dir.clone()],
            None => npwg::CONF_DIRS.map(PathBuf::from).to_vec(),
        }
    }

    /// Reads the settings. What the JSON file says applies where no key of the configuration does.
    pub(super) fn of(invocation: &Invocation) -> Result<Self, Stop> {
        let of = &invocation.config().multinet;
        let file = match &of.config {
            Some(path) => read(path)?,
            None => File::default(),
        };
        let sets = |name: &str| invocation.loaded.sets("multinet", name);
        let mut defaults = Defaults {
            cluster_network: of.cluster_network.clone(),
            default_networks: of.default_networks.clone(),
            system_namespaces: of.system_namespaces.clone(),
            multus_namespace: of.multus_namespace.clone(),
            policy: file.policy.unwrap_or_default(),
        };
        if !sets("cluster-network") {
            defaults.cluster_network = file.cluster_network;
        }
        if let (Some(names), false) = (file.default_networks, sets("default-networks")) {
            defaults.default_networks = names;
        }
        if let (Some(names), false) = (file.system_namespaces, sets("system-namespaces")) {
            defaults.system_namespaces = names;
        }
        if let (Some(name), false) = (file.multus_namespace, sets("multus-namespace")) {
            defaults.multus_namespace = name;
        }
        if sets("namespace-isolation") {
            defaults.policy.namespace_isolation = of.namespace_isolation;
        }
        Ok(Flags {
            conf_dir: of.confdir.clone(),
            conflist: of.conflist.clone(),
            checkpoint: of.checkpoint.clone(),
            kubeconfig: of.kubeconfig.clone(),
            label_node: of.label_node,
            node: of.node.clone().unwrap_or_default(),
            path: of.path.clone(),
            socket: of.socketpath.clone(),
            status: match of.status.0 {
                StatusForm::Library => Form::Library,
                StatusForm::Text => Form::Text,
            },
            defaults,
        })
    }
}

/// Reads the file of policy and defaults.
fn read(path: &Path) -> Result<File, Stop> {
    let wrong = |reason: String| {
        Stop::Usage(format!("error: [multinet] config: {}: {reason}\n", path.display()))
    };
    let text = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    serde_json::from_slice(&text)
        .map_err(|error| wrong(cni::json::explain(&text, &error).to_string()))
}
