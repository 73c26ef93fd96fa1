//! A Docker network and IPAM driver that is not ours, for testing programs that call drivers.
//!
//! It is a Python program in a process of its own. A test can kill it and start it again; its state
//! survives. It is stricter than real drivers: it refuses whatever it does not know, and whatever
//! it already has.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::Lab;
use crate::place::{Place, RunningProgram};

const PROGRAM: &str = include_str!("driver.py");

/// The driver. Tests that use it need `testkit::require!("root", "program:python3")`.
#[derive(Debug)]
pub struct Driver<'lab> {
    lab: &'lab Lab,
    socket: String,
    folder: PathBuf,
    running: Option<RunningProgram>,
}

impl<'lab> Driver<'lab> {
    /// Starts it where Docker's engine finds it by this name, and waits until it listens.
    #[must_use]
    pub fn start(lab: &'lab Lab, name: &str) -> Self {
        Self::start_at(lab, &format!("/run/docker/plugins/{name}.sock"))
    }

    /// Starts it with its socket at a path of the lab.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start_at(lab: &'lab Lab, socket: &str) -> Self {
        let name = socket.replace('/', "-");
        let folder = lab.dir().join(format!("driver{name}"));
        fs::create_dir_all(&folder).expect("make the driver's folder");
        fs::write(folder.join("driver.py"), PROGRAM).expect("write the driver");
        let mut driver = Driver { lab, socket: socket.to_owned(), folder, running: None };
        driver.again();
        driver
    }

    /// Starts it again after [`Driver::kill`], or after a rule made it exit.
    ///
    /// # Panics
    /// When it does not start.
    pub fn again(&mut self) {
        self.running = None;
        let mut command = self.lab.command("python3");
        command.args(["-I", "-S"]).arg(self.folder.join("driver.py"));
        command.arg(&self.socket).arg(&self.folder).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("start the driver");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it was asked for");
        BufReader::new(stdout).read_line(&mut line).expect("read what the driver says");
        assert_eq!(line, "listening\n", "the driver did not start");
        self.running = Some(child.into());
    }

    /// Kills it. Its socket stays, and no process listens on it.
    pub fn kill(&mut self) {
        self.running = None;
    }

    /// Sets how it misbehaves from now on: each method with a fault from the list in `driver.py`.
    /// With `{}` it does not misbehave.
    ///
    /// # Panics
    /// When the file cannot be written.
    #[expect(clippy::needless_pass_by_value, reason = "callers write json!({…})")]
    pub fn misbehave(&self, rules: Value) {
        let new = self.folder.join("rules.json.new");
        fs::write(&new, rules.to_string()).expect("write the driver's rules");
        fs::rename(new, self.folder.join("rules.json")).expect("write the driver's rules");
    }

    /// Returns every call since the last time: names and contents.
    ///
    /// # Panics
    /// When the file cannot be read.
    #[must_use]
    pub fn take_calls(&self) -> Vec<(String, Value)> {
        let path = self.folder.join("calls.jsonl");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(path);
        let parse = |line: &str| -> (String, Value) {
            let value: Value = serde_json::from_str(line).expect("the driver writes JSON");
            (value["method"].as_str().unwrap_or_default().to_owned(), value["asked"].clone())
        };
        text.lines().map(parse).collect()
    }

    /// The names of those calls, without `NetworkDriver.` and `IpamDriver.`.
    #[must_use]
    pub fn take_names(&self) -> Vec<String> {
        let short = |(name, _): (String, Value)| {
            name.split_once('.').map_or(name.clone(), |(_, rest)| rest.to_owned())
        };
        self.take_calls().into_iter().map(short).collect()
    }

    /// Returns its state: `networks`, `endpoints`, `pools` with the addresses that are `taken`.
    #[must_use]
    pub fn held(&self) -> Value {
        let text = fs::read_to_string(self.folder.join("held.json")).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_else(|_| json!({}))
    }

    /// Makes it forget its whole state.
    pub fn forget(&self) {
        let _ = fs::remove_file(self.folder.join("held.json"));
    }

    /// Asserts that it holds nothing.
    ///
    /// # Panics
    /// When it does.
    #[track_caller]
    pub fn assert_empty(&self) {
        let held = self.held();
        for kind in ["networks", "endpoints", "pools"] {
            let some = held[kind].as_object().is_some_and(|all| !all.is_empty());
            assert!(!some, "the driver still holds {kind}: {held:#}");
        }
    }
}
