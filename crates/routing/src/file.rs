//! The dialect for a few machines and nothing else: a file with a list of nodes, the same on each.
//!
//! ```toml
//! [[node]]
//! name = "a"
//! prefixes = ["10.244.1.0/24"]
//! underlay = ["192.0.2.1"]
//! ```
//!
//! Every machine runs with the same settings, and a tunnel's hardware address follows from the
//! node's name: nothing has to be published.

mod plain;

use std::collections::HashMap;

use ipnet::IpNet;

use crate::annotation::MOST_KEPT;
use crate::cluster::{NodeRecord, RecordFault};
use crate::mac::mac_of_tunnel;
use crate::node::{Dialect, Node, Underlay};
use crate::reader::{self, Fault, KeyedValue, overlap};
use crate::refused::{Cause, Refusal, printable};
use crate::settings::Settings;
use crate::time::Time;
use net::IpFamily;

/// The longest file that is read, in bytes.
pub const LONGEST: usize = 1 << 20;

/// How many nodes are read, and how many prefixes of each.
const MOST_NODES: usize = 5000;
const MOST_PREFIXES: usize = 64;

/// The keys of a node.
const KEYS: [&str; 6] = ["name", "prefixes", "kept", "underlay", "mtu", "zone"];

/// The longest name of a node: that of a DNS subdomain (RFC 1123, as Kubernetes reads it).
const LONGEST_NAME: usize = 253;

/// Reads the list. All its nodes are [`NodeRecord`], each with what is wrong with it.
///
/// The file is the same on every machine, so it has this node too.
///
/// # Errors
/// Why the file as a whole cannot be read, with the place: then nothing of it counts.
pub fn read(text: &str, settings: &Settings) -> Result<Vec<NodeRecord>, String> {
    if LONGEST < text.len() {
        return Err(Cause::TooLong { bytes: text.len(), most: LONGEST }.to_string());
    }
    if let Some(seen) = read_in_parts(text, settings) {
        return Ok(seen);
    }
    let file: serde_json::Value =
        toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
    let whole = |(path, cause): Fault| {
        if path.is_empty() { cause.to_string() } else { format!("{path}: {cause}") }
    };
    let root = KeyedValue::root(&file);
    for key in root.keys().map_err(whole)? {
        if key != "node" {
            let known = cni::nearest::nearest(key, ["node"]).map(str::to_owned);
            return Err(whole((printable(key), Cause::UnknownKey { nearest: known })));
        }
    }
    let nodes = match root.get("node").map_err(whole)? {
        Some(nodes) => nodes.list(MOST_NODES).map_err(whole)?,
        None => return Err("it has no [[node]]".to_owned()),
    };
    let mut list = List::default();
    nodes.iter().for_each(|at| list.take(at, settings));
    Ok(list.seen)
}

/// Reads a list without faults node by node: to parse a long one as a whole would take as much
/// memory as all that is known of its nodes. `None` if the list cannot be divided, or has a fault
/// as a whole; then reading the whole says what is wrong.
fn read_in_parts(text: &str, settings: &Settings) -> Option<Vec<NodeRecord>> {
    // Such a string may have lines that look like the beginning of a node.
    if text.contains("\"\"\"") || text.contains("'''") {
        return None;
    }
    let mut list = List::default();
    let mut part = 0..0;
    let mut take = |part: &str| {
        let entry = plain::read(part);
        if let Some(node) = entry.and_then(|entry| read_plain(entry, list.count, settings)) {
            list.add(node.name.clone(), Ok(node));
            return Some(());
        }
        let value: serde_json::Value = toml::from_str(part).ok()?;
        let root = KeyedValue::root(&value);
        let is_node = part.trim_start().starts_with(plain::HEAD);
        if root.keys().ok()?.any(|key| key != "node" || !is_node) {
            return None;
        }
        let nodes = root.get("node").ok()?.map(|nodes| nodes.list(MOST_NODES)).transpose().ok()?;
        nodes.iter().flatten().for_each(|at| list.take(at, settings));
        Some(())
    };
    for line in text.split_inclusive('\n') {
        if line.trim() == plain::HEAD {
            take(&text[part.clone()])?;
            part.start = part.end;
        }
        part.end += line.len();
    }
    take(&text[part])?;
    (1..=MOST_NODES).contains(&list.count).then_some(list.seen)
}

/// What was read of a list so far.
#[derive(Default)]
struct List {
    count: usize,
    seen: Vec<NodeRecord>,
    /// Where each name is.
    places: HashMap<String, usize>,
}

impl List {
    fn take(&mut self, at: &KeyedValue<'_>, settings: &Settings) {
        let (name, node) = read_node(self.count, at, settings);
        self.add(name, node);
    }

    fn add(&mut self, name: String, node: Result<Node, Fault>) {
        self.count += 1;
        let node = node.map_err(|(path, cause)| {
            // The path begins with the place in the list, which the name tells better.
            let key = path.split_once('.').map_or("node", |(_, key)| key);
            RecordFault::Refused(Refusal::new(&name, key, cause))
        });
        if let Some(place) = self.places.get(&name) {
            self.seen[*place].node = Err(Refusal::new(&name, "name", Cause::NameTwice).into());
        } else {
            self.places.insert(name.clone(), self.seen.len());
            self.seen.push(NodeRecord { name, node, faults: Vec::new() });
        }
    }
}

/// Reads an entry of the list; the name stands for it even if it is wrong.
fn read_node(
    number: usize,
    at: &KeyedValue<'_>,
    settings: &Settings,
) -> (String, Result<Node, Fault>) {
    let unnamed = format!("#{}", number + 1);
    let name = match at.required("name").and_then(|name| Ok((name.text()?, name))) {
        Ok((name, _)) if is_name(name) => name.to_owned(),
        Ok((name, at)) => {
            let wanted = "a name of letters, digits, \"-\" and \".\"";
            return (unnamed, Err(at.fault(Cause::not_a(name, wanted))));
        }
        Err(fault) => return (unnamed, Err(fault)),
    };
    let node = read_fields(&name, number, at, settings);
    (name, node)
}

fn read_fields(
    name: &str,
    number: usize,
    at: &KeyedValue<'_>,
    settings: &Settings,
) -> Result<Node, Fault> {
    for key in at.keys()? {
        if !KEYS.contains(&key) {
            let nearest = cni::nearest::nearest(key, KEYS).map(str::to_owned);
            return Err((format!(".{}", printable(key)), Cause::UnknownKey { nearest }));
        }
    }
    let underlay = at.required("underlay")?.underlay()?;
    let prefixes = at.required("prefixes")?;
    let prefixes = match prefixes.prefixes(MOST_PREFIXES)? {
        list if list.is_empty() => return Err(prefixes.fault(Cause::Missing)),
        list => list,
    };
    let kept = at.get("kept")?.map(|kept| kept.prefixes(MOST_KEPT)).transpose()?;
    let kept = kept.unwrap_or_default().into_iter().filter(|kept| !prefixes.contains(kept));
    let kept = kept.collect();
    Ok(Node {
        kept,
        mtu: at.get("mtu")?.map(|mtu| mtu.mtu()).transpose()?,
        zone: at.get("zone")?.map(|zone| zone.text()).transpose()?.map(str::to_owned),
        ..node_of(name, number, prefixes, underlay, settings)
    })
}

/// Reads an entry of the plain form; `None` if something is wrong with it.
fn read_plain(entry: plain::Entry<'_>, number: usize, settings: &Settings) -> Option<Node> {
    let mut prefixes: Vec<IpNet> = Vec::with_capacity(IpFamily::ALL.len());
    for text in entry.prefixes.each() {
        let prefix = reader::prefix(text).ok()?;
        // Each is compared with all before it.
        let is_one_more = prefixes.len() == MOST_PREFIXES;
        if is_one_more || prefixes.iter().any(|other| overlap(*other, prefix)) {
            return None;
        }
        prefixes.push(prefix);
    }
    let mut underlay = Underlay::default();
    for text in entry.underlay.each() {
        let address = reader::address(text).ok()?;
        if underlay.get(IpFamily::of(address)).is_some() {
            return None;
        }
        underlay.set(address);
    }
    let is_right = is_name(entry.name) && !prefixes.is_empty() && underlay != Underlay::default();
    is_right.then(|| node_of(entry.name, number, prefixes, underlay, settings))
}

/// Returns a node of which the list says nothing more.
fn node_of(
    name: &str,
    number: usize,
    prefixes: Vec<IpNet>,
    underlay: Underlay,
    settings: &Settings,
) -> Node {
    let mac = |family| underlay.get(family).map(|_| mac_of_tunnel(name, family));
    let offers = settings.offers(&mac);
    Node {
        name: name.to_owned(),
        uid: String::new(),
        // Of two entries that want the same, the first has it, on every machine.
        created: u64::try_from(number).ok().map(Time),
        prefixes,
        kept: Vec::new(),
        blocks: Vec::new(),
        underlay,
        addresses: Vec::new(),
        offers,
        mtu: None,
        zone: None,
        dialect: Dialect::Netwright,
    }
}

fn is_name(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(letter)
}
