//! A host on which one set of plugins runs.

use std::io::Write as _;
use std::process::Stdio;

use serde_json::{Map, Value, json};
use testkit::reference::Release;
use testkit::{Container, Place};

use super::Case;
use crate::support::Node;

/// How a call ended: its answer on success, the error's message otherwise.
pub(super) type CallOutcome = Result<Value, String>;

/// A host, its containers, and what the plugins said.
pub(super) struct World<'c> {
    case: &'c Case,
    /// `None` stands for our plugins.
    release: Option<Release>,
    pub(super) node: Node,
    pub(super) containers: Vec<Container>,
    /// The answer of each container's ADD, from the last plugin that was called.
    pub(super) added: Vec<CallOutcome>,
    /// The answers of the last step's other calls: "CHECK c1 bridge" and so on.
    pub(super) said: Vec<(String, CallOutcome)>,
}

impl<'c> World<'c> {
    pub(super) fn new(case: &'c Case, release: Option<Release>) -> Self {
        let node = Node::new(&case.name.replace('/', "-"));
        // IPv6 is on, as on most machines; duplicate address detection is off, as it is not
        // compared.
        let switch = "/proc/sys/net/ipv6/conf/all/disable_ipv6";
        node.lab.enter(|| std::fs::write(switch, "0")).unwrap();
        if !case.host.is_empty() {
            node.sh(case.host);
        }
        let containers: Vec<_> = (1..=case.containers)
            .map(|number| {
                let container = node.container(&format!("c{number}"));
                if !case.container.is_empty() {
                    container.sh(case.container);
                }
                container
            })
            .collect();
        Self { case, release, node, containers, added: Vec::new(), said: Vec::new() }
    }

    /// One step of a container's life.
    pub(super) fn step(&mut self, step: &str) {
        match step {
            "ADD" => self.add(),
            "CHECK" => self.each("CHECK", false),
            "DEL" => {
                self.node.lab.sh(self.case.later);
                self.each("DEL", true);
            }
            _ => self.each("DEL", true),
        }
    }

    /// ADD of the whole chain to each container; it ends with the first plugin that fails.
    fn add(&mut self) {
        self.added = (0..self.containers.len())
            .map(|at| {
                let mut previous: Option<Value> = None;
                for plugin in self.chain(at) {
                    previous = Some(self.call("ADD", at, &plugin, previous.as_ref())?);
                }
                Ok(previous.unwrap_or(Value::Null))
            })
            .collect();
    }

    /// A verb for each plugin of each container.
    fn each(&mut self, verb: &str, backwards: bool) {
        let mut said = Vec::new();
        for (at, container) in self.containers.iter().enumerate() {
            let mut chain = self.chain(at);
            if backwards {
                chain.reverse();
            }
            let previous = self.added[at].as_ref().ok();
            for plugin in chain {
                // The reference cannot CHECK what was never added, and runtimes do not ask for it
                // either.
                if verb == "CHECK" && previous.is_none() {
                    continue;
                }
                let ended = self.call(verb, at, &plugin, previous);
                let name = plugin["type"].as_str().unwrap_or_default();
                said.push((format!("{verb} {} {name}", container.name()), ended));
            }
        }
        self.said = said;
    }

    fn chain(&self, at: usize) -> Vec<Value> {
        match self.case.random.get(at) {
            Some(chain) => chain.clone(),
            None => (self.case.chain)(at + 1),
        }
    }

    fn call(&self, verb: &str, at: usize, plugin: &Value, previous: Option<&Value>) -> CallOutcome {
        let mut keys: Map<String, Value> = plugin.as_object().unwrap().clone();
        keys.insert("cniVersion".to_owned(), json!(self.case.version));
        if let Some(previous) = previous {
            keys.insert("prevResult".to_owned(), previous.clone());
        }
        let name = plugin["type"].as_str().unwrap();
        let run = self.node.run(name, verb).to(&self.containers[at]).args(self.case.args);
        let run = run.config(Value::Object(keys));
        let Some(release) = self.release else {
            let answer = run.call();
            return ended(answer.succeeded(), &answer.output.stdout);
        };
        let config = run.document();
        let mut variables: Vec<(String, String)> = Vec::new();
        let directory = release.directory().display().to_string();
        let _ = run.path(&directory).env(|env| {
            let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            variables = env.to_vars().iter().map(owned).collect();
        });
        let mut command = self.node.lab.command(&format!("{directory}/{name}"));
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").envs(variables);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(&config).unwrap();
        let output = child.wait_with_output().unwrap();
        ended(output.status.success(), &output.stdout)
    }
}

fn ended(succeeded: bool, stdout: &[u8]) -> CallOutcome {
    let answer = if stdout.iter().all(u8::is_ascii_whitespace) {
        Value::Null
    } else {
        serde_json::from_slice(stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(stdout)))
    };
    if succeeded {
        return Ok(answer);
    }
    Err(answer["msg"].as_str().unwrap_or("no message").to_owned())
}
