//! Whatever a power cut, a full disk or an edit does to a file: no panic, no address is assigned
//! twice, none is lost for ever.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use testkit::{Tally, feature, share};

use super::*;

/// How many corruptions every run tries, and how many with `--full`.
const TRIES: u64 = 1_000;
const TRIES_OF_A_SHARE: usize = 2_750;
const ALL_TRIES: u64 = 11_000;

/// The living containers; each has one address of either family.
const LIVING: [&str; 3] = ["c1", "container-with-a-longer-name", "c3"];

/// Numbers that look random and are the same in every run (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(end).unwrap()).unwrap()
    }
}

/// The damage of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Harm {
    Truncated,
    Emptied,
    Flipped,
    Noise,
    Longer,
    OthersContent,
    NamesSwapped,
    Directory,
    Fifo,
    Symlink,
    Deleted,
    AttributeLost,
}

const HARMS: [Harm; 12] = [
    Harm::Truncated,
    Harm::Emptied,
    Harm::Flipped,
    Harm::Noise,
    Harm::Longer,
    Harm::OthersContent,
    Harm::NamesSwapped,
    Harm::Directory,
    Harm::Fifo,
    Harm::Symlink,
    Harm::Deleted,
    Harm::AttributeLost,
];

impl Harm {
    /// Does the damage to one of `files`, which are all there are. Returns the files that have
    /// changed in any way.
    fn to(self, files: &[PathBuf], which: usize, dice: &mut Dice) -> Vec<PathBuf> {
        let file = &files[which];
        let other = &files[(which + 1 + dice.below(files.len() - 1)) % files.len()];
        let content = fs::read(file).unwrap();
        let replace = |make: &dyn Fn()| {
            fs::remove_file(file).unwrap();
            make();
        };
        match self {
            Harm::Truncated => {
                let length = dice.below(content.len().max(1));
                fs::OpenOptions::new()
                    .write(true)
                    .open(file)
                    .unwrap()
                    .set_len(length.try_into().unwrap())
                    .unwrap();
            }
            Harm::Emptied => fs::write(file, b"").unwrap(),
            Harm::Flipped => {
                let mut content = content;
                if !content.is_empty() {
                    let at = dice.below(content.len());
                    content[at] ^= 1 << dice.below(8);
                }
                fs::write(file, content).unwrap();
            }
            Harm::Noise => {
                let noise: Vec<u8> =
                    (0..dice.below(200)).map(|_| u8::try_from(dice.below(256)).unwrap()).collect();
                fs::write(file, noise).unwrap();
            }
            Harm::Longer => fs::write(file, [&content[..], &[b'x'; 5000]].concat()).unwrap(),
            Harm::OthersContent => fs::write(file, fs::read(other).unwrap()).unwrap(),
            Harm::NamesSwapped => {
                let aside = file.with_file_name(".aside");
                fs::rename(file, &aside).unwrap();
                fs::rename(other, file).unwrap();
                fs::rename(&aside, other).unwrap();
                // A name whose file is now another's reservation is still taken; a name with any
                // other content is not.
                let is_address = |file: &PathBuf| {
                    file.file_name().unwrap().to_str().unwrap().parse::<IpAddr>().is_ok()
                };
                if is_address(file) != is_address(other) {
                    return vec![file.clone(), other.clone()];
                }
            }
            Harm::Directory => replace(&|| fs::create_dir(file).unwrap()),
            Harm::Fifo => replace(&|| {
                let mode = rustix::fs::Mode::RUSR;
                rustix::fs::mkfifoat(rustix::fs::CWD, file, mode).unwrap();
            }),
            Harm::Symlink => replace(&|| symlink("/dev/zero", file).unwrap()),
            Harm::Deleted => {
                fs::remove_file(file).unwrap();
                return vec![file.clone()];
            }
            Harm::AttributeLost => {
                for name in ["user.netwright.reserved", "trusted.netwright.reserved"] {
                    let _ = rustix::fs::removexattr(file, name);
                }
            }
        }
        Vec::new()
    }
}

#[test]
fn no_corruption_gives_an_address_twice_or_loses_one() {
    let mut tally = Tally::new();
    let seeds = match feature::available("full") {
        true => share::of_this_round((1..=ALL_TRIES).collect(), TRIES_OF_A_SHARE),
        false => (1..=TRIES).collect(),
    };
    for seed in seeds {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let harm = HARMS[dice.below(HARMS.len())];
        one(seed, harm, &mut dice, &mut tally);
    }
    tally.finish();
}

fn one(seed: u64, harm: Harm, dice: &mut Dice, tally: &mut Tally) {
    let (dir, store) = temporary();
    let sets = sets(&["192.0.2.0/29", "2001:db8::/125"]);
    let mut told: Vec<Vec<String>> = LIVING.iter().map(|id| allocate(&store, &sets, id)).collect();
    let mut files: Vec<PathBuf> = fs::read_dir(store.directory())
        .unwrap()
        .chain(fs::read_dir(dir.path().join("run/addresses")).unwrap())
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let which = dice.below(files.len());
    let name = files[which].file_name().unwrap().to_string_lossy().into_owned();
    let is_reservation = name.parse::<IpAddr>().is_ok();
    let lost = harm.to(&files, which, dice);
    let kind = if is_reservation { "reservation" } else { name.split('.').next().unwrap() };
    let kind = if kind.contains('%') { "index" } else { kind };
    let how = format!("{harm:?}").to_lowercase();
    tally.count("host-local's folder", kind, &how);
    let mut found = |text: String| {
        tally.found(format!("host-local's folder {kind} {how}: seed {seed}, {name}: {text}"));
    };
    // An address whose file is gone cannot be known.
    let is_lost = |address: &String| lost.iter().any(|file| file.ends_with(address));
    told.iter_mut().for_each(|of_one| of_one.retain(|address| !is_lost(address)));
    // One container goes. The others keep their addresses.
    let gone = dice.below(LIVING.len());
    match store.lock(TIMEOUT) {
        Ok(Some(locked)) => drop(locked.release(&owner(LIVING[gone]))),
        Ok(None) => found("the folder is gone".to_owned()),
        // A lock that is a folder or leads nowhere cannot be taken, and the error says so.
        Err(_) if name == "lock" => {
            fs::remove_dir(&files[which]).or_else(|_| fs::remove_file(&files[which])).unwrap();
            let locked = store.lock(TIMEOUT).unwrap().unwrap();
            locked.release(&owner(LIVING[gone])).unwrap();
        }
        Err(error) => found(format!("no lock: {error}")),
    }
    let mut given = Vec::new();
    for number in 0..9 {
        let locked = store.lock_or_create(TIMEOUT).unwrap();
        match locked.allocate(&sets, &[], &owner(&format!("new{number}"))) {
            Ok(assigned) => given.extend(addresses(&assigned)),
            Err(_) => break,
        }
    }
    let living = told.iter().enumerate().filter(|(who, _)| *who != gone);
    for address in living.flat_map(|(_, of_one)| of_one) {
        if given.contains(address) {
            found(format!("{address} is given again while its holder lives"));
        }
    }
    let mut unique = given.clone();
    unique.sort();
    unique.dedup();
    if unique.len() != given.len() {
        found(format!("assigned twice: {given:?}"));
    }
    // All are gone: after GC every address is free again.
    let locked = store.lock_or_create(TIMEOUT).unwrap();
    let collected = locked.collect(|_| false).unwrap();
    if !collected.failed.is_empty() {
        found(format!("not collected: {:?}", collected.failed));
    }
    for number in 0..5 {
        if let Err(error) = locked.allocate(&sets, &[], &owner(&format!("again{number}"))) {
            found(format!("lost for ever: {error}"));
        }
    }
}
