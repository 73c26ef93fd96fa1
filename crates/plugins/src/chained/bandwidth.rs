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
//! | `status` | STATUS |
//! | `wanted` | what CHECK compares and repair restores |
//!
//! DEL and GC find everything by our record, and without it by the name and the owner's mark on the
//! `ifb` link.

mod config;
mod node;
mod plan;
mod remove;
mod status;
mod wanted;

use ::wanted::Limits;
use cni::json::{JsonError, UnknownKey, unknown_keys};
use cni::{AddResult, Error, Interface, Version};
use cni_plugin::{Call, Info, Outcome, Plugin, Role};
use kernel::route::Link;
use serde::{Deserialize, Serialize};
use state::Index;

use self::node::Node;
use crate::engine;
use crate::interface::single::Namespaces;
use crate::shared::attachment;

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
pub(crate) struct Recorded {
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
        let _no_repair = attachment::lock_out_repair(call)?;
        remove::del(call)
    }

    fn check(&self, call: &Call<'_>) -> Result<(), Error> {
        if config::read(call)?.is_empty() {
            return Ok(());
        }
        engine::check::<Bandwidth>(call)
    }

    fn repair_and_check(&self, call: &Call<'_>) -> Outcome {
        if config::read(call).is_ok_and(|limits| limits.is_empty()) {
            return Outcome { repaired: Ok(Vec::new()), checked: Ok(()) };
        }
        engine::repair::<Bandwidth>(call)
    }

    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        remove::gc(call)
    }

    fn validate(&self, call: &Call<'_>) -> Result<(), Error> {
        config::read(call).map(drop)
    }

    fn status(&self, call: &Call<'_>) -> Result<(), Error> {
        status::status(call)
    }

    fn unknown_keys(&self, config: &str) -> Result<Vec<UnknownKey>, JsonError> {
        unknown_keys::<config::Raw>(config)
    }
}

impl Bandwidth {
    /// Runs ADD under the attachment's lock.
    fn add_locked(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        let limits = config::of(call)?;
        let index = Index::new(call.roots());
        let before: Option<Recorded> = attachment::recorded(&index, call.attachment(), NAME);
        if limits.is_empty() && before.is_none() {
            return Ok(call.prev_result()?.unwrap_or_default());
        }
        let mut result = call.require_prev_result(NO_PREVIOUS)?;
        let mut namespaces = Namespaces::open(call.open_netns()?)?;
        let Namespaces { host: socket, inside, .. } = &mut namespaces;
        let host = node::find_host(socket, inside, call.ifname().as_str(), &result)?;
        if let Some(ifb) = shape(call, &index, &mut namespaces, host, &limits, before)? {
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

/// Enforces the limits on a pair and records it; `before` is what was recorded. Returns the link
/// for traffic from the container.
fn shape(
    call: &Call<'_>,
    index: &Index,
    namespaces: &mut Namespaces,
    host: Link,
    limits: &Limits,
    before: Option<Recorded>,
) -> Result<Option<Link>, Error> {
    let key = call.attachment();
    let (host_ifname, host_index) = (host.name.clone(), host.index);
    let mut node = Node::observe(&mut namespaces.host, key, host)?;
    let own_hook = node.recall(before.as_ref()) && limits.egress.is_some();
    let mut facts = Recorded { host_ifname, host_index, fair: false, own_hook };
    let netns = &namespaces.netns;
    attachment::write_down(call, index, NAME, &facts, netns)?;
    let shaped = node.shape(limits).map_err(|error| {
        // The record describes what is still there.
        let forgotten =
            if before.is_some() { Ok(()) } else { attachment::forget(index, key, NAME) };
        error.with_details(forgotten.err().map(|also| also.to_string()).unwrap_or_default())
    })?;
    if limits.is_empty() {
        attachment::forget(index, key, NAME)?;
    } else if shaped.fair {
        facts.fair = true;
        attachment::write_down(call, index, NAME, &facts, netns)?;
    }
    Ok(shaped.ifb)
}
