//! Domain names in options.
//!
//! They end up in a container's `resolv.conf`, so anything that could add a line there, or is not a
//! name, is rejected.

/// RFC 1035 §2.3.4: the longest name, as text without its final dot.
const MAX_NAME: usize = 253;

/// RFC 1035 §2.3.4: the longest label.
const MAX_LABEL: usize = 63;

/// No resolver uses as many; the limit keeps pointers from expanding a small option into a large
/// list.
const MAX_NAMES: usize = 64;

/// Reads a name given as text, without its final dot and the zeros that some servers append.
pub(crate) fn from_text(octets: &[u8]) -> Option<String> {
    let end = octets.iter().rposition(|octet| *octet != 0)? + 1;
    let text = std::str::from_utf8(octets.get(..end)?).ok()?;
    let text = text.strip_suffix('.').unwrap_or(text);
    let fits = text.len() <= MAX_NAME && text.split('.').all(|label| is_label(label.as_bytes()));
    fits.then(|| text.to_owned())
}

/// Reads names in wire format, one after the other (RFC 1035 §3.1), compressed if `pointers` are
/// allowed (RFC 3397 §2; RFC 8415 §10 forbids them). `None` if anything is invalid.
pub(crate) fn list(octets: &[u8], pointers: bool) -> Option<Vec<String>> {
    let mut names = Vec::new();
    let mut at = 0;
    while at < octets.len() {
        if names.len() == MAX_NAMES {
            return None;
        }
        let (name, next) = one(octets, at, pointers)?;
        // The root alone is not a search domain.
        if !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
        at = next;
    }
    Some(names)
}

/// Returns the name at an offset, and where the next begins.
fn one(octets: &[u8], start: usize, pointers: bool) -> Option<(String, usize)> {
    let mut name = String::new();
    let mut at = start;
    // Where the name's own octets end, once a pointer has led away from them.
    let mut after = None;
    // A pointer must lead to an offset before its own, so following them ends.
    let mut bound = start;
    loop {
        let length = usize::from(*octets.get(at)?);
        match length {
            0 => return Some((name, after.unwrap_or(at + 1))),
            1..=MAX_LABEL => {
                let label = octets.get(at + 1..at + 1 + length)?;
                if !is_label(label) {
                    return None;
                }
                if !name.is_empty() {
                    name.push('.');
                }
                name.extend(label.iter().map(|octet| char::from(*octet)));
                if MAX_NAME < name.len() {
                    return None;
                }
                at += 1 + length;
            }
            0xc0.. if pointers => {
                let low = *octets.get(at + 1)?;
                after = after.or(Some(at + 2));
                at = (length & 0x3f) << 8 | usize::from(low);
                if bound <= at {
                    return None;
                }
                bound = at;
            }
            _ => return None,
        }
    }
}

/// Letters, digits, hyphens and, as in practice, underscores.
fn is_label(label: &[u8]) -> bool {
    let good = |octet: &u8| octet.is_ascii_alphanumeric() || matches!(octet, b'-' | b'_');
    (1..=MAX_LABEL).contains(&label.len()) && label.iter().all(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_taken_only_if_it_is_a_name() {
        assert_eq!(from_text(b"example.org").as_deref(), Some("example.org"));
        assert_eq!(from_text(b"example.org.\0\0").as_deref(), Some("example.org"));
        for bad in [&b""[..], b"\0", b".", b"a..b", b"a b", b"a\nnameserver 192.0.2.1", b"\xff"] {
            assert_eq!(from_text(bad), None, "{bad:?}");
        }
        assert_eq!(from_text(&[b'a'; 64]), None);
        assert_eq!(from_text([b"a".as_slice(); 130].join(&b'.').as_slice()), None);
    }

    // RFC 3397 §2's example.
    #[test]
    fn lists_are_read_with_pointers() {
        let wire = b"\x03eng\x05apple\x03com\0\x09marketing\xc0\x04";
        assert_eq!(list(wire, true).unwrap(), ["eng.apple.com", "marketing.apple.com"]);
        assert_eq!(list(wire, false), None);
        assert_eq!(list(b"", true), Some(vec![]));
        assert_eq!(list(b"\0\x01a\0\0", true).unwrap(), ["a"]);
    }

    #[test]
    fn pointers_lead_back_or_nowhere() {
        // To itself, forward, past the end, in a circle, cut off; a label cut off; a reserved
        // length.
        for bad in [
            &b"\xc0\0"[..],
            b"\xc0\x02\x01a\0",
            b"\x01a\xc0\x40",
            b"\x01a\xc0\0",
            b"\x01a\0\xc0",
            b"\x05a",
            b"\x80a\0",
            b"\x01a",
        ] {
            assert_eq!(list(bad, true), None, "{bad:?}");
        }
    }

    #[test]
    fn lists_are_bounded() {
        let names = |count: u8| {
            (0..count).fold(Vec::new(), |mut wire, n| {
                wire.extend([1, b'a' + n / 10, 1, b'0' + n % 10, 0]);
                wire
            })
        };
        assert_eq!(list(&names(64), true).unwrap().len(), 64);
        assert_eq!(list(&names(65), true), None);
        let again = [&b"\x01a\0"[..], &[0xc0, 0].repeat(100)].concat();
        assert_eq!(list(&again, true).unwrap(), ["a"]);
    }
}
