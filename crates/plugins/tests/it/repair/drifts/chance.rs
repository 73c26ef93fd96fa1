//! Thousands of random damages, one after the other, to one attachment. CHECK, a dry run and a
//! repair name the same difference for each, and after the repair CHECK finds nothing.
//!
//! The test calls the three as the commands do, through the library for runtimes, in this process.

use std::collections::BTreeSet;
use std::iter;
use std::sync::Arc;
use std::thread;

use cni::NetworkList;
use cni_invoke::{Exec, MixedExecutor};
use cni_runtime::{Attachment, Cache, CheckError, PluginFailure, Repairs, Runtime};
use plugins::Builtins;
use serde_json::{Value, json};
use testkit::{Chance, Container, Place, share};

use super::{
    BRIDGE, Drift, Host, Inside, MACVLAN, PARENT, PTP, SBR, bridge, differences, macvlan, picture,
    ptp, sbr,
};
use crate::support::{BUILD, Node};

/// How many damages there are in all, and into how many rounds a run with `--full` shares them.
const DAMAGES: usize = 10_000;
const ROUNDS: usize = 5;

/// An attachment that is damaged.
struct Subject {
    name: &'static str,
    /// What the host has before the attachment.
    host: &'static str,
    plugins: fn(&Node) -> Vec<(&'static str, Value)>,
    drifts: &'static [Drift],
    /// How many of the damages this attachment gets.
    damages: usize,
}

/// The chain of five plugins takes half of the time, so two hosts do its damages at once.
static SUBJECTS: [Subject; 5] = [
    Subject { name: "bridge", host: ":", plugins: bridge, drifts: BRIDGE, damages: 2_000 },
    Subject { name: "bridge-2", host: ":", plugins: bridge, drifts: BRIDGE, damages: 2_000 },
    Subject { name: "ptp", host: ":", plugins: ptp, drifts: PTP, damages: 2_500 },
    Subject { name: "sbr", host: ":", plugins: sbr, drifts: SBR, damages: 1_500 },
    Subject { name: "macvlan", host: PARENT, plugins: macvlan, drifts: MACVLAN, damages: 2_000 },
];

/// After this many damages, host and container are compared with their first state.
const BETWEEN_PICTURES: usize = 200;

/// How often CHECK and the dry run are called for one damage. The kernel reports only some time
/// later to the other end of a pair that the carrier is gone, so the first call may be too early.
const TRIES: usize = 3;

/// Differences that CHECK reports in the reference's words, without an object, and how repair names
/// them: the plugin, CHECK's words, and repair's words.
const OTHER_WORDS: [(&str, &str, &str); 3] = [
    ("bridge", "Failed to find address added by container", "reservation of address"),
    ("bandwidth", "", "limited to"),
    ("loopback", "", "loopback interface up"),
];

/// What differs: the plugin, and its words.
type Differences = Vec<(String, String)>;

/// An attachment as a runtime has it.
struct Life {
    runtime: Runtime<'static>,
    list: NetworkList,
    attachment: Attachment,
}

/// The reports of the three about one damage.
struct Reports {
    check: Differences,
    dry_run: Differences,
    /// How often the first two were called.
    asked: usize,
    repairs: Repairs,
    /// CHECK's report after the repair.
    after: Differences,
}

/// The outcome for one attachment.
#[derive(Default)]
struct Outcome {
    damages: usize,
    /// How many damages needed more than one call.
    asked_again: usize,
    problems: Vec<String>,
}

impl Life {
    /// Describes an attachment to a network of these plugins.
    fn new(node: &Node, container: &Container, plugins: Vec<(&'static str, Value)>) -> Self {
        let typed = |(plugin, mut keys): (&str, Value)| {
            keys["type"] = json!(plugin);
            keys
        };
        let plugins: Vec<Value> = plugins.into_iter().map(typed).collect();
        let list = json!({ "cniVersion": "1.1.0", "name": "n", "plugins": plugins });
        let list = NetworkList::parse(&serde_json::to_vec(&list).unwrap()).unwrap();
        let builtins = Builtins { roots: node.roots.clone(), build: BUILD };
        let mixed = MixedExecutor::new(builtins, Exec::new(std::env::vars_os())).unwrap();
        let cache = Cache::new(node.dir("cache")).volatile();
        let runtime = Runtime::new([node.bin()], Arc::new(mixed)).with_cache(cache);
        let (id, ifname) = (container.name().parse().unwrap(), "eth0".parse().unwrap());
        let netns = container.netns();
        let attachment = Attachment::new(id, ifname, netns.to_str().unwrap());
        Life { runtime, list, attachment }
    }

    /// Calls all three, on the host.
    fn ask(&self) -> Reports {
        let (mut check, mut dry_run) = (self.check(), self.dry_run());
        let mut asked = 1;
        while check != dry_run && asked < TRIES {
            (check, dry_run) = (self.check(), self.dry_run());
            asked += 1;
        }
        let repairs = self.runtime.repair_list(&self.list, &self.attachment, None);
        let repairs = repairs.unwrap_or_else(|error| panic!("{error}"));
        Reports { check, dry_run, asked, repairs, after: self.check() }
    }

    fn check(&self) -> Differences {
        match self.runtime.check_whole_list(&self.list, &self.attachment, None) {
            Ok(()) => Differences::new(),
            Err(CheckError::Plugin { first, others }) => reports(iter::once(&first).chain(&others)),
            Err(error) => panic!("{error}"),
        }
    }

    fn dry_run(&self) -> Differences {
        let found = self.runtime.survey_list(&self.list, &self.attachment, None);
        reports(&found.unwrap_or_else(|error| panic!("{error}")).left)
    }
}

fn reports<'f>(failures: impl IntoIterator<Item = &'f PluginFailure>) -> Differences {
    let failures = failures.into_iter();
    failures.map(|failure| (failure.plugin_type.clone(), failure.error.to_string())).collect()
}

/// Returns the words that name an object: addresses, links, sets, tables.
fn objects(text: &str) -> BTreeSet<&str> {
    let is_between = |letter: char| letter.is_whitespace() || "\"(),;{}=".contains(letter);
    let words = text.split(is_between).map(|word| word.trim_end_matches([':', '.']));
    let is_object =
        |word: &&str| word.contains(|letter: char| letter == '_' || letter.is_ascii_digit());
    words.filter(is_object).collect()
}

/// Says whether a repair names the difference that this plugin's CHECK reported.
fn is_named(plugin: &str, said: &str, repairs: &Repairs) -> bool {
    let objects_of_check = objects(said);
    let is = |line: &str| {
        line.contains(said)
            || !objects_of_check.is_disjoint(&objects(line))
            || OTHER_WORDS.iter().any(|(by, checked, repaired)| {
                *by == plugin && said.contains(*checked) && line.contains(*repaired)
            })
    };
    repairs.put_back.iter().any(|(by, line)| by == plugin && is(line))
}

/// Returns what is wrong with the reports about a damage for which CHECK must say these words.
fn problems(words: &str, said: &Reports) -> Vec<String> {
    let Reports { check, dry_run, repairs, after, .. } = said;
    let mut problems = Vec::new();
    if check != dry_run {
        problems.push(format!("CHECK says {check:#?}, the dry run {dry_run:#?}"));
    }
    let mut clauses = check
        .iter()
        .flat_map(|(plugin, text)| text.split("; ").map(move |clause| (plugin.as_str(), clause)));
    match clauses.find(|(_, clause)| clause.contains(words)) {
        None => problems.push(format!("CHECK does not say {words:?}: {check:#?}")),
        Some((plugin, clause)) if !is_named(plugin, clause, repairs) => {
            let put_back = &repairs.put_back;
            problems.push(format!("CHECK says {clause:?}, the repair only {put_back:#?}"));
        }
        Some(_) => {}
    }
    if !repairs.left.is_empty() {
        problems.push(format!("the repair leaves {:#?}", reports(&repairs.left)));
    }
    if !after.is_empty() {
        problems.push(format!("after the repair CHECK says {after:#?}"));
    }
    problems
}

/// Does and repairs these damages, given by their places in the subject's table, until something is
/// wrong.
fn run(subject: &Subject, order: &[usize]) -> Outcome {
    let node = Node::new(&format!("chance-{}", subject.name));
    node.sh(subject.host);
    let c1 = node.container("c1");
    let life = Life::new(&node, &c1, (subject.plugins)(&node));
    let added = node.lab.enter(|| life.runtime.add_list(&life.list, &life.attachment, None));
    let result = added.unwrap_or_else(|error| panic!("{error}")).result;
    let mut links = result.interfaces.iter().filter(|link| link.sandbox.is_empty());
    let port = links.find(|link| link.name.starts_with("veth")).map(|link| link.name.clone());
    let ifb = node.sh("ip -br link show type ifb | cut -d ' ' -f 1").trim().to_owned();
    let ipam = node.dir("ipam").display().to_string();
    let words = [("$port", port.unwrap_or_default()), ("$ifb", ifb), ("$ipam", ipam)];
    let fill = |text: &str| {
        words.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    };
    let before = picture(&node.lab, &c1);
    let mut outcome = Outcome::default();
    for number in order {
        let Drift(name, at, damage, words) = &subject.drifts[*number];
        match at {
            Host => node.sh(&fill(damage)),
            Inside => c1.sh(&fill(damage)),
        };
        outcome.damages += 1;
        let said = node.lab.enter(|| life.ask());
        outcome.asked_again += usize::from(1 < said.asked);
        let mut wrong = problems(&fill(words), &said);
        if outcome.damages.is_multiple_of(BETWEEN_PICTURES) || outcome.damages == order.len() {
            let different = differences(&before, &picture(&node.lab, &c1));
            if !different.is_empty() {
                wrong.push(format!("it is not as before:\n  {}", different.join("\n  ")));
            }
        }
        let (subject, count) = (subject.name, outcome.damages);
        let tell = |what| format!("{subject}, damage {count}, {name}: {what}");
        outcome.problems.extend(wrong.into_iter().map(tell));
        if !outcome.problems.is_empty() {
            return outcome;
        }
    }
    let deleted = node.lab.enter(|| life.runtime.del_list(&life.list, &life.attachment, None));
    deleted.unwrap_or_else(|error| panic!("{error}"));
    outcome
}

#[test]
fn thousands_of_random_damages_are_named_alike_and_repaired() {
    testkit::require!("root", "full");
    let mut chance = Chance::new(share::seed_of_this_round(20_260_123));
    let draw = |subject: &Subject| -> Vec<usize> {
        (0..share::count(subject.damages, subject.damages / ROUNDS))
            .map(|_| chance.below(subject.drifts.len()))
            .collect()
    };
    let orders: Vec<Vec<usize>> = SUBJECTS.iter().map(draw).collect();
    let outcomes: Vec<Outcome> = thread::scope(|scope| {
        let each = SUBJECTS.iter().zip(&orders);
        let running: Vec<_> =
            each.map(|(subject, order)| scope.spawn(move || run(subject, order))).collect();
        running.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let problems: Vec<&str> =
        outcomes.iter().flat_map(|one| &one.problems).map(String::as_str).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    let damages: usize = outcomes.iter().map(|one| one.damages).sum();
    let again: usize = outcomes.iter().map(|one| one.asked_again).sum();
    assert_eq!(damages, share::count(DAMAGES, DAMAGES / ROUNDS));
    eprintln!(
        "MEASURED {damages} random damages of {} attachments named alike by CHECK, dry run and repair, and repaired; {again} asked about again",
        SUBJECTS.len()
    );
}
