//! `doctor` touches nothing and leaves nothing: tests with the flows and traces of other programs,
//! with another `doctor` at the same time, and with one that is killed.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;
use testkit::fault::{self, Blow, Moment};
use testkit::router::advertise;
use testkit::{Lab, Place, RunningProgram, Snapshot, require, share, wait_until};

use super::situations::node::{Node, findings};
use crate::support::{EXECUTABLE, call_in, command_in};

const SERVER: &str = "203.0.113.2";
const TO: [&str; 2] = ["--to", "203.0.113.2:80"];

/// Drops what c1 sends to the server. Only a probe shows that, because no rule of `doctor` can
/// compute whether a packet meets the condition on its length.
fn drop_probes(node: &Node) {
    let rule = format!("ip saddr {{a1}} ip daddr {SERVER} meta length > 20 drop");
    let (done, said) = node.run(&format!(
        "nft -f - <<'X'\ntable inet foreign {{\nchain foreign {{\ntype filter hook forward priority 0\n\
         {rule}\n}}\n}}\nX"
    ));
    assert!(done, "{said}");
}

/// The mount of tracefs for the test: not below a folder whose files a snapshot contains.
fn show_tracing(node: &Node) -> PathBuf {
    let folder = node.lab.dir().join("tracing");
    std::fs::create_dir(&folder).unwrap();
    node.lab.sh(&format!("mount -t tracefs tracefs {}", folder.display()));
    node.lab.path(folder.join("instances"))
}

/// Says whether the kernel has a trace instance that one of these processes has made.
fn has_instance(instances: &Path, pids: &BTreeSet<u32>) -> bool {
    let names = std::fs::read_dir(instances).unwrap().flatten();
    let names: Vec<String> =
        names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    pids.iter().any(|pid| {
        let prefix = format!("netwright-doctor-{pid}-");
        names.iter().any(|name| name.starts_with(&prefix))
    })
}

fn has_tables(node: &Node) -> bool {
    let has = |text: String| text.contains("netwright-doctor");
    has(node.lab.sh("nft list tables")) || has(node.c1.sh("nft list tables"))
}

fn start(node: &Node) -> Child {
    let arguments = [&["doctor", "--output", "json"], TO.as_slice()].concat();
    let mut command = command_in(&node.lab, &arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Sends packets that are not probes to the destination of the probes.
const NOISE: &str = "
import socket, sys, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    caller = socket.socket()
    caller.setblocking(False)
    caller.connect_ex((sys.argv[1], 81))
    caller.close()
    for size in (20, 200, 400):
        try:
            sender.sendto(bytes(size), (sys.argv[1], 9))
        except OSError:
            pass
    time.sleep(0.002)
";

/// Counts those packets before `doctor` marks anything.
const COUNTS: &str = "nft -f - <<'X'
table inet counts {
chain counts {
type filter hook prerouting priority -500
udp dport 9 counter
tcp dport 81 counter
}
}
X";

#[test]
fn two_at_once_find_the_same_and_a_foreign_monitor_sees_their_probes_alone() {
    require!("root", "program:nft", "program:python3", "program:stdbuf");
    let node = Node::new("doctor-two");
    drop_probes(&node);
    node.lab.sh(COUNTS);
    let instances = show_tracing(&node);
    let log = node.lab.dir().join("monitor");
    let mut monitor = node.lab.command("stdbuf");
    monitor.args(["-oL", "nft", "monitor", "trace"]);
    monitor.stdin(Stdio::null()).stdout(File::create(&log).unwrap()).stderr(Stdio::null());
    let _monitor = RunningProgram::from(monitor.spawn().unwrap());
    // The group of traces (NFNLGRP_NFTRACE) among those of a socket of the packet filter.
    wait_until("somebody listens to the trace", || {
        let listens = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            matches!(words.as_slice(), [_, "12", _, groups, ..] if groups.ends_with("100"))
        };
        node.lab.sh("cat /proc/net/netlink").lines().any(listens)
    });
    let (c2, noise) = (node.lab.visit("/run/netns/c2"), ["-c", NOISE, SERVER]);
    let _noise = [node.c1.start("python3", &noise), c2.start("python3", &noise)];
    wait_until("others send", || !node.lab.sh("nft list table inet counts").contains("packets 0 "));

    let children = [start(&node), start(&node)];
    let pids: BTreeSet<u32> = children.iter().map(Child::id).collect();
    let told = children.map(|child| {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        let all = said["findings"].as_array().unwrap().clone();
        let dropped = all.iter().find(|finding| finding["id"] == "forward-dropped");
        let dropped = dropped.unwrap_or_else(|| panic!("{all:#?}"));
        let seen = format!("a probe to {SERVER}:80 ended at this rule");
        assert!(dropped["seen"].to_string().contains(&seen), "{seen}: {dropped:#?}");
        let key = |finding: &Value| format!("{} {}", finding["id"], finding["object"]);
        all.iter().map(key).collect::<Vec<String>>()
    });
    assert_eq!(told[0], told[1]);
    assert!(!has_tables(&node) && !has_instance(&instances, &pids));

    wait_until("the monitor shows probes", || {
        std::fs::read_to_string(&log).unwrap().contains("tcp dport 80 ")
    });
    let shown = std::fs::read_to_string(&log).unwrap();
    let others = ["udp dport 9 ", "udp sport 9 ", "tcp dport 81 ", "tcp sport 81 "];
    let of_others: Vec<&str> =
        shown.lines().filter(|line| others.iter().any(|port| line.contains(port))).collect();
    assert!(of_others.is_empty(), "{of_others:#?}");
}

/// Answers many connections, and reports what arrived through one of them.
const SERVE: &str = "
import asyncio, hashlib
async def echo(reader, writer):
    while data := await reader.read(4096):
        writer.write(data)
        await writer.drain()
    writer.close()
async def sink(reader, writer):
    digest, count = hashlib.md5(), 0
    while data := await reader.read(1 << 20):
        digest.update(data)
        count += len(data)
    writer.write(f'{count} {digest.hexdigest()}'.encode())
    await writer.drain()
    writer.close()
async def main():
    servers = [await asyncio.start_server(echo, '0.0.0.0', 7000, backlog=1024),
               await asyncio.start_server(sink, '0.0.0.0', 7001)]
    print('ready', flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
";

/// Makes the connections, and uses all of them until standard input ends. It fails if anything is
/// lost.
const CALL: &str = "
import asyncio, hashlib, sys
SERVER, FLOWS = sys.argv[1], int(sys.argv[2])
async def main():
    stop, rounds = asyncio.Event(), 0
    async def talk(number, reader, writer):
        nonlocal rounds
        while not stop.is_set():
            said = b'%d %d\\n' % (number, rounds)
            writer.write(said)
            answer = await asyncio.wait_for(reader.readexactly(len(said)), 60)
            assert answer == said, (answer, said)
            rounds += 1
            await asyncio.sleep(0.02)
    async def pour(reader, writer):
        digest, count, block = hashlib.md5(), 0, bytes(range(256)) * 256
        while not stop.is_set():
            writer.write(block)
            digest.update(block)
            count += len(block)
            await writer.drain()
        writer.write_eof()
        said = await reader.read()
        assert said == f'{count} {digest.hexdigest()}'.encode(), said
        return count
    stream = await asyncio.open_connection(SERVER, 7001)
    flows = [await asyncio.open_connection(SERVER, 7000) for _ in range(FLOWS)]
    tasks = [asyncio.create_task(pour(*stream))]
    tasks += [asyncio.create_task(talk(number, *flow)) for number, flow in enumerate(flows)]
    print('ready', flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    stop.set()
    poured = (await asyncio.gather(*tasks))[0]
    print(rounds, poured)
asyncio.run(main())
";

const FLOWS: usize = 500;

/// How often `doctor` looks meanwhile.
const LOOKS: usize = 8;

/// The rules mark flows only when they begin.
const MARKS: &str = "nft -f - <<'X'
table inet marks {
chain marks {
type filter hook forward priority -150
ct state new tcp dport { 7000, 7001 } ct mark set 0x77
}
}
X";

/// The marked flows in the kernel's connection tracking, without the fields that change with every
/// packet.
fn tracked(node: &Node) -> BTreeSet<String> {
    let table = node.lab.sh("conntrack -L -p tcp 2>/dev/null");
    let lasts = |word: &&str| {
        !word.bytes().all(|byte| byte.is_ascii_digit())
            && !["use=", "packets=", "bytes="].iter().any(|key| word.starts_with(key))
    };
    let marked = table.lines().filter(|line| line.contains("mark=119 "));
    marked
        .map(|line| line.split_whitespace().filter(lasts).collect::<Vec<&str>>().join(" "))
        .collect()
}

/// Starts a program, and waits until it is ready.
fn ready(mut command: Command) -> (Child, BufReader<ChildStdout>) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    (child, output)
}

#[test]
fn flows_of_others_lose_nothing() {
    require!("root", "program:nft", "program:python3", "program:conntrack", "full");
    let node = Node::new("doctor-flows");
    drop_probes(&node);
    node.lab.sh(MARKS);
    let server = node.lab.visit("/run/netns/server");
    let mut serve = server.command("python3");
    serve.args(["-c", SERVE]);
    let (serving, _output) = ready(serve);
    let _serving = RunningProgram::from(serving);
    let c2 = node.lab.visit("/run/netns/c2");
    let mut call = c2.command("python3");
    call.args(["-c", CALL, SERVER, &FLOWS.to_string()]);
    let (mut caller, mut output) = ready(call);
    let mut before = BTreeSet::new();
    wait_until("all flows are tracked", || {
        before = tracked(&node);
        before.len() == FLOWS + 1 && before.iter().all(|flow| flow.contains("[ASSURED]"))
    });
    for _ in 0..LOOKS {
        let found = findings(&node.doctor(&TO));
        assert!(found.iter().any(|finding| finding["id"] == "forward-dropped"), "{found:#?}");
    }
    assert_eq!(tracked(&node), before);
    drop(caller.stdin.take());
    let mut said = String::new();
    output.read_to_string(&mut said).unwrap();
    assert!(caller.wait().unwrap().success(), "something was lost: {said}");
    let [rounds, poured]: [u64; 2] = said
        .split_whitespace()
        .map(|number| number.parse().unwrap())
        .collect::<Vec<u64>>()
        .try_into()
        .unwrap();
    assert!(u64::try_from(FLOWS).unwrap() < rounds && 0 < poured, "{said}");
    eprintln!("MEASURED {rounds} answers and {poured} bytes beside doctor, and none was lost");
}

/// A `doctor` that can be traced from its beginning: a trace starts at the first read of standard
/// input. It first prints its process ID.
pub(super) fn traced(node: &Node, arguments: &[&str]) -> Command {
    let mut command = node.lab.command("sh");
    command.args(["-c", "read go; echo $$ >&2; exec \"$@\"", "sh", EXECUTABLE, "doctor"]);
    command.args(arguments).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command
}

/// The line that it reads first.
pub(super) const GO: &[u8] = b"go\n";

#[test]
fn a_doctor_that_is_killed_anywhere_leaves_nothing() {
    require!("root", "full", "ptrace", "program:nft");
    let node = Node::new("doctor-killed");
    // `doctor` follows probes here, so that it makes everything that it can make.
    drop_probes(&node);
    let instances = show_tracing(&node);
    let before = (Snapshot::take(&node.lab), Snapshot::of(&node.c1));
    let whole = fault::watch(traced(&node, &TO), GO);
    assert_eq!((whole.code, whole.hung), (Some(1), false), "{whole:?}");
    assert!(!has_tables(&node));
    // The trace instance is the last folder that it makes.
    let makes = |moment: &Moment| fault::name(moment.call).starts_with("mkdir");
    let making = whole.moments.iter().rposition(makes).unwrap();
    let (reading, making) = whole.moments.split_at(making);
    let mut chosen = share::of_this_round(reading.to_vec(), share::STRIKES / 2);
    chosen.extend(share::of_this_round(making.to_vec(), share::STRIKES / 2));
    let (mut killed, mut pids) = (0, BTreeSet::new());
    for moment in &chosen {
        let ended = fault::strike(traced(&node, &TO), GO, *moment, Blow::KillAll);
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        pids.extend(told.lines().next().and_then(|line| line.parse::<u32>().ok()));
        // Its threads do not start in the same order each time, so it may not reach this call.
        if ended.struck {
            killed += 1;
        } else {
            assert_eq!(ended.code, Some(1), "{moment}: {ended:?}");
        }
        wait_until("its tables are gone", || !has_tables(&node));
        let mut host = before.0.diff(&Snapshot::take(&node.lab));
        // Links to the executable that runs (docs/files.md): the next command removes them.
        host.retain(|line| !line.contains("/run/netwright/plugins"));
        assert_eq!(host, [""; 0], "killed at {moment}");
        let inside = before.1.diff(&Snapshot::of(&node.c1));
        assert_eq!(inside, [""; 0], "killed at {moment}");
        assert!(node.lab.processes().is_empty(), "killed at {moment}");
    }
    assert!(chosen.len() <= 2 * killed, "killed at {killed} of {} moments", chosen.len());
    node.doctor(&TO).failed(1);
    assert!(!has_instance(&instances, &pids), "{pids:?}");
    assert_eq!(before.0.diff(&Snapshot::take(&node.lab)), [""; 0], "the next removes the rest");
    eprintln!("MEASURED doctor killed at {killed} of {} moments", whole.moments.len());
}

/// A router that calls itself none in the answer to a solicitation loses the routes that hosts have
/// learnt from it. So `doctor` does not ask one of which the host knows nothing else.
#[test]
fn a_route_that_was_learnt_outlives_a_look() {
    require!("root", "program:socat");
    let lab = Lab::new("doctor-router");
    let router = lab.container("router");
    let c1 = lab.container("c1");
    lab.sh("sysctl -qw net.ipv6.conf.all.forwarding=0; \
            ip link add up0 type veth peer name eth0 netns router; \
            sysctl -qw net.ipv6.conf.up0.accept_ra=2 net.ipv6.conf.up0.accept_dad=0; ip link set up0 up");
    router.sh("sysctl -qw net.ipv6.conf.eth0.accept_dad=0; ip link set eth0 up");
    lab.sh("mkdir -p /etc/cni/net.d");
    let list = r#"{"cniVersion": "1.0.0", "name": "v6", "plugins": [{"type": "bridge",
        "bridge": "b0", "isGateway": true, "ipam": {"type": "host-local",
        "ranges": [[{"subnet": "fd00:30::/64"}]], "routes": [{"dst": "::/0"}]}}]}"#;
    std::fs::write(lab.path("/etc/cni/net.d/v6.conflist"), list).unwrap();
    call_in(&lab, &["add", "v6", "c1"]).succeeded();
    c1.sh("ip link set lo up");
    advertise(&lab, &router, "up0");
    let learnt = || lab.sh("ip -6 route show default proto ra | cut -d' ' -f1-5");
    let before = learnt();
    assert_ne!(before, "");
    let said = call_in(&lab, &["doctor"]).succeeded();
    assert_eq!(learnt(), before, "{said:#?}");
}
