//! The services `repair` and `collect` start before any attachment, as at a boot.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use testkit::{Lab, Place as _, wait_until};

use super::Host;
use crate::docker::support::write_network;
use crate::system::NETWRIGHT;

const NET: &str = r#"{
  "cniVersion": "1.0.0", "name": "net",
  "plugins": [
    {"type": "bridge", "bridge": "net0", "isGateway": true, "ipMasq": true,
     "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
              "ranges": [[{"subnet": "10.76.0.0/24"}], [{"subnet": "fd76::/64"}]]}},
    {"type": "portmap", "capabilities": {"portMappings": true}},
    {"type": "firewall", "ingressPolicy": "same-bridge"},
    {"type": "tuning", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}
  ]
}"#;

fn start(host: &Host<'_>, name: &str) {
    host.lab.sh(&format!(
        "{NETWRIGHT} add net {name} --cap 'portMappings=[{{\"hostPort\":80{},\"containerPort\":80,\"protocol\":\"tcp\"}}]'",
        if name == "c1" { 81 } else { 82 }
    ));
}

#[test]
fn repair_works_within_its_unit() {
    const UNIT: &str = "netwrightd@repair.service";
    testkit::require!("root", "file:/lib/systemd/systemd");
    let lab = &Lab::with_systemd("unit-repair");
    let host = Host::new(lab);
    write_network(lab, "net", NET);
    host.enable("[repair]\nenable = true\ninterval = \"100ms\"\n");
    let c1 = lab.container("c1");
    start(&host, "c1");
    lab.sh("nft flush ruleset; sysctl -qw net.ipv4.ip_forward=0; rm /var/lib/cni/networks/net/10.76.0.2");
    c1.sh("ip route del default; sysctl -qw net.ipv4.conf.eth0.arp_filter=0; ip -6 addr flush dev eth0 scope global");
    wait_until("everything to be put back", || {
        lab.sh("nft list ruleset").contains("tcp . 8081")
            && lab.sh("sysctl -n net.ipv4.ip_forward").trim() == "1"
            && lab.try_sh("test -s /var/lib/cni/networks/net/10.76.0.2").status.success()
            && c1.sh("ip route").contains("default")
            && c1.sh("ip -6 addr show dev eth0").contains("fd76::2/")
            && c1.sh("sysctl -n net.ipv4.conf.eth0.arp_filter").trim() == "1"
    });
    lab.sh(&format!("{NETWRIGHT} check net c1"));
    let log = host.log(UNIT);
    assert!(!log.contains("CAP_NET_BROADCAST is missing"), "{log}");
    host.assert_confined(UNIT);
}

#[test]
fn collect_works_within_its_unit() {
    const UNIT: &str = "netwrightd@collect.service";
    testkit::require!("root", "file:/lib/systemd/systemd");
    let lab = &Lab::with_systemd("unit-collect");
    let host = Host::new(lab);
    write_network(lab, "net", NET);
    host.enable("[collect]\nenable = true\nact = true\ngrace = \"0s\"\ninterval = \"100ms\"\n");
    let (c1, c2) = (lab.container("c1"), lab.container("c2"));
    start(&host, "c1");
    start(&host, "c2");
    drop(c2);
    wait_until("what is left of it to go", || {
        !lab.sh("nft list ruleset").contains("tcp . 8082")
            && !lab.try_sh("test -e /var/lib/cni/networks/net/10.76.0.3").status.success()
            && lab.sh("ls /var/lib/cni/results").lines().count() == 1
            && lab.sh("ls /run/cni/tuning").lines().count() == 1
    });
    lab.sh(&format!("{NETWRIGHT} check net c1"));
    assert!(c1.sh("ip route").contains("default"));
    host.assert_confined(UNIT);
}

/// `WatchdogSec=`: systemd hears from the service's own loop.
#[test]
fn systemd_starts_a_service_again_that_does_not_go_on() {
    const UNIT: &str = "netwrightd@collect.service";
    testkit::require!("root", "file:/lib/systemd/systemd");
    let lab = &Lab::with_systemd("unit-watchdog");
    let host = Host::new(lab);
    host.edit(UNIT, "WatchdogSec=2\nTimeoutAbortSec=2");
    host.enable("[collect]\nenable = true\n");
    let show = |what: &str| {
        host.systemctl(&format!("show --property {what} --value {UNIT}")).trim().to_owned()
    };
    let pid = show("MainPID");
    // The service reads its configuration again and stays the same process, for longer than the
    // watchdog waits.
    host.systemctl(&format!("reload {UNIT}"));
    wait_until("the reload", || host.log(UNIT).contains("read the configuration again"));
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!((show("MainPID"), show("NRestarts").as_str()), (pid.clone(), "0"));
    lab.sh(&format!("kill -STOP {pid}"));
    wait_until("another process", || show("NRestarts") == "1" && show("ActiveState") == "active");
    assert_ne!(show("MainPID"), pid);
}

/// systemd starts the services that the configuration enables, and `netwrightd agent` talks to
/// systemd for them.
#[test]
fn systemd_starts_what_the_configuration_enables() {
    testkit::require!("root", "file:/lib/systemd/systemd");
    let lab = &Lab::with_systemd("unit-agent");
    let host = Host::new(lab);
    let agent = |words: &str| lab.try_sh(&format!("/opt/cni/bin/netwrightd agent {words}"));
    let active = || {
        let units =
            lab.sh("systemctl list-units --plain --no-legend --state=active 'netwrightd@*'");
        let units = units.lines().filter_map(|line| line.split_whitespace().next());
        units.map(|unit| unit.trim_start_matches("netwrightd@").to_owned()).collect::<Vec<_>>()
    };
    host.enable("[collect]\nenable = true\n[dhcp]\nenable = true\n");
    assert!(agent("status --wait").status.success(), "{}", host.said());
    assert_eq!(active(), ["collect.service", "dhcp.service", "dhcp.socket"]);
    let write = |text: &str| {
        fs::write(lab.path("/etc/netwright/netwrightd.toml"), text).unwrap();
    };
    let said = |words: &str| {
        let output = agent(words);
        let text = |octets: &[u8]| String::from_utf8_lossy(octets).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    assert_eq!(said("reload").0, Some(0), "{:?}", said("reload"));
    // One service starts, one stops, one continues.
    let pid = |unit: &str| host.systemctl(&format!("show --property MainPID --value {unit}"));
    let collect = pid("netwrightd@collect.service");
    write(
        "[agent]\nlisten = \"9470\"\n[collect]\nenable = true\ngrace = \"9s\"\n[repair]\nenable = true\n",
    );
    let want = "starts repair\nstops dhcp\ntells collect: grace\n";
    assert_eq!(said("reload"), (Some(0), want.to_owned(), String::new()));
    assert!(agent("status --wait").status.success(), "{}", host.said());
    assert_eq!(active(), ["agent.service", "collect.service", "repair.service"]);
    assert_eq!(pid("netwrightd@collect.service"), collect);
    let ready = || {
        let stream = lab.enter(|| TcpStream::connect("127.0.0.1:9470"));
        stream.and_then(|mut stream| {
            write!(stream, "GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n")?;
            let mut said = String::new();
            stream.read_to_string(&mut said)?;
            Ok(said.split_once("\r\n\r\n").map(|(_, said)| said.to_owned()))
        })
    };
    assert_eq!(ready().unwrap().as_deref(), Some("ok\n"));
    host.assert_confined("netwrightd@agent.service");
    // A wrong file changes nothing, whatever unit is started then.
    write("[repair]\nenable = 1\n");
    let (code, _, errors) = said("reload");
    assert_eq!(code, Some(78), "{errors}");
    host.systemctl("daemon-reload");
    host.systemctl("restart netwrightd@collect.service netwright.target");
    assert_eq!(active(), ["agent.service", "collect.service", "repair.service"]);
    let log = host.log("netwrightd@collect.service");
    assert!(log.contains("the configuration that was accepted last counts"), "{log}");
    // The service can write to a path that the configuration names.
    write("[collect]\nenable = true\n[dhcp]\nenable = true\nsocketpath = \"/run/other/d.sock\"\n");
    lab.sh("mkdir -p /run/other");
    assert_eq!(said("reload").0, Some(0), "{}", host.said());
    assert!(agent("status --wait").status.success(), "{}", host.said());
    assert!(ready().is_err());
    assert!(lab.path("/run/other/d.sock").exists() && !lab.path("/run/cni/dhcp.sock").exists());
    // A killed service starts again. The status names a stopped service, with the command that
    // starts it.
    host.systemctl("kill --signal KILL netwrightd@collect.service");
    assert!(agent("status --wait").status.success(), "{}", host.said());
    host.systemctl("stop netwrightd@collect.service");
    let (code, text, _) = said("status");
    assert_eq!(code, Some(1));
    assert!(text.contains("hint: systemctl start netwright.target"), "{text}");
    host.systemctl("stop netwright.target");
    wait_until("everything to stop", || active().is_empty());
}
