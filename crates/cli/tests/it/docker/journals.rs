//! A file of the driver's journal has changed: by a power cut, a full disk, or an edit.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use testkit::{Container, Eye, Glance, Lab, Place, Tally, feature, require, share};

use super::support::{Driver, SOCKET};
use crate::system::install;

/// How often a full run does all of it; every other run does each damage once, on one kind of
/// record after the other.
const ROUNDS: usize = 3;

const STATE: &str = "/var/lib/netwright/docker";
const COPIES: &str = "/run/netwright/docker/records";
const KINDS: [&str; 3] = ["networks", "endpoints", "pools"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    Truncated,
    Emptied,
    Garbled,
    Flipped,
    Swapped,
    Anothers,
    Folder,
}
use Damage::{Anothers, Emptied, Flipped, Folder, Garbled, Swapped, Truncated};

const DAMAGES: [Damage; 7] = [Truncated, Emptied, Garbled, Flipped, Swapped, Anothers, Folder];

/// Which of a record's two files is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DamagedFile {
    Record,
    Copy,
    /// The record; then the machine boots again, and loses the copy and all containers.
    Rebooted,
}

const WHICH: [DamagedFile; 3] = [DamagedFile::Record, DamagedFile::Copy, DamagedFile::Rebooted];

/// The network under test: its pool has room for five containers, of which three exist. A fourth
/// has its address, and its endpoint is being made.
const POOL: &str = "10.73.0.0/29";
const GATEWAY: &str = "10.73.0.1/29";
const ROOM: usize = 5;

/// Another network, whose records stay intact.
const OTHER_POOL: &str = "10.74.0.0/29";

pub(super) fn call(name: &str, body: &Value) -> Result<Value, String> {
    let mut stream = UnixStream::connect(SOCKET).map_err(|error| error.to_string())?;
    let body = body.to_string();
    let head = format!("POST /{name} HTTP/1.1\r\nHost: \r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (_, content) = answer.split_once("\r\n\r\n").unwrap_or_default();
    let content: Value = serde_json::from_str(content).map_err(|_| format!("said {answer:?}"))?;
    match content["Err"].as_str().filter(|text| !text.is_empty()) {
        Some(error) => Err(error.to_owned()),
        None => Ok(content),
    }
}

#[track_caller]
pub(super) fn done(name: &str, body: &Value) -> Value {
    call(name, body).unwrap_or_else(|error| panic!("{name} {body}: {error}"))
}

fn wanted(pool: &str) -> Value {
    json!({ "AddressSpace": "netwright", "Pool": pool })
}

/// Requests any address.
pub(super) fn address(pool: &str) -> Result<String, String> {
    let given = call("IpamDriver.RequestAddress", &json!({ "PoolID": pool }))?;
    Ok(given["Address"].as_str().unwrap().to_owned())
}

pub(super) fn release(pool: &str, address: &str) -> Result<Value, String> {
    let address = address.split('/').next();
    call("IpamDriver.ReleaseAddress", &json!({ "PoolID": pool, "Address": address }))
}

/// Makes a network as the engine does; returns its pool's ID.
fn make_network(id: &str, name: &str, pool: &str, gateway: &str) -> String {
    let asked = done("IpamDriver.RequestPool", &wanted(pool))["PoolID"].clone();
    let asked = asked.as_str().unwrap().to_owned();
    let options = json!({ "RequestAddressType": "com.docker.network.gateway" });
    done(
        "IpamDriver.RequestAddress",
        &json!({ "PoolID": asked, "Address": gateway.split('/').next(), "Options": options }),
    );
    let generic = json!({ "name": name, "bridge": format!("{name}0") });
    done(
        "NetworkDriver.CreateNetwork",
        &json!({
            "NetworkID": id, "Options": { "com.docker.network.generic": generic },
            "IPv4Data": [{ "AddressSpace": "netwright", "Pool": pool, "Gateway": gateway }], "IPv6Data": [],
        }),
    );
    asked
}

pub(super) fn create_endpoint(network: &str, id: &str, address: &str) -> Result<Value, String> {
    let interface = json!({ "Address": address });
    let body =
        json!({ "NetworkID": network, "EndpointID": id, "Interface": interface, "Options": {} });
    call("NetworkDriver.CreateEndpoint", &body)
}

pub(super) fn of_endpoint(network: &str, id: &str) -> Value {
    json!({ "NetworkID": network, "EndpointID": id })
}

/// Damages a file of a kind; `other` is another of the same kind.
fn damage(path: &Path, other: &Path, how: Damage, at: usize) {
    let bytes = fs::read(path).unwrap();
    let others = fs::read(other).unwrap();
    match how {
        Truncated => fs::write(path, &bytes[..1 + at % (bytes.len() - 1)]).unwrap(),
        Emptied => fs::write(path, b"").unwrap(),
        Garbled => fs::write(path, vec![0xa5; bytes.len()]).unwrap(),
        Flipped => {
            let mut bytes = bytes;
            let length = bytes.len();
            bytes[at % length] ^= 1 << (at % 7);
            fs::write(path, bytes).unwrap();
        }
        Swapped => {
            fs::write(path, others).unwrap();
            fs::write(other, bytes).unwrap();
        }
        Anothers => fs::write(path, others).unwrap(),
        Folder => {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        }
    }
}

struct Host<'l> {
    lab: &'l Lab,
    driver: Driver<'l>,
    eye: Eye,
    before: Glance,
    tries: usize,
}

/// What a try did and must not do, in words.
type Mistakes = Vec<String>;

impl Host<'_> {
    /// One try, which makes and removes a network of its own.
    fn try_one(&mut self, kind: &str, how: Damage, which: DamagedFile) -> Mistakes {
        self.tries += 1;
        let (at, network) = (self.tries * 37, format!("{:064x}", 0xabc0_0000 + self.tries));
        let pool = make_network(&network, "kept", POOL, GATEWAY);
        let endpoints: Vec<String> = (0..3)
            .map(|one| format!("{:064x}", 0xe000_0000_usize + 8 * self.tries + one))
            .collect();
        let held: Vec<String> = endpoints
            .iter()
            .map(|id| {
                let address = address(&pool).unwrap();
                create_endpoint(&network, id, &address).unwrap();
                address
            })
            .collect();
        let on_its_way = address(&pool).unwrap();
        let sandbox = self.start(&network, &endpoints[0], &held[0]);
        self.driver.kill();
        let told = self.driver.log().len();
        let (file, other) = match kind {
            "networks" => (network.clone(), "other".to_owned()),
            "endpoints" => (endpoints[at % 2].clone(), endpoints[2].clone()),
            _ => ("10.73.0.0-29".to_owned(), "10.74.0.0-29".to_owned()),
        };
        let dir = PathBuf::from(if which == DamagedFile::Copy { COPIES } else { STATE }).join(kind);
        let [path, other] = [file, other].map(|id| dir.join(format!("{id}.json")));
        damage(&path, &other, how, at);
        let mut sandbox = Some(sandbox);
        if which == DamagedFile::Rebooted {
            sandbox = None;
            self.reboot();
        }
        self.driver.again();
        let mut wrong = Mistakes::new();
        self.none_twice(&pool, &held, &on_its_way, (kind, which), &mut wrong);
        if which != DamagedFile::Rebooted {
            self.all_is_known(&network, &pool, &endpoints, &held, &mut wrong);
        }
        // The engine removes everything, whatever the driver answers.
        let mut must = |what: &str, answer: Result<Value, String>| {
            wrong.extend(answer.err().map(|error| format!("{what}: {error}")));
        };
        for (id, address) in endpoints.iter().zip(&held) {
            must(
                "Leave",
                call("NetworkDriver.Leave", &of_endpoint(&network, id)).or(Ok(json!({}))),
            );
            must(
                "DeleteEndpoint",
                call("NetworkDriver.DeleteEndpoint", &of_endpoint(&network, id)),
            );
            must("ReleaseAddress", release(&pool, address));
        }
        drop(sandbox.take());
        must("ReleaseAddress", release(&pool, &on_its_way));
        must("ReleasePool", call("IpamDriver.ReleasePool", &json!({ "PoolID": pool })));
        must(
            "DeleteNetwork",
            call("NetworkDriver.DeleteNetwork", &json!({ "NetworkID": network })),
        );
        self.none_is_lost(&mut wrong);
        self.all_is_gone(&mut wrong);
        let log = self.driver.log().split_off(told);
        if log.contains("panicked") {
            wrong.push(format!("it panicked: {log}"));
        }
        let name = path.file_stem().unwrap().to_str().unwrap();
        let said = log.lines().any(|line| line.contains("damaged") && line.contains(name));
        let said = said || log.contains("the record of a pool is lost");
        // A flipped bit in an unimportant part of a record changes nothing.
        if which != DamagedFile::Copy && how != Flipped && !said {
            wrong.push(format!("the log does not mention {name}: {log}"));
        }
        wrong
    }

    /// What an engine does after Join: it moves the link, and assigns its address.
    fn start(&self, network: &str, endpoint: &str, address: &str) -> Container {
        let name = format!("c{}", self.tries);
        let container = self.lab.container(&name);
        let mut body = of_endpoint(network, endpoint);
        body["SandboxKey"] = json!(format!("/run/netns/{name}"));
        body["Options"] = json!({});
        let joined = done("NetworkDriver.Join", &body);
        let link = joined["InterfaceName"]["SrcName"].as_str().unwrap().to_owned();
        self.lab.sh(&format!("ip link set {link} netns {name} name eth0"));
        container.sh(&format!("ip addr add {address} dev eth0; ip link set eth0 up"));
        container
    }

    /// Deletes what a reboot does: links, namespaces, rules, sysctls and what is below `/run`,
    /// except for the other network.
    fn reboot(&self) {
        self.lab.sh(
            "cd /run/netwright; umount docker/netns/* 2>/dev/null; \
             rm -rf owners/* shared/* addresses/* locks/* docker/netns/* docker/ports/results/* docker/calls/*; \
             find docker/records -type f ! -name other.json ! -name '10.74*' -delete; \
             ip link del kept0 2>/dev/null; \
             ip -o link show type veth | sed 's/^[0-9]*: //; s/[@:].*//' | xargs -rn1 ip link del; \
             nft flush ruleset; sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0",
        );
    }

    /// Finds addresses that two containers have.
    fn none_twice(
        &self,
        pool: &str,
        held: &[String],
        on_its_way: &str,
        (kind, which): (&str, DamagedFile),
        wrong: &mut Mistakes,
    ) {
        let mut taken: BTreeSet<&str> = held.iter().map(String::as_str).collect();
        taken.insert(GATEWAY);
        // Only the pool had it, and its container went with the reboot.
        let forgotten = kind == "pools" && which == DamagedFile::Rebooted;
        if !forgotten {
            taken.insert(on_its_way);
        }
        let mut given = Vec::new();
        while let Ok(address) = address(pool) {
            if taken.contains(address.as_str()) || given.contains(&address) || ROOM < given.len() {
                wrong.push(format!("address {address} is assigned twice"));
                break;
            }
            given.push(address);
        }
        let expected = if forgotten { 2 } else { 1 };
        if given.len() != expected {
            wrong.push(format!("{given:?} were free, of {expected}"));
        }
        if call("IpamDriver.RequestPool", &wanted(POOL)).is_ok() {
            wrong.push("the pool is given twice".to_owned());
        }
        for address in given {
            wrong.extend(release(pool, &address).err());
        }
    }

    /// Asserts that the driver continues as if nothing had happened.
    fn all_is_known(
        &self,
        network: &str,
        pool: &str,
        endpoints: &[String],
        held: &[String],
        wrong: &mut Mistakes,
    ) {
        for (id, address) in endpoints.iter().zip(held) {
            let info = call("NetworkDriver.EndpointOperInfo", &of_endpoint(network, id));
            let known =
                info.clone().is_ok_and(|info| info["Value"]["netwright.addresses"] == **address);
            if !known {
                wrong.push(format!("endpoint {id} with {address} is not known: {info:?}"));
            }
        }
        let more = format!("{:064x}", 0xf000_0000_usize + self.tries);
        let made = address(pool).and_then(|address| {
            create_endpoint(network, &more, &address)?;
            call("NetworkDriver.DeleteEndpoint", &of_endpoint(network, &more))?;
            release(pool, &address)
        });
        wrong.extend(made.err().map(|error| format!("another endpoint: {error}")));
    }

    /// Asserts that neither the host nor the journal has anything of it, and that the other network
    /// is unchanged.
    fn all_is_gone(&self, wrong: &mut Mistakes) {
        let is_expected = |line: &str| line.contains("/run/netwright/addresses");
        wrong.extend(self.eye.settles_but(&self.before, is_expected));
    }

    /// Asserts that every address can be assigned again.
    fn none_is_lost(&self, wrong: &mut Mistakes) {
        let network = format!("{:064x}", 0xabcd_0000 + self.tries);
        let pool = make_network(&network, "kept", POOL, GATEWAY);
        let given: BTreeSet<String> = std::iter::from_fn(|| address(&pool).ok()).take(9).collect();
        if given.len() != ROOM {
            wrong.push(format!("of {ROOM} addresses {given:?} can be had again"));
        }
        if let Some(address) = given.first() {
            let endpoint = format!("{:064x}", 0xf100_0000_usize + self.tries);
            wrong.extend(create_endpoint(&network, &endpoint, address).err());
            done("NetworkDriver.DeleteEndpoint", &of_endpoint(&network, &endpoint));
        }
        for address in &given {
            wrong.extend(release(&pool, address).err());
        }
        done("IpamDriver.ReleasePool", &json!({ "PoolID": pool }));
        done("NetworkDriver.DeleteNetwork", &json!({ "NetworkID": network }));
    }
}

#[test]
fn whatever_became_of_a_record_no_address_is_given_twice_or_lost() {
    require!("root");
    let lab = Lab::with_processes("docker-journals");
    install(&lab);
    let tally = lab.enter(|| {
        let driver = Driver::start(&lab);
        make_network("other", "other", OTHER_POOL, "10.74.0.1/29");
        let folders = [STATE, "/run/netwright", "/run/cni", "/var/lib/cni"].map(Path::new);
        let eye = Eye::on_host(&folders);
        let before = eye.look();
        let mut host = Host { lab: &lab, driver, eye, before, tries: 0 };
        // The objects that a network's first container leaves for the next one exist already.
        let first = host.try_one("pools", Flipped, DamagedFile::Copy);
        host.before = host.eye.look();
        assert!(first.iter().all(|line| line.starts_with(['+', '-'])), "{first:#?}");
        let mut tally = Tally::new();
        let full = feature::available("full");
        let rounds =
            if full { share::of_this_round((0..ROUNDS * 8).collect(), ROUNDS) } else { vec![0] };
        for number in rounds {
            for (two, how) in DAMAGES.into_iter().enumerate() {
                for (one, kind) in KINDS.into_iter().enumerate() {
                    if !full && one != two % KINDS.len() {
                        continue;
                    }
                    let which = WHICH[(number + one + two / 3) % WHICH.len()];
                    let how_told = format!("{how:?} {which:?}").to_lowercase();
                    tally.count("docker's journal", kind, &how_told);
                    for wrong in host.try_one(kind, how, which) {
                        tally.found(format!("docker's journal {kind} {how_told}: {wrong}"));
                    }
                    if 0 < tally.findings() {
                        return tally;
                    }
                }
            }
        }
        tally
    });
    tally.finish();
}
