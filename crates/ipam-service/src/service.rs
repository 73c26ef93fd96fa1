//! The answers to the plugin.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cluster_ipam::Node;
use cluster_ipam::network::Network;
use node_api::ipam::{Answer, Request};
use node_api::{Refusal, inbox};
use service_kit::line_server::Answers;
use tokio::sync::Semaphore;

/// How many requests that may have to wait for a server are worked on at once: the other threads
/// are for DEL, which waits for no server.
const MAX_WAITING: usize = 64;

#[derive(Debug)]
pub(super) struct Service {
    pub(super) node: Arc<Node>,
    /// The folder in which plugins leave messages while no daemon listens.
    inbox: PathBuf,
    waiting: Arc<Semaphore>,
}

impl Service {
    pub(super) fn new(node: Node, inbox: PathBuf) -> Self {
        let waiting = Arc::new(Semaphore::new(MAX_WAITING));
        Service { node: Arc::new(node), inbox, waiting }
    }

    /// Logs the node's notices.
    pub(super) fn tell(&self) {
        for notice in self.node.take_notices() {
            tracing::warn!("{notice}");
        }
    }

    /// Handles the messages that plugins left.
    pub(super) fn look_at_inbox(&self) -> bool {
        inbox::look(&self.inbox, |request| self.hear(request))
    }

    /// Handles a message that a plugin left; says whether it can be deleted.
    fn hear(&self, request: Request) -> bool {
        let Request::Release(owner) = request else {
            tracing::warn!(?request, "a plugin left a message other than a release");
            return true;
        };
        let done = self.node.release(&owner);
        if let Err(refusal) = &done {
            tracing::error!(%refusal, container_id = owner.container, "cannot free addresses");
        }
        done.is_ok()
    }
}

impl Answers for Service {
    type Request = Request;
    type Answer = Answer;

    async fn answer(&self, request: Request) -> Answer {
        let place = match &request {
            Request::Assign(_) | Request::Status(_) => {
                Arc::clone(&self.waiting).acquire_owned().await.ok()
            }
            _ => None,
        };
        let (node, inbox) = (Arc::clone(&self.node), self.inbox.clone());
        let worked = tokio::task::spawn_blocking(move || {
            let answer = answer(&node, &inbox, request);
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

fn answer(node: &Node, inbox: &Path, request: Request) -> Answer {
    let or_refused = |done: Result<(), Refusal>| done.map_or_else(Answer::Refused, |()| Answer::Ok);
    match request {
        Request::Assign(ask) => {
            let of = &ask.owner;
            // A DEL of the same container that found no daemon comes first.
            if let Some(name) = Request::Release(of.clone()).todo_name() {
                inbox::look_at(
                    inbox,
                    &name,
                    |left| matches!(left, Request::Release(owner) if node.release(&owner).is_ok()),
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
