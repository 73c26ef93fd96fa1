//! Who has refused a probe: ICMP's messages tell, which the kernel does not pass on to a socket.

use std::net::IpAddr;

use diagnose::model::Scene;
use diagnose::{Answer, Probe, Question};
use kernel::refusals::Refusal;

use crate::dns;

/// Tells who has refused probes of a namespace. What another machine than the other end refuses, the
/// other end has not.
pub(super) fn tell(scene: &Scene, heard: &[Refusal], all: &mut [(Question, Answer)]) {
    for (question, answer) in all {
        if let Some(named) = answer_of(scene, heard, &question.asked, answer) {
            *answer = named;
        }
    }
}

/// Returns the answer to a probe that another machine than the other end has refused.
pub(super) fn answer_of(
    scene: &Scene,
    heard: &[Refusal],
    asked: &Probe,
    answer: &Answer,
) -> Option<Answer> {
    let text = match answer {
        Answer::Refused => "it was refused",
        Answer::Unreachable { error, .. } => error,
        _ => return None,
    };
    let by = heard.iter().find_map(|one| refuser(one, asked))?;
    let error = format!("{text}{SAYS}{by}{}", who(scene, by));
    Some(Answer::Unreachable { error, hops: Vec::new() })
}

/// What stands before the address of who has refused.
const SAYS: &str = ", says ";

/// Says whether an answer tells who has refused.
pub(super) fn is_named(answer: &Answer) -> bool {
    matches!(answer, Answer::Unreachable { error, .. } if error.contains(SAYS))
}

/// Returns who refuses a probe, if it is another machine than the other end.
fn refuser(one: &Refusal, asked: &Probe) -> Option<IpAddr> {
    let (at, is_udp) = match asked {
        Probe::Connect { to } => (*to, false),
        Probe::RarePort { to } => ((*to, Probe::RARE_PORT).into(), false),
        Probe::NameByTcp { server } => ((*server, dns::PORT).into(), false),
        Probe::Name { server } => ((*server, dns::PORT).into(), true),
        _ => return None,
    };
    (one.to == at && one.is_udp == is_udp && one.by != at.ip()).then_some(one.by)
}

fn who(scene: &Scene, by: IpAddr) -> &'static str {
    match scene.host.owner_of(by) {
        Some(_) => ", which is this node",
        None => ", a machine on the way",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_machine_on_the_way_refuses_did_not_come_to_the_other_end() {
        let to = "198.51.100.9:80".parse().unwrap();
        let answered = |by: &str, is_udp: bool, answer: Answer| {
            let by = by.parse().unwrap();
            let mut all = vec![(Question { from: None, asked: Probe::Connect { to } }, answer)];
            tell(&Scene::default(), &[Refusal { by, to, is_udp }], &mut all);
            all.remove(0).1
        };
        let says = |error: &str| Answer::Unreachable { error: error.to_owned(), hops: Vec::new() };
        let by_other = "it was refused, says 192.0.2.1, a machine on the way";
        assert_eq!(answered("192.0.2.1", false, Answer::Refused), says(by_other));
        assert_eq!(answered("198.51.100.9", false, Answer::Refused), Answer::Refused);
        assert_eq!(answered("192.0.2.1", true, Answer::Refused), Answer::Refused);
        let reached = Answer::Reached { after_us: 7 };
        assert_eq!(answered("192.0.2.1", false, reached.clone()), reached);
        let by_other = "no route, says 192.0.2.1, a machine on the way";
        assert_eq!(answered("192.0.2.1", false, says("no route")), says(by_other));
    }
}
