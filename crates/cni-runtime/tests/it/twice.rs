//! Two ADDs of one attachment: neither takes the other's record.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use cni::code;
use cni_invoke::{Executor, InvokeError, Output, Request, Status};
use netwright_cni_runtime::{Cache, RollBack, Runtime};

use crate::lab::{chain, container};

/// What a plugin does when it is called.
type Act = Box<dyn FnOnce(&Runtime<'static>) -> Option<&'static str> + Send>;

/// A plugin of this program whose next calls are given; the answer is an error object, or success.
#[derive(Clone)]
struct ScriptedPlugin {
    dir: PathBuf,
    acts: Arc<Mutex<Vec<Act>>>,
}

impl std::fmt::Debug for ScriptedPlugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ScriptedPlugin")
    }
}

impl ScriptedPlugin {
    fn runtime(&self) -> Runtime<'static> {
        Runtime::new([self.dir.join("bin")], Arc::new(self.clone()))
            .with_cache(Cache::new(self.dir.join("cache")).volatile())
    }

    fn next(&self, act: impl FnOnce(&Runtime<'static>) -> Option<&'static str> + Send + 'static) {
        self.acts.lock().unwrap().push(Box::new(act));
    }

    /// Returns the records.
    fn records(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.dir.join("cache/results")).unwrap();
        files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap()).collect()
    }
}

impl Executor for ScriptedPlugin {
    fn call(&self, _: &Path, request: &Request, _: Option<Instant>) -> Result<Output, InvokeError> {
        let act = match request.env.command.as_str() {
            "ADD" => self.acts.lock().unwrap().pop(),
            _ => None,
        };
        Ok(match act.and_then(|act| act(&self.runtime())) {
            None => Output { stdout: br#"{"cniVersion":"1.0.0"}"#.to_vec(), ..Output::default() },
            Some(error) => {
                Output { stdout: error.into(), status: Status::Exit(1), ..Output::default() }
            }
        })
    }

    fn is_own(&self, _: &Path) -> bool {
        true
    }
}

fn scripted() -> (tempfile::TempDir, ScriptedPlugin) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("bin")).unwrap();
    std::fs::write(dir.path().join("bin/a"), "").unwrap();
    let script = ScriptedPlugin { dir: dir.path().to_owned(), acts: Arc::default() };
    (dir, script)
}

const EXISTS: &str = r#"{"code":106,"msg":"it exists"}"#;
const REFUSED: &str = r#"{"code":102,"msg":"it has an address"}"#;

#[test]
fn an_add_beside_another_is_refused_and_takes_no_record() {
    let list = chain("1.0.0", &["a"]);
    for other in ["/run/netns/c2", "/run/netns/c1"] {
        for attached_before in [false, true] {
            let (_dir, script) = scripted();
            let mut first = container("c1");
            first.netns = "/run/netns/c1".to_owned();
            if attached_before {
                script.runtime().add_list(&list, &first, None).unwrap();
            }
            let mut second = first.clone();
            second.netns = other.to_owned();
            let of_second = list.clone();
            script.next(move |runtime| {
                let error = runtime.add_list(&of_second, &second, None).unwrap_err().to_cni();
                assert_eq!(error.code, code::TRY_AGAIN_LATER, "{error}");
                assert!(error.msg.contains("is under way"), "{error}");
                None
            });
            script.runtime().add_list(&list, &first, None).unwrap();
            let records = script.records();
            assert_eq!(records.len(), 1);
            assert!(
                records[0].contains("result") && records[0].contains("netns/c1"),
                "{records:?}"
            );
        }
    }
}

/// A DEL comes between two ADDs that run at the same time: the first removes what is its own.
#[test]
fn an_add_that_fails_leaves_the_record_of_a_later_one() {
    let list = chain("1.0.0", &["a"]);
    for error in [EXISTS, REFUSED, r#"{"code":999,"msg":"a bug"}"#] {
        let (_dir, script) = scripted();
        let of_second = list.clone();
        script.next(move |runtime| {
            let second = container("c1");
            runtime.del_list(&of_second, &second, None).unwrap();
            runtime.add_list(&of_second, &second, None).unwrap();
            Some(error)
        });
        script.runtime().add_list(&list, &container("c1"), None).unwrap_err();
        assert!(script.records()[0].contains("\"result\""), "{error}");
    }
}

#[test]
fn an_add_that_changes_nothing_leaves_the_record_of_one_that_did_not_complete() {
    let list = chain("1.0.0", &["a"]);
    for error in [EXISTS, REFUSED] {
        let (_dir, script) = scripted();
        script.next(|_| panic!("as if it were killed"));
        let runtime = script.runtime();
        let added = || runtime.add_list(&list, &container("c1"), None);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(added)).unwrap_err();
        let before = script.records();
        assert!(before.len() == 1 && !before[0].contains("\"result\""), "{before:?}");
        script.next(move |_| Some(error));
        let mut again = container("c1");
        again.netns = "/run/netns/other".to_owned();
        script.runtime().add_list(&list, &again, None).unwrap_err();
        assert_eq!(script.records(), before);
        script.runtime().add_list(&list, &container("c1"), None).unwrap();
        assert!(script.records()[0].contains("\"result\""));
    }
}

/// Code 106 says that something was there before. What the ADD could not undo is its own.
#[test]
fn an_add_that_left_something_is_undone_although_something_was_there() {
    let list = chain("1.0.0", &["a"]);
    for (error, is_undone) in
        [(EXISTS, false), (r#"{"code":106,"msg":"the route exists","netwright/left":true}"#, true)]
    {
        let (_dir, script) = scripted();
        script.next(move |_| Some(error));
        let failed = script.runtime().add_list(&list, &container("c1"), None).unwrap_err();
        assert_eq!(matches!(failed.roll_back(), RollBack::Done), is_undone, "{failed:?}");
    }
}
