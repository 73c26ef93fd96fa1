//! Periodic work beside the answers.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cluster_ipam::Reclaimer;
use cluster_ipam::store::{Store, StoreError};
use service_kit::health::Health;

use super::service::Service;
use super::{BootClock, own_addresses};

/// The pause between looks for changes: records are for people, who wait a second.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The longest pause while the store is away: the daemon notices its return within seconds.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(4);
/// How often to look for blocks of a claim whose answer was lost.
const SWEEP: Duration = Duration::from_secs(300);
/// How often to look by which addresses other nodes reach this one.
const OWN_ADDRESSES: Duration = Duration::from_secs(60);
/// The longest pause between looks at other nodes.
const LONGEST_LOOK: Duration = Duration::from_secs(300);

/// How often, counted in looks at other nodes, the service also looks for blocks of unknown nodes:
/// such a look reads all blocks.
const ORPHANS: u32 = 24;

/// Renews the lease, reports which node holds what, releases empty blocks, for ever.
pub(super) async fn tend(service: Arc<Service>, underlay: Vec<IpAddr>, health: Health) {
    let mut pause = POLL_INTERVAL;
    let mut away = false;
    let mut swept = tokio::time::Instant::now();
    let mut found = swept;
    let mut addresses: Vec<IpAddr> = Vec::new();
    loop {
        // A node that starts may have no route yet.
        if addresses.is_empty() || OWN_ADDRESSES <= found.elapsed() {
            addresses = own_addresses::find(&underlay, &addresses);
            service.node.set_addresses(&addresses);
            found = tokio::time::Instant::now();
        }
        let node = Arc::clone(&service.node);
        let sweep = SWEEP <= swept.elapsed();
        let work = move || {
            node.tend()?;
            if sweep { node.sweep() } else { Ok(()) }
        };
        let Ok(done) = tokio::task::spawn_blocking(work).await else { return };
        service.tell();
        match done {
            Ok(()) => {
                health.needs("store", Ok(()));
                if std::mem::take(&mut away) {
                    tracing::info!("the store answers again");
                }
                if sweep {
                    swept = tokio::time::Instant::now();
                }
                pause = POLL_INTERVAL;
            }
            Err(error) => {
                health.needs("store", Err(error.to_string()));
                if !std::mem::replace(&mut away, true) {
                    tracing::warn!(%error, "addresses are given as long as the lease holds");
                }
                pause = (pause * 2).min(MAX_RETRY_DELAY);
            }
        }
        // A random part, so that not all nodes come at once when a server is back.
        let more =
            service_kit::clock::seed() % u64::try_from(pause.as_millis() / 4 + 1).unwrap_or(1);
        tokio::time::sleep(pause + Duration::from_millis(more)).await;
    }
}

/// Reclaims the blocks of nodes that are gone, for ever.
pub(super) async fn reclaim(service: Arc<Service>, store: Arc<dyn Store>, lease: Duration) {
    let mut reclaimer = Reclaimer::new(store, Arc::new(BootClock));
    let pause = (lease / 4).min(LONGEST_LOOK);
    for look in 1_u32.. {
        let me = service.node.name().to_owned();
        let work = move || {
            let orphans = if look % ORPHANS == 0 { reclaimer.look_for_orphans() } else { Ok(()) };
            let done = orphans.and_then(|()| reclaimer.look(&me));
            (reclaimer, done)
        };
        let Ok((back, done)) = tokio::task::spawn_blocking(work).await else { return };
        reclaimer = back;
        match done {
            Ok(all) => {
                for one in all {
                    tracing::warn!(
                        node = one.node,
                        blocks = one.blocks,
                        "a node is gone: its blocks are free"
                    );
                }
            }
            Err(StoreError::Away(_)) => {}
            Err(error) => tracing::warn!(%error, "cannot check other nodes"),
        }
        let more =
            service_kit::clock::seed() % u64::try_from(pause.as_millis() / 2 + 1).unwrap_or(1);
        tokio::time::sleep(pause + Duration::from_millis(more)).await;
    }
}
