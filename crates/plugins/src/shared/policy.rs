//! The rules and routes of a namespace: what decides by which link a packet leaves.

use kernel::route::{IpFamily, Route, RouteFilter, RouteSocket, Rule, RuleAction};

use super::failure::Failure;

/// The tables that the kernel reserves: compat, default, main, local.
pub const RESERVED: std::ops::RangeInclusive<u32> = 252..=255;

/// Rules and routes of a namespace.
#[derive(Debug, Default)]
pub struct Policy {
    /// The rules of both families.
    pub rules: Vec<Rule>,
    /// The routes of all tables and links.
    pub routes: Vec<Route>,
}

impl Policy {
    /// Reads everything. A family that the kernel lacks has nothing.
    ///
    /// # Errors
    /// Code 100 when the kernel does not answer.
    pub fn read(socket: &mut RouteSocket) -> Result<Self, Failure> {
        let mut policy = Self::default();
        for family in [IpFamily::V4, IpFamily::V6] {
            match socket.rules(family) {
                Ok(rules) => policy.rules.extend(rules),
                Err(error) if family == IpFamily::V6 && error.is_unsupported() => continue,
                Err(error) => return Err(Failure::from(error)),
            }
            let all = RouteFilter { family, table: None, oif: None };
            policy.routes.extend(socket.routes(all)?);
        }
        Ok(policy)
    }

    /// Lists the tables that rules or routes use, some of them more than once.
    pub fn tables(&self) -> impl Iterator<Item = u32> {
        let by_rule = self.rules.iter().filter_map(table_of);
        by_rule.chain(self.routes.iter().map(|route| route.table))
    }
}

/// Returns the table to which a rule sends packets.
#[must_use]
pub fn table_of(rule: &Rule) -> Option<u32> {
    match rule.action {
        RuleAction::Table(table) => Some(table),
        _ => None,
    }
}
