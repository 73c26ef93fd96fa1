//! ADD: what plugins get, and what the runtime does with their answers.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cni::{Args, ContainerId, IfName, code};
use cni_invoke::Exec;
use netwright_cni_runtime::{AddError, PluginError, RollBack, Runtime, TraceContext};
use serde_json::json;

use crate::lab::{Lab, chain, container, list, network, soon};

#[test]
fn lone_too_new_version() {
    let lab = Lab::new(&["a"]);
    let refuse = r#"echo '{"code":1,"msg":"incompatible CNI versions","details":"d"}'; exit 1"#;
    lab.on("a", "ADD", refuse);
    let list = chain("9.9.0", &["a"]);
    assert_eq!(list.cni_version, "9.9.0");
    let error = lab.runtime().add_list(&list, &container("c1"), None).unwrap_err();
    assert_eq!(error.to_cni().code, code::INCOMPATIBLE_VERSION);
    assert_eq!(error.to_string(), "plugin type=\"a\" failed (add): incompatible CNI versions; d");
    assert_eq!(lab.config("a", "ADD")["cniVersion"], "9.9.0");
    assert_eq!(lab.calls(), ["ADD a", "DEL a"], "no plugin can convert to an unreleased version");
}

#[test]
fn name_and_version_injection() {
    let lab = Lab::new(&["a"]);
    let list = list(&json!({
        "name": "net", "cniVersion": "1.0.0",
        "plugins": [{"type": "a", "name": "own", "cniVersion": "0.1.0"}],
    }));
    lab.runtime().add_list(&list, &container("c1"), None).unwrap();
    let config = lab.config("a", "ADD");
    assert_eq!((&config["name"], &config["cniVersion"]), (&json!("net"), &json!("1.0.0")));
}

#[test]
fn unknown_keys_preserved() {
    let lab = Lab::new(&["a"]);
    let plugin = json!({"type": "a", "x": {"y": [1, null, {"z": "<&>"}]}});
    let list = list(&json!({"name": "net", "cniVersion": "1.0.0", "plugins": [plugin]}));
    lab.runtime().add_list(&list, &container("c1"), None).unwrap();
    assert_eq!(lab.config("a", "ADD")["x"], plugin["x"]);
}

#[test]
fn big_integers_preserved() {
    let lab = Lab::new(&["a"]);
    let document = br#"{"name":"net","cniVersion":"1.0.0",
        "plugins":[{"type":"a","big":1152921504606846977,"bigger":123456789012345678901234567890}]}"#;
    let list = cni::NetworkList::parse(document).unwrap();
    lab.runtime().add_list(&list, &container("c1"), None).unwrap();
    let stdin = lab.stdin("a", "ADD");
    assert!(stdin.contains(r#""big":1152921504606846977"#), "{stdin}");
    assert!(stdin.contains(r#""bigger":123456789012345678901234567890"#), "{stdin}");
}

#[test]
fn runtime_config_filtering() {
    let lab = Lab::new(&["a", "b", "c"]);
    let list = list(&json!({"name": "net", "cniVersion": "1.0.0", "plugins": [
        {"type": "a", "capabilities": {"portMappings": true, "mac": true, "ips": false}},
        {"type": "b", "capabilities": {"bandwidth": true}},
        {"type": "c"},
    ]}));
    let container = container("c1")
        .with_capability("portMappings", &json!([{"hostPort": 8080}]))
        .and_then(|container| container.with_capability("ips", &["192.0.2.9"]))
        .and_then(|container| container.with_capability("unused", &1))
        .unwrap();
    lab.runtime().add_list(&list, &container, None).unwrap();
    let config = lab.config("a", "ADD");
    assert_eq!(config["runtimeConfig"], json!({"portMappings": [{"hostPort": 8080}]}));
    for plugin in ["b", "c"] {
        assert!(lab.config(plugin, "ADD").get("runtimeConfig").is_none());
    }
}

#[test]
fn env_completeness() {
    let lab = Lab::new(&["a"]);
    let environment = std::env::vars_os().chain([
        ("NWT_PARENT".into(), "kept".into()),
        ("CNI_ARGS".into(), "stale=1".into()),
        ("CNI_NETNS_OVERRIDE".into(), "1".into()),
        ("TRACEPARENT".into(), "stale".into()),
    ]);
    let runtime = Runtime::new([lab.bin(), "/second".into()], Arc::new(Exec::new(environment)))
        .with_cache(lab.runtime().cache().clone());
    let mut container = container("c1");
    let list = chain("1.1.0", &["a"]);
    runtime.add_list(&list, &container, None).unwrap();
    let variable = |name: &str| lab.variable("a", "ADD", name);
    let path = format!("{}:/second", lab.bin().display());
    for (name, value) in [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", "/run/netns/nwt-c1"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_ARGS", ""),
        ("CNI_PATH", &path),
        ("NWT_PARENT", "kept"),
    ] {
        assert_eq!(variable(name).as_deref(), Some(value), "{name}");
    }
    assert_eq!(variable("CNI_NETNS_OVERRIDE"), None);
    assert_eq!(variable("TRACEPARENT"), None);

    container.args = Args::parse("IgnoreUnknown=1;K=V").unwrap();
    container.container_id = ContainerId::new("c2").unwrap();
    runtime.with_netns_override("1").add_list(&list, &container, None).unwrap();
    assert_eq!(lab.variable("a", "ADD", "CNI_ARGS").as_deref(), Some("IgnoreUnknown=1;K=V"));
    assert_eq!(lab.variable("a", "ADD", "CNI_NETNS_OVERRIDE").as_deref(), Some("1"));
}

#[test]
fn the_trace_goes_on_in_every_plugin() {
    let lab = Lab::new(&["a", "b"]);
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let trace = TraceContext::new(parent)
        .and_then(|trace| trace.with_tracestate("k=v"))
        .and_then(|trace| trace.with_baggage("user=alice"))
        .unwrap();
    let runtime = lab.runtime().with_trace(Some(trace));
    runtime.add_list(&chain("1.1.0", &["a", "b"]), &container("c1"), None).unwrap();
    for plugin in ["a", "b"] {
        let variable = |name: &str| lab.variable(plugin, "ADD", name);
        assert_eq!(variable("TRACEPARENT").as_deref(), Some(parent));
        assert_eq!(variable("TRACESTATE").as_deref(), Some("k=v"));
        assert_eq!(variable("BAGGAGE").as_deref(), Some("user=alice"));
    }
}

#[test]
fn plugin_search() {
    let (first, second) = (Lab::new(&[]), Lab::new(&["a"]));
    std::fs::create_dir(first.bin().join("a")).unwrap();
    let executor = Arc::new(Exec::new(std::env::vars_os()));
    let runtime = Runtime::new([first.bin(), second.bin()], executor)
        .with_cache(first.runtime().cache().clone());
    let list = chain("1.1.0", &["a"]);
    runtime.add_list(&list, &container("c1"), None).unwrap();
    assert_eq!(second.calls(), ["ADD a"], "a folder is skipped, a link is followed");
    std::fs::remove_dir(first.bin().join("a")).unwrap();
    first.plugin("a");
    runtime.add_list(&list, &container("c2"), None).unwrap();
    assert_eq!((first.calls(), second.calls()), (vec!["ADD a".to_owned()], vec![]));
}

#[test]
fn input_validation() {
    // The types reject bad IDs and interface names.
    assert_eq!(ContainerId::new("a b").unwrap_err().code, code::INVALID_ENVIRONMENT);
    assert_eq!(IfName::new("sixteen-bytes-xx").unwrap_err().code, code::INVALID_ENVIRONMENT);
    let lab = Lab::new(&["a"]);
    let runtime = lab.runtime();
    for name in ["te%st", "", "../x"] {
        let error =
            runtime.add_list(&network(name, "1.0.0", &["a"]), &container("c1"), None).unwrap_err();
        assert!(matches!(error, AddError::Invalid(_)), "{error}");
        assert_eq!(error.to_cni().code, code::INVALID_CONFIG);
    }
    let empty = cni::NetworkList::parse(br#"{"name": "net"}"#).unwrap();
    let error = runtime.add_list(&empty, &container("c1"), None).unwrap_err();
    assert_eq!(error.to_string(), "no plugin configs found; network \"net\" lists no plugins");
    assert!(lab.calls().is_empty() && lab.cached().is_empty());
}

/// Checks come before acts: the runtime does not begin a chain that cannot be completed.
#[test]
fn a_missing_plugin_is_found_out_before_the_first_runs() {
    let lab = Lab::new(&["a", "b"]);
    let error = lab
        .runtime()
        .add_list(&chain("1.0.0", &["a", "b", "gone"]), &container("c1"), None)
        .unwrap_err();
    let bin = lab.bin();
    assert_eq!(
        error.to_string(),
        format!(
            "plugin type=\"gone\" failed (add): failed to find plugin \"gone\" in path [{}]",
            bin.display()
        )
    );
    assert!(matches!(error.roll_back(), RollBack::NotNeeded));
    assert!(lab.calls().is_empty() && lab.cached().is_empty());
}

#[test]
fn add_chaining() {
    let lab = Lab::new(&["a", "b", "c"]);
    lab.on("b", "ADD", r#"echo '{"cniVersion":"1.0.0","ips":[],"vendor":{"k":1}}'"#);
    let added =
        lab.runtime().add_list(&chain("1.0.0", &["a", "b", "c"]), &container("c1"), None).unwrap();
    assert_eq!(lab.calls(), ["ADD a", "ADD b", "ADD c"]);
    assert!(lab.config("a", "ADD").get("prevResult").is_none());
    assert_eq!(lab.config("b", "ADD")["prevResult"]["dns"]["domain"], "a");
    let third = &lab.config("c", "ADD")["prevResult"];
    assert_eq!(third["vendor"], json!({"k": 1}), "what we do not know passes through");
    assert_eq!(added.result.dns.domain, "c");
    assert!(added.document.get().contains(r#""domain":"c""#));
}

#[test]
fn add_error_wrapping() {
    let lab = Lab::new(&["a"]);
    lab.on("a", "ADD", r#"echo '{"code":11,"msg":"busy","details":"later"}'; exit 1"#);
    let single = br#"{"name": "net", "cniVersion": "1.0.0", "type": "a"}"#;
    let list = cni::NetworkList::from_plugin(single).unwrap();
    let error = lab.runtime().add_list(&list, &container("c1"), None).unwrap_err();
    assert_eq!(error.to_string(), "plugin type=\"a\" name=\"net\" failed (add): busy; later");
    let object = error.to_cni();
    assert_eq!(object.code, 11);
    assert_eq!(object.msg, "plugin type=\"a\" name=\"net\" failed (add): busy");
    assert_eq!(object.details, "later; what ADD had done was undone");
    let AddError::Plugin { failure, .. } = error else { panic!("{error}") };
    assert!(matches!(*failure.error, PluginError::Reported(ref error) if error.code == 11));
}

#[test]
fn result_version_fix_up() {
    let lab = Lab::new(&["a", "b"]);
    let runtime = lab.runtime();
    for (index, said) in
        [r#"{"ips":[]}"#, r#"{"cniVersion":"","ips":[]}"#, "{}", " null\n"].iter().enumerate()
    {
        lab.on("a", "ADD", &format!("printf '%s' '{said}'"));
        let container = container(&format!("c{index}"));
        runtime.add_list(&chain("1.0.0", &["a", "b"]), &container, None).unwrap();
        assert_eq!(lab.config("b", "ADD")["prevResult"]["cniVersion"], "1.0.0", "{said}");
    }
}

#[test]
fn a_result_of_another_version_is_converted_to_the_lists() {
    let lab = Lab::new(&["a", "b"]);
    let old =
        r#"{"cniVersion":"0.2.0","ip4":{"ip":"192.0.2.7/24","gateway":"192.0.2.1"},"dns":{}}"#;
    lab.on("a", "ADD", &format!("echo '{old}'"));
    lab.runtime().add_list(&chain("1.0.0", &["a", "b"]), &container("c1"), None).unwrap();
    assert_eq!(
        lab.config("b", "ADD")["prevResult"],
        json!({"cniVersion": "1.0.0", "ips": [{"address": "192.0.2.7/24", "gateway": "192.0.2.1"}]})
    );
}

#[test]
fn failure_texts() {
    let lab = Lab::new(&["a"]);
    let runtime = lab.runtime();
    for (script, text) in [
        ("exit 1", "netplugin failed with no error message: exit status 1"),
        ("printf oops >&2; exit 3", "netplugin failed: \"oops\": exit status 3"),
        ("kill -9 $$", "netplugin failed with no error message: signal: killed"),
    ] {
        lab.on("a", "ADD", script);
        let error = runtime.add_list(&chain("1.0.0", &["a"]), &container("c1"), None).unwrap_err();
        assert_eq!(error.to_string(), format!("plugin type=\"a\" failed (add): {text}"));
    }
    lab.on("a", "ADD", "echo noise; echo why >&2; exit 1");
    let error = runtime.add_list(&chain("1.0.0", &["a"]), &container("c1"), None).unwrap_err();
    let start = "plugin type=\"a\" failed (add): netplugin failed but error parsing its diagnostic \
                 message \"noise\\n\": ";
    assert!(error.to_string().starts_with(start), "{error}");
}

#[test]
fn stderr_forwarding() {
    let lab = Lab::new(&["a", "b"]);
    lab.on("a", "ADD", "echo 'be careful' >&2; echo '{}'").on("b", "ADD", "echo bad >&2; exit 1");
    let heard = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&heard);
    let runtime = lab.runtime().with_stderr(move |said| {
        let text = String::from_utf8_lossy(said.text).into_owned();
        sink.lock().unwrap().push(format!("{} {}: {text}", said.command, said.plugin_type));
    });
    let error = runtime.add_list(&chain("1.0.0", &["a", "b"]), &container("c1"), None).unwrap_err();
    assert_eq!(*heard.lock().unwrap(), ["ADD a: be careful\n"]);
    assert!(error.to_string().contains("netplugin failed: \"bad\\n\""), "{error}");
}

#[test]
fn etxtbsy_retry() {
    let lab = Lab::new(&[]);
    // A program, because a shell may read a script while it is written.
    let target = lab.bin().join("a");
    std::fs::copy("/bin/true", &target).unwrap();
    let busy = std::fs::OpenOptions::new().append(true).open(&target).unwrap();
    let (done, wait) = mpsc::channel::<()>();
    let installer = std::thread::spawn(move || {
        // The thread ends with the test at the latest; the time is that of the installer's write.
        let _ = wait.recv_timeout(Duration::from_millis(300));
        drop(busy);
    });
    let started = Instant::now();
    let error =
        lab.runtime().add_list(&chain("1.0.0", &["a"]), &container("c1"), None).unwrap_err();
    let waited = started.elapsed();
    drop(done);
    installer.join().unwrap();
    assert!(Duration::from_millis(250) <= waited, "it ran after {waited:?} while it was written");
    // The plugin did run: `true` prints nothing, which is not a result.
    assert!(error.to_string().contains("failed to unmarshal raw result"), "{error}");
}

#[test]
fn cancellation() {
    let lab = Lab::new(&["a"]);
    lab.on("a", "ADD", "sleep 60");
    let started = Instant::now();
    let deadline = soon(Duration::from_millis(300));
    let error =
        lab.runtime().add_list(&chain("1.0.0", &["a"]), &container("c1"), deadline).unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(20));
    assert_eq!(error.to_cni().code, code::TRY_AGAIN_LATER);
    assert!(error.to_string().contains("did not finish within"), "{error}");
    assert_eq!(lab.calls(), ["ADD a", "DEL a"], "undone within time of its own");
    assert!(lab.cached().is_empty());
}

#[test]
fn nothing_is_started_after_the_deadline() {
    let lab = Lab::new(&["a"]);
    let error = lab
        .runtime()
        .add_list(&chain("1.0.0", &["a"]), &container("c1"), Some(Instant::now()))
        .unwrap_err();
    assert_eq!(error.to_cni().code, code::TRY_AGAIN_LATER);
    assert!(lab.calls().is_empty() && lab.cached().is_empty());
}

#[test]
fn many_at_once() {
    let lab = Lab::new(&["a", "b"]);
    let runtime = lab.runtime();
    let list = chain("1.0.0", &["a", "b"]);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (runtime, list) = (&runtime, &list);
            scope.spawn(move || {
                for number in 0..5 {
                    let container = container(&format!("c{thread}-{number}"));
                    runtime.add_list(list, &container, None).unwrap();
                    if number % 2 == 0 {
                        runtime.del_list(list, &container, None).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(lab.cached().len(), 16);
    assert_eq!(runtime.cached_attachments(None).unwrap().attachments.len(), 16);
}
