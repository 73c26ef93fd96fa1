//! The checks before a plugin sees a call: their words, and which of several errors is reported.

use std::io::{self, Read};

use cni::{CallEnv, Version};
use netwright_cni_plugin::Info;
use serde_json::json;

use crate::fake::{Answer, Fake, UntouchedInput, World, config};

const VERBS: [&str; 5] = ["ADD", "DEL", "CHECK", "GC", "STATUS"];

fn only(verb: &str) -> CallEnv {
    CallEnv { command: verb.to_owned(), ..CallEnv::default() }
}

fn failure(code: u32, msg: &str) -> (u32, String) {
    (code, msg.to_owned())
}

/// Calls a plugin that must not be reached.
fn refused(env: &CallEnv, stdin: &str) -> Answer {
    let fake = Fake::new();
    let answer = World::new().respond(&fake, env, stdin.as_bytes());
    assert!(fake.calls().is_empty(), "{}", answer.stdout());
    answer
}

#[test]
fn version_names_the_version_on_input() {
    let fake = Fake {
        info: const { &Info::new("fake").versions(Version::starting_from(Version::V1_0_0)) },
        ..Fake::new()
    };
    let long = format!(r#"{{"cniVersion":"0.4.0","k":"{}"}}"#, "x".repeat(100_000));
    for (input, version) in [
        (r#"{"cniVersion":"0.4.0"}"#, "0.4.0"),
        ("  {\"CNIVersion\": \"1.0.0\", \"name\": {}}\n\n", "1.0.0"),
        // The version does not exist, and the answer names it all the same.
        (r#"{"cniVersion":"9.9.0"}"#, "9.9.0"),
        // The input names no version: the answer has the newest.
        ("", "1.1.0"),
        ("{", "1.1.0"),
        ("{}", "1.1.0"),
        (r#"{"cniVersion":""}"#, "1.1.0"),
        (r#"{"cniVersion":null}"#, "1.1.0"),
        (r#"{"cniVersion":7}"#, "1.1.0"),
        (r#"{"cniVersion":"x\"y"}"#, "1.1.0"),
        (&long, "1.1.0"),
    ] {
        let answer = World::new().respond(&fake, &only("VERSION"), input.as_bytes());
        assert_eq!(
            answer.ok(),
            format!(
                "{{\"cniVersion\":\"{version}\",\"supportedVersions\":[\"1.0.0\",\"1.1.0\"]}}\n"
            ),
            "{input:.80}"
        );
    }
}

/// The caller writes the object in pieces, does not close the pipe, and reads the answer first.
#[test]
fn version_reads_no_further_than_one_object() {
    struct Pieces(Vec<&'static [u8]>);
    impl std::io::Read for Pieces {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let piece = self.0.pop().expect("nothing is read behind the object");
            buffer[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        }
    }
    let mut pieces = Pieces(vec![br#""0.3.1"}"#, br#""k": {}, "cniVersion":"#, br#"{"j": {},"#]);
    let answer = World::new().respond_reading(&Fake::new(), &only("VERSION"), &mut pieces);
    assert!(answer.ok().starts_with(r#"{"cniVersion":"0.3.1","#), "{answer:?}");
}

#[test]
fn version_is_answered_without_any_input() {
    let fake = Fake {
        info: const { &Info::new("fake").versions(Version::starting_from(Version::V0_4_0)) },
        ..Fake::new()
    };
    let mut env = only("VERSION");
    for garbage in ["", "a b"] {
        garbage.clone_into(&mut env.container_id);
        let answer = World::new().respond(&fake, &env, b"");
        assert_eq!(
            answer.ok(),
            "{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"0.4.0\",\"1.0.0\",\"1.1.0\"]}\n"
        );
        assert_eq!(answer.stderr(), "");
    }
}

#[test]
fn without_a_verb_the_plugin_says_what_it_is() {
    let fake = Fake {
        info: const { &Info::new("fake").versions(&[Version::V1_0_0, Version::V1_1_0]) },
        ..Fake::new()
    };
    let mut env = only("");
    "a b".clone_into(&mut env.container_id);
    let answer = World::new().respond_reading(&fake, &env, &mut UntouchedInput);
    assert_eq!(answer.ok(), "");
    assert_eq!(
        answer.stderr(),
        "CNI fake plugin v0\nCNI protocol versions supported: 1.0.0, 1.1.0\n"
    );
}

#[test]
fn all_missing_variables_are_named_at_once() {
    for (verb, missing) in [
        ("ADD", "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH"),
        ("CHECK", "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH"),
        ("DEL", "CNI_CONTAINERID,CNI_IFNAME,CNI_PATH"),
        ("GC", "CNI_PATH"),
        ("STATUS", "CNI_PATH"),
    ] {
        let answer = World::new().respond_reading(&Fake::new(), &only(verb), &mut UntouchedInput);
        let words = format!("required env variables [{missing}] missing");
        assert_eq!(answer.failure(), (4, words), "{verb}");
    }
}

#[test]
fn each_required_variable_is_required() {
    let world = World::new();
    type Field = fn(&mut CallEnv) -> &mut String;
    let fields: [(&str, Field); 4] = [
        ("CNI_CONTAINERID", |env| &mut env.container_id),
        ("CNI_NETNS", |env| &mut env.netns),
        ("CNI_IFNAME", |env| &mut env.ifname),
        ("CNI_PATH", |env| &mut env.path),
    ];
    for verb in VERBS {
        for (name, field) in fields {
            let required = match (verb, name) {
                ("GC" | "STATUS", _) => name == "CNI_PATH",
                ("DEL", _) => name != "CNI_NETNS",
                _ => true,
            };
            let mut env = world.env(verb);
            field(&mut env).clear();
            let valid = json!({ "cni.dev/valid-attachments": [] });
            let answer = world.respond(&Fake::new(), &env, config(valid).as_bytes());
            if required {
                let words = format!("required env variables [{name}] missing");
                assert_eq!(answer.failure(), (4, words), "{verb}");
            } else {
                answer.ok();
            }
        }
    }
}

#[test]
fn a_malformed_variable_is_told_before_missing_ones() {
    let mut env = only("ADD");
    "a b".clone_into(&mut env.container_id);
    "a/b".clone_into(&mut env.ifname);
    let error = refused(&env, "").error();
    assert_eq!((error.code, error.msg.as_str()), (4, "invalid characters in containerID"));
    assert_eq!(error.details, "a b");
    "c1".clone_into(&mut env.container_id);
    let words = "interface name contains / or : or whitespace characters";
    assert_eq!(refused(&env, "").failure(), failure(4, words));
    "sixteen_bytes_xx".clone_into(&mut env.ifname);
    assert_eq!(refused(&env, "").failure(), failure(4, "interface name is too long"));
    "..".clone_into(&mut env.ifname);
    assert_eq!(refused(&env, "").failure(), failure(4, "interface name is . or .."));
}

/// A value with invalid UTF-8, if replaced, would name another object: DEL would take the namespace
/// for gone.
#[test]
fn a_value_that_was_not_utf8_is_refused() {
    for verb in ["ADD", "DEL", "CHECK"] {
        let mut env = World::new().env(verb);
        "/run/netns/\u{fffd}".clone_into(&mut env.netns);
        let answer = refused(&env, &config(json!({})));
        assert_eq!(answer.failure(), failure(4, "CNI_NETNS is not UTF-8"));
        assert_eq!(answer.error().details, "it was read as /run/netns/\u{fffd}");
        let mut env = World::new().env(verb);
        "eth\u{fffd}".clone_into(&mut env.ifname);
        let answer = refused(&env, &config(json!({})));
        assert_eq!(answer.failure(), failure(4, "CNI_IFNAME is not UTF-8"));
    }
}

#[test]
fn the_environment_is_judged_before_standard_input_is_read() {
    let world = World::new();
    for verb in VERBS {
        let mut env = world.env(verb);
        env.path.clear();
        let answer = world.respond_reading(&Fake::new(), &env, &mut UntouchedInput);
        assert_eq!(answer.failure(), failure(4, "required env variables [CNI_PATH] missing"));
    }
}

#[test]
fn standard_input_that_fails_is_an_error() {
    struct BrokenInput;
    impl Read for BrokenInput {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("cable cut"))
        }
    }
    let world = World::new();
    let answer = world.respond_reading(&Fake::new(), &world.env("ADD"), &mut BrokenInput);
    assert_eq!(answer.failure(), failure(5, "error reading from stdin: cable cut"));
}

#[test]
fn standard_input_without_end_is_cut_off() {
    let world = World::new();
    let answer = world.respond_reading(&Fake::new(), &world.env("ADD"), &mut io::repeat(b' '));
    assert_eq!(answer.failure(), failure(5, "error reading from stdin: more than 16777216 bytes"));
    // A document of the maximal size is read.
    let mut text = config(json!({})).into_bytes();
    text.resize(16 << 20, b' ');
    world.respond(&Fake::new(), &world.env("ADD"), &text).ok();
}

#[test]
fn errors_are_told_in_the_reference_librarys_order() {
    let world = World::new();
    // Each row has the mistakes of all the rows below it; the first error is reported.
    let rows = [
        ("{", 6, "error unmarshall network config: "),
        (r#"{"cniVersion":"x","ipam":5}"#, 7, "missing network name"),
        (
            r#"{"name":"te%st","cniVersion":"x","ipam":5}"#,
            7,
            "invalid characters found in network name",
        ),
        (r#"{"name":"n","cniVersion":5,"ipam":5}"#, 6, "decoding version from network config: "),
        (r#"{"name":"n","cniVersion":"x","ipam":5}"#, 6, "failed to convert major version part"),
        (r#"{"name":"n","cniVersion":"0.3.1","ipam":5}"#, 1, "config version does not allow CHECK"),
        (r#"{"name":"n","cniVersion":"9.9.0","ipam":5}"#, 1, "plugin version does not allow CHECK"),
        (r#"{"name":"n","cniVersion":"1.0","ipam":5}"#, 1, "incompatible CNI versions"),
        (r#"{"name":"n","cniVersion":"1.0.0","ipam":5}"#, 6, "error unmarshall network config: "),
    ];
    for (stdin, code, words) in rows {
        let error = refused(&world.env("CHECK"), stdin).error();
        assert_eq!(error.code, code, "{stdin}: {error}");
        assert!(error.msg.starts_with(words), "{stdin}: {error}");
    }
}

#[test]
fn an_unknown_verb_is_told_after_the_networks_name_and_before_the_version() {
    let env = World::new().env("NOPE");
    assert_eq!(refused(&env, "{}").failure(), failure(7, "missing network name"));
    for text in [r#"{"name":"n","cniVersion":5}"#, r#"{"name":"n","ipam":5}"#, r#"{"name":"n"}"#] {
        assert_eq!(refused(&env, text).failure(), failure(4, "unknown CNI_COMMAND: NOPE"));
    }
    // The verb needs no variables.
    let answer = refused(&only("add"), r#"{"name":"n"}"#);
    assert_eq!(answer.failure(), failure(4, "unknown CNI_COMMAND: add"));
}

#[test]
fn versions_are_matched_literally() {
    let world = World::new();
    let fake = Fake {
        info: const { &Info::new("fake").versions(&[Version::V0_4_0, Version::V1_0_0]) },
        ..Fake::new()
    };
    for version in ["1.0", "1.1.0", "2.0.0", "x", ""] {
        let text = config(json!({ "cniVersion": version }));
        let error = world.respond(&fake, &world.env("ADD"), text.as_bytes()).error();
        assert_eq!((error.code, error.msg.as_str()), (1, "incompatible CNI versions"));
        let said = if version.is_empty() { "0.1.0" } else { version };
        let details = format!("config is \"{said}\", plugin supports [\"0.4.0\" \"1.0.0\"]");
        assert_eq!(error.details, details);
    }
    assert!(fake.calls().is_empty());
    let text = config(json!({ "cniVersion": "1.0.0" }));
    world.respond(&fake, &world.env("ADD"), text.as_bytes()).ok();
}

#[test]
fn what_passes_the_checks_reaches_the_plugin() {
    let world = World::new();
    let fake = Fake::new();
    let text = config(json!({ "cni.dev/valid-attachments": [] }));
    for verb in VERBS {
        world.respond(&fake, &world.env(verb), text.as_bytes()).ok();
        assert_eq!(fake.calls(), [verb.to_lowercase()]);
    }
}
