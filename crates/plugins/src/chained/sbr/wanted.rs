//! What an attachment of `sbr` wants, for ADD, CHECK and repair.

use cni::{IpConfig, code};
use wanted::{Item, Place, Reason, SourceRoute, State, Wanted};

use super::config::Config;
use super::{NO_PREVIOUS, RecordData, Sbr, Source, addresses, plan};
use crate::engine::{self, Attachment, Comparison, Kind as _, Mismatch, Picture, Wants};
use crate::shared::failure::Failure;
use crate::shared::policy::Policy;
use crate::shared::{attachment, netns_lock, steps};

impl Wants for Sbr {
    const NO_PREVIOUS: &'static str = NO_PREVIOUS;
    /// The addresses of the interface, and the table of each.
    type Observation = (Vec<IpConfig>, Vec<Source>);

    /// Finds the tables: after a loss they are those that ADD would choose.
    fn observe(
        attached: &Attachment<'_, Self>,
        picture: &mut Picture<'_>,
    ) -> Result<Self::Observation, Failure> {
        let (config, recorded) = (attached.config, attached.recorded);
        let ips = addresses(attached.ifname, attached.result)?;
        let policy = picture.policy(Place::Container)?;
        let sources = plan::sources(config, &ips, policy, RecordData::tables(recorded));
        Ok((ips, sources))
    }

    fn wanted(attached: &Attachment<'_, Self>, (ips, sources): &Self::Observation) -> Wanted {
        let config = attached.config;
        let mut wanted = engine::wanted_of_another(attached.ifname);
        let routes = RecordData::routes(attached.recorded);
        wanted.extend(items(config, ips, sources, routes, attached.ifname));
        wanted
    }

    fn compare(_: &Config, picture: &mut Picture<'_>, item: &Item) -> Comparison {
        compare(picture, item)
    }

    /// Does what ADD would do, under the namespace's lock.
    fn restore(
        _: &Config,
        picture: &mut Picture<'_>,
        item: &Item,
    ) -> Result<Option<String>, Failure> {
        let note = |picture: &Picture<'_>, policy: &Policy| match &item.state {
            State::Rule(rule) => {
                record(picture, policy, Source { address: rule.from, table: rule.table })
            }
            _ => Ok(()),
        };
        restore(picture, item, note).map(|()| None)
    }
}

/// Compares an item with the rules and routes of the namespace.
pub(super) fn compare(picture: &mut Picture<'_>, item: &Item) -> Comparison {
    let oif = ifindex(picture, item)?;
    let found = plan::differences(&item.state, oif, picture.policy(item.place)?);
    Ok(found.into_iter().map(Mismatch::new).collect())
}

/// Makes an item as it is wanted, under the namespace's lock. `note` records first what DEL needs
/// to know.
pub(super) fn restore(
    picture: &mut Picture<'_>,
    item: &Item,
    note: impl FnOnce(&Picture<'_>, &Policy) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let oif = ifindex(picture, item)?;
    let _lock = netns_lock::lock(&picture.namespaces.get()?.netns)?;
    let policy = Policy::read(&mut picture.namespaces.get()?.inside)?;
    note(picture, &policy)?;
    let steps = plan::steps(item, oif, &policy);
    steps::apply(&mut picture.namespaces.get()?.inside, &steps).map(drop)
}

/// The rules and the tables, in the order in which ADD makes them. `routes` are those into the
/// addresses' subnets that ADD recorded.
pub(super) fn items(
    config: &Config,
    ips: &[IpConfig],
    sources: &[Source],
    routes: &[SourceRoute],
    ifname: &str,
) -> Vec<Item> {
    let rules = sources.iter().map(|&Source { address, table }| {
        State::Rule(wanted::Rule { link: ifname.to_owned(), from: address, table })
    });
    let tables = plan::tables(config, ips, sources, routes, ifname).map(State::SourceTables);
    rules.chain(tables).map(|state| Item::container(state, Reason::Outbound)).collect()
}

fn ifindex(picture: &mut Picture<'_>, item: &Item) -> Result<u32, Failure> {
    let name = item.state.link().unwrap_or_default();
    Ok(picture.link(item.place, name)?.map_or(0, |link| link.index))
}

/// Records the table of an address before a rule leads there: DEL goes by the record.
fn record(picture: &Picture<'_>, policy: &Policy, source: Source) -> Result<(), Failure> {
    let key = picture.call.attachment();
    let Some(mut record) = picture.index.get(key, Sbr::NAME).found else { return Ok(()) };
    let recorded: Option<RecordData> = attachment::recorded_in(&record);
    let Some(mut recorded) = recorded.filter(|recorded| recorded.own_tables) else { return Ok(()) };
    if plan::is_taken(&source, policy) {
        let text = format!("another rule uses table {} by now", source.table);
        return Err(Failure::new(code::TRY_AGAIN_LATER, text));
    }
    if recorded.sources.contains(&source) {
        return Ok(());
    }
    recorded.sources.retain(|known| known.address != source.address);
    recorded.sources.push(source);
    record.data = serde_json::to_value(recorded).expect("a record has string keys only");
    Ok(picture.index.put(&record)?)
}
