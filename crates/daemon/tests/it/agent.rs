//! `netwrightd` without a service name: it starts the enabled services and looks after them.
//! `netwrightd agent` shows them and lets them read their configuration again.

mod elsewhere;
mod failing;
mod figures;
mod idle;
mod leave;
pub(crate) mod node;
mod reload;
mod surroundings;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testkit::Place as _;

use node::{ALL, DAEMON, Node, is_alive, kernel_says, text, until};

#[test]
fn each_enabled_service_is_a_process_with_its_own_rights() {
    testkit::require!("root");
    let mut node = Node::with_all("agent-all");
    node.configure(&node.all().replace("[agent]\n", "[agent]\nlisten = \"9470\"\n"));
    let said = node.run(&["agent", "status"]);
    assert_eq!(said.status.code(), Some(1), "{}", text(&said.stderr));
    assert!(text(&said.stdout).starts_with("collect   stopped\n"), "{}", text(&said.stdout));
    node.start();
    let said = node.run(&["agent", "status", "--wait=90s"]);
    assert!(said.status.success(), "{}{}", text(&said.stdout), text(&said.stderr));
    let pids = node.wait_until_ready(ALL.len());
    assert_eq!(pids.keys().collect::<Vec<_>>(), ALL);
    for (service, pid) in &pids {
        assert_eq!(kernel_says(*pid, "Seccomp"), "2", "{service}");
        assert_eq!(kernel_says(*pid, "NoNewPrivs"), "1", "{service}");
        let user = if service == "ipam" { "65521" } else { "0" };
        assert_eq!(kernel_says(*pid, "Uid"), [user; 4].join("\t"), "{service}");
    }
    let status = node.agent_status();
    assert_eq!(
        (&status["agent"]["state"], &status["agent"]["service"]),
        (&"ready".into(), &"agent".into())
    );
    // In another PID namespace the same number is another process.
    let elsewhere =
        node.lab.try_sh(&format!("unshare --pid --fork --mount-proc {DAEMON} agent reload"));
    let said = text(&elsewhere.stderr);
    assert!(said.contains("agent is in another PID namespace: call this command there"), "{said}");
    // A probe needs no program of ours.
    let ask = |target: &str| node.ask("/run/netwright/agent/agent.sock", target).unwrap();
    assert_eq!((ask("/readyz"), ask("/livez")), ("ok\n".to_owned(), "ok\n".to_owned()));
    assert_eq!(ask("/x"), "there are /status, /readyz, /livez and /metrics\n");
    let probe = |target: &str| {
        node.lab.enter(|| {
            let mut stream = TcpStream::connect("127.0.0.1:9470").unwrap();
            write!(stream, "GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            let mut said = String::new();
            stream.read_to_string(&mut said).unwrap();
            said
        })
    };
    assert!(probe("/readyz").ends_with("\r\n\r\nok\n"), "{}", probe("/readyz"));
    assert!(probe("/livez").ends_with("\r\n\r\nok\n"), "{}", probe("/livez"));
    // A parser that is not ours understands the metrics.
    let file = node.lab.dir().join("metrics");
    fs::write(&file, ask("/metrics")).unwrap();
    let read = node.lab.sh(&format!(
        "/usr/bin/python3 -c 'from prometheus_client.parser import text_fd_to_metric_families as read
for family in read(open(\"{}\")): print(family.name, family.type, len(family.samples))'",
        file.display()
    ));
    let wanted = format!("netwright_service_ready gauge {}\n", ALL.len() + 1);
    assert!(
        read.starts_with(&wanted) && read.contains("\nnetwright_routing_looks counter 1\n"),
        "{read}"
    );
    for metrics in [ask("/metrics"), probe("/metrics")] {
        assert!(metrics.contains("\nnetwright_service_ready{service=\"repair\"} 1\n"), "{metrics}");
        assert!(metrics.contains("\nnetwright_routing_source_silent "), "{metrics}");
    }
    assert!(probe("/status").starts_with("HTTP/1.1 404 "), "{}", probe("/status"));
    // A second agent does not start beside it.
    let twice = node.run(&[]);
    let said = text(&twice.stderr);
    assert_eq!(twice.status.code(), Some(1));
    assert!(said.contains("agent.sock\" is in use: a daemon answers there"), "{said}");
    assert_eq!(node.pids(), pids);
    assert_eq!(node.stop(), Some(0));
    for (service, pid) in pids {
        assert!(!is_alive(pid), "{service}");
    }
    for socket in ["netwright/agent/agent.sock", "netwright/agent/ipam/ipam.sock", "cni/dhcp.sock"]
    {
        assert!(!node.path(&format!("/run/{socket}")).exists(), "{socket}");
    }
}

#[test]
fn a_service_on_its_own_says_its_status_and_reads_its_configuration_again() {
    testkit::require!("root");
    let node = Node::new("agent-own");
    node.configure("[collect]\nenable = true\n");
    let log = node.lab.dir().join("log");
    let mut command = node.command(&["collect", "--interval", "9s"]);
    let mut child = command.stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
    let said = node.run(&["agent", "status", "--wait=90s"]);
    assert!(said.status.success(), "{}{}", text(&said.stdout), text(&said.stderr));
    assert!(node.agent_status()["agent"].is_null());
    let report = || node::of(&node.agent_status(), "collect");
    assert_eq!(report()["pid"], child.id());
    // The other agent answers for all services.
    let mut server = node.command(&["agent", "serve"]);
    let server = testkit::Service::start(
        {
            server.env("NOTIFY_SOCKET", "/run/gone");
            server
        },
        &node.lab.dir().join("serve.log"),
    );
    let ask = |target: &str| node.ask("/run/netwright/agent/agent.sock", target);
    until("the answers", || ask("/readyz").as_deref() == Some("ok\n"));
    assert!(node.agent_status()["agent"].is_null());
    assert!(server.log().contains("cannot notify the service manager"), "{}", server.log());
    node.configure(
        "[log]\nformat = \"json\"\n[collect]\nenable = true\ncache = [\"/var/lib/x\"]\n\
         interval = \"1s\"\ngrace = \"4s\"\n",
    );
    // A restart uses the cached configuration. A flag takes precedence over the file.
    let said = node.run(&["agent", "reload"]);
    assert_eq!(said.status.code(), Some(1));
    assert!(
        text(&said.stderr).contains("restart collect: cache changed"),
        "{}",
        text(&said.stderr)
    );
    let line = fs::read_to_string(&log).unwrap().lines().last().unwrap().to_owned();
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["changed"], "log.format,grace");
    assert_eq!(report()["outdated"], json!(["cache"]));
    node.configure("[collect]\nact = 3\n");
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    until("the refusal", || {
        fs::read_to_string(&log)
            .unwrap()
            .contains("the configuration is wrong; the one before goes on")
    });
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!node.path("/run/netwright/agent/collect.sock").exists());
    assert_eq!(ask("/readyz").as_deref(), Some("collect stopped\n"));
    assert_eq!(server.stop(), Some(0));
    assert!(!Path::new(&node.path("/run/netwright/agent/agent.sock")).exists());
}

/// As in a container, the kubelet replaces all files at once, and sends no signal.
#[test]
fn a_service_follows_its_configuration() {
    testkit::require!("root");
    let node = Node::new("agent-follow");
    let folder = node.path("/etc/netwright");
    let publish = |round: u32, content: &str| {
        let data = format!("..{round}");
        fs::create_dir(folder.join(&data)).unwrap();
        fs::write(folder.join(&data).join("netwrightd.toml"), content).unwrap();
        std::os::unix::fs::symlink(&data, folder.join("..data_tmp")).unwrap();
        fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    };
    let mount = || {
        std::os::unix::fs::symlink("..data/netwrightd.toml", node.path(node::FILE)).unwrap();
    };
    const SOUND: &str = "[repair]\nenable = true\ncache = [\"/var/lib/cni\"]\n";
    publish(0, SOUND);
    mount();
    let log = fs::File::create(node.lab.dir().join("log")).unwrap();
    let mut command = node.command(&["repair", "--confine", "--follow"]);
    let mut child = command.stderr(log).spawn().unwrap();
    let said = node.run(&["agent", "status", "--wait=90s"]);
    assert!(said.status.success(), "{}{}", text(&said.stdout), node.log());
    let report = || node::of(&node.agent_status(), "repair");
    let value = |key: &str| report()["values"][key].as_str().unwrap_or_default().to_owned();
    publish(1, &format!("{SOUND}interval = \"7s\"\n"));
    until("the interval", || value("interval") == "\"7s\"");
    assert_eq!(report()["reloads"], 1, "{}", node.log());
    // A key needs a restart: the process stays, and is as confined as before.
    let pid = u64::from(child.id());
    let confined =
        || ["CapEff", "CapBnd", "NoNewPrivs", "Seccomp"].map(|key| kernel_says(pid, key));
    let before = confined();
    publish(2, &SOUND.replace("/var/lib/cni\"", "/var/lib/cni\", \"/var/lib/other\""));
    until("the caches", || value("cache").contains("other"));
    until("it to be ready", || report()["state"] == "ready");
    assert_eq!((report()["pid"].as_u64(), report()["reloads"].as_u64()), (Some(pid), Some(0)));
    assert_eq!(confined(), before);
    assert_eq!(report()["unconfined"], json!([]));
    assert_eq!(value("interval"), "\"1m\"");
    // The file is wrong, and then missing.
    publish(3, "[repair]\nenable = true\ninterval = 3\n");
    until("the refusal", || {
        report()["missing"][0]["why"].as_str().is_some_and(|why| why.contains("netwrightd.toml:3:"))
    });
    for (flags, code) in [(&["repair"][..], 1), (&["--live", "repair"], 0)] {
        let said = node.run(&[&["agent", "status"], flags].concat());
        assert_eq!(said.status.code(), Some(code), "{}", text(&said.stdout));
    }
    fs::remove_file(node.path(node::FILE)).unwrap();
    until("the loss", || {
        let said = node.run(&["agent", "status", "repair"]);
        text(&said.stdout).contains("is gone; what was read before goes on")
    });
    mount();
    publish(4, SOUND);
    // A signal right after it has executed itself again would end it, as it ends any program.
    let is_anew = || report()["reloads"] == 0 && report()["state"] == "ready";
    until("it to be ready", || is_anew() && !value("cache").contains("other"));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{}", node.log());
}

/// Nothing is enabled only if a configuration says so.
#[test]
fn status_of_a_configuration_that_cannot_be_read_is_an_error() {
    testkit::require!("root");
    let node = Node::new("agent-unread");
    fs::create_dir_all(node.path("/etc/netwright")).unwrap();
    fs::write(node.path(node::FILE), "[routing\nenable = true\n").unwrap();
    for flags in [&[][..], &["-o", "json"]] {
        let said = node.run(&[&["agent", "status"], flags].concat());
        let (out, error) = (text(&said.stdout), text(&said.stderr));
        assert!(!said.status.success(), "{out}{error}");
        assert!(error.contains("netwrightd.toml:1:"), "{out}{error}");
        assert!(!out.contains("no service is enabled"), "{out}{error}");
    }
}

/// The services of a node are in containers, and the node has no configuration: its status says what
/// runs there, and misses what has died. What the container does not permit is no warning.
#[test]
fn a_node_whose_services_are_in_containers_says_what_runs_there() {
    testkit::require!("root", "program:setpriv");
    let node = Node::new("agent-contained");
    let file = "/etc/netwright/of-the-container.toml";
    fs::write(node.path(file), "[repair]\nenable = true\n").unwrap();
    let nothing = node.run(&["agent", "status"]);
    assert!(nothing.status.success(), "{}", text(&nothing.stdout));
    let log = fs::File::create(node.lab.dir().join("log")).unwrap();
    let mut command = node.lab.command("setpriv");
    command.args(["--bounding-set=-sys_resource,-setpcap", DAEMON, "repair"]);
    command.args(["--configuration", file, "--confine", "--follow"]);
    let mut child = command.stdin(Stdio::null()).stderr(log).spawn().unwrap();
    let status = || text(&node.run(&["agent", "status"]).stdout);
    until("it to be told", || status().starts_with("repair  ready since "));
    assert!(status().lines().next().unwrap().ends_with(" (in a container)"), "{}", status());
    assert!(!status().contains("less confined"), "{}", status());
    let report = node::of(&node.agent_status(), "repair");
    assert_eq!((&report["contained"], &report["enabled"]), (&json!(true), &json!(true)));
    let bounding = "cannot cut down the bounding set of capabilities: ";
    assert!(report["unconfined"].to_string().contains(bounding), "{report}");
    assert!(node.log().contains("confined by its container: "), "{}", node.log());
    assert!(!node.log().contains("WARN"), "{}", node.log());
    let reloaded = node.run(&["agent", "reload"]);
    assert!(reloaded.status.success(), "{}", text(&reloaded.stderr));
    child.kill().unwrap();
    child.wait().unwrap();
    let said = node.run(&["agent", "status"]);
    assert_eq!(said.status.code(), Some(1));
    let said = text(&said.stdout);
    assert!(said.starts_with("repair  stopped\n          why: no process answers"), "{said}");
}

/// A container's mount shows a folder that another package removed, even after the package has made
/// the folder anew. Only the program that starts the container can change that.
#[test]
fn a_service_ends_when_its_folder_of_plugins_was_removed() {
    testkit::require!("root");
    let node = Node::new("agent-removed");
    node.configure("[repair]\nenable = true\npath = [\"/opt/cni/bin\"]\n");
    node.lab.sh("mkdir -p /opt/cni/bin /run/node/bin && mount --bind /run/node/bin /opt/cni/bin");
    let log = fs::File::create(node.lab.dir().join("log")).unwrap();
    let mut command = node.command(&["repair", "--follow"]);
    let mut child = command.stderr(log).spawn().unwrap();
    let said = node.run(&["agent", "status", "--wait=90s"]);
    assert!(said.status.success(), "{}{}", text(&said.stdout), node.log());
    node.lab.sh("rmdir /run/node/bin && mkdir /run/node/bin");
    until("its end", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(0), "{}", node.log());
    assert!(node.log().contains("/opt/cni/bin was removed"), "{}", node.log());
}
