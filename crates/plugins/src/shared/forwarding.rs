//! The host's forwarding, for containers whose packets go through the host: held while a container
//! of the family is attached. It stays on after the last one leaves. Docker, libvirt or a VPN may
//! have found it on and rely on it, and we cannot see whether they do. A network with
//! `restoreForwarding` asks for it to be switched off.

use cni::{AttachmentKey, IpConfig};
use kernel::route::{Link, LinkSettings, RouteSocket};
use kernel::sysctl::Sysctl;
use state::Index;
use wanted::{Item, Reason, State};

use super::failure::Failure;
use super::failures::Failures;
use super::shared_object::{AtTheEnd, FORWARD_V4, FORWARD_V6, ReleaseReason, SharedSysctl};

const SYSCTLS: [(SharedSysctl, bool, &str); 2] =
    [(FORWARD_V4, true, "IPv4"), (FORWARD_V6, false, "IPv6")];

fn needed(ips: &[IpConfig]) -> impl Iterator<Item = (SharedSysctl, &'static str)> {
    let has = |v4| ips.iter().any(|ip| ip.address.addr().is_ipv4() == v4);
    let sysctls = SYSCTLS.into_iter().filter(move |(_, v4, _)| has(*v4));
    sysctls.map(|(sysctl, _, family)| (sysctl, family))
}

/// Switches forwarding on for each family of the addresses, and holds it for the attachment.
///
/// # Errors
/// As [`SharedSysctl::hold`].
pub fn hold(
    index: &Index,
    key: &AttachmentKey,
    ips: &[IpConfig],
    at_the_end: AtTheEnd,
) -> Result<(), Failure> {
    needed(ips).try_for_each(|(sysctl, _)| sysctl.hold(index, key, at_the_end))
}

/// Switches forwarding on for one family, and holds it for the attachment.
///
/// # Errors
/// As [`SharedSysctl::hold`].
pub fn hold_family(
    index: &Index,
    key: &AttachmentKey,
    ipv4: bool,
    at_the_end: AtTheEnd,
) -> Result<(), Failure> {
    of_family(ipv4).0.hold(index, key, at_the_end)
}

fn of_family(ipv4: bool) -> (SharedSysctl, &'static str) {
    let [(v4, _, first), (v6, _, second)] = SYSCTLS;
    if ipv4 { (v4, first) } else { (v6, second) }
}

/// Reads the key `restoreForwarding`.
#[must_use]
pub fn at_the_end(restore: bool) -> AtTheEnd {
    if restore { AtTheEnd::Restore } else { AtTheEnd::Keep }
}

fn difference(sysctl: SharedSysctl, family: &str) -> Result<Option<String>, Failure> {
    Ok((!sysctl.is_on()?).then(|| format!("{family} forwarding is off")))
}

/// Says what is wrong if the host does not forward packets of a family.
///
/// # Errors
/// As [`SharedSysctl::is_on`].
pub fn check_family(ipv4: bool) -> Result<Option<String>, Failure> {
    let (sysctl, family) = of_family(ipv4);
    difference(sysctl, family)
}

/// Refuses a family whose packets the host does not forward, where that cannot be changed because
/// `/proc/sys` is read-only.
///
/// # Errors
/// As [`SharedSysctl::hold`].
pub(crate) fn refuse_unwritable(ipv4: bool) -> Result<(), Failure> {
    of_family(ipv4).0.refuse_unwritable()
}

/// Describes the forwarding that these addresses need as items.
pub fn wanted(ips: &[IpConfig], at_the_end: AtTheEnd) -> impl Iterator<Item = Item> {
    let restore = at_the_end == AtTheEnd::Restore;
    let has = |ipv4: bool| ips.iter().any(|ip| ip.address.addr().is_ipv4() == ipv4);
    [true, false]
        .into_iter()
        .filter(move |ipv4| has(*ipv4))
        .map(move |ipv4| Item::host(State::Forwarding { ipv4, restore }, Reason::Outbound))
}

/// Releases forwarding for an attachment; [`SharedSysctl::release`] decides whether it stays on. An
/// ADD that is undone leaves everything as it was, unless others have come to hold it meanwhile.
pub fn release(
    index: &Index,
    key: &AttachmentKey,
    leaving: ReleaseReason,
    failures: &mut Failures,
) {
    for (sysctl, ..) in SYSCTLS {
        failures.note("release forwarding", sysctl.release(index, key, leaving));
    }
}

/// Lists the sysctls that are on because of attachments that are gone, with one sentence each, and
/// how to switch them off.
#[must_use]
pub fn left_on(index: &Index) -> Vec<String> {
    let left = index.left();
    let on = SYSCTLS
        .into_iter()
        .filter(|(sysctl, ..)| left.contains(&sysctl.object()) && sysctl.is_on().unwrap_or(false));
    on.map(|(sysctl, is_v4, family)| {
        let name = sysctl.name();
        let listening = if is_v4 { Vec::new() } else { listening_beside() };
        let back = listening.iter().map(|sysctl| format!(" {sysctl}=1"));
        let beside = match listening.is_empty() {
            true => "",
            false => ", and with it accept_ra is 2, so that the host still hears its routers",
        };
        format!(
            "{family} forwarding stays on{beside}: Netwright switched it on, and another program may \
             rely on it by now; if none does: sysctl -w {name}=0{}",
            back.collect::<String>()
        )
    })
    .collect()
}

/// Lists the sysctls `accept_ra` of links that listen to routers beside forwarding. Where they are
/// not ours, they do no harm without forwarding either.
fn listening_beside() -> Vec<String> {
    let links = RouteSocket::open().and_then(|mut host| host.links_with_settings());
    let always = |settings: &LinkSettings| settings.ipv6.is_some_and(|own| own.accept_ra == 2);
    let listening = links.unwrap_or_default().into_iter().filter(|(_, settings)| always(settings));
    let sysctl = |(link, _): (Link, LinkSettings)| {
        Some(Sysctl::of_link("net/ipv6/conf", &link.name, "accept_ra").ok()?.spelled())
    };
    listening.filter_map(sysctl).collect()
}

/// Settles the sysctls that no attachment holds.
pub fn collect(index: &Index, failures: &mut Failures) {
    for (sysctl, ..) in SYSCTLS {
        failures.note("put back forwarding", sysctl.collect(index));
    }
}
