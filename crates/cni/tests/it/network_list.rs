//! Loading network lists: every message of the reference library, and the mistakes that it accepts.

use netwright_cni::NetworkList;
use netwright_cni::json::Object;

fn list(text: &str) -> NetworkList {
    NetworkList::parse(text.as_bytes()).unwrap()
}

#[track_caller]
fn refused(text: &str, code: u32, msg: &str) {
    let error = NetworkList::parse(text.as_bytes()).unwrap_err();
    assert_eq!((error.code, error.msg.as_str()), (code, msg), "{text}");
}

#[test]
fn a_whole_list_is_read() {
    let text = r#"{
        "cniVersion": "1.1.0", "name": "dbnet", "disableCheck": true, "disableGC": "TRUE",
        "loadOnlyInlinedPlugins": "False", "comment": 1,
        "plugins": [
            {"type": "bridge", "bridge": "cni0"},
            {"type": "portmap", "capabilities": {"portMappings": true, "b": false, "a": true, "c": null}}
        ]
    }"#;
    let list = list(text);
    assert_eq!(list.name, "dbnet");
    assert_eq!(list.cni_version, "1.1.0");
    assert!(list.disable_check && list.disable_gc && !list.load_only_inlined_plugins);
    assert_eq!(list.plugins.len(), 2);
    assert_eq!(list.plugins[1].plugin_type, "portmap");
    assert_eq!(list.plugins[1].capabilities, ["a", "portMappings"]);
    assert_eq!(list.source, text.as_bytes());
}

#[test]
fn every_refusal_has_the_references_words() {
    const L: &str = "error parsing configuration list: ";
    let table: &[(&str, u32, String)] = &[
        ("", 6, format!("{L}it ends before it is complete at line 1 column 0")),
        ("{", 6, format!("{L}it ends before it is complete at line 1 column 1")),
        ("[]", 6, format!("{L}found a list, wanted an object")),
        (
            r#"{"name":"n"} x"#,
            6,
            format!("{L}there is something behind its end at line 1 column 14"),
        ),
        ("{}", 7, format!("{L}no name")),
        ("null", 7, format!("{L}no name")),
        (r#"{"NAME": "n"}"#, 7, format!("{L}no name")),
        (r#"{"name": 5}"#, 7, format!("{L}invalid name type float64")),
        (r#"{"name": null}"#, 7, format!("{L}invalid name type <nil>")),
        (r#"{"name": true}"#, 7, format!("{L}invalid name type bool")),
        (r#"{"name": []}"#, 7, format!("{L}invalid name type []interface {{}}")),
        (r#"{"name": {}}"#, 7, format!("{L}invalid name type map[string]interface {{}}")),
        (r#"{"name":"n","cniVersion":1}"#, 7, format!("{L}invalid cniVersion type float64")),
        (r#"{"name":"n","cniVersion":null}"#, 7, format!("{L}invalid cniVersion type <nil>")),
        (
            r#"{"name":"n","cniVersions":"1.0.0"}"#,
            7,
            format!("{L}invalid type for cniVersions: string"),
        ),
        (
            r#"{"name":"n","cniVersions":["1.0.0",5]}"#,
            7,
            format!("{L}invalid type for cniVersions index 1: float64"),
        ),
        (
            r#"{"name":"n","cniVersions":["1.0.0","1.x"]}"#,
            7,
            format!(
                r#"{L}invalid cniVersions entry 1.x at index 1: failed to convert minor version part "x": not a number"#
            ),
        ),
        (
            r#"{"name":"n","cniVersion":"a","cniVersions":[]}"#,
            7,
            format!(
                r#"{L}invalid cniVersion a: failed to convert major version part "a": not a number"#
            ),
        ),
        (
            r#"{"name":"n","disableCheck":1}"#,
            7,
            format!("{L}invalid type float64 for disableCheck"),
        ),
        (r#"{"name":"n","disableGC":null}"#, 7, format!("{L}invalid type <nil> for disableGC")),
        (
            r#"{"name":"n","loadOnlyInlinedPlugins":"X"}"#,
            7,
            format!(r#"{L}invalid value "x" for loadOnlyInlinedPlugins"#),
        ),
        (
            r#"{"name":"n","loadOnlyInlinedPlugins":true}"#,
            7,
            format!("{L}`loadOnlyInlinedPlugins` is true, and no 'plugins' key"),
        ),
        (
            r#"{"name":"n","plugins":{}}"#,
            7,
            format!("{L}invalid 'plugins' type map[string]interface {{}}"),
        ),
        (r#"{"name":"n","plugins":null}"#, 7, format!("{L}invalid 'plugins' type <nil>")),
        (r#"{"name":"n","plugins":[]}"#, 7, format!("{L}no plugins in list")),
        (
            r#"{"name":"n","plugins":[{"type":"a"},{}]}"#,
            7,
            "failed to parse plugin config 1: error parsing configuration: missing 'type'".into(),
        ),
        (
            r#"{"name":"n","plugins":[null]}"#,
            7,
            "failed to parse plugin config 0: error parsing configuration: missing 'type'".into(),
        ),
        (
            r#"{"name":"n","plugins":[{"type":"a/b"}]}"#,
            7,
            "failed to parse plugin config 0: invalid plugin name: a/b".into(),
        ),
        (
            r#"{"name":"n","plugins":[5]}"#,
            6,
            "failed to parse plugin config 0: error parsing configuration: \
             found 5, wanted an object"
                .into(),
        ),
    ];
    for (text, code, msg) in table {
        refused(text, *code, msg);
    }
}

#[test]
fn refusals_of_a_plugins_object_point_into_the_file() {
    refused(
        "{\"name\": \"n\", \"plugins\": [\n  {\"type\": \"bridge\",\n   \"ipam\": {\"type\": 5}}\n]}",
        6,
        "failed to parse plugin config 0: error parsing configuration: \
         ipam.type: found 5, wanted a string at line 3 column 21",
    );
}

#[test]
fn refusals_explain_themselves_in_details() {
    let error = NetworkList::parse(br#"{"name": 5}"#).unwrap_err();
    assert_eq!(error.details, r#""name" is a number, it must be a string"#);
    let error = NetworkList::parse(br#"{"name": "n", "disableGC": null}"#).unwrap_err();
    assert_eq!(error.details, r#""disableGC" must be true or false"#);
}

#[test]
fn the_first_wrong_key_in_the_references_order_is_told() {
    refused(
        r#"{"plugins":[],"loadOnlyInlinedPlugins":1,"disableCheck":2,"name":"n"}"#,
        7,
        "error parsing configuration list: invalid type float64 for disableCheck",
    );
}

#[test]
fn a_list_may_leave_its_plugins_to_the_drop_in_folder() {
    assert!(list(r#"{"name":"n"}"#).plugins.is_empty());
    assert!(
        list(r#"{"name":"n","loadOnlyInlinedPlugins":false,"type":"bridge"}"#).plugins.is_empty()
    );
}

#[test]
fn the_characters_of_a_name_are_not_the_lists_business() {
    assert_eq!(list(r#"{"name":"te%st"}"#).name, "te%st");
    assert_eq!(list(r#"{"name":""}"#).name, "");
}

#[test]
fn of_equal_keys_the_last_counts_and_case_matters() {
    let list = list(r#"{"name":"a","name":"b","Name":"c","Plugins":[],"DisableCheck":true}"#);
    assert_eq!(list.name, "b");
    assert!(!list.disable_check);
}

#[test]
fn the_highest_version_we_speak_is_chosen() {
    let table = [
        (r#""cniVersion":"1.0.0","cniVersions":["0.4.0","1.1.0","9.9.0"]"#, "1.1.0"),
        (r#""cniVersions":["0.4.0","1.0.0"]"#, "1.0.0"),
        (r#""cniVersion":"0.3.1","cniVersions":[]"#, "0.3.1"),
        (r#""cniVersion":"1.1.0","cniVersions":["0.4.0"]"#, "1.1.0"),
        // No version is usable: `cniVersion` stays, even if too new.
        (r#""cniVersion":"9.9.0","cniVersions":["9.9.1"]"#, "9.9.0"),
        (r#""cniVersions":["2.0.0"]"#, ""),
        (r#""cniVersion":"1.2.3""#, "1.2.3"),
        (r#""cniVersion":"abc""#, "abc"),
        (r#""cniVersion":"""#, ""),
        // Two texts for the same version: the first stays.
        (r#""cniVersions":["1.0","1.0.0"]"#, "1.0"),
        (r#""cniVersion":"1.0","cniVersions":["1.0.0"]"#, "1.0.0"),
        // Empty text is 0.1.0.
        (r#""cniVersions":[""]"#, ""),
        (r#""cniVersions":["","0.2.0"]"#, "0.2.0"),
        (r#""cniVersions":["99999999999.0.0","0.4.0"]"#, "0.4.0"),
    ];
    for (versions, expected) in table {
        let list = list(&format!(r#"{{"name":"n",{versions}}}"#));
        assert_eq!(list.cni_version, expected, "{versions}");
    }
}

#[test]
fn a_single_plugins_file_becomes_a_list() {
    let text =
        br#"{"NAME":"n","CNIVersion":"0.2.0","type":"bridge","disableCheck":true,"k":1e400}"#;
    let list = NetworkList::from_plugin(text).unwrap();
    assert_eq!((list.name.as_str(), list.cni_version.as_str()), ("n", "0.2.0"));
    assert!(!list.disable_check);
    assert_eq!(list.plugins[0].object.get("k").unwrap().get(), "1e400");
    assert_eq!(NetworkList::parse(&list.source).unwrap(), list);
}

/// Arguments reach every plugin, and win over those of the configuration. The source has them too,
/// since DEL gets what the cache kept of it.
#[test]
fn arguments_are_put_into_every_plugin() {
    let args = |text: &str| Object::parse(text.as_bytes()).unwrap();
    let before = list(
        r#"{"name": "n", "disableGC": true, "plugins": [
            {"type": "a", "args": {"own": 1, "CNI": {"ips": [], "labels": 1}}},
            {"type": "b", "args": null}, {"type": "c"}]}"#,
    );
    let after = before.with_cni_args(&args(r#"{"labels": 2}"#)).unwrap();
    let written: Vec<String> = after
        .plugins
        .iter()
        .map(|plugin| String::from_utf8(plugin.object.to_vec()).unwrap())
        .collect();
    assert_eq!(
        written,
        [
            r#"{"type":"a","args":{"own":1,"cni":{"ips":[],"labels":2}}}"#,
            r#"{"type":"b","args":{"cni":{"labels":2}}}"#,
            r#"{"type":"c","args":{"cni":{"labels":2}}}"#,
        ]
    );
    assert_eq!(NetworkList::parse(&after.source).unwrap(), after);
    assert!(after.disable_gc);

    for wrong in [r#"{"type": "a", "args": 1}"#, r#"{"type": "a", "args": {"cni": "x"}}"#] {
        let list = list(&format!(r#"{{"name": "n", "plugins": [{wrong}]}}"#));
        let error = list.with_cni_args(&args(r#"{"labels": 2}"#)).unwrap_err();
        assert_eq!(error.code, 6, "{error}");
        assert!(error.msg.contains("args of plugin \"a\""), "{error}");
    }
}

#[test]
fn a_single_plugins_file_without_a_name_is_no_obstacle() {
    // The search for a network reads file after file; a file without a name does not match.
    let list = NetworkList::from_plugin(br#"{"type":"bridge","name":null}"#).unwrap();
    assert_eq!((list.name.as_str(), list.cni_version.as_str()), ("", ""));
}

#[test]
fn a_list_in_a_single_plugins_file_is_refused() {
    let error = NetworkList::from_plugin(br#"{"name":"n","plugins":[{"type":"a"}]}"#).unwrap_err();
    assert_eq!(
        (error.code, error.msg.as_str()),
        (7, "error parsing configuration: missing 'type'")
    );
}
