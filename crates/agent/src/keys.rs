//! Each key of the configuration.
//!
//! A key has a table, a name, what it means, and a function from the configuration to its value. A
//! value is a `Setting`: it can be read from TOML and from a flag, it can be written, and it has a
//! schema. Everything else is a loop over the list: the check of a file, the flags of `netwrightd
//! SERVICE` and their help, `config default`, `config show`, the schema. So a new setting is a
//! field and a line here. What only a service's own command needs (`ipam --forget`, `collect
//! --once`) is a flag without a key.
//!
//! The crate reads a file key by key and without serde, which stops at the first mistake: the
//! messages name every mistake with its place. Flags have two dashes. `dhcp` also accepts one,
//! because its flags are the reference's; the other services accept one for one more release, with
//! a warning.
//!
//! Each service reads the file and applies its flags. It does not look at `enable`, which is for
//! the program that starts services.

use crate::config::Config;
use crate::setting::Setting;

/// The table and the name of a key.
pub type KeyName = (&'static str, &'static str);

/// A key of the configuration.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// The table that it is in, such as `repair`.
    pub table: &'static str,
    /// Its name in the table, which is also the name of the service's flag.
    pub name: &'static str,
    /// What it means: one or more sentences, the first letter small, no full stop at the end.
    pub about: &'static str,
    /// Where its value is.
    pub setting: fn(&mut Config) -> &mut dyn Setting,
    /// Whether a change counts without a restart of the service.
    pub live: bool,
    /// Whether only the process that answers for all services reads it, and no service does.
    pub for_agent: bool,
}

/// A table of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// Its name, which is also that of the service.
    pub name: &'static str,
    /// What it configures: a sentence without its full stop.
    pub about: &'static str,
    /// Whether it configures a service.
    pub service: bool,
    /// Command lines that run the service, each a whole one.
    pub examples: &'static [&'static str],
}

/// The tables, in the order in which they are shown.
pub const TABLES: &[Table] = &[
    table("agent", "What netwrightd does for all services"),
    table("log", "How every service logs"),
    service(
        "collect",
        "Removes what deleted containers left behind",
        &["netwrightd collect --grace 10m --act"],
    ),
    service("dhcp", "Keeps DHCP leases for the CNI plugin dhcp", &["netwrightd dhcp --broadcast"]),
    service(
        "docker",
        "Makes CNI networks into Docker networks",
        &["netwrightd docker --confdir /etc/cni/docker.d --timeout 30s"],
    ),
    service(
        "ipam",
        "Gives addresses of networks that span nodes",
        &[
            "netwrightd ipam --etcd https://192.0.2.1:2379,https://192.0.2.2:2379 --etcd-ca /etc/etcd/ca.crt",
        ],
    ),
    service(
        "multinet",
        "Gives pods several networks",
        &[
            "netwrightd multinet --kubeconfig /etc/kubernetes/netwright.conf --cluster-network cluster",
        ],
    ),
    service(
        "policy",
        "Enforces network policies for the pods of this node",
        &[
            "netwrightd policy --source kubernetes --kubeconfig /etc/kubernetes/netwright.conf",
            "netwrightd policy --objects /etc/netwright/policies --isolate namespaces",
        ],
    ),
    service(
        "repair",
        "Puts back what other programs change under running containers",
        &[
            "netwrightd repair --interval 10s",
            "netwrightd repair --ovsdb unix:/run/openvswitch/db.sock",
        ],
    ),
    service(
        "routing",
        "Connects the pods of every node with those of all others",
        &[
            "netwrightd routing --nodes /etc/netwright/nodes.toml --cluster 10.244.0.0/16 --conflist /etc/cni/net.d/10-pods.conflist",
            "netwrightd routing --source kubernetes --kubeconfig /etc/kubernetes/netwright.conf --cluster 10.244.0.0/16 --conflist /etc/cni/net.d/10-pods.conflist",
            "netwrightd routing --source etcd --etcd https://192.0.2.1:2379 --etcd-ca /etc/etcd/ca.crt --flannel replace",
        ],
    ),
];

/// The services' names.
pub fn services() -> impl Iterator<Item = &'static str> {
    TABLES.iter().filter(|table| table.service).map(|table| table.name)
}

/// Returns the keys of a table.
pub fn of_table(table: &str) -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(move |key| key.table == table)
}

/// Finds a key.
#[must_use]
pub fn find(table: &str, name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.table == table && key.name == name)
}

/// Reports whether a service is enabled. A name that belongs to no service is not.
#[must_use]
pub fn is_enabled(config: &Config, service: &str) -> bool {
    match service {
        "collect" => config.collect.enable,
        "dhcp" => config.dhcp.enable,
        "docker" => config.docker.enable,
        "ipam" => config.ipam.enable,
        "multinet" => config.multinet.enable,
        "policy" => config.policy.enable,
        "repair" => config.repair.enable,
        "routing" => config.routing.enable,
        _ => false,
    }
}

const fn table(name: &'static str, about: &'static str) -> Table {
    Table { name, about, service: false, examples: &[] }
}

const fn service(
    name: &'static str,
    about: &'static str,
    examples: &'static [&'static str],
) -> Table {
    Table { name, about, service: true, examples }
}

const fn key(
    table: &'static str,
    name: &'static str,
    about: &'static str,
    setting: fn(&mut Config) -> &mut dyn Setting,
) -> Key {
    Key { table, name, about, setting, live: false, for_agent: false }
}

const fn live(key: Key) -> Key {
    Key { live: true, ..key }
}

const fn for_agent(key: Key) -> Key {
    Key { live: true, for_agent: true, ..key }
}

const ENABLE: &str = "whether systemd, or netwrightd without a command, starts the service";
const CACHES: &str = "the caches of runtimes, whose attachments are looked at";
const NETWRIGHT: &str = "the executable whose plugins are called in the service's process; by default netwright beside netwrightd";
const PLUGIN_DIRS: &str = "where plugins are";
const NODE: &str =
    "this node's name in its cluster; by default $NODE_NAME, or else the host's name";
const KUBECONFIG: &str = "how to reach the API server; by default as in a pod";
const SOCKET: &str = "where the service listens";
const CONF_DIR: &str = "where network configurations are";

/// All keys, by table and in the order in which they are shown.
pub const KEYS: &[Key] = &[
    for_agent(key(
        "agent",
        "listen",
        "where /livez, /readyz and /metrics of all services are answered by TCP: a port, which is reached from this host only, or an address and a port; by default nowhere",
        |c| &mut c.agent.listen,
    )),
    key(
        "agent",
        "watchdog",
        "how long a service's loop may stand still before netwrightd takes it for hung and restarts it",
        |c| &mut c.agent.watchdog,
    ),
    live(key("log", "format", "auto, journal, text, or json with one object a line", |c| {
        &mut c.log.format
    })),
    live(key(
        "log",
        "level",
        "the lowest level that is logged: error, warn, info, debug, trace",
        |c| &mut c.log.level,
    )),
    key("collect", "enable", ENABLE, |c| &mut c.collect.enable),
    live(key(
        "collect",
        "act",
        "remove; without it the service only logs what it would remove",
        |c| &mut c.collect.act,
    )),
    key("collect", "cache", CACHES, |c| &mut c.collect.cache),
    key("collect", "confdir", "network configurations, for attachments whose own is lost", |c| {
        &mut c.collect.confdir
    }),
    live(key("collect", "grace", "how long a container must have been gone", |c| {
        &mut c.collect.grace
    })),
    live(key("collect", "interval", "how often to look", |c| &mut c.collect.interval)),
    key("collect", "netwright", NETWRIGHT, |c| &mut c.collect.netwright),
    key("collect", "path", PLUGIN_DIRS, |c| &mut c.collect.path),
    key("dhcp", "enable", ENABLE, |c| &mut c.dhcp.enable),
    key("dhcp", "broadcast", "ask servers to broadcast their replies", |c| &mut c.dhcp.broadcast),
    key(
        "dhcp",
        "hostprefix",
        "a folder to put before the socket's path and every namespace's",
        |c| &mut c.dhcp.hostprefix,
    ),
    key("dhcp", "pidfile", "a file for the process ID, which is removed at the end", |c| {
        &mut c.dhcp.pidfile
    }),
    key("dhcp", "resendmax", "the longest wait before a message is sent again", |c| {
        &mut c.dhcp.resendmax
    }),
    key("dhcp", "resendtimeout", "how long to try for a lease before ADD fails", |c| {
        &mut c.dhcp.resendtimeout
    }),
    key("dhcp", "socketpath", SOCKET, |c| &mut c.dhcp.socketpath),
    key("dhcp", "state", "where leases are kept; by default /var/lib/netwright/dhcp", |c| {
        &mut c.dhcp.state
    }),
    key(
        "dhcp",
        "timeout",
        "the wait before a message is first sent again; more than 4s counts as 4s",
        |c| &mut c.dhcp.timeout,
    ),
    key("docker", "enable", ENABLE, |c| &mut c.docker.enable),
    key("docker", "cachedir", "where attachments are recorded", |c| &mut c.docker.cachedir),
    key("docker", "confdir", CONF_DIR, |c| &mut c.docker.confdir),
    key("docker", "pluginpath", PLUGIN_DIRS, |c| &mut c.docker.pluginpath),
    key("docker", "socketpath", SOCKET, |c| &mut c.docker.socketpath),
    key(
        "docker",
        "state",
        "where networks and endpoints are recorded; by default /var/lib/netwright/docker",
        |c| &mut c.docker.state,
    ),
    key("docker", "timeout", "how long the plugins of a network may take", |c| {
        &mut c.docker.timeout
    }),
    key("ipam", "enable", ENABLE, |c| &mut c.ipam.enable),
    key(
        "ipam",
        "etcd",
        "etcd's members; without them, addresses are recorded by the API server",
        |c| &mut c.ipam.etcd,
    ),
    key("ipam", "etcd-ca", "the CA certificates of etcd's members, as PEM", |c| {
        &mut c.ipam.etcd_ca
    }),
    key("ipam", "etcd-cert", "the service's certificate for etcd, as PEM", |c| {
        &mut c.ipam.etcd_cert
    }),
    key("ipam", "etcd-key", "the certificate's key, as PEM", |c| &mut c.ipam.etcd_key),
    key("ipam", "idle", "how long a block of addresses stays empty before it is given back", |c| {
        &mut c.ipam.idle
    }),
    key("ipam", "kubeconfig", KUBECONFIG, |c| &mut c.ipam.kubeconfig),
    key(
        "ipam",
        "lease",
        "how long the service gives addresses while it cannot reach the store",
        |c| &mut c.ipam.lease,
    ),
    key("ipam", "node", NODE, |c| &mut c.ipam.node),
    key("ipam", "socketpath", SOCKET, |c| &mut c.ipam.socketpath),
    key(
        "ipam",
        "state",
        "where the node's blocks and addresses are recorded; by default /var/lib/netwright/ipam",
        |c| &mut c.ipam.state,
    ),
    key(
        "ipam",
        "underlay",
        "the addresses by which other nodes reach this one, one of each family; the records of its blocks have them, for routing; by default the addresses from which it sends packets by its default routes",
        |c| &mut c.ipam.underlay,
    ),
    key("multinet", "enable", ENABLE, |c| &mut c.multinet.enable),
    key("multinet", "checkpoint", "the kubelet's record of devices", |c| {
        &mut c.multinet.checkpoint
    }),
    key(
        "multinet",
        "cluster-network",
        "the default network: [namespace/]name of a definition, or a network's name on the node",
        |c| &mut c.multinet.cluster_network,
    ),
    key(
        "multinet",
        "confdir",
        "where networks of the node are; by default /etc/cni/net.d and /etc/cni/multus/net.d",
        |c| &mut c.multinet.confdir,
    ),
    key(
        "multinet",
        "config",
        "a file with policy and defaults, as JSON; keys of this table take precedence over it",
        |c| &mut c.multinet.config,
    ),
    key(
        "multinet",
        "conflist",
        "the CNI configuration to write once pods can be served; it is never removed; by default none is written",
        |c| &mut c.multinet.conflist,
    ),
    key(
        "multinet",
        "default-networks",
        "more networks for every pod outside the system namespaces",
        |c| &mut c.multinet.default_networks,
    ),
    key("multinet", "kubeconfig", KUBECONFIG, |c| &mut c.multinet.kubeconfig),
    key("multinet", "label-node", "label this node with the networks that it can serve", |c| {
        &mut c.multinet.label_node
    }),
    key(
        "multinet",
        "multus-namespace",
        "where definitions are that are named without a namespace here",
        |c| &mut c.multinet.multus_namespace,
    ),
    key(
        "multinet",
        "namespace-isolation",
        "pods may use definitions of their own namespace, of default, and of global namespaces only",
        |c| &mut c.multinet.namespace_isolation,
    ),
    key("multinet", "node", NODE, |c| &mut c.multinet.node),
    key("multinet", "path", PLUGIN_DIRS, |c| &mut c.multinet.path),
    key("multinet", "socketpath", SOCKET, |c| &mut c.multinet.socketpath),
    key(
        "multinet",
        "status",
        "how a pod's status is written: library, or text as in the standard's example",
        |c| &mut c.multinet.status,
    ),
    key(
        "multinet",
        "system-namespaces",
        "namespaces whose pods get the cluster's network only",
        |c| &mut c.multinet.system_namespaces,
    ),
    key("policy", "enable", ENABLE, |c| &mut c.policy.enable),
    live(key(
        "policy",
        "interval",
        "how often to compare the packet filter and the records even if no change is reported",
        |c| &mut c.policy.interval,
    )),
    key(
        "policy",
        "isolate",
        "namespaces: pods reach only their own namespace and what isolate-to and isolate-dns list, and only what isolate-from lists reaches them from elsewhere, unless a NetworkPolicy says otherwise; or none; a namespace's label policy.netwright.io/isolate (true or false) takes precedence",
        |c| &mut c.policy.isolate,
    ),
    key(
        "policy",
        "isolate-dns",
        "the servers of the cluster's names, which isolated pods reach at port 53 (and 5353)",
        |c| &mut c.policy.isolate_dns,
    ),
    key("policy", "isolate-except", "namespaces that isolate leaves out", |c| {
        &mut c.policy.isolate_except
    }),
    key(
        "policy",
        "isolate-from",
        "who reaches isolated pods: namespaces, pods of one by a label, or ranges of addresses",
        |c| &mut c.policy.isolate_from,
    ),
    key("policy", "isolate-to", "whom isolated pods reach, written in the same way", |c| {
        &mut c.policy.isolate_to
    }),
    key(
        "policy",
        "keep-connections",
        "let connections go on if they were made before a policy forbade them",
        |c| &mut c.policy.keep_connections,
    ),
    key("policy", "kubeconfig", KUBECONFIG, |c| &mut c.policy.kubeconfig),
    key("policy", "log-group", "the group of nflog to which dropped packets are sent", |c| {
        &mut c.policy.log_group
    }),
    key(
        "policy",
        "log-rate",
        "how many dropped packets a second are sent there at most, for each direction; 0 is all of them",
        |c| &mut c.policy.log_rate,
    ),
    key("policy", "node", NODE, |c| &mut c.policy.node),
    key(
        "policy",
        "objects",
        "files, and folders of files, with policies and other objects as YAML or JSON, where source is file; they are read again when they change",
        |c| &mut c.policy.objects,
    ),
    key("policy", "socketpath", SOCKET, |c| &mut c.policy.socketpath),
    key(
        "policy",
        "source",
        "where policies and other objects are learnt: file (objects names it), or kubernetes",
        |c| &mut c.policy.source,
    ),
    key(
        "policy",
        "state",
        "where the service records how many policies there were; by default /var/lib/netwright/policy",
        |c| &mut c.policy.state,
    ),
    key("repair", "enable", ENABLE, |c| &mut c.repair.enable),
    key("repair", "ca-cert", "the CA certificates of ssl: databases", |c| &mut c.repair.ca_cert),
    key("repair", "cache", CACHES, |c| &mut c.repair.cache),
    key("repair", "certificate", "the service's certificate for ssl: databases", |c| {
        &mut c.repair.certificate
    }),
    live(key("repair", "interval", "how often to look even if no change is reported", |c| {
        &mut c.repair.interval
    })),
    key(
        "repair",
        "keep-plugins",
        "folders in which netwright install put plugins: the service restores what another program removes or replaces there",
        |c| &mut c.repair.keep_plugins,
    ),
    key("repair", "netwright", NETWRIGHT, |c| &mut c.repair.netwright),
    key(
        "repair",
        "ovsdb",
        "databases of Open vSwitch to listen to, such as unix:/run/openvswitch/db.sock; ports of containers that are gone are removed",
        |c| &mut c.repair.ovsdb,
    ),
    key("repair", "path", PLUGIN_DIRS, |c| &mut c.repair.path),
    key("repair", "private-key", "the certificate's key", |c| &mut c.repair.private_key),
    key("routing", "enable", ENABLE, |c| &mut c.routing.enable),
    key(
        "routing",
        "allow-overlap",
        "start although a range of pods overlaps addresses or routes of this host",
        |c| &mut c.routing.allow_overlap,
    ),
    key(
        "routing",
        "attach",
        "how the written configuration attaches pods: bridge, ptp for a pair of links each, or auto: ptp where [policy] is enabled, else bridge",
        |c| &mut c.routing.attach,
    ),
    key("routing", "cluster", "the ranges that contain every node's prefixes", |c| {
        &mut c.routing.cluster
    }),
    key(
        "routing",
        "conflist",
        "the CNI configuration to write once pods can be reached; by default none is written",
        |c| &mut c.routing.conflist,
    ),
    key(
        "routing",
        "etcd",
        "etcd's members, where source is etcd (flannel's leases are the list of nodes), and for the records of spaces",
        |c| &mut c.routing.etcd,
    ),
    key("routing", "etcd-ca", "the CA certificates of etcd's members, as PEM", |c| {
        &mut c.routing.etcd_ca
    }),
    key("routing", "etcd-cert", "the service's certificate for etcd, as PEM", |c| {
        &mut c.routing.etcd_cert
    }),
    key("routing", "etcd-key", "the certificate's key, as PEM", |c| &mut c.routing.etcd_key),
    key("routing", "etcd-prefix", "what flannel's keys in etcd begin with", |c| {
        &mut c.routing.etcd_prefix
    }),
    key("routing", "exempt", "more ranges to which pods' packets keep their source address", |c| {
        &mut c.routing.exempt
    }),
    key(
        "routing",
        "flannel",
        "whether to take flanneld's place on this node: replace does, standby shows what would be done, none leaves flanneld alone",
        |c| &mut c.routing.flannel,
    ),
    key(
        "routing",
        "flannel-config",
        "flanneld's configuration, which has the cluster's ranges and its backend; read where flannel is replace or standby, unless source is etcd, which has it",
        |c| &mut c.routing.flannel_config,
    ),
    key(
        "routing",
        "flannel-config-map",
        "the ConfigMap, as NAMESPACE/NAME, that has flanneld's configuration where the file is not there, or none",
        |c| &mut c.routing.flannel_config_map,
    ),
    key("routing", "flannel-prefix", "what flanneld's annotations begin with", |c| {
        &mut c.routing.flannel_prefix
    }),
    live(key("routing", "interval", "how often to look even if no change is reported", |c| {
        &mut c.routing.interval
    })),
    key("routing", "kubeconfig", KUBECONFIG, |c| &mut c.routing.kubeconfig),
    key(
        "routing",
        "masquerade",
        "give pods' packets that leave the cluster the node's source address",
        |c| &mut c.routing.masquerade,
    ),
    key("routing", "network", "the network's name in the written configuration", |c| {
        &mut c.routing.network
    }),
    key("routing", "node", NODE, |c| &mut c.routing.node),
    key(
        "routing",
        "nodes",
        "the file with the list of nodes, the same on each; it is read again when it changes",
        |c| &mut c.routing.nodes,
    ),
    key(
        "routing",
        "path",
        "how packets get from node to node: auto (directly where no gateway is in between, else by VXLAN), direct, vxlan, or native as the network between the nodes has it",
        |c| &mut c.routing.path,
    ),
    key(
        "routing",
        "pod-mtu",
        "the MTU of pods: paths (the lowest of the paths in use), underlay, or a number of bytes",
        |c| &mut c.routing.pod_mtu,
    ),
    key(
        "routing",
        "services",
        "the ranges of services' addresses: no node's prefix may touch them, and pods' packets to them keep their source address",
        |c| &mut c.routing.services,
    ),
    key("routing", "socketpath", SOCKET, |c| &mut c.routing.socketpath),
    key(
        "routing",
        "source",
        "where nodes are learnt: file (nodes names it), kubernetes (the cluster's Nodes), or etcd (flannel's leases)",
        |c| &mut c.routing.source,
    ),
    key(
        "routing",
        "space-ranges",
        "the ranges that contain the blocks of spaces; none of them overlaps cluster",
        |c| &mut c.routing.space_ranges,
    ),
    key(
        "routing",
        "spaces",
        "spaces of cluster-ipam whose blocks are routed between nodes, as their records name them; the records are in etcd if that is set, else in the API server",
        |c| &mut c.routing.spaces,
    ),
    key(
        "routing",
        "state",
        "where the last known nodes are recorded; by default /var/lib/netwright/routing",
        |c| &mut c.routing.state,
    ),
    key(
        "routing",
        "subnet-env",
        "a file to write as flanneld does; by default /run/flannel/subnet.env where flannel is replace, else none",
        |c| &mut c.routing.subnet_env,
    ),
    key(
        "routing",
        "underlay",
        "with the source etcd, this node's addresses for other nodes, one of each family; by default those of the link with the default route",
        |c| &mut c.routing.underlay,
    ),
    key("routing", "vxlan-port", "the UDP port of VXLAN, the same on each node", |c| {
        &mut c.routing.vxlan_port
    }),
    key("routing", "vxlan-vni", "the network identifier of VXLAN, the same on each node", |c| {
        &mut c.routing.vxlan_vni
    }),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_in_a_table_and_named_once() {
        for key in KEYS {
            assert!(TABLES.iter().any(|table| table.name == key.table), "{key:?}");
            assert_eq!(of_table(key.table).filter(|other| other.name == key.name).count(), 1);
            assert!(!key.about.ends_with('.') && !key.about.is_empty(), "{key:?}");
        }
        for service in services() {
            let mut config = Config::default();
            assert!(!is_enabled(&config, service), "{service}");
            (find(service, "enable").unwrap().setting)(&mut config).read_flag("true").unwrap();
            assert!(is_enabled(&config, service), "{service}");
        }
    }
}
