//! The Docker network driver that the suite provides to a plugin that uses one: bridges, and veths
//! on them.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

use ipnet::IpNet;
use kernel::route::{
    AddressOptions, BridgeOptions, Change, LinkKind, LinkSet, NewLink, RouteSocket, VethPeer,
};
use serde_json::{Value, json};

use crate::case::{OrBroken as _, Outcome};

/// The socket on which it listens.
pub(crate) const SOCKET: &str = "/run/conformance/driver.sock";

/// The socket of the daemon that decides which networks a pod is to have.
pub(crate) const PODS: &str = "/run/conformance/pods.sock";

/// The longest request that is read.
const MAX_QUESTION: usize = 1 << 20;

/// The longest line that is read.
const MAX_LINE: u64 = 1 << 20;

/// Starts it; its thread ends with the case's process.
pub(crate) fn start() -> Outcome {
    if let Some(folder) = Path::new(SOCKET).parent() {
        std::fs::create_dir_all(folder).or_broken("make the driver's folder")?;
    }
    let listener = UnixListener::bind(SOCKET).or_broken("start the driver")?;
    thread::spawn(move || {
        let mut held = DriverState::default();
        for stream in listener.incoming().flatten() {
            // Ignore errors: the client is gone.
            let _ = held.serve(&stream);
        }
    });
    Ok(())
}

/// Starts a daemon that accepts every message about pods. It need not know any pod, since the
/// suite's containers are not pods.
pub(crate) fn start_pods() -> Outcome {
    if let Some(folder) = Path::new(PODS).parent() {
        std::fs::create_dir_all(folder).or_broken("make the daemon's folder")?;
    }
    let listener = UnixListener::bind(PODS).or_broken("start the daemon")?;
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut line = String::new();
            let asked = BufReader::new(&stream).take(MAX_LINE).read_line(&mut line);
            // Ignore errors: the client is gone.
            let _ = asked.and_then(|_| stream.write_all(b"{\"version\":1,\"ok\":{}}\n"));
        }
    });
    Ok(())
}

/// The networks and endpoints of the driver.
#[derive(Debug, Default)]
struct DriverState {
    /// The gateways of each network.
    networks: BTreeMap<String, Vec<IpNet>>,
    /// The network of each endpoint.
    endpoints: BTreeMap<String, String>,
}

impl DriverState {
    fn serve(&mut self, stream: &UnixStream) -> io::Result<()> {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let method = line.split_whitespace().nth(1).unwrap_or_default().to_owned();
        let mut length = 0;
        loop {
            line.clear();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length.min(MAX_QUESTION)];
        reader.read_exact(&mut body)?;
        let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
        let answer = match self.act(&method, &asked) {
            Ok(answer) => answer,
            Err(words) => json!({ "Err": words }),
        };
        let answer = answer.to_string();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", answer.len());
        let mut stream = stream;
        stream.write_all(format!("{head}{answer}").as_bytes())
    }

    fn act(&mut self, method: &str, asked: &Value) -> Result<Value, String> {
        let id = |key: &str| asked[key].as_str().unwrap_or_default().to_owned();
        let (network, endpoint) = (id("NetworkID"), id("EndpointID"));
        let words = |error: &dyn std::error::Error| error.to_string();
        let mut netlink = RouteSocket::open().map_err(|error| words(&error))?;
        match method {
            "/Plugin.Activate" => return Ok(json!({ "Implements": ["NetworkDriver"] })),
            "/NetworkDriver.GetCapabilities" => return Ok(json!({ "Scope": "local" })),
            "/NetworkDriver.CreateNetwork" => {
                let data =
                    ["IPv4Data", "IPv6Data"].into_iter().flat_map(|key| asked[key].as_array());
                let gateways =
                    data.flatten().filter_map(|one| one["Gateway"].as_str()?.parse().ok());
                let gateways: Vec<IpNet> = gateways.collect();
                let kind = LinkKind::Bridge(BridgeOptions::default());
                let bridge = netlink.create_link(&NewLink::new(name("cb", &network), kind));
                let ifindex = bridge.map_err(|error| words(&error))?.index;
                let options = AddressOptions { nodad: true, ..AddressOptions::default() };
                let give =
                    |address: &IpNet| Change::AddAddress { ifindex, address: *address, options };
                let mut changes: Vec<Change> = gateways.iter().map(give).collect();
                changes.push(Change::SetLink { ifindex, set: LinkSet::default().up(true) });
                netlink.apply(&changes).map_err(|error| words(&error))?;
                self.networks.insert(network, gateways);
            }
            "/NetworkDriver.DeleteNetwork" => {
                self.networks.remove(&network).ok_or("no such network")?;
                delete(&mut netlink, &name("cb", &network))?;
            }
            "/NetworkDriver.CreateEndpoint" => {
                let bridge =
                    netlink.link_by_name(&name("cb", &network)).map_err(|error| words(&error))?;
                let bridge = bridge.ok_or("no such network")?;
                let kind = LinkKind::Veth(VethPeer::new(name("ci", &endpoint)));
                let outer = NewLink::new(name("co", &endpoint), kind);
                let outer = netlink.create_link(&outer).map_err(|error| words(&error))?;
                let set = LinkSet { master: Some(Some(bridge.index)), ..LinkSet::default() };
                let change = Change::SetLink { ifindex: outer.index, set: set.up(true) };
                netlink.apply_one(&change).map_err(|error| words(&error))?;
                self.endpoints.insert(endpoint, network);
            }
            "/NetworkDriver.DeleteEndpoint" => {
                self.endpoints.remove(&endpoint).ok_or("no such endpoint")?;
                delete(&mut netlink, &name("co", &endpoint))?;
            }
            "/NetworkDriver.EndpointOperInfo" => {
                self.endpoints.get(&endpoint).ok_or("no such endpoint")?;
                return Ok(json!({ "Value": { "network": network } }));
            }
            "/NetworkDriver.Join" => {
                let gateways = self.networks.get(&network).ok_or("no such network")?;
                let of = |v4: bool| {
                    let found = gateways.iter().find(|gateway| gateway.addr().is_ipv4() == v4);
                    found.map(|gateway| gateway.addr().to_string()).unwrap_or_default()
                };
                return Ok(json!({
                    "InterfaceName": { "SrcName": name("ci", &endpoint), "DstPrefix": "eth" },
                    "Gateway": of(true), "GatewayIPv6": of(false),
                }));
            }
            _ => {}
        }
        Ok(json!({}))
    }
}

/// Returns the name of a network's or an endpoint's link.
fn name(prefix: &str, id: &str) -> String {
    format!("{prefix}{}", id.chars().take(9).collect::<String>())
}

fn delete(netlink: &mut RouteSocket, name: &str) -> Result<(), String> {
    let link = netlink.link_by_name(name).map_err(|error| error.to_string())?;
    let Some(link) = link else { return Ok(()) };
    netlink.delete_link(link.index).map(drop).map_err(|error| error.to_string())
}
