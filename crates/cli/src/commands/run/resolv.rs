//! The name servers of the command: its resolv.conf (`man 5 resolv.conf`).
//!
//! The host's file may name servers that only the host reaches: systemd-resolved listens on
//! 127.0.0.53, and a network namespace has a loopback of its own. The servers that resolved itself
//! asks are in a second file.

use std::net::IpAddr;
use std::path::Path;

use cni::{AddResult, Dns};
use doctor::resolv::{ResolvConf, read};

/// The file that programs read.
pub(super) const FILE: &str = "/etc/resolv.conf";

/// The servers that systemd-resolved asks (`man 8 systemd-resolved.service`).
const RESOLVED: &str = "/run/systemd/resolve/resolv.conf";

/// What the command gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Resolv {
    /// The host's file as it is.
    Hosts,
    /// A file of its own.
    Own(String),
    /// The host's file, whose servers the command does not reach.
    Unreachable,
}

/// Decides what the command gets: `servers` of the command line come first, then those of the
/// networks' results, then the host's.
pub(super) fn choose(servers: &[IpAddr], results: &[AddResult]) -> Resolv {
    decide(servers, results, &read(Path::new(FILE)), &|| read(Path::new(RESOLVED)))
}

/// Returns the servers of the command if a route leads to none of them. If one is on a link, they
/// are not judged.
pub(super) fn without_route(
    chosen: &Resolv,
    has_route: &mut dyn FnMut(IpAddr) -> bool,
) -> Vec<IpAddr> {
    let text = match chosen {
        Resolv::Own(text) => text.clone(),
        Resolv::Hosts => read(Path::new(FILE)),
        Resolv::Unreachable => return Vec::new(),
    };
    let servers = servers_in(&text);
    let is_on_a_link =
        |server: &IpAddr| matches!(server, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let is_judged = !servers.iter().any(is_on_a_link);
    let is_lost = is_judged && !servers.iter().any(|server| has_route(*server));
    if is_lost { servers } else { Vec::new() }
}

fn decide(
    servers: &[IpAddr],
    results: &[AddResult],
    hosts: &str,
    resolved: &dyn Fn() -> String,
) -> Resolv {
    let given = of_results(results);
    if !servers.is_empty() {
        let nameservers = servers.iter().map(ToString::to_string).collect();
        return Resolv::Own(text(&Dns { nameservers, ..given }));
    }
    if !given.nameservers.is_empty() {
        return Resolv::Own(text(&given));
    }
    let reached = |server: &IpAddr| is_reached(*server, results);
    let own = if servers_in(hosts).iter().any(reached) { hosts.to_owned() } else { resolved() };
    if !servers_in(&own).iter().any(reached) {
        return Resolv::Unreachable;
    }
    let kept = own.lines().filter(|line| servers_in(line).iter().all(reached));
    let mut lines: Vec<String> = kept.map(str::to_owned).collect();
    let further = text(&given);
    if own == hosts && lines.len() == own.lines().count() && further.is_empty() {
        return Resolv::Hosts;
    }
    // The last `search` counts.
    lines.extend(further.lines().map(str::to_owned));
    Resolv::Own(lines.into_iter().map(|line| line + "\n").collect())
}

/// Returns the first network's servers, with what belongs to them. Networks after it may have search
/// domains and options for it too, but their servers are others.
fn of_results(results: &[AddResult]) -> Dns {
    let all = || results.iter().map(|result| &result.dns);
    let first = all().find(|dns| !dns.nameservers.is_empty());
    first.or_else(|| all().find(|dns| **dns != Dns::default())).cloned().unwrap_or_default()
}

/// Writes a result's servers as programs read them.
fn text(dns: &Dns) -> String {
    let mut text = String::new();
    // Only the last of `search` and `domain` counts.
    let search = match (dns.search.is_empty(), dns.domain.is_empty()) {
        (false, _) => dns.search.as_slice(),
        (true, false) => std::slice::from_ref(&dns.domain),
        (true, true) => &[],
    };
    for (key, words) in [("search", search), ("options", &dns.options)] {
        if !words.is_empty() {
            text.push_str(&format!("{key} {}\n", words.join(" ")));
        }
    }
    for server in &dns.nameservers {
        text.push_str(&format!("nameserver {server}\n"));
    }
    text
}

fn servers_in(text: &str) -> Vec<IpAddr> {
    ResolvConf::parse(text).servers
}

/// Says whether a container reaches a server of the host: no loopback, no link of the host, and of a
/// family that the container has.
fn is_reached(server: IpAddr, results: &[AddResult]) -> bool {
    let is_of_host = match server {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_unspecified() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unspecified() || v6.is_unicast_link_local(),
    };
    let mut addresses = results.iter().flat_map(|result| &result.ips);
    !is_of_host && addresses.any(|ip| ip.address.addr().is_ipv4() == server.is_ipv4())
}

#[cfg(test)]
mod tests {
    use cni::IpConfig;

    use super::*;

    fn dual() -> AddResult {
        let ips = ["192.0.2.2/24", "2001:db8::2/64"];
        let ips = ips.map(|ip| IpConfig::new(ip.parse().unwrap(), None)).to_vec();
        AddResult { ips, ..AddResult::default() }
    }

    fn with(dns: Dns) -> AddResult {
        AddResult { dns, ..dual() }
    }

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(ToString::to_string).collect()
    }

    fn host(hosts: &str, resolved: &str, results: &[AddResult]) -> Resolv {
        decide(&[], results, hosts, &|| resolved.to_owned())
    }

    fn own(text: &str) -> Resolv {
        Resolv::Own(text.to_owned())
    }

    #[test]
    fn the_hosts_servers_are_those_that_a_container_reaches() {
        let plain = "# comment\nsearch a.example\nnameserver 198.51.100.53\noptions edns0";
        assert_eq!(host(plain, "", &[dual()]), Resolv::Hosts);
        let stub = "nameserver 127.0.0.53\noptions trust-ad\n";
        let resolved = "search b.example\nnameserver 198.51.100.53\nnameserver fe80::1%eth0\n";
        let want = own("search b.example\nnameserver 198.51.100.53\n");
        assert_eq!(host(stub, resolved, &[dual()]), want);
        for text in ["", stub, "nameserver ::1\n", "nameserver 169.254.1.1\n", "nameserver x\n"] {
            assert_eq!(host(text, stub, &[dual()]), Resolv::Unreachable, "{text}");
        }
        // The C library passes over these lines: nothing is waited for.
        let passed_over = "nameserver x\n nameserver 127.0.0.1\nnameserver 198.51.100.53\n";
        assert_eq!(host(passed_over, "", &[dual()]), Resolv::Hosts);
        // The first would be waited for.
        let mixed = "nameserver 127.0.0.1\nnameserver 198.51.100.53\nsearch a.example\n";
        let want = own("nameserver 198.51.100.53\nsearch a.example\n");
        assert_eq!(host(mixed, stub, &[dual()]), want);
        let v6 = "nameserver 2001:db8::53\n";
        assert_eq!(host(v6, "", &[dual()]), Resolv::Hosts);
        let mut v4 = dual();
        v4.ips.truncate(1);
        assert_eq!(host(v6, "", &[v4]), Resolv::Unreachable);
        assert_eq!(host(v6, "", &[]), Resolv::Unreachable);
    }

    #[test]
    fn servers_are_without_route_if_a_route_leads_to_none() {
        let without = |chosen: &Resolv| {
            let mut has_route = |server: IpAddr| server.is_ipv6();
            without_route(chosen, &mut has_route)
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        let of = |servers: &[&str]| {
            own(&servers.iter().map(|one| format!("nameserver {one}\n")).collect::<String>())
        };
        let lost = of(&["192.0.2.1", "192.0.2.2"]);
        assert_eq!(without(&lost), ["192.0.2.1", "192.0.2.2"]);
        for reached in [&["192.0.2.1", "2001:db8::1"][..], &["192.0.2.1", "fe80::1%eth0"], &[]] {
            assert_eq!(without(&of(reached)), [""; 0], "{reached:?}");
        }
        assert_eq!(without(&Resolv::Unreachable), [""; 0]);
    }

    #[test]
    fn a_networks_servers_come_first_and_the_command_lines_before_them() {
        let dns = Dns {
            nameservers: words(&["192.0.2.53", "2001:db8::53"]),
            domain: "no.example".to_owned(),
            search: words(&["one.example", "two.example"]),
            options: words(&["ndots:2"]),
        };
        let rest = "search one.example two.example\noptions ndots:2\n";
        let results = [dual(), with(dns.clone())];
        let hosts = "nameserver 198.51.100.53\n";
        let servers = "nameserver 192.0.2.53\nnameserver 2001:db8::53\n";
        assert_eq!(host(hosts, "", &results), own(&format!("{rest}{servers}")));
        let asked = ["203.0.113.53".parse().unwrap()];
        let chosen = decide(&asked, &results, hosts, &String::new);
        assert_eq!(chosen, own(&format!("{rest}nameserver 203.0.113.53\n")));
        // Its search domains without servers of its own.
        let few = with(Dns { domain: "only.example".to_owned(), ..Dns::default() });
        let want = "nameserver 198.51.100.53\nsearch only.example\n";
        assert_eq!(host(hosts, "", &[few]), own(want));
    }
}
