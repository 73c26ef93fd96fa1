//! Reading by Go's rules.

use std::collections::BTreeMap;

use expect_test::{Expect, expect};
use netwright_cni::json::{self, Object};
use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Config {
    name: String,
    mtu: u32,
    #[serde(rename = "isGateway")]
    is_gateway: bool,
    vlan: Option<u16>,
    tags: Vec<String>,
    ids: Vec<u8>,
    flags: BTreeMap<String, bool>,
    ipam: Ipam,
    ranges: Vec<Vec<Ipam>>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(default)]
struct Ipam {
    subnet: String,
    size: i64,
}

impl Default for Ipam {
    fn default() -> Self {
        Ipam { subnet: "192.0.2.0/24".into(), size: 24 }
    }
}

fn config(text: &str) -> Config {
    json::from_str(text).unwrap()
}

fn refused(text: &str, expected: Expect) {
    expected.assert_eq(&json::from_str::<Config>(text).unwrap_err().to_string());
}

#[test]
fn keys_match_in_any_case() {
    let config = config("{\"NAME\":\"n\",\"isgateway\":true,\"ranGe\u{17f}\":[[{\"Size\":1}]]}");
    assert_eq!(config.name, "n");
    assert!(config.is_gateway);
    assert_eq!(config.ranges[0][0].size, 1);
}

#[test]
fn keys_that_fold_differently_in_unicode_do_not_match() {
    // Go uses simple case folding: the dotless i does not fold to i, nor the micro sign to m.
    assert_eq!(config("{\"\u{131}pam\":5,\"\u{b5}tu\":\"x\"}"), Config::default());
}

#[test]
fn the_last_of_equal_keys_counts() {
    assert_eq!(config(r#"{"name":"a","name":"b"}"#).name, "b");
    assert_eq!(config(r#"{"Name":"a","NAME":"b"}"#).name, "b");
    assert_eq!(config(r#"{"NAME":"b","name":"a","Name":null}"#).name, "a");
    // Even if an earlier one is of the wrong type, which Go would refuse: our parser never reads
    // it.
    assert_eq!(config(r#"{"mtu":"x","mtu":1500}"#).mtu, 1500);
}

#[test]
fn a_key_that_is_spelled_exactly_goes_before_others() {
    for text in [
        r#"{"name":"a","NAME":"b"}"#,
        r#"{"NAME":"b","name":"a","Name":"c"}"#,
        r#"{"name":"c","NAME":"b","name":"a","Name":null}"#,
    ] {
        assert_eq!(config(text).name, "a", "{text}");
        let object = Object::parse(text.as_bytes()).unwrap();
        assert_eq!(object.get_ignore_case("name").unwrap().get(), "\"a\"", "{text}");
    }
    // A key that is null counts as absent.
    assert_eq!(config(r#"{"name":null,"NAME":"b"}"#).name, "b");
}

#[test]
fn null_leaves_the_default_everywhere() {
    let nulls = r#"{"name":null,"mtu":null,"isGateway":null,"vlan":null,"tags":null,"ids":null,
        "flags":null,"ipam":null,"ranges":null}"#;
    assert_eq!(config(nulls), Config::default());
    assert_eq!(config(r#"{"ipam":{"subnet":null}}"#).ipam, Ipam::default());
    assert_eq!(config("null"), Config::default());
}

#[test]
fn null_within_a_list_is_the_zero_value() {
    let config =
        config(r#"{"tags":["a",null],"ids":[null,2],"flags":{"a":null},"ranges":[null,[null]]}"#);
    assert_eq!(config.tags, ["a", ""]);
    assert_eq!(config.ids, [0, 2]);
    assert!(!config.flags["a"]);
    assert_eq!(config.ranges, [vec![], vec![Ipam::default()]]);
}

#[test]
fn wrong_types_are_errors_with_key_and_place() {
    refused(
        "{\"ipam\":\n  {\"size\": \"x\"}}",
        expect![[r#"ipam.size: found "x", wanted a whole number at line 2 column 12"#]],
    );
    refused(
        r#"{"ranges":[[],[{},{"subnet":5}]]}"#,
        expect!["ranges[1][1].subnet: found 5, wanted a string at line 1 column 29"],
    );
    refused(
        r#"{"isGateway":"true"}"#,
        expect![[r#"isGateway: found "true", wanted true or false at line 1 column 14"#]],
    );
    refused(
        r#"{"mtu":1.0}"#,
        expect!["mtu: found 1.0, wanted a whole number from 0 to 4294967295 at line 1 column 8"],
    );
    refused(
        r#"{"mtu":-1}"#,
        expect!["mtu: found -1, wanted a whole number from 0 to 4294967295 at line 1 column 8"],
    );
    refused(
        r#"{"vlan":65536}"#,
        expect!["vlan: found 65536, wanted a whole number from 0 to 65535 at line 1 column 9"],
    );
    refused(r#"{"tags":"a"}"#, expect![[r#"tags: found "a", wanted a list at line 1 column 9"#]]);
    refused(r#"{"ipam":[]}"#, expect!["ipam: found a list, wanted an object at line 1 column 9"]);
}

#[test]
fn what_is_not_json_is_refused_with_its_place() {
    refused("", expect!["it ends before it is complete at line 1 column 0"]);
    refused("{} {}", expect!["there is something behind its end at line 1 column 4"]);
    let error = json::from_slice::<Config>(b"{\n\"name\": \"\xff\"}").unwrap_err();
    assert_eq!(
        error.to_string(),
        "not UTF-8 text: byte 0xff (save the file as UTF-8) at line 2 column 10"
    );
}

/// Each is named by what stands there, not by what a parser expected; also where it cannot be seen.
#[test]
fn what_people_write_in_place_of_json_is_named() {
    refused(
        "\u{feff}{}",
        expect![
            "the file begins with a byte order mark (U+FEFF): save it as UTF-8 without one at line 1 column 1"
        ],
    );
    refused("{\"a\":\n1,}", expect!["there is a comma too many before '}' at line 2 column 3"]);
    refused("[1,2,]", expect!["there is a comma too many before ']' at line 1 column 6"]);
    refused("[1,,2]", expect!["there is a comma too many at line 1 column 4"]);
    refused("{\"a\":1},", expect!["there is a comma too many at the end at line 1 column 8"]);
    refused(
        "{\"a\":1,\u{a0}\"b\":2}",
        expect!["U+00A0 (a non-breaking space) is not allowed here at line 1 column 8"],
    );
    refused(
        "{\"a\":\u{200b}1}",
        expect!["U+200B (a zero-width space) is not allowed here at line 1 column 6"],
    );
    refused(
        "{\"a\":1}\u{a0}",
        expect!["U+00A0 (a non-breaking space) is not allowed here at line 1 column 8"],
    );
    refused(
        "{\"a\"\u{a0}:1}",
        expect!["U+00A0 (a non-breaking space) is not allowed here at line 1 column 5"],
    );
    refused(
        "{\u{201c}a\u{201d}:1}",
        expect![[r#"U+201C is not a quotation mark of JSON (") at line 1 column 2"#]],
    );
    refused(
        "{\"a\":\u{2018}b\u{2019}}",
        expect![[r#"U+2018 is not a quotation mark of JSON (") at line 1 column 6"#]],
    );
    refused("{'a':1}", expect![[r#"' is not a quotation mark of JSON (") at line 1 column 2"#]]);
    refused("{// mine\n\"a\":1}", expect!["JSON has no comments at line 1 column 2"]);
    refused("{\"a\":1 /* mine */}", expect!["JSON has no comments at line 1 column 8"]);
    refused("# mine\n{}", expect!["JSON has no comments at line 1 column 1"]);
    refused("{\"a\":1}\n// end", expect!["JSON has no comments at line 2 column 1"]);
    refused(
        &format!("{{\"a\":{}}}", "x".repeat(100)),
        expect![
            "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx… is not a value of JSON: a text needs quotation marks at line 1 column 6"
        ],
    );
    refused("{\"a\":True}", expect!["True is not a value of JSON: write true at line 1 column 6"]);
    refused(
        "{\"a\":[nUll]}",
        expect!["nUll is not a value of JSON: write null at line 1 column 7"],
    );
    refused(
        "{\"a\":bridge}",
        expect!["bridge is not a value of JSON: a text needs quotation marks at line 1 column 6"],
    );
    refused("{a:1}", expect![[r#"the key a needs quotation marks: "a" at line 1 column 2"#]]);
    refused(
        "{\"a\":1 \"b\":2}",
        expect!["there is no comma between this and what is before it at line 1 column 8"],
    );
    refused(
        "{\"a\":1\u{ff0c}\"b\":2}",
        expect!["U+FF0C (，) is not allowed here at line 1 column 7"],
    );
    refused(
        "{\"a\":\u{0}1}",
        expect!["U+0000 (a control character) is not allowed here at line 1 column 6"],
    );
    // In a string all of these are text.
    assert!(json::from_str::<Config>("{\"name\":\"\u{feff}\u{a0}\u{201c}//,}\"}").is_ok());
    let utf16: Vec<u8> = "\u{feff}{}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let error = json::from_slice::<Config>(&utf16).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the file is UTF-16, with a byte order mark: save it as UTF-8 without one at line 1 column 1"
    );
}

#[test]
fn objects_keep_their_values_as_text() {
    let text = "{ \"b\" : 1152921504606846977 , \"a\": [ 1e400 ,\n {\"x\":\"\\u00e9\"} ],\"a\":-0, \"n\":null}";
    let object = Object::parse(text.as_bytes()).unwrap();
    assert_eq!(
        String::from_utf8(object.to_vec()).unwrap(),
        "{\"b\":1152921504606846977,\"a\":[ 1e400 ,\n {\"x\":\"\\u00e9\"} ],\"a\":-0,\"n\":null}"
    );
    assert_eq!(object.get("a").map(RawValue::get), Some("-0"));
    assert_eq!(object.get("A").map(RawValue::get), None);
    assert_eq!(object.get_ignore_case("A").map(RawValue::get), Some("-0"));
    assert_eq!(object, Object::parse(&object.to_vec()).unwrap());
    assert_eq!(format!("{object:?}").as_bytes(), object.to_vec());
    assert!(Object::parse(b"null").unwrap().is_empty());
    assert!(Object::parse(b"[]").is_err());
}

#[test]
fn setting_a_key_keeps_its_place_and_removes_its_doubles() {
    let mut object = Object::parse(br#"{"a":1,"Name":2,"b":3,"NAME":4,"name":5}"#).unwrap();
    object.set_value("name", "n");
    assert_eq!(format!("{object:?}"), r#"{"a":1,"name":"n","b":3}"#);
    object.set_value("new", &[1]);
    object.remove("A");
    assert_eq!(format!("{object:?}"), r#"{"name":"n","b":3,"new":[1]}"#);
    assert!(object.read::<Config>().is_ok());
}
