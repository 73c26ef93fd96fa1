//! What Open vSwitch drops of what containers send, as its daemon says.

use net::IpFamily;

use super::{Rule, containers};
use crate::Look;
use crate::finding::{Finding, WayKind};
use crate::model::{Attachment, Container, SwitchDrop};

pub(super) const RULE: Rule =
    Rule { judges: "what Open vSwitch drops", ids: &["switch-drops"], judge, ..Rule::NONE };

/// The ways that a container has by its switch alone.
const ALL: [WayKind; 5] =
    [WayKind::Gateway, WayKind::Outside, WayKind::Names, WayKind::Published, WayKind::FromNode];

fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for container in containers(look) {
        for attachment in &container.attachments {
            let drops = attachment.switch_drops.iter();
            found.extend(drops.map(|drop| dropped(container, attachment, drop)));
        }
    }
    found
}

fn dropped(container: &Container, attachment: &Attachment, drop: &SwitchDrop) -> Finding {
    let (called, SwitchDrop { bridge, packet, to, flow }) = (container.called(), drop);
    let family = to.map(IpFamily::of);
    let says = format!("bridge {bridge} of Open vSwitch drops what {called} sends: {packet}");
    let object = format!("{called}: {}", attachment.network);
    let finding = Finding::error("switch-drops", object, says)
        .at(format!("{bridge}, {flow}"))
        .seen("its daemon follows the packet so (ovs-appctl ofproto/trace)")
        .hits(container.id.clone())
        .advise(format!(
            "find out who sets the flows of {bridge}, and why none lets this pass: ovs-vsctl get-controller {bridge}, ovs-ofctl dump-flows {bridge}"
        ))
        .advise(format!(
            "a bridge without a controller switches as others do with: ovs-ofctl add-flow {bridge} priority=0,actions=NORMAL"
        ));
    ALL.into_iter().fold(finding, |finding, kind| finding.breaks(kind, family))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::samples::{ip, node};
    use crate::question::Answers;

    #[test]
    fn what_the_switch_drops_is_told_with_the_flow() {
        let mut scene = node();
        let answers = Answers::default();
        let look = Look { scene: &scene, answers: &answers, only: None, to: None };
        assert_eq!(RULE.findings(look), []);
        scene.containers[0].attachments[0].switch_drops = vec![SwitchDrop {
            bridge: "br-int".to_owned(),
            packet: "packets for 10.88.0.1".to_owned(),
            to: Some(ip("10.88.0.1")),
            flow: "table 0: no flow matches".to_owned(),
        }];
        let look = Look { scene: &scene, answers: &answers, only: None, to: None };
        let found = RULE.findings(look);
        let [one] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((one.id, one.object.as_str()), ("switch-drops", "c2: mynet"));
        assert_eq!(one.place.as_deref(), Some("br-int, table 0: no flow matches"));
        let says = "bridge br-int of Open vSwitch drops what c2 sends: packets for 10.88.0.1";
        assert_eq!(one.says, says);
    }
}
