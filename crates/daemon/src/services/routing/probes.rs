//! Asks nodes whether they answer: by the path that pods' packets take, and by their own addresses.
//!
//! A thread of its own asks, so that the loop waits for nobody. Some nodes are enough: what is to be
//! found out is whether this node is cut off.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use kernel::echo::{self, Question};
use routing::Path;
use routing::routing::{Answer, Target};

use super::Clock;
use super::answers::Shared;
use crate::routes_probe::{by_path, judge};

/// How many paths are asked at once.
const SOME: usize = 16;

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The pauses between questions: while nobody has answered and that matters, and else. Where paths
/// are native it does not: the network between the nodes may drop the questions and nothing else.
const SOON: Duration = Duration::from_secs(5);
const LATER: Duration = Duration::from_secs(60);

/// Has the thread ask again.
#[derive(Debug, Clone)]
pub(super) struct Probes(mpsc::SyncSender<()>);

impl Probes {
    /// Starts the thread. It rings when others have answered, and each time when nobody has.
    pub(super) fn start(shared: Shared, clock: Clock) -> std::io::Result<Self> {
        let (ask, asked) = mpsc::sync_channel(1);
        std::thread::Builder::new()
            .name("probes".to_owned())
            .spawn(move || work(&shared, clock, &asked))?;
        Ok(Probes(ask))
    }

    /// Something has changed.
    pub(super) fn ask(&self) {
        // If one question waits already, it is this one.
        let _ = self.0.try_send(());
    }
}

fn work(shared: &Shared, clock: Clock, asked: &mpsc::Receiver<()>) {
    let (mut turn, mut answered) = (0, false);
    loop {
        let some = {
            let routing = shared.routing();
            let known = &*routing;
            next(&mut turn, move || known.targets())
        };
        let now = ask(shared, clock, &some);
        // While somebody answers as before, the loop need not wake up for it.
        let is_as_before = answered && now;
        answered = now && !some.is_empty();
        if !is_as_before {
            shared.ring();
        }
        // What follows a change is looked at together.
        let may_wait = now || some.iter().all(|target| target.by == Path::Native);
        match asked.recv_timeout(if may_wait { LATER } else { SOON }) {
            Ok(()) => std::thread::sleep(TIMEOUT / 10),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Returns the next of all, at most [`SOME`] and none twice, and takes note of whose turn it is then.
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

/// Asks, and tells routing. Says whether anybody has answered by a path, or there is nobody to ask.
fn ask(shared: &Shared, clock: Clock, targets: &[Target]) -> bool {
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
