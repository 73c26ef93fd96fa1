//! A caller cannot tell whether a delegate runs in process or is executed.
//!
//! The delegate is `examples/herald.rs`, which is linked into this test and also runs as an
//! executable.

use std::io::Cursor;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Instant;

use cni::{AddResult, CallEnv, Command};
use cni_invoke::{Builtin, Executor, MixedExecutor, Output, Request};
use netwright_cni_plugin::{Context, respond};
use serde_json::{Value, json};
use state::Roots;

use crate::fake::{Answer, Fake, World, config};
use crate::herald::Herald;

/// Holds [`Herald`].
#[derive(Debug)]
struct OwnPlugins {
    roots: Roots,
}

impl Builtin for OwnPlugins {
    fn call(
        &self,
        name: &str,
        request: &Request,
        executor: &dyn Executor,
        deadline: Option<Instant>,
    ) -> Option<Output> {
        let build = env!("CARGO_PKG_VERSION");
        let context = Context { roots: &self.roots, executor, deadline, build };
        let stdin = &mut Cursor::new(&request.stdin);
        (name == "herald").then(|| respond(&Herald, &request.env, stdin, &context))
    }
}

/// The example's executable: cargo builds it beside the tests' folder, together with them.
fn executable() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.parent().and_then(|deps| deps.parent()).unwrap().join("examples/herald");
    assert!(path.is_file(), "{} is missing: cargo build --examples", path.display());
    path
}

/// A plugin that passes on its delegate's answer: an error as its own, a result as its own.
fn caller() -> Fake {
    Fake {
        add: |call| call.delegate("herald").add(),
        rest: |call| {
            let delegate = call.delegate("herald");
            match call.command() {
                Command::Del => delegate.del(),
                Command::Check => delegate.check(),
                Command::Gc => delegate.gc(),
                _ => delegate.status(),
            }
        },
        ..Fake::new()
    }
}

fn both_ways(env: impl Fn(&mut CallEnv), stdin: &str) -> (Answer, Answer) {
    let call = |target: PathBuf| {
        let world = World::new();
        symlink(target, world.bin().join("herald")).unwrap();
        let own = OwnPlugins { roots: world.roots.clone() };
        let executor = MixedExecutor::new(own, World::exec()).unwrap();
        let mut environment = world.env("ADD");
        env(&mut environment);
        world.respond_with(&executor, None, &caller(), &environment, &mut Cursor::new(stdin))
    };
    (call(std::env::current_exe().unwrap()), call(executable()))
}

fn previous() -> Value {
    json!({ "cniVersion": "1.1.0", "ips": [{ "address": "192.0.2.2/24" }],
            "interfaces": [{ "name": "eth0", "sandbox": "/n" }], "dns": { "domain": "d" } })
}

#[test]
fn in_process_and_executed_answers_are_the_same() {
    let good = json!({ "prevResult": previous(), "cni.dev/valid-attachments": [] });
    let refusing = json!({ "prevResult": previous(), "refuse": ["192.0.2.2/24"] });
    let undecodable = json!({ "prevResult": previous(), "refuse": 5 });
    let other_family = json!({ "prevResult": { "cniVersion": "0.4.0" } });
    let configurations =
        [good, refusing, undecodable, other_family, json!({ "cniVersion": "1.0.0" }), json!({})];
    for verb in ["ADD", "CHECK", "DEL", "GC", "STATUS"] {
        for more in &configurations {
            let text = config(more.clone());
            let (inside, executed) = both_ways(|env| verb.clone_into(&mut env.command), &text);
            assert_eq!(inside, executed, "{verb} {more}");
        }
    }
}

/// The comparison above would also hold for two empty answers.
#[test]
fn the_delegates_words_and_result_arrive() {
    let text = config(json!({ "prevResult": previous() }));
    let (inside, executed) = both_ways(|_| (), &text);
    assert_eq!(inside.stderr(), "herald ADD: warning: n/c1/eth0 now has 1 addresses\n");
    let result = AddResult::parse(executed.ok().as_bytes(), cni::Version::CURRENT).unwrap();
    assert_eq!((result.ips.len(), result.dns.domain.as_str()), (1, "d"));
    let text = config(json!({ "prevResult": previous(), "refuse": ["192.0.2.2/24"] }));
    let (_, executed) = both_ways(|_| (), &text);
    assert_eq!(executed.failure(), (7, "address 192.0.2.2/24 is refused".to_owned()));
}

/// The executable alone: exit codes, standard files, no input for VERSION.
#[test]
fn the_example_is_a_plugin() {
    let call = |verb: &str, stdin: &str| {
        let env = CallEnv { path: "/nonexistent".to_owned(), ..World::new().env(verb) };
        let request = Request { env, stdin: stdin.into() };
        World::exec().call(&executable(), &request, None).map(Answer).unwrap()
    };
    assert!(
        call("VERSION", "")
            .ok()
            .starts_with("{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"0.1.0\"")
    );
    assert!(call("", "").stderr().starts_with("CNI herald plugin "));
    assert_eq!(call("ADD", "{").error().code, 6);
    assert_eq!(
        call("ADD", &config(json!({}))).error().msg,
        "herald must be called as a chained plugin"
    );
    call("STATUS", &config(json!({}))).ok();
}
