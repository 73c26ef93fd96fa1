//! Tests whether the kernel supports something, without disturbing anything.

use std::thread;

use cni::code;
use cni_plugin::codes;
use kernel::netns::unshare_net;
use kernel::route::RouteSocket;

use super::failure::Failure;

/// Runs `work` with a socket in a namespace of its own, which is deleted afterwards with everything
/// in it. For STATUS.
///
/// # Errors
/// Any failure, as "cannot serve ADD" (code 50).
pub fn in_fresh_netns(
    work: impl FnOnce(&mut RouteSocket) -> Result<(), Failure> + Send,
) -> Result<(), Failure> {
    let inside = || {
        unshare_net().map_err(|error| Failure::from_chain(codes::KERNEL, &error))?;
        let mut socket = RouteSocket::open()?;
        work(&mut socket)
    };
    let tried = thread::scope(|scope| {
        let thread = thread::Builder::new().name("trial".to_owned());
        let thread = thread
            .spawn_scoped(scope, inside)
            .map_err(|error| Failure::from_chain(codes::STATE, &error))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    tried.map_err(|error| error.with_code(code::PLUGIN_NOT_AVAILABLE))
}
