//! Rules of the specification's ledger (`docs/spec/cni-1.1.0.toml`) that no row of the feature
//! table shows.

use cni::Args;
use serde_json::json;

use crate::lab::{Lab, chain, container, list};

/// CNI 1.1.0 §2: the container's namespace is a parameter, not where plugins run.
#[test]
fn plugins_run_in_the_runtimes_own_namespace() {
    let lab = Lab::new(&["a"]);
    let seen = lab.path().join("seen");
    for verb in ["ADD", "CHECK", "DEL"] {
        lab.on(
            "a",
            verb,
            &format!("readlink /proc/self/ns/net >> {}; echo '{{}}'", seen.display()),
        );
    }
    let (runtime, list) = (lab.runtime(), chain("1.1.0", &["a"]));
    runtime.add_list(&list, &container("c1"), None).unwrap();
    runtime.check_list(&list, &container("c1"), None).unwrap();
    runtime.del_list(&list, &container("c1"), None).unwrap();
    let own = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let own = format!("{}\n", own.display());
    assert_eq!(std::fs::read_to_string(seen).unwrap(), own.repeat(3));
}

/// CNI 1.1.0 §2 "CHECK": all parameters are those of the ADD.
#[test]
fn check_has_the_parameters_of_add() {
    let lab = Lab::new(&["a"]);
    let list = list(&json!({"name": "net", "cniVersion": "1.1.0", "plugins": [
        {"type": "a", "capabilities": {"portMappings": true}, "x": {"y": 1}},
    ]}));
    let container = container("c1")
        .with_args(Args::parse("IgnoreUnknown=1;K=V").unwrap())
        .with_capability("portMappings", &json!([{"hostPort": 8080}]))
        .unwrap();
    let runtime = lab.runtime();
    runtime.add_list(&list, &container, None).unwrap();
    runtime.check_list(&list, &container, None).unwrap();
    for name in ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"] {
        let (add, check) = (lab.variable("a", "ADD", name), lab.variable("a", "CHECK", name));
        assert!(add.is_some() && add == check, "{name}: {add:?} {check:?}");
    }
    let (add, mut check) = (lab.config("a", "ADD"), lab.config("a", "CHECK"));
    check.as_object_mut().unwrap().remove("prevResult");
    assert_eq!(add, check);
}

/// CNI 1.1.0 §2 "GC": GC does not replace DEL.
#[test]
fn a_stale_attachment_is_deleted_before_plugins_collect() {
    let lab = Lab::new(&["a"]);
    let (runtime, list) = (lab.runtime(), chain("1.1.0", &["a"]));
    runtime.add_list(&list, &container("c1"), None).unwrap();
    lab.calls();
    runtime.gc_list(&list, Some(&[]), None).unwrap();
    assert_eq!(lab.calls(), ["DEL a", "GC a"]);
    runtime.add_list(&list, &container("c1"), None).unwrap();
    lab.calls();
    runtime.del_list(&list, &container("c1"), None).unwrap();
    assert_eq!(lab.calls(), ["DEL a"]);
}

/// CNI 1.1.0 §3: the chain runs in order, and each plugin gets the result of the one before it.
#[test]
fn an_error_halts_the_chain() {
    let lab = Lab::new(&["a", "b", "c"]);
    lab.on("b", "ADD", r#"echo '{"code":100,"msg":"no"}'; exit 1"#);
    let runtime = lab.runtime().without_roll_back();
    let list = chain("1.1.0", &["a", "b", "c"]);
    let error = runtime.add_list(&list, &container("c1"), None).unwrap_err();
    assert_eq!(error.to_cni().code, 100);
    assert_eq!(lab.calls(), ["ADD a", "ADD b"]);
}
