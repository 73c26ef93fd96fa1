//! Debian's etcd.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::lab::Lab;
use crate::place::{Place as _, RunningProgram};
use crate::service::TIMEOUT;

/// How many members a cluster has.
const MEMBERS: u16 = 3;

/// How long a member may take to answer.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes two authorities, and keys: the first authority signs those of the members and of a client,
/// the second that of a stranger. `$host` is the members' address.
const KEYS: &str = "
printf \"subjectAltName=IP:$host\\nextendedKeyUsage=serverAuth,clientAuth\\n\" > extensions
new='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
for ca in ca other; do
  openssl req -x509 $new -days 30 -subj /CN=$ca -keyout $ca.key -out $ca.pem
done
sign() {
  openssl req $new -subj /CN=$1 -keyout $1.key -out $1.csr
  openssl x509 -req -in $1.csr -days 30 -CA $2.pem -CAkey $2.key -CAcreateserial -extfile extensions -out $1.pem
}
sign member ca; sign client ca; sign stranger other";

/// A cluster of three `etcd` members: processes in a lab's namespaces, on ports of one address, with
/// their data in a folder of the lab.
///
/// Its clients must reach that address. It is the address of the lab's loopback interface
/// ([`Lab::enter`](crate::Place::enter)), unless the test chooses another. A test that uses it
/// needs `require!("root", "program:etcd", "program:curl")`.
#[derive(Debug)]
pub struct Etcd<'lab> {
    lab: &'lab Lab,
    dir: PathBuf,
    /// The address for clients.
    host: String,
    members: Vec<Option<RunningProgram>>,
    is_secure: bool,
}

impl<'lab> Etcd<'lab> {
    /// Starts three members and waits until they have a leader.
    #[must_use]
    pub fn start(lab: &'lab Lab) -> Self {
        Self::start_at(lab, "127.0.0.1")
    }

    /// Starts three members at an address of the lab.
    #[must_use]
    pub fn start_at(lab: &'lab Lab, host: &str) -> Self {
        Self::start_as(lab, host, false)
    }

    /// Starts three members that use TLS and accept only clients whose certificate their own
    /// authority has signed ([`Etcd::files`]). Needs `program:openssl` too.
    #[must_use]
    pub fn start_secure(lab: &'lab Lab) -> Self {
        Self::start_secure_at(lab, "127.0.0.1")
    }

    /// The same at an address of the lab.
    #[must_use]
    pub fn start_secure_at(lab: &'lab Lab, host: &str) -> Self {
        Self::start_as(lab, host, true)
    }

    fn start_as(lab: &'lab Lab, host: &str, is_secure: bool) -> Self {
        let dir = lab.dir().join("etcd");
        fs::create_dir_all(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        if is_secure {
            lab.sh(&format!("cd {} && host={host} && {{ {KEYS}\n}} 2>keys.log", dir.display()));
        }
        let members = (0..MEMBERS).map(|_| None).collect();
        let mut etcd = Etcd { lab, dir, host: host.to_owned(), members, is_secure };
        for member in 0..etcd.members.len() {
            etcd.revive(member);
        }
        etcd.wait_for_leader();
        etcd
    }

    /// The members' addresses for clients.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        (0..self.members.len()).map(|member| self.client(member)).collect()
    }

    /// Returns the certificate and the key of `client`, which secure members accept, or of
    /// `stranger`, which they do not.
    #[must_use]
    pub fn files(&self, name: &str) -> [PathBuf; 2] {
        ["pem", "key"].map(|kind| self.dir.join(format!("{name}.{kind}")))
    }

    /// Returns the authority that signed the certificates of secure members (`ca`), or the one that
    /// signed a stranger's key (`other`).
    #[must_use]
    pub fn authority(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.pem"))
    }

    fn client(&self, member: usize) -> String {
        let scheme = if self.is_secure { "https" } else { "http" };
        format!("{scheme}://{}", self.address(member))
    }

    fn address(&self, member: usize) -> String {
        format!("{}:{}", self.host, 2379 + 10 * member)
    }

    fn peer(member: usize) -> String {
        format!("http://127.0.0.1:{}", 2380 + 10 * member)
    }

    /// Starts a member with the contents of its folder.
    ///
    /// # Panics
    /// When the program does not exist.
    pub fn revive(&mut self, member: usize) {
        let cluster: Vec<String> = (0..self.members.len())
            .map(|member| format!("m{member}={}", Self::peer(member)))
            .collect();
        let client = self.client(member);
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.dir.join(format!("m{member}.log")))
            .unwrap_or_else(|error| panic!("etcd's log: {error}"));
        let mut command = self.lab.command("etcd");
        command
            .args(["--name", &format!("m{member}"), "--data-dir"])
            .arg(self.dir.join(format!("m{member}")))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &Self::peer(member)])
            .args(["--initial-advertise-peer-urls", &Self::peer(member)])
            .args(["--initial-cluster", &cluster.join(",")])
            .args(["--heartbeat-interval", "100", "--election-timeout", "1000"]);
        if self.is_secure {
            let [certificate, key] = self.files("member");
            command.arg("--client-cert-auth").arg("--cert-file").arg(certificate);
            command.arg("--key-file").arg(key);
            command.arg("--trusted-ca-file").arg(self.authority("ca"));
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let running = command.spawn().unwrap_or_else(|error| panic!("etcd: {error}"));
        self.members[member] = Some(running.into());
    }

    /// Kills a member.
    pub fn kill(&mut self, member: usize) {
        self.members[member] = None;
    }

    /// Reports whether a member was started and not killed; it may be stopped.
    #[must_use]
    pub fn runs(&self, member: usize) -> bool {
        self.members[member].is_some()
    }

    /// Kills all members and starts new ones with empty data at their addresses.
    ///
    /// # Panics
    /// When a folder cannot be removed, or no member leads for long.
    pub fn make_anew(&mut self) {
        for member in 0..self.members.len() {
            self.kill(member);
            let folder = self.dir.join(format!("m{member}"));
            let removed = fs::remove_dir_all(&folder);
            removed.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        }
        (0..self.members.len()).for_each(|member| self.revive(member));
        self.wait_for_leader();
    }

    /// Stops (`true`) or continues a member: a stopped one neither answers nor closes connections.
    ///
    /// # Panics
    /// When the process does not exist.
    pub fn freeze(&mut self, member: usize, stop: bool) {
        let signal = if stop { "-STOP" } else { "-CONT" };
        let Some(running) = &mut self.members[member] else { return };
        let pid = running.child().id().to_string();
        let done = Command::new("kill").args([signal, &pid]).status();
        assert!(done.is_ok_and(|status| status.success()), "kill {signal} {pid}");
    }

    /// Returns the leader, if the running members agree.
    #[must_use]
    pub fn leader(&self) -> Option<usize> {
        (0..self.members.len()).filter(|member| self.members[*member].is_some()).find(|member| {
            let status = self.status(*member);
            status.is_some_and(|status| {
                let leader = status["leader"].as_str().unwrap_or("0");
                leader != "0" && status["header"]["member_id"] == leader
            })
        })
    }

    /// Reports whether one member leads and most follow, so that a request made now is answered.
    #[must_use]
    pub fn has_quorum(&self) -> bool {
        // Any key will do: a leader asks the others before it answers.
        let ask = |leader| {
            self.ask_member(leader, "kv/range", &json!({"key": "AA=="}), Duration::from_secs(1))
        };
        self.leader().and_then(ask).is_some_and(|answer| answer["error"].is_null())
    }

    /// Waits until one member leads, and returns it.
    ///
    /// # Panics
    /// When none does for long.
    #[expect(clippy::must_use_candidate, reason = "waiting is often all that is wanted")]
    pub fn wait_for_leader(&self) -> usize {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(leader) = self.leader() {
                return leader;
            }
            assert!(Instant::now() < deadline, "no leader:\n{}", self.log());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the end of the members' logs.
    #[must_use]
    pub fn log(&self) -> String {
        let mut log = String::new();
        for member in 0..self.members.len() {
            let path = self.dir.join(format!("m{member}.log"));
            let text = fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let last = &lines[lines.len().saturating_sub(15)..];
            log.push_str(&format!("m{member}:\n{}\n", last.join("\n")));
        }
        log
    }

    /// Asks the JSON gateway of a member that answers, until one does.
    ///
    /// # Panics
    /// When none does for long.
    #[expect(clippy::must_use_candidate, reason = "many calls only change something")]
    pub fn ask(&self, call: &str, body: &Value) -> Value {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let running = (0..self.members.len()).filter(|at| self.members[*at].is_some());
            let mut answers =
                running.filter_map(|member| self.ask_member(member, call, body, START_TIMEOUT));
            if let Some(answer) = answers.find(|answer| answer["error"].is_null()) {
                return answer;
            }
            assert!(Instant::now() < deadline, "{call} {body}:\n{}", self.log());
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn status(&self, member: usize) -> Option<Value> {
        let nothing = Value::Object(Map::new());
        self.ask_member(member, "maintenance/status", &nothing, Duration::from_millis(500))
    }

    fn ask_member(
        &self,
        member: usize,
        call: &str,
        body: &Value,
        patience: Duration,
    ) -> Option<Value> {
        if self.is_secure {
            return self.ask_securely(member, call, body, patience);
        }
        // This starts no program: a starting cluster is asked many times, and needs the processor.
        let address = self.address(member);
        let at: SocketAddr = address.parse().ok()?;
        let connect = || TcpStream::connect_timeout(&at, patience);
        let mut stream = self.lab.enter(connect).ok()?;
        stream.set_read_timeout(Some(patience)).ok()?;
        let (body, mut answer) = (body.to_string(), String::new());
        write!(
            stream,
            "POST /v3/{call} HTTP/1.0\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .ok()?;
        stream.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    fn ask_securely(
        &self,
        member: usize,
        call: &str,
        body: &Value,
        patience: Duration,
    ) -> Option<Value> {
        let mut command = self.lab.command("curl");
        let seconds = patience.as_secs_f64().to_string();
        command.args(["-s", "--max-time", &seconds, "-d", &body.to_string()]);
        let [certificate, key] = self.files("client");
        command.arg("--cert").arg(certificate).arg("--key").arg(key);
        command.arg("--cacert").arg(self.authority("ca"));
        command.arg(format!("{}/v3/{call}", self.client(member)));
        let output = command.stdin(Stdio::null()).output().ok()?;
        serde_json::from_slice(&output.stdout).ok()
    }
}
