//! Folders of plugins, and runs of the suite on them.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use conformance::{CaseReport, Launcher, Level, Report, Suite, Verdict};

/// The folders of programs that plugins may need (iptables for the reference's).
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// The example `broken`: our plugins, with faults. Cargo builds it with the tests.
pub(crate) fn broken() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let example = test.ancestors().nth(2).unwrap().join("examples/broken");
    assert!(example.exists(), "{} is built with `--test it` or `--examples`", example.display());
    example
}

/// A folder with plugins that have a fault.
pub(crate) fn folder(plugins: &[&str], fault: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for plugin in plugins {
        symlink(broken(), dir.path().join(plugin)).unwrap();
    }
    std::fs::write(dir.path().join("fault"), fault).unwrap();
    dir
}

/// The suite on a folder.
pub(crate) fn suite(dir: &Path) -> Suite {
    let launcher = Launcher { program: broken(), arguments: vec!["serve-case".into()] };
    Suite::new(launcher, dir, PATH).unwrap()
}

/// Runs it.
pub(crate) fn run(suite: &Suite) -> Report {
    let report = suite.run(&|_, _| {}).unwrap();
    for plugin in &report.plugins {
        let broken = plugin.cases.iter().find(|case| case.broken);
        let told = broken.map(|case| case.text(&plugin.plugin));
        assert!(told.is_none(), "the laboratory broke: {}", told.unwrap_or_default());
    }
    report
}

/// The cases that failed, as `plugin/case`.
pub(crate) fn failures(report: &Report) -> Vec<String> {
    let of = |plugin: &'_ conformance::PluginReport| {
        plugin.failures().map(|case| format!("{}/{}", plugin.plugin, case.id)).collect::<Vec<_>>()
    };
    report.plugins.iter().flat_map(of).collect()
}

/// The report's text about failures, for a failed test.
pub(crate) fn summary(report: &Report) -> String {
    let plugins = report.plugins.iter();
    let lines = plugins.flat_map(|p| p.failures().map(|case| case.text(&p.plugin)));
    lines.collect::<Vec<_>>().join("\n")
}

/// Compares lines with a file of this crate's `tests` folder, in which `#` begins a remark;
/// UPDATE_EXPECT writes it anew, and keeps the remarks of lines that stay.
#[track_caller]
pub(crate) fn compare(file: &str, found: &[String], words: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let known: Vec<(&str, &str)> = text
        .lines()
        .map(|line| line.split_once('#').unwrap_or((line, "")))
        .map(|(line, remark)| (line.trim(), remark.trim()))
        .collect();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        let head = text.lines().take_while(|line| line.starts_with('#'));
        let mut new: String = head.map(|line| format!("{line}\n")).collect();
        for line in found {
            let remark = known.iter().find(|(known, _)| known == line).map_or("", |(_, r)| *r);
            new.push_str(format!("{line} # {remark}").trim_end().trim_end_matches(" #"));
            new.push('\n');
        }
        std::fs::write(&path, new).unwrap();
        return;
    }
    let expected: Vec<&str> =
        known.iter().map(|(line, _)| *line).filter(|line| !line.is_empty()).collect();
    let more: Vec<_> = found.iter().filter(|line| !expected.contains(&line.as_str())).collect();
    let fewer: Vec<_> = expected.iter().filter(|line| !found.iter().any(|f| f == *line)).collect();
    assert!(
        more.is_empty() && fewer.is_empty(),
        "{}: not expected: {more:#?}\nexpected and not there: {fewer:#?}\n{words}",
        path.display()
    );
    for (line, remark) in known.iter().filter(|(line, _)| !line.is_empty()) {
        assert!(!remark.is_empty(), "{}: {line} has no reason", path.display());
    }
}

/// Compares how many checks each plugin got and passed with `asked.txt`, or writes the file anew
/// (UPDATE_EXPECT). Plugins are left out if this machine's kernel lacks something that they need.
#[track_caller]
pub(crate) fn compare_asked(subject: &str, report: &Report) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/asked.txt");
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let mut known: BTreeMap<String, String> = text
        .lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(who, count)| (who.to_owned(), count.to_owned()))
        .collect();
    let lacks = |case: &CaseReport| matches!(&case.verdict, Verdict::Skipped { reason } if reason.contains("kernel has no"));
    let complete = report.plugins.iter().filter(|plugin| !plugin.cases.iter().any(lacks));
    let found: Vec<(String, String)> = complete
        .map(|plugin| {
            let [must, should] = [Level::Must, Level::Should].map(|level| plugin.tally(level));
            let kept = |t: conformance::Tally| format!("{} of {}", t.passed, t.passed + t.failed);
            let count = format!("MUST {}, SHOULD {}", kept(must), kept(should));
            (format!("{subject} {}", plugin.plugin), count)
        })
        .collect();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        known.extend(found);
        let lines = known.iter().map(|(who, count)| format!("{who}: {count}\n"));
        std::fs::write(&path, lines.collect::<String>()).unwrap();
        return;
    }
    for (who, count) in found {
        assert_eq!(known.get(&who), Some(&count), "{who} in {}", path.display());
    }
}
