//! The output of the kernel, of programs and of other daemons.

use kernel::sysctl::Sysctl;
use netwright_cnm::http::{HttpError, IncomingMessage, Kind, Message};
use netwright_firewall::SharedObject;
use netwright_firewall::iptables::ObservedTable;
use netwright_firewall::owner::Owner;

/// Netlink: a datagram of messages, and every reader of links, addresses, routes, rules,
/// neighbours, traffic control, nftables and events on each.
pub fn netlink(data: &[u8]) {
    kernel::hostile::read_datagram(data);
    kernel::hostile::read(data);
}

/// The output of `iptables -S`.
pub fn iptables(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let observed = ObservedTable::parse(&text);
    for (chain, rules) in observed.chains() {
        assert!(observed.has_chain(chain));
        assert!(rules.iter().all(|rule| observed.has_rule(chain, rule)));
        assert!(rules.iter().all(|rule| !rule.contains('\n')));
    }
}

/// The comments on nftables' elements, and the names of what attachments share.
pub fn owner_comment(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let owner = Owner::parse(text);
    if owner != Owner::Foreign {
        assert_eq!(Owner::parse(&owner.to_string()), owner);
    }
    if let Some(shared) = SharedObject::parse(text) {
        assert_eq!(SharedObject::parse(&shared.object()).as_ref(), Some(&shared));
        let _ = shared.elements();
    }
}

/// Names of sysctls: none leaves the folder.
pub fn sysctl(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(name) = Sysctl::parse(text) {
        let path = name.file();
        assert!(path.starts_with("/proc/sys"), "{path:?}");
        let up = std::path::Component::ParentDir;
        assert!(!path.components().any(|part| part == up), "{path:?}");
    }
}

/// HTTP, as Docker and its drivers speak it: input in pieces gives the same messages as input at
/// once.
pub fn http(data: &[u8]) {
    for kind in [Kind::Request, Kind::Answer] {
        let whole = fed(kind, data, data.len().max(1));
        for size in [1, 7] {
            assert_eq!(fed(kind, data, size), whole);
        }
    }
}

/// The messages of a connection that delivers this many bytes at a time, and the error that ended
/// it.
fn fed(kind: Kind, data: &[u8], size: usize) -> (Vec<Message>, Option<HttpError>) {
    let mut incoming = IncomingMessage::new(kind, 4096);
    let mut messages = Vec::new();
    for piece in data.chunks(size) {
        let mut next = incoming.feed(piece);
        loop {
            match next {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => return (messages, Some(error)),
            }
            next = incoming.feed(b"");
        }
    }
    match incoming.end() {
        Ok(message) => messages.push(message),
        Err(error) if !incoming.is_empty() => return (messages, Some(error)),
        Err(_) => {}
    }
    (messages, None)
}

/// The configurations of every plugin: each unknown key has a place in the text.
pub fn plugin_keys(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let lines = text.split('\n').count();
    for plugin in netwright_plugins::all() {
        for key in plugin.unknown_keys(text).unwrap_or_default() {
            assert!((1..=lines).contains(&key.line) && 1 <= key.column, "{}", plugin.name());
        }
    }
}
