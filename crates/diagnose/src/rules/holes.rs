//! What could not be read: unknown is not fine.

use scene::Part;

use super::{Rule, nothing};
use crate::Look;
use crate::finding::Finding;

pub(super) const RULE: Rule = Rule { ids: &["not-seen"], needs: &[], asks: nothing, judge };

fn judge(look: Look<'_>) -> Vec<Finding> {
    let holes = look.scene.holes.iter().filter(|hole| {
        let container = hole.container.as_deref();
        look.only.is_none_or(|only| container.is_none_or(|id| id == only))
    });
    holes
        .map(|hole| {
            let part = hole.part.as_str();
            let (object, says) = match hole.container.as_deref() {
                None => (part.to_owned(), format!("{part} of this node could not be read")),
                Some(id) => {
                    let called = look.scene.container(id).map_or(id, scene::Container::called);
                    (format!("{part} of {id}"), format!("{part} of {called} could not be read"))
                }
            };
            let finding = Finding::unknown("not-seen", object, says).seen(hole.reason.clone());
            let finding = match remedy(hole.part, &hole.reason) {
                Some(remedy) => finding.fix(remedy),
                None => finding,
            };
            match &hole.container {
                Some(id) => finding.hits(id.clone()),
                None => finding,
            }
        })
        .collect()
}

fn remedy(part: Part, reason: &str) -> Option<&'static str> {
    if reason.contains("not permitted") || reason.contains("ermission denied") {
        return Some("run netwright doctor as root");
    }
    (part == Part::LegacyIptables)
        .then_some("install iptables, whose iptables-legacy-save shows them")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::question::Answers;
    use scene::{Hole, Scene};

    #[test]
    fn a_hole_is_told_with_a_remedy() {
        let hole = Hole {
            part: Part::Nftables,
            container: None,
            reason: "Operation not permitted (os error 1)".to_owned(),
        };
        let scene = Scene { holes: vec![hole], ..Scene::default() };
        let answers = Answers::default();
        let found = judge(Look { scene: &scene, answers: &answers, only: None, to: None });
        assert_eq!(found[0].says, "the packet filter of this node could not be read");
        assert_eq!(found[0].fix, ["run netwright doctor as root"]);
    }
}
