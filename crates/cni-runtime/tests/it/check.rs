//! CHECK and STATUS.

use cni::code;
use serde_json::json;

use crate::lab::{Lab, chain, container, list};

#[test]
fn check_on_old_version() {
    let lab = Lab::new(&["a"]);
    for version in ["0.3.1", "0.2.0", ""] {
        let list = chain(version, &["a"]);
        let error = lab.runtime().check_list(&list, &container("c1"), None).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("configuration version {version:?} does not support the CHECK command")
        );
        assert_eq!(error.to_cni().code, code::INCOMPATIBLE_VERSION);
    }
    assert!(lab.calls().is_empty());
}

#[test]
fn disable_check() {
    let lab = Lab::new(&["a"]);
    let list = list(&json!({"name": "net", "cniVersion": "1.0.0", "disableCheck": "true",
        "plugins": [{"type": "a"}]}));
    lab.runtime().check_list(&list, &container("c1"), None).unwrap();
    assert!(lab.calls().is_empty());
}

#[test]
fn every_plugin_is_checked_with_the_final_result() {
    let lab = Lab::new(&["a", "b"]);
    let runtime = lab.runtime();
    let list = chain("1.0.0", &["a", "b"]);
    runtime.add_list(&list, &container("c1"), None).unwrap();
    lab.calls();
    runtime.check_list(&list, &container("c1"), None).unwrap();
    assert_eq!(lab.calls(), ["CHECK a", "CHECK b"]);
    for plugin in ["a", "b"] {
        assert_eq!(lab.config(plugin, "CHECK")["prevResult"]["dns"]["domain"], "b");
    }
}

#[test]
fn the_first_check_that_fails_ends_it_and_is_not_wrapped() {
    let lab = Lab::new(&["a", "b"]);
    lab.on("a", "CHECK", r#"echo '{"code":100,"msg":"address is gone"}'; exit 1"#);
    let error =
        lab.runtime().check_list(&chain("1.0.0", &["a", "b"]), &container("c1"), None).unwrap_err();
    assert_eq!(error.to_string(), "address is gone");
    let object = error.to_cni();
    assert_eq!((object.code, object.details.as_str()), (100, "reported by plugin \"a\""));
    assert_eq!(lab.calls(), ["CHECK a"]);
}

/// The error stays the first plugin's; what the others find is in its details.
#[test]
fn the_whole_list_is_asked_where_the_caller_wants_every_failure() {
    let lab = Lab::new(&["a", "b", "c"]);
    let list = chain("1.0.0", &["a", "b", "c"]);
    lab.on("a", "CHECK", r#"echo '{"code":104,"msg":"address is gone"}'; exit 1"#);
    lab.on("c", "CHECK", r#"echo '{"code":100,"msg":"port","details":"is free"}'; exit 1"#);
    let error = lab.runtime().check_whole_list(&list, &container("c1"), None).unwrap_err();
    assert_eq!(error.to_string(), "address is gone");
    let object = error.to_cni();
    assert_eq!((object.code, object.msg.as_str()), (104, "address is gone"));
    let details = "reported by plugin \"a\"; plugin type=\"c\" failed (check): port; is free";
    assert_eq!(object.details, details);
    assert_eq!(lab.calls(), ["CHECK a", "CHECK b", "CHECK c"]);

    lab.off("a", "CHECK");
    lab.off("c", "CHECK");
    lab.runtime().check_whole_list(&list, &container("c1"), None).unwrap();
    // When the time is up, the error names only the plugin that answered in time.
    let now = Some(std::time::Instant::now());
    let error = lab.runtime().check_whole_list(&list, &container("c1"), now).unwrap_err();
    let details = "reported by plugin \"a\"";
    assert_eq!((error.to_cni().code, error.to_cni().details.as_str()), (11, details));
}

#[test]
fn a_cached_result_that_cannot_be_read_fails_check() {
    let lab = Lab::new(&["a"]);
    lab.write_cached("net-c1-eth0", "{");
    let list = chain("1.0.0", &["a"]);
    let error = lab.runtime().check_list(&list, &container("c1"), None).unwrap_err();
    let start = "failed to get network \"net\" cached result: ";
    assert!(error.to_string().starts_with(start), "{error}");
    // A result without an address does not fit into 0.2.0's shape... and the other way it does.
    lab.write_cached("net-c1-eth0", r#"{"cniVersion":"9.9.9"}"#);
    let error = lab.runtime().check_list(&list, &container("c1"), None).unwrap_err();
    assert!(error.to_string().starts_with(start), "{error}");
    assert!(lab.calls().is_empty());
    // A missing file is not an error: the plugins report what they need.
    std::fs::remove_file(lab.results().join("net-c1-eth0")).unwrap();
    lab.runtime().check_list(&list, &container("c1"), None).unwrap();
    assert!(lab.config("a", "CHECK").get("prevResult").is_none());
}

#[test]
fn status() {
    let lab = Lab::new(&["a", "b", "c"]);
    let runtime = lab.runtime();
    runtime.status_list(&chain("1.1.0", &["a", "b", "c"]), None).unwrap();
    assert_eq!(lab.calls(), ["STATUS a", "STATUS b", "STATUS c"]);
    assert_eq!(lab.variable("a", "STATUS", "CNI_CONTAINERID").as_deref(), Some(""));
    lab.on("b", "STATUS", r#"echo '{"code":50,"msg":"not ready"}'; exit 1"#);
    let error = runtime.status_list(&chain("1.1.0", &["a", "b", "c"]), None).unwrap_err();
    assert_eq!((error.to_string().as_str(), error.to_cni().code), ("not ready", 50));
    assert_eq!(lab.calls(), ["STATUS a", "STATUS b"]);
    runtime.status_list(&chain("1.0.0", &["a", "b", "c"]), None).unwrap();
    assert!(lab.calls().is_empty());
}
