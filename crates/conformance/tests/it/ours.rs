//! Our own plugins.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use conformance::{Level, Report, Verdict};
use testkit::{feature, share as rounds};

use crate::support::{compare, compare_asked, failures, folder, run, suite, summary};

/// Into how many shares the cases are divided for a run without `--full`.
const SHARES: usize = 5;

/// Every plugin keeps every MUST. Each SHOULD that a plugin does not keep has its reason in
/// `ours.txt`. In one of three rounds of `--full` each plugin gets all cases. Otherwise it gets a
/// fifth of them, and each case is tried with a fifth of the plugins.
#[test]
fn our_plugins_keep_every_must() {
    testkit::require!("root");
    let names: Vec<&str> = plugins::all().iter().map(|plugin| plugin.name()).collect();
    if feature::available("round:0/3") {
        let dir = folder(&names, "none");
        let report = run(&suite(dir.path()));
        assert_eq!(report.tally(Level::Must).failed, 0, "{}", summary(&report));
        compare("ours.txt", &failures(&report), &summary(&report));
        compare_asked("ours", &report);
        return;
    }
    let mut asked = BTreeSet::new();
    // A chain needs the other plugins too.
    let dir = folder(&names, "none");
    for (number, name) in names.iter().enumerate() {
        let cases = share(number + rounds::offset(), SHARES);
        let suite = suite(dir.path()).plugins(&[(*name).to_owned()]).unwrap();
        let report = run(&suite.cases(&cases).unwrap());
        assert_eq!(report.tally(Level::Must).failed, 0, "{}", summary(&report));
        assert_known(&report);
        asked.extend(cases);
    }
    assert_eq!(asked.len(), conformance::cases().count());
}

/// Returns every `shares`th case, from one on, with those that they depend on.
fn share(from: usize, shares: usize) -> Vec<String> {
    let mut chosen = BTreeSet::new();
    for case in conformance::cases().skip(from % shares).step_by(shares) {
        let mut next = Some(case.id);
        while let Some(id) = next {
            chosen.insert(id);
            next = conformance::cases().find(|case| case.id == id).and_then(|case| case.after);
        }
    }
    let ids = conformance::cases().map(|case| case.id);
    ids.filter(|id| chosen.contains(id)).map(str::to_owned).collect()
}

/// Asserts that what fails is listed in `ours.txt`.
#[track_caller]
fn assert_known(report: &Report) {
    let listed = include_str!("../ours.txt").lines().filter_map(|line| line.split_once(" #"));
    let listed: Vec<&str> = listed.map(|(case, _)| case).collect();
    let failed = failures(report);
    let unknown: Vec<_> = failed.iter().filter(|case| !listed.contains(&case.as_str())).collect();
    assert!(unknown.is_empty(), "not in ours.txt: {unknown:?}\n{}", summary(report));
}

/// In how many parts the suite runs in the virtual machine, which is slow, while a test's time is
/// limited.
const PARTS: usize = 4;

/// How long a call may take there: the processor is emulated, and shared with whatever else runs.
const SLOW: Duration = Duration::from_secs(60);

/// Asserts that nothing is skipped for lack of a kernel feature, and that only known cases fail.
#[track_caller]
#[expect(clippy::print_stderr, reason = "the virtual machine's log shows what was measured")]
fn keeps_everything(plugin: &str, part: usize, known: &[&str]) {
    let dir = folder(&[plugin], "none");
    let cases = share(part, PARTS);
    let suite = suite(dir.path()).workers(2).call_timeout(SLOW).cases(&cases).unwrap();
    let started = Instant::now();
    let report = run(&suite);
    let longest =
        report.plugins[0].costs.iter().map(|(verb, cost)| (cost.longest_micros, verb)).max();
    eprintln!(
        "MEASURED {plugin}, part {part}: {} cases in {:.0} s, longest call {longest:?} µs",
        cases.len(),
        started.elapsed().as_secs_f64()
    );
    let failed = failures(&report);
    let unknown: Vec<_> = failed.iter().filter(|case| !known.contains(&case.as_str())).collect();
    assert!(unknown.is_empty(), "{}", summary(&report));
    for level in [Level::Must, Level::Should] {
        let tally = report.tally(level);
        assert_eq!(tally.skipped, 0, "{plugin}: {level}: {tally:?}");
        assert!(5 < tally.passed, "{plugin}: {level}: {tally:?}");
    }
}

/// What this machine's kernel may lack.
macro_rules! in_the_vm {
    ($($plugin:literal $known:expr => $one:ident $two:ident $three:ident $four:ident;)*) => { $(
        in_the_vm!(@ $one $plugin 0 $known);
        in_the_vm!(@ $two $plugin 1 $known);
        in_the_vm!(@ $three $plugin 2 $known);
        in_the_vm!(@ $four $plugin 3 $known);
    )* };
    (@ $name:ident $plugin:literal $part:literal $known:expr) => {
        #[test]
        fn $name() {
            testkit::require!("root", "full", $plugin);
            keeps_everything($plugin, $part, $known);
        }
    };
}

in_the_vm! {
    "dummy" &[] => vm_dummy_1 vm_dummy_2 vm_dummy_3 vm_dummy_4;
    "ipvlan" &[] => vm_ipvlan_1 vm_ipvlan_2 vm_ipvlan_3 vm_ipvlan_4;
    "vlan" &[] => vm_vlan_1 vm_vlan_2 vm_vlan_3 vm_vlan_4;
    // With the first VRF of a namespace the kernel adds the rule by which it finds VRFs, and never
    // removes it.
    "vrf" &["vrf/del-restores-the-container"] => vm_vrf_1 vm_vrf_2 vm_vrf_3 vm_vrf_4;
}

#[test]
fn a_case_can_be_run_alone_and_says_how() {
    testkit::require!("root");
    let dir = folder(&["host-local"], "del-does-nothing");
    let alone = suite(dir.path()).cases(&["check-after-del".to_owned()]).unwrap();
    assert_eq!(alone.len(), 1);
    let report = run(&alone);
    let case = &report.plugins[0].cases[0];
    let expected = format!(
        "netwright conformance --bin-dir {} --plugin host-local --case check-after-del",
        dir.path().display()
    );
    assert_eq!(case.again, expected);
    let text = case.text("host-local");
    for words in ["FAIL host-local check-after-del (SHOULD §2 CHECK)", "expected: ", &expected] {
        assert!(text.contains(words), "{text}");
    }
    let Verdict::Failed { evidence, .. } = &case.verdict else { panic!("{text}") };
    assert!(evidence.iter().any(|call| call.contains("CNI_COMMAND='DEL'")), "{evidence:?}");
}

#[test]
fn a_configuration_of_the_users_is_used() {
    testkit::require!("root");
    let dir = folder(&["bridge", "host-local", "tuning"], "none");
    let config = br#"{ "cniVersion": "1.0.0", "name": "mine", "plugins": [
        { "type": "bridge", "bridge": "mine0", "ipam": { "type": "host-local", "subnet": "10.5.0.0/24" } } ] }"#;
    let suite = suite(dir.path()).config(Path::new("mine.conflist"), config).unwrap();
    let suite = suite.cases(&["add-succeeds".to_owned(), "delegate-called".to_owned()]).unwrap();
    let report = run(&suite);
    let names: Vec<_> = report.plugins.iter().map(|plugin| plugin.plugin.as_str()).collect();
    assert_eq!(names, ["bridge", "host-local"]);
    let [added, delegated] = &report.plugins[0].cases[..] else { panic!("two cases") };
    assert_eq!(added.verdict, Verdict::Passed);
    assert!(added.again.contains(" --config mine.conflist --case "), "{}", added.again);
    assert!(matches!(delegated.verdict, Verdict::NotApplicable { .. }));
}

#[test]
fn what_cannot_be_run_is_said() {
    let launcher = || conformance::Launcher { program: "/bin/true".into(), arguments: Vec::new() };
    let empty = tempfile::tempdir().unwrap();
    let error = conformance::Suite::new(launcher(), empty.path(), "").unwrap_err().to_string();
    assert!(error.contains("there is no plugin in"), "{error}");
    let error = conformance::Suite::new(launcher(), Path::new("/nowhere"), "").unwrap_err();
    assert!(error.to_string().contains("\"/nowhere\""), "{error}");
    let dir = folder(&["bridge"], "none");
    let error = suite(dir.path()).plugins(&["brigde".to_owned()]).unwrap_err().to_string();
    assert!(error.contains("\"brigde\"") && error.contains("there is: bridge"), "{error}");
    let error = suite(dir.path()).cases(&["no-case".to_owned()]).unwrap_err().to_string();
    assert!(error.contains("no-case"), "{error}");
    let error = suite(dir.path()).config(Path::new("mine"), b"{").unwrap_err().to_string();
    assert!(error.contains("not JSON"), "{error}");
}
