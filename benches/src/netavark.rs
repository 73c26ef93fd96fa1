//! Ours beside netavark, which is not a CNI plugin: one process sets up a bridge network with
//! masquerade and a port, and one takes it down.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use testkit::{Container, Lab, Place as _};

use crate::spread::Spread;
use crate::subject::{Bench, Subject, TOGETHER};

/// The pause between two calls, so that the kernel's late work for one is not charged to the next.
const SETTLE: Duration = Duration::from_millis(80);

/// Measures both in turn.
pub(crate) fn measure(lab: &Lab, ours: &Subject, netavark: &Path, rounds: usize) {
    let bench = Bench::new(lab, ours, &TOGETHER);
    let theirs = Netavark::new(lab, netavark);
    let resident = [lab.container("resident-nw"), lab.container("resident-nav")];
    bench.add(&resident[0], 20_100);
    theirs.call("setup", &resident[1], 0);
    let mut times: [[Vec<Duration>; 2]; 2] = Default::default();
    for round in 1..=rounds {
        let container = lab.container(&format!("nav{round}"));
        std::thread::sleep(SETTLE);
        let port = 20_100 + u16::try_from(round).expect("some rounds");
        let attached = bench.add(&container, port);
        std::thread::sleep(SETTLE);
        let del = bench.again("DEL", &container, &attached);
        std::thread::sleep(SETTLE);
        let setup = theirs.call("setup", &container, round);
        std::thread::sleep(SETTLE);
        let teardown = theirs.call("teardown", &container, round);
        for (all, pair) in times.iter_mut().zip([[setup, attached.took], [teardown, del]]) {
            for (all, one) in all.iter_mut().zip(pair) {
                all.push(one);
            }
        }
    }
    theirs.call("teardown", &resident[1], 0);
    println!(
        "\n| bridge + masquerade, one port, one process | netavark, ms | ours, ms | times faster |\n|---|---|---|---|"
    );
    for (verb, times) in ["setup / ADD", "teardown / DEL"].iter().zip(times) {
        let [theirs, ours] = times.map(|times| Spread::of(&times).unwrap_or_default());
        println!("| {verb} | {theirs} | {ours} | {:.1} |", theirs.median / ours.median);
    }
}

struct Netavark<'a> {
    lab: &'a Lab,
    executable: PathBuf,
}

impl<'a> Netavark<'a> {
    fn new(lab: &'a Lab, executable: &Path) -> Self {
        Netavark { lab, executable: executable.to_owned() }
    }

    /// Calls netavark; `number` is the container's.
    #[expect(clippy::disallowed_methods, reason = "netavark is started too")]
    fn call(&self, verb: &str, container: &Container, number: usize) -> Duration {
        let address = format!("10.89.{}.{}", number / 200, 2 + number % 200);
        let (input, folder) = (self.lab.dir().join("netavark.in"), self.lab.dir().join("netavark"));
        let request = json!({
            "container_id": format!("{number:064}"),
            "container_name": container.name(),
            "networks": { "nav": { "interface_name": "eth0", "static_ips": [address] } },
            "network_info": { "nav": {
                "name": "nav", "id": format!("{:064}", 1), "driver": "bridge", "network_interface": "nav0",
                "created": "2024-01-01T00:00:00Z", "subnets": [{ "subnet": "10.89.0.0/16", "gateway": "10.89.255.254" }],
                "ipv6_enabled": false, "internal": false, "dns_enabled": false, "ipam_options": { "driver": "host-local" }
            } },
            "port_mappings": [{ "container_port": 80, "host_ip": "", "host_port": 30_000 + number, "protocol": "tcp", "range": 1 }]
        });
        fs::create_dir_all(&folder).expect("a scratch folder is writable");
        fs::write(&input, request.to_string()).expect("a scratch folder is writable");
        self.lab.enter(|| {
            let mut command = Command::new(&self.executable);
            command.arg("--config").arg(&folder).arg(verb).arg(container.netns());
            command.stdin(File::open(&input).expect("it was written"));
            let started = Instant::now();
            let output = command.output().expect("netavark starts");
            let took = started.elapsed();
            let said = [output.stdout, output.stderr].concat();
            assert!(output.status.success(), "netavark {verb}: {}", String::from_utf8_lossy(&said));
            took
        })
    }
}
