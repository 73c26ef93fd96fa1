//! The contents of a node's packet filter.

use std::net::IpAddr;

use expect_test::{Expect, expect};
use netwright_policy::policy::{Block, intervals};
use netwright_policy::program::{Element, Line, LineAction, Set};
use netwright_policy::{Change, Compiler, Direction, PolicyId, Program, Step, World, compile};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{cluster, cluster_of_two, ip, network, node, pod, world_with};

/// Prints a program as nftables would, without the sets of the other family.
fn show(program: &Program) -> String {
    let mut text = String::new();
    for ((direction, address), chain) in &program.verdicts {
        text.push_str(&format!("{direction} {address} -> {chain}\n"));
    }
    for (name, lines) in &program.chains {
        text.push_str(&format!("chain {name}\n"));
        for Line { matches, then } in lines {
            let matches: Vec<String> = matches.iter().map(|one| format!("{one:?}")).collect();
            text.push_str(&format!("  [{}] {then:?}\n", matches.join(", ")));
        }
    }
    for (name, set) in &program.sets {
        text.push_str(&format!("set {name} {set:?}\n"));
    }
    text
}

fn check(program: &Program, expected: Expect) {
    program.check().unwrap();
    expected.assert_eq(&show(program));
}

#[test]
fn a_policy_on_one_node() {
    let policy = network(
        "shop/web",
        json!({
            "podSelector": {"matchLabels": {"app": "web"}},
            "ingress": [{
                "from": [{"podSelector": {"matchLabels": {"app": "db"}}}],
                "ports": [{"port": "http"}],
            }],
            "egress": [{
                "to": [
                    {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.244.0.0/16"]}},
                    {"podSelector": {}},
                    {"namespaceSelector": {}},
                ],
                "ports": [
                    {"port": 80, "endPort": 90},
                    {"protocol": "UDP"},
                    {"port": "dns", "protocol": "UDP"},
                ],
            }],
        }),
    );
    check(
        &compile(world_with([policy]), "one"),
        expect![[r#"
            ingress 10.244.1.1 -> ci-t2fcnbj2szwpg2wil5ql
            ingress fd00:244:1::1 -> ci-t2fcnbj2szwpg2wil5ql
            egress 10.244.1.1 -> co-t2fcnbj2szwpg2wil5ql
            egress fd00:244:1::1 -> co-t2fcnbj2szwpg2wil5ql
            chain ci-t2fcnbj2szwpg2wil5ql
              [Address { end: Source, family: V4, set: "many4-t4rn7ztlxv4epnca3p67" }] Deny
              [Address { end: Source, family: V6, set: "many6-t4rn7ztlxv4epnca3p67" }] Deny
              [] Jump("pi-khyaukv2ktf2nf5mlwj2")
              [] Deny
            chain co-t2fcnbj2szwpg2wil5ql
              [Address { end: Destination, family: V4, set: "many4-t4rn7ztlxv4epnca3p67" }] Deny
              [Address { end: Destination, family: V6, set: "many6-t4rn7ztlxv4epnca3p67" }] Deny
              [] Jump("po-khyaukv2ktf2nf5mlwj2")
              [] Deny
            chain pi-khyaukv2ktf2nf5mlwj2
              [Address { end: Source, family: V4, set: "sel4-xu5adjvjskaie6a6lme5" }, Protocol(Tcp), NamedPort { family: V4, set: "port4-5yoocvt75z4ttqe2s5t4" }] Accept
              [Address { end: Source, family: V6, set: "sel6-xu5adjvjskaie6a6lme5" }, Protocol(Tcp), NamedPort { family: V6, set: "port6-5yoocvt75z4ttqe2s5t4" }] Accept
            chain po-khyaukv2ktf2nf5mlwj2
              [Address { end: Destination, family: V4, set: "sel4-s6vmu26rswfdc2zdyjve" }] Jump("po-khyaukv2ktf2nf5mlwj2-0")
              [Address { end: Destination, family: V6, set: "sel6-s6vmu26rswfdc2zdyjve" }] Jump("po-khyaukv2ktf2nf5mlwj2-0")
              [Address { end: Destination, family: V4, set: "sel4-jfpf5njuwwunsf4v7ork" }] Jump("po-khyaukv2ktf2nf5mlwj2-0")
              [Address { end: Destination, family: V6, set: "sel6-jfpf5njuwwunsf4v7ork" }] Jump("po-khyaukv2ktf2nf5mlwj2-0")
              [Address { end: Destination, family: V4, set: "blk4-ltj325ajs4zdb3zj44m6" }] Jump("po-khyaukv2ktf2nf5mlwj2-0")
            chain po-khyaukv2ktf2nf5mlwj2-0
              [Ports { protocol: Tcp, first: 80, last: 90 }] Accept
              [Protocol(Udp)] Accept
              [Protocol(Udp), NamedPort { family: V4, set: "port4-yewxd52vct4gwduakuct" }] Accept
              [Protocol(Udp), NamedPort { family: V6, set: "port6-yewxd52vct4gwduakuct" }] Accept
            chain unknown-in
              [] Deny
            chain unknown-out
              [] Deny
            set blk4-ltj325ajs4zdb3zj44m6 Intervals([(10.0.0.0, 10.243.255.255), (10.245.0.0, 10.255.255.255)])
            set many4-t4rn7ztlxv4epnca3p67 Addresses({})
            set many6-t4rn7ztlxv4epnca3p67 Addresses({})
            set port4-5yoocvt75z4ttqe2s5t4 Ports({(10.244.1.1, Tcp, 80), (10.244.1.2, Tcp, 80)})
            set port4-yewxd52vct4gwduakuct Ports({(10.244.1.1, Udp, 53), (10.244.1.2, Udp, 53), (10.244.2.1, Udp, 53), (10.244.2.2, Udp, 53), (10.244.2.3, Udp, 53)})
            set port6-5yoocvt75z4ttqe2s5t4 Ports({(fd00:244:1::1, Tcp, 80), (fd00:244:1::2, Tcp, 80)})
            set port6-yewxd52vct4gwduakuct Ports({(fd00:244:1::1, Udp, 53), (fd00:244:1::2, Udp, 53), (fd00:244:2::1, Udp, 53), (fd00:244:2::2, Udp, 53), (fd00:244:2::3, Udp, 53)})
            set sel4-jfpf5njuwwunsf4v7ork Addresses({10.244.1.1, 10.244.1.2, 10.244.2.1, 10.244.2.2, 10.244.2.3})
            set sel4-s6vmu26rswfdc2zdyjve Addresses({10.244.1.1, 10.244.2.1})
            set sel4-xu5adjvjskaie6a6lme5 Addresses({10.244.2.1})
            set sel6-jfpf5njuwwunsf4v7ork Addresses({fd00:244:1::1, fd00:244:1::2, fd00:244:2::1, fd00:244:2::2, fd00:244:2::3})
            set sel6-s6vmu26rswfdc2zdyjve Addresses({fd00:244:1::1, fd00:244:2::1})
            set sel6-xu5adjvjskaie6a6lme5 Addresses({fd00:244:2::1})
        "#]],
    );
}

/// A pass leaves the chain of its tier, so its policy's lines stand in that.
#[test]
fn all_tiers_on_one_node() {
    let peers = json!([{"namespaces": {"matchLabels": {"team": "red"}}}]);
    let policy = |name: &str, tier: &str, priority: u16, actions: &[&str]| {
        let rules: Vec<Value> =
            actions.iter().map(|action| json!({"action": action, "from": peers})).collect();
        let subject = json!({"namespaces": {"matchLabels": {"team": "blue"}}});
        let spec = json!({
            "tier": tier, "priority": priority, "subject": subject, "ingress": rules,
        });
        cluster(name, spec)
    };
    let world = world_with([
        policy("last", "Baseline", 5, &["Deny"]),
        policy("first", "Admin", 5, &["Pass", "Deny"]),
        policy("second", "Admin", 6, &["Accept"]),
        network("other/web", json!({"podSelector": {"matchLabels": {"app": "web"}}})),
    ]);
    check(
        &compile(world.clone(), "one"),
        expect![[r#"
            ingress 10.244.1.2 -> ci-jlypnpfehpsffdkifpmc
            ingress fd00:244:1::2 -> ci-jlypnpfehpsffdkifpmc
            chain ai-jlypnpfehpsffdkifpmc
              [Address { end: Source, family: V4, set: "sel4-nchw7wzrkcc27fmh4qdh" }] Return
              [Address { end: Source, family: V6, set: "sel6-nchw7wzrkcc27fmh4qdh" }] Return
              [Address { end: Source, family: V4, set: "sel4-nchw7wzrkcc27fmh4qdh" }] Deny
              [Address { end: Source, family: V6, set: "sel6-nchw7wzrkcc27fmh4qdh" }] Deny
              [] Jump("pi-yorutl7qibbuxrrawlsh")
            chain ci-jlypnpfehpsffdkifpmc
              [Address { end: Source, family: V4, set: "many4-t4rn7ztlxv4epnca3p67" }] Deny
              [Address { end: Source, family: V6, set: "many6-t4rn7ztlxv4epnca3p67" }] Deny
              [] Jump("ai-jlypnpfehpsffdkifpmc")
              [] Jump("pi-sbkhwiare45uovryq5zi")
              [] Deny
            chain pi-sbkhwiare45uovryq5zi
            chain pi-yorutl7qibbuxrrawlsh
              [Address { end: Source, family: V4, set: "sel4-nchw7wzrkcc27fmh4qdh" }] Accept
              [Address { end: Source, family: V6, set: "sel6-nchw7wzrkcc27fmh4qdh" }] Accept
            chain unknown-in
              [] Deny
            chain unknown-out
              [] Deny
            set many4-t4rn7ztlxv4epnca3p67 Addresses({})
            set many6-t4rn7ztlxv4epnca3p67 Addresses({})
            set sel4-nchw7wzrkcc27fmh4qdh Addresses({10.244.1.1, 10.244.2.1})
            set sel6-nchw7wzrkcc27fmh4qdh Addresses({fd00:244:1::1, fd00:244:2::1})
        "#]],
    );
    // Without a NetworkPolicy, the baseline is asked.
    check(
        &compile(world, "two"),
        expect![[r#"
        ingress 10.244.2.2 -> ci-v5f5rn4mlqdovv3qabnc
        ingress fd00:244:2::2 -> ci-v5f5rn4mlqdovv3qabnc
        chain ai-v5f5rn4mlqdovv3qabnc
          [Address { end: Source, family: V4, set: "sel4-nchw7wzrkcc27fmh4qdh" }] Return
          [Address { end: Source, family: V6, set: "sel6-nchw7wzrkcc27fmh4qdh" }] Return
          [Address { end: Source, family: V4, set: "sel4-nchw7wzrkcc27fmh4qdh" }] Deny
          [Address { end: Source, family: V6, set: "sel6-nchw7wzrkcc27fmh4qdh" }] Deny
          [] Jump("pi-yorutl7qibbuxrrawlsh")
        chain bi-v5f5rn4mlqdovv3qabnc
          [] Jump("pi-3pkl3apdj5auoksap447")
        chain ci-v5f5rn4mlqdovv3qabnc
          [Address { end: Source, family: V4, set: "many4-t4rn7ztlxv4epnca3p67" }] Deny
          [Address { end: Source, family: V6, set: "many6-t4rn7ztlxv4epnca3p67" }] Deny
          [] Jump("ai-v5f5rn4mlqdovv3qabnc")
          [] Jump("bi-v5f5rn4mlqdovv3qabnc")
        chain pi-3pkl3apdj5auoksap447
          [Address { end: Source, family: V4, set: "sel4-nchw7wzrkcc27fmh4qdh" }] Deny
          [Address { end: Source, family: V6, set: "sel6-nchw7wzrkcc27fmh4qdh" }] Deny
        chain pi-yorutl7qibbuxrrawlsh
          [Address { end: Source, family: V4, set: "sel4-nchw7wzrkcc27fmh4qdh" }] Accept
          [Address { end: Source, family: V6, set: "sel6-nchw7wzrkcc27fmh4qdh" }] Accept
        chain unknown-in
          [] Deny
        chain unknown-out
          [] Deny
        set many4-t4rn7ztlxv4epnca3p67 Addresses({})
        set many6-t4rn7ztlxv4epnca3p67 Addresses({})
        set sel4-nchw7wzrkcc27fmh4qdh Addresses({10.244.1.1, 10.244.2.1})
        set sel6-nchw7wzrkcc27fmh4qdh Addresses({fd00:244:1::1, fd00:244:2::1})
    "#]],
    );
}

#[test]
fn a_node_whose_pods_no_policy_selects_has_nothing() {
    let policy = network("shop/db", json!({"podSelector": {"matchLabels": {"app": "db"}}}));
    check(
        &compile(world_with([policy]), "one"),
        expect![[r#"
        chain unknown-in
          [] Deny
        chain unknown-out
          [] Deny
    "#]],
    );
}

/// The names of chains and sets, without what hashes them.
fn kinds(program: &Program) -> Vec<&str> {
    let all = program.chains.keys().chain(program.sets.keys());
    all.map(|name| name.split('-').next().unwrap()).collect()
}

/// The elements of the set whose name begins so.
fn members(program: &Program, kind: &str) -> Vec<IpAddr> {
    let found = program.sets.iter().find(|(name, _)| name.starts_with(kind));
    match found {
        Some((_, Set::Addresses(all))) => all.iter().copied().collect(),
        other => panic!("{kind}: {other:?}"),
    }
}

#[test]
fn the_node_itself_has_a_chain_as_long_as_a_policy_decides_about_it() {
    let policy = |team: &str| {
        let subject = json!({"namespaces": {"matchLabels": {"team": team}}});
        let to = json!([{"nodes": {}}, {"networks": ["192.0.2.0/24"]}]);
        let egress = json!([{"action": "Deny", "to": to}]);
        cluster("x", json!({"tier": "Admin", "priority": 1, "subject": subject, "egress": egress}))
    };
    let mut compiler = Compiler::new(world_with([policy("red")]), "one");
    compiler.program().check().unwrap();
    assert_eq!(
        kinds(compiler.program()),
        [
            "an", "ao", "cn", "co", "own", "po", "unknown", "unknown", "blk4", "from4", "from6",
            "many4", "many6", "node4", "node6", "own4", "own6",
        ]
    );
    assert_eq!(members(compiler.program(), "from4"), [ip("10.244.1.1")]);
    assert_eq!(members(compiler.program(), "own6"), [ip("2001:db8::1")]);
    // Another pod of the class is its verdict, and one element.
    let steps = compiler.apply(pod("shop/two", "one", json!({}), &["10.244.1.9"]).into());
    assert!(
        matches!(steps.as_slice(), [Step::AddElement { .. }, Step::Verdict { .. }]),
        "{steps:?}"
    );
    // Another address of the node changes no rule.
    let steps = compiler.apply(node("one", json!({"zone": "a"}), &["192.0.2.9"]).into());
    let is_element =
        |step: &Step| matches!(step, Step::AddElement { .. } | Step::RemoveElement { .. });
    assert!(steps.iter().all(is_element), "{steps:?}");
    assert_eq!(members(compiler.program(), "own4"), [ip("192.0.2.9")]);
    // Nothing is left for pods that no such policy selects, or without the policy.
    compiler.apply(policy("green").into());
    assert_eq!(kinds(compiler.program()), ["unknown", "unknown"]);
    compiler.apply(policy("blue").into());
    assert_eq!(members(compiler.program(), "from4"), [ip("10.244.1.2")]);
    compiler.apply(Change::Policy(PolicyId::Cluster { name: "x".to_owned() }, None));
    assert_eq!(kinds(compiler.program()), ["unknown", "unknown"]);
}

#[test]
fn pods_of_which_too_little_is_known_are_closed() {
    let mut world = world_with([]);
    world.change(Change::Namespace("shop".to_owned(), None));
    check(
        &compile(world, "one"),
        expect![[r#"
        ingress 10.244.1.1 -> unknown-in
        ingress fd00:244:1::1 -> unknown-in
        egress 10.244.1.1 -> unknown-out
        egress fd00:244:1::1 -> unknown-out
        chain unknown-in
          [] Deny
        chain unknown-out
          [] Deny
    "#]],
    );
}

/// The API reports a pod after it has started, and its predecessor's end even later.
#[test]
fn a_pod_that_starts_is_closed_until_it_alone_is_known_to_have_the_address() {
    let shut = network("shop/db", json!({"podSelector": {"matchLabels": {"app": "db"}}}));
    let mut old = pod("shop/old", "one", json!({}), &["10.244.1.9"]);
    let mut world = world_with([shut]);
    world.change(old.clone().into());
    let mut compiler = Compiler::new(world, "one");
    let leads = |compiler: &Compiler| {
        let chain = compiler.program().verdicts.get(&(Direction::Ingress, ip("10.244.1.9")));
        chain.map(|name| name.split('-').next().unwrap().to_owned())
    };
    assert_eq!(leads(&compiler), None);
    let new = pod("shop/new", "one", json!({"app": "db"}), &["10.244.1.9"]);
    assert_eq!(compiler.start(ip("10.244.1.9"), new.uid.clone()).len(), 2);
    assert_eq!(leads(&compiler).as_deref(), Some("unknown"));
    assert_eq!(compiler.start(ip("10.244.1.9"), new.uid.clone()), []);
    // The API reports the new pod, and still has the old one.
    compiler.apply(new.clone().into());
    assert_eq!(leads(&compiler).as_deref(), Some("unknown"));
    old.finished = true;
    compiler.apply(old.into());
    assert_eq!(leads(&compiler).as_deref(), Some("ci"));
    // The pod ends, and the API reports that later.
    compiler.end(ip("10.244.1.9"));
    compiler.apply(Change::Pod(new.uid, None));
    assert_eq!(leads(&compiler), None);
    // A pod that the API never reports is removed too.
    compiler.start(ip("10.244.1.9"), "gone".into());
    assert_eq!(leads(&compiler).as_deref(), Some("unknown"));
    compiler.end(ip("10.244.1.9"));
    assert_eq!(leads(&compiler), None);
}

/// The program is a function of the objects, and not of their order.
#[test]
fn the_order_of_the_objects_does_not_matter() {
    let policies = [
        network(
            "shop/one",
            json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]}),
        ),
        network("shop/two", json!({"podSelector": {}, "egress": [{"ports": [{"port": "http"}]}]})),
    ];
    let mut objects = cluster_of_two();
    objects.extend(policies.map(Change::from));
    let program = compile(World::of(None, objects.clone()), "one");
    objects.reverse();
    assert_eq!(compile(World::of(None, objects), "one"), program);
}

#[test]
fn names_fit_however_long_those_of_objects_are() {
    let long = "x".repeat(63);
    let rule = |number: u16| {
        let ports = (1..30).map(|port| json!({"port": 100 * number + port}));
        let ports: Vec<Value> = ports.collect();
        json!({"from": [{"podSelector": {"matchLabels": {&long: &long}}}], "ports": ports})
    };
    let rules: Vec<Value> = (0..250).map(rule).collect();
    let policy = network(
        &format!("{long}/{}", "y".repeat(253)),
        json!({"podSelector": {}, "ingress": rules}),
    );
    let mut world = world_with([policy]);
    world.change(crate::support::namespace(&long, json!({})).into());
    let pod = pod(&format!("{long}/z"), "one", json!({}), &["10.244.1.77"]);
    world.change(pod.into());
    let program = compile(world, "one");
    assert!(program.chains.len() > 250, "{}", program.chains.len());
    program.check().unwrap();
}

#[test]
fn steps_that_make_no_sense_are_refused() {
    let set = Set::Addresses([ip("10.0.0.1")].into());
    let mut program = Program::default();
    program.apply(&Step::AddSet { name: "s".to_owned(), set: set.clone() }).unwrap();
    let element = |text: &str| Element::Address(ip(text));
    let one = "s".to_owned();
    let verdict = |before: Option<&str>, chain: Option<&str>| Step::Verdict {
        direction: netwright_policy::Direction::Ingress,
        address: ip("10.0.0.1"),
        before: before.map(str::to_owned),
        chain: chain.map(str::to_owned),
    };
    let put = |name: &str, new| Step::PutChain { name: name.to_owned(), lines: Vec::new(), new };
    program.apply(&put("c", true)).unwrap();
    let refused = [
        Step::AddSet { name: one.clone(), set },
        Step::AddElement { set: one.clone(), element: element("10.0.0.1") },
        Step::AddElement { set: "t".to_owned(), element: element("10.0.0.2") },
        Step::RemoveElement { set: one, element: element("10.0.0.2") },
        Step::RemoveSet { name: "t".to_owned() },
        Step::RemoveChain { name: "t".to_owned() },
        put("c", true),
        put("t", false),
        verdict(None, Some("t")),
        verdict(Some("c"), None),
        verdict(None, None),
    ];
    let before = program.clone();
    let texts: Vec<String> = refused
        .iter()
        .map(|step| {
            let mut program = before.clone();
            format!("{}\n", program.apply(step).unwrap_err())
        })
        .collect();
    expect![[r#"
        the set is there already: "s"
        the element is there already: AddElement { set: "s", element: Address(10.0.0.1) }
        no set takes the element: ("t", Address(10.0.0.2))
        there is no such element: RemoveElement { set: "s", element: Address(10.0.0.2) }
        there is no such set: "t"
        there is no such chain: "t"
        the chain is there already, or is missing: "c"
        the chain is there already, or is missing: "t"
        there is no such chain: "t"
        the address leads elsewhere, or nothing changes: Verdict { direction: Ingress, address: 10.0.0.1, before: Some("c"), chain: None }
        the address leads elsewhere, or nothing changes: Verdict { direction: Ingress, address: 10.0.0.1, before: None, chain: None }
    "#]]
    .assert_eq(&texts.concat());
    program.chains.insert(
        "c".to_owned(),
        vec![Line { matches: Vec::new(), then: LineAction::Jump("d".to_owned()) }],
    );
    assert!(program.check().is_err());
}

fn cidr(address: impl Into<IpAddr>, length: u8) -> ipnet::IpNet {
    ipnet::IpNet::new(address.into(), length).unwrap().trunc()
}

fn v4(bits: u32, length: u8) -> ipnet::IpNet {
    cidr(std::net::Ipv4Addr::from(0x0a00_0000 | (bits & 0x00ff_ffff)), length)
}

fn v6(bits: u128, length: u8) -> ipnet::IpNet {
    cidr(std::net::Ipv6Addr::from((0xfd00 << 112) | (bits & 0xff)), length)
}

/// Nested and adjacent prefixes of both families.
fn prefixes() -> impl Strategy<Value = (ipnet::IpNet, Vec<ipnet::IpNet>)> {
    let four = (any::<u32>(), 8..30_u8, prop::collection::vec((any::<u32>(), 9..=32_u8), 0..6))
        .prop_map(|(bits, length, except)| {
            (v4(bits, length), except.into_iter().map(|(bits, length)| v4(bits, length)).collect())
        });
    let six =
        (any::<u128>(), 120..126_u8, prop::collection::vec((any::<u128>(), 121..=128_u8), 0..6))
            .prop_map(|(bits, length, except)| {
                (
                    v6(bits, length),
                    except.into_iter().map(|(bits, length)| v6(bits, length)).collect(),
                )
            });
    prop_oneof![four, six]
}

proptest! {
    #[test]
    fn intervals_are_the_block((cidr, except) in prefixes()) {
        let inside: Vec<ipnet::IpNet> = except
            .into_iter()
            .filter(|except| cidr.contains(except) && *except != cidr)
            .collect();
        let block = Block { cidr, except: inside.iter().copied().collect() };
        let intervals = intervals(block.family(), [&block]);
        let is_in = |address: IpAddr| {
            intervals.iter().any(|(first, last)| (*first..=*last).contains(&address))
        };
        // The addresses where a prefix begins or ends, and those beside them.
        for net in inside.iter().chain([&cidr]) {
            for end in [net.network(), net.broadcast()] {
                for address in [before(end), end, after(end)] {
                    prop_assert_eq!(is_in(address), block.contains(address), "{}", address);
                }
            }
        }
        // The kernel refuses adjacent intervals.
        for pair in intervals.windows(2) {
            prop_assert!(after(pair[0].1) < pair[1].0, "{:?}", pair);
        }
        for (first, last) in &intervals {
            prop_assert!(first <= last);
        }
    }
}

fn after(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) => IpAddr::V4(u32::from(v4).wrapping_add(1).into()),
        IpAddr::V6(v6) => IpAddr::V6(u128::from(v6).wrapping_add(1).into()),
    }
}

fn before(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) => IpAddr::V4(u32::from(v4).wrapping_sub(1).into()),
        IpAddr::V6(v6) => IpAddr::V6(u128::from(v6).wrapping_sub(1).into()),
    }
}

#[test]
fn whole_families_and_single_addresses_are_intervals() {
    let block = |cidr: &str, except: &[&str]| {
        let except = except.iter().map(|text| text.parse().unwrap()).collect();
        Block { cidr: cidr.parse().unwrap(), except }
    };
    let union = |blocks: &[Block]| {
        let all = intervals(blocks[0].family(), blocks);
        let show = |(first, last): &(IpAddr, IpAddr)| format!("{first}-{last}");
        all.iter().map(show).collect::<Vec<_>>().join(" ")
    };
    let intervals = |cidr: &str, except: &[&str]| union(&[block(cidr, except)]);
    assert_eq!(intervals("0.0.0.0/0", &[]), "0.0.0.0-255.255.255.255");
    assert_eq!(intervals("0.0.0.0/0", &["128.0.0.0/1"]), "0.0.0.0-127.255.255.255");
    assert_eq!(intervals("0.0.0.0/0", &["128.0.0.0/1", "0.0.0.0/1"]), "");
    assert_eq!(intervals("192.0.2.1/32", &[]), "192.0.2.1-192.0.2.1");
    let last = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
    assert_eq!(intervals("::/0", &[]), format!("::-{last}"));
    assert_eq!(intervals("::/0", &["::/1"]), format!("8000::-{last}"));
    assert_eq!(intervals("::/0", &["8000::/1"]), "::-7fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff");
    // Several blocks make one set: one block may contain what another excepts.
    let beside = [block("10.0.0.0/9", &[]), block("10.128.0.0/9", &["10.255.0.0/16"])];
    assert_eq!(union(&beside), "10.0.0.0-10.254.255.255");
    let within = [block("10.0.0.0/8", &["10.1.0.0/16"]), block("10.1.2.0/24", &[])];
    let shown = "10.0.0.0-10.0.255.255 10.1.2.0-10.1.2.255 10.2.0.0-10.255.255.255";
    assert_eq!(union(&within), shown);
    let all = [block("::/0", &[]), block("fd00::/8", &[])];
    assert_eq!(union(&all), format!("::-{last}"));
}
