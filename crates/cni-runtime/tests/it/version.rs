//! VERSION, Validate, and calls of plugins of other versions.

use cni::code;
use netwright_cni_runtime::RollBack;
use serde_json::json;

use crate::lab::{Lab, chain, container, list};

/// Makes a plugin refuse every version except those given, as the reference's skeleton does.
fn speaks(lab: &Lab, plugin: &str, versions: &[&str]) {
    let listed = versions.iter().map(|version| format!("\"{version}\"")).collect::<Vec<_>>();
    let listed = listed.join(",");
    lab.on(
        plugin,
        "VERSION",
        &format!(r#"echo '{{"cniVersion":"1.1.0","supportedVersions":[{listed}]}}'"#),
    );
    let guard = format!(
        "case {} in *\"/$version/\"*) ;; *) echo '{{\"code\":1,\"msg\":\"incompatible CNI versions\"}}'; exit 1 ;; esac\n",
        versions.iter().map(|version| format!("/{version}/")).collect::<String>()
    );
    for verb in ["DEL", "CHECK", "GC", "STATUS"] {
        lab.on(plugin, verb, &guard);
    }
    let result = r#"printf '{"cniVersion":"%s","interfaces":[{"name":"eth0"}],"ips":[{"version":"4","address":"192.0.2.2/24"}]}' "$version""#;
    lab.on(plugin, "ADD", &format!("{guard}{result}"));
}

#[test]
fn validate() {
    let lab = Lab::new(&["a", "b"]);
    let runtime = lab.runtime();
    let good = list(&json!({"name": "net", "cniVersion": "1.0.0", "plugins": [
        {"type": "a", "capabilities": {"portMappings": true, "ips": false}},
        {"type": "b", "capabilities": {"mac": true, "portMappings": true}},
    ]}));
    assert_eq!(runtime.validate_list(&good, None).unwrap(), ["mac", "portMappings"]);
    speaks(&lab, "b", &["0.4.0"]);
    let bad = chain("1.0.0", &["gone", "a", "b"]);
    let error = runtime.validate_list(&bad, None).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "[failed to find plugin \"gone\" in path [{}] plugin b does not support config \
             version \"1.0.0\"]",
            lab.bin().display()
        )
    );
    speaks(&lab, "b", &["0.1.0"]);
    assert!(runtime.validate_list(&chain("", &["b"]), None).is_ok());
}

#[test]
fn get_version_info_old_plugins() {
    let lab = Lab::new(&["a"]);
    let runtime = lab.runtime();
    let supported = |script: &str| {
        lab.on("a", "VERSION", script);
        runtime.version_info("a", None).map(|info| info.supported)
    };
    let unknown = r#"echo '{"code":4,"msg":"unknown CNI_COMMAND: VERSION"}'; exit 1"#;
    assert_eq!(supported(unknown).unwrap(), ["0.1.0"]);
    assert_eq!(supported(r#"echo '{"cniVersion":"0.2.0"}'"#).unwrap(), ["0.1.0", "0.2.0"]);
    for (answer, text) in [
        ("{}", "missing field cniVersion"),
        (r#"{"cniVersion":"1.0.0"}"#, "missing field supportedVersions"),
        ("x", "decoding version info"),
    ] {
        let error = supported(&format!("echo '{answer}'")).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
        assert_eq!(error.to_cni().code, code::DECODE_FAILURE);
    }
    assert_eq!(
        lab.stdin("a", "VERSION"),
        format!(r#"{{"cniVersion":"{}"}}"#, cni::Version::CURRENT)
    );
    for variable in ["CNI_NETNS", "CNI_IFNAME", "CNI_PATH"] {
        assert_eq!(lab.variable("a", "VERSION", variable).as_deref(), Some("dummy"));
    }
}

#[test]
fn a_plugin_of_another_version_is_spoken_to_in_its_own() {
    let lab = Lab::new(&["a", "old", "b"]);
    speaks(&lab, "old", &["0.3.0", "0.3.1", "0.4.0"]);
    let runtime = lab.runtime();
    let list = chain("1.1.0", &["a", "old", "b"]);
    let container = container("c1");
    let added = runtime.add_list(&list, &container, None).unwrap();
    assert_eq!(lab.calls(), ["ADD a", "ADD old", "VERSION old", "ADD old", "ADD b"]);
    let config = lab.config("old", "ADD");
    assert_eq!(config["cniVersion"], "0.4.0");
    assert_eq!(config["prevResult"]["cniVersion"], "0.4.0");
    assert_eq!(config["prevResult"]["ips"][0]["version"], "4");
    let previous = &lab.config("b", "ADD")["prevResult"];
    assert_eq!(previous["cniVersion"], "1.1.0");
    assert_eq!(previous["interfaces"][0]["name"], "eth0");
    assert_eq!(added.result.ips.len(), 1);

    runtime.check_list(&list, &container, None).unwrap();
    assert_eq!(lab.config("old", "CHECK")["prevResult"]["cniVersion"], "0.4.0");
    lab.calls();
    // 0.4.0 has neither of these verbs: the runtime skips the plugin.
    runtime.status_list(&list, None).unwrap();
    assert_eq!(lab.calls(), ["STATUS a", "STATUS old", "VERSION old", "STATUS b"]);
    runtime.gc_list(&list, None, None).unwrap();
    let calls = lab.calls();
    assert_eq!(calls[..4], ["DEL b", "DEL old", "VERSION old", "DEL old"]);
    assert_eq!(lab.config("old", "DEL")["prevResult"]["cniVersion"], "0.4.0");
    assert!(lab.cached().is_empty());
}

#[test]
fn the_usual_call_costs_one_execution() {
    let lab = Lab::new(&["a"]);
    let runtime = lab.runtime();
    runtime.add_list(&chain("1.0.0", &["a"]), &container("c1"), None).unwrap();
    runtime.del_list(&chain("1.0.0", &["a"]), &container("c1"), None).unwrap();
    assert_eq!(lab.calls(), ["ADD a", "DEL a"]);
}

#[test]
fn a_plugin_that_only_speaks_newer_versions_is_spoken_to_in_the_lowest() {
    let lab = Lab::new(&["new"]);
    speaks(&lab, "new", &["1.0.0", "1.1.0", "7.0.0"]);
    let list = chain("0.3.1", &["new"]);
    let added = lab.runtime().add_list(&list, &container("c1"), None).unwrap();
    assert_eq!(lab.config("new", "ADD")["cniVersion"], "1.0.0");
    assert!(added.document.get().contains(r#""cniVersion":"0.3.1""#), "{:?}", added.document);
}

#[test]
fn a_plugin_without_a_common_version_keeps_its_own_error() {
    let lab = Lab::new(&["alien"]);
    speaks(&lab, "alien", &["7.0.0"]);
    let error =
        lab.runtime().add_list(&chain("1.0.0", &["alien"]), &container("c1"), None).unwrap_err();
    assert_eq!(error.to_cni().code, code::INCOMPATIBLE_VERSION);
    let text = "plugin type=\"alien\" failed (add): incompatible CNI versions; it supports 7.0.0";
    assert_eq!(error.to_string(), text);
    // It refuses DEL in the same words, so it has made nothing.
    assert!(matches!(error.roll_back(), RollBack::Done), "{:?}", error.roll_back());
    assert!(lab.runtime().cached_attachments(None).unwrap().attachments.is_empty());
}

/// The plugin would return a result of its own in place of the chain's.
#[test]
fn a_plugin_older_than_chaining_does_not_join_a_chain() {
    let lab = Lab::new(&["a", "ancient"]);
    speaks(&lab, "ancient", &["0.1.0", "0.2.0"]);
    let list = chain("1.0.0", &["a", "ancient"]);
    let error = lab.runtime().add_list(&list, &container("c1"), None).unwrap_err();
    assert_eq!(error.to_cni().code, code::INCOMPATIBLE_VERSION);
    lab.calls();
    // Alone, or at the beginning, it works.
    lab.on(
        "ancient",
        "ADD",
        r#"[ "$version" = 0.2.0 ] || { echo '{"code":1,"msg":"no"}'; exit 1; }
        echo '{"cniVersion":"0.2.0","ip4":{"ip":"192.0.2.2/24"},"dns":{}}'"#,
    );
    lab.runtime().add_list(&chain("1.0.0", &["ancient", "a"]), &container("c1"), None).unwrap();
    assert_eq!(lab.config("a", "ADD")["prevResult"]["ips"][0]["address"], "192.0.2.2/24");
}

#[test]
fn code_1_for_another_reason_is_not_a_matter_of_versions() {
    let lab = Lab::new(&["a"]);
    lab.on("a", "ADD", r#"echo '{"code":1,"msg":"my delegate is too old"}'; exit 1"#);
    let error =
        lab.runtime().add_list(&chain("1.0.0", &["a"]), &container("c1"), None).unwrap_err();
    assert!(error.to_string().ends_with("my delegate is too old"), "{error}");
    assert_eq!(lab.calls(), ["ADD a", "VERSION a", "DEL a"]);
}
