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
mod plan;
mod remove;
mod wanted;

use std::net::IpAddr;

use cni::json::{JsonError, UnknownKey, unknown_keys};
use cni::{AddResult, Error, IpConfig, code};
use cni_plugin::{Call, Info, Outcome, Plugin, Role};
use kernel::netns::Netns;
use kernel::route::{IpFamily, Link, RouteSocket};
use serde::{Deserialize, Serialize};
use state::{Index, Record};

use self::config::Config;
use crate::engine;
use crate::shared::policy::Policy;
use crate::shared::steps::{self, Step};
use crate::shared::{attachment, kernel_error, netns_lock};

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
pub(crate) struct Recorded {
    /// Which table packets from which address use.
    sources: Vec<Source>,
    /// Whether the tables are ours, with their routes.
    own_tables: bool,
    /// The interface's ifindex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ifindex: Option<u32>,
}

impl Recorded {
    /// Returns the tables that ADD chose: none if they were given.
    fn tables(recorded: Option<&Self>) -> &[Source] {
        recorded.filter(|facts| facts.own_tables).map_or(&[], |facts| &facts.sources)
    }
}

/// A rule of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Source {
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
        remove::del(call)
    }

    fn check(&self, call: &Call<'_>) -> Result<(), Error> {
        engine::check::<Sbr>(call)
    }

    fn repair_and_check(&self, call: &Call<'_>) -> Outcome {
        engine::repair::<Sbr>(call)
    }

    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        remove::gc(call)
    }

    fn validate(&self, call: &Call<'_>) -> Result<(), Error> {
        Config::of(call).map(drop)
    }

    /// Reports whether the configuration is valid and the kernel has rules.
    fn status(&self, call: &Call<'_>) -> Result<(), Error> {
        Config::of(call)?;
        let rules = RouteSocket::open().and_then(|mut socket| socket.rules(IpFamily::V4));
        rules.map(drop).map_err(|error| {
            Error { code: code::PLUGIN_NOT_AVAILABLE, ..kernel_error(error) }
                .with_details("the kernel needs CONFIG_IP_MULTIPLE_TABLES")
        })
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
        let ifname = call.ifname().as_str();
        let ips = addresses(ifname, &result)?;
        let netns = call.open_netns()?;
        let index = Index::new(call.roots());
        let key = call.attachment();
        let record = index.get(key, NAME).found;
        let before: Option<Recorded> = record.as_ref().and_then(attachment::recorded_in);
        let same = record.is_some_and(|record| is_of(&record, &netns));
        let _lock = netns_lock::lock(&netns)?;
        let mut socket = RouteSocket::open_in(&netns).map_err(kernel_error)?;
        let link = find_link(&mut socket, ifname)?;
        let policy = Policy::read(&mut socket)?;
        let noted = Recorded::tables(before.as_ref().filter(|_| same));
        let sources = plan::sources(&config, &ips, &policy, noted);
        let items = wanted::items(&config, &ips, &sources, ifname);
        let steps = items.iter().flat_map(|item| plan::steps(item, link.index, &policy));
        let steps: Vec<Step> = steps.collect();
        let own_tables = config.table.is_none();
        let facts = Recorded { sources, own_tables, ifindex: Some(link.index) };
        attachment::write_down(call, &index, NAME, &facts, &netns)?;
        steps::apply(&mut socket, &steps).map_err(|error| {
            let described = match &before {
                // The record describes what is still there.
                Some(before) => attachment::write_down(call, &index, NAME, before, &netns),
                None => attachment::forget(&index, key, NAME),
            };
            error.with_details(described.err().map(|also| also.to_string()).unwrap_or_default())
        })?;
        Ok(result)
    }
}

/// Finds the interface. Fails in the reference's words if there is none.
fn find_link(socket: &mut RouteSocket, ifname: &str) -> Result<Link, Error> {
    socket.link_by_name(ifname).map_err(kernel_error)?.ok_or_else(|| {
        let text = format!("Cannot find network interface {ifname}: Link not found");
        Error::new(code::INVALID_CONFIG, text)
            .with_details("sbr changes an interface that a plugin before it in the list made")
    })
}

/// Returns whether a record is of this very namespace.
fn is_of(record: &Record, netns: &Netns) -> bool {
    record.netns_id.is_some() && record.noted().is_some_and(|noted| noted.is(netns))
}

/// Returns the addresses of the container's interface, each once.
fn addresses(ifname: &str, result: &AddResult) -> Result<Vec<IpConfig>, Error> {
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
