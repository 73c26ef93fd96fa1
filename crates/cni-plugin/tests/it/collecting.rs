//! GC reaches a plugin only with a list that can be trusted.

use cni::code;
use serde_json::{Value, json};

use crate::fake::{Answer, Fake, World, config};

fn gc(fake: &Fake, more: Value) -> Answer {
    let world = World::new();
    world.respond(fake, &world.env("GC"), config(more).as_bytes())
}

#[test]
fn without_a_list_nothing_is_collected() {
    let fake = Fake::new();
    for more in [
        json!({}),
        json!({ "cni.dev/valid-attachments": null }),
        json!({ "cni.dev/valid-attachments": null, "cni.dev/attachments": null }),
    ] {
        let answer = gc(&fake, more);
        assert_eq!(answer.ok(), "");
        assert_eq!(
            answer.stderr(),
            "fake GC: warning: nothing was collected: the runtime did not say which attachments are valid\n"
        );
    }
    assert!(fake.calls().is_empty());
}

#[test]
fn an_empty_list_says_that_none_is_valid() {
    let fake = Fake {
        rest: |call| {
            assert!(call.valid_attachments().is_empty());
            Ok(())
        },
        ..Fake::new()
    };
    for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
        gc(&fake, json!({ key: [] })).ok();
        assert_eq!(fake.calls(), ["gc"]);
    }
}

#[test]
fn either_name_of_the_list_is_read() {
    let fake = Fake {
        rest: |call| {
            assert!(call.is_valid_attachment("c1", "eth0"));
            assert!(!call.is_valid_attachment("c1", "eth1"));
            assert!(!call.is_valid_attachment("c2", "eth0"));
            Ok(())
        },
        ..Fake::new()
    };
    for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
        gc(&fake, json!({ key: [{ "containerID": "c1", "ifname": "eth0" }] })).ok();
    }
    assert_eq!(fake.calls(), ["gc", "gc"]);
}

/// The author of such an entry meant an attachment, which GC would collect.
#[test]
fn a_list_that_names_by_halves_is_refused() {
    let fake = Fake::new();
    let whole = json!({ "containerID": "c1", "ifname": "eth0" });
    for half in [
        json!({ "containerID": "c1", "ifname": "" }),
        json!({ "containerID": "", "ifname": "eth0" }),
        json!({ "containerID": "c1" }),
        json!({ "containerID": "c1", "ifname": null }),
        json!({}),
        json!(null),
    ] {
        let error = gc(&fake, json!({ "cni.dev/valid-attachments": [whole, half] })).error();
        assert!(
            [code::INVALID_CONFIG, code::DECODE_FAILURE].contains(&error.code),
            "{half}: {error}"
        );
    }
    assert!(fake.calls().is_empty());
}
