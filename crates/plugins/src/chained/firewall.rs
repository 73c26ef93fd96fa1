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
use ::firewall::forward::Blocker;
use ::firewall::iptables::isolation;
use ::firewall::{Concern, Plan, iptables, reference};
use ::wanted::Foreign;
use cni::json::{JsonError, UnknownKey, unknown_keys};
use cni::{AddResult, AttachmentKey, Error, Version, code};
use cni_plugin::{Call, Info, Outcome, Plugin, Role};
use state::{Index, Record};

use self::config::{Backend, Config};
use self::recorded::Recorded;
use self::want::{addresses, blockers, firewalld, hint, want};
use self::wanted::{foreign, put};
use crate::engine::{self, Kind as _};
use crate::shared::attachment;
use crate::shared::failures::Failures;
use crate::shared::filter::{
    Spared, change_error, collect, filter_error, firewalld_error, iptables_error, remove_own,
    remove_stale, undo_add, with_firewall,
};

/// What the plugin is. The reference supports `prevResult` only in the versions that define it for
/// this plugin.
pub const INFO: Info =
    Info::new("firewall").role(Role::Chained).versions(Version::starting_from(Version::V0_4_0));

/// The plugin's type, and the name of its records.
const NAME: &str = INFO.name;
/// The concerns of this plugin.
const CONCERNS: &[Concern] = &[Concern::Policy];

/// The plugin.
#[derive(Debug)]
pub struct FirewallPlugin;

impl Plugin for FirewallPlugin {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn add(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        attachment::add_alone(call, || self.add_locked(call))
    }

    fn del(&self, call: &Call<'_>) -> Result<(), Error> {
        let _no_repair = attachment::lock_out_repair(call)?;
        let index = Index::new(call.roots());
        let key = call.attachment();
        let recorded = Recorded::read(&index, key);
        let previous = call.prev_result().ok().flatten().unwrap_or_default();
        take_down(call, &index, key, recorded.as_ref(), &addresses(&previous))
    }

    fn check(&self, call: &Call<'_>) -> Result<(), Error> {
        engine::check::<FirewallPlugin>(call)
    }

    fn repair_and_check(&self, call: &Call<'_>) -> Outcome {
        engine::repair::<FirewallPlugin>(call)
    }

    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        let down = |index: &Index, record: &Record| {
            take_down(call, index, &record.attachment, Recorded::of(record).as_ref(), &[])
        };
        let foreign = |network: &str, spared: &Spared<'_>| {
            reference::gc_accepts(network, &|hash| spared.contains(hash))
        };
        collect(call, NAME, CONCERNS, down, "rules in others' chains", foreign)
    }

    fn validate(&self, call: &Call<'_>) -> Result<(), Error> {
        Config::of(call).map(drop)
    }

    fn status(&self, call: &Call<'_>) -> Result<(), Error> {
        let config = Config::of(call)?;
        config.warning().into_iter().for_each(|warning| call.warn(warning));
        let unavailable = |error: Error| Error { code: code::PLUGIN_NOT_AVAILABLE, ..error };
        if config.backend == Backend::Iptables {
            iptables::usable("filter").map_err(|error| unavailable(iptables_error(&error)))?;
        }
        ::firewall::usable().map_err(|error| unavailable(filter_error(&error)))?;
        if config.backend == Backend::Firewalld {
            let there = firewalld(call).require_zone(&config.zone);
            return there.map_err(|error| unavailable(firewalld_error(&error)));
        }
        for blocker in blockers(call).map_err(unavailable)? {
            let why = match blocker {
                Blocker::Iptables { .. } => continue,
                Blocker::Firewalld if config.backend == Backend::Auto => {
                    match firewalld(call).require_zone(&config.zone) {
                        Ok(()) => continue,
                        Err(error) => firewalld_error(&error).to_string(),
                    }
                }
                _ => String::new(),
            };
            return Err(Error::new(
                code::LIMITED_CONNECTIVITY,
                format!("containers do not reach beyond the host: {blocker}"),
            )
            .with_details(why)
            .with_details(hint(&blocker)));
        }
        Ok(())
    }

    fn unknown_keys(&self, config: &str) -> Result<Vec<UnknownKey>, JsonError> {
        unknown_keys::<config::Raw>(config)
    }
}

impl FirewallPlugin {
    /// Runs ADD under the attachment's lock.
    fn add_locked(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        let config = Config::of(call)?;
        config.warning().into_iter().for_each(|warning| call.warn(warning));
        let result = call.require_prev_result(Self::NO_PREVIOUS)?;
        let index = Index::new(call.roots());
        let key = call.attachment();
        let before = Recorded::read(&index, key);
        let wanted = want(call, &config, &result, before.as_ref())?;
        wanted.joined(before.as_ref()).write(call, &index)?;
        put_in_place(call, &index, &config, &wanted, before.as_ref()).map_err(|error| {
            let undo = || take_down(call, &index, key, Some(&wanted), &[]);
            undo_add(error, before.is_none(), undo)
        })?;
        if let Some(before) = before {
            remove_what_changed(&index, key, &wanted, &before)?;
            wanted.write(call, &index)?;
        }
        Ok(result)
    }
}

fn put_in_place(
    call: &Call<'_>,
    index: &Index,
    config: &Config,
    wanted: &Recorded,
    before: Option<&Recorded>,
) -> Result<(), Error> {
    let key = call.attachment();
    if !wanted.plan.is_empty() {
        with_firewall(index, |firewall| firewall.add(key, &wanted.plan))?;
    }
    let parts = foreign(config, wanted);
    let (zones, others): (Vec<_>, Vec<_>) =
        parts.iter().partition(|part| matches!(part, Foreign::Zones(_)));
    others.into_iter().try_for_each(|part| put(call, index, part))?;
    // An address can be in only one zone at a time.
    let stale = before.map(|before| before.sources_but(&wanted.sources)).unwrap_or_default();
    if !stale.is_empty() {
        firewalld(call).release(index, key, &stale).map_err(|error| firewalld_error(&error))?;
    }
    zones.into_iter().try_for_each(|part| put(call, index, part))
}

/// Removes what an earlier ADD created and this one does not want.
fn remove_what_changed(
    index: &Index,
    key: &AttachmentKey,
    now: &Recorded,
    before: &Recorded,
) -> Result<(), Error> {
    remove_stale(index, key, &before.plan, &now.plan)?;
    let gone: Vec<IpAddr> = before
        .addresses
        .iter()
        .copied()
        .filter(|at| !now.iptables || !now.addresses.contains(at))
        .collect();
    if before.iptables && !gone.is_empty() {
        reference::remove_forward(&gone).map_err(|error| filter_error(&error))?;
    }
    let stale = before.isolation_but(&now.isolation);
    if !stale.is_empty() {
        isolation::release(index, key, &stale).map_err(|error| change_error(&error))?;
    }
    Ok(())
}

/// Removes everything of an attachment. Without a record it is found by its marks, unless other
/// plugins' records of the attachment show that none is missing.
fn take_down(
    call: &Call<'_>,
    index: &Index,
    key: &AttachmentKey,
    recorded: Option<&Recorded>,
    previous: &[IpAddr],
) -> Result<(), Error> {
    let mut failures = Failures::new();
    let nothing = Plan::default();
    let made_nothing = || index.made_nothing(key, NAME).then_some(&nothing);
    let plan = recorded.map(|recorded| &recorded.plan).or_else(made_nothing);
    failures.note("nftables", remove_own(index, key, plan, CONCERNS));
    let mut addresses: Vec<IpAddr> =
        recorded.map(|recorded| recorded.addresses.clone()).unwrap_or_default();
    addresses.extend(previous.iter().filter(|at| !addresses.contains(at)).collect::<Vec<_>>());
    // The reference's rules, whichever plugin created them, including ours: with today's iptables
    // they are nftables rules.
    let left = reference::remove_forward(&addresses);
    failures.note("rules in the reference's chains", left.map_err(|error| filter_error(&error)));
    let left = reference::remove_accepts(key);
    failures.note("rules in others' chains", left.map_err(|error| filter_error(&error)));
    if let Some(recorded) = recorded.filter(|recorded| !recorded.isolation.is_empty()) {
        let released = isolation::release(index, key, &recorded.isolation);
        failures.note("isolation", released.map_err(|error| change_error(&error)));
    }
    let sources = match recorded {
        Some(recorded) => recorded.sources.clone(),
        None => reference_sources(call, previous),
    };
    if !sources.is_empty() {
        let released = firewalld(call).release(index, key, &sources);
        failures.note("firewalld", released.map_err(|error| firewalld_error(&error)));
    }
    if failures.is_empty() {
        failures.note("record", attachment::forget(index, key, NAME));
    }
    failures.into_result()
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
