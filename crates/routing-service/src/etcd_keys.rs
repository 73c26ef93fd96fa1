//! Follows the keys of etcd that begin with a prefix: lists them, watches them, and lists them again
//! if what was missed cannot be asked for.
//!
//! After a silence of etcd there is first a linearizable read, and then the watch at the same
//! member: a member without a leader accepts a watch but learns of nothing. While the watch reports
//! nothing, the read is repeated every ten seconds. An answer with a lower revision or term, or
//! from another cluster, means that etcd was restored or made again, and everything is listed
//! again. Less than five seconds without an answer are no silence, because one of three members may
//! die.

use std::cell::Cell;
use std::convert::Infallible;
use std::pin::pin;
use std::time::{Duration, Instant};

use cluster_client::etcd::{Etcd, EtcdError, Pair, RangeAnswer, bytes, number};
use futures_util::future::{Either, select};
use routing::flannel::turns::spread;
use serde_json::json;
use service_kit::outlet::Silence;
use tokio::sync::Notify;

/// How often the member is asked whether it has a leader while the watch reports nothing.
const PROBE: Duration = Duration::from_secs(10);
/// How long a watch may report nothing before it counts as broken: etcd says every ten minutes that
/// it goes on.
const DEAF: Duration = Duration::from_secs(25 * 60);
/// How long etcd may not answer before it counts as silent: one member may die in a moment.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after the first attempt to list and watch. It is doubled each time, and is up to half as
/// long again, by chance.
const PAUSE: Duration = Duration::from_millis(200);
/// The longest pause while etcd has been silent for less than [`LASTING`], and after that. A node may
/// have to make its lease anew when etcd is back, and is to be right within five seconds.
const MOST: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(2));
const LASTING: Duration = Duration::from_secs(30);

/// What is heard of the keys.
#[derive(Debug)]
pub(super) enum KeysEvent {
    /// These are all, at this revision.
    Listed(Vec<Pair>, u64),
    Changed(Pair),
    /// A key was deleted, or has expired; the pair has no value.
    Deleted(Pair),
    /// etcd does not answer: the reason.
    Silent(String),
    /// It answers again, and nothing has changed.
    Answers,
    /// What the key that is asked for has by now.
    Probed(Option<String>),
}

/// Which keys are followed.
#[derive(Debug)]
pub(super) struct Keys<'e> {
    pub(super) etcd: &'e Etcd,
    pub(super) prefix: String,
    /// The key that is asked for while nothing is reported. A member that answers has a leader, and
    /// its answer says how far etcd is.
    pub(super) probed: String,
    /// The writer of this node's lease raises it when etcd does not have what was reported: all keys
    /// are listed again then.
    pub(super) doubt: Option<&'e Doubt>,
}

/// A doubt whether what was reported is what etcd has.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    is_raised: Cell<bool>,
    bell: Notify,
}

impl Doubt {
    /// Has all keys listed again soon.
    pub(super) fn raise(&self) {
        self.is_raised.set(true);
        self.bell.notify_one();
    }
}

/// What was passed on, and how far.
#[derive(Debug)]
struct Progress {
    /// The revision up to which everything was passed on; `None` before the first list.
    revision: Option<u64>,
    /// The cluster that this was, and how many leaders it had had.
    cluster: String,
    term: u64,
    /// Since when there is no answer.
    failing: Option<Instant>,
    /// Which reasons of that silence were passed on.
    silence: Silence,
    pause: Duration,
}

/// Why following ended.
enum FollowError {
    /// What was missed cannot be asked for: a list is needed.
    Missed,
    Error(EtcdError),
}

impl From<EtcdError> for FollowError {
    fn from(error: EtcdError) -> Self {
        FollowError::Error(error)
    }
}

impl Keys<'_> {
    /// Passes on what etcd has, and every change, for ever.
    pub(super) async fn follow(&self, tell: impl Fn(KeysEvent)) {
        let mut told = Progress {
            revision: None,
            cluster: String::new(),
            term: 0,
            failing: None,
            silence: Silence::default(),
            pause: PAUSE,
        };
        loop {
            let Err(broken) = self.follow_once(&mut told, &tell).await;
            match broken {
                FollowError::Missed => told.revision = None,
                FollowError::Error(error) => {
                    let since = *told.failing.get_or_insert_with(Instant::now);
                    if TIMEOUT <= since.elapsed() {
                        let why = error.to_string();
                        if told.silence.is_news(&why) {
                            tell(KeysEvent::Silent(why));
                        }
                    }
                }
            }
            tokio::time::sleep(spread(told.pause, service_kit::clock::seed())).await;
            let lasts = told.failing.is_some_and(|since| LASTING <= since.elapsed());
            told.pause = (told.pause * 2).min(if lasts { MOST.1 } else { MOST.0 });
        }
    }

    /// Lists if needed, and watches until something breaks.
    async fn follow_once(
        &self,
        told: &mut Progress,
        tell: &impl Fn(KeysEvent),
    ) -> Result<Infallible, FollowError> {
        if self.is_doubted() {
            told.revision = None;
        }
        let revision = match told.revision {
            Some(revision) => revision,
            None => {
                let (all, revision) = self.etcd.list(&self.prefix).await?;
                tell(KeysEvent::Listed(all, revision));
                (told.revision, told.cluster, told.term) = (Some(revision), String::new(), 0);
                told.failing = None;
                told.silence.end();
                revision
            }
        };
        let place = self.etcd.preferred();
        // A member that has no leader accepts a watch too, and then reports nothing.
        self.probe(place, told, tell).await?;
        let from = revision.saturating_add(1);
        let mut watch = self.etcd.watch(place, &self.prefix, from).await?;
        let mut heard = Instant::now();
        loop {
            let report = {
                let (next, doubt) = (pin!(watch.next()), pin!(self.doubt()));
                match tokio::time::timeout(PROBE, select(next, doubt)).await {
                    Ok(Either::Left((report, _))) => Some(report),
                    Ok(Either::Right(_)) | Err(_) => None,
                }
            };
            if self.is_doubted() {
                return Err(FollowError::Missed);
            }
            let Some(report) = report else {
                self.probe(watch.place(), told, tell).await?;
                if DEAF <= heard.elapsed() {
                    let why = "the watch reports nothing".to_owned();
                    return Err(FollowError::Error(EtcdError::Away(why)));
                }
                continue;
            };
            let report = report?;
            heard = Instant::now();
            if report.compact_revision.is_some() {
                return Err(FollowError::Missed);
            }
            if report.canceled {
                let why = report.reason().to_owned();
                return Err(FollowError::Error(EtcdError::Away(why)));
            }
            (told.failing, told.pause) = (None, PAUSE);
            if report.created {
                if told.silence.end() {
                    tell(KeysEvent::Answers);
                }
                continue;
            }
            // While it catches up, the header is ahead of the events.
            let revisions = report.events.iter().map(|event| number(&event.kv.mod_revision));
            let last = revisions.max().unwrap_or_else(|| number(&report.header.revision));
            for event in report.events {
                tell(match event.is_deletion() {
                    true => KeysEvent::Deleted(event.kv),
                    false => KeysEvent::Changed(event.kv),
                });
            }
            told.revision = told.revision.max(Some(last));
        }
    }

    fn is_doubted(&self) -> bool {
        self.doubt.is_some_and(|doubt| doubt.is_raised.take())
    }

    /// Waits for a doubt.
    async fn doubt(&self) {
        match self.doubt {
            Some(doubt) => doubt.bell.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Asks a member for one key.
    async fn probe(
        &self,
        place: usize,
        told: &mut Progress,
        tell: &impl Fn(KeysEvent),
    ) -> Result<(), FollowError> {
        let body = json!({"key": bytes(&self.probed)});
        let answer: RangeAnswer = self.etcd.ask_member(place, "kv/range", &body).await?;
        let header = &answer.header;
        let (revision, term) = (number(&header.revision), number(&header.raft_term));
        if told.cluster.is_empty() {
            told.cluster.clone_from(&header.cluster_id);
        } else if told.cluster != header.cluster_id {
            return Err(FollowError::Missed);
        }
        // etcd was put back to an earlier state, or made anew by the same members, which give it
        // the same number.
        if told.revision.is_some_and(|told| revision < told) || term < told.term {
            return Err(FollowError::Missed);
        }
        told.term = term;
        tell(KeysEvent::Probed(answer.value()));
        Ok(())
    }
}
