//! Servers of names, as a container's resolv.conf has them.

pub(super) mod files;
mod near;
pub(super) mod search;
mod unreached;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use net::IpFamily;

use super::filters::denied::{Owners, is_denied};
use super::ways::{obstacles, taken::PacketWay, taken::taken};
use super::{Rule, containers, is_here, is_link_local, is_outbound, leads_beyond, with_router};
use crate::Look;
use crate::filter::{NewDestination, Place, Port};
use crate::finding::{Finding, WayKind};
use crate::model::{Container, Namespace, Part, Scene, Transport};
use crate::path::{Joint, Site, carries};
use crate::question::{Answer, NAMES as PORT, Probe, Question};
use crate::routes::{RouteDecision, look_up};
use crate::whose;

pub(super) const RULE: Rule = Rule {
    judges: "answers of servers of names",
    ids: &["nameserver-silent", "nameserver-half", "nameserver-fails"],
    asks,
    judge,
    ..Rule::NONE
};

/// Servers that are the container's own loopback.
pub(super) const LOOPBACK: Rule = Rule {
    judges: "servers of names in containers",
    ids: &["nameserver-loopback", "nameserver-missing"],
    inside: &[Part::Listeners, Part::Nftables],
    judge: loopbacks,
    ..Rule::NONE
};

/// Servers to which a container has no route.
pub(super) const ROUTES: Rule = Rule {
    judges: "routes to servers of names",
    ids: &["nameserver-unreachable"],
    inside: &[Part::Links, Part::Routes],
    judge: unreachable,
    ..Rule::NONE
};

/// What the advice for a server that is at fault says.
pub(crate) const BLAMED: &str = " answer, or give ";

/// How many servers resolv.conf may have (`man 5 resolv.conf`, MAXNS).
const SERVERS: usize = 3;

pub(super) fn servers(container: &Container) -> impl Iterator<Item = IpAddr> + '_ {
    container.nameservers.iter().flatten().take(SERVERS).copied()
}

/// Names matter to a container that reaches others. At a port of Open vSwitch, the switch decides
/// what it reaches.
fn reaches(look: Look<'_>, container: &Container, server: IpAddr) -> bool {
    let family = IpFamily::of(server);
    leads_beyond(look.scene, container, family) && !is_switched(look.scene, container, family)
}

/// Says whether a container is at a port of Open vSwitch.
pub(super) fn is_switched(scene: &Scene, container: &Container, family: IpFamily) -> bool {
    Site::every(scene, container, family).any(|site| site.joint == Joint::Switch)
}

fn asks(look: Look<'_>) -> Vec<Question> {
    let mut questions = Vec::new();
    for container in containers(look) {
        let asked = servers(container)
            .filter(|server| !server.is_loopback() && reaches(look, container, *server));
        for server in asked {
            let from = Some(container.id.clone());
            questions.push(Question { from, asked: Probe::name(container, server) });
            questions.extend(near::asks(look, server));
            questions.extend(obstacles::asks(look, container, SocketAddr::new(server, PORT)));
        }
    }
    questions
}

fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let owners = Owners::of(look.scene);
    for container in containers(look) {
        for (asked, answer) in look.answers.from(Some(&container.id)) {
            if let Some((server, by)) = server_asked(asked)
                && !is_others(container, server)
                && !is_denied(look, &owners, container, asked, answer)
            {
                let question = NameQuestion { look, container, server, by, answer };
                let finding = question.silent().map(|finding| {
                    let finding = question.led(finding);
                    let finding = question.with_way(finding);
                    let finding = unreached::mend(question, finding);
                    question.with_effect(near::add(look, server, finding))
                });
                found.extend(match answer {
                    Answer::Silent { .. } => finding
                        .map(|finding| with_router(look, container, question.to(), by, finding)),
                    _ => finding,
                });
            }
        }
    }
    found
}

/// What a container asked a server of names, by what, and what came of it.
#[derive(Debug, Clone, Copy)]
struct NameQuestion<'l> {
    look: Look<'l>,
    container: &'l Container,
    server: IpAddr,
    by: Transport,
    answer: &'l Answer,
}

/// Returns the server of names that a question asks, and by what.
fn server_asked(asked: &Probe) -> Option<(IpAddr, Transport)> {
    match asked {
        Probe::Name { server } => Some((*server, Transport::Udp)),
        Probe::NameByTcp { server } => Some((*server, Transport::Tcp)),
        _ => None,
    }
}

/// Says whether a server is surely none of a container's: another rule asks it.
fn is_others(container: &Container, server: IpAddr) -> bool {
    container.nameservers.as_ref().is_some_and(|own| !own.contains(&server))
}

/// A container that reaches others, and that has a route to none of its servers: mostly they are of
/// another IP version.
fn unreachable(look: Look<'_>) -> Vec<Finding> {
    containers(look).filter_map(without_route).collect()
}

fn without_route(container: &Container) -> Option<Finding> {
    let inside = container.inside.as_ref()?;
    let all: Vec<IpAddr> = servers(container).collect();
    let is_reached = |server: &IpAddr| {
        server.is_loopback()
            || look_up(inside, None, *server, None, Some(0)) != RouteDecision::Nowhere
    };
    if all.is_empty() || !leads_out(inside) || all.iter().any(is_reached) {
        return None;
    }
    let called = container.called();
    let names: Vec<String> = all.iter().map(ToString::to_string).collect();
    let names = names.join(", ");
    let says = format!("{called} asks {names} for names, and has no route there");
    let finding = Finding::error("nameserver-unreachable", container.id.clone(), says)
        .at(format!("resolv.conf of {called}"))
        .hits(container.id.clone())
        .advise(format!(
            "give {called} a server of names that it has a route to, of its own IP version"
        ));
    Some(all.iter().fold(finding, |finding, server| {
        finding.breaks(WayKind::Names, Some(IpFamily::of(*server)))
    }))
}

/// Says whether a container has a default route.
fn leads_out(inside: &Namespace) -> bool {
    inside.routes.iter().any(|route| route.to.prefix_len() == 0)
}

fn loopbacks(look: Look<'_>) -> Vec<Finding> {
    let unnamed = containers(look).filter_map(|container| missing(look, container));
    containers(look).filter_map(loopback).chain(unnamed).collect()
}

/// A container that reaches others, and whose resolv.conf names no server. It may be meant to ask
/// for no names.
fn missing(look: Look<'_>, container: &Container) -> Option<Finding> {
    let inside = container.inside.as_ref()?;
    let is_empty = container.nameservers.as_ref().is_some_and(Vec::is_empty);
    // A program that finds none asks this host (`man 5 resolv.conf`).
    if !is_empty
        || !reaches_others(look, container, inside)
        || serves(inside, Ipv4Addr::LOCALHOST.into())
    {
        return None;
    }
    let called = container.called();
    let says =
        format!("resolv.conf of {called} names no server, so its programs find no names of others");
    Some(
        Finding::warning("nameserver-missing", container.id.clone(), says)
            .at(format!("resolv.conf of {called}"))
            .seen("there is no line \"nameserver ADDRESS\", and no program answers at 127.0.0.1")
            .hits(container.id.clone())
            .advise(format!("give {called} a resolv.conf with a server that it reaches"))
            .breaks(WayKind::Names, None),
    )
}

/// Says whether a container is meant to reach others, and has a way to them.
fn reaches_others(look: Look<'_>, container: &Container, inside: &Namespace) -> bool {
    let mut families = IpFamily::ALL.into_iter();
    leads_out(inside) && families.any(|family| is_outbound(look.scene, container, family))
}

/// Says whether a program of a container may answer at an address of its loopback.
fn serves(inside: &Namespace, server: IpAddr) -> bool {
    let answers = inside.listeners.iter().any(|listener| {
        listener.transport == Transport::Udp
            && listener.at.port() == PORT
            && (listener.at.ip() == server || listener.at.ip().is_unspecified())
    });
    // Docker's server has another port, to which rules inside the container lead.
    let is_translated = inside.filter.tables.iter().any(|table| {
        table.chains.iter().any(|chain| chain.base.as_ref().is_some_and(|base| base.kind == "nat"))
    });
    answers || is_translated
}

/// An address of loopback in resolv.conf is the container's own, not the node's.
fn loopback(container: &Container) -> Option<Finding> {
    let server = servers(container).next().filter(IpAddr::is_loopback)?;
    if serves(container.inside.as_ref()?, server) {
        return None;
    }
    let called = container.called();
    let says = format!(
        "{called} asks {server} for names, which is its own loopback, and no program of it answers there"
    );
    let finding = match servers(container).find(|server| !server.is_loopback()) {
        None => Finding::error("nameserver-loopback", container.id.clone(), says)
            .breaks(WayKind::Names, None),
        Some(other) => {
            let says = format!("{says}, so its programs find names only as they then ask {other}");
            Finding::warning("nameserver-loopback", container.id.clone(), says)
        }
    };
    Some(
        finding
            .at(format!("resolv.conf of {called}"))
            .hits(container.id.clone())
            .advise("give the container a resolv.conf with a server that it reaches; on a node with systemd-resolved, /run/systemd/resolve/resolv.conf has them"),
    )
}

impl<'l> NameQuestion<'l> {
    fn to(&self) -> SocketAddr {
        SocketAddr::new(self.server, PORT)
    }

    /// Returns the way that it takes, if something is known of that.
    fn way(&self) -> Option<PacketWay<'l>> {
        taken(self.look, self.container, self.to(), self.by)
    }

    /// Returns the rule of the node that surely leads it to another place, and that place.
    fn leader(&self) -> Option<(Place, Option<String>)> {
        let (look, server) = (self.look, self.server);
        let with = carries(self.by, Port::Is(PORT));
        let mut sites = Site::all(look.scene, self.container, IpFamily::of(server));
        let led = sites.find_map(|site| site.enter(&look.scene.host, server, with).destination);
        let (place, to) = led?;
        let to = match to {
            NewDestination::To(address, port) => {
                let to = SocketAddr::new(address.unwrap_or(server), port.unwrap_or(PORT));
                Some(to.to_string())
            }
            NewDestination::Here(port) => {
                Some(format!("port {} of this node", port.unwrap_or(PORT)))
            }
            NewDestination::Unknown => None,
        };
        Some((place, to))
    }

    /// Adds the rule of the node that surely leads it elsewhere: no answer comes from there, and the
    /// server itself is not asked.
    fn led(&self, finding: Finding) -> Finding {
        let Some((place, to)) = self.leader() else {
            return owned(self.look, self.container, self.server, finding);
        };
        let Some(to) = to else { return finding };
        let (called, server, rule) = (self.container.called(), self.server, place.name());
        let whose = whose::of_place(&place, self.look.scene);
        let finding = finding.seen(format!("{rule} sends the question to {to}"));
        let finding = Finding { place: Some(place.to_string()), whose, ..finding };
        let is_lost = self.answer.is_lost() || *self.answer == Answer::Refused;
        if finding.id != "nameserver-silent" || !is_lost {
            return finding;
        }
        let says = format!(
            "{called} asks {server} for names, a rule of this node sends the question to {to}, and no answer comes"
        );
        Finding { says, advice: Vec::new(), ..finding }
            .advise(format!("let {to}{BLAMED}{called} another server"))
            .advise(format!("if {server} itself is to answer, remove the rule: {rule}"))
    }

    /// Adds which way it takes to a server beyond the node, if it is another one than that of the
    /// node's own.
    fn with_way(&self, finding: Finding) -> Finding {
        if is_here(self.look.scene, self.server) {
            return finding;
        }
        match self.way() {
            Some(way) if way.is_unusual() => way.tell(finding, self.answer),
            _ => finding,
        }
    }

    /// Returns the first server of the container that answers it.
    fn other(&self) -> Option<IpAddr> {
        servers(self.container).find(|server| {
            let asked = Probe::name(self.container, *server);
            let question = Question { from: Some(self.container.id.clone()), asked };
            matches!(
                self.look.answers.to(&question),
                Some(Answer::Reached { .. } | Answer::Named { error: None, .. })
            )
        })
    }

    /// Adds what it means for programs that the server is silent where another one answers: they ask
    /// in the order of resolv.conf (`man 5 resolv.conf`).
    fn with_effect(&self, finding: Finding) -> Finding {
        let Some(other) = self.other().filter(|_| finding.id == "nameserver-silent") else {
            return finding;
        };
        let (called, server) = (self.container.called(), self.server);
        let place = |of: IpAddr| servers(self.container).position(|one| one == of);
        if place(other) < place(server) {
            return finding.seen(format!("{called} asks it only where {other} does not answer"));
        }
        let does = match self.answer {
            Answer::Silent { .. } => "wait with each name until they ask",
            _ => "find names only as they then ask",
        };
        let says = format!("{}; its programs {does} {other}, which answers", finding.says);
        let finding = Finding { says, ..finding };
        // Commands make it answer at once.
        match finding.fix.is_empty() {
            true => finding.advise(format!(
                "until then, name {other} before {server} in resolv.conf of {called}"
            )),
            false => finding,
        }
    }

    fn silent(&self) -> Option<Finding> {
        let NameQuestion { container, server, answer, .. } = *self;
        let at = self.to();
        let called = container.called();
        let by = self.by.as_str().to_uppercase();
        let error = |says: String, seen: String| {
            Finding::error("nameserver-silent", server.to_string(), says)
                .seen(seen)
                .hits(container.id.clone())
                .advise(format!("let {server}{BLAMED}{called} another server"))
                .breaks(WayKind::Names, Some(IpFamily::of(server)))
        };
        match answer {
            Answer::Silent { .. } => Some(error(
                format!("{server} does not answer {called} when it asks for names"),
                format!("a question to {at} by {by} was not answered"),
            )),
            Answer::Refused => Some(error(
                format!("no program at {server} answers {called} when it asks for names"),
                format!("{at} refused a question by {by}"),
            )),
            Answer::Unreachable { error: cause, .. } => Some(error(
                format!("{called} does not reach {server}, which it asks for names"),
                cause.clone(),
            )),
            Answer::OneKind { answered, lost, .. } => Some(half(container, server, answered, lost)),
            Answer::Named { error: Some(cause), .. } => {
                let says = format!("{server} does not resolve names for {called}");
                Some(
                    Finding::warning("nameserver-fails", server.to_string(), says)
                        .seen(cause.clone())
                        .hits(container.id.clone()),
                )
            }
            _ => None,
        }
    }
}

/// Adds that the container or the node has the server's address itself, so that questions go nowhere
/// else.
fn owned(look: Look<'_>, container: &Container, server: IpAddr, finding: Finding) -> Finding {
    let within = container.inside.as_ref().and_then(|inside| inside.owner_of(server));
    let within = within.map(|link| (container.called(), link));
    let here = || look.scene.host.owner_of(server).map(|link| ("this node", link));
    match within.or_else(here) {
        Some((whose, link)) => {
            finding.seen(format!("{whose} has the address {server} itself, on {}", link.name))
        }
        None => finding,
    }
}

/// A server that answers one of the two questions that programs ask at once: they wait for the other
/// answer. Some ask only for addresses of an IP version that the container has.
fn half(container: &Container, server: IpAddr, answered: &str, lost: &str) -> Finding {
    let called = container.called();
    let says = format!(
        "{server} answers {called} when it asks for {answered} records, and not when it asks for {lost} records, so its programs wait with each name"
    );
    let asks_all = lost != "AAAA" || has_ipv6(container);
    let finding = match asks_all {
        true => Finding::error("nameserver-half", server.to_string(), says),
        false => Finding::warning("nameserver-half", server.to_string(), says)
            .seen(format!("{called} has no IPv6, and some programs then ask for A records alone")),
    };
    finding
        .seen(format!(
            "a question for {lost} records was sent twice from the port that got the answer for {answered} records"
        ))
        .hits(container.id.clone())
        .advise(format!(
            "let {server} answer questions for {lost} records, with none if there are none; or give {called} another server"
        ))
        .advise(format!(
            "a filter or a limit on the way may drop the second of two questions from one port: \"options single-request\" in resolv.conf of {called} makes programs of the GNU C library ask one after the other"
        ))
        .breaks(WayKind::Names, Some(IpFamily::of(server)))
}

/// Says whether a container has an IPv6 address that is not of its link alone.
fn has_ipv6(container: &Container) -> bool {
    let links = container.inside.iter().flat_map(|inside| &inside.links);
    let mut addresses = links.flat_map(|link| &link.addresses).map(|own| own.address.addr());
    addresses.any(|own| own.is_ipv6() && !own.is_loopback() && !is_link_local(own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;
    use crate::model::Attachment;
    use crate::model::filter::Hook;
    use crate::question::Answers;

    fn scene(server: &str) -> Scene {
        let attachment = Attachment {
            network: "mynet".to_owned(),
            plugins: vec!["bridge".to_owned()],
            gateways: vec!["10.88.0.1".parse().unwrap()],
            ..Attachment::default()
        };
        let container = Container {
            id: "c1".to_owned(),
            alive: Some(true),
            inside: Some(Namespace::default()),
            nameservers: Some(vec![server.parse().unwrap()]),
            attachments: vec![attachment],
            ..Container::default()
        };
        Scene { containers: vec![container], ..Scene::default() }
    }

    fn look<'l>(scene: &'l Scene, answers: &'l Answers) -> Look<'l> {
        Look { scene, answers, only: None, to: None }
    }

    #[test]
    fn the_containers_own_loopback_is_no_server() {
        let (scene, answers) = (scene("127.0.0.53"), Answers::default());
        assert_eq!(loopbacks(look(&scene, &answers))[0].id, "nameserver-loopback");
        assert_eq!(asks(look(&scene, &answers)), []);
    }

    #[test]
    fn a_resolv_conf_without_a_server() {
        let mut scene = crate::path::samples::node();
        let answers = Answers::default();
        let told = |scene: &Scene| -> Vec<(&'static str, String)> {
            let found = loopbacks(look(scene, &answers));
            found.into_iter().map(|finding| (finding.id, finding.object)).collect()
        };
        // No resolv.conf is known.
        assert_eq!(told(&scene), []);
        scene.containers[0].nameservers = Some(Vec::new());
        assert_eq!(told(&scene), [("nameserver-missing", "c2".to_owned())]);
        // It leads nowhere by intent.
        scene.networks[0].outbound = false;
        assert_eq!(told(&scene), []);
        scene.networks[0].outbound = true;
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.listeners.push(crate::model::Listener {
            transport: Transport::Udp,
            at: "127.0.0.1:53".parse().unwrap(),
            v6only: false,
            pid: None,
            program: None,
            full: None,
            stopped: false,
            frozen: None,
        });
        assert_eq!(told(&scene), []);
    }

    #[test]
    fn each_server_is_asked() {
        let (scene, none) = (scene("10.96.0.10"), Answers::default());
        let asked = asks(look(&scene, &none));
        assert_eq!(asked.len(), 1);
        assert_eq!(judge(look(&scene, &none)), []);
        let silent = Answers { all: vec![(asked[0].clone(), Answer::Silent { hops: Vec::new() })] };
        assert_eq!(judge(look(&scene, &silent))[0].id, "nameserver-silent");
        let good = Answer::Named { after_us: 900, error: None };
        let good = Answers { all: vec![(asked[0].clone(), good)] };
        assert_eq!(judge(look(&scene, &good)), []);
    }

    /// Programs ask in the order of resolv.conf.
    #[test]
    fn what_a_silent_server_means_where_another_one_answers() {
        let (dead, good) = ("198.51.100.53", "198.51.100.54");
        let judged = |order: [&str; 2], answer: Answer| {
            let mut scene = crate::path::samples::node();
            scene.containers.truncate(1);
            scene.containers[0].nameservers = Some(order.map(|one| one.parse().unwrap()).to_vec());
            let of = |server: &str, answer: Answer| {
                let asked = Probe::Name { server: server.parse().unwrap() };
                (Question { from: Some("c2".to_owned()), asked }, answer)
            };
            let named = Answer::Named { after_us: 900, error: None };
            let all = vec![of(dead, answer), of(good, named)];
            let answers = Answers { all };
            let mut found = judge(look(&scene, &answers));
            assert_eq!((found.len(), found[0].object.as_str()), (1, dead), "{found:#?}");
            found.remove(0)
        };
        let silent = || Answer::Silent { hops: Vec::new() };
        let first = judged([dead, good], silent());
        // Nobody has seen the question leave, but that to the other one goes the same way.
        assert_eq!(
            first.says,
            "198.51.100.53 does not answer c2 when it asks for names; its programs wait with each name until they ask 198.51.100.54, which answers"
        );
        assert_eq!(first.seen[1], "198.51.100.54 answers by the same way");
        assert_eq!(
            first.advice,
            [
                "let 198.51.100.53 answer, or give c2 another server",
                "until then, name 198.51.100.54 before 198.51.100.53 in resolv.conf of c2",
            ]
        );
        let first = judged([dead, good], Answer::Refused);
        let says = "answers c2 when it asks for names; its programs find names only as they then ask 198.51.100.54, which answers";
        assert!(first.says.ends_with(says), "{}", first.says);
        let second = judged([good, dead], silent());
        assert_eq!(second.says, "198.51.100.53 does not answer c2 when it asks for names");
        let seen = "c2 asks it only where 198.51.100.54 does not answer";
        assert!(second.seen.iter().any(|one| one == seen), "{second:#?}");
    }

    #[test]
    fn a_first_server_that_is_the_containers_loopback_is_named() {
        let (mut scene, answers) = (scene("127.0.0.53"), Answers::default());
        let more = "198.51.100.53".parse().unwrap();
        scene.containers[0].nameservers.as_mut().unwrap().push(more);
        let found = loopbacks(look(&scene, &answers)).remove(0);
        assert_eq!((found.id, found.severity), ("nameserver-loopback", Severity::Warning));
        assert!(found.says.ends_with("only as they then ask 198.51.100.53"), "{}", found.says);
        assert_eq!(found.breaks, []);
        scene.containers[0].nameservers.as_mut().unwrap().reverse();
        assert_eq!(loopbacks(look(&scene, &answers)), []);
    }

    #[test]
    fn a_server_that_answers_one_kind_of_question() {
        let told = |scene: &Scene, answered: &str, lost: &str| {
            let asked = Probe::Name { server: "198.51.100.53".parse().unwrap() };
            let question = Question { from: Some("c2".to_owned()), asked };
            let (answered, lost) = (answered.to_owned(), lost.to_owned());
            let answer = Answer::OneKind { after_us: 900, answered, lost };
            let answers = Answers { all: vec![(question, answer)] };
            let finding = judge(look(scene, &answers)).remove(0);
            (finding.id, finding.severity)
        };
        let mut scene = crate::path::samples::node();
        assert_eq!(told(&scene, "A", "AAAA"), ("nameserver-half", Severity::Error));
        let inside = scene.containers[0].inside.as_mut().unwrap();
        for link in &mut inside.links {
            link.addresses.retain(|own| own.address.addr().is_ipv4());
        }
        assert_eq!(told(&scene, "A", "AAAA"), ("nameserver-half", Severity::Warning));
        assert_eq!(told(&scene, "AAAA", "A"), ("nameserver-half", Severity::Error));
    }

    #[test]
    fn the_router_on_the_way_to_a_server_may_answer() {
        use crate::filter::samples::{dnat, nat, rule, table, udp_port, unknown};
        use crate::model::filter::Family as Kin;
        let mut scene = crate::path::samples::node();
        let told = |scene: &Scene, from: Option<&str>, asked: Probe, answer: Answer| {
            let named = Probe::Name { server: "198.51.100.53".parse().unwrap() };
            let silent = Answer::Silent { hops: Vec::new() };
            let all = [(Some("c2"), named, silent), (from, asked, answer)];
            let question =
                |from: Option<&str>, asked| Question { from: from.map(str::to_owned), asked };
            let all = all.map(|(from, asked, answer)| (question(from, asked), answer)).to_vec();
            judge(look(scene, &Answers { all }))[0].seen.get(1).cloned()
        };
        let router = || Probe::Echo { to: "192.0.2.1".parse().unwrap() };
        let reached = || Answer::Reached { after_us: 300 };
        let says = "192.0.2.1, by which this node reaches 198.51.100.53, answers an echo request";
        assert_eq!(told(&scene, None, router(), reached()).as_deref(), Some(says));
        assert_eq!(told(&scene, None, router(), Answer::Silent { hops: Vec::new() }), None);
        // A container's request may have another way.
        assert_eq!(told(&scene, Some("c2"), router(), reached()), None);
        // A rule may send the question elsewhere.
        let led = [udp_port(53), unknown("statistic"), dnat("10.9.9.9", 53)];
        let prerouting = nat("PREROUTING", Hook::Prerouting, -100, vec![rule(&led)]);
        scene.host.filter.tables.push(table(Kin::Ip, "nat", vec![prerouting]));
        assert_eq!(told(&scene, None, router(), reached()), None);
    }

    /// `options use-vc`: what is answered by UDP helps its programs nothing.
    #[test]
    fn programs_that_ask_by_tcp() {
        let mut scene = scene("10.96.0.10");
        scene.containers[0].names.by_tcp = true;
        let none = Answers::default();
        let asked = asks(look(&scene, &none));
        let [Question { asked: Probe::NameByTcp { server }, .. }] = asked.as_slice() else {
            panic!("{asked:?}")
        };
        assert_eq!(*server, "10.96.0.10".parse::<IpAddr>().unwrap());
        let told = |answer: Answer| {
            let answers = Answers { all: vec![(asked[0].clone(), answer)] };
            let found = judge(look(&scene, &answers)).into_iter();
            found.map(|one| (one.id, one.seen[0].clone())).collect::<Vec<_>>()
        };
        let lost = ("nameserver-silent", "a question to 10.96.0.10:53 by TCP was not answered");
        let lost = (lost.0, lost.1.to_owned());
        assert_eq!(told(Answer::Silent { hops: Vec::new() }), [lost]);
        assert_eq!(told(Answer::Reached { after_us: 300 }), []);
    }

    /// Questions do not leave the node.
    #[test]
    fn the_node_may_have_the_servers_address() {
        let told = |server: &str| {
            let scene = crate::path::samples::node();
            let asked = Probe::Name { server: server.parse().unwrap() };
            let question = Question { from: Some("c2".to_owned()), asked };
            let answers = Answers { all: vec![(question, Answer::Refused)] };
            judge(look(&scene, &answers))[0].seen.get(1).cloned()
        };
        assert_eq!(told("198.51.100.53"), None);
        let words = "this node has the address 192.0.2.2 itself, on up0";
        assert_eq!(told("192.0.2.2").as_deref(), Some(words));
        let words = "c2 has the address 10.88.0.2 itself, on eth0";
        assert_eq!(told("10.88.0.2").as_deref(), Some(words));
    }

    /// A person who looks at the server finds nothing there.
    #[test]
    fn a_rule_that_sends_questions_elsewhere_is_named() {
        use crate::filter::samples::{dnat, nat, rule, table, udp_port};
        let told = |parts: Vec<crate::model::filter::Step>| {
            let chain = nat("PREROUTING", Hook::Prerouting, -100, vec![rule(&[parts])]);
            let own = table(crate::model::filter::Family::Ip, "nat", vec![chain]);
            let scene = crate::path::samples::with(crate::path::samples::node(), own);
            let asked = Probe::Name { server: "198.51.100.53".parse().unwrap() };
            let question = Question { from: Some("c2".to_owned()), asked };
            let answers = Answers { all: vec![(question, Answer::Silent { hops: Vec::new() })] };
            let found = judge(look(&scene, &answers));
            (found[0].place.clone(), found[0].seen.get(1).cloned())
        };
        assert_eq!(told([udp_port(5353), dnat("10.9.9.9", 53)].concat()).1, None);
        let (place, seen) = told([udp_port(53), dnat("10.9.9.9", 54)].concat());
        let rule = "table ip nat, chain PREROUTING, rule 1: dnat to 10.9.9.9 port 54";
        assert_eq!(place.as_deref(), Some(rule));
        let words = "ip nat/PREROUTING rule 1 sends the question to 10.9.9.9:54";
        assert_eq!(seen.as_deref(), Some(words));
        let here = vec![crate::model::filter::Step::Redirect { port: None }];
        let (_, seen) = told([udp_port(53), here].concat());
        let words = "ip nat/PREROUTING rule 1 sends the question to port 53 of this node";
        assert_eq!(seen.as_deref(), Some(words));
    }

    #[test]
    fn a_server_is_not_blamed_for_a_rule_that_sends_questions_elsewhere() {
        use crate::filter::samples::{dnat, nat, rule, table, udp_port};
        let rules = vec![rule(&[udp_port(53), dnat("10.9.9.9", 53)])];
        let chain = nat("PREROUTING", Hook::Prerouting, -100, rules);
        let own = table(crate::model::filter::Family::Ip, "nat", vec![chain]);
        let scene = crate::path::samples::with(crate::path::samples::node(), own);
        let server = "198.51.100.53".parse().unwrap();
        let question = Question { from: Some("c2".to_owned()), asked: Probe::Name { server } };
        for answer in [Answer::Silent { hops: Vec::new() }, Answer::Refused] {
            let answers = Answers { all: vec![(question.clone(), answer)] };
            let found = judge(look(&scene, &answers)).remove(0);
            let says = "a rule of this node sends the question to 10.9.9.9:53, and no answer comes";
            assert!(found.says.ends_with(says), "{}", found.says);
            assert!(found.advice[0].starts_with("let 10.9.9.9:53 answer"), "{:?}", found.advice);
            assert!(found.advice[1].ends_with("ip nat/PREROUTING rule 1"), "{:?}", found.advice);
        }
    }

    #[test]
    fn a_server_of_an_ip_version_that_the_container_has_not() {
        let mut scene = crate::path::samples::node();
        let answers = Answers::default();
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.routes.retain(|route| route.to.addr().is_ipv4());
        let mut found = |servers: &[&str]| -> Vec<String> {
            let servers = servers.iter().map(|server| server.parse().unwrap()).collect();
            scene.containers[0].nameservers = Some(servers);
            let found = unreachable(look(&scene, &answers));
            found.into_iter().map(|finding| finding.says).collect()
        };
        assert_eq!(found(&["192.0.2.53"]), [""; 0]);
        assert_eq!(found(&["2001:db8::53", "192.0.2.53"]), [""; 0]);
        let says = "c2 asks 2001:db8::53 for names, and has no route there";
        assert_eq!(found(&["2001:db8::53"]), [says]);
        assert_eq!(found(&[]), [""; 0]);
    }
}
