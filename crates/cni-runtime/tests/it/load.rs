//! Network lists from a folder.

use std::path::Path;

use cni::code;
use expect_test::{Expect, expect};
use netwright_cni_runtime::{ConfigFolder, LoadError, load_file};

/// Writes files below a folder.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    dir
}

fn types(dir: &Path, name: &str) -> Vec<String> {
    let folder = ConfigFolder::scan(dir).unwrap();
    let list = folder.find(name).unwrap();
    list.plugins.iter().map(|plugin| plugin.plugin_type.clone()).collect()
}

/// Prints the outcome for each file, with the folder's path left out.
fn check(files: &[(&str, &str)], expected: &Expect) {
    let dir = folder(files);
    let scan = ConfigFolder::scan(dir.path()).unwrap();
    let prefix = format!("{}/", dir.path().display());
    let lines: Vec<String> = scan
        .considered()
        .iter()
        .map(|considered| considered.to_string().replace(&prefix, "") + "\n")
        .collect();
    expected.assert_eq(&lines.concat());
}

fn details(error: &LoadError) -> String {
    error.to_cni().details
}

#[test]
fn conflist_search_order() {
    let dir = folder(&[
        ("20.conflist", r#"{"name": "mynet", "plugins": [{"type": "second"}]}"#),
        ("10.conflist", r#"{"name": "mynet", "plugins": [{"type": "first"}]}"#),
        ("05.conf", r#"{"name": "mynet", "type": "third"}"#),
    ]);
    assert_eq!(types(dir.path(), "mynet"), ["first"]);
    check(
        &[
            ("20.conflist", r#"{"name": "mynet", "plugins": [{"type": "second"}]}"#),
            ("10.conflist", r#"{"name": "mynet", "plugins": [{"type": "first"}]}"#),
            ("05.conf", r#"{"name": "mynet", "type": "third"}"#),
        ],
        &expect![[r#"
            10.conflist: network "mynet"
            20.conflist: network "mynet", which 10.conflist defines before it
            05.conf: network "mynet", which 10.conflist defines before it
        "#]],
    );
}

/// libcni fails here. We do not: a file that the call does not need must not stop it.
#[test]
fn malformed_earlier_file() {
    let dir = folder(&[
        ("05.conflist", "{\n  \"name\": \"other\",\n  \"plugins\": [}\n"),
        ("10.conflist", r#"{"name": "mynet", "plugins": [{"type": "bridge"}]}"#),
    ]);
    assert_eq!(types(dir.path(), "mynet"), ["bridge"]);
    let scan = ConfigFolder::scan(dir.path()).unwrap();
    let refusal = scan.refusals().next().unwrap();
    assert_eq!(refusal.path, dir.path().join("05.conflist"));
    assert_eq!((refusal.line, refusal.column), (3, 15));
    assert_eq!(refusal.reason, "error parsing configuration list: there is no JSON value");
}

#[test]
fn fallback_to_conf_and_json() {
    let dir = folder(&[
        ("10.conf", r#"{"name": "a", "cniVersion": "0.4.0", "type": "bridge", "x": 1}"#),
        ("20.json", r#"{"name": "b", "type": "ptp"}"#),
        ("sub/30.conflist", r#"{"name": "c", "plugins": [{"type": "ptp"}]}"#),
        ("40.yaml", "name: d"),
    ]);
    let scan = ConfigFolder::scan(dir.path()).unwrap();
    let list = scan.find("a").unwrap();
    assert_eq!((list.cni_version.as_str(), list.plugins.len()), ("0.4.0", 1));
    assert_eq!(types(dir.path(), "b"), ["ptp"]);
    for name in ["c", "d"] {
        assert!(matches!(scan.find(name), Err(LoadError::NotFound { .. })));
    }
}

#[test]
fn missing_dir_error() {
    let scan = ConfigFolder::scan("/nonexistent/net.d").unwrap();
    let error = scan.find("x").unwrap_err();
    assert_eq!(error.to_string(), "no net configuration with name \"x\" in /nonexistent/net.d");
    assert_eq!(details(&error), "the folder is empty or does not exist");
    let dir = folder(&[("README", "")]);
    let error = ConfigFolder::scan(dir.path()).unwrap().find("x").unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("no net configuration with name \"x\" in {}", dir.path().display())
    );
    assert!(details(&error).ends_with("README: not named *.conflist, *.conf or *.json"));
}

#[test]
fn name_not_found_error() {
    let dir = folder(&[
        ("10.conflist", r#"{"name": "a", "plugins": [{"type": "bridge"}]}"#),
        ("20.conflist", "}"),
    ]);
    let error = ConfigFolder::scan(dir.path()).unwrap().find("x").unwrap_err();
    let dir = dir.path().display();
    assert_eq!(error.to_string(), format!("no net configuration with name \"x\" in {dir}"));
    assert_eq!(
        details(&error),
        format!(
            "considered: {dir}/10.conflist: network \"a\"; {dir}/20.conflist:1:1: \
             error parsing configuration list: there is no JSON value"
        )
    );
}

/// While a file is being written it is unknown whether it defines the network: the runtime must not
/// take another.
#[test]
fn a_file_that_is_unfinished_may_come_to_define_a_network() {
    let whole = r#"{"name": "a", "plugins": [{"type": "bridge"}]}"#;
    for beginning in ["", "  \n", "{", r#"{"cniVersion": "1.1.0", "na"#] {
        let dir = folder(&[("10.conflist", whole), ("05.conflist", beginning)]);
        let scan = ConfigFolder::scan(dir.path()).unwrap();
        assert_eq!(scan.find("a").unwrap().name, "a", "a whole file is believed");
        let error = scan.find("x").unwrap_err();
        assert!(matches!(error, LoadError::Unfinished { .. }), "{beginning}: {error}");
        let words = format!("no net configuration with name \"x\" yet: {}", dir.path().display());
        assert!(error.to_string().starts_with(&words), "{error}");
        assert_eq!(error.to_cni().code, code::TRY_AGAIN_LATER);
    }
    // The file is cut off after the name: it belongs to that network, and no other file counts.
    let dir = folder(&[("10.conflist", &whole[..whole.len() - 3]), ("20.conflist", whole)]);
    let scan = ConfigFolder::scan(dir.path()).unwrap();
    let error = scan.find("a").unwrap_err();
    assert!(matches!(&error, LoadError::Refused { refusal, .. } if refusal.unfinished), "{error}");
    assert_eq!(error.to_cni().code, code::TRY_AGAIN_LATER);
    assert!(matches!(scan.find("x"), Err(LoadError::NotFound { .. })));
}

#[test]
fn drop_in_plugins() {
    let dir = folder(&[
        ("10.conflist", r#"{"name": "mynet", "plugins": [{"type": "bridge"}]}"#),
        ("mynet/20-b.conf", r#"{"type": "tuning"}"#),
        ("mynet/10-a.conf", r#"{"type": "portmap", "big": 1152921504606846977}"#),
        ("mynet/30-c.json", r#"{"type": "never"}"#),
        ("20.conflist", r#"{"name": "bare"}"#),
        ("bare/1.conf", r#"{"type": "ptp"}"#),
    ]);
    assert_eq!(types(dir.path(), "mynet"), ["bridge", "portmap", "tuning"]);
    assert_eq!(types(dir.path(), "bare"), ["ptp"]);
    // The cache keeps the whole chain.
    let scan = ConfigFolder::scan(dir.path()).unwrap();
    let list = scan.find("mynet").unwrap();
    let again = cni::NetworkList::parse(&list.source).unwrap();
    assert_eq!(again.plugins, list.plugins);
    assert!(again.load_only_inlined_plugins);
}

/// A network does need its drop-in folder: it must not come up without a part of its chain.
#[test]
fn a_broken_drop_in_refuses_its_network_and_no_other() {
    let files = [
        ("10.conflist", r#"{"name": "mynet", "plugins": [{"type": "bridge"}]}"#),
        ("mynet/10.conf", "{\"type\": \"firewall\",\n oops}"),
        ("20.conflist", r#"{"name": "mynet", "plugins": [{"type": "never"}]}"#),
        ("30.conflist", r#"{"name": "other", "plugins": [{"type": "ptp"}]}"#),
    ];
    check(
        &files,
        &expect![[r#"
            10.conflist: its drop-in cannot be used: mynet/10.conf:2:2: error parsing configuration: the key oops needs quotation marks: "oops"
            20.conflist: its drop-in cannot be used: mynet/10.conf:2:2: error parsing configuration: the key oops needs quotation marks: "oops"
            30.conflist: network "other"
            mynet: a folder: only drop-ins of the network with this name are read from it
        "#]],
    );
    let dir = folder(&files);
    let scan = ConfigFolder::scan(dir.path()).unwrap();
    let error = scan.find("mynet").unwrap_err();
    assert!(matches!(&error, LoadError::Refused { .. }), "{error}");
    assert_eq!(scan.find("other").unwrap().plugins[0].plugin_type, "ptp");
}

#[test]
fn load_only_inlined_plugins() {
    let dir = folder(&[
        (
            "10.conflist",
            r#"{"name": "mynet", "loadOnlyInlinedPlugins": true, "plugins": [{"type": "bridge"}]}"#,
        ),
        ("mynet/10.conf", r#"{"type": "tuning"}"#),
    ]);
    assert_eq!(types(dir.path(), "mynet"), ["bridge"]);
}

#[test]
fn list_validation_errors() {
    check(
        &[
            ("01.conflist", r#"{"plugins": [{"type": "a"}]}"#),
            ("02.conflist", "{\n \"name\": 7, \"plugins\": [{\"type\": \"a\"}]}"),
            ("03.conflist", r#"{"name": "c", "cniVersion": 1, "plugins": [{"type": "a"}]}"#),
            ("04.conflist", r#"{"name": "d", "plugins": {}}"#),
            ("05.conflist", r#"{"name": "e", "plugins": []}"#),
            ("06.conflist", r#"{"name": "f"}"#),
            (
                "07.conflist",
                "{\"name\": \"g\", \"plugins\": [\n {\"type\": \"a\"},\n {\"mtu\": 1}]}",
            ),
            ("08.conflist", r#"{"name": "h", "loadOnlyInlinedPlugins": true}"#),
            ("09.conflist", r#"{"name": "i", "type": "bridge"}"#),
            ("10.conflist", r#"{"name": "j", "plugins": [{"type": "../evil"}]}"#),
            ("11.conflist", ""),
            (
                "12.conflist",
                r#"{"name": "k", "cniVersions": ["1.0.0", "x"], "plugins": [{"type": "a"}]}"#,
            ),
            ("13.conf", r#"{"name": "l", "plugins": [{"type": "a"}]}"#),
            ("14.conf", r#"{"name": "m", "type": 3}"#),
            ("15.conflist", r#"{"name": "n", "plugins": [{"type": "a"}]} trailing"#),
            ("16.conflist", r#"["name"]"#),
            (
                "17.conflist",
                r#"{"name": "o", "plugins": [{"type": "a", "capabilities": {"x": 1}}]}"#,
            ),
        ],
        &expect![[r#"
            01.conflist:1:1: error parsing configuration list: no name
            02.conflist:2:10: error parsing configuration list: invalid name type float64; "name" is a number, it must be a string
            03.conflist:1:29: error parsing configuration list: invalid cniVersion type float64; "cniVersion" is a number, it must be a string
            04.conflist:1:26: error parsing configuration list: invalid 'plugins' type map[string]interface {}; "plugins" is an object, it must be a list
            05.conflist:1:1: error parsing configuration list: no plugins in list
            06.conflist:1:1: no plugin configs found
            07.conflist:3:2: failed to parse plugin config 1: error parsing configuration: missing 'type'
            08.conflist:1:1: error parsing configuration list: `loadOnlyInlinedPlugins` is true, and no 'plugins' key
            09.conflist:1:1: no plugin configs found: a single plugin's configuration belongs in a .conf file
            10.conflist:1:36: failed to parse plugin config 0: invalid plugin name: ../evil
            11.conflist: the file is empty
            12.conflist:1:40: error parsing configuration list: invalid cniVersions entry x at index 1: failed to convert major version part "x": not a number
            15.conflist:1:43: error parsing configuration list: there is something behind its end
            16.conflist:1:1: error parsing configuration list: found a list, wanted an object
            17.conflist:1:63: failed to parse plugin config 0: error parsing configuration: capabilities.x: found 1, wanted true or false
            13.conf:1:1: error parsing configuration: missing 'type' (a list of plugins belongs in a .conflist file)
            14.conf:1:23: error parsing configuration: type: found 3, wanted a string
        "#]],
    );
}

#[test]
fn string_booleans() {
    let text = |value: &str| {
        format!(r#"{{"name": "n", "disableCheck": {value}, "plugins": [{{"type": "a"}}]}}"#)
    };
    for (value, expected) in [("\"TRUE\"", true), ("\"False\"", false), ("true", true)] {
        let dir = folder(&[("1.conflist", &text(value))]);
        let scan = ConfigFolder::scan(dir.path()).unwrap();
        assert_eq!(scan.find("n").unwrap().disable_check, expected, "{value}");
    }
    check(
        &[("1.conflist", &text("\"x\""))],
        &expect![[r#"
        1.conflist:1:31: error parsing configuration list: invalid value "x" for disableCheck; "disableCheck" must be true or false
    "#]],
    );
}

#[test]
fn cni_versions_max() {
    let dir = folder(&[(
        "1.conflist",
        r#"{"name": "n", "cniVersion": "1.0.0", "cniVersions": ["0.4.0", "1.1.0", "9.9.0"],
            "plugins": [{"type": "a"}]}"#,
    )]);
    assert_eq!(ConfigFolder::scan(dir.path()).unwrap().find("n").unwrap().cni_version, "1.1.0");
}

#[test]
fn what_is_not_a_file_is_named_and_not_waited_for() {
    let dir = folder(&[("20.conflist", r#"{"name": "n", "plugins": [{"type": "a"}]}"#)]);
    let fifo = dir.path().join("10.conflist");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    std::fs::create_dir(dir.path().join("15.conflist")).unwrap();
    std::os::unix::fs::symlink("nowhere", dir.path().join("17.conflist")).unwrap();
    assert_eq!(types(dir.path(), "n"), ["a"]);
    let scan = ConfigFolder::scan(dir.path()).unwrap();
    let prefix = format!("{}/", dir.path().display());
    let lines: Vec<String> =
        scan.considered().iter().map(|line| line.to_string().replace(&prefix, "") + "\n").collect();
    expect![[r#"
        10.conflist: read "10.conflist": not a regular file
        15.conflist: a folder: only drop-ins of the network with this name are read from it
        17.conflist: it does not exist
        20.conflist: network "n"
    "#]]
    .assert_eq(&lines.concat());
}

/// A broken file that names the network is the one that the administrator meant: taking the next
/// file would put containers on a network with another policy.
#[test]
fn a_broken_file_that_names_the_network_is_not_stepped_over() {
    let dir = folder(&[
        ("10.conflist", r#"{"name": "mynet", "plugins": [{"typo": "bridge"}]}"#),
        ("20.conflist", r#"{"name": "mynet", "plugins": [{"type": "ptp"}]}"#),
    ]);
    let error = ConfigFolder::scan(dir.path()).unwrap().find("mynet").unwrap_err();
    let dir = dir.path().display();
    assert_eq!(
        error.to_string(),
        format!(
            "network \"mynet\" cannot be used: {dir}/10.conflist:1:31: failed to parse plugin \
             config 0: error parsing configuration: missing 'type'"
        )
    );
}

#[test]
fn a_single_file_is_read_by_its_content() {
    let dir = folder(&[
        ("list.conf", r#"{"name": "n", "plugins": [{"type": "a"}]}"#),
        ("single.json", r#"{"name": "n", "type": "b"}"#),
        ("n/1.conf", r#"{"type": "c"}"#),
    ]);
    let types = |name: &str| {
        let list = load_file(dir.path().join(name)).unwrap();
        list.plugins.iter().map(|plugin| plugin.plugin_type.clone()).collect::<Vec<_>>()
    };
    assert_eq!(types("list.conf"), ["a", "c"]);
    assert_eq!(types("single.json"), ["b"]);
    let refusal = load_file(dir.path().join("none.conf")).unwrap_err();
    assert!(refusal.to_string().ends_with("none.conf: it does not exist"));
}

#[test]
fn a_network_name_that_is_a_path_reaches_no_other_folder() {
    let dir = folder(&[
        ("conf/1.conflist", r#"{"name": "../outside", "plugins": [{"type": "a"}]}"#),
        ("conf/2.conflist", r#"{"name": "..", "plugins": [{"type": "a"}]}"#),
        ("conf/3.conflist", r#"{"name": ".", "plugins": [{"type": "a"}]}"#),
        ("outside/1.conf", r#"{"type": "evil"}"#),
        ("evil.conf", r#"{"type": "evil"}"#),
    ]);
    for name in ["../outside", "..", "."] {
        assert_eq!(types(&dir.path().join("conf"), name), ["a"]);
    }
}
