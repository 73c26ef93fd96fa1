//! Deriving a plugin's input.

use std::collections::BTreeMap;

use netwright_cni::json::Object;
use netwright_cni::{GcAttachment, Injection, PluginConfig};
use serde_json::value::RawValue;

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

fn request(object: &str, injection: &Injection<'_>) -> String {
    let plugin = PluginConfig::parse(object.as_bytes()).unwrap();
    String::from_utf8(plugin.request("net", "1.1.0", injection)).unwrap()
}

#[test]
fn name_and_version_are_the_lists() {
    assert_eq!(
        request(
            r#"{"Name":"own","type":"a","cniversion":"0.1.0","NAME":"x"}"#,
            &Injection::default()
        ),
        r#"{"name":"net","type":"a","cniVersion":"1.1.0"}"#
    );
    // The long s folds to s: a plugin written in Go would read this key as cniVersion.
    assert_eq!(
        request("{\"type\":\"a\",\"cniVer\u{17f}ion\":\"0.1.0\"}", &Injection::default()),
        r#"{"type":"a","cniVersion":"1.1.0","name":"net"}"#
    );
}

#[test]
fn capabilities_are_taken_out_and_their_arguments_put_in() {
    let object = r#"{"type":"a","capabilities":{"mac":true,"ips":false,"bandwidth":true},"x":1}"#;
    let args: BTreeMap<String, Box<RawValue>> = [
        ("mac".to_owned(), raw(r#""02:00:00:00:00:01""#)),
        ("ips".to_owned(), raw("[]")),
        ("portMappings".to_owned(), raw(r#"[ {"hostPort":8080} ]"#)),
    ]
    .into();
    let injection = Injection { capability_args: Some(&args), ..Injection::default() };
    assert_eq!(
        request(object, &injection),
        r#"{"type":"a","x":1,"cniVersion":"1.1.0","name":"net","runtimeConfig":{"mac":"02:00:00:00:00:01"}}"#
    );
}

#[test]
fn nothing_wanted_leaves_runtime_config_as_it_was() {
    let args: BTreeMap<String, Box<RawValue>> = [("mac".to_owned(), raw("1"))].into();
    let injection = Injection { capability_args: Some(&args), ..Injection::default() };
    assert!(!request(r#"{"type":"a"}"#, &injection).contains("runtimeConfig"));
    let literal = request(r#"{"type":"a","runtimeConfig":{"k": 1}}"#, &injection);
    assert!(literal.contains(r#""runtimeConfig":{"k": 1}"#), "{literal}");
}

/// Only a program that walks the list knows; what the object says counts where no such program
/// says anything.
#[test]
fn a_plugin_is_told_that_one_follows_which_opens_its_link() {
    let following = |types: &[&str], object: &str| {
        request(object, &Injection { followed_by: Some(types), ..Injection::default() })
    };
    let told =
        r#"{"type":"a","cniVersion":"1.1.0","name":"net","netwright/followed-by":["policy"]}"#;
    let untold = r#"{"type":"a","cniVersion":"1.1.0","name":"net"}"#;
    let literal = r#"{"type":"a","netwright/followed-by":["policy"]}"#;
    assert_eq!(following(&["tuning", "policy", "portmap"], r#"{"type":"a"}"#), told);
    assert_eq!(following(&["tuning"], r#"{"type":"a"}"#), untold);
    assert_eq!(following(&[], literal), untold);
    let kept = request(literal, &Injection::default());
    assert!(kept.contains(r#""netwright/followed-by":["policy"]"#), "{kept}");
}

#[test]
fn the_previous_result_is_passed_as_it_was_written() {
    let previous = raw("{\"cniVersion\": \"1.1.0\",\n \"x\": 1.50}");
    let injection = Injection { prev_result: Some(&previous), ..Injection::default() };
    let request = request(r#"{"type":"a","prevResult":{"old":1}}"#, &injection);
    assert!(request.contains(previous.get()), "{request}");
    assert!(!request.contains("old"), "{request}");
}

#[test]
fn valid_attachments_go_under_both_names() {
    let valid = [GcAttachment { container_id: "c1".into(), ifname: "eth0".into() }];
    let list = r#"[{"containerID":"c1","ifname":"eth0"}]"#;
    let injection = Injection { valid_attachments: Some(&valid), ..Injection::default() };
    let whole = request(r#"{"type":"a"}"#, &injection);
    assert!(whole.contains(&format!(r#""cni.dev/valid-attachments":{list}"#)), "{whole}");
    assert!(whole.contains(&format!(r#""cni.dev/attachments":{list}"#)), "{whole}");
    let none = Injection { valid_attachments: Some(&[]), ..Injection::default() };
    assert!(request(r#"{"type":"a"}"#, &none).contains(r#""cni.dev/valid-attachments":[]"#));
    assert!(!request(r#"{"type":"a"}"#, &Injection::default()).contains("cni.dev"));
}

#[test]
fn unknown_keys_keep_every_byte_of_their_values() {
    let values = [
        "1152921504606846977",
        "1e400",
        "-0.0",
        "1.500",
        r#"{"a" : [1, {"b":null} ], "a":2}"#,
        "\"<&>\\u0041\\ud800 é\"",
        "[\n\t1 ,2]",
    ];
    for value in values {
        let whole = request(
            &format!(r#"{{"k1": {value} ,"type":"a","K1":{value}}}"#),
            &Injection::default(),
        );
        let object = Object::parse(whole.as_bytes()).unwrap();
        assert_eq!(object.get("k1").unwrap().get(), value);
        assert_eq!(object.get("K1").unwrap().get(), value);
        assert!(whole.contains(&format!(r#""k1":{value},"#)), "{whole}");
    }
}
