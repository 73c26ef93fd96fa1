//! Elements of many attachments at once, for a process that looks after all of them.

use std::collections::BTreeMap;

use cni::AttachmentKey;

use super::Firewall;
use crate::element::Element;
use crate::error::FirewallError;
use crate::owner::Owner;
use crate::plan::{Concern, Plan};
use crate::tables::Change;

/// What is to change of an attachment's own elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange {
    /// The attachment.
    pub key: AttachmentKey,
    /// Those that it gets.
    pub add: Plan,
    /// Those that it loses, of what [`Firewall::owned`] has listed.
    pub remove: Vec<Element>,
}

impl Firewall<'_> {
    /// Lists the elements of concerns without values, by the hash of the attachment that they
    /// belong to ([`AttachmentKey::hash`]).
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn owned(
        &mut self,
        concerns: &[Concern],
    ) -> Result<BTreeMap<String, Vec<Element>>, FirewallError> {
        let mut owned: BTreeMap<String, Vec<Element>> = BTreeMap::new();
        for set in concerns.iter().flat_map(|concern| concern.sets()) {
            for found in self.tables.list(*set)? {
                if let Owner::Attachment { hash, .. } = Owner::parse(&found.comment) {
                    owned.entry(hash).or_default().push(Element::new(*set, found.key));
                }
            }
        }
        Ok(owned)
    }

    /// Describes what is different in the tables that a plan needs: whether they see packets, and
    /// their hooks and rules. A missing table is not different: [`Firewall::exchange`] and
    /// [`Firewall::add`] make it. [`Firewall::mend`] puts the rest right.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn altered(&mut self, plan: &Plan) -> Result<Vec<String>, FirewallError> {
        let masquerades = super::masquerades(plan);
        let mut differences = Vec::new();
        for table in plan.tables() {
            let altered = self.tables.altered(table, &masquerades)?;
            differences.extend(altered.into_iter().flat_map(|altered| altered.describe(table)));
        }
        Ok(differences)
    }

    /// Gives attachments elements and takes others from them, in one transaction. Makes tables that
    /// are missing.
    ///
    /// # Errors
    /// When the kernel refuses; nothing has changed then.
    pub fn exchange(&mut self, exchanges: &[Exchange]) -> Result<(), FirewallError> {
        let mut changes: Vec<Change> = Vec::new();
        for Exchange { key, add, remove } in exchanges {
            for change in self.plan_add(key, add)? {
                // Several of them may need the same table.
                if !matches!(change, Change::Layout(_)) || !changes.contains(&change) {
                    changes.push(change);
                }
            }
            changes.extend(remove.iter().map(|element| Change::DeleteElement {
                set: element.set,
                key: element.key.clone(),
            }));
        }
        if changes.is_empty() { Ok(()) } else { Ok(self.tables.commit(&changes)?) }
    }
}
