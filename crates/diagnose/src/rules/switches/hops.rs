//! How many hops a container's packets live. Each router on the way takes one, the node first.

use net::IpFamily;

use super::super::{containers, is_outbound};
use crate::Look;
use crate::command::within;
use crate::finding::{Finding, WayKind};
use crate::model::Container;

/// With so many, packets end at the node itself.
const NONE: i64 = 1;

/// The ways through the Internet have up to some 30 hops; every system begins with 64 or more (RFC
/// 1700). With fewer than this, parts of it are not reached.
const FEW: i64 = 30;

pub(super) fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for container in containers(look) {
        let Some(inside) = &container.inside else { continue };
        let of_v4 = (IpFamily::V4, "net.ipv4.ip_default_ttl".to_owned());
        let of_v6 = container.attachments.iter().map(|attachment| {
            (IpFamily::V6, format!("net.ipv6.conf.{}.hop_limit", attachment.ifname))
        });
        for (family, key) in [of_v4].into_iter().chain(of_v6) {
            // An older scene does not have it, and no packet of 0 hops is sent.
            let hops = inside.number(&key).filter(|hops| (1..FEW).contains(hops));
            let hops = hops.filter(|_| is_outbound(look.scene, container, family));
            found.extend(hops.map(|hops| few(container, family, &key, hops)));
        }
    }
    found
}

fn few(container: &Container, family: IpFamily, key: &str, hops: i64) -> Finding {
    let (called, id) = (container.called(), &container.id);
    let object = format!("{id}: {key}");
    let (version, limit) = match family {
        IpFamily::V4 => ("IPv4", "TTL"),
        IpFamily::V6 => ("IPv6", "hop limit"),
    };
    let finding = if hops <= NONE {
        let says = format!(
            "{version} packets of {called} have a {limit} of {hops}, so this node forwards none"
        );
        Finding::error("hops-too-few", object, says)
            .breaks(WayKind::Outside, Some(family))
            .breaks(WayKind::Names, Some(family))
            .breaks(WayKind::Published, Some(family))
    } else {
        let says =
            format!("{version} packets of {called} have a {limit} of {hops}, and do not get far");
        Finding::warning("hops-too-few", object, says)
    };
    let netns = &container.netns;
    finding
        .at(format!("in {called}: {key} is {hops}"))
        .hits(id.clone())
        .fix(format!("{}sysctl -w {key}=64", within(netns.as_str())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;
    use crate::model::Scene;
    use crate::path::samples::node;
    use crate::question::Answers;

    fn told(scene: &Scene) -> Vec<(Severity, String)> {
        let answers = Answers::default();
        let found = judge(Look { scene, answers: &answers, only: None, to: None });
        found.into_iter().map(|one| (one.severity, one.fix.join("; "))).collect()
    }

    #[test]
    fn packets_need_some_hops() {
        let mut scene = node();
        let mut with = |key: &str, hops: &str| {
            let inside = scene.containers[0].inside.as_mut().unwrap();
            inside.sysctls.clear();
            inside.sysctls.insert(key.to_owned(), hops.to_owned());
            told(&scene)
        };
        for key in ["net.ipv4.ip_default_ttl", "net.ipv6.conf.eth0.hop_limit"] {
            let fix = format!("nsenter --net=/run/netns/c2 sysctl -w {key}=64");
            assert_eq!(with(key, "64"), []);
            assert_eq!(with(key, "29"), [(Severity::Warning, fix.clone())]);
            assert_eq!(with(key, "1"), [(Severity::Error, fix)]);
        }
        scene.networks[0].outbound = false;
        assert_eq!(told(&scene), []);
    }
}
