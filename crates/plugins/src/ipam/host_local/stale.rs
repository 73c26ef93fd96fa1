//! Finds reservations of containers that are gone without a DEL.
//!
//! After a power failure the containers that existed before never get a DEL, and a small pool would
//! stay exhausted forever (pains.md A1). A reservation is stale only if the network namespace that
//! it was made for is known to be gone ([`kernel::living`]), and no pair with the mark of its container
//! leads from the host into a namespace that exists. The pairs of a container that has just ended are
//! deleted first, as the kernel does some time later. Other links with its mark, such as that of
//! `bandwidth`, outlive it and prove nothing.
//!
//! The boot ID is only a hint: in a container that acts as a node it is the host's, or invented. If
//! the kernel provides no cookies, a namespace to which the path of another container's reservation
//! leads belongs to that one.
//!
//! This runs only when a pool gives no address, so it costs nothing otherwise; every reservation is
//! then read.
//!
//! What stands in an attachment's own way is judged with less: its runtime starts one container of
//! an ID at a time, and none runs on over a start of the machine. So a reservation from another boot
//! is no obstacle for its owner, though it is one for everybody else.

use std::collections::HashSet;
use std::net::IpAddr;

use cni_plugin::Call;
use ipam::{Holder, LockedStore, Origin, Owner, RangeSets, Reservation, SetError, StoreError};
use kernel::living::{Census, Life, NetnsNote, own_pid_ns};
use kernel::netns::NetnsId;

use crate::shared::pair;

/// Describes the container's namespace of this call, if it exists.
pub(super) fn origin(call: &Call<'_>) -> Option<Origin> {
    let path = call.netns_path()?.to_owned();
    let netns = call.open_netns_if_there().ok().flatten()?;
    let (id, cookie, sight) = (netns.id(), netns.cookie(), netns.sight());
    let boot = state::boot_id().unwrap_or_default();
    let (dev, ino, pid_ns) = (id.dev, id.ino, own_pid_ns());
    path.is_absolute().then_some(Origin { path, dev, ino, cookie, pid_ns, sight, boot })
}

/// Returns whether a stale reservation may be the reason for the missing address: the one that is
/// in the way, or any if all are taken. This saves reading every file if the one in the way is of a
/// container that exists.
pub(super) fn may_be_why(refused: &SetError, locked: &LockedStore<'_>) -> bool {
    match refused {
        SetError::Exhausted { .. } => true,
        SetError::Taken { address, .. } | SetError::Duplicate { address, .. } => locked
            .origin_of(*address)
            .is_some_and(|origin| Census::life_at_path(&noted(&origin)) != Life::Living),
        _ => false,
    }
}

/// Releases stale reservations, under the pool's lock, once no container that has ended answers for
/// them; returns how many addresses that were.
///
/// # Errors
/// [`StoreError::Folder`] when the folder cannot be read.
pub(super) fn release(call: &Call<'_>, locked: &LockedStore<'_>) -> Result<usize, StoreError> {
    let all = locked.origins()?;
    let census = Census::new();
    let mut stale = stale(&all, origin(call).as_ref(), &|noted| census.life(noted), &|noted| {
        Census::life_at_path(noted) == Life::Living
    });
    let containers: HashSet<&str> = stale.iter().map(|one| container_of(&one.holder)).collect();
    if containers.is_empty() {
        return Ok(0);
    }
    let Ok(kept) = pair::with_pair(call, &containers) else { return Ok(0) };
    stale.retain(|one| !kept.contains(container_of(&one.holder)));
    for one in &stale {
        call.warn(format_args!(
            "{} was reserved for {}, whose namespace is gone: taken back",
            one.file.display(),
            one.holder
        ));
    }
    Ok(locked.remove(stale).removed.len())
}

/// Returns whether an attachment's own reservation is the reason for the missing address.
pub(super) fn is_own(refused: &SetError, owner: &Owner) -> bool {
    match refused {
        SetError::Duplicate { .. } => true,
        SetError::Taken { holder, .. } => holder.as_ref().is_some_and(|holder| holder.is(owner)),
        _ => false,
    }
}

/// Releases what an attachment has from before its container started again, and returns the
/// addresses. What it may still use stays, and all else with it.
///
/// # Errors
/// [`StoreError`] when the folder cannot be read or written.
pub(super) fn give_up_own(
    call: &Call<'_>,
    locked: &LockedStore<'_>,
    owner: &Owner,
) -> Result<Vec<IpAddr>, StoreError> {
    let (held, boot, census) = (locked.held(owner)?, state::boot_id().ok(), Census::new());
    let mut whys = Vec::with_capacity(held.len());
    for (reservation, origin) in &held {
        let Some(origin) = origin else { return Ok(Vec::new()) };
        // A machine that does not tell its boot has not recorded one.
        if !origin.boot.is_empty() && boot.as_ref().is_some_and(|now| *now != origin.boot) {
            whys.push((reservation, "before the machine started"));
        } else if census.life(&noted(origin)) == Life::Gone {
            whys.push((reservation, "whose namespace is gone"));
        } else {
            return Ok(Vec::new());
        }
    }
    for (reservation, why) in whys {
        call.warn(format_args!(
            "{} was reserved for {}, {why}: taken back",
            reservation.file.display(),
            reservation.holder
        ));
    }
    locked.release(owner)
}

/// Returns those of an attachment's reservations whose namespace is gone.
///
/// # Errors
/// [`StoreError`] when the folder cannot be read.
pub(super) fn past(
    locked: &LockedStore<'_>,
    owner: &Owner,
) -> Result<Vec<Reservation>, StoreError> {
    let census = Census::new();
    let held = locked.held(owner)?.into_iter();
    let past = held.filter(|(_, origin)| is_past(origin.as_ref(), &census));
    Ok(past.map(|(reservation, _)| reservation).collect())
}

/// Returns those of an attachment's reservations that are not known to be of a namespace that is
/// gone.
///
/// # Errors
/// [`StoreError`] when the folder cannot be read.
pub(super) fn present(
    locked: &LockedStore<'_>,
    owner: &Owner,
) -> Result<Vec<Reservation>, StoreError> {
    let census = Census::new();
    let held = locked.held(owner)?.into_iter();
    let present = held.filter(|(_, origin)| !is_past(origin.as_ref(), &census));
    Ok(present.map(|(reservation, _)| reservation).collect())
}

/// Returns those of an attachment's reservations that an ADD with the call's namespace may have made,
/// unless that may be all of them: every one of ours names the namespace that it was made for.
///
/// # Errors
/// [`StoreError`] when the folder cannot be read.
pub(super) fn made_by_this_add(
    call: &Call<'_>,
    locked: &LockedStore<'_>,
    owner: &Owner,
) -> Result<Option<Vec<Reservation>>, StoreError> {
    let (path, here) = (call.netns_path().filter(|path| path.is_absolute()), origin(call));
    let is_made = |of: Option<&Origin>| match (of, &here) {
        (None, _) => path.is_none(),
        (Some(of), Some(here)) => {
            let cookies = of.cookie.zip(here.cookie);
            (of.dev, of.ino) == (here.dev, here.ino) && cookies.is_none_or(|(of, here)| of == here)
        }
        // That namespace is gone already.
        (Some(of), None) => Some(of.path.as_path()) == path,
    };
    let held = locked.held(owner)?;
    let count = held.len();
    let made = held.into_iter().filter(|(_, origin)| is_made(origin.as_ref()));
    let made: Vec<Reservation> = made.map(|(reservation, _)| reservation).collect();
    Ok((made.len() < count).then_some(made))
}

fn is_past(origin: Option<&Origin>, census: &Census) -> bool {
    origin.is_some_and(|origin| census.life(&noted(origin)) == Life::Gone)
}

/// Returns what to request so that an attachment gets the addresses again that it had: one of each
/// set, unless that has one that is requested, or gives the address no more.
pub(super) fn again(sets: &RangeSets, requested: &[IpAddr], own: &[IpAddr]) -> Vec<IpAddr> {
    let mut wanted = requested.to_vec();
    for set in sets.sets() {
        let is_in = |address: &&IpAddr| set.range_of(**address).is_some();
        if !wanted.iter().map(IpAddr::to_canonical).any(|one| set.range_of(one).is_some()) {
            wanted.extend(own.iter().filter(is_in).find(|one| !sets.is_gateway(**one)));
        }
    }
    wanted
}

fn noted(origin: &Origin) -> NetnsNote {
    let id = NetnsId { dev: origin.dev, ino: origin.ino };
    let (cookie, pid_ns, sight) = (origin.cookie, origin.pid_ns, origin.sight);
    // A reservation outlives a restart of the machine, and the container does not.
    let passage =
        state::is_passage(&origin.path) && state::boot_id().is_ok_and(|boot| boot == origin.boot);
    NetnsNote { path: origin.path.clone(), id: Some(id), cookie, pid_ns, sight, passage }
}

/// Selects the stale reservations: `life` returns what became of a namespace, and `at_path` whether
/// its path leads to it.
fn stale(
    all: &[(Reservation, Origin)],
    asking: Option<&Origin>,
    life: &dyn Fn(&NetnsNote) -> Life,
    at_path: &dyn Fn(&NetnsNote) -> bool,
) -> Vec<Reservation> {
    // A namespace to which its recorded path leads exists, and has that number now.
    let (present, absent): (Vec<_>, Vec<_>) =
        all.iter().partition(|(_, origin)| at_path(&noted(origin)));
    let present = present.iter().map(|(_, origin)| origin);
    let there: Vec<&Origin> = present.chain(asking).collect();
    let is_anothers = |origin: &Origin| {
        there.iter().any(|other| {
            (other.dev, other.ino) == (origin.dev, origin.ino)
                && other.cookie.zip(origin.cookie).is_none_or(|(one, another)| one != another)
        })
    };
    let stale = absent.into_iter().filter(|(reservation, origin)| {
        let noted = noted(origin);
        // That the number of a passage is another's says nothing about the container.
        let is_anothers = !noted.passage && is_anothers(origin);
        matches!(reservation.holder, Holder::Attachment(_) | Holder::Container(_))
            && (is_anothers || life(&noted) == Life::Gone)
    });
    stale.map(|(reservation, _)| reservation.clone()).collect()
}

fn container_of(holder: &Holder) -> &str {
    match holder {
        Holder::Attachment(owner) => &owner.container_id,
        Holder::Container(id) => id,
        Holder::Unwritten | Holder::Unknown | Holder::Unread => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipam::RangeSpec;

    fn reservation(id: &str, path: &str, ino: u64) -> (Reservation, Origin) {
        let holder = Holder::Attachment(Owner::new(id, "eth0"));
        let file = format!("10.0.0.{ino}");
        let address = file.parse().ok();
        let boot = "b".to_owned();
        let origin = Origin {
            path: path.into(),
            dev: 4,
            ino,
            cookie: Some(ino),
            pid_ns: None,
            sight: None,
            boot,
        };
        (Reservation { file: file.into(), address, holder }, origin)
    }

    /// Names the stale ones of reservations `(container, number, cookie)`. `at_path` lists those to
    /// whose number their path leads, and `life` is the state of the others.
    fn who(
        all: &[(&str, u64, Option<u64>)],
        asking: Option<(u64, Option<u64>)>,
        at_path: &[&str],
        life: Life,
    ) -> String {
        let made = |(id, ino, cookie): (&str, u64, Option<u64>)| {
            let (reservation, origin) = reservation(id, &format!("/run/netns/{id}"), ino);
            (reservation, Origin { cookie, ..origin })
        };
        let all: Vec<_> = all.iter().copied().map(made).collect();
        let asking = asking.map(|(ino, cookie)| made(("new", ino, cookie)).1);
        let leads = |noted: &NetnsNote| at_path.iter().any(|id| noted.path.ends_with(id));
        let stale = stale(&all, asking.as_ref(), &|_| life, &leads);
        stale.iter().map(|one| container_of(&one.holder).to_owned()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn an_attachment_asks_for_what_it_had_unless_something_else_is_asked_for() {
        let spec = |text: &str| RangeSpec { subnet: text.parse().ok(), ..RangeSpec::default() };
        let sets = RangeSets::new(vec![vec![spec("10.1.0.0/24")], vec![spec("fd00::/64")]]);
        let sets = sets.unwrap();
        let ask = |requested: &str, own: &str| {
            let read = |text: &str| -> Vec<IpAddr> {
                text.split_whitespace().map(|one| one.parse().unwrap()).collect()
            };
            let asked = again(&sets, &read(requested), &read(own));
            asked.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(ask("", "10.1.0.5 fd00::5"), "10.1.0.5 fd00::5");
        assert_eq!(ask("10.1.0.9", "10.1.0.5 fd00::5"), "10.1.0.9 fd00::5");
        assert_eq!(ask("", "10.1.0.5 10.1.0.6"), "10.1.0.5", "one of each set");
        assert_eq!(ask("", "10.1.0.1 192.0.2.1"), "", "the gateway's, and none of the network's");
    }

    #[test]
    fn only_what_is_known_to_be_gone_is_stale() {
        let a = [("a", 10, Some(1))];
        assert_eq!(who(&a, None, &["a"], Life::Gone), "", "it is there");
        assert_eq!(who(&a, None, &[], Life::Gone), "a");
        assert_eq!(who(&a, None, &[], Life::Living), "", "where it is not known");
        assert_eq!(who(&a, None, &[], Life::Unknown), "", "it is not known");
    }

    #[test]
    fn others_have_the_numbers_of_those_that_are_gone() {
        let life = Life::Living;
        for (old, new, stale) in [
            (None, None, "old"),
            (Some(1), None, "old"),
            (Some(1), Some(2), "old"),
            // The container has two attachments, and the path of one of them.
            (Some(1), Some(1), ""),
        ] {
            let all = [("old", 10, old), ("new", 10, new)];
            assert_eq!(who(&all, None, &["new"], life), stale, "{old:?} {new:?}");
            let all = [("old", 10, old)];
            assert_eq!(who(&all, Some((10, new)), &[], life), stale, "the one that asks has it");
            assert_eq!(who(&all, Some((11, new)), &[], life), "", "an unknown process has it");
        }
    }

    /// The next container gets the number of the namespace through which the interface of one of
    /// Docker's has passed.
    #[test]
    fn the_number_of_a_passage_says_nothing_about_the_container() {
        let boot = state::boot_id().unwrap();
        let of = |id: &str, cookie: u64, boot: &str| {
            let path = format!("/run/netwright/docker/netns/{id}");
            let (reservation, origin) = reservation(id, &path, 10);
            (reservation, Origin { cookie: Some(cookie), boot: boot.to_owned(), ..origin })
        };
        let asking = of("nwd1", 2, &boot).1;
        for (boot, count) in [(boot.as_str(), 0), ("an earlier one", 1)] {
            let all = [of("nwd0", 1, boot)];
            let found = stale(&all, Some(&asking), &|_| Life::Unknown, &|_| false);
            assert_eq!(found.len(), count, "{boot}");
        }
    }
}
