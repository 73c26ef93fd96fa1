//! ADD: what it makes, what it refuses, what a failed one leaves.

use std::thread;

use serde_json::Value;

use crate::bench::{Bench, IFNAME, Target, find};
use crate::case::{
    ALL, Case, INTERFACE, Kind, OrBroken as _, Outcome, cases, expect, fail, not_applicable,
};
use crate::{delegate, shape};

/// How many containers are attached at once.
const CROWD: u8 = 8;

pub(super) const CASES: &[Case] = cases![
    "add-succeeds" Must "2 ADD" after "version-answers" for ALL ["add-prints-result", "exit-code"]
        "ADD ends with exit code 0 and prints a result on standard output." => |bench| bench.attach(1).map(|_| ());
    "del-succeeds" Must "2 DEL" after "add-succeeds" for ALL ["add-then-delete"]
        "DEL of what ADD made ends with exit code 0." => del_succeeds;
    "add-makes-the-interface" Should "2 ADD" after "add-succeeds" for INTERFACE ["add-makes-or-adjusts"]
        "ADD makes the interface CNI_IFNAME in the container, up, with the addresses of the result." => makes_interface;
    "add-configures-routes" Should "2 ADD" after "add-succeeds" for INTERFACE ["add-makes-or-adjusts"]
        "The routes of the result are in the container." => configures_routes;
    "add-existing-ifname" Must "2 ADD" after "add-succeeds" for INTERFACE ["add-existing-ifname"]
        "ADD fails when the container has an interface of that name, and leaves it as it was." => existing_ifname;
    "add-netns-missing" Must "2 ADD" after "add-succeeds" for INTERFACE []
        "ADD fails when the namespace does not exist." => netns_missing;
    "error-names-version" Should "5 Error" after "add-succeeds" for INTERFACE ["error-keys"]
        "An error object has the configuration's `cniVersion`." => error_version;
    "add-failed-leaves-nothing" Should "2 ADD" after "add-succeeds" for INTERFACE []
        "An ADD that fails leaves machine and container as they were." => failed_leaves_nothing;
    "add-failed-then-del" Must "3 Lifecycle & Ordering" after "add-succeeds" for INTERFACE ["add-then-delete"]
        "DEL after an ADD that failed succeeds, and nothing of the attachment is left." => failed_then_del;
    "add-own-namespace" Should "reference" after "add-succeeds" for INTERFACE []
        "ADD refuses to work on the namespace that the plugin itself runs in, and changes nothing." => own_namespace;
    "add-two-interfaces" Must "2 Parameters" after "add-succeeds" for INTERFACE []
        "A container can have two attachments to a network; DEL of one leaves the other." => two_interfaces;
    "add-long-container-id" Should "2 Parameters" after "add-succeeds" for ALL []
        "A container ID may be longer than any link's name: 64 characters and more." => long_id;
    "add-many-at-once" Must "3 Lifecycle & Ordering" after "del-succeeds" for ALL ["plugins-concurrent"]
        "Containers may be attached and detached at the same time." => many_at_once;
];

fn del_succeeds(bench: &Bench) -> Outcome {
    let target = bench.attach(1)?;
    bench.detach(&target)
}

fn makes_interface(bench: &Bench) -> Outcome {
    let target = bench.attach(1)?;
    let name = if bench.profile.makes_link { IFNAME } else { "lo" };
    let mut inside = bench.inside(&target.container)?;
    let link = find(&mut inside, name)?;
    expect(link.up(), "the interface is up", || format!("{name} is down"))?;
    let there: Vec<String> = inside
        .addresses(Some(link.index))
        .or_broken("list addresses")?
        .iter()
        .map(|address| address.address.to_string())
        .collect();
    for address in shape::addresses(&target.result) {
        expect(there.contains(&address), &format!("{name} has {address}"), || there.join(", "))?;
    }
    Ok(())
}

fn configures_routes(bench: &Bench) -> Outcome {
    let target = bench.attach(1)?;
    let routes = target.result["routes"].as_array().cloned().unwrap_or_default();
    if routes.is_empty() {
        return not_applicable("its result has no routes");
    }
    let mut inside = bench.inside(&target.container)?;
    for route in routes {
        let destination = route["dst"].as_str().unwrap_or_default();
        let family = match destination.contains(':') {
            true => kernel::route::IpFamily::V6,
            false => kernel::route::IpFamily::V4,
        };
        let there =
            inside.routes(kernel::route::RouteFilter::main(family)).or_broken("list routes")?;
        let found = there.iter().any(|there| there.destination.to_string() == destination);
        expect(found, &format!("the container has a route to {destination}"), || {
            there.iter().map(|route| route.destination.to_string()).collect::<Vec<_>>().join(", ")
        })?;
    }
    Ok(())
}

/// Creates a link of the wanted name in the container.
fn occupy(target: &Target) -> Outcome {
    use kernel::route::{LinkKind, NewLink, VethPeer};
    let mut peer = VethPeer::new(&target.ifname);
    peer.netns = Some(target.container.netns.clone());
    let mut netlink = kernel::route::RouteSocket::open().or_broken("open netlink")?;
    let link = NewLink::new(format!("mine{}", target.number), LinkKind::Veth(peer));
    netlink.create_link(&link).or_broken("make a link")?;
    Ok(())
}

fn makes_links(bench: &Bench) -> Outcome {
    if bench.profile.makes_link || bench.job.config.is_some() {
        return Ok(());
    }
    not_applicable("it makes no interface")
}

fn existing_ifname(bench: &Bench) -> Outcome {
    makes_links(bench)?;
    // A first attachment creates what attachments share.
    let _first = bench.attach(2)?;
    let target = bench.container(1)?;
    occupy(&target)?;
    let inside = crate::snapshot::Snapshot::of_netns(&target.container.netns)?;
    bench.about("ADD", &target).send().refused()?;
    let changes = crate::snapshot::Snapshot::of_netns(&target.container.netns)?.since(&inside);
    expect(changes.is_empty(), "the container is as it was", || changes.join("\n"))
}

fn netns_missing(bench: &Bench) -> Outcome {
    let target = bench.container(1)?;
    bench.about("ADD", &target).set("CNI_NETNS", "/run/netns/nowhere").send().refused().map(|_| ())
}

fn error_version(bench: &Bench) -> Outcome {
    let target = bench.container(1)?;
    let refusal =
        bench.about("ADD", &target).set("CNI_NETNS", "/run/netns/nowhere").send().refused()?;
    let version = bench.version()?;
    expect(
        refusal.value["cniVersion"] == version.as_str(),
        &format!("cniVersion {version}"),
        || refusal.value.to_string(),
    )
}

/// Makes ADD fail: by an error of its delegate, or by a name that is taken.
fn failing(bench: &Bench) -> Outcome<Target> {
    makes_links(bench)?;
    let target = bench.container(1)?;
    if bench.delegates().is_ok() {
        let error = serde_json::json!({ "code": 11, "msg": "no address today" });
        delegate::fail_at("ADD", &error)?;
    } else {
        occupy(&target)?;
    }
    Ok(target)
}

fn failed_leaves_nothing(bench: &Bench) -> Outcome {
    let _first = bench.attach(2)?;
    let target = failing(bench)?;
    let before = bench.machine()?;
    let inside = crate::snapshot::Snapshot::of_netns(&target.container.netns)?;
    bench.about("ADD", &target).send().refused()?;
    let mut changes = bench.machine()?.since(&before);
    changes.extend(crate::snapshot::Snapshot::of_netns(&target.container.netns)?.since(&inside));
    expect(changes.is_empty(), "nothing is changed", || changes.join("\n"))
}

fn failed_then_del(bench: &Bench) -> Outcome {
    let _first = bench.attach(2)?;
    let target = failing(bench)?;
    let before = bench.machine()?;
    bench.about("ADD", &target).send().refused()?;
    bench.about("DEL", &target).send().succeeded()?;
    let mut changes = bench.machine()?.since(&before);
    if bench.delegates().is_err() {
        // The link in the way was not the plugin's, but DEL may take it for its own.
        changes.retain(|line| !line.contains("mine1"));
    }
    expect(changes.is_empty(), "nothing of it is left", || changes.join("\n"))
}

fn own_namespace(bench: &Bench) -> Outcome {
    let target = bench.container(1)?;
    let before = bench.machine()?;
    let answer = bench.about("ADD", &target).set("CNI_NETNS", "/proc/1/ns/net").send();
    answer.failed()?;
    let changes = bench.machine()?.since(&before);
    expect(changes.is_empty(), "nothing is changed", || changes.join("\n"))
}

fn two_interfaces(bench: &Bench) -> Outcome {
    makes_links(bench)?;
    let first = bench.attach(1)?;
    let second = bench.target(first.container.clone(), "eth1", 2)?;
    let second = bench.attach_target(second)?;
    bench.detach(&first)?;
    let mut inside = bench.inside(&second.container)?;
    let gone = inside.link_by_name(IFNAME).or_broken("look for a link")?.is_none();
    expect(gone, "eth0 is gone", || "it is there".to_owned())?;
    let link = find(&mut inside, "eth1")?;
    expect(link.up(), "eth1 is up", || "it is down".to_owned())?;
    bench.detach(&second)
}

fn long_id(bench: &Bench) -> Outcome {
    let id = "c0ffee".repeat(12);
    let container = bench.namespace(&id)?;
    let target = bench.target(container, IFNAME, 1)?;
    let target = bench.attach_target(target)?;
    bench.detach(&target)
}

fn many_at_once(bench: &Bench) -> Outcome {
    if bench.profile.single {
        return not_applicable("it serves one container at a time");
    }
    // The bench logs calls and belongs to one thread: the calls are prepared here and sent there.
    let targets: Vec<Target> = (1..=CROWD).map(|n| bench.container(n)).collect::<Outcome<_>>()?;
    let before = bench.machine()?;
    let asks = targets.iter().map(|target| bench.about("ADD", target).detached());
    let results: Vec<Value> = at_once(asks.collect())?;
    let mut addresses: Vec<String> = results.iter().flat_map(shape::addresses).collect();
    addresses.sort_unstable();
    let all = addresses.len();
    addresses.dedup();
    if matches!(bench.kind(), Kind::Ipam) || bench.profile.makes_link {
        expect(addresses.len() == all, "no address is given twice", || addresses.join(", "))?;
    }
    let targets =
        targets.into_iter().zip(results).map(|(target, result)| Target { result, ..target });
    let targets: Vec<Target> = targets.collect();
    let asks = targets.iter().map(|target| bench.about("DEL", target).detached());
    at_once(asks.collect())?;
    let changes = bench.machine()?.without_frames().since(&before.without_frames());
    let own: Vec<_> = changes.iter().filter(|line| line.starts_with("+ link ")).collect();
    // What all attachments shared may stay, but not what each of them had: eight leftovers of one
    // kind show that.
    let limit = usize::from(CROWD);
    expect(own.len() < limit, "nothing of the attachments is left", || changes.join("\n"))
}

/// Sends calls at the same time; each must succeed. Returns null for calls that print nothing.
fn at_once(calls: Vec<crate::bench::PreparedCall>) -> Outcome<Vec<Value>> {
    let answers = thread::scope(|scope| {
        let threads: Vec<_> = calls.iter().map(|call| scope.spawn(|| call.send())).collect();
        threads.into_iter().map(thread::ScopedJoinHandle::join).collect::<Vec<_>>()
    });
    let mut results = Vec::new();
    for answer in answers {
        let Ok(answer) = answer else { return fail("every call ends", "a thread panicked") };
        answer.succeeded()?;
        results.push(serde_json::from_slice(&answer.finished.stdout).unwrap_or_default());
    }
    Ok(results)
}
