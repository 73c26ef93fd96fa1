//! What a plugin is, as data: everything that others ask about it without calling it.

use cni::Version;

/// What a plugin is: its names, its place in a list, its versions, and what a runtime, `lint` or
/// a daemon must know of it before they call it.
///
/// A plugin has one constant of this type. [`Info::new`] describes a plugin that can stand anywhere
/// in a list and speaks every version; each method changes one property.
///
/// ```
/// use netwright_cni_plugin::cni::Version;
/// use netwright_cni_plugin::{Info, Role};
///
/// const INFO: Info = Info::new("herald")
///     .aliases(&["crier"])
///     .role(Role::Chained)
///     .versions(Version::starting_from(Version::V0_4_0));
///
/// assert!(INFO.answers_to("crier"));
/// assert_eq!(INFO.versions.first(), Some(&Version::V0_4_0));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// The plugin's type: the name of its executable.
    pub name: &'static str,
    /// The types of other projects' plugins that it stands in for.
    pub aliases: &'static [&'static str],
    /// Its place in a list.
    pub role: Role,
    /// The versions that it supports, oldest first.
    pub versions: &'static [Version],
    /// The capabilities whose arguments it reads from `runtimeConfig`. A plugin that calls others
    /// also passes theirs on.
    pub capabilities: &'static [&'static str],
    /// The capability that is the plugin's only purpose: without its argument the plugin has
    /// nothing to do.
    pub sole_capability: Option<&'static str>,
    /// Whether the host routes the containers' packets.
    pub routed: HostRouting,
    /// Where its configuration has the plugins that it calls, besides its IPAM plugin.
    pub inner: Option<Inner>,
    /// It may be the first of a list although it is [`Role::Chained`]: without arguments it has
    /// nothing to do, and succeeds.
    pub succeeds_alone: bool,
    /// It is an IPAM plugin that talks over the container's interface: it needs a carrier to get an
    /// address, and the interface to release it.
    pub over_the_link: bool,
    /// It is an IPAM plugin that gives every free address of its ranges on request, so that its
    /// caller can choose all of them.
    pub gives_any_requested: bool,
}

/// The places of a plugin in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It creates an interface, and therefore comes first.
    Interface,
    /// It creates an interface, or extends the one created before it.
    Either,
    /// It changes what the plugins before it created.
    Chained,
    /// It gives addresses to the plugin that names it as `ipam`, and cannot be a link of a chain.
    Addresses,
}

/// Whether the host routes the packets of a plugin's containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostRouting {
    /// It never does.
    Never,
    /// It always does.
    Always,
    /// It does if one of these keys of the configuration is true.
    IfSet(&'static [&'static str]),
}

/// The key under which a configuration has the plugins that its plugin calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inner {
    /// It lists plugins of the same network, which are called one after the other.
    Plugins(&'static str),
    /// It lists networks. The `config` of each is a plugin's object or a network list.
    Networks(&'static str),
    /// It lists networks, each written as a plugin's object.
    Delegates(&'static str),
    /// It is a part of one plugin's object, which the plugin completes.
    Delegate {
        /// The key.
        key: &'static str,
        /// The type of a plugin whose object names none.
        default_type: &'static str,
    },
}

impl Info {
    /// Describes a plugin of this type.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Info {
            name,
            aliases: &[],
            role: Role::Either,
            versions: Version::ALL,
            capabilities: &[],
            sole_capability: None,
            routed: HostRouting::Never,
            inner: None,
            succeeds_alone: false,
            over_the_link: false,
            gives_any_requested: false,
        }
    }

    /// It stands in for other projects' plugins of these types.
    #[must_use]
    pub const fn aliases(self, aliases: &'static [&'static str]) -> Self {
        Info { aliases, ..self }
    }

    /// It has this place in a list.
    #[must_use]
    pub const fn role(self, role: Role) -> Self {
        Info { role, ..self }
    }

    /// It supports these versions, oldest first.
    #[must_use]
    pub const fn versions(self, versions: &'static [Version]) -> Self {
        Info { versions, ..self }
    }

    /// It reads the arguments of these capabilities.
    #[must_use]
    pub const fn capabilities(self, capabilities: &'static [&'static str]) -> Self {
        Info { capabilities, ..self }
    }

    /// It has nothing to do without this capability, one of [`Info::capabilities`].
    #[must_use]
    pub const fn sole_capability(self, capability: &'static str) -> Self {
        Info { sole_capability: Some(capability), ..self }
    }

    /// The host routes its containers' packets.
    #[must_use]
    pub const fn routed(self, routed: HostRouting) -> Self {
        Info { routed, ..self }
    }

    /// It calls the plugins that its configuration has there.
    #[must_use]
    pub const fn inner(self, inner: Inner) -> Self {
        Info { inner: Some(inner), ..self }
    }

    /// It is chained, and yet succeeds as the first of a list.
    #[must_use]
    pub const fn succeeds_alone(self) -> Self {
        Info { succeeds_alone: true, ..self }
    }

    /// It talks over the container's interface to give addresses.
    #[must_use]
    pub const fn over_the_link(self) -> Self {
        Info { over_the_link: true, ..self }
    }

    /// It gives every free address on request.
    #[must_use]
    pub const fn gives_any_requested(self) -> Self {
        Info { gives_any_requested: true, ..self }
    }

    /// Reports whether a configuration with this type calls the plugin: by its own name or by an
    /// alias.
    #[must_use]
    pub fn answers_to(&self, plugin_type: &str) -> bool {
        self.name == plugin_type || self.aliases.contains(&plugin_type)
    }
}
