//! Asks the daemon of Open vSwitch what becomes of what a container sends (`ofproto/trace`, `man 8
//! ovs-vswitchd`). The daemon follows its flows with a packet in words; no packet is sent.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use diagnose::model::{Attachment, Namespace, Scene, SwitchDrop};
use ovsdb::{Client, Limits, Remote};

/// How long the daemon has to answer all questions.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How many attachments it is asked about.
const ASKED: usize = 64;
/// How many bytes its answer to one question may have; mostly it is a few KiB long.
const ANSWER: usize = 256 * 1024;

/// Where the daemon of a network's bridge has its control socket.
#[derive(Debug)]
pub(super) struct Switch {
    pub(super) network: String,
    pub(super) bridge: String,
    /// The folder of the database's socket.
    pub(super) folder: PathBuf,
}

/// Adds what the switches drop of each container that was read. Of a daemon that does not answer
/// nothing is known.
pub(super) fn look(scene: &mut Scene, switches: &[Switch]) {
    let until = Instant::now() + TIMEOUT;
    let mut left = ASKED;
    for switch in switches {
        let Some(mut daemon) = daemon(&switch.folder, until) else { continue };
        let host = &scene.host;
        let read = scene.containers.iter_mut().filter(|container| container.inside.is_some());
        let attachments = read.flat_map(|container| &mut container.attachments);
        for attachment in attachments.filter(|one| one.network == switch.network).take(left) {
            left -= 1;
            attachment.switch_drops = drops(&mut daemon, switch, attachment, host, until);
        }
    }
}

/// Connects to the daemon that runs; files of daemons that were killed may be left beside.
fn daemon(folder: &Path, until: Instant) -> Option<Client> {
    let entries = std::fs::read_dir(folder).ok()?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let is_control = |name: &String| name.starts_with("ovs-vswitchd.") && name.ends_with(".ctl");
    let mut found = names.filter(is_control).filter_map(|name| {
        let limits = Limits { message_bytes: ANSWER, ..Limits::default() };
        Client::connect(&Remote::Unix(folder.join(name)), limits, until).ok()
    });
    found.next()
}

/// Returns the first packet that is dropped of each IP version.
fn drops(
    daemon: &mut Client,
    switch: &Switch,
    attachment: &Attachment,
    host: &Namespace,
    until: Instant,
) -> Vec<SwitchDrop> {
    let Some((port, mac)) = attachment.host_links.first().zip(attachment.mac.as_ref()) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for gateway in &attachment.gateways {
        let own = attachment.addresses.iter().map(ipnet::IpNet::addr);
        let Some(own) = own.into_iter().find(|own| own.is_ipv4() == gateway.is_ipv4()) else {
            continue;
        };
        let asks = (
            format!("a request for the hardware address of {gateway}"),
            asks_for(own, *gateway, mac),
        );
        let owner = host.owner_of(*gateway).and_then(|link| link.mac.as_ref());
        let sends =
            owner.map(|to| (format!("packets for {gateway}"), echo(own, *gateway, mac, to)));
        let dropped = [Some(asks), sends].into_iter().flatten().find_map(|(packet, flow)| {
            let flow = format!("in_port={port},{flow}");
            let said = daemon.command("ofproto/trace", &[&switch.bridge, &flow], until).ok()?;
            Some((packet, dropped_by(&said)?))
        });
        found.extend(dropped.map(|(packet, flow)| SwitchDrop {
            bridge: switch.bridge.clone(),
            packet,
            to: Some(*gateway),
            flow,
        }));
    }
    found
}

/// The question who has an address (ARP, neighbour solicitation), as `man 7 ovs-fields` writes it.
fn asks_for(own: IpAddr, to: IpAddr, mac: &str) -> String {
    match to {
        IpAddr::V4(_) => format!(
            "arp,dl_src={mac},dl_dst=ff:ff:ff:ff:ff:ff,arp_op=1,arp_spa={own},arp_tpa={to},arp_sha={mac}"
        ),
        IpAddr::V6(address) => {
            let [.., one, two, three] = address.octets();
            // RFC 4291 §2.7.1, RFC 2464 §7.
            let group = Ipv6Addr::new(
                0xff02,
                0,
                0,
                0,
                0,
                1,
                0xff00 | u16::from(one),
                u16::from_be_bytes([two, three]),
            );
            format!(
                "icmp6,dl_src={mac},dl_dst=33:33:ff:{one:02x}:{two:02x}:{three:02x},ipv6_src={own},ipv6_dst={group},\
                 nw_ttl=255,icmp_type=135,icmp_code=0,nd_target={to},nd_sll={mac}"
            )
        }
    }
}

/// An echo request to the owner of an address.
fn echo(own: IpAddr, to: IpAddr, mac: &str, owner: &str) -> String {
    let mut flow = format!("dl_src={mac},dl_dst={owner},nw_ttl=64,");
    let _ = match to {
        IpAddr::V4(_) => write!(flow, "icmp,nw_src={own},nw_dst={to},icmp_type=8,icmp_code=0"),
        IpAddr::V6(_) => {
            write!(flow, "icmp6,ipv6_src={own},ipv6_dst={to},icmp_type=128,icmp_code=0")
        }
    };
    flow
}

/// Returns the table and the flow that decide, if a packet is dropped.
fn dropped_by(said: &str) -> Option<String> {
    let actions = said.lines().find_map(|line| line.trim().strip_prefix("Datapath actions: "))?;
    if actions.trim() != "drop" {
        return None;
    }
    let mut flow = None;
    let mut why = None;
    for line in said.lines().map(str::trim) {
        if let Some((table, rest)) = line.split_once(". ")
            && table.bytes().all(|byte| byte.is_ascii_digit())
            && !table.is_empty()
        {
            let rest = rest.trim_end_matches('.');
            let rest = if rest == "No match" { "no flow matches" } else { rest };
            (flow, why) = (Some(format!("table {table}: {rest}")), None);
        } else if let Some(reason) = line.strip_prefix("-> ").or_else(|| line.strip_prefix(">>>> "))
        {
            why = Some(reason.to_owned());
        }
    }
    let flow = flow?;
    Some(match why {
        Some(why) => format!("{flow} ({why})"),
        None => flow,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_FLOW: &str = "Flow: arp,in_port=1\n\nbridge(\"br-int\")\n----------------\n 0. No match.\n    \
                           drop\n\nFinal flow: unchanged\nMegaflow: recirc_id=0\nDatapath actions: drop\n";

    #[test]
    fn the_flow_that_drops_is_read() {
        assert_eq!(dropped_by(NO_FLOW).as_deref(), Some("table 0: no flow matches"));
        let passed = NO_FLOW.replace("actions: drop", "actions: 2,3");
        assert_eq!(dropped_by(&passed), None);
        let normal = "bridge(\"br0\")\n---\n 0. priority 0\n    NORMAL\n     -> no learned MAC for destination, flooding\n\
                      Datapath actions: drop\n";
        let words = "table 0: priority 0 (no learned MAC for destination, flooding)";
        assert_eq!(dropped_by(normal).as_deref(), Some(words));
        let later = "bridge(\"br0\")\n 0. priority 0\n    resubmit(,10)\n10. arp, priority 5\n    drop\n\
                     Datapath actions: drop\n";
        assert_eq!(dropped_by(later).as_deref(), Some("table 10: arp, priority 5"));
        for nonsense in ["", "Datapath actions: drop", ". \nDatapath actions: drop"] {
            assert_eq!(dropped_by(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn questions_are_written_as_flows() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(
            asks_for(ip("fd00::2"), ip("fd00::a:b:1"), "02:00:00:00:00:02"),
            "icmp6,dl_src=02:00:00:00:00:02,dl_dst=33:33:ff:0b:00:01,ipv6_src=fd00::2,\
             ipv6_dst=ff02::1:ff0b:1,nw_ttl=255,icmp_type=135,icmp_code=0,nd_target=fd00::a:b:1,\
             nd_sll=02:00:00:00:00:02"
        );
        assert!(
            echo(ip("10.0.0.2"), ip("10.0.0.1"), "a", "b")
                .starts_with("dl_src=a,dl_dst=b,nw_ttl=64,icmp,")
        );
    }
}
