//! Asks nodes whether they answer: by the path that pods' packets take, and by their own addresses.
//!
//! A thread of its own asks, so that the loop does not wait for answers. Some nodes are enough: the
//! probes are to show whether this node is cut off.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use kernel::echo::{self, Question};
use routing::Path;
use routing::routing::{Answer, Target};

use super::answers::SharedRouting;
use super::context::Clock;
use crate::probe::{by_path, judge};

/// How many paths are asked at once.
const SOME: usize = 16;

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The pauses between questions: while no node has answered and that matters, and otherwise. Where
/// paths are native it does not matter: the network between the nodes may drop the questions and
/// nothing else.
const SOON: Duration = Duration::from_secs(5);
const LATER: Duration = Duration::from_secs(60);

/// Has the thread ask again.
#[derive(Debug, Clone)]
pub(super) struct Probes(mpsc::SyncSender<()>);

impl Probes {
    /// Starts the thread. It rings when nodes answer after a silence, and each time when no node
    /// has answered.
    pub(super) fn start(shared: SharedRouting, clock: Clock) -> std::io::Result<Self> {
        let (ask, asked) = mpsc::sync_channel(1);
        std::thread::Builder::new()
            .name("probes".to_owned())
            .spawn(move || work(&shared, clock, &asked))?;
        Ok(Probes(ask))
    }

    /// Something has changed.
    pub(super) fn ask(&self) {
        // If a request waits already, that one serves.
        let _ = self.0.try_send(());
    }
}

fn work(shared: &SharedRouting, clock: Clock, asked: &mpsc::Receiver<()>) {
    let (mut turn, mut answered) = (0, false);
    loop {
        let some = {
            let routing = shared.routing();
            let known = &*routing;
            next(&mut turn, move || known.targets())
        };
        let now = ask(shared, clock, &some);
        // While nodes answer as before, the loop need not wake up for it.
        let is_as_before = answered && now;
        answered = now && !some.is_empty();
        if !is_as_before {
            shared.ring();
        }
        // Changes that follow each other share one round of questions.
        let may_wait = now || some.iter().all(|target| target.by == Path::Native);
        match asked.recv_timeout(if may_wait { LATER } else { SOON }) {
            Ok(()) => std::thread::sleep(TIMEOUT / 10),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Returns the next of all, at most [`SOME`] and none twice, and notes where the next round begins.
/// The others, which may be thousands, are not put together.
fn next<I: Iterator>(turn: &mut usize, all: impl Fn() -> I) -> Vec<I::Item> {
    let mut some: Vec<I::Item> = all().skip(*turn).take(SOME).collect();
    if some.len() < SOME {
        // From the first on again.
        let more = (SOME - some.len()).min(*turn);
        some.extend(all().take(more));
        *turn = more;
    } else {
        *turn += SOME;
    }
    some
}

/// Asks, and passes the answers to routing. Says whether a node has answered by a path, or there is
/// no node to ask.
fn ask(shared: &SharedRouting, clock: Clock, targets: &[Target]) -> bool {
    if targets.is_empty() {
        return true;
    }
    let both = |target: &Target| [by_path(target, 0), Question::small(target.underlay)];
    let questions: Vec<Question> = targets.iter().flat_map(both).collect();
    let heard = match echo::ask_all_and_hear(&questions, TIMEOUT) {
        Ok(heard) => heard,
        Err(error) => {
            tracing::debug!(%error, "nodes cannot be asked");
            return false;
        }
    };
    let mut any = false;
    let (mut routing, now) = (shared.routing(), clock.now());
    for (target, pair) in targets.iter().zip(heard.chunks_exact(2)) {
        let probe = judge(target, pair[0], pair[1]);
        any |= probe.path == Answer::Yes;
        routing.probed(&target.peer, target.family, probe, now);
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_have_their_turn_one_after_the_other() {
        for count in [0, 1, 15, 16, 17, 32, 50] {
            let mut turn = 0;
            let asked: Vec<usize> = (0..100).flat_map(|_| next(&mut turn, || 0..count)).collect();
            let wanted: Vec<usize> = (0..count).cycle().take(asked.len()).collect();
            assert_eq!(asked, wanted, "{count}");
            assert_eq!(asked.len(), 100 * count.min(SOME));
        }
        // Most are gone.
        let mut turn = 48;
        assert_eq!(next(&mut turn, || 0..3), [0, 1, 2]);
        assert_eq!(next(&mut turn, || 0..3), [0, 1, 2]);
    }
}
