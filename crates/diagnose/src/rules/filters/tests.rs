use expect_test::{Expect, expect};

use super::*;
use crate::filter::samples::{
    accept, base, chain, dnat, drop, dropping, established, iif_vmap, iifname, jump, nat, oifname,
    protocol, reject, rule, table, tcp_port, ttl, unknown, verdicts,
};
use crate::finding::WayKind;
use crate::model::filter::{Family as Kin, LegacyTable, Step};
use crate::path::samples::{node, with};
use crate::question::{Answer, Answers, Hop, Probe, Question};

fn found(scene: &Scene) -> Vec<Finding> {
    let answers = Answers::default();
    judge(Look { scene, answers: &answers, only: None, to: None })
}

/// Shows the causes as a person sees them.
fn check(scene: &Scene, expected: &Expect) {
    let mut text = String::new();
    for cause in crate::causes::sort(found(scene), scene).causes {
        let Finding { id, says, place, whose, hits, fix, advice, .. } = cause.finding;
        text.push_str(&format!("{id}  {says}\n"));
        text.push_str(&format!("    where  {}\n", place.unwrap_or_default()));
        text.push_str(&format!("    whose  {}\n", whose.as_deref().unwrap_or("unknown")));
        text.push_str(&format!("    hits   {}\n", hits.join(" ")));
        for fix in fix {
            text.push_str(&format!("    fix    {fix}\n"));
        }
        for advice in advice {
            text.push_str(&format!("    advice {advice}\n"));
        }
    }
    expected.assert_eq(&text);
}

fn ids(scene: &Scene) -> Vec<&'static str> {
    let mut ids: Vec<&str> = found(scene).iter().map(|finding| finding.id).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

#[test]
fn a_sound_node_has_no_findings() {
    assert_eq!(found(&node()), []);
}

#[test]
fn a_rule_that_somebody_put_first() {
    let forward = base("FORWARD", Hook::Forward, 0, vec![rule(&[drop()])]);
    check(
        &with(node(), table(Kin::Ip, "filter", vec![forward])),
        &expect![[r#"
            forward-dropped  containers of mynet do not reach beyond this node: ip filter/FORWARD rule 1 drops the packets
                where  table ip filter, chain FORWARD, rule 1: drop
                whose  unknown: a person or a program that uses iptables
                hits   c2 c3
                fix    netwright repair
        "#]],
    );
}

/// A firewall that knows nothing of the containers: it rejects in both families.
#[test]
fn firewalld_without_a_zone_for_the_network() {
    let forward = base(
        "filter_FORWARD",
        Hook::Forward,
        10,
        vec![rule(&[established(), accept()]), rule(&[reject()])],
    );
    let mut scene = with(node(), table(Kin::Inet, "firewalld", vec![forward]));
    scene.programs = vec![crate::model::Program { name: "firewalld".to_owned(), pid: 7 }];
    scene.firewalls = vec!["firewalld".to_owned()];
    check(
        &scene,
        &expect![[r#"
            forward-dropped  containers of mynet do not reach beyond this node: inet firewalld/filter_FORWARD rule 2 refuses the packets
                where  table inet firewalld, chain filter_FORWARD, rule 2: reject with icmpx admin-prohibited
                whose  firewalld, which is running
                hits   c2 c3
                fix    firewall-cmd --permanent --zone=trusted --add-source=10.88.0.0/24 && firewall-cmd --reload
                fix    firewall-cmd --permanent --zone=trusted --add-source=fd00:88::/64 && firewall-cmd --reload
                advice this opens every service of this node to the containers, too
        "#]],
    );
    // Since 0.9 it has policies, and the rule that lets them pass is theirs.
    let policies = chain("filter_FORWARD_POLICIES_pre", Vec::new());
    scene.host.filter.tables[0].chains.push(policies);
    check(
        &scene,
        &expect![[r#"
            forward-dropped  containers of mynet do not reach beyond this node: inet firewalld/filter_FORWARD rule 2 refuses the packets
                where  table inet firewalld, chain filter_FORWARD, rule 2: reject with icmpx admin-prohibited
                whose  firewalld, which is running
                hits   c2 c3
                fix    firewall-cmd --permanent --new-policy=netwright
                fix    firewall-cmd --permanent --policy=netwright --add-ingress-zone=ANY
                fix    firewall-cmd --permanent --policy=netwright --add-egress-zone=ANY
                fix    firewall-cmd --permanent --policy=netwright --add-rich-rule='rule family=ipv4 source address=10.88.0.0/24 accept' && firewall-cmd --reload
                fix    firewall-cmd --permanent --policy=netwright --add-rich-rule='rule family=ipv4 destination address=10.88.0.2 port port=80 protocol=tcp accept' && firewall-cmd --reload
                fix    firewall-cmd --permanent --policy=netwright --add-rich-rule='rule family=ipv6 source address=fd00:88::/64 accept' && firewall-cmd --reload
        "#]],
    );
}

#[test]
fn a_policy_of_an_administrator() {
    let forward = dropping(base("forward", Hook::Forward, 0, Vec::new()));
    check(
        &with(node(), table(Kin::Inet, "fw", vec![forward])),
        &expect![[r#"
            forward-dropped  containers of mynet do not reach beyond this node: inet fw/forward policy drops the packets
                where  table inet fw, chain forward, policy drop
                whose  unknown
                hits   c2 c3
                fix    nft add rule inet fw forward iifname cni0 oifname up0 ip saddr 10.88.0.0/24 accept
                fix    nft add rule inet fw forward iifname up0 oifname cni0 ip daddr 10.88.0.0/24 ct state established,related accept
                fix    nft add rule inet fw forward ip daddr 10.88.0.2 tcp dport 80 ct status dnat accept
                fix    nft add rule inet fw forward ip saddr 10.88.0.0/24 ct state established,related accept
                fix    nft add rule inet fw forward iifname cni0 oifname up0 ip6 saddr fd00:88::/64 accept
                fix    nft add rule inet fw forward iifname up0 oifname cni0 ip6 daddr fd00:88::/64 ct state established,related accept
        "#]],
    );
}

#[test]
fn legacy_iptables_with_a_policy() {
    let mut scene = node();
    scene.host.filter.legacy = vec![LegacyTable {
        ipv4: true,
        name: "filter".to_owned(),
        policies: vec![("FORWARD".to_owned(), "DROP".to_owned())],
        chains: Vec::new(),
        rules: Vec::new(),
    }];
    // The plugin `firewall` would open it.
    assert!(found(&scene).iter().all(|finding| finding.fix == ["netwright repair"]));
    for container in &mut scene.containers {
        container.attachments[0].plugins.retain(|plugin| plugin != "firewall");
    }
    check(
        &scene,
        &expect![[r#"
            forward-dropped  containers of mynet do not reach beyond this node: iptables filter/FORWARD policy drops the packets
                where  iptables (legacy), table filter, chain FORWARD, policy DROP
                whose  unknown: a person or a program that uses iptables
                hits   c2 c3
                fix    iptables-legacy -t filter -A FORWARD -i cni0 -o up0 -s 10.88.0.0/24 -j ACCEPT
                fix    iptables-legacy -t filter -A FORWARD -i up0 -o cni0 -d 10.88.0.0/24 -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
                fix    iptables-legacy -t filter -A FORWARD -d 10.88.0.2 -p tcp --dport 80 -m conntrack --ctstate DNAT -j ACCEPT
                fix    iptables-legacy -t filter -A FORWARD -s 10.88.0.0/24 -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
        "#]],
    );
}

/// Each is found although the other one stops the packet too.
#[test]
fn two_filters_do_not_hide_each_other() {
    let first = base("FORWARD", Hook::Forward, 0, vec![rule(&[drop()])]);
    let second = base("late", Hook::Forward, 5, vec![rule(&[iifname("cni0"), drop()])]);
    let scene = with(node(), table(Kin::Ip, "filter", vec![first]));
    let scene = with(scene, table(Kin::Inet, "own", vec![second]));
    let mut objects: Vec<String> = found(&scene).into_iter().map(|one| one.object).collect();
    objects.sort_unstable();
    objects.dedup();
    assert_eq!(objects, ["inet own/late rule 1", "ip filter/FORWARD rule 1"]);
}

/// A route that is wrong does not hide a filter that is wrong too.
#[test]
fn a_route_does_not_hide_a_filter() {
    let forward = base("FORWARD", Hook::Forward, 0, vec![rule(&[oifname("up0"), drop()])]);
    let mut scene = with(node(), table(Kin::Ip, "filter", vec![forward]));
    scene.host.routes.remove(0);
    assert_eq!(ids(&scene), ["forward-dropped"]);
}

#[test]
fn each_kind_of_filter_has_its_name() {
    let one = |kin, hook, parts: &[Vec<Step>]| {
        with(node(), table(kin, "t", vec![base("c", hook, 0, vec![rule(parts)])]))
    };
    assert_eq!(ids(&one(Kin::Bridge, Hook::Forward, &[drop()])), ["bridge-dropped"]);
    let mut at_link = one(Kin::Netdev, Hook::Ingress, &[drop()]);
    let ingress = at_link.host.filter.tables[0].chains[0].base.as_mut().unwrap();
    ingress.device = Some("veth2".to_owned());
    assert_eq!(ids(&at_link), ["bridge-dropped"]);
    assert_eq!(ids(&one(Kin::Arp, Hook::Input, &[drop()])), ["input-dropped"]);
    assert_eq!(ids(&one(Kin::Inet, Hook::Input, &[drop()])), ["input-dropped"]);
    assert_eq!(ids(&one(Kin::Inet, Hook::Output, &[drop()])), ["output-dropped"]);
    let mut scene = node();
    let inside = scene.containers[0].inside.as_mut().unwrap();
    let output = base("o", Hook::Output, 0, vec![rule(&[drop()])]);
    inside.filter.tables.push(table(Kin::Inet, "own", vec![output]));
    assert_eq!(ids(&scene), ["inside-dropped", "inside-filtered"]);
    let all = found(&scene);
    assert!(all.iter().all(|finding| finding.hits == ["c2"] || finding.hits == ["c3"]));
    let lets_pass = "nft insert rule inet own o handle 7 ct state established,related accept";
    let lets_pass = format!("nsenter --net=/run/netns/c2 {lets_pass}");
    let mut of_errors = all.iter().filter(|one| one.id == "inside-dropped");
    assert!(of_errors.any(|one| one.fix.contains(&lets_pass)), "{all:#?}");
    assert!(all.iter().all(|one| one.id != "inside-filtered" || one.fix.is_empty()), "{all:#?}");
}

/// A firewall of a container that forgets its loopback.
#[test]
fn loopback_is_looked_at_too() {
    let mut scene = node();
    let inside = scene.containers[0].inside.as_mut().unwrap();
    let input = base("i", Hook::Input, 0, vec![rule(&[iifname("lo"), drop()])]);
    inside.filter.tables.push(table(Kin::Inet, "own", vec![input]));
    let all = found(&scene);
    assert_eq!(
        all[0].says,
        "programs of c2 do not reach each other: the packet filter in c2, inet own/i rule 1, drops the packets"
    );
    assert_eq!(ids(&scene), ["inside-dropped"]);
}

#[test]
fn a_port_that_is_redirected() {
    let foreign = nat(
        "PREROUTING",
        Hook::Prerouting,
        -100,
        vec![rule(&[tcp_port(8080), dnat("10.88.0.3", 80)])],
    );
    let scene = with(node(), table(Kin::Ip, "nat", vec![foreign]));
    // It is found whatever else is wrong: no default route, no address in the container.
    let mut worse = scene.clone();
    worse.host.routes.remove(0);
    worse.containers[0].inside.as_mut().unwrap().links[1].addresses.clear();
    assert_eq!(ids(&worse), ["port-redirected"]);
    check(
        &scene,
        &expect![[r#"
            port-redirected  published port 8080/tcp of c2 leads elsewhere: ip nat/PREROUTING rule 1 takes it first
                where  table ip nat, chain PREROUTING, rule 1: dnat to 10.88.0.3 port 80
                whose  unknown: a person or a program that uses iptables
                hits   c2
                fix    nft delete rule ip nat PREROUTING handle 7
                advice another program or a person made this rule: "dnat to 10.88.0.3 port 80" ends for all packets
        "#]],
    );
}

#[test]
fn packets_that_are_not_tracked_are_not_translated() {
    let notrack = vec![Step::Effect { name: "notrack".to_owned() }];
    let raw = base("raw", Hook::Prerouting, -300, vec![rule(&[iifname("cni0"), notrack])]);
    let scene = with(node(), table(Kin::Inet, "own", vec![raw]));
    assert_eq!(ids(&scene), ["not-translated"]);
    // Those to one port alone.
    let of_port = |port| {
        let notrack = vec![Step::Effect { name: "notrack".to_owned() }];
        let rules = vec![rule(&[tcp_port(port), notrack])];
        let raw = base("raw", Hook::Prerouting, -300, rules);
        found(&with(node(), table(Kin::Inet, "perf", vec![raw])))
    };
    let says = "packets to TCP port 80 of containers of mynet leave this node with their own addresses, which other hosts cannot answer: inet perf/raw rule 1 exempts them from connection tracking";
    assert_eq!(of_port(80)[0].says, says);
    assert_eq!(of_port(9100), []);
    let legacy = |target: &str| {
        let mut scene = node();
        scene.host.filter.legacy = vec![LegacyTable {
            ipv4: true,
            name: "raw".to_owned(),
            policies: vec![("PREROUTING".to_owned(), "ACCEPT".to_owned())],
            chains: Vec::new(),
            rules: vec![format!("-A PREROUTING -s 10.88.0.0/24 -j {target}")],
        }];
        found(&scene).into_iter().flat_map(|one| one.fix).collect::<Vec<String>>()
    };
    let fix = "iptables-legacy -t raw -D PREROUTING -s 10.88.0.0/24 -j CT --notrack";
    assert_eq!(legacy("CT --notrack"), [fix; 2]);
    assert_eq!(legacy("CT --zone 7"), [""; 0]);
    // One rule for packets of containers, one for all packets: to remove one of them heals nothing.
    let notrack = || vec![Step::Effect { name: "notrack".to_owned() }];
    let further = crate::model::filter::Rule { handle: 8, ..rule(&[notrack()]) };
    let rules = vec![rule(&[iifname("cni0"), notrack()]), further];
    let raw = base("raw", Hook::Prerouting, -300, rules);
    let both = found(&with(node(), table(Kin::Inet, "own", vec![raw])));
    let removal = |handle: u32| format!("nft delete rule inet own raw handle {handle}");
    assert!(!both.is_empty());
    both.iter().for_each(|one| assert_eq!(one.fix, [removal(8), removal(7)]));
}

/// What comes to a published port, or answers from there, is translated only as part of a connection.
#[test]
fn a_published_port_is_not_led_to_its_container_without_connection_tracking() {
    let notrack = || vec![Step::Effect { name: "notrack".to_owned() }];
    let raw = |kin, hook, rules| table(kin, "perf", vec![base("raw", hook, -300, rules)]);
    let all = |scene: &Scene| -> Vec<(String, Vec<String>, Vec<Way>)> {
        let all = crate::causes::sort(found(scene), scene).causes.into_iter();
        all.map(|one| one.finding).map(|one| (one.says, one.fix, one.breaks)).collect()
    };
    let v4 = |kind| vec![Way { container: None, kind, family: Some(IpFamily::V4) }];
    let removed = |family: &str| vec![format!("nft delete rule {family} perf raw handle 7")];
    let leads_nowhere = |family: &str| {
        format!(
            "published port 8080/tcp of c2 leads nowhere: {family} perf/raw rule 1 exempts what comes to it from connection tracking"
        )
    };

    let from_outside = rule(&[iifname("up0"), tcp_port(8080), notrack()]);
    let mut scene = with(node(), raw(Kin::Ip, Hook::Prerouting, vec![from_outside.clone()]));
    assert_eq!(all(&scene), [(leads_nowhere("ip"), removed("ip"), v4(WayKind::Published))]);
    // Docker's proxy takes the packets then, and programs before which SYNPROXY stands.
    let listener = |program: &str| crate::model::Listener {
        transport: Transport::Tcp,
        at: "0.0.0.0:8080".parse().unwrap(),
        v6only: false,
        pid: None,
        program: Some(program.to_owned()),
        full: None,
        stopped: false,
        frozen: None,
    };
    scene.host.listeners = vec![listener("conmon")];
    assert_eq!(all(&scene).len(), 1);
    scene.host.listeners = vec![listener("docker-proxy")];
    assert_eq!(all(&scene), []);
    scene.host.listeners.clear();
    let input = base("input", Hook::Input, 0, vec![rule(&[unknown("synproxy")])]);
    assert_eq!(all(&with(scene.clone(), table(Kin::Ip, "fw", vec![input]))), []);
    // The other port, and some clients alone.
    let other = rule(&[iifname("up0"), tcp_port(9100), notrack()]);
    let some = crate::filter::samples::source("45.0.0.1");
    let some = rule(&[some, tcp_port(8080), notrack()]);
    let scene = with(node(), raw(Kin::Ip, Hook::Prerouting, vec![other, some]));
    assert_eq!(all(&scene), []);

    // As a frame, before IP sees it.
    let mut early = raw(Kin::Netdev, Hook::Ingress, vec![from_outside]);
    early.chains[0].base.as_mut().unwrap().device = Some("up0".to_owned());
    let scene = with(node(), early);
    assert_eq!(all(&scene), [(leads_nowhere("netdev"), removed("netdev"), v4(WayKind::Published))]);

    // What programs of the node send.
    let looped = rule(&[oifname("lo"), notrack()]);
    let scene = with(node(), raw(Kin::Inet, Hook::Output, vec![looped]));
    let here = v4(WayKind::PublishedHere);
    assert_eq!(all(&scene), [(leads_nowhere("inet"), removed("inet"), here.clone())]);

    // The answers: those of a client are, and those of the node's programs.
    let from_port = [iifname("cni0"), crate::filter::samples::tcp_from(80), notrack()];
    let scene = with(node(), raw(Kin::Inet, Hook::Prerouting, vec![rule(&from_port)]));
    let says = "answers from published port 8080/tcp of c2 are not translated back: inet perf/raw rule 1 exempts them from connection tracking";
    let breaks = [v4(WayKind::Published), here].concat();
    assert_eq!(all(&scene), [(says.to_owned(), removed("inet"), breaks)]);
}

#[test]
fn a_published_port_of_ipv6_is_not_led_without_connection_tracking_either() {
    let mut scene = node();
    let own = scene.host.filter.tables.last_mut().unwrap();
    let to = rule(&[
        crate::filter::samples::destination("2001:db8::2"),
        tcp_port(8080),
        dnat("fd00:88::2", 80),
    ]);
    own.chains[0].rules.insert(0, to);
    assert_eq!(found(&scene), []);
    scene.host.filter.legacy = vec![LegacyTable {
        ipv4: false,
        name: "raw".to_owned(),
        policies: vec![("PREROUTING".to_owned(), "ACCEPT".to_owned())],
        chains: Vec::new(),
        rules: vec!["-A PREROUTING -p tcp -m tcp --dport 8080 -j CT --notrack".to_owned()],
    }];
    let all = found(&scene);
    let fix = "ip6tables-legacy -t raw -D PREROUTING -p tcp -m tcp --dport 8080 -j CT --notrack";
    assert_eq!(all.iter().map(|one| one.fix.clone()).collect::<Vec<_>>(), [[fix]]);
    let way = Way { container: None, kind: WayKind::Published, family: Some(IpFamily::V6) };
    assert_eq!(all[0].breaks, [way]);
}

/// linux net/netfilter/nft_ct.c `nft_notrack_eval`: what is tracked stays so.
#[test]
fn a_rule_that_comes_after_connection_tracking_takes_nothing_from_it() {
    let late = |hook, priority| {
        let notrack = vec![Step::Effect { name: "notrack".to_owned() }];
        let chain = base("late", hook, priority, vec![rule(&[notrack])]);
        found(&with(node(), table(Kin::Inet, "own", vec![chain])))
    };
    assert_eq!(late(Hook::Prerouting, -150), []);
    assert_eq!(late(Hook::Forward, -300), []);
    assert_eq!(late(Hook::Output, 0), []);
    assert!(!late(Hook::Prerouting, -300).is_empty());
}

/// The node is the first router on the way, and the next one is another machine.
#[test]
fn a_rule_that_leaves_packets_too_few_hops() {
    let at = |hook: Hook, hops: u8| {
        let chain = base("hops", hook, -150, vec![rule(&[ttl(hops)])]);
        with(node(), table(Kin::Ip, "own", vec![chain]))
    };
    check(
        &at(Hook::Prerouting, 1),
        &expect![[r#"
            forward-dropped  containers of mynet do not reach beyond this node: ip own/hops rule 1 leaves too few hops to the packets
                where  table ip own, chain hops, rule 1: hop limit 1
                whose  unknown
                hits   c2 c3
                fix    nft insert rule ip own hops handle 7 ip saddr 10.88.0.0/24 accept
                fix    nft insert rule ip own hops handle 7 ct state established,related accept
                fix    nft insert rule ip own hops handle 7 tcp dport 8080 accept
                advice or remove the rule, if nobody needs it any more: nft delete rule ip own hops handle 7
        "#]],
    );
    assert_eq!(ids(&at(Hook::Prerouting, 2)), ["forward-dropped"]);
    assert_eq!(ids(&at(Hook::Prerouting, 3)), [""; 0]);
    assert_eq!(ids(&at(Hook::Postrouting, 1)), ["forward-dropped"]);
    // What is for this node itself may come with one, and a bridge takes none.
    assert_eq!(ids(&at(Hook::Input, 1)), [""; 0]);
    let mut shown = at(Hook::Prerouting, 1);
    let switch = "net.bridge.bridge-nf-call-iptables".to_owned();
    shown.host.sysctls.insert(switch, "1".to_owned());
    let all = found(&shown);
    assert!(!all.iter().any(|one| one.says.contains("reach each other")), "{all:?}");
    let mut scene = node();
    scene.host.filter.legacy = vec![LegacyTable {
        ipv4: true,
        name: "mangle".to_owned(),
        policies: vec![("PREROUTING".to_owned(), "ACCEPT".to_owned())],
        chains: Vec::new(),
        rules: vec!["-A PREROUTING -i cni0 -j TTL --ttl-set 1".to_owned()],
    }];
    let fix = "iptables-legacy -t mangle -I PREROUTING 1 ";
    let all = found(&scene);
    assert!(!all.is_empty() && all.iter().all(|one| one.fix[0].starts_with(fix)), "{all:?}");
    // Its kernel begins with 64.
    let mut less = |by: u8| {
        for container in &mut scene.containers {
            let sysctls = &mut container.inside.as_mut().unwrap().sysctls;
            sysctls.insert("net.ipv4.ip_default_ttl".to_owned(), "64".to_owned());
        }
        let rule = format!("-A PREROUTING -i cni0 -j TTL --ttl-dec {by}");
        scene.host.filter.legacy[0].rules = vec![rule];
        ids(&scene)
    };
    assert_eq!(less(63), ["forward-dropped"]);
    assert_eq!(less(62), ["forward-dropped"]);
    assert_eq!(less(61), [""; 0]);
    // A container's own rule.
    let mut scene = node();
    let chain = base("hops", Hook::Output, -150, vec![rule(&[ttl(1)])]);
    scene.containers[0].inside.as_mut().unwrap().filter.tables =
        vec![table(Kin::Ip, "own", vec![chain])];
    assert_eq!(ids(&scene), ["inside-dropped", "inside-filtered"]);
}

/// What connection tracking knows of a packet is not known before it, and no port is translated.
#[test]
fn no_fix_asks_connection_tracking_too_early() {
    for (priority, asks) in [(-300, false), (-150, true)] {
        let early = base("early", Hook::Prerouting, priority, vec![rule(&[drop()])]);
        let scene = with(node(), table(Kin::Inet, "own", vec![early]));
        let fixes: Vec<String> = found(&scene).into_iter().flat_map(|one| one.fix).collect();
        let has = |what: &str| fixes.iter().any(|fix| fix.contains(what));
        assert!(has("tcp dport 8080 accept"), "{fixes:?}");
        assert!(!has("status dnat"), "{fixes:?}");
        assert_eq!(has("ct state"), asks, "{fixes:?}");
    }
}

#[test]
fn a_queue_that_no_program_reads() {
    let queue = |bypass: bool| {
        let queue = vec![Step::Queue { first: 7, last: 7, bypass }];
        let forward = base("forward", Hook::Forward, 0, vec![rule(&[queue])]);
        let mut scene = with(node(), table(Kin::Ip, "ips", vec![forward]));
        scene.host.queues = Some(Vec::new());
        scene
    };
    let scene = queue(false);
    let all = found(&scene);
    assert_eq!((all[0].id, all[0].object.as_str()), ("forward-dropped", "ip ips/forward rule 1"));
    assert!(all[0].seen[0].contains("ends there: no program reads the queue"), "{all:?}");
    assert_eq!((all[0].fix.len(), all[0].advice.len()), (0, 2), "{all:?}");
    assert_eq!(ids(&queue(true)), [""; 0]);
    let read = |queues: Option<Vec<u16>>| {
        let mut scene = scene.clone();
        scene.host.queues = queues;
        ids(&scene)
    };
    assert_eq!(read(Some(vec![7])), [""; 0]);
    assert_eq!(read(None), [""; 0]);
    let mut scene = queue(true);
    (scene.host.queues, scene.host.stuck_queues) = (Some(vec![7]), vec![7]);
    let all = found(&scene);
    assert!(all[0].seen[0].contains("lets packets wait and judges none"), "{all:?}");
}

/// A table of ours, changed by another program.
#[test]
fn a_chain_of_ours_that_drops_what_it_does_not_know() {
    let mut scene = node();
    let own = &mut scene.host.filter.tables[0].chains;
    let forward = own.iter_mut().find(|chain| chain.name == "forward").unwrap();
    forward.base.as_mut().unwrap().drops = true;
    assert_eq!(ids(&scene), ["forward-dropped"]);
    let all = found(&scene);
    let fix = "nft chain inet netwright forward '{ policy accept; }'";
    assert!(all.iter().all(|one| one.fix == [fix]), "{all:?}");
    assert_eq!(all[0].whose.as_deref(), Some("Netwright, by the table's name"));
}

/// It sees no packets then.
#[test]
fn a_table_of_ours_that_is_switched_off() {
    let mut scene = node();
    scene.host.filter.tables[0].dormant = true;
    let all = found(&scene);
    assert_eq!(
        all[0].says,
        "the table inet netwright is dormant, so nothing is translated and no port leads to a container"
    );
    assert_eq!((all.len(), all[0].hits.len()), (1, 2));
    assert_eq!(all[0].fix, ["nft add table inet netwright"]);
}

/// What people decided is no fault, whichever program enforces it.
#[test]
fn policies_are_no_faults() {
    for name in ["netwright-policy", "calico"] {
        let forward = base("forward", Hook::Forward, 0, vec![rule(&[drop()])]);
        let scene = with(node(), table(Kin::Inet, name, vec![forward]));
        assert_eq!(found(&scene), [], "{name}");
    }
}

/// A firewall that lets some addresses through is not one that lets nothing through.
#[test]
fn what_depends_on_the_address_is_no_fault() {
    let listed = chain("listed", vec![rule(&[unknown("match set"), accept()]), rule(&[drop()])]);
    let forward = base(
        "forward",
        Hook::Forward,
        0,
        vec![rule(&[established(), accept()]), rule(&[iifname("cni0"), jump("listed")])],
    );
    let scene = with(node(), table(Kin::Inet, "fw", vec![forward, listed]));
    assert_eq!(found(&scene), []);
    let only_some = base(
        "forward",
        Hook::Forward,
        0,
        vec![rule(&[crate::filter::samples::destination("45.0.0.1"), drop()])],
    );
    assert_eq!(found(&with(node(), table(Kin::Inet, "fw", vec![only_some]))), []);
    // A list of hosts, or of ports, that may be reached.
    let only = |parts: &[Vec<Step>]| {
        let rules = vec![rule(&[established(), accept()]), rule(parts)];
        let forward = dropping(base("forward", Hook::Forward, 0, rules));
        ids(&with(node(), table(Kin::Inet, "fw", vec![forward])))
    };
    let host = crate::filter::samples::destination("203.0.113.9");
    assert_eq!(only(&[iifname("tun0"), accept()]), ["forward-dropped"]);
    assert_eq!(found_for_outside(&[host, accept()]), 0);
    assert_eq!(found_for_outside(&[tcp_port(443), accept()]), 0);
}

/// firewalld has such a rule for some addresses of IPv6 (RFC 3964).
#[test]
fn a_rule_for_some_addresses_does_not_hide_one_for_all() {
    let some = || rule(&[crate::filter::samples::destination("203.0.113.9"), drop()]);
    let outside = |rules| {
        let scene = with(node(), table(Kin::Ip, "fw", vec![base("f", Hook::Forward, 0, rules)]));
        let all = found(&scene).into_iter().filter(|one| one.says.contains("do not reach beyond"));
        all.map(|one| one.object).collect::<Vec<String>>()
    };
    assert_eq!(outside(vec![some(), rule(&[drop()])]), ["ip fw/f rule 2"; 2]);
    assert_eq!(outside(vec![some()]), [""; 0]);
    assert_eq!(outside(vec![some(), rule(&[tcp_port(443), drop()])]), [""; 0]);
}

/// How many findings there are of what containers send beyond the node, if nothing else passes.
fn found_for_outside(parts: &[Vec<Step>]) -> usize {
    let rules = vec![rule(&[established(), accept()]), rule(parts)];
    let forward = dropping(base("forward", Hook::Forward, 0, rules));
    let scene = with(node(), table(Kin::Ip, "fw", vec![forward]));
    let is_outside = |finding: &&Finding| finding.says.contains("do not reach beyond");
    found(&scene).iter().filter(is_outside).count()
}

/// Other frames stay as the rule wants them.
#[test]
fn a_rule_of_a_bridge_that_drops_between_containers() {
    let fixes = |chain: crate::model::filter::Chain| {
        let scene = with(node(), table(Kin::Bridge, "own", vec![chain]));
        let mut all = found(&scene).into_iter().filter(|one| one.says.contains("each other"));
        all.next().unwrap().fix
    };
    let within = "ip saddr 10.88.0.0/24 ip daddr 10.88.0.0/24 accept";
    let by_rule = base("f", Hook::Forward, 0, vec![rule(&[drop()])]);
    // It drops their questions for hardware addresses, too.
    let asks = "ether type arp accept";
    let insert =
        |at: &str| [within, asks].map(|what| format!("nft insert rule bridge own {at} {what}"));
    assert_eq!(fixes(by_rule), insert("f handle 7"));
    let some = base("f", Hook::Forward, 0, vec![rule(&[protocol(6), drop()])]);
    assert_eq!(fixes(some), [format!("nft insert rule bridge own f handle 7 {within}")]);
    let by_policy = dropping(base("f", Hook::Forward, 0, Vec::new()));
    let add = [within, asks].map(|what| format!("nft add rule bridge own f {what}"));
    assert_eq!(fixes(by_policy), add);
}

/// Somebody listed what containers may ask: of the rest only what is asked for is let through.
#[test]
fn a_list_of_what_containers_may_ask() {
    let listed = crate::filter::samples::destination("203.0.113.9");
    let rules = vec![rule(&[established(), accept()]), rule(&[listed, accept()]), rule(&[drop()])];
    let forward = base("forward", Hook::Forward, 0, rules);
    let scene = with(node(), table(Kin::Ip, "fw", vec![forward]));
    let answers = Answers::default();
    let to = |to: &str| {
        let to = Some(to.parse().unwrap());
        let all = judge(Look { scene: &scene, answers: &answers, only: Some("c2"), to });
        all.into_iter().find(|one| one.says.contains("do not reach"))
    };
    assert_eq!(to("203.0.113.9:443"), None);
    let found = to("198.51.100.1:443").unwrap();
    assert_eq!(
        found.fix,
        [
            "nft insert rule ip fw forward handle 7 iifname cni0 oifname up0 ip saddr 10.88.0.0/24 ip daddr 198.51.100.1 tcp dport 443 accept",
            "nft insert rule ip fw forward handle 7 iifname up0 oifname cni0 ip daddr 10.88.0.0/24 ct state established,related accept",
        ]
    );
    assert_eq!(
        found.advice,
        [
            "if c2 is not to ask 198.51.100.1:443 by TCP, nothing is wrong: try a machine that it is to reach, with --to ADDRESS:PORT"
        ]
    );
}

/// As firewalld writes it for a network that is in a zone.
#[test]
fn firewalld_with_a_zone_for_the_network() {
    let forward = base(
        "filter_FORWARD",
        Hook::Forward,
        10,
        vec![
            rule(&[established(), accept()]),
            rule(&[vec![
                Step::Connection { key: crate::model::filter::Connection::Status, to: 0 },
                Step::Bitwise {
                    from: 0,
                    to: 0,
                    mask: 0x20_u32.to_ne_bytes().to_vec(),
                    xor: vec![0; 4],
                },
                Step::Compare {
                    op: crate::model::filter::Comparison::NotEqual,
                    from: 0,
                    with: vec![0; 4],
                },
                Step::Verdict(crate::model::filter::Verdict::Accept),
            ]]),
            rule(&[iif_vmap("zones")]),
            rule(&[reject()]),
        ],
    );
    let zone = chain("filter_FWD_trusted", vec![rule(&[accept()])]);
    let mut firewalld = table(Kin::Inet, "firewalld", vec![forward, zone]);
    let goto = crate::model::filter::Verdict::Goto("filter_FWD_trusted".to_owned());
    firewalld.sets = vec![verdicts("zones", &[("cni0", goto)])];
    assert_eq!(found(&with(node(), firewalld)), []);
}

/// A probe has shown what could not be computed.
#[test]
fn a_rule_that_dropped_a_probe() {
    let forward = base("forward", Hook::Forward, 0, vec![rule(&[unknown("match set"), drop()])]);
    let scene = with(node(), table(Kin::Inet, "fw", vec![forward]));
    let of = |asked: Probe| Question { from: Some("c2".to_owned()), asked };
    let question = of(Probe::Connect { to: "198.51.100.1:80".parse().unwrap() });
    let hop = Hop {
        container: None,
        link: Some("cni0".to_owned()),
        dropped: Some(("nft_do_chain".to_owned(), "NETFILTER_DROP".to_owned())),
        rule: Some(("inet fw".to_owned(), "forward".to_owned(), 7)),
        back: false,
    };
    let silent = Answer::Silent { hops: vec![hop] };
    let judged = |question: Question| {
        let answers = Answers { all: vec![(question, silent.clone())] };
        judge(Look { scene: &scene, answers: &answers, only: None, to: None })
    };
    let found = judged(question);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].id, "forward-dropped");
    assert_eq!(found[0].says, "inet fw/forward rule 1 drops a probe to 198.51.100.1:80");
    // It may be meant, and nothing is known of what else it does.
    assert!(found[0].fix.is_empty() && found[0].advice[0].contains("--to ADDRESS:PORT"));
    assert_eq!(found[0].breaks.len(), 1, "{found:?}");
    // What it asks for besides, is told.
    let limit = Step::Limit { over: true, says: Some("ct count over 5".to_owned()) };
    let forward = base("forward", Hook::Forward, 0, vec![rule(&[vec![limit], drop()])]);
    let limited = with(node(), table(Kin::Inet, "fw", vec![forward]));
    let question = of(Probe::Connect { to: "198.51.100.1:80".parse().unwrap() });
    let answers = Answers { all: vec![(question, silent.clone())] };
    let told = judge(Look { scene: &limited, answers: &answers, only: None, to: None });
    let place = "table inet fw, chain forward, rule 1: ct count over 5: drop";
    assert_eq!(told[0].place.as_deref(), Some(place));
    assert!(told[0].advice[0].contains("how many connections c2 keeps to 198.51.100.1:80"));
    assert_eq!(told[0].breaks.len(), 1);
    // A firewall that drops echo requests may let all else through.
    assert_eq!(judged(of(Probe::Echo { to: "198.51.100.1".parse().unwrap() })), []);
}

/// How its packets leave the container does not matter, nor whether the filter could be computed.
#[test]
fn a_containers_own_filter_that_dropped_a_probe_is_said_to_be_its_own() {
    let judged = |scene: &Scene, chain: &str, back: bool| {
        let hop = Hop {
            container: Some("c2".to_owned()),
            link: Some("eth0".to_owned()),
            dropped: Some(("nft_do_chain".to_owned(), "NETFILTER_DROP".to_owned())),
            rule: Some(("inet own".to_owned(), chain.to_owned(), 7)),
            back,
        };
        let asked = Probe::Connect { to: "198.51.100.1:80".parse().unwrap() };
        let question = Question { from: Some("c2".to_owned()), asked };
        let answers = Answers { all: vec![(question, Answer::Silent { hops: vec![hop] })] };
        let found = judge(Look { scene, answers: &answers, only: None, to: None });
        let [one] = &found[..] else { panic!("{found:#?}") };
        assert_eq!(
            (one.id, one.object.as_str()),
            ("inside-dropped", format!("c2: inet own/{chain} rule 1").as_str())
        );
        one.clone()
    };
    let filter = |scene: &mut Scene, chain: &str, hook: Hook, parts: &[Vec<Step>]| {
        let chain = base(chain, hook, 0, vec![rule(parts)]);
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.filter.tables = vec![table(Kin::Inet, "own", vec![chain])];
    };
    // A link of the node that was moved into the container.
    let mut moved = crate::path::samples::on_parent("host-device", |link| {
        (link.kind, link.peer, link.peer_netnsid) = (None, None, None);
    });
    filter(&mut moved, "out", Hook::Output, &[oifname("eth0"), drop()]);
    let one = judged(&moved, "out", false);
    assert_eq!(
        one.says,
        "the packet filter in c2, inet own/out rule 1, drops a probe to 198.51.100.1:80"
    );
    assert_eq!(one.place.as_deref(), Some("in c2: table inet own, chain out, rule 1: drop"));
    assert_eq!(one.whose.as_deref(), Some("c2, or who set it up"));
    let command =
        |what: &str| format!("nsenter --net=/run/netns/c2 nft insert rule inet own {what} accept");
    assert_eq!(one.fix, [command("out handle 7 ip daddr 198.51.100.1 tcp dport 80")]);
    assert!(one.advice[0].starts_with("the filter is c2's own and may be meant"), "{one:#?}");
    let remove = "nsenter --net=/run/netns/c2 nft delete rule inet own out handle 7";
    assert!(one.advice.last().unwrap().ends_with(remove), "{one:#?}");

    filter(&mut moved, "in", Hook::Input, &[iifname("eth0"), drop()]);
    let one = judged(&moved, "in", true);
    let says = "the packet filter in c2, inet own/in rule 1, drops the answer to a probe to 198.51.100.1:80";
    assert_eq!(one.says, says);
    assert_eq!(one.fix, [command("in handle 7 ct state established,related")]);

    // Nothing is known of what else the rule asks for.
    for kind in ["macvlan", "ipvlan"] {
        let mut scene = crate::path::samples::on_parent(kind, |link| {
            link.macvlan = Some(crate::model::MacvlanMode::Bridge);
            link.ipvlan = Some(crate::model::Ipvlan {
                mode: crate::model::IpvlanMode::L2,
                reach: crate::model::IpvlanReach::Bridge,
            });
        });
        filter(&mut scene, "out", Hook::Output, &[unknown("match set"), drop()]);
        let one = judged(&scene, "out", false);
        assert_eq!(one.fix, [command("out handle 7 ip daddr 198.51.100.1 tcp dport 80")]);
        // A limit is not to be passed by.
        let limit = Step::Limit { over: true, says: Some("ct count over 5".to_owned()) };
        filter(&mut scene, "out", Hook::Output, &[vec![limit], drop()]);
        let one = judged(&scene, "out", false);
        assert_eq!(one.fix, [""; 0]);
        assert!(one.advice[0].contains("how many connections c2 keeps"), "{one:#?}");
    }
}

/// As a rule for the uplink that does not name it.
#[test]
fn a_rule_that_leads_all_that_containers_send_elsewhere_is_named() {
    let everywhere = |parts: &[Vec<Step>]| {
        let chain = nat("PREROUTING", Hook::Prerouting, -100, vec![rule(parts)]);
        with(node(), table(Kin::Ip, "nat", vec![chain]))
    };
    let to = |address: &str| {
        vec![
            Step::Immediate {
                to: 0,
                data: address.parse::<std::net::Ipv4Addr>().unwrap().octets().to_vec(),
            },
            Step::DestinationNat { address: Some(0), port: None },
        ]
    };
    let any = crate::filter::samples::destination_in("0.0.0.0/0");
    check(
        &everywhere(&[any.clone(), to("10.9.9.9")]),
        &expect![[r#"
            port-redirected  what containers of mynet send beyond this node goes to 10.9.9.9: ip nat/PREROUTING rule 1 leads all of it there
                where  table ip nat, chain PREROUTING, rule 1: dnat to 10.9.9.9
                whose  unknown: a person or a program that uses iptables
                hits   c2 c3
                fix    nft delete rule ip nat PREROUTING handle 7
                advice another program or a person made this rule: "dnat to 10.9.9.9" ends for all packets
                advice or let the rule match no more than it is for, as by the link where packets come in
        "#]],
    );
    let kinds = |scene: &Scene| -> Vec<WayKind> {
        let mut found = found(scene).into_iter().filter(|one| one.hits == ["c3"]);
        found.next().map(|one| one.breaks.iter().map(|way| way.kind).collect()).unwrap_or_default()
    };
    let all = [WayKind::Outside, WayKind::Names, WayKind::Gateway];
    assert_eq!(kinds(&everywhere(&[any, to("10.9.9.9")])), all);
    assert_eq!(kinds(&everywhere(&[protocol(6), to("10.9.9.9")])), [WayKind::Outside]);
    let mut scene = node();
    scene.host.filter.legacy = vec![LegacyTable {
        ipv4: true,
        name: "nat".to_owned(),
        policies: vec![("PREROUTING".to_owned(), "ACCEPT".to_owned())],
        chains: Vec::new(),
        rules: vec!["-A PREROUTING -j DNAT --to-destination 10.9.9.9".to_owned()],
    }];
    // It is asked before our own table, whose priority is -90.
    assert_eq!(kinds(&scene), all);
    assert_eq!(ids(&scene), ["port-redirected"]);
    // All of it to the node itself.
    assert_eq!(kinds(&everywhere(&[vec![Step::Redirect { port: None }]])), all);
    // A proxy, and what comes in by the uplink.
    assert_eq!(kinds(&everywhere(&[iifname("up0"), to("10.9.9.9")])), []);
    assert_eq!(kinds(&everywhere(&[tcp_port(8443), to("10.9.9.9")])), []);
    let port = vec![Step::Immediate { to: 0, data: 3128_u16.to_be_bytes().to_vec() }];
    let here = [iifname("cni0"), protocol(6), port, vec![Step::Redirect { port: Some(0) }]];
    assert_eq!(ids(&everywhere(&here)), ["proxy-missing"]);
}

/// What answers shows that somebody may mean it.
#[test]
fn a_rule_that_leads_all_elsewhere_is_a_warning_where_somebody_answers() {
    let chain = nat("PREROUTING", Hook::Prerouting, -100, vec![rule(&[dnat("10.9.9.9", 53)])]);
    let scene = with(node(), table(Kin::Ip, "nat", vec![chain]));
    let judged = |answer: Answer| {
        let asked = Probe::Name { server: "198.51.100.53".parse().unwrap() };
        let question = Question { from: Some("c3".to_owned()), asked };
        let answers = Answers { all: vec![(question, answer)] };
        let look = Look { scene: &scene, answers: &answers, only: Some("c3"), to: None };
        judge(look).remove(0).severity
    };
    use crate::finding::Severity::{Error, Warning};
    assert_eq!(judged(Answer::Named { after_us: 1, error: None }), Warning);
    assert_eq!(judged(Answer::Silent { hops: Vec::new() }), Error);
}
