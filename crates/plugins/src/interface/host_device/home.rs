//! Records the device's state on the host, and moves the device back there.

use std::path::Path;
use std::time::{Duration, Instant};

use cni::{AttachmentKey, IfName, code};
use cni_plugin::Call;
use kernel::Errno;
use kernel::mac::MacAddr;
use kernel::netlink::NetlinkError;
use kernel::netns::Netns;
use kernel::route::{Change, Link, LinkSet, RouteSocket};
use kernel::tun;
use serde::{Deserialize, Serialize};
use state::Index;

use super::config::{Config, Device};
use super::find::ObservedDevice;
use super::settings::Settings;
use super::{HostDevice, upper, user_space};
use crate::interface::single::SingleLink as _;
use crate::shared::attachment::recorded_in;
use crate::shared::failure::Failure;
use crate::shared::identity::Identity;
use crate::shared::owner;

/// How long the kernel may take to move hardware back from a namespace whose last holder is gone.
/// It does that on a thread of its own, one namespace after the other.
const RETURN_TIMEOUT: Duration = Duration::from_secs(10);

/// The pause between two checks.
const RETURN_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How many names are tried for a device whose own name was taken meanwhile.
const SPARE_NAMES: u32 = 8;

/// The device as it was on the host: recorded before it is moved.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RecordData {
    /// Its name; empty for a device that a program drives.
    pub(super) device: String,
    /// Whether a program drives it; there is no link then.
    pub(super) user_space: bool,
    /// The key and the text with which the configuration selected it.
    selected: (String, String),
    /// Its PCI address.
    pci: String,
    /// The device behind it, below `/sys/devices`.
    path: String,
    /// Its name on its bus.
    parent: Option<String>,
    mac: Option<String>,
    permanent_mac: Option<String>,
    mtu: u32,
    up: bool,
    /// Its other settings; `None` in a record of an older version.
    settings: Option<Settings>,
    alias: Option<String>,
    /// Its alternative names; `None` in a record of an older version.
    alt_names: Option<Vec<String>>,
    /// Its kind; hardware has none, and survives the namespace that it is in.
    kind: Option<String>,
    /// Whether a program had it open before, if it is a tap or a tun.
    open: bool,
    /// What distinguishes a virtual device from others in the container's namespace
    /// ([`crate::interface::single`] records it once the device is there). Hardware is identified
    /// by its permanent address and its place on a bus, which a container cannot give a link.
    inside: Option<Identity>,
}

impl RecordData {
    pub(super) fn new(config: &Config, seen: &ObservedDevice) -> Self {
        let (key, text) = config.selection();
        let selected = (key.to_owned(), text);
        let found = match seen {
            ObservedDevice::Link(found) => found,
            ObservedDevice::UserSpace { pci_id } => {
                return RecordData {
                    user_space: true,
                    selected,
                    pci: pci_id.clone(),
                    ..RecordData::default()
                };
            }
        };
        let link = &found.link;
        RecordData {
            device: link.name.clone(),
            user_space: false,
            selected,
            pci: found.pci_id.clone(),
            path: found.path.clone(),
            parent: link.parent_device.clone(),
            mac: text_of(link.mac),
            permanent_mac: text_of(link.permanent_mac),
            mtu: link.mtu,
            up: link.up(),
            settings: Some(Settings::of(link)),
            alias: link.alias.clone(),
            alt_names: Some(link.alt_names.clone()),
            kind: link.kind.clone(),
            open: found.open,
            inside: None,
        }
    }

    /// Names the device as an object that one attachment holds, if a program drives it.
    pub(super) fn object(&self) -> Option<String> {
        let (key, text) = &self.selected;
        self.user_space.then(|| user_space::object(&self.pci, (key, text)))
    }

    /// Reports whether this is the device that a configuration asks for.
    pub(super) fn is_what(&self, config: &Config) -> bool {
        let (key, text) = config.selection();
        if (self.selected.0.as_str(), self.selected.1.as_str()) == (key, text.as_str()) {
            return true;
        }
        match &config.device {
            Device::Name(name) => !self.user_space && self.device == *name,
            Device::Mac(mac) => {
                let mac = Some(mac.to_string());
                self.mac == mac || self.permanent_mac == mac
            }
            Device::KernelPath(path) => !self.path.is_empty() && Path::new(&self.path) == path,
            Device::Bus(bus) => !self.pci.is_empty() && self.pci == bus.id(),
        }
    }

    /// Reports whether a link cannot be the device because its hardware differs.
    pub(super) fn contradicts(&self, link: &Link) -> bool {
        let differs = |was: &Option<String>, is: Option<String>| {
            was.as_ref().zip(is).is_some_and(|(was, is)| *was != is)
        };
        self.kind != link.kind
            || differs(&self.permanent_mac, text_of(link.permanent_mac))
            || differs(&self.parent, link.parent_device.clone())
    }

    /// Reports whether a link in the container cannot be the device: another one is in its place.
    pub(super) fn contradicts_inside(&self, link: &Link) -> bool {
        self.contradicts(link) || self.inside.is_some_and(|inside| !inside.is(link))
    }

    /// Reports whether a link in the container is the device, under any name. A virtual one is
    /// identified by what the container cannot change, if that was recorded.
    fn is_inside(&self, link: &Link) -> bool {
        match self.inside {
            Some(_) => !self.contradicts_inside(link),
            None => self.is(link),
        }
    }

    /// Reports whether a link is the device, under any name: by our mark, or by its hardware.
    fn is(&self, link: &Link) -> bool {
        let same = |was: &Option<String>, is: Option<String>| was.is_some() && *was == is;
        !self.contradicts(link)
            && (link.alias.as_ref() == Some(&self.device)
                || same(&self.permanent_mac, text_of(link.permanent_mac))
                || same(&self.mac, text_of(link.mac)))
    }

    /// Reports whether the device is on the host as it was, and its return is complete: a DEL that
    /// was killed may have moved it without bringing it up.
    fn is_home(&self, link: &Link) -> bool {
        let same_mac = self.mac.is_none() || self.mac == text_of(link.mac);
        let same_settings =
            self.settings.as_ref().is_none_or(|settings| *settings == Settings::of(link));
        let same_state = link.mtu == self.mtu && link.up() == self.up && same_mac && same_settings;
        let same_names = link.name == self.device && given_names(link, Some(self)).is_empty();
        same_names && link.alias == self.alias && same_state
    }

    /// Reports whether the device survives its namespace, and is still in the machine.
    fn will_return(&self) -> bool {
        self.kind.is_none() && (self.path.is_empty() || Path::new(&self.path).exists())
    }
}

fn text_of(mac: Option<MacAddr>) -> Option<String> {
    mac.map(|mac| mac.to_string())
}

/// Moves an attachment's device back, from the container or from where the kernel put it. If there
/// is no device to move, that is success.
pub(super) fn bring(
    call: &Call<'_>,
    key: &AttachmentKey,
    netns: Option<&Netns>,
    recorded: Option<&RecordData>,
) -> Result<(), Failure> {
    if recorded.is_some_and(|recorded| recorded.user_space) {
        return Ok(());
    }
    let home =
        Netns::current().map_err(|error| Failure::from_chain(code::INVALID_NETNS, &error))?;
    let mut host = RouteSocket::open()?;
    if let Some(netns) = netns.filter(|netns| **netns != home) {
        let mut inside = RouteSocket::open_in(netns)?;
        if let Some(link) = find_inside(call, key, netns, &mut inside, recorded)? {
            return move_home(call, (netns, &mut inside), (&home, &mut host), &link, recorded);
        }
    }
    if let Some(link) = find_returned(call, key, &mut host, recorded, netns.is_none())? {
        return restore(call, &mut host, &link, recorded);
    }
    Ok(())
}

/// Finds the device in the container: under the interface's name, or renamed. Without a record it
/// must have the mark that the reference plugin sets too, and no other attachment's record may claim
/// it.
fn find_inside(
    call: &Call<'_>,
    key: &AttachmentKey,
    netns: &Netns,
    inside: &mut RouteSocket,
    recorded: Option<&RecordData>,
) -> Result<Option<Link>, Failure> {
    let ifname = key.ifname.as_str();
    let named = inside.link_by_name(ifname)?;
    if let (Some(recorded), Some(link)) = (recorded, &named)
        && recorded.contradicts_inside(link)
    {
        call.warn(format_args!(
            "interface {ifname:?} is another link than device {:?}, which was moved into the container; \
             it stays there",
            recorded.device
        ));
    }
    let others = if recorded.is_none() { recorded_here(call, netns) } else { Vec::new() };
    let is_anothers = |link: &Link| others.iter().any(|other| other.is_inside(link));
    match (recorded, named) {
        (Some(recorded), Some(link)) if recorded.is_inside(&link) => return Ok(Some(link)),
        (None, Some(link)) if is_anothers(&link) => return Ok(None),
        (None, Some(link)) if original_name(&link).is_some() => return Ok(Some(link)),
        (None, Some(_)) => {
            call.warn(format_args!(
                "failed to find original ifname for {ifname:?} (alias is not set); it is left alone"
            ));
            return Ok(None);
        }
        _ => {}
    }
    let links = inside.links()?;
    let is_it = |link: &Link| match recorded {
        Some(recorded) => recorded.is_inside(link),
        None => is_asked_for(call, link) && !is_anothers(link),
    };
    Ok(links.into_iter().find(|link| !link.loopback() && is_it(link)))
}

/// Returns what records of this plugin say about devices in a container's namespace.
fn recorded_here(call: &Call<'_>, netns: &Netns) -> Vec<RecordData> {
    let records = Index::new(call.roots()).list().found.into_iter();
    let here = records.filter(|record| {
        record.plugin == HostDevice::NAME && record.noted().is_none_or(|noted| noted.is(netns))
    });
    here.filter_map(|record| recorded_in(&record)).collect()
}

/// Finds the device on the host if it is not as it was there. If the namespace is gone, waits for
/// hardware to return.
fn find_returned(
    call: &Call<'_>,
    key: &AttachmentKey,
    host: &mut RouteSocket,
    recorded: Option<&RecordData>,
    gone: bool,
) -> Result<Option<Link>, Failure> {
    let ifname = key.ifname.as_str();
    let Some(recorded) = recorded else {
        // There is no record, or another plugin's. The device is a link that is down, that the
        // kernel left under the container's name, and whose alias is the name that the
        // configuration asks for.
        let named = host.link_by_name(ifname)?;
        return Ok(named.filter(|link| !link.up() && is_asked_for(call, link)));
    };
    let deadline = Instant::now() + RETURN_TIMEOUT;
    loop {
        let all = host.links()?;
        let found = all.into_iter().filter(|link| recorded.is(link));
        // A device that came back is preferred: the host may have a similar one.
        let found = found.min_by_key(|link| link.alias.as_ref() != Some(&recorded.device));
        if let Some(link) = found {
            return Ok((!recorded.is_home(&link)).then_some(link));
        }
        if !gone || !recorded.will_return() {
            return Ok(None);
        }
        if deadline < Instant::now() {
            call.warn(format_args!(
                "device {:?} is not back; something still holds the container's namespace",
                recorded.device
            ));
            return Ok(None);
        }
        std::thread::sleep(RETURN_POLL_INTERVAL);
    }
}

/// Restores a device that came back after its attachment's DEL had given up: only its mark holds
/// its name. Returns whether there was one.
pub(super) fn bring_late(
    call: &Call<'_>,
    config: &Config,
    host: &mut RouteSocket,
) -> Result<bool, Failure> {
    let Device::Name(name) = &config.device else { return Ok(false) };
    let links = host.links()?;
    let late = |link: &&Link| !link.up() && original_name(link) == Some(name.as_str());
    let Some(link) = links.iter().find(late) else { return Ok(false) };
    restore(call, host, link, None)?;
    Ok(true)
}

/// Reports whether a link's mark is the name that the configuration asks for. If the configuration
/// selects the device in another way, its old name is unknown.
fn is_asked_for(call: &Call<'_>, link: &Link) -> bool {
    let Ok(Config { device: Device::Name(name), .. }) = Config::read(call) else { return false };
    original_name(link) == Some(name.as_str())
}

/// Returns the name in the mark, if the link was moved by this plugin or the reference's.
pub(super) fn original_name(link: &Link) -> Option<&str> {
    let alias = link.alias.as_deref()?;
    (!alias.starts_with(owner::PREFIX) && IfName::new(alias).is_ok()).then_some(alias)
}

/// How often moving a device is tried while the container adds alternative names to it.
const MOVE_TRIES: usize = 8;

/// Moves the device from the container to the host, and sets its name and alias in the same
/// message. A tap that a program has opened goes back again.
fn move_home(
    call: &Call<'_>,
    (netns, inside): (&Netns, &mut RouteSocket),
    (home, host): (&Netns, &mut RouteSocket),
    link: &Link,
    recorded: Option<&RecordData>,
) -> Result<(), Failure> {
    let (name, alias) = name_and_alias(call, host, link, recorded)?;
    let set = LinkSet {
        netns: Some(home.clone()),
        name: Some(name.clone()),
        alias: Some(alias),
        ..LinkSet::default()
    };
    let change = Change::SetLink { ifindex: link.index, set };
    upper::delete(call, inside, link, None)?;
    if let Some(settings) = recorded.and_then(|recorded| recorded.settings.as_ref()) {
        // Before the move, because the kernel derives a setting of IPv6 from the flags of a device
        // that arrives (linux net/ipv6/addrconf.c `ipv6_add_dev`). What fails is tried again there.
        for set in settings.changes(link).into_iter().flatten() {
            drop(inside.apply_one(&Change::SetLink { ifindex: link.index, set }));
        }
    }
    let mut moved = Ok(());
    for _ in 0..MOVE_TRIES {
        if let Some(link) = inside.link_by_index(link.index)? {
            take_names(inside, host, &link, recorded)?;
        }
        moved = inside.apply_one(&change);
        if !moved.as_ref().is_err_and(NetlinkError::is_exists) {
            break;
        }
    }
    match moved {
        // The namespace is being deleted at this moment, and its virtual links with it.
        Err(error) if error.is_not_found() => return Ok(()),
        Err(error) => {
            return Err(Failure::from(error)
                .context(format_args!("failed to move {:?} to host netns", link.name)));
        }
        Ok(()) => {}
    }
    let Some(moved) = host.link_by_name(&name)? else { return Ok(()) };
    // Here, where it is down and the container cannot open it any more.
    if let Err(open) = refuse_open(&moved, recorded) {
        let back = LinkSet {
            netns: Some(netns.clone()),
            name: Some(link.name.clone()),
            alias: Some(link.alias.clone().unwrap_or_default()),
            ..LinkSet::default()
        };
        let back = host.apply_one(&Change::SetLink { ifindex: moved.index, set: back });
        return Err(match back {
            Ok(()) => open.with_details("the device stays in the container, and ends with it"),
            Err(error) => {
                open.with_details(format!("the device is on the host, and down: {error}"))
            }
        });
    }
    // Those that the container made in the meantime.
    let deleted = upper::delete(call, inside, &moved, Some(home));
    settle(call, host, &moved, recorded);
    deleted
}

/// Refuses a tap or tun on the host that a program has opened since ADD: it would go on reading and
/// writing the host's packets.
fn refuse_open(link: &Link, recorded: Option<&RecordData>) -> Result<(), Failure> {
    if link.tun.is_none() || recorded.is_some_and(|recorded| recorded.open) {
        return Ok(());
    }
    let home = Netns::current();
    let home = home.map_err(|error| Failure::from_chain(code::INVALID_NETNS, &error))?;
    let name = recorded.map_or(link.name.as_str(), |recorded| recorded.device.as_str());
    let text = match tun::is_open(&home, link) {
        Ok(false) => return Ok(()),
        Ok(true) => format!("a program has device {name:?} open, and would go on using it"),
        Err(error) => format!("whether a program has device {name:?} open is not known: {error}"),
    };
    Err(Failure::new(code::TRY_AGAIN_LATER, text)
        .with_details("end the program, or the container, and call DEL again"))
}

/// Returns the alternative names that the container gave a device; on the host they would be in use
/// once the device is there. Without a record of the device's own alternative names they are
/// unknown.
fn given_names<'l>(link: &'l Link, recorded: Option<&RecordData>) -> Vec<&'l String> {
    let Some(own) = recorded.and_then(|recorded| recorded.alt_names.as_ref()) else {
        return Vec::new();
    };
    link.alt_names.iter().filter(|name| !own.contains(name)).collect()
}

/// Removes alternative names from a device in the container with which it must not return: those
/// that the container added, and those that another link has on the host, because the kernel then
/// refuses to move the device.
fn take_names(
    inside: &mut RouteSocket,
    host: &mut RouteSocket,
    link: &Link,
    recorded: Option<&RecordData>,
) -> Result<(), Failure> {
    let mut names = given_names(link, recorded);
    for name in &link.alt_names {
        if !names.contains(&name) && host.link_by_name(name)?.is_some() {
            names.push(name);
        }
    }
    let ifindex = link.index;
    for name in names {
        match inside.apply_one(&Change::DelAltName { ifindex, name: name.clone() }) {
            // The container removed it itself.
            Err(error) if !error.is_not_found() && error.errno() != Some(Errno::INVAL) => {
                return Err(Failure::from(error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Restores name and state of a device that the kernel moved back.
fn restore(
    call: &Call<'_>,
    host: &mut RouteSocket,
    link: &Link,
    recorded: Option<&RecordData>,
) -> Result<(), Failure> {
    let ifindex = link.index;
    let (name, alias) = if recorded.is_some_and(|recorded| recorded.device == link.name) {
        (
            link.name.clone(),
            recorded.and_then(|recorded| recorded.alias.clone()).unwrap_or_default(),
        )
    } else {
        name_and_alias(call, host, link, recorded)?
    };
    let mut changes = Vec::new();
    if link.up() {
        // Kernels before 6.2 do not rename a link that is up.
        changes.push(Change::SetLink { ifindex, set: LinkSet::default().up(false) });
    }
    let set = LinkSet { name: Some(name.clone()), alias: Some(alias), ..LinkSet::default() };
    changes.push(Change::SetLink { ifindex, set });
    let given = given_names(link, recorded).into_iter();
    changes.extend(given.map(|name| Change::DelAltName { ifindex, name: name.clone() }));
    host.apply(&changes).map_err(|error| {
        Failure::from(error)
            .context(format_args!("failed to restore {:?} to original name {name:?}", link.name))
    })?;
    if let Some(link) = host.link_by_index(ifindex)? {
        refuse_open(&link, recorded)?;
        settle(call, host, &link, recorded);
    }
    Ok(())
}

/// Returns the name with which it returns: its own, or, if another link has that by now, a spare
/// one with the mark kept.
fn name_and_alias(
    call: &Call<'_>,
    host: &mut RouteSocket,
    link: &Link,
    recorded: Option<&RecordData>,
) -> Result<(String, String), Failure> {
    let original =
        recorded.map(|recorded| recorded.device.as_str()).or_else(|| original_name(link));
    let original = original.unwrap_or(&link.name).to_owned();
    let own_alias = recorded.and_then(|recorded| recorded.alias.clone()).unwrap_or_default();
    if host.link_by_name(&original)?.is_none() {
        return Ok((original, own_alias));
    }
    for number in 0..SPARE_NAMES {
        // In the kernel's way: dev and a number.
        let spare = format!("dev{}", link.index + number);
        if host.link_by_name(&spare)?.is_none() {
            call.warn(format_args!(
                "another link is called {original:?} by now: the device comes home as {spare:?}"
            ));
            return Ok((spare, original));
        }
    }
    Err(Failure::new(
        cni_plugin::codes::CONFLICT,
        format!("failed to restore {:?} to original name {original:?}", link.name),
    )
    .with_details("another link has that name, and no other name was free"))
}

/// How often restoring each value of a returned device is tried: a machine in trouble may lack
/// memory for a moment, and there is no later attempt.
const SETTLE_TRIES: usize = 3;

/// Restores hardware address, MTU, state and other settings. Failures are only warnings: the device is
/// already back.
fn settle(call: &Call<'_>, host: &mut RouteSocket, link: &Link, recorded: Option<&RecordData>) {
    let Some(recorded) = recorded else { return };
    let ifindex = link.index;
    let mac = recorded.mac.as_ref().filter(|mac| text_of(link.mac).as_ref() != Some(mac));
    let mac = mac.and_then(|mac| mac.parse().ok());
    let mtu = (link.mtu != recorded.mtu).then_some(recorded.mtu);
    let settings = recorded.settings.iter().flat_map(|settings| settings.changes(link));
    let sets = [
        mac.map(|mac| LinkSet { mac: Some(mac), ..LinkSet::default() }),
        mtu.map(|mtu| LinkSet { mtu: Some(mtu), ..LinkSet::default() }),
        (recorded.up != link.up()).then(|| LinkSet::default().up(recorded.up)),
    ];
    for set in sets.into_iter().chain(settings).flatten() {
        let change = Change::SetLink { ifindex, set };
        let tries = (0..SETTLE_TRIES).map(|_| host.apply_one(&change));
        // The last failure, if none of them succeeded.
        let failed = tries.map_while(Result::err).enumerate().last();
        if let Some((_, error)) = failed.filter(|(place, _)| place + 1 == SETTLE_TRIES) {
            call.warn(format_args!("device {:?} is home, but not as it was: {error}", link.name));
        }
    }
}
