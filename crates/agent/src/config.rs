//! The settings as types, with their defaults.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use crate::reachable::ReachableEnd;
use crate::setting::{Choice, Item as _, ListenAddress, Number, OneOf, PodMtu, ServerUrl};

/// The folders in which plugins are looked for.
fn plugin_dirs() -> Vec<PathBuf> {
    cni_invoke::PLUGIN_DIRS.map(PathBuf::from).to_vec()
}

/// The whole configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// `[agent]`
    pub agent: Agent,
    /// `[log]`
    pub log: Log,
    /// `[collect]`
    pub collect: Collect,
    /// `[dhcp]`
    pub dhcp: Dhcp,
    /// `[docker]`
    pub docker: Docker,
    /// `[ipam]`
    pub ipam: Ipam,
    /// `[multinet]`
    pub multinet: Multinet,
    /// `[policy]`
    pub policy: Policy,
    /// `[repair]`
    pub repair: Repair,
    /// `[routing]`
    pub routing: Routing,
}

/// What `netwrightd` does for all services.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is described in keys.rs")]
pub struct Agent {
    pub listen: Option<ListenAddress>,
    pub watchdog: Duration,
}

impl Default for Agent {
    fn default() -> Self {
        // Plugins may take a minute for one attachment.
        Agent { listen: None, watchdog: Duration::from_secs(120) }
    }
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// As the journal where it reads the lines, else as text.
    Auto,
    /// With fields of the journal.
    Journal,
    /// One line of text for each event.
    Text,
    /// One JSON object for each event.
    Json,
}

impl Choice for LogFormat {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("auto", LogFormat::Auto),
        ("journal", LogFormat::Journal),
        ("text", LogFormat::Text),
        ("json", LogFormat::Json),
    ];
    const WANTED: &'static str = "auto, journal, text or json";
}

/// The lowest level of events that are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are syslog's and tracing's")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl Choice for LogLevel {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("error", LogLevel::Error),
        ("warn", LogLevel::Warn),
        ("info", LogLevel::Info),
        ("debug", LogLevel::Debug),
        ("trace", LogLevel::Trace),
    ];
    const WANTED: &'static str = "error, warn, info, debug or trace";
}

/// What is logged, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is described in keys.rs")]
pub struct Log {
    pub format: OneOf<LogFormat>,
    pub level: OneOf<LogLevel>,
}

impl Default for Log {
    fn default() -> Self {
        Log { format: OneOf(LogFormat::Auto), level: OneOf(LogLevel::Info) }
    }
}

/// Removal of what deleted containers left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is described in keys.rs")]
pub struct Collect {
    pub enable: bool,
    pub act: bool,
    pub cache: Vec<PathBuf>,
    pub confdir: PathBuf,
    pub grace: Duration,
    pub interval: Duration,
    pub netwright: Option<PathBuf>,
    pub path: Vec<PathBuf>,
}

impl Default for Collect {
    fn default() -> Self {
        Collect {
            enable: false,
            act: false,
            cache: vec!["/var/lib/cni".into()],
            confdir: "/etc/cni/net.d".into(),
            grace: Duration::from_secs(300),
            interval: Duration::from_secs(60),
            netwright: None,
            path: plugin_dirs(),
        }
    }
}

/// DHCP leases. The defaults are those of the reference's daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is described in keys.rs")]
pub struct Dhcp {
    pub enable: bool,
    pub broadcast: bool,
    pub hostprefix: Option<PathBuf>,
    pub pidfile: Option<PathBuf>,
    pub resendmax: Duration,
    pub resendtimeout: Duration,
    pub socketpath: PathBuf,
    pub state: Option<PathBuf>,
    pub timeout: Duration,
}

impl Default for Dhcp {
    fn default() -> Self {
        Dhcp {
            enable: false,
            broadcast: false,
            hostprefix: None,
            pidfile: None,
            resendmax: Duration::from_secs(62),
            resendtimeout: Duration::from_secs(208),
            socketpath: "/run/cni/dhcp.sock".into(),
            state: None,
            timeout: Duration::from_secs(10),
        }
    }
}

/// Docker's network driver.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is described in keys.rs")]
pub struct Docker {
    pub enable: bool,
    pub cachedir: PathBuf,
    pub confdir: PathBuf,
    pub pluginpath: Vec<PathBuf>,
    pub socketpath: PathBuf,
    pub state: Option<PathBuf>,
    pub timeout: Duration,
}

impl Default for Docker {
    fn default() -> Self {
        Docker {
            enable: false,
            cachedir: "/var/lib/cni".into(),
            confdir: "/etc/cni/net.d".into(),
            pluginpath: plugin_dirs(),
            socketpath: "/run/docker/plugins/netwright.sock".into(),
            state: None,
            // Most plugins take milliseconds; dhcp, which waits for a server, takes seconds.
            timeout: Duration::from_secs(10),
        }
    }
}

/// Addresses of networks that span nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is described in keys.rs")]
pub struct Ipam {
    pub enable: bool,
    pub etcd: Vec<ServerUrl>,
    pub etcd_ca: Option<PathBuf>,
    pub etcd_cert: Option<PathBuf>,
    pub etcd_key: Option<PathBuf>,
    pub idle: Duration,
    pub kubeconfig: Option<PathBuf>,
    pub lease: Duration,
    pub node: Option<String>,
    pub socketpath: PathBuf,
    pub state: Option<PathBuf>,
    pub underlay: Vec<IpAddr>,
}

impl Default for Ipam {
    fn default() -> Self {
        Ipam {
            enable: false,
            etcd: Vec::new(),
            etcd_ca: None,
            etcd_cert: None,
            etcd_key: None,
            idle: Duration::from_secs(600),
            kubeconfig: None,
            lease: Duration::from_secs(3600),
            node: None,
            socketpath: "/run/netwright/ipam.sock".into(),
            state: None,
            underlay: Vec::new(),
        }
    }
}

/// How a pod's network status is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusForm {
    /// As the standard's client library writes it.
    Library,
    /// As in the standard's example.
    Text,
}

impl Choice for StatusForm {
    const WORDS: &'static [(&'static str, Self)] =
        &[("library", StatusForm::Library), ("text", StatusForm::Text)];
    const WANTED: &'static str = "library or text";
}

/// Several networks for pods.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is described in keys.rs")]
pub struct Multinet {
    pub enable: bool,
    pub checkpoint: PathBuf,
    pub cluster_network: Option<String>,
    pub confdir: Option<PathBuf>,
    pub config: Option<PathBuf>,
    pub conflist: Option<PathBuf>,
    pub default_networks: Vec<String>,
    pub kubeconfig: Option<PathBuf>,
    pub label_node: bool,
    pub multus_namespace: String,
    pub namespace_isolation: bool,
    pub node: Option<String>,
    pub path: Vec<PathBuf>,
    pub socketpath: PathBuf,
    pub status: OneOf<StatusForm>,
    pub system_namespaces: Vec<String>,
}

impl Default for Multinet {
    fn default() -> Self {
        Multinet {
            enable: false,
            checkpoint: "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint".into(),
            cluster_network: None,
            confdir: None,
            config: None,
            conflist: None,
            default_networks: Vec::new(),
            kubeconfig: None,
            label_node: false,
            multus_namespace: "kube-system".to_owned(),
            namespace_isolation: false,
            node: None,
            path: plugin_dirs(),
            socketpath: "/run/netwright/multinet.sock".into(),
            status: OneOf(StatusForm::Library),
            system_namespaces: vec!["kube-system".to_owned()],
        }
    }
}

/// Where the service `policy` learns namespaces, nodes, pods and policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicySource {
    /// Files with the same objects.
    File,
    /// The API server of a Kubernetes cluster.
    Kubernetes,
}

impl Choice for PolicySource {
    const WORDS: &'static [(&'static str, Self)] =
        &[("file", PolicySource::File), ("kubernetes", PolicySource::Kubernetes)];
    const WANTED: &'static str = "file or kubernetes";
}

/// Which namespaces are isolated without a policy of theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IsolationScope {
    /// Those whose label says so.
    None,
    /// All but those that are excepted, and those whose label says that they are not.
    Namespaces,
}

impl Choice for IsolationScope {
    const WORDS: &'static [(&'static str, Self)] =
        &[("none", IsolationScope::None), ("namespaces", IsolationScope::Namespaces)];
    const WANTED: &'static str = "none or namespaces";
}

/// Network policy.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is described in keys.rs")]
pub struct Policy {
    pub enable: bool,
    pub interval: Duration,
    pub isolate: OneOf<IsolationScope>,
    pub isolate_dns: Vec<ReachableEnd>,
    pub isolate_except: Vec<String>,
    pub isolate_from: Vec<ReachableEnd>,
    pub isolate_to: Vec<ReachableEnd>,
    pub keep_connections: bool,
    pub kubeconfig: Option<PathBuf>,
    /// Groups of nflog have 16 bits.
    pub log_group: Number<0, 65_535>,
    /// Packets a second; 0 is all of them.
    pub log_rate: Number<0, 1_000_000>,
    pub node: Option<String>,
    pub objects: Vec<PathBuf>,
    pub socketpath: PathBuf,
    pub source: OneOf<PolicySource>,
    pub state: Option<PathBuf>,
}

/// The pods that answer for the cluster's names, as kubeadm and most others label them.
const DNS: &str = "kube-system:k8s-app=kube-dns";

impl Default for Policy {
    fn default() -> Self {
        Policy {
            enable: false,
            interval: Duration::from_secs(60),
            isolate: OneOf(IsolationScope::None),
            isolate_dns: ReachableEnd::parse(DNS).into_iter().collect(),
            isolate_except: vec!["kube-system".to_owned()],
            isolate_from: Vec::new(),
            isolate_to: Vec::new(),
            keep_connections: false,
            kubeconfig: None,
            // As the packet filter's table has them (the crate firewall, pods::Logging).
            log_group: Number(0x4e57),
            log_rate: Number(100),
            node: None,
            objects: Vec::new(),
            socketpath: "/run/netwright/policy.sock".into(),
            source: OneOf(PolicySource::File),
            state: None,
        }
    }
}

/// Repair of what other programs change under running containers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is described in keys.rs")]
pub struct Repair {
    pub enable: bool,
    pub ca_cert: Option<PathBuf>,
    pub cache: Vec<PathBuf>,
    pub certificate: Option<PathBuf>,
    pub interval: Duration,
    pub keep_plugins: Vec<PathBuf>,
    pub netwright: Option<PathBuf>,
    pub ovsdb: Vec<String>,
    pub path: Vec<PathBuf>,
    pub private_key: Option<PathBuf>,
}

impl Default for Repair {
    fn default() -> Self {
        Repair {
            enable: false,
            ca_cert: None,
            cache: vec!["/var/lib/cni".into()],
            certificate: None,
            interval: Duration::from_secs(60),
            keep_plugins: Vec::new(),
            netwright: None,
            ovsdb: Vec::new(),
            path: plugin_dirs(),
            private_key: None,
        }
    }
}

/// How pods are attached to their node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachMode {
    /// To a bridge, or by pairs where pods are under network policy.
    Auto,
    /// To a bridge.
    Bridge,
    /// Each by a pair of links of its own.
    Ptp,
}

impl Choice for AttachMode {
    const WORDS: &'static [(&'static str, Self)] =
        &[("auto", AttachMode::Auto), ("bridge", AttachMode::Bridge), ("ptp", AttachMode::Ptp)];
    const WANTED: &'static str = "auto, bridge or ptp";
}

/// Where routing learns this node and the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoutingSource {
    /// A file with a list.
    File,
    /// The Nodes of a Kubernetes cluster.
    Kubernetes,
    /// flannel's leases in etcd.
    Etcd,
}

impl Choice for RoutingSource {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("file", RoutingSource::File),
        ("kubernetes", RoutingSource::Kubernetes),
        ("etcd", RoutingSource::Etcd),
    ];
    const WANTED: &'static str = "file, kubernetes or etcd";
}

/// What routing has to do with the flannelds of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoutingFlannel {
    /// Nothing: there are none.
    None,
    /// It shows what it would do in flanneld's place, and does nothing.
    Standby,
    /// It is this node's flanneld.
    Replace,
}

impl Choice for RoutingFlannel {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("none", RoutingFlannel::None),
        ("standby", RoutingFlannel::Standby),
        ("replace", RoutingFlannel::Replace),
    ];
    const WANTED: &'static str = "none, standby or replace";
}

/// How packets get from node to node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoutingPath {
    /// Directly where no gateway is in between, else by VXLAN.
    Auto,
    /// Directly, and not otherwise.
    Direct,
    /// As the network between the nodes has it.
    Native,
    /// By VXLAN, and not otherwise.
    Vxlan,
}

impl Choice for RoutingPath {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("auto", RoutingPath::Auto),
        ("direct", RoutingPath::Direct),
        ("native", RoutingPath::Native),
        ("vxlan", RoutingPath::Vxlan),
    ];
    const WANTED: &'static str = "auto, direct, native or vxlan";
}

/// Routes and tunnels to the pods of other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is described in keys.rs")]
pub struct Routing {
    pub enable: bool,
    pub allow_overlap: bool,
    pub attach: OneOf<AttachMode>,
    pub cluster: Vec<IpNet>,
    pub conflist: Option<PathBuf>,
    pub etcd: Vec<ServerUrl>,
    pub etcd_ca: Option<PathBuf>,
    pub etcd_cert: Option<PathBuf>,
    pub etcd_key: Option<PathBuf>,
    pub etcd_prefix: String,
    pub exempt: Vec<IpNet>,
    pub flannel: OneOf<RoutingFlannel>,
    pub flannel_config: PathBuf,
    pub flannel_config_map: String,
    pub flannel_prefix: String,
    pub interval: Duration,
    pub kubeconfig: Option<PathBuf>,
    pub masquerade: bool,
    pub network: String,
    pub node: Option<String>,
    pub nodes: Option<PathBuf>,
    pub path: OneOf<RoutingPath>,
    pub pod_mtu: PodMtu,
    pub services: Vec<IpNet>,
    pub socketpath: PathBuf,
    pub source: OneOf<RoutingSource>,
    pub space_ranges: Vec<IpNet>,
    pub spaces: Vec<String>,
    pub state: Option<PathBuf>,
    pub subnet_env: Option<PathBuf>,
    pub underlay: Vec<IpAddr>,
    /// RFC 7348 §5: 24 bits; 0 is none.
    pub vxlan_vni: Number<1, 16_777_215>,
    pub vxlan_port: Number<1, 65_535>,
}

impl Routing {
    /// Returns the file to write as flanneld does: flannel's plugin reads it where flanneld is replaced.
    #[must_use]
    pub fn subnet_env(&self) -> Option<PathBuf> {
        let of_flannel = || (self.flannel.0 == RoutingFlannel::Replace).then(|| SUBNET_ENV.into());
        self.subnet_env.clone().or_else(of_flannel)
    }
}

/// Where flannel's plugin looks.
const SUBNET_ENV: &str = "/run/flannel/subnet.env";

impl Default for Routing {
    fn default() -> Self {
        Routing {
            enable: false,
            allow_overlap: false,
            attach: OneOf(AttachMode::Auto),
            cluster: Vec::new(),
            conflist: None,
            etcd: Vec::new(),
            etcd_ca: None,
            etcd_cert: None,
            etcd_key: None,
            etcd_prefix: "/coreos.com/network".to_owned(),
            exempt: Vec::new(),
            flannel: OneOf(RoutingFlannel::None),
            flannel_config: "/etc/kube-flannel/net-conf.json".into(),
            flannel_config_map: "kube-flannel/kube-flannel-cfg".to_owned(),
            flannel_prefix: "flannel.alpha.coreos.com".to_owned(),
            interval: Duration::from_secs(60),
            kubeconfig: None,
            masquerade: true,
            network: "pods".to_owned(),
            node: None,
            nodes: None,
            path: OneOf(RoutingPath::Auto),
            pod_mtu: PodMtu::Paths,
            services: Vec::new(),
            socketpath: "/run/netwright/routing.sock".into(),
            source: OneOf(RoutingSource::File),
            space_ranges: Vec::new(),
            spaces: Vec::new(),
            state: None,
            subnet_env: None,
            underlay: Vec::new(),
            // Linux's port, and flannel's number: not IANA's 4789, which networks may treat in
            // their own way.
            vxlan_port: Number(8472),
            vxlan_vni: Number(1),
        }
    }
}
