//! `cnm` with a driver that is not ours.

mod bad;
mod driven;
mod killed;
mod matrix;
mod remove;

use serde_json::{Value, json};
use testkit::Container;
use testkit::driver::Driver;

use crate::support::matrix::{assert_settles, look};
use crate::support::{Node, Run};

/// A call with both drivers, and a subnet of each family.
fn cnm<'n>(node: &'n Node, verb: &str, container: &Container) -> Run<'n> {
    node.run("cnm", verb).to(container).config(json!({
        "driver": "weft", "ipamDriver": "weft",
        "subnets": [{ "subnet": "10.1.0.0/24" }, { "subnet": "fd00:1::/64" }],
    }))
}

/// A call about the network, not about a container.
fn of_network<'n>(node: &'n Node, verb: &str) -> Run<'n> {
    node.run("cnm", verb).config(json!({ "driver": "weft", "ipamDriver": "weft" })).of_network()
}

/// The request of the only call of this name.
#[track_caller]
fn asked(calls: &[(String, Value)], method: &str) -> Value {
    let mut found = calls.iter().filter(|(name, _)| name.ends_with(method));
    match (found.next(), found.next()) {
        (Some((_, question)), None) => question.clone(),
        _ => panic!("not one call {method}: {calls:#?}"),
    }
}

/// Asserts that `work` leaves the node as it was, and that the driver holds nothing. Before that,
/// one container is attached and detached.
#[track_caller]
fn leaves_nothing(node: &Node, driver: &Driver<'_>, work: impl FnOnce()) {
    let before = look(node);
    work();
    driver.assert_empty();
    assert_settles(&before, node);
}

/// A node on which a first attachment has left what stays for good: locks.
fn warm(name: &str) -> Node {
    let node = Node::new(name);
    let driver = Driver::start(&node.lab, "weft");
    let c0 = node.container("c0");
    cnm(&node, "ADD", &c0).call().ok();
    cnm(&node, "DEL", &c0).call().silent();
    driver.assert_empty();
    drop(driver);
    node
}
