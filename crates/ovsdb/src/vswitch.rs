//! The database `Open_vSwitch`: names, and the rows that network plugins read (`man 5
//! ovs-vswitchd.conf.db`).

use std::collections::BTreeMap;

use crate::value::{Row, Uuid};

/// The database's name.
pub const DATABASE: &str = "Open_vSwitch";

/// Where `ovsdb-server` listens by default.
pub const SOCKET: &str = "/var/run/openvswitch/db.sock";

/// A row of a table, read from the columns that [`TypedRow::COLUMNS`] names.
pub trait TypedRow: Sized {
    /// The table.
    const TABLE: &'static str;
    /// The columns that are read.
    const COLUMNS: &'static [&'static str];

    /// Reads a row. A column that is missing or of another type is empty: enforcing the schema is
    /// the server's task.
    #[must_use]
    fn read(row: &Row) -> Self;
}

/// A bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bridge {
    /// The row.
    pub uuid: Option<Uuid>,
    /// Its name, which is also that of its local port.
    pub name: String,
    /// `system` or empty for the kernel's datapath, `netdev` for the one in user space.
    pub datapath_type: String,
    /// `standalone`, `secure` or empty.
    pub fail_mode: String,
    /// Its ports.
    pub ports: Vec<Uuid>,
    /// Its mirrors.
    pub mirrors: Vec<Uuid>,
    /// Data that other programs attach to it.
    pub external_ids: BTreeMap<String, String>,
}

impl TypedRow for Bridge {
    const TABLE: &'static str = "Bridge";
    const COLUMNS: &'static [&'static str] =
        &["_uuid", "name", "datapath_type", "fail_mode", "ports", "mirrors", "external_ids"];

    fn read(row: &Row) -> Self {
        Bridge {
            uuid: row.uuid("_uuid"),
            name: row.text("name").to_owned(),
            datapath_type: row.text("datapath_type").to_owned(),
            fail_mode: row.text("fail_mode").to_owned(),
            ports: row.uuids("ports"),
            mirrors: row.uuids("mirrors"),
            external_ids: row.map("external_ids"),
        }
    }
}

/// A port of a bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// The row.
    pub uuid: Option<Uuid>,
    /// Its name.
    pub name: String,
    /// Its interfaces: one, unless it is a bond.
    pub interfaces: Vec<Uuid>,
    /// `access`, `trunk`, `native-tagged`, `native-untagged`, or empty.
    pub vlan_mode: String,
    /// The access or native VLAN.
    pub tag: Option<i64>,
    /// The VLANs a trunk carries; empty for all.
    pub trunks: Vec<i64>,
    /// Its shaping.
    pub qos: Option<Uuid>,
    /// Data that other programs attach to it.
    pub external_ids: BTreeMap<String, String>,
}

impl TypedRow for Port {
    const TABLE: &'static str = "Port";
    const COLUMNS: &'static [&'static str] =
        &["_uuid", "name", "interfaces", "vlan_mode", "tag", "trunks", "qos", "external_ids"];

    fn read(row: &Row) -> Self {
        let mut trunks = row.integers("trunks");
        trunks.sort_unstable();
        Port {
            uuid: row.uuid("_uuid"),
            name: row.text("name").to_owned(),
            interfaces: row.uuids("interfaces"),
            vlan_mode: row.text("vlan_mode").to_owned(),
            tag: row.integer("tag"),
            trunks,
            qos: row.uuid("qos"),
            external_ids: row.map("external_ids"),
        }
    }
}

/// An interface of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// The row.
    pub uuid: Option<Uuid>,
    /// Its name, which is also the link's if it is one.
    pub name: String,
    /// Empty or `system` for an existing link, `internal`, `vxlan`, …
    pub r#type: String,
    /// The switch's number for it: `None` before the switch has processed it, -1 if it could not be
    /// used.
    pub ofport: Option<i64>,
    /// Why it could not be used.
    pub error: String,
    /// Data that other programs attach to it.
    pub external_ids: BTreeMap<String, String>,
    /// Options of its type.
    pub options: BTreeMap<String, String>,
}

impl TypedRow for Interface {
    const TABLE: &'static str = "Interface";
    const COLUMNS: &'static [&'static str] =
        &["_uuid", "name", "type", "ofport", "error", "external_ids", "options"];

    fn read(row: &Row) -> Self {
        Interface {
            uuid: row.uuid("_uuid"),
            name: row.text("name").to_owned(),
            r#type: row.text("type").to_owned(),
            ofport: row.integer("ofport"),
            error: row.text("error").to_owned(),
            external_ids: row.map("external_ids"),
            options: row.map("options"),
        }
    }
}
