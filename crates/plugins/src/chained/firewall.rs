//! `firewall`: lets the containers' packets through the host, and isolates containers from each
//! other.
//!
//! A host that forwards lets everything through by default, and then the plugin adds nothing. If
//! other software drops forwarded packets (Docker, ufw, an administrator's iptables), the accept
//! goes into that software's chain, for this attachment's addresses, with its hash in the comment
//! ([`firewall::forward`]). firewalld gets the addresses as sources of a zone
//! ([`firewall::firewalld`]). If there is no such place, as with an administrator's own table, ADD
//! succeeds with a warning that says what to do. `backend: iptables` uses exactly the reference's
//! chains, and `backend: firewalld` the zone, whether or not firewalld would drop anything.
//!
//! `ingressPolicy` isolates bridges, or ports of a bridge, from each other ([`firewall::policy`]);
//! with `backend: iptables` it does so in the reference's chains
//! ([`firewall::iptables::isolation`]). Unlike the reference's rules, ours are removed with the
//! last attachment that asked for them.
//!
//! ADD returns `prevResult` unchanged. DEL needs neither configuration nor `prevResult` nor our
//! record.

mod config;
mod recorded;
mod want;
mod wanted;

use std::net::IpAddr;

use ::firewall::firewalld::{Source, TRUSTED};
use ::firewall::forward::{Blocker, Sender};
use ::firewall::iptables::isolation;
use ::firewall::{Concern, Plan, iptables, reference};
use ::wanted::ForeignPart;
use cni::{AddResult, AttachmentKey, Version, code};
use cni_plugin::{Call, Info, Role};
use state::Index;

use self::config::{Backend, Config};
use self::recorded::RecordData;
use self::want::{addresses, blockers, firewalld, hint, want};
use self::wanted::{foreign, put};
use crate::engine::{Addition, Collection, Kind, NetnsEntry, Removal, Wants as _};
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;
use crate::shared::filter::{collect, remove_own, remove_stale, with_firewall};

/// What the plugin is. The reference supports `prevResult` only in the versions that define it for
/// this plugin.
pub const INFO: Info =
    Info::new("firewall").role(Role::Chained).versions(Version::starting_from(Version::V0_4_0));

/// The plugin's type, and the name of its records.
const NAME: &str = INFO.name;
/// The concerns of this plugin.
const CONCERNS: &[Concern] = &[Concern::Policy];

/// Attachments of `firewall`.
#[derive(Debug)]
pub(crate) struct FirewallPlugin;

impl Kind for FirewallPlugin {
    const INFO: Info = INFO;
    const ENTER: NetnsEntry = NetnsEntry::Never;
    type Raw = config::Raw;
    type Config = Config;
    type RecordData = RecordData;
    type Cache = ();

    fn config(call: &Call<'_>) -> Result<Config, Failure> {
        Config::of(call)
    }

    /// The reference ignores a backend that it does not know, too.
    fn doubts(call: &Call<'_>) -> Vec<Failure> {
        let warning = Config::of(call).ok().and_then(|config| config.warning());
        let doubt =
            |text: String| Failure::new(code::INVALID_CONFIG, text).with_details("key \"backend\"");
        warning.map(doubt).into_iter().collect()
    }

    fn status(call: &Call<'_>) -> Result<(), Failure> {
        let config = Config::of(call)?;
        config.warning().into_iter().for_each(|warning| call.warn(warning));
        let unavailable = |failure: Failure| failure.with_code(code::PLUGIN_NOT_AVAILABLE);
        if config.backend == Backend::Iptables {
            iptables::usable("filter").map_err(|error| unavailable(error.into()))?;
        }
        ::firewall::usable().map_err(|error| unavailable(error.into()))?;
        if config.backend == Backend::Firewalld {
            let there = firewalld(call).require_zone(&config.zone);
            return there.map_err(|error| unavailable(error.into()));
        }
        for drops in blockers(call, &Sender::default()).map_err(unavailable)? {
            // A node that is not ready gets no more containers: what is not certain is not said.
            if !drops.is_certain {
                continue;
            }
            let blocker = drops.blocker;
            let why = match blocker {
                Blocker::Iptables { .. } => continue,
                Blocker::Firewalld if config.backend == Backend::Auto => {
                    match firewalld(call).require_zone(&config.zone) {
                        Ok(()) => continue,
                        Err(error) => Failure::from(error).to_string(),
                    }
                }
                _ => String::new(),
            };
            return Err(Failure::new(
                code::LIMITED_CONNECTIVITY,
                format!("containers do not reach beyond the host: {blocker}"),
            )
            .with_details(why)
            .with_details(hint(&blocker)));
        }
        Ok(())
    }

    fn attach(attaching: &mut Addition<'_, Self>) -> Result<AddResult, Failure> {
        let (call, index, config) = (attaching.call, attaching.index, attaching.config);
        config.warning().into_iter().for_each(|warning| call.warn(warning));
        let result = call.require_prev_result(Self::NO_PREVIOUS)?;
        let key = attaching.key();
        let before = RecordData::read(index, key);
        let wanted = want(call, config, &result, before.as_ref())?;
        wanted.joined(before.as_ref()).write(call, index)?;
        // What an earlier ADD created works until DEL, which finds both in the record.
        if before.is_none() {
            attaching.begin(None);
        }
        put_in_place(call, index, config, &wanted, before.as_ref())?;
        if let Some(before) = before {
            remove_what_changed(index, key, &wanted, &before)?;
            wanted.write(call, index)?;
        }
        Ok(result)
    }

    /// Without a record everything is found by its marks, unless other plugins' records of the
    /// attachment show that none is missing.
    fn take_down(removal: &Removal<'_, Self>, failures: &mut Failures) {
        let Removal { call, index, key, recorded, .. } = removal;
        let recorded = recorded.as_ref();
        let nothing = Plan::default();
        let made_nothing = || index.made_nothing(key, NAME).then_some(&nothing);
        let plan = recorded.map(|recorded| &recorded.plan).or_else(made_nothing);
        failures.note("nftables", remove_own(index, key, plan, CONCERNS));
        let previous = removal.prev_result().map(|result| addresses(&result)).unwrap_or_default();
        let mut all: Vec<IpAddr> = recorded.map(|made| made.addresses.clone()).unwrap_or_default();
        all.extend(previous.iter().filter(|at| !all.contains(at)).collect::<Vec<_>>());
        // The reference's rules, created by any plugin, including ours: with today's iptables they
        // are nftables rules.
        let removed = match recorded {
            _ if call.is_renewed() => Ok(()),
            Some(made) if !made.iptables => {
                reference::remove_forward(index, key, &all).map_err(Failure::from)
            }
            _ => remove_noted(index, key, &all),
        };
        failures.note("rules in the reference's chains", removed);
        failures.note("rules in others' chains", reference::remove_accepts(key));
        if let Some(made) = recorded.filter(|recorded| !recorded.isolation.is_empty()) {
            failures.note("isolation", isolation::release(index, key, &made.isolation));
        }
        let sources = match recorded {
            Some(recorded) => recorded.sources.clone(),
            None => reference_sources(call, &previous),
        };
        if !sources.is_empty() && !call.is_renewed() {
            failures.note("firewalld", firewalld(call).release(index, key, &sources));
        }
    }

    fn collect(collecting: &Collection<'_, Self>, failures: &mut Failures) {
        let Collection { call, index, spared, .. } = collecting;
        failures.note("nftables", collect(call, index, CONCERNS, spared));
        let network = call.network().as_str();
        let left = reference::gc_accepts(network, &|hash| spared.contains(hash));
        failures.note("rules in others' chains", left);
    }
}

fn put_in_place(
    call: &Call<'_>,
    index: &Index,
    config: &Config,
    wanted: &RecordData,
    before: Option<&RecordData>,
) -> Result<(), Failure> {
    let key = call.attachment();
    if !wanted.plan.is_empty() {
        with_firewall(index, |firewall| firewall.add(key, &wanted.plan))?;
    }
    let parts = foreign(config, wanted);
    let (zones, others): (Vec<_>, Vec<_>) =
        parts.iter().partition(|part| matches!(part, ForeignPart::Zones(_)));
    others.into_iter().try_for_each(|part| put(call, index, part))?;
    // An address can be in only one zone at a time.
    let stale = before.map(|before| before.sources_but(&wanted.sources)).unwrap_or_default();
    if !stale.is_empty() {
        firewalld(call).release(index, key, &stale)?;
    }
    zones.into_iter().try_for_each(|part| put(call, index, part))
}

/// Removes what an earlier ADD created and this one does not want.
fn remove_what_changed(
    index: &Index,
    key: &AttachmentKey,
    now: &RecordData,
    before: &RecordData,
) -> Result<(), Failure> {
    remove_stale(index, key, &before.plan, &now.plan)?;
    let gone: Vec<IpAddr> = before
        .addresses
        .iter()
        .copied()
        .filter(|at| !now.iptables || !now.addresses.contains(at))
        .collect();
    if before.iptables {
        remove_noted(index, key, &gone)?;
    }
    let stale = before.isolation_but(&now.isolation);
    if !stale.is_empty() {
        isolation::release(index, key, &stale)?;
    }
    Ok(())
}

/// Removes the note that the attachment needs rules for addresses in the reference's chains, and the
/// rules.
fn remove_noted(index: &Index, key: &AttachmentKey, addresses: &[IpAddr]) -> Result<(), Failure> {
    iptables::filter::forget(index, key, addresses)?;
    Ok(reference::remove_forward(index, key, addresses)?)
}

/// Returns what the reference would have given firewalld. An unreadable configuration names no
/// zone, so the usual one applies.
fn reference_sources(call: &Call<'_>, previous: &[IpAddr]) -> Vec<Source> {
    let config = Config::of(call).ok();
    if config.as_ref().is_some_and(|config| config.backend == Backend::Iptables) {
        return Vec::new();
    }
    let zone = config.map_or_else(|| TRUSTED.to_owned(), |config| config.zone);
    previous.iter().map(|address| Source { zone: zone.clone(), address: *address }).collect()
}
