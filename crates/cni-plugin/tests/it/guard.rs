//! A plugin does not work on its own namespace by accident.

use cni::code;
use kernel::netns::{create_at, remove_at};
use serde_json::json;

use crate::fake::{Fake, World, config};

/// The path that a runtime passes if it has lost the container's.
const OWN: &str = "/proc/thread-self/ns/net";

#[test]
fn an_add_in_the_plugins_own_namespace_never_reaches_it() {
    let world = World::new();
    let fake = Fake::new();
    for said in ["", "0", "false", "yes"] {
        let mut env = world.env("ADD");
        OWN.clone_into(&mut env.netns);
        said.clone_into(&mut env.netns_override);
        let error = world.respond(&fake, &env, config(json!({})).as_bytes()).error();
        assert_eq!(error.code, code::INVALID_NETNS);
        assert_eq!(error.msg, "plugin's netns and netns from CNI_NETNS should not be the same");
        assert!(error.details.starts_with(OWN), "{error}");
    }
    assert!(fake.calls().is_empty());
}

/// The container's process has ended, and a process of the host has its number: DEL does its work
/// without a namespace.
#[test]
fn a_del_in_the_plugins_own_namespace_works_without_one() {
    let world = World::new();
    let fake = Fake {
        rest: |call| {
            assert!(call.open_netns_if_there()?.is_none());
            assert!(call.netns_path().is_none());
            Ok(())
        },
        ..Fake::new()
    };
    let mut env = world.env("DEL");
    OWN.clone_into(&mut env.netns);
    world.respond(&fake, &env, config(json!({})).as_bytes()).ok();
    assert_eq!(fake.calls(), ["del"]);
}

#[test]
fn the_guard_can_be_overridden() {
    let world = World::new();
    let fake = Fake::new();
    for said in ["1", "true", "TRUE", "True"] {
        let mut env = world.env("ADD");
        OWN.clone_into(&mut env.netns);
        said.clone_into(&mut env.netns_override);
        world.respond(&fake, &env, config(json!({})).as_bytes()).ok();
        assert_eq!(fake.calls(), ["add"]);
    }
}

#[test]
fn another_namespace_passes() {
    let world = World::new();
    let fake = Fake::new();
    let path = world.path().join("nwt-other");
    create_at(&path).unwrap();
    for verb in ["ADD", "DEL", "CHECK"] {
        let mut env = world.env(verb);
        path.to_str().unwrap().clone_into(&mut env.netns);
        world.respond(&fake, &env, config(json!({})).as_bytes()).ok();
    }
    remove_at(&path).unwrap();
    assert_eq!(fake.calls(), ["add", "del", "check"]);
}

/// The verb itself judges a path that cannot be opened: DEL takes the namespace for gone.
#[test]
fn a_namespace_that_is_gone_passes_the_guard() {
    let world = World::new();
    let file = world.path().join("file");
    std::fs::write(&file, "").unwrap();
    let fake = Fake {
        add: |call| call.open_netns().map(|_| cni::AddResult::default()),
        rest: |call| {
            assert!(call.open_netns_if_there()?.is_none());
            Ok(())
        },
        ..Fake::new()
    };
    for path in ["/nonexistent/netns", "/dev/null/ns", "/proc/0/ns/net", file.to_str().unwrap()] {
        let mut env = world.env("DEL");
        path.clone_into(&mut env.netns);
        world.respond(&fake, &env, config(json!({})).as_bytes()).ok();
        "ADD".clone_into(&mut env.command);
        let error = world.respond(&fake, &env, config(json!({})).as_bytes()).error();
        assert_eq!(error.code, code::INVALID_NETNS);
        assert!(error.msg.starts_with(&format!("failed to open netns \"{path}\"")), "{error}");
    }
}
