//! Collects the state of a lab's host, or of a container.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hasher as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Fact, Snapshot, json, sysctl};
use crate::detection::wait_for_detection;
use crate::place::Place;
use crate::service::TIMEOUT;

/// Fields in the output of `ip -details` that change by themselves or mean nothing.
const VOLATILE_LINK: [&str; 25] = [
    "ifindex",
    "link_index",
    "link_netnsid",
    "operstate",
    "valid_life_time",
    "preferred_life_time",
    "stats",
    "stats64",
    "hello_timer",
    "tcn_timer",
    "topology_change_timer",
    "gc_timer",
    "root_id",
    "bridge_id",
    "root_port",
    "root_path_cost",
    "topology_change",
    "topology_change_detected",
    "message_age_timer",
    "forward_delay_timer",
    "hold_timer",
    "designated_bridge",
    "designated_root",
    "state",
    "tentative",
];

/// Link flags that follow the other end.
const VOLATILE_FLAGS: [&str; 3] = ["LOWER_UP", "NO-CARRIER", "RUNNING"];

/// Qdiscs that the kernel adds to links by itself.
const DEFAULT_QDISCS: [&str; 6] = ["noqueue", "pfifo_fast", "pfifo", "mq", "fq_codel", "noop"];

/// Addresses and routes that the kernel adds by itself come some moments after a link's carrier. If
/// they do not come, a program has removed them.
const COMING_DEADLINE: Duration = Duration::from_secs(2);

type Facts = BTreeMap<Fact, String>;

/// One script for all programs: starting them takes most of a snapshot's time, above all in the
/// virtual machine. So one `ip` answers several queries, the shell starts no other program to pass
/// them to it, and the programs that show iptables rules are started only if there are rules.
///
/// Each part is named by a line `@@ NAME` before it. Rules and neighbours are in the part with the
/// routes of their family: their lines show what they are.
const SCRIPT: &str = "
some() { [ -e \"$1\" ] && read -r table <\"$1\"; }
save() { command -v $1 >/dev/null && echo \"@@ iptables $1\" && $1; }
echo '@@ links'; ip -json -details address show
for family in -4 -6; do
    echo \"@@ routes $family\"; ip $family -force -batch - <<END
route show table all
rule show
neigh show nud permanent
neigh show proxy
END
done
echo '@@ fdb'; bridge fdb show
echo '@@ nftables'; ruleset=$(nft -json list ruleset); printf '%s\\n' \"$ruleset\"
for family in ip ip6; do
    legacy=
    some /proc/net/${family}_tables_names && legacy=$family
    case $legacy$ruleset in ip*|*'\"family\": \"'$family'\"'*) save ${family}tables-save ;; esac
    [ -z \"$legacy\" ] || save ${family}tables-legacy-save
done
echo '@@ tc'; tc -json qdisc show
echo '@@ end'
";

pub(super) fn all(place: &impl Place, directories: &[&str]) -> Facts {
    let output = settled(place);
    let mut facts = Facts::new();
    for part in output.split("@@ ").skip(1) {
        let (title, text) = part.split_once('\n').unwrap_or((part, ""));
        match title.split_once(' ').unwrap_or((title, "")) {
            ("links", _) => links(text, &mut facts),
            ("routes", family) => {
                let (rules, others): (Vec<_>, Vec<_>) = text.lines().partition(is_rule);
                let (neighbours, routes): (Vec<_>, Vec<_>) =
                    others.into_iter().partition(is_neighbour);
                lines(&mut facts, "routes", &routes.join("\n"), family);
                lines(&mut facts, "rules", &rules.join("\n"), family);
                lines(&mut facts, "neighbours", &neighbours.join("\n"), "");
            }
            ("fdb", _) => {
                let permanent =
                    text.lines().filter(|line| line.split(' ').any(|word| word == "permanent"));
                lines(&mut facts, "fdb", &permanent.collect::<Vec<_>>().join("\n"), "");
            }
            ("nftables", _) => nftables(text, &mut facts),
            ("iptables", program) => iptables(program, text, &mut facts),
            ("tc", _) => traffic_control(place, text, &mut facts),
            _ => {}
        }
    }
    place.enter(|| {
        for (name, value) in sysctl::here() {
            add(&mut facts, "sysctls", name, value);
        }
        mounts(&mut facts);
        for dir in directories {
            files(Path::new(dir), &mut facts);
        }
    });
    facts
}

/// The parts of the script that say whether the kernel has finished.
const COMING: &str = "
echo '@@ links'; ip -json -details address show
echo '@@ routes -6'; ip -6 route show table all
echo '@@ end'
";

/// How long to wait between two such looks: twice as long as one took, within these bounds.
const PAUSE: (Duration, Duration) = (Duration::from_millis(40), Duration::from_millis(300));

/// How long to wait for the end of duplicate address detection without a look. A link without a
/// carrier, which is not waited for, may have an address whose detection does not end.
const DETECTION: Duration = Duration::from_millis(500);

/// Returns the script's output once the kernel has finished everything that follows from changes of
/// links: carriers are reported, no address is tentative, and the addresses and routes that it adds
/// by itself exist. That may take two seconds. Meanwhile only two of the programs are started, and
/// none during duplicate address detection, whose end the kernel's table of addresses shows.
fn settled(place: &impl Place) -> String {
    let began = Instant::now();
    loop {
        let mut text = shown(place, SCRIPT);
        if !is_unfinished(place, &text, began) {
            return text;
        }
        let mut pause = PAUSE.0;
        loop {
            assert!(
                began.elapsed() < TIMEOUT,
                "addresses stay tentative, or carriers untold:\n{}",
                place.sh("ip -6 addr show tentative; ip link show")
            );
            if is_detecting(&json::list(part(&text, "links\n"))) {
                wait_for_detection(place, DETECTION);
            } else {
                thread::sleep(pause);
            }
            let look = Instant::now();
            text = shown(place, COMING);
            if !is_unfinished(place, &text, began) {
                break;
            }
            pause = (2 * look.elapsed()).clamp(PAUSE.0, PAUSE.1);
        }
    }
}

/// Runs a script whose last part shows that the output is complete.
fn shown(place: &impl Place, script: &str) -> String {
    let output =
        place.enter(|| Command::new("sh").args(["-c", script]).stdin(Stdio::null()).output());
    let output = output.unwrap_or_else(|error| panic!("sh in {}: {error}", place.place_name()));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && text.contains("@@ end"),
        "looking at {} failed: {}",
        place.place_name(),
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// Returns the part of a script's output that begins with this line.
fn part<'t>(text: &'t str, name: &str) -> &'t str {
    text.split("@@ ").find_map(|part| part.strip_prefix(name)).unwrap_or_default()
}

/// Whether the kernel has still something to add, judged by the links and routes in a script's
/// output.
fn is_unfinished(place: &impl Place, text: &str, began: Instant) -> bool {
    let (links, routes) = (json::list(part(text, "links\n")), part(text, "routes -6\n"));
    let is_coming = links.iter().any(|link| {
        lacks_what_comes(link, &links, routes)
            && link["ifname"].as_str().is_some_and(|name| has_ipv6(place, name))
    });
    let is_waited_for = is_coming && began.elapsed() < COMING_DEADLINE;
    is_waited_for || is_detecting(&links) || links.iter().any(is_untold)
}

/// Whether duplicate address detection goes on. It does not end on a link without a carrier.
fn is_detecting(links: &[Value]) -> bool {
    links.iter().any(|link| {
        !has_flag(link, "NO-CARRIER")
            && list(link, "addr_info").any(|at| is(at, "tentative") && !is(at, "dadfailed"))
    })
}

/// Whether a link has a carrier that the kernel has not reported yet. When it does, it gives the
/// link addresses and routes.
fn is_untold(link: &Value) -> bool {
    let told = !matches!(link["operstate"].as_str(), Some("DOWN" | "LOWERLAYERDOWN"));
    has_flag(link, "UP") && has_flag(link, "LOWER_UP") && !told
}

/// Whether a link with a carrier lacks what the kernel gives it for IPv6: an address, the route to
/// each of its addresses, and the one for multicast. They come one after the other.
fn lacks_what_comes(link: &Value, links: &[Value], routes: &str) -> bool {
    let name = link["ifname"].as_str().unwrap_or_default();
    let kind = &link["linkinfo"]["info_kind"];
    // A bridge gets its address some moments after its first port has a carrier.
    let carries = match kind.as_str() {
        Some("bridge") => {
            links.iter().any(|port| port["master"] == name && has_flag(port, "LOWER_UP"))
        }
        Some("vrf") => false,
        _ => has_flag(link, "LOWER_UP"),
    };
    if !carries || !has_flag(link, "UP") || link["link_type"] != "ether" {
        return false;
    }
    let of_ipv6 = || list(link, "addr_info").filter(|address| address["family"] == "inet6");
    let is_routed = |to: &str| {
        let begin = format!("{to} dev {name} ");
        routes.lines().any(|route| route.starts_with(&begin))
    };
    let lacks_address = link["inet6_addr_gen_mode"] != "none" && of_ipv6().next().is_none();
    let lacks_route = of_ipv6().filter(|address| !is(address, "tentative")).any(|address| {
        let local = address["local"].as_str().unwrap_or_default();
        !is_routed(&format!("local {local}"))
    });
    let lacks_multicast = has_flag(link, "MULTICAST") && !is_routed("multicast ff00::/8");
    lacks_address || lacks_route || lacks_multicast
}

fn is(address: &Value, flag: &str) -> bool {
    address.get(flag) == Some(&Value::Bool(true))
}

fn has_ipv6(place: &impl Place, link: &str) -> bool {
    let path = format!("/proc/sys/net/ipv6/conf/{link}/disable_ipv6");
    place.enter(|| std::fs::read_to_string(path)).is_ok_and(|text| text.trim() == "0")
}

fn has_flag(link: &Value, flag: &str) -> bool {
    list(link, "flags").any(|at| at == flag)
}

fn list<'a>(link: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    link.get(key).and_then(Value::as_array).into_iter().flatten()
}

fn add(
    facts: &mut Facts,
    section: &'static str,
    name: impl Into<String>,
    value: impl Into<String>,
) {
    let mut fact = Fact { section, name: name.into() };
    // Two equal lines are two facts.
    while facts.contains_key(&fact) {
        fact.name.push_str(" (again)");
    }
    facts.insert(fact, value.into());
}

/// One fact per line; its first word or two name it, the line is its value.
fn lines(facts: &mut Facts, section: &'static str, output: &str, prefix: &str) {
    for line in output.lines() {
        // Routes show whether their link has a carrier, which comes and goes with the other end. In
        // IPv6 routes more words follow.
        let line = crate::without_linkdown(line.trim());
        let name = format!("{prefix} {line}");
        add(facts, section, name.trim(), "");
    }
}

/// Whether a line is a rule, which begins with its priority: `0:\tfrom all lookup local`.
fn is_rule(line: &&str) -> bool {
    let priority = line.split_once(":\t").map(|(priority, _)| priority);
    priority.is_some_and(|priority| priority.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Whether a line is a permanent neighbour or a proxy's, which contains the one word or the other:
/// `192.0.2.7 dev v0 lladdr 02:00:00:00:00:07 PERMANENT`, `192.0.2.8 dev v0 proxy`. Routes do not.
fn is_neighbour(line: &&str) -> bool {
    line.split_whitespace().any(|word| ["PERMANENT", "proxy"].contains(&word))
}

fn links(output: &str, facts: &mut Facts) {
    for mut link in json::list(output) {
        let name = json::text(&link, "ifname");
        json::without(&mut link, &VOLATILE_LINK);
        if let Some(Value::Array(flags)) = link.get_mut("flags") {
            flags.retain(|flag| !flag.as_str().is_some_and(|flag| VOLATILE_FLAGS.contains(&flag)));
        }
        json::sorted(&mut link, &["flags", "addr_info"]);
        let addresses = link.as_object_mut().and_then(|map| map.remove("addr_info"));
        for address in addresses.iter().filter_map(Value::as_array).flatten() {
            let prefix = format!(
                "{name} {}/{}",
                json::text(address, "local"),
                json::text(address, "prefixlen")
            );
            add(facts, "addresses", prefix, address.to_string());
        }
        add(facts, "links", name, link.to_string());
    }
}

fn nftables(output: &str, facts: &mut Facts) {
    let ruleset = json::parse(output);
    let mut rules: BTreeMap<String, usize> = BTreeMap::new();
    for entry in ruleset.get("nftables").and_then(Value::as_array).into_iter().flatten() {
        let Some((kind, object)) = entry.as_object().and_then(|map| map.iter().next()) else {
            continue;
        };
        if kind == "metainfo" {
            continue;
        }
        let mut object = object.clone();
        json::without(&mut object, &["handle", "packets", "bytes", "expires"]);
        json::sorted(&mut object, &["elem"]);
        let part = |key| json::text(&object, key);
        let name = match kind.as_str() {
            "rule" => {
                let chain = format!("rule {} {} {}", part("family"), part("table"), part("chain"));
                let number =
                    rules.entry(chain.clone()).and_modify(|number| *number += 1).or_insert(1);
                format!("{chain} #{number}")
            }
            "table" => format!("table {} {}", part("family"), part("name")),
            _ => format!("{kind} {} {} {}", part("family"), part("table"), part("name")),
        };
        add(facts, "nftables", name, object.to_string());
    }
}

fn iptables(program: &str, output: &str, facts: &mut Facts) {
    let mut table = String::new();
    for line in output.lines().filter(|line| !line.starts_with('#') && *line != "COMMIT") {
        if let Some(name) = line.strip_prefix('*') {
            name.clone_into(&mut table);
        }
        let rule = line.split(" [").next().unwrap_or(line); // chains carry their counters
        add(facts, "iptables", format!("{program} {table}: {rule}"), "");
    }
}

fn traffic_control(place: &impl Place, output: &str, facts: &mut Facts) {
    for mut qdisc in json::list(output) {
        let (device, kind) = (json::text(&qdisc, "dev"), json::text(&qdisc, "kind"));
        if DEFAULT_QDISCS.contains(&kind.as_str()) {
            continue;
        }
        json::without(&mut qdisc, &["refcnt"]);
        let name = format!("{device} qdisc {kind} {}", json::text(&qdisc, "handle"));
        add(facts, "tc", name, qdisc.to_string());
        let hooks: &[&str] = match kind.as_str() {
            "ingress" => &["ingress"],
            "clsact" => &["ingress", "egress"],
            _ => &["root"],
        };
        for hook in hooks {
            for filter in
                json::list(&place.sh(&format!("tc -json filter show dev {device} {hook}")))
            {
                let name = format!("{device} {hook} filter {}", json::text(&filter, "pref"));
                add(facts, "tc", name, filter.to_string());
            }
        }
    }
}

fn mounts(facts: &mut Facts) {
    let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
    for line in table.lines() {
        let target = line.split(' ').nth(4).unwrap_or_default();
        let kind = line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').next());
        add(facts, "mounts", target, kind.unwrap_or_default());
    }
}

/// Where indexes of address pools are, on a host and below a test's own state folder.
const INDEXES: [&str; 2] = ["run/netwright/addresses", "run/addresses"];

/// The records of what stays after the last container ([`Snapshot`]), and of what the kernel lacks.
const LEFT: [&str; 4] = ["run/netwright/left", "run/left", "run/netwright/lacking", "run/lacking"];

/// Whether a folder contains only such records.
fn has_left_alone(folder: &Path) -> bool {
    let is_left = |path: &Path| LEFT.iter().any(|left| path.ends_with(left));
    let mut entries = fs::read_dir(folder).into_iter().flatten().flatten().peekable();
    is_left(folder) || (entries.peek().is_some() && entries.all(|entry| is_left(&entry.path())))
}

fn files(path: &Path, facts: &mut Facts) {
    let Ok(meta) = fs::symlink_metadata(path) else { return };
    let name = path.display().to_string();
    if Snapshot::TOLERATED.contains(&name.as_str()) {
        return;
    }
    let kind = meta.file_type();
    if kind.is_dir() && has_left_alone(path) {
        return;
    }
    let content = if kind.is_symlink() {
        fs::read_link(path).map(|to| format!("link to {}", to.display())).unwrap_or_default()
    } else if kind.is_dir() {
        "directory".to_owned()
    } else if kind.is_socket() {
        "socket".to_owned()
    } else if path.parent().is_some_and(|parent| INDEXES.iter().any(|one| parent.ends_with(one))) {
        // The index of an address pool: it differs after every call, whichever attachments exist.
        "an index".to_owned()
    } else if kind.is_file() && !name.starts_with("/run/netns/") {
        let bytes = fs::read(path).unwrap_or_default();
        let mut hasher = DefaultHasher::new();
        hasher.write(&bytes);
        format!("{} bytes, hash {:016x}", bytes.len(), hasher.finish())
    } else {
        format!("{kind:?}")
    };
    add(
        facts,
        "files",
        name,
        format!("mode {:o}, owner {}:{}, {content}", meta.mode() & 0o7777, meta.uid(), meta.gid()),
    );
    if kind.is_dir() {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            files(&entry.path(), facts);
        }
    }
}
