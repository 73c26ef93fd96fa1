//! `netwright conformance` as people call it. The suite's findings are tested in its own crate.

use std::os::unix::fs::symlink;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{EXECUTABLE, Scratch};

/// A folder with one of our plugins.
fn folder(scratch: &Scratch) -> String {
    let dir = scratch.path("plugins");
    std::fs::create_dir_all(&dir).unwrap();
    symlink(EXECUTABLE, dir.join("host-local")).unwrap();
    dir.to_str().unwrap().to_owned()
}

#[test]
fn what_cannot_be_asked_is_a_wrong_command_line() {
    let scratch = Scratch::new();
    let dir = folder(&scratch);
    let empty = scratch.path("empty");
    std::fs::create_dir_all(&empty).unwrap();
    let config = scratch.write("config", "{");
    let config = config.to_str().unwrap();
    for (arguments, words) in [
        (vec!["--bin-dir", empty.to_str().unwrap()], "there is no plugin in"),
        (vec!["--bin-dir", "/nowhere"], "read the folder of plugins \"/nowhere\""),
        (vec!["--bin-dir", &dir, "--plugin", "bridge"], "there is: host-local"),
        (vec!["--bin-dir", &dir, "--plugin", "hostlocal"], "did you mean \"host-local\"?"),
        (vec!["--bin-dir", &dir, "--case", "none"], "there is no case \"none\""),
        (vec!["--bin-dir", &dir, "--case", "del-twic"], "did you mean \"del-twice\"?"),
        (vec!["--bin-dir", &dir, "--config", config], "the configuration is not JSON"),
        (vec![], "--bin-dir <DIR>"),
    ] {
        let said = scratch.call(&[&["conformance"][..], &arguments].concat());
        assert_eq!(said.code, 2, "{arguments:?}: {}", said.stderr);
        assert!(said.stderr.contains(words), "{arguments:?}: {}", said.stderr);
    }
}

#[test]
fn the_cases_are_listed() {
    let said = Scratch::new().call(&["conformance", "--list"]).succeeded();
    let line = said.stdout.lines().find(|line| line.starts_with("del-twice "));
    let words = "MUST   §2 DEL: A second DEL, with nothing left to remove, succeeds.";
    assert!(line.is_some_and(|line| line.ends_with(words)), "{line:?}");
    assert!(100 < said.stdout.lines().count());
}

#[test]
fn one_case_is_run_and_told_in_each_format() {
    testkit::require!("root");
    let scratch = Scratch::new();
    let dir = folder(&scratch);
    let call =
        ["conformance", "--bin-dir", &dir, "--case", "version-answers", "--case", "del-twice"];
    let said = scratch.call(&call).succeeded();
    assert!(said.stdout.contains("host-local           2/2       0/0"), "{}", said.stdout);
    assert!(said.stderr.contains("MUST: 2 passed, 0 failed"), "{}", said.stderr);
    for (format, words) in [
        ("junit", "<testcase classname=\"host-local\" name=\"del-twice\""),
        ("json", "\"id\": \"del-twice\""),
        ("md", "| `del-twice` | MUST | 2 DEL | pass |"),
        ("html", "<code>del-twice</code>"),
    ] {
        let said = scratch.call(&[&call[..], &["--report", format]].concat()).succeeded();
        assert!(said.stdout.contains(words), "{format}: {}", said.stdout);
    }
    let file = scratch.path("report.xml");
    let to_file = ["--report", "junit", "--report-file", file.to_str().unwrap()];
    let said = scratch.call(&[&call[..], &to_file].concat()).succeeded();
    assert_eq!(said.stdout, "");
    assert!(std::fs::read_to_string(&file).unwrap().ends_with("</testsuites>\n"));
    let shorter = ["--report", "md", "--report-file", file.to_str().unwrap()];
    scratch.call(&[&call[..], &shorter].concat()).succeeded();
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.starts_with("# Conformance of ") && !text.contains("<testsuite"), "{text}");
}

/// The command fails before it runs anything if it cannot write the report; a write error at the
/// end comes with the table.
#[test]
fn a_report_that_cannot_be_written_is_said() {
    testkit::require!("root");
    let scratch = Scratch::new();
    let dir = folder(&scratch);
    let call = ["conformance", "--bin-dir", &dir, "--case", "version-answers", "--report-file"];
    let said = scratch.call(&[&call[..], &["/nowhere/report"]].concat()).failed(3);
    assert!(said.stderr.starts_with("error: write \"/nowhere/report\"\n"), "{}", said.stderr);
    assert!(!said.stderr.contains("1 case"), "{}", said.stderr);
    let said = scratch.call(&[&call[..], &["/dev/full"]].concat()).failed(3);
    assert!(said.stderr.contains("error: write \"/dev/full\"\ncause: No space"), "{}", said.stderr);
    assert!(said.stderr.contains("host-local           1/1"), "{}", said.stderr);
    let line =
        format!("{EXECUTABLE} conformance --bin-dir {dir} --case version-answers >/dev/full");
    let said = scratch.shell(&line).failed(3);
    assert!(said.stderr.contains("error: write to standard output\ncause: No"), "{}", said.stderr);
}

/// After an interrupt or a kill nothing is left of the suite, not even a plugin that hangs.
#[test]
fn nothing_goes_on_after_an_interruption() {
    testkit::require!("root");
    let scratch = Scratch::new();
    let plugin = scratch.write("slow/slow", "#!/bin/sh\nexec /bin/sleep 600\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&plugin, mode).unwrap();
    let dir = plugin.parent().unwrap().to_str().unwrap();
    // The mark of a call's processes: no other process has it in its environment.
    let mark = format!("PATH={dir}");
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let call = ["conformance", "--bin-dir", dir, "--call-timeout", "600"];
        let mut command = scratch.command(&call);
        let mut suite = command.env("PATH", dir).stderr(Stdio::null()).spawn().unwrap();
        eventually("the plugin is called", || 1 < holders(&mark, suite.id()));
        let pid = Pid::from_raw(suite.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        assert!(!suite.wait().unwrap().success());
        eventually("all of it is gone", || holders(&mark, 0) == 0);
    }
}

/// How many processes, except one, have a variable in their environment.
fn holders(variable: &str, but: u32) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let others = processes.filter(|entry| entry.file_name().to_str() != Some(&but.to_string()));
    let environments = others.filter_map(|entry| std::fs::read(entry.path().join("environ")).ok());
    let has = |text: &Vec<u8>| text.split(|byte| *byte == 0).any(|one| one == variable.as_bytes());
    environments.filter(has).count()
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < end, "not within 20 s: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn several_folders_are_shown_beside_each_other() {
    testkit::require!("root");
    let scratch = Scratch::new();
    let good = folder(&scratch);
    let plugin = scratch.write("bad/host-local", "#!/bin/sh\necho hello\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&plugin, mode).unwrap();
    let bad = plugin.parent().unwrap().to_str().unwrap();
    let call = ["conformance", "--bin-dir", &good, "--bin-dir", bad, "--case", "version-answers"];
    let said = scratch.call(&call);
    assert_eq!(said.code, 1, "{said:#?}");
    let head = format!("| | {good} | {bad} |\n");
    assert!(said.stdout.starts_with(&head), "{}", said.stdout);
    assert!(said.stdout.contains("| MUST: passed / tested | 1 / 1 | 0 / 1 |"), "{}", said.stdout);
    assert!(
        said.stdout.contains("| `version-answers` (MUST) | pass | FAIL: host-local |"),
        "{}",
        said.stdout
    );
    let said = scratch.call(&[&call[..], &["--report", "junit"]].concat()).failed(2);
    assert!(said.stderr.contains("several folders"), "{}", said.stderr);
}

/// A broken plugin makes the exit code 1, and the failure names the command that repeats it.
#[test]
fn a_failure_says_how_to_see_it_again() {
    testkit::require!("root");
    let scratch = Scratch::new();
    let plugin = scratch.write("bad/wrong", "#!/bin/sh\necho hello\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&plugin, mode).unwrap();
    let dir = plugin.parent().unwrap().to_str().unwrap();
    let said = scratch.call(&["conformance", "--bin-dir", dir]);
    assert_eq!(said.code, 1, "{}", said.stderr);
    let again =
        format!("{EXECUTABLE} conformance --bin-dir {dir} --plugin wrong --case version-answers");
    assert!(said.stderr.contains("FAIL wrong version-answers"), "{}", said.stderr);
    assert!(said.stderr.contains(&again), "{}", said.stderr);
    let line = said.stderr.lines().find_map(|line| line.trim().strip_prefix("again:"));
    let line = line.unwrap().trim();
    let pasted = scratch.shell(line);
    assert_eq!(pasted.code, 1, "{line}: {}", pasted.stderr);
    assert!(pasted.stderr.contains("FAIL wrong version-answers"), "{line}: {}", pasted.stderr);
}

/// The time limit of a call can be raised for a slow machine, or lowered; the command that repeats
/// a failure has it too.
#[test]
fn a_call_has_as_long_as_asked() {
    testkit::require!("root");
    let scratch = Scratch::new();
    let plugin = scratch.write("slow/slow", "#!/bin/sh\nexec sleep 600\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&plugin, mode).unwrap();
    let dir = plugin.parent().unwrap().to_str().unwrap();
    let call = ["conformance", "--bin-dir", dir, "--case", "version-answers", "--call-timeout"];
    let said = scratch.call(&[&call[..], &["1"]].concat()).failed(1);
    assert!(said.stderr.contains("it did not end within 1 s and was killed"), "{}", said.stderr);
    assert!(said.stderr.contains(" --call-timeout 1 --case version-answers"), "{}", said.stderr);
    for wrong in ["0", "3601", "1.5", "many"] {
        let said = scratch.call(&[&call[..], &[wrong]].concat()).failed(2);
        assert!(said.stderr.contains("--call-timeout"), "{}", said.stderr);
    }
}
