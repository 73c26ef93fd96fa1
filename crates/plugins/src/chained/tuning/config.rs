//! The configuration of `tuning`, read and checked.

use std::fmt;
use std::path::PathBuf;

use cni::{IfName, code};
use cni_plugin::Call;
use kernel::mac::MacAddr;
use serde::Deserialize;
use serde::de::{self, MapAccess, Visitor};

use super::sysctl::SysctlKey;
use crate::shared::failure::Failure;
use crate::shared::mac::parse_mac;

/// The folder in which the reference keeps its backups, unless a configuration names another.
pub const DATA_DIR: &str = "/run/cni/tuning";

/// The keys as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Raw {
    data_dir: String,
    sysctl: RawSysctls,
    mac: String,
    promisc: bool,
    mtu: i64,
    allmulti: Option<bool>,
    #[serde(rename = "txQLen")]
    tx_queue_length: Option<i64>,
    runtime_config: RawRuntime,
    args: RawArgs,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawRuntime {
    mac: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawArgs {
    cni: RawOverrides,
}

/// `args.cni`, in which the mere presence of a key counts.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawOverrides {
    sysctl: RawSysctls,
    mac: Option<String>,
    promisc: Option<bool>,
    mtu: Option<i64>,
    allmulti: Option<bool>,
    #[serde(rename = "txQLen")]
    tx_queue_length: Option<i64>,
}

/// An object of sysctls in the order in which it was written. A key that appears twice is an error,
/// as with the reference: there is no rule for which value wins.
#[derive(Debug, Default)]
struct RawSysctls(Vec<(String, String)>);

impl<'de> Deserialize<'de> for RawSysctls {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawSysctls;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of sysctl keys and their values as strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawSysctls, A::Error> {
                let mut sysctls = RawSysctls::default();
                while let Some((key, value)) = map.next_entry::<String, Option<String>>()? {
                    if sysctls.0.iter().any(|(known, _)| *known == key) {
                        return Err(de::Error::custom(format_args!("{DUPLICATE}: {key}")));
                    }
                    sysctls.0.push((key, value.unwrap_or_default()));
                }
                Ok(sysctls)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

const DUPLICATE: &str = "duplicated sysctl keys are not allowed";

/// A sysctl and its wanted value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sysctl {
    pub(super) key: SysctlKey,
    pub(super) value: String,
}

/// The settable values of a link; `None` leaves a value alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LinkValues {
    pub(super) mac: Option<MacAddr>,
    pub(super) mtu: Option<u32>,
    pub(super) promisc: Option<bool>,
    pub(super) allmulti: Option<bool>,
    pub(super) tx_queue_length: Option<u32>,
}

impl LinkValues {
    pub(super) fn is_empty(&self) -> bool {
        *self == LinkValues::default()
    }
}

impl fmt::Display for LinkValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LinkValues { mac, mtu, promisc, allmulti, tx_queue_length } = self;
        let parts = [
            mac.map(|mac| format!("mac {mac}")),
            mtu.map(|mtu| format!("mtu {mtu}")),
            promisc.map(|on| format!("promisc {}", on_off(on))),
            allmulti.map(|on| format!("allmulti {}", on_off(on))),
            tx_queue_length.map(|length| format!("txqlen {length}")),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// The name that runtimes usually give a container's interface.
const USUAL_IFNAME: &str = "eth0";

/// What `tuning` must do for one attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    pub(super) data_dir: PathBuf,
    /// In the order written: those of the configuration, then those that are only in `args.cni`.
    pub(super) sysctls: Vec<Sysctl>,
    /// `promisc` is on or absent: `false` in the configuration is also its default.
    pub(super) link: LinkValues,
}

impl Config {
    /// Reads and checks the configuration of a call.
    ///
    /// Precedence, last wins: configuration, `CNI_ARGS` `MAC`, `runtimeConfig.mac`, `args.cni`.
    ///
    /// # Errors
    /// Code 4 for `CNI_ARGS`, code 6 for the document, code 7 for impossible values.
    pub(super) fn of(call: &Call<'_>) -> Result<Self, Failure> {
        let raw: Raw = call.read_config()?;
        let args = call.args(&["MAC"])?;
        Config::check(raw, args.get("MAC").unwrap_or_default(), call.ifname())
    }

    /// Reads and checks the configuration without a container: the interface has the usual name.
    ///
    /// # Errors
    /// As [`Config::of`].
    pub(super) fn of_network(call: &Call<'_>) -> Result<Self, Failure> {
        Config::check(call.read_config()?, "", &IfName::new(USUAL_IFNAME)?)
    }

    fn check(raw: Raw, mac_of_args: &str, ifname: &IfName) -> Result<Self, Failure> {
        let Raw { args: RawArgs { cni: over }, runtime_config: runtime, .. } = raw;
        let mac = [over.mac.as_deref(), Some(&runtime.mac), Some(mac_of_args), Some(&raw.mac)]
            .into_iter()
            .enumerate()
            // An empty `args.cni.mac` counts: it cancels the address.
            .find_map(|(index, mac)| mac.filter(|mac| index == 0 || !mac.is_empty()))
            .filter(|mac| !mac.is_empty());
        let mtu = over.mtu.unwrap_or(raw.mtu);
        let tx_queue_length = over.tx_queue_length.or(raw.tx_queue_length);
        let link = LinkValues {
            mac: mac.map(parse_mac).transpose()?,
            mtu: if mtu == 0 { None } else { Some(unsigned("mtu", mtu)?) },
            promisc: over.promisc.unwrap_or(raw.promisc).then_some(true),
            allmulti: over.allmulti.or(raw.allmulti),
            tx_queue_length: tx_queue_length.map(|n| unsigned("txQLen", n)).transpose()?,
        };
        Ok(Config {
            data_dir: data_dir(&raw.data_dir),
            sysctls: merge(raw.sysctl, over.sysctl, ifname)?,
            link,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sysctls.is_empty() && self.link.is_empty()
    }
}

/// Reads only where the backups are, so that DEL works with a configuration that ADD would refuse.
pub(super) fn read_data_dir(document: &[u8]) -> PathBuf {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct OnlyDataDir {
        data_dir: String,
    }
    let OnlyDataDir { data_dir: text } = cni::json::from_slice(document).unwrap_or_default();
    data_dir(&text)
}

fn data_dir(text: &str) -> PathBuf {
    PathBuf::from(if text.is_empty() { DATA_DIR } else { text })
}

fn merge(base: RawSysctls, over: RawSysctls, ifname: &IfName) -> Result<Vec<Sysctl>, Failure> {
    let mut merged = check_sysctls(base, ifname)?;
    for sysctl in check_sysctls(over, ifname)? {
        match merged.iter_mut().find(|known| known.key.path() == sysctl.key.path()) {
            Some(known) => *known = sysctl,
            None => merged.push(sysctl),
        }
    }
    Ok(merged)
}

fn check_sysctls(raw: RawSysctls, ifname: &IfName) -> Result<Vec<Sysctl>, Failure> {
    let mut sysctls: Vec<Sysctl> = Vec::new();
    for (key, value) in raw.0 {
        let key = SysctlKey::parse(&key, ifname)?;
        if let Some(same) = sysctls.iter().find(|known| known.key.path() == key.path()) {
            return Err(Failure::new(code::INVALID_CONFIG, DUPLICATE).with_details(format!(
                "{:?} and {:?} are one",
                same.key.written(),
                key.written()
            )));
        }
        sysctls.push(Sysctl { key, value });
    }
    Ok(sysctls)
}

fn unsigned(key: &str, value: i64) -> Result<u32, Failure> {
    u32::try_from(value).ok().filter(|value| i32::try_from(*value).is_ok()).ok_or_else(|| {
        Failure::new(code::INVALID_CONFIG, format!("invalid {key} {value}"))
            .with_details("it must be a number from 0 to 2147483647")
    })
}

#[cfg(test)]
impl Config {
    /// Reads and checks a configuration without a call, for `eth0`.
    pub(super) fn of_text(json: &str) -> Result<Self, Failure> {
        Config::check(cni::json::from_str(json).unwrap(), "", &IfName::new(USUAL_IFNAME)?)
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    #[track_caller]
    fn check(document: &str, mac_of_args: &str, expect: Expect) {
        let ifname = "eth0".parse().unwrap();
        let config = cni::json::from_str::<Raw>(document)
            .map_err(|error| Failure::new(code::DECODE_FAILURE, error.to_string()))
            .and_then(|raw| Config::check(raw, mac_of_args, &ifname));
        expect.assert_eq(&match config {
            Ok(config) => show(&config),
            Err(error) => format!("code {}: {error}\n", error.code()),
        });
    }

    fn show(config: &Config) -> String {
        let mut text = format!("{}\n", config.data_dir.display());
        for Sysctl { key, value } in &config.sysctls {
            text += &format!("{} = {value}\n", key.path());
        }
        let LinkValues { mac, mtu, promisc, allmulti, tx_queue_length } = config.link;
        let mac = mac.map(|mac| mac.to_string());
        text += &format!("{mac:?} {mtu:?} {promisc:?} {allmulti:?} {tx_queue_length:?}\n");
        text
    }

    #[test]
    fn defaults_change_nothing() {
        check(
            r#"{"mtu": 0, "promisc": false, "mac": "", "dataDir": null, "sysctl": null}"#,
            "",
            expect![[r"
                /run/cni/tuning
                None None None None None
            "]],
        );
    }

    #[test]
    fn every_key_is_read_whatever_its_case() {
        check(
            r#"{"DATADIR": "/x", "mac": "02-00-5E-00-53-01", "mtu": 1400, "Promisc": true, "allmulti": false,
                "txqlen": 0, "sysctl": {"net.ipv4.conf.IFNAME.arp_notify": "1", "net/core/somaxconn": "5"}}"#,
            "",
            expect![[r#"
                /x
                net/ipv4/conf/eth0/arp_notify = 1
                net/core/somaxconn = 5
                Some("02:00:5e:00:53:01") Some(1400) Some(true) Some(false) Some(0)
            "#]],
        );
    }

    #[test]
    fn the_mac_is_the_last_of_config_args_runtime_and_args_cni() {
        let documents = [
            r#"{"mac": "02:00:00:00:00:01"}"#,
            r#"{"mac": "02:00:00:00:00:01", "runtimeConfig": {"mac": "02:00:00:00:00:03"}}"#,
            r#"{"mac": "02:00:00:00:00:01", "runtimeConfig": {"mac": "02:00:00:00:00:03"},
                "args": {"cni": {"mac": "02:00:00:00:00:04"}}}"#,
            r#"{"mac": "02:00:00:00:00:01", "args": {"cni": {"mac": ""}}}"#,
        ];
        let mac = |document: &str, args: &str| {
            let config =
                Config::check(cni::json::from_str(document).unwrap(), args, &"e".parse().unwrap());
            config.unwrap().link.mac.map(|mac| mac.0[5])
        };
        assert_eq!(mac(documents[0], ""), Some(1));
        assert_eq!(mac(documents[0], "02:00:00:00:00:02"), Some(2));
        assert_eq!(mac(documents[1], "02:00:00:00:00:02"), Some(3));
        assert_eq!(mac(documents[2], "02:00:00:00:00:02"), Some(4));
        assert_eq!(mac(documents[3], "02:00:00:00:00:02"), None);
    }

    #[test]
    fn args_override_each_key_and_merge_sysctls_by_what_they_mean() {
        check(
            r#"{"mtu": 1400, "promisc": true, "allmulti": true, "txQLen": 5,
                "sysctl": {"net.core.a": "1", "net.core.b": "2"},
                "args": {"cni": {"mtu": 0, "promisc": false, "allmulti": false, "txQLen": 6,
                                 "sysctl": {"net/core/a": "3", "net.core.c": "4"}}}}"#,
            "",
            expect![[r"
                /run/cni/tuning
                net/core/a = 3
                net/core/b = 2
                net/core/c = 4
                None None None Some(false) Some(6)
            "]],
        );
    }

    #[test]
    fn args_alone_are_enough() {
        check(
            r#"{"args": {"cni": {"sysctl": {"net.core.a": "1"}}}}"#,
            "",
            expect![[r"
                /run/cni/tuning
                net/core/a = 1
                None None None None None
            "]],
        );
    }

    #[test]
    fn a_sysctl_given_twice_is_refused() {
        check(
            r#"{"sysctl": {"net.a": "1", "net.a": "1"}}"#,
            "",
            expect![[r"
                code 6: sysctl: duplicated sysctl keys are not allowed: net.a at line 1 column 12
            "]],
        );
        check(
            r#"{"sysctl": {"net.a.b": "1", "net/a/b": "2"}}"#,
            "",
            expect![[r#"
                code 7: duplicated sysctl keys are not allowed; "net.a.b" and "net/a/b" are one
            "#]],
        );
    }

    #[test]
    fn values_that_cannot_be_are_refused() {
        check(
            r#"{"mtu": -1}"#,
            "",
            expect![[r"
                code 7: invalid mtu -1; it must be a number from 0 to 2147483647
            "]],
        );
        check(
            r#"{"txQLen": 4294967296}"#,
            "",
            expect![[r"
                code 7: invalid txQLen 4294967296; it must be a number from 0 to 2147483647
            "]],
        );
        check(
            r#"{"sysctl": {"net.a": 1}}"#,
            "",
            expect![[r"
                code 6: sysctl.net.a: found 1, wanted a string at line 1 column 22
            "]],
        );
        check(
            r#"{"sysctl": {"kernel.hostname": "x"}}"#,
            "",
            expect![[r#"
                code 7: invalid net sysctl key: "kernel/hostname"; only what belongs to a network namespace can be set: keys that begin with net.
            "#]],
        );
        check(
            "{}",
            "02:zz",
            expect![[r"
                code 7: address 02:zz: invalid MAC address; write it like 02:00:5e:00:53:01
            "]],
        );
    }
}
