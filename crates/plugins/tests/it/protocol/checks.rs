//! The checks before a plugin does anything.

use std::io::{self, Read};

use cni::{AddResult, Error, Version, code};
use cni_plugin::{Call, Info, Plugin};
use serde_json::json;

use super::{lacks, supporting};
use crate::support::{BUILD, Node, Run};

/// A standard input that no plugin may read.
#[derive(Debug)]
struct UntouchedInput;

impl Read for UntouchedInput {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        panic!("standard input was read")
    }
}

fn every_plugin() -> impl Iterator<Item = &'static str> {
    plugins::all().iter().map(|plugin| plugin.name())
}

#[test]
fn version_reply() {
    for plugin in plugins::all() {
        let run = Run::bare(plugin.name(), "VERSION").env(|env| {
            *env = cni::CallEnv { command: env.command.clone(), ..cni::CallEnv::default() };
        });
        let answer = run.call_reading(&mut io::empty());
        assert!(answer.succeeded(), "{answer:?}");
        let listed: Vec<_> = plugin.versions().iter().map(|v| format!("\"{v}\"")).collect();
        assert_eq!(
            answer.stdout(),
            format!(
                "{{\"cniVersion\":\"{}\",\"supportedVersions\":[{}]}}\n",
                Version::CURRENT,
                listed.join(",")
            ),
        );
    }
}

#[test]
fn version_lists_per_plugin() {
    for plugin in plugins::all() {
        let first = match plugin.name() {
            "bandwidth" => Version::V0_3_0,
            "vrf" => Version::V0_3_1,
            "firewall" => Version::V0_4_0,
            _ => Version::V0_1_0,
        };
        assert_eq!(plugin.versions(), Version::starting_from(first), "{}", plugin.name());
    }
}

#[test]
fn about_text() {
    for plugin in plugins::all() {
        let name = plugin.name();
        let answer = Run::bare(name, "").call_reading(&mut UntouchedInput);
        assert!(answer.succeeded());
        assert_eq!(answer.stdout(), "");
        let versions: Vec<_> = plugin.versions().iter().map(|v| v.as_str()).collect();
        let versions = versions.join(", ");
        assert_eq!(
            answer.stderr(),
            format!("CNI {name} plugin {BUILD}\nCNI protocol versions supported: {versions}\n")
        );
    }
}

#[test]
fn missing_env_list() {
    for plugin in every_plugin() {
        let missing = |verb: &str, words: &str| {
            let run = Run::bare(plugin, verb).env(|env| {
                *env = cni::CallEnv { command: env.command.clone(), ..cni::CallEnv::default() };
            });
            let error = run.call_reading(&mut UntouchedInput).error();
            assert_eq!(error.code, code::INVALID_ENVIRONMENT);
            assert_eq!(error.msg, format!("required env variables [{words}] missing"));
        };
        missing("ADD", "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH");
        missing("CHECK", "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH");
        missing("DEL", "CNI_CONTAINERID,CNI_IFNAME,CNI_PATH");
        missing("GC", "CNI_PATH");
        missing("STATUS", "CNI_PATH");
    }
}

#[test]
fn del_without_netns() {
    let node = Node::new("del-no-netns");
    for plugin in every_plugin() {
        let ipam =
            json!({ "type": "host-local", "subnet": "192.0.2.0/24", "dataDir": node.dir("ipam") });
        node.run(plugin, "DEL").config(json!({ "ipam": ipam })).call().silent();
    }
}

#[test]
fn container_id_charset() {
    for plugin in every_plugin() {
        for id in ["a b", "-a", "a/b", "ä", "a\n"] {
            let error = Run::bare(plugin, "ADD")
                .id(id)
                .netns("/n")
                .call_reading(&mut UntouchedInput)
                .error();
            assert_eq!(error.code, code::INVALID_ENVIRONMENT);
            assert_eq!(error.msg, "invalid characters in containerID");
            assert_eq!(error.details, id);
        }
    }
}

#[test]
fn ifname_rules() {
    let separators = "interface name contains / or : or whitespace characters";
    let rows = [
        ("exactly16bytes__", "interface name is too long"),
        (".", "interface name is . or .."),
        ("..", "interface name is . or .."),
        ("a/b", separators),
        ("a:b", separators),
        ("a b", separators),
        ("a\u{a0}b", separators),
    ];
    for plugin in every_plugin() {
        for (ifname, words) in rows {
            let run = Run::bare(plugin, "ADD").ifname(ifname).netns("/n");
            let error = run.call_reading(&mut UntouchedInput).error();
            assert_eq!((error.code, error.msg.as_str()), (code::INVALID_ENVIRONMENT, words));
        }
    }
    // A malformed value is reported before a missing one.
    let run = Run::bare("loopback", "ADD").ifname("a/b").path("");
    run.call_reading(&mut UntouchedInput).fails(code::INVALID_ENVIRONMENT, separators);
}

#[test]
fn unknown_verb() {
    for plugin in every_plugin() {
        for verb in ["NOPE", "add", "VERSION "] {
            let error = Run::bare(plugin, verb).call().error();
            assert_eq!(error.code, code::INVALID_ENVIRONMENT);
            assert_eq!(error.msg, format!("unknown CNI_COMMAND: {verb}"));
        }
        // A bad configuration is reported first.
        Run::bare(plugin, "NOPE")
            .stdin("{}")
            .call()
            .fails(code::INVALID_CONFIG, "missing network name");
    }
}

#[test]
fn bad_json() {
    for plugin in every_plugin() {
        for verb in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
            for text in ["{", "", "[]", "{\"name\":\"n\"} x", "{\"name\":5}", "\u{feff}{}"] {
                let answer = Run::bare(plugin, verb).netns("/n").stdin(text).call();
                answer.fails(code::DECODE_FAILURE, "error unmarshall network config: ");
            }
            let answer = Run::bare(plugin, verb).netns("/n").stdin(*b"{\"name\":\"\xff\"}").call();
            answer.fails(code::DECODE_FAILURE, "error unmarshall network config: ");
        }
    }
}

#[test]
fn stdin_that_cannot_be_read() {
    #[derive(Debug)]
    struct BrokenInput;
    impl Read for BrokenInput {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("cable cut"))
        }
    }
    let answer = Run::bare("loopback", "STATUS").call_reading(&mut BrokenInput);
    answer.fails(code::IO_FAILURE, "error reading from stdin: cable cut");
}

#[test]
fn missing_network_name() {
    for plugin in every_plugin() {
        for verb in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
            for text in ["{}", "{\"name\":\"\"}", "{\"name\":null}"] {
                let answer = Run::bare(plugin, verb).netns("/n").stdin(text).call();
                let error = answer.error();
                assert_eq!(
                    (error.code, error.msg.as_str()),
                    (code::INVALID_CONFIG, "missing network name")
                );
            }
        }
    }
}

#[test]
fn bad_network_name() {
    for plugin in every_plugin() {
        for verb in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
            let error = Run::bare(plugin, verb).netns("/n").network("te%st").call().error();
            assert_eq!(error.code, code::INVALID_CONFIG);
            assert_eq!(error.msg, "invalid characters found in network name");
            assert_eq!(error.details, "te%st");
        }
    }
}

#[test]
fn version_must_match_exactly() {
    for plugin in plugins::all() {
        let listed: Vec<_> = plugin.versions().iter().map(|v| format!("\"{v}\"")).collect();
        for version in ["1.0", "1.0.0.0", "0.5.0", "1.1.1", "2.0.0", "x"] {
            let answer = Run::bare(plugin.name(), "ADD").netns("/n").version(version).call();
            let error = answer.error();
            assert_eq!(error.code, code::INCOMPATIBLE_VERSION);
            assert_eq!(error.msg, "incompatible CNI versions");
            assert_eq!(
                error.details,
                format!("config is \"{version}\", plugin supports [{}]", listed.join(" "))
            );
        }
        if !plugin.versions().contains(&Version::V0_1_0) {
            // No version means 0.1.0.
            let answer = Run::bare(plugin.name(), "ADD").netns("/n").without("cniVersion").call();
            answer.fails(code::INCOMPATIBLE_VERSION, "config is \"0.1.0\"");
        }
    }
}

/// `firewall` does not support 0.3.1, so ADD of such a list fails at it, behind `bridge`. The
/// runtime then calls DEL, last plugin first, and stops at the first that fails.
#[test]
fn del_takes_every_version() {
    let node = Node::new("del-versions");
    for plugin in plugins::all() {
        let ipam =
            json!({ "type": "host-local", "subnet": "192.0.2.0/24", "dataDir": node.dir("ipam") });
        for version in Version::ALL {
            let run = node.run(plugin.name(), "DEL").version(version.as_str());
            run.config(json!({ "ipam": ipam })).call().silent();
        }
        let run = node.run(plugin.name(), "DEL").without("cniVersion");
        run.config(json!({ "ipam": ipam })).call().silent();
    }
}

#[test]
fn check_gate() {
    for plugin in every_plugin() {
        for version in ["0.3.1", "0.1.0", "0.2.0", "", "0.3.9"] {
            let error = Run::bare(plugin, "CHECK").netns("/n").version(version).call().error();
            assert_eq!(error.code, code::INCOMPATIBLE_VERSION);
            assert_eq!(error.msg, "config version does not allow CHECK");
        }
    }
}

#[test]
fn gc_status_gate() {
    for plugin in every_plugin() {
        for verb in ["GC", "STATUS"] {
            for version in ["1.0.0", "0.4.0", ""] {
                let error = Run::bare(plugin, verb).version(version).call().error();
                assert_eq!(error.code, code::INCOMPATIBLE_VERSION);
                assert_eq!(error.msg, format!("config version does not allow {verb}"));
            }
        }
    }
}

#[test]
fn future_version_gate() {
    for plugin in every_plugin() {
        for verb in ["GC", "STATUS", "CHECK"] {
            let error = Run::bare(plugin, verb).netns("/n").version("9.9.0").call().error();
            assert_eq!(error.code, code::INCOMPATIBLE_VERSION);
            assert_eq!(error.msg, format!("plugin version does not allow {verb}"));
        }
    }
}

#[test]
fn unparsable_version() {
    for plugin in every_plugin() {
        for verb in ["CHECK", "GC", "STATUS"] {
            for version in ["abc", "1.0.0.0", "1.x"] {
                let error = Run::bare(plugin, verb).netns("/n").version(version).call().error();
                assert_eq!(error.code, code::DECODE_FAILURE, "{plugin} {verb} {version}");
            }
        }
    }
}

#[test]
fn unimplemented_verb_is_a_no_op() {
    Run::bare("loopback", "STATUS").call().silent();
    Run::bare("loopback", "GC").call().silent();
}

#[test]
fn netns_guard() {
    let node = Node::new("guard");
    let own = node.lab.netns_path();
    let before = testkit::Snapshot::take(&node.lab);
    let prev = json!({ "cniVersion": "1.1.0" });
    for plugin in supporting(Version::V1_1_0) {
        let run = |verb| node.run(plugin.name(), verb).netns(&own).prev(&prev);
        let error = run("ADD").config(json!({ "mtu": 1400 })).call().error();
        assert_eq!(error.code, code::INVALID_NETNS, "{}", plugin.name());
        assert_eq!(error.msg, "plugin's netns and netns from CNI_NETNS should not be the same");
        // DEL works without a namespace, as far as its configuration allows.
        let stdout = run("DEL").config(json!({ "mtu": 1400 })).call().stdout();
        assert!(!stdout.contains("should not be the same"), "{}: {stdout}", plugin.name());
    }
    before.assert_same(&testkit::Snapshot::take(&node.lab));
}

#[test]
fn netns_guard_override() {
    let node = Node::new("override");
    node.sh("ip link set lo down");
    let own = node.lab.netns_path();
    for said in ["1", "TRUE", "true"] {
        let run = node.run("loopback", "ADD").netns(&own);
        run.env(|env| said.clone_into(&mut env.netns_override)).call().ok();
        assert!(node.sh("ip link show lo").contains(",UP"));
        let run = node.run("loopback", "DEL").netns(&own);
        run.env(|env| said.clone_into(&mut env.netns_override)).call().silent();
    }
    for said in ["0", "yes", "false"] {
        let run = node.run("loopback", "ADD").netns(&own);
        let answer = run.env(|env| said.clone_into(&mut env.netns_override)).call();
        answer.fails(code::INVALID_NETNS, "should not be the same");
    }
}

#[test]
fn error_object_shape() {
    if lacks("error_object_shape", &["loopback"]) {
        return;
    }
    let answer = Run::bare("loopback", "ADD").netns("/nonexistent/netns").version("0.4.0").call();
    assert_eq!(answer.output.status, cni_invoke::Status::Exit(1));
    expect_test::expect![[r#"
        {
            "cniVersion": "0.4.0",
            "code": 8,
            "msg": "failed to open netns \"/nonexistent/netns\": failed to Statfs \"/nonexistent/netns\": no such file or directory"
        }"#]]
    .assert_eq(&answer.stdout());
    let answer = Run::bare("loopback", "ADD").netns("/n").id("a b").call();
    expect_test::expect![[r#"
        {
            "code": 4,
            "msg": "invalid characters in containerID",
            "details": "a b"
        }"#]]
    .assert_eq(&answer.stdout());
}

/// `error object shape`: code 999 means a bug of ours, and such a bug does not end the calling
/// process.
#[test]
fn a_plugin_that_panics_reports_a_bug() {
    #[derive(Debug)]
    struct Buggy;
    impl Plugin for Buggy {
        fn info(&self) -> &'static Info {
            const { &Info::new("buggy") }
        }
        fn add(&self, _: &Call<'_>) -> Result<AddResult, Error> {
            panic!("deliberate")
        }
        fn del(&self, _: &Call<'_>) -> Result<(), Error> {
            panic!("deliberate")
        }
        fn check(&self, _: &Call<'_>) -> Result<(), Error> {
            panic!("deliberate")
        }
        fn gc(&self, _: &Call<'_>) -> Result<(), Error> {
            panic!("deliberate")
        }
        fn status(&self, _: &Call<'_>) -> Result<(), Error> {
            panic!("deliberate")
        }
    }
    for verb in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
        let error = Run::bare("buggy", verb).netns("/n").valid(&[]).call_of(&Buggy).error();
        assert_eq!(error.code, code::INTERNAL, "{error}");
        assert!(error.msg.contains("buggy"), "{error}");
    }
}
