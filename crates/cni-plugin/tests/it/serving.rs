//! A plugin that is a whole process.

use std::ffi::OsString;
use std::io::{self, Cursor, Write};
use std::os::unix::ffi::OsStringExt as _;
use std::process::ExitCode;

use netwright_cni_plugin::{ProcessIo, serve};
use serde_json::json;
use state::Roots;

use crate::fake::{Fake, World, config};

/// An output that fails in one way.
struct BrokenOutput(io::ErrorKind);

impl Write for BrokenOutput {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(self.0.into())
    }
    fn flush(&mut self) -> io::Result<()> {
        Err(self.0.into())
    }
}

fn add(world: &World, stdout: &mut dyn Write, stderr: &mut dyn Write) -> ExitCode {
    let env = world.env("ADD");
    let fake = Fake {
        add: |call| {
            call.warn("words");
            Ok(cni::AddResult::default())
        },
        ..Fake::new()
    };
    let environment =
        env.to_vars().into_iter().map(|(key, value)| (key.into(), value.into())).collect();
    let mut stdin = Cursor::new(config(json!({})));
    let roots = Roots::new(world.path(), world.path());
    serve(&fake, ProcessIo { environment, stdin: &mut stdin, stdout, stderr, roots, build: "v0" })
}

#[test]
fn the_answer_goes_to_the_standard_files() {
    let world = World::new();
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    assert_eq!(add(&world, &mut stdout, &mut stderr), ExitCode::SUCCESS);
    assert_eq!(String::from_utf8(stdout).unwrap(), "{\n    \"cniVersion\": \"1.1.0\"\n}");
    assert_eq!(String::from_utf8(stderr).unwrap(), "fake ADD: warning: words\n");
}

/// A log on a full disk, or without a reader, must not suppress the result of a successful ADD.
#[test]
fn a_broken_standard_error_does_not_keep_the_answer_back() {
    let world = World::new();
    for kind in [io::ErrorKind::BrokenPipe, io::ErrorKind::StorageFull] {
        let mut stdout = Vec::new();
        assert_eq!(add(&world, &mut stdout, &mut BrokenOutput(kind)), ExitCode::SUCCESS);
        assert!(!stdout.is_empty());
    }
}

/// A runtime that has died or given up does not learn what was made. Neither does a runtime whose
/// disk is full.
#[test]
fn a_result_that_nobody_can_read_is_a_failure() {
    let world = World::new();
    for kind in [io::ErrorKind::StorageFull, io::ErrorKind::BrokenPipe] {
        let mut words = Vec::new();
        assert_eq!(add(&world, &mut BrokenOutput(kind), &mut words), ExitCode::FAILURE);
        let words = String::from_utf8(words).unwrap();
        assert!(words.ends_with("ADD was undone\n"), "{words}");
    }
}

#[test]
fn an_environment_that_is_not_utf8_is_refused_where_it_names_an_object() {
    let world = World::new();
    let mut environment: Vec<(OsString, OsString)> = world
        .env("DEL")
        .to_vars()
        .into_iter()
        .filter(|(key, _)| *key != "CNI_NETNS")
        .map(|(key, value)| (key.into(), value.into()))
        .collect();
    environment.push(("CNI_NETNS".into(), OsString::from_vec(b"/run/netns/\xff".to_vec())));
    environment.push((OsString::from_vec(b"\xfe".to_vec()), "x".into()));
    let fake = Fake::new();
    let (mut stdout, mut stdin) = (Vec::new(), Cursor::new(config(json!({}))));
    let serving = ProcessIo {
        environment,
        stdin: &mut stdin,
        stdout: &mut stdout,
        stderr: &mut Vec::new(),
        roots: Roots::new(world.path(), world.path()),
        build: "v0",
    };
    assert_eq!(serve(&fake, serving), ExitCode::FAILURE);
    let error = cni::Error::parse(&stdout).unwrap();
    assert_eq!((error.code, error.msg.as_str()), (4, "CNI_NETNS is not UTF-8"));
    assert!(fake.calls().is_empty());
}
