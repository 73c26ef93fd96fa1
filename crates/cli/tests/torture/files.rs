//! A file of ours was damaged before its container is detached.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode};
use serde_json::json;
use testkit::fault::ProgramEnd;
use testkit::{Chance, Lab, Place as _, Tally, feature, share};

use crate::scenario::Scenario;
use crate::world::{Call, NETWORK, Pod, World};

/// The number of tries in every run. With `--full` all are tried, several times over.
const SOME: usize = 40;

/// How often all are tried with `--full`, and in a run that tries all; how a file is cut, flipped
/// or overwritten is another chance each time.
const TIMES_OF_A_SHARE: usize = 2;
const ALL_TIMES: usize = 12;

/// The folders with files that only we use.
const FOLDERS: [&str; 2] = ["/run/netwright", "/run/cni"];

/// What a power cut, a full disk or an edit does to a file.
#[derive(Debug, Clone, Copy)]
enum Damage {
    Cut,
    Emptied,
    Flipped,
    Overwritten,
    Swapped,
    Deleted,
    Folder,
    Fifo,
    Link,
}

const DAMAGES: [Damage; 9] = [
    Damage::Cut,
    Damage::Emptied,
    Damage::Flipped,
    Damage::Overwritten,
    Damage::Swapped,
    Damage::Deleted,
    Damage::Folder,
    Damage::Fifo,
    Damage::Link,
];

fn files(folder: &Path, all: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            files(&entry.path(), all);
        } else if kind.is_file() {
            all.push(entry.path());
        }
    }
}

fn damage(file: &Path, how: Damage, others: &[PathBuf], chance: &mut Chance) {
    let bytes = fs::read(file).unwrap();
    match how {
        Damage::Cut => fs::write(file, &bytes[..chance.below(bytes.len().max(1))]).unwrap(),
        Damage::Emptied => fs::write(file, "").unwrap(),
        Damage::Flipped => {
            let mut bytes = bytes;
            if let Some(length) = Some(bytes.len()).filter(|length| 0 < *length) {
                bytes[chance.below(length)] ^= 1 << chance.below(8);
            }
            fs::write(file, bytes).unwrap();
        }
        Damage::Overwritten => {
            let noise: Vec<u8> =
                (0..chance.below(300)).map(|_| u8::try_from(chance.below(256)).unwrap()).collect();
            fs::write(file, noise).unwrap();
        }
        Damage::Swapped => {
            fs::write(file, fs::read(&others[chance.below(others.len())]).unwrap()).unwrap();
        }
        Damage::Deleted | Damage::Folder | Damage::Fifo | Damage::Link => {
            fs::remove_file(file).unwrap();
            match how {
                Damage::Folder => fs::create_dir(file).unwrap(),
                Damage::Fifo => {
                    rustix::fs::mknodat(CWD, file, FileType::Fifo, Mode::RUSR, 0).unwrap();
                }
                Damage::Link => symlink("/nowhere", file).unwrap(),
                _ => {}
            }
        }
    }
}

/// Does every damage to every file, in an order that depends on neither.
struct Steps {
    chance: Chance,
    full: bool,
    tried: usize,
    place: usize,
}

/// The damage of one file.
struct Step {
    file: PathBuf,
    kind: String,
}

impl Steps {
    fn new(seed: u64) -> Self {
        let full = feature::available("full");
        Steps { chance: Chance::new(share::seed_of_this_round(seed)), full, tried: 0, place: 0 }
    }

    /// Damages one of these files; `None` once it has done enough.
    fn next(&mut self, all: &[PathBuf]) -> Option<Step> {
        self.tried += 1;
        let many = all.len() * DAMAGES.len();
        if (if self.full {
            many * share::count(ALL_TIMES, TIMES_OF_A_SHARE)
        } else {
            SOME.min(many)
        }) < self.tried
        {
            return None;
        }
        // The step and the count have no common factor, so all of them are reached.
        self.place = (self.place + if self.full { 1 } else { 7919 }) % many;
        let (file, how) = (&all[self.place / DAMAGES.len()], DAMAGES[self.place % DAMAGES.len()]);
        damage(file, how, all, &mut self.chance);
        Some(Step { file: file.clone(), kind: format!("{how:?}").to_lowercase() })
    }
}

impl Step {
    /// Removes what is no longer a file: no call may remove it.
    fn clear(&self) {
        if !self.file.is_file() {
            let _ = fs::remove_file(&self.file);
            let _ = fs::remove_dir(&self.file);
        }
    }
}

/// DEL and then GC remove everything that ADD made, whatever was damaged; nothing panics or hangs.
#[test]
fn a_container_goes_whatever_became_of_what_was_written_down() {
    testkit::require!("root", "ptrace");
    let scenario = Scenario::chain();
    let plugin = &scenario.plugins[0];
    let lab = Lab::new("files");
    let tally = lab.enter(|| {
        let world = World::enter(&lab);
        let mut tally = Tally::new();
        let mut steps = Steps::new(12);
        let first = world.pod("first");
        let result = world.done(&first.call("ADD", plugin));
        world.done(&Call { previous: result, ..first.call("DEL", plugin) });
        let before = world.look();
        for number in 1.. {
            let pod = world.pod(&format!("f{number}"));
            let result = world.done(&pod.call("ADD", plugin));
            let mut all = Vec::new();
            FOLDERS.iter().for_each(|folder| files(Path::new(folder), &mut all));
            all.sort();
            // The file shows whether we may remove the bridge; without it the bridge stays, as it
            // may be foreign. A lock that is not a regular file is refused, as it may lead
            // elsewhere, until an administrator removes it.
            all.retain(|file| {
                !file.ends_with("shared/bridge%20br0.made")
                    && !file.starts_with("/run/netwright/locks")
            });
            let Some(step) = steps.next(&all) else {
                world.done(&pod.call("DEL", plugin));
                break;
            };
            tally.count("records", "DEL", &step.kind);
            if steps.chance.once_in(2) {
                pod.end();
            }
            let previous = result.filter(|_| steps.chance.once_in(2));
            let mut wrong = Vec::new();
            let del = Call { previous, ..pod.call("DEL", plugin) };
            let said = world.call(&del);
            // The record is lost; the container's end and GC must be enough for what DEL left.
            pod.end();
            let collected = world.call(&Call { valid: Some(Vec::new()), ..pod.call("GC", plugin) });
            if !collected.is_done() {
                wrong.push(format!("DEL said {said:?}, GC said {collected:?}"));
            }
            step.clear();
            wrong.extend(world.left(&before));
            if !wrong.is_empty() {
                let (kind, path) = (&step.kind, step.file.display());
                tally.found(format!("records DEL {kind}: {path}:\n  {}", wrong.join("\n  ")));
                break;
            }
        }
        tally
    });
    tally.finish();
}

/// The network as in its file.
fn written(scenario: &Scenario) -> String {
    let mut plugins = scenario.plugins.clone();
    for plugin in &mut plugins {
        plugin.as_object_mut().unwrap().remove("runtimeConfig");
    }
    json!({ "cniVersion": "1.1.0", "name": NETWORK, "plugins": plugins }).to_string()
}

const NETWORK_FILE: &str = "/etc/cni/net.d/10-n.conflist";

/// The owner of a file, for people.
fn kind_of(file: &Path) -> &'static str {
    match file {
        _ if file.starts_with("/etc/cni") => "configuration",
        _ if file.starts_with("/var/lib/cni/results") => "result cache",
        _ => "addresses",
    }
}

/// A container is removed by its runtime's commands, whatever happened to the result cache, the
/// network's file, or the addresses: each of them can replace another that is lost.
#[test]
fn a_container_goes_whatever_became_of_its_runtimes_files() {
    testkit::require!("root", "ptrace");
    let scenario = Scenario::chain();
    let network = written(&scenario);
    let lab = Lab::new("runtime");
    let tally = lab.enter(|| {
        let world = World::enter(&lab);
        let mut tally = Tally::new();
        let mut steps = Steps::new(13);
        fs::create_dir_all("/etc/cni/net.d").unwrap();
        fs::write(NETWORK_FILE, &network).unwrap();
        let command = |verb: &str, pod: &Pod| {
            world.netwright(&[verb, NETWORK, pod.netns(), "--container-id", &pod.id])
        };
        let add = |pod: &Pod| {
            let said = command("add", pod);
            assert_eq!(said.code, Some(0), "{}", String::from_utf8_lossy(&said.stderr));
        };
        let list = || {
            let mut all = Vec::new();
            ["/etc/cni", "/var/lib/cni"]
                .iter()
                .for_each(|folder| files(Path::new(folder), &mut all));
            all.sort();
            all
        };
        // Another container lives on, and loses nothing.
        let (resident, first) = (world.pod("resident"), world.pod("first"));
        add(&resident);
        add(&first);
        assert_eq!(command("del", &first).code, Some(0));
        let before = world.look();
        let others = list();
        for number in 1.. {
            let pod = world.pod(&format!("r{number}"));
            add(&pod);
            let mut all = list();
            all.retain(|file| file == Path::new(NETWORK_FILE) || !others.contains(file));
            let Some(step) = steps.next(&all) else {
                assert_eq!(command("del", &pod).code, Some(0));
                break;
            };
            let what = kind_of(&step.file);
            tally.count("runtime's files", what, &step.kind);
            if steps.chance.once_in(2) {
                pod.end();
            }
            let mut wrong = Vec::new();
            let mut must_work = |ended: &ProgramEnd, what: &str, exit: bool| {
                let errors = String::from_utf8_lossy(&ended.stderr);
                if errors.contains("panicked")
                    || ended.signal.is_some()
                    || (exit && ended.code != Some(0))
                {
                    wrong.push(format!("{what}: exit {:?}: {errors}", ended.code));
                }
            };
            must_work(&command("del", &pod), "del", false);
            pod.end();
            step.clear();
            fs::write(NETWORK_FILE, &network).unwrap();
            must_work(&command("del", &pod), "del again", true);
            must_work(&world.netwright(&["gc", NETWORK]), "gc", true);
            wrong.extend(world.left(&before));
            if !wrong.is_empty() {
                let (kind, path) = (&step.kind, step.file.display());
                tally.found(format!(
                    "runtime's files {what} {kind}: {path}:\n  {}",
                    wrong.join("\n  ")
                ));
                break;
            }
        }
        tally
    });
    tally.finish();
}
