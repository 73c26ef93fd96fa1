//! Objects that attachments share, through crashes between any two steps.

use std::cell::RefCell;

use cni::AttachmentKey;
use serde_json::json;
use state::{FileError, Index, LockError, RestoreOutcome, Roots, SharedChange, SharedObject};
use tempfile::TempDir;

use crate::index::key;
use crate::names_in;

const NAME: &str = "sysctl a/b";

/// Where a process is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kill {
    Nowhere,
    BeforeChange,
    AfterChange,
    BeforeRestore,
    AfterRestore,
}

/// Why a call ended early.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("killed")]
    Killed,
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    File(#[from] FileError),
}

/// A setting of the host that attachments need `on`.
struct Host {
    dir: TempDir,
    index: Index,
    setting: RefCell<String>,
}

impl Host {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let index = Index::new(&Roots::new(dir.path().join("run"), dir.path().join("lib")));
        Host { dir, index, setting: RefCell::new("off".to_owned()) }
    }

    fn object(&self) -> SharedObject<'_> {
        SharedObject::new(&self.index, NAME)
    }

    fn set(&self, value: &str) {
        value.clone_into(&mut self.setting.borrow_mut());
    }

    fn is(&self, value: &str) -> bool {
        *self.setting.borrow() == value
    }

    /// Holds the setting; one that another program switched on is left to that program.
    fn hold(&self, key: &AttachmentKey, kill: Kill) -> Result<(), Fault> {
        let object = self.object();
        let held = object.hold(key, || {
            let is_ours = object.has_note()?;
            if self.is("on") && !is_ours {
                return Ok(None);
            }
            let note = (!is_ours).then(|| json!({ "was": *self.setting.borrow() }));
            let apply = || {
                at(Kill::BeforeChange, kill)?;
                self.set("on");
                at(Kill::AfterChange, kill)
            };
            Ok(Some(SharedChange { note, apply }))
        });
        held.map(drop)
    }

    /// Restores the setting, unless another program has changed it since.
    fn restore(&self, kill: Kill) -> Result<RestoreOutcome, Fault> {
        at(Kill::BeforeRestore, kill)?;
        let note = self.object().note()?;
        if let Some(was) = note.as_ref().and_then(|note| note["was"].as_str())
            && self.is("on")
        {
            self.set(was);
        }
        at(Kill::AfterRestore, kill).map(|()| RestoreOutcome::Done)
    }

    fn release(&self, key: &AttachmentKey, kill: Kill) -> Result<(), Fault> {
        self.object().release(key, || self.restore(kill))
    }

    fn collect(&self) {
        self.object().collect(|| self.restore(Kill::Nowhere)).unwrap();
    }

    /// Lists the objects with a holder or a note.
    fn shared(&self) -> Vec<String> {
        let shared = self.dir.path().join("run/shared");
        if shared.exists() { names_in(&shared) } else { Vec::new() }
    }

    #[track_caller]
    fn is_as_before(&self) {
        assert!(self.is("off") && self.shared().is_empty(), "{:?}", self.shared());
    }
}

/// Ends the call here if its process is killed here.
fn at(here: Kill, kill: Kill) -> Result<(), Fault> {
    if here == kill { Err(Fault::Killed) } else { Ok(()) }
}

#[test]
fn the_first_changes_it_and_the_last_restores_it() {
    let (host, c1, c2) = (Host::new(), key("blue", "c1"), key("blue", "c2"));
    host.hold(&c1, Kill::Nowhere).unwrap();
    host.hold(&c2, Kill::Nowhere).unwrap();
    assert_eq!(host.object().note().unwrap(), Some(json!({ "was": "off" })), "the first one's");
    host.release(&c1, Kill::Nowhere).unwrap();
    assert!(host.is("on"), "the other holds it");
    host.collect();
    assert!(host.is("on"), "the other holds it");
    host.release(&c2, Kill::Nowhere).unwrap();
    host.is_as_before();
}

#[test]
fn what_another_program_did_is_not_ours_to_hold_or_to_restore() {
    let (host, c1) = (Host::new(), key("blue", "c1"));
    host.set("on");
    host.hold(&c1, Kill::Nowhere).unwrap();
    assert!(host.shared().is_empty());
    host.release(&c1, Kill::Nowhere).unwrap();
    assert!(host.is("on"));
}

#[test]
fn a_value_that_another_program_wrote_since_stays() {
    let (host, c1) = (Host::new(), key("blue", "c1"));
    host.hold(&c1, Kill::Nowhere).unwrap();
    host.set("auto");
    host.release(&c1, Kill::Nowhere).unwrap();
    assert!(host.is("auto") && host.shared().is_empty());
}

#[test]
fn releasing_what_was_not_held_leaves_no_trace() {
    let (host, c1, c2) = (Host::new(), key("blue", "c1"), key("blue", "c2"));
    host.release(&c1, Kill::Nowhere).unwrap();
    host.collect();
    assert!(!host.dir.path().join("run").exists(), "not even a lock");
    host.hold(&c1, Kill::Nowhere).unwrap();
    host.release(&c2, Kill::Nowhere).unwrap();
    assert!(host.is("on"), "the other holds it");
}

/// Mends by each next call what a process that was killed left, of the attachment it worked for.
fn mended(what: Kill, leave: impl Fn(&Host, &AttachmentKey)) {
    let (c1, c2) = (key("blue", "c1"), key("blue", "c2"));
    let by_the_same = |host: &Host| host.release(&c1, Kill::Nowhere).unwrap();
    let by_the_next = |host: &Host| {
        host.hold(&c2, Kill::Nowhere).unwrap();
        assert!(host.is("on"), "{what:?}");
        host.release(&c1, Kill::Nowhere).unwrap();
        assert!(host.is("on"), "{what:?}");
        host.release(&c2, Kill::Nowhere).unwrap();
    };
    let by_a_second_add = |host: &Host| {
        host.hold(&c1, Kill::Nowhere).unwrap();
        assert!(host.is("on"), "{what:?}");
        host.release(&c1, Kill::Nowhere).unwrap();
    };
    let by_collection = |host: &Host| {
        // GC releases what attachments that are gone hold, and then collects.
        for holder in host.index.holders(NAME).found {
            host.release(&holder, Kill::Nowhere).unwrap();
        }
        host.collect();
    };
    let calls: [&dyn Fn(&Host); 4] = [&by_the_same, &by_the_next, &by_a_second_add, &by_collection];
    for mend in calls {
        let host = Host::new();
        leave(&host, &c1);
        mend(&host);
        host.is_as_before();
    }
}

#[test]
fn a_kill_between_any_two_steps_is_mended_by_the_next_call() {
    mended(Kill::Nowhere, |host, _| host.index.note(NAME, &json!({ "was": "off" })).unwrap());
    for kill in [Kill::BeforeChange, Kill::AfterChange] {
        mended(kill, |host, key| {
            assert!(matches!(host.hold(key, kill), Err(Fault::Killed)));
            assert!(host.index.is_held(NAME).unwrap() && host.object().has_note().unwrap());
        });
    }
    for kill in [Kill::BeforeRestore, Kill::AfterRestore] {
        mended(kill, |host, key| {
            host.hold(key, Kill::Nowhere).unwrap();
            assert!(matches!(host.release(key, kill), Err(Fault::Killed)));
            assert!(!host.index.is_held(NAME).unwrap() && host.object().has_note().unwrap());
        });
    }
}

#[test]
fn what_restoring_came_to_decides_about_the_note() {
    let (host, c1) = (Host::new(), key("blue", "c1"));
    let release = |outcome| {
        let mut is_asked = false;
        let done: Result<(), Fault> = host.object().release(&c1, || {
            is_asked = true;
            Ok(outcome)
        });
        done.unwrap();
        is_asked
    };
    host.hold(&c1, Kill::Nowhere).unwrap();
    assert!(release(RestoreOutcome::Postponed));
    assert!(host.object().has_note().unwrap(), "for the next");
    assert!(release(RestoreOutcome::Left));
    assert!(!host.object().has_note().unwrap());
    assert_eq!(host.index.left(), [NAME]);
    assert!(!release(RestoreOutcome::Done), "nothing is there");
}
