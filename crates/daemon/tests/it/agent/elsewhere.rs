//! Services and those who ask them are in PID namespaces of their own, as containers of a cluster
//! are: for each, the other's PID is 0.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use node_api::{Daemon, Message, dhcp, ipam, multinet, policy};
use testkit::Place as _;

use super::node::{ALL, DAEMON, Node, text};

/// Names the lab's folder to the process that asks.
const HERE: &str = "NETWRIGHT_TEST_ASKS_IN";
/// Where it writes what it heard.
const HEARD: &str = "heard";

const WAIT: Duration = Duration::from_secs(60);

fn ask<A: Message>(socket: &str, request: &impl Message) -> Result<A, String> {
    let daemon = Daemon::new(PathBuf::from(socket), None);
    daemon.ask(request, WAIT, WAIT).map_err(|error| format!("{error:?}"))
}

/// Asks each service that plugins or the engine ask.
fn ask_all() -> [(&'static str, Result<String, String>); 5] {
    let of_ipam =
        ipam::Request::Status(ipam::StatusRequest { network: crate::ipam::rig::network() });
    let of_policy = policy::Request::Status(policy::StatusRequest::default());
    let of_dhcp = dhcp::Question::new(dhcp::Request::Status);
    let docker = || -> std::io::Result<String> {
        let mut stream = UnixStream::connect("/run/docker/plugins/netwright.sock")?;
        stream.set_read_timeout(Some(WAIT))?;
        stream
            .write_all(b"POST /Plugin.Activate HTTP/1.0\r\nHost: a\r\nContent-Length: 0\r\n\r\n")?;
        let mut said = String::new();
        stream.read_to_string(&mut said)?;
        Ok(said)
    };
    [
        ("ipam", ask::<ipam::Answer>(ipam::SOCKET, &of_ipam).map(|said| format!("{said:?}"))),
        (
            "policy",
            ask::<policy::Answer>(policy::SOCKET, &of_policy).map(|said| format!("{said:?}")),
        ),
        (
            "multinet",
            ask::<multinet::Answer>(multinet::SOCKET, &multinet::Request::Status)
                .map(|said| format!("{said:?}")),
        ),
        ("dhcp", ask::<dhcp::Reply>(dhcp::SOCKET, &of_dhcp).map(|said| format!("{said:?}"))),
        ("docker", docker().map_err(|error| error.to_string())),
    ]
}

/// This test runs its own executable once more, in another PID namespace.
#[test]
fn each_service_answers_those_whose_pid_it_cannot_see() {
    if let Some(folder) = std::env::var_os(HERE) {
        let heard: Vec<String> =
            ask_all().iter().map(|(name, said)| format!("{name}: {said:?}\n")).collect();
        fs::write(PathBuf::from(folder).join(HEARD), heard.concat()).unwrap();
        return;
    }
    testkit::require!("root", "program:unshare");
    let mut node = Node::with_all("agent-elsewhere");
    let apart = ["--pid", "--fork", "--kill-child", "--mount-proc"];
    let mut command = node.lab.command("unshare");
    command.args(apart).arg(DAEMON);
    node.start_as(command);
    node.wait_until_ready(ALL.len());

    let mut asking = node.lab.command("unshare");
    asking.args(apart).arg(std::env::current_exe().unwrap());
    asking
        .args(["--exact", "agent::elsewhere::each_service_answers_those_whose_pid_it_cannot_see"]);
    let output = asking.env(HERE, node.lab.dir()).output().unwrap();
    let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}");
    let heard = fs::read_to_string(node.lab.dir().join(HEARD)).expect(&said);
    assert_eq!(heard.lines().count(), 5, "{heard}");
    for line in heard.lines() {
        assert!(line.contains(": Ok("), "{heard}\n{}", node.log());
    }
    assert!(heard.contains("NetworkDriver"), "{heard}");
    let log = node.log();
    assert!(!log.contains("refused a connection"), "{log}");
}
