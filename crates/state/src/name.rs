//! Encodes names of objects as file names.

use std::fmt::Write as _;

/// The longest encoded name that is kept whole; it leaves room for suffixes below the kernel's 255
/// bytes.
const LONGEST: usize = 160;

/// Encodes any text as one safe file name: the same name for the same text, different names for
/// different texts.
///
/// Letters, digits, `-`, `_` and `:` stay; any other byte becomes `%XX`. So the name is never empty
/// and never contains a dot or a slash. A long text is cut and a hash is appended.
///
/// ```
/// assert_eq!(netwright_state::file_name_of("bridge:br0.10"), "bridge:br0%2E10");
/// assert_eq!(netwright_state::file_name_of(""), "%");
/// ```
#[must_use]
pub fn file_name_of(object: &str) -> String {
    let mut name = String::with_capacity(object.len() + 8);
    for byte in object.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b':') {
            name.push(char::from(byte));
        } else {
            write!(name, "%{byte:02X}").expect("writing to a String cannot fail");
        }
    }
    if name.is_empty() {
        name.push('%');
    }
    if LONGEST < name.len() {
        name.truncate(LONGEST);
        // `%%` cannot come from the encoding above, so no short text has this name.
        name.push_str("%%");
        name.push_str(&cni::owner::sha512_hex(object, 32));
    }
    name
}

/// Decodes a name made by [`file_name_of`]; `None` for other names, and for cut names.
#[must_use]
pub fn object_of(name: &str) -> Option<String> {
    if name == "%" {
        return Some(String::new());
    }
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        if byte != b'%' {
            bytes.push(byte);
            rest = tail;
            continue;
        }
        let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &tail[2..];
    }
    let object = String::from_utf8(bytes).ok()?;
    (file_name_of(&object) == name).then_some(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_name_is_one_safe_component_and_reads_back(object in any::<String>()) {
            let name = file_name_of(&object);
            prop_assert!(!name.is_empty() && name.len() <= 200);
            prop_assert!(!name.contains(['/', '\0', '.']));
            match object_of(&name) {
                Some(back) => prop_assert_eq!(back, object),
                None => prop_assert!(name.contains("%%")),
            }
        }

        #[test]
        fn reading_any_name_never_panics(name in any::<String>()) {
            let _ = object_of(&name);
        }
    }

    #[test]
    fn long_names_that_begin_alike_stay_apart() {
        let (a, b) = ("x".repeat(500), "x".repeat(501));
        assert_ne!(file_name_of(&a), file_name_of(&b));
    }
}
