//! The cache: libcni's format, whatever program wrote it.

use std::os::unix::fs::PermissionsExt;

use cni::{Args, AttachmentKey, ContainerId, IfName, NetworkName};
use netwright_cni_runtime::{Attachment, Cache, CacheError, DEFAULT_CACHE_DIR, Runtime};
use serde_json::{Value, json};

use crate::lab::{Lab, chain, container, list, network};

fn key(network: &str, container: &str) -> AttachmentKey {
    AttachmentKey {
        network: NetworkName::new(network).unwrap(),
        container_id: ContainerId::new(container).unwrap(),
        ifname: IfName::new("eth0").unwrap(),
    }
}

/// The file that libcni wrote for `cnitool add mynet /run/netns/a` with `CAP_ARGS`, in its order of
/// keys.
fn libcni_sample() -> String {
    // {"cniVersion":"1.1.0","name":"mynet","plugins":[{"type":"a"}]}
    let config =
        "eyJjbmlWZXJzaW9uIjoiMS4xLjAiLCJuYW1lIjoibXluZXQiLCJwbHVnaW5zIjpbeyJ0eXBlIjoiYSJ9XX0=";
    format!(
        r#"{{"kind":"cniCacheV1","containerId":"cnitool-a145bc1ace582bff43bd","config":"{config}","ifName":"eth0","networkName":"mynet","netns":"/run/netns/a","cniArgs":[["K","V"]],"capabilityArgs":{{"portMappings":[{{"hostPort":8080}}],"unused":1}},"result":{{"cniVersion":"1.1.0","interfaces":[{{"name":"eth0","sandbox":"/run/netns/a"}}],"ips":[{{"address":"192.0.2.2/24","interface":0}}]}}}}"#
    )
}

const SAMPLE_NAME: &str = "mynet-cnitool-a145bc1ace582bff43bd-eth0";

#[test]
fn add_writes_cache() {
    let lab = Lab::new(&["a"]);
    lab.runtime().add_list(&chain("1.0.0", &["a"]), &container("c1"), None).unwrap();
    assert_eq!(lab.cached(), ["net-c1-eth0"]);
    let mode = |path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(lab.results()), 0o700);
    assert_eq!(mode(lab.path().join("cache")), 0o700);
    assert_eq!(mode(lab.results().join("net-c1-eth0")), 0o600);
}

#[test]
fn cache_v1_content() {
    let lab = Lab::new(&["a"]);
    let document = br#"{ "cniVersion":"1.1.0","name":"mynet","plugins":[{"type":"a"}]}"#;
    let list = cni::NetworkList::parse(document).unwrap();
    let container = container("c1")
        .with_args(Args::parse("K=V;L=").unwrap())
        .with_capability("unused", &1)
        .unwrap();
    lab.runtime().add_list(&list, &container, None).unwrap();
    let text = std::fs::read_to_string(lab.results().join("mynet-c1-eth0")).unwrap();
    // After libcni's keys; libcni ignores others.
    let boot = state::boot_id().unwrap();
    let ours = format!(r#","netwright/boot-id":"{boot}"}}"#);
    assert_eq!(text.matches(&ours).count(), 1, "{text}");
    let text = text.replace(&ours, "}");
    assert_eq!(
        text,
        concat!(
            r#"{"kind":"cniCacheV1","containerId":"c1","config":"eyAiY25pVmVyc2lvbiI6IjEuMS4wIiw"#,
            r#"ibmFtZSI6Im15bmV0IiwicGx1Z2lucyI6W3sidHlwZSI6ImEifV19","ifName":"eth0","#,
            r#""networkName":"mynet","netns":"/run/netns/nwt-c1","cniArgs":[["K","V"],["L",""]],"#,
            r#""capabilityArgs":{"unused":1},"result":{"cniVersion":"1.1.0","#,
            r#""ips":[{"version":"4","address":"192.0.2.2/24"}],"dns":{"domain":"a"}}}"#,
        )
    );
}

#[test]
fn a_file_of_libcni_is_used() {
    let lab = Lab::new(&["a"]);
    lab.write_cached(SAMPLE_NAME, libcni_sample());
    let runtime = lab.runtime();
    let listing = runtime.cached_attachments(None).unwrap();
    let [cached] = listing.attachments.as_slice() else { panic!("{listing:?}") };
    assert_eq!(cached.key(), key("mynet", "cnitool-a145bc1ace582bff43bd"));
    assert_eq!(cached.attachment.netns, "/run/netns/a");
    assert_eq!(cached.result().unwrap().unwrap().ips.len(), 1);
    runtime.del_cached(cached, None).unwrap();
    let config = lab.config("a", "DEL");
    assert_eq!(config["prevResult"]["ips"][0]["address"], "192.0.2.2/24");
    assert_eq!(lab.variable("a", "DEL", "CNI_ARGS").as_deref(), Some("K=V"));
    assert!(lab.cached().is_empty());
}

#[test]
fn only_garbage_is_rewritten() {
    let lab = Lab::new(&["a"]);
    let (sample, file) = (libcni_sample(), lab.results().join(SAMPLE_NAME));
    lab.write_cached(SAMPLE_NAME, sample.clone());
    let runtime = lab.runtime();
    let cached = runtime.cached_attachments(None).unwrap().attachments.remove(0);
    let half = sample.get(..sample.len() / 2).unwrap();
    let bad_result = sample.replace(r#""ips":["#, r#""ips":[7,"#);
    for garbage in ["", "null", r#"{"kind":"#, half, &bad_result] {
        std::fs::write(&file, garbage).unwrap();
        assert!(runtime.cache().rewrite(&cached).unwrap(), "{garbage}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), sample);
    }
    let begun = format!("{}}}", sample.split_once(r#","result":"#).unwrap().0);
    let anothers = sample.replace(r#""eth0""#, r#""eth1""#);
    let bare = r#"{"cniVersion":"0.4.0","ips":[]}"#;
    for others in [&sample, &begun, &anothers, bare, r#"{"kind":"another"}"#] {
        std::fs::write(&file, others).unwrap();
        assert!(!runtime.cache().rewrite(&cached).unwrap(), "{others}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), *others);
    }
    std::fs::remove_file(&file).unwrap();
    assert!(!runtime.cache().rewrite(&cached).unwrap());
    assert!(!file.exists());
}

/// A file of podman 4.3.1: libcni attached the container, and we detach it.
#[test]
fn a_file_of_podman_is_used() {
    let id = "0d3ecee49aca873032a04a4a5e95ed9de5c6a37b6f1d4911aca822c71e79e538";
    let plugins = ["bridge", "portmap", "firewall", "tuning"];
    let lab = Lab::new(&plugins);
    lab.write_cached(&format!("n1-{id}-eth0"), include_str!("data/libcni-podman-4.3.1.json"));
    let runtime = lab.runtime();
    let cached = runtime.cached_attachment(&key("n1", id)).unwrap().unwrap();
    runtime.del_cached(&cached, None).unwrap();
    assert_eq!(lab.calls(), ["DEL tuning", "DEL firewall", "DEL portmap", "DEL bridge"]);
    let ports = &lab.config("portmap", "DEL")["runtimeConfig"]["portMappings"];
    assert_eq!(*ports, json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]));
    assert_eq!(lab.config("bridge", "DEL")["prevResult"]["ips"][0]["address"], "192.0.2.2/24");
    let variable = |name: &str| lab.variable("bridge", "DEL", name).unwrap();
    assert_eq!(variable("CNI_ARGS"), "IgnoreUnknown=1;K8S_POD_NAME=w");
    // The file does not record it separately, but the result has it.
    assert_eq!(variable("CNI_NETNS"), "/run/netns/netns-6e2da26a-e2da-5d11-322a-1bdea62b59ec");
    assert!(lab.cached().is_empty());
}

#[test]
fn legacy_cache_read() {
    let lab = Lab::new(&["a"]);
    let legacy =
        r#"{"cniVersion":"0.4.0","ips":[{"version":"4","address":"192.0.2.2/24"}],"dns":{}}"#;
    lab.write_cached("net-c1-eth0", legacy);
    let runtime = lab.runtime();
    runtime.check_list(&chain("0.4.0", &["a"]), &container("c1"), None).unwrap();
    assert_eq!(lab.stdin("a", "CHECK").matches(legacy).count(), 1, "as it was");
    runtime.del_list(&chain("1.0.0", &["a"]), &container("c1"), None).unwrap();
    assert_eq!(
        lab.config("a", "DEL")["prevResult"],
        json!({"cniVersion": "1.0.0", "ips": [{"address": "192.0.2.2/24"}]})
    );
    assert!(lab.cached().is_empty());
}

#[test]
fn cache_dir_precedence() {
    let lab = Lab::new(&[]);
    let runtime = lab.runtime();
    assert_eq!(runtime.cache().results_dir(), lab.results());
    assert_eq!(DEFAULT_CACHE_DIR, "/var/lib/cni");
    let executor = std::sync::Arc::new(cni_invoke::Exec::default());
    let default = Runtime::new(["/opt/cni/bin"], executor);
    assert_eq!(default.cache().results_dir(), std::path::Path::new("/var/lib/cni/results"));
}

#[test]
fn cached_config() {
    let lab = Lab::new(&["a"]);
    lab.write_cached(SAMPLE_NAME, libcni_sample());
    let runtime = lab.runtime();
    let id = "cnitool-a145bc1ace582bff43bd";
    let cached = runtime.cached_attachment(&key("mynet", id)).unwrap().unwrap();
    assert_eq!(cached.config, br#"{"cniVersion":"1.1.0","name":"mynet","plugins":[{"type":"a"}]}"#);
    assert_eq!(cached.attachment.args.get("K"), Some("V"));
    assert_eq!(cached.attachment.capability_args["unused"].get(), "1");
    assert_eq!(cached.list().unwrap().plugins[0].plugin_type, "a");

    assert!(runtime.cached_attachment(&key("mynet", "none")).unwrap().is_none());
    lab.write_cached("mynet-odd-eth0", r#"{"kind":"cniCacheV9"}"#);
    let error = runtime.cached_attachment(&key("mynet", "odd")).unwrap_err();
    assert!(matches!(error, CacheError::Kind { .. }));
    let start = "read cached network \"mynet\" config has wrong kind: cniCacheV9";
    assert!(error.to_string().starts_with(start), "{error}");
    lab.write_cached("mynet-bad-eth0", "{");
    let error = runtime.cached_attachment(&key("mynet", "bad")).unwrap_err();
    let start = "failed to unmarshal cached network \"mynet\" config: ";
    assert!(error.to_string().starts_with(start), "{error}");
}

/// libcni caches the input of a single-plugin call: one plugin's object.
#[test]
fn a_cached_single_configuration_is_a_list_of_one() {
    let lab = Lab::new(&["a"]);
    // {"cniVersion":"1.0.0","name":"net","type":"a"}
    let config = "eyJjbmlWZXJzaW9uIjoiMS4wLjAiLCJuYW1lIjoibmV0IiwidHlwZSI6ImEifQ==";
    lab.write_cached(
        "net-c1-eth0",
        json!({"kind": "cniCacheV1", "containerId": "c1", "ifName": "eth0", "networkName": "net",
            "config": config, "result": {"cniVersion": "1.0.0"}})
        .to_string(),
    );
    let runtime = lab.runtime();
    let cached = runtime.cached_attachment(&key("net", "c1")).unwrap().unwrap();
    runtime.del_cached(&cached, None).unwrap();
    assert_eq!(lab.calls(), ["DEL a"]);
}

#[test]
fn attachments_listing() {
    let lab = Lab::new(&["a"]);
    let runtime = lab.runtime();
    let list = chain("1.0.0", &["a"]);
    for id in ["c2", "c1", "c10", "x-c1-y"] {
        runtime.add_list(&list, &container(id), None).unwrap();
    }
    lab.write_cached("junk", "\0\u{1}");
    lab.write_cached("empty-c1-eth0", "");
    lab.write_cached("net-legacy-eth0", r#"{"cniVersion":"1.0.0"}"#);
    lab.write_cached("copy-of-net-c1-eth0", lab.read_cached("net-c1-eth0").to_string());
    lab.write_cached(".net-c9-eth0.1.1.tmp", lab.read_cached("net-c1-eth0").to_string());
    std::fs::create_dir(lab.results().join("net-dir-eth0")).unwrap();
    let ids = |filter: Option<&str>| {
        let filter = filter.map(|id| ContainerId::new(id).unwrap());
        let listing = runtime.cached_attachments(filter.as_ref()).unwrap();
        let ids = listing.attachments.iter();
        ids.map(|cached| cached.attachment.container_id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(ids(None), ["c1", "c10", "c2", "x-c1-y"]);
    assert_eq!(ids(Some("c1")), ["c1"]);
    assert_eq!(ids(Some("c3")), Vec::<String>::new());
    let listing = runtime.cached_attachments(None).unwrap();
    let reasons: Vec<String> = listing
        .passed_over
        .iter()
        .map(|file| {
            format!("{}: {}", file.path.file_name().unwrap().to_string_lossy(), file.reason)
        })
        .collect();
    let dir = lab.results();
    assert_eq!(
        reasons,
        [
            "copy-of-net-c1-eth0: its name does not match the attachment in it, net/c1/eth0"
                .to_owned(),
            "empty-c1-eth0: the file is empty".to_owned(),
            "junk: it is not a JSON object".to_owned(),
            format!("net-dir-eth0: read {:?}: not a regular file", dir.join("net-dir-eth0")),
            "net-legacy-eth0: it holds a result without its attachment".to_owned(),
        ]
    );
    let nowhere = Runtime::new(["/x"], std::sync::Arc::new(cni_invoke::Exec::default()))
        .with_cache(Cache::new(lab.path().join("nowhere")));
    assert!(nowhere.cached_attachments(None).unwrap().attachments.is_empty());
}

/// `a-b` + `c` and `a` + `b-c` have the same file name in libcni: there the second overwrites the
/// first.
#[test]
fn attachments_of_the_same_file_name_do_not_touch_each_other() {
    let lab = Lab::new(&["a"]);
    let runtime = lab.runtime();
    let (one, two) = (network("a-b", "1.0.0", &["a"]), network("a", "1.0.0", &["a"]));
    runtime.add_list(&one, &container("c"), None).unwrap();
    runtime.add_list(&two, &container("b-c"), None).unwrap();
    let other = format!("a-b-c-eth0.{}", key("a", "b-c").hash());
    assert_eq!(lab.cached(), ["a-b-c-eth0".to_owned(), other.clone()]);
    let listing = runtime.cached_attachments(None).unwrap();
    assert_eq!(
        listing.attachments.iter().map(|cached| cached.key().to_string()).collect::<Vec<_>>(),
        ["a-b/c/eth0", "a/b-c/eth0"]
    );
    assert!(listing.passed_over.is_empty());
    // Each finds its own file.
    let netns = |network: &str, id: &str| {
        let cached = runtime.cached_attachment(&key(network, id)).unwrap();
        cached.map(|cached| cached.attachment.netns)
    };
    assert_eq!(netns("a-b", "c").as_deref(), Some("/run/netns/nwt-c"));
    assert_eq!(netns("a", "b-c").as_deref(), Some("/run/netns/nwt-b-c"));
    // And each removes its own, in either order.
    runtime.del_list(&one, &container("c"), None).unwrap();
    assert_eq!(lab.cached(), [other]);
    assert_eq!(netns("a-b", "c"), None);
    assert_eq!(netns("a", "b-c").as_deref(), Some("/run/netns/nwt-b-c"));
    runtime.del_list(&two, &container("b-c"), None).unwrap();
    assert!(lab.cached().is_empty());
}

#[test]
fn attachments_of_the_same_file_name_at_once() {
    let lab = Lab::new(&["a"]);
    let runtime = lab.runtime();
    let names = ["x-x-x-x", "x-x-x", "x-x", "x"];
    std::thread::scope(|scope| {
        for (index, name) in names.iter().enumerate() {
            let runtime = &runtime;
            let id = ["x"; 5][..=index].join("-");
            scope.spawn(move || {
                runtime.add_list(&network(name, "1.0.0", &["a"]), &container(&id), None).unwrap();
            });
        }
    });
    let listing = runtime.cached_attachments(None).unwrap();
    assert_eq!(listing.attachments.len(), 4, "{listing:?}");
    assert!(listing.attachments.iter().all(|cached| cached.result.is_some()));
}

/// The record exists before the first plugin runs, so that a crash loses nothing.
#[test]
fn an_attachment_is_recorded_before_it_is_made() {
    let lab = Lab::new(&["a"]);
    lab.on("a", "ADD", r#"cp "$dir"/../cache/results/net-c1-eth0 "$dir/seen"; echo '{}'"#);
    let runtime = lab.runtime();
    runtime.add_list(&chain("1.0.0", &["a"]), &container("c1"), None).unwrap();
    let seen = std::fs::read(lab.bin().join("seen")).unwrap();
    let seen: Value = serde_json::from_slice(&seen).unwrap();
    assert_eq!(seen["containerId"], "c1");
    assert!(seen.get("result").is_none());
    // As after a crash: GC finds it and undoes the incomplete ADD.
    std::fs::copy(lab.bin().join("seen"), lab.results().join("net-c1-eth0")).unwrap();
    let report = runtime.gc_list(&chain("1.0.0", &["a"]), Some(&[]), None).unwrap();
    assert_eq!(report.removed, [key("net", "c1")]);
    assert!(lab.config("a", "DEL").get("prevResult").is_none());
    assert!(lab.cached().is_empty());
}

#[test]
fn a_cache_that_cannot_be_written_stops_add_before_it_begins() {
    let lab = Lab::new(&["a"]);
    std::fs::write(lab.path().join("cache"), "in the way").unwrap();
    let error =
        lab.runtime().add_list(&chain("1.0.0", &["a"]), &container("c1"), None).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("failed to set network \"net\" cached result: "), "{text}");
    assert_eq!(error.to_cni().code, cni::code::IO_FAILURE);
    assert!(lab.calls().is_empty());
}

/// The network is up and could not be taken down properly later, so the runtime takes it down now.
#[test]
fn a_result_that_cannot_be_recorded_is_undone() {
    let lab = Lab::new(&["a", "b"]);
    lab.on("b", "ADD", r#"rm -r "$dir/../cache/results"; echo '{}'"#);
    let error =
        lab.runtime().add_list(&chain("1.0.0", &["a", "b"]), &container("c1"), None).unwrap_err();
    assert!(matches!(error, netwright_cni_runtime::AddError::Cache { .. }), "{error}");
    assert_eq!(lab.calls(), ["ADD a", "ADD b", "DEL b", "DEL a"]);
    assert!(lab.config("a", "DEL").get("prevResult").is_some());
}

#[test]
fn what_the_caller_leaves_out_on_del_comes_from_the_cache() {
    let lab = Lab::new(&["a"]);
    let list = list(&json!({"name": "net", "cniVersion": "1.0.0",
        "plugins": [{"type": "a", "capabilities": {"portMappings": true}}]}));
    let full = container("c1")
        .with_args(Args::parse("K=V").unwrap())
        .with_capability("portMappings", &[1])
        .unwrap();
    let runtime = lab.runtime();
    runtime.add_list(&list, &full, None).unwrap();
    let bare = Attachment::new(full.container_id.clone(), full.ifname.clone(), "");
    runtime.del_list(&list, &bare, None).unwrap();
    assert_eq!(lab.config("a", "DEL")["runtimeConfig"], json!({"portMappings": [1]}));
    assert_eq!(lab.variable("a", "DEL", "CNI_ARGS").as_deref(), Some("K=V"));
    assert_eq!(lab.variable("a", "DEL", "CNI_NETNS").as_deref(), Some(""), "gone is gone");
}
