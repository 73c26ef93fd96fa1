//! What `netwrightd policies` answers, as people read it.

use std::fmt::Write as _;

use crate::drops::{DroppedPacket, Page};
use crate::listing::{DirectionState, Listing, NetworkRows, PodRow, PolicyRow, ShownTier};
use crate::log::DropCounts;
use crate::question::{FamilyJudgement, Judgement};
use service_kit::stdio::columns;

/// Returns what the user should know beside an answer.
pub(super) fn asides(notes: &[String], faults: &[String]) -> String {
    let faults = faults.iter().map(|fault| format!("warning: {fault}\n"));
    notes.iter().map(|note| format!("note: {note}\n")).chain(faults).collect()
}

/// Returns an explanation as people read it.
pub(super) fn explanation(judged: &Judgement) -> String {
    let mut text = String::new();
    let mut families = judged.families.iter();
    let first = families.next();
    if let Some(family) = first {
        text.extend(family.sentences.iter().map(|line| format!("{line}\n")));
    }
    for family in families {
        if first.is_some_and(|first| essence(first) == essence(family)) {
            let _ = writeln!(text, "The same holds for {}.", family.family);
        } else {
            text.extend(family.sentences.iter().map(|line| format!("{line}\n")));
        }
    }
    text
}

/// Returns what an explanation says, without its addresses.
fn essence(of: &FamilyJudgement) -> (bool, Vec<String>) {
    let without_addresses = |text: &String| {
        let mut text = text.clone();
        for (address, word) in
            [(of.source_address, "SOURCE"), (of.destination_address, "DESTINATION")]
        {
            if let Some(address) = address {
                text = text.replace(&address.to_string(), word);
            }
        }
        text
    };
    (of.allowed, of.causes.iter().map(|one| without_addresses(&one.cause)).collect())
}

/// Returns the policies and pods as people read them.
pub(super) fn listed(listing: &Listing) -> String {
    let mut text = String::new();
    if let Some(node) = &listing.node {
        let _ = writeln!(text, "node {node}");
    }
    for warning in &listing.warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    let head = ["POLICY", "TIER", "PRIORITY", "ABOUT", "PODS", "SUBJECT"].map(str::to_owned);
    let rows = listing.policies.iter().map(|row| policy_line(row).to_vec());
    let table = columns(&std::iter::once(head.to_vec()).chain(rows).collect::<Vec<_>>());
    // What is wrong with a policy stands below it.
    let mut lines = table.lines();
    let _ = writeln!(text, "{}", lines.next().unwrap_or_default());
    for (line, row) in lines.zip(&listing.policies) {
        let _ = writeln!(text, "{line}");
        for fault in &row.faults {
            let _ = writeln!(text, "  {fault}");
        }
        for notice in &row.notices {
            let _ = writeln!(text, "  {notice}");
        }
    }
    if listing.policies.is_empty() {
        text.push_str("there is no policy\n");
    }
    let head = ["POD", "ADDRESSES", "IN", "OUT"].map(str::to_owned);
    let rows = listing.pods.iter().map(|row| pod_line(row).to_vec());
    text.push('\n');
    text.push_str(&columns(&std::iter::once(head.to_vec()).chain(rows).collect::<Vec<_>>()));
    if listing.pods.is_empty() {
        text.push_str("there is no pod that policies could be about\n");
    }
    for NetworkRows { network, pods } in &listing.networks {
        let head = ["POD", "ADDRESSES", "IN", "OUT"].map(str::to_owned);
        let rows = pods.iter().map(|row| pod_line(row).to_vec());
        let _ = writeln!(text, "\nnetwork {network}");
        text.push_str(&columns(&std::iter::once(head.to_vec()).chain(rows).collect::<Vec<_>>()));
    }
    text
}

fn policy_line(row: &PolicyRow) -> [String; 6] {
    let tier = match row.tier {
        ShownTier::Admin => "admin",
        ShownTier::Namespace => "namespace",
        ShownTier::Baseline => "baseline",
    };
    [
        row.policy.clone(),
        tier.to_owned(),
        row.priority.map_or("-".to_owned(), |priority| priority.to_string()),
        if row.directions.is_empty() { "-".to_owned() } else { row.directions.join(", ") },
        row.selects.to_string(),
        row.subject.clone(),
    ]
}

fn pod_line(row: &PodRow) -> [String; 4] {
    let addresses: Vec<String> = row.addresses.iter().map(ToString::to_string).collect();
    [
        row.pod.clone(),
        if addresses.is_empty() { "-".to_owned() } else { addresses.join(",") },
        under(&row.ingress),
        under(&row.egress),
    ]
}

fn under(under: &DirectionState) -> String {
    match under {
        DirectionState::Open => "open".to_owned(),
        DirectionState::Limited(by) => format!("limited by {}", by.join(", ")),
        DirectionState::Isolated(by) => format!("isolated by {}", by.join(", ")),
        DirectionState::Closed(why) => format!("closed: {why}"),
    }
}

/// Returns dropped packets as people read them. Packets of one flow share one line, at the place of
/// the last one.
pub(super) fn dropped(packets: &[DroppedPacket]) -> String {
    let same = |one: &DroppedPacket, other: &DroppedPacket| {
        (&one.direction, one.pod_address, one.peer_address, &one.protocol, one.port, &one.cause)
            == (
                &other.direction,
                other.pod_address,
                other.peer_address,
                &other.protocol,
                other.port,
                &other.cause,
            )
    };
    let mut text = String::new();
    for (at, packet) in packets.iter().enumerate() {
        if packets[at + 1..].iter().any(|later| same(packet, later)) {
            continue;
        }
        let times = packets[..=at].iter().filter(|before| same(packet, before)).count();
        let millis = i64::try_from(packet.time).unwrap_or_default();
        let time = jiff::Timestamp::from_millisecond(millis).unwrap_or_default();
        let ends = match packet.direction.as_str() {
            "egress" => format!("{} to {}", pod_of(packet), peer_of(packet)),
            _ => format!("{} to {}", peer_of(packet), pod_of(packet)),
        };
        let port = packet.port.map_or(String::new(), |port| format!(" port {port}"));
        let on = packet.network.as_ref().map_or(String::new(), |name| format!(" on {name}"));
        let times = if times == 1 { String::new() } else { format!(", {times} times") };
        let _ = writeln!(
            text,
            "{time:.3} {ends}, {}{port}: dropped at {} of {}{on}{times}",
            packet.protocol, packet.direction, packet.pod
        );
        let _ = writeln!(text, "  {}", packet.cause);
        if !packet.policies.is_empty() {
            let _ = writeln!(text, "  asked: {}", packet.policies.join(", "));
        }
    }
    text
}

fn pod_of(packet: &DroppedPacket) -> String {
    with_address(&packet.pod, packet.pod_address)
}

fn peer_of(packet: &DroppedPacket) -> String {
    with_address(&packet.peer, packet.peer_address)
}

fn with_address(name: &str, address: std::net::IpAddr) -> String {
    let address = address.to_string();
    if name == address { address } else { format!("{name} ({address})") }
}

/// Says how many packets were dropped, and how many of them are not listed.
pub(super) fn summary(page: &Page) -> String {
    let mut text = String::new();
    if let Some(fault) = &page.fault {
        let _ = writeln!(text, "warning: drops can no longer be listed: {fault}");
    }
    match page.since_start {
        Some(counted) => {
            let all = counted.dropped();
            let _ = write!(
                text,
                "{all} dropped since the service began to listen ({} into pods, {} out of pods), {} listed",
                counted.ingress, counted.egress, page.listed
            );
            let lost = all.saturating_sub(page.listed).saturating_sub(page.overrun);
            if lost > 0 {
                let _ = write!(text, "; {lost} were more than are logged in a second");
            }
            if counted.reset > 0 {
                let _ = write!(
                    text,
                    "; {} more were of connections that had been cut, and were answered with a reset",
                    counted.reset
                );
            }
        }
        None => {
            let _ =
                write!(text, "{} listed; the packet filter's counters cannot be read", page.listed);
        }
    }
    if page.overrun > 0 {
        let _ = write!(text, "; {} were logged and not read in time", page.overrun);
    }
    if page.gone > 0 {
        let _ = write!(text, "; {} older ones are not kept", page.gone);
    }
    text.push('\n');
    for one in &page.inside {
        let DropCounts { ingress, egress, reset } = one.counted;
        let _ = writeln!(
            text,
            "{}: {ingress} into it and {egress} out of it were dropped in its own network namespace, \
             {reset} reset, none listed",
            one.pod
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listing::list;
    use crate::objects;
    use crate::of_files::{self, FileWorld};
    use crate::question::{End, Question, judge};
    use expect_test::expect;
    use service_kit::command_line::json;

    fn of_files(text: &str) -> FileWorld {
        let read = objects::read_stream("a.yaml", text.as_bytes());
        of_files::world(vec![read], None).unwrap()
    }

    #[test]
    fn the_list_is_read_by_people() {
        let files = of_files(
            r#"
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {nodeName: one}, status: {podIPs: [{ip: 10.0.0.1}, {ip: "fd00::1"}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}}, spec: {nodeName: one}, status: {podIP: 10.0.0.2}}
---
{apiVersion: v1, kind: Pod, metadata: {name: twin, namespace: shop}, spec: {nodeName: one}, status: {podIP: 10.0.0.2}}
---
{apiVersion: v1, kind: Pod, metadata: {name: far, namespace: shop, labels: {app: db}}, spec: {nodeName: two}, status: {podIP: 10.0.0.3}}
---
{apiVersion: v1, kind: Pod, metadata: {name: proxy, namespace: shop}, spec: {nodeName: one, hostNetwork: true}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: all, namespace: shop}, spec: {podSelector: {}, policyTypes: [Egress], ingress: [{}], egress: [{to: [{ipBlock: {cidr: 10.0.0.1/8}}]}, {to: [{ipBlock: {cidr: 10.0.0.1}}]}]}}
---
{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: web}, spec: {tier: Admin, priority: 10, subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}}
---
{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: nobody}, spec: {tier: Baseline, priority: 10, subject: {namespaces: {matchLabels: {a: b}}}}}
"#,
        );
        let unknown = vec![crate::listing::UnknownAttachment {
            name: "shop/late".to_owned(),
            addresses: vec!["10.0.0.9".parse().unwrap()],
        }];
        let listing = list(&files.world, Some("one"), unknown, vec!["it waits".to_owned()]);
        expect![[r#"
            node one
            warning: it waits
            POLICY                       TIER       PRIORITY  ABOUT    PODS  SUBJECT
            ClusterNetworkPolicy web     admin      10        ingress  1     pods with app=web of all namespaces
            NetworkPolicy shop/all       namespace  -         egress   3     all pods of namespace shop
              NetworkPolicy shop/all: refused: spec.egress[1].to[0].ipBlock.cidr: "10.0.0.1" is not a prefix such as 10.244.1.0/24; the rule allows nothing
              NetworkPolicy shop/all has ingress rules, and Ingress is not among its policyTypes: they have no effect
              NetworkPolicy shop/all has bits set after a prefix's length, which are ignored: spec.egress[0].to[0].ipBlock.cidr: 10.0.0.1/8 is read as 10.0.0.0/8
            ClusterNetworkPolicy nobody  baseline   10        -        0     all pods of namespaces with a=b

            POD        ADDRESSES         IN                                                              OUT
            shop/db    10.0.0.2          closed: shop/twin has 10.0.0.2 too                              closed: shop/twin has 10.0.0.2 too
            shop/twin  10.0.0.2          closed: shop/db has 10.0.0.2 too                                closed: shop/db has 10.0.0.2 too
            shop/web   10.0.0.1,fd00::1  limited by ClusterNetworkPolicy web                             isolated by NetworkPolicy shop/all
            shop/late  10.0.0.9          closed: the API server has not named a pod for its address yet  closed: the API server has not named a pod for its address yet
        "#]].assert_eq(&listed(&listing));
        let none = list(&of_files("# none\n").world, None, Vec::new(), Vec::new());
        expect![[r#"
            POLICY  TIER  PRIORITY  ABOUT  PODS  SUBJECT
            there is no policy

            POD  ADDRESSES  IN  OUT
            there is no pod that policies could be about
        "#]]
        .assert_eq(&listed(&none));
        let read: Listing = serde_json::from_str(&json(&listing)).unwrap();
        assert_eq!(read, listing);
    }

    const STORAGE: &str = r#"
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}, annotations: {k8s.v1.cni.cncf.io/networks: storage}}, status: {podIP: 10.0.0.1}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop}, spec: {template: {metadata: {labels: {app: web}, annotations: {k8s.v1.cni.cncf.io/networks: "storage, other/backup"}}}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: other, namespace: shop, labels: {app: other}}, status: {podIP: 10.0.0.3}}
---
{apiVersion: k8s.cni.cncf.io/v1beta1, kind: MultiNetworkPolicy, metadata: {name: targets, namespace: shop, annotations: {k8s.v1.cni.cncf.io/policy-for: "storage, none"}}, spec: {podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 3260}]}]}}
"#;

    #[test]
    fn further_networks_are_listed_and_asked_about() {
        let files = of_files(STORAGE);
        let listing = list(&files.world, None, Vec::new(), Vec::new()).with(&files.networks, None);
        expect![[r#"
            POLICY                           TIER       PRIORITY  ABOUT    PODS  SUBJECT
            MultiNetworkPolicy shop/targets  namespace  -         ingress  1     pods with app=db of namespace shop, on shop/none and shop/storage

            POD         ADDRESSES  IN    OUT
            shop/db     10.0.0.1   open  open
            shop/other  10.0.0.3   open  open
            shop/web    -          open  open

            network shop/storage
            POD       ADDRESSES  IN                                           OUT
            shop/db   -          isolated by MultiNetworkPolicy shop/targets  open
            shop/web  -          open                                         open
        "#]]
        .assert_eq(&listed(&listing));
        let read: crate::listing::Listing = serde_json::from_str(&json(&listing)).unwrap();
        assert_eq!(read, listing);
        assert_eq!(
            files.notes,
            ["MultiNetworkPolicy shop/targets is for network shop/none, and no pod asks for that"]
        );
        let ask = |source: &str, port: &str, network: &str| {
            let end = |text: &str| End::read(text).unwrap();
            let (source, destination) = (end(source), end("shop/db"));
            let traffic = crate::question::traffic(port).unwrap();
            let network = Some(network.to_owned());
            let question = Question { source, destination, traffic, network };
            assert_eq!(Question::of_target(&question.target()), Ok(question.clone()));
            let judged = judge(question.world(&files.world, &files.networks)?, &question)?;
            Ok::<bool, String>(judged.allowed)
        };
        assert_eq!(ask("shop/web", "3260", "shop/storage"), Ok(true));
        assert_eq!(ask("shop/web", "80", "shop/storage"), Ok(false));
        let error = |answer: Result<bool, String>| answer.unwrap_err();
        assert_eq!(
            error(ask("shop/other", "80", "shop/storage")),
            "there is no pod shop/other; its namespace has db and web"
        );
        assert_eq!(
            error(ask("shop/web", "80", "shop/backup")),
            "no policy is for the network shop/backup; policies are for shop/none and shop/storage"
        );
    }

    fn packet(number: u64, port: u16, cause: &str) -> DroppedPacket {
        DroppedPacket {
            number,
            time: 1_700_000_000_000 + number,
            direction: if port == 53 { "egress" } else { "ingress" }.to_owned(),
            pod: "shop/db".to_owned(),
            pod_address: "10.0.0.2".parse().unwrap(),
            peer: "198.51.100.1".to_owned(),
            peer_address: "198.51.100.1".parse().unwrap(),
            network: None,
            protocol: "TCP".to_owned(),
            port: (port != 0).then_some(port),
            policies: if port == 53 {
                Vec::new()
            } else {
                vec!["NetworkPolicy shop/db".to_owned()]
            },
            cause: cause.to_owned(),
        }
    }

    #[test]
    fn drops_of_one_flow_are_told_once() {
        let packets = [
            packet(1, 80, "no such rule"),
            packet(2, 53, "it is closed"),
            packet(3, 80, "no such rule"),
            packet(4, 80, "another reason"),
            packet(5, 0, "no such rule"),
        ];
        expect![[r#"
            2023-11-14T22:13:20.002Z shop/db (10.0.0.2) to 198.51.100.1, TCP port 53: dropped at egress of shop/db
              it is closed
            2023-11-14T22:13:20.003Z 198.51.100.1 to shop/db (10.0.0.2), TCP port 80: dropped at ingress of shop/db, 2 times
              no such rule
              asked: NetworkPolicy shop/db
            2023-11-14T22:13:20.004Z 198.51.100.1 to shop/db (10.0.0.2), TCP port 80: dropped at ingress of shop/db
              another reason
              asked: NetworkPolicy shop/db
            2023-11-14T22:13:20.005Z 198.51.100.1 to shop/db (10.0.0.2), TCP: dropped at ingress of shop/db
              no such rule
              asked: NetworkPolicy shop/db
        "#]].assert_eq(&dropped(&packets));
    }

    #[test]
    fn what_is_not_listed_is_counted() {
        use crate::drops::InsideDrops;
        let page = Page {
            version: 1,
            drops: Vec::new(),
            next: 7,
            gone: 0,
            counted: None,
            since_start: None,
            listed: 7,
            overrun: 0,
            fault: None,
            inside: Vec::new(),
        };
        let counted = |ingress, egress| Some(DropCounts { ingress, egress, reset: egress / 2 });
        let pages = [
            page.clone(),
            Page { since_start: counted(7, 0), ..page.clone() },
            Page { since_start: counted(20, 4), overrun: 2, gone: 3, ..page.clone() },
            Page { fault: Some("no such log".to_owned()), ..page.clone() },
            Page {
                inside: vec![InsideDrops {
                    pod: "pod shop/db".to_owned(),
                    counted: DropCounts { ingress: 3, egress: 2, reset: 1 },
                }],
                ..page
            },
        ];
        let all: String = pages.iter().map(summary).collect();
        expect![[r#"
            7 listed; the packet filter's counters cannot be read
            7 dropped since the service began to listen (7 into pods, 0 out of pods), 7 listed
            24 dropped since the service began to listen (20 into pods, 4 out of pods), 7 listed; 15 were more than are logged in a second; 2 more were of connections that had been cut, and were answered with a reset; 2 were logged and not read in time; 3 older ones are not kept
            warning: drops can no longer be listed: no such log
            7 listed; the packet filter's counters cannot be read
            7 listed; the packet filter's counters cannot be read
            pod shop/db: 3 into it and 2 out of it were dropped in its own network namespace, 1 reset, none listed
        "#]]
        .assert_eq(&all);
    }

    #[test]
    fn the_second_family_is_told_where_it_differs() {
        let files = of_files(
            r#"
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, status: {podIPs: [{ip: 10.0.0.1}, {ip: "fd00::1"}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}}, status: {podIPs: [{ip: 10.0.0.2}, {ip: "fd00::2"}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: db, namespace: shop}, spec: {podSelector: {matchLabels: {app: db}}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{port: 5432}]}]}}
"#,
        );
        let ask = |port: u16| {
            let end = |name: &str| End::read(name).unwrap();
            let traffic = policy::Traffic::to(policy::Protocol::Tcp, port);
            let (source, destination) = (end("shop/web"), end("shop/db"));
            let question = Question { source, destination, traffic, network: None };
            explanation(&judge(&files.world, &question).unwrap())
        };
        expect![[r#"
            shop/web (10.0.0.1) to shop/db (10.0.0.2), TCP port 5432: allowed.
            Egress of shop/web: no policy limits it.
            Ingress of shop/db: NetworkPolicy shop/db, spec.ingress[0], accepts it.
              shop/web is in 10.0.0.0/8.
            shop/web (fd00::1) to shop/db (fd00::2), TCP port 5432: denied.
            Egress of shop/web: no policy limits it.
            Ingress of shop/db: NetworkPolicy shop/db selects it, and none of its rules allows this.
              NetworkPolicy shop/db, spec.ingress[0] allows TCP port 5432 from 10.0.0.0/8: fd00::1 is IPv6, and 10.0.0.0/8 is IPv4.
            Egress would let it through, and both ends have to.
        "#]]
        .assert_eq(&ask(5432));
        assert!(ask(53).contains("IPv6, and 10.0.0.0/8"), "{}", ask(53));
    }
}
