//! `sbr`: packets leave by the interface whose address they carry (source-based routing).
//!
//! Each address of the container's interface gets a routing table of its own, from 100 on, and a
//! rule that sends packets from that address there. The interface's routes move from the main table
//! into those tables; the gateway gets a default route in each. With `table` the plugin adds only
//! rules, and another program owns the table.
//!
//! Unlike with the reference, routes of one family never get into a table of the other, the
//! link-local prefix stays in the main table too, a route that belongs to no address is not lost,
//! and ADD can be repeated. DEL finds what ADD created by our record: the interface or the
//! namespace may be gone, and DEL creates no file in their place.
//!
//! The plugin chooses tables and removes rules while it holds the namespace's lock, as the
//! reference does ([`netns_lock`]).

mod config;
mod node;
mod plan;
mod remove;
mod verify;

use std::net::IpAddr;

use cni::json::{JsonError, UnknownKey, unknown_keys};
use cni::{AddResult, Error, IpConfig, code};
use cni_plugin::{Call, Info, Outcome, Plugin, Role};
use kernel::netns::Netns;
use serde::{Deserialize, Serialize};
use state::{Index, Record};

use self::config::Config;
use self::node::Node;
use crate::shared::{attachment, identity, netns_lock, repair, steps};

/// What the plugin is.
pub const INFO: Info = Info::new("sbr").role(Role::Chained);

/// The plugin's type, and the name of its records.
const NAME: &str = INFO.name;
/// The reference's words.
const NO_PREVIOUS: &str = "This plugin must be called as chained plugin";

/// The plugin.
#[derive(Debug)]
pub struct Sbr;

/// What ADD records about an attachment for DEL.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Facts {
    /// Which table packets from which address use.
    sources: Vec<Source>,
    /// Whether the tables are ours, with their routes.
    own_tables: bool,
    /// The interface's ifindex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ifindex: Option<u32>,
}

/// A rule of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Source {
    address: IpAddr,
    table: u32,
}

impl Plugin for Sbr {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn add(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        attachment::add_alone(call, || self.add_locked(call))
    }

    fn del(&self, call: &Call<'_>) -> Result<(), Error> {
        let _no_repair = repair::lock_out_repair(call)?;
        remove::del(call)
    }

    fn check(&self, call: &Call<'_>) -> Result<(), Error> {
        verify::check(call)
    }

    fn repair(&self, call: &Call<'_>) -> Result<Vec<String>, Error> {
        let is_same = || identity::refuse_another(call, NAME);
        repair::by_adding_again(call, self, NAME, is_same)
    }

    fn repair_and_check(&self, call: &Call<'_>) -> Outcome {
        repair::unless_sound(self, call)
    }

    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        remove::gc(call)
    }

    fn validate(&self, call: &Call<'_>) -> Result<(), Error> {
        Config::of(call).map(drop)
    }

    fn status(&self, call: &Call<'_>) -> Result<(), Error> {
        verify::status(call)
    }

    fn unknown_keys(&self, config: &str) -> Result<Vec<UnknownKey>, JsonError> {
        unknown_keys::<config::Raw>(config)
    }
}

impl Sbr {
    /// Runs ADD under the attachment's lock.
    fn add_locked(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        let config = Config::of(call)?;
        let result = call.require_prev_result(NO_PREVIOUS)?;
        let ips = addresses(call, &result)?;
        let netns = call.open_netns()?;
        let index = Index::new(call.roots());
        let key = call.attachment();
        let before: Option<Facts> = attachment::read_facts(&index, key, NAME);
        let record = index.get(key, NAME).found;
        let same = record.as_ref().is_some_and(|record| is_of(record, &netns));
        let noted = before.as_ref().filter(|before| same && before.own_tables);
        let noted = noted.map_or(&[][..], |before| &before.sources);
        let _lock = netns_lock::lock(&netns)?;
        let mut node = Node::observe(&netns, call.ifname().as_str())?;
        let plan = plan::add(&config, &ips, &node.link, &node.state, noted);
        let facts = Facts {
            sources: plan.sources,
            own_tables: config.table.is_none(),
            ifindex: Some(node.link.index),
        };
        attachment::write_down(call, &index, NAME, &facts, &netns)?;
        let done = steps::apply(&mut node.socket, &plan.steps);
        done.map_err(|error| match &before {
            // The record describes what is still there.
            Some(before) => match attachment::write_down(call, &index, NAME, before, &netns) {
                Ok(()) => error,
                Err(also) => error.with_details(also.to_string()),
            },
            None => match attachment::forget(&index, key, NAME) {
                Ok(()) => error,
                Err(also) => error.with_details(also.to_string()),
            },
        })?;
        Ok(result)
    }
}

/// Returns whether a record is of this very namespace.
fn is_of(record: &Record, netns: &Netns) -> bool {
    record.netns_id.is_some() && record.noted().is_some_and(|noted| noted.is(netns))
}

/// Returns the addresses of the container's interface, each once.
fn addresses(call: &Call<'_>, result: &AddResult) -> Result<Vec<IpConfig>, Error> {
    let ifname = call.ifname().as_str();
    let mut ips: Vec<IpConfig> = Vec::new();
    for ip in result.container_ips(ifname) {
        if !ips.iter().any(|known| known.address.addr() == ip.address.addr()) {
            ips.push(ip.clone());
        }
    }
    if ips.is_empty() {
        return Err(Error::new(
            code::INVALID_CONFIG,
            format!("No IP addresses supplied on interface: {ifname}"),
        ));
    }
    Ok(ips)
}
