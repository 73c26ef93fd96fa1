//! `ovs-mirror-producer` and `ovs-mirror-consumer`: a port that `ovs` has created joins mirrors.
//!
//! They are chained plugins, for configurations of ovs-cni; the key `mirrors` of `ovs` does the
//! same within its one transaction. Unlike with ovs-cni, the plugins pass on the addresses, routes
//! and DNS of the previous result, and DEL succeeds if a port or mirror is gone.

use cni::{AddResult, AttachmentKey};
use cni_plugin::{Call, Info, codes};
use ovsdb::vswitch::{Bridge, DATABASE, Port, TypedRow as _};
use ovsdb::{Condition, Transaction, Uuid, Value};
use serde::{Deserialize, Serialize};
use wanted::{Item, Reason, State, Wanted};

use super::config::invalid;
use super::database::{ATTEMPTS, Switch, busy, number};
use super::defaults;
use super::extras::{Mirror, RawMirror};
use super::mirrors::{self, SeenMirror};
use super::place::Place;
use super::remove::unavailable;
use super::rows::{has_id, ids};
use crate::engine::{
    Addition, Attachment, Comparison, Kind, Mismatch, NetnsEntry, Picture, Removal, Wants,
};
use crate::shared::attachment;
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;

/// What `ovs-mirror-producer` is.
const PRODUCER: Info = Info::new("ovs-mirror-producer").role(cni_plugin::Role::Chained);

/// What `ovs-mirror-consumer` is.
const CONSUMER: Info = Info::new("ovs-mirror-consumer").role(cni_plugin::Role::Chained);

/// Frames of the container are copied to mirrors: `ovs-mirror-producer`.
#[derive(Debug)]
pub(crate) struct MirrorProducer;

/// The container receives what mirrors copy: `ovs-mirror-consumer`.
#[derive(Debug)]
pub(crate) struct MirrorConsumer;

/// The keys as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Raw {
    bridge: String,
    mirrors: Vec<RawEntry>,
    #[serde(rename = "socket_file")]
    socket_file: String,
    #[serde(rename = "private_key")]
    private_key: String,
    certificate: String,
    #[serde(rename = "ca_cert")]
    ca_cert: String,
    #[serde(rename = "configuration_path")]
    configuration_path: String,
}

/// An entry of the key `mirrors`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawEntry {
    name: String,
    ingress: bool,
    egress: bool,
}

/// Which of the two plugins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Producer,
    Consumer,
}

impl Role {
    const fn info(self) -> &'static Info {
        match self {
            Role::Producer => &PRODUCER,
            Role::Consumer => &CONSUMER,
        }
    }

    fn name(self) -> &'static str {
        self.info().name
    }

    /// Returns the columns of a mirror in which a port of this kind is listed.
    fn columns(self) -> &'static [&'static str] {
        match self {
            Role::Producer => &["select_src_port", "select_dst_port"],
            Role::Consumer => &["output_port"],
        }
    }
}

/// The checked configuration.
#[derive(Debug)]
pub(crate) struct Config {
    place: Place,
    bridge: String,
    mirrors: Vec<Mirror>,
}

/// What is recorded for DEL.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RecordData {
    place: Place,
    /// The port's name.
    port: String,
    mirrors: Vec<String>,
}

impl Config {
    fn of(call: &Call<'_>, role: Role) -> Result<Self, Failure> {
        let document = defaults::document(call)?;
        let raw: Raw = cni::json::from_slice(&document).map_err(|error| {
            Failure::new(cni::code::DECODE_FAILURE, format!("failed to load netconf: {error}"))
        })?;
        let output = role == Role::Consumer;
        if raw.mirrors.is_empty() {
            return Err(invalid("no mirrors are given", "key \"mirrors\" lists at least one"));
        }
        let mirror = |entry: RawEntry| {
            if output && (entry.ingress || entry.egress) {
                return Err(invalid(
                    format!("mirror {:?} of a consumer has \"ingress\" or \"egress\"", entry.name),
                    "they are a producer's (ovs-mirror-producer)",
                ));
            }
            let RawEntry { name, ingress, egress } = entry;
            RawMirror { name, ingress, egress, output }.check()
        };
        Ok(Config {
            place: Place {
                socket_file: raw.socket_file,
                private_key: raw.private_key,
                certificate: raw.certificate,
                ca_cert: raw.ca_cert,
            },
            bridge: raw.bridge,
            mirrors: raw.mirrors.into_iter().map(mirror).collect::<Result<_, _>>()?,
        })
    }
}

/// The attachment's port, and the state of its mirrors.
struct ObservedPort {
    port: Uuid,
    name: String,
    bridge: String,
    mirrors: Vec<SeenMirror>,
}

/// Finds the port: by our mark, or by the names of the host's links in the previous result; then
/// its bridge and the mirrors.
fn observe(
    switch: &mut Switch,
    call: &Call<'_>,
    config: &Config,
    result: &AddResult,
) -> Result<ObservedPort, Failure> {
    let mut look = Transaction::new(DATABASE);
    let own = vec![has_id(ids::OWNER, &call.attachment().hash())];
    let mut handles = vec![look.select(Port::TABLE, own, &["_uuid", "name"])];
    for link in result.interfaces.iter().filter(|link| link.sandbox.is_empty()) {
        let named = vec![Condition::equals("name", link.name.as_str())];
        handles.push(look.select(Port::TABLE, named, &["_uuid", "name"]));
    }
    let mirrors = mirrors::look(&mut look, &config.mirrors);
    let found = switch.transact(&look)?;
    let row = handles.iter().find_map(|handle| found.rows(*handle).first());
    let port = row.and_then(|row| Some((row.uuid("_uuid")?, row.text("name").to_owned())));
    let Some((port, name)) = port else {
        let ifname = call.ifname();
        return Err(Failure::new(
            codes::SWITCH,
            format!("interface \"{ifname}\" is not a port of Open vSwitch"),
        )
        .with_details("the plugin before in the chain is to be \"ovs\""));
    };
    let mut look = Transaction::new(DATABASE);
    let has = vec![Condition::includes("ports", Value::Atom((&port).into()))];
    let bridge = look.select(Bridge::TABLE, has, &["name"]);
    let bridge =
        switch.transact(&look)?.rows(bridge).first().map(|row| row.text("name").to_owned());
    let bridge = bridge.ok_or_else(|| {
        Failure::new(codes::SWITCH, format!("port {name:?} is on no bridge of Open vSwitch"))
    })?;
    if !config.bridge.is_empty() && config.bridge != bridge {
        return Err(Failure::new(
            codes::SWITCH,
            format!("port {name:?} is on bridge {bridge:?}, not on {:?}", config.bridge),
        )
        .with_details("key \"bridge\" may be left out"));
    }
    let mirrors = mirrors::seen(&found, &mirrors, &config.mirrors, Some(&port))?;
    Ok(ObservedPort { port, name, bridge, mirrors })
}

/// Makes the port join the mirrors; missing mirrors are created. `record` writes what DEL must
/// know.
fn join(
    call: &Call<'_>,
    role: Role,
    config: &Config,
    result: &AddResult,
    record: &mut dyn FnMut(&RecordData) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut switch = Switch::connect(call, &config.place.remote()?)?;
    let key = call.attachment();
    for _ in 0..ATTEMPTS {
        let seen = observe(&mut switch, call, config, result)?;
        refuse_circles(config, &seen)?;
        let recorded = RecordData {
            place: Place::of(&config.place.remote()?),
            port: seen.name.clone(),
            mirrors: config.mirrors.iter().map(|mirror| mirror.name.clone()).collect(),
        };
        record(&recorded)?;
        let mut plan = Transaction::new(DATABASE);
        let port = Value::Atom((&seen.port).into());
        mirrors::join(&mut plan, &seen.bridge, &config.mirrors, &port, &seen.mirrors);
        plan.comment(&format!("netwright: {} {key}", role.name()));
        let numbered = number(&mut plan);
        // A switch that is not running applies it when it starts.
        let waits = switch.is_alive()?;
        if waits {
            switch.listen()?;
        }
        match switch.try_transact(&plan) {
            Ok(outcome) => {
                if waits {
                    switch.wait_for(&outcome, numbered)?;
                }
                return Ok(());
            }
            Err(error) if error.is_conflict() || error.is_duplicate() => {}
            Err(error) => return Err(switch.explain(error)),
        }
    }
    Err(busy())
}

/// Refuses to mirror a port to itself, which would multiply its frames.
fn refuse_circles(config: &Config, seen: &ObservedPort) -> Result<(), Failure> {
    for (mirror, there) in config.mirrors.iter().zip(&seen.mirrors) {
        let is_source = ["select_src_port", "select_dst_port"]
            .iter()
            .any(|column| there.has(column, &seen.port));
        let is_output = there.has("output_port", &seen.port);
        if (mirror.output && is_source) || (!mirror.output && is_output) {
            return Err(Failure::new(
                codes::CONFLICT,
                format!(
                    "port {:?} would be producer and consumer of mirror {:?}",
                    seen.name, mirror.name
                ),
            )
            .with_details("a port's frames are not mirrored to itself"));
        }
    }
    Ok(())
}

/// Makes the port leave the mirrors; those that we created and that no port uses are removed.
fn leave(
    call: &Call<'_>,
    key: &AttachmentKey,
    role: Role,
    recorded: Option<&RecordData>,
    is_recorded: bool,
) -> Result<(), Failure> {
    let by_configuration;
    let recorded = match recorded {
        Some(recorded) => recorded,
        None => {
            by_configuration = configured(call, role);
            &by_configuration
        }
    };
    match take_out(call, key, role, recorded) {
        // There is no record, so most likely nothing was done.
        Err(error) if !is_recorded && error.code() == codes::SWITCH => {
            call.warn(format_args!("the switch is not asked: {error}"));
            Ok(())
        }
        done => done,
    }
}

/// Returns what the configuration says in place of a record; what cannot be read is ignored.
fn configured(call: &Call<'_>, role: Role) -> RecordData {
    let Ok(config) = Config::of(call, role) else {
        let place = defaults::document(call).ok();
        let place = place.and_then(|document| cni::json::from_slice(&document).ok());
        return RecordData { place: place.unwrap_or_default(), ..RecordData::default() };
    };
    let mirrors = config.mirrors.into_iter().map(|mirror| mirror.name).collect();
    RecordData { place: config.place, mirrors, ..RecordData::default() }
}

fn take_out(
    call: &Call<'_>,
    key: &AttachmentKey,
    role: Role,
    recorded: &RecordData,
) -> Result<(), Failure> {
    let mut switch = Switch::connect(call, &recorded.place.remote()?)?;
    for _ in 0..ATTEMPTS {
        let mut look = Transaction::new(DATABASE);
        let own = look.select(Port::TABLE, vec![has_id(ids::OWNER, &key.hash())], &["_uuid"]);
        let named = vec![Condition::equals("name", recorded.port.as_str())];
        let named = look.select(Port::TABLE, named, &["_uuid"]);
        let made = mirrors::look_at_made(&mut look);
        let found = switch.transact(&look)?;
        let rows = found.rows(own).iter().chain(found.rows(named));
        let ports: Vec<Uuid> = rows.filter_map(|row| row.uuid("_uuid")).collect();
        let mut plan = Transaction::new(DATABASE);
        let ours = found.rows(made).iter();
        let ours: Vec<_> = ours
            .filter(|row| recorded.mirrors.iter().any(|name| name == row.text("name")))
            .cloned()
            .collect();
        mirrors::remove_unused(&mut plan, &ours, role.columns(), &ports);
        for port in &ports {
            mirrors::leave(&mut plan, &recorded.mirrors, role.columns(), port);
        }
        if plan.is_empty() {
            return Ok(());
        }
        plan.comment(&format!("netwright: {key} leaves mirrors"));
        match switch.try_transact(&plan) {
            Ok(_) => return Ok(()),
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(switch.explain(error)),
        }
    }
    Err(busy())
}

/// The answer to a call without the result of `ovs`.
const NO_PREVIOUS: &str = "Required prevResult missing";

/// Says what CHECK compares and repair restores: mirrors have the port in their columns.
fn wanted(config: &Config) -> Wanted {
    let columns = |mirror| mirrors::columns(mirror).map(str::to_owned).collect();
    let mirrors = config.mirrors.iter();
    let mirrors = mirrors.map(|mirror| (mirror.name.clone(), columns(mirror))).collect();
    let mut wanted = Wanted::new();
    wanted.push(Item::host(State::OvsMirrors(mirrors), Reason::Key("mirrors".to_owned())));
    wanted
}

fn compare(config: &Config, call: &Call<'_>) -> Comparison {
    let result = call.require_prev_result(NO_PREVIOUS)?;
    let mut switch = Switch::connect(call, &config.place.remote()?)?;
    let seen = observe(&mut switch, call, config, &result)?;
    let mut found = Vec::new();
    for (mirror, there) in config.mirrors.iter().zip(&seen.mirrors) {
        for column in mirrors::columns(mirror).filter(|column| !there.has(column, &seen.port)) {
            let text =
                format!("port {:?} is not in {column} of mirror {:?}", seen.name, mirror.name);
            found.push(Mismatch::new(text));
        }
    }
    Ok(found)
}

/// Runs STATUS: whether the database answers and has what is needed, and whether the bridge exists,
/// if one is named.
fn status(call: &Call<'_>, role: Role) -> Result<(), Failure> {
    let config = Config::of(call, role)?;
    let mut switch = Switch::connect(call, &config.place.remote()?).map_err(unavailable)?;
    switch.check_schema().map_err(unavailable)?;
    if config.bridge.is_empty() {
        return Ok(());
    }
    let mut look = Transaction::new(DATABASE);
    let by_name = vec![Condition::equals("name", config.bridge.as_str())];
    let bridge = look.select(Bridge::TABLE, by_name, &["name"]);
    if switch.transact(&look).map_err(unavailable)?.rows(bridge).is_empty() {
        let message = format!("failed to find bridge {:?}", config.bridge);
        return Err(unavailable(Failure::new(codes::SWITCH, message)));
    }
    Ok(())
}

macro_rules! kind {
    ($kind:ty, $role:expr, $info:expr) => {
        impl Kind for $kind {
            const INFO: Info = $info;
            const ENTER: NetnsEntry = NetnsEntry::Never;
            type Raw = Raw;
            type Config = Config;
            type RecordData = RecordData;
            type Cache = ();

            fn config(call: &Call<'_>) -> Result<Config, Failure> {
                Config::of(call, $role)
            }

            fn validate(call: &Call<'_>) -> Result<(), Failure> {
                Config::of(call, $role)?.place.remote()?;
                Ok(())
            }

            fn status(call: &Call<'_>) -> Result<(), Failure> {
                status(call, $role)
            }

            fn attach(attaching: &mut Addition<'_, Self>) -> Result<AddResult, Failure> {
                let (call, config) = (attaching.call, attaching.config);
                let result = call.require_prev_result(Self::NO_PREVIOUS)?;
                let netns = call.open_netns()?;
                let mut is_first = attaching.earlier_record().is_none();
                let mut record = |recorded: &RecordData| {
                    attaching.record(recorded, &netns)?;
                    if std::mem::take(&mut is_first) {
                        attaching.begin(None);
                    }
                    Ok(())
                };
                join(call, $role, config, &result, &mut record)?;
                Ok(result)
            }

            fn take_down(removal: &Removal<'_, Self>, failures: &mut Failures) {
                let (recorded, is_recorded) = (removal.recorded.as_ref(), removal.record.is_some());
                let left = leave(removal.call, removal.key, $role, recorded, is_recorded);
                failures.note("leave the mirrors", left);
            }
        }

        impl Wants for $kind {
            type Observation = ();

            fn wanted(attached: &Attachment<'_, Self>, (): &()) -> Wanted {
                wanted(attached.config)
            }

            fn compare(config: &Config, picture: &mut Picture<'_>, _: &Item) -> Comparison {
                compare(config, picture.call)
            }

            /// Joins the mirrors again: a port stays where it is already.
            fn restore(
                config: &Config,
                picture: &mut Picture<'_>,
                _: &Item,
            ) -> Result<Option<String>, Failure> {
                let (call, index) = (picture.call, picture.index);
                let result = call.require_prev_result(Self::NO_PREVIOUS)?;
                let netns = call.open_netns()?;
                let mut record = |recorded: &RecordData| {
                    attachment::write_record(call, index, Self::NAME, recorded, &netns)
                };
                join(call, $role, config, &result, &mut record).map(|()| None)
            }
        }
    };
}

kind!(MirrorProducer, Role::Producer, PRODUCER);
kind!(MirrorConsumer, Role::Consumer, CONSUMER);
