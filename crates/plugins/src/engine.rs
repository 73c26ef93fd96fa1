//! The life that attachments of every kind have in common.
//!
//! A plugin says what differs: how it attaches a container ([`Kind::attach`]), how it removes what
//! it attached ([`Kind::take_down`]), and what an attachment wants, as data ([`Wants::wanted`]). The
//! verbs are here, once:
//!
//! | verb | order |
//! |---|---|
//! | ADD | lock, configuration, [`Kind::attach`]; on failure everything that was recorded to be undone, last first |
//! | DEL | what chained plugins recorded, lock, the container's namespace, [`Kind::take_down`], claims, the record, then the addresses (with `dhcp` these first, over the link) |
//! | GC | the same for each attachment that is stale, under its lock; then what belongs to none; then the IPAM plugin |
//! | CHECK | configuration, IPAM, result, then every item: all differences are reported |
//! | repair | lock, record, configuration, IPAM, then rounds: observe, restore what differs |
//!
//! | module | what |
//! |---|---|
//! | `life` | ADD, DEL, GC, and the plugin of a kind |
//! | `addresses` | what the engine asks of the IPAM plugin |
//! | `earlier` | what an ADD refuses because of an earlier ADD of its attachment |
//! | `chained` | what chained plugins recorded, which goes before the interface |
//! | `undo` | what a failed ADD undoes |
//! | `stale` | attachments that GC removes |
//! | `check` | CHECK and repair |
//! | `any_kind` | a kind without its type: what CHECK, repair, DEL and GC ask it |
//! | `picture`, `compare`, `restore` | what the kernel has; an item beside it; an item restored |
//! | `sample` | an attachment, for tests of what it wants |
//!
//! A removal that fails keeps the record, so that DEL or GC can be repeated. A kind says which
//! namespace its removal needs ([`NetnsEntry`]): if that lives and cannot be entered, the removal
//! fails and forgets nothing. [`Kind::attach`] makes a new attachment in few messages without
//! reading it; CHECK after ADD shows that it agrees with what is wanted. Every error becomes a
//! `Failure` (`shared/failure.rs`), which alone decides code and words. `chain`, `flannel`,
//! `multi`, `netwright-multi`, `loopback` and IPAM plugins are not kinds.

mod addresses;
mod any_kind;
mod chained;
mod check;
mod compare;
mod earlier;
mod life;
mod picture;
mod restore;
#[cfg(test)]
pub(crate) mod sample;
mod stale;
mod undo;

use std::fmt::Debug;

use cni::{AddResult, AttachmentKey};
use cni_plugin::{Call, Info, Role, codes};
use serde::de::DeserializeOwned;
use state::Index;
use wanted::{Item, Reason, State, Wanted};

use crate::shared::failure::Failure;
use crate::shared::failures::Failures;
use crate::shared::readiness;
use crate::shared::rules::MasqueradeBackend;
pub(crate) use addresses::talks_over_the_link;
pub(crate) use earlier::{DEL_FIRST, refuse_leftover, refuse_living};
pub(crate) use life::{Addition, Collection, Life, NetnsEntry, Removal};
pub(crate) use picture::{Comparison, Difference, Mismatch, Picture, differs, sound};
pub(crate) use stale::{GC_TIMEOUT, StaleAttachment};
pub(crate) use undo::Undo;

/// One kind of attachment: what is its own in ADD, DEL and GC. [`Life`] makes a plugin of it.
pub(crate) trait Kind: Debug + Send + Sync + Sized + 'static {
    /// What the plugin is.
    const INFO: Info;
    /// The plugin's type, and the name of its records.
    const NAME: &'static str = Self::INFO.name;
    /// Whether another plugin attached the interface. Then this one assigns no addresses, its result
    /// need not report the interface, and a repair of a sound attachment takes no lock: there are no
    /// claims to settle.
    const CHAINED: bool = matches!(Self::INFO.role, Role::Chained);
    /// Whether its attachments claim addresses.
    const CLAIMS: bool = !Self::CHAINED;
    /// Which namespace a removal gets.
    const ENTER: NetnsEntry;

    /// The configuration's keys as written, for [`cni_plugin::Plugin::unknown_keys`].
    type Raw: DeserializeOwned;
    /// The checked configuration.
    type Config;
    /// What the plugin's record holds.
    type RecordData: DeserializeOwned;
    /// What the kind keeps during a verb, from one attachment to the next: what it has read, or which
    /// server does not answer.
    type Cache: Default + Debug;

    /// Reads and checks the configuration. Reads nothing else.
    ///
    /// # Errors
    /// Code 7 or 2, naming the key.
    fn config(call: &Call<'_>) -> Result<Self::Config, Failure>;

    /// Does what [`Kind::config`] does for a call that lacks what a runtime passes only to ADD.
    ///
    /// # Errors
    /// As [`Kind::config`].
    fn validate(call: &Call<'_>) -> Result<(), Failure> {
        Self::config(call).map(drop)
    }

    /// Names what ADD accepts and is probably a mistake: see [`cni_plugin::Plugin::doubts`].
    fn doubts(call: &Call<'_>) -> Vec<Failure> {
        let _ = call;
        Vec::new()
    }

    /// Refuses what would make every ADD on this host fail: see [`cni_plugin::Plugin::fits_host`].
    ///
    /// # Errors
    /// As ADD, naming the obstacle.
    fn fits_host(call: &Call<'_>) -> Result<(), Failure> {
        readiness::refuse_without_kernel(call)
    }

    /// Reports whether ADD would be served now: by default, whether the IPAM plugin would serve it.
    ///
    /// # Errors
    /// Code 50 or 51, naming the obstacle.
    fn status(call: &Call<'_>) -> Result<(), Failure> {
        Ok(call.ipam().map_or(Ok(()), |ipam| ipam.status())?)
    }

    /// Attaches the container, or changes its attachment, under the attachment's lock. Before the
    /// first change it says how a failure is undone ([`Addition::begin`]), unless the kind undoes
    /// its own steps, as `tuning` does.
    ///
    /// # Errors
    /// Anything that keeps the attachment from being complete.
    fn attach(attaching: &mut Addition<'_, Self>) -> Result<AddResult, Failure>;

    /// Removes everything that ADD created, except claims, the record and the reservation of
    /// addresses, which the engine removes if nothing failed. What is already gone is success. The
    /// key is enough; everything else makes it cheaper.
    fn take_down(removal: &Removal<'_, Self>, failures: &mut Failures);

    /// Reports whether something of an attachment may be in the container's namespace alone. Then a
    /// removal searches it wherever it is, and fails if it lives and no way leads there.
    fn is_inside(recorded: &Self::RecordData) -> bool {
        let _ = recorded;
        !Self::CHAINED
    }

    /// Lists attachments of this network that may exist without a record: by marks on links, for
    /// example. Valid ones may be among them. If anything fails, GC keeps all addresses.
    fn unrecorded(call: &Call<'_>, index: &Index, failures: &mut Failures) -> Vec<AttachmentKey> {
        let _ = (call, index, failures);
        Vec::new()
    }

    /// Removes what GC finds that belongs to no attachment, or to one without a record. Nothing of
    /// what is spared is touched.
    fn collect(collecting: &Collection<'_, Self>, failures: &mut Failures) {
        let _ = (collecting, failures);
    }
}

/// What an attachment of a kind wants: CHECK compares it, repair restores it.
pub(crate) trait Wants: Kind {
    /// What the host has that decides what is wanted, besides the record: the creator of a shared
    /// link, for example.
    type Observation: Default;

    /// The answer to a call without `prevResult`.
    const NO_PREVIOUS: &'static str = "Required prevResult missing";

    /// Reports whether a configuration asks for nothing: then nothing is compared, and a call needs
    /// no `prevResult`.
    fn is_nothing(config: &Self::Config) -> bool {
        let _ = config;
        false
    }

    /// Reads what decides what is wanted: nothing, by default. Changes nothing.
    ///
    /// # Errors
    /// Code 100 when the kernel does not answer; code 105 for our own files.
    fn observe(
        attached: &Attachment<'_, Self>,
        picture: &mut Picture<'_>,
    ) -> Result<Self::Observation, Failure> {
        let _ = (attached, picture);
        Ok(Self::Observation::default())
    }

    /// Says what an attachment wants. Pure, given what [`Wants::observe`] found: the same for CHECK
    /// and repair. Without a record, another project's plugin may have attached the container.
    fn wanted(attached: &Attachment<'_, Self>, observed: &Self::Observation) -> Wanted;

    /// Compares an item whose state only this kind has.
    ///
    /// # Errors
    /// Code 100 when the kernel does not answer.
    fn compare(config: &Self::Config, picture: &mut Picture<'_>, item: &Item) -> Comparison {
        let _ = (config, picture);
        Err(unknown(item))
    }

    /// Restores an item that differs and whose state only this kind has. Returns what was set, or
    /// nothing if the item itself says it.
    ///
    /// # Errors
    /// Code 100 with the kernel's words.
    fn restore(
        config: &Self::Config,
        picture: &mut Picture<'_>,
        item: &Item,
    ) -> Result<Option<String>, Failure> {
        let _ = (config, picture);
        Err(unknown(item))
    }

    /// Says in the plugin's own words that an item of the engine differs: a value of a link is `now`,
    /// or a link is gone. `None` for the engine's words.
    fn words(item: &Item, now: Option<&str>) -> Option<String> {
        let _ = (item, now);
        None
    }

    /// Is called once under the attachment's lock before anything is restored: refuses the repair,
    /// or records what DEL must know by then.
    ///
    /// # Errors
    /// Why nothing is restored.
    fn before_repair(call: &Call<'_>, index: &Index) -> Result<(), Failure> {
        let _ = (call, index);
        Ok(())
    }

    /// Finds what differs and is not an item: what only this kind compares, and repair leaves to an
    /// administrator.
    ///
    /// # Errors
    /// Code 100 when the kernel does not answer.
    fn others(
        attached: &Attachment<'_, Self>,
        observed: &Self::Observation,
        picture: &mut Picture<'_>,
    ) -> Result<Vec<Difference>, Failure> {
        let _ = (attached, observed, picture);
        Ok(Vec::new())
    }
}

/// What is known of an attachment after ADD.
#[derive(Debug)]
pub(crate) struct Attachment<'a, K: Kind> {
    /// Whose it is.
    pub(crate) key: &'a AttachmentKey,
    /// The container's interface, as it is called now.
    pub(crate) ifname: &'a str,
    /// The result of ADD, and of the plugins after this one.
    pub(crate) result: &'a AddResult,
    /// The configuration.
    pub(crate) config: &'a K::Config,
    /// What ADD recorded; nothing if the record is lost, or if another project's plugin attached it.
    pub(crate) recorded: Option<&'a K::RecordData>,
}

/// Says what a plugin wants first if it changes an interface that another plugin created: the
/// interface exists, and is still the one that ADD saw.
pub(crate) fn wanted_of_another(ifname: &str) -> Wanted {
    let link = || ifname.to_owned();
    let mut wanted = Wanted::new();
    let exists = State::Link { link: link(), kinds: Vec::new() };
    wanted.push(Item::container(exists, Reason::Created));
    wanted.push(Item::container(State::Recorded { link: link() }, Reason::Ownership));
    wanted
}

/// Returns the error for an item that a kind wants and does not know how to compare or restore.
pub(crate) fn unknown(item: &Item) -> Failure {
    Failure::new(codes::CONFLICT, format!("unknown item {:?}", item.state))
}

/// Returns the backend of masquerading of an item.
fn backend(iptables: bool, sources: firewall::masquerade::Sources) -> Option<MasqueradeBackend> {
    let backend = if iptables { MasqueradeBackend::Iptables } else { MasqueradeBackend::Nftables };
    Some(backend(sources))
}
