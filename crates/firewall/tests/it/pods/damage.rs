//! Whatever other programs do to the table is noticed, named and repaired. Single addresses can be
//! closed and forgotten without knowledge of the cluster.

use std::collections::BTreeSet;
use std::net::IpAddr;

use expect_test::expect;
use firewall::pods::{self, Logging, PodsTable};
use kernel::nft::NftSocket;
use netwright_firewall as firewall;
use policy::program::{self, Set};
use policy::{
    Change, Compiler, Direction, IpFamily, PerDirection, Program, Protocol, Traffic, World,
};
use serde_json::json;
use testkit::{Chance, Lab, Place};

use super::clusters::support::{namespace, network, node, pod};
use super::clusters::{Case, NODE, of_pod, placed};
use super::lab::{Fate, OWN, PodLab, Probe};

/// How often each kind of damage is done, each time to a random object: more than a hundred damages
/// in all.
const TIMES: usize = 5;

const FIXED: [&str; 6] = ["egress", "ingress", "revived", "cut", "deny-in", "deny-out"];
const MAPS: [&str; 4] = ["in4", "in6", "out4", "out6"];

/// A damage: commands of nft, and the words that the report must contain.
struct Damage {
    commands: String,
    names: String,
}

struct Vandal<'a> {
    chance: &'a mut Chance,
    program: &'a Program,
}

impl Vandal<'_> {
    fn chain(&mut self) -> String {
        let all = FIXED.iter().map(|name| (*name).to_owned());
        let all: Vec<String> = all.chain(self.program.chains.keys().cloned()).collect();
        self.chance.of(&all).clone()
    }

    /// A set with elements: its name, one of the elements, and one that it does not have.
    fn element(&mut self) -> Option<(String, String, String)> {
        let full = self.program.sets.iter().filter_map(|(name, set)| {
            let v6 = program::family_of(name) == Some(IpFamily::V6);
            let other = if v6 { "2001:db8:77::1" } else { "198.51.100.77" };
            let (one, other) = match set {
                Set::Addresses(all) => (all.first()?.to_string(), other.to_owned()),
                Set::Ports(all) => {
                    let (address, protocol, port) = all.first()?;
                    let protocol = protocol.to_string().to_lowercase();
                    (format!("{address} . {protocol} . {port}"), format!("{other} . tcp . 7"))
                }
                // The elements may cover everything, so that there is no element to add.
                Set::Intervals(_) => return None,
            };
            Some((name.clone(), one, other))
        });
        let full: Vec<_> = full.collect();
        (!full.is_empty()).then(|| self.chance.of(&full).clone())
    }

    /// An address of a map.
    fn verdict(&mut self) -> Option<(String, IpAddr)> {
        let all: Vec<_> = self.program.verdicts.keys().copied().collect();
        if all.is_empty() {
            return None;
        }
        let (direction, address) = *self.chance.of(&all);
        let way = match direction {
            Direction::Ingress => "in",
            Direction::Egress => "out",
        };
        Some((format!("{way}{}", IpFamily::of(address).digit()), address))
    }

    fn damage(&mut self, kind: usize) -> Option<Damage> {
        let chain = self.chain();
        let table = "inet netwright-policy";
        let (commands, names) = match kind {
            0 => (format!("delete table {table}"), table.to_owned()),
            1 => (format!("flush chain {table} {chain}"), chain),
            2 => (format!("insert rule {table} {chain} accept"), chain),
            3 => (
                format!("add rule {table} {chain} ip saddr {{ 10.0.0.1, 10.0.0.2 }} counter"),
                chain,
            ),
            4 => (format!("flush table {table}"), "egress".to_owned()),
            5 => {
                let (set, one, _) = self.element()?;
                (format!("delete element {table} {set} {{ {one} }}"), set)
            }
            6 => {
                let (set, _, other) = self.element()?;
                (format!("add element {table} {set} {{ {other} }}"), set)
            }
            7 => {
                let (set, ..) = self.element()?;
                (format!("flush set {table} {set}"), set)
            }
            8 => {
                let (map, address) = self.verdict()?;
                (format!("delete element {table} {map} {{ {address} }}"), address.to_string())
            }
            9 => {
                let (map, address) = self.verdict()?;
                (format!("delete element {table} has-{map} {{ {address} }}"), format!("has-{map}"))
            }
            10 => {
                let (map, address) = self.verdict()?;
                let to = if map.starts_with("in") { "unknown-in" } else { "unknown-out" };
                let way =
                    if map.starts_with("in") { Direction::Ingress } else { Direction::Egress };
                let verdict = if self.program.verdicts[&(way, address)] == to {
                    "accept".to_owned()
                } else {
                    format!("goto {to}")
                };
                let commands = format!(
                    "delete element {table} {map} {{ {address} }}\n\
                     add element {table} {map} {{ {address} : {verdict} }}"
                );
                (commands, address.to_string())
            }
            11 => {
                let map = *self.chance.of(&MAPS);
                let address = if map.ends_with('4') { "198.51.100.77" } else { "2001:db8:77::1" };
                (
                    format!("add element {table} {map} {{ {address} : goto unknown-in }}"),
                    address.to_owned(),
                )
            }
            12 => (
                format!("add chain {table} mine; add rule {table} mine jump unknown-in"),
                "mine".to_owned(),
            ),
            13 => {
                let base = "{ type filter hook forward priority 7; policy drop; }";
                (format!("add chain {table} mine {base}"), "mine".to_owned())
            }
            14 => {
                let commands = format!(
                    "add set {table} mine {{ type ipv4_addr; }}; add chain {table} other; \
                     add map {table} led {{ type ipv4_addr : verdict; elements = {{ 10.0.0.1 : jump other }}; }}; \
                     add rule {table} other ip saddr @mine accept; \
                     add rule {table} {chain} ip daddr vmap @led; add rule {table} {chain} jump other"
                );
                (commands, "led".to_owned())
            }
            15 => (format!("delete chain {table} ingress"), "ingress".to_owned()),
            16 => {
                let base = "{ type filter hook input priority 0; }";
                (
                    format!("delete chain {table} egress; add chain {table} egress {base}"),
                    "egress".to_owned(),
                )
            }
            17 => (format!("add table {table} {{ flags dormant; }}"), "flags".to_owned()),
            18 => (format!("add counter {table} mine"), "foreign: 1 object".to_owned()),
            19 => (format!("add rule {table} {chain} jump {{ ip saddr 10.0.0.1 accept; }}"), chain),
            20 => {
                let (map, address) = self.verdict()?;
                let way =
                    if map.starts_with("in") { Direction::Ingress } else { Direction::Egress };
                let class = self.program.verdicts[&(way, address)].clone();
                let led = self.program.verdicts.iter().filter(|(_, to)| **to == class);
                let mut commands: String = led
                    .map(|((_, address), _)| {
                        let digit = IpFamily::of(*address).digit();
                        let way = map.trim_end_matches(['4', '6']);
                        format!("delete element {table} {way}{digit} {{ {address} }}; ")
                    })
                    .collect();
                commands += &format!("delete chain {table} {class}");
                (commands, class)
            }
            _ => return None,
        };
        Some(Damage { commands, names })
    }
}

const KINDS: usize = 21;

#[test]
fn whatever_is_done_to_the_table_is_named_and_repaired() {
    testkit::require!("root");
    let lab = Lab::new("podsdamage");
    let (mut table, mut nft) =
        lab.enter(|| (PodsTable::open(Logging::default()).unwrap(), NftSocket::open().unwrap()));
    let mut chance = Chance::new(7);
    for round in 0..TIMES {
        // This cluster has something to damage in each way.
        let program = loop {
            let case = placed(Case::random(&mut chance));
            let program = policy::compile(World::of(case.isolation, case.objects), NODE);
            let mut vandal = Vandal { chance: &mut chance, program: &program };
            if (0..KINDS).all(|kind| vandal.damage(kind).is_some()) {
                break program;
            }
        };
        table.bring(&program).unwrap();
        for kind in 0..KINDS {
            let mut vandal = Vandal { chance: &mut chance, program: &program };
            let damage = vandal.damage(kind).unwrap();
            let what = &damage.commands;
            self::nft(&lab, what);
            let looked = (round == 0).then(|| table.observe(&program).unwrap());
            let generation = nft.generation().unwrap();
            let seen = table.bring(&program).unwrap();
            let named = seen.lines().iter().any(|line| line.contains(&damage.names));
            assert!(named, "round {round}: {what}: {} is not in {:#?}", damage.names, seen.lines());
            assert!(looked.is_none_or(|looked| looked == seen), "{what}");
            let after = nft.generation().unwrap();
            // Missing objects are made first.
            assert!([1, 2].contains(&(after - generation)), "{what}: transactions");
            let left = table.bring(&program).unwrap();
            assert!(left.is_empty(), "{what} leaves {left}");
            assert_eq!(nft.generation().unwrap(), after, "{what}: nothing to repair");
        }
    }
}

/// Runs commands, separated by semicolons.
fn nft(lab: &Lab, commands: &str) {
    lab.sh(&format!("nft -f - <<'END'\n{}\nEND\n", commands.replace("; ", "\n")));
}

pub(crate) fn small() -> Compiler {
    let objects: Vec<Change> = vec![
        node(NODE, json!({}), &OWN).into(),
        namespace("shop", json!({})).into(),
        pod("shop/one", NODE, json!({"app": "one"}), &["10.244.1.1", "fd00:244:1::1"]).into(),
        pod("shop/two", NODE, json!({"app": "two"}), &["10.244.1.2", "fd00:244:1::2"]).into(),
        network(
            "shop/two",
            json!({
                "podSelector": {"matchLabels": {"app": "two"}},
                "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "one"}}}]}],
            }),
        )
        .into(),
    ];
    Compiler::new(World::of(None, objects), NODE)
}

#[test]
fn the_sentences_about_damage() {
    testkit::require!("root");
    let lab = Lab::new("podstold");
    let mut table = lab.enter(|| PodsTable::open(Logging::default())).unwrap();
    let compiler = small();
    let told = |table: &mut PodsTable| {
        let lines = table.observe(compiler.program()).unwrap();
        lines.lines().join("\n") + "\n"
    };
    let mut text = told(&mut table);
    table.put(compiler.program()).unwrap();
    lab.sh(
        "nft -f - <<'END'
add element inet netwright-policy in4 { 10.244.1.3 : goto unknown-in, 10.244.1.4 : goto unknown-in, 10.244.1.5 : accept, 10.244.1.6 : drop }
delete element inet netwright-policy in6 { fd00:244:1::2 }
delete element inet netwright-policy in4 { 10.244.1.2 }
add element inet netwright-policy in4 { 10.244.1.2 : accept }
flush chain inet netwright-policy deny-in
delete chain inet netwright-policy ingress
add chain inet netwright-policy mine
add set inet netwright-policy theirs { type ipv4_addr; }
END",
    );
    text += &told(&mut table);
    expect![[r#"
        missing: table inet netwright-policy
        chain deny-in of table inet netwright-policy has other rules
        missing: chain ingress of table inet netwright-policy
        foreign: chain mine of table inet netwright-policy
        foreign in map in4 of table inet netwright-policy: 10.244.1.3, 10.244.1.4, 10.244.1.5 and 1 more
        led elsewhere by map in4 of table inet netwright-policy: 10.244.1.2 to accept
        missing from map in6 of table inet netwright-policy: fd00:244:1::2
        foreign: set theirs of table inet netwright-policy
    "#]].assert_eq(&text);
}

/// Tries to reach pod 2 from pod 1 and from outside, and pod 1 from pod 2.
fn reach(lab: &mut PodLab) -> Vec<Fate> {
    let outside: IpAddr = "198.51.100.1".parse().unwrap();
    let [one, two] = [of_pod(1)[0], of_pod(2)[0]];
    let own = OWN[0].parse().unwrap();
    let pairs = [(one, two), (outside, two), (two, one), (own, two), (two, own)];
    let traffic = Traffic::to(Protocol::Tcp, 80);
    let probes = pairs.map(|(source, destination)| Probe { source, destination, traffic });
    lab.try_all(&probes)
}

const PASSES: Fate = Fate { denied: None, arrived: true, answered: true };
const TO_NODE: Fate = Fate { denied: None, arrived: false, answered: true };
const NOT_IN: Fate = Fate { denied: Some(Direction::Ingress), arrived: false, answered: false };
const NOT_OUT: Fate = Fate { denied: Some(Direction::Egress), arrived: false, answered: false };
const CLOSED: [Fate; 5] = [NOT_IN, NOT_IN, NOT_OUT, PASSES, TO_NODE];
const OPEN: [Fate; 5] = [PASSES, PASSES, PASSES, PASSES, TO_NODE];

fn unknown() -> PerDirection<Option<policy::Name>> {
    PerDirection::of(|direction| Some(program::unknown(direction)))
}

#[test]
fn an_address_is_closed_and_forgotten_without_a_program() {
    testkit::require!("root");
    let mut lab = PodLab::new("podsclose");
    let two = of_pod(2);
    // If there is no table, there is nothing to forget, and nothing is made.
    pods::forget(&mut lab.table, &two).unwrap();
    pods::close(&mut lab.table, &[]).unwrap();
    assert!(!lab.table.exists().unwrap());
    assert_eq!(pods::verdicts(&mut lab.table, two[0]).unwrap(), PerDirection::default());
    assert_eq!(reach(&mut lab), OPEN);
    for _ in 0..2 {
        pods::close(&mut lab.table, &two).unwrap();
        assert_eq!(pods::verdicts(&mut lab.table, two[1]).unwrap(), unknown());
        assert_eq!(reach(&mut lab), CLOSED);
    }
    // This equals the program of a compiler that only knows that these pods start.
    let mut compiler = Compiler::new(World::new(None), NODE);
    for address in two {
        compiler.start(address, "uid".into());
    }
    let difference = lab.table.observe(compiler.program()).unwrap();
    assert!(difference.is_empty(), "{difference}");
    for _ in 0..2 {
        pods::forget(&mut lab.table, &two).unwrap();
        assert_eq!(pods::verdicts(&mut lab.table, two[1]).unwrap(), PerDirection::default());
        assert_eq!(reach(&mut lab), OPEN);
    }
    assert!(lab.table.observe(&Program::empty()).unwrap().is_empty());
}

#[test]
fn an_address_of_a_program_is_closed_and_led_back() {
    testkit::require!("root");
    let mut lab = PodLab::new("podsback");
    let (compiler, two) = (small(), of_pod(2));
    lab.table.put(compiler.program()).unwrap();
    let selected = [PASSES, NOT_IN, PASSES, PASSES, TO_NODE];
    assert_eq!(reach(&mut lab), selected);
    pods::close(&mut lab.table, &two[..1]).unwrap();
    assert_eq!(reach(&mut lab), CLOSED);
    let led = lab.table.bring(compiler.program()).unwrap();
    assert_eq!(led.lines().len(), 3, "{led}");
    assert_eq!(reach(&mut lab), selected);
    // A repair of something else keeps the counters.
    assert_eq!(lab.table.dropped().unwrap().incoming, 4);
    pods::forget(&mut lab.table, &two).unwrap();
    assert_eq!(reach(&mut lab), OPEN);
    lab.table.bring(compiler.program()).unwrap();
    assert_eq!(lab.table.dropped().unwrap().incoming, 4);
}

/// Closing an address repairs what it needs, and nothing else.
#[test]
fn an_address_is_closed_in_a_damaged_table() {
    testkit::require!("root");
    let mut lab = PodLab::new("podsbroken");
    let (compiler, two) = (small(), of_pod(2));
    let damages = [
        "flush chain inet netwright-policy ingress; flush chain inet netwright-policy egress",
        "delete chain inet netwright-policy ingress; delete chain inet netwright-policy egress",
        "insert rule inet netwright-policy unknown-in accept; insert rule inet netwright-policy deny-out accept",
        "flush table inet netwright-policy",
        "delete element inet netwright-policy has-in4 { 10.244.1.2 }; flush map inet netwright-policy in6",
        "delete chain inet netwright-policy egress; add chain inet netwright-policy egress { type filter hook input priority 0; }",
        "delete table inet netwright-policy",
        "add table inet netwright-policy { flags dormant; }",
        "delete chain inet netwright-policy ingress; delete chain inet netwright-policy egress; flush map inet netwright-policy in4; delete map inet netwright-policy in4",
    ];
    for damage in damages {
        lab.table.put(compiler.program()).unwrap();
        nft(&lab.lab, damage);
        let is_complete = pods::is_complete(&mut lab.table).unwrap();
        assert!(!(damage.contains("dormant") && is_complete), "{damage}");
        pods::close(&mut lab.table, &two).unwrap_or_else(|error| panic!("{damage}: {error:?}"));
        assert_eq!(reach(&mut lab), CLOSED, "{damage}");
        assert_eq!(pods::verdicts(&mut lab.table, two[0]).unwrap(), unknown(), "{damage}");
    }
}

/// A program that closes an address need not know how packets are logged.
#[test]
fn closing_leaves_the_log_alone() {
    testkit::require!("root");
    let mut lab = PodLab::new("podslog");
    let logging = Logging { group: 7, rate: 5 };
    let (compiler, two) = (small(), of_pod(2));
    let mut own = lab.lab.enter(|| PodsTable::open(logging)).unwrap();
    assert_eq!(pods::addresses(&mut own).unwrap(), BTreeSet::new());
    own.put(compiler.program()).unwrap();
    let known = pods::addresses(&mut own).unwrap();
    assert!(known.contains(&two[0]) && known.contains(&two[1]), "{known:?}");
    pods::close(&mut lab.table, &two).unwrap();
    let difference = own.bring(compiler.program()).unwrap();
    let told = difference.to_string();
    assert!(!difference.is_empty() && !told.contains("deny-"), "{told}");
    // A rule that decides in its place is not taken for a log rule.
    for rule in ["accept", "continue"] {
        nft(&lab.lab, "flush chain inet netwright-policy deny-in");
        nft(&lab.lab, &format!("add rule inet netwright-policy deny-in {rule}"));
        nft(&lab.lab, "add rule inet netwright-policy deny-in counter");
        nft(&lab.lab, "add rule inet netwright-policy deny-in drop");
        pods::close(&mut lab.table, &two).unwrap();
        let chain = lab.lab.sh("nft list chain inet netwright-policy deny-in");
        assert!(chain.contains("nwt-in") && !chain.contains(rule), "{chain}");
    }
}
