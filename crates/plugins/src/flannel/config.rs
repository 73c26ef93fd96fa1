//! The keys, and the delegate's configuration that flannel's plugin would make of them.

use std::path::PathBuf;

use cni::json::{Object, from_raw};
use cni::{PluginConfig, code};
use cni_plugin::Call;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::NAME;
use super::subnet_env::SubnetEnv;
use crate::shared::failure::Failure;
use crate::shared::outer_args::OuterArgs;

/// Where flanneld writes unless `subnetFile` says otherwise.
const SUBNET_FILE: &str = "/run/flannel/subnet.env";

/// The folder of flannel's records unless `dataDir` names another.
const DATA_DIR: &str = "/var/lib/cni/flannel";

/// The delegate unless `delegate` names another.
pub(super) const DEFAULT_DELEGATE: &str = "bridge";

/// The delegate's IPAM plugin unless `ipam` names another.
const DEFAULT_IPAM: &str = "host-local";

/// The keys as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Raw {
    subnet_file: PathBuf,
    data_dir: PathBuf,
    delegate: Object,
    ipam: Object,
    runtime_config: Option<Box<RawValue>>,
}

/// The checked configuration.
#[derive(Debug)]
pub(super) struct Config {
    /// The file that flanneld writes.
    pub(super) subnet_file: PathBuf,
    delegate: Object,
    ipam: Object,
    routes: Vec<Box<RawValue>>,
    runtime_config: Option<Box<RawValue>>,
    args: OuterArgs,
}

/// Returns the folder of flannel's records, even if the rest of the configuration is invalid.
pub(super) fn data_dir(call: &Call<'_>) -> PathBuf {
    let raw: Raw = call.read_config().unwrap_or_default();
    or_default(raw.data_dir, DATA_DIR)
}

/// Returns the file that flanneld writes; `None` if the configuration is invalid.
pub(super) fn subnet_file(object: &Object) -> Option<PathBuf> {
    let raw: Raw = object.read().ok()?;
    Some(or_default(raw.subnet_file, SUBNET_FILE))
}

fn or_default(path: PathBuf, default: &str) -> PathBuf {
    if path.as_os_str().is_empty() { default.into() } else { path }
}

impl Config {
    /// Reads and checks the keys.
    pub(super) fn of(call: &Call<'_>) -> Result<Self, Failure> {
        let raw: Raw = call.read_config()?;
        // Keys are compared exactly here and where they are set: flannel's plugin does too.
        if raw.delegate.get("type").is_some_and(|value| !value.get().starts_with('"')) {
            let text = "'delegate' dictionary, if present, must have (string) 'type' field";
            return Err(invalid(text, "key \"delegate.type\" names a plugin"));
        }
        let plugin_type = raw.delegate.get("type").map(from_raw::<String>);
        if plugin_type.is_some_and(|named| named.is_ok_and(|named| named == NAME)) {
            let text = format!("plugin {NAME:?} cannot delegate to itself");
            return Err(invalid(text, "key \"delegate.type\" names another plugin"));
        }
        for key in ["name", "ipam"] {
            if raw.delegate.get(key).is_some() {
                let text = format!(
                    "'delegate' dictionary must not have '{key}' field, it'll be set by flannel"
                );
                return Err(invalid(text, &format!("remove the key \"delegate.{key}\"")));
            }
        }
        let routes = raw.ipam.get("routes").map(from_raw).transpose().map_err(|error| {
            let text = format!("failed to parse ipam.routes: {error}");
            invalid(text, "key \"ipam.routes\" is a list of routes")
        })?;
        Ok(Config {
            subnet_file: or_default(raw.subnet_file, SUBNET_FILE),
            delegate: raw.delegate,
            ipam: raw.ipam,
            routes: routes.unwrap_or_default(),
            runtime_config: raw.runtime_config,
            args: OuterArgs::of(call)?,
        })
    }

    /// Makes the delegate's configuration: that of the key `delegate`, completed by what flanneld
    /// says of the node.
    pub(super) fn delegate(
        &self,
        call: &Call<'_>,
        subnet: &SubnetEnv,
    ) -> Result<PluginConfig, Failure> {
        let mut object = self.delegate.clone();
        object.set_value("name", call.network().as_str());
        let plugin_type = object.get("type").map(from_raw::<String>).transpose();
        let plugin_type =
            plugin_type.unwrap_or_default().unwrap_or_else(|| DEFAULT_DELEGATE.to_owned());
        set_unless_there(&mut object, "type", &plugin_type);
        set_unless_there(&mut object, "ipMasq", &!subnet.masquerades);
        set_unless_there(&mut object, "mtu", &subnet.mtu);
        if plugin_type == DEFAULT_DELEGATE {
            set_unless_there(&mut object, "isGateway", &true);
        }
        let version = &call.common().cni_version;
        if !version.is_empty() {
            object.set_value("cniVersion", version);
        }
        if let Some(arguments) = &self.runtime_config {
            object.set("runtimeConfig", arguments.clone());
        }
        self.args.put_into(&mut object)?;
        object.set_value("ipam", &self.ipam(subnet));
        Ok(PluginConfig::from_object(object)?)
    }

    fn ipam(&self, subnet: &SubnetEnv) -> Object {
        let mut ipam = self.ipam.clone();
        set_unless_there(&mut ipam, "type", DEFAULT_IPAM);
        let ranges = subnet.subnets.iter().map(|net| json!([{ "subnet": net.to_string() }]));
        ipam.set_value("ranges", &ranges.collect::<Vec<Value>>());
        let to = subnet.networks.iter().map(|net| {
            let route = json!({ "dst": net.to_string() });
            to_raw_value(&route).expect("a route serialises to JSON")
        });
        ipam.set_value("routes", &self.routes.iter().cloned().chain(to).collect::<Vec<_>>());
        ipam
    }
}

fn set_unless_there<T: serde::Serialize + ?Sized>(object: &mut Object, key: &str, value: &T) {
    if object.get(key).is_none() {
        object.set_value(key, value);
    }
}

fn invalid(text: impl Into<String>, details: &str) -> Failure {
    Failure::new(code::INVALID_CONFIG, text).with_details(details)
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::flannel::Flannel;

    fn env(networks: &[&str], subnets: &[&str], mtu: u32, masquerades: bool) -> SubnetEnv {
        let all = |nets: &[&str]| nets.iter().map(|net| net.parse().unwrap()).collect();
        SubnetEnv { networks: all(networks), subnets: all(subnets), mtu, masquerades }
    }

    /// A node of flannel's own manifest.
    fn of_manifest() -> SubnetEnv {
        env(&["10.244.0.0/16"], &["10.244.0.0/24"], 1450, true)
    }

    fn delegate(keys: &Value, subnet: &SubnetEnv) -> Result<PluginConfig, Failure> {
        let mut config = json!({ "name": "cbr0", "type": "flannel", "cniVersion": "0.3.1" });
        config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        let config = config.to_string();
        crate::judge::ask(&Flannel, config.as_bytes(), |call| {
            Config::of(call)?.delegate(call, subnet)
        })
        .unwrap()
    }

    /// Compares without regard to the order of keys.
    fn check(keys: &Value, subnet: &SubnetEnv, expected: Expect) {
        let made = delegate(keys, subnet).unwrap();
        let made: Value = serde_json::from_slice(&made.object.to_vec()).unwrap();
        expected.assert_eq(&sorted(&made).to_string());
    }

    /// Sorts the keys of every object, with any features of serde_json.
    fn sorted(value: &Value) -> Value {
        match value {
            Value::Object(keys) => {
                let keys: std::collections::BTreeMap<_, _> = keys.iter().collect();
                keys.into_iter().map(|(key, value)| (key.clone(), sorted(value))).collect()
            }
            Value::Array(all) => all.iter().map(sorted).collect(),
            other => other.clone(),
        }
    }

    /// What flannel's plugin left in /var/lib/cni/flannel on nodes with its manifest, byte for byte
    /// (published by several users).
    #[test]
    fn the_manifests_delegate_is_flannels() {
        check(
            &json!({ "delegate": { "hairpinMode": true, "isDefaultGateway": true } }),
            &of_manifest(),
            expect![[
                r#"{"cniVersion":"0.3.1","hairpinMode":true,"ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.244.0.0/24"}]],"routes":[{"dst":"10.244.0.0/16"}],"type":"host-local"},"isDefaultGateway":true,"isGateway":true,"mtu":1450,"name":"cbr0","type":"bridge"}"#
            ]],
        );
    }

    /// The expectations of flannel's own tests (flannel-io/cni-plugin flannel_linux_test.go) and of
    /// its README.
    #[test]
    fn the_delegates_of_flannels_tests_are_made() {
        let plain = env(&["10.1.0.0/16"], &["10.1.17.0/24"], 1472, true);
        let keys = json!({ "cniVersion": "" });
        check(
            &json!({ "cniVersion": "", "delegate": null, "ipam": { "routes": null } }),
            &plain,
            expect![[
                r#"{"ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.1.17.0/24"}]],"routes":[{"dst":"10.1.0.0/16"}],"type":"host-local"},"isGateway":true,"mtu":1472,"name":"cbr0","type":"bridge"}"#
            ]],
        );
        check(
            &keys,
            &env(&["10.1.0.0/16", "192.168.0.0/16"], &["10.1.17.0/24"], 1472, true),
            expect![[
                r#"{"ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.1.17.0/24"}]],"routes":[{"dst":"10.1.0.0/16"},{"dst":"192.168.0.0/16"}],"type":"host-local"},"isGateway":true,"mtu":1472,"name":"cbr0","type":"bridge"}"#
            ]],
        );
        check(
            &keys,
            &env(&["fc00::/48"], &["fc00::/64"], 1472, true),
            expect![[
                r#"{"ipMasq":false,"ipam":{"ranges":[[{"subnet":"fc00::/64"}]],"routes":[{"dst":"fc00::/48"}],"type":"host-local"},"isGateway":true,"mtu":1472,"name":"cbr0","type":"bridge"}"#
            ]],
        );
        check(
            &keys,
            &env(&["10.1.0.0/16", "fc00::/48"], &["10.1.17.0/24", "fc00::/64"], 1472, true),
            expect![[
                r#"{"ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.1.17.0/24"}],[{"subnet":"fc00::/64"}]],"routes":[{"dst":"10.1.0.0/16"},{"dst":"fc00::/48"}],"type":"host-local"},"isGateway":true,"mtu":1472,"name":"cbr0","type":"bridge"}"#
            ]],
        );
        let ipam = json!({
            "type": "my-ipam", "unknown-param": "unknown-value", "ranges": "replaced",
            "routes": [{ "dst": "10.96.0.0/12" }, { "dst": "192.168.244.0/24", "gw": "10.1.17.20" }],
        });
        check(
            &json!({ "cniVersion": "", "ipam": ipam }),
            &plain,
            expect![[
                r#"{"ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.1.17.0/24"}]],"routes":[{"dst":"10.96.0.0/12"},{"dst":"192.168.244.0/24","gw":"10.1.17.20"},{"dst":"10.1.0.0/16"}],"type":"my-ipam","unknown-param":"unknown-value"},"isGateway":true,"mtu":1472,"name":"cbr0","type":"bridge"}"#
            ]],
        );
    }

    #[test]
    fn what_the_delegate_says_itself_stays() {
        let masquerading = env(&["10.1.0.0/16"], &["10.1.17.0/24"], 1472, false);
        check(
            &json!({ "delegate": { "bridge": "mynet0", "mtu": 1400, "ipMasq": null, "isGateway": false } }),
            &masquerading,
            expect![[
                r#"{"bridge":"mynet0","cniVersion":"0.3.1","ipMasq":null,"ipam":{"ranges":[[{"subnet":"10.1.17.0/24"}]],"routes":[{"dst":"10.1.0.0/16"}],"type":"host-local"},"isGateway":false,"mtu":1400,"name":"cbr0","type":"bridge"}"#
            ]],
        );
        // Another plugin is no gateway by itself.
        check(
            &json!({ "delegate": { "type": "ipvlan", "master": "eth0", "big": 9_007_199_254_740_993_u64 } }),
            &masquerading,
            expect![[
                r#"{"big":9007199254740993,"cniVersion":"0.3.1","ipMasq":true,"ipam":{"ranges":[[{"subnet":"10.1.17.0/24"}]],"routes":[{"dst":"10.1.0.0/16"}],"type":"host-local"},"master":"eth0","mtu":1472,"name":"cbr0","type":"ipvlan"}"#
            ]],
        );
    }

    /// Flannel's plugin asks for keys in their own spelling, and adds its key beside another
    /// spelling; of the two the delegate reads flannel's.
    #[test]
    fn a_key_in_another_case_is_replaced() {
        let made = delegate(&json!({ "delegate": { "MTU": 1400, "Name": "x" } }), &of_manifest());
        let object = made.unwrap().object;
        assert_eq!(object.get_ignore_case("mtu").unwrap().get(), "1450");
        assert_eq!(object.get_ignore_case("name").unwrap().get(), "\"cbr0\"");
    }

    #[test]
    fn the_runtimes_arguments_are_passed_on() {
        let keys = json!({
            "capabilities": { "mac": true }, "runtimeConfig": { "mac": "02:00:00:00:00:07" },
            "delegate": { "capabilities": { "ips": true }, "runtimeConfig": { "mac": "mine" } },
        });
        let made = delegate(&keys, &of_manifest()).unwrap();
        let text = |key| made.object.get(key).unwrap().get();
        assert_eq!(text("runtimeConfig"), r#"{"mac":"02:00:00:00:00:07"}"#);
        assert_eq!(text("capabilities"), r#"{"ips":true}"#);
        let made = delegate(&json!({ "runtimeConfig": null }), &of_manifest()).unwrap();
        assert!(made.object.get("runtimeConfig").is_none());
    }

    #[test]
    fn every_version_is_passed_on() {
        for version in cni::Version::ALL {
            let keys = json!({ "cniVersion": version.as_str() });
            let made = delegate(&keys, &of_manifest()).unwrap();
            let made: String = from_raw(made.object.get("cniVersion").unwrap()).unwrap();
            assert_eq!(made, version.as_str());
        }
    }

    #[test]
    fn what_flannels_plugin_refuses_is_refused_in_its_words() {
        for (keys, words) in [
            (
                json!({ "delegate": { "type": 5 } }),
                "'delegate' dictionary, if present, must have (string) 'type' field",
            ),
            (
                json!({ "delegate": { "type": null } }),
                "'delegate' dictionary, if present, must have (string) 'type' field",
            ),
            (
                json!({ "delegate": { "name": "x" } }),
                "'delegate' dictionary must not have 'name' field, it'll be set by flannel",
            ),
            (
                json!({ "delegate": { "ipam": {} } }),
                "'delegate' dictionary must not have 'ipam' field, it'll be set by flannel",
            ),
            (json!({ "ipam": { "routes": {} } }), "failed to parse ipam.routes: "),
            (json!({ "delegate": { "type": "../bridge" } }), ""),
            (
                json!({ "delegate": { "type": "flannel" } }),
                "plugin \"flannel\" cannot delegate to itself",
            ),
        ] {
            let failure = delegate(&keys, &of_manifest()).unwrap_err();
            assert!(failure.message().starts_with(words), "{keys}: {failure}");
            assert_eq!(failure.code(), code::INVALID_CONFIG, "{keys}: {failure}");
        }
    }
}
