//! The daemon that the suite provides to a plugin with cluster-wide addresses: it hands out
//! addresses of the requested ranges, the lowest first.
//!
//! It speaks the same protocol as `netwrightd ipam`, as far as the suite's cases need it.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::IpAddr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::bench::NETWORK;
use crate::case::{OrBroken as _, Outcome};

/// The socket on which it listens.
pub(crate) const SOCKET: &str = "/run/conformance/addresses.sock";

/// The longest line that is read.
const MAX_LINE: u64 = 1 << 20;

/// Starts it; its thread ends with the case's process.
pub(crate) fn start() -> Outcome {
    if let Some(folder) = Path::new(SOCKET).parent() {
        std::fs::create_dir_all(folder).or_broken("make the daemon's folder")?;
    }
    let listener = UnixListener::bind(SOCKET).or_broken("start the daemon")?;
    thread::spawn(move || {
        let mut held = AddressOwners::default();
        for mut stream in listener.incoming().flatten() {
            let mut line = String::new();
            let read = BufReader::new(&stream).take(MAX_LINE).read_line(&mut line);
            let asked = read.ok().and_then(|_| serde_json::from_str(&line).ok());
            let mut answer = asked.map_or(Value::Null, |asked| held.answer(&asked));
            answer["version"] = json!(1);
            // Ignore errors: the client is gone.
            let _ = writeln!(stream, "{answer}");
        }
    });
    Ok(())
}

/// Makes it forget the holders of the network's addresses.
pub(crate) fn forget() -> Outcome {
    let asked = json!({ "version": 1, "collect": { "network": NETWORK, "valid": [] } });
    let mut stream = UnixStream::connect(SOCKET).or_broken("reach the daemon")?;
    writeln!(stream, "{asked}").or_broken("ask the daemon")?;
    let mut said = String::new();
    BufReader::new(stream).read_line(&mut said).or_broken("read the daemon's answer")?;
    Ok(())
}

/// The owner of each address: container and interface, and the network.
#[derive(Debug, Default)]
struct AddressOwners(BTreeMap<IpAddr, (String, String)>);

impl AddressOwners {
    fn answer(&mut self, asked: &Value) -> Value {
        let done = json!({ "ok": {} });
        if let Some(assign) = asked.get("assign") {
            return self.assign(assign);
        }
        if let Some(owner) = asked.get("release") {
            let owner = name(owner);
            self.0.retain(|_, (_, holder)| *holder != owner);
            return done;
        }
        if let Some(held) = asked.get("held") {
            let owner = name(&held["owner"]);
            let ranges = ranges(&held["network"]);
            let own = self.0.iter().filter(|(_, (_, holder))| *holder == owner);
            let mut all = Vec::new();
            for (address, _) in own {
                all.extend(
                    ranges
                        .iter()
                        .find(|range| range.0.contains(address))
                        .map(|range| assigned(range, *address)),
                );
            }
            return json!({ "assigned": all });
        }
        if let Some(collect) = asked.get("collect") {
            let valid: Vec<_> = collect["valid"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|one| format!("{}/{}", text(&one["containerID"]), text(&one["ifname"])))
                .collect();
            let network = text(&collect["network"]);
            self.0.retain(|_, (of, holder)| *of != network || valid.contains(holder));
            return done;
        }
        let free = |range: &Range| self.free(range).is_some();
        match ranges(&asked["status"]["network"]).iter().all(free) {
            true => done,
            false => refused("no address is free"),
        }
    }

    fn assign(&mut self, assign: &Value) -> Value {
        let owner = name(&assign["owner"]);
        let network = text(&assign["network"]["network"]);
        let wanted = assign["wanted"].as_array().into_iter().flatten();
        let wanted: Vec<IpAddr> = wanted.filter_map(|one| text(one).parse().ok()).collect();
        let mut all = Vec::new();
        for range in &ranges(&assign["network"]) {
            let mut own = self.0.iter().filter(|(_, (_, holder))| *holder == owner);
            let own =
                own.find(|(address, _)| range.0.contains(*address)).map(|(address, _)| *address);
            let wanted = wanted.iter().copied().find(|address| range.0.contains(address));
            let Some(address) = own.or(wanted).or_else(|| self.free(range)) else {
                return refused("no address is free");
            };
            let holder = self.0.entry(address).or_insert((network.clone(), owner.clone()));
            if holder.1 != owner {
                return refused("the address is taken");
            }
            all.push(assigned(range, address));
        }
        json!({ "assigned": all })
    }

    fn free(&self, range: &Range) -> Option<IpAddr> {
        let mut hosts = range.0.hosts().skip(usize::from(range.0.addr().is_ipv6()));
        hosts.find(|address| !self.0.contains_key(address) && range.1 != Some(*address))
    }
}

/// A subnet, and its gateway.
type Range = (IpNet, Option<IpAddr>);

fn ranges(network: &Value) -> Vec<Range> {
    let all = network["ranges"].as_array().into_iter().flatten();
    all.filter_map(|one| {
        Some((text(&one["subnet"]).parse().ok()?, text(&one["gateway"]).parse().ok()))
    })
    .collect()
}

fn assigned((subnet, gateway): &Range, address: IpAddr) -> Value {
    let mut one = json!({ "address": format!("{address}/{}", subnet.prefix_len()) });
    if let Some(gateway) = gateway {
        one["gateway"] = json!(gateway);
    }
    one
}

fn refused(why: &str) -> Value {
    json!({ "refused": { "code": 102, "msg": why } })
}

fn name(owner: &Value) -> String {
    format!("{}/{}", text(&owner["container"]), text(&owner["ifname"]))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
