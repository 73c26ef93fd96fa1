//! What the daemon does, a module each.

mod arguments;
pub(crate) mod collect;
pub(crate) mod dhcp;
pub(crate) mod docker;
pub(crate) mod ipam;
mod kubernetes;
mod left;
mod listen;
pub(crate) mod multinet;
mod node;
mod ovs;
mod ready;
pub(crate) mod repair;
mod start;
mod talk;

/// A service could not start, or not go on.
#[derive(Debug)]
pub(crate) enum Stop {
    /// What to print, to standard output.
    Help,
    /// The flags are wrong.
    Usage(String),
    /// Something failed.
    Failed(String),
}
