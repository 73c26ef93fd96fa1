//! The flags.

use std::ffi::OsString;
use std::path::PathBuf;

use cni_invoke::PLUGIN_DIRS;
use npwg::policy::Policy;
use npwg::status::Form;

use super::super::arguments::{Arguments, FlagError};
use super::plan::Defaults;

/// What is printed for `-help`.
pub(crate) const HELP: &str = "\
Usage: netwrightd multinet -node NAME -cluster-network NAME [FLAG…]

Gives pods several networks: answers the plugin netwright-multi by what the API server has about pods and
NetworkAttachmentDefinitions, writes the status back, and attaches and detaches when a pod's annotation changes. See
docs/multi-network.md.

  -cluster-network NAME     the default network: [namespace/]name of a definition, or a network's name on the node
  -config FILE              policy and defaults, as JSON
  -confdir DIR              where networks of the node are (default /etc/cni/net.d and /etc/cni/multus/net.d)
  -conflist FILE            the CNI configuration; it is written in one step once pods can be served, and
                            never removed; without this flag none is written
  -default-networks LIST    more networks for every pod outside the system namespaces, separated by commas
  -checkpoint FILE          the kubelet's record of devices
                            (default /var/lib/kubelet/device-plugins/kubelet_internal_checkpoint)
  -kubeconfig FILE          how to reach the API server (default: as in a pod)
  -label-node               label this node with the networks that it can serve
  -multus-namespace NAME    where definitions named without a namespace above are (default kube-system)
  -namespace-isolation      pods may use definitions of their own namespace, of default, and of global namespaces only
  -node NAME                this node's name (default: $NODE_NAME)
  -path DIR[:DIR…]          where plugins are (default /opt/cni/bin:/usr/lib/cni:/usr/libexec/cni)
  -socketpath PATH          where to listen (default /run/netwright/multinet.sock)
  -status FORM              how the status is written: library, or text as in the standard's example (default library)
  -system-namespaces LIST   separated by commas (default kube-system)

One dash or two, values apart or after `=`.
";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flags {
    /// The folder of the node's networks, if not where the plugin looks by default.
    pub(super) conf_dir: Option<PathBuf>,
    pub(super) conflist: Option<PathBuf>,
    pub(super) checkpoint: PathBuf,
    pub(super) kubeconfig: Option<PathBuf>,
    pub(super) label_node: bool,
    pub(super) node: String,
    pub(super) path: String,
    pub(super) socket: PathBuf,
    pub(super) status: Form,
    pub(super) defaults: Defaults,
    pub(super) config: Option<PathBuf>,
}

/// The file of `-config`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct File {
    cluster_network: Option<String>,
    default_networks: Option<Vec<String>>,
    system_namespaces: Option<Vec<String>>,
    multus_namespace: Option<String>,
    policy: Option<Policy>,
}

impl Default for Flags {
    fn default() -> Self {
        Flags {
            conf_dir: None,
            conflist: None,
            checkpoint: super::devices::CHECKPOINT.into(),
            kubeconfig: None,
            label_node: false,
            node: String::new(),
            path: PLUGIN_DIRS.join(":"),
            socket: node_api::multinet::SOCKET.into(),
            status: Form::Library,
            defaults: Defaults {
                cluster_network: None,
                default_networks: Vec::new(),
                system_namespaces: vec!["kube-system".to_owned()],
                multus_namespace: "kube-system".to_owned(),
                policy: Policy::default(),
            },
            config: None,
        }
    }
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

    /// Reads the arguments after the service's name. What the file says applies where no flag does.
    pub(super) fn parse(arguments: &[OsString]) -> Result<Self, FlagError> {
        let mut first = Flags::default();
        first.take(arguments)?;
        let Some(path) = first.config.clone() else { return Ok(first) };
        let wrong = |reason: String| FlagError::Invalid {
            flag: "config".to_owned(),
            value: path.display().to_string(),
            reason,
        };
        let text = std::fs::read(&path).map_err(|error| wrong(error.to_string()))?;
        let file: File = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        let mut flags = Flags::default();
        let defaults = &mut flags.defaults;
        defaults.cluster_network = file.cluster_network;
        defaults.default_networks = file.default_networks.unwrap_or_default();
        if let Some(names) = file.system_namespaces {
            defaults.system_namespaces = names;
        }
        if let Some(name) = file.multus_namespace {
            defaults.multus_namespace = name;
        }
        defaults.policy = file.policy.unwrap_or_default();
        flags.take(arguments)?;
        Ok(flags)
    }

    fn take(&mut self, arguments: &[OsString]) -> Result<(), FlagError> {
        let mut arguments = Arguments::new(arguments);
        while let Some(name) = arguments.next()? {
            match name.as_str() {
                "cluster-network" => self.defaults.cluster_network = Some(arguments.value()?),
                "config" => self.config = Some(arguments.value()?.into()),
                "confdir" => self.conf_dir = Some(arguments.value()?.into()),
                "conflist" => self.conflist = Some(arguments.value()?.into()),
                "checkpoint" => self.checkpoint = arguments.value()?.into(),
                "default-networks" => self.defaults.default_networks = list(&arguments.value()?),
                "kubeconfig" => self.kubeconfig = Some(arguments.value()?.into()),
                "label-node" => self.label_node = arguments.switch()?,
                "multus-namespace" => self.defaults.multus_namespace = arguments.value()?,
                "namespace-isolation" => {
                    self.defaults.policy.namespace_isolation = arguments.switch()?;
                }
                "node" => self.node = arguments.value()?,
                "path" => self.path = arguments.value()?,
                "socketpath" => self.socket = arguments.value()?.into(),
                "status" => {
                    self.status = arguments.value_of("library or text", |text| match text {
                        "library" => Some(Form::Library),
                        "text" => Some(Form::Text),
                        _ => None,
                    })?;
                }
                "system-namespaces" => {
                    self.defaults.system_namespaces = list(&arguments.value()?);
                }
                _ => return Err(FlagError::Unknown(name)),
            }
        }
        Ok(())
    }
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Flags, FlagError> {
        let arguments: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        Flags::parse(&arguments)
    }

    #[test]
    fn flags_go_before_the_file_and_the_file_before_what_is_usual() {
        assert_eq!(parse("").unwrap(), Flags::default());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.json");
        let text = r#"{"clusterNetwork":"f","multusNamespace":"nets",
            "policy":{"namespaceIsolation":true,"rules":[{"namespaces":["*"],"networks":["*"],"addresses":["10.0.0.0/8"]}]}}"#;
        std::fs::write(&path, text).unwrap();
        let line =
            format!("-config {} -cluster-network c --node=n -default-networks a,b", path.display());
        let flags = parse(&line).unwrap();
        assert_eq!(flags.defaults.cluster_network.as_deref(), Some("c"));
        assert_eq!(flags.defaults.multus_namespace, "nets");
        assert_eq!(flags.defaults.default_networks, ["a", "b"]);
        assert!(flags.defaults.policy.namespace_isolation);
        assert_eq!(flags.defaults.policy.rules.len(), 1);
        std::fs::write(&path, r#"{"clusterNetwrok":"f"}"#).unwrap();
        let text = parse(&line).unwrap_err().to_string();
        assert!(text.contains("unknown field `clusterNetwrok`"), "{text}");
        assert!(parse("-status fancy").unwrap_err().to_string().contains("library or text"));
        assert_eq!(parse("-x"), Err(FlagError::Unknown("x".to_owned())));
    }
}
