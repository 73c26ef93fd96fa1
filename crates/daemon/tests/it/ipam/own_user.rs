//! The daemon runs as a user of its own, with the files of a daemon that ran as root; then the way
//! back.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;

use node_api::ipam::Request;
use node_api::{Message as _, inbox};
use testkit::{Place as _, Service};

use super::rig::{assigned, held, owner};
use crate::agent::node::{Node, kernel_says, until};

const SOCKET: &str = "/run/netwright/ipam.sock";
const STATE: &str = "/var/lib/netwright/ipam";

/// Starts the daemon with words before it or after it, and waits until it is ready.
fn start(node: &Node, before: &[&str], after: &[&str]) -> Service {
    let words = [before, &[crate::agent::node::DAEMON, "ipam"], after].concat();
    let mut command = node.lab.command(words[0]);
    command.args(&words[1..]).stdin(std::process::Stdio::null());
    let log = node.lab.dir().join("ipam.log");
    let starts = || fs::read_to_string(&log).unwrap_or_default().matches(" ready ").count();
    let before = starts();
    let service = Service::start(command, &log);
    until("the daemon", || before < starts());
    service
}

#[test]
fn what_a_version_left_that_ran_as_root_goes_on_and_comes_back() {
    testkit::require!("root", "program:setpriv");
    let mut node = Node::new("ipam-own-user");
    node.joins();
    node.configure(&node.all());
    let (socket, state) = (node.path(SOCKET), node.path(STATE));
    let owner_of = |path: &std::path::Path| fs::metadata(path).unwrap().uid();

    let daemon = start(&node, &[], &[]);
    let lasting = assigned(&socket, "lasting").unwrap();
    assigned(&socket, "left").unwrap();
    assert_eq!(
        (kernel_says(daemon.pid().into(), "Uid"), owner_of(&state)),
        ("0\t0\t0\t0".into(), 0)
    );
    assert_eq!(daemon.stop(), Some(0));
    // A plugin leaves a release, as root, while no daemon listens.
    let release = Request::Release(owner("left"));
    inbox::leave(&socket, &release.todo_name().unwrap(), &release.to_line().unwrap()).unwrap();
    let messages = || fs::read_dir(inbox::folder(&socket)).unwrap().count();
    assert_eq!(messages(), 1);

    let daemon = start(&node, &[], &["--confine"]);
    assert_eq!(kernel_says(daemon.pid().into(), "Uid"), ["65521"; 4].join("\t"));
    assert_eq!(held(&socket, "lasting").unwrap(), lasting);
    assert_eq!((messages(), owner_of(&state)), (0, 65_521), "{}", daemon.log());
    assert!(held(&socket, "left").unwrap().is_empty());
    // Plugins trust a socket that belongs to root.
    let peer = kernel::peer::of(UnixStream::connect(&socket).unwrap()).unwrap();
    assert_eq!(peer.uid, 0);
    assert_eq!(owner_of(&socket), 0);
    let new = assigned(&socket, "new").unwrap();
    until("STATUS to be told", || fs::metadata(node_api::ready::file(&socket)).unwrap().len() > 0);
    // A killed daemon leaves nothing that prevents the next start.
    daemon.kill();
    inbox::leave(&socket, &release.todo_name().unwrap(), &release.to_line().unwrap()).unwrap();
    let daemon = start(&node, &[], &["--confine"]);
    assert_eq!((held(&socket, "new").unwrap(), messages()), (new.clone(), 0), "{}", daemon.log());
    assert_eq!(daemon.stop(), Some(0));

    // A version that runs as root has no capabilities either, so it cannot read another user's
    // files.
    node.lab.sh("chown -R root:root /var/lib/netwright/ipam /run/netwright/ipam.sock*");
    let daemon = start(&node, &["setpriv", "--bounding-set=-all"], &[]);
    assert_eq!(held(&socket, "lasting").unwrap(), lasting);
    assert_eq!(held(&socket, "new").unwrap(), new);
    assert_eq!(daemon.stop(), Some(0));
}
