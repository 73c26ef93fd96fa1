//! `flannel`: serves flannel's conflist as flannel's own plugin does.
//!
//! The plugin reads what flanneld says of the node (`subnet_env`), makes the configuration of
//! another plugin of it (`config`), normally `bridge`, and delegates to that one.
//!
//! - What it delegates it records in flannel's own place and format (`record`) and nowhere else. So
//!   a node can change to this plugin and back while pods run.
//! - ADD delegates exactly what flannel's plugin would, and `args.cni` and what follows in the list
//!   too. If it fails, the record is as before, unless something of the delegate's stays.
//! - DEL delegates what ADD recorded, even if the files say something else by now. Without a
//!   legible record it asks a delegate of ours by the present configuration, which needs the
//!   attachment's key only. Another project's delegate is not asked when nothing is recorded, as
//!   with flannel's plugin.
//! - CHECK, repair and GC ask the delegate as it was recorded; GC then removes the records of
//!   containers that are gone. STATUS asks the delegate that ADD would call, and fails while
//!   flanneld has not written its file. Flannel's plugin has none of these.

mod config;
mod record;
mod subnet_env;

use std::collections::BTreeSet;
use std::path::PathBuf;

use cni::json::{JsonError, Object, UnknownKey};
use cni::order::gather;
use cni::{AddResult, Command, Error, PluginConfig, code};
use cni_plugin::cni_invoke::find;
use cni_plugin::{Call, Info, Inner, Plugin, Role};
use ipnet::IpNet;
use state::Index;

use crate::judge;
use crate::multi::members;
use crate::shared::attachment;
use crate::shared::common_keys;
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;
use config::Config;
use record::{Record, RecordContent, StaleRecord};
use subnet_env::SubnetEnv;

/// What the plugin is.
pub const INFO: Info = Info::new("flannel")
    .role(Role::Interface)
    .inner(Inner::Delegate { key: "delegate", default_type: config::DEFAULT_DELEGATE });

/// What flanneld says of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePart {
    /// The file that says so.
    pub file: PathBuf,
    /// The ranges of all nodes.
    pub ranges: Vec<IpNet>,
    /// The node's own.
    pub own: Vec<IpNet>,
    /// The MTU of containers' interfaces, in bytes.
    pub mtu: u32,
}

/// Returns what flanneld says for a configuration of the plugin; `None` if the plugin could not use
/// the file either.
#[must_use]
pub fn node_part(plugin: &PluginConfig) -> Option<NodePart> {
    let file = config::subnet_file(&plugin.object)?;
    let SubnetEnv { networks, subnets, mtu, .. } = SubnetEnv::read(&file).ok()?;
    Some(NodePart { file, ranges: networks, own: subnets, mtu })
}

/// The plugin's type.
const NAME: &str = INFO.name;

/// The plugin.
#[derive(Debug)]
pub struct Flannel;

impl Plugin for Flannel {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn add(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        let config = Config::of(call)?;
        let subnet = SubnetEnv::read(&config.subnet_file)?;
        let delegate = config.delegate(call, &subnet)?;
        find(&delegate.plugin_type, &call.env().plugin_path()).map_err(Failure::from)?;
        let record = Record::of(call, &config::data_dir(call));
        Ok(record.alone(call, || add(call, &delegate, &record))?)
    }

    fn del(&self, call: &Call<'_>) -> Result<(), Error> {
        let record = Record::of(call, &config::data_dir(call));
        Ok(record.alone(call, || {
            match record.read(call)? {
                // If it fails, the record stays.
                RecordContent::Delegate(delegate) => {
                    del(call, &delegate).map_err(Failure::leaving)?;
                }
                RecordContent::Nothing => {
                    let unrecorded = configured(call).ok().filter(is_ours);
                    return unrecorded.map_or(Ok(()), |delegate| del_if_there(call, &delegate));
                }
                RecordContent::Illegible(why) => {
                    call.warn(format_args!("detaches by the present configuration: {why}"));
                    del(call, &configured(call)?).map_err(Failure::leaving)?;
                }
            }
            record.remove()
        })?)
    }

    fn check(&self, call: &Call<'_>) -> Result<(), Error> {
        call.require_prev_result("Required prevResult missing")?;
        let delegate = attached(call)?;
        call.delegate_with(&delegate.plugin_type, &request(call, &delegate)).check()
    }

    fn repair(&self, call: &Call<'_>) -> Result<Vec<String>, Error> {
        let delegate = attached(call)?;
        call.delegate_with(&delegate.plugin_type, &request(call, &delegate)).repair()
    }

    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        let data_dir = config::data_dir(call);
        let stale = StaleRecord::list(call, &data_dir)?;
        let mut failures = Failures::new();
        let configured = failures.note_as_it_is(configured(call));
        let delegates = stale.iter().map(|one| &one.delegate).chain(&configured);
        // What was recorded seldom differs but for the container's own arguments.
        let asked: BTreeSet<_> =
            gather(delegates.map(|one| (one.plugin_type.clone(), request(call, one))));
        for (plugin_type, document) in &asked {
            let collected = call.delegate_with(plugin_type, document).gc();
            failures.note(format_args!("plugin {plugin_type:?}"), collected);
        }
        // Another project's delegate may collect nothing: its DEL still needs the record.
        let left = Index::new(call.roots()).of_network(call.network().as_str()).found;
        for one in stale.iter().filter(|one| is_ours(&one.delegate) && !one.is_among(&left)) {
            failures.note_as_it_is(one.forget(call));
        }
        state::remove_abandoned(&data_dir);
        Ok(failures.into_result()?)
    }

    /// Judges the delegate's configuration too, with a subnet that stands in for the node's.
    fn validate(&self, call: &Call<'_>) -> Result<(), Error> {
        let delegate = Config::of(call)?.delegate(call, &SubnetEnv::stand_in())?;
        Ok(judge_delegate(call, &delegate, false)?)
    }

    fn fits_host(&self, call: &Call<'_>) -> Result<(), Error> {
        let config = Config::of(call)?;
        // A file that is missing may appear later.
        let Ok(subnet) = SubnetEnv::read(&config.subnet_file) else { return Ok(()) };
        Ok(judge_delegate(call, &config.delegate(call, &subnet)?, true)?)
    }

    fn status(&self, call: &Call<'_>) -> Result<(), Error> {
        let config = Config::of(call)?;
        let subnet = SubnetEnv::read(&config.subnet_file)
            .map_err(|error| error.with_code(code::PLUGIN_NOT_AVAILABLE))?;
        let delegate = config.delegate(call, &subnet)?;
        call.delegate_with(&delegate.plugin_type, &request(call, &delegate)).status()
    }

    fn unknown_keys(&self, config: &str) -> Result<Vec<UnknownKey>, JsonError> {
        common_keys::unknown::<config::Raw>(config, false)
    }
}

/// Records what is delegated, and delegates it. If it fails, the record stays only where something
/// of the delegate's does.
fn add(call: &Call<'_>, delegate: &PluginConfig, record: &Record) -> Result<AddResult, Failure> {
    let document = request(call, delegate);
    let asked = call.delegate_with(&delegate.plugin_type, &document);
    if !asked.is_own() {
        // Its ADD would fail because of the interface, and the DEL that follows would remove it.
        let inside = members::look_into(&call.open_netns()?)?;
        let ifname = call.ifname().as_str();
        attachment::refuse_existing(&inside, ifname, || {
            format!("interface {ifname:?} already exists in the container")
        })?;
    }
    let before = record.bytes()?;
    record.write(&delegate.object.to_vec())?;
    asked.add().map_err(|error| {
        // The runtime's DEL needs the record.
        let is_needed = error.left && before.is_none();
        let failure = Failure::from(error).context("failed to delegate add");
        match (!is_needed).then(|| record.put_back(before.as_deref())) {
            Some(Err(left)) => failure.with_left(left.to_string()),
            _ => failure,
        }
    })
}

fn del(call: &Call<'_>, delegate: &PluginConfig) -> Result<(), Failure> {
    match call.delegate_with(&delegate.plugin_type, &request(call, delegate)).del() {
        // CNI 1.1.0 §5 "Error": code 3 implies that there is nothing to clean up.
        Err(error) if error.code == code::UNKNOWN_CONTAINER => Ok(()),
        deleted => Ok(deleted?),
    }
}

/// A delegate that is not there has attached nothing.
fn del_if_there(call: &Call<'_>, delegate: &PluginConfig) -> Result<(), Failure> {
    let is_there = call.delegate_with(&delegate.plugin_type, &[]).is_there();
    if is_there { del(call, delegate) } else { Ok(()) }
}

/// Returns the delegate of the container's attachment: the recorded one, else the one that is
/// configured.
fn attached(call: &Call<'_>) -> Result<PluginConfig, Failure> {
    match Record::of(call, &config::data_dir(call)).read(call)? {
        RecordContent::Delegate(delegate) => Ok(delegate),
        RecordContent::Nothing | RecordContent::Illegible(_) => {
            let config = Config::of(call)?;
            config.delegate(call, &SubnetEnv::read(&config.subnet_file)?)
        }
    }
}

/// Returns the delegate by the present configuration, for DEL and GC, which need the attachment's
/// key only.
fn configured(call: &Call<'_>) -> Result<PluginConfig, Failure> {
    let config = Config::of(call)?;
    let subnet = SubnetEnv::read(&config.subnet_file).unwrap_or_else(|_| SubnetEnv::stand_in());
    config.delegate(call, &subnet)
}

fn is_ours(delegate: &PluginConfig) -> bool {
    crate::find(&delegate.plugin_type).is_some()
}

/// Returns the delegate's configuration with what the runtime adds for this call.
fn request(call: &Call<'_>, delegate: &PluginConfig) -> Vec<u8> {
    let given: &[&str] = match call.command() {
        // Flannel's plugin delegates what it recorded, and so does this one.
        Command::Del => &[cni::GONE, cni::UNDO],
        Command::Check => {
            &["cniVersion", "prevResult", "runtimeConfig", cni::REPAIR, cni::ATTACHED_AS]
        }
        Command::Gc => &["cniVersion", "cni.dev/valid-attachments", "cni.dev/attachments"],
        Command::Add => &[cni::FOLLOWED_BY],
        _ => &[],
    };
    let mut object = delegate.object.clone();
    if call.command() == Command::Gc {
        // A container's own.
        object.remove("runtimeConfig");
        object.remove("args");
    }
    let document = Object::parse(call.document()).unwrap_or_default();
    for key in given {
        if let Some(value) = document.get_ignore_case(key) {
            object.set(key, value.to_owned());
        }
    }
    object.to_vec()
}

/// Refuses a delegate of ours whose ADD would always fail: because of its configuration, or because
/// of the host.
fn judge_delegate(call: &Call<'_>, delegate: &PluginConfig, is_hosts: bool) -> Result<(), Failure> {
    let (network, version) = (call.network().as_str(), call.version().as_str());
    let refusals = judge::object(delegate, network, version, &judge::is_own_name);
    match refusals.into_iter().find(|refusal| refusal.is_hosts == is_hosts) {
        Some(refusal) => {
            let what = format_args!("delegated plugin {:?}", refusal.plugin_type);
            Err(Failure::from(refusal.error.context(what)))
        }
        None => Ok(()),
    }
}
