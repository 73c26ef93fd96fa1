//! What `netwrightd routes probe` finds out of the paths to other nodes.
//!
//! It asks by itself, so that the service waits for nobody. What it asks is an address that every
//! node has on its tunnel, a flanneld's too.

use std::io;
use std::time::Duration;

use kernel::echo::{self, Echo, Question};
use routing::Path;
use routing::routing::{Answer, Probe, Target};
use serde::Serialize;

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The smallest packet that every link carries (RFC 791 §3.2); IPv6's is larger.
const SMALLEST: u32 = 68;

/// How exactly the largest packet is found, in bytes.
const EXACTLY: u32 = 4;

/// A port at which nobody listens: the first that `traceroute` uses.
const CLOSED: u16 = 33_434;

/// A path, and what was found out about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Probed {
    /// The path.
    target: Target,
    /// What was found out.
    probe: Probe,
    /// UDP without a checksum arrives, and with one it does not.
    checksum_fault: bool,
}

/// Asks by all of these paths.
pub(crate) fn probe(targets: Vec<Target>) -> io::Result<Vec<Probed>> {
    let mut all = Vec::new();
    // Two questions each at first.
    for some in targets.chunks(echo::AT_ONCE / 2) {
        all.extend(probe_some(some)?);
    }
    Ok(all)
}

fn probe_some(targets: &[Target]) -> io::Result<Vec<Probed>> {
    let both = targets.iter().flat_map(|target| [target.path, target.underlay]);
    let questions: Vec<Question> = both.map(Question::small).collect();
    let answers = echo::ask_all(&questions, TIMEOUT)?;
    let mut probed: Vec<Probed> = targets
        .iter()
        .zip(answers.chunks_exact(2))
        .map(|(target, pair)| {
            let rtt_us = match pair[0] {
                Echo::Answered(after) => u32::try_from(after.as_micros()).ok(),
                _ => None,
            };
            let (path, underlay) = (answer(pair[0]), answer(pair[1]));
            let probe = Probe { path, underlay, rtt_us, mtu: None, udp: None };
            Probed { target: target.clone(), probe, checksum_fault: false }
        })
        .collect();
    let mut alive: Vec<&mut Probed> =
        probed.iter_mut().filter(|one| one.probe.path == Answer::Yes).collect();
    measure(&mut alive)?;
    ask_udp(&mut alive)?;
    Ok(probed)
}

fn answer(echo: Echo) -> Answer {
    match echo {
        Echo::Answered(_) => Answer::Yes,
        Echo::Silent => Answer::No,
        Echo::Filtered => Answer::Filtered,
    }
}

/// Finds the largest packet that arrives, up to what is said to fit.
fn measure(alive: &mut [&mut Probed]) -> io::Result<()> {
    // What arrives, and the smallest that does not; at first what is said to fit is tried.
    let said = |one: &Probed| one.target.mtu.unwrap_or(SMALLEST);
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
                Question { address: alive[*number].target.path, size }
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
fn ask_udp(alive: &mut [&mut Probed]) -> io::Result<()> {
    let ask = |of: &[&mut Probed], with_checksum| {
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

impl Probed {
    /// Says what is wrong.
    pub(crate) fn fault(&self) -> Option<String> {
        let Target { underlay, mtu, by, .. } = &self.target;
        match (self.probe.path, self.probe.underlay) {
            (Answer::Yes, _) => {}
            (Answer::Filtered, _) => {
                return Some("this host does not let questions out".to_owned());
            }
            (_, Answer::Yes) if matches!(by, Path::Vxlan { .. }) => {
                return Some(format!(
                    "{underlay} answers, and nothing by the tunnel: something in between may drop \
                     its packets"
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
    use routing::Family;

    use super::*;

    fn probed(path: Answer, underlay: Answer, mtu: Option<u32>, udp: Option<bool>) -> Probed {
        Probed {
            target: Target {
                peer: "b".to_owned(),
                family: Family::V4,
                by: Path::Vxlan { underlay: Family::V4 },
                path: "10.244.2.0".parse().unwrap(),
                underlay: "192.0.2.2".parse().unwrap(),
                mtu: Some(1450),
            },
            probe: Probe { path, underlay, rtt_us: None, mtu, udp },
            checksum_fault: false,
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
                Probed { checksum_fault: true, ..probed(yes, yes, Some(1450), Some(false)) },
                "tx-checksum-ip-generic off",
            ),
        ] {
            assert!(one.fault().is_some_and(|fault| fault.contains(words)), "{one:?}");
        }
    }
}
