//! Where in a packet filter something happens.

use std::fmt;

use crate::model::filter::{Hook, Rule, Table};

/// A rule that leads to another chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The chain in which it is.
    pub chain: String,
    /// Its number in the chain, from 1, and its handle.
    pub rule: (usize, u64),
    /// The whole rule of the older iptables; empty with nftables.
    pub says: String,
}

impl Call {
    pub(crate) fn of_rule(chain: &str, index: usize, rule: &Rule) -> Self {
        let rule = (index.saturating_add(1), rule.handle);
        Call { chain: chain.to_owned(), rule, says: String::new() }
    }
}

/// A rule, or the policy of a base chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The family in nft's words; `iptables` or `ip6tables` for the older iptables.
    pub family: &'static str,
    /// It is of the older iptables.
    pub legacy: bool,
    /// The table.
    pub table: String,
    /// The hook.
    pub hook: Hook,
    /// The base chain in which it began.
    pub base: String,
    /// The priority of the base chain at the hook: lower is earlier.
    pub priority: i32,
    /// The chain.
    pub chain: String,
    /// The rule: its number in the chain, from 1, and its handle. `None`: the policy.
    pub rule: Option<(usize, u64)>,
    /// The rule's comment.
    pub comment: Option<String>,
    /// What it does, in nft's words, or the whole rule of the older iptables.
    pub says: String,
    /// The rules by which the packet came to the chain, from the base chain on.
    pub calls: Vec<Call>,
}

impl Place {
    pub(crate) fn of_rule(
        table: &Table,
        hook: Hook,
        [base, chain]: [&str; 2],
        index: usize,
        rule: &Rule,
    ) -> Self {
        Place {
            family: table.family.as_str(),
            legacy: false,
            table: table.name.clone(),
            hook,
            base: base.to_owned(),
            priority: priority(table, base),
            chain: chain.to_owned(),
            rule: Some((index.saturating_add(1), rule.handle)),
            comment: rule.comment.clone(),
            says: String::new(),
            calls: Vec::new(),
        }
    }

    pub(crate) fn of_policy(table: &Table, hook: Hook, chain: &str) -> Self {
        Place {
            family: table.family.as_str(),
            legacy: false,
            table: table.name.clone(),
            hook,
            base: chain.to_owned(),
            priority: priority(table, chain),
            chain: chain.to_owned(),
            rule: None,
            comment: None,
            says: "policy drop".to_owned(),
            calls: Vec::new(),
        }
    }

    pub(crate) fn saying(self, says: impl Into<String>) -> Self {
        Place { says: says.into(), ..self }
    }

    /// Says whether both are in what one base chain asks.
    pub(crate) fn is_of_same_base(&self, other: &Place) -> bool {
        let of = |one: &Place| (one.family, one.legacy, one.hook);
        of(self) == of(other) && self.table == other.table && self.base == other.base
    }

    /// Returns how far a packet gets in the base chain until it is stopped there, to be compared: the
    /// numbers of the rules on the way. A policy is behind all rules.
    pub(crate) fn depth(&self) -> Vec<usize> {
        let own = self.rule.map_or(usize::MAX, |(number, _)| number);
        self.calls.iter().map(|call| call.rule.0).chain([own]).collect()
    }

    /// Returns a name that tells it from others: `inet filter/forward rule 3`.
    #[must_use]
    pub fn name(&self) -> String {
        let Place { family, table, chain, .. } = self;
        match self.rule {
            Some((number, _)) => format!("{family} {table}/{chain} rule {number}"),
            None => format!("{family} {table}/{chain} policy"),
        }
    }
}

/// Returns the priority of a base chain.
fn priority(table: &Table, base: &str) -> i32 {
    let chain = table.chains.iter().find(|chain| chain.name == base);
    chain.and_then(|chain| chain.base.as_ref()).map(|base| base.priority).unwrap_or_default()
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.legacy {
            write!(f, "{} (legacy), table {}, chain {}", self.family, self.table, self.chain)?;
        } else {
            write!(f, "table {} {}, chain {}", self.family, self.table, self.chain)?;
        }
        if let Some((number, _)) = self.rule {
            write!(f, ", rule {number}: {}", self.says)?;
        } else {
            write!(f, ", {}", self.says)?;
        }
        if let Some(comment) = &self.comment {
            write!(f, " (comment \"{comment}\")")?;
        }
        Ok(())
    }
}
