//! What the device was, and bringing it home.

use std::path::Path;
use std::time::{Duration, Instant};

use cni::{AttachmentKey, Error, IfName, code};
use cni_plugin::Call;
use kernel::Errno;
use kernel::mac::MacAddr;
use kernel::netlink::NetlinkError;
use kernel::netns::Netns;
use kernel::route::{Change, Link, LinkSet, RouteSocket};
use serde::{Deserialize, Serialize};

use super::config::{Config, Device};
use super::find::Observed;
use super::user_space;
use crate::shared::identity::Identity;
use crate::shared::{kernel_error as kernel, owner};

/// How long the kernel may take to bring hardware home from a namespace whose last holder is gone. It does that on a
/// thread of its own, one namespace after the other.
const RETURN_TIMEOUT: Duration = Duration::from_secs(10);

/// The pause between looks.
const RETURN_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How many names are tried for a device whose own was taken meanwhile.
const SPARE_NAMES: u32 = 8;

/// The device as it was on the host: what is written down before it is moved.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Facts {
    /// Its name; empty for a device that a program drives.
    pub(super) device: String,
    /// A program drives it; there is no link.
    pub(super) user_space: bool,
    /// The key and the text that the configuration named it by.
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
    alias: Option<String>,
    /// Its further names; `None` in a record of an older version.
    alt_names: Option<Vec<String>>,
    /// What made it; hardware has none, and survives the namespace it is in.
    kind: Option<String>,
    /// How the container's namespace tells a virtual device from others ([`crate::interface::single`] writes it down once
    /// the device is there). Hardware is told by its permanent address and its place on a bus, which no container can
    /// give a link.
    inside: Option<Identity>,
}

impl Facts {
    pub(super) fn new(config: &Config, seen: &Observed) -> Self {
        let (key, text) = config.selection();
        let selected = (key.to_owned(), text);
        let found = match seen {
            Observed::Link(found) => found,
            Observed::UserSpace { pci_id } => {
                return Facts {
                    user_space: true,
                    selected,
                    pci: pci_id.clone(),
                    ..Facts::default()
                };
            }
        };
        let link = &found.link;
        Facts {
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
            alias: link.alias.clone(),
            alt_names: Some(link.alt_names.clone()),
            kind: link.kind.clone(),
            inside: None,
        }
    }

    /// Names the device as something that one attachment holds, if a program drives it.
    pub(super) fn object(&self) -> Option<String> {
        let (key, text) = &self.selected;
        self.user_space.then(|| user_space::object(&self.pci, (key, text)))
    }

    /// Says whether this is the device that a configuration asks for.
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

    /// Says whether a link cannot be the device: its hardware is another.
    pub(super) fn contradicts(&self, link: &Link) -> bool {
        let differs = |was: &Option<String>, is: Option<String>| {
            was.as_ref().zip(is).is_some_and(|(was, is)| *was != is)
        };
        self.kind != link.kind
            || differs(&self.permanent_mac, text_of(link.permanent_mac))
            || differs(&self.parent, link.parent_device.clone())
    }

    /// Says whether a link in the container cannot be the device: another stands in its place.
    pub(super) fn contradicts_inside(&self, link: &Link) -> bool {
        self.contradicts(link) || self.inside.is_some_and(|inside| !inside.is(link))
    }

    /// Says whether a link in the container is the device, under whatever name. A virtual one is told by what
    /// the container cannot change, where that was written down.
    fn is_inside(&self, link: &Link) -> bool {
        match self.inside {
            Some(_) => !self.contradicts_inside(link),
            None => self.is(link),
        }
    }

    /// Says whether a link is the device, under whatever name: by what we marked it with, or by its hardware.
    fn is(&self, link: &Link) -> bool {
        let same = |was: &Option<String>, is: Option<String>| was.is_some() && *was == is;
        !self.contradicts(link)
            && (link.alias.as_ref() == Some(&self.device)
                || same(&self.permanent_mac, text_of(link.permanent_mac))
                || same(&self.mac, text_of(link.mac)))
    }

    /// Says whether the device is on the host as it was, and not on its way: a DEL that was killed may have moved it, and not
    /// brought it up any more.
    fn is_home(&self, link: &Link) -> bool {
        let same_mac = self.mac.is_none() || self.mac == text_of(link.mac);
        let same_state = link.mtu == self.mtu && link.up() == self.up && same_mac;
        let same_names = link.name == self.device && given_names(link, Some(self)).is_empty();
        same_names && link.alias == self.alias && same_state
    }

    /// Says whether the device survives its namespace, and is still in the machine.
    fn will_return(&self) -> bool {
        self.kind.is_none() && (self.path.is_empty() || Path::new(&self.path).exists())
    }
}

fn text_of(mac: Option<MacAddr>) -> Option<String> {
    mac.map(|mac| mac.to_string())
}

/// Brings an attachment's device home, from the container or from where the kernel put it. Nothing to bring is success.
pub(super) fn bring(
    call: &Call<'_>,
    key: &AttachmentKey,
    netns: Option<&Netns>,
    facts: Option<&Facts>,
) -> Result<(), Error> {
    if facts.is_some_and(|facts| facts.user_space) {
        return Ok(());
    }
    let home = Netns::current().map_err(|error| Error::from_chain(code::INVALID_NETNS, &error))?;
    let mut host = RouteSocket::open().map_err(kernel)?;
    if let Some(netns) = netns.filter(|netns| **netns != home) {
        let mut inside = RouteSocket::open_in(netns).map_err(kernel)?;
        if let Some(link) = find_inside(call, key, &mut inside, facts)? {
            return move_home(call, &mut inside, &mut host, &home, &link, facts);
        }
    }
    if let Some(link) = find_returned(call, key, &mut host, facts, netns.is_none())? {
        return restore(call, &mut host, &link, facts);
    }
    Ok(())
}

/// Finds the device in the container: under the interface's name, or renamed. Without facts it must have the mark, as
/// the reference plugin makes it, too.
fn find_inside(
    call: &Call<'_>,
    key: &AttachmentKey,
    inside: &mut RouteSocket,
    facts: Option<&Facts>,
) -> Result<Option<Link>, Error> {
    let ifname = key.ifname.as_str();
    let named = inside.link_by_name(ifname).map_err(kernel)?;
    if let (Some(facts), Some(link)) = (facts, &named)
        && facts.contradicts_inside(link)
    {
        call.warn(format_args!(
            "interface {ifname:?} is another link than device {:?}, which was moved into the container; \
             it stays there",
            facts.device
        ));
    }
    match (facts, named) {
        (Some(facts), Some(link)) if facts.is_inside(&link) => return Ok(Some(link)),
        (None, Some(link)) if original_name(&link).is_some() => return Ok(Some(link)),
        (None, Some(_)) => {
            call.warn(format_args!(
                "failed to find original ifname for {ifname:?} (alias is not set); it is left alone"
            ));
            return Ok(None);
        }
        _ => {}
    }
    let links = inside.links().map_err(kernel)?;
    let is_it = |link: &Link| match facts {
        Some(facts) => facts.is_inside(link),
        None => is_asked_for(call, link),
    };
    Ok(links.into_iter().find(|link| !link.loopback() && is_it(link)))
}

/// Finds the device on the host when it is not as it was there. Hardware is waited for where its namespace is gone.
fn find_returned(
    call: &Call<'_>,
    key: &AttachmentKey,
    host: &mut RouteSocket,
    facts: Option<&Facts>,
    gone: bool,
) -> Result<Option<Link>, Error> {
    let ifname = key.ifname.as_str();
    let Some(facts) = facts else {
        // Somebody else's record, or none: a link that is down, that the kernel left under the container's name, and
        // whose alias is the name that the configuration asks for.
        let named = host.link_by_name(ifname).map_err(kernel)?;
        return Ok(named.filter(|link| !link.up() && is_asked_for(call, link)));
    };
    let deadline = Instant::now() + RETURN_TIMEOUT;
    loop {
        let all = host.links().map_err(kernel)?;
        let found = all.into_iter().filter(|link| facts.is(link));
        // One that came back first: the host may have something that looks like it.
        let found = found.min_by_key(|link| link.alias.as_ref() != Some(&facts.device));
        if let Some(link) = found {
            return Ok((!facts.is_home(&link)).then_some(link));
        }
        if !gone || !facts.will_return() {
            return Ok(None);
        }
        if deadline < Instant::now() {
            call.warn(format_args!(
                "device {:?} is not back; something still holds the container's namespace",
                facts.device
            ));
            return Ok(None);
        }
        std::thread::sleep(RETURN_POLL_INTERVAL);
    }
}

/// Brings a device home that came back after its attachment's DEL had given up: nothing but its mark tells its name.
/// Says whether there was one.
pub(super) fn bring_late(
    call: &Call<'_>,
    config: &Config,
    host: &mut RouteSocket,
) -> Result<bool, Error> {
    let Device::Name(name) = &config.device else { return Ok(false) };
    let links = host.links().map_err(kernel)?;
    let late = |link: &&Link| !link.up() && original_name(link) == Some(name.as_str());
    let Some(link) = links.iter().find(late) else { return Ok(false) };
    restore(call, host, link, None)?;
    Ok(true)
}

/// Says whether a link has the mark, and it is the name that the configuration asks for. Of other ways to name a device
/// none says what it was called.
fn is_asked_for(call: &Call<'_>, link: &Link) -> bool {
    let Ok(Config { device: Device::Name(name), .. }) = Config::read(call) else { return false };
    original_name(link) == Some(name.as_str())
}

/// The name that a mark says, if it is one of a link moved by this plugin or the reference's.
pub(super) fn original_name(link: &Link) -> Option<&str> {
    let alias = link.alias.as_deref()?;
    (!alias.starts_with(owner::PREFIX) && IfName::new(alias).is_ok()).then_some(alias)
}

/// How often a device is moved that the container gives further names meanwhile.
const MOVE_TRIES: usize = 8;

/// Moves the device from the container to the host, with its name and alias in the same message.
fn move_home(
    call: &Call<'_>,
    inside: &mut RouteSocket,
    host: &mut RouteSocket,
    home: &Netns,
    link: &Link,
    facts: Option<&Facts>,
) -> Result<(), Error> {
    let (name, alias) = name_and_alias(call, host, link, facts)?;
    let set = LinkSet {
        netns: Some(home.clone()),
        name: Some(name.clone()),
        alias: Some(alias),
        ..LinkSet::default()
    };
    let change = Change::SetLink { ifindex: link.index, set };
    let mut moved = Ok(());
    for _ in 0..MOVE_TRIES {
        if let Some(link) = inside.link_by_index(link.index).map_err(kernel)? {
            take_names(inside, host, &link, facts)?;
        }
        moved = inside.apply_one(&change);
        if !moved.as_ref().is_err_and(NetlinkError::is_exists) {
            break;
        }
    }
    match moved {
        // The namespace goes at this moment, and takes what is virtual along.
        Err(error) if error.is_not_found() => return Ok(()),
        Err(error) => {
            return Err(
                kernel(error).context(format_args!("failed to move {:?} to host netns", link.name))
            );
        }
        Ok(()) => {}
    }
    let Some(moved) = host.link_by_name(&name).map_err(kernel)? else { return Ok(()) };
    settle(call, host, &moved, facts);
    Ok(())
}

/// Returns the further names that the container gave a device, which are in use on the host once the device is there. Where nobody
/// wrote down which it had, that cannot be told.
fn given_names<'l>(link: &'l Link, facts: Option<&Facts>) -> Vec<&'l String> {
    let Some(own) = facts.and_then(|facts| facts.alt_names.as_ref()) else { return Vec::new() };
    link.alt_names.iter().filter(|name| !own.contains(name)).collect()
}

/// Takes further names from a device in the container that it must not come home with: those that the container gave it, and
/// those that are another's on the host, with which the kernel does not move it.
fn take_names(
    inside: &mut RouteSocket,
    host: &mut RouteSocket,
    link: &Link,
    facts: Option<&Facts>,
) -> Result<(), Error> {
    let mut names = given_names(link, facts);
    for name in &link.alt_names {
        if !names.contains(&name) && host.link_by_name(name).map_err(kernel)?.is_some() {
            names.push(name);
        }
    }
    let ifindex = link.index;
    for name in names {
        match inside.apply_one(&Change::DelAltName { ifindex, name: name.clone() }) {
            // The container took it off itself.
            Err(error) if !error.is_not_found() && error.errno() != Some(Errno::INVAL) => {
                return Err(kernel(error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Gives a device that the kernel brought back its name and state.
fn restore(
    call: &Call<'_>,
    host: &mut RouteSocket,
    link: &Link,
    facts: Option<&Facts>,
) -> Result<(), Error> {
    let ifindex = link.index;
    let (name, alias) = if facts.is_some_and(|facts| facts.device == link.name) {
        (link.name.clone(), facts.and_then(|facts| facts.alias.clone()).unwrap_or_default())
    } else {
        name_and_alias(call, host, link, facts)?
    };
    let mut changes = Vec::new();
    if link.up() {
        // Kernels before 6.2 rename no link that is up.
        changes.push(Change::SetLink { ifindex, set: LinkSet::default().up(false) });
    }
    let set = LinkSet { name: Some(name.clone()), alias: Some(alias), ..LinkSet::default() };
    changes.push(Change::SetLink { ifindex, set });
    let given = given_names(link, facts).into_iter();
    changes.extend(given.map(|name| Change::DelAltName { ifindex, name: name.clone() }));
    host.apply(&changes).map_err(|error| {
        kernel(error.source)
            .context(format_args!("failed to restore {:?} to original name {name:?}", link.name))
    })?;
    if let Some(link) = host.link_by_index(ifindex).map_err(kernel)? {
        settle(call, host, &link, facts);
    }
    Ok(())
}

/// The name to come home with: its own, or, when another link has that by now, a spare one with the mark kept.
fn name_and_alias(
    call: &Call<'_>,
    host: &mut RouteSocket,
    link: &Link,
    facts: Option<&Facts>,
) -> Result<(String, String), Error> {
    let original = facts.map(|facts| facts.device.as_str()).or_else(|| original_name(link));
    let original = original.unwrap_or(&link.name).to_owned();
    let own_alias = facts.and_then(|facts| facts.alias.clone()).unwrap_or_default();
    if host.link_by_name(&original).map_err(kernel)?.is_none() {
        return Ok((original, own_alias));
    }
    for number in 0..SPARE_NAMES {
        // As the kernel does it: dev and a number.
        let spare = format!("dev{}", link.index + number);
        if host.link_by_name(&spare).map_err(kernel)?.is_none() {
            call.warn(format_args!(
                "another link is called {original:?} by now: the device comes home as {spare:?}"
            ));
            return Ok((spare, original));
        }
    }
    Err(Error::new(
        cni_plugin::codes::CONFLICT,
        format!("failed to restore {:?} to original name {original:?}", link.name),
    )
    .with_details("another link has that name, and no other name was free"))
}

/// How often each value of a device that is home is put back: a machine in trouble may lack memory for a moment, and nobody
/// comes back for it.
const SETTLE_TRIES: usize = 3;

/// Puts hardware address, MTU and state back as they were. What cannot be is told: the device is home already.
fn settle(call: &Call<'_>, host: &mut RouteSocket, link: &Link, facts: Option<&Facts>) {
    let Some(facts) = facts else { return };
    let ifindex = link.index;
    let mac = facts.mac.as_ref().filter(|mac| text_of(link.mac).as_ref() != Some(mac));
    let mac = mac.and_then(|mac| mac.parse().ok());
    let mtu = (link.mtu != facts.mtu).then_some(facts.mtu);
    let sets = [
        mac.map(|mac| LinkSet { mac: Some(mac), ..LinkSet::default() }),
        mtu.map(|mtu| LinkSet { mtu: Some(mtu), ..LinkSet::default() }),
        (facts.up != link.up()).then(|| LinkSet::default().up(facts.up)),
    ];
    for set in sets.into_iter().flatten() {
        let change = Change::SetLink { ifindex, set };
        let tries = (0..SETTLE_TRIES).map(|_| host.apply_one(&change));
        // The last failure, if none of them succeeded.
        let failed = tries.map_while(Result::err).enumerate().last();
        if let Some((_, error)) = failed.filter(|(place, _)| place + 1 == SETTLE_TRIES) {
            call.warn(format_args!("device {:?} is home, but not as it was: {error}", link.name));
        }
    }
}
