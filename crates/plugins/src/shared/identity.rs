//! Which link in a container belongs to an attachment, even if the container has changed it.
//!
//! A container may rename its link, remove the mark (alias), and give both to a link that it
//! created. It cannot change the link's ifindex, nor which link of which namespace is behind it.
//! ADD records those ([`Identity`]), and DEL relies on them. The mark remains where the record is
//! lost, and where the link has been in another namespace and returned with another ifindex, as
//! beneath Docker.

use cni::AttachmentKey;
use kernel::netns::Netns;
use kernel::route::{Link, RouteSocket};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use state::{Index, Record};

use super::failure::Failure;
use super::{drift, owner};

/// The key under which a record holds it, besides what the plugin's own type has.
pub const KEY: &str = "inside";

/// The properties that a link has in its container's namespace and that a container cannot change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// Its ifindex.
    index: u32,
    /// The ifindex of its peer or parent.
    peer_index: Option<u32>,
    /// The namespace of the peer or parent, as the container's namespace numbers it.
    link_netnsid: Option<i32>,
}

impl Identity {
    /// Reads it from a link, as the container's namespace shows it.
    #[must_use]
    pub fn of(link: &Link) -> Self {
        Identity { index: link.index, peer_index: link.peer_index, link_netnsid: link.link_netnsid }
    }

    /// Reads it from an attachment's record.
    #[must_use]
    pub fn recorded(data: &Value) -> Option<Self> {
        Self::deserialize(&data[KEY]).ok()
    }

    /// Reports whether a link of the container's namespace is this one.
    #[must_use]
    pub fn is(&self, link: &Link) -> bool {
        *self == Identity::of(link)
    }

    /// Finds the link, under any name.
    ///
    /// # Errors
    /// Code 100 when the kernel does not answer.
    pub fn find(&self, inside: &mut RouteSocket) -> Result<Option<Link>, Failure> {
        let found = inside.link_by_index(self.index)?;
        Ok(found.filter(|link| self.is(link)))
    }
}

/// Records which link an attachment has by now.
///
/// # Errors
/// Code 105.
pub fn record_link(
    index: &Index,
    key: &AttachmentKey,
    plugin: &str,
    link: &Link,
) -> Result<(), Failure> {
    let Some(mut record) = index.get(key, plugin).found else { return Ok(()) };
    record.data[KEY] =
        serde_json::to_value(Identity::of(link)).expect("a record has string keys only");
    Ok(index.put(&record)?)
}

/// The key under which the record of a plugin that changes an interface holds its ifindex.
pub const NUMBER_KEY: &str = "ifindex";

/// Refuses an interface that is by now a different link from the one in a plugin's record: values
/// recorded for the old link would be applied to the new one. In another namespace a link may have
/// another ifindex, so there it is not judged.
///
/// # Errors
/// Code 104 when it is a different link.
pub fn refuse_another(
    index: &Index,
    record: &Record,
    netns: &Netns,
    link: &Link,
) -> Result<(), Failure> {
    let number = record.data[NUMBER_KEY].as_u64();
    let recorded = Identity::recorded(&record.data);
    let names_none = number.is_none() && recorded.is_none();
    if names_none || !record.noted().is_some_and(|noted| noted.is(netns)) {
        return Ok(());
    }
    let same = number == Some(link.index.into()) || recorded.is_some_and(|known| known.is(link));
    // The plugin that created it may have created it again.
    if same || record_of_link(index, &record.attachment, link) {
        return Ok(());
    }
    let text = format!("interface {:?} is another link than the one that ADD saw", link.name);
    Err(drift(text).with_details("what ADD did to that one is not done to this one"))
}

fn record_of_link(index: &Index, key: &AttachmentKey, link: &Link) -> bool {
    let records = index.of_hash(&key.hash()).found;
    records.iter().filter_map(|record| Identity::recorded(&record.data)).any(|known| known.is(link))
}

/// The result of the search in a container.
#[derive(Debug, Default)]
pub struct SearchResult {
    /// The attachment's links: the recorded one, and the one with its mark and its name; if neither
    /// exists, those with its mark under any name.
    pub ours: Vec<Link>,
    /// Another link with the attachment's name.
    pub other: Option<Link>,
}

/// Searches for an attachment's links in its container. It reads all links of the container only if
/// these are not found.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub fn find(
    inside: &mut RouteSocket,
    key: &AttachmentKey,
    recorded: Option<Identity>,
) -> Result<SearchResult, Failure> {
    let mark = owner::alias(key);
    // Loopback and hardware links have no kind. They cannot be deleted, and plugins do not create
    // them.
    let marked = |link: &Link| link.kind.is_some() && link.alias.as_ref() == Some(&mark);
    let mut found = SearchResult::default();
    match inside.link_by_name(key.ifname.as_str())? {
        Some(link) if marked(&link) || recorded.is_some_and(|recorded| recorded.is(&link)) => {
            found.ours.push(link);
        }
        other => found.other = other,
    }
    if let Some(recorded) = recorded
        && !found.ours.iter().any(|link| recorded.is(link))
    {
        found.ours.extend(recorded.find(inside)?);
    }
    if found.ours.is_empty() {
        let links = inside.links()?;
        found.ours.extend(links.into_iter().filter(marked));
    }
    Ok(found)
}
