//! What `netwrightd routes probe` finds out of the paths to other nodes.
//!
//! The command itself asks the nodes, so that the service does not wait. It asks an address that
//! every node has on its tunnel, a flanneld's too. Where paths are native, that is the address of
//! the pods' gateway: a node without pods does not have it, and says so.

use std::io;
use std::time::Duration;

use kernel::echo::{self, Echo, EchoAnswer, Question};
use routing::routing::{Answer, Probe, Target};
use routing::{IpFamily, Path};
use serde::Serialize;

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The smallest packet that every link carries (RFC 791 §3.2); IPv6's is larger.
const SMALLEST: u32 = 68;

/// How exactly the largest packet is found, in bytes.
const EXACTLY: u32 = 4;

/// A port at which no process listens: the first that `traceroute` uses.
const CLOSED: u16 = 33_434;

/// A path, and what was found out about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ProbeReport {
    /// The path.
    target: Target,
    /// What was found out.
    probe: Probe,
    /// UDP without a checksum arrives, and with one it does not.
    checksum_fault: bool,
}

/// Asks by all of these paths.
pub(crate) fn probe(targets: Vec<Target>) -> io::Result<Vec<ProbeReport>> {
    let mut all = Vec::new();
    // Two questions each at first.
    for some in targets.chunks(echo::AT_ONCE / 2) {
        all.extend(probe_some(some)?);
    }
    Ok(all)
}

fn probe_some(targets: &[Target]) -> io::Result<Vec<ProbeReport>> {
    let both = |target: &Target| [by_path(target, 0), Question::small(target.underlay)];
    let questions: Vec<Question> = targets.iter().flat_map(both).collect();
    let heard = echo::ask_all_and_hear(&questions, TIMEOUT)?;
    let mut probed: Vec<ProbeReport> = targets
        .iter()
        .zip(heard.chunks_exact(2))
        .map(|(target, pair)| {
            let probe = judge(target, pair[0], pair[1]);
            ProbeReport { target: target.clone(), probe, checksum_fault: false }
        })
        .collect();
    // An address that has answered can be asked more.
    let mut alive: Vec<&mut ProbeReport> =
        probed.iter_mut().filter(|one| one.probe.rtt_us.is_some()).collect();
    measure(&mut alive)?;
    ask_udp(&mut alive)?;
    Ok(probed)
}

/// Returns a question of a size by the path of pods' packets.
///
/// The IPv6 address of a node on its tunnel is the first of its prefix. That is the anycast address
/// of all links with the prefix, such as the bridge of its pods. The node answers a question that
/// comes by the tunnel from that address, as the tunnel has no other. It may answer a question that
/// comes without a tunnel from the address of the link to this node.
pub(crate) fn by_path(target: &Target, size: u32) -> Question {
    let from_any = target.by == Path::Direct && target.family == IpFamily::V6;
    Question { address: target.path, size, from_any }
}

/// Says what two questions have shown: one by the path of pods' packets, one to the node's own
/// address.
///
/// Where the network between the nodes routes pods' packets, the first question has arrived also if
/// the node itself answers that it has no such address.
pub(crate) fn judge(target: &Target, path: EchoAnswer, underlay: EchoAnswer) -> Probe {
    let answer = |echo: Echo| match echo {
        Echo::Answered(_) => Answer::Yes,
        Echo::Silent => Answer::No,
        Echo::Filtered => Answer::Filtered,
    };
    let rtt_us = match path.echo {
        Echo::Answered(after) => Some(u32::try_from(after.as_micros()).unwrap_or(u32::MAX)),
        _ => None,
    };
    let has_arrived = target.by == Path::Native && path.undelivered_by == Some(target.underlay);
    let path = if has_arrived { Answer::Yes } else { answer(path.echo) };
    Probe { path, underlay: answer(underlay.echo), rtt_us, mtu: None, udp: None }
}

/// Finds the largest packet that arrives, up to the size that is to fit.
fn measure(alive: &mut [&mut ProbeReport]) -> io::Result<()> {
    // The largest size that arrives, and the smallest that does not. The first question has the
    // size that is to fit.
    let said = |one: &ProbeReport| one.target.mtu.unwrap_or(SMALLEST);
    let mut between: Vec<(u32, u32)> = alive.iter().map(|one| (SMALLEST, said(one) + 1)).collect();
    let mut is_first = true;
    loop {
        let open: Vec<usize> = (0..alive.len())
            .filter(|number| {
                let (fits, too_large) = between[*number];
                fits + 1 < too_large && (is_first || EXACTLY < too_large - fits)
            })
            .collect();
        if open.is_empty() {
            break;
        }
        let questions: Vec<Question> = open
            .iter()
            .map(|number| {
                let (fits, too_large) = between[*number];
                let size = if is_first { too_large - 1 } else { fits.midpoint(too_large) };
                by_path(&alive[*number].target, size)
            })
            .collect();
        let answers = echo::ask_all(&questions, TIMEOUT)?;
        for ((number, question), answer) in open.iter().zip(&questions).zip(answers) {
            let (fits, too_large) = &mut between[*number];
            match answer {
                Echo::Answered(_) => *fits = question.size,
                _ => *too_large = question.size,
            }
        }
        is_first = false;
    }
    for (one, (fits, _)) in alive.iter_mut().zip(between) {
        one.probe.mtu = Some(fits);
    }
    Ok(())
}

/// Finds out whether UDP with a checksum arrives, and if not, whether it does without one.
fn ask_udp(alive: &mut [&mut ProbeReport]) -> io::Result<()> {
    let ask = |of: &[&mut ProbeReport], with_checksum| {
        let addresses: Vec<_> = of.iter().map(|one| one.target.path).collect();
        echo::ask_closed_ports(&addresses, CLOSED, with_checksum, TIMEOUT)
    };
    let answered = ask(alive, true)?;
    for (one, answered) in alive.iter_mut().zip(&answered) {
        one.probe.udp = Some(*answered);
    }
    if answered.iter().all(|answered| *answered) {
        return Ok(());
    }
    let without = ask(alive, false)?;
    for (one, without) in alive.iter_mut().zip(without) {
        one.checksum_fault = without && one.probe.udp == Some(false);
    }
    Ok(())
}

impl ProbeReport {
    /// Says what is wrong.
    pub(crate) fn fault(&self) -> Option<String> {
        let Target { path, underlay, mtu, by, .. } = &self.target;
        match (self.probe.path, self.probe.underlay) {
            (Answer::Yes, _) => {}
            (Answer::Filtered, _) => {
                return Some("this host does not let questions out".to_owned());
            }
            (_, Answer::Yes) if by.is_tunnel() => {
                return Some(format!(
                    "{underlay} answers, and nothing by the tunnel: something in between may drop \
                     its packets"
                ));
            }
            (_, Answer::Yes) if *by == Path::Native => {
                return Some(format!(
                    "{underlay} answers, and {path} does not: does the network have a route to the \
                     node's prefix?"
                ));
            }
            (_, Answer::Yes) if *by == Path::Direct => {
                return Some(format!(
                    "{underlay} answers, and {path} does not: the network may drop packets with \
                     pods' addresses; set path to \"vxlan\""
                ));
            }
            (_, Answer::Yes) => {
                return Some(format!("{underlay} answers, and no pod's address"));
            }
            _ => return Some("nothing of the node answers".to_owned()),
        }
        if let (Some(said), Some(fits)) = (*mtu, self.probe.mtu)
            && fits < said
        {
            return Some(format!("{said} bytes are said to fit, and {fits} do: set its mtu"));
        }
        if self.checksum_fault {
            return Some(
                "UDP with a checksum gets lost: switch the tunnel's tx-checksum-ip-generic off \
                 (ethtool -K)"
                    .to_owned(),
            );
        }
        (self.probe.udp == Some(false))
            .then(|| "UDP is not answered: a packet filter may drop it".to_owned())
    }

    /// Returns the cells of its line.
    pub(crate) fn cells(&self) -> [String; 7] {
        let nothing = || "-".to_owned();
        let Probe { rtt_us, mtu, udp, .. } = self.probe;
        let millis = |us: u32| format!("{}.{:02} ms", us / 1000, us % 1000 / 10);
        let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        [
            self.target.peer.clone(),
            self.target.by.to_string(),
            self.target.path.to_string(),
            rtt_us.map_or_else(nothing, millis),
            mtu.map_or_else(nothing, |mtu| mtu.to_string()),
            udp.map_or_else(nothing, yes),
            self.fault().unwrap_or_else(|| "sound".to_owned()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use routing::path::BackendId;

    use super::*;

    fn probed(path: Answer, underlay: Answer, mtu: Option<u32>, udp: Option<bool>) -> ProbeReport {
        ProbeReport {
            target: Target {
                peer: "b".to_owned(),
                family: IpFamily::V4,
                by: Path::Tunnel { backend: BackendId::Vxlan, underlay: IpFamily::V4 },
                path: "10.244.2.0".parse().unwrap(),
                underlay: "192.0.2.2".parse().unwrap(),
                mtu: Some(1450),
            },
            probe: Probe { path, underlay, rtt_us: None, mtu, udp },
            checksum_fault: false,
        }
    }

    #[test]
    fn a_node_that_says_it_has_no_such_address_was_reached() {
        let heard = |echo, by: Option<&str>| EchoAnswer {
            echo,
            undelivered_by: by.map(|by| by.parse().unwrap()),
        };
        let mut target = probed(Answer::No, Answer::No, None, None).target;
        let answered = Echo::Answered(Duration::from_micros(7));
        let own = heard(answered, None);
        for (by, path, expected) in [
            (Path::Native, heard(Echo::Silent, Some("192.0.2.2")), Answer::Yes),
            (Path::Native, heard(Echo::Silent, Some("192.0.2.1")), Answer::No),
            (Path::Native, heard(Echo::Silent, None), Answer::No),
            (Path::Native, heard(answered, None), Answer::Yes),
            (Path::Direct, heard(Echo::Silent, Some("192.0.2.2")), Answer::No),
        ] {
            target.by = by;
            let probe = judge(&target, path, own);
            assert_eq!((probe.path, probe.underlay), (expected, Answer::Yes), "{by} {path:?}");
            let took = matches!(path.echo, Echo::Answered(_)).then_some(7);
            assert_eq!(probe.rtt_us, took, "{by} {path:?}");
        }
        target.by = Path::Native;
        let probe = judge(&target, heard(Echo::Silent, Some("192.0.2.1")), own);
        let fault = ProbeReport { target, probe, checksum_fault: false }.fault().unwrap();
        assert!(fault.contains("does the network have a route"), "{fault}");
    }

    #[test]
    fn only_without_a_tunnel_and_in_ipv6_any_address_may_answer() {
        let mut target = probed(Answer::No, Answer::No, None, None).target;
        for (by, family, from_any) in [
            (Path::Direct, IpFamily::V6, true),
            (Path::Direct, IpFamily::V4, false),
            (
                Path::Tunnel { backend: BackendId::Vxlan, underlay: IpFamily::V6 },
                IpFamily::V6,
                false,
            ),
            (Path::Native, IpFamily::V6, false),
        ] {
            (target.by, target.family) = (by, family);
            let question = Question { address: target.path, size: 1400, from_any };
            assert_eq!(by_path(&target, 1400), question, "{by} {family}");
        }
    }

    #[test]
    fn a_fault_is_told_with_its_remedy() {
        let (yes, no) = (Answer::Yes, Answer::No);
        let sound = probed(yes, yes, Some(1450), Some(true));
        assert_eq!(sound.fault(), None);
        for (one, words) in [
            (probed(no, yes, None, None), "192.0.2.2 answers, and nothing by the tunnel"),
            (probed(no, no, None, None), "nothing of the node answers"),
            (probed(Answer::Filtered, no, None, None), "this host does not let"),
            (probed(yes, no, Some(1400), Some(true)), "1450 bytes are said to fit, and 1400 do"),
            (probed(yes, yes, Some(1450), Some(false)), "a packet filter may drop it"),
            (
                ProbeReport { checksum_fault: true, ..probed(yes, yes, Some(1450), Some(false)) },
                "tx-checksum-ip-generic off",
            ),
        ] {
            assert!(one.fault().is_some_and(|fault| fault.contains(words)), "{one:?}");
        }
        // As with AWS's source/destination check.
        let mut direct = probed(no, yes, None, None);
        direct.target.by = Path::Direct;
        let fault = direct.fault().unwrap();
        assert!(fault.starts_with("192.0.2.2 answers, and 10.244.2.0 does not: "), "{fault}");
    }
}
