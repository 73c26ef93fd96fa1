//! CHECK that repairs: an extension of ours, made so that a plugin which does not know it does what it always does.

use serde::{Deserialize, Serialize};

/// The key that asks CHECK to put back what can be put back, and then to check. A plugin that does not know it only
/// checks, so that any chain can be repaired as far as its plugins can.
pub const REPAIR: &str = "netwright/repair";

/// The key that names the interface as ADD was told to, where CHECK is told the one it is now: somebody has moved the interface to
/// another namespace and given it another name, as Docker does. `CNI_NETNS`, `CNI_IFNAME` and `prevResult` say then where it is,
/// and this whose it is.
pub const ATTACHED_AS: &str = "netwright/attached-as";

/// The answer to a CHECK that was asked to repair and succeeded: what was put back, a line for each thing. A plain CHECK
/// answers nothing, and so does a plugin that knows nothing of repairing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repaired {
    /// The lines.
    #[serde(rename = "netwright/repaired", default)]
    pub lines: Vec<String>,
}

impl Repaired {
    /// Writes the answer; nothing was put back is no answer.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        if self.lines.is_empty() {
            return Vec::new();
        }
        serde_json::to_vec(self).expect("lines serialise to JSON")
    }

    /// Reads an answer; whatever else a plugin prints says nothing.
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
        let said = Repaired { lines };
        assert_eq!(Repaired::parse(&said.to_json()), said);
        assert!(Repaired::default().to_json().is_empty());
        for other in ["", "{}", "garbage", "[1]", "{\"netwright/repaired\": 5}"] {
            assert_eq!(Repaired::parse(other.as_bytes()), Repaired::default(), "{other}");
        }
    }
}
