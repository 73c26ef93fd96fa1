//! The table plugin × verb × address family, built from a run's tests.
//!
//! Each plugin of the executable must have done each verb in a network of each family, on this
//! machine or in the virtual one: a test named `PLUGIN::…matrix_VERB_FAMILY` or
//! `PLUGIN::…vm_matrix_VERB_FAMILY` passed. Tests of a single family that need the virtual machine
//! run only with `--full`. In other runs the test with both families fills their cells.

use std::collections::BTreeMap;
use std::fs;

use crate::ci::Report;
use crate::run::{Program, log_dir, shown, target_dir};
use crate::{executable, suite, vm};

const VERBS: [&str; 5] = ["add", "del", "check", "gc", "status"];
const FAMILIES: [&str; 3] = ["v4", "v6", "dual"];

/// VERSION has no family, and one test covers every plugin.
const VERSION_TEST: &str = "protocol::checks::version_reply";

/// The result of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    Skipped,
    PassedInVm,
    Passed,
    Failed,
}

impl Outcome {
    fn word(outcome: Option<Outcome>) -> &'static str {
        match outcome {
            Some(Outcome::Passed) => "host",
            Some(Outcome::PassedInVm) => "vm",
            Some(Outcome::Skipped) => "skipped",
            Some(Outcome::Failed) => "FAILED",
            None => "NO TEST",
        }
    }

    fn is_good(outcome: Option<Outcome>) -> bool {
        matches!(outcome, Some(Outcome::Passed | Outcome::PassedInVm))
    }
}

/// The tests of a run by name. If one ran twice, the stronger result counts: failed, passed,
/// skipped.
pub(crate) fn merge<'a>(
    host: Option<&'a Report>,
    vm: Option<&'a Report>,
) -> BTreeMap<&'a str, Outcome> {
    let mut all = BTreeMap::new();
    let host = host.map(|report| (report, Outcome::Passed));
    let vm = vm.map(|report| (report, Outcome::PassedInVm));
    for (report, passed) in host.into_iter().chain(vm) {
        for (name, good) in &report.tests {
            let skipped = report.skips.iter().any(|skip| skip.name == *name);
            let outcome = match (good, skipped) {
                (false, _) => Outcome::Failed,
                (true, true) => Outcome::Skipped,
                (true, false) => passed,
            };
            let known = all.entry(name.as_str()).or_insert(outcome);
            *known = outcome.max(*known);
        }
    }
    all
}

/// Builds the table again from the last run's logs.
pub(crate) fn from_logs() -> Result<(), String> {
    let host = read_log("tests").map(|lines| suite::report(&lines))?;
    let vm = read_log("vm").map(|lines| vm::report(&lines)).ok();
    check(&merge(Some(&host), vm.as_ref())).map(|note| println!("{note}"))
}

pub(crate) fn read_log(name: &str) -> Result<Vec<String>, String> {
    let path = log_dir()?.join(format!("{name}.log"));
    let text =
        fs::read_to_string(&path).map_err(|error| format!("read {}: {error}", path.display()))?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// Writes `target/matrix.md`, shows the table, and fails with the names of the missing tests.
pub(crate) fn check(tests: &BTreeMap<&str, Outcome>) -> Result<String, String> {
    let plugins = plugins()?;
    let plugins: Vec<&str> = plugins.iter().map(String::as_str).collect();
    let table = Table::new(&plugins, tests);
    let path = target_dir().join("matrix.md");
    fs::write(&path, table.page()).map_err(|error| format!("write {}: {error}", path.display()))?;
    print!("{}", table.compact());
    let holes = table.holes();
    if holes.is_empty() {
        return Ok(format!("{} plugins, no hole; {}", plugins.len(), shown(&path)));
    }
    for hole in &holes {
        println!("{hole}");
    }
    Err(format!("{} holes in the table of plugins; {}", holes.len(), shown(&path)))
}

/// The executable's own list.
fn plugins() -> Result<Vec<String>, String> {
    let netwright = executable::NETWRIGHT.in_tests()?;
    let listed = Program::at(&netwright).arg("--list").output()?;
    Ok(listed.lines().filter_map(|line| Some(line.split_whitespace().next()?.to_owned())).collect())
}

struct Table<'a> {
    plugins: &'a [&'a str],
    /// By plugin, `verb` and `family`.
    cells: BTreeMap<(&'a str, &'a str, &'a str), Outcome>,
    version: Option<Outcome>,
}

impl<'a> Table<'a> {
    fn new(plugins: &'a [&'a str], tests: &BTreeMap<&str, Outcome>) -> Self {
        let mut cells = BTreeMap::new();
        for (test, outcome) in tests {
            let Some((plugin, verb, family)) = place(plugins, test) else { continue };
            let cell = cells.entry((plugin, verb, family)).or_insert(*outcome);
            *cell = (*outcome).max(*cell);
        }
        Self { plugins, cells, version: tests.get(VERSION_TEST).copied() }
    }

    fn cell(&self, plugin: &str, verb: &str, family: &str) -> Option<Outcome> {
        self.cells.get(&(plugin, verb, family)).copied()
    }

    fn page(&self) -> String {
        let mut page = "# Plugins, verbs, address families\n\n\
            Where the test ran that shows it: `host` is the machine the tests were run on, `vm` Debian's kernel in a \
            virtual machine.\n\n| plugin | verb | IPv4 | IPv6 | both |\n|---|---|---|---|---|\n"
            .to_owned();
        for plugin in self.plugins {
            for verb in VERBS {
                let cells = FAMILIES.map(|family| Outcome::word(self.cell(plugin, verb, family)));
                page.push_str(&format!(
                    "| {plugin} | {} | {} |\n",
                    verb.to_uppercase(),
                    cells.join(" | ")
                ));
            }
            let version = Outcome::word(self.version);
            page.push_str(&format!("| {plugin} | VERSION | {version} | {version} | {version} |\n"));
        }
        page
    }

    /// One line per plugin and one letter per family, in the order IPv4, IPv6, both.
    fn compact(&self) -> String {
        let letter = |outcome: Option<Outcome>| match outcome {
            Some(Outcome::Passed) => 'h',
            Some(Outcome::PassedInVm) => 'v',
            Some(Outcome::Skipped) => 's',
            Some(Outcome::Failed) => '!',
            None => '-',
        };
        let width = self.plugins.iter().map(|name| name.len()).max().unwrap_or(0);
        let mut text = format!(
            "{:width$}  ADD DEL CHECK GC  STATUS VERSION  (IPv4, IPv6, both: h on this machine, v in the virtual one)\n",
            ""
        );
        for plugin in self.plugins {
            let [add, del, check, gc, status] = VERBS.map(|verb| {
                let letters = FAMILIES.map(|family| letter(self.cell(plugin, verb, family)));
                letters.into_iter().collect::<String>()
            });
            let version = letter(self.version);
            text.push_str(&format!(
                "{plugin:width$}  {add} {del} {check:5} {gc} {status:6} {version}\n"
            ));
        }
        text
    }

    /// Returns the missing cells, each with the name of the test that would fill it.
    fn holes(&self) -> Vec<String> {
        let mut holes = Vec::new();
        for plugin in self.plugins {
            for verb in VERBS {
                for family in FAMILIES {
                    let cell = self.cell(plugin, verb, family);
                    let both = self.cell(plugin, verb, "dual");
                    let is_later =
                        cell == Some(Outcome::Skipped) && both == Some(Outcome::PassedInVm);
                    if !Outcome::is_good(cell) && !is_later {
                        let test = format!("{}::matrix_{verb}_{family}", module(plugin));
                        holes.push(format!("{test}: {}", Outcome::word(cell)));
                    }
                }
            }
        }
        if !Outcome::is_good(self.version) {
            holes.push(format!("{VERSION_TEST}: {}", Outcome::word(self.version)));
        }
        holes
    }
}

/// The module of a plugin's tests.
fn module(plugin: &str) -> String {
    plugin.replace('-', "_")
}

/// Returns the cell of a test: `macvlan::matrix::vm_matrix_add_v4` is macvlan, add, v4.
fn place<'a>(plugins: &[&'a str], test: &str) -> Option<(&'a str, &'static str, &'static str)> {
    let (first, rest) = test.split_once("::")?;
    let first = first.trim_start_matches("r#");
    let of = |name: &str| plugins.iter().find(|plugin| module(plugin) == name);
    let plugin = of(first).or_else(|| of(first.trim_end_matches("_ipam")))?;
    let last = rest.rsplit("::").next()?;
    let cell = last.strip_prefix("vm_").unwrap_or(last).strip_prefix("matrix_")?;
    let (verb, family) = cell.split_once('_')?;
    let verb = VERBS.into_iter().find(|known| *known == verb)?;
    let family = FAMILIES.into_iter().find(|known| *known == family)?;
    Some((plugin, verb, family))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{FAMILIES, Outcome, Table, VERBS, VERSION_TEST, merge, place};
    use crate::ci::Report;
    use crate::skips::Skip;

    fn report(tests: &[(&str, bool)], skips: &[&str]) -> Report {
        Report {
            tests: tests.iter().map(|(name, good)| ((*name).to_owned(), *good)).collect(),
            skips: skips
                .iter()
                .map(|name| Skip { name: (*name).to_owned(), reason: String::new() })
                .collect(),
            ..Report::default()
        }
    }

    #[test]
    fn names_say_the_cell() {
        let plugins = ["cluster-ipam", "host-device", "macvlan", "static"];
        for (name, expected) in [
            ("macvlan::matrix::vm_matrix_add_v4", Some(("macvlan", "add", "v4"))),
            ("host_device::matrix_status_dual", Some(("host-device", "status", "dual"))),
            ("static_ipam::matrix::matrix_gc_v6", Some(("static", "gc", "v6"))),
            ("cluster_ipam::matrix::matrix_del_v4", Some(("cluster-ipam", "del", "v4"))),
            ("r#static::matrix::matrix_gc_v6", Some(("static", "gc", "v6"))),
            ("macvlan::matrix::matrix_add_v5", None),
            ("macvlan::matrix", None),
            ("ptp::matrix_add_v4", None),
        ] {
            assert_eq!(place(&plugins, name), expected, "{name}");
        }
    }

    #[test]
    fn a_skip_here_is_made_good_there() {
        let host = report(&[("a", true), ("b", true), ("c", true), ("d", false)], &["a", "b"]);
        let vm = report(&[("a", true), ("c", false)], &[]);
        let merged = merge(Some(&host), Some(&vm));
        let expected = BTreeMap::from([
            ("a", Outcome::PassedInVm),
            ("b", Outcome::Skipped),
            ("c", Outcome::Failed),
            ("d", Outcome::Failed),
        ]);
        assert_eq!(merged, expected);
    }

    #[test]
    fn holes_are_named() {
        let mut names: Vec<String> = VERBS
            .iter()
            .flat_map(|verb| FAMILIES.map(|family| format!("ptp::matrix_{verb}_{family}")))
            .collect();
        names.push(VERSION_TEST.to_owned());
        let all: BTreeMap<&str, Outcome> =
            names.iter().map(|name| (name.as_str(), Outcome::Passed)).collect();
        assert!(Table::new(&["ptp"], &all).holes().is_empty());
        assert_eq!(
            Table::new(&["ptp"], &all).compact().lines().nth(1),
            Some("ptp  hhh hhh hhh   hhh hhh    h")
        );
        let mut some = all.clone();
        some.remove("ptp::matrix_gc_v6");
        some.insert("ptp::matrix_add_dual", Outcome::Skipped);
        assert_eq!(
            Table::new(&["ptp"], &some).holes(),
            ["ptp::matrix_add_dual: skipped", "ptp::matrix_gc_v6: NO TEST"]
        );
        // In the virtual machine single families run only in a full run.
        let mut later = all.clone();
        later.insert("ptp::matrix_add_dual", Outcome::PassedInVm);
        later.insert("ptp::matrix_add_v4", Outcome::Skipped);
        assert!(Table::new(&["ptp"], &later).holes().is_empty());
    }
}
