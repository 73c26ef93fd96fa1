//! The choice of a path; both ends choose the same.

use expect_test::expect;
use netwright_routing::node::{Dialect, Offers, Vxlan};
use netwright_routing::path::{Choice, Path, Reachability, Way, choose, choose_path};
use netwright_routing::{IpFamily, Node, PerFamily};
use proptest::prelude::*;

use crate::support::{by_gateway, cases, node, on_link, v4_node};

fn chosen(own: &Node, peer: &Node, family: IpFamily, way: &Way, learned: bool) -> Choice {
    choose(own, peer, family, Reachability { ways: PerFamily { v4: way, v6: way }, learned })
}

fn flannels(mut node: Node, offers: Offers) -> Node {
    node.dialect = Dialect::Flannel;
    node.offers = offers;
    node
}

fn shown(choice: &Choice) -> String {
    let mut text = format!("{}: {}\n", choice.path, choice.because);
    for passed in &choice.passed_over {
        text.push_str(&format!("  not {}: {}\n", passed.path, passed.why));
    }
    text
}

#[test]
fn the_first_path_that_both_ends_have_is_taken() {
    let (a, b) = (node("a", 1), node("b", 2));
    let vxlan = b.offers.vxlan.unwrap();
    let only = |offers: Offers| Node { offers, ..b.clone() };
    let none = Offers::default();
    let mut other_vni = vxlan;
    other_vni.vni = 7;
    let mut other_port = vxlan;
    other_port.port = 4789;
    let without_v6 = v4_node("b", 2);
    let native = only(Offers { native: true, ..none });
    let flannel_vxlan = flannels(b.clone(), Offers { vxlan: Some(vxlan), ..none });
    let flannel_host_gw = flannels(b.clone(), Offers { direct: true, ..none });
    let mut flannel_v4 = flannel_vxlan.clone();
    flannel_v4.underlay.v6 = None;
    flannel_v4.offers.vxlan.as_mut().unwrap().mac6 = None;
    let mut text = String::new();
    for (what, own, peer, family, way, learned) in [
        ("same segment", &a, &b, IpFamily::V4, on_link(), false),
        ("behind a router", &a, &b, IpFamily::V4, by_gateway(), false),
        ("behind a router, IPv6", &a, &b, IpFamily::V6, by_gateway(), false),
        ("IPv6 over IPv4", &a, &without_v6, IpFamily::V6, by_gateway(), false),
        ("IPv6 over IPv4, from the other end", &without_v6, &b, IpFamily::V6, by_gateway(), false),
        ("no route for now", &a, &b, IpFamily::V4, Way::Missing, false),
        ("learned", &a, &b, IpFamily::V4, on_link(), true),
        ("native", &a, &native, IpFamily::V4, on_link(), false),
        ("flannel vxlan on the segment", &a, &flannel_vxlan, IpFamily::V4, on_link(), false),
        ("flannel host-gw on the segment", &a, &flannel_host_gw, IpFamily::V4, on_link(), false),
        ("flannel host-gw elsewhere", &a, &flannel_host_gw, IpFamily::V4, by_gateway(), false),
        ("flannel without IPv6", &a, &flannel_v4, IpFamily::V6, by_gateway(), false),
        ("native and flannel", &native, &flannel_vxlan, IpFamily::V4, on_link(), false),
        (
            "other VNI",
            &a,
            &only(Offers { vxlan: Some(other_vni), direct: true, ..none }),
            IpFamily::V4,
            by_gateway(),
            false,
        ),
        (
            "other port",
            &a,
            &only(Offers { vxlan: Some(other_port), ..none }),
            IpFamily::V4,
            by_gateway(),
            false,
        ),
        (
            "not asked yet",
            &a,
            &only(Offers { direct: true, ..none }),
            IpFamily::V4,
            Way::Unknown,
            false,
        ),
    ] {
        let choice = chosen(own, peer, family, &way, learned);
        text.push_str(&format!("{what}\n{}", shown(&choice)));
    }
    expect![[r#"
        same segment
        direct: 192.0.2.2 is on the segment of eth0
        behind a router
        vxlan: both offer it, by way of 192.0.2.2
          not direct: 192.0.2.2 is behind a gateway on eth0
        behind a router, IPv6
        vxlan6: both offer it, by way of 2001:db8::2
          not direct: 2001:db8::2 is behind a gateway on eth0
        IPv6 over IPv4
        vxlan: both offer it, by way of 192.0.2.2
          not direct: b has no underlay address of IPv6
          not vxlan6: b has no underlay address of IPv6
        IPv6 over IPv4, from the other end
        vxlan: both offer it, by way of 192.0.2.2
          not direct: this node has no underlay address of IPv6
          not vxlan6: this node has no underlay address of IPv6
        no route for now
        vxlan: both offer it; now this node has no route to 192.0.2.2
          not direct: this node has no route to 192.0.2.2
          not vxlan6: this node has no route to 2001:db8::2
        learned
        learned: a routing daemon has a route to it
        native
        native: b leaves it to the network between the nodes
        flannel vxlan on the segment
        vxlan: both offer it, by way of 192.0.2.2
          not direct: b does not offer direct paths
        flannel host-gw on the segment
        direct: 192.0.2.2 is on the segment of eth0
        flannel host-gw elsewhere
        none: 192.0.2.2 is behind a gateway on eth0; b does not offer VXLAN
          not direct: 192.0.2.2 is behind a gateway on eth0
          not vxlan: b does not offer VXLAN
          not vxlan6: b does not offer VXLAN
        flannel without IPv6
        none: b does not offer direct paths; b has no underlay address of IPv6; flanneld on b has no IPv6 over IPv4
          not direct: b does not offer direct paths
          not vxlan6: b has no underlay address of IPv6
          not vxlan: flanneld on b has no IPv6 over IPv4
        native and flannel
        none: this node takes native paths only, and flanneld on b has none
        other VNI
        none: 192.0.2.2 is behind a gateway on eth0; b has VNI 7, this node 1
          not direct: 192.0.2.2 is behind a gateway on eth0
          not vxlan: b has VNI 7, this node 1
          not vxlan6: b has VNI 7, this node 1
        other port
        none: b does not offer direct paths; b has VXLAN's port 4789, this node 8472
          not direct: b does not offer direct paths
          not vxlan: b has VXLAN's port 4789, this node 8472
          not vxlan6: b has VXLAN's port 4789, this node 8472
        not asked yet
        none: the way to 192.0.2.2 is not known yet; b does not offer VXLAN
          not direct: the way to 192.0.2.2 is not known yet
          not vxlan: b does not offer VXLAN
          not vxlan6: b does not offer VXLAN
    "#]].assert_eq(&text);
}

prop_compose! {
    fn any_vxlan()(
        vni in 1_u32..3,
        port in prop_oneof![Just(8472_u16), Just(4789)],
        v4 in any::<bool>(),
        v6 in any::<bool>(),
    ) -> Vxlan {
        let mac = |has: bool, last| has.then_some(netwright_routing::MacAddr([2, 0, 0, 0, 0, last]));
        Vxlan { vni, port, mac4: mac(v4, 4), mac6: mac(v6, 6) }
    }
}

prop_compose! {
    fn any_node(name: &'static str, n: u16)(
        native in prop::bool::weighted(0.1),
        direct in any::<bool>(),
        vxlan in proptest::option::weighted(0.8, any_vxlan()),
        has_v4 in prop::bool::weighted(0.8),
        has_v6 in prop::bool::weighted(0.8),
        of_flannel in any::<bool>(),
    ) -> Node {
        let mut node = node(name, n);
        (node.offers.native, node.offers.direct, node.offers.vxlan) = (native, direct, vxlan);
        if !has_v4 { node.underlay.v4 = None; }
        if !has_v6 { node.underlay.v6 = None; }
        if of_flannel { node.dialect = Dialect::Flannel; }
        node
    }
}

fn any_way() -> impl Strategy<Value = Way> {
    prop_oneof![Just(on_link()), Just(by_gateway()), Just(Way::Missing), Just(Way::Unknown)]
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn both_ends_choose_alike(
        a in any_node("a", 1),
        b in any_node("b", 2),
        v4 in any_way(),
        v6 in any_way(),
        learned in any::<bool>(),
    ) {
        let reach = Reachability { ways: PerFamily { v4: &v4, v6: &v6 }, learned };
        for family in IpFamily::ALL {
            let (here, there) = (choose(&a, &b, family, reach), choose(&b, &a, family, reach));
            prop_assert_eq!(here.path, there.path, "{} / {}", here.because, there.because);
            prop_assert_eq!(choose_path(&a, &b, family, reach), here.path);
            let passed = |choice: &Choice| -> Vec<Path> {
                choice.passed_over.iter().map(|passed| passed.path).collect()
            };
            prop_assert_eq!(passed(&here), passed(&there));
            prop_assert!(!here.because.is_empty());
        }
    }
}
