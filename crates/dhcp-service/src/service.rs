//! The loop: one thread serves every lease and every plugin.
//!
//! It waits for events and for nothing else. It is not asynchronous either: entering a namespace
//! moves a thread, which must not happen to threads of an asynchronous runtime, and the work
//! between two events takes microseconds.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use cni::{AttachmentKey, Error, GcAttachment, NetworkName, code};
use cni_plugin::codes;
use dhcp::{Now, Timestamp};
use kernel::living::Census;
use node_api::dhcp::{Answer, LeaseRequest, Note, RESULT_VERSION, Request};
use node_api::inbox;
use service_kit::event_loop::Rounds;
use service_kit::listen::{ACCEPT_RETRY_DELAY, Listener};
use service_kit::poll::Interest;
use service_kit::ready::ReadyFile;

use super::context::Context;
use super::conversation::{Conversation, Input};
use super::deferred::chain;
use super::lease::{HeldLease, Outcome};
use super::store::LeaseRecord;
use super::token::Token;
use crate::clock;

/// How many plugins are served at once. One more takes the place of the connection that has been
/// silent longest; where all have sent their request, it waits in the socket's queue.
const MAX_CONVERSATIONS: usize = 512;

/// How often the service looks for notes of plugins that found no daemon, and writes down that it
/// is ready.
const NOTES_EVERY: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Service {
    world: Context,
    pub(super) listener: Listener,
    listening: bool,
    held: HashMap<u64, HeldLease>,
    by_key: BTreeMap<AttachmentKey, u64>,
    conversations: HashMap<u64, Conversation>,
    wake: BTreeSet<(Timestamp, u64)>,
    notes_at: Timestamp,
    pub(super) ready: ReadyFile,
    next_id: u64,
}

impl Rounds for Service {
    fn until_due(&self) -> Duration {
        self.next_deadline().since(clock::now().at)
    }

    fn round(&mut self, ready: &[u64]) -> std::io::Result<()> {
        self.world.census = Census::new();
        for token in ready.iter().filter_map(|number| Token::of(*number)) {
            match token {
                Token::Listener => self.accept(),
                Token::Connection(id) => self.converse(id),
                Token::V4(id) | Token::Arp(id) | Token::V6(id) => {
                    self.turn(id, |held, world, now| held.on_readable(world, token, now));
                }
            }
        }
        self.on_time();
        self.listen_again();
        Ok(())
    }
}

impl Service {
    /// Resumes what earlier daemons kept.
    pub(crate) fn new(world: Context, listener: Listener) -> Self {
        let mut service = Service {
            world,
            ready: ReadyFile::of(&listener.path),
            listener,
            listening: true,
            held: HashMap::new(),
            by_key: BTreeMap::new(),
            conversations: HashMap::new(),
            wake: BTreeSet::new(),
            notes_at: clock::now().at + NOTES_EVERY,
            next_id: 1,
        };
        service.take_up();
        service.work_off_notes();
        service
    }

    /// Stops listening.
    pub(crate) fn close(self) {
        self.listener.close();
    }

    /// Returns the number of leases.
    pub(crate) fn count(&self) -> usize {
        self.held.len()
    }

    fn next_deadline(&self) -> Timestamp {
        let lease = self.wake.first().map(|(at, _)| *at);
        let conversation = self.conversations.values().filter_map(|one| one.until).min();
        [lease, conversation].into_iter().flatten().fold(self.notes_at, Timestamp::min)
    }

    fn on_time(&mut self) {
        let now = clock::now();
        while let Some(&(at, id)) = self.wake.first()
            && at <= now.at
        {
            self.turn(id, HeldLease::on_timer);
            // A lease that wants to be woken at once again gets the next turn of the loop.
            if self.wake.first() == Some(&(at, id)) {
                break;
            }
        }
        let late = self
            .conversations
            .iter()
            .filter(|(_, one)| one.until.is_some_and(|until| until <= now.at));
        let late: Vec<u64> = late.map(|(id, _)| *id).collect();
        for id in late {
            tracing::warn!("a plugin did not send its request, or read the answer, in time");
            self.hang_up(id);
        }
        if self.notes_at <= now.at {
            self.notes_at = now.at + NOTES_EVERY;
            self.work_off_notes();
            self.ready.say();
        }
    }

    /// Lets a lease do something, and handles the result.
    fn turn(&mut self, id: u64, act: impl FnOnce(&mut HeldLease, &mut Context, Now) -> Outcome) {
        let Some(held) = self.held.get_mut(&id) else { return };
        let now = clock::now();
        let outcome = act(held, &mut self.world, now);
        match outcome {
            Outcome::Going => self.schedule(id),
            Outcome::Granted => self.grant(id),
            Outcome::Failed(error) => {
                tracing::warn!(lease = %held.key, %error, "no lease");
                self.drop_lease(id, error);
            }
            Outcome::Vanished => {
                tracing::warn!(lease = %held.key, "its interface is gone");
                let error = Error::new(codes::CONFLICT, "the container's interface is gone");
                self.drop_lease(id, error);
            }
        }
    }

    fn schedule(&mut self, id: u64) {
        let Some(held) = self.held.get_mut(&id) else { return };
        let deadline = held.deadline();
        if let Some(old) = held.scheduled.replace(deadline) {
            self.wake.remove(&(old, id));
        }
        self.wake.insert((deadline, id));
    }

    fn grant(&mut self, id: u64) {
        let Some(held) = self.held.get_mut(&id) else { return };
        // On disk before a container uses it.
        if let Err(error) = self.world.store.put(&held.saved(&self.world)) {
            let error = Error::from_chain(codes::STATE, &error)
                .with_details("a lease that is not on disk would be lost with the daemon");
            return self.drop_lease(id, error);
        }
        held.hand_over();
        let answer = lease_answer(held);
        let waiters = std::mem::take(&mut held.waiters);
        self.schedule(id);
        for waiter in waiters {
            self.answer(waiter, answer.clone());
        }
    }

    /// Ends a lease: releases it, forgets it, and answers the connections that wait for it.
    fn drop_lease(&mut self, id: u64, error: Error) {
        let Some(mut held) = self.held.remove(&id) else { return };
        self.by_key.remove(&held.key);
        if let Some(at) = held.scheduled {
            self.wake.remove(&(at, id));
        }
        let rest = held.give_back(&self.world);
        self.give_back_late(rest);
        if let Err(error) = self.world.store.remove(&held.key) {
            tracing::error!(lease = %held.key, error = chain(&error), "a released lease is still on disk");
        }
        for waiter in std::mem::take(&mut held.waiters) {
            self.answer(waiter, Answer::Failed(error.clone().into()));
        }
    }

    fn give_back_late(&self, saved: Option<LeaseRecord>) {
        let Some(saved) = saved else { return };
        let lease = saved.attachment.clone();
        if let Err(error) = self.world.late.give_back(saved) {
            tracing::error!(%lease, error = chain(&error), "the lease is not released: the server frees it when it ends");
        }
    }

    fn take_up(&mut self) {
        self.world.late.take_up();
        let (found, damaged) = self.world.store.all();
        for (path, reason) in damaged {
            tracing::error!(file = %path.display(), reason, "ignored a file that is not a lease, or cannot be read");
        }
        let now = clock::now();
        for saved in found {
            if saved.boot_id != self.world.boot_id {
                tracing::info!(lease = %saved.attachment, "its container ended with the last boot");
                let key = saved.attachment.clone();
                self.give_back_late(Some(saved));
                // Another attempt at the next start does no harm.
                let _ = self.world.store.remove(&key);
                continue;
            }
            let id = self.new_id();
            let held = HeldLease::resume(&self.world, id, saved, now);
            self.insert(id, held);
            self.turn(id, HeldLease::on_timer);
        }
    }

    /// Releases the leases that plugins released while no daemon ran.
    fn work_off_notes(&mut self) {
        let folder = inbox::folder(&self.listener.path);
        inbox::look(&folder, |Note(key)| {
            tracing::info!(lease = %key, "released while the daemon was down");
            self.release(&key);
            true
        });
    }

    fn insert(&mut self, id: u64, held: HeldLease) {
        self.by_key.insert(held.key.clone(), id);
        self.held.insert(id, held);
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn accept(&mut self) {
        while self.make_room() {
            let stream = match self.listener.socket.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::error!(%error, "cannot take a connection");
                    std::thread::sleep(ACCEPT_RETRY_DELAY);
                    return;
                }
            };
            let Some(conversation) = Conversation::new(stream, clock::now().at) else { continue };
            let id = self.new_id();
            let number = Token::Connection(id).number();
            match self.world.poller.add(&conversation.stream, number, Interest::Read) {
                Ok(()) => {
                    self.conversations.insert(id, conversation);
                    // Read what it has already sent before another connection could take its place.
                    self.converse(id);
                }
                Err(error) => tracing::error!(%error, "watch a connection"),
            }
        }
        if self.world.poller.remove(&self.listener.socket).is_ok() {
            self.listening = false;
        }
    }

    /// Says whether there is room for one more; if not, tries to make room by closing a silent
    /// connection.
    fn make_room(&mut self) -> bool {
        if self.conversations.len() < MAX_CONVERSATIONS {
            return true;
        }
        let silent = self.conversations.iter().filter(|(_, one)| one.is_asking());
        let Some((_, id)) = silent.map(|(id, one)| (one.until, *id)).min() else { return false };
        tracing::debug!("closed a silent connection: another one needs its place");
        self.hang_up(id);
        true
    }

    fn listen_again(&mut self) {
        if self.listening || MAX_CONVERSATIONS <= self.conversations.len() {
            return;
        }
        let number = Token::Listener.number();
        match self.world.poller.add(&self.listener.socket, number, Interest::Read) {
            Ok(()) => self.listening = true,
            Err(error) => tracing::error!(%error, "listen again"),
        }
    }

    fn converse(&mut self, id: u64) {
        let Some(conversation) = self.conversations.get_mut(&id) else { return };
        if conversation.is_answering() {
            match conversation.go_on() {
                Ok(false) => {}
                Ok(true) | Err(_) => self.hang_up(id),
            }
            return;
        }
        match conversation.hear() {
            Input::Nothing => {}
            Input::Question(ask) => self.serve(id, ask),
            Input::Nonsense(failure) => {
                tracing::warn!(reason = failure.msg, "refused a malformed request");
                self.answer(id, Answer::Failed(failure));
            }
            Input::End => self.hang_up(id),
        }
    }

    fn serve(&mut self, id: u64, ask: Request) {
        let answer = match ask {
            Request::Acquire(acquire) => match self.acquire(id, *acquire) {
                Ok(Some(answer)) => answer,
                Ok(None) => return,
                Err(error) => Answer::Failed(error.into()),
            },
            Request::Inspect { attachment } => {
                let id = self.by_key.get(&attachment);
                let held = id.and_then(|id| self.held.get(id)).filter(|held| held.is_handed_over());
                match held {
                    Some(held) if held.result().is_some() => lease_answer(held),
                    _ => Answer::Unknown,
                }
            }
            Request::Release { attachment } => self.release(&attachment),
            Request::Collect { network, valid } => self.collect(&network, &valid),
            Request::Status => Answer::Done,
            _ => Answer::Failed(
                Error::new(code::UNSUPPORTED_FIELD, "the DHCP daemon does not know the request")
                    .into(),
            ),
        };
        self.answer(id, answer);
    }

    /// Answers with the lease there is, or lets the connection wait for one.
    fn acquire(&mut self, waiter: u64, ask: LeaseRequest) -> Result<Option<Answer>, Error> {
        // A DEL that found no daemon comes first.
        self.work_off_notes();
        if let Some(&id) = self.by_key.get(&ask.attachment) {
            let held = self.held.get_mut(&id).expect("every key's number is a lease's");
            let replaced = !held.is_in(&self.world, &ask) || held.client != ask.client;
            if !replaced && held.is_handed_over() && held.result().is_some() {
                return Ok(Some(lease_answer(held)));
            }
            if !replaced && !held.is_handed_over() {
                held.waiters.insert(waiter);
                return Ok(None);
            }
            tracing::info!(lease = %held.key, "replaced: another container, or another configuration");
            self.drop_lease(id, Error::new(codes::CONFLICT, "another ADD took this one's place"));
        }
        let id = self.new_id();
        let mut held = HeldLease::prepare(&mut self.world, id, ask, clock::now())?;
        held.waiters.insert(waiter);
        self.insert(id, held);
        self.turn(id, HeldLease::on_timer);
        Ok(None)
    }

    fn release(&mut self, key: &AttachmentKey) -> Answer {
        let Some(&id) = self.by_key.get(key) else {
            // Its record could not be read: every start reports it until it is gone.
            if let Err(error) = self.world.store.remove(key) {
                tracing::warn!(lease = %key, error = chain(&error), "its file stays");
            }
            return Answer::Unknown;
        };
        self.drop_lease(id, Error::new(codes::CONFLICT, "the lease was released by DEL"));
        Answer::Done
    }

    fn collect(&mut self, network: &NetworkName, valid: &[GcAttachment]) -> Answer {
        let valid: BTreeSet<(&str, &str)> =
            valid.iter().map(|one| (one.container_id.as_str(), one.ifname.as_str())).collect();
        let is_stale = |key: &&AttachmentKey| {
            key.network == *network
                && !valid.contains(&(key.container_id.as_str(), key.ifname.as_str()))
        };
        let stale: Vec<AttachmentKey> = self.by_key.keys().filter(is_stale).cloned().collect();
        for key in &stale {
            tracing::info!(lease = %key, "collected");
            self.release(key);
        }
        Answer::Done
    }

    fn answer(&mut self, id: u64, answer: Answer) {
        let Some(conversation) = self.conversations.get_mut(&id) else { return };
        match conversation.answer(answer, clock::now().at) {
            Ok(false) => {
                let number = Token::Connection(id).number();
                if self.world.poller.change(&conversation.stream, number, Interest::Write).is_err()
                {
                    self.hang_up(id);
                }
            }
            Ok(true) | Err(_) => self.hang_up(id),
        }
    }

    /// Ends a connection. A lease that no connection waits for is no longer sought.
    fn hang_up(&mut self, id: u64) {
        self.conversations.remove(&id);
        let forsaken = self.held.values_mut().find_map(|held| {
            let waited = held.waiters.remove(&id);
            (waited && held.waiters.is_empty() && !held.is_handed_over()).then_some(held.id)
        });
        if let Some(id) = forsaken {
            tracing::info!(lease = %self.held[&id].key, "no longer sought: its plugin is gone");
            self.drop_lease(id, Error::new(code::TRY_AGAIN_LATER, "no plugin waits for the lease"));
        }
    }
}

/// Returns the answer that carries a lease.
fn lease_answer(held: &HeldLease) -> Answer {
    let written = held.result().unwrap_or_default().write(RESULT_VERSION);
    match written.map(|text| serde_json::from_slice(&text)) {
        Ok(Ok(value)) => Answer::Lease(value),
        Ok(Err(error)) => Answer::Failed(Error::from_chain(code::INTERNAL, &error).into()),
        Err(error) => Answer::Failed(error.into()),
    }
}
