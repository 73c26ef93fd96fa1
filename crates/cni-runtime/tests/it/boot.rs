//! A node boots: configurations appear while containers already ask for their networks.
//!
//! Three files arrive in any order and by any of the ways in which programs write files, some of
//! them twice. Between any two steps the test looks up each network: the result is what a complete
//! file says, or an error.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cni::NetworkList;
use netwright_cni_runtime::{ConfigFolder, LoadError};

/// How many orders and timings are tried: in every run, and with `--full`.
const TRIED: u64 = 500;
const ALL_TRIED: u64 = 10_000;

/// A generator of numbers that is the same everywhere (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
        usize::try_from(number % u64::try_from(bound.max(1)).unwrap()).unwrap()
    }

    fn one<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }
}

/// One action of a program in a folder.
#[derive(Debug, Clone)]
enum Step {
    /// Opens a file anew, which empties it, and writes.
    Write(PathBuf, Vec<u8>),
    Append(PathBuf, Vec<u8>),
    Rename(PathBuf, PathBuf),
    Link(PathBuf, PathBuf),
    Remove(PathBuf),
}

impl Step {
    fn take(&self) {
        match self {
            Step::Write(path, bytes) => fs::write(path, bytes).unwrap(),
            Step::Append(path, bytes) => {
                let mut file = fs::OpenOptions::new().append(true).open(path).unwrap();
                file.write_all(bytes).unwrap();
            }
            Step::Rename(from, to) => fs::rename(from, to).unwrap(),
            Step::Link(target, path) => std::os::unix::fs::symlink(target, path).unwrap(),
            Step::Remove(path) => fs::remove_file(path).unwrap(),
        }
    }
}

/// A file of the folder: its name there, its network, and its contents, the newest last.
struct Config {
    file: &'static str,
    network: &'static str,
    documents: Vec<String>,
}

/// A list whose plugins all name their generation.
fn list(network: &str, plugins: &[&str], generation: u32) -> String {
    let plugins: Vec<String> = plugins
        .iter()
        .map(|plugin| format!(r#"    {{ "type": "{plugin}", "generation": {generation} }}"#))
        .collect();
    format!(
        "{{\n  \"cniVersion\": \"1.1.0\",\n  \"name\": \"{network}\",\n  \"plugins\": [\n{}\n  ]\n}}\n",
        plugins.join(",\n")
    )
}

fn configs(random: &mut Random) -> Vec<Config> {
    let pods = |generation| list("pods", &["bridge", "firewall", "tuning"], generation);
    let single = |g| {
        format!(
            r#"{{"cniVersion": "1.0.0", "type": "macvlan", "generation": {g}, "name": "storage"}}"#
        )
    };
    let (file, network, documents) = match random.below(3) {
        0 => ("99-fallback.conflist", "fallback", vec![list("fallback", &["bridge"], 1)]),
        // The same network twice: an earlier program left this file.
        1 => ("99-pods.conflist", "pods", vec![list("pods", &["ptp"], 9)]),
        _ => ("05-first.json", "first", vec![single(1).replace("storage", "first")]),
    };
    vec![
        Config { file: "10-pods.conflist", network: "pods", documents: vec![pods(1), pods(2)] },
        Config {
            file: "20-storage.conf",
            network: "storage",
            documents: vec![single(1), single(2)],
        },
        Config { file, network, documents },
    ]
}

/// How one program writes a file: all of its steps, of which the last leaves the whole `text`
/// there.
fn writing(random: &mut Random, dir: &Path, file: &str, text: &str, there: bool) -> Vec<Step> {
    let path = dir.join(file);
    let pieces = |random: &mut Random, path: &Path| {
        let mut steps = vec![Step::Write(path.to_owned(), Vec::new())];
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let cut = 1 + random.below(rest.len());
            steps.push(Step::Append(path.to_owned(), rest[..cut].to_vec()));
            rest = &rest[cut..];
        }
        steps
    };
    match random.below(if there { 4 } else { 5 }) {
        // As a shell's `>` does, and `cp`.
        0 => pieces(random, &path),
        // As careful programs do, under their temporary names until the file is complete.
        1 => {
            let names = ["{}~", ".{}.swp", "{}.dpkg-new", ".{}.Xk3a9Q", "tmp-{}", "{}.tmp"];
            let temporary = dir.join(random.one(&names).replace("{}", file));
            let mut steps = pieces(random, &temporary);
            steps.push(Step::Rename(temporary, path));
            steps
        }
        // Other contents first.
        2 => {
            let wrong = random.one(&["not json", "[]", "{}", "{\"name\": 5", "\0\0\0\0\0\0\0"]);
            let mut steps = vec![Step::Write(path.clone(), wrong.as_bytes().to_vec())];
            steps.extend(pieces(random, &path));
            steps
        }
        // The file is removed, and comes again.
        3 if there => {
            let mut steps = vec![Step::Remove(path.clone())];
            steps.extend(pieces(random, &path));
            steps
        }
        3 => vec![Step::Write(path, text.as_bytes().to_vec())],
        // A link to a file that comes later.
        _ => {
            let target = dir.join("available").join(file);
            let mut steps = vec![Step::Link(target.clone(), path)];
            steps.extend(pieces(random, &target));
            steps
        }
    }
}

/// The expected networks by the files' contents and not by how they are read: for each network the
/// first complete file.
fn expected(dir: &Path, configs: &[Config]) -> BTreeMap<&'static str, NetworkList> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let is_list = |path: &Path| path.extension().is_some_and(|extension| extension == "conflist");
    let is_single = |path: &Path| path.extension().is_some_and(|e| e == "conf" || e == "json");
    let (lists, rest): (Vec<PathBuf>, Vec<PathBuf>) = files.into_iter().partition(|p| is_list(p));
    let mut found = BTreeMap::new();
    for path in lists.into_iter().chain(rest.into_iter().filter(|path| is_single(path))) {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        for config in configs {
            if config.documents.iter().any(|document| document.trim() == text.trim()) {
                let read =
                    if is_list(&path) { NetworkList::parse } else { NetworkList::from_plugin };
                let list = read(text.as_bytes()).unwrap();
                found.entry(config.network).or_insert(list);
            }
        }
    }
    found
}

/// Whether an incomplete file with a configuration's name claims to be this network's.
fn half_written(dir: &Path, network: &str) -> bool {
    let scan = ConfigFolder::scan(dir).unwrap();
    scan.refusals().any(|refusal| refusal.network.as_deref() == Some(network))
}

fn looked_up(dir: &Path, configs: &[Config], when: &str) -> u32 {
    let scan = ConfigFolder::scan(dir).unwrap();
    let expected = expected(dir, configs);
    let mut refused = 0;
    for network in ["pods", "storage", "fallback", "first", "nobodys"] {
        match (scan.find(network), expected.get(network)) {
            (Ok(list), Some(whole)) => {
                assert_eq!(list.name, network, "{when}");
                assert_eq!(list.plugins, whole.plugins, "{when}: half of {network}");
            }
            (Ok(list), None) => panic!("{when}: {network} is {list:?}, and no whole file says so"),
            (Err(error), Some(_)) => {
                // Only because an incomplete file of that network comes before the complete one.
                assert!(half_written(dir, network), "{when}: {network}: {error}");
                refused += 1;
            }
            (Err(_), None) => refused += 1,
        }
    }
    refused
}

/// 10,000 orders and timings of three files: every look-up gives what a complete file says, or
/// fails.
#[test]
fn no_order_of_files_gives_a_wrong_or_half_a_network() {
    let seed = std::env::var("NETWRIGHT_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(0x6e65_7477_7269_6768_u64);
    let (mut steps_taken, mut refused) = (0_u64, 0_u64);
    let tried = if std::env::var_os("NETWRIGHT_FULL").is_some() { ALL_TRIED } else { TRIED };
    for round in 0..tried {
        let mut random = Random((seed ^ round.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1);
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let dir = folder.path();
        fs::create_dir(dir.join("available")).unwrap();
        let configs = configs(&mut random);
        let mut scripts: Vec<std::vec::IntoIter<Step>> = Vec::new();
        for config in &configs {
            let mut script = Vec::new();
            for (index, document) in config.documents.iter().enumerate() {
                script.extend(writing(&mut random, dir, config.file, document, 0 < index));
                if random.below(2) == 0 {
                    break;
                }
            }
            scripts.push(script.into_iter());
        }
        while !scripts.is_empty() {
            let at = random.below(scripts.len());
            match scripts[at].next() {
                Some(step) => {
                    step.take();
                    steps_taken += 1;
                    let when = format!("NETWRIGHT_SEED={seed}, order {round}, after {step:?}");
                    refused += u64::from(looked_up(dir, &configs, &when));
                }
                None => drop(scripts.swap_remove(at)),
            }
        }
        // Everything has arrived: every network exists, though its file is not always the newest.
        let scan = ConfigFolder::scan(dir).unwrap();
        for config in &configs {
            assert_eq!(scan.find(config.network).unwrap().name, config.network, "order {round}");
        }
    }
    eprintln!(
        "MEASURED {tried} orders, {steps_taken} steps, {refused} look-ups refused, 0 wrong or half"
    );
}

/// A large list is rewritten in place repeatedly while it is read: no result mixes two generations.
#[test]
fn a_list_that_is_rewritten_while_it_is_read_is_never_mixed() {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let path = folder.path().join("10-pods.conflist");
    let padding = vec!["x"; 20_000].join("\", \"");
    let text = |generation: u32| {
        let plugins = ["bridge", "firewall", "tuning"];
        let text = list("pods", &plugins, generation);
        // The padding is before the last plugin, so that the generations are far apart in the file.
        text.replacen(
            "{ \"type\": \"tuning\"",
            &format!("{{ \"padding\": [\"{padding}\"], \"type\": \"tuning\""),
            1,
        )
    };
    let texts = [text(1), text(2)];
    let whole = texts.clone().map(|text| NetworkList::parse(text.as_bytes()).unwrap().plugins);
    let (over, found) = (AtomicBool::new(false), AtomicUsize::new(0));
    fs::write(&path, &texts[0]).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(1);
            for text in texts.iter().cycle() {
                // After each complete list, at any moment of the next look-up.
                let known = found.load(Ordering::Relaxed);
                while found.load(Ordering::Relaxed) == known && !over.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                if over.load(Ordering::Relaxed) {
                    break;
                }
                (0..random.below(20_000)).for_each(|_| std::hint::spin_loop());
                fs::write(&path, text).unwrap();
            }
        });
        let _over = DropFlag(&over);
        let mut seen = [0_u32; 3];
        while found.load(Ordering::Relaxed) < 400 {
            let scan = ConfigFolder::scan(folder.path()).unwrap();
            match scan.find("pods") {
                Ok(list) => {
                    let which = whole.iter().position(|plugins| *plugins == list.plugins);
                    seen[which.expect("one of those that were written, not a mixture")] += 1;
                    found.fetch_add(1, Ordering::Relaxed);
                }
                Err(LoadError::Folder { .. }) => panic!("the folder can be read"),
                Err(_) => seen[2] += 1,
            }
        }
        eprintln!("MEASURED rewritten while read: {seen:?} (old, new, refused)");
    });
}

/// Ends a thread when its test does, also by a failure.
struct DropFlag<'a>(&'a AtomicBool);

impl Drop for DropFlag<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
