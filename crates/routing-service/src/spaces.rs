//! Blocks of spaces of `cluster-ipam`, and addresses that pods keep: which node has which, as the
//! service `ipam` of each node writes it.
//!
//! A thread of its own follows the records, in etcd or in the API server. The records make no node:
//! the crate `routing` finds out which node a block belongs to.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;

use agent::config;
use cluster_client::api_server::{self, Client};
use cluster_client::etcd::Etcd;
use cluster_client::follow::ObjectEvent;
use cluster_ipam::record::{self, BlockRecord, StickyRecord};
use cluster_ipam::store::{Entry, Key, Kind};
use futures_util::future::{join_all, select};
use ipnet::IpNet;
use routing::Todo;
use routing::blocks::{Block, BlockState, Event, Holder, Records};
use service_kit::asynchronous::runtime;
use service_kit::bell::Bell;
use service_kit::outlet::{self, Inlet, Outlet, Silence};
use service_kit::stop::{Stop, failed};
use tokio::sync::Notify;

use super::context::Context;
use super::etcd_keys::{self, Keys};
use super::etcd_leases;
use ipam_service::published;

/// What the thread has heard.
#[derive(Debug)]
pub(super) enum RecordsEvent {
    /// Of the records.
    Event(Event),
    /// They cannot be asked for: the reason.
    Silent(Records, String),
}

/// The loop's end of the thread.
#[derive(Debug)]
struct Spaces {
    inlet: Inlet<RecordsEvent>,
    /// Rung when connections to etcd are to be made anew.
    moved: Arc<Notify>,
}

impl Spaces {
    /// Starts the thread, if there are spaces to be routed.
    fn follow(config: &config::Routing) -> Result<Option<Self>, Stop> {
        if config.spaces.is_empty() {
            return Ok(None);
        }
        let (inlet, outlet) = outlet::pair().map_err(failed)?;
        let runtime = runtime(1)?;
        let store = if config.etcd.is_empty() {
            Store::Api(config.kubeconfig.clone())
        } else {
            let _context = runtime.enter();
            Store::Etcd(etcd_leases::open(config)?)
        };
        let (records, moved) = (Records::of(&config.spaces).collect(), Arc::default());
        let thread = Thread { store, records, outlet, moved: Arc::clone(&moved) };
        std::thread::Builder::new()
            .name("spaces".to_owned())
            .spawn(move || runtime.block_on(thread.run()))
            .map_err(failed)?;
        Ok(Some(Spaces { inlet, moved }))
    }

    /// Returns what is readable when something was heard.
    fn bell(&self) -> &Bell {
        self.inlet.bell()
    }

    /// Has the thread make its connections to etcd anew.
    fn reconnect(&self) {
        self.moved.notify_one();
    }

    /// Takes what was heard since the last call. Changes that came together are one event: a block
    /// that moves is deleted and made anew.
    fn heard(&self) -> Vec<RecordsEvent> {
        let mut together: Vec<RecordsEvent> = Vec::new();
        for heard in self.inlet.heard() {
            match (together.last_mut(), heard) {
                (
                    Some(RecordsEvent::Event(Event::Changed(all))),
                    RecordsEvent::Event(Event::Changed(more)),
                ) => {
                    all.extend(more);
                }
                (_, heard) => together.push(heard),
            }
        }
        together
    }
}

/// The records of spaces, and which of them cannot be asked for.
#[derive(Debug)]
pub(super) struct BlockSource {
    spaces: Option<Spaces>,
    /// Each with the reason.
    away: BTreeMap<Records, String>,
}

impl BlockSource {
    /// Follows the records, if there are spaces to be routed.
    pub(super) fn follow(config: &config::Routing) -> Result<Self, Stop> {
        Ok(BlockSource { spaces: Spaces::follow(config)?, away: BTreeMap::new() })
    }

    /// Returns what is readable when something was heard; `None` if nothing is followed.
    pub(super) fn bell(&self) -> Option<&Bell> {
        self.spaces.as_ref().map(Spaces::bell)
    }

    /// Makes connections to etcd again: this node has lost an address.
    pub(super) fn reconnect(&self) {
        self.spaces.iter().for_each(Spaces::reconnect);
    }

    /// Returns what was heard since the last call.
    pub(super) fn heard(&self) -> Vec<RecordsEvent> {
        self.spaces.as_ref().map(Spaces::heard).unwrap_or_default()
    }

    /// Takes what was heard. Returns what follows for nodes.
    pub(super) fn take(&mut self, context: &Context, heard: RecordsEvent) -> Todo {
        let event = match heard {
            RecordsEvent::Event(event) => event,
            RecordsEvent::Silent(records, why) => {
                self.away.insert(records.clone(), why);
                Event::Silent(records)
            }
        };
        if let Event::Listed(records, _) | Event::Answers(records) = &event {
            self.away.remove(records);
        }
        context.routing().blocks(event, context.clock.now())
    }

    /// Says in the service's status which records cannot be asked for.
    pub(super) fn report(&self, context: &Context) {
        let away = self.away.first_key_value();
        let away = away.map(|(records, why)| format!("{records}: {why}"));
        context.health.needs("records of spaces", away.map_or(Ok(()), Err));
    }
}

/// Where the records are.
enum Store {
    Etcd(Etcd),
    Api(Option<PathBuf>),
}

struct Thread {
    store: Store,
    records: Vec<Records>,
    outlet: Outlet<RecordsEvent>,
    moved: Arc<Notify>,
}

impl Thread {
    async fn run(self) {
        match &self.store {
            Store::Etcd(etcd) => {
                let all = self.records.iter().map(|records| self.follow_keys(etcd, records));
                let reconnect = pin!(etcd.reconnect_at(&self.moved));
                select(pin!(join_all(all)), reconnect).await;
            }
            Store::Api(kubeconfig) => {
                let silence = RefCell::new(Silence::default());
                let silent = |why: String| {
                    if silence.borrow_mut().is_news(&why) {
                        self.records.iter().for_each(|records| self.silent(records, why.clone()));
                    }
                };
                let client = api_server::find(kubeconfig.as_deref(), silent).await;
                let all = self.records.iter().map(|records| self.follow_objects(&client, records));
                join_all(all).await;
            }
        }
    }

    fn tell(&self, event: Event) {
        self.outlet.tell(RecordsEvent::Event(event));
    }

    fn silent(&self, records: &Records, why: String) {
        self.outlet.tell(RecordsEvent::Silent(records.clone(), why));
    }

    async fn follow_keys(&self, etcd: &Etcd, records: &Records) {
        let reader = Reader::new(records);
        let prefix = published::keys_of_space(reader.kind, &records.space);
        let keys = Keys { etcd, probed: prefix.clone(), prefix, doubt: None };
        let entry = |pair| published::of_pair(reader.kind, pair);
        let tell = |heard| match heard {
            etcd_keys::KeysEvent::Listed(all, _) => {
                let all: Vec<Entry> = all.into_iter().filter_map(entry).collect();
                self.tell(reader.list(&all));
            }
            etcd_keys::KeysEvent::Changed(pair) => self.tell(reader.change(entry(pair).as_ref())),
            etcd_keys::KeysEvent::Deleted(pair) => self.tell(reader.gone(entry(pair).as_ref())),
            etcd_keys::KeysEvent::Silent(why) => self.silent(records, why),
            etcd_keys::KeysEvent::Answers => self.tell(Event::Answers(records.clone())),
            etcd_keys::KeysEvent::Probed(_) => {}
        };
        keys.follow(tell).await;
    }

    /// Passes on what the API server reports.
    async fn follow_objects(&self, client: &Client, records: &Records) {
        let reader = &Reader::new(records);
        let kind = reader.kind;
        let follow = published::of_space(client, kind, &records.space);
        let mut objects = follow.begin(move |object| published::of_object(kind, object));
        let mut listing: Vec<Entry> = Vec::new();
        let (mut lost, mut silence) = (false, Silence::default());
        while let Some(reported) = objects.next().await {
            let event = match reported {
                ObjectEvent::Begin => {
                    listing = Vec::new();
                    continue;
                }
                ObjectEvent::Listed(entry) => {
                    listing.extend(entry);
                    continue;
                }
                ObjectEvent::Complete => Some(reader.list(&std::mem::take(&mut listing))),
                ObjectEvent::Changed(entry) => Some(reader.change(entry.as_ref())),
                ObjectEvent::Deleted(entry) => Some(reader.gone(entry.as_ref())),
                ObjectEvent::Answers => None,
                ObjectEvent::Silent(error) => {
                    lost = true;
                    let why = error.to_string();
                    if silence.is_news(&why) {
                        self.silent(records, why);
                    }
                    continue;
                }
            };
            silence.end();
            if std::mem::take(&mut lost) {
                self.tell(Event::Answers(records.clone()));
            }
            if let Some(event) = event {
                self.tell(event);
            }
        }
    }
}

/// Reads records. It remembers the block of each, for a record that is gone or can no longer be
/// read.
struct Reader<'r> {
    records: &'r Records,
    kind: Kind,
    known: RefCell<BTreeMap<String, Block>>,
}

impl<'r> Reader<'r> {
    fn new(records: &'r Records) -> Self {
        let kind = if records.kept { Kind::Sticky } else { Kind::Block };
        Reader { records, kind, known: RefCell::default() }
    }

    /// Reads all records that there are.
    fn list(&self, all: &[Entry]) -> Event {
        let before = self.known.take();
        let mut shown = Vec::new();
        for entry in all {
            match self.read(entry) {
                Ok((block, is)) => {
                    self.known.borrow_mut().insert(entry.key.name.clone(), block.clone());
                    shown.push((block, is));
                }
                Err(why) => {
                    let Some(block) =
                        before.get(&entry.key.name).cloned().or_else(|| self.named(&entry.key))
                    else {
                        continue;
                    };
                    self.known.borrow_mut().insert(entry.key.name.clone(), block.clone());
                    shown.push((block, BlockState::Unreadable(why)));
                }
            }
        }
        Event::Listed(self.records.clone(), shown)
    }

    /// Reads a record that is new, or has changed.
    fn change(&self, entry: Option<&Entry>) -> Event {
        let Some(entry) = entry else { return Event::Changed(Vec::new()) };
        let name = &entry.key.name;
        let before = self.known.borrow().get(name).cloned();
        let mut shown = Vec::new();
        match self.read(entry) {
            Ok((block, is)) => {
                shown.extend(
                    before
                        .filter(|before| *before != block)
                        .map(|before| (before, BlockState::Nobody)),
                );
                self.known.borrow_mut().insert(name.clone(), block.clone());
                shown.push((block, is));
            }
            Err(why) => {
                let block = before.or_else(|| self.named(&entry.key));
                shown.extend(block.map(|block| (block, BlockState::Unreadable(why))));
            }
        }
        Event::Changed(shown)
    }

    /// Takes note that a record is gone.
    fn gone(&self, entry: Option<&Entry>) -> Event {
        let block = entry.and_then(|entry| self.known.borrow_mut().remove(&entry.key.name));
        Event::Changed(block.map(|block| (block, BlockState::Nobody)).into_iter().collect())
    }

    fn read(&self, entry: &Entry) -> Result<(Block, BlockState), String> {
        let wrong = || format!("{} is not a valid record", entry.key);
        match self.kind {
            Kind::Sticky => read_kept(&self.records.space, entry).ok_or_else(wrong),
            _ => {
                self.named(&entry.key).and_then(|block| read_block(block, entry)).ok_or_else(wrong)
            }
        }
    }

    /// Finds the block of a record by the record's name. The names of kept addresses' records do
    /// not have it.
    fn named(&self, key: &Key) -> Option<Block> {
        let (space, block) = key.name.rsplit_once('/')?;
        let (address, length) = block.rsplit_once('-')?;
        let prefix = IpNet::new(address.parse().ok()?, length.parse().ok()?).ok()?;
        let is_it = self.kind == Kind::Block && space == self.records.space;
        is_it.then(|| Block { prefix, space: space.to_owned(), kept: false })
    }
}

fn read_block(block: Block, entry: &Entry) -> Option<(Block, BlockState)> {
    let record: BlockRecord = record::read(&entry.value)?;
    let is_of_block = (&record.space, record.block) == (&block.space, block.prefix)
        && block.prefix.trunc() == block.prefix;
    let BlockRecord { node, addresses, .. } = record;
    let shown = if node.is_empty() {
        BlockState::Nobody
    } else {
        BlockState::By(Holder { node, addresses })
    };
    is_of_block.then_some((block, shown))
}

/// Reads the record of an address that a pod keeps. While the pod does not run, no node has the
/// address: the node that holds the block answers for it.
fn read_kept(space: &str, entry: &Entry) -> Option<(Block, BlockState)> {
    let record: StickyRecord = record::read(&entry.value)?;
    if record.space != space {
        return None;
    }
    let prefix = IpNet::from(record.address?);
    let StickyRecord { node, addresses, holder, .. } = record;
    let shown = match holder {
        Some(_) if !node.is_empty() => BlockState::By(Holder { node, addresses }),
        _ => BlockState::Nobody,
    };
    Some((Block { prefix, space: space.to_owned(), kept: true }, shown))
}

#[cfg(test)]
mod tests {
    use cluster_ipam::store::Revision;
    use serde_json::{Value, json};

    use super::*;

    fn entry(kind: Kind, name: &str, value: Value) -> Entry {
        Entry { key: Key::new(kind, name), revision: Revision("7".to_owned()), value }
    }

    /// Says which node has what, in lines.
    fn lines(event: Event) -> Vec<String> {
        let (Event::Listed(_, all) | Event::Changed(all)) = event else { panic!("{event:?}") };
        let line = |(block, shown): (Block, BlockState)| match shown {
            BlockState::By(holder) => format!("{block} {} {:?}", holder.node, holder.addresses),
            BlockState::Nobody => format!("{block} nobody"),
            BlockState::Unreadable(why) => format!("{block}: {why}"),
        };
        all.into_iter().map(line).collect()
    }

    #[test]
    fn a_record_says_who_holds_its_block() {
        let records = Records { space: "storage".to_owned(), kept: false };
        let reader = Reader::new(&records);
        let record = |block: &str, node: &str| json!({"space": "storage", "block": block, "node": node, "epoch": 1, "addresses": ["192.0.2.1"]});
        let name = "storage/10.60.0.64-26";
        let change =
            |name: &str, value: Value| lines(reader.change(Some(&entry(Kind::Block, name, value))));
        let held = "10.60.0.64/26 a [192.0.2.1]";
        assert_eq!(change(name, record("10.60.0.64/26", "a")), [held]);
        assert_eq!(change(name, record("10.60.0.64/26", "")), ["10.60.0.64/26 nobody"]);
        let older = json!({"space": "storage", "block": "10.60.0.64/26", "node": "a", "epoch": 1});
        assert_eq!(change(name, older), ["10.60.0.64/26 a []"]);
        let spoilt = "10.60.0.64/26: blocks/storage/10.60.0.64-26 is not a valid record";
        for value in [
            Value::Null,
            json!({}),
            record("10.60.0.0/26", "a"),
            json!({"space": "other", "block": "10.60.0.64/26", "node": "a", "epoch": 1}),
            json!({"space": "storage", "block": "10.60.0.64/26", "node": "a", "epoch": 1, "addresses": ["tea"]}),
        ] {
            assert_eq!(change(name, value.clone()), [spoilt], "{value}");
            let all = [entry(Kind::Block, name, value)];
            assert_eq!(lines(reader.list(&all)), [spoilt]);
        }
        let bits = change("storage/10.60.0.65-26", record("10.60.0.65/26", "a"));
        assert!(bits[0].contains("is not a valid record"), "{bits:?}");
        for name in ["tea", "other/10.60.0.64-26", "storage/10.60.0.64-99"] {
            assert_eq!(change(name, record("10.60.0.64/26", "a")), [""; 0], "{name}");
        }
        // Of a key that is gone, etcd reports the name alone.
        let gone = |name: &str| lines(reader.gone(Some(&entry(Kind::Block, name, Value::Null))));
        assert_eq!(gone(name), ["10.60.0.64/26 nobody"]);
        assert_eq!(gone(name), [""; 0]);
    }

    #[test]
    fn a_record_says_where_the_pod_is_that_keeps_an_address() {
        let records = Records { space: "storage".to_owned(), kept: true };
        let reader = Reader::new(&records);
        let record = |address: &str, node: &str, container: Option<&str>| {
            let holder = container.map(|container| json!({"container": container}));
            json!({"space": "storage", "name": "web-0", "address": address, "node": node, "holder": holder})
        };
        let change =
            |value: Value| lines(reader.change(Some(&entry(Kind::Sticky, "storage/abc", value))));
        assert_eq!(change(record("10.60.0.70", "b", Some("c1"))), ["10.60.0.70 b []"]);
        assert_eq!(change(record("10.60.0.70", "b", None)), ["10.60.0.70 nobody"]);
        assert_eq!(
            change(record("10.60.0.71", "c", Some("c2"))),
            ["10.60.0.70 nobody", "10.60.0.71 c []"]
        );
        assert_eq!(
            change(json!({"address": "tea"})),
            ["10.60.0.71: sticky/storage/abc is not a valid record"]
        );
        let gone = reader.gone(Some(&entry(Kind::Sticky, "storage/abc", Value::Null)));
        assert_eq!(lines(gone), ["10.60.0.71 nobody"]);
        // Of one that never was readable there is nothing to say.
        assert_eq!(change(Value::Null), [""; 0]);
        // Another program has put a record of another space where this one's are.
        let other = json!({"space": "other", "address": "10.60.0.72", "node": "b", "holder": {"container": "c3"}});
        let all = [entry(Kind::Sticky, "storage/other", other)];
        assert_eq!(lines(reader.list(&all)), [""; 0]);
    }
}
