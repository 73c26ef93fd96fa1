//! What the suite knows about common plugins: how to configure them, what they need, what can be
//! broken.

use kernel::netns::within;
use kernel::nft::{Batch, NftSocket};
use kernel::route::{Change, LinkKind, LinkSet, NewLink, RouteSocket, TcHandle, VethPeer};
use serde_json::{Value, json};

use crate::bench::{Bench, Target, find, given};
use crate::case::{Kind, OrBroken as _, Outcome, Stop};
use crate::{addresses, delegate, driver, switch};

/// What is known about a plugin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Profile {
    pub(crate) plugin: &'static str,
    pub(crate) kind: Kind,
    /// Creates what the plugin needs on the machine; skips the case when the machine cannot have
    /// it.
    pub(crate) host: fn(&Bench) -> Outcome,
    /// A kernel feature that it needs, where only ADD can tell.
    pub(crate) feature: Option<&'static str>,
    /// Creates what the plugin needs for one attachment.
    pub(crate) each: fn(&Bench, &Target) -> Outcome,
    /// The configuration for the n-th attachment.
    pub(crate) config: fn(u8) -> Value,
    /// The capability arguments for the n-th attachment.
    pub(crate) runtime: fn(u8) -> Option<Value>,
    /// Breaks something that is not in the result, so that CHECK should notice.
    pub(crate) damage: Option<fn(&Bench, &Target) -> Outcome>,
    /// Makes ADD impossible and returns the keys for that; STATUS should report it.
    pub(crate) unready: Option<fn(&Bench) -> Outcome<Value>>,
    /// The plugin creates the interface in the container.
    pub(crate) makes_link: bool,
    /// Containers on the network reach each other.
    pub(crate) siblings: bool,
    /// Containers reach the machine at their gateway's address.
    pub(crate) gateway: bool,
    /// The plugin honours the hardware address in the capability arguments.
    pub(crate) takes_mac: bool,
    /// Only one attachment at a time is possible.
    pub(crate) single: bool,
    /// The plugin gives its delegate a configuration that it makes itself.
    pub(crate) rewrites: bool,
}

/// The file of `flannel` that flanneld writes.
const SUBNET_ENV: &str = "/run/conformance/subnet.env";

/// Where the daemon of `policy` listens.
const POLICY_SOCKET: &str = "/run/conformance/policy.sock";

const PLAIN: Profile = Profile {
    plugin: "",
    kind: Kind::Interface,
    host: |_| Ok(()),
    feature: None,
    each: |_, _| Ok(()),
    config: |_| json!({}),
    runtime: |_| None,
    damage: None,
    unready: None,
    makes_link: true,
    siblings: false,
    gateway: false,
    takes_mac: false,
    single: false,
    rewrites: false,
};

const ALL: &[Profile] = &[
    Profile {
        plugin: "bridge",
        config: |_| {
            json!({ "bridge": "conf0", "isGateway": true, "ipMasq": true, "ipam": ipam(),
                    "capabilities": { "mac": true } })
        },
        runtime: |n| Some(json!({ "mac": mac(n) })),
        damage: Some(|_, _| delete_tables()),
        unready: Some(|_| {
            veth("conf1", "conf2")?;
            Ok(json!({ "bridge": "conf1" }))
        }),
        siblings: true,
        gateway: true,
        takes_mac: true,
        ..PLAIN
    },
    Profile {
        plugin: "chain",
        config: |_| {
            json!({ "plugins": [
                { "type": "bridge", "bridge": "conf0", "isGateway": true, "ipam": ipam() },
                { "type": "tuning", "mtu": 1400 },
            ] })
        },
        siblings: true,
        gateway: true,
        ..PLAIN
    },
    Profile {
        plugin: "cnm",
        host: |_| driver::start(),
        config: |_| json!({ "driver": driver::SOCKET, "ipam": ipam(), "capabilities": { "mac": true } }),
        runtime: |n| Some(json!({ "mac": mac(n) })),
        unready: Some(|_| Ok(json!({ "driver": "nowhere" }))),
        siblings: true,
        gateway: true,
        takes_mac: true,
        ..PLAIN
    },
    Profile {
        plugin: "flannel",
        host: |_| {
            let lines = "FLANNEL_NETWORK=10.88.0.0/16\nFLANNEL_SUBNET=10.88.0.1/24\n\
                         FLANNEL_IPV6_NETWORK=fd88::/48\nFLANNEL_IPV6_SUBNET=fd88::1/64\n\
                         FLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n";
            std::fs::write(SUBNET_ENV, lines).or_broken("write what flanneld writes")
        },
        config: |_| {
            json!({ "subnetFile": SUBNET_ENV, "delegate": { "bridge": "conf0", "hairpinMode": true },
                    "ipam": ipam(), "capabilities": { "mac": true } })
        },
        runtime: |n| Some(json!({ "mac": mac(n) })),
        damage: Some(|_, _| delete_tables()),
        unready: Some(|_| Ok(json!({ "subnetFile": "/run/conformance/nowhere" }))),
        siblings: true,
        gateway: true,
        takes_mac: true,
        rewrites: true,
        ..PLAIN
    },
    Profile {
        plugin: "multi",
        config: |_| {
            json!({ "networks": [
                { "config": { "type": "bridge", "bridge": "conf0", "isGateway": true, "ipam": ipam() } },
                { "config": { "type": "ptp", "ipam": { "type": "host-local", "subnet": "10.213.0.0/24" } } },
            ] })
        },
        siblings: true,
        gateway: true,
        ..PLAIN
    },
    Profile {
        plugin: "netwright-multi",
        host: |_| driver::start_pods(),
        config: |_| {
            json!({ "socket": driver::PODS, "delegates": [
                { "name": "cluster", "type": "bridge", "bridge": "conf0", "isGateway": true, "ipam": ipam() },
            ] })
        },
        unready: Some(|_| {
            veth("conf1", "conf2")?;
            Ok(
                json!({ "delegates": [{ "name": "cluster", "type": "bridge", "bridge": "conf1", "ipam": ipam() }] }),
            )
        }),
        siblings: true,
        gateway: true,
        ..PLAIN
    },
    Profile {
        plugin: "ovs",
        host: |_| switch::start(),
        config: |_| {
            json!({ "bridge": switch::BRIDGE, "socket_file": switch::SOCKET, "vlan": 100,
                    "ipam": ipam(), "capabilities": { "mac": true } })
        },
        runtime: |n| Some(json!({ "mac": mac(n) })),
        damage: Some(|_, _| switch::remove_ports()),
        unready: Some(|_| Ok(json!({ "bridge": "nowhere0" }))),
        siblings: true,
        takes_mac: true,
        ..PLAIN
    },
    Profile {
        plugin: "ptp",
        config: |_| json!({ "ipMasq": true, "ipam": ipam() }),
        damage: Some(|_, _| delete_tables()),
        siblings: true,
        gateway: true,
        ..PLAIN
    },
    Profile {
        plugin: "macvlan",
        host: |_| veth("par0", "par1"),
        config: |_| json!({ "master": "par0", "mode": "bridge", "ipam": ipam(), "capabilities": { "mac": true } }),
        runtime: |n| Some(json!({ "mac": mac(n) })),
        unready: Some(|_| Ok(json!({ "master": "nowhere0" }))),
        siblings: true,
        takes_mac: true,
        ..PLAIN
    },
    Profile {
        plugin: "ipvlan",
        host: |_| veth("par0", "par1"),
        feature: Some("ipvlan"),
        config: |_| json!({ "master": "par0", "ipam": ipam() }),
        unready: Some(|_| Ok(json!({ "master": "nowhere0" }))),
        siblings: true,
        ..PLAIN
    },
    Profile {
        plugin: "vlan",
        host: |_| veth("par0", "par1"),
        feature: Some("802.1Q VLANs"),
        config: |n| json!({ "master": "par0", "vlanId": 100 + u16::from(n), "ipam": ipam() }),
        unready: Some(|_| Ok(json!({ "master": "nowhere0" }))),
        ..PLAIN
    },
    Profile {
        plugin: "dummy",
        host: |_| needs("dummy", LinkKind::Dummy),
        config: |_| json!({ "ipam": ipam() }),
        ..PLAIN
    },
    Profile { plugin: "tap", config: |_| json!({ "ipam": ipam() }), ..PLAIN },
    Profile {
        plugin: "host-device",
        each: |_, target| veth(&format!("dev{}", target.number), &format!("far{}", target.number)),
        config: |n| json!({ "device": format!("dev{n}"), "ipam": ipam() }),
        unready: Some(|_| Ok(json!({ "device": "nowhere0" }))),
        ..PLAIN
    },
    Profile { plugin: "loopback", makes_link: false, ..PLAIN },
    Profile {
        plugin: "host-local",
        kind: Kind::Ipam,
        config: |_| {
            json!({ "type": "conformance-main", "ipam": { "type": "host-local", "ranges":
                [[{ "subnet": "10.88.0.0/24" }], [{ "subnet": "fd88::/64" }]] } })
        },
        damage: Some(|_, _| {
            let dir = format!("/var/lib/cni/networks/{}", crate::bench::NETWORK);
            for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
                std::fs::remove_file(entry.path()).or_broken("remove a reservation")?;
            }
            Ok(())
        }),
        unready: Some(|bench| {
            let full = json!({ "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.88.1.0/30" }]] } });
            let target = bench.container(9)?;
            bench.about("ADD", &target).with(&full).send().succeeded()?;
            Ok(full)
        }),
        makes_link: false,
        ..PLAIN
    },
    Profile {
        plugin: "cluster-ipam",
        kind: Kind::Ipam,
        host: |_| addresses::start(),
        config: |_| {
            json!({ "type": "conformance-main", "ipam": {
                "type": "cluster-ipam", "socket": addresses::SOCKET,
                "ipRanges": [{ "range": "10.88.0.0/24", "gateway": "10.88.0.1" }, { "range": "fd88::/64" }],
            } })
        },
        damage: Some(|_, _| addresses::forget()),
        unready: Some(|bench| {
            let full = json!({ "ipam": {
                "type": "cluster-ipam", "socket": addresses::SOCKET, "ipRanges": [{ "range": "10.88.1.0/30" }],
            } });
            for number in [8, 9] {
                let target = bench.container(number)?;
                bench.about("ADD", &target).with(&full).send().succeeded()?;
            }
            Ok(full)
        }),
        makes_link: false,
        ..PLAIN
    },
    Profile {
        plugin: "static",
        kind: Kind::Ipam,
        config: |n| {
            let addresses: Vec<Value> = given(n, None)
                .iter()
                .map(|one| json!({ "address": one.address.to_string(), "gateway": one.gateway.to_string() }))
                .collect();
            json!({ "type": "conformance-main", "ipam": { "type": "static", "addresses": addresses } })
        },
        makes_link: false,
        ..PLAIN
    },
    Profile {
        plugin: "portmap",
        config: |_| json!({ "snat": true, "capabilities": { "portMappings": true } }),
        runtime: |n| {
            let port = |protocol| json!({ "hostPort": host_port(n), "containerPort": 8080, "protocol": protocol });
            Some(json!({ "portMappings": [port("tcp"), port("udp")] }))
        },
        damage: Some(|_, _| delete_tables()),
        ..CHAINED
    },
    Profile {
        plugin: "firewall",
        config: |_| json!({ "backend": "iptables" }),
        damage: Some(|_, _| delete_tables()),
        ..CHAINED
    },
    Profile {
        plugin: "bandwidth",
        host: |_| needs("ifb", LinkKind::Ifb),
        config: |_| json!({ "capabilities": { "bandwidth": true } }),
        runtime: |_| {
            Some(json!({ "bandwidth": { "ingressRate": 80_000_000, "ingressBurst": 8_000_000,
                                        "egressRate": 80_000_000, "egressBurst": 8_000_000 } }))
        },
        damage: Some(|_, target| {
            let mut netlink = RouteSocket::open().or_broken("open netlink")?;
            let link = find(&mut netlink, &format!("link{}", target.number))?;
            let parent = TcHandle::ROOT;
            let gone =
                Change::DelQdisc { ifindex: link.index, parent, handle: TcHandle::UNSPECIFIED };
            netlink.apply_one(&gone).or_broken("remove a queueing discipline")
        }),
        ..CHAINED
    },
    Profile {
        plugin: "tuning",
        config: |_| json!({ "sysctl": { "net.ipv4.conf.IFNAME.arp_filter": "1" }, "mtu": 1400 }),
        damage: Some(|_, target| {
            let file = format!("/proc/sys/net/ipv4/conf/{}/arp_filter", target.ifname);
            let written = within(&target.container.netns, || std::fs::write(file, "0"));
            written.or_broken("enter a container")?.or_broken("write a sysctl")
        }),
        ..CHAINED
    },
    Profile {
        plugin: "policy",
        host: |_| daemon_was_ready(POLICY_SOCKET),
        config: |_| json!({ "socketpath": POLICY_SOCKET }),
        damage: Some(|_, _| delete_tables()),
        // Without its daemon ADD succeeds, and the container is closed.
        unready: None,
        ..CHAINED
    },
    Profile {
        plugin: "ovs-mirror-consumer",
        config: |n| {
            json!({ "bridge": switch::BRIDGE, "socket_file": switch::SOCKET,
                    "mirrors": [{ "name": format!("m{n}") }] })
        },
        ..MIRROR
    },
    Profile {
        plugin: "ovs-mirror-producer",
        config: |n| {
            json!({ "bridge": switch::BRIDGE, "socket_file": switch::SOCKET,
                    "mirrors": [{ "name": format!("m{n}"), "ingress": true, "egress": true }] })
        },
        ..MIRROR
    },
    Profile { plugin: "sbr", ..CHAINED },
    Profile {
        plugin: "vrf",
        host: |_| needs("VRF", LinkKind::Vrf { table: 4000 }),
        config: |_| json!({ "vrfname": "blue" }),
        damage: Some(|bench, target| {
            let mut inside = bench.inside(&target.container)?;
            let ifindex = find(&mut inside, &target.ifname)?.index;
            let set = LinkSet { master: Some(None), ..LinkSet::default() };
            inside.apply_one(&Change::SetLink { ifindex, set }).or_broken("leave the VRF")
        }),
        ..CHAINED
    },
];

/// The profile of plugins that put a port of Open vSwitch into mirrors.
const MIRROR: Profile = Profile {
    host: |_| switch::start_database(),
    each: |_, target| switch::add_port(&format!("link{}", target.number)),
    damage: Some(|_, _| switch::remove_mirrors()),
    unready: Some(|_| Ok(json!({ "bridge": "nowhere0" }))),
    ..CHAINED
};

const CHAINED: Profile = Profile { kind: Kind::Chained, makes_link: false, ..PLAIN };

impl Profile {
    /// Returns what is known about a plugin.
    pub(crate) fn of(plugin: &str) -> Self {
        let known = ALL.iter().find(|profile| profile.plugin == plugin);
        known.copied().unwrap_or(Profile { kind: Kind::Unknown, makes_link: false, ..PLAIN })
    }
}

/// Returns the host port that is published for the n-th container.
pub(crate) fn host_port(number: u8) -> u16 {
    18080 + u16::from(number)
}

/// Returns the hardware address requested for the n-th container.
pub(crate) fn mac(number: u8) -> String {
    format!("02:00:00:00:88:{number:02x}")
}

fn ipam() -> Value {
    json!({ "type": delegate::NAME })
}

/// Creates a veth on the machine, with both ends up.
pub(crate) fn veth(name: &str, peer: &str) -> Outcome {
    let mut netlink = RouteSocket::open().or_broken("open netlink")?;
    let kind = LinkKind::Veth(VethPeer::new(peer));
    netlink.create_link(&NewLink::new(name, kind)).or_broken("make a pair of links")?;
    for end in [name, peer] {
        let ifindex = find(&mut netlink, end)?.index;
        let up = Change::SetLink { ifindex, set: LinkSet::default().up(true) };
        netlink.apply_one(&up).or_broken("set a link up")?;
    }
    Ok(())
}

/// Says in a daemon's place that it was ready a moment ago: milliseconds since the machine's start.
fn daemon_was_ready(socket: &str) -> Outcome {
    let uptime = std::fs::read_to_string("/proc/uptime").or_broken("read the time")?;
    let seconds = uptime.split(['.', ' ']).next().unwrap_or_default();
    let path = format!("{socket}.ready");
    std::fs::create_dir_all("/run/conformance").or_broken("make a folder")?;
    std::fs::write(path, format!("{seconds}000")).or_broken("write what a daemon writes")
}

/// Skips the case if the kernel cannot create a link of a kind.
fn needs(name: &str, kind: LinkKind) -> Outcome {
    let mut netlink = RouteSocket::open().or_broken("open netlink")?;
    let Ok(made) = netlink.create_link(&NewLink::new("probe0", kind)) else {
        return Err(Stop::Skipped(format!("this machine's kernel has no {name}")));
    };
    netlink.delete_link(made.index).or_broken("remove a link")?;
    Ok(())
}

/// Deletes every nftables table, as a careless administrator does.
pub(crate) fn delete_tables() -> Outcome {
    let mut nft = NftSocket::open().or_broken("open nftables")?;
    let tables = nft.tables(None).or_broken("list tables")?;
    for info in tables {
        let mut batch = Batch::new();
        batch.delete_table(&info.table);
        nft.commit(&batch).or_broken("delete a table")?;
    }
    Ok(())
}
