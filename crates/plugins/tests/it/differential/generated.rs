//! Random configurations beside the reference's.
//!
//! A number gives a host, one or two containers and a chain of plugins, with any of their keys.
//! Where ADD ends in the same way on both sides, everything is compared as for the tables; a
//! difference is explained by an entry for the same plugin, or by a pattern of the key `random` of
//! an entry. Where the two do not agree whether a call succeeds, the line is `REFUSED` or
//! `ACCEPTED` with the words of the side that refuses, and an entry must have them. Whatever
//! happens, our plugins leave the host as it was.
//!
//! Every run tries the same few; a run with `--full` a share of all, in rounds. `NETWRIGHT_SEED`
//! repeats some: the numbers that a failing run prints, with commas between them.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use testkit::Chance;
use testkit::reference::Release;
use testkit::share;

use super::ledger::Ledger;
use super::observe::{Observation, WorldState};
use super::world::{CallOutcome, World};
use super::{Case, PLAIN, SETTLE, differences, together};

/// How many configurations there are.
const ALL: u64 = 2_000;

/// The words of a reference's plugin that gave up after the 5 s in which it waits for an address to
/// be checked. On a busy machine the kernel may take longer, which says nothing of the configuration.
const UNSETTLED: &str = "still has tentative addresses after";

/// How often a configuration is tried until the reference's plugin does not give up.
const TRIES: usize = 4;

/// How many of them every run tries, by each of the tests.
const FEW: u64 = 3;

/// How many of them a run with `--full` tries, by each of the tests.
const SHARE: usize = 30;

/// The tests that share the configurations, so that they run side by side.
const TESTS: u64 = 2;

/// An odd number that spreads the bits of a small one (Knuth, "Fibonacci hashing").
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// A host with links for `macvlan` (`p0`) and `host-device` (`d0`).
const HOST: &str = "ip link add p0 address 02:00:00:00:01:01 type veth peer name p1 address 02:00:00:00:01:02 && \
    ip link set p0 up && ip link set p1 up && \
    ip link add d0 address 02:00:00:00:01:03 type veth peer name d1 address 02:00:00:00:01:04 && \
    ip link set d0 up && ip link set d1 up";

/// What our plugins leave on purpose, and what the host's programs do: folders, the tables that
/// are ours, and the reference's chains without rules of a container.
fn may_be_left(line: &str) -> bool {
    let of_container = ["10.1.0.", "fd00:1:", "CNI-DN-", "CNI-ISOLATION", "id: "];
    let has = |texts: &[&str]| texts.iter().any(|text| line.contains(text));
    let files = line.starts_with("files: ");
    // Of our tables only what is in their sets belongs to an attachment.
    let own = has(&[" inet netwright", " bridge netwright"]) && !line.contains("\"elem\"");
    let chains = has(&[" ip filter", " ip6 filter", " ip nat", " ip6 nat", "tables-save"]);
    files || own || (chains && !has(&of_container))
}

/// Makes configurations.
struct Maker(Chance);

impl Maker {
    fn often(&mut self) -> bool {
        !self.0.once_in(3)
    }

    fn rarely(&mut self) -> bool {
        self.0.once_in(6)
    }

    fn one<T: Clone>(&mut self, all: &[T]) -> T {
        self.0.of(all).clone()
    }

    /// Sets a key once in `times` calls.
    fn maybe(&mut self, keys: &mut Map<String, Value>, times: usize, key: &str, values: &[Value]) {
        if self.0.once_in(times) {
            let value = self.one(values);
            keys.insert(key.to_owned(), value);
        }
    }

    fn case(&mut self) -> Case {
        let version = self.one(&["1.0.0", "1.0.0", "1.1.0", "0.4.0", "0.3.1"]);
        let containers: u64 = if self.0.once_in(3) { 2 } else { 1 };
        let kind =
            self.one(&["bridge", "bridge", "bridge", "ptp", "macvlan", "tap", "host-device"]);
        let (mut interface, runtime) = self.interface(kind);
        let containers = if kind == "host-device" { 1 } else { containers };
        let mut later: Vec<Map<String, Value>> = Vec::new();
        for chained in ["portmap", "firewall", "tuning", "bandwidth", "sbr"] {
            let fits = match chained {
                "portmap" | "firewall" => kind == "bridge" || kind == "ptp" || self.rarely(),
                "bandwidth" => kind == "bridge" || kind == "ptp",
                _ => true,
            };
            let known = chained != "firewall" || "0.4.0" <= version;
            if fits && known && self.0.once_in(4) {
                later.push(self.chained(chained));
            }
        }
        interface.insert("type".to_owned(), json!(kind));
        let mut chain = vec![interface];
        chain.append(&mut later);
        let args = if self.rarely() { "IgnoreUnknown=1;MAC=02:00:00:00:00:08" } else { "" };
        let all = (1..=containers).map(|number| {
            let mut own = chain.clone();
            for plugin in &mut own {
                let mut given = runtime.clone();
                if plugin["type"] == "portmap" {
                    given.insert("portMappings".to_owned(), plugin["mappings"].take());
                    plugin.remove("mappings");
                    // Mostly ports of its own.
                    let mappings = given["portMappings"].as_array_mut().into_iter().flatten();
                    for mapping in mappings.filter(|mapping| mapping["hostPort"] != 8080) {
                        let port = mapping["hostPort"].as_u64().unwrap_or(0);
                        mapping["hostPort"] = json!(port + number);
                    }
                }
                if !given.is_empty() {
                    plugin.insert("runtimeConfig".to_owned(), Value::Object(given));
                }
            }
            own.into_iter().map(Value::Object).collect::<Vec<Value>>()
        });
        let all: Vec<Vec<Value>> = all.collect();
        Case {
            name: "generated",
            host: HOST,
            containers: all.len(),
            version,
            args,
            random: all.leak(),
            ..PLAIN
        }
    }

    fn interface(&mut self, kind: &str) -> (Map<String, Value>, Map<String, Value>) {
        let mut keys = Map::new();
        let mut runtime = Map::new();
        let on = [json!(true)];
        let mtus = [json!(1400), json!(1280), json!(1500), json!(9000), json!(1300)];
        self.maybe(&mut keys, 4, "mtu", &mtus);
        let macs = [
            "02:00:00:00:00:07",
            "02-00-00-00-00-07",
            "0200.0000.0007",
            "02:00:00:00:AA:07",
            "2:0:0:0:0:7",
        ];
        match kind {
            "bridge" => {
                self.maybe(&mut keys, 2, "bridge", &[json!("br0")]);
                for (times, key) in [
                    (2, "isGateway"),
                    (3, "isDefaultGateway"),
                    (3, "ipMasq"),
                    (5, "hairpinMode"),
                    (8, "promiscMode"),
                    (8, "forceAddress"),
                    (8, "enabledad"),
                    (8, "disableContainerInterface"),
                    (8, "portIsolation"),
                    (8, "macspoofchk"),
                ] {
                    self.maybe(&mut keys, times, key, &on);
                }
                self.maybe(&mut runtime, 8, "mac", &macs.map(|mac| json!(mac)));
            }
            "ptp" => self.maybe(&mut keys, 3, "ipMasq", &on),
            "macvlan" => {
                keys.insert("master".to_owned(), json!("p0"));
                let modes = ["bridge", "private", "vepa", "passthru", "other"];
                self.maybe(&mut keys, 2, "mode", &modes.map(|mode| json!(mode)));
                self.maybe(&mut keys, 4, "mac", &macs.map(|mac| json!(mac)));
            }
            "tap" => {
                self.maybe(&mut keys, 3, "multiQueue", &on);
                self.maybe(&mut keys, 4, "owner", &[json!(1000)]);
                self.maybe(&mut keys, 4, "group", &[json!(1000)]);
                self.maybe(&mut keys, 4, "mac", &macs.map(|mac| json!(mac)));
            }
            _ => {
                keys.insert("device".to_owned(), json!("d0"));
            }
        }
        let dns = json!({ "nameservers": ["10.1.0.9"], "search": ["example.org"] });
        self.maybe(&mut keys, 6, "dns", &[dns]);
        if kind == "ptp" || self.0.below(8) != 0 {
            let ipam = self.ipam();
            keys.insert("ipam".to_owned(), Value::Object(ipam));
        }
        (keys, runtime)
    }

    fn ipam(&mut self) -> Map<String, Value> {
        let mut keys = Map::new();
        let families = self.one(&["4", "6", "46"]);
        if self.often() {
            keys.insert("type".to_owned(), json!("host-local"));
            let mut sets = Vec::new();
            for (family, subnet) in [('4', "10.1.0.0/24"), ('6', "fd00:1::/64")] {
                if !families.contains(family) {
                    continue;
                }
                let mut range = Map::new();
                range.insert("subnet".to_owned(), json!(subnet));
                let v4 = family == '4';
                let starts =
                    if v4 { ["10.1.0.20", "10.1.0.30"] } else { ["fd00:1::20", "fd00:1::30"] };
                let ends =
                    if v4 { ["10.1.0.90", "10.1.0.254"] } else { ["fd00:1::90", "fd00:1::ff"] };
                let gateways =
                    if v4 { ["10.1.0.254", "10.9.0.1"] } else { ["fd00:1::fe", "fe80::1"] };
                self.maybe(&mut range, 5, "rangeStart", &starts.map(|at| json!(at)));
                self.maybe(&mut range, 5, "rangeEnd", &ends.map(|at| json!(at)));
                self.maybe(&mut range, 5, "gateway", &gateways.map(|at| json!(at)));
                sets.push(vec![Value::Object(range)]);
            }
            keys.insert("ranges".to_owned(), json!(sets));
        } else {
            keys.insert("type".to_owned(), json!("static"));
            let mut addresses = Vec::new();
            for (family, address, gateway) in
                [('4', "10.1.0.5/24", "10.1.0.1"), ('6', "fd00:1::5/64", "fd00:1::1")]
            {
                if !families.contains(family) {
                    continue;
                }
                let mut one = Map::new();
                one.insert("address".to_owned(), json!(address));
                self.maybe(&mut one, 2, "gateway", &[json!(gateway)]);
                if self.rarely() {
                    addresses.push(Value::Object(one.clone()));
                }
                addresses.push(Value::Object(one));
            }
            keys.insert("addresses".to_owned(), json!(addresses));
            let dns = json!({ "nameservers": ["10.1.0.1"], "domain": "example.com" });
            self.maybe(&mut keys, 4, "dns", &[dns]);
        }
        let routes = self.routes(families);
        if !routes.is_empty() {
            keys.insert("routes".to_owned(), Value::Array(routes));
        }
        keys
    }

    fn routes(&mut self, families: &str) -> Vec<Value> {
        let mut routes = Vec::new();
        for _ in 0..self.0.below(4) {
            let v4 = match families {
                "4" => true,
                "6" => false,
                _ => self.often(),
            };
            let mut route = Map::new();
            let (to, via) = if v4 {
                (["0.0.0.0/0", "10.7.0.0/16", "192.0.2.0/24"], ["10.1.0.1", "10.1.0.9", "10.9.0.9"])
            } else {
                (["::/0", "fd00:7::/64", "2001:db8::/32"], ["fd00:1::1", "fd00:1::9", "fe80::9"])
            };
            let to = self.one(&to);
            route.insert("dst".to_owned(), json!(to));
            self.maybe(&mut route, 3, "gw", &via.map(|via| json!(via)));
            self.maybe(&mut route, 6, "mtu", &[json!(1300)]);
            self.maybe(&mut route, 6, "advmss", &[json!(1200)]);
            self.maybe(&mut route, 6, "priority", &[json!(42)]);
            self.maybe(&mut route, 8, "table", &[json!(77)]);
            self.maybe(&mut route, 8, "scope", &[json!(253), json!(0)]);
            if self.rarely() {
                routes.push(Value::Object(route.clone()));
            }
            routes.push(Value::Object(route));
        }
        routes
    }

    fn chained(&mut self, plugin: &str) -> Map<String, Value> {
        let mut keys = Map::new();
        keys.insert("type".to_owned(), json!(plugin));
        match plugin {
            "portmap" => {
                self.maybe(&mut keys, 2, "backend", &[json!("iptables")]);
                self.maybe(&mut keys, 6, "snat", &[json!(false)]);
                self.maybe(&mut keys, 8, "masqAll", &[json!(true)]);
                keys.insert("capabilities".to_owned(), json!({ "portMappings": true }));
                let mut mappings = Vec::new();
                for _ in 0..=self.0.below(2) {
                    let host = self.one(&[8080, 8180, 8180, 8280]);
                    let protocol = self.one(&["tcp", "tcp", "udp", "TCP", "sctp"]);
                    let mut one = Map::new();
                    one.insert("hostPort".to_owned(), json!(host));
                    one.insert("containerPort".to_owned(), json!(80));
                    one.insert("protocol".to_owned(), json!(protocol));
                    let ips = ["127.0.0.1", "192.0.2.1", "0.0.0.0", "::", "2001:db8::1"];
                    self.maybe(&mut one, 4, "hostIP", &ips.map(|ip| json!(ip)));
                    mappings.push(Value::Object(one));
                }
                keys.insert("mappings".to_owned(), Value::Array(mappings));
            }
            "firewall" => {
                self.maybe(&mut keys, 2, "backend", &[json!("iptables")]);
                let policies = ["open", "same-bridge", "isolated"];
                self.maybe(&mut keys, 2, "ingressPolicy", &policies.map(|policy| json!(policy)));
            }
            "tuning" => {
                let sysctls = [
                    json!({ "net.core.somaxconn": "500" }),
                    json!({ "net.ipv4.conf.IFNAME.arp_filter": "1" }),
                    json!({ "net.ipv6.conf.IFNAME.stable_secret": "2001:db8::1" }),
                    json!({ "net.ipv4.route.flush": "1" }),
                ];
                self.maybe(&mut keys, 2, "sysctl", &sysctls);
                self.maybe(
                    &mut keys,
                    4,
                    "mac",
                    &[json!("02:00:00:00:00:09"), json!("02-00-00-00-00-0A")],
                );
                self.maybe(&mut keys, 4, "mtu", &[json!(1380)]);
                self.maybe(&mut keys, 4, "promisc", &[json!(true)]);
                self.maybe(&mut keys, 4, "allmulti", &[json!(true), json!(false)]);
                self.maybe(&mut keys, 6, "txQLen", &[json!(700)]);
            }
            "bandwidth" => {
                for (rate, burst) in
                    [("ingressRate", "ingressBurst"), ("egressRate", "egressBurst")]
                {
                    if self.often() {
                        keys.insert(rate.to_owned(), json!(8_000_000));
                        if !self.rarely() {
                            keys.insert(burst.to_owned(), json!(1_000_000));
                        }
                    }
                }
            }
            _ => self.maybe(&mut keys, 2, "table", &[json!(77)]),
        }
        keys
    }
}

/// Which plugins a case has.
fn plugins(case: &Case) -> Vec<String> {
    let chain = &case.random[0];
    let own = chain.iter().filter_map(|plugin| plugin["type"].as_str());
    own.chain(chain[0]["ipam"]["type"].as_str()).map(str::to_owned).collect()
}

/// `REFUSED WHAT: WORDS` or `ACCEPTED WHAT: WORDS` if the two do not agree how a call ended.
fn disagreement(what: &str, theirs: &CallOutcome, ours: &CallOutcome) -> Option<String> {
    match (theirs, ours) {
        (Ok(_), Err(words)) => Some(format!("REFUSED {what}: {words}")),
        (Err(words), Ok(_)) => Some(format!("ACCEPTED {what}: {words}")),
        _ => None,
    }
}

/// Returns every difference of one case that no entry explains.
fn unexplained(case: &Case, release: Release, ledger: &Ledger) -> Vec<String> {
    let plugins = plugins(case);
    let written = json!(case.random).to_string();
    let explained = |line: &String| ledger.explains(&plugins, &written, release, line);
    let (mut ours, mut theirs) =
        together(|| World::new(case, None), || World::new(case, Some(release)));
    let before = WorldState::of(&ours);
    let mut lines = Vec::new();
    for step in ["ADD", "CHECK", "DEL", "DEL again"] {
        together(|| ours.step(step), || theirs.step(step));
        let all_well = ours.added.iter().chain(&theirs.added).all(Result::is_ok);
        if step == "ADD" {
            for (at, (theirs, ours)) in theirs.added.iter().zip(&ours.added).enumerate() {
                lines.extend(disagreement(&format!("ADD c{}", at + 1), theirs, ours));
            }
        }
        for (what, ended) in &ours.said {
            let other = theirs.said.iter().find(|(other, _)| other == what);
            let step = if step == "DEL again" { "again " } else { "" };
            lines.extend(
                other.and_then(|(_, other)| disagreement(&format!("{step}{what}"), other, ended)),
            );
        }
        if !matches!(step, "ADD" | "DEL") || !(all_well || step == "DEL") {
            continue;
        }
        let look =
            || together(|| WorldState::of(&ours), || all_well.then(|| WorldState::of(&theirs)));
        let (mut own, mut other) = look();
        if step == "DEL" {
            let left = before.diff(&own).into_iter().filter(|line| !may_be_left(line));
            lines.extend(left.map(|line| format!("LEFT {line}")));
        }
        // The kernel may make a change late.
        let deadline = Instant::now() + SETTLE;
        let found = loop {
            let Some(their) = &other else { break Vec::new() };
            let (their, our) = (Observation::made(&theirs, their), Observation::made(&ours, &own));
            let found = differences(step, &their, &our);
            let answers = |line: &String| line.contains(" ends: ");
            let found: Vec<_> = found.into_iter().filter(|line| !answers(line)).collect();
            let found = with_attributes(found);
            if found.iter().all(explained) || deadline < Instant::now() {
                break found;
            }
            std::thread::sleep(Duration::from_millis(100));
            (own, other) = look();
        };
        lines.extend(found);
    }
    lines.retain(|line| !explained(line));
    lines
}

/// Describes a route of which only the attributes differ by these, not as two routes of which each
/// side has one: `ATTRIBUTE WHAT: STEP PLACE routes …` for each that only we have, `NO ATTRIBUTE` for
/// each that only the reference has.
fn with_attributes(lines: Vec<String>) -> Vec<String> {
    let is_route = |line: &String| line.contains(" routes -");
    let (routes, mut found): (Vec<_>, Vec<_>) = lines.into_iter().partition(is_route);
    let (ours, mut theirs): (Vec<_>, Vec<_>) =
        routes.into_iter().partition(|line| line.ends_with(": nothing -> ``"));
    for line in ours {
        let route = Attributes::of(&line);
        let Some(at) = theirs.iter().position(|other| Attributes::of(other).rest == route.rest)
        else {
            found.push(line);
            continue;
        };
        let other = theirs.remove(at);
        let other = Attributes::of(&other);
        let named = |word: &str, more: &Attributes, less: &Attributes| {
            let more = more.own.iter().filter(|own| !less.own.contains(own));
            more.map(|own| format!("{word} {own}: {}", route.rest)).collect::<Vec<_>>()
        };
        found.extend(named("ATTRIBUTE", &route, &other));
        found.extend(named("NO ATTRIBUTE", &other, &route));
    }
    found.extend(theirs);
    found
}

/// A line about a route without the attributes that are compared apart, and these.
struct Attributes {
    rest: String,
    own: Vec<String>,
}

impl Attributes {
    fn of(line: &str) -> Self {
        let route = line.split(": ").next().unwrap_or(line);
        let mut words = route.split_whitespace().peekable();
        let (mut rest, mut own) = (Vec::new(), Vec::new());
        while let Some(word) = words.next() {
            match word {
                "mtu" | "advmss" => {
                    own.push(format!("{word} {}", words.next().unwrap_or_default()));
                }
                "scope" if words.next_if_eq(&"link").is_some() => own.push("scope link".to_owned()),
                "onlink" => own.push(word.to_owned()),
                _ => rest.push(word),
            }
        }
        Self { rest: rest.join(" "), own }
    }
}

/// The seed of a configuration, by its number.
fn seed_of(number: u64) -> u64 {
    (number + 1).wrapping_mul(SPREAD)
}

/// Returns the numbers of the configurations that one of the tests tries.
fn numbers(own: u64) -> Vec<u64> {
    let of_test = |number: u64| number * TESTS + own;
    if let Ok(asked) = std::env::var("NETWRIGHT_SEED") {
        let asked: Vec<u64> = asked.split(',').map(|seed| seed.trim().parse().unwrap()).collect();
        for seed in &asked {
            assert!((0..ALL).any(|number| seed_of(number) == *seed), "nothing has the seed {seed}");
        }
        let of_test = (0..ALL / TESTS).map(of_test);
        return of_test.filter(|number| asked.contains(&seed_of(*number))).collect();
    }
    let all = match testkit::feature::available("full") {
        true => share::of_this_round((0..ALL / TESTS).collect(), SHARE),
        false => (0..FEW).collect(),
    };
    all.into_iter().map(of_test).collect()
}

/// Tries the configurations of one of the tests.
fn try_some(own: u64) {
    static LEDGER: LazyLock<Ledger> = LazyLock::new(Ledger::read);
    let numbers = numbers(own);
    let mut wrong = Vec::new();
    for number in &numbers {
        let seed = seed_of(*number);
        let case = Maker(Chance::new(seed)).case();
        // The installed release has no tap, no 1.1.0, and other attributes of routes and links.
        let installed = ["tap", "1.1.0", "priority", "table", "scope", "mtu", "advmss"];
        let text = format!("{} {}", case.version, json!(case.random));
        let in_both = !installed.iter().any(|only| text.contains(only));
        let release =
            if in_both && number / TESTS % 3 == 2 { Release::Installed } else { Release::Unstable };
        let of_the_machine =
            |lines: &Vec<String>| lines.iter().any(|line| line.contains(UNSETTLED));
        let mut tries = (0..TRIES).map(|_| unexplained(&case, release, &LEDGER));
        let lines = tries.find(|lines| !of_the_machine(lines)).expect(UNSETTLED);
        if !lines.is_empty() {
            wrong.push(format!(
                "NETWRIGHT_SEED={seed} against {release:?}: {} {text}\n  {}",
                case.args,
                lines.join("\n  ")
            ));
        }
    }
    eprintln!("MEASURED {} random configurations beside the reference", numbers.len());
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), numbers.len(), wrong.join("\n"));
}

#[test]
fn random_configurations() {
    testkit::require!("root", "go-plugins");
    try_some(0);
}

#[test]
fn more_random_configurations() {
    testkit::require!("root", "go-plugins");
    try_some(1);
}
