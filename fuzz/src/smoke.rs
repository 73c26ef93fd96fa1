//! Fuzzing without a fuzzer: random changes of the seeds, on a stable toolchain.
//!
//! It does not know the coverage, so it finds shallow bugs only; its use is that it runs anywhere,
//! in every run of CI, for a known number of inputs. The same seed runs the same inputs again.

use std::fmt::Write as _;
use std::hash::{BuildHasher as _, Hasher as _};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use crate::Target;

/// Inputs stay below this; hand-written tests have what only large inputs can do
/// (crates/cni/tests/it/hostile.rs).
const MAX_INPUT: usize = 4096;

/// Pieces that matter to the parsers and that random bytes would not contain.
const WORDS: &[&str] = &[
    "null",
    "true",
    "false",
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "\\",
    "\\u0000",
    "\\ud800",
    "-",
    "0",
    "1e400",
    "18446744073709551616",
    "-1",
    "1.5",
    "\"name\"",
    "\"NAME\"",
    "\"type\"",
    "\"cniVersion\"",
    "\"cniVersions\"",
    "\"plugins\"",
    "\"capabilities\"",
    "\"ipam\"",
    "\"dns\"",
    "\"prevResult\"",
    "\"interfaces\"",
    "\"ips\"",
    "\"ip4\"",
    "\"ip6\"",
    "\"routes\"",
    "\"address\"",
    "\"gateway\"",
    "\"interface\"",
    "\"dst\"",
    "\"0.1.0\"",
    "\"0.4.0\"",
    "\"1.1.0\"",
    "\"2.0\"",
    "0.0.0.0/0",
    "::/0",
    "::ffff:1.2.3.4/100",
    "192.0.2.1/24",
    "=",
    ";",
    "IgnoreUnknown=",
    "/",
    "..",
    "\u{17f}",
    "\u{212a}",
    "\u{a0}",
    "\n",
    "\t",
    "[[[[[[[[[[[[[[[[",
    "{\"a\":{\"a\":{\"a\":",
];

/// A generator of numbers that is the same everywhere (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound.max(1)).unwrap_or(u64::MAX);
        usize::try_from((self.next() >> 11) % bound).unwrap_or_default()
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[7]
    }
}

/// Changes an input in a few places.
fn mutate(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut input = seeds.get(random.below(seeds.len())).cloned().unwrap_or_default();
    let changes = 1 + random.below(6);
    for _ in 0..=random.below(changes) {
        let at = random.below(input.len() + 1);
        let end = at + random.below((input.len() - at).min(32) + 1);
        match random.below(9) {
            0 => input.insert(at, random.byte()),
            1 if at < input.len() => input[at] = random.byte(),
            2 if at < input.len() => input[at] ^= 1 << random.below(8),
            3 => drop(input.drain(at..end)),
            4 => input.truncate(at),
            5 => {
                let piece = input[at..end].to_vec();
                let to = random.below(input.len() + 1);
                input.splice(to..to, piece);
            }
            6 => {
                let other = &seeds[random.below(seeds.len())];
                let from = random.below(other.len() + 1);
                let to = from + random.below((other.len() - from).min(64) + 1);
                input.splice(at..end, other[from..to].iter().copied());
            }
            _ => {
                let word = WORDS[random.below(WORDS.len())];
                input.splice(at..end, word.bytes());
            }
        }
    }
    input.truncate(MAX_INPUT);
    input
}

/// The folder of a target's seeds. Cargo gives the package's present path; the compiled-in path is
/// that of the build.
fn seeds_folder(target: &Target) -> PathBuf {
    let compiled = Path::new(env!("CARGO_MANIFEST_DIR"));
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let package = package.filter(|package| package.ends_with("fuzz"));
    package.as_deref().unwrap_or(compiled).join("seeds").join(target.name)
}

/// Reads the seeds in the order of their names, so that a run can be repeated.
fn read_seeds(target: &Target) -> std::io::Result<Vec<Vec<u8>>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(seeds_folder(target))? {
        paths.push(entry?.path());
    }
    paths.sort();
    paths.iter().map(std::fs::read).collect()
}

/// Runs one input; returns the file of a crash.
fn run(target: &Target, input: &[u8]) -> Option<PathBuf> {
    catch_unwind(|| (target.run)(input)).err()?;
    let mut name = String::from("crash-");
    for byte in input
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
        .to_be_bytes()
    {
        write!(name, "{byte:02x}").ok()?;
    }
    let path = seeds_folder(target).join(name);
    std::fs::write(&path, input).ok()?;
    Some(path)
}

/// A seed that differs each time: the standard library seeds its hasher at random for each process.
#[must_use]
pub fn random_seed() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

/// Runs a target with its seeds, and with this many random changes of them, or fewer if it is slow;
/// returns how many seeds it has. If it panics at an input, the input is written beside them as
/// `crash-…`.
///
/// # Errors
/// With the file of the input at which it panicked, or what is wrong with its seeds.
pub fn try_target(target: &Target, seed: u64, iterations: u64) -> Result<usize, String> {
    let seeds = read_seeds(target).map_err(|error| error.to_string())?;
    if seeds.is_empty() {
        return Err("no seeds".to_owned());
    }
    let mut crash = seeds.iter().find_map(|seed| run(target, seed));
    // A separate generator for each target: another target does not change the inputs of the rest.
    let name = target.name.bytes().fold(seed, |seed, byte| seed.rotate_left(8) ^ u64::from(byte));
    let mut random = Random(name.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..iterations.div_ceil(target.share) {
        if crash.is_some() {
            break;
        }
        crash = run(target, &mutate(&mut random, &seeds));
    }
    match crash {
        Some(path) => Err(format!("CRASH {}", path.display())),
        None => Ok(seeds.len()),
    }
}
