//! A plugin made of functions, and the world in which it is called.

use std::io::{self, Cursor, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use cni::{AddResult, CallEnv, Error};
use cni_invoke::{Exec, Executor, Output, Status};
use netwright_cni_plugin::{Call, Context, Info, Plugin, respond};
use serde_json::{Value, json};
use state::Roots;

pub(crate) type Add = fn(&Call<'_>) -> Result<AddResult, Error>;
pub(crate) type Rest = fn(&Call<'_>) -> Result<(), Error>;

/// Calls the test's functions and records which of its methods ran.
#[derive(Debug)]
pub(crate) struct Fake {
    pub(crate) info: &'static Info,
    pub(crate) add: Add,
    /// Every other verb.
    pub(crate) rest: Rest,
    pub(crate) calls: Mutex<Vec<String>>,
}

impl Fake {
    /// A plugin that succeeds with an empty result.
    pub(crate) fn new() -> Self {
        Fake {
            info: const { &Info::new("fake") },
            add: |_| Ok(AddResult::default()),
            rest: |_| Ok(()),
            calls: Mutex::new(Vec::new()),
        }
    }

    /// Returns the verbs that reached the plugin since the last call of this function.
    pub(crate) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    fn note(&self, verb: &str) {
        self.calls.lock().unwrap().push(verb.to_owned());
    }
}

impl Plugin for Fake {
    fn info(&self) -> &'static Info {
        self.info
    }
    fn add(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        self.note("add");
        (self.add)(call)
    }
    fn del(&self, call: &Call<'_>) -> Result<(), Error> {
        self.note("del");
        (self.rest)(call)
    }
    fn check(&self, call: &Call<'_>) -> Result<(), Error> {
        self.note("check");
        (self.rest)(call)
    }
    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        self.note("gc");
        (self.rest)(call)
    }
    fn status(&self, call: &Call<'_>) -> Result<(), Error> {
        self.note("status");
        (self.rest)(call)
    }
}

/// A standard input that no plugin may read: reading it is a bug, which the answer then reports.
#[derive(Debug)]
pub(crate) struct UntouchedInput;

impl Read for UntouchedInput {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        panic!("standard input was read")
    }
}

/// Folders of one test. [`World::bin`] is `CNI_PATH`.
#[derive(Debug)]
pub(crate) struct World {
    dir: tempfile::TempDir,
    pub(crate) roots: Roots,
}

impl World {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("bin")).unwrap();
        let roots = Roots::new(dir.path().join("run"), dir.path().join("lib"));
        World { dir, roots }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn bin(&self) -> PathBuf {
        self.path().join("bin")
    }

    /// Puts a shell script into the folder of plugins.
    pub(crate) fn script(&self, name: &str, body: &str) {
        use std::io::Write as _;
        let mut options = std::fs::OpenOptions::new();
        let mut file =
            options.write(true).create_new(true).mode(0o755).open(self.bin().join(name)).unwrap();
        writeln!(file, "#!/bin/sh\ncd {}\n{body}", self.path().display()).unwrap();
    }

    /// Reads a file that a script wrote.
    pub(crate) fn left(&self, name: &str) -> String {
        std::fs::read_to_string(self.path().join(name)).unwrap_or_default()
    }

    /// An environment with everything a verb may need. The namespace's path leads nowhere.
    pub(crate) fn env(&self, verb: &str) -> CallEnv {
        CallEnv {
            command: verb.to_owned(),
            container_id: "c1".to_owned(),
            netns: "/nonexistent/netns".to_owned(),
            ifname: "eth0".to_owned(),
            path: self.bin().to_str().unwrap().to_owned(),
            ..CallEnv::default()
        }
    }

    pub(crate) fn exec() -> Exec {
        Exec::new(std::env::vars_os())
    }

    pub(crate) fn respond(&self, plugin: &dyn Plugin, env: &CallEnv, stdin: &[u8]) -> Answer {
        self.respond_reading(plugin, env, &mut Cursor::new(stdin))
    }

    pub(crate) fn respond_reading(
        &self,
        plugin: &dyn Plugin,
        env: &CallEnv,
        stdin: &mut dyn Read,
    ) -> Answer {
        self.respond_with(&World::exec(), None, plugin, env, stdin)
    }

    pub(crate) fn respond_with(
        &self,
        executor: &dyn Executor,
        deadline: Option<Instant>,
        plugin: &dyn Plugin,
        env: &CallEnv,
        stdin: &mut dyn Read,
    ) -> Answer {
        let context = Context { roots: &self.roots, executor, deadline, build: "v0" };
        Answer(respond(plugin, env, stdin, &context))
    }

    /// Calls with a configuration of the current version.
    pub(crate) fn call(&self, plugin: &dyn Plugin, verb: &str) -> Answer {
        self.respond(plugin, &self.env(verb), config(json!({})).as_bytes())
    }
}

/// Returns a configuration of network `n`, version 1.1.0, with more keys.
pub(crate) fn config(more: Value) -> String {
    let mut config = json!({ "cniVersion": "1.1.0", "name": "n", "type": "fake" });
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    config.to_string()
}

/// What a plugin answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer(pub(crate) Output);

impl Answer {
    pub(crate) fn stdout(&self) -> &str {
        std::str::from_utf8(&self.0.stdout).unwrap()
    }

    pub(crate) fn stderr(&self) -> &str {
        std::str::from_utf8(&self.0.stderr).unwrap()
    }

    /// Takes a success and its standard output.
    #[track_caller]
    pub(crate) fn ok(&self) -> &str {
        assert_eq!(self.0.status, Status::Success, "{}", self.stdout());
        self.stdout()
    }

    /// Takes a failure: exit code 1, one error object and nothing else.
    #[track_caller]
    pub(crate) fn error(&self) -> Error {
        assert_eq!(self.0.status, Status::Exit(1), "{}", self.stdout());
        Error::parse(&self.0.stdout).unwrap()
    }

    /// Takes a failure's code and message.
    #[track_caller]
    pub(crate) fn failure(&self) -> (u32, String) {
        let error = self.error();
        (error.code, error.msg)
    }
}
