//! Names that are checked once, where they enter the program.

use std::borrow::Borrow;
use std::fmt;

use crate::error::{Error, code};

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Returns the text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        /// In quotation marks, as messages show text.
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = Error;
            fn from_str(text: &str) -> Result<Self, Error> {
                $name::new(text)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                $name::new(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

name_type! {
    /// The identifier of a container, chosen by the runtime (CNI 1.1.0 §2 `CNI_CONTAINERID`).
    ContainerId
}
name_type! {
    /// The name of a network (CNI 1.1.0 §1 `name`).
    NetworkName
}
name_type! {
    /// The name of a network interface: 1 to 15 bytes, no `/`, `:` or white space, not `.` or `..`
    /// (CNI 1.1.0 §2 `CNI_IFNAME`; linux net/core/dev.c `dev_valid_name`).
    IfName
}

/// The longest interface name, without the kernel's closing NUL (linux/if.h `IFNAMSIZ`).
pub const IFNAME_MAX: usize = 15;

fn is_identifier(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphanumeric())
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'))
}

impl ContainerId {
    /// Checks and takes a container ID.
    ///
    /// # Errors
    /// Code 3 when empty, code 4 when it has characters that the specification does not allow.
    pub fn new(text: &str) -> Result<Self, Error> {
        if text.is_empty() {
            return Err(Error::new(code::UNKNOWN_CONTAINER, "missing containerID"));
        }
        if !is_identifier(text) {
            return Err(Error::new(code::INVALID_ENVIRONMENT, "invalid characters in containerID")
                .with_details(text));
        }
        Ok(ContainerId(text.to_owned()))
    }
}

impl NetworkName {
    /// Checks and takes a network name.
    ///
    /// # Errors
    /// Code 7 when empty or when it has characters that the specification does not allow.
    pub fn new(text: &str) -> Result<Self, Error> {
        if text.is_empty() {
            return Err(Error::new(code::INVALID_CONFIG, "missing network name"));
        }
        if !is_identifier(text) {
            return Err(Error::new(
                code::INVALID_CONFIG,
                "invalid characters found in network name",
            )
            .with_details(text));
        }
        Ok(NetworkName(text.to_owned()))
    }
}

impl IfName {
    /// Checks and takes an interface name.
    ///
    /// # Errors
    /// Code 4 with the reference library's wording.
    pub fn new(text: &str) -> Result<Self, Error> {
        let invalid = |msg: &str| Error::new(code::INVALID_ENVIRONMENT, msg);
        if text.is_empty() {
            return Err(invalid("interface name is empty"));
        }
        if IFNAME_MAX < text.len() {
            return Err(invalid("interface name is too long")
                .with_details("interface name should be less than 16 characters"));
        }
        if text == "." || text == ".." {
            return Err(invalid("interface name is . or .."));
        }
        if text.chars().any(|c| c == '/' || c == ':' || c == '\0' || c.is_whitespace()) {
            return Err(invalid("interface name contains / or : or whitespace characters"));
        }
        // Unlike the reference. The kernel refuses these names (linux net/core/sysctl_net_core.c
        // `sysctl_dev_name_is_allowed`), and says only EINVAL.
        if text == "all" || text == "default" {
            return Err(invalid("interface name is all or default").with_details(
                "the kernel keeps these names for settings that are not one link's",
            ));
        }
        Ok(IfName(text.to_owned()))
    }
}

/// Checks the `type` of a plugin, which becomes a file name below a plugin directory.
///
/// # Errors
/// `no plugin name provided` when empty, `invalid plugin name: X` when it could leave its
/// directory.
pub fn check_plugin_type(text: &str) -> Result<(), Error> {
    if text.is_empty() {
        return Err(Error::new(code::INVALID_CONFIG, "no plugin name provided"));
    }
    if text.contains('/') || text.contains('\0') || text == "." || text == ".." {
        return Err(Error::new(code::INVALID_CONFIG, format!("invalid plugin name: {text}")));
    }
    Ok(())
}
