//! What a ready descriptor belongs to, as the number that the kernel stores with it.

/// What a descriptor belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token {
    /// The socket plugins connect to.
    Listener,
    /// A plugin's connection.
    Connection(u64),
    /// A lease's socket for DHCPv4.
    V4(u64),
    /// A lease's socket for ARP.
    Arp(u64),
    /// A lease's socket for DHCPv6.
    V6(u64),
}

/// How many bits hold the kind.
const KIND_BITS: u32 = 3;

impl Token {
    pub(crate) fn number(self) -> u64 {
        let (kind, id) = match self {
            Token::Listener => (0, 0),
            Token::Connection(id) => (1, id),
            Token::V4(id) => (2, id),
            Token::Arp(id) => (3, id),
            Token::V6(id) => (4, id),
        };
        id << KIND_BITS | kind
    }

    /// Reads a number.
    pub(crate) fn of(number: u64) -> Option<Self> {
        let id = number >> KIND_BITS;
        Some(match number & ((1 << KIND_BITS) - 1) {
            0 => Token::Listener,
            1 => Token::Connection(id),
            2 => Token::V4(id),
            3 => Token::Arp(id),
            4 => Token::V6(id),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Token;

    #[test]
    fn there_and_back() {
        let all =
            [Token::Listener, Token::Connection(7), Token::V4(7), Token::Arp(7), Token::V6(7)];
        for token in all {
            assert_eq!(Token::of(token.number()), Some(token));
        }
        assert_eq!(Token::of(7), None);
    }
}
