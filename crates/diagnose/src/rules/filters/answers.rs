//! Filters that let a packet pass, and not the answer.

use expect_test::expect;

use super::*;
use crate::causes::{RootCause, sort};
use crate::filter::samples::{
    accept, base, chain, destination, destination_in, dnat, drop, dropping, established, iifname,
    jump, nat, oifname, rule, source, table, udp_from, udp_port,
};
use crate::model::filter::{Family as Kin, Step, Table};
use crate::path::samples::{ip, node, with};
use crate::question::{Answer, Answers, Probe, Question};
use crate::rules::names;

/// The same node; its first container asks a server for names.
fn asking(server: &str) -> Scene {
    let mut scene = node();
    scene.containers[0].nameservers = Some(vec![ip(server)]);
    scene
}

/// What is found of filters, and of a server of names that does not answer.
fn causes(scene: &Scene, server: &str) -> Vec<RootCause> {
    let asked = Probe::Name { server: ip(server) };
    let question = Question { from: Some("c2".to_owned()), asked };
    let answers = Answers { all: vec![(question, Answer::Silent { hops: Vec::new() })] };
    let look = Look { scene, answers: &answers, only: None, to: None };
    let found = judge(look).into_iter().chain(names::RULE.findings(look));
    sort(found.collect(), scene).causes
}

/// The causes, and how often a server of names is explained.
fn told(causes: &[RootCause]) -> Vec<String> {
    let line = |cause: &RootCause| {
        let explained = cause.explains.iter().filter(|one| one.id == "nameserver-silent").count();
        format!("{}: {} ({explained})", cause.finding.id, cause.finding.says)
    };
    causes.iter().map(line).collect()
}

/// Calico's rules of iptables, shortened: nothing for an address of a Service is forwarded. The
/// network's addresses lie within that range.
fn calico() -> Table {
    let refused = vec![Step::Reject { with: "icmp port-unreachable".to_owned() }];
    table(
        Kin::Ip,
        "filter",
        vec![
            base("FORWARD", Hook::Forward, 0, vec![rule(&[jump("cali-FORWARD")])]),
            chain(
                "cali-FORWARD",
                vec![
                    rule(&[vec![Step::Effect { name: "MARK".to_owned() }]]),
                    rule(&[iifname("cali1"), jump("cali-from-wl-dispatch")]),
                    rule(&[jump("cali-cidr-block")]),
                ],
            ),
            chain("cali-from-wl-dispatch", vec![rule(&[drop()])]),
            chain("cali-cidr-block", vec![rule(&[destination_in("10.80.0.0/12"), refused])]),
        ],
    )
}

#[test]
fn a_rule_about_services_covers_the_containers_range() {
    let server = "198.51.100.53";
    let found = causes(&with(asking(server), calico()), server);
    assert_eq!(
        told(&found),
        [
            "forward-dropped: containers of mynet do not reach beyond this node: ip filter/cali-cidr-block rule 1 refuses the answers (1)"
        ]
    );
    let Finding { place, whose, seen, hits, fix, advice, .. } = &found[0].finding;
    assert_eq!(
        place.as_deref(),
        Some("table ip filter, chain cali-cidr-block, rule 1: reject with icmp port-unreachable")
    );
    assert_eq!(whose.as_deref(), Some("Calico, by the chain's name"));
    assert_eq!(hits, &["c2", "c3"]);
    assert!(seen[0].contains("the answer to a packet from 10.88.0.2"), "{seen:?}");
    expect![[r#"
        iptables-nft -t filter -I FORWARD 1 -i up0 -o cni0 -d 10.88.0.0/24 -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
        iptables-nft -t filter -I FORWARD 1 -d 10.88.0.2 -p tcp --dport 80 -m conntrack --ctstate DNAT -j ACCEPT
        iptables-nft -t filter -I FORWARD 1 -s 10.88.0.0/24 -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT"#]]
    .assert_eq(&fix.join("\n"));
    assert_eq!(advice, &["or give network mynet a subnet in which the cluster has no Services"]);
}

/// The same with Calico's tables of nftables.
#[test]
fn calico_in_nftables() {
    let mut scene = with(node(), calico());
    let own = &mut scene.host.filter.tables[0];
    own.name = "calico".to_owned();
    for chain in &mut own.chains {
        chain.name = format!("filter-{}", chain.name);
        for rule in &mut chain.rules {
            for step in &mut rule.steps {
                if let Step::Verdict(crate::model::filter::Verdict::Jump(to)) = step {
                    *to = format!("filter-{to}");
                }
            }
        }
    }
    let found = causes(&scene, "198.51.100.53");
    assert_eq!(found[0].finding.object, "ip calico/filter-cali-cidr-block rule 1");
    let fix = "nft insert rule ip calico filter-FORWARD handle 7 iifname up0 oifname cni0 ip daddr \
               10.88.0.0/24 ct state established,related accept";
    assert_eq!(found[0].finding.fix[0], fix);
}

/// What policy drops on its way is no fault. Policy drops no answers.
#[test]
fn an_answer_is_dropped_by_no_policy() {
    let dropped = |parts: &[Vec<Step>]| {
        let forward = base("FORWARD", Hook::Forward, 0, vec![rule(&[jump("KUBE-POD-FW-X")])]);
        let own = chain("KUBE-POD-FW-X", vec![rule(parts)]);
        let mut scene = with(node(), table(Kin::Ip, "filter", vec![forward, own]));
        // What is sent from a published port is an answer, too.
        scene.containers[0].attachments[0].ports.clear();
        told(&causes(&scene, "198.51.100.53"))
    };
    // A note says that policy denies the question.
    assert!(dropped(&[source("10.88.0.2"), drop()]).is_empty());
    let answers = dropped(&[destination("10.88.0.2"), established(), drop()]);
    assert_eq!(
        answers,
        [
            "forward-dropped: containers of mynet do not reach beyond this node: ip filter/KUBE-POD-FW-X rule 1 drops the answers (1)"
        ]
    );
}

/// The server's address is one of a Service: another machine answers, with another port.
#[test]
fn the_answer_of_a_service_is_followed() {
    let server = "10.96.0.10";
    let service = |more: Vec<crate::model::filter::Rule>| {
        let to = rule(&[destination(server), udp_port(53), dnat("198.51.100.53", 5353)]);
        let chains = vec![
            nat("KUBE-SERVICES", Hook::Prerouting, -100, vec![to]),
            base("FORWARD", Hook::Forward, 0, more),
        ];
        with(asking(server), table(Kin::Ip, "services", chains))
    };
    let of_server = |scene: &Scene| -> Vec<String> {
        let is_filter = |line: &String| line.contains("forward-") || line.contains("in c2");
        told(&causes(scene, server)).into_iter().filter(is_filter).collect()
    };
    assert_eq!(of_server(&service(Vec::new())), [""; 0]);
    let scene = service(vec![rule(&[source("198.51.100.53"), drop()])]);
    assert_eq!(
        of_server(&scene),
        [
            "forward-dropped: containers of mynet do not reach their server of names 10.96.0.10: ip services/FORWARD rule 1 drops the answers (1)"
        ]
    );
    // As the container sees it, the answer comes from the Service.
    let mut scene = service(Vec::new());
    let inside = |parts: Vec<Vec<Step>>| {
        let own = base("i", Hook::Input, 0, vec![rule(&parts)]);
        table(Kin::Inet, "own", vec![own])
    };
    let first = scene.containers[0].inside.as_mut().unwrap();
    first.filter.tables = vec![inside(vec![source("198.51.100.53"), drop()])];
    assert_eq!(of_server(&scene), [""; 0]);
    let first = scene.containers[0].inside.as_mut().unwrap();
    first.filter.tables = vec![inside(vec![source(server), udp_from(53), drop()])];
    assert_eq!(of_server(&scene).len(), 1);
}

/// The server is a program of the node.
#[test]
fn a_server_on_the_node_is_asked_by_its_own_chains() {
    let server = "10.88.0.1";
    let found = |hook: Hook, rules: Vec<crate::model::filter::Rule>, closed: bool| {
        let own = base("c", hook, 0, rules);
        let own = if closed { dropping(own) } else { own };
        told(&causes(&with(asking(server), table(Kin::Ip, "hostfw", vec![own])), server))
    };
    let answers = || rule(&[established(), accept()]);
    assert_eq!(
        found(Hook::Input, vec![answers()], true),
        [
            "input-dropped: containers of mynet do not reach their server of names 10.88.0.1: ip hostfw/c policy drops the packets (1)"
        ]
    );
    assert_eq!(
        found(Hook::Output, vec![rule(&[oifname("cni0"), established(), drop()])], false),
        [
            "output-dropped: containers of mynet do not reach their server of names 10.88.0.1: ip hostfw/c rule 1 drops the answers (1)"
        ]
    );
    let silent = "nameserver-silent: 10.88.0.1 does not answer c2 when it asks for names (0)";
    let open = vec![answers(), rule(&[udp_port(53), accept()])];
    assert_eq!(found(Hook::Input, open, true), [silent]);
}
