//! Which bridges reach each other, in the reference's chains.
//!
//! ```text
//! FORWARD                1  -j CNI-ISOLATION-STAGE-1
//! CNI-ISOLATION-STAGE-1     -i BR -o BR -j DROP                       isolated
//! CNI-ISOLATION-STAGE-1     -i BR ! -o BR -j CNI-ISOLATION-STAGE-2    same-bridge, isolated
//! CNI-ISOLATION-STAGE-1     -j RETURN
//! CNI-ISOLATION-STAGE-2     -o BR -j DROP
//! CNI-ISOLATION-STAGE-2     -j RETURN
//! ```
//!
//! The rules belong to a bridge. The reference never removes them, nor the drop rule of a bridge
//! that is no longer isolated. Ours are removed with the last attachment that asked for them, and
//! the chains with the last bridge.

use cni::AttachmentKey;
use net::IpFamily;
use serde::{Deserialize, Serialize};
use state::{FileError, Index, Release};

use super::text::target;
use super::{ChangeError, IptablesError, ObservedTable, Restore, Tool};
use crate::policy::IngressPolicy;

const TABLE: &str = "filter";
const FORWARD: &str = "FORWARD";
const CNI_FORWARD: &str = "CNI-FORWARD";
const STAGE_1: &str = "CNI-ISOLATION-STAGE-1";
const STAGE_2: &str = "CNI-ISOLATION-STAGE-2";
/// The policy names in the comment of a rule that both policies need.
const BOTH: &str = "same-bridge|isolated";
const SAME_BRIDGE: &str = "same-bridge";
const ISOLATED: &str = "isolated";

/// What a bridge needs in one family's chains.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Isolation {
    /// The bridge.
    pub bridge: String,
    /// Whether forwarding within the bridge is blocked too.
    pub isolated: bool,
    /// Whether it is IPv4's chains.
    pub ipv4: bool,
}

impl Isolation {
    /// Returns what a policy needs; `None` when it is open.
    #[must_use]
    pub fn of(policy: IngressPolicy, bridge: &str, ipv4: bool) -> Option<Self> {
        let isolated = match policy {
            IngressPolicy::Open => return None,
            IngressPolicy::SameBridge => false,
            IngressPolicy::Isolated => true,
        };
        Some(Isolation { bridge: bridge.to_owned(), isolated, ipv4 })
    }

    fn family(&self) -> IpFamily {
        if self.ipv4 { IpFamily::V4 } else { IpFamily::V6 }
    }

    /// Returns the name of its shared object. The two policies of one bridge are two objects.
    fn object(&self) -> String {
        let policy = if self.isolated { ISOLATED } else { SAME_BRIDGE };
        let family = if self.ipv4 { "iptables" } else { "ip6tables" };
        format!("{family} {policy} {}", self.bridge)
    }

    /// Returns the rules of the first chain, in their order.
    fn rules(&self) -> Vec<String> {
        let bridge = &self.bridge;
        let policy = if self.isolated { ISOLATED } else { SAME_BRIDGE };
        let comment = comment(policy);
        let between = format!("-i {bridge} ! -o {bridge} {comment} -j {STAGE_2}");
        if self.isolated {
            vec![format!("-i {bridge} -o {bridge} {comment} -j DROP"), between]
        } else {
            vec![between]
        }
    }

    /// Says whether a rule is for this bridge, with any comment.
    fn is_of_bridge(&self, rule: &str) -> bool {
        let bridge = &self.bridge;
        let starts = [
            format!("-i {bridge} -o {bridge} "),
            format!("-i {bridge} ! -o {bridge} "),
            format!("-o {bridge} "),
        ];
        starts.iter().any(|start| rule.starts_with(start.as_str()))
    }

    /// Returns the rule of the second chain.
    fn last_rule(&self) -> String {
        format!("-o {} {} -j DROP", self.bridge, comment(BOTH))
    }
}

fn comment(policy: &str) -> String {
    format!("-m comment --comment \"CNI firewall plugin rules (ingressPolicy: {policy})\"")
}

fn jump() -> String {
    format!("{} -j {STAGE_1}", comment(BOTH))
}

fn back() -> String {
    format!("{} -j RETURN", comment(BOTH))
}

/// Adds the rules for an attachment.
///
/// # Errors
/// [`ChangeError`]; [`release`] removes what was added.
pub fn hold(index: &Index, key: &AttachmentKey, wanted: &[Isolation]) -> Result<(), ChangeError> {
    let _lock = super::lock(index)?;
    for one in wanted {
        keep(one, index.hold(&one.object(), key))?;
        Tool::host(one.family())
            .change(TABLE, |observed, restore| plan_add(one, observed, restore))?;
    }
    Ok(())
}

/// Removes the rules, except those that other attachments need.
///
/// **Idempotence**: what is gone already, or a family without iptables, is success.
///
/// # Errors
/// The first [`ChangeError`]; the others are tried all the same, and what is still there stays
/// recorded.
pub fn release(index: &Index, key: &AttachmentKey, had: &[Isolation]) -> Result<(), ChangeError> {
    let _lock = super::lock(index)?;
    let mut outcome = Ok(());
    for one in had {
        let done = release_one(index, key, one);
        if outcome.is_ok() {
            outcome = done;
        }
    }
    outcome
}

fn release_one(index: &Index, key: &AttachmentKey, one: &Isolation) -> Result<(), ChangeError> {
    let is_used = |one: &Isolation| {
        let holders = index.holders(&one.object());
        // An unreadable holder counts as a holder.
        !holders.damaged.is_empty() || holders.found.iter().any(|other| other != key)
    };
    if !is_used(one) {
        let other = Isolation { isolated: !one.isolated, ..one.clone() };
        let other_is_used = is_used(&other) || !index.holders(&other.object()).found.is_empty();
        let done = Tool::host(one.family()).change(TABLE, |observed, restore| {
            plan_remove(one, other_is_used, observed, restore);
        });
        match done {
            Err(error) if !error.is_missing() => return Err(error.into()),
            _ => {}
        }
    }
    let _: Release = keep(one, index.release(&one.object(), key))?;
    Ok(())
}

fn keep<T>(one: &Isolation, done: Result<T, FileError>) -> Result<T, ChangeError> {
    done.map_err(|source| ChangeError::State { object: one.object(), source })
}

/// Describes what is missing; returns nothing when all is well.
///
/// # Errors
/// [`IptablesError`].
pub fn check(wanted: &[Isolation]) -> Result<Vec<String>, IptablesError> {
    let mut missing = Vec::new();
    for one in wanted {
        let observed = Tool::host(one.family()).observe(TABLE)?;
        if !is_in_front(&observed) {
            missing.push(format!("missing ahead of {CNI_FORWARD}: -A {FORWARD} {}", jump()));
        }
        let first = one.rules().into_iter().map(|rule| (STAGE_1, rule));
        let rules = first.chain([(STAGE_2, one.last_rule())]);
        for (chain, rule) in rules {
            if !observed.has_rule(chain, &rule) {
                missing.push(format!("missing: -A {chain} {rule}"));
            }
        }
    }
    Ok(missing)
}

fn plan_add(one: &Isolation, observed: &ObservedTable, restore: &mut Restore) {
    restore.ensure_chain(observed, STAGE_1);
    restore.ensure_chain(observed, STAGE_2);
    if !is_in_front(observed) {
        restore.delete_rules(observed, FORWARD, |rule| target(rule) == Some(STAGE_1));
        restore.insert(FORWARD, &jump());
    }
    // Each rule goes ahead of the earlier ones, and all go ahead of the chain's last rule.
    for rule in one.rules().iter().rev() {
        restore.ensure_first(observed, STAGE_1, rule);
    }
    restore.ensure_first(observed, STAGE_2, &one.last_rule());
    restore.ensure_last(observed, STAGE_1, &back());
    restore.ensure_last(observed, STAGE_2, &back());
}

/// Reports whether the first stage comes ahead of CNI-FORWARD: a packet that this chain accepts goes
/// no further. Older releases of the reference use another comment.
fn is_in_front(observed: &ObservedTable) -> bool {
    let place = |chain| observed.rules(FORWARD).iter().position(|rule| target(rule) == Some(chain));
    place(STAGE_1).is_some_and(|at| place(CNI_FORWARD).is_none_or(|other| at < other))
}

/// Removes a policy's rules. If no attachment holds the bridge's other policy, removes all rules of
/// the bridge, no matter which program left them, and the chains once no bridge is left in them.
fn plan_remove(
    one: &Isolation,
    other_is_used: bool,
    observed: &ObservedTable,
    restore: &mut Restore,
) {
    let own = one.rules();
    let first_goes = |rule: &str| {
        if other_is_used { own.iter().any(|one| one == rule) } else { one.is_of_bridge(rule) }
    };
    let last_goes = |rule: &str| !other_is_used && one.is_of_bridge(rule);
    let stays = |chain: &str, goes: &dyn Fn(&str) -> bool| {
        let mut rules = observed.rules(chain).iter();
        rules.any(|rule| target(rule) != Some("RETURN") && !goes(rule))
    };
    if stays(STAGE_1, &first_goes) || stays(STAGE_2, &last_goes) {
        restore.delete_rules(observed, STAGE_1, first_goes);
        restore.delete_rules(observed, STAGE_2, last_goes);
    } else {
        restore.delete_chains(observed, &[STAGE_1, STAGE_2]);
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn one(bridge: &str, isolated: bool) -> Isolation {
        Isolation { bridge: bridge.to_owned(), isolated, ipv4: true }
    }

    fn added(one: &Isolation, observed: &str) -> String {
        let mut restore = Restore::new(TABLE);
        plan_add(one, &ObservedTable::parse(observed), &mut restore);
        restore.text()
    }

    fn removed(one: &Isolation, other_is_used: bool, observed: &str) -> String {
        let mut restore = Restore::new(TABLE);
        plan_remove(one, other_is_used, &ObservedTable::parse(observed), &mut restore);
        restore.text()
    }

    /// What `iptables -S` printed after the reference's firewall plugin 1.9.1 had run for both
    /// policies of br1.
    const REFERENCE: &str = r#"-P FORWARD ACCEPT
-N CNI-FORWARD
-N CNI-ISOLATION-STAGE-1
-N CNI-ISOLATION-STAGE-2
-A FORWARD -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j CNI-ISOLATION-STAGE-1
-A FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD
-A CNI-ISOLATION-STAGE-1 -i br1 -o br1 -m comment --comment "CNI firewall plugin rules (ingressPolicy: isolated)" -j DROP
-A CNI-ISOLATION-STAGE-1 -i br1 ! -o br1 -m comment --comment "CNI firewall plugin rules (ingressPolicy: isolated)" -j CNI-ISOLATION-STAGE-2
-A CNI-ISOLATION-STAGE-1 -i br1 ! -o br1 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge)" -j CNI-ISOLATION-STAGE-2
-A CNI-ISOLATION-STAGE-1 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j RETURN
-A CNI-ISOLATION-STAGE-2 -o br1 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j DROP
-A CNI-ISOLATION-STAGE-2 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j RETURN
"#;

    #[test]
    fn the_layout_is_the_references() {
        for isolated in [false, true] {
            assert_eq!(added(&one("br1", isolated), REFERENCE), "*filter\nCOMMIT\n");
        }
        expect![[r#"
            *filter
            -I FORWARD 1 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j CNI-ISOLATION-STAGE-1
            -I CNI-ISOLATION-STAGE-1 1 -i br2 ! -o br2 -m comment --comment "CNI firewall plugin rules (ingressPolicy: isolated)" -j CNI-ISOLATION-STAGE-2
            -I CNI-ISOLATION-STAGE-1 1 -i br2 -o br2 -m comment --comment "CNI firewall plugin rules (ingressPolicy: isolated)" -j DROP
            -I CNI-ISOLATION-STAGE-2 1 -o br2 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j DROP
            -A CNI-ISOLATION-STAGE-1 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j RETURN
            -A CNI-ISOLATION-STAGE-2 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j RETURN
            COMMIT
        "#]].assert_eq(&added(&one("br2", true), "-P FORWARD ACCEPT\n"));
    }

    #[test]
    fn another_bridge_comes_in_front_of_the_last_rules() {
        expect![[r#"
            *filter
            -I CNI-ISOLATION-STAGE-1 1 -i br2 ! -o br2 -m comment --comment "CNI firewall plugin rules (ingressPolicy: isolated)" -j CNI-ISOLATION-STAGE-2
            -I CNI-ISOLATION-STAGE-1 1 -i br2 -o br2 -m comment --comment "CNI firewall plugin rules (ingressPolicy: isolated)" -j DROP
            -I CNI-ISOLATION-STAGE-2 1 -o br2 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j DROP
            COMMIT
        "#]].assert_eq(&added(&one("br2", true), REFERENCE));
    }

    #[test]
    fn the_jump_comes_in_front_of_what_accepts() {
        let mut lines: Vec<&str> = REFERENCE.lines().collect();
        lines.swap(4, 5);
        expect![[r#"
            *filter
            -D FORWARD -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j CNI-ISOLATION-STAGE-1
            -I FORWARD 1 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j CNI-ISOLATION-STAGE-1
            COMMIT
        "#]].assert_eq(&added(&one("br1", true), &lines.join("\n")));
    }

    #[test]
    fn the_last_takes_everything_along() {
        expect![[r#"
            *filter
            -D FORWARD -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j CNI-ISOLATION-STAGE-1
            -F CNI-ISOLATION-STAGE-1
            -F CNI-ISOLATION-STAGE-2
            -X CNI-ISOLATION-STAGE-1
            -X CNI-ISOLATION-STAGE-2
            COMMIT
        "#]].assert_eq(&removed(&one("br1", true), false, REFERENCE));
    }

    #[test]
    fn what_others_need_stays() {
        expect![[r#"
            *filter
            -D CNI-ISOLATION-STAGE-1 -i br1 -o br1 -m comment --comment "CNI firewall plugin rules (ingressPolicy: isolated)" -j DROP
            -D CNI-ISOLATION-STAGE-1 -i br1 ! -o br1 -m comment --comment "CNI firewall plugin rules (ingressPolicy: isolated)" -j CNI-ISOLATION-STAGE-2
            COMMIT
        "#]].assert_eq(&removed(&one("br1", true), true, REFERENCE));
        let two = REFERENCE.replace(
            "-A CNI-ISOLATION-STAGE-2 -o br1",
            "-A CNI-ISOLATION-STAGE-2 -o br10 -j DROP\n-A CNI-ISOLATION-STAGE-2 -o br1",
        );
        expect![[r#"
            *filter
            -D CNI-ISOLATION-STAGE-1 -i br1 -o br1 -m comment --comment "CNI firewall plugin rules (ingressPolicy: isolated)" -j DROP
            -D CNI-ISOLATION-STAGE-1 -i br1 ! -o br1 -m comment --comment "CNI firewall plugin rules (ingressPolicy: isolated)" -j CNI-ISOLATION-STAGE-2
            -D CNI-ISOLATION-STAGE-1 -i br1 ! -o br1 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge)" -j CNI-ISOLATION-STAGE-2
            -D CNI-ISOLATION-STAGE-2 -o br1 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j DROP
            COMMIT
        "#]].assert_eq(&removed(&one("br1", false), false, &two));
    }
}
