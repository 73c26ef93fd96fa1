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

use std::fmt::Debug;

use cni::json::{JsonError, UnknownKey, unknown_keys};
use cni::{AddResult, AttachmentKey, Error, Interface, IpConfig, code};
use cni_plugin::{Call, Info, Outcome, Plugin};
use ipnet::IpNet;
use kernel::living::Census;
use kernel::netns::Netns;
use kernel::route::{Link, RouteSocket};
use serde::de::DeserializeOwned;
use state::Index;
use wanted::{Because, Item, State, Wanted};

use crate::engine::{self, Attached, Difference, Kind, Picture};
use crate::shared::attachment::{self, Left, Stale};
use crate::shared::claim::{self, Place};
use crate::shared::container::{self, Options};
use crate::shared::failures::Failures;
use crate::shared::identity::{self, Identity};
use crate::shared::undo::Undo;
use crate::shared::{dns, kernel_error as kernel, owner};

/// The position of the container's interface in the result: it is the only one.
const POSITION: usize = 0;

/// The host's side and the container's side.
#[derive(Debug)]
pub struct Namespaces {
    /// The container's namespace.
    pub netns: Netns,
    /// A socket in the namespace the plugin was called in.
    pub host: RouteSocket,
    /// A socket in the container's namespace.
    pub inside: RouteSocket,
}

impl Namespaces {
    /// Opens both sides.
    ///
    /// # Errors
    /// Code 100 when the kernel refuses.
    pub fn open(netns: Netns) -> Result<Self, Error> {
        let host = RouteSocket::open().map_err(kernel)?;
        let inside = RouteSocket::open_in(&netns).map_err(kernel)?;
        Ok(Namespaces { netns, host, inside })
    }
}

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
pub struct Made {
    /// The link in the container, under its final name, marked with its owner's alias, still down.
    /// `None` for a device that the kernel does not show as a link: then nothing is configured.
    pub link: Option<Link>,
    /// The device's PCI address, for the result.
    pub pci_id: String,
}

impl Made {
    /// An ordinary link.
    #[must_use]
    pub fn link(link: Link) -> Self {
        Made { link: Some(link), pci_id: String::new() }
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
    /// The configuration's keys as written; for [`Plugin::unknown_keys`].
    type Raw: DeserializeOwned + Debug;
    /// The checked configuration.
    type Config: Debug;
    /// What was looked up before anything was changed.
    type Observed: Debug;

    /// Reads and checks the configuration of ADD, CHECK and STATUS. Reads nothing else.
    ///
    /// # Errors
    /// Code 7 or 2, naming the key.
    fn config(call: &Call<'_>) -> Result<Self::Config, Error>;

    /// Returns the source of the addresses.
    ///
    /// # Errors
    /// Code 7.
    fn addressing(call: &Call<'_>, config: &Self::Config) -> Result<Addressing, Error> {
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
    ) -> Result<Self::Observed, Error>;

    /// Returns what to record besides the namespace.
    fn to_record(config: &Self::Config, seen: &Self::Observed) -> serde_json::Value {
        let _ = (config, seen);
        serde_json::Value::Null
    }

    /// Returns the link as it was on the host, if it is a device that was lent.
    fn device(seen: &Self::Observed) -> Option<&Link> {
        let _ = seen;
        None
    }

    /// Creates the link in the container. If this fails, [`SingleLink::take_back`] undoes what it
    /// did before.
    ///
    /// # Errors
    /// Code 100 with the kernel's words.
    fn make(
        call: &Call<'_>,
        config: &Self::Config,
        seen: &Self::Observed,
        namespaces: &mut Namespaces,
    ) -> Result<Made, Error>;

    /// Returns how the interface is configured.
    fn options(config: &Self::Config) -> Options;

    /// Removes what `make` created for an attachment, given its namespace if that exists and the
    /// facts if they were recorded. What is already gone is success.
    ///
    /// # Errors
    /// When it still exists.
    fn take_back(
        call: &Call<'_>,
        key: &AttachmentKey,
        netns: Option<&Netns>,
        facts: Option<&serde_json::Value>,
    ) -> Result<(), Error> {
        match netns {
            Some(netns) => delete_link(call, key, netns, Self::KINDS, facts),
            None => Ok(()),
        }
    }

    /// Compares what is specific to the kind (CHECK): the parent, the mode. `link` is `None` for a
    /// device without one.
    ///
    /// # Errors
    /// Code 104.
    fn verify(
        call: &Call<'_>,
        config: &Self::Config,
        link: Option<&Link>,
        namespaces: &mut Namespaces,
    ) -> Result<(), Error>;

    /// Refuses what would make every ADD on this host fail ([`Plugin::fits_host`]). Something that
    /// is missing may appear later.
    ///
    /// # Errors
    /// As [`SingleLink::observe`].
    fn fits_host(config: &Self::Config, host: &mut RouteSocket) -> Result<(), Error> {
        let _ = (config, host);
        Ok(())
    }

    /// Reports whether ADD would find what it needs on the host (STATUS). It cannot ask about what
    /// is in the container, or in arguments that STATUS does not get.
    ///
    /// # Errors
    /// Any error; it is reported as code 50.
    fn status(config: &Self::Config, host: &mut RouteSocket) -> Result<(), Error>;
}

/// The plugin of one kind of link.
#[derive(Debug)]
pub struct Single<T>(pub T);

impl<T: SingleLink> Plugin for Single<T> {
    fn info(&self) -> &'static Info {
        const { &T::INFO }
    }

    fn add(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        attachment::add_alone(call, || add::<T>(call))
    }

    fn del(&self, call: &Call<'_>) -> Result<(), Error> {
        attachment::del(call, |netns| remove::<T>(call, call.attachment(), netns, &Census::new()))
    }

    fn check(&self, call: &Call<'_>) -> Result<(), Error> {
        engine::check::<Self>(call)
    }

    /// Repairs the container's side. What is specific to the kind, a parent or a mode, is the
    /// host's and stays as it is.
    fn repair_and_check(&self, call: &Call<'_>) -> Outcome {
        engine::repair::<Self>(call)
    }

    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        let index = Index::new(call.roots());
        let (mut failures, mut left) = (Failures::new(), Vec::new());
        let census = Census::new();
        let stale = attachment::stale_records(call, &index, T::NAME);
        let looked: Vec<AttachmentKey> =
            stale.iter().map(|record| record.attachment.clone()).collect();
        for record in stale {
            let one = Stale::of(record);
            let remove = || remove::<T>(call, &one.key, None, &census);
            let collected = one.collect(&index, T::NAME, remove);
            if failures.note(format_args!("collect {}", one.key), collected).is_none() {
                left.push(one.key);
            }
        }
        attachment::collect_addresses(call, T::NAME, &looked, Left::LinksOf(left), &mut failures);
        failures.into_result()
    }

    fn validate(&self, call: &Call<'_>) -> Result<(), Error> {
        read::<T>(call).map(drop)
    }

    fn fits_host(&self, call: &Call<'_>) -> Result<(), Error> {
        let config = T::config(call)?;
        T::fits_host(&config, &mut RouteSocket::open().map_err(kernel)?)
    }

    fn status(&self, call: &Call<'_>) -> Result<(), Error> {
        let config = T::config(call)?;
        if let Some(ipam) = call.ipam() {
            ipam.status()?;
        }
        let mut host = RouteSocket::open().map_err(kernel).map_err(attachment::unavailable)?;
        T::status(&config, &mut host).map_err(as_unavailable)
    }

    fn unknown_keys(&self, config: &str) -> Result<Vec<UnknownKey>, JsonError> {
        unknown_keys::<T::Raw>(config)
    }
}

impl<T: SingleLink> Kind for Single<T> {
    const NAME: &'static str = T::NAME;
    type Config = T::Config;
    type Recorded = serde_json::Value;
    type Observed = ();

    fn config(call: &Call<'_>) -> Result<T::Config, Error> {
        T::config(call)
    }

    fn wanted(
        config: &T::Config,
        recorded: Option<&serde_json::Value>,
        (): &(),
        attached: &Attached<'_>,
    ) -> Wanted {
        let link = || attached.ifname.to_owned();
        let reported = attached.result.container_interface(attached.ifname);
        let has_mac = reported.is_some_and(|link| !link.mac.is_empty());
        let mut wanted = Wanted::new();
        // A device that the kernel does not show as a link never had an address.
        if has_mac || !T::KINDS.is_empty() {
            let kinds = T::KINDS.iter().map(ToString::to_string).collect();
            wanted.push(Item::container(State::Link { link: link(), kinds }, Because::Created));
        }
        if recorded.is_some() {
            let state = State::Recorded { link: link() };
            wanted.push(Item::container(state, Because::Ownership));
        }
        let ips: Vec<IpConfig> = attached.result.container_ips(attached.ifname).cloned().collect();
        wanted.extend(container::wanted_side(attached, &ips, T::options(config), false));
        wanted.extend(claim::wanted(&recorded.map(claim::recorded).unwrap_or_default()));
        wanted
    }

    fn others(
        config: &T::Config,
        (): &(),
        attached: &Attached<'_>,
        picture: &mut Picture<'_>,
    ) -> Result<Vec<Difference>, Error> {
        let call = picture.call;
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
        let (host, inside) = (&mut namespaces.host, &mut namespaces.inside);
        let met = claim::follow(call.attachment(), &link, None, host, inside)?;
        let ips = attached.result.container_ips(attached.ifname);
        let ips: Vec<IpNet> = ips.map(|ip| ip.address).collect();
        let own = met.map(|met| met.host).unwrap_or_default();
        let refused = claim::refuse_addresses_of(call, host, &own, &ips);
        found.extend(Difference::of(refused.map_err(claim::as_drift))?);
        Ok(found)
    }
}

/// Turns what ADD would refuse because of the host into STATUS's answer that the plugin is not
/// available.
fn as_unavailable(error: Error) -> Error {
    Error { code: code::PLUGIN_NOT_AVAILABLE, ..error }
}

fn required(message: &str) -> Error {
    Error::new(code::INVALID_CONFIG, message)
        .with_details("give the network an \"ipam\" object with a \"type\"")
}

/// Reads everything from the configuration.
fn read<T: SingleLink>(call: &Call<'_>) -> Result<(T::Config, Addressing), Error> {
    let config = T::config(call)?;
    let addressing = T::addressing(call, &config)?;
    match (&addressing, call.ipam()) {
        (Addressing::RequiredIpam(message), None) => Err(required(message)),
        _ => Ok((config, addressing)),
    }
}

fn add<T: SingleLink>(call: &Call<'_>) -> Result<AddResult, Error> {
    let (config, addressing) = read::<T>(call)?;
    let mut namespaces = Namespaces::open(call.open_netns()?)?;
    attachment::refuse_existing(&namespaces.inside, call.ifname().as_str(), || {
        format!(
            "failed to create {}: interface {:?} already exists",
            T::NAME,
            call.ifname().as_str()
        )
    })?;
    let seen = T::observe(call, &config, &mut namespaces)?;
    let mut undo = Undo::new();
    let attached = attach::<T>(call, &config, addressing, &seen, &mut namespaces, &mut undo);
    attached.map_err(|error| undo.run(error))
}

fn attach<'a, T: SingleLink>(
    call: &'a Call<'_>,
    config: &T::Config,
    addressing: Addressing,
    seen: &T::Observed,
    namespaces: &mut Namespaces,
    undo: &mut Undo<'a>,
) -> Result<AddResult, Error> {
    let index = Index::new(call.roots());
    let mut facts = T::to_record(config, seen);
    attachment::write_down(call, &index, T::NAME, &facts, &namespaces.netns)?;
    let netns = namespaces.netns.clone();
    undo.record("remove what was made", move || {
        remove::<T>(call, call.attachment(), Some(&netns), &Census::new())
    });
    let made = T::make(call, config, seen, namespaces)?;
    // Hardware links have no kind: properties identify them that a container cannot give a link.
    if let Some(link) = made.link.as_ref().filter(|link| link.kind.is_some()) {
        facts[identity::KEY] =
            serde_json::to_value(Identity::of(link)).expect("facts have string keys only");
        attachment::write_down(call, &index, T::NAME, &facts, &namespaces.netns)?;
    }
    let mut result = match (addressing, call.ipam()) {
        (Addressing::Previous(result), _) => *result,
        (_, Some(ipam)) => attachment::add_addresses(ipam, undo)?,
        (_, None) => AddResult::default(),
    };
    for ip in &mut result.ips {
        ip.interface = Some(POSITION);
    }
    if let Some(link) = &made.link {
        claim_addresses::<T>(
            call,
            &index,
            facts,
            link.index,
            T::device(seen),
            namespaces,
            &result,
        )?;
    }
    let interface = match &made.link {
        Some(link) => {
            configure(call, namespaces, link.index, &result, T::options(config))?;
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

/// Refuses addresses that the host or another attachment has on the same segment, and claims them
/// there.
fn claim_addresses<T: SingleLink>(
    call: &Call<'_>,
    index: &Index,
    mut facts: serde_json::Value,
    ifindex: u32,
    device: Option<&Link>,
    namespaces: &mut Namespaces,
    result: &AddResult,
) -> Result<(), Error> {
    let ips: Vec<IpNet> = result.ips.iter().map(|ip| ip.address).collect();
    if ips.is_empty() {
        return Ok(());
    }
    // As its present namespace shows it.
    let Some(link) = namespaces.inside.link_by_index(ifindex).map_err(kernel)? else {
        return Ok(());
    };
    let (host, inside) = (&mut namespaces.host, &mut namespaces.inside);
    let Some(met) = claim::follow(call.attachment(), &link, device, host, inside)? else {
        return Ok(());
    };
    claim::refuse_addresses_of(call, host, &met.host, &ips)?;
    let places = [Place::Segment(met.segment)];
    facts[claim::CLAIMS] = claim::objects(&places, &ips).into();
    attachment::write_down(call, index, T::NAME, &facts, &namespaces.netns)?;
    claim::take(call, index, &places, &ips)
}

/// Reports whether another attachment, or the host, has the addresses by now.
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
) -> Result<(), Error> {
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

/// Removes everything that ADD created except the reservation of the addresses. Without a namespace
/// it uses the recorded one, wherever that is: the link may still exist, and answer for an address
/// that is given to others.
fn remove<T: SingleLink>(
    call: &Call<'_>,
    key: &AttachmentKey,
    netns: Option<&Netns>,
    census: &Census,
) -> Result<(), Error> {
    let index = Index::new(call.roots());
    let record = index.get(key, T::NAME).found;
    let recorded = match (netns, &record) {
        (None, Some(record)) => attachment::find_recorded_netns(call, record, census)?,
        _ => None,
    };
    let facts = record.map(|record| record.data);
    T::take_back(call, key, netns.or(recorded.as_ref()), facts.as_ref())?;
    let mut failures = Failures::new();
    let held = facts.as_ref().map(claim::recorded);
    claim::release(&index, key, held.as_deref(), &mut failures);
    failures.into_result()?;
    attachment::forget(&index, key, T::NAME)
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
    facts: Option<&serde_json::Value>,
) -> Result<(), Error> {
    let mut inside = RouteSocket::open_in(netns).map_err(kernel)?;
    let found = identity::find(&mut inside, key, facts.and_then(Identity::recorded))?;
    for link in &found.ours {
        inside.delete_link(link.index).map_err(kernel)?;
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
    inside.delete_link(link.index).map(drop).map_err(kernel)
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
