//! `bandwidth`: limits a container's traffic to a rate in each direction.
//!
//! Traffic to the container leaves by the host's end of its pair, which has a token bucket. Traffic
//! from it passes through a link of its own (`ifb`), which has another bucket. Names and handles
//! are the reference's, so DEL of either plugin removes what the other created. Inside the bucket
//! packets queue fairly (fq_codel) if the kernel supports it, so a full pipe does not make other
//! flows wait.
//!
//! A burst that was configured passes at once, as with the reference. Runtimes that were given no
//! burst ask for the largest number they can write, which is not a choice: then, unlike with the
//! reference, the limit holds in every second (`plan`).
//!
//! | module | what |
//! |---|---|
//! | `config` | the configuration, checked |
//! | `plan` | buckets and queues for a rate, and what to change |
//! | `node` | links and their qdiscs |
//! | `remove` | DEL and GC |
//! | `verify` | CHECK and STATUS |
//!
//! DEL and GC find everything by our record, and without it by the name and the owner's mark on the
//! `ifb` link.

mod config;
mod node;
mod plan;
mod remove;
mod verify;

use cni::json::{JsonError, UnknownKey, unknown_keys};
use cni::{AddResult, Error, Interface, Version};
use cni_plugin::{Call, Info, Outcome, Plugin, Role};
use kernel::route::RouteSocket;
use serde::{Deserialize, Serialize};
use state::Index;

use self::config::Config;
use self::node::Node;
use crate::shared::{attachment, kernel_error as kernel, repair};

/// What the plugin is. Its versions are those that have `prevResult`, as the reference.
pub const INFO: Info = Info::new("bandwidth")
    .role(Role::Chained)
    .versions(Version::starting_from(Version::V0_3_0))
    .capabilities(&["bandwidth"])
    .succeeds_alone();

/// The plugin's type, and the name of its records.
const NAME: &str = INFO.name;
/// The reference's words.
const NO_PREVIOUS: &str = "must be called as chained plugin";

/// The plugin.
#[derive(Debug)]
pub struct Bandwidth;

/// What ADD records about an attachment for DEL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Facts {
    /// The host's end of the pair.
    host_ifname: String,
    /// Its ifindex: a later link may have its name.
    host_index: u32,
    /// Whether packets queue fairly inside the buckets.
    #[serde(default)]
    fair: bool,
    /// Whether the hook for filters on the host's end was not there before.
    #[serde(default)]
    own_hook: bool,
}

impl Plugin for Bandwidth {
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
        repair::by_adding_again(call, self, NAME, || verify::refuse_another(call))
    }

    fn repair_and_check(&self, call: &Call<'_>) -> Outcome {
        repair::unless_sound(self, call)
    }

    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        remove::gc(call)
    }

    fn validate(&self, call: &Call<'_>) -> Result<(), Error> {
        config::validate(call)
    }

    fn status(&self, call: &Call<'_>) -> Result<(), Error> {
        verify::status(call)
    }

    fn unknown_keys(&self, config: &str) -> Result<Vec<UnknownKey>, JsonError> {
        unknown_keys::<config::Raw>(config)
    }
}

impl Bandwidth {
    /// Runs ADD under the attachment's lock.
    fn add_locked(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        let config = Config::of(call)?;
        let index = Index::new(call.roots());
        let key = call.attachment();
        let before: Option<Facts> = attachment::read_facts(&index, key, NAME);
        if config.is_empty() && before.is_none() {
            return Ok(call.prev_result()?.unwrap_or_default());
        }
        let mut result = call.require_prev_result(NO_PREVIOUS)?;
        let netns = call.open_netns()?;
        let mut socket = RouteSocket::open().map_err(kernel)?;
        let host = node::find_host(&mut socket, call, &netns, &result)?;
        let (host_ifname, host_index) = (host.name.clone(), host.index);
        let mut node = Node::observe(socket, key, host)?;
        let own_hook = node.recall(before.as_ref()) && config.egress.is_some();
        let mut facts = Facts { host_ifname, host_index, fair: false, own_hook };
        attachment::write_down(call, &index, NAME, &facts, &netns)?;
        let shaped = node.shape(&config).map_err(|error| match &before {
            // The record describes what is still there.
            Some(_) => error,
            None => match attachment::forget(&index, key, NAME) {
                Ok(()) => error,
                Err(also) => error.with_details(also.to_string()),
            },
        })?;
        if config.is_empty() {
            attachment::forget(&index, key, NAME)?;
        } else if shaped.fair {
            facts.fair = true;
            attachment::write_down(call, &index, NAME, &facts, &netns)?;
        }
        if let Some(ifb) = shaped.ifb {
            result.interfaces.retain(|link| link.name != ifb.name || !link.sandbox.is_empty());
            result.interfaces.push(Interface {
                name: ifb.name,
                mac: ifb.mac.map(|mac| mac.to_string()).unwrap_or_default(),
                ..Interface::default()
            });
        }
        Ok(result)
    }
}
