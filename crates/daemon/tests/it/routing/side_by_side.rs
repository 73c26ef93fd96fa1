//! Flannelds of both backends in one cluster.

use std::rc::Rc;

use testkit::traffic::{self, Server};
use testkit::wait_until;

use super::etcd::{self, grant, key, put_lease, value_of, values};
use super::flannel::{Backend, flanneld_with, macs};
use super::reach::{at, path};
use super::{Fabric, Node};

/// Asserts that a pod's UDP packets arrive at another's addresses, with the pod's own as their
/// source.
#[track_caller]
fn assert_keeps_its_address(from: &Node, to: &Node) {
    for address in to.pod_addresses() {
        let at = at(&address, 7);
        let _server = Server::udp(&to.pod, &at, "pod");
        let seen = traffic::assert_udp(&from.pod, &at).seen.ip().to_string();
        assert!(from.pod_addresses().contains(&seen), "{at} sees {seen}");
    }
}

/// The flanneld of one node has the backend `host-gw`, that of another, behind the router, `vxlan`. A
/// flanneld ignores leases of another backend, so these two do not reach each other. Ours reaches the
/// pods of both, and they reach its own.
#[test]
fn vm_flannelds_of_both_backends_are_reached() {
    testkit::require!("full", "root", "vxlan", "program:etcd", "program:curl", "program:bridge");
    let mut fabric = Fabric::new("routing-side-by-side", &[2, 1]);
    let lab = Rc::clone(&fabric.lab);
    let etcd = etcd::start(&mut fabric, &lab, &Backend::DirectRouting.config());
    let (ours, gateways, tunnels) = (0, 1, 2);
    // The tunnel comes from an earlier flanneld on our node, so its hardware addresses are known.
    for (number, backend) in
        [(ours, Backend::Vxlan), (gateways, Backend::HostGw), (tunnels, Backend::Vxlan)]
    {
        let node = &fabric.nodes[number];
        let value = value_of(node, backend, &macs(node.number));
        put_lease(&etcd, &key(node.number), &value, Some(&grant(&etcd, 3600)));
    }
    let said = values(&etcd);
    flanneld_with(&fabric, tunnels, Backend::Vxlan, &[ours]);
    // It also ignores our lease, whose backend is `vxlan`. Another program has to make the route
    // back.
    flanneld_with(&fabric, gateways, Backend::HostGw, &[ours]);

    etcd::replace(&mut fabric, ours);
    wait_until("our node to be ready", || fabric.routes(ours)["phase"] == "ready");
    let table = fabric.routes(ours);
    for (node, paths) in [(gateways, ["direct", "direct"]), (tunnels, ["vxlan", "vxlan6"])] {
        let name = key(fabric.nodes[node].number);
        assert_eq!(["ipv4", "ipv6"].map(|family| path(&table, &name, family)), paths, "{table}");
    }
    for node in [gateways, tunnels] {
        let (own, other) = (&fabric.nodes[ours], &fabric.nodes[node]);
        own.assert_reaches(other);
        other.assert_reaches(own);
        assert_keeps_its_address(own, other);
        assert_keeps_its_address(other, own);
    }
    let (sound, probed) = fabric.probe(ours, &[]);
    assert!(sound, "{probed}");
    assert_eq!(values(&etcd), said);
}
