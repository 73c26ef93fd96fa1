//! GC.

use std::time::{Duration, Instant};

use cni::{GcAttachment, NetworkName};
use netwright_cni_runtime::{GcReport, Runtime};
use serde_json::json;

use crate::lab::{Lab, chain, container, list, network};

fn valid(ids: &[&str]) -> Vec<GcAttachment> {
    ids.iter()
        .map(|id| GcAttachment { container_id: (*id).to_owned(), ifname: "eth0".to_owned() })
        .collect()
}

fn attach(runtime: &Runtime<'_>, lab: &Lab, ids: &[&str]) {
    for id in ids {
        runtime.add_list(&chain("1.1.0", &["a", "b"]), &container(id), None).unwrap();
    }
    lab.calls();
}

fn removed(report: &GcReport) -> Vec<String> {
    report.removed.iter().map(|key| key.container_id.to_string()).collect()
}

#[test]
fn gc_deletes_stale_attachments() {
    let lab = Lab::new(&["a", "b"]);
    let runtime = lab.runtime();
    attach(&runtime, &lab, &["c1", "c2", "c3"]);
    runtime.add_list(&network("other", "1.1.0", &["a"]), &container("c4"), None).unwrap();
    lab.calls();
    let report =
        runtime.gc_list(&chain("1.1.0", &["a", "b"]), Some(&valid(&["c2"])), None).unwrap();
    assert_eq!(removed(&report), ["c1", "c3"]);
    assert_eq!(report.kept.iter().map(ToString::to_string).collect::<Vec<_>>(), ["net/c2/eth0"]);
    assert_eq!(report.collected, ["a", "b"]);
    assert_eq!(
        lab.calls_with_container(),
        ["DEL b c1", "DEL a c1", "DEL b c3", "DEL a c3", "GC a ", "GC b "]
    );
    assert_eq!(lab.config("a", "DEL")["prevResult"]["dns"]["domain"], "b");
    assert_eq!(lab.cached(), ["net-c2-eth0", "other-c4-eth0"]);
}

#[test]
fn gc_verb() {
    let lab = Lab::new(&["a", "b"]);
    let runtime = lab.runtime();
    let valid = valid(&["c1"]);
    runtime.gc_list(&chain("1.1.0", &["a", "b"]), Some(&valid), None).unwrap();
    for plugin in ["a", "b"] {
        let config = lab.config(plugin, "GC");
        let expected = json!([{"containerID": "c1", "ifname": "eth0"}]);
        assert_eq!(config["cni.dev/valid-attachments"], expected);
        assert_eq!(config["cni.dev/attachments"], expected);
        assert_eq!(config["name"], "net");
    }
    runtime.gc_list(&chain("1.1.0", &["a", "b"]), Some(&[]), None).unwrap();
    assert_eq!(lab.config("a", "GC")["cni.dev/valid-attachments"], json!([]));
}

#[test]
fn gc_on_old_version() {
    let lab = Lab::new(&["a"]);
    let runtime = lab.runtime();
    let list = chain("1.0.0", &["a"]);
    runtime.add_list(&list, &container("c1"), None).unwrap();
    lab.calls();
    runtime.gc_list(&list, Some(&[]), None).unwrap();
    assert_eq!(lab.calls(), ["DEL a"]);
}

#[test]
fn gc_nil_args() {
    let lab = Lab::new(&["a", "b"]);
    let runtime = lab.runtime();
    attach(&runtime, &lab, &["c1", "c2"]);
    let report = runtime.gc_list(&chain("1.1.0", &["a", "b"]), None, None).unwrap();
    assert_eq!(removed(&report), ["c1", "c2"]);
    let config = lab.config("a", "GC");
    assert!(config.get("cni.dev/valid-attachments").is_none());
    assert!(config.get("cni.dev/attachments").is_none());
    assert!(lab.cached().is_empty());
}

#[test]
fn gc_collects_errors() {
    let lab = Lab::new(&["a", "b"]);
    let runtime = lab.runtime();
    attach(&runtime, &lab, &["c1", "c2"]);
    lab.on(
        "b",
        "DEL",
        r#"[ "$CNI_CONTAINERID" = c2 ] || { echo '{"code":5,"msg":"no"}'; exit 1; }"#,
    );
    for plugin in ["a", "b"] {
        lab.on(plugin, "GC", &format!(r#"echo '{{"code":7,"msg":"{plugin} cannot"}}'; exit 1"#));
    }
    let error = runtime.gc_list(&chain("1.1.0", &["a", "b"]), Some(&[]), None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to delete stale attachment c1 eth0: plugin type=\"b\" failed (delete): no\n\
         failed to GC plugin a: a cannot\n\
         failed to GC plugin b: b cannot"
    );
    assert_eq!(error.to_cni().code, 5);
    assert_eq!(removed(&error.report), ["c2"]);
    assert_eq!(lab.cached(), ["net-c1-eth0"]);
}

#[test]
fn disable_gc() {
    let lab = Lab::new(&["a", "b"]);
    let runtime = lab.runtime();
    attach(&runtime, &lab, &["c1"]);
    let list = list(&json!({"name": "net", "cniVersion": "1.1.0", "disableGC": true,
        "plugins": [{"type": "a"}]}));
    runtime.gc_list(&list, Some(&[]), None).unwrap();
    assert!(lab.calls().is_empty());
    assert_eq!(lab.cached(), ["net-c1-eth0"]);
}

/// libcni uses the current configuration: what a plugin made that has since been removed from it
/// leaks for good.
#[test]
fn gc_uses_the_configuration_of_the_attachment() {
    let lab = Lab::new(&["a", "b", "new"]);
    let runtime = lab.runtime();
    attach(&runtime, &lab, &["c1"]);
    let report = runtime.gc_list(&chain("1.1.0", &["new"]), Some(&[]), None).unwrap();
    assert_eq!(removed(&report), ["c1"]);
    assert_eq!(lab.calls(), ["DEL b", "DEL a", "GC new"]);
}

#[test]
fn gc_of_a_network_whose_configuration_is_gone() {
    let lab = Lab::new(&["a", "b"]);
    let runtime = lab.runtime();
    attach(&runtime, &lab, &["c1", "c2"]);
    let name = NetworkName::new("net").unwrap();
    let report = runtime.gc_network(&name, Some(&valid(&["c2"])), None).unwrap();
    assert_eq!(removed(&report), ["c1"]);
    assert_eq!(lab.calls(), ["DEL b", "DEL a"]);
    assert_eq!(lab.cached(), ["net-c2-eth0"]);
}

#[test]
fn gc_keeps_what_a_cached_configuration_protects() {
    let lab = Lab::new(&["a"]);
    let runtime = lab.runtime();
    let list = list(&json!({"name": "net", "cniVersion": "1.1.0", "disableGC": true,
        "plugins": [{"type": "a"}]}));
    runtime.add_list(&list, &container("c1"), None).unwrap();
    lab.calls();
    let report = runtime.gc_network(&NetworkName::new("net").unwrap(), Some(&[]), None).unwrap();
    assert_eq!((report.kept.len(), lab.calls().len()), (1, 0));
}

#[test]
fn gc_falls_back_to_the_current_configuration() {
    let lab = Lab::new(&["a", "b"]);
    let runtime = lab.runtime();
    attach(&runtime, &lab, &["c1"]);
    let mut record = lab.read_cached("net-c1-eth0");
    record["config"] = "AAAA".into();
    lab.write_cached("net-c1-eth0", record.to_string());
    let report = runtime.gc_list(&chain("1.1.0", &["a"]), Some(&[]), None).unwrap();
    assert_eq!(removed(&report), ["c1"]);
    assert_eq!(report.notices.len(), 1, "{report:?}");
    assert_eq!(lab.calls(), ["DEL a", "GC a"]);
}

/// libcni returns success here and does nothing.
#[test]
fn a_cache_that_cannot_be_listed_is_an_error_and_plugins_still_collect() {
    let lab = Lab::new(&["a"]);
    std::fs::create_dir(lab.path().join("cache")).unwrap();
    std::fs::write(lab.results(), "in the way").unwrap();
    let error = lab.runtime().gc_list(&chain("1.1.0", &["a"]), Some(&[]), None).unwrap_err();
    assert!(error.to_string().starts_with("list directory "), "{error}");
    assert_eq!(lab.calls(), ["GC a"]);
}

#[test]
fn gc_ends_with_its_deadline_whatever_hangs() {
    let lab = Lab::new(&["a", "b"]);
    let runtime = lab.runtime().with_cleanup_time(Duration::from_secs(20));
    attach(&runtime, &lab, &["c1", "c2", "c3", "c4"]);
    lab.on("b", "DEL", "sleep 60");
    let started = Instant::now();
    let deadline = Some(started + Duration::from_secs(2));
    let error = runtime.gc_list(&chain("1.1.0", &["a", "b"]), Some(&[]), deadline).unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(50));
    assert_eq!(
        lab.calls(),
        ["DEL b", "DEL a"],
        "what was begun is finished, the rest is not begun"
    );
    assert_eq!(error.failures.len(), 4 + 2, "{error}");
    assert_eq!(lab.cached().len(), 4);
    assert_eq!(error.to_cni().code, cni::code::TRY_AGAIN_LATER);
}
