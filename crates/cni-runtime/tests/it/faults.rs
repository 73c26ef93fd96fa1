//! Plugin k fails in every possible way: nothing remains to be undone.

use std::time::{Duration, Instant};

use netwright_cni_runtime::{DelError, RollBack};

use crate::lab::{Lab, chain, container, soon};

const PLUGINS: &[&str] = &["p0", "p1", "p2"];

/// What a plugin can do to the runtime.
const FAULTS: &[(&str, &str)] = &[
    ("exits with an error", "exit 1"),
    ("hangs", "sleep 60"),
    ("is killed", "kill -9 $$"),
    ("prints no JSON", "echo '{\"cniVersion\"'; exit 1"),
    ("prints 100 MB", "yes | head -c 100000000"),
    ("closes its output and hangs", "exec >&- 2>&-; sleep 60"),
    ("ends and leaves a child that holds its output", "sleep 5 & exit 1"),
];

/// Faults that matter only if a result is expected.
const BAD_RESULTS: &[(&str, &str)] = &[
    ("prints nothing", "exit 0"),
    ("prints half a result", "echo '{\"cniVersion\": \"1.0.0\", \"ips\": ['"),
    ("prints another type", "echo '[]'"),
    ("prints a version from the future", "echo '{\"cniVersion\": \"9.0.0\"}'"),
    ("prints an address that is none", "echo '{\"ips\": [{\"address\": \"x\"}]}'"),
    ("prints two results", "echo '{}{}'"),
    ("prints bytes that are no text", r#"printf '{"\377": 1}'"#),
];

/// The deadline of a call with this fault: soon if it could hang, late if only a busy machine
/// delays it.
fn deadline(fault: &str) -> Option<Instant> {
    soon(Duration::from_millis(if fault.contains("hangs") { 2_000 } else { 15_000 }))
}

fn reversed(verb: &str, count: usize) -> Vec<String> {
    PLUGINS[..count].iter().rev().map(|plugin| format!("{verb} {plugin}")).collect()
}

#[test]
fn add_undoes_every_plugin_that_ran_whatever_happens() {
    let list = chain("1.0.0", PLUGINS);
    for (fault, script) in FAULTS.iter().chain(BAD_RESULTS) {
        for (k, plugin) in PLUGINS.iter().enumerate() {
            let lab = Lab::new(PLUGINS);
            lab.on(plugin, "ADD", script);
            let started = Instant::now();
            let error =
                lab.runtime().add_list(&list, &container("c1"), deadline(fault)).unwrap_err();
            let start = format!("plugin type=\"{plugin}\" failed (add): ");
            assert!(error.to_string().starts_with(&start), "{fault}: {error}");
            assert!(matches!(error.roll_back(), RollBack::Done), "{fault}: {error:?}");
            let mut expected: Vec<String> =
                PLUGINS[..=k].iter().map(|plugin| format!("ADD {plugin}")).collect();
            expected.extend(reversed("DEL", k + 1));
            assert_eq!(lab.calls(), expected, "{fault}");
            assert!(lab.cached().is_empty(), "{fault}");
            assert!(started.elapsed() < Duration::from_secs(20), "{fault}");
            // Plugins that use the previous result get the last one that existed.
            let previous = lab.config("p0", "DEL").get("prevResult").cloned();
            let domain = previous.map(|result| result["dns"]["domain"].clone());
            let last = k.checked_sub(1).map(|last| PLUGINS[last].into());
            assert_eq!(domain, last, "{fault}");
        }
    }
}

#[test]
fn del_runs_every_plugin_whatever_happens() {
    let list = chain("1.0.0", PLUGINS);
    for (fault, script) in FAULTS {
        for plugin in PLUGINS {
            let lab = Lab::new(PLUGINS);
            let runtime = lab.runtime().with_cleanup_time(Duration::from_secs(10));
            runtime.add_list(&list, &container("c1"), None).unwrap();
            lab.calls();
            lab.on(plugin, "DEL", script);
            let started = Instant::now();
            let error = runtime.del_list(&list, &container("c1"), deadline(fault)).unwrap_err();
            let DelError::Plugins(failures) = &error else { panic!("{fault}: {error}") };
            assert_eq!(failures.len(), 1, "{fault}: {error}");
            assert_eq!(failures[0].plugin_type, *plugin, "{fault}");
            assert_eq!(lab.calls(), reversed("DEL", 3), "{fault}");
            assert_eq!(lab.cached(), ["net-c1-eth0"], "{fault}");
            assert!(started.elapsed() < Duration::from_secs(20), "{fault}");
        }
    }
}

#[test]
fn a_roll_back_that_fails_comes_second_and_leaves_a_record() {
    let lab = Lab::new(PLUGINS);
    let list = chain("1.0.0", PLUGINS);
    lab.on("p1", "ADD", r#"echo '{"code":100,"msg":"first"}'; exit 1"#);
    lab.on("p1", "DEL", r#"echo '{"code":101,"msg":"second"}'; exit 1"#);
    let runtime = lab.runtime();
    let error = runtime.add_list(&list, &container("c1"), None).unwrap_err();
    assert_eq!(error.to_string(), "plugin type=\"p1\" failed (add): first");
    let object = error.to_cni();
    assert_eq!(object.code, 100);
    assert_eq!(
        object.details,
        "undoing what ADD had done failed, run DEL again: plugin type=\"p1\" failed (delete): second"
    );
    assert_eq!(lab.calls(), ["ADD p0", "ADD p1", "DEL p1", "DEL p0"]);
    // GC completes the undo.
    assert_eq!(lab.cached(), ["net-c1-eth0"]);
    lab.off("p1", "DEL");
    runtime.gc_list(&list, Some(&[]), None).unwrap();
    assert_eq!(lab.calls(), ["DEL p2", "DEL p1", "DEL p0"]);
    assert!(lab.cached().is_empty());
}

#[test]
fn a_plugin_that_hangs_in_the_roll_back_leaves_the_others_their_time() {
    let lab = Lab::new(PLUGINS);
    lab.on("p2", "ADD", "sleep 60").on("p2", "DEL", "sleep 60");
    let runtime = lab.runtime().with_cleanup_time(Duration::from_secs(3));
    let error = runtime
        .add_list(&chain("1.0.0", PLUGINS), &container("c1"), soon(Duration::from_secs(3)))
        .unwrap_err();
    let RollBack::Failed(failures) = error.roll_back() else { panic!("{error:?}") };
    assert_eq!(failures.len(), 1);
    assert_eq!(lab.calls()[3..], ["DEL p2", "DEL p1", "DEL p0"]);
}

#[test]
fn roll_back_can_be_left_to_the_caller() {
    let lab = Lab::new(PLUGINS);
    lab.on("p1", "ADD", "exit 1");
    let runtime = lab.runtime().without_roll_back();
    let list = chain("1.0.0", PLUGINS);
    let error = runtime.add_list(&list, &container("c1"), None).unwrap_err();
    assert!(matches!(error.roll_back(), RollBack::Disabled));
    assert_eq!(lab.calls(), ["ADD p0", "ADD p1"]);
    assert_eq!(lab.cached(), ["net-c1-eth0"], "DEL and GC know what was begun");
    let begun = runtime.cached_attachments(None).unwrap().attachments.remove(0);
    let why = begun.failed.unwrap();
    assert!(begun.result.is_none() && why.contains("plugin type=\"p1\" failed (add)"), "{why}");
}

/// It has made nothing, whatever words the plugins between it and the runtime put before its own.
#[test]
fn a_plugin_that_refuses_del_as_it_refused_add_keeps_no_record() {
    let range = r#""netwright/refusal":{"code":7,"msg":"range"}"#;
    let say = |error: &str| format!("echo '{{{error}}}'; exit 1");
    let list = chain("1.0.0", PLUGINS);
    let refused = |at_del: &str| {
        let lab = Lab::new(PLUGINS);
        lab.on("p1", "ADD", &say(&format!(r#""code":7,"msg":"add: range",{range}"#)));
        lab.on("p1", "DEL", &say(at_del));
        // The record stays because of another plugin.
        lab.on("p0", "DEL", &say(r#""code":100,"msg":"busy""#));
        let error = lab.runtime().add_list(&list, &container("c1"), None).unwrap_err();
        assert!(matches!(error.roll_back(), RollBack::Failed(_)), "{error:?}");
        lab.runtime().del_list(&list, &container("c1"), None).unwrap_err();
        assert_eq!(lab.cached(), ["net-c1-eth0"], "{at_del}");
        lab.off("p0", "DEL");
        lab
    };
    let same = format!(r#""code":7,"msg":"release: range",{range}"#);
    let lab = refused(&same);
    let deleted = lab.runtime().del_list(&list, &container("c1"), None).unwrap();
    let told = "plugin type=\"p1\" failed (delete): release: range; so it did at ADD";
    assert!(deleted.notices[0].starts_with(told), "{deleted:?}");
    assert_eq!(lab.cached().len(), 0);
    let lab = refused(&same);
    lab.runtime().gc_list(&list, Some(&[]), None).unwrap();
    assert_eq!(lab.cached().len(), 0);
    // Unknown is not gone.
    let recorded = format!(r#"{same},"netwright/left":true"#);
    for other in [
        r#""code":7,"msg":"another range""#,
        r#""code":7,"msg":"""#,
        r#""code":11,"msg":"range""#,
        &recorded,
    ] {
        let lab = refused(other);
        lab.runtime().del_list(&list, &container("c1"), None).unwrap_err();
        lab.runtime().gc_list(&list, Some(&[]), None).unwrap_err();
        assert_eq!(lab.cached(), ["net-c1-eth0"], "{other}");
        // What another plugin refuses by now, it has made.
        lab.on("p0", "DEL", &say(&same)).off("p1", "DEL");
        lab.runtime().del_list(&list, &container("c1"), None).unwrap_err();
        assert_eq!(lab.cached(), ["net-c1-eth0"], "{other}");
    }
}

/// The plugins refuse what exists already; an undo would take down a container's working network.
#[test]
fn a_second_add_does_not_destroy_the_first() {
    let lab = Lab::new(PLUGINS);
    let runtime = lab.runtime();
    let list = chain("1.0.0", PLUGINS);
    runtime.add_list(&list, &container("c1"), None).unwrap();
    let before = lab.read_cached("net-c1-eth0");
    lab.calls();
    lab.on("p0", "ADD", r#"echo '{"code":100,"msg":"eth0 already exists"}'; exit 1"#);
    let error = runtime.add_list(&list, &container("c1"), None).unwrap_err();
    assert!(matches!(error.roll_back(), RollBack::Withheld));
    assert!(error.to_cni().details.contains("run DEL before another ADD"));
    assert_eq!(lab.calls(), ["ADD p0"]);
    assert_eq!(lab.read_cached("net-c1-eth0"), before);
    // In another namespace it is another life of the container, as after a reboot.
    let mut moved = container("c1");
    moved.netns = "/run/netns/nwt-elsewhere".to_owned();
    let error = runtime.add_list(&list, &moved, None).unwrap_err();
    assert!(matches!(error.roll_back(), RollBack::Done));
    assert!(lab.cached().is_empty());
}

#[test]
fn a_plugin_that_is_not_executable_is_named() {
    let lab = Lab::new(&["p0"]);
    std::fs::write(lab.bin().join("text"), "no program").unwrap();
    let error = lab
        .runtime()
        .add_list(&chain("1.0.0", &["p0", "text"]), &container("c1"), None)
        .unwrap_err();
    assert!(error.to_string().contains("start plugin"), "{error}");
    assert!(error.to_string().contains("Permission denied"), "{error}");
    assert_eq!(lab.calls(), ["ADD p0", "DEL p0"], "what never started has nothing to undo");
}
