//! Bad input and bad luck: `doctor` ends, says something true, and believes no false data.

use diagnose::model::filter::{Base, Chain, Family, Hook, Rule, Ruleset, Step, Table, Verdict};
use diagnose::model::{FORMAT, Scene};
use serde_json::{Value, json};
use testkit::fault::{self, Blow};
use testkit::{Place, require, wait_until};

use super::situations::node::{Node, findings};
use super::untouched::{GO, traced};
use crate::support::{CommandOutput, Scratch, call_in};

/// A name that clears the screen and starts a new line.
fn evil(name: &str) -> String {
    format!("{name}\u{1b}[2J\u{7}\nFORGED")
}

/// Chains that jump to each other, which the kernel would refuse.
fn circular_filter() -> Value {
    let chain = |name: &str, to: &str, base| Chain {
        name: evil(name),
        base,
        rules: vec![Rule {
            handle: 1,
            comment: Some(evil("comment")),
            steps: vec![Step::Verdict(Verdict::Jump(evil(to)))],
        }],
    };
    let base = Base {
        hook: Hook::Forward,
        priority: 0,
        kind: "filter".to_owned(),
        drops: true,
        device: None,
    };
    let table = Table {
        family: Family::Inet,
        name: evil("table"),
        dormant: false,
        chains: vec![chain("a", "b", Some(base)), chain("b", "a", None)],
        sets: Vec::new(),
    };
    serde_json::to_value(Ruleset { tables: vec![table], ..Ruleset::default() }).unwrap()
}

/// A link that is above itself, and the other end of itself.
fn circular_link(index: u32, name: &str, master: u32) -> Value {
    json!({
        "index": index, "name": evil(name), "kind": "bridge", "up": index != 2, "carrier": true,
        "mtu": 1500, "master": master, "peer": master, "portState": 3,
        "addresses": [{ "address": "10.88.0.1/24", "duplicate": index == 1 }],
    })
}

/// A node whose names are all malicious, and whose links form cycles.
fn evil_scene() -> Value {
    let route = json!({
        "to": "0.0.0.0/0", "table": 254, "kind": "unicast", "metric": 0,
        "hops": [{ "via": "10.88.0.1", "link": 3 }],
        "source": null, "mtu": null, "protocol": null,
    });
    let inside = json!({
        "links": [circular_link(2, "eth0", 2)], "routes": [route], "filter": circular_filter(),
        "listeners": [{ "transport": "tcp", "at": "127.0.0.1:80", "program": evil("program") }],
    });
    let drift = json!({
        "plugin": evil("plugin"), "code": 104, "what": evil("what"), "details": evil("details"),
    });
    let attachment = json!({
        "network": evil("network"), "ifname": evil("eth0"), "plugins": ["bridge", evil("plugin")],
        "addresses": ["10.88.0.2/24"], "gateways": ["10.88.0.1"],
        "hostLinks": [evil("br0"), evil("self")],
        "ports": [{ "transport": "tcp", "host": 8080, "hostIp": null, "container": 80 }],
        "drifts": [drift], "notChecked": evil("reason"),
    });
    json!({
        "version": FORMAT, "node": evil("node"), "kernel": evil("6.1"), "netwright": "0", "atS": 1,
        "host": {
            "links": [circular_link(1, "br0", 2), circular_link(2, "br1", 1),
                      circular_link(3, "self", 3)],
            "routes": [route], "filter": circular_filter(),
            "sysctls": { "net.ipv4.ip_forward": "0" },
        },
        "containers": [{
            "id": "c1", "name": evil("name"), "netns": evil("/run/netns/c1"), "alive": true,
            "inside": inside, "nameservers": ["127.0.0.53"], "attachments": [attachment],
        }],
        "networks": [{ "name": evil("network"), "file": evil("file"), "link": evil("br0"),
                       "subnets": ["10.88.0.0/24"], "outbound": true, "refusal": evil("refusal"),
                       "warnings": [evil("warning")] }],
        "broken": [[evil("file"), evil("reason")]],
        "plugins": [{ "pluginType": evil("plugin"), "error": evil("error"),
                      "near": evil("near") }],
        "pools": [{ "network": evil("network"), "folder": evil("folder"), "used": 1, "size": 1 }],
        "services": [{ "name": evil("service"), "enabled": true, "ready": false,
                       "lacks": evil("lacks") }],
        "programs": [{ "name": "firewalld", "pid": 1 }],
        "holes": [{ "part": "routes", "container": "c1", "reason": evil("reason") }],
    })
}

/// Needs neither a node nor rights.
#[test]
fn circles_end_and_names_forge_no_line() {
    let text = evil_scene().to_string();
    Scene::from_json(text.as_bytes()).unwrap();
    let scratch = Scratch::new();
    let path = scratch.write("scene", &text);
    let path = path.to_str().unwrap();
    for more in [&["--verbose"][..], &[], &["c1"], &["c1", "--verbose", "--strict"]] {
        let said = scratch.call(&[&["doctor", "--from", path], more].concat()).failed(1);
        assert_eq!(said.stderr, "", "{more:?}");
        let is_shown = |letter: char| letter == '\n' || !letter.is_control();
        assert!(said.stdout.chars().all(is_shown), "{more:?}: {:?}", said.stdout);
        let forged = said.stdout.lines().find(|line| line.starts_with("FORGED"));
        assert_eq!(forged, None, "{more:?}: {}", said.stdout);
        // Printed commands contain none of these names.
        for line in said.stdout.lines().filter(|line| line.trim_start().starts_with("fix ")) {
            assert!(!line.contains("FORGED"), "{line}");
        }
    }
    let said = scratch.call(&["doctor", "--from", path, "--output", "json"]).failed(1);
    assert!(!findings(&said).is_empty());
}

/// Returns the findings with an ID, including those that a cause explains.
fn of_id(said: &CommandOutput, id: &str) -> Vec<Value> {
    let causes = findings(said);
    let explained = causes.iter().filter_map(|cause| cause["explains"].as_array()).flatten();
    causes.iter().chain(explained).filter(|one| one["id"] == id).cloned().collect()
}

/// The container's owner may put anything there.
#[test]
fn a_containers_resolv_conf_may_be_anything() {
    require!("root", "full");
    let node = Node::new("doctor-resolv");
    let file = "/etc/netns/c1/resolv.conf";
    node.lab.sh(&format!("rm {file} && mkfifo {file}"));
    let said = node.doctor(&["--no-probe"]).failed(3);
    let all = of_id(&said, "not-seen");
    let [unread] = all.as_slice() else { panic!("{said:#?}") };
    assert_eq!(unread["object"], "name resolution of c1");
    assert!(unread["seen"][0].as_str().unwrap().contains("it is not a file"), "{unread:#}");
    // `doctor` reads only the first 64 KiB.
    let lines = "#".repeat(1 << 20);
    let text = format!("nameserver 203.0.113.2\n{lines}\nnameserver 127.0.0.1\n");
    node.lab.sh(&format!("rm {file}"));
    std::fs::write(node.lab.path(file), text).unwrap();
    node.doctor(&["--no-probe"]).succeeded();
}

/// Answers each ARP request with 200 hardware addresses that no machine has.
const LIAR: &str = r#"
import socket
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
link.bind(("eth0", 0))
while True:
    frame = link.recv(2048)
    if frame[12:14] == b"\x08\x06" and frame[20:22] == b"\x00\x01":
        for number in range(200):
            mac = bytes([2, 0, 0, 0, 9, number])
            answer = frame[14:20] + b"\x00\x02" + mac + frame[38:42] + frame[22:32]
            link.send(frame[6:12] + mac + b"\x08\x06" + answer)
"#;

/// `doctor` reports at most eight of the false answers, and does not wait for the last.
#[test]
fn a_container_that_lies_and_floods_is_told() {
    require!("root", "program:python3", "full");
    let node = Node::new("doctor-liar");
    let _liar = node.c1.start("python3", &["-c", LIAR]);
    let claimed = || of_id(&node.doctor(&[]), "address-claimed");
    wait_until("the lies are told", || !claimed().is_empty());
    for finding in claimed() {
        for seen in finding["seen"].as_array().unwrap() {
            let lies = seen.as_str().unwrap().matches("02:00:00:00:09:").count();
            assert!((1..=8).contains(&lies), "{finding:#}");
        }
    }
}

/// Answers an echo request with lies alone, a thousand times a second: answers to other questions,
/// and messages that the question cannot be delivered, or only in small pieces.
const ICMP_LIAR: &str = r#"
import select, socket, struct

def checksum(data):
    data += bytes(len(data) % 2)
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return struct.pack("!H", total ^ 0xffff)

def frame(asked, icmp):
    icmp = icmp[:2] + checksum(icmp) + icmp[4:]
    head = struct.pack("!BBHHHBB", 0x45, 0, 20 + len(icmp), 0, 0, 64, 1)
    ends = asked[30:34] + asked[26:30]
    return asked[6:12] + asked[:6] + b"\x08\x00" + head + checksum(head + ends) + ends + icmp

def lies(asked):
    number, sequence = struct.unpack("!HH", asked[38:42])
    echo = lambda number, sequence, data: struct.pack("!4xHH", number, sequence) + data
    unreachable = lambda code, mtu: struct.pack("!BB4xH", 3, code, mtu) + asked[14:62]
    return [
        echo(number ^ 1, sequence, asked[42:]),
        echo(number, sequence ^ 0x4000, asked[42:]),
        echo(number, sequence, bytes(len(asked) - 42)),
        unreachable(1, 0),
        unreachable(4, 68),
    ]

link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
link.bind(("eth0", 0))
frames = []
while True:
    if not frames or select.select([link], [], [], 0.001)[0]:
        asked = link.recv(65536)
        if asked[23] == 1 and asked[34] == 8:
            frames = [frame(asked, lie) for lie in lies(asked)]
    for one in frames:
        link.send(one)
"#;

/// c1 answers no echo request of c2, and its lies are not believed: it is reached, and nothing is
/// wrong.
#[test]
fn a_container_that_lies_by_icmp_raises_no_alarm() {
    require!("root", "program:python3", "full");
    let node = Node::new("doctor-liar-icmp");
    node.c1.sh("sysctl -qw net.ipv4.icmp_echo_ignore_all=1");
    let _liar = node.c1.start("python3", &["-c", ICMP_LIAR]);
    let c2 = node.lab.visit("/run/netns/c2");
    let told = || -> u64 {
        let line = c2.sh("grep '^Icmp: [0-9]' /proc/net/snmp");
        // InDestUnreachs, behind the name and three other counts (RFC 2011).
        line.split_whitespace().nth(4).unwrap().parse().unwrap()
    };
    let to = node.filled("{a1}:80");
    let asked = || node.doctor(&["c2", "--to", &to]);
    wait_until("c2 hears lies", || {
        let said = asked().succeeded();
        assert!(findings(&said).is_empty(), "{said:#?}");
        100 < told()
    });
}

/// Answers each question for a name with another number than its own, and goes on with that.
const NAME_LIAR: &str = r#"
import select, socket

server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("0.0.0.0", 53))
asked = None
while True:
    if asked is None or select.select([server], [], [], 0.001)[0]:
        asked, asker = server.recvfrom(512)
    number = int.from_bytes(asked[:2], "big")
    for lie in range(1, 65):
        server.sendto((number ^ lie).to_bytes(2, "big") + b"\x81" + asked[3:], asker)
    server.sendto(b"", asker)
"#;

/// A server of names that floods who asks has not answered.
#[test]
fn a_server_of_names_that_lies_and_floods_is_silent() {
    require!("root", "program:python3", "full");
    let node = Node::new("doctor-liar-names");
    let c2 = node.lab.visit("/run/netns/c2");
    let _liar = c2.start("python3", &["-c", NAME_LIAR]);
    wait_until("the liar listens", || c2.try_sh("grep -q ':0035 ' /proc/net/udp").status.success());
    let server = node.filled("{a2}");
    let names = node.lab.path("/etc/netns/c1/resolv.conf");
    std::fs::write(names, format!("nameserver {server}\n")).unwrap();
    for arguments in [&["c1"][..], &[]] {
        let found = findings(&node.doctor(arguments).failed(1));
        // The liar itself has the machine's resolv.conf, whose server c2 does not reach.
        let of_liar = found.iter().find(|found| found["object"] == server.as_str());
        let id = of_liar.map(|found| &found["id"]);
        assert_eq!(id, Some(&json!("nameserver-silent")), "{arguments:?}: {found:#?}");
    }
}

/// At which of the moments at which a namespace is entered it goes, in turn.
const MOMENTS: usize = 8;

#[test]
fn a_namespace_that_goes_while_it_is_read_says_nothing_of_others() {
    require!("root", "ptrace", "full");
    let node = Node::new("doctor-gone");
    let add = ["add", "mynet", "c9", "--container-id", "c9"];
    let mut gone = 0;
    for number in 0..MOMENTS {
        let c9 = node.lab.container("c9");
        c9.sh("ip link set lo up");
        call_in(&node.lab, &add).succeeded();
        let (mut entered, mut is_gone) = (0, false);
        let doctor = traced(&node, &["--no-probe", "--output", "json"]);
        let ended = fault::follow(doctor, GO, &mut |moment| {
            if !is_gone && fault::name(moment.call) == "setns" {
                if entered == number {
                    c9.delete();
                    is_gone = true;
                }
                entered += 1;
            }
            Blow::Spare
        });
        gone += usize::from(is_gone);
        let said: Value = serde_json::from_slice(&ended.stdout)
            .unwrap_or_else(|error| panic!("{error} at {number}: {ended:?}"));
        assert!(matches!(ended.code, Some(0 | 1 | 3)), "at {number}: {ended:?}");
        for finding in said["findings"].as_array().unwrap() {
            let is_of_it = finding["hits"] == json!(["c9"]);
            assert!(is_of_it, "at {number}: {finding:#}");
        }
        call_in(&node.lab, &["del", "mynet", "c9", "--container-id", "c9"]).succeeded();
        node.doctor(&["--no-probe"]).succeeded();
    }
    assert!(0 < gone, "no namespace was entered");
}

/// Another program's rule set may have any size, and may change all the time.
#[test]
fn large_and_restless_rule_sets_are_told() {
    require!("root", "program:nft", "full");
    let node = Node::new("doctor-large");
    let elements: Vec<String> =
        (0..100_000).map(|n: u32| std::net::Ipv4Addr::from(0x0a00_0000 + n).to_string()).collect();
    let file = format!(
        "table inet foreign {{\nset many {{ type ipv4_addr; elements = {{ {} }}\n}}\nchain forward {{\n\
         type filter hook forward priority 0;\nip saddr @many accept\n{} }}\n}}\n",
        elements.join(", "),
        "counter\n".repeat(20_000)
    );
    let path = node.lab.dir().join("large.nft");
    std::fs::write(&path, file).unwrap();
    node.lab.sh(&format!("nft -f {}", path.display()));
    let said = node.doctor(&["--no-probe"]).failed(3);
    let left_out = of_id(&said, "not-seen");
    let is_left_out = |one: &Value| {
        one["object"] == "a part of the packet filter" && one["seen"].to_string().contains("many")
    };
    assert!(left_out.iter().any(is_left_out), "{left_out:#?}");

    let restless = "while :; do nft add table inet restless; nft delete table inet restless; done";
    let _restless = node.lab.start("sh", &["-c", restless]);
    wait_until("the changes are told", || {
        let said = node.doctor(&["--no-probe"]);
        let unread = of_id(&said, "not-seen");
        let words = ["changed while they were read", "was interrupted"];
        let is_told = |seen: &str| words.iter().any(|words| seen.contains(words));
        unread.iter().any(|one| is_told(&one["seen"].to_string()))
    });
}

/// If the kernel does not permit tracing, `doctor` works without it. The traces of other programs
/// continue.
#[test]
fn tracing_that_is_full_read_only_or_in_use_stops_nothing() {
    require!("root", "program:nft", "full", "file:/sys/kernel/tracing");
    let node = Node::new("doctor-tracing");
    let (done, said) = node.run(
        "nft 'add table ip other; add chain ip other forward { type filter hook forward priority 0; }; \
         add rule ip other forward ip saddr {a1} ip daddr 203.0.113.2 meta length > 20 drop'",
    );
    assert!(done, "{said}");
    let is_named = |when: &str| {
        let found = findings(&node.doctor(&["--to", "203.0.113.2:80"]).failed(1));
        let dropped = found.iter().find(|finding| finding["id"] == "forward-dropped");
        let dropped = dropped.unwrap_or_else(|| panic!("{when}: {found:#?}"));
        let seen = dropped["seen"].to_string();
        assert!(seen.contains("ended at this rule"), "{when}: {dropped:#}");
    };
    node.lab.sh("mount -t tracefs tracefs /sys/kernel/tracing");
    let other = format!("/sys/kernel/tracing/instances/other-{}", std::process::id());
    node.lab.sh(&format!("mkdir {other} && echo 1 >{other}/events/net/enable"));
    is_named("another program traces");
    let goes_on = node.lab.sh(&format!("cat {other}/events/net/enable {other}/tracing_on"));
    node.lab.sh(&format!("echo 0 >{other}/events/net/enable; rmdir {other}"));
    assert_eq!(goes_on, "1\n1\n");
    // There is room for the folder of instances, and for none in it.
    node.lab.sh("mount -t tmpfs -o nr_inodes=1 none /sys/kernel/tracing/instances");
    is_named("tracing is full");
    node.lab.sh("umount /sys/kernel/tracing/instances");
    // This mount alone: there is one tracefs for all.
    node.lab.sh("mount -o remount,bind,ro /sys/kernel/tracing");
    is_named("tracing is read-only");
}
