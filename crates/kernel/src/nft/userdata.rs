//! Data that nft stores with its objects, such as comments: type, length, value, with one byte each
//! for the first two.
//!
//! libnftnl include/libnftnl/udata.h and nftables src/mnl.c: the kernel stores it unread.

/// The longest comment, in bytes (nftables include/netlink.h: 128 with the closing NUL in old
/// versions, a limit that we keep).
pub const MAX_COMMENT: usize = 127;

/// NFTNL_UDATA_TABLE_COMMENT, _CHAIN_COMMENT, _RULE_COMMENT, _SET_ELEM_COMMENT.
pub(crate) const COMMENT: u8 = 0;
/// NFTNL_UDATA_SET_*.
pub(crate) const SET_KEY_BYTEORDER: u8 = 0;
pub(crate) const SET_DATA_BYTEORDER: u8 = 1;
pub(crate) const SET_COMMENT: u8 = 7;

/// Whether nft and the kernel accept a comment, and return all of it.
pub(crate) fn fits(comment: Option<&str>) -> bool {
    comment.is_none_or(|comment| comment.len() <= MAX_COMMENT && !comment.contains('\0'))
}

/// Writes a text with the NUL that ends it.
pub(crate) fn text(kind: u8, text: &str) -> Vec<u8> {
    let mut value = text.as_bytes().to_vec();
    value.push(0);
    entry(kind, &value)
}

pub(crate) fn number(kind: u8, number: u32) -> Vec<u8> {
    entry(kind, &number.to_ne_bytes())
}

/// A value too long for its length byte is left out; [`fits`] has been checked before.
fn entry(kind: u8, value: &[u8]) -> Vec<u8> {
    let Ok(length) = u8::try_from(value.len()) else { return Vec::new() };
    let mut bytes = vec![kind, length];
    bytes.extend_from_slice(value);
    bytes
}

/// Returns the text of a type, if there is one.
pub(crate) fn find_text(mut bytes: &[u8], kind: u8) -> Option<String> {
    while let [found, length, rest @ ..] = bytes {
        let value = rest.get(..usize::from(*length))?;
        if *found == kind {
            return Some(crate::wire::text(value));
        }
        bytes = &rest[usize::from(*length)..];
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_and_read() {
        let mut bytes = number(SET_KEY_BYTEORDER, 2);
        bytes.extend(text(SET_COMMENT, "words"));
        assert_eq!(find_text(&bytes, SET_COMMENT).as_deref(), Some("words"));
        assert_eq!(find_text(&bytes, 9), None);
        // As nft 1.0.6 wrote it for a rule with the comment "kk".
        assert_eq!(text(COMMENT, "kk"), b"\x00\x03kk\x00");
    }

    proptest::proptest! {
        #[test]
        fn reading_anything_ends(bytes: Vec<u8>) {
            find_text(&bytes, COMMENT);
        }
    }
}
