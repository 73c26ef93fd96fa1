//! A bell: how a signal or another thread wakes a loop that waits for descriptors.
//!
//! A socket is readable for ever once nobody holds its other end, and a loop that waits for it then
//! never sleeps. So a bell holds both of its ends as long as anybody has it, whoever rings it and
//! whether anybody does. No other module creates a pair of sockets: clippy refuses it.

use std::ffi::c_int;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// A bell; its clones are the same bell.
#[derive(Debug, Clone)]
pub struct Bell(Arc<Ends>);

#[derive(Debug)]
struct Ends {
    /// Readable since the bell was rung, until the loop has heard it.
    heard: UnixStream,
    ringer: UnixStream,
}

impl Bell {
    /// Creates a bell that nobody has rung.
    pub fn new() -> io::Result<Self> {
        #[expect(clippy::disallowed_methods, reason = "both ends live as long as the bell")]
        let (heard, ringer) = UnixStream::pair()?;
        heard.set_nonblocking(true)?;
        ringer.set_nonblocking(true)?;
        Ok(Bell(Arc::new(Ends { heard, ringer })))
    }

    /// Creates a bell that each of these signals rings.
    pub fn of_signals(signals: &[c_int]) -> io::Result<Self> {
        let bell = Bell::new()?;
        for signal in signals {
            bell.ring_at(*signal)?;
        }
        Ok(bell)
    }

    /// Has a signal ring it from now on.
    pub fn ring_at(&self, signal: c_int) -> io::Result<()> {
        signal_hook::low_level::pipe::register(signal, self.0.ringer.try_clone()?).map(drop)
    }

    /// Waits until it is rung, without blocking the asynchronous thread.
    pub async fn rung(&self) -> io::Result<()> {
        tokio::net::UnixStream::from_std(self.0.heard.try_clone()?)?.readable().await
    }

    /// Rings it.
    pub fn ring(&self) {
        // If the socket is full, it is readable already: the loop has not heard it yet.
        let _ = (&self.0.ringer).write(&[0]);
    }

    /// Says whether it was rung since the last call.
    pub fn heard(&self) -> bool {
        let mut octets = [0; 64];
        let mut rung = false;
        loop {
            let read = (&self.0.heard).read(&mut octets).unwrap_or_default();
            rung |= 0 < read;
            if read < octets.len() {
                return rung;
            }
        }
    }
}

/// What becomes readable when it is rung.
impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.heard.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::{Interest, Poller};
    use std::time::Duration;

    /// The watch of Open vSwitch gave each database one end, and dropped it where there was none:
    /// its service never slept.
    #[test]
    fn a_bell_that_nobody_can_ring_any_more_is_silent() {
        let bell = Bell::new().unwrap();
        let poller = Poller::new().unwrap();
        poller.add(&bell, 7, Interest::Read).unwrap();
        let is_rung = || !poller.wait(Some(Duration::ZERO)).unwrap().is_empty();
        let other = bell.clone();
        std::thread::spawn(move || drop(other)).join().unwrap();
        assert!(!is_rung() && !bell.heard());
        (0..200).for_each(|_| bell.clone().ring());
        assert!(is_rung() && bell.heard());
        assert!(!is_rung() && !bell.heard());
    }
}
