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
