//! Many nodes on real stores: etcd, and the Kubernetes API as the test kit has it.
//!
//! How many depends on `NETWRIGHT_FULL`: 100 nodes with 100 ADDs and DELs each (500 if a run tries
//! all), or a few.

#[path = "../../cluster-ipam/tests/it/simulation/world.rs"]
mod world;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cluster_client::etcd::EtcdFiles;
use cluster_ipam::store::{Store, SureStore};
use serde_json::json;
use testkit::kube::KubeApi;
use testkit::real::Etcd;
use testkit::{Lab, Place as _};
use tokio::runtime::Handle;

use self::world::{Plan, World};
use super::{ATTEMPTS, etcd, objects};

fn plan() -> Plan {
    match std::env::var_os("NETWRIGHT_FULL") {
        Some(_) => Plan { nodes: 100, each: testkit::share::count(500, 100), threads: 16 },
        None => Plan { nodes: 12, each: 20, threads: 8 },
    }
}

/// Has a thread of its own wait for sockets, while `work` works.
fn with_runtime<T>(work: impl FnOnce(&Handle) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let handle = runtime.handle().clone();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _ = runtime.block_on(ended);
        });
        let result = work(&handle);
        drop(end);
        result
    })
}

#[test]
fn many_nodes_on_etcd_whose_leader_dies_give_no_address_twice_and_leak_none() {
    testkit::require!("root", "program:etcd", "program:curl");
    let lab = Lab::new("ipam-etcd");
    let etcd = Mutex::new(Etcd::start(&lab));
    let endpoints = etcd.lock().unwrap().endpoints();
    let plan = plan();
    let all = plan.nodes * plan.each;
    lab.enter(|| {
        with_runtime(|handle| {
            let _in_runtime = handle.enter();
            let first = etcd::Etcd::new(&endpoints, &EtcdFiles::default(), handle.clone()).unwrap();
            let store = || Arc::new(SureStore::new(first.another(), ATTEMPTS)) as Arc<dyn Store>;
            let world = World::new(plan, |_| store());
            // A leader dies and comes back. A member is cut off, and then the next leader;
            // meanwhile no other member decides.
            let (victim, frozen) = (AtomicUsize::new(0), AtomicUsize::new(0));
            world.run(&|progress| {
                let mut etcd = etcd.lock().unwrap();
                if progress == all / 6 {
                    victim.store(etcd.wait_for_leader(), Ordering::SeqCst);
                    etcd.kill(victim.load(Ordering::SeqCst));
                } else if progress == all * 2 / 6 {
                    etcd.revive(victim.load(Ordering::SeqCst));
                } else if progress == all * 3 / 6 {
                    let leader = etcd.wait_for_leader();
                    frozen.store((leader + 1) % 3, Ordering::SeqCst);
                    etcd.freeze(frozen.load(Ordering::SeqCst), true);
                } else if progress == all * 4 / 6 {
                    etcd.freeze(frozen.load(Ordering::SeqCst), false);
                    let leader = etcd.wait_for_leader();
                    frozen.store(leader, Ordering::SeqCst);
                    etcd.freeze(leader, true);
                } else if progress == all * 5 / 6 {
                    etcd.freeze(frozen.load(Ordering::SeqCst), false);
                }
            });
            etcd.lock().unwrap().wait_for_leader();
            world.give_up_the_dead(store(), |name| {
                cluster_ipam::reclaim::forget(&*store(), name).unwrap();
            });
            world.end(&*store());
        });
    });
}

#[test]
fn many_nodes_on_a_slow_api_server_give_no_address_twice_and_leak_none() {
    let api = KubeApi::start();
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = api.kubeconfig(dir.path());
    let plan = plan();
    for name in world::names(plan.nodes) {
        api.create(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}));
    }
    with_runtime(|handle| {
        let _in_runtime = handle.enter();
        let store = || {
            let opened = objects::Objects::new(Some(&kubeconfig), handle.clone());
            let opened = handle.block_on(opened).unwrap();
            Arc::new(SureStore::new(opened, ATTEMPTS)) as Arc<dyn Store>
        };
        let world = World::new(plan, |_| store());
        api.slow(Duration::from_millis(2));
        world.run(&|progress| {
            if progress % 25 == 0 {
                let verbs = ["create", "update", "delete"];
                api.fail_next(verbs[progress / 25 % 3], "addressblocks", 409);
            } else if progress % 40 == 0 {
                api.fail_next("update", "addressblocks", 500);
                api.fail_next("list", "addressblocks", 429);
            } else if progress % 300 == 0 {
                api.cut();
            }
            api.forget();
        });
        api.slow(Duration::ZERO);
        api.fail_no_more();
        world.give_up_the_dead(store(), |name| api.remove("nodes", "", name));
        world.end(&*store());
    });
}
