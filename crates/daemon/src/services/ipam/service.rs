//! The answers to the plugin.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cluster_ipam::Node;
use cluster_ipam::network::Network;
use cluster_ipam::wire::{self, Answer, Refusal, Request};
use tokio::sync::Semaphore;

use super::super::inbox;
use super::super::line_server::{Answers, Said};

/// How many requests that may have to wait for a server are worked on at once: the other threads
/// are for DEL, which waits for no server.
const MAX_WAITING: usize = 64;

#[derive(Debug)]
pub(super) struct Service {
    pub(super) node: Arc<Node>,
    /// The folder in which plugins leave messages while no daemon listens.
    todo: PathBuf,
    waiting: Arc<Semaphore>,
}

impl Service {
    pub(super) fn new(node: Node, todo: PathBuf) -> Self {
        let waiting = Arc::new(Semaphore::new(MAX_WAITING));
        Service { node: Arc::new(node), todo, waiting }
    }

    /// Logs the node's notices.
    pub(super) fn tell(&self) {
        for notice in self.node.take_notices() {
            tracing::warn!("{notice}");
        }
    }

    /// Handles the messages that plugins left.
    pub(super) fn look_at_what_is_left(&self) {
        inbox::look(&self.todo, |path, text| self.hear(path, text));
    }

    /// Handles a message that a plugin left; says whether it can be deleted.
    fn hear(&self, path: &Path, text: &[u8]) -> bool {
        match wire::read_request(text) {
            Ok(Request::Release(owner)) => match self.node.release(&owner) {
                Ok(()) => true,
                Err(refusal) => {
                    tracing::error!(%refusal, container_id = owner.container, "cannot free addresses");
                    false
                }
            },
            Ok(_) => {
                tracing::warn!(path = %path.display(), "a plugin left what is not left");
                true
            }
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "a plugin left nonsense");
                true
            }
        }
    }

    async fn respond(&self, request: Request) -> Answer {
        let place = match &request {
            Request::Assign(_) | Request::Status(_) => {
                Arc::clone(&self.waiting).acquire_owned().await.ok()
            }
            _ => None,
        };
        let (node, todo) = (Arc::clone(&self.node), self.todo.clone());
        let worked = tokio::task::spawn_blocking(move || {
            let answer = answer(&node, &todo, request);
            drop(place);
            answer
        });
        worked.await.unwrap_or_else(|_| {
            Answer::Refused(Refusal::new(
                cni::code::INTERNAL,
                "netwrightd ended the call by a bug; see its log",
            ))
        })
    }
}

fn answer(node: &Node, todo: &Path, request: Request) -> Answer {
    let or_refused = |done: Result<(), Refusal>| done.map_or_else(Answer::Refused, |()| Answer::Ok);
    match request {
        Request::Assign(ask) => {
            let of = &ask.owner;
            // A DEL of the same container that found no daemon comes first.
            if let Some(name) = Request::Release(of.clone()).todo_name() {
                inbox::look_at(
                    todo,
                    &name,
                    |_, text| matches!(wire::read_request(text), Ok(Request::Release(owner)) if node.release(&owner).is_ok()),
                );
            }
            let span = tracing::info_span!(
                "assign",
                network = ask.network.network,
                container_id = of.container,
                ifname = of.ifname
            );
            let _entered = span.enter();
            match node.assign(&ask) {
                Ok(assigned) => {
                    tracing::info!(addresses = ?assigned.iter().map(|one| one.address.to_string()).collect::<Vec<_>>(), "assigned");
                    Answer::Assigned(assigned)
                }
                Err(refusal) => {
                    tracing::warn!(%refusal, details = refusal.details, "refused");
                    Answer::Refused(refusal)
                }
            }
        }
        Request::Release(owner) => {
            let done = node.release(&owner);
            tracing::info!(
                container_id = owner.container,
                ifname = owner.ifname,
                ok = done.is_ok(),
                "released"
            );
            or_refused(done)
        }
        Request::Held(ask) => match node.held(&ask) {
            Ok(assigned) => Answer::Assigned(assigned),
            Err(refusal) => Answer::Refused(refusal),
        },
        Request::Collect(ask) => or_refused(node.collect(&ask)),
        Request::Status(ask) => match Network::new(ask.network) {
            Ok(network) => or_refused(node.status(&network)),
            Err(error) => {
                Answer::Refused(Refusal::new(cni::code::INVALID_CONFIG, error.to_string()))
            }
        },
    }
}

impl Answers for Service {
    async fn answer(&self, line: Vec<u8>) -> Said {
        let (answer, go_on) = match wire::read_request(&line) {
            Ok(request) => (self.respond(request).await, true),
            Err(error) => {
                tracing::warn!(%error, "refused a message");
                let text = format!("netwrightd does not understand the plugin: {error}");
                (Answer::Refused(Refusal::new(cni::code::INTERNAL, text)), false)
            }
        };
        Said { text: wire::write_answer(&answer).unwrap_or_default(), go_on }
    }
}
