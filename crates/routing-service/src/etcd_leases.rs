//! The source `etcd`: flannel's leases, and this node's own among them.
//!
//! A thread of its own talks to etcd. The loop takes what the thread has heard when the bell rings,
//! and says what this node's lease is to be. Every write compares what is there first: a lease of
//! another node is never touched.

use std::cell::Cell;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent::config;
use agent::setting::ServerUrl;
use cluster_client::etcd::{
    ByteString, Etcd, EtcdError, EtcdFiles, Pair, RangeAnswer, TransactionAnswer, after_prefix,
    bytes, number,
};
use futures_util::future::{Either, select};
use ipnet::IpNet;
use routing::flannel::leases::{Lease, Leases, Windows};
use routing::flannel::own_lease::{DesiredLease, ObservedLease, OwnLease};
use routing::flannel::turns::Turns;
use serde_json::{Value, json};
use service_kit::asynchronous::runtime;
use service_kit::bell::Bell;
use service_kit::outlet::{self, Inlet, Outlet};
use service_kit::process::LONG;
use service_kit::stop::{Stop, failed};
use tokio::sync::{Notify, watch};

use super::etcd_keys::{self, Doubt, Keys};

/// How long a grant of etcd's lasts, as flanneld asks for it.
const GRANT: Duration = Duration::from_secs(24 * 3600);
/// How long after its last renewal a grant is renewed: etcd may be away for 23 hours, and no lease
/// ends.
const RENEW: Duration = Duration::from_secs(3600);
/// How long the writer waits for the watch to report what etcd has after a write.
const REPORTED: Duration = Duration::from_secs(30);
/// What the thread has heard.
#[derive(Debug)]
pub(super) enum LeasesEvent {
    /// These are all leases, at this revision.
    Listed(Vec<Lease>, u64),
    Changed(Lease),
    /// A lease was deleted, or has expired, at this revision.
    Deleted(String, u64),
    /// etcd does not answer: the reason.
    Silent(String),
    /// It answers again, and nothing has changed.
    Answers,
    /// What became of this node's lease.
    Written(Result<(), String>),
    /// Whether flanneld's configuration is the one that the service has started with.
    IsConfigured(bool),
}

/// The loop's end of the thread, and what it knows.
#[derive(Debug)]
pub(super) struct EtcdLeases {
    inlet: Inlet<LeasesEvent>,
    desired: watch::Sender<Option<DesiredLease>>,
    /// Rung when connections are to be made anew.
    moved: Arc<Notify>,
    /// All leases, and what is known of this node's.
    pub(super) own: OwnLease,
}

impl EtcdLeases {
    /// Starts the thread. `configuration` is what the service has started with.
    pub(super) fn follow(
        config: &config::Routing,
        configuration: String,
        windows: Windows,
        of_file: Vec<IpNet>,
    ) -> Result<Self, Stop> {
        let (inlet, outlet) = outlet::pair().map_err(failed)?;
        let (desired, updates) = watch::channel(None);
        let own = OwnLease::new(windows, config.underlay.clone(), of_file);
        let leases = EtcdLeases { inlet, desired, moved: Arc::default(), own };
        let runtime = runtime(1)?;
        let registry = {
            let _context = runtime.enter();
            Registry::open(config)?
        };
        let thread = Thread {
            registry,
            configuration,
            outlet,
            doubt: Doubt::default(),
            away: Cell::new(false),
            back: Notify::new(),
            moved: Arc::clone(&leases.moved),
        };
        std::thread::Builder::new()
            .name("leases".to_owned())
            .spawn(move || runtime.block_on(thread.run(updates)))
            .map_err(failed)?;
        Ok(leases)
    }

    /// Returns what is readable when something was heard.
    pub(super) fn bell(&self) -> &Bell {
        self.inlet.bell()
    }

    /// Takes what was heard since the last call.
    pub(super) fn heard(&self) -> Vec<LeasesEvent> {
        self.inlet.heard()
    }

    /// Has the thread make its connections anew.
    pub(super) fn reconnect(&self) {
        self.moved.notify_one();
    }

    /// Says what this node's lease is to be.
    pub(super) fn set_desired(&self, wanted: DesiredLease) {
        self.desired.send_if_modified(|desired| {
            let differs = desired.as_ref() != Some(&wanted);
            *desired = Some(wanted);
            differs
        });
    }
}

/// Takes the addresses of etcd's members; sends nothing yet. A runtime is needed around it.
pub(super) fn open(config: &config::Routing) -> Result<Etcd, Stop> {
    let files = EtcdFiles {
        ca: config.etcd_ca.clone(),
        certificate: config.etcd_cert.clone(),
        key: config.etcd_key.clone(),
    };
    Etcd::new(config.etcd.iter().map(ServerUrl::as_str), &files).map_err(failed)
}

/// flannel's keys in etcd.
#[derive(Debug)]
pub(super) struct Registry {
    etcd: Etcd,
    prefix: String,
}

/// What became of a write.
enum WriteOutcome {
    /// There is nothing to do for this time.
    Held(Duration),
    /// Its grant is gone, and so is the lease: the watch will report that, unless the event was
    /// missed.
    Gone,
    /// It was written, and the watch will report it.
    Written,
    /// etcd has something else there by now. The watch will report it, unless the event was missed.
    Conflict,
}

impl Registry {
    /// Takes the addresses of the members; sends nothing yet. A runtime is needed around it.
    pub(super) fn open(config: &config::Routing) -> Result<Self, Stop> {
        let etcd = open(config)?;
        Ok(Registry { etcd, prefix: config.etcd_prefix.trim_end_matches('/').to_owned() })
    }

    /// Returns the key of flanneld's configuration.
    pub(super) fn configuration_key(&self) -> String {
        format!("{}/config", self.prefix)
    }

    fn subnets(&self) -> String {
        format!("{}/subnets/", self.prefix)
    }

    /// Reads flanneld's configuration.
    pub(super) async fn configuration(&self) -> Result<Option<String>, EtcdError> {
        let body = json!({"key": bytes(&self.configuration_key())});
        let answer: RangeAnswer = self.etcd.ask_any("kv/range", &body).await?;
        Ok(answer.value())
    }

    /// Removes the leases of a node with an address, but those that a person has reserved.
    pub(super) async fn forget(&self, address: IpAddr) -> Result<(), EtcdError> {
        let mut leases = Leases::default();
        let (all, revision) = self.list().await?;
        leases.list(all, revision);
        for lease in leases.with_address(address) {
            self.remove(&lease.key, lease.modified).await?;
        }
        Ok(())
    }

    async fn list(&self) -> Result<(Vec<Lease>, u64), EtcdError> {
        let (all, revision) = self.etcd.list(&self.subnets()).await?;
        Ok((self.leases(all), revision))
    }

    fn leases(&self, pairs: Vec<Pair>) -> Vec<Lease> {
        pairs.into_iter().filter_map(|pair| self.lease(pair)).collect()
    }

    /// Reads a key of ours.
    fn lease(&self, pair: Pair) -> Option<Lease> {
        let key = String::from_utf8(pair.key.0).ok()?;
        Some(Lease {
            key: key.strip_prefix(&self.subnets())?.to_owned(),
            value: pair.value.unwrap_or_default().0,
            created: number(&pair.create_revision),
            modified: number(&pair.mod_revision),
            grant: pair.lease.filter(|grant| grant != "0"),
        })
    }

    /// Does what a desired lease needs.
    async fn hold(&self, desired: &DesiredLease) -> Result<WriteOutcome, EtcdError> {
        for (key, modified) in &desired.outdated {
            self.remove(key, *modified).await?;
        }
        match &desired.there {
            ObservedLease::Nothing { listed } => self.create(desired, *listed).await,
            ObservedLease::Lease { modified, grant, is_right: false } => {
                self.update(desired, *modified, grant.is_some()).await
            }
            // A person has reserved it.
            ObservedLease::Lease { grant: None, .. } => Ok(WriteOutcome::Held(LONG)),
            ObservedLease::Lease { modified, grant: Some(grant), .. } => {
                match self.renew(grant).await? {
                    None => Ok(WriteOutcome::Gone),
                    Some(left) if left < GRANT => self.update(desired, *modified, true).await,
                    Some(left) => {
                        Ok(WriteOutcome::Held(renew_after(left, service_kit::clock::seed())))
                    }
                }
            }
        }
    }

    /// Creates a lease if nothing is there.
    async fn create(&self, desired: &DesiredLease, listed: u64) -> Result<WriteOutcome, EtcdError> {
        let (subnets, key) = (self.subnets(), self.key(&desired.key));
        let v4 = desired.key.split('&').next().unwrap_or_default();
        // This covers leases with another IPv6 prefix, or with none.
        let mut compare = vec![range(
            &self.key(v4),
            &json!({"target": "CREATE", "result": "EQUAL", "create_revision": "0"}),
        )];
        if v4 != desired.key {
            // No key alone says which lease has an IPv6 prefix: so no node may have taken a prefix
            // since the list.
            let next = listed.saturating_add(1).to_string();
            compare.push(range(
                &subnets,
                &json!({"target": "CREATE", "result": "LESS", "create_revision": next}),
            ));
        }
        let grant = self.grant().await?;
        let put = json!({"request_put": {
            "key": bytes(&key), "value": bytes(&desired.value), "lease": grant,
        }});
        if self.change(json!(compare), put).await? {
            return Ok(WriteOutcome::Written);
        }
        self.give_back(&grant).await;
        Ok(WriteOutcome::Conflict)
    }

    /// Writes this node's lease if it is as it was at a revision, with a new grant unless it is a
    /// reservation.
    async fn update(
        &self,
        desired: &DesiredLease,
        modified: u64,
        expires: bool,
    ) -> Result<WriteOutcome, EtcdError> {
        let grant = if expires { self.grant().await? } else { "0".to_owned() };
        let key = bytes(&self.key(&desired.key));
        let put =
            json!({"request_put": {"key": key, "value": bytes(&desired.value), "lease": grant}});
        if self.change(json!([is_as_it_was(&key, modified)]), put).await? {
            return Ok(WriteOutcome::Written);
        }
        if expires {
            self.give_back(&grant).await;
        }
        Ok(WriteOutcome::Conflict)
    }

    /// Removes a lease if it is as it was at a revision.
    async fn remove(&self, lease: &str, modified: u64) -> Result<(), EtcdError> {
        let key = bytes(&self.key(lease));
        let delete = json!({"request_delete_range": {"key": key}});
        self.change(json!([is_as_it_was(&key, modified)]), delete).await.map(|_| ())
    }

    fn key(&self, lease: &str) -> String {
        format!("{}{lease}", self.subnets())
    }

    /// Makes a change if all comparisons hold. The request is sent once: a second one would
    /// conflict with what the first has done.
    async fn change(&self, compare: Value, request: Value) -> Result<bool, EtcdError> {
        let body = json!({"compare": compare, "success": [request]});
        let answer: TransactionAnswer = self.etcd.ask("kv/txn", &body).await?;
        Ok(answer.succeeded)
    }

    /// Returns a new grant.
    async fn grant(&self) -> Result<String, EtcdError> {
        let body = json!({"TTL": GRANT.as_secs().to_string()});
        let answer: Value = self.etcd.ask_any("lease/grant", &body).await?;
        let none = || EtcdError::Away("a grant of etcd's has no number".to_owned());
        answer["ID"].as_str().map(str::to_owned).ok_or_else(none)
    }

    /// Gives back a grant that no lease has come to have. One that etcd keeps ends by itself.
    async fn give_back(&self, grant: &str) {
        let body = json!({"ID": grant});
        let _: Result<Value, EtcdError> = self.etcd.ask("lease/revoke", &body).await;
    }

    /// Renews a grant. Returns how long it lasts; `None` if it is gone.
    async fn renew(&self, grant: &str) -> Result<Option<Duration>, EtcdError> {
        let answer: Value = self.etcd.ask_any("lease/keepalive", &json!({"ID": grant})).await?;
        let said = &answer["result"];
        if said.is_null() {
            return Err(EtcdError::Away(format!("renew this node's lease: {}", answer["error"])));
        }
        let seconds = said["TTL"].as_str().map_or(0, number);
        Ok(Some(Duration::from_secs(seconds)).filter(|left| !left.is_zero()))
    }
}

/// Returns a comparison that holds for all keys with a prefix.
fn range(prefix: &str, comparison: &Value) -> Value {
    let mut range = json!({"key": bytes(prefix), "range_end": ByteString(after_prefix(prefix))});
    if let (Some(range), Some(more)) = (range.as_object_mut(), comparison.as_object()) {
        range.extend(more.clone());
    }
    range
}

/// Returns the comparison that a key was not changed since a revision.
fn is_as_it_was(key: &ByteString, modified: u64) -> Value {
    let modified = modified.to_string();
    json!({"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": modified})
}

/// Returns after how long a grant is to be renewed of which `left` remains. `random` is any number:
/// not all nodes come at once.
fn renew_after(left: Duration, random: u64) -> Duration {
    let after = RENEW.min(left / 3);
    let tenth = u64::try_from(after.as_millis() / 10).unwrap_or_default();
    after.saturating_sub(Duration::from_millis(random.checked_rem(tenth).unwrap_or_default()))
}

struct Thread {
    registry: Registry,
    configuration: String,
    outlet: Outlet<LeasesEvent>,
    /// The leases that the loop knows may be wrong.
    doubt: Doubt,
    /// No member has answered the last attempt to write.
    away: Cell<bool>,
    /// Rung when a member answers after that: the writer need not wait any longer.
    back: Notify,
    /// Rung when connections are to be made anew.
    moved: Arc<Notify>,
}

impl Thread {
    async fn run(self, updates: watch::Receiver<Option<DesiredLease>>) {
        let (follow, write) = (pin!(self.follow()), pin!(self.write(updates)));
        let reconnect = pin!(self.registry.etcd.reconnect_at(&self.moved));
        select(select(follow, write), reconnect).await;
    }

    /// Passes on what etcd has, and every change.
    async fn follow(&self) {
        let registry = &self.registry;
        let keys = Keys {
            etcd: &registry.etcd,
            prefix: registry.subnets(),
            probed: registry.configuration_key(),
            doubt: Some(&self.doubt),
        };
        let is_configured = Cell::new(true);
        let tell = |heard: etcd_keys::KeysEvent| {
            let is_back =
                matches!(heard, etcd_keys::KeysEvent::Listed(..) | etcd_keys::KeysEvent::Answers);
            if is_back && self.away.get() {
                self.back.notify_one();
            }
            let heard = match heard {
                etcd_keys::KeysEvent::Listed(all, revision) => {
                    Some(LeasesEvent::Listed(registry.leases(all), revision))
                }
                etcd_keys::KeysEvent::Changed(pair) => {
                    registry.lease(pair).map(LeasesEvent::Changed)
                }
                etcd_keys::KeysEvent::Deleted(pair) => {
                    let lease = registry.lease(pair);
                    lease.map(|lease| LeasesEvent::Deleted(lease.key, lease.modified))
                }
                etcd_keys::KeysEvent::Silent(why) => Some(LeasesEvent::Silent(why)),
                etcd_keys::KeysEvent::Answers => Some(LeasesEvent::Answers),
                etcd_keys::KeysEvent::Probed(text) => {
                    let is = text.is_some_and(|text| text == self.configuration);
                    (is != is_configured.replace(is)).then_some(LeasesEvent::IsConfigured(is))
                }
            };
            if let Some(heard) = heard {
                self.outlet.tell(heard);
            }
        };
        keys.follow(tell).await;
    }

    /// Makes this node's lease what it is to be, and renews it.
    async fn write(&self, mut updates: watch::Receiver<Option<DesiredLease>>) {
        let mut turns = Turns::default();
        let mut conflicted: Option<DesiredLease> = None;
        loop {
            let desired = updates.borrow_and_update().clone();
            let rest = turns.rest(Instant::now());
            let wait = match desired {
                None => LONG,
                Some(desired) if desired.is_write() && !rest.is_zero() => rest,
                Some(desired) => {
                    let is_new = matches!(desired.there, ObservedLease::Nothing { .. });
                    let done = self.registry.hold(&desired).await;
                    let now = Instant::now();
                    self.away.set(matches!(done, Err(EtcdError::Away(_))));
                    if !self.away.get() {
                        turns.answers();
                    }
                    // If the same lease conflicts twice, the watch has not reported what it
                    // conflicts with.
                    let before = conflicted.take();
                    conflicted = matches!(done, Ok(WriteOutcome::Conflict)).then_some(desired);
                    if conflicted.is_some() && conflicted == before {
                        self.doubt.raise();
                    }
                    let seed = service_kit::clock::seed();
                    match &done {
                        Ok(WriteOutcome::Held(_)) => turns.held(),
                        Ok(WriteOutcome::Gone) => self.doubt.raise(),
                        Ok(WriteOutcome::Conflict) if is_new => turns.lost(now, seed),
                        Ok(WriteOutcome::Written | WriteOutcome::Conflict) => {
                            turns.written(now, seed);
                        }
                        Err(EtcdError::Refused(_)) => turns.lost(now, seed),
                        Err(EtcdError::Away(_)) => turns.away(now, seed),
                    }
                    let wait = match &done {
                        Ok(WriteOutcome::Held(wait)) => *wait,
                        Ok(WriteOutcome::Gone | WriteOutcome::Written | WriteOutcome::Conflict) => {
                            REPORTED
                        }
                        Err(_) => turns.rest(now),
                    };
                    if !matches!(done, Ok(WriteOutcome::Conflict)) {
                        let done = done.map(|_| ()).map_err(|error| error.to_string());
                        self.outlet.tell(LeasesEvent::Written(done));
                    }
                    wait
                }
            };
            let (changed, back) = (pin!(updates.changed()), pin!(self.back.notified()));
            match select(select(changed, back), pin!(tokio::time::sleep(wait))).await {
                Either::Left((Either::Left((Err(_), _)), _)) => return,
                Either::Left((Either::Right(_), _)) => turns.answers(),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use agent::setting::Item as _;
    use testkit::{Lab, Place as _};

    use super::*;

    /// How often, of many at once, each wants the same prefix.
    const AT_ONCE: usize = 8;

    fn desired(key: &str, there: ObservedLease) -> DesiredLease {
        let value = format!(r#"{{"PublicIP":"192.0.2.1","of":"{key}"}}"#);
        DesiredLease { key: key.to_owned(), value, there, outdated: Vec::new() }
    }

    fn is_written(done: &Result<WriteOutcome, EtcdError>) -> bool {
        match done {
            Ok(WriteOutcome::Written) => true,
            Ok(WriteOutcome::Conflict) => false,
            Ok(WriteOutcome::Held(_) | WriteOutcome::Gone) => panic!("nothing was done"),
            Err(error) => panic!("{error}"),
        }
    }

    /// A node creates a lease only if no other node has any of its prefixes. It changes, renews and
    /// removes a lease only as it knows it.
    #[test]
    fn nothing_of_others_is_written_over() {
        testkit::require!("root", "program:etcd", "program:curl");
        let lab = Lab::new("routing-registry");
        let etcd = testkit::real::Etcd::start(&lab);
        let urls = etcd.endpoints();
        let config = config::Routing {
            etcd: urls.iter().map(|url| ServerUrl::parse(url).unwrap()).collect(),
            ..config::Routing::default()
        };
        lab.enter(|| {
            runtime(1).unwrap().block_on(async {
                let registry = Registry::open(&config).unwrap();
                only_what_is_known_is_changed(&registry).await;
                many_want_one(&registry).await;
            });
        });
    }

    async fn only_what_is_known_is_changed(registry: &Registry) {
        let revision = || async { registry.list().await.unwrap().1 };
        let create = async |key: &str, listed: u64| {
            is_written(&registry.hold(&desired(key, ObservedLease::Nothing { listed })).await)
        };
        let empty = revision().await;
        let first = "10.244.1.0-24&fd00::-64";
        assert!(create(first, empty).await);
        // The same IPv4 prefix with any IPv6 prefix after it; and the same IPv6 prefix, which no
        // list has had yet.
        assert!(!create("10.244.1.0-24&fd00:0:0:1::-64", revision().await).await);
        assert!(!create("10.244.1.0-24", revision().await).await);
        assert!(!create("10.244.2.0-24&fd00::-64", empty).await);
        assert!(create("10.244.2.0-24&fd00:0:0:1::-64", revision().await).await);
        // One family needs no list.
        assert!(create("10.244.3.0-24", empty).await);
        let (all, _) = registry.list().await.unwrap();
        assert_eq!(all.len(), 3, "{all:?}");
        let lease = all.into_iter().find(|lease| lease.key == first).unwrap();

        let there = |modified: u64, grant: Option<String>, is_right: bool| {
            desired(first, ObservedLease::Lease { modified, grant, is_right })
        };
        let grant = lease.grant.clone();
        let grants = async || {
            let all: Value = registry.etcd.ask_any("lease/leases", &json!({})).await.unwrap();
            all["leases"].as_array().map_or(0, Vec::len)
        };
        assert_eq!(grants().await, 3);
        let stale = there(lease.modified - 1, grant.clone(), false);
        assert!(!is_written(&registry.hold(&stale).await));
        assert_eq!(grants().await, 3);
        registry.remove(first, lease.modified - 1).await.unwrap();
        assert_eq!(registry.list().await.unwrap().0.len(), 3);
        // What is right is renewed for an hour.
        let right = there(lease.modified, grant.clone(), true);
        let held = registry.hold(&right).await;
        assert!(matches!(held, Ok(WriteOutcome::Held(wait)) if RENEW / 2 < wait && wait <= RENEW));
        assert!(is_written(&registry.hold(&there(lease.modified, grant, false)).await));
        let (all, _) = registry.list().await.unwrap();
        let changed = all.into_iter().find(|lease| lease.key == first).unwrap();
        assert!(changed.grant.is_some() && changed.grant != lease.grant);

        // A grant of an hour becomes one of a day, and one that is gone is nothing to renew.
        let body = json!({"TTL": "3600"});
        let short: Value = registry.etcd.ask_any("lease/grant", &body).await.unwrap();
        let short = short["ID"].as_str().map(str::to_owned);
        assert!(is_written(&registry.hold(&there(changed.modified, short.clone(), true)).await));
        let short = short.unwrap();
        let _: Value = registry.etcd.ask_any("lease/revoke", &json!({"ID": short})).await.unwrap();
        assert_eq!(registry.renew(&short).await, Ok(None));
        let held = registry.hold(&there(changed.modified, Some(short), true)).await;
        assert!(matches!(held, Ok(WriteOutcome::Gone)));
        // A reservation has none, and keeps none.
        let (all, _) = registry.list().await.unwrap();
        let changed = all.into_iter().find(|lease| lease.key == first).unwrap();
        assert!(is_written(&registry.hold(&there(changed.modified, None, false)).await));
        let (all, _) = registry.list().await.unwrap();
        let reserved = all.into_iter().find(|lease| lease.key == first).unwrap();
        assert_eq!(reserved.grant, None);
        let held = registry.hold(&there(reserved.modified, None, true)).await;
        assert!(matches!(held, Ok(WriteOutcome::Held(LONG))));

        let outdated = vec![(first.to_owned(), reserved.modified)];
        let there = ObservedLease::Nothing { listed: revision().await };
        let new = DesiredLease { outdated, ..desired("10.244.4.0-24", there) };
        assert!(is_written(&registry.hold(&new).await));
        let keys: Vec<String> =
            registry.list().await.unwrap().0.into_iter().map(|lease| lease.key).collect();
        assert_eq!(keys, ["10.244.2.0-24&fd00:0:0:1::-64", "10.244.3.0-24", "10.244.4.0-24"]);
    }

    async fn many_want_one(registry: &Registry) {
        let listed = registry.list().await.unwrap().1;
        let desired = |number: usize| {
            desired(
                &format!("10.244.9.0-24&fd00:0:0:{number}::-64"),
                ObservedLease::Nothing { listed },
            )
        };
        let leases: Vec<DesiredLease> = (0..AT_ONCE).map(desired).collect();
        let held = leases.iter().map(|desired| registry.hold(desired));
        let all = futures_util::future::join_all(held).await;
        assert_eq!(all.iter().filter(|done| is_written(done)).count(), 1);
    }

    #[test]
    fn a_grant_is_renewed_long_before_it_ends() {
        let seconds = Duration::from_secs;
        for random in [0, 1, u64::MAX] {
            let after = renew_after(GRANT, random);
            assert!(seconds(3200) < after && after <= seconds(3600), "{after:?}");
            let after = renew_after(seconds(60), random);
            assert!(seconds(17) < after && after <= seconds(20), "{after:?}");
        }
        assert_eq!(renew_after(Duration::ZERO, 7), Duration::ZERO);
    }

    #[test]
    fn a_comparison_holds_for_a_range() {
        let comparison = range("/a/", &json!({"target": "CREATE"}));
        assert_eq!(comparison, json!({"key": "L2Ev", "range_end": "L2Ew", "target": "CREATE"}));
    }
}
