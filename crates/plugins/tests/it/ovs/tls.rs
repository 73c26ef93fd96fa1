//! A database that is reached over TLS.

use serde_json::{Value, json};
use testkit::real::Pki;

use super::{add, address, assert_reaches, keys, require_switch, switch};
use crate::support::Node;

fn pki(node: &Node, dir: &str, names: &[&str]) -> Pki {
    Pki::new(node.dir(dir), names)
}

/// The configuration's keys for the database, with the files of `name`.
fn place(remote: &str, pki: &Pki, name: &str) -> Value {
    let [key, certificate, authority] = pki.files(name);
    json!({ "socket_file": remote, "private_key": key, "certificate": certificate, "ca_cert": authority })
}

#[test]
fn a_port_is_made_over_tls() {
    require_switch!();
    testkit::require!("program:ovs-pki", "program:openssl");
    let node = Node::new("ovs-tls");
    let mut ovs = switch(&node);
    let ours = pki(&node, "ours", &["sc", "cl"]);
    let remote = ovs.speak_tls(&ours, "sc");
    let before = ovs.content();
    let keys = keys(&node, &ovs, place(&remote, &ours, "cl"));
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let first = add(&node, &c1, &keys).call().ok();
    let second = add(&node, &c2, &keys).call().ok();
    assert_reaches(&c1, &c2, &address(&second));
    node.run("ovs", "CHECK").to(&c1).config(keys.clone()).prev(&first).call().silent();
    let status = node.run("ovs", "STATUS").config(keys.clone()).env(|env| {
        env.container_id.clear();
        env.ifname.clear();
    });
    status.call().silent();
    // DEL also knows address and keys from ADD's record.
    let mut del = node.run("ovs", "DEL").to(&c1).config(keys.clone());
    for key in ["socket_file", "private_key", "certificate", "ca_cert"] {
        del = del.without(key);
    }
    del.call().silent();
    node.run("ovs", "DEL").to(&c2).config(keys).call().silent();
    assert_eq!(before, ovs.content());
}

#[test]
fn keys_that_are_missing_or_of_somebody_else_are_told() {
    require_switch!();
    testkit::require!("program:ovs-pki", "program:openssl");
    let node = Node::new("ovs-tls-wrong");
    let mut ovs = switch(&node);
    let (ours, theirs) = (pki(&node, "ours", &["sc", "cl"]), pki(&node, "theirs", &["cl"]));
    let remote = ovs.speak_tls(&ours, "sc");
    let (right, wrong) = (place(&remote, &ours, "cl"), place(&remote, &theirs, "cl"));
    let with = |key: &str, value: Value| {
        let mut place = right.clone();
        place[key] = value;
        place
    };
    let cases = [
        (with("private_key", json!("")), 7, "needs \"private_key\""),
        (with("ca_cert", json!("cacert.pem")), 7, "needs \"ca_cert\""),
        (with("certificate", json!("/nonexistent")), 112, "certificate \"/nonexistent\" for ssl:"),
        (with("ca_cert", wrong["ca_cert"].clone()), 112, "invalid peer certificate"),
        (wrong, 112, "TLS with ssl:127.0.0.1:6640"),
    ];
    let c1 = node.container("c1");
    let before = ovs.content();
    for (place, code, said) in cases {
        let error = add(&node, &c1, &keys(&node, &ovs, place)).call().error();
        assert_eq!(error.code, code, "{error:?}");
        assert!(error.msg.contains(said), "{said}: {error:?}");
        assert!(!error.details.is_empty(), "{error:?}");
    }
    assert_eq!(before, ovs.content());
}
