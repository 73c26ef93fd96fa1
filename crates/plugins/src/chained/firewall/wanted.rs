//! What an attachment of `firewall` wants, for CHECK and repair.

use cni::Error;
use cni_plugin::Call;
use firewall::iptables::{filter, isolation};
use state::Index;
use wanted::{Because, Foreign, Item, State, Wanted};

use super::config::Config;
use super::recorded::Recorded;
use super::want::{firewalld, want};
use super::{FirewallPlugin, NAME};
use crate::engine::{Attached, Compared, Found, Kind, Picture, unknown};
use crate::shared::filter::{change_error, firewalld_error, iptables_error};
use crate::shared::rules;

impl Kind for FirewallPlugin {
    const NAME: &'static str = NAME;
    const CHAINED: bool = true;
    /// The reference's words.
    const NO_PREVIOUS: &'static str = "missing prevResult from earlier plugin";
    type Config = Config;
    type Recorded = Recorded;
    /// What the packet filters of this host make necessary.
    type Observed = Recorded;

    fn config(call: &Call<'_>) -> Result<Config, Error> {
        Config::of(call)
    }

    fn observe(
        config: &Config,
        recorded: Option<&Recorded>,
        attached: &Attached<'_>,
        picture: &mut Picture<'_>,
    ) -> Result<Recorded, Error> {
        want(picture.call, config, attached.result, recorded)
    }

    fn wanted(config: &Config, _: Option<&Recorded>, seen: &Recorded, _: &Attached<'_>) -> Wanted {
        let mut wanted = Wanted::new();
        let because = Because::Key("ingressPolicy".to_owned());
        wanted.extend(rules::wanted(None, seen.plan.clone(), Vec::new(), because));
        let item = |foreign| Item::host(State::Foreign(foreign), Because::Outbound);
        wanted.extend(foreign(config, seen).into_iter().map(item));
        wanted
    }

    fn compare(_: &Config, picture: &mut Picture<'_>, item: &Item) -> Compared {
        let State::Foreign(foreign) = &item.state else {
            return Err(unknown(item));
        };
        let key = picture.call.attachment();
        let missing = match foreign {
            Foreign::Chains { addresses, admin_chain } => filter::check(addresses, admin_chain),
            Foreign::Isolation(bridges) => isolation::check(bridges),
            Foreign::Accept { addresses, legacy } => filter::check_accept(addresses, key, *legacy),
            Foreign::Zones(sources) => {
                let missing = firewalld(picture.call).check(sources);
                return Ok(found(missing.map_err(|error| firewalld_error(&error))?));
            }
        };
        Ok(found(missing.map_err(|error| iptables_error(&error))?))
    }

    fn restore(
        _: &Config,
        picture: &mut Picture<'_>,
        item: &Item,
    ) -> Result<Option<String>, Error> {
        match &item.state {
            State::Foreign(foreign) => put(picture.call, picture.index, foreign).map(|()| None),
            _ => Err(unknown(item)),
        }
    }

    /// What is wanted depends on the host: DEL must find in the record what repair adds.
    fn before_repair(call: &Call<'_>, index: &Index) -> Result<(), Error> {
        let result = call.require_prev_result(Self::NO_PREVIOUS)?;
        let recorded = Recorded::read(index, call.attachment());
        let wanted = want(call, &Config::of(call)?, &result, recorded.as_ref())?;
        let both = wanted.joined(recorded.as_ref());
        if recorded.as_ref() == Some(&both) {
            return Ok(());
        }
        both.write(call, index)
    }
}

fn found(missing: Vec<String>) -> Vec<Found> {
    missing.into_iter().map(|text| Found::new(format!("packet filter: {text}"))).collect()
}

/// Lists what an attachment needs of packet filters that are not ours.
pub(super) fn foreign(config: &Config, facts: &Recorded) -> Vec<Foreign> {
    let mut all = Vec::new();
    if facts.iptables {
        let admin_chain = config.admin_chain.clone();
        all.push(Foreign::Chains { addresses: facts.addresses.clone(), admin_chain });
    }
    if !facts.isolation.is_empty() {
        all.push(Foreign::Isolation(facts.isolation.clone()));
    }
    all.extend(facts.accepted.iter().map(|accepted| Foreign::Accept {
        addresses: facts.addresses_of(*accepted),
        legacy: accepted.legacy,
    }));
    if !facts.sources.is_empty() {
        all.push(Foreign::Zones(facts.sources.clone()));
    }
    all
}

/// Puts such a part in place. What is there stays.
pub(super) fn put(call: &Call<'_>, index: &Index, foreign: &Foreign) -> Result<(), Error> {
    let key = call.attachment();
    match foreign {
        Foreign::Chains { addresses, admin_chain } => {
            filter::add(index, addresses, admin_chain).map_err(|error| change_error(&error))
        }
        Foreign::Isolation(bridges) => {
            isolation::hold(index, key, bridges).map_err(|error| change_error(&error))
        }
        Foreign::Accept { addresses, legacy } => {
            filter::accept(addresses, key, *legacy).map_err(|error| iptables_error(&error))
        }
        Foreign::Zones(sources) => {
            firewalld(call).hold(index, key, sources).map_err(|error| firewalld_error(&error))
        }
    }
}
