//! A stand-in for `netwrightd ipam`: assigns addresses, and misbehaves as the test says.
//!
//! It makes a file for each assigned address below [`Node::dir`]`("ipam")/<network>`, with the
//! container and the interface. So a test sees the file from outside, and a second stand-in
//! continues where the first ended.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cluster_ipam::network::{Network, NetworkSpec, Range, address_of, number};
use cni_plugin::codes;
use ipnet::IpNet;
use node_api::ipam::{
    Answer, AssignRequest, AssignedAddress, CollectRequest, HeldRequest, Owner, Request,
};
use node_api::{Message, Refusal, inbox};

use super::Node;
use super::listener::{self, Listener, Reply};

/// The stand-in, which ends when dropped.
#[derive(Debug)]
pub(crate) struct Daemon(Listener<Request>);

/// Where a node's daemon listens.
pub(crate) fn socket(node: &Node) -> PathBuf {
    node.roots.run.join("ipam.sock")
}

/// The requests that the daemon finds in its inbox when it starts.
pub(crate) fn left(node: &Node) -> Vec<Request> {
    let read = |(name, line): (String, Vec<u8>)| {
        let request = Request::from_line(&line).unwrap();
        assert_eq!(Some(name), request.todo_name());
        request
    };
    listener::left_in(&inbox::folder(&socket(node))).into_iter().map(read).collect()
}

/// Writes an answer.
pub(crate) fn says(answer: &Answer) -> Reply {
    Reply::Writes(answer.to_line().unwrap())
}

impl Daemon {
    /// Starts a stand-in that serves requests, those in its inbox first.
    pub(crate) fn start(node: &Node) -> Self {
        Daemon::but(node, |_| None)
    }

    /// Starts a stand-in that serves requests unless `but` has another reply.
    pub(crate) fn but(
        node: &Node,
        mut but: impl FnMut(&Request) -> Option<Reply> + Send + 'static,
    ) -> Self {
        let given = AssignedAddresses(node.dir("ipam"));
        for request in left(node) {
            given.answer(&request);
        }
        let _ = fs::remove_dir_all(inbox::folder(&socket(node)));
        let read = |line: &[u8]| Request::from_line(line).ok();
        Daemon(Listener::start(socket(node), read, move |request| {
            but(request).unwrap_or_else(|| says(&given.answer(request)))
        }))
    }

    /// Returns the requests since the last call of this function.
    pub(crate) fn heard(&self) -> Vec<Request> {
        self.0.heard()
    }

    /// The same, as the first word of each request.
    pub(crate) fn words(&self) -> Vec<&'static str> {
        let word = |request: &Request| match request {
            Request::Assign(_) => "assign",
            Request::Release(_) => "release",
            Request::Held(_) => "held",
            Request::Collect(_) => "collect",
            Request::Status(_) => "status",
        };
        self.heard().iter().map(word).collect()
    }

    /// Keeps it running as long as the test.
    pub(crate) fn forget(self) {
        self.0.forget();
    }
}

/// The assigned addresses.
pub(crate) struct AssignedAddresses(pub(crate) PathBuf);

impl AssignedAddresses {
    pub(crate) fn answer(&self, request: &Request) -> Answer {
        match request {
            Request::Assign(AssignRequest { network, owner, wanted }) => {
                self.assign(network, owner, wanted)
            }
            Request::Release(owner) => {
                self.keep(None, |content| content != text(owner));
                Answer::Ok
            }
            Request::Held(HeldRequest { network, owner }) => Answer::Assigned(
                self.held(&checked(network), owner).into_iter().flatten().collect(),
            ),
            Request::Collect(CollectRequest { network, valid }) => {
                let valid: Vec<String> = valid
                    .iter()
                    .map(|one| format!("{}\n{}", one.container_id, one.ifname))
                    .collect();
                self.keep(Some(network), |content| valid.iter().any(|one| one == content));
                Answer::Ok
            }
            Request::Status(status) => {
                let network = checked(&status.network);
                match network.ranges().iter().find(|range| self.free(&network, range).is_none()) {
                    None => Answer::Ok,
                    Some(range) => exhausted(range),
                }
            }
        }
    }

    fn assign(&self, spec: &NetworkSpec, owner: &Owner, wanted: &[IpAddr]) -> Answer {
        let network = checked(spec);
        let held = self.held(&network, owner);
        let mut all = Vec::new();
        for (range, held) in network.ranges().iter().zip(held) {
            let wanted = wanted.iter().copied().find(|address| range.allows(*address));
            let address = match (held, wanted) {
                (Some(held), _) => held.address.addr(),
                (None, Some(wanted)) if self.file(&network, wanted).exists() => {
                    return Answer::Refused(Refusal::new(
                        codes::ADDRESS,
                        format!("address {wanted} is taken"),
                    ));
                }
                (None, Some(wanted)) => wanted,
                (None, None) => match self.free(&network, range) {
                    Some(free) => free,
                    None => return exhausted(range),
                },
            };
            fs::create_dir_all(self.0.join(network.name())).unwrap();
            fs::write(self.file(&network, address), text(owner)).unwrap();
            all.push(assigned(range, address));
        }
        Answer::Assigned(all)
    }

    /// What an owner has of each range.
    fn held(&self, network: &Network, owner: &Owner) -> Vec<Option<AssignedAddress>> {
        let mut own: Vec<IpAddr> = self
            .all(network.name())
            .into_iter()
            .filter(|(_, content)| *content == text(owner))
            .map(|(address, _)| address)
            .collect();
        let mut of = |range: &Range| {
            let place = own.iter().position(|address| range.allows(*address))?;
            Some(assigned(range, own.remove(place)))
        };
        network.ranges().iter().map(&mut of).collect()
    }

    fn free(&self, network: &Network, range: &Range) -> Option<IpAddr> {
        let mut at = range.next(number(range.first()));
        while let Some(number) = at {
            let address = address_of(range.family(), number);
            if !self.file(network, address).exists() {
                return Some(address);
            }
            at = range.next(number + 1);
        }
        None
    }

    fn keep(&self, network: Option<&str>, is_kept: impl Fn(&str) -> bool) {
        let networks = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name());
        for name in networks.filter(|name| network.is_none_or(|network| name == network)) {
            let name = name.to_str().unwrap();
            for (address, content) in self.all(name) {
                if !is_kept(&content) {
                    fs::remove_file(self.0.join(name).join(address.to_string())).unwrap();
                }
            }
        }
    }

    fn all(&self, network: &str) -> Vec<(IpAddr, String)> {
        let entries = fs::read_dir(self.0.join(network)).into_iter().flatten();
        let mut all: Vec<_> = entries
            .filter_map(|entry| {
                let path = entry.unwrap().path();
                let address = path.file_name()?.to_str()?.parse().ok()?;
                Some((address, fs::read_to_string(&path).unwrap()))
            })
            .collect();
        all.sort();
        all
    }

    fn file(&self, network: &Network, address: IpAddr) -> PathBuf {
        Path::new(&self.0).join(network.name()).join(address.to_string())
    }
}

fn checked(spec: &NetworkSpec) -> Network {
    Network::new(spec.clone()).unwrap()
}

fn assigned(range: &Range, address: IpAddr) -> AssignedAddress {
    let address = IpNet::new(address, range.subnet().prefix_len()).unwrap();
    AssignedAddress { address, gateway: range.gateway() }
}

fn text(owner: &Owner) -> String {
    format!("{}\n{}", owner.container, owner.ifname)
}

fn exhausted(range: &Range) -> Answer {
    let text = format!("no address of {} is free", range.subnet());
    Answer::Refused(Refusal::new(codes::ADDRESS, text))
}
