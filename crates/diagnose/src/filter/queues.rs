//! Queues in which packets wait for a program.

use crate::model::Namespace;

/// What comes of a packet that a rule lets wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QueueOutcome {
    /// A program judges, or it is not known whether there is one.
    Judged,
    /// No program reads the queue: the packet passes the base chain.
    Passes,
    /// No program reads the queue, or the one that does judges nothing: the packet is dropped, or
    /// waits.
    Dropped,
}

/// Says what comes of a packet for one of some queues (linux net/netfilter/nf_queue.c `nf_queue`). On
/// a sound node a program reads each of them and judges, or the rule says what to do without one.
pub(super) fn queued(namespace: &Namespace, [first, last]: [u16; 2], bypass: bool) -> QueueOutcome {
    let is_one = |queue: &&u16| (first..=last).contains(*queue);
    let Some(read) = &namespace.queues else { return QueueOutcome::Judged };
    let readers = read.iter().filter(is_one).count();
    let stuck = namespace.stuck_queues.iter().filter(is_one).count();
    // Each of several gets some of the packets.
    let is_each_read = usize::from(last.saturating_sub(first)) < readers;
    match (readers, bypass) {
        (0, true) => QueueOutcome::Passes,
        (0, false) => QueueOutcome::Dropped,
        _ if stuck == readers && (is_each_read || !bypass) => QueueOutcome::Dropped,
        _ => QueueOutcome::Judged,
    }
}
