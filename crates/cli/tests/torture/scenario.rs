//! A scenario is a list of plugins to attach, and the one whose calls get faults.

use serde_json::{Value, json};

/// One attachment's plugins in order.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    /// The name of the plugin that gets the faults, for people.
    pub(crate) name: &'static str,
    /// A script to run once on the host.
    pub(crate) host: &'static str,
    /// The configurations.
    pub(crate) plugins: Vec<Value>,
    /// The index of the plugin that gets the faults.
    pub(crate) victim: usize,
    /// Its family of addresses, for people: empty if it has both, or none of its own.
    pub(crate) family: &'static str,
    /// When the container ends, something that belonged to the host vanishes with it: a lent
    /// device.
    pub(crate) lends: bool,
    /// A Docker driver is on the host.
    pub(crate) drives: bool,
    /// Open vSwitch runs on the host; the comparison includes its database.
    pub(crate) switches: bool,
}

fn ipam() -> Value {
    json!({
        "type": "host-local",
        "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00:1::/64" }]],
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
    })
}

fn bridge() -> Value {
    json!({ "type": "bridge", "bridge": "br0", "isDefaultGateway": true, "ipMasq": true,
            "hairpinMode": true, "ipam": ipam() })
}

fn portmap() -> Value {
    let ports = json!([
        { "hostPort": 8080, "containerPort": 80, "protocol": "tcp" },
        { "hostPort": 5353, "containerPort": 53, "protocol": "udp" },
    ]);
    json!({ "type": "portmap", "capabilities": { "portMappings": true },
            "runtimeConfig": { "portMappings": ports } })
}

fn firewall() -> Value {
    json!({ "type": "firewall", "ingressPolicy": "same-bridge" })
}

fn tuning() -> Value {
    json!({ "type": "tuning", "mtu": 1400, "allmulti": true, "txQLen": 500,
            "mac": "02:00:00:00:00:77", "sysctl": { "net.ipv4.conf.IFNAME.arp_filter": "1" } })
}

fn bandwidth() -> Value {
    json!({ "type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 8_000_000,
            "egressRate": 8_000_000, "egressBurst": 8_000_000 })
}

const PARENT: &str = "ip link add p0 type veth peer name p1 && ip link set p0 addrgenmode none up && \
                      ip link set p1 addrgenmode none up";

impl Scenario {
    fn of(name: &'static str, plugins: Vec<Value>) -> Self {
        let victim = plugins.len() - 1;
        Scenario {
            name,
            host: "true",
            plugins,
            victim,
            family: "",
            lends: false,
            drives: false,
            switches: false,
        }
    }

    /// The same with addresses of one family only: `v4` or `v6`.
    pub(crate) fn in_family(&self, family: &'static str) -> Self {
        let is_of = |text: &Value| text.as_str().unwrap().contains(':') == (family == "v6");
        let mut one = self.clone();
        one.family = if family == "v6" { "v6 " } else { "v4 " };
        for ipam in one.plugins.iter_mut().filter_map(|plugin| plugin.get_mut("ipam")) {
            let mut keep = |key: &str, is_kept: &dyn Fn(&Value) -> bool| {
                if let Some(list) = ipam[key].as_array_mut() {
                    list.retain(|entry| is_kept(entry));
                }
            };
            keep("ranges", &|range| is_of(&range[0]["subnet"]));
            keep("routes", &|route| is_of(&route["dst"]));
            keep("addresses", &|address| is_of(&address["address"]));
        }
        one
    }

    pub(crate) fn bridge() -> Self {
        Self::of("bridge", vec![bridge()])
    }

    pub(crate) fn ptp() -> Self {
        Self::of("ptp", vec![json!({ "type": "ptp", "ipMasq": true, "ipam": ipam() })])
    }

    pub(crate) fn macvlan() -> Self {
        let plugin = json!({ "type": "macvlan", "master": "p0", "ipam": ipam() });
        Scenario { host: PARENT, ..Self::of("macvlan", vec![plugin]) }
    }

    pub(crate) fn tap() -> Self {
        Self::of("tap", vec![json!({ "type": "tap", "ipam": ipam() })])
    }

    pub(crate) fn host_device() -> Self {
        let plugin = json!({ "type": "host-device", "device": "p1", "ipam": ipam() });
        Scenario { host: PARENT, lends: true, ..Self::of("host-device", vec![plugin]) }
    }

    pub(crate) fn cnm() -> Self {
        let subnets = json!([{ "subnet": "10.1.0.0/24" }, { "subnet": "fd00:1::/64" }]);
        let plugin =
            json!({ "type": "cnm", "driver": "weft", "ipamDriver": "weft", "subnets": subnets });
        Scenario { drives: true, ..Self::of("cnm", vec![plugin]) }
    }

    /// A veth pair whose end is a port, or a port of the switch's own. The pair has a rate limit, so
    /// there are rows that are not removed with a port; the switch's own ports can have none.
    pub(crate) fn ovs(name: &'static str, port: &str) -> Self {
        let mut plugin =
            json!({ "type": "ovs", "bridge": "br0", "vlan": 7, "port": port, "ipam": ipam() });
        if port == "veth" {
            plugin["qos"] = json!({ "egressRate": 8_000_000 });
        }
        Scenario { switches: true, ..Self::of(name, vec![plugin]) }
    }

    /// A port with everything that ports share: a bridge that the first port makes and the last one
    /// removes, tunnels likewise, and a mirror.
    pub(crate) fn ovs_shared() -> Self {
        let plugin = json!({
            "type": "ovs", "bridge": "br7", "createBridge": true, "datapathType": "netdev", "vlan": 7,
            "tunnel": { "vni": 5000, "remotes": ["192.0.2.2", "192.0.2.3"] },
            "mirrors": [{ "name": "m1", "ingress": true, "egress": true }], "ipam": ipam(),
        });
        Scenario { switches: true, ..Self::of("ovs with bridge, tunnels and mirror", vec![plugin]) }
    }

    pub(crate) fn loopback() -> Self {
        Self::of("loopback", vec![json!({ "type": "loopback" })])
    }

    pub(crate) fn host_local() -> Self {
        Self::of("host-local", vec![json!({ "type": "host-local", "ipam": ipam() })])
    }

    pub(crate) fn static_ipam() -> Self {
        let addresses = json!([{ "address": "10.1.0.9/24" }, { "address": "fd00:1::9/64" }]);
        let ipam = json!({ "type": "static", "addresses": addresses });
        Self::of("static", vec![json!({ "type": "static", "ipam": ipam })])
    }

    pub(crate) fn portmap() -> Self {
        Self::of("portmap", vec![bridge(), portmap()])
    }

    pub(crate) fn firewall() -> Self {
        Self::of("firewall", vec![bridge(), firewall()])
    }

    pub(crate) fn tuning() -> Self {
        Self::of("tuning", vec![bridge(), tuning()])
    }

    pub(crate) fn bandwidth() -> Self {
        Self::of("bandwidth", vec![bridge(), bandwidth()])
    }

    /// There is no daemon, so the plugin closes the container's addresses, and opens none.
    pub(crate) fn policy() -> Self {
        let ptp = json!({ "type": "ptp", "ipam": ipam() });
        Self::of("policy", vec![ptp, json!({ "type": "policy" })])
    }

    pub(crate) fn sbr() -> Self {
        Self::of("sbr", vec![bridge(), json!({ "type": "sbr" })])
    }

    /// Five plugins in one process.
    pub(crate) fn chain() -> Self {
        let ports = portmap()["runtimeConfig"].clone();
        let mut portmap = portmap();
        portmap.as_object_mut().unwrap().remove("runtimeConfig");
        let plugins = [bridge(), portmap, firewall(), tuning(), bandwidth()];
        let chain = json!({ "type": "chain", "plugins": plugins, "runtimeConfig": ports });
        Self::of("chain", vec![chain])
    }

    /// Five plugins, a process each; one of them gets faults.
    pub(crate) fn five(victim: usize) -> Self {
        let plugins = vec![bridge(), portmap(), firewall(), tuning(), bandwidth()];
        Scenario { victim, ..Self::of("five plugins", plugins) }
    }
}
