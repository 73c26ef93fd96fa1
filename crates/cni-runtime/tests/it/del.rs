//! DEL calls every plugin, whatever the others answer.

use cni::code;
use netwright_cni_runtime::DelError;

use crate::lab::{Lab, chain, container};

#[test]
fn del_reverse_order() {
    let lab = Lab::new(&["a", "b", "c"]);
    lab.runtime().del_list(&chain("1.0.0", &["a", "b", "c"]), &container("c1"), None).unwrap();
    assert_eq!(lab.calls(), ["DEL c", "DEL b", "DEL a"]);
}

#[test]
fn del_prev_result() {
    for (version, expected) in [("1.1.0", true), ("0.4.0", true), ("0.3.1", false)] {
        let lab = Lab::new(&["a", "b"]);
        let list = chain(version, &["a", "b"]);
        let runtime = lab.runtime();
        runtime.add_list(&list, &container("c1"), None).unwrap();
        let deleted = runtime.del_list(&list, &container("c1"), None).unwrap();
        assert!(deleted.was_cached && deleted.notices.is_empty());
        for plugin in ["a", "b"] {
            let config = lab.config(plugin, "DEL");
            let domain = config.get("prevResult").map(|result| result["dns"]["domain"].clone());
            assert_eq!(domain, expected.then(|| "b".into()), "{version}");
        }
        assert!(lab.cached().is_empty());
    }
}

#[test]
fn del_tolerates_corrupt_cache() {
    for content in ["", "{", "[]", "null", r#"{"kind":"other"}"#, r#"{"kind":"cniCacheV1"}"#] {
        let lab = Lab::new(&["a"]);
        lab.write_cached("net-c1-eth0", content);
        let deleted =
            lab.runtime().del_list(&chain("1.0.0", &["a"]), &container("c1"), None).unwrap();
        assert_eq!(deleted.notices.len(), 1, "{content}: {deleted:?}");
        assert!(lab.config("a", "DEL").get("prevResult").is_none());
        assert!(lab.cached().is_empty(), "{content}");
    }
}

/// libcni stops at the first error. We run every plugin, and report all failures.
#[test]
fn del_error_handling() {
    let lab = Lab::new(&["a", "b", "c"]);
    let runtime = lab.runtime();
    let list = chain("1.0.0", &["a", "b", "c"]);
    runtime.add_list(&list, &container("c1"), None).unwrap();
    lab.calls();
    lab.on("c", "DEL", r#"echo '{"code":11,"msg":"later"}'; exit 1"#);
    lab.remove_plugin("b");
    let error = runtime.del_list(&list, &container("c1"), None).unwrap_err();
    assert_eq!(lab.calls(), ["DEL c", "DEL a"], "a missing plugin does not stop the one before it");
    assert_eq!(
        error.to_string(),
        format!(
            "plugin type=\"c\" failed (delete): later; plugin type=\"b\" failed (delete): \
             failed to find plugin \"b\" in path [{}]",
            lab.bin().display()
        )
    );
    assert_eq!(error.to_cni().code, code::TRY_AGAIN_LATER);
    assert_eq!(lab.cached(), ["net-c1-eth0"]);
    // The record stays for the next try, and goes when that succeeds.
    lab.off("c", "DEL");
    lab.plugin("b");
    runtime.del_list(&list, &container("c1"), None).unwrap();
    assert_eq!(lab.config("a", "DEL")["prevResult"]["dns"]["domain"], "c");
    assert!(lab.cached().is_empty());
    // A second time.
    lab.calls();
    let deleted = runtime.del_list(&list, &container("c1"), None).unwrap();
    assert!(!deleted.was_cached);
    assert_eq!(lab.calls(), ["DEL c", "DEL b", "DEL a"]);
}

#[test]
fn a_container_that_a_plugin_does_not_know_is_gone() {
    let lab = Lab::new(&["a"]);
    let list = chain("1.0.0", &["a"]);
    lab.runtime().add_list(&list, &container("c1"), None).unwrap();
    lab.on("a", "DEL", r#"echo '{"code":3,"msg":"no such container"}'; exit 1"#);
    lab.runtime().del_list(&list, &container("c1"), None).unwrap();
    assert!(lab.cached().is_empty());
}

#[test]
fn without_a_configuration_the_cached_one_is_used() {
    let lab = Lab::new(&["a", "b"]);
    let runtime = lab.runtime();
    runtime.add_list(&chain("1.0.0", &["a", "b"]), &container("c1"), None).unwrap();
    lab.calls();
    let listing = runtime.cached_attachments(None).unwrap();
    runtime.del_cached(&listing.attachments[0], None).unwrap();
    assert_eq!(lab.calls(), ["DEL b", "DEL a"]);
    assert!(lab.cached().is_empty());
}

#[test]
fn a_cached_configuration_that_cannot_be_read_is_named() {
    let lab = Lab::new(&["a"]);
    let runtime = lab.runtime();
    runtime.add_list(&chain("1.0.0", &["a"]), &container("c1"), None).unwrap();
    let mut record = lab.read_cached("net-c1-eth0");
    record["config"] = "AAAA".into();
    lab.write_cached("net-c1-eth0", record.to_string());
    let listing = runtime.cached_attachments(None).unwrap();
    let error = runtime.del_cached(&listing.attachments[0], None).unwrap_err();
    assert!(matches!(error, DelError::NoConfig { .. }));
    assert!(error.to_string().starts_with("no configuration for attachment net/c1/eth0: "));
    assert_eq!(lab.cached(), ["net-c1-eth0"]);
}
