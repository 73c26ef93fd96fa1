//! Reads `man 5 resolv.conf` and `man 5 hosts`, and resolves a name as the GNU C library does with
//! them, within a bounded time.
//!
//! It does not use the C library's resolver: a static executable would load parts of that at run
//! time, and nothing bounds how long it takes.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use crate::dns::{self, Kind, Reply, code};

/// The timeout for one server.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How many servers are tried (glibc resolv/bits/types/res_state.h `MAXNS`).
const SERVERS: usize = 3;
/// How many domains are tried (the same file, `MAXDNSRCH`); newer versions have no limit.
const DOMAINS: usize = 6;
/// The most dots that `ndots` may ask for (glibc resolv/resolv.h `RES_MAXNDOTS`).
const DOTS: u8 = 15;

/// What a `resolv.conf` says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResolvConf {
    /// The servers. The part of an address after `%` is left out.
    pub servers: Vec<IpAddr>,
    /// The domains below which a name is looked for.
    pub search: Vec<String>,
    /// How many dots a name needs to be looked for as it is first; `None`: one.
    pub ndots: Option<u8>,
    /// Servers are asked by TCP alone.
    pub by_tcp: bool,
}

/// A name's addresses, and the server that gave them; none for an address and for a name in the
/// hosts file.
#[derive(Debug)]
pub struct Resolution {
    /// In the order in which they are to be tried.
    pub addresses: Vec<IpAddr>,
    /// The server that knew them.
    pub server: Option<IpAddr>,
}

/// Resolves a name with the files of this process, from the calling thread's namespace.
///
/// # Errors
/// No server knows it, or none answers; each is asked for both IP versions, and gets two seconds.
pub fn resolve(host: &str) -> Result<Resolution, String> {
    let hosts = read(Path::new("/etc/hosts"));
    resolve_with(host, &hosts, &ResolvConf::parse(&read(Path::new("/etc/resolv.conf"))))
}

/// Resolves a name with the text of a hosts file and these servers, from the calling thread's
/// namespace.
pub(crate) fn resolve_with(
    host: &str,
    hosts: &str,
    conf: &ResolvConf,
) -> Result<Resolution, String> {
    if let Ok(address) = host.parse() {
        return Ok(Resolution { addresses: vec![address], server: None });
    }
    let addresses: Vec<IpAddr> = addresses_in(hosts, host).collect();
    if !addresses.is_empty() {
        return Ok(Resolution { addresses, server: None });
    }
    let Some(first) = conf.servers.first() else {
        return Err(format!("resolve {host}: resolv.conf names no server"));
    };
    for name in conf.tries(host) {
        if let Some(found) = ask(&name, conf).map_err(|error| format!("resolve {host}: {error}"))? {
            return Ok(found);
        }
    }
    Err(format!("resolve {host}: name server {first} knows no address of it"))
}

/// Asks the servers in turn until one knows. `None`: the name has no address.
fn ask(name: &str, conf: &ResolvConf) -> Result<Option<Resolution>, String> {
    let mut first_error = None;
    for server in conf.servers.iter().copied().take(SERVERS) {
        match ask_one(server, name, conf.by_tcp) {
            Ok(addresses) if addresses.is_empty() => return Ok(None),
            Ok(addresses) => return Ok(Some(Resolution { addresses, server: Some(server) })),
            Err(error) => {
                first_error.get_or_insert(format!("name server {server}: {error}"));
            }
        }
    }
    Err(first_error.unwrap_or_default())
}

/// Asks one server for both kinds of addresses, at once.
fn ask_one(server: IpAddr, name: &str, is_by_tcp: bool) -> Result<Vec<IpAddr>, String> {
    let kinds = [Kind::A, Kind::Aaaa];
    let by_tcp = || {
        let asked = dns::by_tcp(server, name, &kinds, TIMEOUT);
        asked.map_err(|error| format!("by TCP: {}", text(&error)))
    };
    let replies: Vec<Reply> = if is_by_tcp {
        by_tcp()?
    } else {
        let replies = dns::by_udp(server, name, &kinds, TIMEOUT).map_err(|error| text(&error))?;
        // A server that answers only one of the two questions still answers.
        let replies: Vec<Reply> = replies.into_iter().flatten().collect();
        match replies.iter().any(|reply| reply.is_cut) {
            true => {
                by_tcp().map_err(|error| format!("its answer is too long for UDP, and {error}"))?
            }
            false => replies,
        }
    };
    let known = |reply: &Reply| [code::NO_ERROR, code::NO_SUCH_NAME].contains(&reply.code);
    if let Some(reply) = replies.iter().find(|reply| !known(reply)) {
        return Err(format!("it answers with error {} (RFC 1035 §4.1.1)", reply.code));
    }
    if replies.is_empty() {
        return Err("no answer".to_owned());
    }
    let mut addresses = Vec::new();
    for reply in replies {
        let found = reply.addresses.ok_or("its answer cannot be read")?;
        addresses.extend(found);
    }
    // IPv4 first: where only one family has a route, it is mostly that one.
    addresses.sort_by_key(IpAddr::is_ipv6);
    Ok(addresses)
}

fn text(error: &io::Error) -> String {
    if dns::is_late(error) { "no answer".to_owned() } else { error.to_string() }
}

/// Reads a file; one that is missing, or cannot be read, is empty.
#[must_use]
pub fn read(path: &Path) -> String {
    let bytes = state::read_optional(path).ok().flatten().unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads the addresses that a hosts file has for a name.
pub(crate) fn addresses_in(hosts: &str, name: &str) -> impl Iterator<Item = IpAddr> {
    hosts.lines().filter_map(move |line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let address = words.next()?.split('%').next()?.parse().ok()?;
        words.any(|word| word.eq_ignore_ascii_case(name)).then_some(address)
    })
}

impl ResolvConf {
    /// Reads the text of a file. Lines that the GNU C library passes over are passed over, but for
    /// carriage returns, which musl takes for white space.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut conf = Self::default();
        for line in text.lines() {
            let Some((key, rest)) = line.split_once([' ', '\t']) else { continue };
            let mut words = rest.split_whitespace();
            match key {
                "nameserver" => conf.servers.extend(words.next().and_then(server)),
                // The last one counts.
                "search" => conf.search = words.take(DOMAINS).map(str::to_owned).collect(),
                "domain" => conf.search = words.take(1).map(str::to_owned).collect(),
                "options" => conf.read_options(words),
                _ => {}
            }
        }
        conf
    }

    fn read_options<'w>(&mut self, words: impl Iterator<Item = &'w str>) {
        for word in words {
            match word.split_once(':') {
                Some(("ndots", count)) => {
                    let count = count.parse().unwrap_or(0_u32);
                    self.ndots = Some(u8::try_from(count).unwrap_or(DOTS).min(DOTS));
                }
                None if word == "use-vc" => self.by_tcp = true,
                _ => {}
            }
        }
    }

    /// Returns the whole names that stand for a name, in the order in which they are looked for.
    fn tries(&self, name: &str) -> Vec<String> {
        if name.ends_with('.') {
            return vec![name.to_owned()];
        }
        let dots = name.matches('.').count();
        let domains = self.search.iter().filter(|domain| domain.as_str() != ".");
        let mut tries: Vec<String> = domains.map(|domain| format!("{name}.{domain}")).collect();
        let is_first = usize::from(self.ndots.unwrap_or(1)) <= dots;
        tries.insert(if is_first { 0 } else { tries.len() }, name.to_owned());
        tries
    }
}

/// Reads the address of a server, without the part after `%`.
fn server(word: &str) -> Option<IpAddr> {
    word.split('%').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_as_the_c_library_reads_them() {
        let hosts = "127.0.0.1 localhost\n# 192.0.2.1 commented\n192.0.2.2 a Example.COM # b\n";
        let found = |name: &str| -> Vec<String> {
            addresses_in(hosts, name).map(|address| address.to_string()).collect()
        };
        assert_eq!(found("example.com"), ["192.0.2.2"]);
        assert!(found("commented").is_empty());
        let conf = "search x\nnameserver 192.0.2.53\nnameserver\tfe80::1%eth0\n#nameserver 1.1.1.1\n\
                    nameserver\nnameserver nonsense\nnameservers 192.0.2.8\n nameserver 192.0.2.9\n\
                    domain y z\noptions ndots:5 rotate use-vc\nnameserver 192.0.2.54\r\n";
        let expected = ResolvConf {
            servers: ["192.0.2.53", "fe80::1", "192.0.2.54"].map(|one| one.parse().unwrap()).into(),
            search: vec!["y".to_owned()],
            ndots: Some(5),
            by_tcp: true,
        };
        assert_eq!(ResolvConf::parse(conf), expected);
        assert_eq!(ResolvConf::parse("options ndots:300\n").ndots, Some(15));
        assert_eq!(ResolvConf::parse(""), ResolvConf::default());
    }

    #[test]
    fn a_name_is_looked_for_below_domains_first_if_it_has_few_dots() {
        let conf = |text: &str| ResolvConf::parse(text);
        let plain = conf("search a.test b.test\n");
        assert_eq!(plain.tries("web"), ["web.a.test", "web.b.test", "web"]);
        assert_eq!(plain.tries("web.test"), ["web.test", "web.test.a.test", "web.test.b.test"]);
        assert_eq!(plain.tries("web."), ["web."]);
        let five = conf("search a.test\noptions ndots:5\n");
        assert_eq!(five.tries("www.web.test"), ["www.web.test.a.test", "www.web.test"]);
        assert_eq!(conf("search .\n").tries("web"), ["web"]);
    }
}
