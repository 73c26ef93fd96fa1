//! Many pods at once, in little memory, and daemons that are killed.

use std::collections::BTreeSet;
use std::sync::Barrier;
use std::time::Duration;

use node_api::multinet::{Answer, DetachReport, Request};
use node_api::{Message, inbox};
use testkit::{MemoryLimit, wait_for};

use super::rig::{Cluster, ask, pod, sandbox};
use super::{BRIDGE, attached};

/// The daemon's memory limit in deploy/kubernetes.
const MEMORY: u64 = 64 << 20;
/// As many pods as a node may have at most, when it boots.
const PODS: usize = 500;

#[test]
fn five_hundred_at_once_in_64_mebibytes() {
    testkit::require!("root", "file:/sys/fs/cgroup");
    let cluster = Cluster::new("mn-load");
    for number in 0..50 {
        let config = format!(
            r#"{{"cniVersion":"1.0.0","plugins":[{{"type":"bridge","comment":"{}"}}]}}"#,
            "x".repeat(4000)
        );
        cluster.define("ns", &format!("net{number}"), &config);
    }
    let networks = "net0,net1,net2";
    let uids: Vec<_> = (0..PODS).map(|n| cluster.pod(&format!("p{n}"), Some(networks))).collect();
    cluster.api.slow(Duration::from_millis(20));
    let limit = MemoryLimit::new(MEMORY);
    let mut daemon = cluster.spawn_within(&limit, &["--cluster-network", "cluster"]);
    daemon.wait_until_listening();
    let start = Barrier::new(PODS);
    std::thread::scope(|scope| {
        for (number, uid) in uids.iter().enumerate() {
            let (cluster, start) = (&cluster, &start);
            scope.spawn(move || {
                let name = format!("p{number}");
                start.wait();
                // A runtime repeats a request when the error says that this helps, as on an
                // overloaded machine.
                let plan = wait_for("a plan", || match cluster.plan(&name, uid) {
                    Ok(plan) => Some(plan),
                    Err(refusal) if refusal.retry => None,
                    Err(refusal) => panic!("{refusal:?}"),
                });
                assert_eq!(plan.networks.len(), 4);
                let told = Request::Attached(attached(&name, uid));
                assert_eq!(cluster.ask(&told).unwrap(), Answer::Ok);
            });
        }
    });
    for number in 0..PODS {
        wait_for("every status", || cluster.status(&format!("p{number}")));
    }
    assert!(daemon.service.child().try_wait().unwrap().is_none(), "it lives");
    let (most, resident) = (limit.most_used(), limit.resident());
    assert!(resident < MEMORY / 2, "{resident} bytes are held when it is over");
    eprintln!(
        "500 pods: at most {} MiB with what files left, {} MiB resident",
        most >> 20,
        resident >> 20
    );

    // The API server is away: the daemon accepts every DEL.
    cluster.api.refuse();
    for number in 0..200 {
        let detached = DetachReport { sandbox: sandbox(&format!("p{number}")), pod: None };
        assert_eq!(cluster.ask(&Request::Detached(detached)).unwrap(), Answer::Ok);
    }
    let left = std::fs::read_dir(cluster.dir.join("run/multinet/sandboxes")).unwrap().count();
    assert_eq!(left, PODS - 200);
}

/// Sends a report as the plugin does: into the inbox if no daemon accepts it.
fn tell(cluster: &Cluster, told: &Request) {
    if matches!(ask(&cluster.socket(), told), Ok(Answer::Ok)) {
        return;
    }
    let folder = inbox::folder(&cluster.socket());
    std::fs::create_dir_all(&folder).unwrap();
    let name = told.todo_name().unwrap();
    let new = folder.join(format!(".{name}.tmp"));
    std::fs::write(&new, told.to_line().unwrap()).unwrap();
    std::fs::rename(new, folder.join(name)).unwrap();
}

#[test]
fn a_daemon_killed_at_any_moment_loses_nothing() {
    let cluster = Cluster::new("mn-kill");
    cluster.define("ns", "a", BRIDGE);
    const LIVES: u64 = 24;
    let uids: Vec<_> = (0..LIVES).map(|n| cluster.pod(&format!("p{n}"), Some("a"))).collect();
    let mut stay = BTreeSet::new();
    for (life, uid) in (0..LIVES).zip(&uids) {
        let name = format!("p{life}");
        let mut daemon = cluster.daemon();
        cluster.planned(&name, uid);
        let end = std::thread::scope(|scope| {
            let (cluster, name) = (&cluster, &name);
            let told = scope.spawn(move || {
                tell(cluster, &Request::Attached(attached(name, uid)));
                // Every other pod is gone at once.
                if life % 2 == 0 {
                    let detached =
                        DetachReport { sandbox: sandbox(name), pod: Some(pod(name, uid)) };
                    tell(cluster, &Request::Detached(detached));
                }
            });
            // Each daemon lives a bit longer than the one before. It ends while a message arrives,
            // is recorded or is written to the API server, or after that.
            std::thread::sleep(Duration::from_micros(life * 300));
            daemon.service.child().kill().unwrap();
            let end = daemon.service.child().wait();
            told.join().unwrap();
            end
        });
        assert!(end.is_ok());
        if life % 2 == 1 {
            stay.insert(name);
        }
    }
    let _daemon = cluster.daemon();
    for name in &stay {
        wait_for(name, || cluster.status(name));
    }
    let count = |folder: std::path::PathBuf| std::fs::read_dir(folder).unwrap().count();
    wait_for("everything to be done", || {
        let waiting = count(inbox::folder(&cluster.socket()))
            + count(cluster.dir.join("run/multinet/outbox"));
        (waiting == 0).then_some(())
    });
    assert_eq!(count(cluster.dir.join("run/multinet/sandboxes")), stay.len());
}

/// Kills a daemon at each request that it makes between its start and the end of a pod's ADD. The
/// daemon is killed as soon as that request has arrived, and the runtime continues with the next
/// daemon.
#[test]
fn a_daemon_killed_at_each_request_loses_nothing() {
    const REQUESTS: usize = 9;
    let cluster = Cluster::new("mn-kill-each");
    cluster.define("ns", "a", BRIDGE);
    for life in 0..REQUESTS {
        let name = format!("p{life}");
        let uid = cluster.pod(&name, Some("a"));
        cluster.api.forget();
        let mut daemon = cluster.spawn(&["--cluster-network", "cluster"], &[]);
        std::thread::scope(|scope| {
            let (cluster, name, uid) = (&cluster, &name, &uid);
            let add = scope.spawn(move || {
                let request = Request::Plan(node_api::multinet::PlanRequest {
                    sandbox: sandbox(name),
                    pod: Some(pod(name, uid)),
                    ..Default::default()
                });
                wait_for("a plan", || match ask(&cluster.socket(), &request) {
                    Ok(Answer::Plan(plan)) if plan.networks.len() == 2 => Some(()),
                    _ => None,
                });
                tell(cluster, &Request::Attached(attached(name, uid)));
            });
            cluster.api.wait_until("the request", |api| {
                life < api.asked().len() || cluster.events(name).len() == 2
            });
            daemon.service.child().kill().unwrap();
            daemon.service.child().wait().unwrap();
            let _next = cluster.daemon();
            add.join().unwrap();
            wait_for(name, || cluster.status(name));
            let detached = DetachReport { sandbox: sandbox(name), pod: Some(pod(name, uid)) };
            tell(cluster, &Request::Detached(detached));
            wait_for("nothing to be left", || {
                let folder = cluster.dir.join("run/multinet/sandboxes");
                std::fs::read_dir(folder).unwrap().next().is_none().then_some(())
            });
        });
    }
}
