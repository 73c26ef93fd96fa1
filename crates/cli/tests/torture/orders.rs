//! An old container is detached while a new one is attached in its place.

use serde_json::json;
use testkit::fault::{self, Blow, Moment, ProgramEnd};
use testkit::{Chance, Lab, Place as _, Tally, feature, share};

use crate::scenario::Scenario;
use crate::world::{Call, NETWORK, PluginAnswer, World};

/// The number of moments in every run. With `--full` it is a share of all ([`share`]).
const SOME: usize = 12;

/// How long the second call may run alone, in milliseconds, before the first continues: it may be
/// waiting for what the first holds.
const HEAD_START: [u64; 3] = [0, 2, 25];

/// Which of the two calls is stopped while the other begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoppedCall {
    /// The removing call: DEL or GC.
    Del,
    Add,
}

/// The moments of which every run chooses some; with `--full` it goes through all.
fn to_stop_at(all: Vec<Moment>) -> Vec<Moment> {
    if feature::available("full") { share::of_this_round(all, share::STRIKES) } else { all }
}

/// The new container has the same host ports, and the old one's namespace is gone, as with a
/// sandbox that died.
fn interleaved(stopped: StoppedCall) {
    let scenario = Scenario::chain();
    let plugin = &scenario.plugins[0];
    let lab = Lab::new("orders");
    let tally = lab.enter(|| {
        let world = World::enter(&lab);
        let mut tally = Tally::new();
        let mut chance = Chance::new(7);
        // The objects that a network's first container leaves for the next one exist already.
        let first = world.pod("first");
        let result = world.done(&first.call("ADD", plugin));
        world.done(&Call { previous: result, ..first.call("DEL", plugin) });
        let before = world.look();
        let mut all: Vec<Moment> = Vec::new();
        let mut number = 0;
        loop {
            let at = match number {
                // The first round stops nothing, to list the moments.
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
                StoppedCall::Del => (&del, &add),
                StoppedCall::Add => (&add, &del),
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
                StoppedCall::Del => (PluginAnswer::of(&one, "DEL"), PluginAnswer::of(&two, "ADD")),
                StoppedCall::Add => (PluginAnswer::of(&two, "DEL"), PluginAnswer::of(&one, "ADD")),
            };
            if at.is_none() {
                all = to_stop_at(one.moments.clone());
            }
            tally.count("chain", &format!("{stopped:?} stopped").to_uppercase(), "interleaved");
            let mut wrong = Vec::new();
            if !deleted.is_done() {
                wrong.push(format!("DEL of the old one said {deleted:?}"));
            }
            match added {
                PluginAnswer::Done(result) => {
                    // DEL runs a second time, because it may come any number of times.
                    world.done(&del);
                    let again = Call { previous: result.clone(), ..new.call("CHECK", plugin) };
                    let checked = world.call(&again);
                    if !checked.is_done() {
                        wrong.push(format!("CHECK of the new one said {checked:?}"));
                    }
                    world.done(&Call { previous: result, ..new.call("DEL", plugin) });
                }
                // The ADD came while the old container still had what the new one needs; a runtime
                // tries again.
                PluginAnswer::Error(error) if json!(11) == error["code"] => {
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
    interleaved(StoppedCall::Del);
}

#[test]
fn an_add_that_is_stopped_while_the_last_container_goes() {
    testkit::require!("root", "ptrace");
    interleaved(StoppedCall::Add);
}

/// The number of moments of a command in every run. With `--full` it is a share of all ([`share`]).
const SOME_OF_A_COMMAND: usize = 8;

/// The command that runs beside the ADD of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OtherCommand {
    /// `gc`, after a container of that ID has gone without a DEL.
    Gc,
    /// DEL of the same attachment, as after a start that took too long.
    Del,
}

/// One of the two is stopped while the other begins.
fn beside_add(beside: OtherCommand, stopped: StoppedCall) {
    let lab = Lab::new("orders-commands");
    let tally = lab.enter(|| {
        let world = World::enter(&lab);
        let mut tally = Tally::new();
        let mut chance = Chance::new(11);
        let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }]] });
        let list = json!({ "cniVersion": "1.1.0", "name": NETWORK, "plugins": [
            { "type": "bridge", "bridge": "br0", "isDefaultGateway": true, "ipMasq": true, "ipam": ipam },
            { "type": "portmap", "capabilities": { "portMappings": true } },
        ]});
        world.sh(&format!("mkdir -p /etc/cni/net.d && echo '{list}' > /etc/cni/net.d/n.conflist"));
        let verb = |verb: &str, netns: &str| {
            let mut words = vec![verb, NETWORK, netns, "--container-id", "web"];
            if verb != "check" {
                words.extend(["-p", "8080:80"]);
            }
            words.into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        let words = |all: &[String]| all.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
        let run = |command: &[String]| {
            world.netwright(&command.iter().map(String::as_str).collect::<Vec<_>>())
        };
        // The objects that a network's first container leaves for the next one exist already.
        let first = world.pod("first");
        run(&verb("add", first.netns()));
        run(&verb("del", first.netns()));
        // GC removes what a network leaves for the next container, and so does each round.
        let tidy = || run(&["gc".to_owned()]);
        tidy();
        let before = world.look();
        let what = format!("{stopped:?} stopped, {beside:?} beside ADD").to_uppercase();
        let mut all: Vec<Moment> = Vec::new();
        let mut number = 0;
        loop {
            let at = match number {
                0 => None,
                _ if all.is_empty() => break,
                _ if feature::available("full") => Some(all.remove(0)),
                _ if SOME_OF_A_COMMAND < number => break,
                _ => Some(all.swap_remove(chance.below(all.len()))),
            };
            number += 1;
            if beside == OtherCommand::Gc {
                let old = world.pod(&format!("old{number}"));
                let added = run(&verb("add", old.netns()));
                assert_eq!(added.code, Some(0), "{added:#?}");
                old.end();
            }
            let new = world.pod(&format!("new{number}"));
            let add = verb("add", new.netns());
            let other = match beside {
                OtherCommand::Gc => vec!["gc".to_owned()],
                OtherCommand::Del => verb("del", new.netns()),
            };
            let (first, second) = match stopped {
                StoppedCall::Add => (&add, &other),
                StoppedCall::Del => (&other, &add),
            };
            let first: Vec<&str> = first.iter().map(String::as_str).collect();
            let second: Vec<&str> = second.iter().map(String::as_str).collect();
            let mut begun = None;
            let pause = HEAD_START[number % HEAD_START.len()];
            let one = world.follow_netwright(&first, &mut |moment| {
                if at.is_some_and(|at| moment.is(&at)) && begun.is_none() {
                    begun = Some(world.start_netwright(&second));
                    std::thread::sleep(std::time::Duration::from_millis(pause));
                }
                Blow::Spare
            });
            let two = begun.unwrap_or_else(|| world.start_netwright(&second)).join().unwrap();
            if at.is_none() {
                let mut moments = one.moments.clone();
                if stopped == StoppedCall::Add {
                    // GC looks at every process of the machine, in thousands of calls.
                    moments.retain(|moment| fault::changes(moment.call));
                }
                all = to_stop_at(moments);
            }
            tally.count("chain", &what, "interleaved");
            let mut wrong = Vec::new();
            let (added, other) = match stopped {
                StoppedCall::Add => (&one, &two),
                StoppedCall::Del => (&two, &one),
            };
            // ADD may fail while the old container's address is held, and a DEL may come at any
            // time.
            if added.code == Some(0) && beside == OtherCommand::Gc {
                let checked = run(&verb("check", new.netns()));
                if checked.code != Some(0) {
                    let told = String::from_utf8_lossy(&checked.stderr).into_owned();
                    wrong.push(format!("CHECK of what came back said {told}"));
                }
            }
            for ended in [added, other] {
                let told = String::from_utf8_lossy(&ended.stderr).into_owned();
                if ended.code.is_none() || ended.hung || told.contains("panicked") {
                    wrong.push(format!("a command ended with {ended:?}"));
                }
            }
            for _ in 0..2 {
                let deleted = run(&verb("del", new.netns()));
                if deleted.code != Some(0) {
                    wrong.push(format!("DEL said {}", String::from_utf8_lossy(&deleted.stderr)));
                }
            }
            tidy();
            wrong.extend(world.left(&before));
            wrong.extend(new.left());
            if !wrong.is_empty() {
                let at = at.map(|at| at.to_string()).unwrap_or_default();
                let said = |ended: &ProgramEnd| String::from_utf8_lossy(&ended.stderr).into_owned();
                tally.found(format!(
                    "chain {what} interleaved: at {at}, {pause} ms:\n  {}\n  {} said {:?} {}\n  it said {:?} {}",
                    wrong.join("\n  "),
                    words(&add),
                    added.code,
                    said(added),
                    other.code,
                    said(other),
                ));
                break;
            }
        }
        tally
    });
    tally.finish();
}

#[test]
fn a_gc_that_is_stopped_while_the_container_comes_back() {
    testkit::require!("root", "ptrace");
    beside_add(OtherCommand::Gc, StoppedCall::Del);
}

#[test]
fn an_add_of_what_comes_back_that_is_stopped_while_gc_runs() {
    testkit::require!("root", "ptrace");
    beside_add(OtherCommand::Gc, StoppedCall::Add);
}

#[test]
fn an_add_that_is_stopped_while_its_own_del_comes() {
    testkit::require!("root", "ptrace");
    beside_add(OtherCommand::Del, StoppedCall::Add);
}

#[test]
fn a_del_that_is_stopped_while_its_own_add_comes() {
    testkit::require!("root", "ptrace");
    beside_add(OtherCommand::Del, StoppedCall::Del);
}
