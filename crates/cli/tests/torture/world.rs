//! A host on which the test calls plugins as a runtime does, a process each.

use std::cell::{Cell, RefCell};
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};

use serde_json::{Value, json};
use testkit::fault::{Hand, ProgramEnd, follow};
use testkit::{Container, Eye, Glance, Lab, Place as _};

/// The executable under test.
pub(crate) const EXECUTABLE: &str = env!("CARGO_BIN_EXE_netwright");

/// The folders that are compared besides the kernel.
const FOLDERS: [&str; 5] =
    ["/run/netwright", "/run/cni", "/var/lib/cni", "/var/lib/netwright", "/etc/cni"];

/// Differences that do not count: forwarding that stays on, the last assigned address, caches, and
/// the lock of the calls that mistakenly see a firewalld because a system call failed.
const VOLATILE: [&str; 5] = [
    "/last_reserved_ip.",
    "/run/netwright/addresses",
    "/run/netwright/lacking",
    "/run/netwright/left",
    "/run/netwright/locks/firewalld.lock",
];

/// The network's name.
pub(crate) const NETWORK: &str = "n";

/// A host, seen from a thread that is in it. That thread does everything.
pub(crate) struct World<'l> {
    lab: &'l Lab,
    bin: PathBuf,
    eye: Eye,
    pub(crate) calls: Cell<usize>,
}

/// A container's namespace, and a snapshot of it from when it was new.
pub(crate) struct Pod {
    pub(crate) id: String,
    container: RefCell<Option<Container>>,
    netns: PathBuf,
    eye: RefCell<Option<Eye>>,
    before: Glance,
}

/// One call of a plugin.
#[derive(Debug, Clone)]
pub(crate) struct Call<'a> {
    pub(crate) plugin: &'a Value,
    pub(crate) verb: &'static str,
    pub(crate) id: String,
    pub(crate) netns: String,
    /// `CNI_ARGS`.
    pub(crate) args: &'static str,
    pub(crate) previous: Option<Value>,
    pub(crate) valid: Option<Vec<String>>,
}

/// The answer of a plugin.
#[derive(Debug, Clone)]
pub(crate) enum PluginAnswer {
    /// Success, with a result after ADD.
    Done(Option<Value>),
    /// A CNI error.
    Error(Value),
    /// It was killed by this signal.
    Died(i32),
    /// Anything else, which is an error.
    Nonsense(String),
}

impl PluginAnswer {
    pub(crate) fn is_done(&self) -> bool {
        matches!(self, PluginAnswer::Done(_))
    }

    /// Reads the outputs of a process.
    pub(crate) fn of(ended: &ProgramEnd, verb: &str) -> PluginAnswer {
        let text = String::from_utf8_lossy(&ended.stdout);
        let all = || {
            let errors = String::from_utf8_lossy(&ended.stderr);
            let (code, signal) = (ended.code, ended.signal);
            format!("exit {code:?} signal {signal:?} hung {}: {text}\n{errors}", ended.hung)
        };
        if ended.hung || String::from_utf8_lossy(&ended.stderr).contains("panicked") {
            return PluginAnswer::Nonsense(all());
        }
        match (ended.code, ended.signal) {
            (Some(0), _) if verb != "ADD" && text.is_empty() => PluginAnswer::Done(None),
            (Some(0), _) if verb == "ADD" => match serde_json::from_str(&text) {
                Ok(result) => PluginAnswer::Done(Some(result)),
                Err(_) => PluginAnswer::Nonsense(all()),
            },
            (Some(1), _) => match serde_json::from_str::<Value>(&text) {
                Ok(error) if error["code"].is_u64() && error["msg"].is_string() => {
                    PluginAnswer::Error(error)
                }
                _ => PluginAnswer::Nonsense(all()),
            },
            (_, Some(signal)) => PluginAnswer::Died(signal),
            _ => PluginAnswer::Nonsense(all()),
        }
    }
}

impl<'l> World<'l> {
    /// Opens the world in the lab that the calling thread is in.
    pub(crate) fn enter(lab: &'l Lab) -> Self {
        let bin = lab.dir().join("bin");
        if fs::create_dir(&bin).is_ok() {
            for name in plugins() {
                symlink(EXECUTABLE, bin.join(name)).unwrap();
            }
        }
        Self::with(lab, bin)
    }

    /// The same with the plugins of a folder.
    pub(crate) fn with(lab: &'l Lab, bin: PathBuf) -> Self {
        let folders = FOLDERS.map(Path::new);
        World { lab, bin, eye: Eye::on_host(&folders), calls: Cell::new(0) }
    }

    /// Runs a script on the host.
    pub(crate) fn sh(&self, script: &str) -> String {
        self.lab.sh(script)
    }

    pub(crate) fn look(&self) -> Glance {
        self.eye.look()
    }

    /// The lasting differences from before.
    pub(crate) fn left(&self, before: &Glance) -> Vec<String> {
        self.eye.settles_but(before, |line| VOLATILE.iter().any(|text| line.contains(text)))
    }

    pub(crate) fn pod(&self, id: &str) -> Pod {
        let container = self.lab.container(id);
        let netns = container.netns();
        let eye = container.enter(Eye::in_container);
        let before = eye.look();
        Pod {
            id: id.to_owned(),
            container: RefCell::new(Some(container)),
            netns,
            eye: RefCell::new(Some(eye)),
            before,
        }
    }

    /// Makes a call with `hand` at every system call.
    pub(crate) fn follow(&self, call: &Call<'_>, hand: Hand<'_>) -> ProgramEnd {
        self.calls.set(self.calls.get() + 1);
        follow(self.command(call), &self.document(call), hand)
    }

    /// Makes a call without faults.
    pub(crate) fn call(&self, call: &Call<'_>) -> PluginAnswer {
        PluginAnswer::of(&self.ended(call), call.verb)
    }

    /// Makes a call that must succeed.
    #[track_caller]
    pub(crate) fn done(&self, call: &Call<'_>) -> Option<Value> {
        match self.call(call) {
            PluginAnswer::Done(result) => result,
            other => panic!("{} {}: {other:#?}", call.verb, call.plugin["type"]),
        }
    }

    fn ended(&self, call: &Call<'_>) -> ProgramEnd {
        self.calls.set(self.calls.get() + 1);
        run(self.command(call), &self.document(call))
    }

    /// Starts a call on a separate thread, which ends with the call.
    pub(crate) fn start(&self, call: &Call<'_>) -> JoinHandle<ProgramEnd> {
        self.calls.set(self.calls.get() + 1);
        let (command, document) = (self.command(call), self.document(call));
        thread::spawn(move || run(command, &document))
    }

    /// Runs a command of the executable.
    pub(crate) fn netwright(&self, arguments: &[&str]) -> ProgramEnd {
        run(self.netwright_command(arguments), b"")
    }

    /// Runs a command of the executable with `hand` at every system call: a shell that reads a line
    /// becomes it.
    pub(crate) fn follow_netwright(&self, arguments: &[&str], hand: Hand<'_>) -> ProgramEnd {
        let mut command = self.system_command("/bin/sh");
        command.args(["-c", "read -r go; exec \"$@\" </dev/null", "sh", EXECUTABLE]);
        command.args(arguments);
        follow(command, b"go\n", hand)
    }

    /// Starts a command of the executable on a separate thread, which ends with the command.
    pub(crate) fn start_netwright(&self, arguments: &[&str]) -> JoinHandle<ProgramEnd> {
        let command = self.netwright_command(arguments);
        thread::spawn(move || run(command, b""))
    }

    fn netwright_command(&self, arguments: &[&str]) -> Command {
        let mut command = self.system_command(EXECUTABLE);
        command.args(arguments);
        command
    }

    fn system_command(&self, program: &str) -> Command {
        self.calls.set(self.calls.get() + 1);
        let mut command = Command::new(program);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("CNI_PATH", &self.bin);
        command
    }

    fn command(&self, call: &Call<'_>) -> Command {
        let mut command = Command::new(self.bin.join(call.plugin["type"].as_str().unwrap()));
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("CNI_COMMAND", call.verb).env("CNI_PATH", &self.bin);
        if call.verb != "GC" {
            command.env("CNI_CONTAINERID", &call.id).env("CNI_IFNAME", "eth0");
            command.env("CNI_NETNS", &call.netns);
            if !call.args.is_empty() {
                command.env("CNI_ARGS", call.args);
            }
        }
        command
    }

    fn document(&self, call: &Call<'_>) -> Vec<u8> {
        let mut config = of_pod(call.plugin, &call.id);
        let keys = config.as_object_mut().unwrap();
        keys.entry("cniVersion").or_insert(json!("1.1.0"));
        keys.entry("name").or_insert(json!(NETWORK));
        if let Some(previous) = &call.previous {
            keys.insert("prevResult".to_owned(), previous.clone());
        }
        if let Some(valid) = &call.valid {
            let valid: Vec<Value> =
                valid.iter().map(|id| json!({ "containerID": id, "ifname": "eth0" })).collect();
            keys.insert("cni.dev/valid-attachments".to_owned(), json!(valid));
        }
        serde_json::to_vec(&config).unwrap()
    }
}

/// A plugin's configuration for one container: the one named "resident" has host ports of its own.
fn of_pod(plugin: &Value, id: &str) -> Value {
    let mut config = plugin.clone();
    if id == "resident"
        && let Some(ports) = config.pointer_mut("/runtimeConfig/portMappings")
    {
        for port in ports.as_array_mut().unwrap() {
            port["hostPort"] = json!(port["hostPort"].as_u64().unwrap() + 1);
        }
    }
    config
}

fn run(mut command: Command, document: &[u8]) -> ProgramEnd {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(document).unwrap();
    let output = child.wait_with_output().unwrap();
    ProgramEnd {
        code: output.status.code(),
        signal: output.status.signal(),
        hung: false,
        stdout: output.stdout,
        stderr: output.stderr,
        moments: Vec::new(),
        struck: false,
    }
}

impl Pod {
    /// Prepares a call for this container.
    pub(crate) fn call<'a>(&self, verb: &'static str, plugin: &'a Value) -> Call<'a> {
        Call {
            plugin,
            verb,
            id: self.id.clone(),
            netns: self.netns().to_owned(),
            args: "",
            previous: None,
            valid: None,
        }
    }

    /// The path of its namespace.
    pub(crate) fn netns(&self) -> &str {
        self.netns.to_str().unwrap()
    }

    /// Removes the container's namespace, as its end does.
    pub(crate) fn end(&self) {
        drop(self.eye.borrow_mut().take());
        drop(self.container.borrow_mut().take());
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.container.borrow().is_none()
    }

    /// What differs in the container from when it was new. The loopback link may have come up.
    pub(crate) fn left(&self) -> Vec<String> {
        match &*self.eye.borrow() {
            Some(eye) => eye.settles_but(&self.before, |line| {
                [" lo ", " dev lo "].iter().any(|text| line.contains(text))
            }),
            None => Vec::new(),
        }
    }
}

/// The plugins of ours, by name.
fn plugins() -> Vec<String> {
    let output = Command::new(EXECUTABLE).arg("--list").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}
