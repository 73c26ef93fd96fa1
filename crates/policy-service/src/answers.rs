//! The answers to `netwright policy`, by HTTP at the service's status socket.

use std::collections::BTreeSet;
use std::net::IpAddr;

use firewall::pods::ipvs;
use policy::{Pod, Protocol, Traffic};
use service_kit::exchange::Answer;

use super::cuts;
use super::drops::{self, Drops, Page};
use super::engine::Engine;
use super::listing::{DirectionState, PodRow, UnknownAttachment, list};
use super::question::{End, Question, judge};
use super::shared::SharedEngine;

/// The targets: all policies and this node's pods, what holds for a connection
/// (`SOURCE/DESTINATION/PROTOCOL/PORT`, and `/NETWORK` for a further one), what was dropped after a
/// number, and to let go what is kept although a list lacked it.
pub(crate) const POLICIES: &str = "/policies";
pub(crate) const EXPLAIN: &str = "/explain/";
pub(crate) const DROPS: &str = "/drops/";
pub(crate) const ACCEPT: &str = "POST /accept";

/// Answers a question, if it is one of these.
pub(super) fn answer(shared: &SharedEngine, kept: &Drops, target: &str) -> Option<Answer> {
    if target == POLICIES {
        return Some(policies(shared));
    }
    if target == ACCEPT {
        // While files have faults, it is not known what the user would confirm.
        if let Some(why) = shared.engine().remarks().to_correct() {
            return Some(Answer::text(409, &format!("nothing is accepted: {why}")));
        }
        shared.accept();
        return Some(Answer::text(200, "accepted"));
    }
    if let Some(question) = target.strip_prefix(EXPLAIN) {
        return Some(explain(shared, question));
    }
    let number = target.strip_prefix(DROPS)?;
    Some(match number.parse() {
        Ok(number) => {
            let page = kept.after(number, kept.counted());
            Answer::json(&Page { inside: drops::in_containers(shared), ..page })
        }
        Err(_) => Answer::text(404, "ask /drops/NUMBER, from 0"),
    })
}

fn policies(shared: &SharedEngine) -> Answer {
    let engine = shared.engine();
    let unknown = engine.unknown().map(|(attachment, addresses)| {
        let name = attachment.label();
        UnknownAttachment { name, addresses }
    });
    let unknown = unknown.collect();
    let mut warnings = not_enforced(&engine.waits_for());
    warnings.extend(engine.notices());
    warnings.extend(ipvs::judged_wrongly().into_iter().map(str::to_owned));
    let node = Some(engine.node());
    let mut listing = list(engine.world(), node, unknown, warnings).with(engine.networks(), node);
    listing.pods.extend(engine.closed_further().map(|(attachment, why)| PodRow {
        pod: cni::text::one_line(format!("{} {}", attachment.label(), attachment.id.2)),
        addresses: attachment.addresses.clone(),
        ingress: DirectionState::Closed(why.clone()),
        egress: DirectionState::Closed(why),
    }));
    Answer::json(&listing)
}

fn explain(shared: &SharedEngine, question: &str) -> Answer {
    let mut question = match Question::of_target(question) {
        Ok(question) => question,
        Err(why) => return Answer::text(404, &why),
    };
    let host = cuts::own_addresses().ok();
    let services = ipvs::Services::read();
    let own = without_services(host.clone().unwrap_or_default(), &services, question.traffic);
    let to_service = to_service(&question, &services);
    let mut engine = shared.engine();
    if let Some(host) = host {
        engine.take_host(host);
    }
    let note = as_this_node(&mut question, &engine, &own);
    let world = match question.world(engine.world(), engine.networks()) {
        Ok(world) => world,
        Err(why) => return Answer::text(404, &cni::text::one_line(why)),
    };
    match judge(world, &question) {
        Ok(mut judged) => {
            judged.notes.extend(note);
            judged.notes.extend(to_service);
            judged.notes.extend(not_enforced(&engine.waits_for()));
            Answer::json(&judged)
        }
        Err(why) => Answer::text(404, &cni::text::one_line(why)),
    }
}

/// Returns the addresses of this host that are this node's for some traffic: kube-proxy in IPVS mode
/// gives the host the addresses of all Services, whose packets IPVS sends on. If it does so by the
/// marks of packets, none surely is.
fn without_services(
    mut host: BTreeSet<IpAddr>,
    services: &ipvs::Services,
    traffic: Traffic,
) -> BTreeSet<IpAddr> {
    host.retain(|address| !services.by_mark() && !takes(services, *address, traffic));
    host
}

/// Says of a destination that IPVS sends its packets on, so that other rules count.
fn to_service(question: &Question, services: &ipvs::Services) -> Option<String> {
    let End::Address(address) = &question.destination else { return None };
    takes(services, *address, question.traffic).then(|| {
        format!(
            "{} at {address} is a service of IPVS: a packet to it is judged as one to the pod to \
             which IPVS sends it",
            question.traffic
        )
    })
}

fn takes(services: &ipvs::Services, address: IpAddr, traffic: Traffic) -> bool {
    let protocol = match traffic.protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
        Protocol::NeighbourDiscovery | Protocol::Other(_) => return false,
    };
    traffic.port.is_some_and(|port| services.has(protocol, address, port))
}

/// Takes an address of this host for one that the API server has of this node, if the other end is
/// a pod of this node. The API server does not know the address of a bridge, or of a cache of names
/// on the node: there the two always reach each other. Returns what people should know of that.
fn as_this_node(
    question: &mut Question,
    engine: &Engine,
    own: &BTreeSet<IpAddr>,
) -> Option<String> {
    if let Some(network) = &question.network {
        return at_node_on(network, question, engine, own);
    }
    let (world, node) = (engine.world(), engine.node());
    let is_here = |pod: &Pod| !pod.host_network && pod.node.as_deref() == Some(node);
    let is_pod = |end: &End| match end {
        End::Address(address) => world.claimants(*address).into_iter().any(is_here),
        End::Pod { namespace, name } => {
            world.pods_of(namespace).any(|pod| pod.name == *name && is_here(pod))
        }
        End::Node(_) => false,
    };
    let of_host = |end: &End| match end {
        End::Address(address) if own.contains(address) && !address.is_loopback() => {
            world.claimants(*address).is_empty().then_some(*address)
        }
        _ => None,
    };
    let (source, destination) = (of_host(&question.source), of_host(&question.destination));
    let is_source = source.is_some();
    let address = match (source, destination) {
        (Some(address), None) if is_pod(&question.destination) => address,
        (None, Some(address)) if is_pod(&question.source) => address,
        _ => return None,
    };
    let known = world.node(node).map(|node| &node.addresses);
    if known.is_some_and(|known| known.contains(&address)) {
        return None;
    }
    let mut as_node = question.clone();
    let is_like = |one: &&IpAddr| one.is_ipv4() == address.is_ipv4() && own.contains(*one);
    if let Some(one) = known.into_iter().flatten().find(is_like) {
        let end = if is_source { &mut as_node.source } else { &mut as_node.destination };
        *end = End::Address(*one);
        // A policy that denies the node is about the addresses that the API server has.
        if judge(world, &as_node).is_ok_and(|judged| judged.allowed) {
            *question = as_node;
            return Some(format!("{address} is an address of this node, and is judged as {one}"));
        }
    }
    Some(always_reached(address))
}

/// Says of an address of this host that policies of a further network are not about it, if the other
/// end is a pod whose packets pass this node there.
fn at_node_on(
    network: &str,
    question: &Question,
    engine: &Engine,
    own: &BTreeSet<IpAddr>,
) -> Option<String> {
    let world = engine.networks().world(network)?;
    let is_pod = |end: &End| {
        let mut here = engine.networks().attachments().filter(|one| !one.inside);
        here.any(|one| match end {
            _ if one.network.as_deref() != Some(network) => false,
            End::Address(address) => one.addresses.contains(address),
            End::Pod { namespace, name } => {
                let pod = one.pod.as_ref().and_then(|uid| world.pod(uid));
                pod.is_some_and(|pod| *pod.namespace == **namespace && pod.name == *name)
            }
            End::Node(_) => false,
        })
    };
    let Question { source, destination, .. } = question;
    [(source, destination), (destination, source)].into_iter().find_map(|(end, other)| {
        let End::Address(address) = end else { return None };
        let is_host = own.contains(address) && !address.is_loopback();
        let is_free = world.claimants(*address).is_empty();
        (is_host && is_free && is_pod(other)).then(|| always_reached(*address))
    })
}

fn always_reached(address: IpAddr) -> String {
    format!(
        "{address} is an address of this node, which its pods always reach and which always \
         reaches them, whatever is said here"
    )
}

/// Says what the service still waits for.
fn not_enforced(waits_for: &[String]) -> Vec<String> {
    let said = waits_for
        .iter()
        .map(|why| format!("what is known is not enforced yet, and new pods are closed: {why}"));
    said.collect()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use node_api::policy::{Owner, StartRequest};
    use policy::World;
    use serde_json::json;

    use super::super::engine::Event;
    use super::super::kinds::{Kind, Object};
    use super::super::{objects, of_files};
    use super::*;

    const OBJECTS: &str = r#"
{apiVersion: v1, kind: Node, metadata: {name: one}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {nodeName: one}, status: {podIPs: [{ip: 10.0.0.1}, {ip: "fd00::1"}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: far, namespace: shop}, spec: {nodeName: two}, status: {podIP: 10.0.1.1}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: shut, namespace: shop}, spec: {podSelector: {}, policyTypes: [Ingress, Egress]}}
"#;

    /// A policy that denies the node is about the addresses that the API server has.
    #[test]
    fn a_node_that_is_denied_is_reached_at_other_addresses() {
        let denies = r#"---
{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: nodes}, spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Deny, to: [{nodes: {}}]}]}}
"#;
        let read = objects::read_stream("a.yaml", format!("{OBJECTS}{denies}").as_bytes());
        let engine = Engine::knowing(of_files::world(vec![read], None).unwrap().world);
        let own: [IpAddr; 2] = ["192.0.2.1", "10.0.0.254"].map(|text| text.parse().unwrap());
        let own = BTreeSet::from(own);
        let asked = |source: &str, destination: &str| {
            let target = format!("{source}/{destination}/udp/53");
            let mut question = Question::of_target(&target).unwrap();
            let note = as_this_node(&mut question, &engine, &own).unwrap_or_default();
            (judge(engine.world(), &question).unwrap().allowed, note)
        };
        assert_eq!(asked("shop:web", "192.0.2.1"), (false, String::new()));
        assert_eq!(asked("192.0.2.1", "shop:web"), (true, String::new()));
        let (_, note) = asked("shop:web", "10.0.0.254");
        assert!(note.ends_with("whatever is said here"), "{note}");
    }

    /// Policies of further networks are about no node. Packets of one of the pods do not pass it.
    #[test]
    fn on_a_further_network_this_host_is_the_node_of_its_pods() {
        let mut engine = Engine::knowing(World::new(None));
        let annotations = json!({"k8s.v1.cni.cncf.io/policy-for": "storage"});
        let shut = json!({
            "metadata": {"name": "shut", "namespace": "default", "annotations": annotations},
            "spec": {"podSelector": {}},
        });
        let shut = Object::of(Kind::MultiNetworkPolicies, &shut).unwrap();
        engine.hear(Event::Changed(shut), Instant::now());
        for (container, address, inside) in
            [("c1", "172.16.0.2", false), ("c2", "172.16.0.3", true)]
        {
            let (network, ifname) = ("storage".to_owned(), "net1".to_owned());
            let container = container.to_owned();
            engine.start(StartRequest {
                owner: Owner { network, container, ifname, ..Owner::default() },
                addresses: vec![address.parse().unwrap()],
                meets: (!inside).then(|| "br1".to_owned()),
                inside,
                ..StartRequest::default()
            });
        }
        let own: BTreeSet<IpAddr> = BTreeSet::from(["172.16.0.1".parse().unwrap()]);
        for (source, destination, is_node) in [
            ("172.16.0.1", "172.16.0.2", true),
            ("default:c1", "172.16.0.1", true),
            ("172.16.0.9", "172.16.0.2", false),
            ("172.16.0.1", "172.16.0.3", false),
        ] {
            let target = format!("{source}/{destination}/udp/53/storage");
            let mut question = Question::of_target(&target).unwrap();
            let note = as_this_node(&mut question, &engine, &own).unwrap_or_default();
            assert_eq!(note.ends_with("whatever is said here"), is_node, "{target}");
            let world = question.world(engine.world(), engine.networks()).unwrap();
            let is_allowed = judge(world, &question).unwrap().allowed;
            assert_eq!(is_allowed, destination == "172.16.0.1", "{target}");
        }
    }

    /// A Node may have an address that its host does not have, such as one that a cloud translates.
    #[test]
    fn an_address_of_the_node_that_the_host_lacks_is_judged() {
        let internal = "{type: InternalIP, address: 192.0.2.1}";
        let both = format!("{internal}, {{type: ExternalIP, address: 10.9.0.9}}");
        let read = objects::read_stream("a.yaml", OBJECTS.replace(internal, &both).as_bytes());
        let mut engine = Engine::knowing(of_files::world(vec![read], None).unwrap().world);
        let own: [IpAddr; 2] = ["192.0.2.1", "10.0.0.254"].map(|text| text.parse().unwrap());
        let own = BTreeSet::from(own);
        engine.take_host(own.clone());
        for (source, destination, expected) in [
            ("shop:web", "10.9.0.9", false),
            ("10.9.0.9", "shop:web", false),
            ("shop:web", "192.0.2.1", true),
            ("shop:web", "one", true),
            ("one", "shop:web", true),
            ("shop:web", "10.0.0.254", true),
        ] {
            let target = format!("{source}/{destination}/udp/53");
            let mut question = Question::of_target(&target).unwrap();
            as_this_node(&mut question, &engine, &own);
            assert_eq!(judge(engine.world(), &question).unwrap().allowed, expected, "{target}");
        }
    }

    #[test]
    fn the_address_of_a_service_is_not_this_nodes_at_its_port() {
        let services = |list: &str| ipvs::Services::of(format!("\n\n\n{list}\n").as_bytes());
        let [service, bridge]: [IpAddr; 2] =
            ["10.96.0.10", "10.0.0.254"].map(|text| text.parse().unwrap());
        let host = BTreeSet::from([service, bridge]);
        let at = |port| Traffic::to(Protocol::Udp, port);
        let names = services("UDP  0A60000A:0035 rr  ");
        let own = |port| without_services(host.clone(), &names, at(port));
        assert_eq!(own(53), BTreeSet::from([bridge]));
        assert_eq!(own(54), host);
        let by_mark = services("FWM  00000001 rr  ");
        assert_eq!(without_services(host.clone(), &by_mark, at(54)), BTreeSet::new());
        let note = |target: &str| to_service(&Question::of_target(target).unwrap(), &names);
        let said = "UDP port 53 at 10.96.0.10 is a service of IPVS: a packet to it is judged as one \
                    to the pod to which IPVS sends it";
        assert_eq!(note("shop:web/10.96.0.10/udp/53").as_deref(), Some(said));
        for other in
            ["shop:web/10.96.0.10/tcp/53", "shop:web/10.0.0.254/udp/53", "shop:web/one/udp/53"]
        {
            assert_eq!(note(other), None, "{other}");
        }
    }

    #[test]
    fn addresses_of_this_host_are_this_nodes() {
        let read = objects::read_stream("a.yaml", OBJECTS.as_bytes());
        let engine = Engine::knowing(of_files::world(vec![read], None).unwrap().world);
        let own: [IpAddr; 4] =
            ["192.0.2.1", "10.0.0.254", "fd00::fe", "127.0.0.1"].map(|text| text.parse().unwrap());
        let own = BTreeSet::from(own);
        let asked = |source: &str, destination: &str| {
            let target = format!("{source}/{destination}/udp/53");
            let mut question = Question::of_target(&target).unwrap();
            let note = as_this_node(&mut question, &engine, &own).unwrap_or_default();
            let judged = judge(engine.world(), &question).unwrap();
            (judged.allowed, note)
        };
        let as_node = "10.0.0.254 is an address of this node, and is judged as 192.0.2.1";
        assert_eq!(asked("shop:web", "10.0.0.254"), (true, as_node.to_owned()));
        assert_eq!(asked("10.0.0.254", "10.0.0.1"), (true, as_node.to_owned()));
        // The API server knows it, another pod's node is another one, another host is not the node,
        // and the loopback address is the pod's own.
        for (source, destination, allowed) in [
            ("shop:web", "192.0.2.1", true),
            ("shop:far", "10.0.0.254", false),
            ("shop:web", "10.0.0.253", false),
            ("shop:web", "127.0.0.1", false),
            ("shop:web", "10.0.1.1", false),
        ] {
            assert_eq!(asked(source, destination), (allowed, String::new()), "{destination}");
        }
        let (allowed, note) = asked("shop:web", "fd00::fe");
        assert!(!allowed && note.ends_with("whatever is said here"), "{note}");
    }
}
