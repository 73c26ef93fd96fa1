//! Which reservations are of containers that are gone, without a DEL.
//!
//! After a power cut nobody calls DEL for the containers that were there, and a small pool is exhausted for ever (pains.md A1).
//! A reservation is stale only when the network namespace that it was made for is *known* to be gone:
//!
//! - the path the runtime gave does not lead to it any more,
//! - no process is in it, and it is mounted nowhere that we see,
//! - and no link on the host carries the attachment's mark.
//!
//! The boot is a hint only: in a container that plays a node it is the host's, or invented. Neither is the number of a
//! namespace a proof of its life: once it is gone another has it. That one is meant where it has another cookie, which no two
//! namespaces of a boot have, or where the path of another container's reservation leads to it.
//!
//! Looked at only when a pool gives no address, so that it costs nothing otherwise; every reservation is then read.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use cni_plugin::Call;
use ipam::{Holder, Locked, Origin, Reservation, SetError, StoreError};
use kernel::netns::Netns;

use crate::shared::pair;

/// What identifies a namespace while it lives.
type Id = (u64, u64);

/// A namespace that is there: with its cookie, where the kernel tells it.
type Found = (Id, Option<u64>);

/// Describes the container's namespace of this call, if it is there.
pub(super) fn origin(call: &Call<'_>) -> Option<Origin> {
    let path = call.netns_path()?.to_owned();
    let netns = call.open_netns_if_there().ok().flatten()?;
    let (id, cookie) = (netns.id(), netns.cookie());
    let boot = state::boot_id().unwrap_or_default();
    path.is_absolute().then_some(Origin { path, dev: id.dev, ino: id.ino, cookie, boot })
}

/// Whether a stale reservation may be why there is no address: one that is in the way, or any when all are taken. It spares
/// reading every file where the one in the way is of a container that is there.
pub(super) fn may_be_why(refused: &SetError, locked: &Locked<'_>) -> bool {
    match refused {
        SetError::Exhausted { .. } => true,
        SetError::Taken { address, .. } | SetError::Duplicate { address, .. } => locked
            .origin_of(*address)
            .is_some_and(|origin| !at_path(&origin.path).is_some_and(|found| is(&origin, found))),
        _ => false,
    }
}

/// Takes back what is stale, under the pool's lock; says how many addresses that were.
///
/// # Errors
/// [`StoreError::Folder`] when the folder cannot be read.
pub(super) fn take_back(call: &Call<'_>, locked: &Locked<'_>) -> Result<usize, StoreError> {
    let all = locked.origins()?;
    // Whoever cannot see the node does not know who is gone.
    let (Some(living), Ok(marked)) = (living(Path::new("/proc")), pair::marked(call)) else {
        return Ok(0);
    };
    let containers: HashSet<&str> = marked.iter().map(|key| key.container_id.as_str()).collect();
    let who_has = |id: &Id| living.get(id).and_then(|path| at_path(path));
    let known: HashSet<Id> = living.keys().copied().collect();
    let stale = stale(&all, origin(call).as_ref(), &known, &at_path, &who_has);
    let stale: Vec<Reservation> =
        stale.into_iter().filter(|one| !containers.contains(container_of(&one.holder))).collect();
    for one in &stale {
        call.warn(format_args!(
            "{} was reserved for {}, whose namespace is gone: taken back",
            one.file.display(),
            one.holder
        ));
    }
    Ok(locked.remove(stale).removed.len())
}

/// Whether a namespace may be the one that was noted.
fn is(origin: &Origin, (id, cookie): Found) -> bool {
    let same = origin.cookie.zip(cookie).is_none_or(|(noted, found)| noted == found);
    (origin.dev, origin.ino) == id && same
}

/// Chooses the stale reservations: `at_path` says which namespace a path leads to, `living` which there are, and `who_has` which one has
/// a number now.
fn stale(
    all: &[(Reservation, Origin)],
    asking: Option<&Origin>,
    living: &HashSet<Id>,
    at_path: &dyn Fn(&Path) -> Option<Found>,
    who_has: &dyn Fn(&Id) -> Option<Found>,
) -> Vec<Reservation> {
    let id = |origin: &Origin| (origin.dev, origin.ino);
    // Whose path leads to what was noted is there, and has that number now.
    let present = |origin: &Origin| at_path(&origin.path).is_some_and(|found| is(origin, found));
    // Nobody knows who cannot be looked at, or has changed meanwhile.
    let another = |origin: &Origin| {
        who_has(&id(origin)).is_some_and(|found| found.0 == id(origin) && !is(origin, found))
    };
    let mut taken: HashSet<Id> = asking.iter().map(|origin| id(origin)).collect();
    taken.extend(all.iter().filter(|(_, origin)| present(origin)).map(|(_, origin)| id(origin)));
    let is_stale = |origin: &Origin| {
        !present(origin)
            && (!living.contains(&id(origin)) || taken.contains(&id(origin)) || another(origin))
    };
    let stale = all.iter().filter(|(reservation, origin)| {
        matches!(reservation.holder, Holder::Attachment(_) | Holder::Container(_))
            && is_stale(origin)
    });
    stale.map(|(reservation, _)| reservation.clone()).collect()
}

fn container_of(holder: &Holder) -> &str {
    match holder {
        Holder::Attachment(owner) => &owner.container_id,
        Holder::Container(id) => id,
        Holder::Nobody | Holder::Unknown | Holder::Unread => "",
    }
}

fn at_path(path: &Path) -> Option<Found> {
    let netns = Netns::open(path).ok()?;
    Some(((netns.id().dev, netns.id().ino), netns.cookie()))
}

/// Lists the namespaces that processes are in or that are mounted, each with a path to it; `None` when that cannot be told.
fn living(proc: &Path) -> Option<HashMap<Id, PathBuf>> {
    use std::os::unix::fs::MetadataExt as _;
    let mut living = HashMap::new();
    for entry in fs::read_dir(proc).ok()? {
        let name = entry.ok()?.file_name();
        let is_process = name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
        let path = proc.join(name).join("ns/net");
        // One that ends meanwhile is in none.
        if is_process && let Ok(found) = fs::metadata(&path) {
            living.insert((found.dev(), found.ino()), path);
        }
    }
    let own = fs::metadata(proc.join("thread-self/ns/net")).ok()?;
    // Ours, and those of whoever began here: a service may have mounts of its own.
    for whose in ["thread-self", "1"] {
        let mounts = fs::read_to_string(proc.join(whose).join("mountinfo"));
        let mounts = if whose == "1" { mounts.unwrap_or_default() } else { mounts.ok()? };
        let root = proc.join(whose).join("root");
        for line in mounts.lines() {
            // man 5 proc_pid_mountinfo: what of the file system is mounted, and where.
            let mut words = line.split(' ').skip(3);
            let (Some(what), Some(place)) = (words.next(), words.next()) else { continue };
            let number = what.strip_prefix("net:[").and_then(|what| what.strip_suffix(']'));
            if let Some(ino) = number.and_then(|number| number.parse().ok()) {
                let path = root.join(place.trim_start_matches('/'));
                living.entry((own.dev(), ino)).or_insert(path);
            }
        }
    }
    Some(living)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipam::Owner;

    fn reservation(id: &str, path: &str, ino: u64) -> (Reservation, Origin) {
        let holder = Holder::Attachment(Owner::new(id, "eth0"));
        let file = format!("10.0.0.{ino}");
        let address = file.parse().ok();
        let boot = "b".to_owned();
        let origin = Origin { path: path.into(), dev: 4, ino, cookie: Some(ino), boot };
        (Reservation { file: file.into(), address, holder }, origin)
    }

    /// Says who is stale of reservations `(container, path, number)`, where paths lead and which numbers live.
    fn who(
        all: &[(&str, &str, u64)],
        asking: Option<u64>,
        paths: &[(&str, u64)],
        living: &[u64],
    ) -> String {
        let all: Vec<_> = all.iter().map(|(id, path, ino)| reservation(id, path, *ino)).collect();
        let asking = asking.map(|ino| reservation("new", "/run/netns/new", ino).1);
        let living = living.iter().map(|ino| (4, *ino)).collect();
        let at_path = |path: &Path| {
            let found = paths.iter().find(|(at, _)| Path::new(at) == path);
            found.map(|(_, ino)| ((4, *ino), None))
        };
        let stale = stale(&all, asking.as_ref(), &living, &at_path, &|_| None);
        stale.iter().map(|one| container_of(&one.holder).to_owned()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn only_what_is_known_to_be_gone_is_stale() {
        let a = ("a", "/run/netns/a", 10);
        assert_eq!(who(&[a], None, &[("/run/netns/a", 10)], &[10]), "", "it is there");
        assert_eq!(who(&[a], None, &[], &[]), "a", "the path is gone, and nobody is in it");
        assert_eq!(who(&[a], None, &[], &[10]), "", "a process is still in it");
        assert_eq!(who(&[a], None, &[("/run/netns/a", 11)], &[11]), "a", "another is at its path");
        assert_eq!(who(&[a], None, &[("/run/netns/a", 11)], &[10, 11]), "", "renamed, not gone");
    }

    #[test]
    fn after_a_reboot_others_have_the_numbers() {
        let (old, new) = (("old", "/run/netns/old", 10), ("new", "/run/netns/new", 10));
        assert_eq!(who(&[old, new], None, &[("/run/netns/new", 10)], &[10]), "old");
        assert_eq!(who(&[old], Some(10), &[], &[10]), "old", "the one that asks has it");
        assert_eq!(
            who(&[old], Some(11), &[], &[10, 11]),
            "",
            "somebody unknown has it: nobody knows"
        );
    }

    #[test]
    fn a_number_with_another_cookie_is_another_namespace() {
        let all = [reservation("a", "/run/netns/a", 10)];
        let stale = |at_path: Option<Found>, who_has: Option<Found>| {
            let living = HashSet::from([(4, 10)]);
            super::stale(&all, None, &living, &|_| at_path, &|_| who_has).len()
        };
        let (same, another, untold) = (((4, 10), Some(10)), ((4, 10), Some(11)), ((4, 10), None));
        assert_eq!(stale(None, Some(same)), 0, "it lives, where nobody knows");
        assert_eq!(stale(None, Some(another)), 1, "another has its number");
        assert_eq!(stale(None, Some(untold)), 0, "the kernel does not tell");
        assert_eq!(stale(None, None), 0, "it cannot be looked at");
        assert_eq!(stale(None, Some(((4, 12), Some(11)))), 0, "it was another by then");
        assert_eq!(stale(Some(same), Some(another)), 0, "it is where it was");
        assert_eq!(stale(Some(another), Some(another)), 1, "another is where it was");
        assert_eq!(stale(Some(untold), None), 0, "there is one, and the kernel does not tell");
    }
}
