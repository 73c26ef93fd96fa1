//! What the daemon does, one module for each service.
//!
//! `collect`, `dhcp`, `policy`, `repair` and `routing` have one loop each, `docker` has a thread for
//! each call. `ipam` and `multinet` are asynchronous, and so is a thread beside the loops of `policy`
//! and `routing`. Beside each service a thread answers for its status. `removal` is no service: it asks
//! the API server for `agent leave`.

use agent::keys::{TABLES, Table};
use agent::load::Surroundings;
use clap::{Arg, ArgMatches};

use crate::command_line::Invocation;
use setup::Process;

mod collect;
mod dhcp;
mod docker;
mod etcd;
mod folders;
mod ipam;
mod kubernetes;
mod line_server;
mod multinet;
mod outlet;
mod ovs;
mod pace;
pub(crate) mod policy;
mod ready;
pub(crate) mod removal;
mod repair;
pub(crate) mod routing;
mod runtimes;
pub(crate) mod setup;

/// Runs a service.
type Run = fn(&Invocation, &Process) -> Result<(), Stop>;

/// A service.
pub(crate) struct Service {
    name: &'static str,
    /// Its flags that are not keys of the configuration.
    pub(crate) more_flags: fn() -> Vec<Arg>,
    /// Adapts what is found around the process to what these flags want.
    pub(crate) surroundings: fn(&ArgMatches, Surroundings) -> Surroundings,
    /// Refuses what the service would refuse when it starts, besides the configuration.
    pub(crate) check: fn(&Invocation) -> Result<(), Stop>,
    /// Runs it until a signal ends it.
    pub(crate) run: Run,
}

impl Service {
    /// Returns the service of this name.
    pub(crate) fn find(name: &str) -> Option<&'static Self> {
        SERVICES.iter().find(|service| service.name == name)
    }

    /// Returns its table of the configuration.
    pub(crate) fn table(&self) -> &'static Table {
        let table = TABLES.iter().find(|table| table.name == self.name);
        table.expect("each service has a table: a test looks")
    }
}

const fn plain(name: &'static str, run: Run) -> Service {
    Service { name, more_flags: Vec::new, surroundings: |_, around| around, check: |_| Ok(()), run }
}

const SERVICES: &[Service] = &[
    Service { more_flags: collect::more_flags, ..plain("collect", collect::run) },
    plain("dhcp", dhcp::run),
    plain("docker", docker::run),
    Service {
        more_flags: ipam::more_flags,
        surroundings: ipam::surroundings,
        ..plain("ipam", ipam::run)
    },
    Service {
        more_flags: multinet::more_flags,
        check: multinet::check,
        ..plain("multinet", multinet::run)
    },
    Service { more_flags: policy::more_flags, ..plain("policy", policy::run) },
    plain("repair", repair::run),
    Service { more_flags: routing::more_flags, ..plain("routing", routing::run) },
];

/// Why a service could not start or continue.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Text to print to standard output.
    Print(String),
    /// The flags are wrong.
    Usage(String),
    /// The configuration is wrong.
    Configuration(Vec<agent::Problem>),
    /// Something failed.
    Failed(String),
    /// Everything is said; the process ends with this exit code.
    Said(u8),
}

impl Stop {
    /// Returns what is wrong, in lines.
    pub(crate) fn lines(&self) -> Vec<String> {
        match self {
            Stop::Configuration(problems) => problems.iter().map(agent::Problem::line).collect(),
            Stop::Usage(text) | Stop::Failed(text) => vec![text.trim_end().to_owned()],
            Stop::Print(_) | Stop::Said(_) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::{Health, Manager};
    use crate::{command_line, log};
    use rustix::process::Signal;
    use serde_json::json;
    use setup::LONG;
    use std::ffi::OsString;
    use std::sync::Arc;
    use testkit::Place as _;
    use testkit::kube::KubeApi;

    #[test]
    fn services_are_those_of_the_configuration() {
        let names: Vec<&str> = SERVICES.iter().map(|service| service.table().name).collect();
        assert_eq!(names, agent::keys::services().collect::<Vec<_>>());
    }

    /// The memory of one process with every service, for comparison with
    /// `agent::figures::the_idle_agent_takes_what_its_services_take_alone`. It is printed.
    #[test]
    fn all_services_in_one_process_take_this_memory() {
        testkit::require!("root", "full");
        let lab = testkit::Lab::new("one-process");
        let api = lab.enter(KubeApi::start);
        api.create(&json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
            "spec": {"podCIDR": "10.244.1.0/24"},
            "status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]},
        }));
        let kubeconfig = api.kubeconfig(lab.dir()).display().to_string();
        let private = || -> u64 {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        };
        let before = private();
        let log = log::start("all", None, &agent::config::Log::default(), None, false, None);
        let environment: Vec<(OsString, OsString)> = std::env::vars_os().collect();
        lab.enter(|| {
            std::thread::scope(|scope| {
                let mut all = Vec::new();
                for service in SERVICES {
                    let words: &[&str] = match service.name {
                        "ipam" | "multinet" => &["--node", "n1", "--kubeconfig", &kubeconfig],
                        "policy" => {
                            &["--node=n1", "--source=kubernetes", "--kubeconfig", &kubeconfig]
                        }
                        "routing" => &[
                            "--node=n1",
                            "--source=kubernetes",
                            "--kubeconfig",
                            &kubeconfig,
                            "--cluster=10.244.0.0/16",
                            "--path=direct",
                        ],
                        _ => &[],
                    };
                    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
                    let (around, roots) = (Surroundings::default(), state::Roots::default());
                    let invocation = command_line::read(service, &words, around, &roots).unwrap();
                    let health = Health::new(service.name, Manager::default(), LONG);
                    let process = Process {
                        environment: environment.clone(),
                        health: health.clone(),
                        log: log.clone(),
                        reread: Arc::new(|| Err(Stop::Said(1))),
                        hung_up: Arc::default(),
                        socket: Arc::default(),
                        follows: None,
                        again: Arc::default(),
                    };
                    scope.spawn(move || (service.run)(&invocation, &process).unwrap());
                    all.push(health);
                }
                testkit::wait_until("the services", || {
                    all.iter().all(|one| one.report().state == agent::report::State::Ready)
                });
                eprintln!("one process: {} KiB", private() - before);
                // Each listens for it by now.
                rustix::process::kill_process(rustix::process::getpid(), Signal::TERM).unwrap();
            });
        });
    }
}
