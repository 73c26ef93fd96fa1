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
pub(super) mod own_way;
mod plan;
mod remove;
mod wanted;

use std::net::IpAddr;

use cni::{AddResult, IpConfig, code};
use cni_plugin::{Call, Info, Role};
use kernel::netns::Netns;
use kernel::route::{IpFamily, Link, RouteSocket};
use serde::{Deserialize, Serialize};
use state::Record;

use self::config::Config;
use crate::engine::{Addition, Kind, NetnsEntry, Removal};
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;
use crate::shared::policy::Policy;
use crate::shared::steps::{self, Step};
use crate::shared::{attachment, netns_lock};

/// What the plugin is.
pub const INFO: Info = Info::new("sbr").role(Role::Chained);

/// The reference's words.
const NO_PREVIOUS: &str = "This plugin must be called as chained plugin";

/// Attachments of `sbr`.
#[derive(Debug)]
pub(crate) struct Sbr;

/// What ADD records about an attachment for DEL.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RecordData {
    /// Which table packets from which address use.
    sources: Vec<Source>,
    /// Whether the tables are ours, with their routes.
    own_tables: bool,
    /// The routes into the addresses' subnets that ADD found, for repair. An older release recorded
    /// none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    routes: Vec<::wanted::SourceRoute>,
    /// The interface's ifindex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ifindex: Option<u32>,
}

impl RecordData {
    /// Returns the tables that ADD chose: none if they were given.
    fn tables(recorded: Option<&Self>) -> &[Source] {
        recorded.filter(|one| one.own_tables).map_or(&[], |one| &one.sources)
    }

    /// Returns the routes into the addresses' subnets that ADD found.
    fn routes(recorded: Option<&Self>) -> &[::wanted::SourceRoute] {
        recorded.map_or(&[], |one| &one.routes)
    }
}

/// A rule of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Source {
    address: IpAddr,
    table: u32,
}

impl Kind for Sbr {
    const INFO: Info = INFO;
    const ENTER: NetnsEntry = NetnsEntry::Always;
    type Raw = config::Raw;
    type Config = Config;
    type RecordData = RecordData;
    type Cache = ();

    fn config(call: &Call<'_>) -> Result<Config, Failure> {
        Config::of(call)
    }

    /// Reports whether the kernel has rules.
    fn status(_: &Call<'_>) -> Result<(), Failure> {
        let rules = RouteSocket::open().and_then(|mut socket| socket.rules(IpFamily::V4));
        rules.map(drop).map_err(|error| {
            Failure::from(error)
                .with_code(code::PLUGIN_NOT_AVAILABLE)
                .with_details("the kernel needs CONFIG_IP_MULTIPLE_TABLES")
        })
    }

    fn attach(attaching: &mut Addition<'_, Self>) -> Result<AddResult, Failure> {
        let (call, config) = (attaching.call, attaching.config);
        let result = call.require_prev_result(NO_PREVIOUS)?;
        let ifname = call.ifname().as_str();
        let ips = addresses(ifname, &result)?;
        let netns = call.open_netns()?;
        let record = attaching.earlier_record();
        let before = record.as_ref().filter(|record| is_of(record, &netns));
        let before: Option<RecordData> = before.and_then(attachment::recorded_in);
        let _lock = netns_lock::lock(&netns)?;
        let mut socket = RouteSocket::open_in(&netns)?;
        let link = find_link(&mut socket, ifname)?;
        let policy = Policy::read(&mut socket)?;
        let known = RecordData::tables(before.as_ref());
        let sources = plan::sources(config, &ips, &policy, known);
        // ADD moves the routes that are there.
        let items = wanted::items(config, &ips, &sources, &[], ifname);
        let steps = items.iter().flat_map(|item| plan::steps(item, link.index, &policy));
        let steps: Vec<Step> = steps.collect();
        let own_tables = config.table.is_none();
        let routes = plan::near_routes(&items, link.index, &policy);
        let recorded = RecordData { sources, own_tables, routes, ifindex: Some(link.index) };
        attaching.replace_record(record, &recorded, &netns)?;
        steps::apply(&mut socket, &steps)?;
        Ok(result)
    }

    fn take_down(removal: &Removal<'_, Self>, failures: &mut Failures) {
        failures.note_as_it_is(remove::take_down(removal));
    }
}

/// Finds the interface. Fails in the reference's words if there is none.
fn find_link(socket: &mut RouteSocket, ifname: &str) -> Result<Link, Failure> {
    socket.link_by_name(ifname)?.ok_or_else(|| {
        let text = format!("Cannot find network interface {ifname}: Link not found");
        Failure::new(code::INVALID_CONFIG, text)
            .with_details("sbr changes an interface that a plugin before it in the list made")
    })
}

/// Returns whether a record is of this very namespace.
pub(super) fn is_of(record: &Record, netns: &Netns) -> bool {
    record.netns_id.is_some() && record.noted().is_some_and(|noted| noted.is(netns))
}

/// Returns the addresses of the container's interface, each once.
fn addresses(ifname: &str, result: &AddResult) -> Result<Vec<IpConfig>, Failure> {
    let mut ips: Vec<IpConfig> = Vec::new();
    for ip in result.container_ips(ifname) {
        if !ips.iter().any(|known| known.address.addr() == ip.address.addr()) {
            ips.push(ip.clone());
        }
    }
    if ips.is_empty() {
        return Err(Failure::new(
            code::INVALID_CONFIG,
            format!("No IP addresses supplied on interface: {ifname}"),
        ));
    }
    Ok(ips)
}
