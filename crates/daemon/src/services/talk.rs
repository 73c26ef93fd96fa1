//! A socket of one-line messages (`cni::line`): a task a connection, messages one after the other.

use std::sync::Arc;
use std::time::Duration;

use cni::line::MAX_MESSAGE;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use super::listen::Listener;

/// How many connections are open at once; further ones wait to be taken. A node that starts again starts all its pods at once.
const MAX_CONNECTIONS: usize = 1024;
/// How long a message may take to arrive, and an answer to leave; and how long a connection may be idle.
const TALK_TIME: Duration = Duration::from_secs(30);
/// The pause when no connection can be taken.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What is said to a line.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) text: Vec<u8>,
    /// Whether the connection may go on.
    pub(super) go_on: bool,
}

/// Who answers lines.
pub(super) trait Answers: Send + Sync + 'static {
    /// Answers a line; what is none is answered as well.
    fn answer(&self, line: Vec<u8>) -> impl Future<Output = Said> + Send;
}

/// Takes connections from now on.
pub(super) fn start<A: Answers>(answers: Arc<A>, listener: &Listener) -> std::io::Result<()> {
    let socket = UnixListener::from_std(listener.socket.try_clone()?)?;
    tokio::spawn(accept(answers, socket));
    Ok(())
}

async fn accept<A: Answers>(answers: Arc<A>, listener: UnixListener) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let answers = Arc::clone(&answers);
                tokio::spawn(async move {
                    if let Err(error) = talk(&*answers, stream).await {
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

async fn talk<A: Answers>(answers: &A, mut stream: UnixStream) -> std::io::Result<()> {
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
        let said = answers.answer(line).await;
        let write = tokio::time::timeout(TALK_TIME, to.write_all(&said.text));
        write.await.map_err(|_| std::io::ErrorKind::TimedOut)??;
        if !said.go_on {
            return Ok(());
        }
    }
}
