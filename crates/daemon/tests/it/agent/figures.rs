//! What the idle agent costs. The test prints the figures (`--no-capture`), and docs/agent.md has
//! them.

use super::node::{ALL, Node, private_memory, until};

#[test]
fn the_idle_agent_takes_what_its_services_take_alone() {
    testkit::require!("root", "full");
    let mut node = Node::with_all("agent-figures");
    node.start();
    let pids = node.wait_until_ready(ALL.len());
    let supervised: Vec<u64> = ALL.iter().map(|service| private_memory(pids[*service])).collect();
    let supervisor = private_memory(node.supervisor());
    assert_eq!(node.stop(), Some(0));
    let mut singles = Vec::new();
    for service in ALL {
        let log = node.lab.dir().join(format!("{service}.log"));
        let single = testkit::Service::start(node.command(&[service]), &log);
        until("it to be ready", || single.log().contains(" ready "));
        singles.push(single);
    }
    let alone: Vec<u64> = singles.iter().map(|one| private_memory(u64::from(one.pid()))).collect();
    eprintln!("private memory in KiB | supervised | alone");
    for ((service, supervised), alone) in ALL.iter().zip(&supervised).zip(&alone) {
        eprintln!("{service} | {supervised} | {alone}");
    }
    let (together, apart): (u64, u64) = (supervised.iter().sum(), alone.iter().sum());
    eprintln!("supervisor | {supervisor} |\nall | {} | {apart}", together + supervisor);
    // The supervisor does less than any service.
    assert!(alone.iter().any(|alone| supervisor <= alone + alone / 4), "{supervisor} KiB");
    assert!(together <= apart + apart / 4, "{together} KiB, alone {apart} KiB");
    for single in singles {
        assert_eq!(single.stop(), Some(0));
    }
}
