//! `ovs`: ports of a real Open vSwitch with the user-space datapath.

mod advertise;
mod away;
mod bad;
mod database;
mod internal;
mod lifecycle;
mod matrix;
mod port;
mod tls;
mod tunnel;
mod vm;

use serde_json::{Value, json};
use testkit::real::Ovs;
use testkit::{Container, traffic};

use crate::support::{Node, Run};

/// What every test with a switch requires, and the further features that it names.
macro_rules! require_switch {
    ($($feature:expr),*) => {
        testkit::require!("root", "program:ovs-vswitchd", "program:ovsdb-server" $(, $feature)*)
    };
}
pub(crate) use require_switch;

/// The datapath that moves a switch's frames.
#[derive(Clone, Copy)]
enum Datapath {
    UserSpace,
    /// Used in the virtual machine.
    Kernel,
}

impl Datapath {
    /// A switch with bridge `br0`.
    fn switch(self, node: &Node) -> Ovs<'_> {
        let ovs = Ovs::start(&node.lab);
        match self {
            Datapath::UserSpace => ovs.add_bridge("br0"),
            Datapath::Kernel => drop(ovs.vsctl(&["add-br", "br0"])),
        }
        ovs
    }
}

/// A switch with bridge `br0`.
fn switch(node: &Node) -> Ovs<'_> {
    Datapath::UserSpace.switch(node)
}

/// A configuration for bridge `br0` with addresses of 10.1.0.0/24 and more keys.
fn keys(node: &Node, ovs: &Ovs<'_>, more: Value) -> Value {
    let mut keys = json!({
        "bridge": "br0",
        "socket_file": ovs.remote(),
        "ipam": { "type": "host-local", "dataDir": node.dir("ipam"), "subnet": "10.1.0.0/24" },
    });
    keys.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    keys
}

/// ADD to a container.
fn add<'n>(node: &'n Node, to: &Container, keys: &Value) -> Run<'n> {
    node.run("ovs", "ADD").to(to).config(keys.clone())
}

/// The container's first address in a result, without its prefix length.
fn address(result: &Value) -> String {
    let address = result["ips"][0]["address"].as_str().unwrap();
    address.split('/').next().unwrap().to_owned()
}

/// Asserts ping and TCP from one container to another.
fn assert_reaches(from: &Container, to: &Container, address: &str) {
    traffic::assert_pings(from, address);
    let server = traffic::Server::tcp(to, &format!("{address}:7000"), "here");
    let answer = traffic::assert_tcp(from, &format!("{address}:7000"));
    assert_eq!(answer.server, "here");
    drop(server);
}
