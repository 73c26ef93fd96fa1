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
//! | `remove` | what DEL and GC remove |
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
use cni::{AddResult, AttachmentKey, Interface, Version};
use cni_plugin::{Call, Info, Role};
use kernel::route::{Link, RouteSocket};
use serde::{Deserialize, Serialize};
use state::Index;

use self::node::Node;
use crate::engine::{Addition, Kind, NetnsEntry, Removal};
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;
use crate::shared::namespaces::Namespaces;
use crate::shared::{attachment, owner};

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

/// Attachments of `bandwidth`.
#[derive(Debug)]
pub(crate) struct Bandwidth;

/// What ADD records about an attachment for DEL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RecordData {
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

impl Kind for Bandwidth {
    const INFO: Info = INFO;
    const ENTER: NetnsEntry = NetnsEntry::Never;
    type Raw = config::Raw;
    type Config = Limits;
    type RecordData = RecordData;
    type Cache = ();

    /// Also warns of what an administrator may not expect.
    fn config(call: &Call<'_>) -> Result<Limits, Failure> {
        let limits = config::read(call)?;
        config::warn(call, &limits);
        Ok(limits)
    }

    fn validate(call: &Call<'_>) -> Result<(), Failure> {
        config::read(call).map(drop)
    }

    fn status(call: &Call<'_>) -> Result<(), Failure> {
        status::status(call)
    }

    /// Enforces the limits, or other ones than an earlier ADD.
    fn attach(attaching: &mut Addition<'_, Self>) -> Result<AddResult, Failure> {
        let (call, limits) = (attaching.call, attaching.config);
        let before = attaching.earlier_record();
        let before: Option<RecordData> = before.as_ref().and_then(attachment::recorded_in);
        if limits.is_empty() && before.is_none() {
            return Ok(call.prev_result()?.unwrap_or_default());
        }
        let mut result = call.require_prev_result(NO_PREVIOUS)?;
        let mut namespaces = Namespaces::open(call.open_netns()?)?;
        let Namespaces { host: socket, inside, .. } = &mut namespaces;
        let host = node::find_host(socket, inside, call.ifname().as_str(), &result)?;
        if let Some(ifb) = shape(call, attaching.index, &mut namespaces, host, limits, before)? {
            result.interfaces.retain(|link| link.name != ifb.name || !link.sandbox.is_empty());
            result.interfaces.push(Interface {
                name: ifb.name,
                mac: ifb.mac.map(|mac| mac.to_string()).unwrap_or_default(),
                ..Interface::default()
            });
        }
        Ok(result)
    }

    fn take_down(removal: &Removal<'_, Self>, failures: &mut Failures) {
        failures.note_as_it_is(remove::take_down(removal));
    }

    fn unrecorded(call: &Call<'_>, _: &Index, failures: &mut Failures) -> Vec<AttachmentKey> {
        let links = RouteSocket::open().and_then(|mut socket| socket.links());
        let links = failures.note("list links", links).unwrap_or_default();
        let links = links.iter().filter(|link| link.is_kind("ifb"));
        links.filter_map(|link| owner::of_network(link, call.network())).collect()
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
    before: Option<RecordData>,
) -> Result<Option<Link>, Failure> {
    let key = call.attachment();
    let (host_ifname, host_index) = (host.name.clone(), host.index);
    let mut node = Node::observe(&mut namespaces.host, key, host)?;
    let own_hook = node.recall(before.as_ref()) && limits.egress.is_some();
    let mut recorded = RecordData { host_ifname, host_index, fair: false, own_hook };
    let netns = &namespaces.netns;
    attachment::write_record(call, index, NAME, &recorded, netns)?;
    let shaped = node.shape(limits).map_err(|error| {
        // The record describes what is still there.
        let forgotten =
            if before.is_some() { Ok(()) } else { attachment::remove_record(index, key, NAME) };
        error.with_details(forgotten.err().map(|also| also.to_string()).unwrap_or_default())
    })?;
    if limits.is_empty() {
        attachment::remove_record(index, key, NAME)?;
    } else if shaped.fair {
        recorded.fair = true;
        attachment::write_record(call, index, NAME, &recorded, netns)?;
    }
    Ok(shaped.ifb)
}
