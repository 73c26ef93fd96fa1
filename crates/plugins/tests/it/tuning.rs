//! `tuning`, row by row.

mod add;
mod check;
mod matrix;
mod remove;

use serde_json::{Value, json};
use testkit::{Container, Place};

use crate::support::{Node, Run};

/// A container with a fresh `eth0`, without the addresses that the kernel adds later by itself.
fn container(node: &Node, name: &str) -> Container {
    let container = node.container(name);
    container.sh("ip link add eth0 mtu 1500 address 02:00:00:00:00:aa type veth peer name far && \
         ip link set eth0 addrgenmode none && ip link set far addrgenmode none && \
         ip link set eth0 up && ip link set far up");
    container
}

/// The result of an earlier plugin.
fn prev() -> Value {
    json!({
        "cniVersion": "1.1.0",
        "interfaces": [
            { "name": "eth0", "mac": "02:00:00:00:00:bb" },
            { "name": "eth0", "mac": "02:00:00:00:00:aa", "sandbox": "/run/netns/c1" },
        ],
    })
}

/// Every key of a link, each with a value other than a veth's default.
fn everything() -> Value {
    json!({ "mac": "02:00:5E:00:53:01", "mtu": 1400, "promisc": true, "allmulti": true, "txQLen": 5 })
}

fn add<'n>(node: &'n Node, container: &Container, config: &Value) -> Run<'n> {
    node.run("tuning", "ADD").to(container).prev(&prev()).config(config.clone())
}

fn del<'n>(node: &'n Node, container: &Container) -> Run<'n> {
    node.run("tuning", "DEL").to(container)
}

/// The backup of `eth0`, if there is one.
fn backup(node: &Node, container: &str) -> Option<String> {
    std::fs::read_to_string(node.lab.path(format!("/run/cni/tuning/{container}_eth0.json"))).ok()
}

/// Our files below the folders for state.
fn files(node: &Node) -> String {
    let found =
        node.sh(&format!("cd {} && find run -type f 2>/dev/null | sort", node.lab.dir().display()));
    found.trim().to_owned()
}

fn sysctl(container: &Container, name: &str) -> String {
    container.sh(&format!("sysctl -n {name}")).trim().to_owned()
}

fn link(container: &Container) -> Value {
    let text = container.sh("ip -j -d link show eth0");
    serde_json::from_str::<Value>(&text).unwrap()[0].clone()
}

fn has_flag(link: &Value, flag: &str) -> bool {
    link["flags"].as_array().unwrap().iter().any(|have| have == flag)
}
