//! Input that is meant to exhaust the parser: depth and size cost little.

use std::time::Duration;

use netwright_cni::json::{self, MAX_DEPTH, Object};
use netwright_cni::{AddResult, CommonConfig, Error, NetworkList, PluginConfig, Version};
use serde::Deserialize;
use serde_json::value::RawValue;

fn nested(open: &str, depth: usize, close: &str) -> String {
    format!("{}1{}", open.repeat(depth), close.repeat(depth))
}

/// A type that is as deep as the document.
#[derive(Debug, Deserialize)]
struct EndlessList(#[expect(dead_code)] Vec<EndlessList>);

#[test]
fn deep_documents_are_refused_before_they_are_followed() {
    for text in [nested("[", 60_000, "]"), nested("{\"a\":", 60_000, "}"), "[".repeat(60_000)] {
        let whole = format!(
            r#"{{"name":"n","type":"t","plugins":[{{"type":"t","x":{text}}}],"prevResult":{text}}}"#
        );
        let whole = whole.as_bytes();
        let refusals = [
            NetworkList::parse(whole).unwrap_err().to_string(),
            NetworkList::from_plugin(whole).unwrap_err().to_string(),
            PluginConfig::parse(whole).unwrap_err().to_string(),
            AddResult::parse(whole, Version::CURRENT).unwrap_err().to_string(),
            Error::parse(whole).unwrap_err().to_string(),
            json::from_slice::<CommonConfig>(whole).unwrap_err().to_string(),
            json::from_slice::<serde_json::Value>(whole).unwrap_err().to_string(),
            Object::parse(whole).unwrap_err().to_string(),
            json::unknown_keys::<CommonConfig>(std::str::from_utf8(whole).unwrap())
                .unwrap_err()
                .to_string(),
        ];
        for refusal in refusals {
            assert!(
                refusal.contains("nested deeper than 100 levels at line 1 column "),
                "{refusal}"
            );
        }
    }
}

#[test]
fn kept_text_is_followed_no_deeper_than_a_document() {
    // Stored text can come from elsewhere: serde_json keeps text of any depth.
    let raw: Box<RawValue> = serde_json::from_str(&nested("[", 60_000, "]")).unwrap();
    let error = json::from_raw::<EndlessList>(&raw).unwrap_err();
    assert_eq!(error.message, "nested deeper than 100 levels");
    let error = json::from_raw::<serde_json::Value>(&raw).unwrap_err();
    assert_eq!(error.message, "nested deeper than 100 levels");
}

#[test]
fn the_deepest_document_can_be_wrapped_and_read_by_serde_json() {
    let deepest = format!(r#"{{"type":"t","x":{}}}"#, nested("[", MAX_DEPTH - 1, "]"));
    let plugin = PluginConfig::parse(deepest.as_bytes()).unwrap();
    let request = plugin.request("n", "1.1.0", &netwright_cni::Injection::default());
    let wrapped = format!(r#"{{"a":[{{"b":{}}}]}}"#, String::from_utf8(request).unwrap());
    assert!(serde_json::from_str::<serde_json::Value>(&wrapped).is_ok());
    let one_more = format!(r#"{{"type":"t","x":{}}}"#, nested("[", MAX_DEPTH, "]"));
    assert!(PluginConfig::parse(one_more.as_bytes()).is_err());
}

#[test]
fn brackets_in_strings_are_no_depth() {
    let text = format!(r#"{{"type":"t","x":"\\\"{}"}}"#, "[{".repeat(1000));
    assert!(PluginConfig::parse(text.as_bytes()).is_ok());
}

#[test]
fn large_documents_take_linear_time() {
    let before = processor_time();
    let wide = format!("[{}]", vec!["0"; 200_000].join(","));
    let mut text = wide.clone();
    for _ in 0..MAX_DEPTH - 10 {
        text = format!("[{text}]");
    }
    // Every level of a type scans its text once. The worst case is a megabyte that is scanned at
    // every level.
    assert!(json::from_str::<serde_json::Value>(&text).is_ok());
    let doubled: Vec<String> = (0..50_000).map(|_| r#""ipam":{"type":"a"}"#.to_owned()).collect();
    let keys: Vec<String> = (0..50_000).map(|n| format!(r#""k{n}":{{}}"#)).collect();
    let plugin = format!(r#"{{"type":"t",{},{}}}"#, doubled.join(","), keys.join(","));
    assert!(PluginConfig::parse(plugin.as_bytes()).is_ok());
    let list =
        format!(r#"{{"name":"n","plugins":[{}]}}"#, vec![r#"{"type":"t"}"#; 20_000].join(","));
    assert_eq!(NetworkList::parse(list.as_bytes()).unwrap().plugins.len(), 20_000);
    // Quadratic work on any of these would take minutes of the processor.
    let took = processor_time() - before;
    assert!(took < Duration::from_secs(30), "{took:?}");
}

/// Returns how long this thread has been on a processor: other programs do not count.
fn processor_time() -> Duration {
    // linux Documentation/scheduler/sched-stats.rst "/proc/<pid>/schedstat".
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}
