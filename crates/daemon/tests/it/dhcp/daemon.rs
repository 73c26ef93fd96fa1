//! The daemon as a program: its socket, its files, its clients.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use testkit::Place;

use crate::rig::{Rig, RunningProgram, wait_for};

#[test]
fn it_leaves_no_socket_and_no_pid_file_when_it_is_told_to_stop() {
    testkit::require!("root");
    let rig = Rig::new("dhcp-stop");
    let pid_file = rig.node.lab.dir().join("d.pid");
    let daemon = rig.daemon_with(&["-pidfile", pid_file.to_str().unwrap()]);
    wait_for("the pid file", || pid_file.exists());
    assert_eq!(fs::read_to_string(&pid_file).unwrap().trim(), daemon.pid().to_string());
    assert_eq!(fs::metadata(&rig.socket).unwrap().permissions().mode() & 0o777, 0o660);
    assert_eq!(daemon.stop(), Some(0));
    assert!(!rig.socket.exists() && !pid_file.exists());
}

#[test]
fn a_stale_socket_is_replaced_and_a_living_one_is_not() {
    testkit::require!("root");
    let rig = Rig::new("dhcp-stale");
    rig.daemon().kill();
    assert!(rig.socket.exists());
    let daemon = rig.daemon();
    let second = rig.node.lab.command(env!("CARGO_BIN_EXE_netwrightd"));
    let output =
        { second }.args(["dhcp", "-socketpath", rig.socket.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("a daemon answers there"), "{text}");
    rig.dhcp("STATUS").call().silent();
    daemon.stop();
    // A file that is not a socket is foreign.
    fs::write(&rig.socket, "mine").unwrap();
    let output = rig
        .node
        .lab
        .command(env!("CARGO_BIN_EXE_netwrightd"))
        .args(["dhcp", "-socketpath", rig.socket.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(fs::read_to_string(&rig.socket).unwrap(), "mine");
}

/// The daemon listens last: a socket that exists is served.
#[test]
fn a_daemon_that_cannot_start_leaves_no_socket() {
    testkit::require!("root");
    let rig = Rig::new("dhcp-no-start");
    let dir = rig.node.lab.dir();
    std::fs::write(dir.join("file"), "").unwrap();
    let below_a_file = dir.join("file/below");
    let good = rig.state.clone();
    for (state, pid_file) in [(&below_a_file, dir.join("d.pid")), (&good, below_a_file.clone())] {
        let mut command = rig.node.lab.command(env!("CARGO_BIN_EXE_netwrightd"));
        command.args(["dhcp", "-socketpath", rig.socket.to_str().unwrap()]);
        command.arg("-state").arg(state).arg("-pidfile").arg(&pid_file);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains("Not a directory"), "{text}");
        assert!(!rig.socket.exists(), "{text}");
    }
}

#[test]
fn a_socket_that_was_handed_over_is_used_and_stays() {
    testkit::require!("root", "program:systemd-socket-activate");
    let rig = Rig::new("dhcp-activated");
    let state = rig.state.display();
    let start = |more: &str| {
        let mut command = rig.node.lab.command("sh");
        let line = format!(
            "exec systemd-socket-activate -l {} {more} {} dhcp -socketpath /nonexistent/s -state {state}",
            rig.socket.display(),
            env!("CARGO_BIN_EXE_netwrightd"),
        );
        command
            .args(["-c", &line])
            .stderr(fs::File::create(rig.node.lab.dir().join("act.log")).unwrap());
        RunningProgram::new(command)
    };
    let mut activated = start("");
    wait_for("the socket", || rig.socket.exists());
    wait_for("an answer", || rig.dhcp("STATUS").call().succeeded());
    let pid = rustix::process::Pid::from_child(activated.child());
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(activated.child().wait().unwrap().code(), Some(0));
    assert!(rig.socket.exists(), "the socket is its maker's");
    fs::remove_file(&rig.socket).unwrap();
    let other = rig.node.lab.dir().join("other.sock");
    let mut two = start(&format!("-l {}", other.display()));
    wait_for("the sockets", || other.exists());
    let _wake = rig.node.lab.enter(|| UnixStream::connect(&rig.socket).unwrap());
    assert_eq!(two.child().wait().unwrap().code(), Some(1));
    let log = fs::read_to_string(rig.node.lab.dir().join("act.log")).unwrap();
    assert!(log.contains("Too many (2) FDs passed through socket activation"), "{log}");
}

#[test]
fn readiness_is_told() {
    testkit::require!("root");
    let rig = Rig::new("dhcp-notify");
    let path = rig.node.lab.dir().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut command = rig.node.lab.command(env!("CARGO_BIN_EXE_netwrightd"));
    command
        .args([
            "dhcp",
            "-socketpath",
            rig.socket.to_str().unwrap(),
            "-state",
            rig.state.to_str().unwrap(),
        ])
        .env("NOTIFY_SOCKET", &path);
    let mut running = RunningProgram::new(command);
    let heard = || {
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    assert_eq!(heard(), "READY=1");
    rig.dhcp("STATUS").call().silent();
    let pid = rustix::process::Pid::from_child(running.child());
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(heard(), "STOPPING=1");
}

#[test]
fn nonsense_is_answered_or_hung_up_on() {
    testkit::require!("root");
    let rig = Rig::new("dhcp-hostile");
    let daemon = rig.daemon();
    let say = |text: &[u8]| -> String {
        let mut stream = rig.node.lab.enter(|| UnixStream::connect(&rig.socket)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // The daemon may close the connection before it has read everything.
        let _ = stream.write_all(text);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    assert!(say(b"CONNECT /_goRPC_ HTTP/1.0\n").contains(r#""failed":{"code":6"#));
    assert!(say(b"{\"version\":9,\"ask\":\"status\"}\n").contains(r#""failed":{"code":1"#));
    assert!(say(b"\n").contains("failed"));
    assert!(say(b"{\"version\":1,\"ask\":\"status\"}\n").contains(r#""answer":"done""#));
    assert_eq!(say(&vec![b'x'; 3 * 1024 * 1024]), "");
    let nested = [b"{\"version\":1,\"ask\":".as_slice(), &vec![b'['; 100_000], b"\n"].concat();
    assert!(say(&nested).contains("failed"));
    rig.dhcp("STATUS").call().silent();
    assert_eq!(daemon.stop(), Some(0));
}

/// With 3,000 clients that send nothing the daemon still answers others at once, before those
/// clients reach their timeout.
#[test]
fn clients_that_say_nothing_keep_nobody_waiting() {
    testkit::require!("root");
    crate::rig::raise_descriptor_limit();
    let rig = Rig::new("dhcp-many-silent");
    let daemon = rig.daemon();
    let connect = || (0..3000).map(|_| UnixStream::connect(&rig.socket).unwrap());
    let silent: Vec<UnixStream> = rig.node.lab.enter(|| connect().collect());
    rig.dhcp("STATUS").call().silent();
    assert!(!daemon.log().contains("in time"), "{}", daemon.log());
    drop(silent);
    rig.dhcp("STATUS").call().silent();
    assert_eq!(daemon.stop(), Some(0));
}

#[test]
fn other_users_are_refused() {
    testkit::require!("root", "program:setpriv", "program:socat");
    let rig = Rig::new("dhcp-users");
    let daemon = rig.daemon();
    fs::set_permissions(&rig.socket, fs::Permissions::from_mode(0o666)).unwrap();
    fs::set_permissions(rig.node.lab.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    let ask = |user: &str| {
        rig.node.sh(&format!(
            "echo '{{\"version\":1,\"ask\":\"status\"}}' | setpriv --reuid {user} --clear-groups socat -t5 - UNIX-CONNECT:{} || true",
            rig.socket.display()
        ))
    };
    assert_eq!(ask("65534"), "");
    assert!(ask("0").contains("done"));
    assert!(daemon.log().contains("refused a connection"));
}

/// The plugin, too, talks only to root and its own user.
#[test]
fn a_stranger_behind_the_socket_is_not_asked() {
    testkit::require!("root", "program:setpriv", "program:socat");
    let rig = Rig::new("dhcp-stranger");
    let dir = rig.node.dir("open");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(rig.node.lab.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    let socket = dir.join("s");
    let mut command = rig.node.lab.command("setpriv");
    command.args(["--reuid", "65534", "--clear-groups", "socat"]);
    command.arg(format!("UNIX-LISTEN:{},fork", socket.display())).arg("EXEC:cat");
    let _stranger = RunningProgram::new(command);
    // The socket appears before it is listened on.
    wait_for("the stranger", || UnixStream::connect(&socket).is_ok());
    let ipam = serde_json::json!({ "type": "dhcp", "daemonSocketPath": socket });
    let run = rig.dhcp("STATUS").config(serde_json::json!({ "ipam": ipam }));
    run.call().fails(50, "is served by user 65534");
}

#[test]
fn a_daemon_that_says_nothing_is_waited_for_only_so_long() {
    testkit::require!("root");
    let rig = Rig::new("dhcp-silent");
    let listener = UnixListener::bind(&rig.socket).unwrap();
    let ends = std::thread::spawn(move || {
        // The first connection is closed, the second gets nonsense as its answer.
        drop(listener.accept().unwrap());
        let (mut stream, _) = listener.accept().unwrap();
        // Reads the request first: closing a connection with an unread request discards the answer.
        let mut question = String::new();
        BufReader::new(&stream).read_line(&mut question).unwrap();
        stream.write_all(b"{\"version\":7,\"answer\":\"done\"}\n").unwrap();
    });
    rig.dhcp("STATUS").call().fails(50, "did not answer");
    rig.dhcp("STATUS").call().fails(50, "no answer");
    ends.join().unwrap();
}

#[test]
fn a_plugin_that_is_gone_waits_for_no_lease() {
    testkit::require!("root");
    let rig = Rig::new("dhcp-forsaken");
    let daemon = rig.daemon();
    let c1 = rig.plugged("c1");
    let ask = format!(
        r#"{{"version":1,"ask":{{"acquire":{{"attachment":{{"network":"n","containerID":"c1","ifname":"eth0"}},"netns":"{}","client":{{"families":["v4"]}}}}}}}}"#,
        c1.netns().display()
    );
    let mut stream = rig.node.lab.enter(|| UnixStream::connect(&rig.socket)).unwrap();
    stream.write_all(ask.as_bytes()).unwrap();
    stream.write_all(b"\n").unwrap();
    wait_for("the first DISCOVER", || daemon.log().contains("kind=DHCPDISCOVER"));
    drop(stream);
    wait_for("the first to be given up", || daemon.log().contains("no longer sought"));
    // The daemon begins anew for the next, with nothing left of the first.
    let second = rig.node.lab.enter(|| UnixStream::connect(&rig.socket)).unwrap();
    (&second).write_all(ask.as_bytes()).unwrap();
    (&second).write_all(b"\n").unwrap();
    wait_for("another look for a lease", || {
        2 <= daemon.log().matches("looking for a lease").count()
    });
}

/// The daemon in a container of its own, which sees the host's files below a folder.
#[test]
fn the_host_may_be_below_a_prefix() {
    testkit::require!("root", "program:dnsmasq");
    let rig = Rig::new("dhcp-prefix");
    let _server = rig.dnsmasq("dhcp-option=option:router,192.0.2.1");
    let host = rig.node.lab.dir().join("host");
    std::os::unix::fs::symlink("/", &host).unwrap();
    let daemon = rig.daemon_with(&["-hostprefix", host.to_str().unwrap()]);
    let c1 = rig.plugged("c1");
    rig.dhcp("ADD").to(&c1).call().ok();
    rig.dhcp("DEL").to(&c1).call().silent();
    assert_eq!(daemon.stop(), Some(0));
    assert!(!rig.socket.exists());
}

/// `netwright uninstall`, or an administrator, may remove folders while the daemon runs.
#[test]
fn a_folder_of_leases_that_was_removed_is_made_again() {
    testkit::require!("root", "program:dnsmasq");
    let rig = Rig::new("dhcp-tidied");
    let server = rig.dnsmasq("dhcp-option=option:router,192.0.2.1");
    let _daemon = rig.daemon();
    fs::remove_dir_all(&rig.state).unwrap();
    let c1 = rig.plugged("c1");
    rig.dhcp("ADD").to(&c1).call().ok();
    assert_eq!(rig.kept().len(), 1);
    rig.node.sh("ip link del vc1");
    rig.dhcp("DEL").to(&c1).call().silent();
    wait_for("the lease to be given back", || server.leased().is_empty());
}

/// A lease that cannot be recorded is released: it would be lost with the daemon.
#[test]
fn a_lease_that_cannot_be_written_down_is_given_back() {
    testkit::require!("root", "program:dnsmasq");
    let rig = Rig::new("dhcp-full");
    let server = rig.dnsmasq("dhcp-option=option:router,192.0.2.1");
    let _daemon = rig.daemon();
    fs::remove_dir_all(rig.state.join("leases")).unwrap();
    fs::write(rig.state.join("leases"), "in the way").unwrap();
    let c1 = rig.plugged("c1");
    rig.dhcp("ADD").to(&c1).call().fails(105, "error calling DHCP.Allocate");
    wait_for("the lease to be given back", || 1 <= server.logged("DHCPRELEASE(br0)"));
    wait_for("it to be written down", || server.leased().is_empty());
}
