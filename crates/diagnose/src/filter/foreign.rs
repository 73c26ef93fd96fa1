//! Expressions that are known by their names only, such as matches and targets of iptables.

/// What an expression is that is known by its name only, such as a match or target of iptables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Foreign {
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

impl Foreign {
    /// Matches of iptables have lower case names, and targets upper case ones (`man 8
    /// iptables-extensions`). Of `target LOG` the last word counts.
    pub(crate) fn of(name: &str) -> Self {
        let word = name.rsplit([' ', ':', '.', '/']).next().unwrap_or(name);
        match word {
            "comment" => Foreign::Nothing,
            "MASQUERADE" | "SNAT" => Foreign::Source,
            "DNAT" | "REDIRECT" | "NETMAP" => Foreign::Destination,
            "REJECT" => Foreign::Reject,
            // It sends the frame out by another link (man 8 nft).
            "fwd" => Foreign::Judge,
            "LOG" | "NFLOG" | "ULOG" | "TRACE" | "AUDIT" | "MARK" | "CONNMARK" | "CT"
            | "NOTRACK" | "CHECKSUM" | "TCPMSS" | "CLASSIFY" | "SET" | "DSCP" | "TOS" | "TTL"
            | "HL" | "SECMARK" | "CONNSECMARK" | "IDLETIMER" | "RATEEST" | "LED" | "TEE"
            | "TCPOPTSTRIP" => Foreign::Effect,
            _ if word.chars().any(|letter| letter.is_ascii_lowercase()) => Foreign::Condition,
            _ => Foreign::Judge,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_iptables_are_told_from_matches() {
        for (name, expected) in [
            ("match comment", Foreign::Nothing),
            ("match conntrack", Foreign::Condition),
            ("target LOG", Foreign::Effect),
            ("target MASQUERADE", Foreign::Source),
            ("DNAT", Foreign::Destination),
            ("target REJECT", Foreign::Reject),
            ("target TPROXY", Foreign::Judge),
            ("fwd", Foreign::Judge),
            ("byteorder", Foreign::Condition),
        ] {
            assert_eq!(Foreign::of(name), expected, "{name}");
        }
    }
}
