//! Broken nodes. Each situation really breaks a node, and traffic shows that. `netwright doctor`
//! must name the cause first. Then the test mends the node, by the printed fix if there is one, and
//! `doctor` must be silent.
//!
//! A situation's number is its name. Missing numbers are situations that had no effect when they
//! were tried. A new situation is a row in one of the tables below `situations/`. A whole table
//! uses one laboratory, so each row undoes everything that it did.

mod below;
mod configured;
mod filtered;
mod inside;
mod linked;
mod lot;
mod more;
pub(super) mod node;
mod pairs;
mod programs;
mod protected;
mod reported;
mod routed;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use testkit::{Lab, require};

use self::node::{Node, Way, findings};

/// A way to break a node.
#[derive(Debug)]
pub(super) struct Situation {
    pub(super) number: u8,
    /// The fault, in words.
    is: &'static str,
    pub(super) breaks: Act,
    fails: Symptom,
    finds: ExpectedFinding,
    fix: Fix,
    /// Undoes what `breaks` did, also after the printed fix.
    pub(super) mends: Act,
}

/// Something that is done to a node.
#[derive(Debug)]
pub(super) enum Act {
    /// Commands on the node, with [`Node::filled`].
    Sh(&'static str),
    Do(fn(&mut Node)),
}

/// How the node shows that it is broken.
#[derive(Debug)]
enum Symptom {
    /// Traffic on these ways gets no answer.
    Silent(&'static [Way]),
    /// A command on the node fails.
    Command(&'static str),
    /// It does not show yet, for this reason.
    Latent(&'static str),
}

/// What `doctor` must find.
#[derive(Debug)]
enum ExpectedFinding {
    /// The ID of the first finding, and a part of its object. If several findings with this ID come
    /// first, the object is that of one of them.
    First(&'static str, &'static str),
    /// The ID of the first finding, and a part of its evidence, because its object is larger than
    /// what is at fault.
    Shown(&'static str, &'static str),
    /// [`Symptom::Command`] is refused with these words, so a node never gets into this situation.
    Refusal(&'static str),
}

/// What the printed fix achieves.
#[derive(Debug, PartialEq, Eq)]
enum Fix {
    /// Its commands, run as printed, mend the node.
    Mends,
    /// They do, and then this command on the node succeeds: the filter still protects what it is to.
    MendsBut(&'static str),
    /// It is for people: no command that could be printed mends it.
    Hint(HintReason, &'static str),
}

/// Why no command that could be printed mends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum HintReason {
    /// Another machine is at fault.
    Peer,
    /// A program has to be started, ended or configured, as only its owner can.
    Program,
    /// A file has to say something else, a person's or a runtime's, or that of a plugin has to be
    /// another.
    File,
    /// There are several ways out, and a person has to choose.
    Choice,
    /// What was there before is not known.
    Lost,
    /// ADD refuses, so nothing is broken.
    Refused,
}

/// Situations whose cause no rule finds, and why. When a rule finds one, a test fails until it is
/// removed from this list.
const NOT_YET: &[(u8, &str)] = &[];

const TABLES: [&[Situation]; 9] = [
    routed::SWITCHES,
    routed::ROUTES,
    linked::BRIDGE,
    linked::NEIGHBOURS,
    inside::INSIDE,
    filtered::FILTERS,
    filtered::LEGACY,
    configured::PLUGINS,
    configured::NETWORKS,
];

pub(super) fn all() -> impl Iterator<Item = &'static Situation> {
    TABLES.into_iter().flatten()
}

/// Tries each situation of a table on one node.
#[track_caller]
fn try_each(name: &str, situations: &[Situation]) {
    try_on(|| Node::new(name), situations);
}

#[track_caller]
fn try_on(make: impl Fn() -> Node, situations: &[Situation]) {
    let mut node = make();
    let complaints = node.complaints();
    assert!(complaints.is_empty(), "before anything is broken: {complaints:#?}");
    let mut wrong = Vec::new();
    for situation in situations {
        let mut mistakes = tried(situation, &mut node);
        act(&situation.mends, &mut node, &mut mistakes, "mending");
        let complaints = node.complaints();
        let is_sound = complaints.is_empty();
        mistakes.extend(complaints.into_iter().map(|text| format!("after mending: {text}")));
        if !mistakes.is_empty() {
            wrong.push((situation.number, situation.is, mistakes));
        }
        if !is_sound {
            node = make();
        }
    }
    assert!(wrong.is_empty(), "{} of {}: {wrong:#?}", wrong.len(), situations.len());
}

pub(super) fn act(act: &Act, node: &mut Node, mistakes: &mut Vec<String>, what: &str) {
    match act {
        Act::Sh(commands) => {
            let (done, said) = node.run(commands);
            if !done {
                mistakes.push(format!("{what} failed: {said}"));
            }
        }
        Act::Do(act) => act(node),
    }
}

/// Breaks the node and compares what `doctor` says. Returns what is wrong.
fn tried(situation: &Situation, node: &mut Node) -> Vec<String> {
    let mut mistakes = Vec::new();
    act(&situation.breaks, node, &mut mistakes, "breaking");
    let refused = fails(&situation.fails, node, &mut mistakes);
    if let ExpectedFinding::Refusal(words) = situation.finds {
        if !refused.contains(words) {
            mistakes.push(format!("the refusal does not say {words:?}: {refused}"));
        }
        return mistakes;
    }
    let said = node.doctor(&[]);
    let found = findings(&said);
    let id = situation.finds.id();
    let is_found =
        first(&found, id).any(|finding| situation.finds.is_what_was_found(finding, node));
    let not_yet = NOT_YET.iter().find(|(number, _)| *number == situation.number);
    match (is_found, not_yet) {
        (true, None) => {}
        (false, Some(_)) => return mistakes,
        (true, Some((_, why))) => {
            mistakes.push(format!("it is found, so take it off NOT_YET ({why})"));
        }
        (false, None) => {
            let seen = found.first().map(|first| first["seen"].to_string()).unwrap_or_default();
            mistakes.push(format!("not {:?} first, but {} {seen}", situation.finds, told(&found)));
            return mistakes;
        }
    }
    let is_error = found[0]["severity"] == "error";
    if said.code != i32::from(is_error) {
        mistakes.push(format!("doctor ends with {}", said.code));
    }
    match situation.fix {
        Fix::Mends => mistakes.extend(fixed(&found, id, node)),
        Fix::MendsBut(keeps) => {
            mistakes.extend(fixed(&found, id, node));
            let (is_kept, said) = node.run(keeps);
            if !is_kept {
                mistakes.push(format!("after {:?}: {said}", fixes_of(&found, id)));
            }
        }
        Fix::Hint(..) => mistakes.extend(without_advice(&found)),
    }
    mistakes
}

/// A first finding that does not say what to do.
fn without_advice(found: &[Value]) -> Option<String> {
    let is_there = |key: &str| found[0][key].as_array().is_some_and(|all| !all.is_empty());
    let is_said = is_there("fix") || is_there("advice");
    (!is_said).then(|| format!("it does not say what to do: {}", found[0]))
}

/// Compares with what fails. Returns what a command that is refused said.
fn fails(fails: &Symptom, node: &Node, mistakes: &mut Vec<String>) -> String {
    match fails {
        Symptom::Latent(_) => String::new(),
        Symptom::Silent(tried) => {
            let silent = node.silent(tried);
            let answered = tried.iter().filter(|way| !silent.contains(way));
            mistakes.extend(answered.map(|way| format!("it is not broken: {way:?} is answered")));
            String::new()
        }
        Symptom::Command(command) => {
            let (done, said) = node.run(command);
            if done {
                mistakes.push(format!("it is not broken: {command} succeeds"));
            }
            said
        }
    }
}

/// The first findings, as long as they have this ID.
fn first<'f>(found: &'f [Value], id: &str) -> impl Iterator<Item = &'f Value> {
    found.iter().take_while(move |finding| finding["id"] == id)
}

impl ExpectedFinding {
    fn id(&self) -> &'static str {
        match *self {
            ExpectedFinding::First(id, _) | ExpectedFinding::Shown(id, _) => id,
            ExpectedFinding::Refusal(_) => "",
        }
    }

    fn is_what_was_found(&self, finding: &Value, node: &Node) -> bool {
        let (key, part) = match *self {
            ExpectedFinding::First(_, part) => ("object", part),
            ExpectedFinding::Shown(_, part) => ("seen", part),
            ExpectedFinding::Refusal(_) => return false,
        };
        let part = node.filled(part);
        let has = |text: &Value| text.as_str().is_some_and(|text| text.contains(&part));
        let value = &finding[key];
        let is_there = has(value) || value.as_array().is_some_and(|all| all.iter().any(has));
        finding["id"] == self.id() && is_there
    }

    /// Says whether a finding has the difference in its evidence: of several differences a plugin
    /// reports one first, and the others after it.
    fn is_further_difference(&self, finding: &Value, node: &Node) -> bool {
        match *self {
            ExpectedFinding::First(id @ "attachment-differs", part) => {
                ExpectedFinding::Shown(id, part).is_what_was_found(finding, node)
            }
            _ => false,
        }
    }
}

/// The findings, each in one line.
fn told(found: &[Value]) -> String {
    let line = |finding: &Value| format!("{} of {}", finding["id"], finding["object"]);
    let lines: Vec<String> = found.iter().map(line).collect();
    format!("{lines:#?}")
}

/// The commands of the printed fix, each once.
fn fixes_of<'f>(found: &'f [Value], id: &str) -> Vec<&'f str> {
    let fixes =
        first(found, id).flat_map(|finding| finding["fix"].as_array().into_iter().flatten());
    let mut commands: Vec<&str> = Vec::new();
    for fix in fixes.filter_map(Value::as_str) {
        if !commands.contains(&fix) {
            commands.push(fix);
        }
    }
    commands
}

/// Runs the commands of the printed fix. Returns what is still wrong.
fn fixed(found: &[Value], id: &str, node: &Node) -> Vec<String> {
    let commands = fixes_of(found, id);
    if commands.is_empty() {
        return vec!["no command is printed that mends it".to_owned()];
    }
    let (done, said) = node.run(&commands.join("\n"));
    let mut mistakes = Vec::new();
    if !done {
        mistakes.push(format!("the printed fix failed: {said}"));
    }
    let complaints = node.complaints();
    mistakes.extend(complaints.into_iter().map(|text| format!("after {commands:?}: {text}")));
    mistakes
}

#[test]
fn the_nodes_switches() {
    require!("root");
    try_each("doctor-switches", routed::SWITCHES);
}

#[test]
fn routes_that_lead_elsewhere() {
    require!("root");
    try_each("doctor-routes", routed::ROUTES);
}

#[test]
fn a_bridge_and_its_ports() {
    require!("root");
    try_each("doctor-bridge", linked::BRIDGE);
}

#[test]
fn neighbours_and_sizes() {
    require!("root", "program:nft");
    try_each("doctor-neighbours", linked::NEIGHBOURS);
}

#[test]
fn inside_a_container() {
    require!("root", "program:nft");
    try_each("doctor-inside", inside::INSIDE);
}

#[test]
fn packet_filters_of_others() {
    require!("root", "program:nft", "program:iptables-nft");
    try_each("doctor-filters", filtered::FILTERS);
}

#[test]
fn filters_of_frames() {
    require!("root", "program:nft", "program:ebtables-nft");
    try_each("doctor-frames", filtered::FRAMES);
}

#[test]
fn a_policy_of_legacy_iptables() {
    require!("root", "legacy-tables");
    try_each("doctor-legacy", filtered::LEGACY);
}

#[test]
fn plugins_that_cannot_be_used() {
    require!("root");
    try_each("doctor-plugins", configured::PLUGINS);
}

#[test]
fn networks_that_are_in_each_others_way() {
    require!("root");
    try_each("doctor-networks", configured::NETWORKS);
}

/// A rule must find a class of faults, not just the one on the list.
#[test]
fn others_of_the_same_classes() {
    require!("root", "full", "program:tc", "program:nft", "program:iptables-nft");
    try_each("doctor-more", more::MORE);
}

/// The network asks no plugin to open the chains.
#[test]
fn filters_that_protect_something_besides() {
    require!("root", "full", "program:nft", "program:iptables-nft", "program:python3");
    try_on(|| Node::without_firewall(Lab::new("doctor-protected")), protected::PROTECTED);
}

#[test]
fn legacy_filters_that_protect_something_besides() {
    require!("root", "full", "legacy-tables");
    try_on(|| Node::without_firewall(Lab::new("doctor-legacy-kept")), protected::LEGACY);
}

/// The filter of a container is its owner's.
#[test]
fn a_kill_switch_in_a_container() {
    require!("root", "full", "program:nft");
    protected::kill_switch();
}

#[test]
fn faults_that_operators_reported() {
    require!("root", "full", "program:nft", "program:iptables-nft", "program:python3");
    try_each("doctor-reported", reported::REPORTED);
}

#[test]
fn vm_a_gateway_that_is_mistyped() {
    require!("root", "full", "macvlan");
    try_each("doctor-mistyped", reported::ON_THE_UPLINK);
}

/// A program that does not accept connections or packets loses them, although everything else lets
/// them pass.
#[test]
fn programs_that_take_nothing() {
    require!("root", "full", "program:python3", "program:iptables-nft", "file:/sys/fs/cgroup");
    try_each("doctor-programs", programs::PROGRAMS);
}

/// The situations that need features which kernels without modules lack.
#[test]
fn vm_queues_filters_and_tunnels() {
    require!(
        "root",
        "full",
        "netem",
        "clsact",
        "cls_bpf",
        "cls_matchall",
        "act_mirred",
        "sch_prio",
        "htb",
        "vxlan",
        "wireguard",
        "program:nft",
        "program:python3"
    );
    try_each("doctor-below", below::BELOW);
}

#[test]
fn vm_tunnels_to_other_nodes() {
    require!("root", "full", "vxlan", "program:nft");
    try_each("doctor-tunnels", below::TUNNELS);
}

#[test]
fn a_policy_of_ipsec_that_was_left() {
    require!("root", "full", "file:/proc/net/xfrm_stat");
    try_each("doctor-ipsec", below::IPSEC);
}

#[test]
fn vm_checksums_in_a_tunnel() {
    require!(
        "root",
        "full",
        "vxlan",
        "program:ovs-vswitchd",
        "program:ovsdb-server",
        "program:ethtool"
    );
    below::checksums();
}

#[test]
fn vm_a_vrf_without_a_default_route() {
    require!("root", "full", "vrf");
    below::vrf();
}

/// Each situation is in exactly one table, and all are tried.
#[test]
fn the_situations_are_48() {
    let numbers: Vec<u8> = all().map(|one| one.number).collect();
    let different: BTreeSet<u8> = numbers.iter().copied().collect();
    assert_eq!((numbers.len(), different.len()), (48, 48), "{numbers:?}");
    for (number, why) in NOT_YET {
        assert!(different.contains(number) && !why.is_empty(), "{number}: {why:?}");
    }
    for situation in all() {
        let latent = match situation.fails {
            Symptom::Latent(why) => Some(why),
            _ => None,
        };
        let hint = match situation.fix {
            Fix::Hint(_, why) => Some(why),
            Fix::Mends | Fix::MendsBut(_) => None,
        };
        assert!(!latent.into_iter().chain(hint).any(str::is_empty), "{situation:?}");
    }
}

/// Of each situation it is known whether the printed commands mend it, and why not where none can.
#[test]
fn a_command_mends_26_and_of_22_it_is_said_why_none_can() {
    let mut whys: BTreeMap<HintReason, usize> = BTreeMap::new();
    let mut mended = 0;
    for situation in all() {
        match situation.fix {
            Fix::Mends | Fix::MendsBut(_) => mended += 1,
            Fix::Hint(why, _) => *whys.entry(why).or_default() += 1,
        }
    }
    let counted: Vec<(HintReason, usize)> = whys.into_iter().collect();
    let wanted = [
        (HintReason::Peer, 1),
        (HintReason::Program, 3),
        (HintReason::File, 9),
        (HintReason::Choice, 4),
        (HintReason::Lost, 4),
        (HintReason::Refused, 1),
    ];
    assert_eq!((mended, counted.as_slice()), (26, wanted.as_slice()));
}
