//! `chain`: several plugins in one call.
//!
//! Some runtimes execute each plugin of a list. With `chain` they start one process instead of one
//! per plugin. The key `plugins` holds what the list would hold, and the result is that of the
//! list.
//!
//! - Each inner plugin gets what a runtime would give it (CNI 1.1.0 §3 "Deriving request
//!   configuration from plugin configuration"): the name and version of the outer plugin, the
//!   previous result, and the part of `runtimeConfig` that its `capabilities` name. A runtime
//!   passes only what the outer `capabilities` name. It also gets what is in the outer `args.cni`.
//! - ADD runs the inner plugins in order. If one fails, ADD runs DEL on those before it, the last
//!   first, and on the failed one itself unless it is one of ours and has undone all. DEL runs all
//!   of them, the last first, and goes on after a failure; so does GC, in order. CHECK and STATUS
//!   stop at the first failure.
//! - An inner plugin of this executable runs in this process. Any other is looked up in `CNI_PATH`
//!   as usual and executed.
//!
//! The plugin keeps no state of its own: only the inner plugins do.
//!
//! So a list of plugins can become a chain while containers run: DEL with `chain` removes what the
//! list made, and the other way round.

use std::collections::BTreeMap;

use cni::json::{JsonError, Object, UnknownKey};
use cni::{AddResult, Command, Error, Injection, PluginConfig, Refusal, RepairReport, code};
use cni_plugin::cni_invoke::find;
use cni_plugin::{Call, Info, Inner, Plugin, Role};
use serde::Deserialize;
use serde_json::value::RawValue;
use state::Index;

use crate::chained::policy;
use crate::shared::common_keys;
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;
use crate::shared::outer_args::OuterArgs;

/// What the plugin is.
pub const INFO: Info = Info::new("chain").role(Role::Either).inner(Inner::Plugins("plugins"));

/// The plugin's type.
const NAME: &str = INFO.name;

/// The plugin.
#[derive(Debug)]
pub struct Chain;

/// The keys as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Raw {
    runtime_config: BTreeMap<String, Box<RawValue>>,
    plugins: Vec<Object>,
}

impl Plugin for Chain {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn add(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        let chain = Links::of(call)?;
        let mut previous = call.common().prev_result.clone();
        for (place, plugin) in chain.plugins.iter().enumerate() {
            let followers = chain.followers(place);
            let answer = chain
                .run_before(&followers, plugin, Command::Add, previous.as_deref())
                .and_then(|stdout| Ok(AddResult::parse(&stdout, call.version())?));
            let passed_on = match answer {
                Ok(result) if place + 1 == chain.plugins.len() => return Ok(result),
                Ok(result) => raw(&result, call),
                Err(error) => Err(error),
            };
            match passed_on {
                Ok(text) => previous = Some(text),
                Err(error) => {
                    let failure = error.context(format_args!("plugin {:?}", plugin.plugin_type));
                    // Our own plugins undo what they did, and a DEL would remove what was there
                    // before. Others get DEL, as delegated plugins do (CNI 1.1.0 §4).
                    let is_undone =
                        failure.leaves_nothing() && call.delegate(&plugin.plugin_type).is_own();
                    let acted = usize::from(!is_undone);
                    let refusal = failure.refusal().filter(|_| !is_undone);
                    let undone = chain.del(place + acted, previous.as_deref(), refusal.as_ref());
                    return Err(match undone {
                        Ok(()) => failure.undone().into(),
                        Err(undo) => failure
                            .with_left(format!("undoing it with DEL failed too: {undo}"))
                            .into(),
                    });
                }
            }
        }
        Err(no_plugins().into())
    }

    fn del(&self, call: &Call<'_>) -> Result<(), Error> {
        let chain = match Links::of(call) {
            Ok(chain) => chain,
            // ADD refused this error too: if no inner plugin recorded anything, there is nothing to
            // remove.
            Err(error) => {
                let written = Index::new(call.roots()).of_attachment(call.attachment());
                let nothing = written.found.is_empty() && written.damaged.is_empty();
                return if nothing { Ok(()) } else { Err(error.into()) };
            }
        };
        Ok(chain.del(chain.plugins.len(), call.common().prev_result.as_deref(), None)?)
    }

    fn check(&self, call: &Call<'_>) -> Result<(), Error> {
        let chain = Links::of(call)?;
        let previous = call.common().prev_result.as_deref();
        Ok(chain.all(|plugin| chain.run(plugin, Command::Check, previous))?)
    }

    /// The check of each inner plugin repairs too. [`Plugin::check`] reports what one of them
    /// cannot restore.
    fn repair(&self, call: &Call<'_>) -> Result<Vec<String>, Error> {
        let chain = Links::of(call)?;
        let previous = call.common().prev_result.as_deref();
        let (mut lines, mut failures) = (Vec::new(), Failures::new());
        for plugin in &chain.plugins {
            let answer = chain.run(plugin, Command::Check, previous);
            let what = format_args!("plugin {:?}", plugin.plugin_type).to_string();
            let answer = failures.note(what, answer).unwrap_or_default();
            lines.extend(RepairReport::parse(&answer).lines);
        }
        Ok(failures.into_result().map(|()| lines)?)
    }

    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        let chain = Links::of(call)?;
        let mut failures = Failures::new();
        for plugin in &chain.plugins {
            let collected = chain.run(plugin, Command::Gc, None);
            failures.note(format_args!("plugin {:?}", plugin.plugin_type), collected);
        }
        Ok(failures.into_result()?)
    }

    fn validate(&self, call: &Call<'_>) -> Result<(), Error> {
        Ok(Links::of(call).map(drop)?)
    }

    fn status(&self, call: &Call<'_>) -> Result<(), Error> {
        let chain = Links::of(call)?;
        Ok(chain.all(|plugin| chain.run(plugin, Command::Status, None))?)
    }

    fn unknown_keys(&self, config: &str) -> Result<Vec<UnknownKey>, JsonError> {
        common_keys::unknown::<Raw>(config, false)
    }
}

/// The plugins of a chain, and the call that concerns all of them.
struct Links<'c> {
    call: &'c Call<'c>,
    plugins: Vec<PluginConfig>,
    capability_args: BTreeMap<String, Box<RawValue>>,
}

impl<'c> Links<'c> {
    /// Reads and checks everything first, so that no plugin runs if a later one cannot.
    fn of(call: &'c Call<'c>) -> Result<Self, Failure> {
        let raw: Raw = call.read_config()?;
        let args = OuterArgs::of(call)?;
        let mut plugins = Vec::with_capacity(raw.plugins.len());
        for (place, mut object) in raw.plugins.into_iter().enumerate() {
            let here = |error: Failure| error.context(format_args!("plugins[{place}]"));
            args.put_into(&mut object).map_err(here)?;
            let plugin = PluginConfig::from_object(object).map_err(|error| here(error.into()))?;
            if plugin.plugin_type == NAME {
                let text = format!("plugins[{place}] is a chain: write its plugins here instead");
                return Err(Failure::new(code::INVALID_CONFIG, text));
            }
            plugins.push(plugin);
        }
        if !matches!(call.command(), Command::Del | Command::Gc) {
            // A chain without plugins created nothing: there is nothing to remove.
            if plugins.is_empty() {
                return Err(no_plugins());
            }
            // A runtime that only asks whether the configuration is sound names no interface.
            let ifname = Some(call.env().ifname.as_str()).filter(|ifname| !ifname.is_empty());
            let types = plugins.iter().map(|one| &one.plugin_type);
            if let Some(refused) = policy::behind(ifname, types) {
                return Err(Failure::new(code::INVALID_CONFIG, policy::why_not(refused))
                    .with_details(policy::INSTEAD));
            }
        }
        let links = Links { call, plugins, capability_args: raw.runtime_config };
        if call.command() == Command::Add {
            let path = call.env().plugin_path();
            for plugin in &links.plugins {
                find(&plugin.plugin_type, &path)?;
            }
        }
        Ok(links)
    }

    /// Lists the types of the plugins after one, and of those after the chain.
    fn followers(&self, place: usize) -> Vec<&str> {
        let inner = self.plugins[place + 1..].iter().map(|plugin| &plugin.plugin_type);
        inner.chain(&self.call.common().followed_by).map(String::as_str).collect()
    }

    /// Runs one verb of one plugin; returns what it printed.
    fn run(
        &self,
        plugin: &PluginConfig,
        command: Command,
        previous: Option<&RawValue>,
    ) -> Result<Vec<u8>, Failure> {
        self.run_before(&[], plugin, command, previous)
    }

    /// Does the same, and tells the plugin which others follow.
    fn run_before(
        &self,
        followers: &[&str],
        plugin: &PluginConfig,
        command: Command,
        previous: Option<&RawValue>,
    ) -> Result<Vec<u8>, Failure> {
        let call = self.call;
        let valid = (command == Command::Gc).then(|| call.valid_attachments());
        let injection = Injection {
            capability_args: Some(&self.capability_args),
            prev_result: previous,
            valid_attachments: valid,
            repair: call.common().repair == Some(true) && command == Command::Check,
            look: call.common().look && command == Command::Check,
            attached_as: (command == Command::Check && call.common().attached_as.is_some())
                .then(|| &call.attachment().ifname),
            gone: call.common().gone.as_deref().filter(|_| command == Command::Del),
            undo: command == Command::Del && call.is_undo(),
            followed_by: Some(followers),
        };
        let stdin = plugin.request(call.network().as_str(), call.version().as_str(), &injection);
        Ok(call.delegate_with(&plugin.plugin_type, &stdin).call(command)?)
    }

    /// Stops at the first plugin that fails.
    fn all(&self, run: impl Fn(&PluginConfig) -> Result<Vec<u8>, Failure>) -> Result<(), Failure> {
        self.plugins.iter().try_for_each(|plugin| {
            let ran = run(plugin).map(drop);
            ran.map_err(|error| error.context(format_args!("plugin {:?}", plugin.plugin_type)))
        })
    }

    /// Runs DEL on the first `count` plugins, the last first, even if some fail. The last has made
    /// nothing if it refuses its configuration as it did at ADD (`refusal`).
    fn del(
        &self,
        count: usize,
        previous: Option<&RawValue>,
        refusal: Option<&Refusal>,
    ) -> Result<(), Failure> {
        let mut failures = Failures::new();
        for (place, plugin) in self.plugins[..count].iter().enumerate().rev() {
            let refusal = refusal.filter(|_| place + 1 == count);
            match self.run(plugin, Command::Del, previous) {
                // CNI 1.1.0 §5 "Error": code 3 implies that there is nothing to clean up.
                Err(error) if error.code() == code::UNKNOWN_CONTAINER => {}
                Err(error) if refusal.is_some_and(|refusal| error.is_only(refusal)) => {}
                removed => {
                    failures.note(format_args!("plugin {:?}", plugin.plugin_type), removed);
                }
            }
        }
        failures.into_result()
    }
}

fn raw(result: &AddResult, call: &Call<'_>) -> Result<Box<RawValue>, Failure> {
    let text = result.write(call.version())?;
    serde_json::from_slice(&text)
        .map_err(|error| Failure::new(code::INTERNAL, format!("write result as JSON: {error}")))
}

fn no_plugins() -> Failure {
    Failure::new(code::INVALID_CONFIG, "\"plugins\" of plugin \"chain\" names no plugin")
}
