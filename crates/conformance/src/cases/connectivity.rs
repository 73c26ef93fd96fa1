//! Connectivity, where the plugin claims to provide it.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use kernel::netns::Netns;
use kernel::route::{
    AddressOptions, Change, LinkKind, LinkSet, NewLink, Route, RouteSocket, VethPeer,
};

use crate::bench::{Bench, Container, Target, find};
use crate::case::{
    CHAINED, Case, INTERFACE, LINKS, OrBroken as _, Outcome, cases, expect, not_applicable,
};
use crate::profile::host_port;
use crate::shape;
use crate::traffic::{Server, ping, tcp, udp};

pub(super) const CASES: &[Case] = cases![
    "connect-siblings-v4" Must "2 ADD" after "add-succeeds" for INTERFACE ["add-makes-or-adjusts"]
        "Two containers of a network reach each other by IPv4: ping, TCP and UDP." => |bench| siblings(bench, true);
    "connect-siblings-v6" Must "2 ADD" after "add-succeeds" for INTERFACE ["add-makes-or-adjusts"]
        "Two containers of a network reach each other by IPv6: ping, TCP and UDP." => |bench| siblings(bench, false);
    "connect-gateway-v4" Must "2 ADD" after "add-succeeds" for INTERFACE ["add-makes-or-adjusts"]
        "A container reaches the machine at its IPv4 gateway by ping, TCP and UDP." => |bench| gateway(bench, true);
    "connect-gateway-v6" Must "2 ADD" after "add-succeeds" for INTERFACE ["add-makes-or-adjusts"]
        "A container reaches the machine at its IPv6 gateway by ping, TCP and UDP." => |bench| gateway(bench, false);
    "connect-from-machine" Must "2 ADD" after "add-succeeds" for INTERFACE ["add-makes-or-adjusts"]
        "The machine reaches a container, in both families, by ping, TCP and UDP." => from_machine;
    "connect-chained" Must "2 ADD" after "add-succeeds" for CHAINED ["add-makes-or-adjusts"]
        "The machine still reaches a container after a chained plugin's ADD." => chained;
    "connect-after-del" Should "2 DEL" after "del-succeeds" for LINKS ["del-undoes"]
        "After the DEL of one container the others are still reached." => after_del;
    "hostport-v4" Must "CONVENTIONS" after "add-succeeds" for CHAINED []
        "A published port is reached from outside by IPv4, TCP and UDP." => |bench| published(bench, true, Origin::Outside);
    "hostport-v6" Must "CONVENTIONS" after "add-succeeds" for CHAINED []
        "A published port is reached from outside by IPv6, TCP and UDP." => |bench| published(bench, false, Origin::Outside);
    "hostport-localhost" Should "CONVENTIONS" after "add-succeeds" for CHAINED []
        "A published port is reached by the machine itself at 127.0.0.1." => |bench| published(bench, true, Origin::Localhost);
    "hostport-hairpin" Should "CONVENTIONS" after "add-succeeds" for CHAINED []
        "A published port is reached by the container itself at the machine's address." => |bench| published(bench, true, Origin::Itself);
    "hostport-closed" Must "CONVENTIONS" after "del-succeeds" for CHAINED ["del-undoes"]
        "A published port is closed after DEL." => closed;
];

const PORT: u16 = 8080;

/// Where connections to a published port come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Outside,
    Localhost,
    Itself,
}

fn address(target: &Target, v4: bool) -> Outcome<IpAddr> {
    let all = shape::addresses(&target.result);
    let nets = all.iter().filter_map(|text| text.parse::<IpNet>().ok());
    match nets.map(|net| net.addr()).find(|address| address.is_ipv4() == v4) {
        Some(address) => Ok(address),
        None => not_applicable("its result has no address of that family"),
    }
}

/// Expects TCP and UDP to work.
fn reached(from: &Netns, to: SocketAddr, whence: &str) -> Outcome {
    reached_by_tcp(from, to, whence)?;
    let outcome = udp(from, to)?;
    expect(outcome.is_ok(), &format!("{to} is reached by UDP from {whence}"), || reason(outcome))
}

fn reached_by_tcp(from: &Netns, to: SocketAddr, whence: &str) -> Outcome {
    let outcome = tcp(from, to)?;
    expect(outcome.is_ok(), &format!("{to} is reached by TCP from {whence}"), || reason(outcome))
}

/// Expects pings to be answered, and TCP and UDP to work.
fn reached_in_every_way(from: &Netns, to: SocketAddr, whence: &str) -> Outcome {
    answers(from, to.ip(), whence)?;
    reached(from, to, whence)
}

fn answers(from: &Netns, to: IpAddr, whence: &str) -> Outcome {
    let outcome = ping(from, to)?;
    expect(outcome.is_ok(), &format!("{to} answers a ping from {whence}"), || reason(outcome))
}

/// Expects a chained plugin's container to be reached from the machine.
fn reached_from_machine(bench: &Bench, to: SocketAddr) -> Outcome {
    answers(&here()?, to.ip(), "the machine")?;
    if bench.job.plugin == "sbr" {
        // A UDP answer without a source address is routed before it gets one.
        return reached_by_tcp(&here()?, to, "the machine");
    }
    reached(&here()?, to, "the machine")
}

fn reason(outcome: Result<(), String>) -> String {
    outcome.err().unwrap_or_default()
}

fn here() -> Outcome<Netns> {
    Netns::current().or_broken("open the own namespace")
}

fn siblings(bench: &Bench, v4: bool) -> Outcome {
    if !bench.profile.siblings {
        return not_applicable(
            "the suite does not know whether it connects containers with each other",
        );
    }
    let (first, second) = (bench.attach(1)?, bench.attach(2)?);
    let server = Server::start(&second.container.netns, PORT)?;
    reached_in_every_way(
        &first.container.netns,
        server.at(address(&second, v4)?),
        "the first container",
    )
}

fn claims_gateway(bench: &Bench) -> Outcome {
    if bench.profile.gateway {
        return Ok(());
    }
    not_applicable("the suite does not know whether it connects containers with the machine")
}

fn gateway(bench: &Bench, v4: bool) -> Outcome {
    claims_gateway(bench)?;
    let target = bench.attach(1)?;
    let server = Server::start(&here()?, PORT)?;
    let mut gateways = crate::bench::given(1, None).into_iter().map(|one| one.gateway);
    let Some(gateway) = gateways.find(|gateway| gateway.is_ipv4() == v4) else {
        return not_applicable("it has no gateway of that family");
    };
    reached_in_every_way(&target.container.netns, server.at(gateway), "the container")
}

fn from_machine(bench: &Bench) -> Outcome {
    claims_gateway(bench)?;
    let target = bench.attach(1)?;
    let server = Server::start(&target.container.netns, PORT)?;
    for v4 in [true, false] {
        reached_in_every_way(&here()?, server.at(address(&target, v4)?), "the machine")?;
    }
    Ok(())
}

fn chained(bench: &Bench) -> Outcome {
    if bench.job.plugin == "vrf" {
        return not_applicable("its interface is in a routing table of its own");
    }
    let target = bench.attach(1)?;
    let server = Server::start(&target.container.netns, PORT)?;
    for v4 in [true, false] {
        reached_from_machine(bench, server.at(address(&target, v4)?))?;
    }
    Ok(())
}

fn after_del(bench: &Bench) -> Outcome {
    let routed = bench.kind() == crate::Kind::Chained && bench.job.plugin != "vrf";
    if !routed {
        claims_gateway(bench)?;
    }
    let (stays, goes) = (bench.attach(1)?, bench.attach(2)?);
    bench.detach(&goes)?;
    let server = Server::start(&stays.container.netns, PORT)?;
    reached_from_machine(bench, server.at(address(&stays, true)?))
}

fn publishes(bench: &Bench) -> Outcome {
    if bench.job.plugin == "portmap" {
        return Ok(());
    }
    not_applicable("the suite does not know whether it publishes ports")
}

fn published(bench: &Bench, v4: bool, from: Origin) -> Outcome {
    publishes(bench)?;
    let outside = outside(bench)?;
    let target = bench.attach(1)?;
    let _server = Server::start(&target.container.netns, PORT)?;
    let machine: IpAddr = match (from, v4) {
        (Origin::Localhost, _) => [127, 0, 0, 1].into(),
        (_, true) => [198, 51, 100, 1].into(),
        (_, false) => "2001:db8:ffff::1".parse().or_broken("an address")?,
    };
    let to = SocketAddr::new(machine, host_port(1));
    match from {
        Origin::Outside => reached(&outside.netns, to, "outside"),
        Origin::Localhost => reached(&here()?, to, "the machine"),
        Origin::Itself => reached(&target.container.netns, to, "the container itself"),
    }
}

fn closed(bench: &Bench) -> Outcome {
    publishes(bench)?;
    let outside = outside(bench)?;
    let target = bench.attach(1)?;
    let _server = Server::start(&target.container.netns, PORT)?;
    let to = SocketAddr::new([198, 51, 100, 1].into(), host_port(1));
    reached(&outside.netns, to, "outside")?;
    bench.detach(&target)?;
    let open = std::net::TcpStream::connect_timeout;
    let tried =
        kernel::netns::within(&outside.netns, || open(&to, std::time::Duration::from_secs(1)));
    let tried = tried.or_broken("enter a namespace")?;
    expect(tried.is_err(), "the port is closed", || "it is open".to_owned())
}

/// Creates another machine, linked to ours by a veth. Ours forwards from then on.
fn outside(bench: &Bench) -> Outcome<Container> {
    let outside = bench.namespace("outside")?;
    let mut peer = VethPeer::new("eth0");
    peer.netns = Some(outside.netns.clone());
    let mut host = RouteSocket::open().or_broken("open netlink")?;
    host.create_link(&NewLink::new("up0", LinkKind::Veth(peer)))
        .or_broken("make a pair of links to the other machine")?;
    let mut far = bench.inside(&outside)?;
    let options = AddressOptions { nodad: true, ..AddressOptions::default() };
    for (netlink, name, last) in [(&mut host, "up0", 1), (&mut far, "eth0", 2)] {
        let ifindex = find(netlink, name)?.index;
        let set = LinkSet::default().up(true);
        netlink.apply_one(&Change::SetLink { ifindex, set }).or_broken("set a link up")?;
        for text in [format!("198.51.100.{last}/24"), format!("2001:db8:ffff::{last}/64")] {
            let address = text.parse().or_broken("an address")?;
            let add = Change::AddAddress { ifindex, address, options };
            netlink.apply_one(&add).or_broken("give an address")?;
        }
    }
    let oif = find(&mut far, "eth0")?.index;
    for (destination, gateway) in [("0.0.0.0/0", "198.51.100.1"), ("::/0", "2001:db8:ffff::1")] {
        let mut route = Route::new(destination.parse().or_broken("a prefix")?);
        route.gateway = Some(gateway.parse().or_broken("an address")?);
        route.oif = Some(oif);
        far.apply_one(&Change::AddRoute(route)).or_broken("add a route")?;
    }
    for file in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        std::fs::write(format!("/proc/sys/net/{file}"), "1").or_broken("switch forwarding on")?;
    }
    Ok(outside)
}
