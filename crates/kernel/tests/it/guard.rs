//! Namespaces for tests, and Debian's programs in them.

use std::process::Command;
use std::thread;

use kernel::netns::{Netns, unshare_net};
use kernel::route::{Change, LinkKind, LinkSet, NewLink, RouteSocket, VethPeer};
use serde_json::Value;

/// Runs a test on a separate thread in a fresh namespace.
pub(crate) fn in_netns(test: impl FnOnce() + Send + 'static) {
    let handle = thread::spawn(|| {
        unshare_net().unwrap();
        test();
    });
    if let Err(panic) = handle.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Another fresh namespace, which lives as long as the value.
pub(crate) fn fresh_netns() -> Netns {
    let make = || {
        unshare_net().unwrap();
        Netns::current().unwrap()
    };
    thread::spawn(make).join().unwrap()
}

/// Runs a shell command in the thread's namespace; it must succeed.
pub(crate) fn sh(command: &str) -> String {
    let (status, output, errors) = try_sh(command);
    assert_eq!(status, Some(0), "{command}: {errors}");
    output
}

/// Runs a shell command in the thread's namespace.
#[expect(clippy::disallowed_methods, reason = "the second opinion is Debian's programs")]
pub(crate) fn try_sh(command: &str) -> (Option<i32>, String, String) {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Runs a shell command that prints JSON.
pub(crate) fn json(command: &str) -> Value {
    let output = sh(command);
    serde_json::from_str(&output).unwrap_or_else(|error| panic!("{command}: {error}: {output}"))
}

/// Prints that a test cannot run here.
pub(crate) fn skip(name: &str, reason: &str) {
    eprintln!("SKIP {name}: {reason}");
}

/// Makes a veth pair, one end up here, the other in another namespace; returns both ifindexes.
pub(crate) fn veth_to(route: &mut RouteSocket, name: &str, netns: &Netns) -> (u32, u32) {
    let peer = VethPeer { netns: Some(netns.clone()), ..VethPeer::new("eth0") };
    let link = NewLink { up: true, ..NewLink::new(name, LinkKind::Veth(peer)) };
    let made = route.create_link(&link).unwrap();
    (made.index, made.peer_index.unwrap())
}

/// Sets the loopback link up.
pub(crate) fn lo_up(route: &mut RouteSocket) {
    let lo = route.link_by_name("lo").unwrap().unwrap();
    let set = LinkSet::default().up(true);
    route.apply(&[Change::SetLink { ifindex: lo.index, set }]).unwrap();
}
