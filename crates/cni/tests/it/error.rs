//! Error objects.

use expect_test::expect;
use netwright_cni::{Error, code};

#[test]
fn errors_are_written_as_the_reference_writes_them() {
    let error = Error::new(code::INCOMPATIBLE_VERSION, "incompatible CNI versions")
        .with_details(r#"config is "1.2.0", plugin supports ["0.1.0" "0.2.0"]"#);
    expect![[r#"
        {
            "code": 1,
            "msg": "incompatible CNI versions",
            "details": "config is \"1.2.0\", plugin supports [\"0.1.0\" \"0.2.0\"]"
        }"#]]
    .assert_eq(&String::from_utf8(error.to_json()).unwrap());
    let error =
        Error { cni_version: Some("1.1.0".into()), ..Error::new(7, "missing network name") };
    expect![[r#"
        {
            "cniVersion": "1.1.0",
            "code": 7,
            "msg": "missing network name"
        }"#]]
    .assert_eq(&String::from_utf8(error.to_json()).unwrap());
}

#[test]
fn errors_are_shown_with_details_after_a_semicolon() {
    assert_eq!(Error::new(4, "a").to_string(), "a");
    assert_eq!(Error::new(4, "a").with_details("b").with_details("").to_string(), "a; b");
    assert_eq!(Error::new(4, "a").with_details("b").with_details("c").details, "b; c");
    let wrapped = Error::new(50, "down").with_details("b").context("plugin x");
    assert_eq!((wrapped.code, wrapped.to_string().as_str()), (50, "plugin x: down; b"));
}

#[test]
fn error_objects_of_others_are_read() {
    let error = Error::parse(br#"{"CODE": 11, "Msg": "later", "details": null, "x": 1}"#).unwrap();
    assert_eq!(error, Error::new(code::TRY_AGAIN_LATER, "later"));
    assert_eq!(Error::parse(b"null").unwrap(), Error::new(0, ""));
    for bad in
        [&b""[..], b"[]", b"text", br#"{"code": "7"}"#, br#"{"code": -1}"#, br#"{"code": 1} {}"#]
    {
        assert!(Error::parse(bad).is_err(), "{}", String::from_utf8_lossy(bad));
    }
}

#[test]
fn a_chain_of_causes_is_told_once() {
    #[derive(Debug, thiserror::Error)]
    #[error("open {0}")]
    struct Open(&'static str, #[source] std::io::Error);
    let error = Open("x", std::io::Error::other("no luck"));
    assert_eq!(Error::from_chain(code::IO_FAILURE, &error).msg, "open x: no luck");
}

/// Each plugin that delegates may put words before the message.
#[test]
fn a_refusal_of_the_configuration_is_kept_as_its_plugin_said_it() {
    let said = Error::new(code::INVALID_CONFIG, "range foo").with_refusal();
    let refusal = said.refusal().unwrap();
    assert_eq!((refusal.code, refusal.msg.as_str()), (7, "range foo"));
    let passed_on = said.context("release the addresses").with_refusal().context("plugin x");
    let passed_on = Error::parse(&passed_on.to_json()).unwrap();
    assert_eq!(passed_on.msg, "plugin x: release the addresses: range foo");
    assert!(passed_on.is_only(&refusal), "{passed_on:?}");
    assert!(!passed_on.leaving().is_only(&refusal));
    // What another plugin, or no plugin, says of its configuration.
    for other in [
        Error::new(code::INVALID_CONFIG, "range bar"),
        Error::new(code::INVALID_CONFIG, ""),
        Error::new(code::DECODE_FAILURE, "range foo"),
    ] {
        assert!(!other.is_only(&refusal), "{other:?}");
    }
    let busy = Error::new(code::TRY_AGAIN_LATER, "busy").with_refusal();
    assert_eq!((busy.refusal(), busy.refused), (None, None));
}
