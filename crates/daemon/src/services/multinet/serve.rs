//! The socket: a task a connection, messages one after the other.

use std::sync::Arc;
use std::time::Duration;

use npwg::wire::{self, Answer, MAX_MESSAGE, Refusal};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use super::service::Service;

/// How many connections are open at once; further ones wait to be taken. A node that starts again starts all its pods at once.
const MAX_CONNECTIONS: usize = 1024;
/// How long a message may take to arrive, and an answer to leave; and how long a connection may be idle.
const TALK_TIME: Duration = Duration::from_secs(30);
/// The pause when no connection can be taken.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Takes connections, for ever.
pub(super) async fn accept(service: Arc<Service>, listener: UnixListener) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let service = Arc::clone(&service);
                tokio::spawn(async move {
                    if let Err(error) = talk(&service, stream).await {
                        tracing::debug!(%error, "a connection ended early");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                // Out of descriptors or memory: others may end meanwhile.
                tracing::error!(%error, "cannot take a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn talk(service: &Service, mut stream: UnixStream) -> std::io::Result<()> {
    // The socket's mode says so as well; a folder that somebody opened up does not.
    let peer = stream.peer_cred()?.uid();
    if peer != 0 && peer != rustix::process::geteuid().as_raw() {
        tracing::warn!(peer, "refused a user that is not root");
        return Ok(());
    }
    let (from, mut to) = stream.split();
    let mut from = BufReader::new(from);
    loop {
        let mut line = Vec::new();
        let most = u64::try_from(MAX_MESSAGE).unwrap_or(u64::MAX) + 1;
        let mut bounded = (&mut from).take(most);
        let read = tokio::time::timeout(TALK_TIME, bounded.read_until(b'\n', &mut line));
        if read.await.map_err(|_| std::io::ErrorKind::TimedOut)?? == 0 {
            return Ok(());
        }
        let (answer, go_on) = match wire::read_request(&line) {
            Ok(request) => (service.answer(request).await, true),
            Err(error) => {
                tracing::warn!(%error, "refused a message");
                let text = format!("netwrightd does not understand the plugin: {error}");
                (Answer::Refused(Refusal::new(cni::code::INTERNAL, text)), false)
            }
        };
        drop(line);
        let text = wire::write_answer(&answer).unwrap_or_else(|error| {
            let text = format!("the pod's networks do not fit into an answer: {error}");
            let refused = Answer::Refused(Refusal::new(cni::code::INVALID_CONFIG, text));
            wire::write_answer(&refused).unwrap_or_default()
        });
        let write = tokio::time::timeout(TALK_TIME, to.write_all(&text));
        write.await.map_err(|_| std::io::ErrorKind::TimedOut)??;
        if !go_on {
            return Ok(());
        }
    }
}
