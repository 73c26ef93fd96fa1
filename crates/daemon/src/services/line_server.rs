//! A socket of one-line messages (`cni::line`): a task a connection, messages one after the other.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cni::line::MAX_MESSAGE;
use futures_util::future::{Either, select};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, Semaphore};

use super::listen::Listener;

/// How many connections are open at once: a node that starts again starts all its pods at once. One
/// more takes the place of the one that has said nothing for longest; where all are being answered,
/// it waits to be taken.
const MAX_CONNECTIONS: usize = 1024;
/// How long a message may take to arrive, and an answer to leave; and how long a connection may be idle.
const TALK_TIME: Duration = Duration::from_secs(30);
/// The pause when no connection can be taken.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

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

/// Connections that have said nothing yet, or nothing since their last answer.
#[derive(Debug, Default)]
struct Silent {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    count: u64,
    /// The one that is silent for longest is first.
    all: BTreeMap<u64, Arc<Notify>>,
    /// The next one that is silent gives its place to one that waits.
    wanted: bool,
}

impl Silent {
    /// Notes that a connection is silent from now on: until what is returned is dropped.
    fn note(self: &Arc<Self>) -> SilentOne {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.count += 1;
        let (number, end) = (inner.count, Arc::new(Notify::new()));
        if std::mem::take(&mut inner.wanted) {
            end.notify_one();
        } else {
            inner.all.insert(number, Arc::clone(&end));
        }
        SilentOne { of: Arc::clone(self), number, end }
    }

    /// Ends the one that is silent for longest, or the next one that is.
    fn end_one(&self) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        match inner.all.pop_first() {
            Some((_, end)) => end.notify_one(),
            None => inner.wanted = true,
        }
    }
}

/// A connection that is silent.
#[derive(Debug)]
struct SilentOne {
    of: Arc<Silent>,
    number: u64,
    end: Arc<Notify>,
}

impl Drop for SilentOne {
    fn drop(&mut self) {
        self.of.inner.lock().unwrap_or_else(PoisonError::into_inner).all.remove(&self.number);
    }
}

async fn accept<A: Answers>(answers: Arc<A>, listener: UnixListener) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let silent = Arc::new(Silent::default());
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if places.available_permits() == 0 {
                    silent.end_one();
                }
                let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
                let (answers, waiting) = (Arc::clone(&answers), silent.note());
                tokio::spawn(async move {
                    if let Err(error) = talk(&*answers, waiting, stream).await {
                        tracing::debug!(%error, "a connection ended early");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                // Out of descriptors or memory: others may end meanwhile.
                tracing::error!(%error, "cannot take a connection");
                silent.end_one();
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

async fn talk<A: Answers>(
    answers: &A,
    mut waiting: SilentOne,
    mut stream: UnixStream,
) -> std::io::Result<()> {
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
        let read = pin!(tokio::time::timeout(TALK_TIME, bounded.read_until(b'\n', &mut line)));
        let read = match select(read, pin!(waiting.end.notified())).await {
            Either::Left((read, _)) => read.map_err(|_| std::io::ErrorKind::TimedOut)??,
            // Another one needs the place.
            Either::Right(_) => return Ok(()),
        };
        let silent = Arc::clone(&waiting.of);
        drop(waiting);
        if read == 0 {
            return Ok(());
        }
        let said = answers.answer(line).await;
        let write = tokio::time::timeout(TALK_TIME, to.write_all(&said.text));
        write.await.map_err(|_| std::io::ErrorKind::TimedOut)??;
        if !said.go_on {
            return Ok(());
        }
        waiting = silent.note();
    }
}
