//! When a change forbids a connection, the connection ends. Other connections lose nothing.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use kernel::conntrack::{ConntrackSocket, FlowFilter};
use kernel::route::IpFamily;
use serde_json::json;
use testkit::{Place, wait_until};

use super::{Cluster, PORT, Pod, allow};

/// How long one end may wait for the other.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long an end waits for an answer before it sends again.
const MOMENT: Duration = Duration::from_millis(50);

/// How many bytes are sent each way at a time.
const BLOCK: usize = 1000;

/// Both ends of a connection.
struct Connection {
    client: TcpStream,
    server: TcpStream,
    from: IpAddr,
    sent: u64,
}

impl Connection {
    /// Connects a place with a server's socket, by an address that leads to it.
    fn new(from: &impl Place, to: SocketAddr, listener: &TcpListener) -> Self {
        let client = from.enter(|| TcpStream::connect_timeout(&to, PATIENCE));
        let client = client.unwrap_or_else(|error| panic!("connect to {to}: {error}"));
        let (server, _) = listener.accept().unwrap();
        for end in [&client, &server] {
            end.set_read_timeout(Some(PATIENCE)).unwrap();
            end.set_write_timeout(Some(PATIENCE)).unwrap();
        }
        let from = client.local_addr().unwrap().ip();
        Connection { client, server, from, sent: 0 }
    }

    /// Sends numbered bytes each way, and compares what arrives.
    fn exchange(&mut self) -> io::Result<()> {
        let block: Vec<u8> = (0..BLOCK)
            .map(|place| u8::try_from((self.sent + u64::try_from(place).unwrap()) % 251).unwrap())
            .collect();
        self.sent += u64::try_from(BLOCK).unwrap();
        for (from, to) in [(&self.client, &self.server), (&self.server, &self.client)] {
            (&*from).write_all(&block)?;
            let mut arrived = vec![0; BLOCK];
            (&*to).read_exact(&mut arrived)?;
            assert!(arrived == block, "other bytes have arrived");
        }
        Ok(())
    }

    /// Asserts that the connection loses nothing from now on.
    #[track_caller]
    fn assert_goes_on(&mut self) {
        for _ in 0..100 {
            self.exchange().unwrap();
        }
    }

    /// Asserts that each side gets an error as soon as it sends, without waiting for a timeout.
    #[track_caller]
    fn assert_ended(&self, what: &str) {
        for (name, end) in [("client", &self.client), ("server", &self.server)] {
            end.set_read_timeout(Some(MOMENT)).unwrap();
            let mut end = end;
            let mut heard = None;
            wait_until(&format!("the {name} of {what} to hear of the end"), || {
                let sent = end.write_all(&[0; BLOCK]);
                heard =
                    sent.and_then(|()| end.read(&mut [0; BLOCK])).err().map(|error| error.kind());
                heard.is_some_and(|kind| kind != io::ErrorKind::WouldBlock)
            });
            let is_end = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
            assert!(heard.is_some_and(|kind| is_end.contains(&kind)), "{what}, {name}: {heard:?}");
        }
    }
}

fn listen(pod: &Pod, port: u16) -> Vec<TcpListener> {
    let listen = |address: &IpAddr| {
        pod.container.enter(|| TcpListener::bind(SocketAddr::new(*address, port))).unwrap()
    };
    pod.addresses.iter().map(listen).collect()
}

/// A second port of the pods' servers. The policies name the first one.
const OTHER: u16 = PORT + 1;

/// The rules that lead a service's address to a pod, as kube-proxy has them.
fn service(cluster: &Cluster, pod: &Pod) -> SocketAddr {
    cluster.node.sh(&format!(
        "nft 'table ip services {{ chain c {{ type nat hook prerouting priority dstnat; \
          ip daddr 10.96.0.10 tcp dport 80 dnat to {}:{OTHER}; }}; }}'",
        pod.v4()
    ));
    "10.96.0.10:80".parse().unwrap()
}

#[test]
fn connections_that_a_change_forbids_end_and_others_go_on() {
    testkit::require!("root", "program:nft");
    let mut cluster = Cluster::new("policy-cuts");
    cluster.start();
    let [db, web, cache] = ["db", "web", "cache"].map(|name| cluster.pod(name));
    let to_db = listen(&db, OTHER);
    let to_web = listen(&web, OTHER);
    let at = |listener: &TcpListener| listener.local_addr().unwrap();
    let by_service = service(&cluster, &db);
    let mut allowed = Vec::new();
    let mut forbidden = Vec::new();
    for (family, listener) in to_db.iter().enumerate() {
        allowed.push(Connection::new(&web.container, at(listener), listener));
        forbidden.push(Connection::new(&cache.container, at(listener), listener));
        forbidden.push(Connection::new(&cluster.others, at(listener), listener));
        // The policy does not limit connections that the pod itself opens.
        allowed.push(Connection::new(&db.container, at(&to_web[family]), &to_web[family]));
        // Nor does it limit connections from the pod's node.
        allowed.push(Connection::new(&cluster.node.lab, at(listener), listener));
    }
    let v4 = to_db.iter().find(|listener| at(listener).is_ipv4()).unwrap();
    allowed.push(Connection::new(&web.container, by_service, v4));
    forbidden.push(Connection::new(&cache.container, by_service, v4));
    forbidden.push(Connection::new(&cluster.others, by_service, v4));
    for connection in allowed.iter_mut().chain(&mut forbidden) {
        connection.assert_goes_on();
    }
    let mut policy = allow("db", "db", &["web"]);
    policy["spec"]["ingress"][0]["ports"][0]["port"] = json!(OTHER);
    cluster.api.create(&policy);
    for (number, connection) in forbidden.iter().enumerate() {
        connection.assert_ended(&format!("forbidden connection {number}"));
    }
    for connection in &mut allowed {
        connection.assert_goes_on();
    }

    // One of the two pods loses its label: only its connections end.
    cluster.api.change("pods", "shop", "web", &json!({"metadata": {"labels": {"app": "x"}}}));
    let mut others = Vec::new();
    for (number, connection) in allowed.into_iter().enumerate() {
        let of_web = web.addresses.contains(&connection.from);
        if of_web {
            connection.assert_ended(&format!("connection {number} of the pod"));
        } else {
            others.push(connection);
        }
    }
    assert_eq!(others.len(), 4);
    for connection in &mut others {
        connection.assert_goes_on();
    }
}

#[test]
fn connections_are_kept_where_that_is_wanted() {
    testkit::require!("root");
    let mut cluster = Cluster::new("policy-keep");
    cluster.flags.push("--keep-connections".to_owned());
    cluster.start();
    let [db, web] = ["db", "web"].map(|name| cluster.pod(name));
    let to_db = listen(&db, OTHER);
    let at = to_db[0].local_addr().unwrap();
    let mut connection = Connection::new(&web.container, at, &to_db[0]);
    cluster.api.create(&allow("db", "db", &[]));
    wait_until("the policy", || !web.reaches(&db));
    connection.assert_goes_on();
}

/// The next pod with its address goes on with none of them. Connections that are kept are those of
/// pods that stay.
#[test]
fn connections_of_a_pod_end_before_its_addresses_are_free() {
    testkit::require!("root");
    let mut cluster = Cluster::new("policy-leaves");
    cluster.flags.push("--keep-connections".to_owned());
    cluster.start();
    let [db, web] = ["db", "web"].map(|name| cluster.pod(name));
    let (to_db, to_web) = (listen(&db, OTHER), listen(&web, OTHER));
    let at = |listener: &TcpListener| listener.local_addr().unwrap();
    let mut stay = Vec::new();
    let mut go = Vec::new();
    for (to_db, to_web) in to_db.iter().zip(&to_web) {
        stay.push(Connection::new(&cluster.others, at(to_db), to_db));
        go.push(Connection::new(&web.container, at(to_db), to_db));
        go.push(Connection::new(&cluster.others, at(to_web), to_web));
    }
    for connection in stay.iter_mut().chain(&mut go) {
        connection.exchange().unwrap();
    }
    let mut conntrack = cluster.node.lab.enter(|| ConntrackSocket::open().unwrap());
    let mut flows = |pod: &Pod| -> usize {
        let of = |address: &IpAddr| {
            let all = FlowFilter::all(IpFamily::of(*address));
            let begun = FlowFilter { source: Some(*address), ..all };
            let taken = FlowFilter { reply_source: Some(*address), ..all };
            [begun, taken].map(|filter| conntrack.flows(&filter).unwrap().len())
        };
        pod.addresses.iter().flat_map(of).sum()
    };
    assert!(go.len() <= flows(&web));
    // The plugin that has the addresses is called after this one.
    cluster.policy("DEL", &web).call().silent();
    assert_eq!(flows(&web), 0);
    assert!(stay.len() <= flows(&db));
    for connection in &mut stay {
        connection.assert_goes_on();
    }
}
