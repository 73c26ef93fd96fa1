//! Compares what `doctor` reads of a node with what a real node has.

use std::io::{BufRead as _, BufReader};
use std::net::IpAddr;
use std::process::Stdio;

use diagnose::model::filter::{Comparison, Connection, Hook, Step, Verdict};
use diagnose::model::{Container, NameFiles, Part, RouteKind, RuleAction, Scene, Transport};
use testkit::{Lab, Place, Snapshot};

use crate::support::{EXECUTABLE, call_in, command_in, said};

/// Reads the node through a bundle.
fn look(lab: &Lab, arguments: &[&str]) -> Scene {
    let file = lab.dir().join("bundle.json");
    let path = file.to_str().unwrap();
    let call = [&["doctor", "--no-probe", "--bundle", path], arguments].concat();
    let said = call_in(lab, &call);
    let bytes = std::fs::read(&file).unwrap_or_else(|error| panic!("{error}: {said:#?}"));
    std::fs::remove_file(&file).unwrap();
    Scene::from_json(&bytes).unwrap()
}

fn container<'s>(scene: &'s Scene, netns: &str) -> &'s Container {
    let found = scene.containers.iter().find(|one| one.netns == format!("/run/netns/{netns}"));
    found.unwrap_or_else(|| panic!("{netns}: {:#?}", scene.containers))
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn a_node_is_read_with_what_surrounds_its_containers() {
    testkit::require!("root", "program:python3");
    let lab = Lab::new("scene");
    let _outside = lab.outside();
    let (c1, _c2) = (lab.container("c1"), lab.container("c2"));
    let mut add = command_in(&lab, &["add", "netwright", "c1", "--publish", "8080:80"]);
    add.env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-7f9c");
    said(add).succeeded();
    call_in(&lab, &["add", "netwright", "c2"]).succeeded();
    lab.sh("mkdir -p /etc/netns/c2; echo nameserver 127.0.0.53 >/etc/netns/c2/resolv.conf");
    lab.sh("cd /etc/netns/c2; echo hosts: files >nsswitch.conf; echo 10.9.9.9 localhost >hosts");
    lab.sh("rm -f /etc/resolv.conf; echo nameserver 192.0.2.53 >/etc/resolv.conf");
    lab.sh(
        "ip route add blackhole 203.0.113.0/24; ip rule add pref 500 from 10.63.0.0/16 lookup 7",
    );
    lab.sh("ip neigh replace 198.51.100.2 lladdr 02:00:00:00:00:66 nud permanent dev up0");
    lab.sh("sysctl -qw net.ipv4.conf.up0.rp_filter=1");
    lab.sh(
        "nft 'add table inet foreign; \
         add chain inet foreign input { type filter hook input priority 5; policy drop; }; \
         add set inet foreign known { type ipv4_addr; flags interval; elements = { 192.0.2.0/24 }; }; \
         add rule inet foreign input ip saddr @known counter accept comment \"who is known\"; \
         add rule inet foreign input ct state established,related accept'",
    );
    c1.sh("ip link set lo up");
    let serve = "import socket, sys; s = socket.create_server(('127.0.0.1', 80)); print('ready', flush=True); sys.stdin.read()";
    let mut server = c1.command("python3");
    let server = server.args(["-c", serve]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut server = server.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");

    // The kernel calls a process by its executable.
    let program = lab.dir().join("firewalld");
    std::fs::copy("/bin/sleep", &program).unwrap();
    let mut firewalld = lab.command(program.to_str().unwrap()).arg("1000").spawn().unwrap();

    let scene = look(&lab, &[]);
    drop(server.stdin.take());
    server.wait().unwrap();
    firewalld.kill().unwrap();
    firewalld.wait().unwrap();
    assert_eq!(scene.program("firewalld").map(|one| one.pid), Some(firewalld.id()));
    assert_eq!(scene.programs.len(), 1, "only of this namespace: {:?}", scene.programs);

    assert_eq!(scene.holes, []);
    assert_eq!(scene.kernel, lab.sh("uname -r").trim());
    let host = &scene.host;
    let up0 = host.link("up0").unwrap();
    assert!(up0.up && up0.carrier && up0.kind.as_deref() == Some("veth"), "{up0:?}");
    assert!(up0.addresses.iter().any(|one| one.address.addr() == address("198.51.100.1")));
    let bridge = host.link("nw0").unwrap();
    assert_eq!((bridge.kind.as_deref(), bridge.stp), (Some("bridge"), false));
    let ports: Vec<_> = host.links.iter().filter(|one| one.master == Some(bridge.index)).collect();
    assert_eq!(ports.len(), 2, "{ports:?}");
    assert!(ports.iter().all(|port| port.port_state == Some(3)), "{ports:?}");
    assert!(host.fdb.iter().any(|entry| entry.own && entry.port == ports[0].index));
    let default = host.routes.iter().find(|one| one.to.to_string() == "0.0.0.0/0").unwrap();
    assert_eq!(default.hops[0].via, Some(address("198.51.100.2")));
    assert_eq!(default.hops[0].link, Some(up0.index));
    let hole = host.routes.iter().find(|one| one.to.to_string() == "203.0.113.0/24").unwrap();
    assert_eq!(hole.kind, RouteKind::Blackhole);
    let rule = host.rules.iter().find(|rule| rule.priority == 500).unwrap();
    assert_eq!(rule.from, Some("10.63.0.0/16".parse().unwrap()));
    assert_eq!(rule.action, RuleAction::Table(7));
    let known = host.neighbours.iter().find(|one| one.address == address("198.51.100.2")).unwrap();
    assert_eq!((known.permanent, known.mac.as_deref()), (true, Some("02:00:00:00:00:66")));
    assert_eq!(host.number("net.ipv4.ip_forward"), Some(1));
    assert_eq!(host.number("net.ipv4.conf.up0.rp_filter"), Some(1));
    assert_eq!(host.number("net.ipv6.conf.up0.disable_ipv6"), Some(0));

    let foreign = host.filter.tables.iter().find(|table| table.name == "foreign").unwrap();
    let base = foreign.chains[0].base.as_ref().unwrap();
    assert_eq!((base.hook, base.priority, base.drops), (Hook::Input, 5, true));
    assert_eq!((base.kind.as_str(), foreign.chains[0].rules.len()), ("filter", 2));
    let rule = &foreign.chains[0].rules[0];
    assert_eq!(rule.comment.as_deref(), Some("who is known"));
    assert!(matches!(rule.steps.last(), Some(Step::Verdict(Verdict::Accept))), "{rule:?}");
    let looks_up = |step: &Step| matches!(step, Step::Lookup { set, .. } if set == "known");
    assert!(rule.steps.iter().any(looks_up), "{rule:?}");
    let element = &foreign.sets[0].elements[0];
    assert_eq!(element.first, [192, 0, 2, 0]);
    assert_eq!(element.last.as_deref(), Some(&[192, 0, 2, 255][..]));
    assert!(host.filter.tables.iter().any(|table| table.name == "netwright"));

    let web = container(&scene, "c1");
    assert_eq!((web.name.as_deref(), web.alive), (Some("shop/web-7f9c"), Some(true)));
    // The files that the container's process sees, and those that `ip netns exec` would show to a
    // process.
    assert_eq!(web.nameservers, Some(vec![address("192.0.2.53")]));
    assert_eq!(container(&scene, "c2").nameservers, Some(vec![address("127.0.0.53")]));
    // The other one sees the node's own files besides.
    let names = &container(&scene, "c2").names;
    assert_eq!(names.sources.as_deref(), Some("files"));
    assert_eq!((names.localhost.as_slice(), &names.own), (&[address("10.9.9.9")][..], &None));
    assert_eq!(web.names, NameFiles::default());
    let attachment = &web.attachments[0];
    assert_eq!((attachment.network.as_str(), attachment.ifname.as_str()), ("netwright", "eth0"));
    assert_eq!(attachment.plugins, ["bridge", "portmap", "firewall"]);
    assert_eq!((attachment.drifts.as_slice(), attachment.not_checked.as_deref()), (&[][..], None));
    let [port] = attachment.ports.as_slice() else { panic!("{attachment:?}") };
    assert_eq!((port.transport, port.host, port.container), (Transport::Tcp, 8080, 80));
    assert!(attachment.host_links.iter().any(|link| link == "nw0"), "{attachment:?}");
    let inside = web.inside.as_ref().unwrap();
    let eth0 = inside.link("eth0").unwrap();
    assert_eq!(eth0.mac, attachment.mac);
    let has = |wanted: &IpAddr| eth0.addresses.iter().any(|one| one.address.addr() == *wanted);
    assert!(attachment.addresses.iter().all(|net| has(&net.addr())), "{eth0:?}");
    assert!(inside.routes.iter().any(|route| route.to.to_string() == "::/0"), "{inside:?}");
    let [listener] = inside.listeners.as_slice() else { panic!("{:?}", inside.listeners) };
    assert_eq!(listener.at, "127.0.0.1:80".parse().unwrap());
    assert!(listener.program.as_deref().is_some_and(|name| name.starts_with("python")));

    let network = scene.networks.iter().find(|network| network.name == "netwright").unwrap();
    assert_eq!((network.link.as_deref(), network.outbound), (Some("nw0"), true));
    assert_eq!((network.refusal.as_deref(), network.warnings.as_slice()), (None, &[][..]));
    assert!(scene.plugins.iter().all(|one| one.ours && one.error.is_none()), "{:?}", scene.plugins);
    let pool = scene.pools.iter().find(|pool| pool.size.is_some()).unwrap();
    assert_eq!((pool.used, pool.writable), (2, true));
    assert_eq!(scene.broken, []);
}

/// The settings of these matches and targets are structures of the kernel; a mistake in one would
/// make a rule mean something else.
#[test]
fn rules_of_iptables_are_read_as_what_they_do() {
    testkit::require!("root", "program:iptables-nft");
    let lab = Lab::new("scene-iptables");
    lab.sh(
        "iptables-nft -P FORWARD DROP && \
         iptables-nft -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT && \
         iptables-nft -A FORWARD -m conntrack --ctstate DNAT -j ACCEPT && \
         iptables-nft -A FORWARD -m addrtype ! --dst-type LOCAL -p tcp -m tcp --dport 80 -j REJECT && \
         iptables-nft -A FORWARD -p udp -m multiport --dports 53,8000:8080 -j DROP && \
         iptables-nft -A FORWARD -m mark --mark 0x4000/0x4000 -m comment --comment marked -j RETURN && \
         iptables-nft -A FORWARD -m iprange --src-range 10.0.0.1-10.0.0.9 -j LOG && \
         iptables-nft -t nat -A PREROUTING -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.88.0.2:80 && \
         iptables-nft -t nat -A PREROUTING -p tcp -m tcp --dport 8081 -j REDIRECT --to-ports 81 && \
         iptables-nft -t nat -A POSTROUTING -s 10.88.0.0/24 ! -d 10.88.0.0/24 -j MASQUERADE && \
         iptables-nft -t nat -A POSTROUTING -s 10.89.0.0/24 -j SNAT --to-source 192.0.2.9 && \
         ip6tables-nft -A FORWARD -p ipv6-icmp -m icmp6 --icmpv6-type 134 -j DROP && \
         ip6tables-nft -t nat -A PREROUTING -p tcp -m tcp --dport 80 -j DNAT --to-destination [fd00:88::2]:80",
    );
    let scene = look(&lab, &[]);
    let unknown = |step: &&Step| matches!(step, Step::Unknown { .. });
    let mut rules = Vec::new();
    for table in &scene.host.filter.tables {
        for chain in &table.chains {
            for rule in &chain.rules {
                let steps: Vec<&Step> = rule.steps.iter().filter(unknown).collect();
                assert!(steps.is_empty(), "{} {}: {rule:#?}", table.name, chain.name);
                rules.push((table, chain.name.as_str(), rule));
            }
        }
    }
    assert_eq!(rules.len(), 12, "{rules:#?}");
    let of = |family: diagnose::model::filter::Family, chain: &str, at: usize| {
        let mut own =
            rules.iter().filter(|(table, own, _)| table.family == family && *own == chain);
        own.nth(at).map(|(_, _, rule)| &rule.steps).unwrap()
    };
    let v4 = diagnose::model::filter::Family::Ip;
    let has =
        |steps: &[Step], wanted: &Step| assert!(steps.contains(wanted), "{wanted:?}: {steps:#?}");
    let number = |value: u32| value.to_ne_bytes().to_vec();
    let compared = |steps: &[Step], with: &[u8], how: Comparison| {
        let found = steps.iter().any(|step| {
            matches!(step, Step::Compare { op, with: bytes, .. } if *op == how && bytes == with)
        });
        assert!(found, "{with:?}: {steps:#?}");
    };
    let states = of(v4, "FORWARD", 0);
    has(states, &Step::Connection { key: Connection::State, to: 0 });
    assert!(
        states.iter().any(|step| matches!(step, Step::Bitwise { mask, .. } if *mask == number(6))),
        "{states:#?}"
    );
    has(of(v4, "FORWARD", 1), &Step::Connection { key: Connection::Status, to: 0 });
    let rejects = of(v4, "FORWARD", 2);
    assert!(
        rejects.iter().any(|step| matches!(step, Step::Fib { source: false, kind: true, .. })),
        "{rejects:#?}"
    );
    has(rejects, &Step::Reject { with: "icmp port-unreachable".to_owned() });
    let table = rules[0].0;
    let set = table.sets.iter().find(|set| set.elements.len() == 2).unwrap();
    assert_eq!(set.elements[0].first, 53_u16.to_be_bytes());
    assert_eq!(set.elements[1].last, Some(8080_u16.to_be_bytes().to_vec()));
    compared(of(v4, "FORWARD", 4), &number(0x4000), Comparison::Equal);
    let marked = rules.iter().find(|(_, _, rule)| rule.comment.as_deref() == Some("marked"));
    assert!(marked.is_some(), "{rules:#?}");
    let target = of(v4, "PREROUTING", 0);
    has(target, &Step::Immediate { to: 0, data: vec![10, 88, 0, 2] });
    assert!(matches!(
        target.last(),
        Some(Step::DestinationNat { address: Some(_), port: Some(_) })
    ));
    assert!(matches!(of(v4, "PREROUTING", 1).last(), Some(Step::Redirect { port: Some(_) })));
    assert!(of(v4, "POSTROUTING", 0).contains(&Step::SourceNat));
    let source = of(v4, "POSTROUTING", 1);
    has(source, &Step::Immediate { to: 0, data: vec![192, 0, 2, 9] });
    assert!(matches!(source.last(), Some(Step::SourceNatTo { .. })), "{source:#?}");
    let v6 = of(diagnose::model::filter::Family::Ip6, "PREROUTING", 0);
    let address = "fd00:88::2".parse::<std::net::Ipv6Addr>().unwrap().octets().to_vec();
    assert!(
        v6.iter().any(|step| matches!(step, Step::Immediate { data, .. } if *data == address)),
        "{v6:#?}"
    );
}

#[test]
fn what_differs_and_what_is_gone_is_in_the_scene() {
    testkit::require!("root");
    let lab = Lab::new("scene-differs");
    let names = ["c1", "c2", "c3"];
    let [c1, c2, _c3] = names.map(|name| lab.container(name));
    for name in names {
        call_in(&lab, &["add", "netwright", name]).succeeded();
    }
    c1.sh("ip route del default");
    lab.sh("sysctl -qw net.ipv4.ip_forward=0");
    c2.delete();
    let file = lab.sh("cd /var/lib/cni/results; grep -l '/run/netns/c3\"' *");
    std::fs::write(lab.path(format!("/var/lib/cni/results/{}", file.trim())), "").unwrap();
    let scene = look(&lab, &[]);
    let first = container(&scene, "c1");
    // A plugin reports its first difference as the error, and the others as its details.
    let [drift] = first.attachments[0].drifts.as_slice() else { panic!("{first:#?}") };
    assert_eq!((drift.plugin.as_str(), drift.code), ("bridge", 104));
    for what in ["route 0.0.0.0/0", "IPv4 forwarding is off"] {
        assert!(drift.what.contains(what) || drift.details.contains(what), "{what}: {drift:#?}");
    }
    let inside = first.inside.as_ref().unwrap();
    assert!(!inside.routes.iter().any(|route| route.to.to_string() == "0.0.0.0/0"), "{inside:#?}");
    let second = container(&scene, "c2");
    assert_eq!((second.alive, second.inside.is_none()), (Some(false), true));
    let third = &container(&scene, "c3").attachments[0];
    let reason = third.not_checked.as_deref().unwrap();
    assert!(reason.contains("its file in the cache is damaged"), "{reason}");
    assert!(!scene.lacks(Part::Namespace, Some(&second.id)), "{:?}", scene.holes);
}

#[test]
fn a_look_changes_nothing() {
    testkit::require!("root");
    let lab = Lab::new("scene-still");
    let _outside = lab.outside();
    let _c1 = lab.container("c1");
    call_in(&lab, &["add", "netwright", "c1", "--publish", "8080:80"]).succeeded();
    let before = Snapshot::take(&lab);
    call_in(&lab, &["doctor", "--no-probe"]);
    assert_eq!(before.diff(&Snapshot::take(&lab)), [""; 0]);
}

/// A user without rights gets what every user may see, and `doctor` says what is missing.
#[test]
fn without_capabilities_the_rest_is_a_hole() {
    testkit::require!("root", "program:setpriv");
    let lab = Lab::new("scene-bare");
    let _c1 = lab.container("c1");
    call_in(&lab, &["add", "netwright", "c1"]).succeeded();
    let file = lab.dir().join("bundle.json");
    let mut bare = lab.command("setpriv");
    bare.args(["--inh-caps=-all", "--bounding-set=-all", EXECUTABLE, "doctor", "--no-probe"]);
    bare.arg("--bundle").arg(&file).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    let said = said(bare);
    let bytes = std::fs::read(&file).unwrap_or_else(|error| panic!("{error}: {said:#?}"));
    let scene = Scene::from_json(&bytes).unwrap();
    let c1 = container(&scene, "c1");
    assert!(scene.host.link("nw0").is_some() && !scene.host.routes.is_empty());
    assert!(scene.lacks(Part::Nftables, None), "{:#?}", scene.holes);
    assert!(scene.lacks(Part::Namespace, Some(&c1.id)), "{:#?}", scene.holes);
    assert_eq!((c1.alive, c1.inside.is_none()), (Some(true), true));
    assert!(c1.attachments[0].drifts.is_empty() && c1.attachments[0].not_checked.is_some());
}

/// A probe is sent by root, so it does not show such a rule.
#[test]
fn a_rule_about_the_sender_is_a_note() {
    testkit::require!("root", "program:nft");
    let lab = Lab::new("scene-sender");
    let c1 = lab.container("c1");
    call_in(&lab, &["add", "netwright", "c1"]).succeeded();
    c1.sh("nft 'table inet own { chain out { type filter hook output priority 0; \
           meta skuid 4711 drop; }; }'");
    let said = call_in(&lab, &["doctor", "c1", "--no-probe", "--output", "json"]).json();
    let notes = said["notes"].as_array().unwrap();
    let note = notes.iter().find(|note| note["id"] == "sender-filtered");
    let note = note.unwrap_or_else(|| panic!("{said:#}"));
    assert!(note["object"].as_str().unwrap().ends_with(": inet own/out rule 1"), "{note:#}");
    assert!(note["where"].as_str().unwrap().contains("rule 1: drop (handle "), "{note:#}");
}

/// With a name `doctor` reads only that container. Another name of the container works as well.
#[test]
fn one_container_is_read_by_any_name_of_it() {
    testkit::require!("root");
    let lab = Lab::new("scene-one");
    let [mut c1, c2] = ["c1", "c2"].map(|name| lab.container(name));
    let mut add = command_in(&lab, &["add", "netwright", "c1"]);
    add.env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web");
    said(add).succeeded();
    call_in(&lab, &["add", "netwright", "c2"]).succeeded();
    for one in [&c1, &c2] {
        one.sh("ip route del default");
    }
    let pid = c1.pid().to_string();
    for name in ["c1", "/run/netns/c1", "web", "shop/web", pid.as_str()] {
        let scene = look(&lab, &[name]);
        let (first, second) = (container(&scene, "c1"), container(&scene, "c2"));
        assert!(!first.attachments[0].drifts.is_empty(), "{name}: {first:#?}");
        assert!(second.attachments[0].drifts.is_empty(), "{name}: {second:#?}");
        // This container is on the same network.
        assert!(first.inside.is_some() && second.inside.is_some(), "{name}");
    }
    // A namespace that is on no network.
    let alone = lab.container("alone");
    alone.sh("ip link add d0 type veth peer name d1");
    let scene = look(&lab, &["alone"]);
    let inside = container(&scene, "alone").inside.as_ref().unwrap();
    assert!(inside.link("d0").is_some(), "{inside:#?}");
    assert!(container(&scene, "c1").inside.is_none());
}

/// Another program's rule set may have any size, also in a container.
#[test]
fn large_rule_sets_are_read_up_to_a_limit_and_what_is_left_out_is_said() {
    testkit::require!("root", "full");
    let lab = Lab::new("scene-large");
    let c1 = lab.container("c1");
    call_in(&lab, &["add", "netwright", "c1"]).succeeded();
    let elements: Vec<String> =
        (0..100_000).map(|n: u32| std::net::Ipv4Addr::from(0x0a00_0000 + n).to_string()).collect();
    let file = format!(
        "table inet foreign {{\n set many {{ type ipv4_addr; elements = {{ {} }}\n }}\n chain forward {{\n \
         type filter hook forward priority 0;\n ip saddr @many accept\n {} }}\n}}\n",
        elements.join(", "),
        "counter\n".repeat(20_000)
    );
    let path = lab.dir().join("large.nft");
    std::fs::write(&path, file).unwrap();
    lab.sh(&format!("nft -f {}", path.display()));
    c1.sh(&format!("nft -f {}", path.display()));
    std::fs::remove_file(&path).unwrap();
    let scene = look(&lab, &[]);
    let filter = &scene.host.filter;
    let table = filter.tables.iter().find(|table| table.name == "foreign").unwrap();
    assert_eq!(table.chains[0].rules.len(), 20_001);
    assert!(table.sets[0].truncated && 50_000 < table.sets[0].elements.len());
    assert!(filter.left_out.iter().any(|line| line.contains("many")), "{:?}", filter.left_out);
    let inside = &container(&scene, "c1").inside.as_ref().unwrap().filter;
    let rules: usize = inside.tables[0].chains.iter().map(|chain| chain.rules.len()).sum();
    assert!(rules < 3_000 && inside.left_out.len() == 2, "{rules}: {:?}", inside.left_out);
    // The rest is still read.
    assert!(scene.host.link("nw0").is_some() && !scene.host.routes.is_empty());
}
