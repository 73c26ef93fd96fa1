//! The result of receiving a packet.

/// The result of receiving a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiveOutcome {
    /// It was the expected reply.
    Taken,
    /// It changed nothing.
    Ignored(IgnoreReason),
}

impl From<Result<(), IgnoreReason>> for ReceiveOutcome {
    fn from(result: Result<(), IgnoreReason>) -> Self {
        match result {
            Ok(()) => ReceiveOutcome::Taken,
            Err(ignored) => ReceiveOutcome::Ignored(ignored),
        }
    }
}

/// Why a packet changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IgnoreReason {
    /// It is not a message of the protocol, or a damaged one.
    #[error("not a well-formed DHCP message")]
    Malformed,
    /// It comes from a client, or is of a kind that servers do not send unasked.
    #[error("not a reply")]
    NotAReply,
    /// It is for another hardware address or client identifier.
    #[error("for another client")]
    OtherClient,
    /// No request was sent, or a different one.
    #[error("not an answer to what was asked last")]
    NotAwaited,
    /// It comes from a server other than the one that was asked.
    #[error("from another server")]
    OtherServer,
    /// It lacks a required option, or has an invalid one.
    #[error("grants nothing that can be used")]
    Unusable,
}
