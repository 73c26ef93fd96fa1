//! Networks and plugins that cannot be used, or cannot be used together.

use testkit::Place as _;

use super::node::Node;
use super::{Act, ExpectedFinding, Fix, HintReason, Situation, Symptom};

const ADD: &str = "netwright add chain c3 --container-id c3";
const NO_CHAIN: &str = "rm -f /etc/cni/net.d/20-chain.conflist /opt/cni/bin/*";

/// Writes a network whose second plugin is of this type.
fn chain(node: &Node, plugin_type: &str) {
    let text = r#"{"cniVersion": "1.0.0", "name": "chain", "plugins": [
        {"type": "bridge", "bridge": "cni6", "isDefaultGateway": true,
         "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.96.0.0/24"}]]}},
        {"type": "TYPE"}]}"#;
    node.network("20-chain", &text.replace("TYPE", plugin_type));
}

/// Writes a network on a bridge of its own.
fn other(node: &Node, file: &str, name: &str, keys: &str, subnet: &str) {
    let text = r#"{"cniVersion": "1.0.0", "name": "NAME", "plugins": [
        {"type": "bridge", KEYS, "isDefaultGateway": true, "ipMasq": true,
         "ipam": {"type": "host-local", "ranges": [[{"subnet": "SUBNET"}]]}}]}"#;
    let text = text.replace("NAME", name).replace("KEYS", keys).replace("SUBNET", subnet);
    node.network(file, &text);
}

pub(super) const PLUGINS: &[Situation] = &[
    Situation {
        number: 25,
        is: "a chained plugin is missing",
        breaks: Act::Do(|node| chain(node, "absent")),
        fails: Symptom::Command(ADD),
        finds: ExpectedFinding::First("network-refused", "absent"),
        fix: Fix::Hint(HintReason::File, "the network's author knows where the plugin is"),
        mends: Act::Sh(NO_CHAIN),
    },
    Situation {
        number: 68,
        is: "the type of a plugin is misspelt",
        breaks: Act::Do(|node| chain(node, "portmapp")),
        fails: Symptom::Command(ADD),
        finds: ExpectedFinding::Shown("network-refused", "plugin \"portmap\" is there"),
        fix: Fix::Hint(HintReason::File, "the file is to be corrected"),
        mends: Act::Sh(NO_CHAIN),
    },
    Situation {
        number: 52,
        is: "the file of a plugin is garbage",
        breaks: Act::Do(|node| {
            chain(node, "garbage");
            node.plugin("garbage", "\u{7f}neither a program nor a script\n");
        }),
        fails: Symptom::Command(ADD),
        finds: ExpectedFinding::First("network-refused", "garbage"),
        fix: Fix::Hint(HintReason::File, "the plugin is to be installed again"),
        mends: Act::Sh(NO_CHAIN),
    },
    Situation {
        number: 23,
        is: "a plugin speaks only a version before results were passed on",
        breaks: Act::Do(|node| {
            chain(node, "aged");
            node.plugin(
                "aged",
                "#!/bin/sh\ncase $CNI_COMMAND in\n\
                 VERSION) echo '{\"cniVersion\": \"0.2.0\", \"supportedVersions\": [\"0.1.0\", \"0.2.0\"]}' ;;\n\
                 DEL) ;;\n\
                 *) echo '{\"cniVersion\": \"0.2.0\", \"code\": 1, \"msg\": \"incompatible CNI versions\"}'; exit 1 ;;\n\
                 esac\n",
            );
        }),
        fails: Symptom::Command(ADD),
        finds: ExpectedFinding::Shown("network-refused", "aged"),
        fix: Fix::Hint(HintReason::File, "the plugin is to be replaced by a newer one"),
        mends: Act::Sh(NO_CHAIN),
    },
    Situation {
        number: 53,
        is: "the file of a network is half written",
        breaks: Act::Do(|node| {
            node.network("15-half", r#"{"cniVersion": "1.0.0", "name": "half", "plugins": [{"ty"#);
        }),
        fails: Symptom::Command("netwright add half c3 --container-id c3"),
        finds: ExpectedFinding::First("network-broken", "/etc/cni/net.d/15-half.conflist"),
        fix: Fix::Hint(HintReason::File, "the file is to be written again"),
        mends: Act::Sh("rm /etc/cni/net.d/15-half.conflist"),
    },
    Situation {
        number: 22,
        is: "the pool has no free address",
        breaks: Act::Do(|node| {
            other(node, "40-small", "small", r#""bridge": "cni7""#, "10.97.0.0/30");
            node.lab.sh(&format!("{} add small c3 --container-id c3", crate::system::NETWRIGHT));
        }),
        fails: Symptom::Command("netwright add small c4 --container-id c4"),
        finds: ExpectedFinding::First("network-refused", "small"),
        fix: Fix::Hint(HintReason::Choice, "all of its containers live"),
        mends: Act::Sh(
            "netwright del small c3 --container-id c3; rm /etc/cni/net.d/40-small.conflist",
        ),
    },
    Situation {
        number: 59,
        is: "another container has the port",
        breaks: Act::Sh(""),
        fails: Symptom::Command("netwright add mynet c3 --container-id c3 --publish 8080:80"),
        finds: ExpectedFinding::Refusal("c1"),
        fix: Fix::Hint(HintReason::Refused, "ADD refuses, so nothing is broken"),
        mends: Act::Sh(""),
    },
    Situation {
        number: 66,
        is: "the folder of addresses is read-only",
        breaks: Act::Sh(
            "mount --bind /var/lib/cni/networks /var/lib/cni/networks; \
             mount -o remount,bind,ro /var/lib/cni/networks",
        ),
        fails: Symptom::Command("netwright add mynet c3 --container-id c3"),
        finds: ExpectedFinding::First("network-refused", "/var/lib/cni/networks"),
        fix: Fix::Hint(HintReason::Lost, "it depends on why it is read-only"),
        // The roll-back of the refused ADD could not write either.
        mends: Act::Sh("umount /var/lib/cni/networks; netwright del mynet c3 --container-id c3"),
    },
];

pub(super) const NETWORKS: &[Situation] = &[
    Situation {
        number: 24,
        is: "the file of another network comes first, on the same bridge",
        breaks: Act::Do(|node| {
            other(node, "00-foreign", "foreign", r#""bridge": "cni0""#, "10.90.0.0/24");
        }),
        fails: Symptom::Command("ls /etc/cni/net.d | head -n 1 | grep mynet"),
        // STATUS already reports that the bridge has the other network's gateway.
        finds: ExpectedFinding::First("network-refused", "foreign"),
        fix: Fix::Hint(HintReason::Choice, "only the administrator knows which is meant"),
        mends: Act::Sh("rm /etc/cni/net.d/00-foreign.conflist"),
    },
    Situation {
        number: 27,
        is: "another namespace has a container's path",
        breaks: Act::Sh(
            "ip netns add c5; ip -n c5 link set lo up; netwright add mynet c5 --container-id c5; \
             ip netns del c5; ip netns add c5",
        ),
        fails: Symptom::Command("ip -n c5 link show eth0"),
        finds: ExpectedFinding::First("namespace-gone", "c5"),
        fix: Fix::Mends,
        mends: Act::Sh("netwright gc; ip netns del c5"),
    },
    Situation {
        number: 61,
        is: "containers send larger packets than the uplink takes",
        breaks: Act::Do(|node| {
            other(node, "30-jumbo", "jumbo", r#""bridge": "cni9", "mtu": 9000"#, "10.99.0.0/24");
            node.lab.sh(&format!("{} add jumbo c3 --container-id c3", crate::system::NETWRIGHT));
        }),
        fails: Symptom::Latent("it works while routers say what fits"),
        finds: ExpectedFinding::First("mtu-too-large", "jumbo"),
        fix: Fix::Hint(
            HintReason::File,
            "the file is to be changed, and containers attached again",
        ),
        mends: Act::Sh(
            "netwright del jumbo c3 --container-id c3; rm /etc/cni/net.d/30-jumbo.conflist",
        ),
    },
    Situation {
        number: 62,
        is: "the pool is the uplink's subnet",
        breaks: Act::Do(|node| {
            other(node, "50-same", "same", r#""bridge": "cni5""#, "198.51.100.0/24");
        }),
        fails: Symptom::Latent("no container is attached: that would take the node off its uplink"),
        finds: ExpectedFinding::First("subnet-taken", "same"),
        fix: Fix::Hint(HintReason::File, "the network needs another subnet"),
        mends: Act::Sh("rm /etc/cni/net.d/50-same.conflist"),
    },
];
