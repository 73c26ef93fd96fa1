//! The life of an attachment that is a single link in the container, whatever the link is.
//!
//! `macvlan`, `ipvlan`, `vlan`, `dummy`, `tap` and `host-device` differ in what they look up, which link they make
//! and what CHECK compares; [`SingleLink`] is that. Everything else is here, once.
//!
//! | verb | order |
//! |---|---|
//! | ADD | configuration, namespace, the name is free, the parent; then the record, the link (down), IPAM, addresses and routes |
//! | DEL | the link, the record, IPAM (with `dhcp`: addresses, IPAM, the link) |
//! | CHECK | IPAM, the link as reported, what is the kind's own, addresses and routes |
//! | GC | the links of attachments that are written down and not valid, then IPAM |
//! | STATUS | IPAM, then whether the parent is there |

use std::fmt::Debug;

use cni::json::{JsonError, UnknownKey, unknown_keys};
use cni::{AddResult, AttachmentKey, Error, Interface, IpConfig, code};
use cni_plugin::{Call, Plugin};
use kernel::netns::Netns;
use kernel::route::{Link, RouteSocket};
use serde::de::DeserializeOwned;
use state::{Index, Record};

use crate::shared::attachment::{self, Left};
use crate::shared::container::{self, Options};
use crate::shared::failures::Failures;
use crate::shared::repair::{self, Inside};
use crate::shared::undo::Undo;
use crate::shared::{dns, drift, kernel_error as kernel, owner};

/// Where the container's interface stands in the result: it is the only one.
const POSITION: usize = 0;

/// The host's side and the container's.
#[derive(Debug)]
pub struct Sites {
    /// The container's namespace.
    pub netns: Netns,
    /// A socket in the namespace the plugin was called in.
    pub host: RouteSocket,
    /// A socket in the container's namespace.
    pub inside: RouteSocket,
}

impl Sites {
    /// Opens both sides.
    ///
    /// # Errors
    /// Code 100 when the kernel refuses.
    pub fn open(netns: Netns) -> Result<Self, Error> {
        let host = RouteSocket::open().map_err(kernel)?;
        let inside = RouteSocket::open_in(&netns).map_err(kernel)?;
        Ok(Sites { netns, host, inside })
    }
}

/// Where the addresses come from.
#[derive(Debug, Clone, PartialEq)]
pub enum Addressing {
    /// From the address plugin, if the configuration has one.
    Ipam,
    /// From the address plugin; without one, code 7 with this message.
    RequiredIpam(&'static str),
    /// From the plugin before this one in the chain.
    Previous(Box<AddResult>),
}

/// What ADD made.
#[derive(Debug)]
pub struct Made {
    /// The link in the container, under its final name, marked with its owner's alias, still down. `None` for a
    /// device that the kernel does not show as a link: nothing is configured then.
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

/// What one kind of link adds to the common life.
pub trait SingleLink: Debug + Send + Sync + 'static {
    /// The plugin's type.
    const NAME: &'static str;
    /// What the kernel calls links of this kind (IFLA_INFO_KIND). Unmarked links of other kinds are not ours to delete.
    const KINDS: &'static [&'static str];
    /// The configuration's keys as written; for [`Plugin::unknown_keys`].
    type Raw: DeserializeOwned + Debug;
    /// What the configuration asks for, checked.
    type Config: Debug;
    /// What was looked up before anything was changed.
    type Seen: Debug;

    /// Reads and checks the configuration of ADD, CHECK and STATUS. Looks at nothing else.
    ///
    /// # Errors
    /// Code 7 or 2, naming the key.
    fn config(call: &Call<'_>) -> Result<Self::Config, Error>;

    /// Says where the addresses come from.
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
        sites: &mut Sites,
    ) -> Result<Self::Seen, Error>;

    /// Returns what shall be written down beside the namespace.
    fn facts(config: &Self::Config, seen: &Self::Seen) -> serde_json::Value {
        let _ = (config, seen);
        serde_json::Value::Null
    }

    /// Makes the link in the container. What it did before it failed is undone by [`SingleLink::take_back`].
    ///
    /// # Errors
    /// Code 100 with the kernel's words.
    fn make(
        call: &Call<'_>,
        config: &Self::Config,
        seen: &Self::Seen,
        sites: &mut Sites,
    ) -> Result<Made, Error>;

    /// How the interface is configured.
    fn options(config: &Self::Config) -> Options;

    /// Takes away what `make` made for an attachment, given its namespace if that is there and the facts if they
    /// were written down. What is gone already is success.
    ///
    /// # Errors
    /// When it is still there.
    fn take_back(
        call: &Call<'_>,
        key: &AttachmentKey,
        netns: Option<&Netns>,
        facts: Option<&serde_json::Value>,
    ) -> Result<(), Error> {
        let _ = facts;
        match netns {
            Some(netns) => delete_link(call, key, netns, Self::KINDS),
            None => Ok(()),
        }
    }

    /// Compares what is the kind's own (CHECK): the parent, the mode. `link` is `None` for a device without one.
    ///
    /// # Errors
    /// Code 104.
    fn verify(
        call: &Call<'_>,
        config: &Self::Config,
        link: Option<&Link>,
        sites: &mut Sites,
    ) -> Result<(), Error>;

    /// Says whether ADD would find what it needs on the host (STATUS). What is in the container, or in arguments
    /// that STATUS does not get, cannot be asked about.
    ///
    /// # Errors
    /// Anything; it is told as code 50.
    fn status(config: &Self::Config, host: &mut RouteSocket) -> Result<(), Error>;
}

/// The plugin of one kind of link.
#[derive(Debug)]
pub struct Single<T>(pub T);

impl<T: SingleLink> Plugin for Single<T> {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn add(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        add::<T>(call)
    }

    fn del(&self, call: &Call<'_>) -> Result<(), Error> {
        attachment::del(call, |netns| remove::<T>(call, call.attachment(), netns))
    }

    fn check(&self, call: &Call<'_>) -> Result<(), Error> {
        check::<T>(call)
    }

    /// The container's side of it. What is the kind's own, a parent or a mode, is the host's and stays as it is.
    fn repair(&self, call: &Call<'_>) -> Result<Vec<String>, Error> {
        repair::of_record(call, T::NAME, |_, repair| {
            let config = T::config(call)?;
            let wanted = Inside {
                kinds: T::KINDS,
                options: T::options(&config),
                addresses: repair.addresses(call),
                ways: &[],
                no_prefix_routes: false,
            };
            let result = call.require_prev_result("Required prevResult missing")?;
            let mut sites = Sites::open(call.open_netns()?)?;
            let (netns, inside) = (&sites.netns, &mut sites.inside);
            repair::container_side(call, netns, inside, &result, wanted, repair).map(drop)
        })
    }

    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        let index = Index::new(call.roots());
        let (mut failures, mut left) = (Failures::new(), Vec::new());
        for record in attachment::stale_records(call, &index, T::NAME) {
            let collected = collect::<T>(call, &record);
            if failures.note(format_args!("collect {}", record.attachment), collected).is_none() {
                left.push(record.attachment);
            }
        }
        attachment::collect_addresses(call, &Left::LinksOf(left), &mut failures);
        failures.into_result()
    }

    fn status(&self, call: &Call<'_>) -> Result<(), Error> {
        let config = T::config(call)?;
        match (call.ipam(), T::addressing(call, &config)?) {
            (Some(ipam), _) => ipam.status()?,
            (None, Addressing::RequiredIpam(message)) => return Err(required(message)),
            (None, _) => {}
        }
        let mut host = RouteSocket::open().map_err(kernel).map_err(attachment::unavailable)?;
        T::status(&config, &mut host).map_err(as_unavailable)
    }

    fn unknown_keys(&self, config: &str) -> Result<Vec<UnknownKey>, JsonError> {
        unknown_keys::<T::Raw>(config)
    }
}

/// What ADD would refuse because of the host is for STATUS a plugin that is not available.
fn as_unavailable(error: Error) -> Error {
    Error { code: code::PLUGIN_NOT_AVAILABLE, ..error }
}

fn required(message: &str) -> Error {
    Error::new(code::INVALID_CONFIG, message)
        .with_details("give the network an \"ipam\" object with a \"type\"")
}

fn add<T: SingleLink>(call: &Call<'_>) -> Result<AddResult, Error> {
    let config = T::config(call)?;
    let addressing = T::addressing(call, &config)?;
    if let (Addressing::RequiredIpam(message), None) = (&addressing, call.ipam()) {
        return Err(required(message));
    }
    let mut sites = Sites::open(call.open_netns()?)?;
    attachment::refuse_existing(&sites.inside, call.ifname().as_str(), || {
        format!(
            "failed to create {}: interface {:?} already exists",
            T::NAME,
            call.ifname().as_str()
        )
    })?;
    let seen = T::observe(call, &config, &mut sites)?;
    let mut undo = Undo::new();
    let attached = attach::<T>(call, &config, addressing, &seen, &mut sites, &mut undo);
    attached.map_err(|error| undo.run(error))
}

fn attach<'a, T: SingleLink>(
    call: &'a Call<'_>,
    config: &T::Config,
    addressing: Addressing,
    seen: &T::Seen,
    sites: &mut Sites,
    undo: &mut Undo<'a>,
) -> Result<AddResult, Error> {
    let index = Index::new(call.roots());
    let facts = T::facts(config, seen);
    attachment::write_down(call, &index, T::NAME, &facts, sites.netns.id())?;
    let netns = sites.netns.clone();
    undo.record("remove what was made", move || remove::<T>(call, call.attachment(), Some(&netns)));
    let made = T::make(call, config, seen, sites)?;
    let mut result = match (addressing, call.ipam()) {
        (Addressing::Previous(result), _) => *result,
        (_, Some(ipam)) => attachment::add_addresses(ipam, undo)?,
        (_, None) => AddResult::default(),
    };
    for ip in &mut result.ips {
        ip.interface = Some(POSITION);
    }
    let interface = match &made.link {
        Some(link) => {
            configure(call, sites, link.index, &result, T::options(config))?;
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

/// Brings the link up with its addresses and routes; one without addresses merely comes up.
fn configure(
    call: &Call<'_>,
    sites: &mut Sites,
    ifindex: u32,
    result: &AddResult,
    options: Options,
) -> Result<(), Error> {
    let ips: Vec<&IpConfig> = result.ips.iter().collect();
    let (inside, ifname) = (&mut sites.inside, call.ifname().as_str());
    container::configure(inside, &sites.netns, ifindex, ifname, &ips, &result.routes, options)?;
    if options.skip_dad { Ok(()) } else { container::wait_for_dad(inside, ifindex, ifname) }
}

/// Removes everything that ADD made beside the addresses' reservation. Without a namespace it looks into the one
/// that was written down: the link may be there still, and answer for an address that is given away.
fn remove<T: SingleLink>(
    call: &Call<'_>,
    key: &AttachmentKey,
    netns: Option<&Netns>,
) -> Result<(), Error> {
    let index = Index::new(call.roots());
    let record = index.get(key, T::NAME).found;
    let recorded = match (netns, &record) {
        (None, Some(record)) => attachment::recorded_netns(record)?,
        _ => None,
    };
    let facts = record.map(|record| record.data);
    T::take_back(call, key, netns.or(recorded.as_ref()), facts.as_ref())?;
    attachment::forget(&index, key, T::NAME)
}

fn collect<T: SingleLink>(call: &Call<'_>, record: &Record) -> Result<(), Error> {
    remove::<T>(call, &record.attachment, None)
}

/// Deletes the container's interface if it is the attachment's: marked so, or, when somebody else's plugin made
/// it, unmarked and of the right kind.
///
/// # Errors
/// Code 100 when the kernel refuses.
pub fn delete_link(
    call: &Call<'_>,
    key: &AttachmentKey,
    netns: &Netns,
    kinds: &[&str],
) -> Result<(), Error> {
    let mut inside = RouteSocket::open_in(netns).map_err(kernel)?;
    let ifname = key.ifname.as_str();
    let Some(link) = inside.link_by_name(ifname).map_err(kernel)? else { return Ok(()) };
    if let Err(whose) = is_ours(&link, key, kinds) {
        call.warn(format_args!("interface {ifname:?} {whose}; it is left alone"));
        return Ok(());
    }
    inside.delete_link(link.index).map(drop).map_err(kernel)
}

/// Says whether a link of the attachment's name is the attachment's, or whose it is.
///
/// # Errors
/// The words for a warning.
pub fn is_ours(link: &Link, key: &AttachmentKey, kinds: &[&str]) -> Result<(), String> {
    match link.alias.as_deref() {
        Some(alias) if alias == owner::alias(key) => Ok(()),
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

fn check<T: SingleLink>(call: &Call<'_>) -> Result<(), Error> {
    let config = T::config(call)?;
    if let Some(ipam) = call.ipam() {
        ipam.check()?;
    }
    let result = call.require_prev_result("Required prevResult missing")?;
    let mut sites = Sites::open(call.open_netns()?)?;
    let ifname = call.ifname().as_str();
    let reported = container::reported_interface(call, &result)?;
    let Some(link) = sites.inside.link_by_name(ifname).map_err(kernel)? else {
        if reported.mac.is_empty() {
            // A device that the kernel does not show as a link never had one.
            return T::verify(call, &config, None, &mut sites);
        }
        return Err(drift(format!("interface {ifname:?} is gone from the container")));
    };
    if !T::KINDS.is_empty() && !T::KINDS.iter().any(|kind| link.is_kind(kind)) {
        return Err(drift(format!("interface {ifname:?} is no {} link any more", T::NAME)));
    }
    container::same_mac(reported, &link)?;
    container::require_up(&link)?;
    T::verify(call, &config, Some(&link), &mut sites)?;
    let ips: Vec<_> = result.container_ips(ifname).collect();
    container::check(&mut sites.inside, link.index, ifname, &ips, &result.routes)
}
