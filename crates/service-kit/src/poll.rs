//! The descriptors that the loop waits for.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

/// How many events one wait returns; the next wait returns the rest.
const BATCH: usize = 64;

/// A set of descriptors, each registered with a number that the caller chose (`man 7 epoll`),
/// level-triggered. Copies are the same set.
#[derive(Debug, Clone)]
pub struct Poller {
    epoll: Arc<OwnedFd>,
}

/// What to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// Something to read, or the end.
    Read,
    /// Room to write, or the end.
    Write,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        match self {
            Interest::Read => epoll::EventFlags::IN | epoll::EventFlags::RDHUP,
            Interest::Write => epoll::EventFlags::OUT,
        }
    }
}

impl Poller {
    /// Creates an empty set.
    pub fn new() -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Poller { epoll: Arc::new(epoll) })
    }

    /// Adds a descriptor. Closing the descriptor removes it.
    pub fn add(&self, fd: impl AsFd, number: u64, interest: Interest) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(number), interest.flags())
    }

    /// Waits for something else of a descriptor.
    pub fn change(&self, fd: impl AsFd, number: u64, interest: Interest) -> Result<(), Errno> {
        epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(number), interest.flags())
    }

    /// Removes a descriptor.
    pub fn remove(&self, fd: impl AsFd) -> Result<(), Errno> {
        epoll::delete(&self.epoll, fd)
    }

    /// Waits until something is ready or the time is over; returns the numbers of what is ready.
    pub fn wait(&self, most: Option<Duration>) -> Result<Vec<u64>, Errno> {
        // Rounded up: waking a fraction too early would only cost another turn.
        let timeout = most.map(|most| {
            let millis = i64::try_from(most.as_millis().saturating_add(1)).unwrap_or(i64::MAX);
            Timespec { tv_sec: millis / 1000, tv_nsec: millis % 1000 * 1_000_000 }
        });
        let mut events: Vec<epoll::Event> = Vec::with_capacity(BATCH);
        match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) => Ok(events.iter().map(|event| event.data.u64()).collect()),
            Err(Errno::INTR) => Ok(Vec::new()),
            Err(errno) => Err(errno),
        }
    }
}
