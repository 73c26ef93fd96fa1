//! What a container itself lacks: loopback, a program that listens.

use std::net::IpAddr;

use net::IpFamily;

use super::{Rule, containers};
use crate::Look;
use crate::command::within;
use crate::finding::{Finding, Help, Severity, WayKind};
use crate::model::{Attachment, Container, Listener, Namespace, Part, Port};
use crate::question::{Answer, Probe};

pub(super) const RULE: Rule =
    Rule { judges: "loopback of containers", ids: &["loopback-down"], judge, ..Rule::NONE };

/// Programs that listen in containers.
pub(super) const LISTENERS: Rule = Rule {
    judges: "programs that listen",
    ids: &["nothing-listens", "listens-on-loopback", "listens-elsewhere", "program-hangs"],
    inside: &[Part::Listeners],
    judge: listeners,
    ..Rule::NONE
};

fn insides(look: Look<'_>) -> impl Iterator<Item = (&Container, &Namespace)> {
    containers(look).filter_map(|container| Some((container, container.inside.as_ref()?)))
}

fn judge(look: Look<'_>) -> Vec<Finding> {
    let of_one = |(container, inside): (&Container, &Namespace)| {
        loopback(container, inside).or_else(|| {
            let is_read = !look.scene.lacks(Part::Links, Some(&container.id));
            without_address(container, inside).filter(|_| is_read)
        })
    };
    insides(look).filter_map(of_one).chain(of_node(look)).collect()
}

/// By the node's own loopback its programs reach published ports.
fn of_node(look: Look<'_>) -> Option<Finding> {
    let lo = look.scene.host.link("lo").filter(|lo| !lo.up)?;
    let is_here =
        |port: &Port| port.host_ip.is_none_or(|at| at.is_unspecified() || at.is_loopback());
    let publishes = |container: &&Container| {
        container.attachments.iter().flat_map(|one| &one.ports).any(is_here)
    };
    let hits: Vec<String> =
        containers(look).filter(publishes).map(|container| container.id.clone()).collect();
    if hits.is_empty() {
        return None;
    }
    let says =
        "loopback of this node is down, so its programs do not reach published ports by 127.0.0.1";
    let finding = Finding::error("loopback-down", "this node", says)
        .at(format!("link {}", lo.name))
        .fix("ip link set lo up")
        .breaks(WayKind::PublishedHere, None);
    Some(Finding { hits, ..finding })
}

fn listeners(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (container, inside) in insides(look) {
        for attachment in &container.attachments {
            let is_of_v4 = attachment.addresses.iter().any(|net| net.addr().is_ipv4());
            for port in &attachment.ports {
                let mut families = vec![family_at(port)];
                // One that serves IPv6 alone does not answer packets of IPv4 (IPV6_V6ONLY).
                families.extend((families[0].is_none() && is_of_v4).then_some(Some(IpFamily::V4)));
                let mut faults = families
                    .into_iter()
                    .filter_map(|family| listens(container, inside, attachment, port, family));
                let fault = faults.next();
                found.extend(fault.or_else(|| hangs(look, container, inside, attachment, port)));
            }
        }
        found.extend(frozen(look, container, inside));
    }
    found
}

fn loopback(container: &Container, inside: &Namespace) -> Option<Finding> {
    let lo = inside.link("lo").filter(|lo| !lo.up)?;
    let says = format!(
        "loopback of {} is down, so its programs do not reach each other",
        container.called()
    );
    Some(
        Finding::error("loopback-down", container.id.clone(), says)
            .at(format!("link {} of {}", lo.name, container.netns))
            .hits(container.id.clone())
            .fix(format!("{}ip link set lo up", within(container.netns.as_str())))
            .breaks(WayKind::Inside, None),
    )
}

/// The kernel gives loopback its address when it is set up.
fn without_address(container: &Container, inside: &Namespace) -> Option<Finding> {
    let lo = inside.link("lo")?;
    let mut own = lo.addresses.iter().map(|own| own.address.addr());
    if own.any(|address| address.is_ipv4() && address.is_loopback()) {
        return None;
    }
    let called = container.called();
    let says = format!(
        "loopback of {called} has no address of IPv4, so its programs do not reach each other at 127.0.0.1"
    );
    Some(
        Finding::error("loopback-down", container.id.clone(), says)
            .at(format!("link {} of {}", lo.name, container.netns))
            .hits(container.id.clone())
            .fix(format!("{}ip addr add 127.0.0.1/8 dev lo", within(container.netns.as_str())))
            .breaks(WayKind::Inside, Some(IpFamily::V4)),
    )
}

/// Says whether a socket takes packets of an IP version; `None`: of any.
pub(super) fn speaks(listener: &Listener, family: Option<IpFamily>) -> bool {
    match (listener.at.ip(), family) {
        (_, None) | (IpAddr::V4(_), Some(IpFamily::V4)) | (IpAddr::V6(_), Some(IpFamily::V6)) => {
            true
        }
        (IpAddr::V6(own), Some(IpFamily::V4)) => own.is_unspecified() && !listener.v6only,
        (IpAddr::V4(_), Some(IpFamily::V6)) => false,
    }
}

/// A port of one address of the node leads to the container's address of the same version.
fn family_at(port: &Port) -> Option<IpFamily> {
    port.host_ip.filter(|address| !address.is_unspecified()).map(IpFamily::of)
}

/// Returns the sockets at a port that take packets of an IP version; `None`: of any.
fn at_port<'i>(inside: &'i Namespace, port: &Port, family: Option<IpFamily>) -> Vec<&'i Listener> {
    let is_there = |listener: &&Listener| {
        listener.transport == port.transport
            && listener.at.port() == port.container
            && speaks(listener, family)
    };
    inside.listeners.iter().filter(is_there).collect()
}

/// Says whether a published port leads to a socket. To which address of the container it leads, only
/// its result of ADD tells.
fn is_led_to(listener: &Listener, attachment: &Attachment) -> bool {
    let (address, own) = (listener.at.ip(), &attachment.addresses);
    let is_own = own.is_empty() || own.iter().any(|net| net.addr() == address);
    !address.is_loopback() && (address.is_unspecified() || is_own)
}

fn listens(
    container: &Container,
    inside: &Namespace,
    attachment: &Attachment,
    port: &Port,
    family: Option<IpFamily>,
) -> Option<Finding> {
    let listeners = at_port(inside, port, family);
    if listeners.iter().any(|listener| is_led_to(listener, attachment)) {
        return None;
    }
    let elsewhere = listeners.iter().find(|listener| !listener.at.ip().is_loopback()).copied();
    let what = format!("{}/{}", port.container, port.transport.as_str());
    let object = format!("{}:{what}", container.id);
    let finding = match elsewhere.or(listeners.first().copied()) {
        Some(listener) if !listener.at.ip().is_loopback() => {
            let program = listener.program.as_deref().unwrap_or("its program");
            let own: Vec<String> =
                attachment.addresses.iter().map(|net| net.addr().to_string()).collect();
            let says = format!(
                "{program} of {} listens on {} alone, and its published port {what} leads to {}",
                container.called(),
                listener.at,
                own.join(" and ")
            );
            Finding::error("listens-elsewhere", object, says).advise(format!(
                "let {program} listen on 0.0.0.0 or [::], or publish the port for the network of {}",
                listener.at.ip()
            ))
        }
        Some(listener) => {
            let program = listener.program.as_deref().unwrap_or("its program");
            let says = format!(
                "{program} of {} listens on {} alone, and its port {what} is published",
                container.called(),
                listener.at
            );
            Finding::error("listens-on-loopback", object, says).advise(format!(
                "let {program} listen on 0.0.0.0 or [::] instead of {}",
                listener.at.ip()
            ))
        }
        None => {
            let by = family.map(|family| format!(" by {family}")).unwrap_or_default();
            let says = format!(
                "no program of {} listens on its published port {what}{by}",
                container.called()
            );
            Finding::error("nothing-listens", object, says)
                .advise(format!(
                    "start the program, or publish the port on which it listens: {}ss -ln",
                    within(container.netns.as_str())
                ))
                .breaks(WayKind::Inside, family)
        }
    };
    Some(not_served(finding, container, port, family))
}

/// The port is published, and no program behind it answers.
fn not_served(
    finding: Finding,
    container: &Container,
    port: &Port,
    family: Option<IpFamily>,
) -> Finding {
    let what = format!("{}/{}", port.container, port.transport.as_str());
    finding
        .at(format!("port {what} of {}, published as {}", container.called(), port.host))
        .hits(container.id.clone())
        .breaks(WayKind::Published, family)
        .breaks(WayKind::PublishedHere, family)
        .breaks(WayKind::FromNode, family)
}

/// A program that is stopped or frozen, or that accepts no connections. The kernel takes some for
/// it until its queue is full, so a probe may be answered all the same.
fn hangs(
    look: Look<'_>,
    container: &Container,
    inside: &Namespace,
    attachment: &Attachment,
    port: &Port,
) -> Option<Finding> {
    let mut listeners = at_port(inside, port, family_at(port));
    listeners.retain(|listener| is_led_to(listener, attachment));
    let first = *listeners.first()?;
    // Of several each gets some of the connections.
    let full: Option<u32> = listeners.iter().map(|listener| listener.full).sum();
    let program = first.program.as_deref().unwrap_or("the program");
    let what = format!("{}/{}", port.container, port.transport.as_str());
    let whose = format!("{program} at the published port {what} of {}", container.called());
    let is_halted = |listener: &&Listener| listener.stopped || listener.frozen.is_some();
    let frozen = first.frozen.as_deref().filter(|_| listeners.iter().all(is_halted));
    let (severity, says, seen, help) = if let Some(by) = frozen {
        (
            Severity::Error,
            format!("{whose} is frozen, and serves no client"),
            format!("its control group is frozen: {by}"),
            thaw(by).to_vec(),
        )
    } else if listeners.iter().all(is_halted) {
        let (pid, help) = match first.pid {
            Some(pid) => (pid.to_string(), Help::Command(format!("kill -CONT {pid}"))),
            None => ("PROCESS".to_owned(), Help::Advice("let it go on: kill -CONT".to_owned())),
        };
        let meant = "if it is being debugged, that is meant".to_owned();
        (
            Severity::Error,
            format!("{whose} is stopped, and serves no client"),
            format!("process {pid} is in state T (SIGSTOP, or a debugger)"),
            vec![help, Help::Advice(meant)],
        )
    } else {
        // A queue may be full for a moment.
        let severity = match (full, is_accepted(look, attachment, port)) {
            (None, _) | (Some(_), Some(true)) => return None,
            (Some(_), Some(false)) => Severity::Error,
            (Some(_), None) => Severity::Warning,
        };
        (
            severity,
            format!("{whose} accepts no connections, and the kernel drops further ones"),
            format!("{} connections wait, and no more may", full.unwrap_or_default()),
            vec![Help::Advice("look at what the program waits for, or start it again".to_owned())],
        )
    };
    let finding = Finding::error("program-hangs", format!("{}:{what}", container.id), says)
        .seen(seen)
        .breaks(WayKind::Inside, None);
    let finding = help.into_iter().fold(Finding { severity, ..finding }, Finding::help);
    Some(not_served(finding, container, port, family_at(port)))
}

/// The command that lets the processes of a control group go on, by its file.
fn thaw(by: &str) -> [Help; 2] {
    let word = if by.ends_with("freezer.state") { "THAWED" } else { "0" };
    let meant = "if it is paused on purpose, that is meant".to_owned();
    [Help::Command(format!("echo {word} >{by}")), Help::Advice(meant)]
}

/// All programs of a container are frozen. Where it publishes no port, that is told to a person who
/// asks for the container: it may be paused on purpose.
fn frozen(look: Look<'_>, container: &Container, inside: &Namespace) -> Option<Finding> {
    let publishes = container.attachments.iter().any(|one| !one.ports.is_empty());
    if look.only.is_none() || publishes {
        return None;
    }
    let mut reached = inside.listeners.iter().filter(|one| !one.at.ip().is_loopback());
    let by = reached.next()?.frozen.as_deref()?;
    if !reached.all(|one| one.frozen.is_some()) {
        return None;
    }
    let says = format!("the programs of {} are frozen, and serve no client", container.called());
    let finding = Finding::warning("program-hangs", container.id.clone(), says)
        .seen(format!("their control group is frozen: {by}"))
        .hits(container.id.clone());
    Some(thaw(by).into_iter().fold(finding, Finding::help))
}

/// Says whether a connection of the node to a container's port was taken; `None`: none was tried.
fn is_accepted(look: Look<'_>, attachment: &Attachment, port: &Port) -> Option<bool> {
    let is_own = |address: IpAddr| attachment.addresses.iter().any(|net| net.addr() == address);
    let tried = look.answers.from(None).filter_map(|(asked, answer)| match asked {
        Probe::Connect { to } if to.port() == port.container && is_own(to.ip()) => Some(answer),
        _ => None,
    });
    let taken: Vec<bool> = tried.map(|answer| matches!(answer, Answer::Reached { .. })).collect();
    (!taken.is_empty()).then(|| taken.contains(&true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Scene, Transport};
    use crate::question::{Answers, Question};

    fn ids(scene: &Scene) -> Vec<&'static str> {
        let answers = Answers::default();
        let look = Look { scene, answers: &answers, only: None, to: None };
        let all = RULE.findings(look).into_iter().chain(LISTENERS.findings(look));
        all.map(|finding| finding.id).collect()
    }

    fn listening(at: &str) -> Scene {
        let port = Port { transport: Transport::Tcp, host: 8080, host_ip: None, container: 80 };
        let listener = Listener {
            transport: Transport::Tcp,
            at: at.parse().unwrap(),
            v6only: false,
            pid: None,
            program: Some("nginx".to_owned()),
            full: None,
            stopped: false,
            frozen: None,
        };
        let lo = crate::routes::samples::link(1, "lo", &["127.0.0.1/8"]);
        let inside =
            Namespace { links: vec![lo], listeners: vec![listener], ..Namespace::default() };
        let container = Container {
            id: "c1".to_owned(),
            alive: Some(true),
            inside: Some(inside),
            attachments: vec![Attachment { ports: vec![port], ..Attachment::default() }],
            ..Container::default()
        };
        Scene { containers: vec![container], ..Scene::default() }
    }

    #[test]
    fn a_published_port_needs_a_program() {
        assert_eq!(ids(&listening("0.0.0.0:80")), [""; 0]);
        assert_eq!(ids(&listening("[::]:80")), [""; 0]);
        assert_eq!(ids(&listening("127.0.0.1:80")), ["listens-on-loopback"]);
        assert_eq!(ids(&listening("0.0.0.0:81")), ["nothing-listens"]);
    }

    /// A port leads to the container's address on the network that publishes it.
    #[test]
    fn a_program_may_listen_on_another_address_or_ip_version() {
        let mut scene = listening("192.0.2.7:80");
        let addresses = &mut scene.containers[0].attachments[0].addresses;
        addresses.push("10.88.0.2/24".parse().unwrap());
        assert_eq!(ids(&scene), ["listens-elsewhere"]);
        scene.containers[0].inside.as_mut().unwrap().listeners[0].at =
            "10.88.0.2:80".parse().unwrap();
        assert_eq!(ids(&scene), [""; 0]);
        let at = |host: &str, own: &str| {
            let mut scene = listening(own);
            scene.containers[0].attachments[0].ports[0].host_ip = Some(host.parse().unwrap());
            ids(&scene)
        };
        assert_eq!(at("2001:db8::2", "0.0.0.0:80"), ["nothing-listens"]);
        assert_eq!(at("192.0.2.2", "[::]:80"), [""; 0]);
        assert_eq!(at("::", "0.0.0.0:80"), [""; 0]);
    }

    /// Packets of IPv4 are refused.
    #[test]
    fn a_program_may_serve_ipv6_alone() {
        let mut scene = listening("[::]:80");
        let attachment = &mut scene.containers[0].attachments[0];
        attachment.addresses.push("fd00:88::2/64".parse().unwrap());
        scene.containers[0].inside.as_mut().unwrap().listeners[0].v6only = true;
        assert_eq!(ids(&scene), [""; 0]);
        let attachment = &mut scene.containers[0].attachments[0];
        attachment.addresses.push("10.88.0.2/24".parse().unwrap());
        assert_eq!(ids(&scene), ["nothing-listens"]);
        scene.containers[0].inside.as_mut().unwrap().listeners[0].v6only = false;
        assert_eq!(ids(&scene), [""; 0]);
    }

    #[test]
    fn a_program_that_accepts_nothing() {
        let with = |full: Option<u32>, stopped: bool, answer: Option<Answer>| {
            let mut scene = listening("[::]:80");
            let address = "10.88.0.2/24".parse().unwrap();
            scene.containers[0].attachments[0].addresses.push(address);
            let listener = &mut scene.containers[0].inside.as_mut().unwrap().listeners[0];
            (listener.full, listener.stopped) = (full, stopped);
            let to = "10.88.0.2:80".parse().unwrap();
            let question = Question { from: None, asked: Probe::Connect { to } };
            let all = answer.map(|answer| (question, answer)).into_iter().collect();
            let answers = Answers { all };
            let found = listeners(Look { scene: &scene, answers: &answers, only: None, to: None });
            found.into_iter().map(|one| (one.severity, one.id)).collect::<Vec<_>>()
        };
        let reached = || Some(Answer::Reached { after_us: 1 });
        let silent = || Some(Answer::Silent { hops: Vec::new() });
        assert_eq!(with(None, false, silent()), []);
        // It is full for a moment.
        assert_eq!(with(Some(9), false, reached()), []);
        assert_eq!(with(Some(9), false, silent()), [(Severity::Error, "program-hangs")]);
        assert_eq!(with(Some(9), false, None), [(Severity::Warning, "program-hangs")]);
        // The kernel takes connections for it.
        assert_eq!(with(None, true, reached()), [(Severity::Error, "program-hangs")]);
    }

    /// Others may have been paused on purpose.
    #[test]
    fn programs_that_are_frozen() {
        let told = |publishes: bool, only: Option<&str>, frozen: Option<&str>| {
            let mut scene = listening("0.0.0.0:80");
            let listener = &mut scene.containers[0].inside.as_mut().unwrap().listeners[0];
            listener.frozen = frozen.map(str::to_owned);
            if !publishes {
                scene.containers[0].attachments[0].ports.clear();
            }
            let answers = Answers::default();
            let found = listeners(Look { scene: &scene, answers: &answers, only, to: None });
            let told = found.into_iter().map(|one| (one.severity, one.object, one.fix.join("; ")));
            told.collect::<Vec<_>>()
        };
        let first = "/sys/fs/cgroup/freezer/pod/freezer.state";
        let second = "/sys/fs/cgroup/pod/cgroup.freeze";
        let fix = |word: &str, file: &str| format!("echo {word} >{file}");
        let error = |fix: String| [(Severity::Error, "c1:80/tcp".to_owned(), fix)];
        assert_eq!(told(true, None, None), []);
        assert_eq!(told(true, None, Some(first)), error(fix("THAWED", first)));
        assert_eq!(told(true, Some("c1"), Some(second)), error(fix("0", second)));
        assert_eq!(told(false, None, Some(second)), []);
        assert_eq!(told(false, Some("c1"), None), []);
        let warning = [(Severity::Warning, "c1".to_owned(), fix("0", second))];
        assert_eq!(told(false, Some("c1"), Some(second)), warning);
    }

    #[test]
    fn loopback_that_is_down() {
        let mut scene = listening("0.0.0.0:80");
        scene.containers[0].inside.as_mut().unwrap().links[0].up = false;
        assert_eq!(ids(&scene), ["loopback-down"]);
    }

    /// It matters where a port is published.
    #[test]
    fn loopback_of_the_node_that_is_down() {
        let mut scene = listening("0.0.0.0:80");
        let lo = crate::routes::samples::link(1, "lo", &["127.0.0.1/8"]);
        scene.host.links = vec![crate::model::Link { up: false, ..lo }];
        assert_eq!(ids(&scene), ["loopback-down"]);
        scene.containers[0].attachments[0].ports[0].host_ip = Some([192, 0, 2, 2].into());
        assert_eq!(ids(&scene), [""; 0]);
    }

    #[test]
    fn loopback_that_has_no_address() {
        let mut scene = listening("0.0.0.0:80");
        scene.containers[0].inside.as_mut().unwrap().links[0].addresses.clear();
        assert_eq!(ids(&scene), ["loopback-down"]);
        scene.holes = vec![crate::model::Hole {
            part: Part::Links,
            container: Some("c1".to_owned()),
            reason: "Operation not permitted".to_owned(),
        }];
        assert_eq!(ids(&scene), [""; 0]);
    }

    /// What could not be seen is not absent.
    #[test]
    fn sockets_that_could_not_be_read_are_not_judged() {
        let mut scene = listening("0.0.0.0:81");
        scene.holes = vec![crate::model::Hole {
            part: Part::Listeners,
            container: Some("c1".to_owned()),
            reason: "Operation not permitted".to_owned(),
        }];
        assert_eq!(ids(&scene), ["not-judged"]);
    }
}
