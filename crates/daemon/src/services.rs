//! What the daemon does, one module for each service.

mod arguments;
pub(crate) mod collect;
pub(crate) mod dhcp;
pub(crate) mod docker;
pub(crate) mod ipam;
mod kubernetes;
mod line_server;
mod listen;
pub(crate) mod multinet;
mod ovs;
mod ready;
pub(crate) mod repair;
mod runtimes;
mod setup;

/// Why a service could not start or continue.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Text to print to standard output.
    Help,
    /// The flags are wrong.
    Usage(String),
    /// Something failed.
    Failed(String),
}
