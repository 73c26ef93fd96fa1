//! The form of every answer.

use cni::{AddResult, CallEnv, Error, IpConfig, code};
use expect_test::expect;
use netwright_cni_plugin::codes;
use serde_json::json;

use crate::fake::{Fake, World, config};

fn one_address() -> AddResult {
    let ip = IpConfig::new("192.0.2.2/24".parse().unwrap(), None);
    AddResult { ips: vec![ip], ..AddResult::default() }
}

#[test]
fn add_prints_a_result_of_the_configurations_version() {
    let world = World::new();
    let fake = Fake { add: |_| Ok(one_address()), ..Fake::new() };
    let add = |version: &str| {
        let text = config(json!({ "cniVersion": version }));
        world.respond(&fake, &world.env("ADD"), text.as_bytes()).ok().to_owned()
    };
    expect![[r#"
        {
            "cniVersion": "1.0.0",
            "ips": [
                {
                    "address": "192.0.2.2/24"
                }
            ]
        }"#]]
    .assert_eq(&add("1.0.0"));
    expect![[r#"
        {
            "cniVersion": "0.2.0",
            "ip4": {
                "ip": "192.0.2.2/24"
            },
            "dns": {}
        }"#]]
    .assert_eq(&add("0.2.0"));
}

#[test]
fn the_other_verbs_print_nothing() {
    let world = World::new();
    for verb in ["DEL", "CHECK", "STATUS"] {
        let answer = world.call(&Fake::new(), verb);
        assert_eq!((answer.ok(), answer.stderr()), ("", ""), "{verb}");
    }
}

#[test]
fn a_plugins_error_is_printed_as_it_is_with_the_version_and_exit_code_1() {
    let world = World::new();
    fn fail() -> Error {
        Error::new(codes::ADDRESS, "no address is free").with_details("enlarge the range")
    }
    let fake = Fake { add: |_| Err(fail()), rest: |_| Err(fail()), ..Fake::new() };
    let valid = config(json!({ "cni.dev/valid-attachments": [] }));
    for verb in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
        let answer = world.respond(&fake, &world.env(verb), valid.as_bytes());
        answer.error();
        expect![[r#"
            {
                "cniVersion": "1.1.0",
                "code": 102,
                "msg": "no address is free",
                "details": "enlarge the range"
            }"#]]
        .assert_eq(answer.stdout());
    }
}

/// The object names a version only once one is known, and only one that exists.
#[test]
fn an_error_names_the_version_it_was_asked_in() {
    let world = World::new();
    let version = |stdin: &str| {
        world.respond(&Fake::new(), &world.env("GC"), stdin.as_bytes()).error().cni_version
    };
    assert_eq!(version("{"), None);
    assert_eq!(version(r#"{"name":"n","cniVersion":"7.0.0"}"#), None);
    assert_eq!(version(r#"{"name":"n","cniVersion":"0.4.0"}"#).as_deref(), Some("0.4.0"));
    assert_eq!(version(r#"{"name":"n"}"#).as_deref(), Some("0.1.0"));
    let answer =
        world.respond(&Fake::new(), &CallEnv { command: "GC".into(), ..CallEnv::default() }, b"");
    assert_eq!(answer.error().cni_version, None);
}

#[test]
fn warnings_go_to_standard_error() {
    let world = World::new();
    let fake = Fake {
        rest: |call| {
            call.warn("the link was gone");
            call.warn(format_args!("{} too", call.attachment()));
            Ok(())
        },
        ..Fake::new()
    };
    let answer = world.call(&fake, "DEL");
    assert_eq!(answer.ok(), "");
    assert_eq!(
        answer.stderr(),
        "fake DEL: warning: the link was gone\nfake DEL: warning: n/c1/eth0 too\n"
    );
}

/// The specification reserves 0 to 99.
#[test]
fn our_codes_start_at_100() {
    let ours = [
        codes::KERNEL,
        codes::FIREWALL,
        codes::ADDRESS,
        codes::HOST_PORT,
        codes::DRIFT,
        codes::STATE,
        codes::EXISTS,
        codes::DELEGATE,
        codes::CONFLICT,
        codes::SEVERAL,
        codes::DAEMON,
        codes::DRIVER,
        codes::SWITCH,
    ];
    for (index, code) in ours.iter().enumerate() {
        assert!(100 <= *code && *code != code::INTERNAL);
        assert!(!ours[..index].contains(code), "{code} is listed twice");
    }
    let source = include_str!("../../src/codes.rs");
    assert_eq!(source.matches("pub const").count(), ours.len(), "a code is missing here");
}

#[test]
fn a_plugin_that_panics_reports_a_bug() {
    let world = World::new();
    let fake = Fake {
        add: |call| {
            call.warn("before");
            panic!("deliberate")
        },
        rest: |_| panic!("deliberate"),
        ..Fake::new()
    };
    let valid = config(json!({ "cni.dev/valid-attachments": [] }));
    for verb in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
        let answer = world.respond(&fake, &world.env(verb), valid.as_bytes());
        let error = answer.error();
        assert_eq!(error.code, code::INTERNAL);
        assert_eq!(error.msg, "plugin fake has a bug: it panicked");
        assert_eq!(error.cni_version.as_deref(), Some("1.1.0"));
        let said = if verb == "ADD" { "fake ADD: warning: before\n" } else { "" };
        assert_eq!(answer.stderr(), said, "what was said before is not lost");
    }
}

#[test]
fn a_panic_outside_the_plugins_methods_is_caught_too() {
    let world = World::new();
    let answer =
        world.respond_reading(&Fake::new(), &world.env("ADD"), &mut crate::fake::UntouchedInput);
    assert_eq!(answer.error().code, code::INTERNAL);
}

#[test]
fn a_result_that_the_version_cannot_express_is_undone() {
    let world = World::new();
    let fake = Fake::new();
    let text = config(json!({ "cniVersion": "0.2.0" }));
    let answer = world.respond(&fake, &world.env("ADD"), text.as_bytes());
    assert_eq!(fake.calls(), ["add", "del"]);
    let error = answer.error();
    assert_eq!(error.msg, "cannot convert: no valid IP addresses");
    assert_eq!(error.details, "a result of CNI 0.2.0 needs an address");
    assert_eq!(error.cni_version.as_deref(), Some("0.2.0"));
}

#[test]
fn when_undoing_fails_the_first_error_stays_the_message() {
    let world = World::new();
    let fake = Fake { rest: |_| Err(Error::new(codes::KERNEL, "link is busy")), ..Fake::new() };
    let text = config(json!({ "cniVersion": "0.1.0" }));
    let error = world.respond(&fake, &world.env("ADD"), text.as_bytes()).error();
    assert_eq!(error.msg, "cannot convert: no valid IP addresses");
    let details = "a result of CNI 0.1.0 needs an address; undoing it failed too: link is busy";
    assert_eq!(error.details, details);
}

#[test]
fn a_failed_add_is_not_undone_by_del() {
    let world = World::new();
    let fake = Fake { add: |_| Err(Error::new(codes::EXISTS, "eth0 is there")), ..Fake::new() };
    world.call(&fake, "ADD").error();
    assert_eq!(
        fake.calls(),
        ["add"],
        "ADD undoes what it did; DEL would take down the first ADD's"
    );
}

#[test]
fn prev_result_must_be_of_the_configurations_family() {
    let world = World::new();
    let fake =
        Fake { add: |call| call.require_prev_result("Required prevResult missing"), ..Fake::new() };
    let add = |previous: serde_json::Value| {
        let text = config(json!({ "cniVersion": "1.0.0", "prevResult": previous }));
        world.respond(&fake, &world.env("ADD"), text.as_bytes())
    };
    let missing = (code::INVALID_CONFIG, "Required prevResult missing".to_owned());
    assert_eq!(add(json!(null)).failure(), missing);
    assert_eq!(add(json!({ "cniVersion": "0.4.0" })).error().code, code::DECODE_FAILURE);
    let previous = json!({ "cniVersion": "1.1.0", "ips": [{ "address": "192.0.2.2/24" }] });
    assert!(add(previous).ok().contains("192.0.2.2/24"));
}
