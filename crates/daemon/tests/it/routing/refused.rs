//! Changes that the kernel refuses, and files that cannot be written.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use testkit::{Place as _, Service, wait_until};

use super::{Fabric, INTERVAL, Node};

/// Returns the answer of a node's service to `/readyz`.
fn readiness(node: &Node) -> String {
    let Ok(mut stream) = UnixStream::connect(node.dir.join("run/agent/routing.sock")) else {
        return String::new();
    };
    write!(stream, "GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    said.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
}

/// A node that is not in the list is not ready, in the log, at the status socket and for `agent
/// status`, until the list has it.
#[test]
fn a_node_that_is_not_in_the_list_is_not_ready() {
    testkit::require!("root");
    let mut fabric = Fabric::new("routing-unlisted", &[1]);
    let listed = fs::read_to_string(fabric.list()).unwrap();
    fabric.write_list(&listed.replace("name = \"a\"", "name = \"z\""));
    fabric.spawn_on(0);
    let says = "waiting: this node: ";
    wait_until("it to be told", || readiness(&fabric.nodes[0]).starts_with(says));
    let said = readiness(&fabric.nodes[0]);
    assert!(
        said.contains("has no node \"a\", which is this one's name: add it, or set node"),
        "{said}"
    );
    let log = || fabric.nodes[0].service.as_ref().unwrap().log();
    wait_until("the start to be told", || log().contains(" started, and not ready yet "));
    assert!(!log().contains(" ready node="), "{}", log());
    fabric.write_list(&listed);
    wait_until("it to be ready", || readiness(&fabric.nodes[0]) == "ok\n");
    wait_until("that to be told", || log().contains(" ready node="));
}

/// Routes of another program occupy the places of this node's own route and of the route to the
/// other node, and IPv4 forwarding cannot be switched on. The first and the last make the service
/// not ready; the row of the other node shows the second. The service makes each change once it is
/// possible. For forwarding no event says when that is.
#[test]
fn what_cannot_be_done_is_told_and_tried_again() {
    testkit::require!("root");
    let mut fabric = Fabric::new("routing-refused", &[2]);
    fabric.flags = vec!["--path".to_owned(), "direct".to_owned()];
    let for_own = "unreachable 10.244.1.0/24 metric 4294967295 proto static";
    let for_other =
        format!("10.244.2.0/24 via {} metric 2000 proto static", fabric.nodes[1].underlay().0);
    fabric.nodes[0].host.sh(&format!("ip route add {for_own} && ip route add {for_other}"));
    let sysctls = fabric.nodes[0].dir.join("sysctls");
    for folder in ["net/ipv4", "net/ipv6/conf/all"] {
        fs::create_dir_all(sysctls.join(folder)).unwrap();
    }
    let of_v6 = sysctls.join("net/ipv6/conf/all/forwarding");
    fs::write(&of_v6, "0\n").unwrap();
    let mut command = fabric.routing(0);
    command.args(INTERVAL).env("NETWRIGHT_SYSCTL_DIR", &sysctls);
    let service = Service::start(command, &fabric.nodes[0].dir.join("log"));
    fabric.nodes[0].service = Some(service);
    let own = "routes and tunnels: unreachable route 10.244.1.0/24: ";
    wait_until("both to be told", || {
        let said = readiness(&fabric.nodes[0]);
        said.starts_with("waiting: ") && said.contains(own) && said.contains("forwarding: ")
    });
    assert!(fs::read_to_string(&of_v6).unwrap().starts_with('1'), "both are written");
    let switch = sysctls.join("net/ipv4/ip_forward");
    fs::write(&switch, "0\n").unwrap();
    wait_until("forwarding to be on", || fs::read_to_string(&switch).unwrap().starts_with('1'));
    wait_until("the route alone to be told", || {
        let said = readiness(&fabric.nodes[0]);
        said.contains(own) && !said.contains("forwarding")
    });
    fabric.nodes[0].host.sh(&format!("ip route del {for_own}"));
    wait_until("it to be ready", || readiness(&fabric.nodes[0]) == "ok\n");
    // An unreachable other node affects only that node's row.
    wait_until("the node to be ready", || fabric.routes(0)["phase"] == "ready");
    let state = |family: &str| {
        let table = fabric.routes(0);
        let rows = table["rows"].as_array().unwrap();
        let row = rows.iter().find(|row| row["peer"] == "b" && row["family"] == family);
        row.unwrap()["state"].clone()
    };
    let refused = state("ipv4");
    assert!(refused["failing"]["error"].as_str().unwrap().contains("EEXIST"), "{refused}");
    assert!(state("ipv6").is_string(), "the other family is programmed, or has answered");
    fabric.nodes[0].host.sh(&format!("ip route del {for_other}"));
    wait_until("the other node to be programmed", || state("ipv4").is_string());
    for (show, protocol) in
        [("type unreachable 10.244.1.0/24", "proto 79"), ("10.244.2.0/24", "proto 78")]
    {
        let routes = fabric.nodes[0].host.sh(&format!("ip route show {show}"));
        assert!(routes.contains(protocol) && !routes.contains("static"), "{routes}");
    }
}
