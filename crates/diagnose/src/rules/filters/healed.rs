//! The printed commands are run on the scene, read word by word: the containers' packets pass then,
//! and what an administrator drops besides is still dropped.

use std::net::IpAddr;

use super::*;
use crate::filter::samples::{
    accept, base, chain, destination, dropping, established, iifname, jump, oifname, protocol,
    rule, table, tcp_port, udp_port,
};
use crate::filter::samples::{drop as dropped, namespace};
use crate::finding::WayKind;
use crate::model::filter::{
    Comparison, Family as Kin, Header, LegacyTable, Meta, Rule, Step, Table,
};
use crate::path::samples::{ip, node};
use crate::question::Answers;

/// Addresses that an administrator lets nobody reach.
const OWN: [&str; 2] = ["198.51.100.7", "2001:db8:7::7"];
/// Any others.
const OTHERS: [&str; 2] = ["45.0.0.1", "2400::1"];

/// How a filter is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writing {
    /// nft's own, for both IP versions.
    Inet,
    /// A table of nft for each.
    Ip,
    IptablesNft,
    IptablesLegacy,
}

const WRITINGS: [Writing; 4] =
    [Writing::Inet, Writing::Ip, Writing::IptablesNft, Writing::IptablesLegacy];

/// Rules in the words of iptables, by their chains; of each `OWN` and `SERVER` are addresses.
type Chains<'c> = &'c [(&'c str, &'c [&'c str])];

impl Writing {
    /// Puts chains into the node's filter, the first as the base chain of a hook.
    fn put(self, scene: &mut Scene, hook: Hook, drops: bool, chains: Chains<'_>) {
        let versions: &[usize] = if self == Writing::Inet { &[2] } else { &[0, 1] };
        for version in versions {
            let rules = |rules: &[&str]| -> Vec<String> {
                let of = |rule: &&str| match version {
                    2 if rule.contains("OWN") => OWN.map(|own| rule.replace("OWN", own)).to_vec(),
                    2 => vec![(*rule).to_owned()],
                    one => vec![rule.replace("OWN", OWN[*one])],
                };
                rules.iter().flat_map(of).collect()
            };
            if self == Writing::IptablesLegacy {
                let lines = chains.iter().flat_map(|(name, all)| {
                    rules(all).into_iter().map(move |rule| format!("-A {name} {rule}"))
                });
                let policy = if drops { "DROP" } else { "ACCEPT" };
                scene.host.filter.legacy.push(LegacyTable {
                    ipv4: *version == 0,
                    name: "filter".to_owned(),
                    policies: vec![(chains[0].0.to_owned(), policy.to_owned())],
                    chains: chains[1..].iter().map(|(name, _)| (*name).to_owned()).collect(),
                    rules: lines.collect(),
                });
                continue;
            }
            let mut all: Vec<crate::model::filter::Chain> = Vec::new();
            for (number, (name, lines)) in chains.iter().enumerate() {
                let mut own: Vec<Rule> = Vec::new();
                for line in rules(lines) {
                    let words: Vec<&str> = line.split(' ').collect();
                    own.push(Rule { handle: 0, comment: None, steps: steps(&words) });
                }
                let name = self.name(name);
                let own = if number == 0 { base(&name, hook, 0, own) } else { chain(&name, own) };
                all.push(own);
            }
            for own in &mut all {
                for step in own.rules.iter_mut().flat_map(|rule| &mut rule.steps) {
                    if let Step::Verdict(
                        crate::model::filter::Verdict::Jump(to)
                        | crate::model::filter::Verdict::Goto(to),
                    ) = step
                    {
                        *to = self.name(to);
                    }
                }
            }
            if drops {
                all[0] = dropping(all[0].clone());
            }
            let kin = [Kin::Ip, Kin::Ip6, Kin::Inet][*version];
            scene.host.filter.tables.insert(0, numbered(table(kin, self.table(), all)));
        }
    }

    fn table(self) -> &'static str {
        match self {
            Writing::Inet | Writing::Ip => "fw",
            _ => "filter",
        }
    }

    fn name(self, chain: &str) -> String {
        match self {
            Writing::Inet | Writing::Ip => chain.to_lowercase(),
            _ => chain.to_owned(),
        }
    }

    fn node(self, hook: Hook, drops: bool, chains: Chains<'_>) -> Scene {
        let mut scene = node();
        for container in &mut scene.containers {
            // It would open the chain.
            container.attachments[0].plugins.retain(|plugin| plugin != "firewall");
        }
        self.put(&mut scene, hook, drops, chains);
        scene
    }
}

/// Gives the rules of a table handles of their own.
fn numbered(mut table: Table) -> Table {
    let rules = table.chains.iter_mut().flat_map(|chain| &mut chain.rules);
    for (rule, handle) in rules.zip(11..) {
        rule.handle = handle;
    }
    table
}

/// Reads the words of a rule, of nft or of iptables.
fn steps(words: &[&str]) -> Vec<Step> {
    let mut words = words.iter().copied();
    let mut steps = Vec::new();
    let next = |words: &mut dyn Iterator<Item = &str>| words.next().unwrap().to_owned();
    let mut transport = String::new();
    while let Some(word) = words.next() {
        match word {
            "accept" => steps.extend(accept()),
            "drop" => steps.extend(dropped()),
            "iifname" | "-i" => steps.extend(iifname(&next(&mut words))),
            "oifname" | "-o" => steps.extend(oifname(&next(&mut words))),
            "saddr" | "-s" => steps.extend(in_net([12, 8], &next(&mut words))),
            "daddr" | "-d" => steps.extend(in_net([16, 24], &next(&mut words))),
            "ip" | "ip6" => {}
            "tcp" | "udp" => transport = word.to_owned(),
            "-p" => {
                transport = next(&mut words);
                if transport == "icmp" {
                    steps.extend(protocol(1));
                }
            }
            "dport" | "--dport" => {
                let port = next(&mut words).parse().unwrap();
                steps.extend(if transport == "tcp" { tcp_port(port) } else { udp_port(port) });
            }
            "ct" | "-m" => {
                let _ = next(&mut words);
            }
            "--ctstate" | "established,related" | "dnat" => {
                let state = if word == "--ctstate" { next(&mut words) } else { word.to_owned() };
                match state.to_lowercase().as_str() {
                    "established,related" => steps.extend(established()),
                    "dnat" => steps.extend(translated()),
                    other => panic!("{other}"),
                }
            }
            "icmpv6" => {
                let kinds: Vec<String> = (0..6).map(|_| next(&mut words)).collect();
                assert_eq!(kinds.join(" "), "type '{ nd-neighbor-solicit, nd-neighbor-advert }'");
                steps.extend(protocol(58));
            }
            "-j" | "-g" => match next(&mut words).as_str() {
                "ACCEPT" => steps.extend(accept()),
                "DROP" => steps.extend(dropped()),
                "RETURN" => steps.push(Step::Verdict(crate::model::filter::Verdict::Return)),
                "LOG" => steps.push(Step::Effect { name: "log".to_owned() }),
                to if word == "-g" => {
                    steps.push(Step::Verdict(crate::model::filter::Verdict::Goto(to.to_owned())));
                }
                to => steps.extend(jump(to)),
            },
            other => panic!("{other}"),
        }
    }
    steps
}

fn translated() -> Vec<Step> {
    vec![
        Step::Connection { key: crate::model::filter::Connection::Status, to: 0 },
        Step::Bitwise { from: 0, to: 0, mask: 0x20_u32.to_ne_bytes().to_vec(), xor: vec![0; 4] },
        Step::Compare { op: Comparison::NotEqual, from: 0, with: vec![0; 4] },
    ]
}

/// `offsets` are those of IPv4 and of IPv6.
fn in_net(offsets: [u32; 2], net: &str) -> Vec<Step> {
    let net: ipnet::IpNet = net.parse().unwrap_or_else(|_| ip(net).into());
    let bytes = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let mask = bytes(net.netmask());
    let is_ipv6 = net.addr().is_ipv6();
    let kind: u8 = if is_ipv6 { 10 } else { 2 };
    vec![
        Step::Meta { key: Meta::NfProto, to: 0 },
        Step::Compare { op: Comparison::Equal, from: 0, with: vec![kind] },
        Step::Payload {
            base: Header::Network,
            offset: offsets[usize::from(is_ipv6)],
            len: if is_ipv6 { 16 } else { 4 },
            to: 0,
        },
        Step::Bitwise { from: 0, to: 0, xor: vec![0; mask.len()], mask },
        Step::Compare { op: Comparison::Equal, from: 0, with: bytes(net.network()) },
    ]
}

/// Runs a printed command.
fn run(scene: &mut Scene, command: &str) {
    let (filter, command) = match command.strip_prefix("nsenter --net=") {
        None => (&mut scene.host.filter, command),
        Some(rest) => {
            let (netns, command) = rest.split_once(' ').unwrap();
            let mut all = scene.containers.iter_mut();
            let container = all.find(|one| one.netns == netns).unwrap();
            (&mut container.inside.as_mut().unwrap().filter, command)
        }
    };
    let words: Vec<&str> = command.split(' ').collect();
    let family = match words[0] {
        "nft" => words[3],
        "iptables-nft" => "ip",
        "ip6tables-nft" => "ip6",
        tool @ ("iptables-legacy" | "ip6tables-legacy") => {
            let is_of = |one: &&mut LegacyTable| one.ipv4 == (tool == "iptables-legacy");
            let own = filter.legacy.iter_mut().find(is_of).unwrap();
            let begins = format!("-A {} ", words[4]);
            let all = own.rules.iter().enumerate().filter(|(_, one)| one.starts_with(&begins));
            let places: Vec<usize> = all.map(|(number, _)| number).collect();
            let (at, from) = match words[3] {
                "-A" => (own.rules.len(), 5),
                _ => (places[words[5].parse::<usize>().unwrap() - 1], 6),
            };
            own.rules.insert(at, begins + &words[from..].join(" "));
            return;
        }
        other => panic!("{other}"),
    };
    let (own_table, own_chain) =
        if words[0] == "nft" { (words[4], words[5]) } else { (words[2], words[4]) };
    let is_table = |one: &&mut Table| one.name == own_table && one.family.as_str() == family;
    let own = filter.tables.iter_mut().find(is_table).unwrap();
    let own = own.chains.iter_mut().find(|one| one.name == own_chain).unwrap();
    let (at, from) = match (words[0], words.get(6).copied()) {
        ("nft", Some("handle")) => {
            let handle: u64 = words[7].parse().unwrap();
            (own.rules.iter().position(|one| one.handle == handle).unwrap(), 8)
        }
        ("nft", _) => (own.rules.len(), 6),
        (_, _) if words[3] == "-A" => (own.rules.len(), 5),
        _ => (words[5].parse::<usize>().unwrap() - 1, 6),
    };
    own.rules.insert(at, Rule { handle: 900, comment: None, steps: steps(&words[from..]) });
}

fn found_to(scene: &Scene, to: Option<&str>) -> Vec<Finding> {
    let answers = Answers::default();
    judge(Look { scene, answers: &answers, only: None, to: to.map(|to| to.parse().unwrap()) })
}

/// The commands for errors, each once.
fn fixes(scene: &Scene) -> Vec<String> {
    let found = crate::causes::sort(found_to(scene, None), scene);
    let mut all: Vec<String> = Vec::new();
    for fix in found.causes.into_iter().flat_map(|cause| cause.finding.fix) {
        if !all.contains(&fix) {
            all.push(fix);
        }
    }
    all
}

/// Runs all commands that are printed. Asserts that nothing is wrong then.
#[track_caller]
fn healed(scene: &Scene) -> Scene {
    let mut healed = scene.clone();
    let all = fixes(scene);
    assert!(!all.is_empty(), "{:#?}", found_to(scene, None));
    for command in &all {
        run(&mut healed, command);
    }
    let left = found_to(&healed, None);
    assert_eq!(left, [], "after {all:#?}: {:#?}", healed.host.filter);
    healed
}

/// Where what the first container sends to an address ends; `None`: nowhere.
fn end_of(scene: &Scene, to: &str) -> Option<String> {
    let (to, container) = (ip(to), &scene.containers[0]);
    let site = Site::every(scene, container, IpFamily::of(to)).next().unwrap();
    match follow_filters(scene, &Trip::Outside { from: &site, to, with: tcp(443) }, &[]) {
        Outcome::Passes(_) => None,
        Outcome::Stopped(stop) => match stop.why {
            StopCause::Filter { place, .. } => Some(place.name()),
            why => panic!("{why:?}"),
        },
        Outcome::Unknown => panic!("it is not certain"),
    }
}

/// Asserts that the printed commands mend a node, and that what is dropped on purpose still is.
#[track_caller]
fn mends(writing: Writing, scene: &Scene) {
    let after = healed(scene);
    for (own, other) in OWN.iter().zip(OTHERS) {
        assert_eq!(end_of(&after, other), None, "{writing:?}");
        assert!(end_of(&after, own).is_some(), "{writing:?} {own}: {:#?}", fixes(scene));
    }
}

#[test]
fn below_what_an_administrator_drops_a_policy_is_opened() {
    for writing in WRITINGS {
        let rules = ["-d OWN -j DROP", "-m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT"];
        let scene = writing.node(Hook::Forward, true, &[("FORWARD", &rules)]);
        mends(writing, &scene);
        let is_last = |fix: &String| fix.contains(" -A FORWARD ") || fix.contains("nft add rule ");
        assert!(fixes(&scene).iter().all(is_last), "{:?}", fixes(&scene));
    }
}

/// The end of the chain is not met where a rule leads past it.
#[test]
fn what_leads_past_the_end_of_a_chain_comes_after_the_new_rule() {
    for writing in WRITINGS {
        for last in ["-g MINE", "-j RETURN", "-i cni0 -j RETURN"] {
            let rules = ["-d OWN -j DROP", "-i tun0 -j ACCEPT", last, "-i tun9 -j ACCEPT"];
            let chains = [("FORWARD", &rules[..]), ("MINE", &["-i tun7 -j ACCEPT"][..])];
            mends(writing, &writing.node(Hook::Forward, true, &chains));
        }
    }
}

/// The question falls to the policy, and a rule drops the answer.
#[test]
fn an_answer_passes_before_the_rule_that_drops_it() {
    for writing in WRITINGS {
        let rules = ["-d OWN -j DROP", "-i up0 -o cni0 -j DROP", "-i tun0 -j ACCEPT"];
        let scene = writing.node(Hook::Forward, true, &[("FORWARD", &rules)]);
        mends(writing, &scene);
        let is_first = |fix: &String| fix.contains(" -I FORWARD 1 ") || fix.contains(" handle 11 ");
        assert!(!fixes(&scene).iter().any(is_first), "{:?}", fixes(&scene));
    }
}

/// Others are dropped by the same chain, and stay so.
#[test]
fn a_chain_that_many_rules_use_is_not_opened() {
    for writing in WRITINGS {
        let rules = [
            "-d OWN -j LOGDROP",
            "-m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
            "-m conntrack --ctstate DNAT -j ACCEPT",
            "-i cni0 -o up0 -j LOGDROP",
            "-i tun0 -j LOGDROP",
        ];
        let chains = [("FORWARD", &rules[..]), ("LOGDROP", &["-j LOG", "-j DROP"][..])];
        let scene = writing.node(Hook::Forward, false, &chains);
        mends(writing, &scene);
        let all = found_to(&scene, None);
        let words = all.iter().flat_map(|one| one.fix.iter().chain(&one.advice));
        assert!(!words.clone().any(|text| text.to_lowercase().contains(" logdrop handle")));
        // Nor is that rule removed which drops for all.
        let removes = words.filter(|text| text.contains("or remove the rule"));
        let removes: Vec<&String> = removes.collect();
        let is_of_base = |text: &&String| {
            text.contains("nft delete rule") && text.to_lowercase().contains(" forward handle ")
                || text.contains("-D FORWARD -i cni0 -o up0 -j LOGDROP")
        };
        assert!(!removes.is_empty() && removes.iter().all(is_of_base), "{removes:?}");
    }
}

/// A rule before the first would let pass what the others drop.
#[test]
fn what_others_drop_below_a_rule_stays_dropped() {
    for writing in WRITINGS {
        for own in ["-d OWN -j DROP", "-p tcp --dport 25 -j DROP", "-j LISTED"] {
            let rules = ["-i cni0 -j DROP", own];
            let chains = [("FORWARD", &rules[..]), ("LISTED", &["-d OWN -j DROP"][..])];
            let scene = writing.node(Hook::Forward, false, &chains);
            let mut all = found_to(&scene, None);
            // An answer has another port.
            all.retain(|one| one.says.contains("do not reach beyond this node"));
            assert!(!all.is_empty() && all.iter().all(|one| one.fix.is_empty()), "{own}: {all:#?}");
            let says = &all[0].advice[0];
            assert!(says.contains("would also let pass what other rules drop"), "{says}");
            assert!(says.contains("or remove the rule"), "{says}");
        }
        // What is for other links, or for all, is no reason.
        for own in ["-i tun0 -d OWN -j DROP", "-j DROP"] {
            let rules =
                ["-i cni0 -j DROP", "-m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT", own];
            healed(&writing.node(Hook::Forward, false, &[("FORWARD", &rules)]));
        }
    }
}

/// What an administrator refuses a client stays refused.
#[test]
fn a_published_port_is_not_opened_to_whom_others_refuse() {
    for writing in WRITINGS {
        let rules = ["-i up0 -j DROP", "-s OWN -j DROP"];
        let scene = writing.node(Hook::Forward, false, &[("FORWARD", &rules)]);
        let all = found_to(&scene, None);
        let mut of_port = all.iter().filter(|one| one.says.contains("published port"));
        assert!(of_port.all(|one| one.fix.is_empty()), "{all:#?}");
    }
}

/// Through another chain, to which one rule leads, the packet comes to the one that many use.
#[test]
fn in_a_chain_of_one_caller_what_it_drops_first_stays() {
    for writing in WRITINGS {
        let ours = [
            "-m conntrack --ctstate ESTABLISHED,RELATED -j RETURN",
            "-d OWN -j DROP",
            "-j LOGDROP",
        ];
        let rules = ["-i cni0 -o up0 -j OURS", "-i tun0 -j LOGDROP"];
        let chains =
            [("FORWARD", &rules[..]), ("OURS", &ours[..]), ("LOGDROP", &["-j LOG", "-j DROP"][..])];
        let scene = writing.node(Hook::Forward, false, &chains);
        mends(writing, &scene);
        let is_in_ours = |fix: &String| fix.to_lowercase().contains(" ours ");
        assert!(fixes(&scene).iter().all(is_in_ours), "{:?}", fixes(&scene));
    }
}

/// Before the jump, a rule would let pass what the chain drops first.
#[test]
fn a_chain_of_two_callers_that_drops_for_one_address_is_opened_below_that() {
    for writing in WRITINGS {
        let ours = ["-d OWN -j DROP", "-j DROP"];
        let rules = [
            "-m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
            "-m conntrack --ctstate DNAT -j ACCEPT",
            "-i cni0 -o up0 -j OURS",
            "-i tun0 -j OURS",
        ];
        let chains = [("FORWARD", &rules[..]), ("OURS", &ours[..])];
        mends(writing, &writing.node(Hook::Forward, false, &chains));
        // Nor does one in it help without harm if others lead an address there.
        let led = [rules[0], rules[1], "-d 203.0.113.9 -j OURS", rules[2]];
        if writing == Writing::Ip {
            let chains = [("FORWARD", &led[..]), ("OURS", &ours[..])];
            let mut scene = node();
            Writing::Ip.put(&mut scene, Hook::Forward, false, &chains);
            scene.host.filter.tables.retain(|table| table.family != Kin::Ip6);
            let all = found_to(&scene, None);
            assert!(!all.is_empty() && all.iter().all(|one| one.fix.is_empty()), "{all:#?}");
            let why = "each that helps would also let pass what other rules drop";
            assert!(all[0].advice[0].contains(why), "{all:#?}");
        }
    }
}

#[test]
fn in_dockers_chain_for_others_what_others_wrote_stays() {
    for writing in [Writing::IptablesNft, Writing::IptablesLegacy] {
        for user in [&["-d OWN -j DROP", "-j RETURN"][..], &["-d OWN -j DROP"]] {
            let rules = ["-j DOCKER-USER", "-o docker0 -j ACCEPT"];
            let chains = [("FORWARD", &rules[..]), ("DOCKER-USER", user)];
            let scene = writing.node(Hook::Forward, true, &chains);
            mends(writing, &scene);
            assert!(fixes(&scene).iter().all(|fix| fix.contains(" DOCKER-USER ")));
        }
    }
}

/// Chains that ufw or firewalld has left are changed by those who made the rest.
#[test]
fn no_command_of_a_firewall_is_printed_that_is_not_on() {
    for (writing, own) in [
        (Writing::IptablesNft, "ufw-user-forward"),
        (Writing::IptablesLegacy, "ufw-user-forward"),
        (Writing::IptablesNft, "FWDI_public"),
    ] {
        let rules = format!("-j {own}");
        let rules = ["-d OWN -j DROP", &rules];
        for (drops, last) in [(true, "-i tun0 -j ACCEPT"), (false, "-j DROP")] {
            let mut scene =
                writing.node(Hook::Forward, drops, &[("FORWARD", &rules), (own, &[last])]);
            mends(writing, &scene);
            let name = if own.starts_with("ufw") { "ufw" } else { "firewalld" };
            scene.firewalls = vec![name.to_owned()];
            let tool = if name == "ufw" { "ufw route allow " } else { "firewall-cmd " };
            let is_by_tool = |fix: &String| fix.starts_with(tool);
            let is_owned = name == "ufw" || !drops;
            assert_eq!(fixes(&scene).iter().any(is_by_tool), is_owned, "{:?}", fixes(&scene));
        }
    }
}

/// An administrator drops what the first address that is tried lies in, and a policy all the rest.
#[test]
fn the_last_rule_is_named() {
    let rules = ["-d 45.0.0.0/8 -j DROP"];
    let scene = Writing::Ip.node(Hook::Forward, true, &[("FORWARD", &rules)]);
    let all = found_to(&scene, None);
    let mut outside = all.iter().filter(|one| one.says.contains("do not reach beyond"));
    assert!(outside.all(|one| one.object.ends_with("policy")), "{all:#?}");
    let after = healed(&scene);
    assert!(end_of(&after, "45.0.0.1").is_some());
    assert_eq!(end_of(&after, "93.184.0.1"), None);
}

/// A filter of the first container itself, which asks a server beyond the node for names.
fn inside(own: Table) -> Scene {
    let mut scene = node();
    let first = &mut scene.containers[0];
    first.nameservers = Some(vec![ip("198.51.100.53"), ip("2001:db8:53::53")]);
    first.attachments[0].ports.clear();
    first.inside.as_mut().unwrap().filter = namespace(vec![numbered(own)]).filter;
    scene
}

/// A VPN's kill switch: only the tunnel, and the way to its server, are open.
#[test]
fn a_kill_switch_is_opened_for_what_a_probe_sent_alone() {
    let allowed = || {
        vec![
            rule(&[oifname("lo"), accept()]),
            rule(&[oifname("wg0"), accept()]),
            rule(&[destination("203.0.113.9"), udp_port(51820), accept()]),
        ]
    };
    let by_policy = dropping(base("out", Hook::Output, 0, allowed()));
    let by_rule = base("out", Hook::Output, 0, [allowed(), vec![rule(&[dropped()])]].concat());
    for (chain, at) in [(by_policy, ["add", ""]), (by_rule, ["insert", " handle 14"])] {
        let scene = inside(table(Kin::Inet, "kill", vec![chain]));
        let all = found_to(&scene, None);
        let errors: Vec<&Finding> = all.iter().filter(|one| one.id == "inside-dropped").collect();
        // Those for names, and questions for hardware addresses.
        assert_eq!(errors.len(), 3, "{all:#?}");
        let errors: Vec<&Finding> =
            errors.into_iter().filter(|one| one.says.contains("server of names")).collect();
        let [verb, place] = at;
        let command = |to: &str| {
            let tool = "nsenter --net=/run/netns/c2 nft";
            format!("{tool} {verb} rule inet kill out{place} {to} udp dport 53 accept")
        };
        assert_eq!(errors[0].fix, [command("ip daddr 198.51.100.53")]);
        assert_eq!(errors[1].fix, [command("ip6 daddr 2001:db8:53::53")]);
        for one in &errors {
            assert!(one.advice.iter().any(|text| text.contains("kill switch")), "{one:#?}");
        }
        let mut after = scene.clone();
        for one in &errors {
            one.fix.iter().for_each(|fix| run(&mut after, fix));
        }
        let left = found_to(&after, None);
        assert!(left.iter().all(|one| !one.says.contains("server of names")), "{left:#?}");
        for other in OTHERS {
            assert!(end_of(&after, other).is_some());
        }
    }
}

/// It is opened for the probe that was lost.
#[test]
fn a_containers_own_filter_is_not_opened_for_all() {
    let closed = dropping(base("out", Hook::Output, 0, vec![rule(&[oifname("lo"), accept()])]));
    let mut scene = inside(table(Kin::Inet, "kill", vec![closed]));
    scene.containers[0].nameservers = None;
    let asked = crate::question::Probe::Connect { to: "198.51.100.1:80".parse().unwrap() };
    let question = crate::question::Question { from: Some("c2".to_owned()), asked };
    let silent = crate::question::Answer::Silent { hops: Vec::new() };
    let answers = Answers { all: vec![(question, silent)] };
    let all = judge(Look { scene: &scene, answers: &answers, only: None, to: None });
    let one = all.iter().find(|one| one.id == "inside-dropped").unwrap();
    let fix = "nsenter --net=/run/netns/c2 nft add rule inet kill out ip daddr 198.51.100.1 tcp dport 80 accept";
    assert_eq!(one.fix, [fix]);
    let says =
        "a command here takes its protection away for what it sends to 198.51.100.1:80 by TCP";
    assert_eq!(one.advice[1], says);
}

/// What is accepted is for TCP: names, and all else, fall to the policy.
#[test]
fn what_a_policy_drops_besides_is_said() {
    for (writing, kinds) in WRITINGS.map(|writing| (writing, [WayKind::Names, WayKind::Outside])) {
        let rules = [
            "-m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
            "-p tcp --dport 443 -j ACCEPT",
            "-p tcp --dport 80 -j ACCEPT",
        ];
        let mut scene = writing.node(Hook::Forward, true, &[("FORWARD", &rules)]);
        scene.containers[0].nameservers = Some(vec![ip("198.51.100.53")]);
        let found = crate::causes::sort(found_to(&scene, None), &scene);
        let [cause] = &found.causes[..] else { panic!("{found:#?}") };
        let one = &cause.finding;
        assert!(one.says.contains("server of names 198.51.100.53"), "{one:#?}");
        let broken: Vec<WayKind> = one.breaks.iter().map(|way| way.kind).collect();
        assert_eq!(broken, kinds, "{writing:?}");
        let besides = "the policy drops all that no rule accepts: packets of containers of mynet to machines beyond this node (TCP, UDP, ICMP), too";
        assert!(one.seen.iter().any(|line| line == besides), "{one:#?}");
    }
    // A rule drops what it names, and no more.
    let rules = ["-p udp --dport 53 -j DROP"];
    let mut scene = Writing::Ip.node(Hook::Forward, false, &[("FORWARD", &rules)]);
    scene.containers[0].nameservers = Some(vec![ip("198.51.100.53")]);
    let all = found_to(&scene, None);
    assert_eq!(all[0].breaks.iter().map(|way| way.kind).collect::<Vec<_>>(), [WayKind::Names]);
}

#[test]
fn what_a_policy_for_the_node_itself_drops_besides_is_said() {
    let rules =
        ["-m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT", "-p tcp --dport 22 -j ACCEPT"];
    let mut scene = Writing::Ip.node(Hook::Input, true, &[("INPUT", &rules)]);
    scene.containers[0].nameservers = Some(vec![ip("10.88.0.1")]);
    let all = found_to(&scene, None);
    let one = all.iter().find(|one| one.says.contains("server of names")).unwrap();
    let broken: Vec<WayKind> = one.breaks.iter().map(|way| way.kind).collect();
    assert_eq!(broken, [WayKind::Names, WayKind::Gateway], "{one:#?}");
    let besides = "echo requests of containers of mynet to 10.88.0.1";
    assert!(one.seen.iter().any(|line| line.contains(besides)), "{one:#?}");
}
