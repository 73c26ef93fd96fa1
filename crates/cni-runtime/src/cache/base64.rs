//! Base64 (RFC 4648 §4), the form of bytes in Go's JSON.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Writes bytes with padding.
pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            if chunk.len() < place {
                text.push('=');
            } else {
                let index = (group >> (18 - 6 * place)) & 0x3f;
                text.push(char::from(ALPHABET[usize::try_from(index).unwrap_or(0)]));
            }
        }
    }
    text
}

/// Reads padded text; ignores line breaks, as Go does.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !matches!(byte, b'\r' | b'\n')).collect();
    if !digits.len().is_multiple_of(4) {
        return None;
    }
    let padding = digits.iter().rev().take_while(|digit| **digit == b'=').count();
    if 2 < padding {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3);
    for chunk in digits[..digits.len() - padding].chunks(4) {
        let mut group = 0_u32;
        for place in 0..4 {
            let value = match chunk.get(place) {
                Some(digit) => value(*digit)?,
                None => 0,
            };
            group = group << 6 | u32::from(value);
        }
        let [_, whole @ ..] = group.to_be_bytes();
        bytes.extend_from_slice(&whole[..chunk.len() - 1]);
    }
    Some(bytes)
}

fn value(digit: u8) -> Option<u8> {
    match digit {
        b'A'..=b'Z' => Some(digit - b'A'),
        b'a'..=b'z' => Some(digit - b'a' + 26),
        b'0'..=b'9' => Some(digit - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_vectors_of_rfc_4648() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(plain.as_bytes()), coded);
            assert_eq!(decode(coded).as_deref(), Some(plain.as_bytes()));
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(bytes: Vec<u8>) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }

        #[test]
        fn any_text_is_survived(text: String) {
            let _ = decode(&text);
        }
    }
}
