//! Rules as text: what `iptables -S` prints and `iptables-restore` reads.

use std::collections::{BTreeMap, BTreeSet};

/// A table as `iptables -S` shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObservedTable {
    chains: BTreeMap<String, Vec<String>>,
    policies: BTreeMap<String, String>,
}

impl ObservedTable {
    /// Reads the output of `iptables -S`. Lines of other shapes are skipped.
    #[must_use]
    pub fn parse(output: &str) -> Self {
        let mut chains: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut policies = BTreeMap::new();
        for line in output.lines() {
            let Some((verb, rest)) = line.split_once(' ') else { continue };
            let (chain, rest) = rest.split_once(' ').unwrap_or((rest, ""));
            if verb == "-P" {
                policies.insert(chain.to_owned(), rest.to_owned());
            }
            match verb {
                "-P" | "-N" => drop(chains.entry(chain.to_owned()).or_default()),
                "-A" => chains.entry(chain.to_owned()).or_default().push(rest.to_owned()),
                _ => {}
            }
        }
        ObservedTable { chains, policies }
    }

    /// Says whether a chain exists.
    #[must_use]
    pub fn has_chain(&self, chain: &str) -> bool {
        self.chains.contains_key(chain)
    }

    /// Returns the policy of a built-in chain.
    #[must_use]
    pub fn policy(&self, chain: &str) -> Option<&str> {
        self.policies.get(chain).map(String::as_str)
    }

    /// Returns a chain's rules without `-A CHAIN`; none if the chain does not exist.
    #[must_use]
    pub fn rules(&self, chain: &str) -> &[String] {
        self.chains.get(chain).map_or(&[], Vec::as_slice)
    }

    /// Says whether a chain has exactly this rule.
    #[must_use]
    pub fn has_rule(&self, chain: &str, rule: &str) -> bool {
        self.rules(chain).iter().any(|known| known == rule)
    }

    /// Says whether packets come from one chain to another, unless a rule with a condition decides
    /// about them before: a jump that has a condition leads only some there.
    pub(crate) fn leads(&self, from: &str, to: &str) -> bool {
        self.way(from, to, 0) == Way::There
    }

    fn way(&self, from: &str, to: &str, depth: u8) -> Way {
        for rule in self.rules(from) {
            let Some((verb, target)) = unconditional(rule) else { continue };
            match target {
                _ if target == to => return Way::There,
                "ACCEPT" | "DROP" | "REJECT" | "QUEUE" | "NFQUEUE" => return Way::Ends,
                "RETURN" => return Way::Back,
                _ if self.has_chain(target) && depth < DEPTH => {
                    match self.way(target, to, depth.saturating_add(1)) {
                        Way::Back if verb == "-j" => {}
                        way => return way,
                    }
                }
                _ => {}
            }
        }
        Way::Back
    }

    /// Lists the chains.
    pub fn chains(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.chains.iter().map(|(chain, rules)| (chain.as_str(), rules.as_slice()))
    }
}

/// How deep chains are followed. The kernel refuses chains that lead back to themselves.
const DEPTH: u8 = 16;

/// Where packets are led that no condition picks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// To the chain that is looked for.
    There,
    /// Back to the chain that asked.
    Back,
    /// To a verdict.
    Ends,
}

/// A transaction for `iptables-restore --noflush`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restore {
    table: String,
    created: BTreeSet<String>,
    declared: BTreeSet<String>,
    lines: Vec<String>,
}

impl Restore {
    /// Starts an empty list of changes to a table.
    #[must_use]
    pub fn new(table: &str) -> Self {
        Restore {
            table: table.to_owned(),
            created: BTreeSet::new(),
            declared: BTreeSet::new(),
            lines: Vec::new(),
        }
    }

    /// Says whether there is nothing to change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.created.is_empty() && self.declared.is_empty() && self.lines.is_empty()
    }

    /// Creates a chain, or empties it if it exists: `iptables-restore` flushes the chains that are
    /// declared.
    pub fn reset_chain(&mut self, chain: &str) {
        self.declared.insert(chain.to_owned());
    }

    /// Creates a chain unless it exists. A separate command creates it beforehand: a declared chain
    /// would be emptied if another process created and filled it meanwhile.
    pub fn ensure_chain(&mut self, observed: &ObservedTable, chain: &str) {
        if !observed.has_chain(chain) {
            self.created.insert(chain.to_owned());
        }
    }

    /// Lists the chains to create beforehand.
    pub(crate) fn created(&self) -> impl Iterator<Item = &str> {
        self.created.iter().map(String::as_str)
    }

    pub(crate) fn table(&self) -> &str {
        &self.table
    }

    /// Appends a rule.
    pub fn append(&mut self, chain: &str, rule: &str) {
        self.lines.push(format!("-A {chain} {rule}"));
    }

    /// Appends a rule unless it exists.
    pub fn ensure_last(&mut self, observed: &ObservedTable, chain: &str, rule: &str) {
        if !observed.has_rule(chain, rule) {
            self.append(chain, rule);
        }
    }

    /// Inserts a rule at the front unless it exists anywhere in the chain.
    pub fn ensure_first(&mut self, observed: &ObservedTable, chain: &str, rule: &str) {
        if !observed.has_rule(chain, rule) {
            self.insert(chain, rule);
        }
    }

    /// Inserts a rule at the front.
    pub fn insert(&mut self, chain: &str, rule: &str) {
        self.lines.push(format!("-I {chain} 1 {rule}"));
    }

    /// Deletes the rules of a chain that `doomed` picks.
    pub fn delete_rules(
        &mut self,
        observed: &ObservedTable,
        chain: &str,
        doomed: impl Fn(&str) -> bool,
    ) {
        let rules = observed.rules(chain).iter().filter(|rule| doomed(rule));
        self.lines.extend(rules.map(|rule| format!("-D {chain} {rule}")));
    }

    /// Deletes a chain with its rules, and every rule that jumps to it, if it exists.
    pub fn delete_chain(&mut self, observed: &ObservedTable, chain: &str) {
        self.delete_chains(observed, &[chain]);
    }

    /// Deletes those of the chains that exist; they may lead to each other.
    pub fn delete_chains(&mut self, observed: &ObservedTable, doomed: &[&str]) {
        let doomed: Vec<&str> =
            doomed.iter().copied().filter(|chain| observed.has_chain(chain)).collect();
        for (from, _) in observed.chains().filter(|(from, _)| !doomed.contains(from)) {
            self.delete_rules(observed, from, |rule| {
                target(rule).is_some_and(|target| doomed.contains(&target))
            });
        }
        for verb in ["-F", "-X"] {
            self.lines.extend(doomed.iter().map(|chain| format!("{verb} {chain}")));
        }
    }

    /// Returns the text for standard input, without the chains to create beforehand.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("*{}\n", self.table);
        for chain in &self.declared {
            text.push_str(&format!(":{chain} - [0:0]\n"));
        }
        for line in &self.lines {
            text.push_str(line);
            text.push('\n');
        }
        text.push_str("COMMIT\n");
        text
    }
}

/// Returns the target of a rule: the word after the last `-j` or `-g`.
pub(crate) fn target(rule: &str) -> Option<&str> {
    let mut words = rule.rsplit(' ').peekable();
    let mut later = words.next()?;
    let mut found = None;
    for word in words {
        if word == "-j" || word == "-g" {
            found = Some(later);
            break;
        }
        later = word;
    }
    found
}

/// Returns verb (`-j` or `-g`) and target of a rule that has no condition. A comment is none.
fn unconditional(mut rule: &str) -> Option<(&str, &str)> {
    while let Some(rest) = rule.strip_prefix("-m comment --comment ") {
        rule = after_word(rest).trim_start();
    }
    let mut words = rule.split(' ');
    let verb = words.next().filter(|verb| matches!(*verb, "-j" | "-g"))?;
    Some((verb, words.next()?))
}

/// Returns what follows a word that may be quoted ([`quote`]).
fn after_word(text: &str) -> &str {
    let Some(quoted) = text.strip_prefix('"') else {
        return text.find(' ').map_or("", |end| &text[end..]);
    };
    let mut escaped = false;
    for (at, letter) in quoted.char_indices() {
        match letter {
            '"' if !escaped => return &quoted[at + 1..],
            _ => escaped = letter == '\\' && !escaped,
        }
    }
    ""
}

/// Quotes a comment as `iptables -S` prints it and `iptables-restore` reads it
/// (`xtables_save_string`): only if something needs quoting.
#[must_use]
pub fn quote(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    const OBSERVED: &str = "-P PREROUTING ACCEPT\n-P POSTROUTING ACCEPT\n-N CNI-x\n\
        -A POSTROUTING -s 10.1.0.2/32 -m comment --comment \"name: \\\"n\\\" id: \\\"c1\\\"\" -j CNI-x\n\
        -A POSTROUTING -j MASQUERADE\n-A CNI-x -d 10.1.0.0/24 -j ACCEPT\n";

    #[test]
    fn deleting_a_chain_deletes_the_jumps_to_it() {
        let observed = ObservedTable::parse(OBSERVED);
        let mut restore = Restore::new("nat");
        restore.delete_chain(&observed, "CNI-x");
        restore.delete_chain(&observed, "CNI-y");
        expect![[r#"
            *nat
            -D POSTROUTING -s 10.1.0.2/32 -m comment --comment "name: \"n\" id: \"c1\"" -j CNI-x
            -F CNI-x
            -X CNI-x
            COMMIT
        "#]]
        .assert_eq(&restore.text());
    }

    #[test]
    fn what_is_there_is_not_made_again() {
        let observed = ObservedTable::parse(OBSERVED);
        let mut restore = Restore::new("nat");
        restore.ensure_chain(&observed, "CNI-x");
        restore.ensure_last(&observed, "POSTROUTING", "-j MASQUERADE");
        assert!(restore.is_empty());
        restore.ensure_first(&observed, "POSTROUTING", "-j RETURN");
        restore.reset_chain("CNI-x");
        expect![[r"
            *nat
            :CNI-x - [0:0]
            -I POSTROUTING 1 -j RETURN
            COMMIT
        "]]
        .assert_eq(&restore.text());
    }

    #[test]
    fn a_chain_is_led_to_by_rules_without_a_condition() {
        let leads = |rules: &str| {
            let chains = "-P FORWARD DROP\n-N A\n-N B\n-N DOCKER-USER\n";
            ObservedTable::parse(&format!("{chains}{rules}")).leads("FORWARD", "DOCKER-USER")
        };
        assert!(!leads(""));
        for there in [
            "-A FORWARD -j DOCKER-USER\n",
            "-A FORWARD -s 192.0.2.0/24 -j DROP\n-A FORWARD -g DOCKER-USER\n",
            "-A FORWARD -m comment --comment \"a \\\" -j DROP\" -j DOCKER-USER\n",
            "-A FORWARD -m comment --comment a -j LOG --log-prefix x\n-A FORWARD -j DOCKER-USER\n",
            "-A FORWARD -j A\n-A A -i lo -j RETURN\n-A A -j B\n-A B -j DOCKER-USER\n",
            "-A FORWARD -j A\n-A A -j RETURN\n-A FORWARD -j DOCKER-USER\n",
        ] {
            assert!(leads(there), "{there}");
        }
        for elsewhere in [
            "-A FORWARD -o docker0 -j DOCKER-USER\n",
            "-A FORWARD ! -i lo -j DOCKER-USER\n",
            "-A FORWARD -j DROP\n-A FORWARD -j DOCKER-USER\n",
            "-A FORWARD -j A\n-A A -j REJECT --reject-with tcp-reset\n-A FORWARD -j DOCKER-USER\n",
            "-A FORWARD -g A\n-A FORWARD -j DOCKER-USER\n",
            "-A FORWARD -j A\n-A A -j RETURN\n-A A -j DOCKER-USER\n",
            "-A A -j DOCKER-USER\n",
        ] {
            assert!(!leads(elsewhere), "{elsewhere}");
        }
    }

    #[test]
    fn only_what_needs_it_is_quoted() {
        assert_eq!(quote("netwright-0123_n"), "netwright-0123_n");
        assert_eq!(quote("a.b"), "\"a.b\"");
        assert_eq!(quote("say \"x\""), "\"say \\\"x\\\"\"");
    }

    #[test]
    fn targets_are_found_before_their_options() {
        assert_eq!(target("-p tcp -j DNAT --to-destination 10.1.0.2:80"), Some("DNAT"));
        assert_eq!(target("-m comment --comment \"a -j x\" -j RETURN"), Some("RETURN"));
        assert_eq!(target("-p tcp"), None);
    }
}
