//! A plugin that makes an interface, in every version of the specification.

use cni::Version;
use serde_json::{Value, json};
use testkit::Place;

use super::Node;
use super::matrix::{self, Family};

/// Attaches, checks and detaches a container in each version; the results have its shape.
pub(crate) fn all_are_spoken(node: &Node, plugin: &str, keys: &Value) {
    for version in Version::ALL {
        let (interfaces, check) = (Version::V0_3_0 <= *version, Version::V0_4_0 <= *version);
        let version = version.as_str();
        let c1 = node.container("c1");
        let run = |verb: &str| {
            let keys = keys.clone();
            let run = node.run(plugin, verb).to(&c1).config(keys).version(version);
            run.config(json!({ "ipam": matrix::ipam(node, Family::Dual) }))
        };
        let result = run("ADD").call().ok();
        assert_eq!(result["cniVersion"], version);
        if interfaces {
            let last = result["interfaces"].as_array().unwrap().last().unwrap();
            assert_eq!(last["name"], "eth0", "{result}");
            // As with the reference's library, all of 1.x has one shape.
            assert_eq!(last.get("mtu").is_some(), version.starts_with('1'), "{result}");
            assert_eq!(result["ips"].as_array().unwrap().len(), 2, "{result}");
        } else {
            let addresses = [&result["ip4"]["ip"], &result["ip6"]["ip"]];
            assert!(addresses.iter().all(|address| address.is_string()), "{result}");
        }
        if check {
            run("CHECK").prev(&result).call().silent();
        }
        run("DEL").prev(&result).call().silent();
        c1.sh("! ip link show eth0 2>/dev/null");
    }
}

/// Asserts that `netwright lint` finds a misspelt key.
pub(crate) fn a_misspelt_key_is_found(plugin: &str, right: &str, wrong: &str) {
    let plugin = plugins::find(plugin).unwrap();
    let unknown = |key: &str| {
        let config = json!({ "cniVersion": "1.1.0", "name": "n", "type": plugin.name(),
                             "ipam": {}, "dns": {}, key: null });
        plugin.unknown_keys(&config.to_string()).unwrap()
    };
    assert!(unknown(right).is_empty(), "{right}");
    let found = format!("{:?}", unknown(wrong));
    assert!(found.contains(wrong), "{found}");
}
