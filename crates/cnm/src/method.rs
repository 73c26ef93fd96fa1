//! The calls, by name.

use std::fmt;

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// A call: the part of the request's path after the slash.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Method {
            $($(#[$doc])* $name,)*
        }

        impl Method {
            /// Every call.
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
    /// The first call of all: which interfaces a driver implements.
    Activate = "Plugin.Activate";
    /// A network driver's scope.
    NetworkCapabilities = "NetworkDriver.GetCapabilities";
    /// Reserves a global network's resources, on the manager.
    AllocateNetwork = "NetworkDriver.AllocateNetwork";
    /// Releases them.
    FreeNetwork = "NetworkDriver.FreeNetwork";
    /// Asks whether gateways should come from IPAM.
    GwAllocCheck = "NetworkDriver.GwAllocCheck";
    /// Creates a network.
    CreateNetwork = "NetworkDriver.CreateNetwork";
    /// Removes it.
    DeleteNetwork = "NetworkDriver.DeleteNetwork";
    /// Creates an endpoint.
    CreateEndpoint = "NetworkDriver.CreateEndpoint";
    /// Reports its state.
    EndpointOperInfo = "NetworkDriver.EndpointOperInfo";
    /// Removes it.
    DeleteEndpoint = "NetworkDriver.DeleteEndpoint";
    /// Joins an endpoint to a sandbox.
    Join = "NetworkDriver.Join";
    /// Removes it from the sandbox.
    Leave = "NetworkDriver.Leave";
    /// Makes the endpoint the sandbox's gateway: publish its ports.
    ProgramExternalConnectivity = "NetworkDriver.ProgramExternalConnectivity";
    /// Ends that role.
    RevokeExternalConnectivity = "NetworkDriver.RevokeExternalConnectivity";
    /// A node joined the cluster.
    DiscoverNew = "NetworkDriver.DiscoverNew";
    /// A node left it.
    DiscoverDelete = "NetworkDriver.DiscoverDelete";
    /// The requirements of an IPAM driver.
    IpamCapabilities = "IpamDriver.GetCapabilities";
    /// Its address spaces.
    DefaultAddressSpaces = "IpamDriver.GetDefaultAddressSpaces";
    /// Allocates a pool.
    RequestPool = "IpamDriver.RequestPool";
    /// Releases it.
    ReleasePool = "IpamDriver.ReleasePool";
    /// Allocates an address.
    RequestAddress = "IpamDriver.RequestAddress";
    /// Releases it.
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
