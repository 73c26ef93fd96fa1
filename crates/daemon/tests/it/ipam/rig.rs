//! A node, an API server and the daemon between them; the test sends the plugin's requests.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use cluster_ipam::network::{NetworkSpec, RangeSpec};
use node_api::ipam::{Answer, AssignRequest, HeldRequest, Owner, Request, StatusRequest};
use node_api::{Message, Refusal};
use serde_json::{Value, json};
use testkit::kube::KubeApi;
use testkit::real::Etcd;
use testkit::{Lab, Place as _, Service};

/// How long an answer may take.
const TIMEOUT: Duration = testkit::TIMEOUT;

/// Nodes of a cluster, all in one lab.
pub(crate) struct Cluster {
    pub(crate) lab: Lab,
    pub(crate) api: KubeApi,
    pub(crate) dir: PathBuf,
}

impl Cluster {
    pub(crate) fn new(name: &str) -> Self {
        let lab = Lab::new(name);
        let api = lab.enter(KubeApi::start);
        let dir = lab.dir().to_owned();
        for node in ["n1", "n2"] {
            api.create(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}));
        }
        Cluster { lab, api, dir }
    }

    pub(crate) fn socket(&self, node: &str) -> PathBuf {
        self.dir.join(format!("{node}.sock"))
    }

    /// The command that starts a daemon.
    fn command(&self, flags: &[&str]) -> Command {
        let mut command = self.lab.command(env!("CARGO_BIN_EXE_netwrightd"));
        command.arg("ipam").args(flags).env("NETWRIGHT_LOG", "debug").stdin(Stdio::null());
        command
    }

    /// Starts a node's daemon and waits until it listens.
    pub(crate) fn daemon(&self, node: &str, flags: &[&str]) -> Daemon {
        let kubeconfig = self.api.kubeconfig(&self.dir);
        self.start(node, &[&["--kubeconfig", kubeconfig.to_str().unwrap()], flags].concat())
    }

    /// Does the same, with records in etcd.
    pub(crate) fn daemon_with_etcd(&self, node: &str, etcd: &Etcd<'_>, flags: &[&str]) -> Daemon {
        self.start(node, &[&["--etcd", &etcd.endpoints().join(",")], flags].concat())
    }

    /// Does the same on a machine without files of trusted authorities, such as an image from
    /// scratch.
    pub(crate) fn daemon_without_certificates(
        &self,
        node: &str,
        etcd: &Etcd<'_>,
        flags: &[&str],
    ) -> Daemon {
        let mut command = self.command(&["--node", node]);
        command.env("SSL_CERT_FILE", "/nowhere/certs.pem").env("SSL_CERT_DIR", "/nowhere");
        self.start_as(command, node, &[&["--etcd", &etcd.endpoints().join(",")], flags].concat())
    }

    fn start(&self, node: &str, flags: &[&str]) -> Daemon {
        self.start_as(self.command(&["--node", node]), node, flags)
    }

    fn start_as(&self, mut command: Command, node: &str, flags: &[&str]) -> Daemon {
        command
            .arg("--socketpath")
            .arg(self.socket(node))
            .arg("--state")
            .arg(self.dir.join(format!("{node}.state")))
            .args(flags);
        let socket = self.socket(node);
        let mut service = Service::start(command, &self.dir.join(format!("{node}.log")));
        service.wait_until("the daemon to listen", || {
            ask(&socket, &Request::Release(owner("nobody"))).is_ok()
        });
        Daemon { service, socket }
    }

    /// Runs the daemon with flags that make it end.
    pub(crate) fn run(&self, flags: &[&str]) -> Output {
        let kubeconfig = self.api.kubeconfig(&self.dir);
        self.command(flags).arg("--kubeconfig").arg(kubeconfig).output().unwrap()
    }

    /// The blocks of a node, as the API shows them.
    pub(crate) fn blocks(&self, node: &str) -> Vec<Value> {
        let mut blocks = self.api.objects("addressblocks");
        blocks.retain(|block| block["spec"]["node"] == node);
        blocks
    }
}

/// A daemon; killed when dropped.
pub(crate) struct Daemon {
    service: Service,
    pub(crate) socket: PathBuf,
}

impl Daemon {
    pub(crate) fn said(&self) -> String {
        self.service.log()
    }

    pub(crate) fn kill(self) {
        self.service.kill();
    }

    pub(crate) fn assign(&self, container: &str) -> Result<Vec<IpAddr>, Refusal> {
        assigned(&self.socket, container)
    }

    pub(crate) fn held(&self, container: &str) -> Result<Vec<IpAddr>, Refusal> {
        held(&self.socket, container)
    }

    pub(crate) fn release(&self, container: &str) {
        let answer = ask(&self.socket, &Request::Release(owner(container))).unwrap();
        assert_eq!(answer, Answer::Ok);
    }

    pub(crate) fn status(&self) -> Answer {
        ask(&self.socket, &Request::Status(StatusRequest { network: network() })).unwrap()
    }
}

/// Lets the daemon at a socket give addresses to a container, or return those that it gave before.
pub(crate) fn assigned(socket: &Path, container: &str) -> Result<Vec<IpAddr>, Refusal> {
    let ask_for = AssignRequest { network: network(), owner: owner(container), wanted: Vec::new() };
    addresses(ask(socket, &Request::Assign(ask_for)).unwrap())
}

/// Asks the daemon at a socket which addresses a container has.
pub(crate) fn held(socket: &Path, container: &str) -> Result<Vec<IpAddr>, Refusal> {
    let ask_for = HeldRequest { network: network(), owner: owner(container) };
    addresses(ask(socket, &Request::Held(ask_for)).unwrap())
}

/// Two ranges, in blocks of eight addresses.
pub(crate) fn network() -> NetworkSpec {
    let mut spec = NetworkSpec::new("blue");
    let ranges = ["10.0.0.0/20", "2001:db8::/64"];
    spec.ranges = ranges.iter().map(|text| text.parse::<RangeSpec>().unwrap()).collect();
    (spec.block_v4, spec.block_v6) = (Some(29), Some(125));
    spec
}

pub(crate) fn owner(container: &str) -> Owner {
    Owner { container: container.to_owned(), ifname: "net1".to_owned(), ..Owner::default() }
}

fn addresses(answer: Answer) -> Result<Vec<IpAddr>, Refusal> {
    match answer {
        Answer::Assigned(all) => Ok(all.into_iter().map(|one| one.address.addr()).collect()),
        Answer::Refused(refusal) => Err(refusal),
        Answer::Ok => panic!("addresses were asked for"),
    }
}

pub(crate) fn ask(socket: &Path, request: &Request) -> std::io::Result<Answer> {
    let line = say(socket, &request.to_line().unwrap())?;
    Ok(Answer::from_line(&line).unwrap())
}

pub(crate) fn say(socket: &Path, line: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(line)?;
    let mut answer = Vec::new();
    BufReader::new(stream).read_until(b'\n', &mut answer)?;
    if answer.is_empty() {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(answer)
}
