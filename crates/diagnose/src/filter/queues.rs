//! Queues in which packets wait for a program.

use scene::Namespace;

/// What comes of a packet that a rule lets wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queued {
    /// A program judges, or it is not known whether there is one.
    Judged,
    /// No program reads the queue: the packet passes the base chain.
    Passes,
    /// No program reads the queue: the packet is dropped.
    Dropped,
}

/// Says what comes of a packet for one of some queues (linux net/netfilter/nf_queue.c `nf_queue`). On
/// a sound node a program reads each of them, or the rule says what to do without one.
pub(super) fn queued(namespace: &Namespace, [first, last]: [u16; 2], bypass: bool) -> Queued {
    let is_one = |queue: &u16| (first..=last).contains(queue);
    match &namespace.queues {
        Some(read) if read.iter().any(is_one) => Queued::Judged,
        Some(_) if bypass => Queued::Passes,
        Some(_) => Queued::Dropped,
        None => Queued::Judged,
    }
}
