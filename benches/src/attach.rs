//! `attach`: what ADD and DEL cost, plugins executed one by one, ours and the reference's in turn.
//!
//! ```text
//! cargo run --release --package netwright-benches --bin attach -- [--rounds N] [--reference DIR] EXECUTABLE
//! ```
//!
//! Every round attaches and detaches one container with each subject and each case, in an order that changes
//! from round to round, so that whatever else the machine does hits all of them alike. A resident
//! attachment of each subject keeps bridges and tables in place, as on a node that is in use. Times are of whole
//! processes, from starting the first plugin to the end of the last. Medians and quartiles are printed, and how many times
//! faster ours are.

#![expect(clippy::print_stdout, reason = "a bench prints its table")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use cni::{CallEnv, Injection, PluginConfig};
use cni_invoke::{Exec, Executor, Request, find};
use serde_json::value::RawValue;
use testkit::{Container, Lab, Place};

const ROUNDS: usize = 40;
/// How long the kernel is given to take down a namespace, which holds the lock for links meanwhile: what one
/// subject leaves to the kernel must not be charged to the next.
const SETTLE: Duration = Duration::from_millis(80);
const REFERENCE: &str = "/usr/lib/cni";
/// The newest version that Debian's plugins speak.
const CNI_VERSION: &str = "1.0.0";

/// A set of plugins to be measured.
struct Subject {
    name: &'static str,
    bin: PathBuf,
}

/// A network to attach to.
struct Case {
    name: &'static str,
    plugins: fn(subject: &str, data: &Path) -> Vec<String>,
    ports: bool,
}

const CASES: [Case; 4] = [
    Case { name: "bridge", plugins: |s, d| vec![bridge(s, d, "a", false, false)], ports: false },
    Case {
        name: "bridge, dual stack",
        plugins: |s, d| vec![bridge(s, d, "b", false, true)],
        ports: false,
    },
    Case {
        name: "bridge + masquerade",
        plugins: |s, d| vec![bridge(s, d, "c", true, false)],
        ports: false,
    },
    Case { name: "bridge + portmap + firewall + tuning", plugins: chain, ports: true },
];

fn bridge(subject: &str, data: &Path, case: &str, masquerade: bool, dual: bool) -> String {
    let third =
        case.bytes().next().map_or(0, |letter| letter - b'a') * 2 + u8::from(subject == "Go");
    let v6 = if dual { format!(r#",[{{"subnet":"fd00:{third}::/64"}}]"#) } else { String::new() };
    format!(
        r#"{{"type":"bridge","bridge":"{case}{subject}","isDefaultGateway":true,"ipMasq":{masquerade},
           "ipam":{{"type":"host-local","dataDir":{data:?},"ranges":[[{{"subnet":"10.{third}.0.0/16"}}]{v6}]}}}}"#
    )
}

fn chain(subject: &str, data: &Path) -> Vec<String> {
    vec![
        bridge(subject, data, "d", true, false),
        r#"{"type":"portmap","capabilities":{"portMappings":true}}"#.to_owned(),
        r#"{"type":"firewall"}"#.to_owned(),
        r#"{"type":"tuning","sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"},"mtu":1400}"#
            .to_owned(),
    ]
}

/// One subject on one case, ready to attach.
struct Bench<'a> {
    lab: &'a Lab,
    subject: &'a Subject,
    network: String,
    plugins: Vec<PluginConfig>,
    ports: Option<u16>,
    exec: Exec,
}

impl Bench<'_> {
    fn call(
        &self,
        verb: &str,
        container: &Container,
        plugin: &PluginConfig,
        previous: Option<&RawValue>,
        port: u16,
    ) -> Vec<u8> {
        let mut capabilities = BTreeMap::new();
        if self.ports.is_some() {
            let value = format!(r#"[{{"hostPort":{port},"containerPort":80,"protocol":"tcp"}}]"#);
            capabilities.insert(
                "portMappings".to_owned(),
                RawValue::from_string(value).expect("a list of ports is JSON"),
            );
        }
        let injection = Injection {
            capability_args: Some(&capabilities),
            prev_result: previous,
            valid_attachments: None,
        };
        let env = CallEnv {
            command: verb.to_owned(),
            container_id: container.name().to_owned(),
            netns: container.netns().display().to_string(),
            ifname: "eth0".to_owned(),
            path: self.subject.bin.display().to_string(),
            ..CallEnv::default()
        };
        let request =
            Request { env, stdin: plugin.request(&self.network, CNI_VERSION, &injection) };
        let executable = find(&plugin.plugin_type, std::slice::from_ref(&self.subject.bin))
            .unwrap_or_else(|error| panic!("{error}"));
        let output = self
            .exec
            .call(&executable, &request, None)
            .unwrap_or_else(|error| panic!("{}: {error}", self.subject.name));
        output.into_stdout().unwrap_or_else(|error| {
            panic!("{} {verb} of {}: {error}", self.subject.name, plugin.plugin_type)
        })
    }

    /// Attaches and returns how long it took and the result.
    fn add(&self, container: &Container, port: u16) -> (Duration, Box<RawValue>) {
        self.lab.enter(|| {
            let started = Instant::now();
            let mut result: Option<Box<RawValue>> = None;
            for plugin in &self.plugins {
                let stdout = self.call("ADD", container, plugin, result.as_deref(), port);
                result = Some(serde_json::from_slice(&stdout).expect("a plugin prints its result"));
            }
            (started.elapsed(), result.expect("a chain is not empty"))
        })
    }

    fn del(&self, container: &Container, result: &RawValue, port: u16) -> Duration {
        self.lab.enter(|| {
            let started = Instant::now();
            for plugin in self.plugins.iter().rev() {
                self.call("DEL", container, plugin, Some(result), port);
            }
            started.elapsed()
        })
    }
}

fn main() -> ExitCode {
    let mut rounds = ROUNDS;
    let mut reference = PathBuf::from(REFERENCE);
    let mut executable = None;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--rounds" => rounds = args.next().and_then(|text| text.parse().ok()).unwrap_or(ROUNDS),
            "--reference" => reference = args.next().unwrap_or_default().into(),
            _ => executable = Some(PathBuf::from(arg)),
        }
    }
    let Some(executable) = executable.and_then(|path| path.canonicalize().ok()) else {
        println!("usage: attach [--rounds N] [--reference DIR] EXECUTABLE");
        return ExitCode::FAILURE;
    };
    let lab = Lab::new("bench");
    let bin = lab.dir().join("bin");
    fs::create_dir(&bin).expect("a scratch folder is writable");
    for plugin in ["bridge", "host-local", "portmap", "firewall", "tuning"] {
        symlink(&executable, bin.join(plugin)).expect("a scratch folder is writable");
    }
    let subjects = [Subject { name: "nw", bin }, Subject { name: "Go", bin: reference }];
    println!("| case | verb | Go, ms | ours, ms | times faster |\n|---|---|---|---|---|");
    for case in &CASES {
        measure(&lab, &subjects, case, rounds);
    }
    ExitCode::SUCCESS
}

fn measure(lab: &Lab, subjects: &[Subject; 2], case: &Case, rounds: usize) {
    let benches = subjects.each_ref().map(|subject| Bench {
        lab,
        subject,
        network: format!("bench-{}-{}", subject.name, case.name.len()),
        plugins: (case.plugins)(subject.name, &lab.dir().join(subject.name))
            .iter()
            .map(|json| {
                PluginConfig::parse(json.as_bytes()).unwrap_or_else(|error| panic!("{error}"))
            })
            .collect(),
        ports: case.ports.then_some(0),
        exec: Exec::new(std::env::vars_os()),
    });
    let resident: Vec<_> = benches
        .iter()
        .zip(20_000_u16..)
        .map(|(bench, port)| {
            let container = lab.container(&format!("resident{port}"));
            let (_, result) = bench.add(&container, port);
            (bench, container, result, port)
        })
        .collect();
    let mut times: [[Vec<Duration>; 2]; 2] = Default::default();
    for round in 0..rounds {
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for which in order {
            let container = lab.container(&format!("c{round}x{which}"));
            let port = 30_000 + u16::try_from(which).unwrap_or_default();
            std::thread::sleep(SETTLE);
            let (add, result) = benches[which].add(&container, port);
            std::thread::sleep(SETTLE);
            let del = benches[which].del(&container, &result, port);
            times[which][0].push(add);
            times[which][1].push(del);
        }
    }
    for (bench, container, result, port) in resident {
        bench.del(&container, &result, port);
    }
    for (verb, name) in ["ADD", "DEL"].iter().enumerate() {
        let [ours, theirs] = [&times[0][verb], &times[1][verb]].map(|times| Spread::of(times));
        println!(
            "| {} | {name} | {theirs} | {ours} | {:.1} |",
            case.name,
            theirs.median / ours.median
        );
    }
}

/// Median and quartiles in milliseconds.
struct Spread {
    low: f64,
    median: f64,
    high: f64,
}

impl Spread {
    fn of(times: &[Duration]) -> Self {
        let mut sorted: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
        sorted.sort_by(f64::total_cmp);
        let at = |quarter: usize| sorted[(sorted.len() - 1) * quarter / 4];
        Spread { low: at(1), median: at(2), high: at(3) }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} ({:.2}–{:.2})", self.median, self.low, self.high)
    }
}
