//! CHECK that repairs: an extension of ours, made so that a plugin which does not know it checks as
//! usual.

use serde::{Deserialize, Serialize};

/// The key that asks CHECK to restore what can be restored, and then to check. A plugin that does
/// not know it only checks, so that any chain can be repaired as far as its plugins can.
pub const REPAIR: &str = "netwright/repair";

/// The key that asks CHECK to return each difference separately, as data, in the error object
/// ([`crate::Error::differences`]). A plugin that does not know the key reports them only in words.
pub const LOOK: &str = "netwright/look";

/// One difference between what ADD made and what is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ItemDrift {
    /// What differs, in one clause.
    pub what: String,
    /// What an administrator does about it; empty if repair restores it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub remedy: String,
    /// What was wanted: an item of crate `wanted`, as it is written there. `None` if the difference
    /// belongs to no item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<serde_json::Value>,
    /// No plugin but Netwright's ever makes what is missing: an element of our tables, or a rule
    /// with our comment.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ours: bool,
    /// It is of hairpin mode: of what a container sends to itself by a port of the host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hairpin: bool,
}

/// The key with the interface's name from ADD, for a CHECK of an interface that a program has moved
/// to another namespace and renamed, as Docker does. `CNI_NETNS`, `CNI_IFNAME` and `prevResult`
/// then say where the interface is, and this key whose it is.
pub const ATTACHED_AS: &str = "netwright/attached-as";

/// The answer to a CHECK that was asked to repair and succeeded: what was restored, one line for
/// each thing. A plain CHECK answers nothing, and so does a plugin that does not know how to
/// repair.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairReport {
    /// The lines.
    #[serde(rename = "netwright/repaired", default)]
    pub lines: Vec<String>,
}

impl RepairReport {
    /// Writes the answer; empty when nothing was restored.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        if self.lines.is_empty() {
            return Vec::new();
        }
        serde_json::to_vec(self).expect("lines serialise to JSON")
    }

    /// Reads an answer; ignores anything else that a plugin prints.
    #[must_use]
    pub fn parse(stdout: &[u8]) -> Self {
        serde_json::from_slice(stdout).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_back_is_read_back_and_anything_else_is_nothing() {
        let lines = vec!["route 192.0.2.0/24".to_owned()];
        let said = RepairReport { lines };
        assert_eq!(RepairReport::parse(&said.to_json()), said);
        assert!(RepairReport::default().to_json().is_empty());
        for other in ["", "{}", "garbage", "[1]", "{\"netwright/repaired\": 5}"] {
            assert_eq!(RepairReport::parse(other.as_bytes()), RepairReport::default(), "{other}");
        }
    }
}
