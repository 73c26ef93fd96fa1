//! A socket of one-line messages ([`node_api::line`]): one task per connection, one message after
//! the other.

use std::collections::BTreeMap;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use node_api::line::MAX_MESSAGE;
use node_api::{Message, Refusal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};

use crate::folders::Folders;
use crate::listen::{ACCEPT_RETRY_DELAY, Listener};

/// How many connections are open at once: a node that restarts starts all its pods at once. One
/// more takes the place of the connection that has been silent longest; where all are being
/// answered, it waits to be accepted.
const MAX_CONNECTIONS: usize = 1024;
/// The timeout for a message to arrive and for an answer to be sent; also how long a connection may
/// be idle.
const TALK_TIME: Duration = Duration::from_secs(30);
/// The pause before what plugins left, and what could not be done, is tried again.
const INBOX_RETRY: Duration = Duration::from_millis(500);
/// The longest pause between looks at what plugins left: a folder that another program replaced is
/// found that late.
const INBOX_INTERVAL: Duration = Duration::from_secs(60);

/// What answers requests.
pub trait Answers: Send + Sync + 'static {
    /// What is asked.
    type Request: Message + Send;
    /// What is answered.
    type Answer: Message + From<Refusal> + Send;

    /// Answers a request.
    fn answer(&self, request: Self::Request) -> impl Future<Output = Self::Answer> + Send;
}

/// Accepts connections from now on.
pub fn start<A: Answers>(answers: Arc<A>, listener: &Listener) -> std::io::Result<()> {
    let socket = UnixListener::from_std(listener.socket.try_clone()?)?;
    tokio::spawn(accept(answers, socket));
    Ok(())
}

/// Looks for ever at what plugins left in a folder, on a thread of its own, as soon as something is
/// there. `look` says whether nothing is left.
pub fn look_at_inbox(
    folder: &Path,
    look: impl Fn() -> bool + Send + 'static,
) -> std::io::Result<()> {
    let folders = Folders::watching([folder].into_iter());
    let folders = folders.inspect_err(|error| {
        tracing::warn!(%error, "what plugins leave is looked for again and again");
    });
    let runtime = Handle::current();
    let thread = std::thread::Builder::new().name("inbox".to_owned());
    let work = move || {
        let _entered = runtime.enter();
        let mut is_empty = true;
        loop {
            match &folders {
                Ok(folders) => {
                    folders.watch();
                    let pause = if is_empty { INBOX_INTERVAL } else { INBOX_RETRY };
                    let pause = Timespec::try_from(pause).ok();
                    // A signal or a failure only makes the look come earlier.
                    let mut changed = [PollFd::new(folders.descriptor(), PollFlags::IN)];
                    let _ = poll(&mut changed, pause.as_ref());
                    folders.heard();
                }
                Err(_) => std::thread::sleep(INBOX_RETRY),
            }
            is_empty = look();
        }
    };
    thread.spawn(work).map(drop)
}

/// Connections that have sent nothing yet, or nothing since their last answer.
#[derive(Debug, Default)]
struct SilentConnections {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    count: u64,
    /// The connection that has been silent longest is first.
    all: BTreeMap<u64, Arc<Notify>>,
    /// The next connection that falls silent gives its place to a waiting one.
    wanted: bool,
}

impl SilentConnections {
    /// Counts a connection as silent until the returned value is dropped.
    fn note(self: &Arc<Self>) -> SilentConnection {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.count += 1;
        let (number, end) = (inner.count, Arc::new(Notify::new()));
        if std::mem::take(&mut inner.wanted) {
            end.notify_one();
        } else {
            inner.all.insert(number, Arc::clone(&end));
        }
        SilentConnection { of: Arc::clone(self), number, end }
    }

    /// Ends the connection that has been silent longest, or the next one that falls silent.
    fn end_one(&self) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        match inner.all.pop_first() {
            Some((_, end)) => end.notify_one(),
            None => inner.wanted = true,
        }
    }
}

/// One of them, as long as it is silent.
#[derive(Debug)]
struct SilentConnection {
    of: Arc<SilentConnections>,
    number: u64,
    end: Arc<Notify>,
}

impl Drop for SilentConnection {
    fn drop(&mut self) {
        self.of.inner.lock().unwrap_or_else(PoisonError::into_inner).all.remove(&self.number);
    }
}

async fn accept<A: Answers>(answers: Arc<A>, listener: UnixListener) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let silent = Arc::new(SilentConnections::default());
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
                tracing::error!(%error, "cannot take a connection");
                silent.end_one();
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

async fn talk<A: Answers>(
    answers: &A,
    mut waiting: SilentConnection,
    mut stream: UnixStream,
) -> std::io::Result<()> {
    // The socket's mode says the same; its folder's mode may have been widened.
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
            // Another connection needs the place.
            Either::Right(_) => return Ok(()),
        };
        let silent = Arc::clone(&waiting.of);
        drop(waiting);
        if read == 0 {
            return Ok(());
        }
        let request = A::Request::from_line(&line);
        drop(line);
        let is_understood = request.is_ok();
        let answer = match request {
            Ok(request) => answers.answer(request).await,
            Err(error) => {
                tracing::warn!(%error, "refused a message");
                let text = format!("netwrightd does not understand the plugin: {error}");
                Refusal::new(cni::code::INTERNAL, text).into()
            }
        };
        let text = answer.to_line().unwrap_or_else(|error| {
            let text = format!("the answer is too long: {error}");
            let refused = A::Answer::from(Refusal::new(cni::code::INVALID_CONFIG, text));
            refused.to_line().unwrap_or_default()
        });
        let write = tokio::time::timeout(TALK_TIME, to.write_all(&text));
        write.await.map_err(|_| std::io::ErrorKind::TimedOut)??;
        if !is_understood {
            return Ok(());
        }
        waiting = silent.note();
    }
}
