//! Questions about one connection: which end connects to which, and what the policies say.

use std::fmt;
use std::net::IpAddr;

use policy::object::is_stand_in;
use policy::{Direction, IpFamily, Networks, Node, Pod, Protocol, Traffic, World, explain};
use serde::{Deserialize, Serialize};

/// The version of what is answered.
const VERSION: u32 = 1;
/// The most names that a sentence lists.
const MOST_LISTED: usize = 8;

/// An end of a connection, as people name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// An address: a pod, a node or another host may have it.
    Address(IpAddr),
    /// A pod, as `NAMESPACE/NAME`.
    Pod { namespace: String, name: String },
    /// A node, by its name.
    Node(String),
}

impl End {
    /// Reads an end.
    ///
    /// # Errors
    /// The text is none of the three: a sentence.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        End::divided_by('/', text)
    }

    fn divided_by(mark: char, text: &str) -> Result<Self, String> {
        // A packet to ::ffff:10.0.0.1 is one of IPv4.
        if let Some(address) = cni::text::parse_ip(text) {
            return Ok(End::Address(address));
        }
        // Names of Kubernetes are lower case; other runtimes have more.
        let is_name = |name: &str| {
            let fits = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
            !name.is_empty() && name.chars().all(fits)
        };
        match text.split_once(mark) {
            Some((namespace, name)) if is_name(namespace) && is_name(name) => {
                Ok(End::Pod { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            None if is_name(text) => Ok(End::Node(text.to_owned())),
            _ => Err(format!(
                "{:?} is not an address, NAMESPACE/POD or a node's name",
                cni::text::one_line(text)
            )),
        }
    }

    fn segment(&self) -> String {
        match self {
            End::Address(address) => address.to_string(),
            End::Pod { namespace, name } => format!("{namespace}:{name}"),
            End::Node(name) => name.clone(),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Address(address) => address.fmt(f),
            End::Pod { namespace, name } => write!(f, "{namespace}/{name}"),
            End::Node(name) => write!(f, "node {name}"),
        }
    }
}

/// Reads `PORT`, `PORT/PROTOCOL`, `icmp`, `icmpv6`, or a protocol's number as `protocol/47`.
///
/// # Errors
/// The text is none of these: a sentence.
pub(crate) fn traffic(text: &str) -> Result<Traffic, String> {
    let lower = text.to_ascii_lowercase();
    match lower.as_str() {
        "icmp" => return Ok(Traffic::of(Protocol::Other(1))),
        "icmpv6" => return Ok(Traffic::of(Protocol::Other(58))),
        _ => {}
    }
    let wrong = || {
        format!(
            "{:?} is not a port such as 5432 or 53/udp, nor icmp, icmpv6 or protocol/NUMBER",
            cni::text::one_line(text)
        )
    };
    if let Some(number) = lower.strip_prefix("protocol/") {
        let number: u8 = number.parse().map_err(|_| wrong())?;
        return match Protocol::of(number) {
            protocol @ Protocol::Other(_) => Ok(Traffic::of(protocol)),
            with_ports => Err(format!("{with_ports} has ports: name one, as 53/udp")),
        };
    }
    let (port, protocol) = lower.split_once('/').unwrap_or((&lower, "tcp"));
    let protocol = Protocol::named(&protocol.to_ascii_uppercase()).ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    if port == 0 { Err(wrong()) } else { Ok(Traffic::to(protocol, port)) }
}

/// A question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) source: End,
    pub(crate) destination: End,
    pub(crate) traffic: Traffic,
    /// The further network that it is about; none if it is the pods' own.
    pub(crate) network: Option<String>,
}

impl Question {
    /// Returns the objects that answer it.
    ///
    /// # Errors
    /// No policy is for the network: a sentence.
    pub(crate) fn world<'w>(
        &self,
        own: &'w World,
        networks: &'w Networks,
    ) -> Result<&'w World, String> {
        let Some(network) = &self.network else { return Ok(own) };
        networks.world(network).ok_or_else(|| {
            let there: Vec<String> = networks.worlds().map(|(name, _)| name.to_owned()).collect();
            let start = format!("no policy is for the network {network}");
            match there.is_empty() {
                true => format!("{start}, nor for any other further one"),
                false => format!("{start}; policies are for {}", some(there, "and")),
            }
        })
    }

    /// Returns what is asked for after `/explain/`: `SOURCE/DESTINATION/PROTOCOL/PORT`, with
    /// `NAMESPACE:POD` for a pod, the protocol's number, and `-` for no port; and then
    /// `/NAMESPACE:NETWORK` for a further one.
    pub(crate) fn target(&self) -> String {
        let protocol = match self.traffic.protocol {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
            Protocol::NeighbourDiscovery => 58,
            Protocol::Other(number) => number,
        };
        let port = self.traffic.port.map_or("-".to_owned(), |port| port.to_string());
        let (source, destination) = (self.source.segment(), self.destination.segment());
        let network = self.network.iter().map(|name| format!("/{}", name.replace('/', ":")));
        let network: String = network.collect();
        format!("{source}/{destination}/{protocol}/{port}{network}")
    }

    /// Reads what is asked for after `/explain/`. The protocol may be a name too.
    ///
    /// # Errors
    /// The text is not a question: a sentence.
    pub(crate) fn of_target(target: &str) -> Result<Self, String> {
        let parts: Vec<&str> = target.split('/').collect();
        let (first, network) = parts.split_at(parts.len().min(4));
        let ([source, destination, protocol, port], [] | [_]) = (first, network) else {
            return Err("ask /explain/SOURCE/DESTINATION/PROTOCOL/PORT[/NETWORK]".to_owned());
        };
        let network = network.first().map(|name| name.replace(':', "/"));
        let traffic = match (protocol.parse::<u8>().map(Protocol::of), *port) {
            (Ok(protocol @ Protocol::Other(_)), "-") => Traffic::of(protocol),
            (Ok(protocol), port) => traffic(&format!("{port}/{protocol}"))?,
            (Err(_), "-") => traffic(protocol)?,
            (Err(_), port) => traffic(&format!("{port}/{protocol}"))?,
        };
        let source = End::divided_by(':', source)?;
        let destination = End::divided_by(':', destination)?;
        Ok(Question { source, destination, traffic, network })
    }
}

/// What the policies say to a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Judgement {
    pub(crate) version: u32,
    pub(crate) source: String,
    pub(crate) destination: String,
    pub(crate) traffic: String,
    /// Whether it is allowed, by each family that both ends have.
    pub(crate) allowed: bool,
    pub(crate) families: Vec<FamilyJudgement>,
    /// What else is to be known of it.
    pub(crate) notes: Vec<String>,
    /// What is wrong with objects of files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) faults: Vec<String>,
}

/// What the policies say of the connection between two addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FamilyJudgement {
    pub(crate) family: String,
    /// `None` in a file that has no addresses.
    pub(crate) source_address: Option<IpAddr>,
    pub(crate) destination_address: Option<IpAddr>,
    pub(crate) allowed: bool,
    /// Why each end that denies it does, in a sentence.
    pub(crate) causes: Vec<Cause>,
    /// The whole explanation.
    pub(crate) sentences: Vec<String>,
}

/// Why one end denies a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cause {
    /// `egress` of the source, or `ingress` of the destination.
    pub(crate) direction: String,
    pub(crate) cause: String,
}

/// Answers a question.
///
/// # Errors
/// An end is not known, or the two have no family in common: a sentence.
pub(crate) fn judge(world: &World, question: &Question) -> Result<Judgement, String> {
    let mut notes = Vec::new();
    if let Some(network) = &question.network {
        notes.push(format!("judged on the network {network}, by MultiNetworkPolicies alone"));
    }
    let source = addresses(world, &question.source, &mut notes)?;
    let destination = addresses(world, &question.destination, &mut notes)?;
    let mut families = Vec::new();
    for family in IpFamily::ALL {
        let of = |all: &[IpAddr]| all.iter().copied().find(|one| IpFamily::of(*one) == family);
        let (Some(source), Some(destination)) = (of(&source), of(&destination)) else { continue };
        if !speaks(family, question.traffic.protocol) {
            continue;
        }
        families.push(of_family(world, (source, destination), question.traffic));
    }
    if families.is_empty() {
        return Err(format!(
            "no packet of {} goes from {} to {}: they have no addresses of the same family for it",
            question.traffic, question.source, question.destination
        ));
    }
    Ok(Judgement {
        version: VERSION,
        source: question.source.to_string(),
        destination: question.destination.to_string(),
        traffic: question.traffic.to_string(),
        allowed: families.iter().all(|family| family.allowed),
        families,
        notes,
        faults: Vec::new(),
    })
}

/// Reports whether a protocol is spoken over a family.
fn speaks(family: IpFamily, protocol: Protocol) -> bool {
    match protocol {
        Protocol::Other(1) => family == IpFamily::V4,
        Protocol::Other(58) => family == IpFamily::V6,
        _ => true,
    }
}

fn of_family(
    world: &World,
    (source, destination): (IpAddr, IpAddr),
    traffic: Traffic,
) -> FamilyJudgement {
    let explained = explain(world, source, destination, traffic);
    let shown = |address: IpAddr| (!is_stand_in(address)).then_some(address);
    let causes = explained.causes.into_iter().map(|(direction, cause)| Cause {
        direction: match direction {
            Direction::Ingress => "ingress".to_owned(),
            Direction::Egress => "egress".to_owned(),
        },
        cause,
    });
    FamilyJudgement {
        family: match IpFamily::of(source) {
            IpFamily::V4 => "IPv4".to_owned(),
            IpFamily::V6 => "IPv6".to_owned(),
        },
        source_address: shown(source),
        destination_address: shown(destination),
        allowed: explained.allowed,
        causes: causes.collect(),
        sentences: explained.lines,
    }
}

/// Finds the addresses of an end.
fn addresses(world: &World, end: &End, notes: &mut Vec<String>) -> Result<Vec<IpAddr>, String> {
    match end {
        End::Address(address) => Ok(vec![*address]),
        End::Node(name) => match world.node(name) {
            Some(node) if node.addresses.is_empty() => Err(format!("node {name} has no address")),
            Some(node) => Ok(of_node(world, node)),
            None => Err(no_node(world, name)),
        },
        End::Pod { namespace, name } => {
            let pods = world.pods_of(namespace).filter(|pod| pod.name == *name);
            // A pod with its name may still be going.
            let pod = pods.min_by_key(|pod| (pod.finished, pod.terminating, pod.uid.clone()));
            let pod = pod.ok_or_else(|| no_pod(world, namespace, name))?;
            of_pod(world, pod, notes)
        }
    }
}

/// Returns the addresses of a node. Those that its host has come first: the node is reached there.
fn of_node(world: &World, node: &Node) -> Vec<IpAddr> {
    let mut all: Vec<IpAddr> = node.addresses.iter().copied().collect();
    all.sort_by_key(|address| !world.host_has(&node.name, *address));
    all
}

fn of_pod(world: &World, pod: &Pod, notes: &mut Vec<String>) -> Result<Vec<IpAddr>, String> {
    let name = pod.full_name();
    if pod.finished {
        return Err(format!("{name} has finished, and no longer has an address"));
    }
    if pod.host_network {
        notes.push(format!(
            "{name} is in the host's network: policies see its node and not the pod"
        ));
        let node = pod.node.as_deref().and_then(|node| world.node(node));
        let found = node.map(|node| of_node(world, node)).unwrap_or_default();
        return match found.is_empty() {
            true if pod.addresses.iter().all(|address| is_stand_in(*address)) => Err(format!(
                "{name} is in the host's network, and its node is not known: ask for a node"
            )),
            true => Ok(pod.addresses.clone()),
            false => Ok(found),
        };
    }
    if pod.addresses.is_empty() {
        return Err(format!("{name} has no address yet"));
    }
    if pod.terminating {
        notes.push(format!("{name} is being deleted; policies apply to it until it is gone"));
    }
    Ok(pod.addresses.clone())
}

fn no_node(world: &World, name: &str) -> String {
    let same: Vec<String> =
        world.pods().filter(|pod| pod.name == *name).map(Pod::full_name).collect();
    let start = format!("there is no node {name}");
    match same.is_empty() {
        true => format!("{start}; a pod is written NAMESPACE/NAME"),
        false => format!("{start}, but a pod {}", some(same, "or")),
    }
}

fn no_pod(world: &World, namespace: &str, name: &str) -> String {
    let there: Vec<String> = world.pods_of(namespace).map(|pod| pod.name.clone()).collect();
    if there.is_empty() {
        return format!("there is no pod {namespace}/{name}, nor any other in that namespace");
    }
    format!("there is no pod {namespace}/{name}; its namespace has {}", some(there, "and"))
}

/// Lists the first of some names.
fn some(mut names: Vec<String>, word: &str) -> String {
    names.sort();
    names.dedup();
    let more = names.len().saturating_sub(MOST_LISTED);
    names.truncate(MOST_LISTED);
    match (more, names.as_slice()) {
        (0, [begin @ .., last]) if !begin.is_empty() => {
            format!("{} {word} {last}", begin.join(", "))
        }
        (0, _) => names.join(", "),
        (more, _) => format!("{} {word} {more} more", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{objects, of_files};
    use super::*;
    use expect_test::{Expect, expect};

    const OBJECTS: &str = r#"
{apiVersion: v1, kind: Node, metadata: {name: one}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, status: {podIPs: [{ip: 10.0.0.1}, {ip: "fd00::1"}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}}, status: {podIPs: [{ip: 10.0.0.2}, {ip: "fd00::2"}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: job, namespace: shop}, status: {phase: Succeeded, podIP: 10.0.0.3}}
---
{apiVersion: v1, kind: Pod, metadata: {name: proxy, namespace: shop}, spec: {hostNetwork: true, nodeName: one}}
---
{apiVersion: v1, kind: Pod, metadata: {name: planned, namespace: shop}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: db, namespace: shop}, spec: {podSelector: {matchLabels: {app: db}}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{port: 5432}]}]}}
"#;

    fn world() -> World {
        let read = objects::read_stream("a.yaml", OBJECTS.as_bytes());
        of_files::world(vec![read], None).unwrap().world
    }

    fn check(source: &str, destination: &str, port: &str, expected: Expect) {
        let read = || {
            let (source, destination) = (End::read(source)?, End::read(destination)?);
            let traffic = traffic(port)?;
            let question = Question { source, destination, traffic, network: None };
            assert_eq!(Question::of_target(&question.target()), Ok(question.clone()));
            judge(&world(), &question)
        };
        let shown = match read() {
            Err(why) => format!("error: {why}\n"),
            Ok(judged) => {
                let allowed = if judged.allowed { "allowed" } else { "denied" };
                let mut text = format!("{allowed}\n");
                for family in &judged.families {
                    let causes = family.causes.iter();
                    let causes =
                        causes.map(|cause| format!("{}: {}", cause.direction, cause.cause));
                    let causes: Vec<String> = causes.collect();
                    text.push_str(&format!("{} {} {causes:?}\n", family.family, family.allowed));
                }
                text.extend(judged.notes.iter().map(|note| format!("note: {note}\n")));
                text
            }
        };
        expected.assert_eq(&shown);
    }

    #[test]
    fn ends_are_pods_nodes_and_addresses_of_both_families() {
        check(
            "shop/web",
            "shop/db",
            "5432",
            expect![[r#"
            denied
            IPv4 true []
            IPv6 false ["ingress: NetworkPolicy shop/db, spec.ingress[0] allows TCP port 5432 from 10.0.0.0/8: fd00::1 is IPv6, and 10.0.0.0/8 is IPv4"]
        "#]],
        );
        check(
            "shop/web",
            "10.0.0.2",
            "5432/TCP",
            expect![[r#"
            allowed
            IPv4 true []
        "#]],
        );
        check(
            "shop/web",
            "::ffff:10.0.0.2",
            "5432",
            expect![[r#"
            allowed
            IPv4 true []
        "#]],
        );
        check(
            "one",
            "shop/db",
            "53/udp",
            expect![[r#"
                denied
                IPv4 false ["ingress: NetworkPolicy shop/db, spec.ingress[0] allows TCP port 5432 from 10.0.0.0/8: 192.0.2.1 is not in 10.0.0.0/8; clients of a NodePort or load balancer may come with a node's address; this is UDP"]
            "#]],
        );
        check(
            "192.0.2.99",
            "shop/db",
            "icmp",
            expect![[r#"
                denied
                IPv4 false ["ingress: NetworkPolicy shop/db, spec.ingress[0] allows TCP port 5432 from 10.0.0.0/8: 192.0.2.99 is not in 10.0.0.0/8; ICMP has no ports, and only a rule without ports allows it"]
            "#]],
        );
        check(
            "shop/planned",
            "shop/db",
            "5432",
            expect![[r#"
            denied
            IPv4 false ["ingress: NetworkPolicy shop/db, spec.ingress[0] allows TCP port 5432 from 10.0.0.0/8: the address of shop/planned, which has none, is not in 10.0.0.0/8"]
            IPv6 false ["ingress: NetworkPolicy shop/db, spec.ingress[0] allows TCP port 5432 from 10.0.0.0/8: the address of shop/planned, which has none, is not in 10.0.0.0/8"]
        "#]],
        );
        check(
            "shop/proxy",
            "shop/db",
            "5432",
            expect![[r#"
            denied
            IPv4 false ["ingress: NetworkPolicy shop/db, spec.ingress[0] allows TCP port 5432 from 10.0.0.0/8: 192.0.2.1 is not in 10.0.0.0/8; clients of a NodePort or load balancer may come with a node's address"]
            note: shop/proxy is in the host's network: policies see its node and not the pod
        "#]],
        );
        check(
            "shop/web",
            "2001:db8::1",
            "protocol/47",
            expect![[r#"
            allowed
            IPv6 true []
        "#]],
        );
    }

    #[test]
    fn who_is_not_known_is_said_with_who_is() {
        check(
            "shop/wbe",
            "shop/db",
            "80",
            expect![[r#"
            error: there is no pod shop/wbe; its namespace has db, job, planned, proxy and web
        "#]],
        );
        check(
            "shp/web",
            "shop/db",
            "80",
            expect![[r#"
            error: there is no pod shp/web, nor any other in that namespace
        "#]],
        );
        check(
            "web",
            "shop/db",
            "80",
            expect![[r#"
            error: there is no node web, but a pod shop/web
        "#]],
        );
        check(
            "two",
            "shop/db",
            "80",
            expect![[r#"
            error: there is no node two; a pod is written NAMESPACE/NAME
        "#]],
        );
        check(
            "shop/job",
            "shop/db",
            "80",
            expect![[r#"
            error: shop/job has finished, and no longer has an address
        "#]],
        );
        check(
            "shop/web/x",
            "shop/db",
            "80",
            expect![[r#"
            error: "shop/web/x" is not an address, NAMESPACE/POD or a node's name
        "#]],
        );
        check(
            "shop/web",
            "shop/db",
            "http",
            expect![[r#"
            error: "http" is not a port such as 5432 or 53/udp, nor icmp, icmpv6 or protocol/NUMBER
        "#]],
        );
        check(
            "shop/web",
            "shop/db",
            "0",
            expect![[r#"
            error: "0" is not a port such as 5432 or 53/udp, nor icmp, icmpv6 or protocol/NUMBER
        "#]],
        );
        check(
            "shop/web",
            "shop/db",
            "80/icmp",
            expect![[r#"
            error: "80/icmp" is not a port such as 5432 or 53/udp, nor icmp, icmpv6 or protocol/NUMBER
        "#]],
        );
        check(
            "shop/web",
            "shop/db",
            "protocol/6",
            expect![[r#"
            error: TCP has ports: name one, as 53/udp
        "#]],
        );
        check(
            "one",
            "fd00::1",
            "80",
            expect![[r#"
            error: no packet of TCP port 80 goes from node one to fd00::1: they have no addresses of the same family for it
        "#]],
        );
        check(
            "one",
            "shop/db",
            "icmpv6",
            expect![[r#"
            error: no packet of ICMPv6 goes from node one to shop/db: they have no addresses of the same family for it
        "#]],
        );
    }
}
