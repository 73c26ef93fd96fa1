//! What the service says of this node in its log and its notices, and when it said it last.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use routing::plan::Change;
use routing::settings::LinkName;

use super::context::Context;
use super::dataplane::RemovedAdvertisement;

/// How long after its last act flanneld is reported to run on this node too.
const FLANNELD_SHOWN: Duration = Duration::from_secs(3600);

/// How long a machine on a link is reported that has announced itself as a router of pods.
const ROUTER_SHOWN: Duration = Duration::from_secs(3600);

/// What was said last.
#[derive(Debug, Default)]
pub(super) struct Reports {
    /// Whether the service is ready, as the log says it.
    is_ready: Option<bool>,
    /// When flanneld, whose place this service takes, was seen to make a route last.
    flanneld_at: Option<Instant>,
    /// When a machine on a link was last found to have announced itself as the router of pods, and the
    /// sentence of it, by link.
    routers: BTreeMap<LinkName, (Instant, String)>,
}

impl Reports {
    /// Says in the log, once, that this node is known and its network is made; first that it is not
    /// yet.
    pub(super) fn ready(&mut self, context: &Context, interval: Duration) {
        let is_ready = context.routing().waits_for().is_none();
        if self.is_ready == Some(is_ready) || self.is_ready == Some(true) {
            return;
        }
        self.is_ready = Some(is_ready);
        let node = &context.node;
        match is_ready {
            true => tracing::info!(node, ?interval, "ready"),
            false => tracing::info!(node, ?interval, "started, and not ready yet"),
        }
    }

    /// Says once that flanneld seems to run on this node, if a look has found a new route of its, and
    /// shows it for a while.
    pub(super) fn flanneld(&mut self, context: &Context, route: Option<String>) {
        let now = Instant::now();
        let is_over = |at: Instant| FLANNELD_SHOWN <= now.duration_since(at);
        let sentences = match route {
            Some(route) => {
                let sentence = format!(
                    "flanneld seems to run on this node too: its route {route} came at {}, while \
                     the service is in its place; keep flanneld from this node",
                    context.clock.now()
                );
                if self.flanneld_at.replace(now).is_none() {
                    tracing::warn!("{sentence}");
                }
                vec![sentence]
            }
            None if self.flanneld_at.is_some_and(is_over) => {
                self.flanneld_at = None;
                Vec::new()
            }
            None => return,
        };
        context.routing().notice("flanneld", sentences);
    }

    /// Says once for each link that a machine on it has announced itself as the router of pods, and
    /// shows it for a while.
    pub(super) fn routers(&mut self, context: &Context, removed: Vec<RemovedAdvertisement>) {
        let now = Instant::now();
        for RemovedAdvertisement { link, prefix } in removed {
            let sentence = format!(
                "on link {link}, a machine announces itself as the router of {prefix}, which is pods': \
                 what the kernel made of that was removed at {}",
                context.clock.now()
            );
            if self.routers.insert(link, (now, sentence.clone())).is_none() {
                tracing::warn!("{sentence}");
            }
        }
        self.routers.retain(|_, (at, _)| now.duration_since(*at) < ROUTER_SHOWN);
        let sentences = self.routers.values().map(|(_, sentence)| sentence.clone()).collect();
        context.routing().notice("router advertisements", sentences);
    }

    /// Says what a look has restored first, since another program had changed it.
    pub(super) fn restored(context: &Context, first: &Change) {
        context.counts.changes.put_back();
        match first {
            // That flanneld runs was reported.
            Change::RemoveForeign(..) => tracing::debug!(%first, "removed"),
            _ => tracing::warn!(%first, "put back what another program has changed"),
        }
    }
}
