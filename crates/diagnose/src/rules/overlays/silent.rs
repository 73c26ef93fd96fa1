//! Nothing comes back through a tunnel, although the machine at its other end answers.

use net::IpFamily;

use super::super::tunnels::{of_lost, router};
use super::{End, TunnelPath, near, remake};
use crate::Look;
use crate::finding::{Finding, Severity, WayKind};
use crate::model::Link;
use crate::question::{Answer, Probe, Question};
use crate::whose;

/// The question to the router of a route, which is in the tunnel: the other node itself. Only that of
/// VXLAN has an address of its own there.
pub(super) fn asks(look: Look<'_>, led: &TunnelPath<'_>) -> Option<Question> {
    let End::At(end) = led.end else { return None };
    near(look, led.tunnel, end)?;
    router(&look.scene.host, led.route, led.tunnel)
        .map(|to| Question { from: None, asked: Probe::Echo { to } })
}

pub(super) fn judge(look: Look<'_>, led: &TunnelPath<'_>, known: &[Finding]) -> Option<Finding> {
    let End::At(end) = led.end else { return None };
    let TunnelPath { route, tunnel, .. } = led;
    let [who, echo] = near(look, tunnel, end)?;
    let is_there = look.answers.to(&who).and_then(Answer::has_owner) == Some(true);
    let answers = matches!(look.answers.to(&echo), Some(Answer::Reached { .. }));
    let router = router(&look.scene.host, route, tunnel)?;
    let asked = asks(look, led)?;
    let is_silent = look.answers.to(&asked).is_some_and(Answer::is_lost);
    // A machine that answers no echo request tells nothing by its silence in the tunnel.
    if !is_there || !answers || !is_silent || is_answered(look, led) {
        return None;
    }
    let (name, to) = (&tunnel.name, route.to);
    let object = format!("{name}: {to}");
    if known.iter().any(|one| one.object == object || one.object == *name) {
        return None;
    }
    let says = format!(
        "nothing comes back through {name} from {end}, which itself answers: {} is lost on the way, or {end} does not take it for this node's",
        outer(tunnel)
    );
    let finding = Finding::error("tunnel-silent", object, says)
        .at(super::place(tunnel, end))
        .seen(format!(
            "{router}, the router for {to} in the tunnel, does not answer an echo request, and {end} answers one beside the tunnel"
        ))
        .advise(format!(
            "let the network between the nodes, and the filter of {end}, pass {}: tcpdump there shows whether it comes",
            outer(tunnel)
        ))
        .advise(format!(
            "see on {end} whether its tunnel still has the hardware address and the addresses that this node has for it, and the way back to this node: ip -d link; bridge fdb; ip route"
        ))
        .advise(remake(tunnel))
        .breaks(WayKind::Nodes, Some(IpFamily::of(to.addr())));
    let finding = Finding { whose: whose::of_link(tunnel, look.scene), ..finding };
    let finding = of_lost(look, finding, |address| to.contains(&address));
    // That no container was lost is no proof: the router may drop echo requests in the tunnel.
    Some(match finding.hits.is_empty() {
        true => Finding { severity: Severity::Warning, ..finding },
        false => finding,
    })
}

/// Says whether anything behind a tunnel answered anybody.
fn is_answered(look: Look<'_>, led: &TunnelPath<'_>) -> bool {
    look.answers.all.iter().any(|(question, answer)| {
        let is_answer = answer.is_of_other_end() || matches!(answer, Answer::UpTo { .. });
        is_answer && question.asked.destination().is_some_and(|to| led.route.to.contains(&to))
    })
}

/// The packets that carry those in a tunnel.
fn outer(tunnel: &Link) -> String {
    match tunnel.port {
        Some(port) => format!("VXLAN (UDP port {port})"),
        None => "VXLAN".to_owned(),
    }
}
