//! Accepts what containers forward, in the reference's chains or in a foreign chain.

use std::net::IpAddr;

use cni::AttachmentKey;
use ipnet::IpNet;
use net::IpFamily;
use state::{Index, Release};

use super::text::target;
use super::{ChangeError, IptablesError, ObservedTable, Restore, Tool, host, quote};
use crate::owner::Owner;

const TABLE: &str = "filter";
const FORWARD: &str = "FORWARD";
const CNI_FORWARD: &str = "CNI-FORWARD";
/// The prefix of the comments of our rules in foreign chains.
const TAG: &str = "netwright ";
/// The comment of the rules for the cluster's ranges.
pub(crate) const RANGES_TAG: &str = "netwright routing";
/// Docker's chain for foreign rules; Docker promises not to change it and to visit it first.
const DOCKER_USER: &str = "DOCKER-USER";

/// Accepts what an attachment with these addresses forwards, in the reference's chains. The rules
/// carry no owner, so the index notes who needs an address accepted.
///
/// A family is changed only if it has an address: a host without `ip6tables` serves IPv4.
///
/// # Errors
/// [`ChangeError`]; the families done before keep their rules.
pub fn add(
    index: &Index,
    key: &AttachmentKey,
    addresses: &[IpAddr],
    admin_chain: &str,
) -> Result<(), ChangeError> {
    let _lock = super::lock(index)?;
    for address in addresses {
        let object = object(*address);
        let held = index.hold(&object, key);
        held.map_err(|source| ChangeError::State { object, source })?;
    }
    for (family, own) in by_family(addresses) {
        Tool::host(family)
            .change(TABLE, |observed, restore| plan_add(&own, admin_chain, observed, restore))?;
    }
    Ok(())
}

/// Forgets that an attachment needs these addresses accepted, and that attachments without a record
/// do. Only then its rules can go ([`crate::reference::remove_forward`]): of two attachments with
/// one address that are removed at the same time, each would leave them to the other.
///
/// # Errors
/// [`ChangeError`]; then the attachment may still count as one that needs them.
pub fn forget(index: &Index, key: &AttachmentKey, addresses: &[IpAddr]) -> Result<(), ChangeError> {
    let objects = addresses.iter().map(|address| object(*address));
    let noted: Vec<String> =
        objects.filter(|object| index.may_exist(object).unwrap_or(true)).collect();
    if noted.is_empty() {
        return Ok(());
    }
    let _lock = super::lock(index)?;
    for object in noted {
        let others = index.holders(&object).found.into_iter();
        let gone = others.filter(|other| other != key && is_gone(index, other));
        for holder in gone.chain([key.clone()]) {
            let released = index.release(&object, &holder);
            let state = |source| ChangeError::State { object: object.clone(), source };
            let _: Release = released.map_err(state)?;
        }
    }
    Ok(())
}

/// Lists those of these addresses that no other attachment needs accepted. If that is not known of
/// an address, another may. An attachment without a record is none: no call comes that removes the
/// rules for it.
pub(crate) fn needed_by_no_other(
    index: &Index,
    key: &AttachmentKey,
    addresses: &[IpAddr],
) -> Vec<IpAddr> {
    let is_alone = |at: &IpAddr| {
        let holders = index.holders(&object(*at));
        // An unreadable holder counts as a holder.
        holders.damaged.is_empty()
            && holders.found.iter().all(|other| other == key || is_gone(index, other))
    };
    addresses.iter().copied().filter(is_alone).collect()
}

/// Says whether an attachment has no record. It has one before it needs anything.
fn is_gone(index: &Index, key: &AttachmentKey) -> bool {
    let records = index.of_attachment(key);
    records.found.is_empty() && records.damaged.is_empty()
}

/// Names the shared object of those who need an address accepted.
fn object(address: IpAddr) -> String {
    format!("iptables accept {address}")
}

/// Removes the rules for these addresses from the reference's chains, which stay.
///
/// **Idempotence**: what is gone already, or a family without iptables, is success.
///
/// # Errors
/// The first [`IptablesError`]; the other family is tried all the same.
pub fn remove(addresses: &[IpAddr], legacy: bool) -> Result<(), IptablesError> {
    let mut outcome = Ok(());
    for (family, own) in by_family(addresses) {
        let done = Tool { family, legacy }.change(TABLE, |observed, restore| {
            let rules: Vec<String> = own.iter().flat_map(|address| rules(*address)).collect();
            restore.delete_rules(observed, CNI_FORWARD, |rule| rules.iter().any(|own| own == rule));
        });
        match done {
            Err(error) if !error.is_missing() && outcome.is_ok() => outcome = Err(error),
            _ => {}
        }
    }
    outcome
}

/// Describes what is missing; returns nothing when all is well.
///
/// # Errors
/// [`IptablesError`].
pub fn check(addresses: &[IpAddr], admin_chain: &str) -> Result<Vec<String>, IptablesError> {
    let mut missing = Vec::new();
    for (family, own) in by_family(addresses) {
        let observed = Tool::host(family).observe(TABLE)?;
        let jumps = [(FORWARD, jump()), (CNI_FORWARD, admin_jump(admin_chain))];
        let rules = own.iter().flat_map(|address| rules(*address)).map(|rule| (CNI_FORWARD, rule));
        for (chain, rule) in jumps.into_iter().chain(rules) {
            if !observed.has_rule(chain, &rule) {
                missing.push(format!("missing: -A {chain} {rule}"));
            }
        }
    }
    Ok(missing)
}

/// Accepts what containers with these addresses forward, ahead of all other rules for forwarded
/// packets: in `DOCKER-USER` where Docker has made it and `FORWARD` leads there, else in `FORWARD`.
/// Rules for them in the other chain are removed.
///
/// # Errors
/// [`IptablesError`]; the families done before keep their rules.
pub fn accept(
    addresses: &[IpAddr],
    key: &AttachmentKey,
    legacy: bool,
) -> Result<(), IptablesError> {
    for (family, own) in by_family(addresses) {
        Tool { family, legacy }.change(TABLE, |observed, restore| {
            let place = place(observed);
            for rule in own.iter().flat_map(|address| accept_rules(*address, key)) {
                for other in [DOCKER_USER, FORWARD].into_iter().filter(|chain| *chain != place) {
                    restore.delete_rules(observed, other, |there| there == rule);
                }
                restore.ensure_first(observed, place, &rule);
            }
        })?;
    }
    Ok(())
}

/// Removes what [`accept`] made for the owners that `doomed` picks.
///
/// **Idempotence**: what is gone already, or a family without iptables, is success.
///
/// # Errors
/// The first [`IptablesError`]; the other family is tried all the same.
pub fn remove_accept(doomed: &dyn Fn(&Owner) -> bool, legacy: bool) -> Result<(), IptablesError> {
    let mut outcome = Ok(());
    for family in IpFamily::ALL {
        let done = Tool { family, legacy }.change(TABLE, |observed, restore| {
            for chain in [DOCKER_USER, FORWARD] {
                restore
                    .delete_rules(observed, chain, |rule| owner(rule).is_some_and(|o| doomed(&o)));
            }
        });
        match done {
            Err(error) if !error.is_missing() && outcome.is_ok() => outcome = Err(error),
            _ => {}
        }
    }
    outcome
}

/// Describes which rules of [`accept`] are missing. In a chain to which nothing leads they do not
/// count.
///
/// # Errors
/// [`IptablesError`].
pub fn check_accept(
    addresses: &[IpAddr],
    key: &AttachmentKey,
    legacy: bool,
) -> Result<Vec<String>, IptablesError> {
    let mut missing = Vec::new();
    for (family, own) in by_family(addresses) {
        let observed = Tool { family, legacy }.observe(TABLE)?;
        let place = place(&observed);
        for rule in own.iter().flat_map(|address| accept_rules(*address, key)) {
            if ![place, FORWARD].iter().any(|chain| observed.has_rule(chain, &rule)) {
                missing.push(format!("missing: -A {place} {rule}"));
            }
        }
    }
    Ok(missing)
}

/// Accepts what is forwarded from and to these ranges, in the same place, and removes the rules that
/// accepted others.
///
/// # Errors
/// [`IptablesError`]; nothing has changed then.
pub fn accept_ranges(
    ranges: &[IpNet],
    family: IpFamily,
    legacy: bool,
) -> Result<(), IptablesError> {
    let wanted = range_rules(ranges, family);
    Tool { family, legacy }
        .change(TABLE, |observed, restore| plan_ranges(&wanted, observed, restore))
}

/// Describes which rules of [`accept_ranges`] are missing.
///
/// # Errors
/// [`IptablesError`].
pub fn missing_ranges(
    ranges: &[IpNet],
    family: IpFamily,
    legacy: bool,
) -> Result<Vec<String>, IptablesError> {
    let observed = Tool { family, legacy }.observe(TABLE)?;
    let place = place(&observed);
    let missing = range_rules(ranges, family).into_iter();
    let missing = missing.filter(|rule| !observed.has_rule(place, rule));
    Ok(missing.map(|rule| format!("missing: -A {place} {rule}")).collect())
}

/// Removes the rules of [`accept_ranges`].
///
/// **Idempotence**: what is gone already, or a family without iptables, is success.
///
/// # Errors
/// [`IptablesError`]; nothing has changed then.
pub fn remove_ranges(family: IpFamily, legacy: bool) -> Result<(), IptablesError> {
    let removed = Tool { family, legacy }
        .change(TABLE, |observed, restore| plan_ranges(&[], observed, restore));
    match removed {
        Err(error) if !error.is_missing() => Err(error),
        _ => Ok(()),
    }
}

fn plan_ranges(wanted: &[String], observed: &ObservedTable, restore: &mut Restore) {
    let place = place(observed);
    for chain in [DOCKER_USER, FORWARD] {
        restore.delete_rules(observed, chain, |rule| {
            let stays = chain == place && wanted.iter().any(|wanted| wanted == rule);
            comment_of(rule) == Some(RANGES_TAG) && !stays
        });
    }
    for rule in wanted {
        restore.ensure_first(observed, place, rule);
    }
}

/// Returns the chain for rules that packets must meet first. After `iptables -F FORWARD` nothing
/// leads to Docker's.
fn place(observed: &ObservedTable) -> &'static str {
    if observed.leads(FORWARD, DOCKER_USER) { DOCKER_USER } else { FORWARD }
}

/// iptables prints no address for a range of all addresses, and no cluster has one.
fn range_rules(ranges: &[IpNet], family: IpFamily) -> Vec<String> {
    let own = ranges.iter().filter(|range| IpFamily::of(range.addr()) == family);
    let own = own.filter(|range| range.prefix_len() != 0);
    let comment = format!("-m comment --comment {}", quote(RANGES_TAG));
    own.flat_map(|range| ["-s", "-d"].map(|side| format!("{side} {range} {comment} -j ACCEPT")))
        .collect()
}

fn by_family(addresses: &[IpAddr]) -> Vec<(IpFamily, Vec<IpAddr>)> {
    let own = |family| addresses.iter().copied().filter(move |at| IpFamily::of(*at) == family);
    let families = IpFamily::ALL.iter().map(|family| (*family, own(*family).collect::<Vec<_>>()));
    families.filter(|(_, own)| !own.is_empty()).collect()
}

fn jump() -> String {
    format!("-m comment --comment \"CNI firewall plugin rules\" -j {CNI_FORWARD}")
}

fn admin_jump(admin_chain: &str) -> String {
    format!("-m comment --comment \"CNI firewall plugin admin overrides\" -j {admin_chain}")
}

fn rules(address: IpAddr) -> [String; 2] {
    let host = host(address);
    [
        format!("-d {host} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"),
        format!("-s {host} -j ACCEPT"),
    ]
}

fn accept_rules(address: IpAddr, key: &AttachmentKey) -> [String; 2] {
    let host = host(address);
    let comment = format!("-m comment --comment {}", quote(&tag(&Owner::of(key))));
    [
        format!("-s {host} {comment} -j ACCEPT"),
        format!("-d {host} -m conntrack --ctstate RELATED,ESTABLISHED,DNAT {comment} -j ACCEPT"),
    ]
}

/// Returns the comment of the rules that [`accept`] makes for an owner.
fn tag(owner: &Owner) -> String {
    format!("{TAG}{owner}")
}

/// Returns the owner that a comment of ours names.
pub(crate) fn owner_of_comment(comment: &str) -> Option<Owner> {
    comment.strip_prefix(TAG).map(Owner::parse)
}

/// Says whether a comment is that of a rule for one attachment.
pub(crate) fn names_attachment(comment: &str) -> bool {
    matches!(owner_of_comment(comment), Some(Owner::Attachment { .. }))
}

/// Says whether a rule is one of [`accept`].
pub(crate) fn is_of_attachment(rule: &str) -> bool {
    target(rule) == Some("ACCEPT") && comment_of(rule).is_some_and(names_attachment)
}

/// Returns the owner of a rule of ours.
fn owner(rule: &str) -> Option<Owner> {
    target(rule).filter(|target| *target == "ACCEPT")?;
    comment_of(rule).and_then(owner_of_comment)
}

/// Returns a rule's comment. Ours need quoting and contain no quotes: neither do hashes and network
/// names.
fn comment_of(rule: &str) -> Option<&str> {
    let (_, comment) = rule.split_once("--comment \"")?;
    comment.split_once('"').map(|(comment, _)| comment)
}

fn plan_add(
    addresses: &[IpAddr],
    admin_chain: &str,
    observed: &ObservedTable,
    restore: &mut Restore,
) {
    restore.ensure_chain(observed, CNI_FORWARD);
    restore.ensure_chain(observed, admin_chain);
    restore.ensure_first(observed, FORWARD, &jump());
    restore.ensure_first(observed, CNI_FORWARD, &admin_jump(admin_chain));
    for rule in addresses.iter().flat_map(|address| rules(*address)) {
        restore.ensure_last(observed, CNI_FORWARD, &rule);
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn the_layout_is_the_references() {
        let mut restore = Restore::new(TABLE);
        let address = "10.1.0.2".parse().unwrap();
        plan_add(&[address], "CNI-ADMIN", &ObservedTable::default(), &mut restore);
        // What `iptables-save` printed after the reference's firewall plugin 1.1.1 had run.
        expect![[r#"
            *filter
            -I FORWARD 1 -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD
            -I CNI-FORWARD 1 -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN
            -A CNI-FORWARD -d 10.1.0.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
            -A CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT
            COMMIT
        "#]]
        .assert_eq(&restore.text());
    }

    #[test]
    fn ranges_replace_earlier_ones_where_rules_are_met_first() {
        let ranges = |texts: &[&str]| -> Vec<IpNet> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let wanted = range_rules(&ranges(&["10.244.0.0/16", "fd00:1::/48"]), IpFamily::V4);
        let plan = |observed: &str, wanted: &[String]| {
            let mut restore = Restore::new(TABLE);
            plan_ranges(wanted, &ObservedTable::parse(observed), &mut restore);
            restore.text()
        };
        expect![[r#"
            *filter
            -I FORWARD 1 -s 10.244.0.0/16 -m comment --comment "netwright routing" -j ACCEPT
            -I FORWARD 1 -d 10.244.0.0/16 -m comment --comment "netwright routing" -j ACCEPT
            COMMIT
        "#]]
        .assert_eq(&plan("-P FORWARD DROP\n", &wanted));
        let there = "-P FORWARD DROP\n-N DOCKER-USER\n-A FORWARD -j DOCKER-USER\n\
            -A FORWARD -s 10.244.0.0/16 -m comment --comment \"netwright routing\" -j ACCEPT\n\
            -A FORWARD -s 10.1.0.2/32 -m comment --comment \"netwright 0123 n\" -j ACCEPT\n\
            -A DOCKER-USER -d 10.244.0.0/16 -m comment --comment \"netwright routing\" -j ACCEPT\n\
            -A DOCKER-USER -d 10.9.0.0/16 -m comment --comment \"netwright routing\" -j ACCEPT\n";
        expect![[r#"
            *filter
            -D DOCKER-USER -d 10.9.0.0/16 -m comment --comment "netwright routing" -j ACCEPT
            -D FORWARD -s 10.244.0.0/16 -m comment --comment "netwright routing" -j ACCEPT
            -I DOCKER-USER 1 -s 10.244.0.0/16 -m comment --comment "netwright routing" -j ACCEPT
            COMMIT
        "#]]
        .assert_eq(&plan(there, &wanted));
        assert_eq!(range_rules(&ranges(&["0.0.0.0/0"]), IpFamily::V4), Vec::<String>::new());
        // They belong to no attachment: removing an attachment's rules leaves them alone.
        assert_eq!(owner(&wanted[0]), Some(Owner::Foreign));
    }

    /// `iptables -F FORWARD` leaves Docker's chain, and nothing that leads there.
    #[test]
    fn ranges_go_where_something_leads() {
        let wanted = range_rules(&["10.244.0.0/16".parse().unwrap()], IpFamily::V4);
        let mut restore = Restore::new(TABLE);
        let there = "-P FORWARD DROP\n-N DOCKER-USER\n\
            -A DOCKER-USER -d 10.244.0.0/16 -m comment --comment \"netwright routing\" -j ACCEPT\n";
        plan_ranges(&wanted, &ObservedTable::parse(there), &mut restore);
        expect![[r#"
            *filter
            -D DOCKER-USER -d 10.244.0.0/16 -m comment --comment "netwright routing" -j ACCEPT
            -I FORWARD 1 -s 10.244.0.0/16 -m comment --comment "netwright routing" -j ACCEPT
            -I FORWARD 1 -d 10.244.0.0/16 -m comment --comment "netwright routing" -j ACCEPT
            COMMIT
        "#]]
        .assert_eq(&restore.text());
    }

    #[test]
    fn accepts_carry_their_owner() {
        let key = AttachmentKey {
            network: "blue.net".parse().unwrap(),
            container_id: "c1".parse().unwrap(),
            ifname: "eth0".parse().unwrap(),
        };
        let [source, destination] = accept_rules("10.1.0.2".parse().unwrap(), &key);
        assert_eq!(owner(&source), Some(Owner::of(&key)));
        assert_eq!(owner(&destination), Some(Owner::of(&key)));
        assert_eq!(owner(&source.replace("ACCEPT", "DROP")), None);
        assert_eq!(owner("-s 10.1.0.2/32 -j ACCEPT"), None);
        assert_eq!(
            owner("-m comment --comment \"netwright is nice\" -j ACCEPT"),
            Some(Owner::Foreign)
        );
    }
}
