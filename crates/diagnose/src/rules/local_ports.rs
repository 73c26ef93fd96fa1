//! Senders that have no free port for a connection.

use std::net::IpAddr;

use net::IpFamily;

use super::{Rule, containers};
use crate::Look;
use crate::command::within;
use crate::finding::Finding;
use crate::question::{Answer, NAMES, Probe, Question};

pub(super) const RULE: Rule =
    Rule { judges: "local ports", ids: &["local-ports-used"], judge, ..Rule::NONE };

/// The range that the kernel begins with (linux net/ipv4/af_inet.c `inet_init_net`).
const USUAL: (u16, u16) = (32_768, 60_999);

fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    for (question, answer) in &look.answers.all {
        let Answer::NoPort { first, last, used } = answer else { continue };
        let is_told = |known: &Finding| known.hits.first() == question.from.as_ref();
        let kind = question.asked.way();
        let (to, port) = match &question.asked {
            Probe::Connect { to } => (to.ip(), to.port()),
            Probe::Name { server }
            | Probe::NameByTcp { server }
            | Probe::NameBelow { server, .. } => (*server, NAMES),
            _ => continue,
        };
        // One range is of all that a sender asks.
        let seen = seen(to, port, *used);
        match found.iter_mut().find(|known| is_told(known)) {
            Some(known) => known.seen.push(seen),
            None => found.extend(told(look, question, (*first, *last)).map(|one| one.seen(seen))),
        }
        if let Some(known) = found.iter_mut().find(|known| is_told(known)) {
            let broken = known.clone().breaks(kind, Some(IpFamily::of(to)));
            *known = broken;
        }
    }
    found
}

fn seen(to: IpAddr, port: u16, used: u32) -> String {
    let to = std::net::SocketAddr::new(to, port);
    format!(
        "the kernel found no free port for a question to {to}; {used} of them are connected there"
    )
}

fn told(look: Look<'_>, question: &Question, (first, last): (u16, u16)) -> Option<Finding> {
    let container = match &question.from {
        Some(id) => Some(containers(look).find(|container| container.id == *id)?),
        None => None,
    };
    let called = container.map_or("this node", |container| container.called());
    let object = container.map_or("this node", |container| container.id.as_str());
    let count = u32::from(last) - u32::from(first) + 1;
    let says =
        format!("{called} has no free port to connect from: all {count} local ports are in use");
    let finding = Finding::error("local-ports-used", object, says)
        .at(format!("net.ipv4.ip_local_port_range of {called} is {first} {last}"))
        .advise(format!(
            "see which program of {called} keeps its connections, or begins too many: ss -tanp"
        ));
    let Some(container) = container else { return Some(finding) };
    let finding = finding.hits(container.id.clone());
    let usual = u32::from(USUAL.1) - u32::from(USUAL.0) + 1;
    Some(match count < usual {
        true => finding.fix(format!(
            "{}sysctl -w net.ipv4.ip_local_port_range=\"{} {}\"",
            within(container.netns.as_str()),
            USUAL.0,
            USUAL.1
        )),
        false => finding,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::samples::{ip, node};
    use crate::question::Answers;

    fn told(all: Vec<(Option<&str>, Probe, Answer)>) -> Vec<(String, usize, Vec<String>)> {
        let question =
            |from: Option<&str>, asked| Question { from: from.map(str::to_owned), asked };
        let all = all.into_iter().map(|(from, asked, answer)| (question(from, asked), answer));
        let answers = Answers { all: all.collect() };
        let scene = node();
        let found = judge(Look { scene: &scene, answers: &answers, only: None, to: None });
        found.into_iter().map(|one| (one.object, one.seen.len(), one.fix)).collect()
    }

    #[test]
    fn a_sender_whose_ports_are_used_up_is_told_once() {
        let connect = || Probe::Connect { to: "198.51.100.1:80".parse().unwrap() };
        let name = || Probe::Name { server: ip("198.51.100.53") };
        let few = || Answer::NoPort { first: 40_000, last: 40_003, used: 4 };
        let fix =
            "nsenter --net=/run/netns/c2 sysctl -w net.ipv4.ip_local_port_range=\"32768 60999\"";
        let two = vec![(Some("c2"), connect(), few()), (Some("c2"), name(), few())];
        assert_eq!(told(two), [("c2".to_owned(), 2, vec![fix.to_owned()])]);
        // A range that is wide enough is used up by a program that begins too many.
        let all = Answer::NoPort { first: 32_768, last: 60_999, used: 28_232 };
        assert_eq!(told(vec![(Some("c2"), connect(), all)]), [("c2".to_owned(), 1, vec![])]);
        assert_eq!(told(vec![(None, connect(), few())]), [("this node".to_owned(), 1, vec![])]);
        let reached = Answer::Reached { after_us: 1 };
        assert_eq!(told(vec![(Some("c2"), connect(), reached)]), []);
    }
}
