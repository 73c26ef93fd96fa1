//! What an ADD finds of an earlier ADD of its attachment: the rest of an attempt that was cut short,
//! or a container that lives.
//!
//! A runtime may run ADD a second time for an ID that it has lost sight of. Whatever the earlier ADD
//! made, it made under the same key, so that a second one would take it for its own: it would
//! replace the link, and, if it failed, undo what it did not make.

use cni::AttachmentKey;
use cni_plugin::{Call, codes};
use kernel::living::{Census, Life, NetnsNote};
use kernel::netns::Netns;
use kernel::route::{Link, RouteSocket};
use state::{Index, Record};

use super::addresses;
use crate::shared::failure::Failure;

/// What ends the earlier attachment.
pub(crate) const DEL_FIRST: &str =
    "nothing was changed; DEL of the attachment comes before another ADD of it";

/// Refuses an ADD whose attachment exists already, before anything is changed: in another
/// namespace that is not known to be gone, or in this one under another name. An interface of the
/// attachment's name is left to the plugin, which refuses it in the reference's words.
///
/// A plugin that is `chained` changes an interface that the one before it made in this call, and
/// goes by its own record.
///
/// # Errors
/// Code 106; code 100 when the kernel does not answer.
pub(super) fn refuse_second(
    call: &Call<'_>,
    may_be_recorded: bool,
    chained: Option<&str>,
) -> Result<(), Failure> {
    if !may_be_recorded {
        return Ok(());
    }
    let (index, key) = (Index::new(call.roots()), call.attachment());
    let records: Vec<Record> = match chained {
        Some(plugin) => index.get(key, plugin).found.into_iter().collect(),
        None => index.of_attachment(key).found,
    };
    // The plugin reports a namespace that cannot be opened.
    let (false, Ok(netns)) = (records.is_empty(), call.open_netns()) else { return Ok(()) };
    refuse_living(key, &records, &netns)?;
    let is_here = |record: &Record| record.noted().is_some_and(|noted| noted.is(&netns));
    if chained.is_some() || !records.iter().any(is_here) {
        return Ok(());
    }
    let mut inside = RouteSocket::open_in(&netns)?;
    let ifname = key.ifname.as_str();
    let is_renamed = |link: &Link| link.name != ifname;
    match addresses::own_links(call, &mut inside)?.into_iter().find(is_renamed) {
        Some(link) if inside.link_index(ifname)?.is_none() => {
            let text = format!("interface {ifname:?} already exists: it is called {:?}", link.name);
            Err(Failure::new(codes::EXISTS, text).with_details(DEL_FIRST))
        }
        _ => Ok(()),
    }
}

/// Refuses an ADD in this namespace if a record names another one that is not known to be gone.
///
/// # Errors
/// Code 106.
pub(crate) fn refuse_living(
    key: &AttachmentKey,
    records: &[Record],
    netns: &Netns,
) -> Result<(), Failure> {
    let census = Census::new();
    let elsewhere = |noted: &NetnsNote| noted.id.is_some() && !noted.is(netns);
    for noted in state::noted_in(records).into_iter().filter(elsewhere) {
        let how = match census.life(&noted) {
            Life::Gone => continue,
            Life::Living => "the container lives",
            Life::Unknown => "that may exist, out of sight",
        };
        let text = format!("{key} already exists in network namespace {:?}: {how}", noted.path);
        return Err(Failure::new(codes::EXISTS, text).with_details(DEL_FIRST));
    }
    Ok(())
}

/// Refuses an ADD whose attachment has a `link` on the `host` that does not lead into this container,
/// unless the records, or the kernel, say that the container to which it led is gone. Without a
/// record it may be one that lives.
///
/// # Errors
/// Code 106; code 100 when the kernel does not answer.
pub(crate) fn refuse_leftover(
    call: &Call<'_>,
    host: &mut RouteSocket,
    link: &Link,
) -> Result<(), Failure> {
    let records = Index::new(call.roots()).of_attachment(call.attachment()).found;
    let netns = call.open_netns()?;
    // Those of a namespace that may live were refused.
    let is_elsewhere = |noted: NetnsNote| !noted.is(&netns);
    if records.iter().filter_map(Record::noted).any(is_elsewhere) || host.is_ending(link)? {
        return Ok(());
    }
    let text = format!("link {:?} of {} already exists", link.name, call.attachment());
    Err(Failure::new(codes::EXISTS, text)
        .with_details("it leads to a container that may live")
        .with_details(DEL_FIRST))
}
