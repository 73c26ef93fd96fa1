//! nftables sockets that are closed only when closing costs nothing.
//!
//! After a transaction that deletes, the kernel destroys the deleted objects in the background.
//! Closing *any* nftables socket before that is done waits for it: 10 to 20 ms, holding the lock
//! that every transaction needs (linux net/netfilter/nf_tables_api.c `nft_rcv_nl_event`). A chain
//! of plugins in one process would wait once for each plugin. So a process that has deleted
//! something keeps its sockets for a moment, and a process that ends leaves them to another
//! ([`kernel::linger`]).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use kernel::linger;
use kernel::netlink::NetlinkError;
use kernel::netns::Netns;
use kernel::nft::{Batch, NftError, NftSocket, Operation};

/// How long a socket is kept: several times what the kernel needs to destroy things.
const CLOSE_AFTER: Duration = Duration::from_millis(100);
/// The maximum number of kept sockets. Further ones are closed by the caller, which slows down the
/// process that makes so many.
const KEPT_MAX: usize = 64;

/// Whether this process has deleted anything.
static DELETED: AtomicBool = AtomicBool::new(false);
/// The sockets waiting to be closed; `None` while no thread looks after them.
static KEPT: Mutex<Option<Vec<NftSocket>>> = Mutex::new(None);

/// An nftables socket whose closing is delayed if need be.
#[derive(Debug)]
pub(crate) struct LateSocket {
    socket: Option<NftSocket>,
}

impl LateSocket {
    pub(crate) fn open() -> Result<Self, NetlinkError> {
        NftSocket::open().map(|socket| LateSocket { socket: Some(socket) })
    }

    pub(crate) fn open_in(netns: &Netns) -> Result<Self, NetlinkError> {
        NftSocket::open_in(netns).map(|socket| LateSocket { socket: Some(socket) })
    }

    /// Commits a transaction.
    pub(crate) fn commit(&mut self, batch: &Batch) -> Result<(), NftError> {
        if batch.operations().iter().any(deletes) {
            DELETED.store(true, Ordering::Relaxed);
        }
        self.ask().commit(batch)
    }

    /// Returns the socket, for queries.
    pub(crate) fn ask(&mut self) -> &mut NftSocket {
        self.socket.as_mut().expect("the socket is there until it is dropped")
    }
}

impl Drop for LateSocket {
    fn drop(&mut self) {
        let Some(socket) = self.socket.take() else { return };
        if !DELETED.load(Ordering::Relaxed) {
            return;
        }
        let Err(socket) = linger::leave_open(socket) else { return };
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        match kept.as_mut() {
            Some(sockets) if sockets.len() < KEPT_MAX => sockets.push(socket),
            Some(_) => {}
            None => {
                let closer = thread::Builder::new().name("nft-close".to_owned()).spawn(close_all);
                if closer.is_ok() {
                    *kept = Some(vec![socket]);
                }
            }
        }
    }
}

/// Closes the kept sockets until none is left.
fn close_all() {
    loop {
        thread::sleep(CLOSE_AFTER);
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        match kept.take() {
            Some(sockets) if !sockets.is_empty() => {
                *kept = Some(Vec::new());
                // A thread that adds a socket meanwhile does not wait for this one.
                drop(kept);
                drop(sockets);
            }
            _ => return,
        }
    }
}

fn deletes(operation: &Operation) -> bool {
    !matches!(
        operation,
        Operation::AddTable { .. }
            | Operation::AddChain { .. }
            | Operation::AddSet { .. }
            | Operation::AddElements { .. }
            | Operation::AddRule { .. }
    )
}
