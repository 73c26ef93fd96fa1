//! Whose a table, a route or a link is, and why that is thought.

use crate::filter::Place;
use crate::model::filter::Table;
use crate::model::{Link, Route, Scene};

/// A program that changes a node's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// This project.
    Ours,
    Firewalld,
    Ufw,
    Docker,
    Podman,
    KubeProxy,
    Kubelet,
    KubeRouter,
    Calico,
    Cilium,
    Antrea,
    Flannel,
    Weave,
    Libvirt,
    NetworkManager,
    Networkd,
    Tailscale,
    WireGuard,
    OpenVswitch,
    ReferencePlugins,
    Fail2ban,
}

impl Owner {
    const fn name(self) -> &'static str {
        match self {
            Owner::Ours => "Netwright",
            Owner::Firewalld => "firewalld",
            Owner::Ufw => "ufw",
            Owner::Docker => "Docker",
            Owner::Podman => "podman (netavark)",
            Owner::KubeProxy => "kube-proxy",
            Owner::Kubelet => "kubelet",
            Owner::KubeRouter => "kube-router",
            Owner::Calico => "Calico",
            Owner::Cilium => "Cilium",
            Owner::Antrea => "Antrea",
            Owner::Flannel => "flannel",
            Owner::Weave => "Weave Net",
            Owner::Libvirt => "libvirt",
            Owner::NetworkManager => "NetworkManager",
            Owner::Networkd => "systemd-networkd",
            Owner::Tailscale => "Tailscale",
            Owner::WireGuard => "WireGuard (wg-quick)",
            Owner::OpenVswitch => "Open vSwitch",
            Owner::ReferencePlugins => "the reference plugins of CNI",
            Owner::Fail2ban => "fail2ban",
        }
    }

    /// The name of its process in a scene.
    const fn program(self) -> Option<&'static str> {
        Some(match self {
            Owner::Firewalld => "firewalld",
            Owner::Docker => "dockerd",
            Owner::Podman => "podman",
            Owner::KubeProxy => "kube-proxy",
            Owner::Kubelet => "kubelet",
            Owner::KubeRouter => "kube-router",
            Owner::Calico => "calico-node",
            Owner::Cilium => "cilium-agent",
            Owner::Flannel => "flanneld",
            Owner::Libvirt => "libvirtd",
            Owner::NetworkManager => "NetworkManager",
            Owner::Networkd => "systemd-networkd",
            Owner::Tailscale => "tailscaled",
            Owner::OpenVswitch => "ovs-vswitchd",
            Owner::Ours
            | Owner::Ufw
            | Owner::Antrea
            | Owner::Weave
            | Owner::WireGuard
            | Owner::ReferencePlugins
            | Owner::Fail2ban => return None,
        })
    }

    /// It carries out decisions of people about who may talk to whom.
    const fn decides(self) -> bool {
        matches!(
            self,
            Owner::Ours
                | Owner::KubeRouter
                | Owner::Calico
                | Owner::Cilium
                | Owner::Antrea
                | Owner::Weave
        )
    }

    /// Says whose it is, and why that is thought.
    fn says(self, scene: &Scene, sign: &str) -> String {
        let runs = self.program().is_some_and(|program| scene.program(program).is_some());
        let name = self.name();
        if runs { format!("{name}, which is running") } else { format!("{name}, by {sign}") }
    }
}

/// The table of ours that translates addresses and leads ports to containers.
pub(crate) const OUR_TABLE: &str = "netwright";
/// The table of ours that carries out network policy.
pub(crate) const OUR_POLICY_TABLE: &str = "netwright-policy";

/// Tables by the beginning of their names.
const TABLES: [(&str, Owner); 20] = [
    ("netwright", Owner::Ours),
    ("firewalld", Owner::Firewalld),
    ("docker-bridges", Owner::Docker),
    ("netavark", Owner::Podman),
    ("kube-proxy", Owner::KubeProxy),
    ("kube-ipvs", Owner::KubeProxy),
    ("kube-router", Owner::KubeRouter),
    ("calico", Owner::Calico),
    ("cilium", Owner::Cilium),
    ("antrea", Owner::Antrea),
    ("flannel", Owner::Flannel),
    ("libvirt", Owner::Libvirt),
    ("nm-", Owner::NetworkManager),
    ("io.systemd", Owner::Networkd),
    ("ts-", Owner::Tailscale),
    ("tailscale", Owner::Tailscale),
    ("wg-quick", Owner::WireGuard),
    ("cni_", Owner::ReferencePlugins),
    ("f2b", Owner::Fail2ban),
    ("ovn", Owner::OpenVswitch),
];

/// Chains by the beginning of their names.
const CHAINS: [(&str, Owner); 27] = [
    ("NETWRIGHT", Owner::Ours),
    ("ufw", Owner::Ufw),
    ("DOCKER", Owner::Docker),
    ("NETAVARK", Owner::Podman),
    ("KUBE-ROUTER", Owner::KubeRouter),
    ("KUBE-NWPLCY", Owner::KubeRouter),
    ("KUBE-POD-FW", Owner::KubeRouter),
    ("KUBE-FIREWALL", Owner::Kubelet),
    ("KUBE-KUBELET", Owner::Kubelet),
    ("KUBE-", Owner::KubeProxy),
    ("cali-", Owner::Calico),
    ("CILIUM_", Owner::Cilium),
    ("OLD_CILIUM_", Owner::Cilium),
    ("ANTREA", Owner::Antrea),
    ("FLANNEL", Owner::Flannel),
    ("WEAVE", Owner::Weave),
    ("LIBVIRT", Owner::Libvirt),
    ("nm-", Owner::NetworkManager),
    ("ts-", Owner::Tailscale),
    ("CNI-", Owner::ReferencePlugins),
    ("f2b-", Owner::Fail2ban),
    ("FORWARD_direct", Owner::Firewalld),
    ("FORWARD_IN_ZONES", Owner::Firewalld),
    ("INPUT_direct", Owner::Firewalld),
    ("INPUT_ZONES", Owner::Firewalld),
    ("FWDI_", Owner::Firewalld),
    ("FWDO_", Owner::Firewalld),
];

fn by_start(names: &[(&str, Owner)], name: &str) -> Option<Owner> {
    names.iter().find(|(start, _)| name.starts_with(start)).map(|(_, owner)| *owner)
}

/// Returns the program that has made a rule, or has set a policy, with the sign of it.
pub(crate) fn owner_of(place: &Place, scene: &Scene) -> Option<(Owner, String)> {
    if let Some(owner) = by_start(&TABLES, &place.table) {
        return Some((owner, "the table's name".to_owned()));
    }
    if let Some(owner) = by_start(&CHAINS, &place.chain) {
        return Some((owner, "the chain's name".to_owned()));
    }
    // Calico marks its rules with a hash, and kube-proxy with words.
    match place.comment.as_deref() {
        Some(comment) if comment.starts_with("cali:") => {
            return Some((Owner::Calico, "the rule's comment".to_owned()));
        }
        Some(comment) if comment.starts_with("kubernetes ") => {
            return Some((Owner::KubeProxy, "the rule's comment".to_owned()));
        }
        _ => {}
    }
    if place.rule.is_some() {
        return None;
    }
    // A policy belongs to who has chains of its own behind it. Docker sets one only for FORWARD.
    let is_same =
        |table: &&Table| table.name == place.table && table.family.as_str() == place.family;
    let table = scene.host.filter.tables.iter().find(is_same);
    let chains = table.into_iter().flat_map(|table| &table.chains).map(|chain| chain.name.as_str());
    let legacy = scene.host.filter.legacy.iter().filter(|table| {
        place.legacy && table.name == place.table && table.ipv4 == (place.family == "iptables")
    });
    let legacy = legacy.flat_map(|table| &table.chains).map(String::as_str);
    let names: Vec<&str> = chains.chain(legacy).collect();
    let has = |owner| names.iter().any(|name| by_start(&CHAINS, name) == Some(owner));
    let owner = if has(Owner::Ufw) {
        Owner::Ufw
    } else if place.chain == "FORWARD" && has(Owner::Docker) {
        Owner::Docker
    } else {
        return None;
    };
    Some((owner, "its chains in this table".to_owned()))
}

/// Calico's chain that keeps what is for an address of the cluster's Services, and for no Service,
/// from going in circles: no person decided that (projectcalico/calico: felix/rules/static.go,
/// `ChainCIDRBlock`).
const FOR_SERVICES: [&str; 2] = ["cali-cidr-block", "filter-cali-cidr-block"];

/// Calico's chains that ask for each container's link its own chain, and drop what comes from a
/// link, or is for one, that Calico does not know: no person decided that (projectcalico/calico:
/// felix/rules/dispatch.go). With nftables they have a prefix.
const FOR_LINKS: [&str; 2] = ["cali-from-wl-dispatch", "cali-to-wl-dispatch"];

/// Says whether a place drops what belongs to a link that Calico does not know.
pub(crate) fn is_for_links(place: &Place) -> bool {
    let chain = place.chain.strip_prefix("filter-").unwrap_or(&place.chain);
    FOR_LINKS.iter().any(|start| chain.starts_with(start))
}

/// Says whether a packet is dropped because people decided who may talk to whom: that is no fault.
/// `back`: it is an answer. Policies let the answers to what they let through pass, so a rule of
/// another program that drops one carries out no policy. No chain of ours drops what none of its
/// rules judges: another program told it to.
pub(crate) fn is_policy(place: &Place, back: bool, scene: &Scene) -> bool {
    match owner_of(place, scene) {
        Some((Owner::Ours, _)) => place.rule.is_some(),
        Some((owner, _)) => {
            owner.decides() && !back && !is_for_services(place) && !is_for_links(place)
        }
        None => false,
    }
}

/// Says whether a place keeps packets from addresses of a cluster's Services.
pub(crate) fn is_for_services(place: &Place) -> bool {
    FOR_SERVICES.contains(&place.chain.as_str())
}

/// Says whose a rule or a policy is.
pub(crate) fn of_place(place: &Place, scene: &Scene) -> Option<String> {
    if let Some((owner, sign)) = owner_of(place, scene) {
        return Some(owner.says(scene, &sign));
    }
    let is_iptables = matches!(place.family, "ip" | "ip6")
        && matches!(place.table.as_str(), "filter" | "nat" | "mangle" | "raw" | "security")
        && place.base.chars().all(|letter| letter.is_ascii_uppercase());
    (is_iptables || place.legacy)
        .then(|| "unknown: a person or a program that uses iptables".to_owned())
}

/// Links by the beginning of their names.
const LINKS: [(&str, Owner); 12] = [
    ("nw-vxlan", Owner::Ours),
    ("docker", Owner::Docker),
    ("br-", Owner::Docker),
    ("podman", Owner::Podman),
    ("cali", Owner::Calico),
    ("vxlan.calico", Owner::Calico),
    ("cilium", Owner::Cilium),
    ("flannel", Owner::Flannel),
    ("virbr", Owner::Libvirt),
    ("tailscale", Owner::Tailscale),
    ("weave", Owner::Weave),
    ("ovs-", Owner::OpenVswitch),
];

/// Returns the program that has made a link, by its name.
pub(crate) fn owner_of_link(link: &Link) -> Option<Owner> {
    by_start(&LINKS, &link.name)
}

/// Says whose a link is.
pub(crate) fn of_link(link: &Link, scene: &Scene) -> Option<String> {
    if let Some(owner) = owner_of_link(link) {
        return Some(owner.says(scene, "the link's name"));
    }
    match link.kind.as_deref() {
        Some("wireguard") => Some(format!("WireGuard: {} is a tunnel of it", link.name)),
        Some("tun") => Some(format!("a VPN or another program that has the tunnel {}", link.name)),
        Some("openvswitch") => Some(Owner::OpenVswitch.says(scene, "the link's kind")),
        _ => None,
    }
}

/// Says whose a route is: by its link, or by its protocol (linux include/uapi/linux/rtnetlink.h
/// `RTPROT_*`).
pub(crate) fn of_route(route: &Route, scene: &Scene) -> Option<String> {
    let link = route.hops.first().and_then(|hop| scene.host.link_of(hop.link?));
    if let Some(whose) = link.and_then(|link| of_link(link, scene)) {
        return Some(whose);
    }
    let (name, program) = match route.protocol? {
        2 => ("the kernel, for an address of the link", None),
        3 => ("unknown: a person or a program that uses ip route", None),
        4 => ("a static route of an administrator or a network manager", None),
        9 | 18 => ("a router, by its advertisements", None),
        11 => ("FRR's zebra, by the route's protocol", None),
        12 => ("BIRD, by the route's protocol", Some(Owner::Calico)),
        16 => ("a DHCP client, by the route's protocol", None),
        78 | 79 => ("Netwright's routing between nodes", None),
        186 => ("a BGP daemon, by the route's protocol", None),
        188 => ("an OSPF daemon, by the route's protocol", None),
        _ => return None,
    };
    match program.and_then(Owner::program).and_then(|program| scene.program(program)) {
        Some(program) => Some(format!("{name}; {} is running", program.name)),
        None => Some(name.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::samples::{base, chain, dropping, table};
    use crate::model::Program;
    use crate::model::filter::{Family, Hook};

    fn place(table: &str, chain: &str, rule: bool) -> Place {
        Place {
            family: "ip",
            legacy: false,
            table: table.to_owned(),
            hook: Hook::Forward,
            base: "FORWARD".to_owned(),
            priority: 0,
            chain: chain.to_owned(),
            rule: rule.then_some((1, 1)),
            comment: None,
            says: "drop".to_owned(),
            calls: Vec::new(),
        }
    }

    #[test]
    fn rules_tell_whose_they_are() {
        let programs = vec![Program { name: "firewalld".to_owned(), pid: 7 }];
        let scene = Scene { programs, ..Scene::default() };
        for (table, chain, expected) in [
            ("firewalld", "filter_FORWARD", "firewalld, which is running"),
            ("filter", "ufw-user-forward", "ufw, by the chain's name"),
            ("filter", "DOCKER-USER", "Docker, by the chain's name"),
            ("filter", "KUBE-FORWARD", "kube-proxy, by the chain's name"),
            ("filter", "KUBE-POD-FW-ABC", "kube-router, by the chain's name"),
            ("filter", "cali-FORWARD", "Calico, by the chain's name"),
            ("filter", "FORWARD", "unknown: a person or a program that uses iptables"),
            ("netavark", "NETAVARK-1", "podman (netavark), by the table's name"),
        ] {
            let whose = of_place(&place(table, chain, true), &scene);
            assert_eq!(whose.as_deref(), Some(expected));
        }
        assert_eq!(of_place(&place("own", "FORWARD", true), &scene), None);
        let marked =
            Place { comment: Some("cali:x".to_owned()), ..place("filter", "FORWARD", true) };
        assert_eq!(owner_of(&marked, &scene).unwrap().0, Owner::Calico);
    }

    #[test]
    fn policies_let_answers_pass() {
        let scene = Scene::default();
        let dropped = |chain: &str| {
            let place = place("filter", chain, true);
            [is_policy(&place, false, &scene), is_policy(&place, true, &scene)]
        };
        assert_eq!(dropped("cali-tw-cali1"), [true, false]);
        assert_eq!(dropped("cali-cidr-block"), [false, false]);
        assert_eq!(dropped("cali-from-wl-dispatch"), [false, false]);
        assert_eq!(dropped("filter-cali-to-wl-dispatch-4"), [false, false]);
        assert_eq!(dropped("NETWRIGHT-X"), [true, true]);
        assert!(!is_policy(&place("netwright", "forward", false), false, &scene));
        assert_eq!(dropped("DOCKER-USER"), [false, false]);
    }

    #[test]
    fn a_policy_is_of_who_has_chains_behind_it() {
        let mut scene = Scene::default();
        let forward = dropping(base("FORWARD", Hook::Forward, 0, Vec::new()));
        scene.host.filter.tables =
            vec![table(Family::Ip, "filter", vec![forward, chain("DOCKER-USER", Vec::new())])];
        let policy = place("filter", "FORWARD", false);
        assert_eq!(owner_of(&policy, &scene).unwrap().0, Owner::Docker);
        scene.host.filter.tables[0].chains.push(chain("ufw-before-forward", Vec::new()));
        assert_eq!(owner_of(&policy, &scene).unwrap().0, Owner::Ufw);
        let input = place("filter", "INPUT", false);
        assert_eq!(owner_of(&input, &scene).unwrap().0, Owner::Ufw);
    }
}
