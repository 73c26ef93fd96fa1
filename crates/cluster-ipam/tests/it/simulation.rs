//! Many nodes at once on one store: here the in-memory one with faults, in the daemon's tests etcd
//! and the Kubernetes API.

pub(crate) mod world;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use netwright_cluster_ipam::store::{Fault, Memory, Store};

use world::{Plan, World};

/// A number that looks random, and is the same for the same seed.
fn mixed(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[test]
fn many_nodes_on_a_store_that_loses_answers_give_no_address_twice_and_leak_none() {
    let full = std::env::var_os("NETWRIGHT_FULL").is_some();
    let store = Memory::default();
    let views: BTreeMap<String, Memory> =
        world::names(if full { 100 } else { 20 }).map(|name| (name, store.view())).collect();
    let drawn = Arc::new(AtomicU64::new(7));
    for view in views.values() {
        let drawn = Arc::clone(&drawn);
        view.misbehave(move |_, _| match mixed(drawn.fetch_add(1, Ordering::Relaxed)) % 40 {
            0 => Fault::Lost,
            1 => Fault::Unanswered,
            2 => Fault::Late,
            _ => Fault::None,
        });
    }
    let plan = Plan { nodes: views.len(), each: if full { 500 } else { 50 }, threads: 4 };
    let world = World::new(plan, |name| Arc::new(views[name].clone()) as Arc<dyn Store>);
    let landing = store.clone();
    world.run(&|progress| {
        if progress % 7 == 0 {
            landing.land();
        }
    });
    for view in views.values() {
        view.behave();
    }
    store.land();
    world.give_up_the_dead(Arc::new(store.clone()), |name| store.set_gone(name, true));
    world.end(&store);
}
