//! Leaves a node as if routing had never been there.

use ipnet::IpNet;
use kernel::route::RouteSocket;
use routing::object::Key;
use routing::routing::Leaving;
use routing::{Routing, Settings};
use state::Roots;

use super::super::Stop;
use super::super::setup::{failed, words};
use super::apply::{apply, unmark_tunnels};
use super::files::{Disk, Published};
use super::filter::Filter;
use super::host::Host;
use crate::attendant;
use crate::exchange::{NoAnswer, ask};

/// How long a service may take to say that it runs.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

/// Removes everything that the service made. One failure stops nothing else. `forget` removes what
/// the source has of this node because the service wrote it.
pub(super) fn leave(
    settings: &Settings,
    node: &str,
    leaving: Leaving,
    disk: &Disk,
    published: &Published,
    roots: &Roots,
    forget: impl FnOnce() -> Result<(), Stop>,
) -> Result<(), Stop> {
    if settings.standby {
        return Err(Stop::Print("in standby the service has made nothing\n".to_owned()));
    }
    if !matches!(
        ask(&attendant::socket(roots, "routing"), "/livez", TIMEOUT),
        Err(NoAnswer::Nobody(_))
    ) {
        return Err(Stop::Failed(
            "the service routing runs, and would make everything again: stop it first".to_owned(),
        ));
    }
    let mut netlink = RouteSocket::open().map_err(failed)?;
    // A tunnel of flanneld's that was not taken over has no mark, and is not ours.
    let unmarked = Settings { flannel: None, ..settings.clone() };
    let mut routing = Routing::new(unmarked, node);
    let own = routing.cluster().own().clone();
    let ranges: Vec<IpNet> = settings.ranges().collect();
    let mut host = Host::read(&mut netlink, &own, &ranges).map_err(failed)?;
    let observed = host.observe(&mut netlink, &ranges, &own, Vec::new());
    let observed = observed.map_err(failed)?;
    let is_route = |key: &Key| matches!(key, Key::Route { .. });
    if leaving == Leaving::ToFlannel
        && observed.foreign.is_empty()
        && observed.objects().keys().any(is_route)
    {
        return Err(Stop::Failed(
            "flanneld has no routes here yet, and pods would be cut off: start it first".to_owned(),
        ));
    }
    let mut errors = Vec::new();
    let mut said = String::new();
    // From now on no pod is to start.
    match published.remove(leaving) {
        Ok(paths) => {
            paths.iter().for_each(|path| said.push_str(&format!("removed {}\n", path.display())));
        }
        Err(error) => errors.push(words(&error)),
    }
    // From now on no other node is to send packets here.
    if let Err(Stop::Failed(why)) = forget() {
        errors.push(why);
    }
    let _ = routing.look(observed);
    let changes = routing.leave(leaving);
    let all: Vec<_> = changes.iter().collect();
    for (change, result) in changes.iter().zip(apply(&mut netlink, &mut host.links, &all)) {
        match result {
            Ok(()) => said.push_str(&format!("{change}\n")),
            Err(error) => errors.push(format!("{change}: {error}")),
        }
    }
    if leaving == Leaving::ToFlannel {
        errors.extend(unmark_tunnels(&mut netlink, &host.links));
    }
    match Filter::open(settings, false, roots) {
        Ok(mut filter) => {
            // Those that the service opened, with the node's own prefixes among them.
            let removed = filter.remove(&ranges);
            errors.extend(removed.err().map(|error| words(&error)));
        }
        Err(error) => errors.push(words(&error)),
    }
    errors.extend(disk.remove().err().map(|error| words(&error)));
    if errors.is_empty() {
        said.push_str("forwarding stays as it is: another program may rely on it by now\n");
        return Err(Stop::Print(said));
    }
    crate::say(&said);
    Err(Stop::Failed(errors.join("; ")))
}
