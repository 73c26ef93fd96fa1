//! The lifecycle of an attachment that is a single link in the container, of any kind.
//!
//! `macvlan`, `ipvlan`, `vlan`, `dummy`, `tap` and `host-device` differ in what they look up, which
//! link they create and what CHECK compares; [`SingleLink`] has those parts. Everything else is
//! here, once.
//!
//! | verb | order |
//! |---|---|
//! | ADD | configuration, namespace, the name is free, the parent; then the record, the link (down), IPAM, addresses and routes |
//! | DEL | the link, the record, IPAM (with `dhcp`: addresses, IPAM, the link) |
//! | CHECK | IPAM, the link as reported, what is specific to the kind, addresses and routes |
//! | GC | the links of attachments that are recorded and not valid, then IPAM |
//! | STATUS | IPAM, then whether the parent exists |
//!
//! A new kind of link reads its configuration, makes the link and compares it; `dummy` is such a
//! plugin in 120 lines. The engine gives it undo, DEL, CHECK, GC, STATUS and repair. `bridge` and
//! `ptp` share `shared/pair.rs` in place of this.

use std::fmt::Debug;

use cni::{AddResult, AttachmentKey, Interface, IpConfig, code};
use cni_plugin::{Call, Info, codes};
use ipnet::IpNet;
use kernel::netns::Netns;
use kernel::route::{Link, LinkKind, RouteSocket};
use serde::de::DeserializeOwned;
use state::Index;
use wanted::{Item, Reason, State, Wanted};

use crate::engine::{
    self, Addition, Attachment, Difference, Kind, NetnsEntry, Picture, Removal, Wants,
};
use crate::shared::attachment;
use crate::shared::claim::{self, Place, SegmentLinks};
use crate::shared::container::{self, Options};
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;
use crate::shared::identity::{self, Identity};
pub use crate::shared::namespaces::Namespaces;
use crate::shared::{dns, drift, gate, owner, readiness, trial};

/// The position of the container's interface in the result: it is the only one.
const POSITION: usize = 0;

/// The source of the addresses.
#[derive(Debug, Clone, PartialEq)]
pub enum Addressing {
    /// The IPAM plugin, if the configuration has one.
    Ipam,
    /// The IPAM plugin; without one, code 7 with this message.
    RequiredIpam(&'static str),
    /// The previous plugin in the chain.
    Previous(Box<AddResult>),
}

/// What ADD created.
#[derive(Debug)]
pub struct CreatedLink {
    /// The link in the container, under its final name, marked with its owner's alias, still down.
    /// `None` for a device that the kernel does not show as a link: then nothing is configured.
    pub link: Option<Link>,
    /// The device's PCI address, for the result.
    pub pci_id: String,
}

impl CreatedLink {
    /// An ordinary link.
    #[must_use]
    pub fn link(link: Link) -> Self {
        CreatedLink { link: Some(link), pci_id: String::new() }
    }
}

/// What one kind of link adds to the common lifecycle.
pub trait SingleLink: Debug + Send + Sync + 'static {
    /// What the plugin is.
    const INFO: Info;
    /// The plugin's type.
    const NAME: &'static str = Self::INFO.name;
    /// The kernel's kinds of such links (IFLA_INFO_KIND). Unmarked links of other kinds are not
    /// ours to delete.
    const KINDS: &'static [&'static str];
    /// The configuration's keys as written; for [`cni_plugin::Plugin::unknown_keys`].
    type Raw: DeserializeOwned + Debug;
    /// The checked configuration.
    type Config: Debug;
    /// What was looked up before anything was changed.
    type Observation: Debug;

    /// Reads and checks the configuration of ADD, CHECK and STATUS. Reads nothing else.
    ///
    /// # Errors
    /// Code 7 or 2, naming the key.
    fn config(call: &Call<'_>) -> Result<Self::Config, Failure>;

    /// Returns the source of the addresses.
    ///
    /// # Errors
    /// Code 7.
    fn addressing(call: &Call<'_>, config: &Self::Config) -> Result<Addressing, Failure> {
        let _ = (call, config);
        Ok(Addressing::Ipam)
    }

    /// Looks up what ADD needs, and refuses what cannot work, before anything is changed.
    ///
    /// # Errors
    /// Code 7 or 108, naming the object and the key.
    fn observe(
        call: &Call<'_>,
        config: &Self::Config,
        namespaces: &mut Namespaces,
    ) -> Result<Self::Observation, Failure>;

    /// Returns what to record besides the namespace.
    fn to_record(config: &Self::Config, seen: &Self::Observation) -> serde_json::Value {
        let _ = (config, seen);
        serde_json::Value::Null
    }

    /// Returns the link as it was on the host, if it is a device that was lent.
    fn device(seen: &Self::Observation) -> Option<&Link> {
        let _ = seen;
        None
    }

    /// Creates the link in the container. If this fails, [`SingleLink::remove_link`] undoes what it
    /// did before.
    ///
    /// # Errors
    /// Code 100 with the kernel's words.
    fn make(
        call: &Call<'_>,
        config: &Self::Config,
        seen: &Self::Observation,
        namespaces: &mut Namespaces,
    ) -> Result<CreatedLink, Failure>;

    /// Returns how the interface is configured.
    fn options(config: &Self::Config) -> Options;

    /// Removes what `make` created for an attachment, given its namespace if that exists and the
    /// record if there is one. What is already gone is success.
    ///
    /// # Errors
    /// When it still exists.
    fn remove_link(
        call: &Call<'_>,
        key: &AttachmentKey,
        netns: Option<&Netns>,
        recorded: Option<&serde_json::Value>,
    ) -> Result<(), Failure> {
        match netns {
            Some(netns) => delete_link(call, key, netns, Self::KINDS, recorded),
            None => Ok(()),
        }
    }

    /// Returns the MTU that the configuration asks for, if CHECK compares it with what the result
    /// says: a later plugin may have set another one, and reported it.
    fn mtu(config: &Self::Config) -> Option<u32> {
        let _ = config;
        None
    }

    /// Compares what is specific to the kind (CHECK): the parent, the mode. `link` is `None` for a
    /// device without one. What a later plugin may change is compared elsewhere, with the result.
    ///
    /// # Errors
    /// Code 104.
    fn verify(
        call: &Call<'_>,
        config: &Self::Config,
        link: Option<&Link>,
        namespaces: &mut Namespaces,
    ) -> Result<(), Failure>;

    /// Refuses what would make every ADD on this host fail ([`cni_plugin::Plugin::fits_host`]). Something that
    /// is missing may appear later.
    ///
    /// # Errors
    /// As [`SingleLink::observe`].
    fn fits_host(config: &Self::Config, host: &mut RouteSocket) -> Result<(), Failure> {
        let _ = (config, host);
        Ok(())
    }

    /// Returns the kernel's kind of the link, with the kernel's option for it, if STATUS tries
    /// whether the kernel has it.
    fn kernel_kind(config: &Self::Config) -> Option<(LinkKind, &'static str)> {
        let _ = config;
        None
    }

    /// Reports whether ADD would find what it needs on the host (STATUS). It cannot ask about what
    /// is in the container, or in arguments that STATUS does not get.
    ///
    /// # Errors
    /// Any error; it is reported as code 50.
    fn status(config: &Self::Config, host: &mut RouteSocket) -> Result<(), Failure>;
}

/// The plugin that attaches by one kind of link.
#[derive(Debug)]
pub struct LinkPlugin<T>(pub T);

impl<T: SingleLink> Kind for LinkPlugin<T> {
    const INFO: Info = T::INFO;
    const ENTER: NetnsEntry = NetnsEntry::Always;
    type Raw = T::Raw;
    type Config = T::Config;
    type RecordData = serde_json::Value;
    type Cache = ();

    fn config(call: &Call<'_>) -> Result<T::Config, Failure> {
        T::config(call)
    }

    fn validate(call: &Call<'_>) -> Result<(), Failure> {
        read::<T>(call, &T::config(call)?).map(drop)
    }

    fn fits_host(call: &Call<'_>) -> Result<(), Failure> {
        readiness::refuse_without_kernel(call)?;
        T::fits_host(&T::config(call)?, &mut RouteSocket::open()?)
    }

    fn status(call: &Call<'_>) -> Result<(), Failure> {
        let config = T::config(call)?;
        if let Some(ipam) = call.ipam() {
            ipam.status()?;
        }
        let mut host = RouteSocket::open().map_err(attachment::unavailable)?;
        T::status(&config, &mut host).map_err(as_unavailable)?;
        match T::kernel_kind(&config) {
            Some((kind, option)) => trial::require_kind(T::NAME, kind, option),
            None => Ok(()),
        }
    }

    fn attach(attaching: &mut Addition<'_, Self>) -> Result<AddResult, Failure> {
        let (call, config) = (attaching.call, attaching.config);
        let addressing = read::<T>(call, config)?;
        let mut namespaces = Namespaces::open(call.open_netns()?)?;
        let ifname = call.ifname().as_str();
        attachment::refuse_existing(&namespaces.inside, ifname, || {
            format!("failed to create {}: interface {ifname:?} already exists", T::NAME)
        })?;
        refuse_renamed(call, &mut namespaces)?;
        let seen = T::observe(call, config, &mut namespaces)?;
        make(attaching, addressing, &seen, &mut namespaces)
    }

    fn take_down(removal: &Removal<'_, Self>, failures: &mut Failures) {
        let Removal { call, index, key, netns, recorded, .. } = removal;
        let (netns, recorded) = (netns.as_ref(), recorded.as_ref());
        let taken = T::remove_link(call, key, netns, recorded);
        if failures.note_as_it_is(taken).is_some() {
            let opened = gate::forget_inside(index, netns, key.ifname.as_str(), recorded);
            failures.note("remove the verdicts of network policy", opened);
        }
    }
}

impl<T: SingleLink> Wants for LinkPlugin<T> {
    type Observation = ();

    /// Repair restores the container's side. What is specific to the kind, a parent or a mode, is
    /// the host's and stays as it is.
    fn wanted(attached: &Attachment<'_, Self>, (): &()) -> Wanted {
        let Attachment { ifname, result, config, recorded, .. } = *attached;
        wanted_link(ifname, result, recorded, T::KINDS, T::options(config))
    }

    fn others(
        attached: &Attachment<'_, Self>,
        (): &(),
        picture: &mut Picture<'_>,
    ) -> Result<Vec<Difference>, Failure> {
        let (call, config) = (picture.call, attached.config);
        let link = picture.link(wanted::Place::Container, attached.ifname)?;
        let mut found = Vec::new();
        match &link {
            Some(link) if T::KINDS.is_empty() || T::KINDS.iter().any(|kind| link.is_kind(kind)) => {
            }
            None if T::KINDS.is_empty() => {}
            // An item says so.
            _ => return Ok(found),
        }
        let namespaces = picture.namespaces.get()?;
        found.extend(Difference::of(T::verify(call, config, link.as_ref(), namespaces))?);
        let Some(link) = link else { return Ok(found) };
        let asked = T::mtu(config).is_some();
        let reported = attached.result.container_interface(attached.ifname).map(|link| link.mtu);
        // Results before version 1.0.0 have no MTU.
        if let Some(mtu) = reported.filter(|mtu| asked && *mtu != 0 && *mtu != link.mtu) {
            let differs =
                drift(format!("interface {:?} has MTU {}, not {mtu}", link.name, link.mtu));
            found.extend(Difference::of(Err(differs))?);
        }
        let ips = attached.result.container_ips(attached.ifname);
        let ips: Vec<IpNet> = ips.map(|ip| ip.address).collect();
        found.extend(taken_by_the_host(call, &link, &ips, namespaces)?);
        Ok(found)
    }
}

/// Says what is wanted of a link of these kinds.
fn wanted_link(
    ifname: &str,
    result: &AddResult,
    recorded: Option<&serde_json::Value>,
    kinds: &[&str],
    options: Options,
) -> Wanted {
    let link = || ifname.to_owned();
    let has_mac = result.container_interface(ifname).is_some_and(|link| !link.mac.is_empty());
    let mut wanted = Wanted::new();
    // A device that the kernel does not show as a link never had an address.
    if has_mac || !kinds.is_empty() {
        let kinds = kinds.iter().map(ToString::to_string).collect();
        wanted.push(Item::container(State::Link { link: link(), kinds }, Reason::Created));
    }
    if recorded.is_some() {
        let state = State::Recorded { link: link() };
        wanted.push(Item::container(state, Reason::Ownership));
    }
    let ips: Vec<IpConfig> = result.container_ips(ifname).cloned().collect();
    wanted.extend(container::wanted_side(ifname, result, &ips, options, false));
    wanted.extend(claim::wanted(&recorded.map(claim::recorded).unwrap_or_default()));
    wanted
}

/// Finds an address of the container that the host has on the same segment by now.
fn taken_by_the_host(
    call: &Call<'_>,
    link: &Link,
    ips: &[IpNet],
    namespaces: &mut Namespaces,
) -> Result<Option<Difference>, Failure> {
    let (host, inside) = (&mut namespaces.host, &mut namespaces.inside);
    let Some(met) = claim::follow(call.attachment(), link, None, host, inside)? else {
        return Ok(None);
    };
    let refused = refuse_the_hosts(call, host, &met, ips);
    Difference::of(refused.map_err(claim::as_drift))
}

/// Refuses an ADD in a container that has a link with the attachment's mark under another name: the
/// record of an earlier ADD is lost, and an undo would delete its link.
fn refuse_renamed(call: &Call<'_>, namespaces: &mut Namespaces) -> Result<(), Failure> {
    let found = identity::find(&mut namespaces.inside, call.attachment(), None)?;
    let Some(link) = found.ours.first() else { return Ok(()) };
    let ifname = call.ifname();
    let text = format!("interface {ifname:?} already exists: it is called {:?}", link.name);
    Err(Failure::new(codes::EXISTS, text).with_details(engine::DEL_FIRST))
}

/// Turns what ADD would refuse because of the host into STATUS's answer that the plugin is not
/// available.
fn as_unavailable(error: Failure) -> Failure {
    error.with_code(code::PLUGIN_NOT_AVAILABLE)
}

fn required(message: &str) -> Failure {
    Failure::new(code::INVALID_CONFIG, message)
        .with_details("give the network an \"ipam\" object with a \"type\"")
}

/// Returns where the addresses come from.
fn read<T: SingleLink>(call: &Call<'_>, config: &T::Config) -> Result<Addressing, Failure> {
    let addressing = T::addressing(call, config)?;
    match (&addressing, call.ipam()) {
        (Addressing::RequiredIpam(message), None) => Err(required(message)),
        _ => Ok(addressing),
    }
}

fn make<T: SingleLink>(
    attaching: &mut Addition<'_, LinkPlugin<T>>,
    addressing: Addressing,
    seen: &T::Observation,
    namespaces: &mut Namespaces,
) -> Result<AddResult, Failure> {
    let (call, index, config) = (attaching.call, attaching.index, attaching.config);
    let recorded = T::to_record(config, seen);
    attaching.record(&recorded, &namespaces.netns)?;
    attaching.begin(Some(&namespaces.netns));
    let made = T::make(call, config, seen, namespaces)?;
    let mut making = Completion { call, index, plugin: LinkPlugin::<T>::NAME, recorded };
    making.identify(&made, &namespaces.netns)?;
    let result = match addressing {
        Addressing::Previous(result) => *result,
        _ => attaching.addresses()?.unwrap_or_default(),
    };
    if made.link.is_some() {
        making.close(&namespaces.netns)?;
    }
    making.complete(made, T::device(seen), T::options(config), result, namespaces)
}

/// An ADD after its link was made, of any kind.
struct Completion<'a> {
    call: &'a Call<'a>,
    index: &'a Index,
    plugin: &'static str,
    recorded: serde_json::Value,
}

impl Completion<'_> {
    /// Records which link was made. Hardware links have no kind: properties identify them that a
    /// container cannot give a link.
    fn identify(&mut self, made: &CreatedLink, netns: &Netns) -> Result<(), Failure> {
        let Some(link) = made.link.as_ref().filter(|link| link.kind.is_some()) else {
            return Ok(());
        };
        self.recorded[identity::KEY] =
            serde_json::to_value(Identity::of(link)).expect("an identity has string keys only");
        self.record(netns)
    }

    fn record(&self, netns: &Netns) -> Result<(), Failure> {
        attachment::write_record(self.call, self.index, self.plugin, &self.recorded, netns)
    }

    /// Closes the interface before it comes up, if `policy` opens it.
    fn close(&mut self, netns: &Netns) -> Result<(), Failure> {
        let Completion { call, index, plugin, ref mut recorded } = *self;
        let record = |recorded: &_| attachment::write_record(call, index, plugin, recorded, netns);
        gate::close_inside(call, index, netns, recorded, record)
    }

    /// Claims the addresses, configures the link, and returns the result of ADD.
    fn complete(
        mut self,
        made: CreatedLink,
        device: Option<&Link>,
        options: Options,
        mut result: AddResult,
        namespaces: &mut Namespaces,
    ) -> Result<AddResult, Failure> {
        for ip in &mut result.ips {
            ip.interface = Some(POSITION);
        }
        if let Some(link) = &made.link {
            self.claim_addresses(link.index, device, namespaces, &result)?;
        }
        let call = self.call;
        let interface = match &made.link {
            Some(link) => {
                configure(call, namespaces, link.index, &result, options)?;
                reported(call, link, made.pci_id)
            }
            None => Interface {
                name: call.ifname().to_string(),
                sandbox: call.env().netns.clone(),
                pci_id: made.pci_id,
                ..Interface::default()
            },
        };
        Ok(AddResult {
            interfaces: vec![interface],
            dns: dns::choose(call.common(), result.dns),
            ips: result.ips,
            routes: result.routes,
        })
    }

    /// Refuses addresses that the host or another attachment has on the same segment, and claims
    /// them there.
    fn claim_addresses(
        &mut self,
        ifindex: u32,
        device: Option<&Link>,
        namespaces: &mut Namespaces,
        result: &AddResult,
    ) -> Result<(), Failure> {
        let (call, index) = (self.call, self.index);
        let ips: Vec<IpNet> = result.ips.iter().map(|ip| ip.address).collect();
        if ips.is_empty() {
            return Ok(());
        }
        // As its present namespace shows it.
        let Some(link) = namespaces.inside.link_by_index(ifindex)? else {
            return Ok(());
        };
        let (host, inside) = (&mut namespaces.host, &mut namespaces.inside);
        let Some(met) = claim::follow(call.attachment(), &link, device, host, inside)? else {
            return Ok(());
        };
        refuse_the_hosts(call, host, &met, &ips)?;
        let places = [Place::Segment(met.segment)];
        self.recorded[claim::CLAIMS] = claim::objects(&places, &ips).into();
        self.record(&namespaces.netns)?;
        claim::take(call, index, &places, &ips)
    }
}

/// Refuses addresses that the host has on the container's segment.
fn refuse_the_hosts(
    call: &Call<'_>,
    host: &mut RouteSocket,
    met: &SegmentLinks,
    ips: &[IpNet],
) -> Result<(), Failure> {
    claim::refuse_addresses_of(call, host, &met.host, ips)?;
    claim::refuse_addresses_on(call, host, &met.segment, ips)
}

/// Describes the container's interface in the result.
fn reported(call: &Call<'_>, link: &Link, pci_id: String) -> Interface {
    Interface {
        name: call.ifname().to_string(),
        mac: link.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        mtu: link.mtu,
        sandbox: call.env().netns.clone(),
        pci_id,
        ..Interface::default()
    }
}

/// Brings the link up with its addresses and routes; without addresses it only comes up.
fn configure(
    call: &Call<'_>,
    namespaces: &mut Namespaces,
    ifindex: u32,
    result: &AddResult,
    options: Options,
) -> Result<(), Failure> {
    let ips: Vec<&IpConfig> = result.ips.iter().collect();
    let (inside, ifname) = (&mut namespaces.inside, call.ifname().as_str());
    container::configure(
        inside,
        &namespaces.netns,
        ifindex,
        ifname,
        &ips,
        &result.routes,
        options,
    )?;
    if options.skip_dad { Ok(()) } else { container::wait_for_dad(inside, ifindex, ifname) }
}

/// Deletes the attachment's links in the container: the recorded one, and those with its mark. If
/// there are none, it deletes the link with the attachment's name, provided that another project's
/// plugin may have created it: unmarked and of the right kind.
///
/// # Errors
/// Code 100 when the kernel refuses.
pub fn delete_link(
    call: &Call<'_>,
    key: &AttachmentKey,
    netns: &Netns,
    kinds: &[&str],
    recorded: Option<&serde_json::Value>,
) -> Result<(), Failure> {
    let mut inside = RouteSocket::open_in(netns)?;
    let found = identity::find(&mut inside, key, recorded.and_then(Identity::recorded))?;
    for link in &found.ours {
        inside.delete_link(link.index)?;
    }
    let Some(link) = found.other else { return Ok(()) };
    let ifname = key.ifname.as_str();
    if !found.ours.is_empty() {
        call.warn(format_args!(
            "interface {ifname:?} is another link than ADD made; it is left alone"
        ));
        return Ok(());
    }
    if let Err(whose) = may_be_ours(&link, kinds) {
        call.warn(format_args!("interface {ifname:?} {whose}; it is left alone"));
        return Ok(());
    }
    Ok(inside.delete_link(link.index).map(drop)?)
}

/// Reports whether a link that has an attachment's name but not its mark may have been created for
/// it by another project's plugin; the error names its owner.
fn may_be_ours(link: &Link, kinds: &[&str]) -> Result<(), String> {
    match link.alias.as_deref() {
        Some(alias) if alias.starts_with(owner::PREFIX) => {
            Err(format!("belongs to {}", alias.trim_start_matches(owner::PREFIX)))
        }
        _ if link.kind.as_deref().is_some_and(|kind| kinds.contains(&kind)) => Ok(()),
        _ => Err(format!(
            "is a {} and not what this plugin makes",
            link.kind.as_deref().unwrap_or("physical link")
        )),
    }
}
