//! An old container is detached while a new one is attached in its place.

use serde_json::json;
use testkit::fault::{Blow, Moment};
use testkit::{Lab, Place as _, Tally, feature};

use crate::chance::Chance;
use crate::scenario::Scenario;
use crate::world::{Call, Said, World};

/// How many moments in every run; with `--full` all.
const SOME: usize = 40;

/// How long the call that begins meanwhile has for its own before the other goes on, in milliseconds: it may be waiting for
/// what the other holds.
const HEAD_START: [u64; 3] = [0, 2, 25];

/// Which of the two is stopped while the other begins.
#[derive(Debug, Clone, Copy)]
enum Stopped {
    Del,
    Add,
}

/// The new container has the same host ports, and the old one's namespace is gone, as with a sandbox that died.
fn interleaved(stopped: Stopped) {
    let scenario = Scenario::chain();
    let plugin = &scenario.plugins[0];
    let lab = Lab::new("orders");
    let tally = lab.enter(|| {
        let world = World::enter(&lab);
        let mut tally = Tally::new();
        let mut chance = Chance::new(7);
        // What a network's first container leaves for the next.
        let first = world.pod("first");
        let result = world.done(&first.call("ADD", plugin));
        world.done(&Call { previous: result, ..first.call("DEL", plugin) });
        let before = world.look();
        let mut all: Vec<Moment> = Vec::new();
        let mut number = 0;
        loop {
            let at = match number {
                // The first time nothing is stopped: to see what there is.
                0 => None,
                _ if all.is_empty() => break,
                _ if feature::available("full") => Some(all.remove(0)),
                _ if SOME < number => break,
                _ => Some(all.swap_remove(chance.below(all.len()))),
            };
            number += 1;
            let old = world.pod(&format!("old{number}"));
            let result = world.done(&old.call("ADD", plugin));
            old.end();
            let new = world.pod(&format!("new{number}"));
            let del = Call { previous: result, ..old.call("DEL", plugin) };
            let add = new.call("ADD", plugin);
            let (first, second) = match stopped {
                Stopped::Del => (&del, &add),
                Stopped::Add => (&add, &del),
            };
            let mut other = None;
            let pause = HEAD_START[number % HEAD_START.len()];
            let one = world.follow(first, &mut |moment| {
                if at.is_some_and(|at| moment.is(&at)) && other.is_none() {
                    other = Some(world.start(second));
                    std::thread::sleep(std::time::Duration::from_millis(pause));
                }
                Blow::Spare
            });
            let two = other.unwrap_or_else(|| world.start(second)).join().unwrap();
            let (deleted, added) = match stopped {
                Stopped::Del => (Said::of(&one, "DEL"), Said::of(&two, "ADD")),
                Stopped::Add => (Said::of(&two, "DEL"), Said::of(&one, "ADD")),
            };
            if at.is_none() {
                all.clone_from(&one.moments);
            }
            tally.count("chain", &format!("{stopped:?} stopped").to_uppercase(), "interleaved");
            let mut wrong = Vec::new();
            if !deleted.is_done() {
                wrong.push(format!("DEL of the old one said {deleted:?}"));
            }
            match added {
                Said::Done(result) => {
                    // Again: a DEL may come any number of times.
                    world.done(&del);
                    let again = Call { previous: result.clone(), ..new.call("CHECK", plugin) };
                    let checked = world.call(&again);
                    if !checked.is_done() {
                        wrong.push(format!("CHECK of the new one said {checked:?}"));
                    }
                    world.done(&Call { previous: result, ..new.call("DEL", plugin) });
                }
                // It came while the old one still had what it wants; a runtime tries again.
                Said::Error(error) if json!(11) == error["code"] => {
                    world.done(&new.call("DEL", plugin));
                }
                other => wrong.push(format!("ADD of the new one said {other:?}")),
            }
            wrong.extend(world.left(&before));
            wrong.extend(new.left());
            if !wrong.is_empty() {
                let at = at.map(|at| at.to_string()).unwrap_or_default();
                tally.found(format!(
                    "chain {} interleaved: at {at}, {pause} ms:\n  {}",
                    format!("{stopped:?} stopped").to_uppercase(),
                    wrong.join("\n  ")
                ));
                break;
            }
        }
        tally
    });
    tally.finish();
}

#[test]
fn a_del_that_is_stopped_while_the_next_container_comes() {
    testkit::require!("root", "ptrace");
    interleaved(Stopped::Del);
}

#[test]
fn an_add_that_is_stopped_while_the_last_container_goes() {
    testkit::require!("root", "ptrace");
    interleaved(Stopped::Add);
}
