//! `netwright repair`.

use serde_json::json;
use testkit::{Lab, Place, traffic};

use crate::support::call_in;

#[test]
fn what_was_changed_comes_back_under_the_running_container() {
    testkit::require!("root");
    let lab = Lab::new("repair");
    let _outside = lab.outside();
    let (c1, c2) = (lab.container("c1"), lab.container("c2"));
    for name in ["c1", "c2"] {
        call_in(&lab, &["add", "netwright", name]).succeeded();
    }
    let sound = call_in(&lab, &["repair", "--output", "json"]).succeeded().json();
    assert_eq!(sound, json!({ "dryRun": false, "attachments": [], "sound": 2, "skipped": 0 }));
    traffic::assert_pings(&c1, "198.51.100.2");

    lab.sh("nft flush ruleset; sysctl -qw net.ipv4.ip_forward=0");
    c1.sh("ip route del default; ip link set eth0 down");
    traffic::assert_no_ping(&c1, "198.51.100.2");
    let before = lab.sh("nft list ruleset") + &c1.sh("ip route");

    let dry = call_in(&lab, &["repair", "--dry-run"]).failed(1);
    assert!(
        dry.stdout.contains("eth0 of ") && dry.stdout.contains("differs (bridge): "),
        "{dry:#?}"
    );
    assert_eq!(
        lab.sh("nft list ruleset") + &c1.sh("ip route"),
        before,
        "a dry run changes nothing"
    );

    let one = call_in(&lab, &["repair", "c1", "--output", "json"]).succeeded().json();
    let put_back = one["attachments"][0]["putBack"].as_array().unwrap();
    for what in ["route 0.0.0.0/0", "\"eth0\" up", "forwarding is off", "table"] {
        let told = put_back.iter().any(|line| line["what"].as_str().unwrap().contains(what));
        assert!(told, "{what}: {one:#}");
    }
    traffic::assert_pings(&c1, "198.51.100.2");
    let rest = call_in(&lab, &["repair"]).succeeded();
    assert!(rest.stdout.ends_with("left 0, 1 sound\n"), "{rest:#?}");
    traffic::assert_pings(&c2, "198.51.100.2");
    call_in(&lab, &["repair", "--network", "netwright"]).succeeded();
}

/// A link that came after the first container ignores routers, because the host forwards by then.
#[test]
fn a_link_that_came_later_listens_to_routers() {
    testkit::require!("root");
    let lab = Lab::new("repair-routers");
    let (c1, router) = (lab.container("c1"), lab.container("router"));
    lab.sh("sysctl -qw net.ipv6.conf.all.forwarding=0");
    call_in(&lab, &["add", "netwright", "c1"]).succeeded();
    c1.sh("ip link set lo up");
    let accept_ra = || lab.sh("sysctl -n net.ipv6.conf.up0.accept_ra").trim().to_owned();
    lab.sh("ip link add up0 type veth peer name eth0 netns router; ip link set up0 up; \
            sysctl -qw net.ipv6.conf.up0.accept_ra=1");
    router.sh("ip link set eth0 up");
    let said = call_in(&lab, &["doctor"]);
    assert!(said.stdout.contains("up0 ignores router advertisements"), "{said:#?}");
    let fix = "sysctl -w net.ipv6.conf.up0.accept_ra=2";
    assert!(said.stdout.contains(fix), "{said:#?}");
    let dry = call_in(&lab, &["repair", "--dry-run"]).failed(1);
    assert!(dry.stdout.contains("differs: link up0 ignores routers"), "{dry:#?}");
    assert_eq!(accept_ra(), "1");
    let done = call_in(&lab, &["repair"]).succeeded();
    assert!(done.stdout.contains("put back: link up0 listens to routers"), "{done:#?}");
    assert_eq!(accept_ra(), "2");
    let again = call_in(&lab, &["repair"]).succeeded();
    assert!(!again.stdout.contains("up0"), "{again:#?}");
    let said = call_in(&lab, &["doctor"]);
    assert!(!said.stdout.contains("router advertisements"), "{said:#?}");
}

/// Four things of two plugins differ at once: CHECK, a dry run and the repair each name all four.
#[test]
fn every_difference_is_named_by_check_dry_run_and_repair() {
    testkit::require!("root");
    let lab = Lab::new("repair-four");
    let c1 = lab.container("c1");
    let ports = ["--publish", "8080:80"];
    call_in(&lab, &[&["add", "netwright", "c1"], ports.as_slice()].concat()).succeeded();
    lab.sh("nft flush map inet netwright hostports4; nft flush set inet netwright hairpin4; \
         sysctl -qw net.ipv4.ip_forward=0");
    c1.sh("ip route del default");
    let four = [
        "route 0.0.0.0/0",
        "IPv4 forwarding is off",
        "netwright hairpin4 {",
        "netwright hostports4 {",
    ];
    let check = call_in(&lab, &["check", "netwright", "c1"]).failed(1);
    let dry = call_in(&lab, &["repair", "--dry-run"]).failed(1);
    assert!(check.stderr.contains("\nhint: `netwright doctor cnitool-"), "{check:#?}");
    for what in four {
        assert!(check.stderr.contains(what), "{what}: {check:#?}");
        assert!(dry.stdout.contains(what), "{what}: {dry:#?}");
    }
    let done = call_in(&lab, &["repair"]).succeeded();
    for what in ["route 0.0.0.0/0", "IPv4 forwarding", "hairpin4", "hostports4"] {
        assert!(done.stdout.contains(what), "{what}: {done:#?}");
    }
    call_in(&lab, &["check", "netwright", "c1"]).succeeded();
}

#[test]
fn what_cannot_be_put_back_is_told_with_an_exit_code() {
    testkit::require!("root");
    let lab = Lab::new("repair-left");
    let c1 = lab.container("c1");
    call_in(&lab, &["add", "netwright", "c1"]).succeeded();
    c1.sh("ip link del eth0");
    let said = call_in(&lab, &["repair"]).failed(1);
    assert!(said.stdout.contains("\"eth0\" is gone from the container"), "{said:#?}");
    assert!(said.stdout.contains("\n  hint: `netwright doctor cnitool-"), "{said:#?}");
    let said = call_in(&lab, &["repair", "nobody"]).failed(1);
    assert!(said.stderr.contains("there is no attachment of "), "{said:#?}");
    call_in(&lab, &["repair", "--network", "nowhere"]).failed(1);
}

/// The command reports each living container as sound, restored, failed, or left alone with a
/// reason.
#[test]
fn every_living_container_is_told_of() {
    testkit::require!("root");
    let lab = Lab::new("repair-told");
    let _living = ["sound", "empty", "garbled", "elsewhere", "begun", "docker"].map(|name| {
        let container = lab.container(name);
        let mut netns = name.to_owned();
        if name == "docker" {
            netns = "/run/netwright/docker/netns/nwd0".to_owned();
            lab.sh(&format!("mkdir -p /run/netwright/docker/netns; touch {netns}; mount --bind /run/netns/docker {netns}"));
        }
        call_in(&lab, &["add", "netwright", &netns]).succeeded();
        (name, container)
    });
    // Docker has moved the interface, so it is no longer there.
    lab.sh("nsenter --net=/run/netns/docker ip link set eth0 name eth7");
    let files = lab.sh("cd /var/lib/cni/results; grep -l /run/netns/ *");
    let of = |name: &str| {
        let found = files.lines().find(|file| {
            lab.sh(&format!("cat /var/lib/cni/results/{file}"))
                .contains(&format!("/run/netns/{name}\""))
        });
        format!("/var/lib/cni/results/{}", found.unwrap_or_else(|| panic!("{name}: {files}")))
    };
    let [empty, garbled, elsewhere, begun] = ["empty", "garbled", "elsewhere", "begun"].map(of);
    lab.sh(&format!(": >{empty}; echo '{{\"kind\":' >{garbled}; rm {elsewhere}"));
    let document: serde_json::Value =
        serde_json::from_str(&lab.sh(&format!("cat {begun}"))).unwrap();
    let mut document = document;
    document.as_object_mut().unwrap().remove("result");
    std::fs::write(lab.path(&begun), document.to_string()).unwrap();

    for arguments in [&["repair"][..], &["repair", "--dry-run"]] {
        let said = call_in(&lab, arguments).failed(1);
        for file in [&empty, &garbled] {
            let told = format!("its file in the cache is damaged: {file:?}");
            assert!(said.stdout.contains(&told), "{told}: {said:#?}");
        }
        assert!(said.stdout.contains(", 1 sound\n"), "{said:#?}");
        for alone in [
            "left alone: 1 of Docker's containers",
            "left alone: 1 of runtimes that keep their cache elsewhere",
            "left alone: 1 whose ADD is not complete",
        ] {
            assert!(said.stdout.contains(alone), "{alone}: {said:#?}");
        }
    }
}

/// A network by nftables, and one by the reference's chains.
const NETWORKS: [&str; 2] = [
    r#"{ "cniVersion": "1.0.0", "name": "new", "plugins": [
      { "type": "bridge", "bridge": "new0", "isGateway": true, "ipMasq": true, "macspoofchk": true,
        "ipam": { "type": "host-local", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
                  "ranges": [[{"subnet": "10.76.0.0/24"}], [{"subnet": "fd76::/64"}]] } },
      { "type": "portmap", "capabilities": { "portMappings": true } },
      { "type": "firewall", "ingressPolicy": "same-bridge" },
      { "type": "bandwidth", "ingressRate": 1000000, "ingressBurst": 1000000 },
      { "type": "sbr" },
      { "type": "tuning", "mtu": 1400, "sysctl": { "net.ipv4.conf.IFNAME.arp_filter": "1" } } ] }"#,
    r#"{ "cniVersion": "1.0.0", "name": "old", "plugins": [
      { "type": "bridge", "bridge": "old0", "isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "iptables",
        "ipam": { "type": "host-local", "subnet": "10.77.0.0/24" } },
      { "type": "portmap", "backend": "iptables", "capabilities": { "portMappings": true } },
      { "type": "firewall", "backend": "iptables", "ingressPolicy": "isolated" } ] }"#,
];

/// Everything that a repair may make twice. The names of claims have a link's number, which a new
/// bridge has not. The links to our plugins are those of a service that was killed.
fn everything(lab: &Lab, containers: &[testkit::Container]) -> Vec<String> {
    let mut all = lab.sh(
        "nft list ruleset; iptables-save; ip6tables-save; ip -o addr; ip route; ip -6 route; ip rule; \
         ip -o link; bridge -o vlan; tc qdisc; cd /var/lib/cni/networks; ls -R; cd /run/netwright; find . ! -path './agent*' ! -path './plugins*' | sed 's/link%20[0-9]*/link/'",
    );
    for container in containers {
        all += &container.sh("ip -o addr; ip route show table all; ip rule; ip -o link; tc qdisc");
    }
    // Numbers that the kernel gives anew.
    let mut lines: Vec<String> = all
        .lines()
        .map(|line| {
            // The kernel looks for duplicates of an address for a second.
            let line = line.replace(" tentative", "");
            let line = line.split(" counter packets").next().unwrap_or_default();
            let line = line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ':');
            line.split(" valid_lft").next().unwrap_or_default().trim().to_owned()
        })
        .filter(|line| !line.starts_with(['#', ':']))
        .collect();
    lines.sort();
    lines
}

/// Two commands, and a command beside the service, repair a node on which everything is damaged:
/// each ends well, and all is there once.
#[test]
fn repairs_side_by_side_do_each_thing_once() {
    testkit::require!("root", "program:iptables");
    let lab = Lab::new("repair-beside");
    let _outside = lab.outside();
    lab.sh("mkdir -p /etc/cni/net.d");
    let dir = lab.dir().display().to_string();
    crate::system::install(&lab);
    for (network, text) in ["new", "old"].iter().zip(NETWORKS) {
        std::fs::write(lab.path(format!("/etc/cni/net.d/{network}.conflist")), text).unwrap();
    }
    let names = ["c1", "c2", "c3", "c4"];
    let containers = names.map(|name| lab.container(name));
    for (number, name) in names.iter().enumerate() {
        let network = ["new", "old"][number % 2];
        let port = format!("{}:80", 8080 + number);
        call_in(&lab, &["add", network, name, "--publish", &port]).succeeded();
    }
    let damage = || {
        lab.sh(
            "nft flush ruleset; sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0; \
             ip link del new0; ip link set old0 down; ip addr flush dev old0; \
             rm /var/lib/cni/networks/*/*.*.*.2 /var/lib/cni/networks/*/*.*.*.3",
        );
        for container in &containers {
            container.sh("ip addr flush dev eth0 scope global; ip rule flush; ip rule add table main; ip rule add table local pref 0; ip link set eth0 mtu 1300 down; tc qdisc del dev eth0 root 2>/dev/null; true");
        }
    };
    let netwright = crate::system::NETWRIGHT;
    let service = || {
        let netwrightd = crate::system::netwrightd().display().to_string();
        lab.start(&netwrightd, &["repair", "--interval", "1h", "--path", "/opt/cni/bin"])
    };
    damage();
    call_in(&lab, &["repair"]).succeeded();
    let alone = everything(&lab, &containers);
    // Two commands, then beside one service, then beside two.
    for services in 0..3 {
        let beside: Vec<_> = (0..services).map(|_| service()).collect();
        damage();
        let said = lab.sh(&format!(
            "{netwright} repair >{dir}/a 2>&1 & a=$!; {netwright} repair >{dir}/b 2>&1 & b=$!; \
             wait $a; echo $?; wait $b; echo $?; cat {dir}/a; echo; cat {dir}/b"
        ));
        assert!(said.starts_with("0\n0\n"), "{services}: {said}");
        drop(beside);
        let twice = told(&lab.sh(&format!("cat {dir}/a")));
        let twice = twice
            .intersection(&told(&lab.sh(&format!("cat {dir}/b"))))
            .cloned()
            .collect::<Vec<_>>();
        assert!(twice.is_empty(), "{services}: {twice:#?}");
        let now = everything(&lab, &containers);
        let (less, more) = (lacks(&alone, &now), lacks(&now, &alone));
        let same = less.is_empty() && more.is_empty();
        assert!(same, "{services}: less {less:#?}, more {more:#?}: {said}");
    }
}

/// What a command says that it has put back, each with its attachment.
fn told(said: &str) -> std::collections::BTreeSet<String> {
    let mut of = "";
    let mut all = std::collections::BTreeSet::new();
    for line in said.lines() {
        match line.starts_with("  put back") {
            true => drop(all.insert(format!("{of}: {line}"))),
            false => of = line,
        }
    }
    all
}

/// The lines that are in `one` more often than in `other`.
fn lacks(one: &[String], other: &[String]) -> Vec<String> {
    let count = |all: &[String], line: &String| all.iter().filter(|found| *found == line).count();
    one.iter().filter(|line| count(other, line) < count(one, line)).cloned().collect()
}
