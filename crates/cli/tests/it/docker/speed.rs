//! How long our driver takes beside Docker's own bridge driver. The test prints this and does not
//! judge it: machines differ.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use testkit::real::{Docker, Engine};
use testkit::{Lab, share};

use super::life::needs_docker;
use super::support::{Driver, figure};
use crate::system::install;

/// How often each driver is measured; the two take turns.
const ROUNDS: usize = 9;

/// How many rounds a run makes unless it tries all: one takes more than a minute.
const ROUNDS_OF_A_SHARE: usize = 1;

/// How often the engine is killed and stopped.
const STARTS: usize = 3;

/// How many containers an engine starts with.
const CONTAINERS: usize = 20;

#[test]
fn beside_dockers_own_bridge() {
    testkit::require!("round:0/3");
    needs_docker!();
    beside_bridge(Engine::Installed);
}

pub(super) fn beside_bridge(engine: Engine) {
    let lab = Lab::with_processes("docker-speed");
    install(&lab);
    let driver = Driver::start(&lab);
    let mut docker = Docker::of(&lab, engine, &[]);
    docker.create_network("--subnet 10.76.0.0/24 netwright");
    docker.run(&["network", "create", "--driver", "bridge", "--subnet", "10.77.0.0/24", "bridged"]);
    let mut took = [Vec::new(), Vec::new()];
    for _ in 0..share::count(ROUNDS, ROUNDS_OF_A_SHARE) {
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
    figure!(engine, "run --rm -p: netwright {ours:?}, Docker's own bridge {theirs:?}");
    for network in ["netwright", "bridged"] {
        let names: Vec<String> =
            (0..CONTAINERS).map(|number| format!("{network}{number}")).collect();
        for (number, name) in names.iter().enumerate() {
            docker.run(&[
                "run",
                "--detach",
                "--restart",
                "always",
                "--network",
                network,
                "--publish",
                &format!("{}:80", 9000 + number),
                "--name",
                name,
                Docker::IMAGE,
            ]);
        }
        let (told, worked) = (driver.log().len(), driver.worked());
        let (mut killed, mut stopped) = (Vec::new(), Vec::new());
        for _ in 0..STARTS {
            docker.kill();
            killed.push(docker.start());
            docker.stop();
            stopped.push(docker.start());
        }
        figure!(
            engine,
            "{network}: up with {CONTAINERS} containers {:?} after a kill, {:?} after a stop; in all {} starts the driver worked {:?}, its plugins {:?}{}",
            median(killed),
            median(stopped),
            2 * STARTS,
            driver.worked()[0].saturating_sub(worked[0]),
            driver.worked()[1].saturating_sub(worked[1]),
            shares(&driver.log()[told..]),
        );
        docker.remove(&names.iter().map(String::as_str).collect::<Vec<_>>());
    }
    drop(driver);
}

/// The time of each of the driver's calls, from its log: the count, the total and the longest.
fn shares(log: &str) -> String {
    let mut calls: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
    for line in log.lines() {
        let Some((_, rest)) = line.split_once("answered call=") else { continue };
        let Some((call, ms)) = rest.split_once(" ms=") else { continue };
        let ms = ms.trim().parse().unwrap_or(0);
        let (count, sum, longest) = calls.entry(call).or_default();
        (*count, *sum, *longest) = (*count + 1, *sum + ms, ms.max(*longest));
    }
    let mut text = String::new();
    for (call, (count, sum, longest)) in calls {
        let _ = write!(text, "\n  {call}: {count} in {sum} ms, longest {longest} ms");
    }
    text
}

fn median(mut took: Vec<Duration>) -> Duration {
    took.sort_unstable();
    took[took.len() / 2]
}
