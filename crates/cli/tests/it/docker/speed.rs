//! How long things take beside Docker's own bridge driver. Told, not judged: machines differ.

use std::time::{Duration, Instant};

use testkit::Lab;
use testkit::real::Docker;

use super::life::needs_docker;
use super::support::Driver;
use crate::system::install;

/// How often each is done, one of each in turn.
const ROUNDS: usize = 7;

/// How many containers an engine starts with.
const CONTAINERS: usize = 20;

#[test]
fn beside_dockers_own_bridge() {
    testkit::require!("full");
    needs_docker!();
    let lab = Lab::with_processes("docker-speed");
    install(&lab);
    let driver = Driver::start(&lab);
    let mut docker = Docker::new(&lab);
    docker.run(&[
        "network",
        "create",
        "--driver",
        "netwright",
        "--subnet",
        "10.76.0.0/24",
        "netwright",
    ]);
    docker.run(&["network", "create", "--driver", "bridge", "--subnet", "10.77.0.0/24", "bridged"]);
    let mut took = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (network, took) in ["netwright", "bridged"].iter().zip(&mut took) {
            let began = Instant::now();
            docker.run(&[
                "run",
                "--rm",
                "--network",
                network,
                "--publish",
                "8080:80",
                Docker::IMAGE,
                "true",
            ]);
            took.push(began.elapsed());
        }
    }
    let [ours, theirs] = took.map(median);
    eprintln!("DOCKER run --rm -p: netwright {ours:?}, Docker's own bridge {theirs:?}");
    for network in ["netwright", "bridged"] {
        let names: Vec<String> =
            (0..CONTAINERS).map(|number| format!("{network}{number}")).collect();
        for name in &names {
            docker.run(&[
                "run",
                "--detach",
                "--restart",
                "always",
                "--network",
                network,
                "--name",
                name,
                Docker::IMAGE,
            ]);
        }
        docker.kill();
        let killed = docker.start();
        docker.stop();
        let stopped = docker.start();
        eprintln!(
            "DOCKER {network}: up with {CONTAINERS} containers {killed:?} after a kill, {stopped:?} after a stop"
        );
        docker.remove(&names.iter().map(String::as_str).collect::<Vec<_>>());
    }
    drop(driver);
}

fn median(mut took: Vec<Duration>) -> Duration {
    took.sort_unstable();
    took[took.len() / 2]
}
