//! The VLANs that a port carries.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::shared::failure::Failure;

use super::config::invalid;

/// The highest VLAN ID that the database accepts.
const VLAN_MAX: i64 = 4095;

/// The configured VLANs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Vlans {
    /// The port's `vlan_mode`.
    pub(super) mode: &'static str,
    /// The access or native VLAN.
    pub(super) tag: Option<u16>,
    /// The VLANs of a trunk; empty for all.
    pub(super) trunks: BTreeSet<u16>,
}

/// An entry of the key `trunk`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawTrunk {
    id: Option<i64>,
    #[serde(rename = "minID")]
    min_id: Option<i64>,
    #[serde(rename = "maxID")]
    max_id: Option<i64>,
}

impl Vlans {
    /// Reads the keys `vlan`, `trunk` and `vlanMode`. Without `vlanMode`, a trunk is a trunk for
    /// every value of `vlan`, as with the reference.
    ///
    /// # Errors
    /// Code 7, naming the key.
    pub(super) fn parse(
        vlan: Option<i64>,
        trunk: Option<&[RawTrunk]>,
        mode: &str,
    ) -> Result<Self, Failure> {
        let tag = vlan.map(|id| vlan_id(id, "vlan")).transpose()?;
        let trunks = trunk_of(trunk.unwrap_or_default())?;
        let needs_tag = |mode: &'static str| match tag {
            Some(_) => Ok(mode),
            None => Err(invalid(
                format!("vlanMode {mode:?} needs a \"vlan\""),
                "give the network a \"vlan\"",
            )),
        };
        let (mode, tag) = match mode {
            "" if !trunks.is_empty() || tag.is_none() => ("trunk", None),
            "trunk" => ("trunk", None),
            "" | "access" => (needs_tag("access")?, tag),
            "native-tagged" => (needs_tag("native-tagged")?, tag),
            "native-untagged" => (needs_tag("native-untagged")?, tag),
            "dot1q-tunnel" => (needs_tag("dot1q-tunnel")?, tag),
            other => {
                return Err(invalid(
                    format!("unknown vlanMode {other:?}"),
                    "it is access, trunk, native-tagged, native-untagged or dot1q-tunnel",
                ));
            }
        };
        if mode == "access" && !trunks.is_empty() {
            return Err(invalid(
                "vlanMode \"access\" and \"trunk\" exclude each other",
                "an access port has its one VLAN",
            ));
        }
        Ok(Vlans { mode, tag, trunks })
    }
}

fn trunk_of(entries: &[RawTrunk]) -> Result<BTreeSet<u16>, Failure> {
    let mut ids = BTreeSet::new();
    for entry in entries {
        match (entry.min_id, entry.max_id) {
            (Some(low), Some(high)) => {
                let (low, high) = (vlan_id(low, "trunk minID")?, vlan_id(high, "trunk maxID")?);
                if high < low {
                    return Err(invalid(
                        "minID is greater than maxID in trunk parameter",
                        format!("key \"trunk\": write minID {high} and maxID {low}"),
                    ));
                }
                ids.extend(low..=high);
            }
            (None, None) if entry.id.is_some() => {}
            _ => {
                return Err(invalid(
                    "incorrect trunk parameter",
                    "an entry of \"trunk\" has an id, or a minID and a maxID",
                ));
            }
        }
        if let Some(id) = entry.id {
            ids.insert(vlan_id(id, "trunk id")?);
        }
    }
    Ok(ids)
}

fn vlan_id(id: i64, what: &str) -> Result<u16, Failure> {
    let valid = (0..=VLAN_MAX).contains(&id).then(|| u16::try_from(id).ok()).flatten();
    let key = what.split(' ').next().unwrap_or(what);
    valid.ok_or_else(|| {
        invalid(
            format!("incorrect {what} parameter: {id}"),
            format!("key {key:?}: a VLAN ID is a number from 0 to {VLAN_MAX}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    struct Keys {
        vlan: Option<i64>,
        trunk: Option<Vec<RawTrunk>>,
        mode: String,
    }

    fn check(json: &str, expected: Expect) {
        let keys: Keys = cni::json::from_str(json).unwrap();
        let text = match Vlans::parse(keys.vlan, keys.trunk.as_deref(), &keys.mode) {
            Ok(vlans) => format!("{vlans:?}"),
            Err(error) => format!("{} {error}", error.code()),
        };
        expected.assert_eq(&text);
    }

    #[test]
    fn forms_of_vlans() {
        check("{}", expect![[r#"Vlans { mode: "trunk", tag: None, trunks: {} }"#]]);
        check(
            r#"{"vlan":100}"#,
            expect![[r#"Vlans { mode: "access", tag: Some(100), trunks: {} }"#]],
        );
        check(r#"{"vlan":0}"#, expect![[r#"Vlans { mode: "access", tag: Some(0), trunks: {} }"#]]);
        check(
            r#"{"vlan":5,"trunk":[{"id":42},{"minID":10,"maxID":12}]}"#,
            expect![[r#"Vlans { mode: "trunk", tag: None, trunks: {10, 11, 12, 42} }"#]],
        );
        check(
            r#"{"vlan":5,"trunk":[{"id":42}],"mode":"native-untagged"}"#,
            expect![[r#"Vlans { mode: "native-untagged", tag: Some(5), trunks: {42} }"#]],
        );
    }

    #[test]
    fn what_is_no_vlan() {
        check(
            r#"{"vlan":4096}"#,
            expect![[
                r#"7 incorrect vlan parameter: 4096; key "vlan": a VLAN ID is a number from 0 to 4095"#
            ]],
        );
        check(
            r#"{"vlan":-1}"#,
            expect![[
                r#"7 incorrect vlan parameter: -1; key "vlan": a VLAN ID is a number from 0 to 4095"#
            ]],
        );
        check(
            r#"{"trunk":[{"minID":6,"maxID":5}]}"#,
            expect![[
                r#"7 minID is greater than maxID in trunk parameter; key "trunk": write minID 5 and maxID 6"#
            ]],
        );
        check(
            r#"{"trunk":[{"minID":6}]}"#,
            expect![
                "7 incorrect trunk parameter; an entry of \"trunk\" has an id, or a minID and a maxID"
            ],
        );
        check(
            r#"{"trunk":[{"id":5000}]}"#,
            expect![[
                r#"7 incorrect trunk id parameter: 5000; key "trunk": a VLAN ID is a number from 0 to 4095"#
            ]],
        );
        check(
            r#"{"mode":"native-tagged"}"#,
            expect![[r#"7 vlanMode "native-tagged" needs a "vlan"; give the network a "vlan""#]],
        );
        check(
            r#"{"vlan":5,"trunk":[{"id":1}],"mode":"access"}"#,
            expect![[
                r#"7 vlanMode "access" and "trunk" exclude each other; an access port has its one VLAN"#
            ]],
        );
        check(
            r#"{"mode":"hybrid"}"#,
            expect![[
                r#"7 unknown vlanMode "hybrid"; it is access, trunk, native-tagged, native-untagged or dot1q-tunnel"#
            ]],
        );
    }
}
