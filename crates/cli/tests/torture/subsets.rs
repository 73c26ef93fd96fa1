//! DEL while things are missing: each, each two, all; with `--full` every combination.

use std::fs;

use serde_json::{Value, json};
use testkit::{Lab, Place as _, Tally, feature};

use crate::scenario::Scenario;
use crate::world::{Call, Pod, World};

/// What may be missing when a container is detached, a bit each.
const MISSING: [&str; 7] =
    ["namespace", "prevResult", "runtimeConfig", "args", "configuration", "record", "plugin"];

/// Everything is missing.
const ALL: usize = (1 << MISSING.len()) - 1;

/// Every run tries what one, two or all of these do; `--full` tries every combination.
fn is_tried(subset: &usize) -> bool {
    subset.count_ones() <= 2 || *subset == ALL || feature::available("full")
}

fn is_missing(subset: usize, what: &str) -> bool {
    let place = MISSING.iter().position(|one| *one == what).unwrap();
    subset & 1 << place != 0
}

/// The configuration for a DEL: all of it, or only what names the address plugin. (A runtime
/// without one uses its cached copy:
/// `cni-runtime::del::without_a_configuration_the_cached_one_is_used`.)
fn given(plugin: &Value, subset: usize) -> Value {
    let mut given = plugin.clone();
    let keys = given.as_object_mut().unwrap();
    if is_missing(subset, "configuration") {
        keys.retain(|key, _| {
            ["type", "capabilities", "runtimeConfig", "ipam"].contains(&key.as_str())
        });
    }
    if is_missing(subset, "runtimeConfig") {
        keys.remove("runtimeConfig");
    }
    given
}

/// Detaches with all plugins but one; returns what failed.
fn detach(
    world: &World<'_>,
    pod: &Pod,
    (plugins, subset, last): (&[Value], usize, &Option<Value>),
    without: Option<usize>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for (place, plugin) in plugins.iter().enumerate().rev() {
        if without == Some(place) {
            continue;
        }
        let previous = last.clone().filter(|_| !is_missing(subset, "prevResult"));
        let args = if is_missing(subset, "args") { "" } else { ARGS };
        let said = world.call(&Call { previous, args, ..pod.call("DEL", plugin) });
        if !said.is_done() {
            wrong.push(format!("DEL {} said {said:?}", plugin["type"]));
        }
    }
    wrong
}

const ARGS: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0";

/// Whatever is missing, DEL leaves nothing; if a plugin's executable was missing, a later DEL with
/// it leaves nothing.
#[test]
fn del_needs_nothing_but_the_key() {
    testkit::require!("root", "ptrace");
    let plugins = Scenario::five(0).plugins;
    let lab = Lab::new("subsets");
    let tally = lab.enter(|| {
        let world = World::enter(&lab);
        let mut tally = Tally::new();
        let mut before = world.look();
        for subset in (0..=ALL).filter(is_tried) {
            let missing: Vec<&str> =
                MISSING.into_iter().filter(|what| is_missing(subset, what)).collect();
            let pod = world.pod(&format!("c{subset}"));
            let mut last = None;
            for plugin in &plugins {
                let call = Call { previous: last, args: ARGS, ..pod.call("ADD", plugin) };
                last = world.done(&call);
            }
            if is_missing(subset, "namespace") {
                pod.end();
            }
            if is_missing(subset, "record") {
                let owners = fs::read_dir("/run/netwright/owners").unwrap();
                owners.for_each(|entry| fs::remove_dir_all(entry.unwrap().path()).unwrap());
            }
            let given: Vec<Value> = plugins.iter().map(|plugin| given(plugin, subset)).collect();
            let given = (given.as_slice(), subset, &last);
            let mut wrong = Vec::new();
            if is_missing(subset, "plugin") {
                // A runtime continues with the other plugins, and repeats the call later.
                wrong.extend(detach(&world, &pod, given, Some(subset % plugins.len())));
            }
            wrong.extend(detach(&world, &pod, given, None));
            // The first round leaves what belongs to the network, and the locks of everything that
            // a DEL looks for.
            if subset == 0 {
                let poor: Vec<Value> = plugins.iter().map(|one| self::given(one, ALL)).collect();
                wrong.extend(detach(&world, &pod, (&poor, ALL, &None), None));
                before = world.look();
            }
            wrong.extend(world.left(&before));
            wrong.extend(pod.left());
            tally.count("five plugins", "DEL", "something missing");
            if !wrong.is_empty() {
                tally.found(format!(
                    "five plugins DEL something missing: {}:\n  {}",
                    json!(missing),
                    wrong.join("\n  ")
                ));
                // Restores the host for the next round.
                for plugin in &plugins {
                    let gc = Call { valid: Some(Vec::new()), ..pod.call("GC", plugin) };
                    world.call(&gc);
                }
            }
        }
        tally
    });
    tally.finish();
}
