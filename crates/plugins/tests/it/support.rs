//! Calls of plugins, in process and on a host of the test's own.
//!
//! ```ignore
//! let node = Node::new("example");
//! let c1 = node.container("c1");
//! c1.sh("ip link add eth0 type veth peer name far netns 1");
//! let added = node.run("tuning", "ADD").to(&c1).config(json!({ "mtu": 1400 })).prev(&prev).call().ok();
//! ```

#![allow(dead_code, reason = "each plugin's tests use a part of it")]

pub(crate) mod cluster;
pub(crate) mod fixed;
pub(crate) mod kill;
pub(crate) mod listener;
pub(crate) mod matrix;
pub(crate) mod multinet;
pub(crate) mod on_parent;
pub(crate) mod ready;
pub(crate) mod versions;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{Cursor, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cni::CallEnv;
use cni_invoke::{Exec, Executor, MixedExecutor, Output, Request, Status};
use cni_plugin::{Context, Plugin};
use plugins::Builtins;
use serde_json::{Value, json};
use state::Roots;
use testkit::{Container, Lab, Place};

/// The version that plugins report.
pub(crate) const BUILD: &str = "v0.0.0-test";

/// A host of the test's own with a folder of plugins and folders for state.
///
/// `CNI_PATH` is [`Node::bin`]. Every plugin of ours is there as a link to the running test
/// executable, so that delegation finds "this very executable" and stays in process; [`Node::stub`]
/// puts scripts beside them.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) lab: Lab,
    pub(crate) roots: Roots,
    bin: PathBuf,
}

impl Node {
    pub(crate) fn new(name: &str) -> Self {
        Self::on(Lab::new(name))
    }

    /// Makes a node of a lab of the test's own.
    pub(crate) fn on(lab: Lab) -> Self {
        let dir = lab.dir().to_owned();
        let bin = dir.join("bin");
        fs::create_dir(&bin).unwrap();
        let own = std::env::current_exe().unwrap();
        let names = plugins::all().iter().map(|plugin| plugin.name());
        for name in names.chain(plugins::ipam::cluster_ipam::INFO.aliases.iter().copied()) {
            symlink(&own, bin.join(name)).unwrap();
        }
        let roots = Roots::new(dir.join("run"), dir.join("lib"));
        Node { lab, roots, bin }
    }

    /// The folder of plugins.
    pub(crate) fn bin(&self) -> &Path {
        &self.bin
    }

    /// A folder of the test's own, with the same path inside the lab and outside.
    pub(crate) fn dir(&self, name: &str) -> PathBuf {
        let dir = self.lab.dir().join(name);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    pub(crate) fn container(&self, name: &str) -> Container {
        self.lab.container(name)
    }

    /// Runs a shell script on the host.
    #[track_caller]
    pub(crate) fn sh(&self, script: &str) -> String {
        self.lab.sh(script)
    }

    /// Puts a shell script into the folder of plugins, in place of ours if there is one of that
    /// name.
    pub(crate) fn stub(&self, name: &str, script: &str) {
        let path = self.bin.join(name);
        let _ = fs::remove_file(&path);
        // Written elsewhere and moved: the kernel executes no file that is still open for writing.
        let scratch = self.bin.join(format!(".{name}"));
        fs::write(&scratch, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&scratch, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(scratch, path).unwrap();
    }

    /// Keeps the kernel busy for a while with another namespace that has ended. Those that end after it
    /// are taken apart after it.
    pub(crate) fn keep_busy(&self) {
        let crowd = self.container("crowd");
        crowd.sh("seq 600 | sed 's/.*/link add d& type veth peer name e&/' | ip -batch -");
    }

    /// Prepares a call on this host.
    pub(crate) fn run<'n>(&'n self, plugin: &str, verb: &str) -> Run<'n> {
        let mut run = Run::bare(plugin, verb);
        run.node = Some(self);
        run.env.path = self.bin.to_str().unwrap().to_owned();
        run
    }
}

/// One call of a plugin, before it is made. The defaults are container ID `c1`, interface `eth0`,
/// network `n`, version 1.1.0.
#[derive(Debug)]
pub(crate) struct Run<'n> {
    node: Option<&'n Node>,
    plugin: String,
    env: CallEnv,
    config: Value,
    raw: Option<Vec<u8>>,
    roots: Option<Roots>,
    on_machine: bool,
    time: Option<Duration>,
}

impl Run<'_> {
    /// Prepares a call on no host at all, for what a plugin decides before it changes anything. Its
    /// folders for state cannot even be made and `CNI_PATH` leads nowhere.
    pub(crate) fn bare(plugin: &str, verb: &str) -> Run<'static> {
        let env = CallEnv {
            command: verb.to_owned(),
            container_id: "c1".to_owned(),
            ifname: "eth0".to_owned(),
            path: "/nonexistent/bin".to_owned(),
            ..CallEnv::default()
        };
        let config = json!({ "cniVersion": "1.1.0", "name": "n", "type": plugin });
        let plugin = plugin.to_owned();
        Run {
            node: None,
            plugin,
            env,
            config,
            raw: None,
            roots: None,
            on_machine: false,
            time: None,
        }
    }

    /// Sets the folders for state.
    pub(crate) fn roots(mut self, roots: &Roots) -> Self {
        self.roots = Some(roots.clone());
        self
    }

    /// Sets `CNI_NETNS` to the container's and `CNI_CONTAINERID` to its name.
    pub(crate) fn to(mut self, container: &Container) -> Self {
        container.name().clone_into(&mut self.env.container_id);
        self.env.netns = container.netns().to_str().unwrap().to_owned();
        self
    }

    pub(crate) fn id(mut self, container_id: &str) -> Self {
        container_id.clone_into(&mut self.env.container_id);
        self
    }

    pub(crate) fn netns(mut self, path: impl AsRef<Path>) -> Self {
        self.env.netns = path.as_ref().to_str().unwrap().to_owned();
        self
    }

    pub(crate) fn ifname(mut self, ifname: &str) -> Self {
        ifname.clone_into(&mut self.env.ifname);
        self
    }

    /// Calls the plugin on the machine itself, with the node's folders: for hardware, in the
    /// virtual machine only.
    pub(crate) fn on_machine(mut self) -> Self {
        assert!(
            std::env::var_os(testkit::feature::VM_VARIABLE).is_some(),
            "this is not the virtual machine"
        );
        self.on_machine = true;
        self
    }

    /// Sets the call's deadline.
    pub(crate) fn deadline(mut self, time: Duration) -> Self {
        self.time = Some(time);
        self
    }

    /// Sets `CNI_ARGS`.
    pub(crate) fn args(mut self, args: &str) -> Self {
        args.clone_into(&mut self.env.args);
        self
    }

    /// Sets `CNI_PATH`.
    pub(crate) fn path(mut self, path: &str) -> Self {
        path.clone_into(&mut self.env.path);
        self
    }

    /// Changes the environment.
    pub(crate) fn env(mut self, change: impl FnOnce(&mut CallEnv)) -> Self {
        change(&mut self.env);
        self
    }

    /// Removes everything about a container, as a runtime calls GC and STATUS.
    pub(crate) fn of_network(self) -> Self {
        self.env(|env| {
            env.container_id.clear();
            env.ifname.clear();
        })
    }

    /// Sets `cniVersion`.
    pub(crate) fn version(self, version: &str) -> Self {
        self.config(json!({ "cniVersion": version }))
    }

    /// Sets the network's name.
    pub(crate) fn network(self, name: &str) -> Self {
        self.config(json!({ "name": name }))
    }

    /// Adds keys to the configuration, and replaces existing ones.
    #[track_caller]
    pub(crate) fn config(mut self, keys: Value) -> Self {
        let Value::Object(keys) = keys else { panic!("a configuration is an object: {keys}") };
        self.config.as_object_mut().unwrap().extend(keys);
        self
    }

    /// Removes a key from the configuration.
    pub(crate) fn without(mut self, key: &str) -> Self {
        self.config.as_object_mut().unwrap().remove(key);
        self
    }

    /// Sets `prevResult`.
    pub(crate) fn prev(self, result: &Value) -> Self {
        self.config(json!({ "prevResult": result }))
    }

    /// Sets GC's list of attachments that stay, as pairs of container ID and interface name.
    pub(crate) fn valid(self, attachments: &[(&str, &str)]) -> Self {
        let list: Vec<_> = attachments
            .iter()
            .map(|(id, ifname)| json!({ "containerID": id, "ifname": ifname }))
            .collect();
        self.config(json!({ "cni.dev/valid-attachments": list }))
    }

    /// Gives these bytes on standard input in place of the configuration.
    pub(crate) fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.raw = Some(bytes.into());
        self
    }

    /// Calls the plugin, on the node's host if there is a node.
    #[track_caller]
    pub(crate) fn call(self) -> Answer {
        let stdin = self.document();
        self.call_reading(&mut Cursor::new(stdin))
    }

    /// Calls the plugin with a standard input of the test's own.
    #[track_caller]
    pub(crate) fn call_reading(self, stdin: &mut (dyn Read + Send)) -> Answer {
        let plugin = &self.plugin;
        let plugin = plugins::find(plugin).unwrap_or_else(|| panic!("no plugin {plugin}"));
        self.respond(plugin, stdin)
    }

    /// Calls a plugin of the test's own.
    pub(crate) fn call_of(self, plugin: &dyn Plugin) -> Answer {
        let stdin = self.document();
        self.respond(plugin, &mut Cursor::new(stdin))
    }

    /// Starts an executable in place of the plugin in this process, on the node's host: the one
    /// with the plugin's name in a folder, which also has those to which it delegates.
    #[track_caller]
    pub(crate) fn call_in(mut self, bin: &Path) -> Answer {
        let node = self.node.unwrap();
        bin.to_str().unwrap().clone_into(&mut self.env.path);
        let stdin = self.document();
        let Run { plugin, env, .. } = self;
        let called = format!("{} {plugin}", env.command);
        let Roots { run, lib, .. } = &node.roots;
        let environment = [("NETWRIGHT_RUN_DIR", run), ("NETWRIGHT_STATE_DIR", lib)];
        let environment = environment.map(|(name, path)| (OsString::from(name), path.into()));
        let exec = Exec::new(environment);
        let (executable, request) = (bin.join(&plugin), Request { env, stdin });
        let output = node.lab.enter(|| exec.call(&executable, &request, None));
        Answer { called, output: output.unwrap() }
    }

    fn respond(self, plugin: &dyn Plugin, stdin: &mut (dyn Read + Send)) -> Answer {
        let Run { node, env, roots, on_machine, time, .. } = self;
        let called = format!("{} {}", env.command, plugin.name());
        let roots = roots
            .or_else(|| node.map(|node| node.roots.clone()))
            .unwrap_or_else(|| Roots::new("/dev/null/run", "/dev/null/lib"));
        let mut respond = move || {
            let executor = executor(&roots);
            let deadline = time.map(|time| Instant::now() + time);
            let context = Context { roots: &roots, executor: &executor, deadline, build: BUILD };
            cni_plugin::respond(plugin, &env, stdin, &context)
        };
        let output = match node {
            Some(node) if !on_machine => node.lab.enter(respond),
            _ => respond(),
        };
        Answer { called, output }
    }

    /// The bytes that the plugin will read.
    pub(crate) fn document(&self) -> Vec<u8> {
        self.raw.clone().unwrap_or_else(|| serde_json::to_vec(&self.config).unwrap())
    }
}

/// Calls a plugin within the process if it is the running executable, and starts all others.
fn executor(roots: &Roots) -> impl Executor + use<> {
    let environment: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let builtins = Builtins { roots: roots.clone(), build: BUILD };
    MixedExecutor::new(builtins, Exec::new(environment)).unwrap()
}

/// The outcome of a call.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    called: String,
    pub(crate) output: Output,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ended with {}", self.called, self.output.status)?;
        write!(f, "\nstdout: {}\nstderr: {}", self.stdout(), self.stderr())
    }
}

impl Answer {
    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    pub(crate) fn succeeded(&self) -> bool {
        self.output.status == Status::Success
    }

    /// Returns the result of a call that must succeed with one JSON object.
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert!(self.succeeded(), "{self:?}");
        serde_json::from_slice(&self.output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Asserts success with nothing on standard output, as of DEL, CHECK, GC and STATUS.
    #[track_caller]
    pub(crate) fn silent(self) {
        assert!(self.succeeded(), "{self:?}");
        assert_eq!(self.stdout(), "", "{self:?}");
    }

    /// Returns the error of a call that must fail: exit code 1 and one JSON object on standard
    /// output.
    #[track_caller]
    pub(crate) fn error(self) -> cni::Error {
        assert_eq!(self.output.status, Status::Exit(1), "{self:?}");
        let value: Value = serde_json::from_slice(&self.output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {self:?}"));
        let text = serde_json::to_vec(&value).unwrap();
        cni::Error::parse(&text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Asserts failure with this code and a message that contains `words`.
    #[track_caller]
    pub(crate) fn fails(self, code: u32, words: &str) {
        let answer = self.clone();
        let error = self.error();
        assert!(
            error.code == code && error.to_string().contains(words),
            "want {code} {words:?}: {answer:?}"
        );
    }
}

/// How long duplicate address detection may take.
const DETECTION: Duration = Duration::from_secs(5);

/// Everything that is visible of a container's network: links, addresses, routes and every sysctl.
///
/// The constructor waits for addresses under duplicate address detection, since their routes come
/// later. It leaves out the routes for all multicast, which the kernel adds when it notices that a
/// link has a carrier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Picture(BTreeSet<String>);

impl Picture {
    #[track_caller]
    pub(crate) fn of(container: &Container) -> Self {
        testkit::wait_for_detection(container, DETECTION);
        let text = container.sh(
            "ip -o -d addr | sed -E 's/(state|mode) [A-Z]+//; s/(valid|preferred)_lft [^ ]+//g'; \
             ip -4 route show table all; ip -6 route show table all",
        );
        let lines = text.lines().filter(|line| !line.starts_with("multicast ff00::/8 "));
        let sysctls = testkit::sysctls(container);
        let sysctls = sysctls.into_iter().map(|(name, value)| format!("{name} = {value}"));
        Picture(lines.map(str::to_owned).chain(sysctls).collect())
    }

    /// What exists only afterwards, or has changed.
    pub(crate) fn new_in<'p>(&self, after: &'p Picture) -> Vec<&'p str> {
        after.0.iter().filter(|line| !self.0.contains(*line)).map(String::as_str).collect()
    }

    /// Asserts that nothing is different afterwards.
    #[track_caller]
    pub(crate) fn assert_same(&self, after: &Picture) {
        let gone = after.new_in(self).into_iter().map(|line| format!("- {line}"));
        let new = self.new_in(after).into_iter().map(|line| format!("+ {line}"));
        let lines: Vec<_> = gone.chain(new).collect();
        assert!(lines.is_empty(), "it is not as before:\n{}", lines.join("\n"));
    }
}
