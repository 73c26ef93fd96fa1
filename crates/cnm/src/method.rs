//! The calls, by name.

use std::fmt;

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// A call: what is said behind the slash of the request's path.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Method {
            $($(#[$doc])* $name,)*
        }

        impl Method {
            /// Every call there is.
            pub const ALL: &'static [Method] = &[$(Method::$name,)*];

            /// Returns its name.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Method::$name => $text,)*
                }
            }
        }
    };
}

methods! {
    /// The first call of all: which interfaces a driver has.
    Activate = "Plugin.Activate";
    /// A network driver's scope.
    NetworkCapabilities = "NetworkDriver.GetCapabilities";
    /// Reserves a global network's resources, on the manager.
    AllocateNetwork = "NetworkDriver.AllocateNetwork";
    /// Gives them back.
    FreeNetwork = "NetworkDriver.FreeNetwork";
    /// Asks whether gateways are wanted from IPAM.
    GwAllocCheck = "NetworkDriver.GwAllocCheck";
    /// Makes a network.
    CreateNetwork = "NetworkDriver.CreateNetwork";
    /// Removes it.
    DeleteNetwork = "NetworkDriver.DeleteNetwork";
    /// Makes an endpoint.
    CreateEndpoint = "NetworkDriver.CreateEndpoint";
    /// Tells of it.
    EndpointOperInfo = "NetworkDriver.EndpointOperInfo";
    /// Removes it.
    DeleteEndpoint = "NetworkDriver.DeleteEndpoint";
    /// Brings an endpoint into a sandbox.
    Join = "NetworkDriver.Join";
    /// Takes it out.
    Leave = "NetworkDriver.Leave";
    /// The endpoint is the sandbox's way out: publish its ports.
    ProgramExternalConnectivity = "NetworkDriver.ProgramExternalConnectivity";
    /// It no longer is.
    RevokeExternalConnectivity = "NetworkDriver.RevokeExternalConnectivity";
    /// A node joined the cluster.
    DiscoverNew = "NetworkDriver.DiscoverNew";
    /// A node left it.
    DiscoverDelete = "NetworkDriver.DiscoverDelete";
    /// What an IPAM driver needs.
    IpamCapabilities = "IpamDriver.GetCapabilities";
    /// Its address spaces.
    DefaultAddressSpaces = "IpamDriver.GetDefaultAddressSpaces";
    /// Takes a pool.
    RequestPool = "IpamDriver.RequestPool";
    /// Gives it back.
    ReleasePool = "IpamDriver.ReleasePool";
    /// Takes an address.
    RequestAddress = "IpamDriver.RequestAddress";
    /// Gives it back.
    ReleaseAddress = "IpamDriver.ReleaseAddress";
}

impl Method {
    /// Finds a call by its name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Method::ALL.iter().copied().find(|method| method.as_str() == name)
    }

    /// Returns the path of its request.
    #[must_use]
    pub fn path(self) -> String {
        format!("/{}", self.as_str())
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::Method;

    #[test]
    fn every_name_finds_its_call() {
        for method in Method::ALL {
            assert_eq!(Method::parse(method.as_str()), Some(*method));
        }
        assert_eq!(Method::parse("NetworkDriver.Nonsense"), None);
    }
}
