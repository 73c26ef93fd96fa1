//! A file of ours is not what it was when a container is detached.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode};
use testkit::{Lab, Place as _, Tally, feature};

use crate::chance::Chance;
use crate::scenario::Scenario;
use crate::world::{Call, World};

/// How many tries in every run; with `--full` all, several times over.
const SOME: usize = 60;

/// How often with `--full`.
const ROUNDS: usize = 12;

/// Where files are that are ours alone.
const FOLDERS: [&str; 2] = ["/run/netwright", "/run/cni"];

/// What a power cut, a full disk or a hand does to a file.
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

/// DEL and then GC take away all that was made, whatever became of what was written down; nothing panics or hangs.
#[test]
fn a_container_goes_whatever_became_of_what_was_written_down() {
    testkit::require!("root", "ptrace");
    let scenario = Scenario::chain();
    let plugin = &scenario.plugins[0];
    let full = feature::available("full");
    let lab = Lab::new("files");
    let tally = lab.enter(|| {
        let world = World::enter(&lab);
        let mut tally = Tally::new();
        let mut chance = Chance::new(12);
        let first = world.pod("first");
        let result = world.done(&first.call("ADD", plugin));
        world.done(&Call { previous: result, ..first.call("DEL", plugin) });
        let before = world.look();
        let mut tried = 0;
        let mut place = 0;
        loop {
            tried += 1;
            let pod = world.pod(&format!("f{tried}"));
            let result = world.done(&pod.call("ADD", plugin));
            let mut all = Vec::new();
            FOLDERS.iter().for_each(|folder| files(Path::new(folder), &mut all));
            all.sort();
            // It says whether the bridge is ours to remove; without it the bridge stays, lest it be somebody's.
            // A lock that is something else is refused, lest it lead elsewhere, until somebody takes it away.
            all.retain(|file| {
                !file.ends_with("shared/bridge%20br0.made")
                    && !file.starts_with("/run/netwright/locks")
            });
            let many = all.len() * DAMAGES.len();
            let end = if full { many * ROUNDS } else { SOME.min(many) };
            if end < tried {
                world.done(&pod.call("DEL", plugin));
                break;
            }
            // A step that has no factor in common with the count goes through all of them.
            place = (place + if full { 1 } else { 7919 }) % many;
            let (file, how) = (all[place / DAMAGES.len()].clone(), DAMAGES[place % DAMAGES.len()]);
            damage(&file, how, &all, &mut chance);
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            let kind = format!("{how:?}").to_lowercase();
            tally.count("records", "DEL", &kind);
            if chance.once_in(2) {
                pod.end();
            }
            let previous = result.filter(|_| chance.once_in(2));
            let mut wrong = Vec::new();
            let del = Call { previous, ..pod.call("DEL", plugin) };
            let said = world.call(&del);
            // What was written down is known no more; the container's end and GC are to be enough for what DEL left.
            pod.end();
            let collected = world.call(&Call { valid: Some(Vec::new()), ..pod.call("GC", plugin) });
            if !collected.is_done() {
                wrong.push(format!("DEL said {said:?}, GC said {collected:?}"));
            }
            // What is no file any more is nobody's to remove.
            if !file.is_file() {
                let _ = fs::remove_file(&file);
                let _ = fs::remove_dir(&file);
            }
            wrong.extend(world.left(&before));
            if !wrong.is_empty() {
                let path = file.display();
                tally.found(format!(
                    "records DEL {kind}: {name} ({path}):\n  {}",
                    wrong.join("\n  ")
                ));
                break;
            }
        }
        tally
    });
    tally.finish();
}
