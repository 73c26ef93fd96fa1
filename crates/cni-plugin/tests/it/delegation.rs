//! Calls of another plugin with the caller's own configuration (CNI 1.1.0 §4).

use std::io::Cursor;
use std::time::{Duration, Instant};

use cni::{AddResult, Error, code};
use netwright_cni_plugin::{Call, codes};
use serde_json::{Value, json};

use crate::fake::{Answer, Fake, World, config};

/// Writes its input and the number of its calls to files, and answers ADD with an address.
const RECORDER: &str = r#"
cat >"$CNI_COMMAND.stdin"; env >"$CNI_COMMAND.env"; echo "$CNI_COMMAND" >>verbs
echo "words of $CNI_COMMAND" >&2
[ "$CNI_COMMAND" != ADD ] || echo '{"cniVersion":"1.1.0","ips":[{"address":"192.0.2.7/24"}]}'"#;

/// Only delegates, whatever the verb.
fn delegating() -> Fake {
    Fake {
        add: |call| call.ipam().map_or_else(|| Ok(AddResult::default()), |ipam| ipam.add()),
        rest: |call| {
            let Some(ipam) = call.ipam() else { return Ok(()) };
            match call.command() {
                cni::Command::Del => ipam.del(),
                cni::Command::Check => ipam.check(),
                cni::Command::Gc => ipam.gc(),
                _ => ipam.status(),
            }
        },
        ..Fake::new()
    }
}

fn with_ipam(ipam: &str) -> String {
    config(json!({ "ipam": { "type": ipam }, "cni.dev/valid-attachments": [] }))
}

fn call(world: &World, verb: &str, ipam: &str) -> Answer {
    world.respond(&delegating(), &world.env(verb), with_ipam(ipam).as_bytes())
}

#[test]
fn a_delegate_gets_the_same_bytes_and_the_same_environment() {
    let world = World::new();
    world.script("ipam", RECORDER);
    // White space, order, unknown keys and big numbers must stay as the administrator wrote them.
    let text = "{ \"zzz\": 123456789012345678901,\n\t\"name\":\"n\",\"cniVersion\":\"1.1.0\",\
                \"ipam\":{\"type\":\"ipam\",\"x\":\"<&>\"},\"cni.dev/valid-attachments\":[] }\n";
    for verb in ["ADD", "CHECK", "DEL", "GC", "STATUS"] {
        let mut env = world.env(verb);
        "IgnoreUnknown=1;K=V".clone_into(&mut env.args);
        "0".clone_into(&mut env.netns_override);
        env.trace = vec![("TRACEPARENT".to_owned(), "00-t".to_owned())];
        world.respond(&delegating(), &env, text.as_bytes()).ok();
        assert_eq!(world.left(&format!("{verb}.stdin")), text);
        let got = world.left(&format!("{verb}.env"));
        for (key, value) in env.to_vars() {
            assert!(
                got.lines().any(|line| line == format!("{key}={value}")),
                "{verb} {key}: {got}"
            );
        }
    }
}

/// All variables, including unknown ones.
#[test]
fn a_delegate_inherits_variables_of_others() {
    let world = World::new();
    world.script("ipam", RECORDER);
    let inherited = [("CNI_VENDOR", "1"), ("PATH", "/usr/bin:/bin"), ("CNI_IFNAME", "stale")];
    let exec = cni_invoke::Exec::new(inherited.map(|(key, value)| (key.into(), value.into())));
    let text = with_ipam("ipam");
    let mut stdin = Cursor::new(text.as_bytes());
    world.respond_with(&exec, None, &delegating(), &world.env("DEL"), &mut stdin).ok();
    let got = world.left("DEL.env");
    assert!(got.lines().any(|line| line == "CNI_VENDOR=1"), "{got}");
    assert!(got.lines().any(|line| line == "CNI_IFNAME=eth0"), "{got}");
}

#[test]
fn the_verb_can_be_another_than_the_callers() {
    let world = World::new();
    world.script("ipam", RECORDER);
    let fake = Fake {
        add: |call| call.ipam().unwrap().del().map(|()| AddResult::default()),
        ..Fake::new()
    };
    world.respond(&fake, &world.env("ADD"), with_ipam("ipam").as_bytes()).ok();
    assert_eq!(world.left("verbs"), "DEL\n");
    assert!(world.left("DEL.env").contains("CNI_COMMAND=DEL\n"));
}

#[test]
fn the_delegates_result_is_returned() {
    let world = World::new();
    world.script("ipam", RECORDER);
    let answer = call(&world, "ADD", "ipam");
    let result: Value = serde_json::from_str(answer.ok()).unwrap();
    assert_eq!(result["ips"][0]["address"], "192.0.2.7/24");
    assert_eq!(world.left("verbs"), "ADD\n");
}

#[test]
fn the_delegates_standard_error_joins_the_callers() {
    let world = World::new();
    world.script("ipam", RECORDER);
    let fake = Fake {
        rest: |call| {
            call.warn("before");
            call.ipam().unwrap().del()?;
            call.warn("after");
            Ok(())
        },
        ..Fake::new()
    };
    let answer = world.respond(&fake, &world.env("DEL"), with_ipam("ipam").as_bytes());
    assert_eq!(
        answer.stderr(),
        "fake DEL: warning: before\nwords of DEL\nfake DEL: warning: after\n"
    );
}

#[test]
fn the_delegates_error_is_returned_unchanged() {
    let world = World::new();
    world.script(
        "ipam",
        r#"echo words >&2; echo '{"cniVersion":"1.0.0","code":123,"msg":"no luck","details":"at all"}'; exit 3"#,
    );
    for verb in ["CHECK", "DEL", "GC", "STATUS"] {
        let answer = call(&world, verb, "ipam");
        assert_eq!(answer.stderr(), "words\n");
        let mut expected = Error::new(123, "no luck").with_details("at all");
        expected.cni_version = Some("1.0.0".to_owned());
        assert_eq!(answer.error(), expected, "{verb}");
    }
}

#[test]
fn a_delegate_without_an_error_object_is_told_with_what_it_said() {
    let world = World::new();
    world.script("ipam", "echo oops >&2; exit 7");
    let error = call(&world, "DEL", "ipam").error();
    assert_eq!(error.msg, r#"netplugin failed: "oops\n": exit status 7"#);
}

/// CNI 1.1.0 §4: the delegate may have reserved something before it failed.
#[test]
fn a_delegate_whose_add_failed_is_called_with_del() {
    for (what, failing) in [
        ("error", r#"echo '{"code":123,"msg":"no luck"}'; exit 1"#),
        ("noise", "echo this is no JSON"),
        ("silence", "true"),
        ("killed", "kill -9 $$"),
    ] {
        let world = World::new();
        let body = format!("echo $CNI_COMMAND >>verbs; [ $CNI_COMMAND = DEL ] || {{ {failing}; }}");
        world.script("ipam", &body);
        let error = call(&world, "ADD", "ipam").error();
        assert_eq!(world.left("verbs"), "ADD\nDEL\n", "{what}");
        if what == "error" {
            assert_eq!(
                (error.code, error.msg.as_str(), error.details.as_str()),
                (123, "no luck", "")
            );
        }
    }
}

#[test]
fn when_that_del_fails_too_the_details_say_so() {
    let world = World::new();
    world.script("ipam", r#"echo "{\"code\":123,\"msg\":\"$CNI_COMMAND failed\"}"; exit 1"#);
    let error = call(&world, "ADD", "ipam").error();
    assert_eq!((error.code, error.msg.as_str()), (123, "ADD failed"));
    assert_eq!(error.details, "undoing it with DEL of plugin \"ipam\" failed too: DEL failed");
}

/// It refuses its configuration at every verb, and so has made nothing.
#[test]
fn a_delegate_that_refuses_del_as_it_refused_add_has_left_nothing() {
    for (code, words, is_undone) in [
        (code::INVALID_CONFIG, "no range", true),
        (code::DECODE_FAILURE, "no range", true),
        (code::INVALID_CONFIG, "$CNI_COMMAND: no range", false),
        (code::IO_FAILURE, "no range", false),
    ] {
        let world = World::new();
        let body = format!(
            r#"echo $CNI_COMMAND >>verbs; echo "{{\"code\":{code},\"msg\":\"{words}\"}}"; exit 1"#
        );
        world.script("ipam", &body);
        let error = call(&world, "ADD", "ipam").error();
        assert_eq!(world.left("verbs"), "ADD\nDEL\n");
        assert_eq!((error.left, error.details.is_empty()), (!is_undone, is_undone), "{error:?}");
    }
}

#[test]
fn a_delegate_that_hangs_is_ended_and_then_called_with_del() {
    let world = World::new();
    world.script("ipam", "echo $CNI_COMMAND >>verbs; [ $CNI_COMMAND = DEL ] || sleep 60");
    let text = with_ipam("ipam");
    let deadline = Some(Instant::now() + Duration::from_millis(300));
    let answer = world.respond_with(
        &World::exec(),
        deadline,
        &delegating(),
        &world.env("ADD"),
        &mut Cursor::new(text.as_bytes()),
    );
    assert_eq!(answer.error().code, code::TRY_AGAIN_LATER);
    assert_eq!(world.left("verbs"), "ADD\nDEL\n", "DEL has time of its own");
}

#[test]
fn delegates_are_looked_up_in_cni_path() {
    let world = World::new();
    let second = world.path().join("second");
    std::fs::create_dir_all(second.join("ipam")).unwrap();
    world.script("ipam", RECORDER);
    let mut env = world.env("ADD");
    env.path = format!("/nonexistent::{}:{}", second.display(), world.bin().display());
    world.respond(&delegating(), &env, with_ipam("ipam").as_bytes()).ok();
    let error = world.respond(&delegating(), &env, with_ipam("gone").as_bytes()).error();
    let dirs = format!("/nonexistent {} {}", second.display(), world.bin().display());
    assert_eq!(error.code, code::INVALID_CONFIG);
    assert_eq!(error.msg, format!("failed to find plugin \"gone\" in path [{dirs}]"));
}

#[test]
fn a_delegates_type_cannot_leave_the_folders() {
    let world = World::new();
    world.script("ipam", RECORDER);
    for ipam in ["../bin/ipam", "/bin/true", "..", "a/b"] {
        let error = call(&world, "ADD", ipam).error();
        assert_eq!(
            (error.code, error.msg),
            (code::INVALID_CONFIG, format!("invalid plugin name: {ipam}"))
        );
    }
    assert_eq!(world.left("verbs"), "");
}

#[test]
fn no_delegate_is_named_by_an_empty_type() {
    let world = World::new();
    for ipam in [json!({ "type": "" }), json!({}), json!(null), json!({ "type": null })] {
        let text = config(json!({ "ipam": ipam }));
        world.respond(&delegating(), &world.env("ADD"), text.as_bytes()).ok();
    }
}

#[test]
fn a_delegate_that_cannot_be_run_has_a_code_of_its_own() {
    let world = World::new();
    std::fs::write(world.bin().join("text"), "no program").unwrap();
    for verb in ["ADD", "DEL"] {
        let error = call(&world, verb, "text").error();
        assert_eq!(error.code, codes::DELEGATE);
        assert!(error.msg.contains("Permission denied"), "{error}");
        assert_eq!(error.details, "", "what never ran is not undone");
    }
}

/// A plugin that delegates to itself would start itself again with the same configuration, until
/// the node has no processes left.
#[test]
fn a_plugin_does_not_delegate_to_itself() {
    let world = World::new();
    world.script("fake", RECORDER);
    for verb in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
        let error = call(&world, verb, "fake").error();
        assert_eq!(error.code, code::INVALID_CONFIG);
        assert_eq!(error.msg, "plugin \"fake\" cannot delegate to itself");
    }
    assert_eq!(world.left("verbs"), "");
}

#[test]
fn a_type_other_than_ipams_can_be_delegated_to() {
    fn add(call: &Call<'_>) -> Result<AddResult, Error> {
        let delegate = call.delegate("other");
        assert_eq!(delegate.plugin_type(), "other");
        delegate.add()
    }
    let world = World::new();
    world.script("other", RECORDER);
    world.call(&Fake { add, ..Fake::new() }, "ADD").ok();
    assert_eq!(world.left("verbs"), "ADD\n");
}
