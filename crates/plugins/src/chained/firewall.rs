//! `firewall`: lets the containers' packets through the host, and keeps containers apart.
//!
//! By itself a host that forwards lets everything through, and then nothing is added. Where somebody else drops what
//! is forwarded (Docker, ufw, an administrator's iptables), the accept goes into their chain, for this attachment's
//! addresses, with its hash in the comment ([`firewall::forward`]). Where there is no such place, as with firewalld, ADD
//! succeeds with a warning that says what to do. `backend: iptables` leads to the reference's chains, to the letter.
//!
//! `ingressPolicy` keeps bridges, or ports of a bridge, apart ([`firewall::policy`]). Unlike the reference's rules
//! ours go with the last attachment that asked for them.
//!
//! ADD returns `prevResult` as it came. DEL needs neither configuration nor `prevResult` nor our record.

mod config;

use std::net::IpAddr;

use ::firewall::forward::{self, Blocker};
use ::firewall::iptables::filter;
use ::firewall::policy::{self, IngressPolicy};
use ::firewall::{Concern, Firewall, Plan, iptables, reference};
use cni::json::{JsonError, UnknownKey, unknown_keys};
use cni::{AddResult, AttachmentKey, Error, Version, code};
use cni_plugin::{Call, Plugin};
use serde::{Deserialize, Serialize};
use state::{FileError, Index, NetnsIdentity, Record};

use self::config::{Backend, Config};
use crate::shared::failures::Failures;
use crate::shared::filter::{change_error, drift, filter_error, iptables_error, valid_keys};
use crate::shared::shared_object::file_error;

/// The plugin's type, and the name of its records.
const NAME: &str = "firewall";
/// What the plugin looks after.
const CONCERNS: &[Concern] = &[Concern::Policy];
/// The reference supports `prevResult` only in the versions that define it for this plugin.
const VERSIONS: &[Version] = &[Version::V0_4_0, Version::V1_0_0, Version::V1_1_0];
/// The reference's words.
const NO_PREVIOUS: &str = "missing prevResult from earlier plugin";

/// The plugin.
#[derive(Debug)]
pub struct FirewallPlugin;

/// What ADD notes about an attachment, and DEL reads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Facts {
    /// What is wanted of nftables.
    plan: Plan,
    /// The addresses that are let through.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    addresses: Vec<IpAddr>,
    /// Whether the reference's chains let them through.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    iptables: bool,
    /// Where somebody else's chain had to be told to let them through.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    accepted: Vec<Accepted>,
}

/// A chain `FORWARD` of iptables, or Docker's beside it, that lets an attachment's addresses through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Accepted {
    /// Whether IPv4 or IPv6 is meant.
    ipv4: bool,
    /// Whether it is in legacy iptables.
    legacy: bool,
}

impl Plugin for FirewallPlugin {
    fn name(&self) -> &'static str {
        NAME
    }

    fn versions(&self) -> &'static [Version] {
        VERSIONS
    }

    fn add(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        let config = Config::of(call)?;
        let result = call.require_prev_result(NO_PREVIOUS)?;
        let index = Index::new(call.roots());
        let key = call.attachment();
        let wanted = want(call, &config, &result)?;
        let before = Facts::read(&index, key);
        wanted.joined(before.as_ref()).write(call, &index).map_err(|error| file_error(&error))?;
        if let Err(error) = put_in_place(&index, key, &config, &wanted) {
            if before.is_some() {
                // What the first ADD made goes on working until DEL, which finds both noted.
                return Err(error);
            }
            return Err(match take_down(&index, key, Some(&wanted), &[]) {
                Ok(()) => error,
                Err(undo) => error.with_details(format!("undoing it failed too: {undo}")),
            });
        }
        if let Some(before) = before {
            remove_what_changed(&index, key, &wanted, &before)?;
            wanted.write(call, &index).map_err(|error| file_error(&error))?;
        }
        Ok(result)
    }

    fn del(&self, call: &Call<'_>) -> Result<(), Error> {
        let index = Index::new(call.roots());
        let key = call.attachment();
        let facts = Facts::read(&index, key);
        let previous = call.prev_result().ok().flatten().unwrap_or_default();
        take_down(&index, key, facts.as_ref(), &addresses(&previous))
    }

    fn check(&self, call: &Call<'_>) -> Result<(), Error> {
        let config = Config::of(call)?;
        let result = call.require_prev_result(NO_PREVIOUS)?;
        let index = Index::new(call.roots());
        let key = call.attachment();
        let wanted = want(call, &config, &result)?;
        let mut differences = Vec::new();
        if !wanted.plan.is_empty() {
            differences = Firewall::open(&index)
                .and_then(|mut firewall| firewall.check(key, &wanted.plan))
                .map_err(|error| filter_error(&error))?;
        }
        if wanted.iptables {
            differences.extend(
                filter::check(&wanted.addresses, &config.admin_chain)
                    .map_err(|error| iptables_error(&error))?,
            );
        }
        for accepted in &wanted.accepted {
            let addresses = wanted.addresses_of(*accepted);
            differences.extend(
                filter::check_accept(&addresses, key, accepted.legacy)
                    .map_err(|error| iptables_error(&error))?,
            );
        }
        drift(&differences)
    }

    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        let index = Index::new(call.roots());
        let valid = valid_keys(call);
        let mut failures = Failures::new();
        for record in index.of_network(call.network().as_str()).found {
            if record.plugin == NAME && !valid.contains(&record.attachment) {
                let facts = Facts::of(&record);
                let down = take_down(&index, &record.attachment, facts.as_ref(), &[]);
                failures.note(&record.attachment, down);
            }
        }
        // What nobody has a record of.
        let collected = Firewall::open(&index)
            .and_then(|mut firewall| firewall.gc(call.network().as_str(), &valid, CONCERNS));
        failures.note("nftables", collected.map_err(|error| filter_error(&error)));
        let left = reference::gc_accepts(call.network().as_str(), &valid);
        failures.note("rules in others' chains", left.map_err(|error| filter_error(&error)));
        failures.into_result()
    }

    fn status(&self, call: &Call<'_>) -> Result<(), Error> {
        let config = Config::of(call)?;
        let unavailable = |error: Error| Error { code: code::PLUGIN_NOT_AVAILABLE, ..error };
        if config.backend == Backend::Iptables {
            iptables::usable("filter").map_err(|error| unavailable(iptables_error(&error)))?;
        }
        ::firewall::usable().map_err(|error| unavailable(filter_error(&error)))?;
        let blockers = blockers(config.backend).map_err(unavailable)?;
        match blockers.iter().find_map(|blocker| Some((blocker, blocker.hint()?))) {
            Some((blocker, hint)) => Err(Error::new(
                code::LIMITED_CONNECTIVITY,
                format!("containers do not reach beyond the host: {blocker}"),
            )
            .with_details(hint)),
            None => Ok(()),
        }
    }

    fn unknown_keys(&self, config: &str) -> Result<Vec<UnknownKey>, JsonError> {
        unknown_keys::<config::Raw>(config)
    }
}

impl Facts {
    /// Reads the note of an attachment. One that cannot be read is none.
    fn read(index: &Index, key: &AttachmentKey) -> Option<Facts> {
        index.get(key, NAME).found.as_ref().and_then(Facts::of)
    }

    fn of(record: &Record) -> Option<Facts> {
        serde_json::from_value(record.data.clone()).ok()
    }

    /// Writes the note, before anything is changed.
    fn write(&self, call: &Call<'_>, index: &Index) -> Result<(), FileError> {
        let data = serde_json::to_value(self).expect("notes have string keys only");
        let record = Record::new(call.attachment().clone(), NAME, state::boot_id()?, data);
        let netns = call.open_netns_if_there().ok().flatten();
        let id = netns.map(|netns| NetnsIdentity { dev: netns.id().dev, ino: netns.id().ino });
        index.put(&match call.netns_path() {
            Some(path) => record.with_netns(path, id),
            None => record,
        })
    }

    /// Returns the addresses that a chain lets through.
    fn addresses_of(&self, accepted: Accepted) -> Vec<IpAddr> {
        self.addresses.iter().copied().filter(|at| at.is_ipv4() == accepted.ipv4).collect()
    }

    /// Returns these facts and what is in `before` beside them.
    fn joined(&self, before: Option<&Facts>) -> Facts {
        let mut all = self.clone();
        if let Some(before) = before {
            all.plan.join(before.plan.clone());
            all.iptables |= before.iptables;
            all.addresses.extend(before.addresses.iter().filter(|at| !self.addresses.contains(at)));
        }
        all
    }
}

/// Lists the addresses of a result, whatever interface they are on, as the reference does.
fn addresses(result: &AddResult) -> Vec<IpAddr> {
    result.ips.iter().map(|ip| ip.address.addr()).collect()
}

/// Decides what the attachment wants. Looks, changes nothing.
fn want(call: &Call<'_>, config: &Config, result: &AddResult) -> Result<Facts, Error> {
    let plan = match config.policy {
        IngressPolicy::Open => Plan::default(),
        policy => {
            let (bridge, port) = bridge_and_port(call, policy, result)?;
            policy::plan(policy, bridge, port)
        }
    };
    let addresses = addresses(result);
    let mut accepted = Vec::new();
    if config.backend == Backend::Auto {
        for blocker in blockers(config.backend)? {
            match &blocker {
                Blocker::Iptables { family, legacy } => {
                    let ipv4 = *family == iptables::Family::V4;
                    if addresses.iter().any(|at| at.is_ipv4() == ipv4) {
                        accepted.push(Accepted { ipv4, legacy: *legacy });
                    }
                }
                other => call.warn(format_args!(
                    "{other}: the container may not reach beyond the host; {}",
                    other.hint().unwrap_or_default()
                )),
            }
        }
    }
    let iptables = config.backend == Backend::Iptables;
    Ok(Facts { plan, addresses, iptables, accepted })
}

/// Finds the bridge and the container's port of it in what the plugin before returned.
fn bridge_and_port<'r>(
    call: &Call<'_>,
    policy: IngressPolicy,
    result: &'r AddResult,
) -> Result<(&'r str, &'r str), Error> {
    let name = match policy {
        IngressPolicy::Open => "open",
        IngressPolicy::SameBridge => "same-bridge",
        IngressPolicy::Isolated => "isolated",
    };
    let missing = || {
        Error::new(
            code::INVALID_CONFIG,
            format!(
                "interface needs to be set for ingress policy {name:?}, make sure to chain \"firewall\" plugin \
                 with \"bridge\""
            ),
        )
    };
    let mut host = result.interfaces.iter().filter(|link| link.sandbox.is_empty());
    let bridge = host.next().ok_or_else(missing)?;
    match host.next() {
        Some(port) => Ok((&bridge.name, &port.name)),
        None if policy == IngressPolicy::SameBridge => Ok((&bridge.name, "")),
        None => Err(missing().with_details(format!(
            "prevResult of {} lists no port of bridge {:?}",
            call.ifname(),
            bridge.name
        ))),
    }
}

fn blockers(backend: Backend) -> Result<Vec<Blocker>, Error> {
    let found = forward::blockers().map_err(|error| filter_error(&error))?;
    Ok(match backend {
        // The reference's chains are jumped to from FORWARD.
        Backend::Iptables => found
            .into_iter()
            .filter(|blocker| !matches!(blocker, Blocker::Iptables { .. }))
            .collect(),
        Backend::Auto => found,
    })
}

fn put_in_place(
    index: &Index,
    key: &AttachmentKey,
    config: &Config,
    wanted: &Facts,
) -> Result<(), Error> {
    if !wanted.plan.is_empty() {
        Firewall::open(index)
            .and_then(|mut firewall| firewall.add(key, &wanted.plan))
            .map_err(|error| filter_error(&error))?;
    }
    if wanted.iptables {
        filter::add(index, &wanted.addresses, &config.admin_chain)
            .map_err(|error| change_error(&error))?;
    }
    for accepted in &wanted.accepted {
        filter::accept(&wanted.addresses_of(*accepted), key, accepted.legacy)
            .map_err(|error| iptables_error(&error))?;
    }
    Ok(())
}

/// Removes what an earlier ADD made and this one does not want.
fn remove_what_changed(
    index: &Index,
    key: &AttachmentKey,
    now: &Facts,
    before: &Facts,
) -> Result<(), Error> {
    let mut stale = before.plan.clone();
    stale.own.retain(|element| !now.plan.own.contains(element));
    stale.shared.retain(|shared| !now.plan.shared.contains(shared));
    if !stale.is_empty() {
        Firewall::open(index)
            .and_then(|mut firewall| firewall.remove(key, &stale))
            .map_err(|error| filter_error(&error))?;
    }
    let gone: Vec<IpAddr> = before
        .addresses
        .iter()
        .copied()
        .filter(|at| !now.iptables || !now.addresses.contains(at))
        .collect();
    if before.iptables && !gone.is_empty() {
        reference::remove_forward(&gone).map_err(|error| filter_error(&error))?;
    }
    Ok(())
}

/// Removes everything of an attachment. Without facts it is found by its marks, unless other plugins' records of
/// the attachment show that the account is whole.
fn take_down(
    index: &Index,
    key: &AttachmentKey,
    facts: Option<&Facts>,
    previous: &[IpAddr],
) -> Result<(), Error> {
    let mut failures = Failures::new();
    let removed = match facts {
        Some(facts) if facts.plan.is_empty() => Ok(()),
        Some(facts) => {
            Firewall::open(index).and_then(|mut firewall| firewall.remove(key, &facts.plan))
        }
        None if !index.of_attachment(key).found.is_empty() => Ok(()),
        None => {
            Firewall::open(index).and_then(|mut firewall| firewall.remove_unrecorded(key, CONCERNS))
        }
    };
    failures.note("nftables", removed.map_err(|error| filter_error(&error)));
    let mut addresses: Vec<IpAddr> = facts.map(|facts| facts.addresses.clone()).unwrap_or_default();
    addresses.extend(previous.iter().filter(|at| !addresses.contains(at)).collect::<Vec<_>>());
    // The reference's rules, whoever made them, and ours among others': with today's iptables they are rules of
    // nftables.
    let left = reference::remove_forward(&addresses);
    failures.note("rules in the reference's chains", left.map_err(|error| filter_error(&error)));
    let left = reference::remove_accepts(key);
    failures.note("rules in others' chains", left.map_err(|error| filter_error(&error)));
    if failures.is_empty() {
        let removed = index.remove(key, NAME).map(drop);
        failures.note("record", removed.map_err(|error| file_error(&error)));
    }
    failures.into_result()
}
