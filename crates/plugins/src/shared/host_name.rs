//! The key `hostIfname`: the name of the host's end of a pair.

use cni::{IfName, code};
use cni_plugin::{Call, codes};
use kernel::route::RouteSocket;

use super::failure::Failure;
use super::owner;

/// The names that the kernel refuses, because its folders of sysctls have them.
const OF_SYSCTLS: [&str; 2] = ["all", "default"];

/// Reads the key: the name in `runtimeConfig` comes before the configuration's own, which suits one
/// container only.
///
/// # Errors
/// Code 7 for what cannot be the name of a link.
pub fn parse(configured: &str, asked: &str) -> Result<Option<IfName>, Failure> {
    let text = if asked.is_empty() { configured } else { asked };
    if text.is_empty() {
        return Ok(None);
    }
    let invalid = |why: &str| {
        Failure::new(code::INVALID_CONFIG, format!("invalid hostIfname {text:?}: {why}"))
            .with_details("key \"hostIfname\" is the name of a link of the host")
    };
    // The kernel makes a name of its own of one with a percent sign.
    if text.contains('%') {
        return Err(invalid("interface name contains %"));
    }
    if OF_SYSCTLS.contains(&text) {
        return Err(invalid("no link can have this name"));
    }
    IfName::new(text).map(Some).map_err(|error| invalid(&error.msg))
}

/// Refuses the name of a link that is not of this network: a network can be used before its
/// containers come, but not if another link has the name for good.
///
/// # Errors
/// Code 108; code 100 when the kernel does not answer.
pub fn refuse_foreign(
    call: &Call<'_>,
    host: &mut RouteSocket,
    name: Option<&IfName>,
) -> Result<(), Failure> {
    let Some(name) = name else { return Ok(()) };
    match host.link_by_name(name.as_str())? {
        Some(link) if owner::of_network(&link, call.network()).is_none() => {
            Err(taken(name.as_str(), link.alias.as_deref()))
        }
        _ => Ok(()),
    }
}

/// Says that another link has the name, and whose it is by its mark.
pub fn taken(name: &str, alias: Option<&str>) -> Failure {
    let mark = alias.and_then(|alias| alias.strip_prefix(owner::PREFIX));
    let whose = match mark {
        Some(key) => format!("it is the link of {key}"),
        None => "Netwright did not make that link".to_owned(),
    };
    Failure::new(codes::CONFLICT, format!("the host has a link {name:?} already"))
        .with_details(whose)
        .with_details("key \"hostIfname\" names the link of one container")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let name = |configured: &str, asked: &str| {
            parse(configured, asked).unwrap().map(|name| name.to_string())
        };
        assert_eq!(name("", ""), None);
        assert_eq!(name("web0", "").as_deref(), Some("web0"));
        assert_eq!(name("web0", "web1").as_deref(), Some("web1"));
        for bad in ["veth%d", "all", "default", ".", "..", "a b", "a/b", "a:b", "sixteen-letters-"]
        {
            assert_eq!(parse(bad, "").unwrap_err().code(), code::INVALID_CONFIG, "{bad}");
        }
    }
}
