//! What every part of the service uses: the configuration, the state of routing, the clock, and what
//! others learn of the service.

use std::time::{Duration, Instant};

use routing::cluster::News;
use routing::settings::OwnNode;
use routing::{Routing, Settings, Time, Todo};
use service_kit::clock;
use service_kit::health::Health;
use service_kit::process::Process;
use service_kit::stop::{Stop, failed};

use super::answers::SharedRouting;
use super::counts::{self, Counts};

/// What every part uses. None of it says what is to be done.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) settings: Settings,
    /// This node's name.
    pub(super) node: String,
    pub(super) shared: SharedRouting,
    pub(super) clock: Clock,
    pub(super) health: Health,
    pub(super) counts: Counts,
}

impl Context {
    pub(super) fn new(settings: Settings, node: String, process: &Process) -> Result<Self, Stop> {
        let shared = SharedRouting::new(Routing::new(settings.clone(), &node)).map_err(failed)?;
        let counts = Counts::default();
        let (of_nodes, counted) = (shared.clone(), counts.clone());
        process.health.counts(move || counts::figures(&of_nodes, &counted));
        let (clock, health) = (Clock::start(), process.health.clone());
        Ok(Context { settings, node, shared, clock, health, counts })
    }

    /// Returns the state of routing. It is held for decisions only.
    pub(super) fn routing(&self) -> std::sync::MutexGuard<'_, Routing> {
        self.shared.routing()
    }

    /// Returns what this node is, as far as it is known.
    pub(super) fn own(&self) -> OwnNode {
        self.routing().cluster().own().clone()
    }

    /// Passes to routing what a source says of nodes.
    pub(super) fn event(&self, event: routing::Event) -> Todo {
        self.routing().event(event, self.clock.now())
    }

    /// Takes why nothing can be programmed on this node. What is programmed stays.
    pub(super) fn wait_for(&self, why: &str) {
        let mut routing = self.routing();
        if routing.waits_for() != Some(why) {
            tracing::warn!(why, "nothing is programmed for now; what is there stays");
            routing.wait(why);
        }
    }
}

/// Logs something that happened.
pub(super) fn log(news: &News) {
    let peer = news.node.as_deref();
    match news.warning {
        true => tracing::warn!(peer, "{}", news.text),
        false => tracing::info!(peer, "{}", news.text),
    }
}

/// Time as routing reckons it: the wall clock at the start, and what has passed since.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    wall: Time,
    start: Instant,
}

impl Clock {
    fn start() -> Self {
        let wall = Duration::from_millis(clock::wall_ms());
        Clock { wall: Time::default().after(wall), start: Instant::now() }
    }

    pub(super) fn now(&self) -> Time {
        self.wall.after(self.start.elapsed())
    }
}
