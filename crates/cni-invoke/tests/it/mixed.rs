//! Calls in process for our own executable, and exec for others.

use std::os::unix::fs::symlink;
use std::time::Instant;

use netwright_cni_invoke::{Builtin, Exec, Executor, MixedExecutor, Output, Request};

use crate::script;

/// Holds one plugin, which answers with its name.
#[derive(Debug)]
struct OwnPlugin;

impl Builtin for OwnPlugin {
    fn call(
        &self,
        name: &str,
        request: &Request,
        _: &dyn Executor,
        _: Option<Instant>,
    ) -> Option<Output> {
        let stdout = [name.as_bytes(), b" ", &request.stdin].concat();
        (name == "own").then(|| Output { stdout, ..Output::default() })
    }
}

fn stdout(executor: &dyn Executor, path: &std::path::Path) -> String {
    let request = Request { stdin: b"in".to_vec(), ..Request::default() };
    String::from_utf8(executor.call(path, &request, None).unwrap().stdout).unwrap()
}

#[test]
fn this_executable_under_any_name_is_called_in_process() {
    let dir = tempfile::tempdir().unwrap();
    let mixed = MixedExecutor::new(OwnPlugin, Exec::new(std::env::vars_os())).unwrap();
    let this = std::env::current_exe().unwrap();
    symlink(&this, dir.path().join("link")).unwrap();
    symlink(dir.path().join("link"), dir.path().join("own")).unwrap();
    assert_eq!(stdout(&mixed, &dir.path().join("own")), "own in");
}

#[test]
fn another_executable_of_the_same_name_is_executed() {
    let dir = tempfile::tempdir().unwrap();
    let wrapper = script(dir.path(), "own", "echo wrapper; cat");
    let mixed = MixedExecutor::new(OwnPlugin, Exec::new(std::env::vars_os())).unwrap();
    assert_eq!(stdout(&mixed, &wrapper), "wrapper\nin");
    let always = MixedExecutor::always_exec(OwnPlugin, Exec::new(std::env::vars_os()));
    assert_eq!(stdout(&always, &wrapper), "wrapper\nin");
}

#[test]
fn what_is_gone_is_an_error_of_the_start() {
    let mixed = MixedExecutor::new(OwnPlugin, Exec::default()).unwrap();
    let error = mixed.call("/nonexistent/own".as_ref(), &Request::default(), None).unwrap_err();
    assert!(error.to_string().starts_with("start plugin "), "{error}");
}
