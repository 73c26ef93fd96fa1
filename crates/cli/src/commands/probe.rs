//! `probe`: shows what the network here can do, in a few lines.

mod outside;

use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

use cni::code;
use kernel::echo;
use kernel::route::{IpFamily, Route, RouteFilter, RouteSocket};
use serde::Serialize;

use super::Outcome;
use crate::args::Probe;
use crate::failure::{EXIT_PERMANENT, Failure};
use crate::shell::{Format, Report, Shell};
use crate::table::Table;
use outside::{OutsideReport, outside};

/// How long a gateway on the next hop has to answer, and how often it is asked.
const GATEWAY_TIMEOUT: Duration = Duration::from_secs(1);
const GATEWAY_TRIES: u16 = 3;

#[derive(Debug, Serialize)]
struct Findings {
    interfaces: Vec<Interface>,
    routes: Vec<String>,
    gateways: Vec<Gateway>,
    outside: OutsideReport,
}

#[derive(Debug, Serialize)]
struct Interface {
    name: String,
    mac: Option<String>,
    up: bool,
    addresses: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct Gateway {
    pub(super) address: IpAddr,
    pub(super) answered: bool,
    #[serde(rename = "roundTripMicroseconds", skip_serializing_if = "Option::is_none")]
    round_trip_us: Option<u128>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Report for Findings {
    fn text(&self) -> String {
        let mut table = Table::new(&["INTERFACE", "STATE", "MAC", "ADDRESSES"]);
        for link in &self.interfaces {
            table.row([
                link.name.clone(),
                if link.up { "up" } else { "down" }.to_owned(),
                link.mac.clone().unwrap_or_default(),
                link.addresses.join(", "),
            ]);
        }
        let mut text = table.to_string();
        for route in &self.routes {
            text.push_str(&format!("route    {route}\n"));
        }
        for gateway in &self.gateways {
            let found = match (&gateway.error, gateway.round_trip_us) {
                (None, Some(us)) => format!("answers after {}.{:03} ms", us / 1000, us % 1000),
                (error, _) => error.clone().unwrap_or_else(|| "does not answer".to_owned()),
            };
            text.push_str(&format!("gateway  {}: {found}\n", gateway.address));
        }
        if self.gateways.is_empty() {
            text.push_str("gateway  none: there is no default route\n");
        }
        for note in &self.outside.notes {
            text.push_str(&format!("outside  {note}\n"));
        }
        text.push_str(&format!("outside  {}\n", self.outside.verdict(&self.gateways)));
        text
    }
}

impl Findings {
    /// Says whether everything works, or everything that can work on a machine without a network.
    fn is_sound(&self) -> bool {
        let answered =
            !self.gateways.is_empty() && self.gateways.iter().all(|gateway| gateway.answered);
        self.outside.reached || (self.outside.machine_error.is_some() && answered)
    }

    /// Says what to do about a network that does not work.
    fn advice(&self) -> Option<&'static str> {
        (!self.is_sound()).then_some(
            "hint: `netwright doctor CONTAINER`, on the node while the container runs, looks for the cause",
        )
    }
}

pub(crate) fn main(args: &Probe, shell: &mut Shell) -> Outcome {
    let (host, port) = target(&args.to)?;
    let failed = |error: kernel::NetlinkError| Failure::of(code::IO_FAILURE, &error);
    let mut netlink = RouteSocket::open().map_err(failed)?;
    let interfaces = interfaces(&mut netlink).map_err(failed)?;
    let mut routes = netlink.routes(RouteFilter::main(IpFamily::V4)).map_err(failed)?;
    // Without IPv6 in the kernel there are none.
    routes.extend(netlink.routes(RouteFilter::main(IpFamily::V6)).unwrap_or_default());
    let names = names(&mut netlink);
    let name_of = |index: Option<u32>| {
        index
            .and_then(|index| names.iter().find(|(known, _)| *known == index))
            .map(|(_, name)| name.as_str())
    };
    let shown = routes.iter().filter(|route| is_worth_showing(route)).map(|route| {
        let via = route.gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
        let dev = name_of(route.oif).map(|name| format!(" dev {name}")).unwrap_or_default();
        let destination = match route.destination.prefix_len() {
            0 if route.destination.addr().is_ipv4() => "default".to_owned(),
            0 => "default (IPv6)".to_owned(),
            _ => route.destination.to_string(),
        };
        format!("{destination}{via}{dev}")
    });
    let shown = shown.collect();
    let waiting = shell.waiting("asking the gateway");
    let gateways = gateways(&routes);
    drop(waiting);
    let waiting = shell.waiting(format!("trying {}", args.to));
    let outside = outside(&args.to, &host, port, args.home.as_deref());
    drop(waiting);
    let findings = Findings { interfaces, routes: shown, gateways, outside };
    shell.print(&findings);
    if let (Some(advice), Format::Text) = (findings.advice(), shell.format) {
        shell.say(advice);
    }
    Ok(ExitCode::from(if findings.is_sound() { 0 } else { EXIT_PERMANENT }))
}

/// Reads `HOST:PORT`; an IPv6 address is in brackets.
pub(super) fn target(text: &str) -> Result<(String, u16), Failure> {
    let form = || Failure::usage(format!("--to {text:?}: it must be of the form HOST:PORT"));
    let (host, port) = text.rsplit_once(':').ok_or_else(form)?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() {
        return Err(form());
    }
    Ok((host.to_owned(), port.parse().map_err(|_| form())?))
}

fn interfaces(netlink: &mut RouteSocket) -> Result<Vec<Interface>, kernel::NetlinkError> {
    let links = netlink.links()?;
    let addresses = netlink.addresses(None)?;
    let of = |index: u32| {
        let own = addresses.iter().filter(|address| address.ifindex == index);
        own.map(|address| address.address.to_string()).collect()
    };
    Ok(links
        .into_iter()
        .map(|link| Interface {
            up: link.up(),
            mac: link.mac.filter(|mac| mac.0 != [0; 6]).map(|mac| mac.to_string()),
            addresses: of(link.index),
            name: link.name,
        })
        .collect())
}

fn names(netlink: &mut RouteSocket) -> Vec<(u32, String)> {
    let links = netlink.links().unwrap_or_default();
    links.into_iter().map(|link| (link.index, link.name)).collect()
}

/// Leaves out the routes that every interface has: link-local and multicast.
fn is_worth_showing(route: &Route) -> bool {
    match route.destination.addr() {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => !address.is_unicast_link_local() && !address.is_multicast(),
    }
}

fn gateways(routes: &[Route]) -> Vec<Gateway> {
    let defaults = routes.iter().filter(|route| route.destination.prefix_len() == 0);
    let mut gateways: Vec<(IpAddr, u32)> = defaults
        .filter_map(|route| Some((route.gateway?, route.oif.unwrap_or_default())))
        .collect();
    cni::order::sort(&mut gateways);
    gateways.dedup();
    gateways
        .into_iter()
        .map(|(address, oif)| match echo::ping(address, oif, GATEWAY_TIMEOUT, GATEWAY_TRIES) {
            Ok(Some(took)) => Gateway {
                address,
                answered: true,
                round_trip_us: Some(took.as_micros()),
                error: None,
            },
            Ok(None) => Gateway { address, answered: false, round_trip_us: None, error: None },
            Err(error) => Gateway {
                address,
                answered: false,
                round_trip_us: None,
                error: Some(error.to_string()),
            },
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn findings(reached: bool, machine_error: Option<&str>, answered: bool) -> Findings {
        let address = "203.0.113.9:80".parse().unwrap();
        Findings {
            interfaces: vec![Interface {
                name: "eth0".to_owned(),
                mac: Some("02:00:00:00:00:01".to_owned()),
                up: true,
                addresses: vec!["10.63.0.2/16".to_owned(), "fd63:b7c4:5e0a::2/64".to_owned()],
            }],
            routes: vec!["default via 10.63.0.1 dev eth0".to_owned()],
            gateways: vec![Gateway {
                address: "10.63.0.1".parse().unwrap(),
                answered,
                round_trip_us: answered.then_some(1234),
                error: None,
            }],
            outside: OutsideReport {
                target: "example.com:80".to_owned(),
                reached,
                refused: false,
                address: reached.then_some(address),
                error: (!reached).then(|| "connect to 203.0.113.9:80: timed out".to_owned()),
                machine_error: machine_error.map(str::to_owned),
                notes: Vec::new(),
            },
        }
    }

    #[test]
    fn a_working_network_is_shown() {
        let findings = findings(true, None, true);
        assert!(findings.is_sound());
        expect![[r#"
            INTERFACE  STATE  MAC                ADDRESSES
            eth0       up     02:00:00:00:00:01  10.63.0.2/16, fd63:b7c4:5e0a::2/64
            route    default via 10.63.0.1 dev eth0
            gateway  10.63.0.1: answers after 1.234 ms
            outside  example.com:80: connected to 203.0.113.9:80
        "#]]
        .assert_eq(&findings.text());
    }

    #[test]
    fn a_machine_without_network_is_told_apart() {
        let unreachable = Some("connect to 203.0.113.9:80: Network is unreachable (os error 101)");
        let alone = findings(false, unreachable, true);
        assert!(alone.is_sound());
        let last = alone.text().lines().last().unwrap().to_owned();
        expect!["outside  this machine cannot reach example.com:80 either: connect to 203.0.113.9:80: Network is unreachable (os error 101). The gateway answered, so this network works as far as its gateway"]
            .assert_eq(&last);
        assert_eq!(alone.advice(), None);
        assert!(!findings(false, unreachable, false).is_sound());
        let silent = findings(false, None, true);
        assert!(!silent.is_sound());
        assert!(
            silent.advice().is_some_and(|advice| advice.contains("`netwright doctor CONTAINER`"))
        );
    }

    /// Two gateways, of which one is silent, are not a network that works.
    #[test]
    fn a_silent_gateway_is_named() {
        let unreachable = Some("connect to 203.0.113.9:80: Network is unreachable (os error 101)");
        let mut two = findings(false, unreachable, true);
        let silent = "fd63:b7c4:5e0a::1".parse().unwrap();
        two.gateways.push(Gateway {
            address: silent,
            answered: false,
            round_trip_us: None,
            error: None,
        });
        let last = |findings: &Findings| findings.text().lines().last().unwrap().to_owned();
        assert!(!last(&two).contains("The gateway answered"), "{}", last(&two));
        assert!(last(&two).ends_with("Gateway fd63:b7c4:5e0a::1 did not answer"), "{}", last(&two));
        assert!(!two.is_sound());
        two.gateways[1].answered = true;
        assert!(last(&two).contains("Each gateway answered"), "{}", last(&two));
        assert!(two.is_sound());
    }

    #[test]
    fn targets_are_read() {
        assert_eq!(target("example.com:80").unwrap(), ("example.com".to_owned(), 80));
        assert_eq!(target("[2001:db8::1]:80").unwrap(), ("2001:db8::1".to_owned(), 80));
        assert!(target("example.com").is_err());
        assert!(target(":80").is_err());
        assert!(target("x:http").is_err());
    }
}
