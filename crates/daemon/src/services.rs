//! The table of services. Each is a crate, such as `dhcp-service`.
//!
//! `collect`, `dhcp`, `policy`, `repair` and `routing` have one loop each, `docker` has a thread for
//! each call. `ipam` and `multinet` are asynchronous, and so is a thread beside the loops of `policy`
//! and `routing`. Beside each service a thread answers for its status.

use repair_service::{collect, repair};
use service_kit::service::Service;

/// Returns the service of this name.
pub(crate) fn find(name: &str) -> Option<&'static Service> {
    SERVICES.iter().find(|service| service.name == name)
}

const SERVICES: &[Service] = &[
    Service { more_flags: collect::more_flags, ..Service::new("collect", collect::run) },
    Service::new("dhcp", dhcp_service::run),
    Service::new("docker", docker_service::run),
    Service {
        more_flags: ipam_service::more_flags,
        surroundings: ipam_service::surroundings,
        ..Service::new("ipam", ipam_service::run)
    },
    Service {
        more_flags: multinet_service::more_flags,
        check: multinet_service::check,
        ..Service::new("multinet", multinet_service::run)
    },
    Service {
        more_flags: policy_service::more_flags,
        ..Service::new("policy", policy_service::run)
    },
    Service::new("repair", repair::run),
    Service {
        more_flags: routing_service::more_flags,
        ..Service::new("routing", routing_service::run)
    },
];

#[cfg(test)]
mod command_line_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use agent::load::Surroundings;
    use rustix::process::Signal;
    use serde_json::json;
    use service_kit::command_line;
    use service_kit::health::{Health, Manager};
    use service_kit::log;
    use service_kit::process::{LONG, Process};
    use service_kit::stop::Stop;
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
