//! The deliberately broken plugin: each fault fails the cases planned for it, and no others.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use conformance::Verdict;

use crate::support::{compare, failures, folder, run, suite, summary};

/// The faults of `tests/broken/faults.rs`.
const FAULTS: &str = include_str!("../broken/faults.rs");

/// Each fault's failures are those in `broken.txt`.
#[test]
fn each_fault_fails_exactly_the_planned_cases() {
    testkit::require!("root", "round:1/3");
    let names = FAULTS.lines().filter_map(|line| line.trim().strip_prefix("(\""));
    let names: Vec<&str> = names.filter_map(|line| line.split('"').next()).collect();
    assert!(26 <= names.len(), "{names:?}");
    // A fault's run waits more than it works, at its end for the last cases.
    let next = AtomicUsize::new(0);
    let done = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((at, fault)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    names.get(at).map(|fault| (at, *fault))
                } {
                    let dir = folder(&["bridge"], fault);
                    let report = run(&suite(dir.path()));
                    done.lock().unwrap().insert(at, (fault, failures(&report), summary(&report)));
                }
            });
        }
    });
    let (mut found, mut words) = (Vec::new(), String::new());
    for (fault, failed, told) in done.into_inner().unwrap().into_values() {
        found.extend(failed.into_iter().map(|failure| format!("{fault}: {failure}")));
        words.push_str(&format!("== {fault}\n{told}\n"));
    }
    compare("broken.txt", &found, &words);
}

/// Forbidden behaviour of a plugin costs one case, which reports it in a line; the run ends in
/// time.
#[test]
fn a_plugin_that_misbehaves_costs_one_case() {
    testkit::require!("root");
    for (fault, words) in [
        ("prints-garbage", "standard output"),
        ("prints-100-megabytes", "it wrote more than 4 MiB and was killed"),
        ("leaves-a-child", "a process it left behind keeps its standard output or error open"),
        ("kills-itself", "signal 9 ended it"),
        ("hangs", "it did not end within 10 s and was killed"),
    ] {
        let dir = folder(&["bridge"], fault);
        let report = run(&suite(dir.path()).call_timeout(Duration::from_secs(10)));
        assert_eq!(failures(&report), ["bridge/version-answers"], "{fault}: {}", summary(&report));
        assert!(summary(&report).contains(words), "{fault}: {}", summary(&report));
        let cases = &report.plugins[0].cases;
        let skipped = |case: &&conformance::CaseReport| matches!(&case.verdict, Verdict::Skipped { reason } if reason.contains("version-answers"));
        assert_eq!(cases.iter().filter(skipped).count(), cases.len() - 1, "{fault}");
    }
}
