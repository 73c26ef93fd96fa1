//! nftables sockets that are closed only when closing costs nothing.
//!
//! After a transaction that deletes, the kernel destroys the deleted objects in the background.
//! Closing *any* nftables socket before that is done waits for it: 10 to 20 ms, holding the lock
//! that every transaction needs (linux net/netfilter/nf_tables_api.c `nft_rcv_nl_event`). A chain
//! of plugins in one process would wait once for each plugin. So a process that has deleted
//! something keeps its sockets for a moment, and a process that ends leaves them to another
//! ([`kernel::linger`]).
//!
//! It does not matter which process has deleted. Where others do it all the time
//! ([`others_delete`]), a process that ends with its call also opens only one socket, and uses it
//! again and again: whoever closes a socket then holds up the transactions of all others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use kernel::linger;
use kernel::netns::{Netns, NetnsId};
use kernel::nft::{Batch, NftError, NftSocket, Operation};

use crate::error::FirewallError;

/// How long a socket is kept: several times what the kernel needs to destroy things.
const CLOSE_AFTER: Duration = Duration::from_millis(100);
/// The maximum number of kept sockets. Further ones are closed by the caller, which slows down the
/// process that makes so many.
const KEPT_MAX: usize = 64;

/// Whether this process has deleted anything.
static DELETED: AtomicBool = AtomicBool::new(false);
/// Whether others delete while this process works.
static OTHERS_DELETE: AtomicBool = AtomicBool::new(false);
/// The socket to use again, and the network namespace that it was opened in. The socket keeps the
/// namespace, so no other one gets its number.
static IDLE: Mutex<Option<(NetnsId, NftSocket)>> = Mutex::new(None);
/// The sockets waiting to be closed; `None` while no thread looks after them.
static KEPT: Mutex<Option<Vec<NftSocket>>> = Mutex::new(None);

/// Declares that other processes delete from the packet filter while this one works, as the daemon
/// of network policy does for each attachment. From then on, if this process ends with its call, it
/// uses one socket, and leaves that to a helper even if it deletes nothing.
pub fn others_delete() {
    OTHERS_DELETE.store(true, Ordering::Relaxed);
}

/// An nftables socket whose closing is delayed if need be.
#[derive(Debug)]
pub(crate) struct LateSocket {
    socket: Option<NftSocket>,
    /// Where it was opened, if it is to be used again there.
    netns: Option<NetnsId>,
}

impl LateSocket {
    pub(crate) fn open() -> Result<Self, FirewallError> {
        let is_again = OTHERS_DELETE.load(Ordering::Relaxed) && linger::stays_open();
        // Without procfs each socket is used once.
        let netns = if is_again { Netns::current_id().ok() } else { None };
        if let Some((_, socket)) = idle(netns) {
            return Ok(LateSocket { socket: Some(socket), netns });
        }
        let socket = NftSocket::open().map_err(FirewallError::unopened)?;
        Ok(LateSocket { socket: Some(socket), netns })
    }

    pub(crate) fn open_in(netns: &Netns) -> Result<Self, FirewallError> {
        let socket = NftSocket::open_in(netns).map_err(FirewallError::unopened)?;
        Ok(LateSocket { socket: Some(socket), netns: None })
    }

    /// Logs a transaction, and commits it.
    pub(crate) fn commit(&mut self, batch: &Batch) -> Result<(), NftError> {
        for operation in batch.operations() {
            tracing::debug!(%operation, "nftables");
        }
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
        if let Some(netns) = self.netns {
            let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
            let other = idle.replace((netns, socket));
            drop(other.map(|(_, other)| linger::leave_open(other)));
            return;
        }
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

/// Takes the socket to use again in a network namespace, if there is one.
fn idle(netns: Option<NetnsId>) -> Option<(NetnsId, NftSocket)> {
    let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
    idle.take_if(|(of, _)| Some(*of) == netns)
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

#[cfg(test)]
mod tests {
    use kernel::nft::{Family, TableRef};
    use testkit::{Lab, Place as _};

    use super::*;

    #[test]
    fn a_socket_is_used_again_where_others_delete() {
        testkit::require!("root");
        let lab = Lab::new("nft-again");
        let (own, container) = (TableRef::new(Family::Inet, "own"), lab.container("c1"));
        lab.sh("nft add table inet own");
        let look = || {
            let mut socket = LateSocket::open().unwrap();
            let is_there = socket.ask().get_table(&own).unwrap().is_some();
            (is_there, socket.ask().port().unwrap())
        };
        others_delete();
        // A process that goes on opens one each time.
        lab.enter(look);
        assert!(IDLE.lock().unwrap().is_none());
        linger::by_process();
        let (is_there, port) = lab.enter(look);
        assert!(is_there);
        assert_eq!(lab.enter(look), (true, port));
        // It does not show another network namespace.
        assert!(!container.enter(look).0);
        assert!(lab.enter(look).0);
    }
}
