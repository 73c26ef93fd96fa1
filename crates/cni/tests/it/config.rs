//! A plugin's configuration and the keys every plugin has.

use netwright_cni::{CommonConfig, PluginConfig, json};

#[track_caller]
fn refused(text: &str, code: u32, msg: &str) {
    let error = PluginConfig::parse(text.as_bytes()).unwrap_err();
    assert_eq!((error.code, error.msg.as_str()), (code, msg), "{text}");
}

#[test]
fn a_plugins_object_is_checked_when_it_is_loaded() {
    const P: &str = "error parsing configuration: ";
    refused("{", 6, &format!("{P}it ends before it is complete at line 1 column 1"));
    refused("{}", 7, &format!("{P}missing 'type'"));
    refused("null", 7, &format!("{P}missing 'type'"));
    refused(r#"{"type":""}"#, 7, &format!("{P}missing 'type'"));
    refused(r#"{"type":null}"#, 7, &format!("{P}missing 'type'"));
    refused(
        r#"{"type":"a","name":1}"#,
        6,
        &format!("{P}name: found 1, wanted a string at line 1 column 20"),
    );
    let wrong = [
        r#""cniVersion":1"#,
        r#""capabilities":[]"#,
        r#""capabilities":{"a":1}"#,
        r#""ipam":[]"#,
        r#""ipam":{"type":1}"#,
        r#""dns":"x""#,
        r#""dns":{"nameservers":"192.0.2.1"}"#,
        r#""prevResult":"x""#,
    ];
    for key in wrong {
        let error = PluginConfig::parse(format!(r#"{{"type":"a",{key}}}"#).as_bytes()).unwrap_err();
        assert_eq!(error.code, 6, "{key}");
    }
    let fine =
        [r#""ipam":null"#, r#""dns":null"#, r#""prevResult":null"#, r#""ipam":{"TYPE":null}"#];
    for key in fine {
        assert!(
            PluginConfig::parse(format!(r#"{{"TYPE":"a",{key}}}"#).as_bytes()).is_ok(),
            "{key}"
        );
    }
}

#[test]
fn the_common_keys_are_read_in_any_case() {
    let config: CommonConfig = json::from_str(
        r#"{"CNIVERSION":"1.0.0","Name":"n","TYPE":"bridge","IPAM":{"TYPE":"host-local","SUBNET":"x"},
            "prevResult":null,"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]}"#,
    )
    .unwrap();
    assert_eq!(config.cni_version, "1.0.0");
    assert_eq!(config.plugin_type, "bridge");
    assert_eq!(config.ipam.unwrap().plugin_type, "host-local");
    assert!(config.prev_result.is_none());
    assert_eq!(config.valid_attachments.unwrap()[0].container_id, "c1");
    assert!(config.attachments.is_none());
}

#[test]
fn an_empty_list_of_attachments_is_not_an_absent_one() {
    let config: CommonConfig = json::from_str(r#"{"cni.dev/valid-attachments":[]}"#).unwrap();
    assert_eq!(config.valid_attachments, Some(vec![]));
    let config: CommonConfig = json::from_str("{}").unwrap();
    assert_eq!(config.valid_attachments, None);
}

#[test]
fn dns_given_but_empty_is_not_absent_dns() {
    let given = |text| json::from_str::<CommonConfig>(text).unwrap().dns.unwrap_or_default();
    assert!(given(r#"{"dns":{"nameservers":[]}}"#).is_given());
    assert!(!given(r#"{"dns":{}}"#).is_given());
    assert!(!given(r#"{"dns":{"domain":null}}"#).is_given());
    let dns = given(r#"{"dns":{"nameservers":["192.0.2.53"],"search":["a","b"]}}"#).to_dns();
    assert_eq!((dns.nameservers.len(), dns.search.len(), dns.domain.as_str()), (1, 2, ""));
}
