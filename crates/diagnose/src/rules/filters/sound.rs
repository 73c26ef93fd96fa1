//! Nodes of other programs that are as they should be: their rules, shortened, as those programs
//! write them. None of them may give a finding.

use super::*;
use crate::filter::samples::{
    accept, base, chain, destination, drop, dropping, established, iifname, jump, nat, oifname,
    reject, rule, source, table, unknown,
};
use crate::model::filter::{
    Chain, Comparison, Element, Family as Kin, Header, LegacyTable, MapTo, Meta, Set, Step, Verdict,
};
use crate::path::samples::{node, with};
use crate::question::Answers;

fn findings(scene: &Scene) -> Vec<String> {
    let answers = Answers::default();
    let look = Look { scene, answers: &answers, only: None, to: None };
    let line = |finding: Finding| format!("{}: {}", finding.object, finding.says);
    let mut found: Vec<String> = judge(look).into_iter().map(line).collect();
    found.dedup();
    found
}

fn assert_sound(scene: &Scene) {
    assert_eq!(findings(scene), [""; 0]);
}

/// `ct state DNAT` of iptables.
fn translated() -> Vec<Step> {
    vec![
        Step::Connection { key: crate::model::filter::Connection::Status, to: 0 },
        Step::Bitwise { from: 0, to: 0, mask: 0x20_u32.to_ne_bytes().to_vec(), xor: vec![0; 4] },
        Step::Compare { op: Comparison::NotEqual, from: 0, with: vec![0; 4] },
    ]
}

/// What our plugin `firewall` adds for two containers.
fn own_forward() -> Chain {
    let of = |address: &str| {
        [
            rule(&[source(address), accept()]),
            rule(&[destination(address), established(), accept()]),
            rule(&[destination(address), translated(), accept()]),
        ]
    };
    chain("CNI-FORWARD", [of("10.88.0.2"), of("10.88.0.3")].concat())
}

/// Docker's chains, and its policy.
#[test]
fn docker_beside_our_rules() {
    let forward = base(
        "FORWARD",
        Hook::Forward,
        0,
        vec![
            rule(&[jump("DOCKER-USER")]),
            rule(&[jump("DOCKER-FORWARD")]),
            rule(&[jump("CNI-FORWARD")]),
        ],
    );
    let isolated = chain("DOCKER-ISOLATION-STAGE-2", vec![rule(&[oifname("docker0"), drop()])]);
    let docker = chain(
        "DOCKER-FORWARD",
        vec![
            rule(&[oifname("docker0"), established(), accept()]),
            rule(&[iifname("docker0"), jump("DOCKER-ISOLATION-STAGE-2")]),
            rule(&[oifname("docker0"), drop()]),
            rule(&[iifname("docker0"), accept()]),
        ],
    );
    let chains =
        vec![dropping(forward), chain("DOCKER-USER", Vec::new()), docker, isolated, own_forward()];
    assert_sound(&with(node(), table(Kin::Ip, "filter", chains.clone())));
    // Without our rules it is Docker's policy that drops.
    let mut without = chains;
    without.retain(|chain| chain.name != "CNI-FORWARD");
    without[0].rules.pop();
    let found = findings(&with(node(), table(Kin::Ip, "filter", without)));
    assert!(found.iter().all(|line| line.starts_with("ip filter/FORWARD policy: ")), "{found:?}");
    assert!(!found.is_empty());
}

/// Docker keeps others from the addresses of its containers.
#[test]
fn dockers_raw_table() {
    let raw = base(
        "PREROUTING",
        Hook::Prerouting,
        -300,
        vec![rule(&[destination("172.17.0.2"), drop()])],
    );
    assert_sound(&with(node(), table(Kin::Ip, "raw", vec![raw])));
}

/// ufw: policies that drop, chains before and after, and a route that is allowed.
#[test]
fn ufw_with_a_route() {
    let before = chain("ufw-before-forward", vec![rule(&[established(), accept()])]);
    let user = chain(
        "ufw-user-forward",
        vec![
            rule(&[source("10.88.0.2"), accept()]),
            rule(&[source("10.88.0.3"), accept()]),
            rule(&[destination("10.88.0.2"), accept()]),
        ],
    );
    let input = chain("ufw-before-input", vec![rule(&[established(), accept()])]);
    let forward = base(
        "FORWARD",
        Hook::Forward,
        0,
        vec![rule(&[jump("ufw-before-forward")]), rule(&[jump("ufw-user-forward")])],
    );
    let chains = vec![
        dropping(forward),
        dropping(base("INPUT", Hook::Input, 0, vec![rule(&[jump("ufw-before-input")])])),
        before,
        user,
        input,
    ];
    assert_sound(&with(node(), table(Kin::Ip, "filter", chains)));
}

/// A firewall of the node that takes only what it knows: established connections, neighbour
/// discovery, SSH.
#[test]
fn a_closed_node() {
    let neighbours = vec![
        Step::Meta { key: Meta::L4Proto, to: 0 },
        Step::Compare { op: Comparison::Equal, from: 0, with: vec![58] },
        Step::Payload { base: Header::Transport, offset: 0, len: 1, to: 0 },
        Step::Lookup { set: "kinds".to_owned(), from: 0, invert: false, to: None },
    ];
    let input = base(
        "input",
        Hook::Input,
        0,
        vec![
            rule(&[established(), accept()]),
            rule(&[iifname("lo"), accept()]),
            rule(&[neighbours, accept()]),
        ],
    );
    let mut own = table(Kin::Inet, "filter", vec![dropping(input)]);
    let kind = |kind: u8| element(vec![kind], &[], None);
    own.sets = vec![Set {
        name: "kinds".to_owned(),
        elements: vec![kind(135), kind(136)],
        truncated: false,
    }];
    assert_sound(&with(node(), own));
}

/// firewalld refuses packets of IPv6 whose way back is another one.
#[test]
fn firewalld_that_looks_at_the_way_back() {
    let back = base(
        "filter_PREROUTING",
        Hook::Prerouting,
        -290,
        vec![rule(&[
            vec![
                Step::Meta { key: Meta::NfProto, to: 0 },
                Step::Compare { op: Comparison::Equal, from: 0, with: vec![10] },
                Step::Fib { source: true, kind: false, to: 0 },
                Step::Compare { op: Comparison::Equal, from: 0, with: vec![0; 4] },
            ],
            drop(),
        ])],
    );
    assert_sound(&with(node(), table(Kin::Inet, "firewalld", vec![back])));
}

fn element(first: Vec<u8>, parts: &[u32], verdict: Option<Verdict>) -> Element {
    Element { first, last: None, parts: parts.to_vec(), data: None, verdict }
}

/// `ip daddr . meta l4proto . th dport vmap @NAME`: kube-proxy's pkg/proxy/nftables/proxier.go.
fn service(map: &str) -> Vec<Step> {
    vec![
        Step::Payload { base: Header::Network, offset: 16, len: 4, to: 0 },
        Step::Meta { key: Meta::L4Proto, to: 1 },
        Step::Payload { base: Header::Transport, offset: 2, len: 2, to: 2 },
        Step::Lookup { set: map.to_owned(), from: 0, invert: false, to: Some(MapTo::Verdict) },
    ]
}

#[test]
fn kube_proxy_with_nftables() {
    let new = vec![
        Step::Connection { key: crate::model::filter::Connection::State, to: 0 },
        Step::Bitwise { from: 0, to: 0, mask: 8_u32.to_ne_bytes().to_vec(), xor: vec![0; 4] },
        Step::Compare { op: Comparison::NotEqual, from: 0, with: vec![0; 4] },
    ];
    let mark = vec![
        Step::Meta { key: Meta::Mark, to: 0 },
        Step::Bitwise { from: 0, to: 0, mask: 0x4000_u32.to_ne_bytes().to_vec(), xor: vec![0; 4] },
        Step::Compare { op: Comparison::Equal, from: 0, with: vec![0; 4] },
        Step::Verdict(Verdict::Return),
    ];
    let check = |name, hook| {
        base(name, hook, -110, vec![rule(&[new.clone(), jump("service-endpoints-check")])])
    };
    let services = chain("services", vec![rule(&[service("service-ips")])]);
    let endpoints =
        chain("service-endpoints-check", vec![rule(&[service("no-endpoint-services")])]);
    let masquerading = chain(
        "masquerading",
        vec![
            rule(&[mark]),
            rule(&[vec![Step::Effect { name: "meta mark".to_owned() }, Step::SourceNat]]),
        ],
    );
    let mut own = table(
        Kin::Ip,
        "kube-proxy",
        vec![
            check("filter-input", Hook::Input),
            check("filter-forward", Hook::Forward),
            check("filter-output", Hook::Output),
            nat("nat-prerouting", Hook::Prerouting, -100, vec![rule(&[jump("services")])]),
            nat("nat-output", Hook::Output, -100, vec![rule(&[jump("services")])]),
            nat("nat-postrouting", Hook::Postrouting, 100, vec![rule(&[jump("masquerading")])]),
            services,
            endpoints,
            masquerading,
            chain("reject-chain", vec![rule(&[reject()])]),
        ],
    );
    // 10.96.0.1 . tcp . 443, with zeros up to the next register.
    let key = vec![10, 96, 0, 1, 6, 0, 0, 0, 1, 0xbb, 0, 0];
    let maps = [
        ("service-ips", Verdict::Goto("services".to_owned())),
        ("no-endpoint-services", Verdict::Goto("reject-chain".to_owned())),
    ];
    own.sets = maps
        .into_iter()
        .map(|(name, verdict)| Set {
            name: name.to_owned(),
            elements: vec![element(key.clone(), &[4, 1, 2], Some(verdict))],
            truncated: false,
        })
        .collect();
    assert_sound(&with(node(), own));
}

/// kube-proxy and kubelet with the older iptables.
#[test]
fn kube_proxy_with_legacy_iptables() {
    let mut scene = node();
    let text = |rules: &[&str]| rules.iter().map(|rule| (*rule).to_owned()).collect();
    let policies = |names: &[&str]| {
        names.iter().map(|name| ((*name).to_owned(), "ACCEPT".to_owned())).collect()
    };
    scene.host.filter.legacy = vec![
        LegacyTable {
            ipv4: true,
            name: "filter".to_owned(),
            policies: policies(&["INPUT", "FORWARD", "OUTPUT"]),
            chains: Vec::new(),
            rules: text(&[
                "-A INPUT -j KUBE-FIREWALL",
                "-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD",
                "-A OUTPUT -j KUBE-FIREWALL",
                "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet connections\" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
                "-A KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name ct_state_invalid_dropped_pkts -j DROP",
                "-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT",
                "-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            ]),
        },
        LegacyTable {
            ipv4: true,
            name: "nat".to_owned(),
            policies: policies(&["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"]),
            chains: Vec::new(),
            rules: text(&[
                "-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES",
                "-A OUTPUT -j KUBE-SERVICES",
                "-A POSTROUTING -j KUBE-POSTROUTING",
                "-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 443 -j KUBE-SVC-X",
                "-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS",
                "-A KUBE-NODEPORTS -p tcp -m tcp --dport 30080 -j KUBE-SVC-X",
                "-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN",
                "-A KUBE-POSTROUTING -j MASQUERADE --random-fully",
                "-A KUBE-SVC-X -m statistic --mode random --probability 0.5 -j KUBE-SEP-A",
                "-A KUBE-SVC-X -j KUBE-SEP-A",
                "-A KUBE-SEP-A -p tcp -m tcp -j DNAT --to-destination 10.244.0.2:6443",
            ]),
        },
    ];
    assert_sound(&scene);
}

/// Calico marks what its policies accept, and drops the rest: that is meant.
#[test]
fn calico() {
    let forward = base("FORWARD", Hook::Forward, 0, vec![rule(&[jump("cali-FORWARD")])]);
    let workload = chain(
        "cali-FORWARD",
        vec![
            rule(&[vec![Step::Effect { name: "meta mark".to_owned() }]]),
            rule(&[iifname("cali+"), jump("cali-from-wl-dispatch")]),
            rule(&[unknown("set"), accept()]),
        ],
    );
    let dispatch = chain("cali-from-wl-dispatch", vec![rule(&[drop()])]);
    assert_sound(&with(node(), table(Kin::Ip, "filter", vec![forward, workload, dispatch])));
}
