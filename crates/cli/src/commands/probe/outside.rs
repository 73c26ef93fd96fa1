//! Tries to reach the outside, and distinguishes our problems from the machine's.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use doctor::resolv;
use kernel::netns::{Netns, within};
use serde::Serialize;

use super::Gateway;

/// How long a connection to the outside may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How many addresses of one name are tried.
const ADDRESSES_TRIED: usize = 4;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OutsideReport {
    pub(super) target: String,
    /// Packets went there and came back.
    pub(super) reached: bool,
    /// The other side answered that it does not serve that port.
    pub(super) refused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) address: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    /// Why the machine itself cannot reach it either, if that is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) machine_error: Option<String>,
    #[serde(skip)]
    pub(super) notes: Vec<String>,
}

impl OutsideReport {
    /// Returns the finding in words.
    pub(super) fn verdict(&self, gateways: &[Gateway]) -> String {
        let target = &self.target;
        let error = self.error.as_deref().unwrap_or("no answer");
        match (&self.address, &self.machine_error) {
            (Some(address), _) if self.refused => {
                format!("{target}: reached {address}, which serves nothing on that port")
            }
            (Some(address), _) => format!("{target}: connected to {address}"),
            (_, Some(machine)) => {
                let silent: Vec<IpAddr> =
                    gateways.iter().filter(|one| !one.answered).map(|one| one.address).collect();
                let here = match (gateways, silent.as_slice()) {
                    ([], _) => format!("From here: {error}"),
                    ([_], []) => {
                        "The gateway answered, so this network works as far as its gateway"
                            .to_owned()
                    }
                    (_, []) => {
                        "Each gateway answered, so this network works as far as its gateways"
                            .to_owned()
                    }
                    (_, [one]) => format!("From here: {error}. Gateway {one} did not answer"),
                    (_, several) => {
                        format!("From here: {error}. Gateways {} did not answer", list(several))
                    }
                };
                format!("this machine cannot reach {target} either: {machine}. {here}")
            }
            _ => format!("{target}: {error}"),
        }
    }
}

/// Tries the outside from here; if that fails, from the machine's own namespace.
pub(super) fn outside(target: &str, host: &str, port: u16, home: Option<&Path>) -> OutsideReport {
    let mut outside = OutsideReport {
        target: target.to_owned(),
        reached: false,
        refused: false,
        address: None,
        error: None,
        machine_error: None,
        notes: Vec::new(),
    };
    let home = home_namespace(home);
    let addresses = match resolve(host, home.as_ref(), &mut outside.notes) {
        Ok(addresses) => addresses,
        Err(error) => {
            outside.error = Some(error);
            Vec::new()
        }
    };
    match connect(&addresses, port) {
        Some(Ok(Responder { address, refused })) => {
            outside.reached = true;
            outside.refused = refused;
            outside.address = Some(address);
            return outside;
        }
        Some(Err(error)) => outside.error = Some(error),
        None => {}
    }
    if let Some(home) = &home {
        let there = within(home, || {
            let addresses = match resolv::resolve(host) {
                Ok(found) => found.addresses,
                Err(error) => return Some(error),
            };
            connect(&addresses, port).and_then(Result::err)
        });
        outside.machine_error = there.ok().flatten();
    }
    outside
}

/// Returns the machine's namespace, unless we are in it.
fn home_namespace(given: Option<&Path>) -> Option<Netns> {
    let home = Netns::open(given.unwrap_or(Path::new("/proc/1/ns/net"))).ok()?;
    let here = Netns::current().ok()?;
    (home.id() != here.id()).then_some(home)
}

/// Resolves a name: here, and if no name server can be reached from here, on the machine.
fn resolve(
    host: &str,
    home: Option<&Netns>,
    notes: &mut Vec<String>,
) -> Result<Vec<IpAddr>, String> {
    let here = match resolv::resolve(host) {
        Ok(found) => {
            if let Some(server) = found.server {
                notes.push(format!(
                    "name server {server} says that {host} is {}",
                    list(&found.addresses)
                ));
            }
            return Ok(found.addresses);
        }
        Err(error) => error,
    };
    let Some(Ok(Ok(found))) = home.map(|home| within(home, || resolv::resolve(host))) else {
        return Err(here);
    };
    let server = found.server.map(|server| format!(" by name server {server}")).unwrap_or_default();
    notes.push(format!(
        "{host} is {}, resolved on this machine{server}: from here {here}",
        list(&found.addresses)
    ));
    Ok(found.addresses)
}

fn list(addresses: &[IpAddr]) -> String {
    let texts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

/// An address that answered.
#[derive(Debug, Clone, Copy)]
struct Responder {
    address: SocketAddr,
    /// It refused the connection.
    refused: bool,
}

/// Connects to one of the addresses; `None` when there are none.
fn connect(addresses: &[IpAddr], port: u16) -> Option<Result<Responder, String>> {
    let mut first_error = None;
    let end = Instant::now() + CONNECT_TIMEOUT * 2;
    for address in addresses.iter().take(ADDRESSES_TRIED) {
        let address = SocketAddr::new(*address, port);
        let left = end.saturating_duration_since(Instant::now()).min(CONNECT_TIMEOUT);
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(_) => return Some(Ok(Responder { address, refused: false })),
            // The other side refused: packets go there and back, and that is the question here.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                return Some(Ok(Responder { address, refused: true }));
            }
            Err(error) => {
                first_error.get_or_insert(format!("connect to {address}: {error}"));
            }
        }
    }
    first_error.map(Err)
}
