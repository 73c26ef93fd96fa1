//! What a reply grants, read from its options.

use std::net::Ipv6Addr;
use std::time::Duration;

use super::message::{Association, Message, Status, code};
use super::{Address, Lease};
use crate::{Moment, names};

/// No lease of one association has as many.
const MAX_ADDRESSES: usize = 16;
const MAX_SERVERS: usize = 32;

/// RFC 8415 §11.1: a DUID has at most 128 octets and its type.
const MAX_DUID: usize = 130;

/// RFC 8415 §21.24: values of SOL_MAX_RT outside are ignored.
const SOL_MAX_RT_S: std::ops::RangeInclusive<u32> = 60..=86_400;

/// Returns the server that sent a message.
pub(super) fn server(message: &Message) -> Option<&[u8]> {
    message.option(code::SERVER_ID).filter(|duid| (3..=MAX_DUID).contains(&duid.len()))
}

/// Returns the requested association, if its content is valid (RFC 8415 §21.4).
pub(super) fn association(message: &Message, iaid: u32) -> Option<Association> {
    let options = message.options.iter().filter(|option| option.code == code::IA_NA);
    let mut read = options.filter_map(|option| Association::parse(&option.value));
    let mut association = read.find(|association| association.iaid == iaid)?;
    if 0 < association.t2_s && association.t2_s < association.t1_s {
        return None;
    }
    let mut seen = Vec::new();
    association.addresses.retain(|option| {
        let good = is_host(option.address)
            && option.preferred_s <= option.valid_s
            && !seen.contains(&option.address)
            && seen.len() < MAX_ADDRESSES;
        seen.push(option.address);
        good
    });
    Some(association)
}

/// Returns the error, if there was one: the message's status or the association's.
pub(super) fn status(message: &Message, association: Option<&Association>) -> Option<Status> {
    let whole = Status::of(&message.options)?;
    match association {
        Some(association) if whole.code == Status::SUCCESS => Some(association.status.clone()),
        _ => Some(whole),
    }
}

/// Says whether an address can be a host's and is not one that only the kernel manages.
fn is_host(address: Ipv6Addr) -> bool {
    !address.is_unspecified()
        && !address.is_loopback()
        && !address.is_multicast()
        && !address.is_unicast_link_local()
        && address.to_ipv4_mapped().is_none()
}

/// Returns a server's preference; the highest is asked (RFC 8415 §18.2.9).
pub(super) fn preference(advertise: &Message) -> u8 {
    match advertise.option(code::PREFERENCE) {
        Some([preference]) => *preference,
        _ => 0,
    }
}

/// RFC 8415 §21.24.
pub(super) fn sol_max_rt(message: &Message) -> Option<Duration> {
    let value = message.option(code::SOL_MAX_RT)?.try_into().ok().map(u32::from_be_bytes)?;
    SOL_MAX_RT_S.contains(&value).then(|| Duration::from_secs(u64::from(value)))
}

/// Returns the lease that a reply makes of the current one (RFC 8415 §18.2.10.1): addresses it does
/// not name stay unchanged, those with a lifetime of zero are removed. `None` if no address is
/// left.
pub(super) fn lease(
    reply: &Message,
    association: &Association,
    obtained: Moment,
    held: Option<&Lease>,
) -> Option<Lease> {
    let named: Vec<Ipv6Addr> = association.addresses.iter().map(|option| option.address).collect();
    let mut addresses: Vec<Address> = association
        .addresses
        .iter()
        .filter(|option| 0 < option.valid_s)
        .map(|option| Address::from(*option))
        .collect();
    if let Some(held) = held {
        let passed = obtained.at_ms.since(held.obtained.at_ms);
        let unnamed = held.addresses.iter().filter(|address| !named.contains(&address.address));
        addresses.extend(unnamed.filter_map(|address| aged(address, passed)));
    }
    addresses.truncate(MAX_ADDRESSES);
    if addresses.is_empty() {
        return None;
    }
    let (t1_s, t2_s) = renewal_times(association, &addresses);
    Some(Lease {
        server: server(reply)?.to_vec(),
        dns: dns(reply),
        search: reply
            .option(code::SEARCH)
            .and_then(|value| names::list(value, false))
            .unwrap_or_default(),
        obtained,
        t1_s,
        t2_s,
        addresses,
        options: reply.options.clone(),
    })
}

/// Returns the address with its lifetimes reduced by `passed`, if it has any left.
fn aged(address: &Address, passed: Duration) -> Option<Address> {
    // Rounded up: recounting must not make a lifetime longer.
    let whole = passed.as_secs() + u64::from(0 < passed.subsec_nanos());
    let passed = u32::try_from(whole).unwrap_or(u32::MAX);
    let left = |seconds: Option<u32>| seconds.map(|seconds| seconds.saturating_sub(passed));
    let valid_s = left(address.valid_s);
    (valid_s != Some(0)).then(|| Address {
        address: address.address,
        preferred_s: left(address.preferred_s),
        valid_s,
    })
}

/// T1 and T2 from the server; if it leaves them to the client, half and four fifths of the shortest
/// preferred lifetime (RFC 8415 §14.2, §21.4).
fn renewal_times(association: &Association, addresses: &[Address]) -> (Option<u32>, Option<u32>) {
    let shortest = |lifetimes: &mut dyn Iterator<Item = Option<u32>>| {
        lifetimes.flatten().filter(|lifetime| 0 < *lifetime).min()
    };
    // Addresses that are no longer preferred are renewed by their valid lifetime.
    let lifetime = shortest(&mut addresses.iter().map(|address| address.preferred_s))
        .or_else(|| shortest(&mut addresses.iter().map(|address| address.valid_s)));
    let given = |seconds: u32| (seconds != u32::MAX).then_some(seconds);
    // At least one second, or the client would renew without pause.
    let chosen_t1 = lifetime.map(|lifetime| (lifetime / 2).max(1));
    let chosen_t2 = lifetime.map(|lifetime| (lifetime / 5 * 4 + lifetime % 5 * 4 / 5).max(1));
    match (association.t1_s, association.t2_s) {
        (0, 0) => (chosen_t1, chosen_t2),
        (0, t2) => (min(chosen_t1, given(t2)), given(t2)),
        (t1, 0) => (given(t1), given(t1).and(max(chosen_t2, given(t1)))),
        (t1, t2) => (given(t1), given(t2)),
    }
}

/// The earlier of two times; `None` means never.
fn min(a: Option<u32>, b: Option<u32>) -> Option<u32> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

fn max(a: Option<u32>, b: Option<u32>) -> Option<u32> {
    Some(a?.max(b?))
}

fn dns(reply: &Message) -> Vec<Ipv6Addr> {
    let value = reply.option(code::DNS).unwrap_or_default();
    let mut found = Vec::new();
    for octets in value.chunks_exact(16) {
        let Ok(octets) = <[u8; 16]>::try_from(octets) else { continue };
        let address = Ipv6Addr::from(octets);
        if found.len() < MAX_SERVERS && !found.contains(&address) && !address.is_unspecified() {
            found.push(address);
        }
    }
    found
}
