//! Debian's Open vSwitch.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::succeeded;
use crate::lab::Lab;
use crate::place::{Place as _, RunningProgram};
use crate::service::TIMEOUT;

/// The schema of the database, from the package `openvswitch-common`.
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// The port on which the server accepts TLS.
const TLS_PORT: u16 = 6640;

/// A private Open vSwitch: `ovsdb-server` and `ovs-vswitchd` in a lab's namespaces, with their
/// files in a folder of the lab.
///
/// Bridges have the datapath in user space (`datapath_type=netdev`) unless a test requests the
/// kernel's. Containers behind it must not leave TCP checksums to their link: nothing fills them
/// in.
///
/// A test that uses it needs `require!("root", "program:ovs-vswitchd", "program:ovsdb-server")`.
#[derive(Debug)]
pub struct Ovs<'lab> {
    lab: &'lab Lab,
    dir: PathBuf,
    server: Option<RunningProgram>,
    switch: Option<RunningProgram>,
    /// The server's further options for TLS.
    tls: Vec<String>,
}

impl<'lab> Ovs<'lab> {
    /// Starts both programs on an empty database.
    #[must_use]
    pub fn start(lab: &'lab Lab) -> Self {
        let mut ovs = Self::database_only(lab);
        ovs.start_switch();
        ovs
    }

    /// Starts `ovsdb-server` alone.
    #[must_use]
    pub fn database_only(lab: &'lab Lab) -> Self {
        let dir = lab.dir().join("ovs");
        fs::create_dir_all(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        let mut ovs = Ovs { lab, dir, server: None, switch: None, tls: Vec::new() };
        ovs.create_database(Path::new(SCHEMA));
        ovs.start_server();
        ovs
    }

    /// The database's address: `unix:…`.
    #[must_use]
    pub fn remote(&self) -> String {
        format!("unix:{}", self.socket().display())
    }

    /// The database's socket; the path is the same inside the lab and outside.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.join("db.sock")
    }

    /// The folder with everything.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes the database available in the lab at its usual path.
    pub fn at_its_usual_place(&self) {
        let socket = self.socket();
        self.lab.sh(&format!(
            "mkdir -p /run/openvswitch && ln -sf {} /run/openvswitch/db.sock && \
             test -S /var/run/openvswitch/db.sock",
            socket.display()
        ));
    }

    /// Makes a bridge with the datapath in user space, as an administrator would.
    pub fn add_bridge(&self, name: &str) {
        self.vsctl(&["add-br", name, "--", "set", "bridge", name, "datapath_type=netdev"]);
    }

    /// Runs `ovs-vsctl`, which waits for the switch, and returns its output without the final
    /// newline.
    ///
    /// # Panics
    /// When it fails.
    #[track_caller]
    pub fn vsctl(&self, arguments: &[&str]) -> String {
        succeeded("ovs-vsctl", arguments, &self.try_vsctl(arguments), || self.log())
    }

    /// Runs `ovs-vsctl` and returns its output, whether it succeeds or not.
    #[track_caller]
    pub fn try_vsctl(&self, arguments: &[&str]) -> Output {
        let mut command = self.command("ovs-vsctl");
        command.args(["--timeout=20", &format!("--db={}", self.remote())]).args(arguments);
        command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("ovs-vsctl: {error}"))
    }

    /// Returns the database's whole content, without what the switch itself keeps changing: for
    /// comparisons.
    #[must_use]
    pub fn content(&self) -> String {
        let columns = [
            ("Bridge", "name,ports,mirrors,controller,external_ids"),
            ("Port", "name,interfaces,tag,trunks,vlan_mode,qos,external_ids"),
            ("Interface", "name,type,options,external_ids,ingress_policing_rate"),
            ("Mirror", "name,select_src_port,select_dst_port,output_port,external_ids"),
            ("QoS", "type,queues,other_config,external_ids"),
            ("Queue", "other_config,external_ids"),
            ("Controller", "target"),
        ];
        // One start shows all tables, with an empty line between two.
        let options = columns.map(|(_, columns)| format!("--columns={columns}"));
        let mut arguments = vec!["--format=csv"];
        for ((table, _), options) in columns.iter().zip(&options) {
            arguments.extend(["--", options, "list", table]);
        }
        let shown = self.vsctl(&arguments);
        let tables: Vec<&str> = shown.split("\n\n").collect();
        assert_eq!(tables.len(), columns.len(), "{shown}");
        let mut content = String::new();
        for ((table, _), rows) in columns.iter().zip(tables) {
            let mut rows: Vec<&str> = rows.lines().collect();
            rows.sort_unstable();
            content.push_str(&format!("{table}\n{}\n", rows.join("\n")));
        }
        content
    }

    /// Starts the database's server with the contents of its file.
    pub fn start_server(&mut self) {
        let remote = format!("--remote=p{}", self.remote());
        let database = self.dir.join("conf.db").display().to_string();
        let tls = self.tls.iter().map(String::as_str);
        let arguments: Vec<&str> = [&*database, &*remote].into_iter().chain(tls).collect();
        self.server = Some(self.daemon("ovsdb-server", &arguments));
        let socket = self.socket();
        wait("ovsdb-server listens", || UnixStream::connect(&socket).is_ok());
        self.vsctl(&["--no-wait", "init"]);
    }

    /// Restarts the server so that it accepts TLS too, at the returned address, which is in the
    /// lab. It presents the certificate `name` of the keys, and accepts clients of the same
    /// authority.
    pub fn speak_tls(&mut self, pki: &Pki, name: &str) -> String {
        let [key, certificate, authority] = pki.files(name).map(|path| path.display().to_string());
        self.tls = vec![
            format!("--remote=pssl:{TLS_PORT}:127.0.0.1"),
            format!("--private-key={key}"),
            format!("--certificate={certificate}"),
            format!("--ca-cert={authority}"),
        ];
        self.kill_server();
        self.start_server();
        format!("ssl:127.0.0.1:{TLS_PORT}")
    }

    /// Starts the switch. The first command that waits for it finds out when it is ready.
    pub fn start_switch(&mut self) {
        let remote = self.remote();
        // The kernel's datapath exists only in the virtual machine, where a test requests it by
        // name.
        let kernel = Path::new("/sys/module/openvswitch").exists();
        let more: &[&str] = if kernel { &[] } else { &["--disable-system"] };
        self.switch = Some(self.daemon("ovs-vswitchd", &[&[remote.as_str()], more].concat()));
    }

    /// Kills the database's server.
    pub fn kill_server(&mut self) {
        self.server = None;
        let _ = fs::remove_file(self.socket());
    }

    /// Kills the switch.
    pub fn kill_switch(&mut self) {
        self.switch = None;
    }

    /// Stops (`true`) or continues the database's server; a stopped one neither answers nor closes
    /// connections.
    pub fn freeze_server(&mut self, stop: bool) {
        let signal = if stop { "-STOP" } else { "-CONT" };
        let Some(server) = &mut self.server else { return };
        let pid = server.child().id().to_string();
        let done = Command::new("kill").args([signal, &pid]).status();
        assert!(done.is_ok_and(|status| status.success()), "kill {signal} {pid}");
    }

    /// Creates the database's file again, empty. The server must not be running.
    pub fn wipe(&mut self) {
        assert!(self.server.is_none(), "the server would go on with what it has");
        self.remove_database();
        self.create_database(Path::new(SCHEMA));
    }

    fn remove_database(&self) {
        let _ = fs::remove_file(self.dir.join("conf.db"));
        let _ = fs::remove_file(self.dir.join(".conf.db.~lock~"));
    }

    /// Starts the database's server on an empty database with a changed schema.
    pub fn replace_schema(&mut self, change: impl FnOnce(&mut serde_json::Value)) {
        self.kill_server();
        let read = fs::read(SCHEMA).unwrap_or_else(|error| panic!("{SCHEMA}: {error}"));
        let schema = serde_json::from_slice(&read);
        let mut schema = schema.unwrap_or_else(|error| panic!("{SCHEMA}: {error}"));
        change(&mut schema);
        let path = self.dir.join("schema");
        fs::write(&path, schema.to_string())
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        self.remove_database();
        self.create_database(&path);
        self.start_server();
    }

    /// Leaves both programs running until the thread that started them, for example a test's, ends.
    pub fn leave(self) {
        std::mem::forget(self);
    }

    /// Returns the end of both programs' logs.
    #[must_use]
    pub fn log(&self) -> String {
        let mut log = String::new();
        for name in ["ovsdb-server.log", "ovs-vswitchd.log"] {
            let text = fs::read_to_string(self.dir.join(name)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let last = &lines[lines.len().saturating_sub(25)..];
            log.push_str(&format!("{name}:\n{}\n", last.join("\n")));
        }
        log
    }

    fn create_database(&self, schema: &Path) {
        let database = self.dir.join("conf.db");
        let mut command = self.command("ovsdb-tool");
        let made = command.arg("create").arg(&database).arg(schema).status();
        assert!(
            made.is_ok_and(|status| status.success()),
            "ovsdb-tool create {}",
            database.display()
        );
    }

    fn daemon(&self, program: &str, arguments: &[&str]) -> RunningProgram {
        let dir = self.dir.display();
        let mut command = self.command(program);
        command
            .args(arguments)
            .args([
                "--no-chdir".to_owned(),
                format!("--unixctl={dir}/{program}.ctl"),
                format!("--log-file={dir}/{program}.log"),
                "-vconsole:off".to_owned(),
                "-vsyslog:off".to_owned(),
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.spawn().unwrap_or_else(|error| panic!("{program}: {error}")).into()
    }

    fn command(&self, program: &str) -> Command {
        let mut command = self.lab.command(program);
        command
            .env("OVS_RUNDIR", &self.dir)
            .env("OVS_LOGDIR", &self.dir)
            .env("OVS_DBDIR", &self.dir);
        command
    }
}

impl Drop for Ovs<'_> {
    fn drop(&mut self) {
        // A stopped process can be killed all the same; the switch first, because it would
        // complain.
        self.switch = None;
        self.server = None;
    }
}

/// An authority and the certificates it signed, made by Open vSwitch's own `ovs-pki`.
///
/// A test that uses it needs `require!("program:ovs-pki", "program:openssl")`.
#[derive(Debug)]
pub struct Pki {
    dir: PathBuf,
}

impl Pki {
    /// Makes the authority, and keys with these names, in an existing folder.
    #[must_use]
    pub fn new(dir: PathBuf, names: &[&str]) -> Self {
        let pki = Pki { dir };
        pki.run("ovs-pki --dir=pki --log=log init");
        for name in names {
            pki.run(&format!("ovs-pki --dir=pki --log=log req+sign {name} switch"));
        }
        pki
    }

    /// Returns the private key, the certificate, and the authority's certificate.
    #[must_use]
    pub fn files(&self, name: &str) -> [PathBuf; 3] {
        let file = |name: String| self.dir.join(name);
        [
            file(format!("{name}-privkey.pem")),
            file(format!("{name}-cert.pem")),
            self.dir.join("pki/switchca/cacert.pem"),
        ]
    }

    /// Signs a certificate again, for a day in the past.
    pub fn expire(&self, name: &str) {
        self.run(&format!(
            "cd pki/switchca && openssl ca -config ca.cnf -batch -notext -startdate 20200101000000Z \
             -enddate 20200102000000Z -in ../../{name}-req.pem -out ../../{name}-cert.pem"
        ));
    }

    fn run(&self, script: &str) {
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(&self.dir).stdin(Stdio::null());
        let output = command.output().unwrap_or_else(|error| panic!("sh: {error}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}: {}\n{said}", output.status);
    }
}

/// Waits until something holds.
fn wait(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within {TIMEOUT:?}");
        thread::sleep(Duration::from_millis(5));
    }
}
