//! Tests whether the kernel supports something, without disturbing anything.

use std::thread;

use cni::code;
use cni_plugin::codes;
use kernel::netns::unshare_net;
use kernel::route::{LinkKind, NewLink, RouteSocket};

use super::failure::Failure;

/// A link that no namespace has: the kernel gives such an index to none.
const NO_LINK: u32 = i32::MAX.unsigned_abs();

/// Refuses a kind of links that the kernel does not have. `config` is the kernel's option for it.
///
/// # Errors
/// Code 50, with the kernel's words.
pub fn require_kind(plugin: &str, kind: LinkKind, config: &str) -> Result<(), Failure> {
    let on_parent = matches!(kind, LinkKind::Macvlan(_) | LinkKind::Ipvlan(_) | LinkKind::Vlan(_));
    // The kernel looks for the kind before it looks for the parent.
    let link = NewLink { parent: on_parent.then_some(NO_LINK), ..NewLink::new("trial", kind) };
    in_fresh_netns(|socket| match socket.create_link(&link) {
        Err(error) if !on_parent || error.is_unsupported() => Err(Failure::from(error)
            .context(format_args!("failed to create {plugin}"))
            .with_details(format!("the kernel needs {config}"))),
        _ => Ok(()),
    })
}

/// Returns why the kernel cannot filter the frames of bridges as our table does, if it cannot. Where no
/// namespace can be made for the trial, nothing speaks against it.
pub fn obstacle_to_filtering_frames() -> Option<String> {
    let mut obstacle = None;
    let _ = in_fresh_netns(|_| {
        obstacle = firewall::try_frames().err();
        Ok(())
    });
    let told = Failure::from(obstacle?);
    let details = told.details();
    Some(format!("this kernel cannot filter the frames of bridges: {} ({details})", told.message()))
}

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
