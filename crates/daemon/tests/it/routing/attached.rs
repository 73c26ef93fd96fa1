//! Plugins attach pods, with the network configuration that the service writes.

use std::os::unix::fs::symlink;
use std::{env, fs};

use serde_json::{Value, json};
use state::Roots;
use testkit::{Place as _, wait_for};

use super::Fabric;
use crate::support::Run;

/// Starts the service on every node, with a configuration that attaches pods by this plugin. Then
/// attaches each node's pod as a runtime does.
pub(super) fn start(fabric: &mut Fabric, plugin: &str) {
    let bin = fabric.lab.dir().join("bin");
    fs::create_dir(&bin).unwrap();
    for name in [plugin, "host-local"] {
        symlink(env::current_exe().unwrap(), bin.join(name)).unwrap();
    }
    let configuration =
        |fabric: &Fabric, node: usize| fabric.nodes[node].dir.join("net.d/10-pods.conflist");
    for node in 0..fabric.nodes.len() {
        let path = configuration(fabric, node);
        fs::create_dir(path.parent().unwrap()).unwrap();
        fabric.flags =
            ["--conflist", path.to_str().unwrap(), "--attach", plugin].map(str::to_owned).to_vec();
        fabric.start_on(node);
    }
    for (number, node) in fabric.nodes.iter().enumerate() {
        let path = configuration(fabric, number);
        let text = wait_for("the configuration", || fs::read(&path).ok());
        let list: Value = serde_json::from_slice(&text).unwrap();
        let mut config = list["plugins"][0].clone();
        assert_eq!(config["type"], plugin, "{list}");
        config["cniVersion"] = list["cniVersion"].clone();
        config["name"] = list["name"].clone();
        // The nodes share one /var here.
        config["ipam"]["dataDir"] = json!(node.dir.join("ipam"));
        let roots = Roots::new(node.dir.join("run"), node.dir.join("lib"));
        let result = node.host.enter(|| {
            let run = Run::bare(plugin, "ADD").to(&node.pod).roots(&roots);
            run.path(bin.to_str().unwrap()).config(config).call().ok()
        });
        let addresses = [0, 1].map(|place| {
            let address = result["ips"][place]["address"].as_str().unwrap();
            address.split('/').next().unwrap().to_owned()
        });
        assert_eq!(addresses, node.pod_addresses(), "{result}");
    }
}
