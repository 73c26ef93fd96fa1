//! Expressions that are known by their names only, such as matches and targets of iptables.

/// What an expression is that is known by its name only, such as a match or target of iptables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ForeignKind {
    /// It always goes on and changes nothing.
    Nothing,
    /// It goes on and changes something.
    Effect,
    /// It goes on or does not.
    Condition,
    /// It translates the source.
    Source,
    /// It translates the destination.
    Destination,
    /// It refuses.
    Reject,
    /// It may judge.
    Judge,
}

impl ForeignKind {
    /// Matches of iptables have lower case names, and targets upper case ones (`man 8
    /// iptables-extensions`). Of `target LOG` the last word counts.
    pub(crate) fn of(name: &str) -> Self {
        let word = name.rsplit([' ', ':', '.', '/']).next().unwrap_or(name);
        match word {
            "comment" => ForeignKind::Nothing,
            "MASQUERADE" | "SNAT" => ForeignKind::Source,
            "DNAT" | "REDIRECT" | "NETMAP" => ForeignKind::Destination,
            "REJECT" => ForeignKind::Reject,
            // It sends the frame out by another link (man 8 nft).
            "fwd" => ForeignKind::Judge,
            "LOG" | "NFLOG" | "ULOG" | "TRACE" | "AUDIT" | "MARK" | "CONNMARK" | "CT"
            | "NOTRACK" | "CHECKSUM" | "TCPMSS" | "CLASSIFY" | "SET" | "DSCP" | "TOS" | "TTL"
            | "HL" | "SECMARK" | "CONNSECMARK" | "IDLETIMER" | "RATEEST" | "LED" | "TEE"
            | "TCPOPTSTRIP" => ForeignKind::Effect,
            _ if word.chars().any(|letter| letter.is_ascii_lowercase()) => ForeignKind::Condition,
            _ => ForeignKind::Judge,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_iptables_are_told_from_matches() {
        for (name, expected) in [
            ("match comment", ForeignKind::Nothing),
            ("match conntrack", ForeignKind::Condition),
            ("target LOG", ForeignKind::Effect),
            ("target MASQUERADE", ForeignKind::Source),
            ("DNAT", ForeignKind::Destination),
            ("target REJECT", ForeignKind::Reject),
            ("target TPROXY", ForeignKind::Judge),
            ("fwd", ForeignKind::Judge),
            ("byteorder", ForeignKind::Condition),
        ] {
            assert_eq!(ForeignKind::of(name), expected, "{name}");
        }
    }
}
