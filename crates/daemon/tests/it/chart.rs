//! The Helm chart and the plain YAML that is made from it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use agent::load::Surroundings;
use agent::rights;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testkit::chart::{
    before_uninstall, folder, objects, plain, plain_folder, render, render_upgrade, run,
};
use testkit::kube::KubeApi;
use testkit::{Lab, Place as _};

/// Values for every branch of the chart.
const COMBINATIONS: [&[&str]; 20] = [
    &[],
    &["config.ipam.enable=false"],
    &["config.multinet.enable=false"],
    &["config.collect.enable=true", "config.repair.enable=true", "config.dhcp.enable=true"],
    &["config.multinet.enable=false", "config.ipam.enable=false", "config.repair.enable=true"],
    &["config.multinet.enable=false", "config.ipam.enable=false"],
    &[
        "config.ipam.etcd={https://192.0.2.1:2379,https://192.0.2.2:2379}",
        "config.ipam.etcd-ca=/etc/netwright-secret/ca.crt",
        "secrets.ipam=etcd-client",
    ],
    &["mode=remove"],
    &["mode=remove", "config.multinet.enable=false", "remove.network=other"],
    &[
        "policies=false",
        "tun=true",
        "config.repair.enable=true",
        "config.repair.keep-plugins={/var/lib/rancher/k3s/data/cni}",
        "config.repair.ovsdb={unix:/run/openvswitch/db.sock}",
        "mounts.repair={/run/openvswitch}",
        "config.multinet.config=/etc/netwright/policy.json",
        "files.policy\\.json=\\{\\}",
        "image.repository=registry.test/netwright",
        "image.tag=latest",
        "image.pullSecrets={registry}",
        "node.plugins=/var/lib/rancher/k3s/data/cni",
        "node.configurations=/var/lib/rancher/k3s/agent/etc/cni/net.d",
        "resources.multinet.limits.memory=128Mi",
        "maxUnavailable=1",
    ],
    &[
        "config.multinet.enable=false",
        "config.ipam.enable=false",
        "config.routing.enable=true",
        "config.routing.cluster={10.244.0.0/16,fd00:244::/32}",
    ],
    &[
        "config.routing.enable=true",
        "config.routing.flannel=replace",
        "config.routing.flannel-config=/etc/netwright/net-conf.json",
        "config.routing.conflist=null",
        "files.net-conf\\.json=\\{\\}",
    ],
    &[
        "config.routing.enable=true",
        "config.routing.flannel=standby",
        "config.routing.flannel-config-map=none",
        "config.routing.conflist=null",
        "files.net-conf\\.json=\\{\\}",
    ],
    &["mode=remove", "config.routing.enable=true", "config.routing.cluster={10.244.0.0/16}"],
    &[
        "config.multinet.enable=false",
        "config.ipam.enable=false",
        "config.policy.enable=true",
        "config.policy.isolate=namespaces",
        "config.policy.isolate-from={monitoring,kube-system:app=x,192.0.2.0/24}",
    ],
    &[
        "policies=false",
        "config.policy.enable=true",
        "config.policy.source=file",
        "config.policy.objects={/etc/netwright}",
        "files.policies\\.yaml=\\{\\}",
        "resources.policy.limits.memory=512Mi",
    ],
    &["mode=remove", "config.policy.enable=true", "remove.open=true"],
    &[
        "config.routing.enable=true",
        "config.routing.cluster={10.244.0.0/16}",
        "config.routing.spaces={storage}",
        "config.routing.space-ranges={10.60.0.0/16}",
    ],
    &[
        "config.agent.listen=0.0.0.0:9470",
        "config.multinet.enable=false",
        "config.ipam.enable=false",
        "config.routing.enable=true",
        "config.routing.cluster={10.244.0.0/16}",
    ],
    &["mode=remove", "config.agent.listen=0.0.0.0:9470"],
];

/// The values that enable the most services.
const MOST: [&str; 8] = [
    "config.agent.listen=0.0.0.0:9470",
    "config.collect.enable=true",
    "config.repair.enable=true",
    "config.dhcp.enable=true",
    "config.routing.enable=true",
    "config.routing.flannel=replace",
    "config.routing.conflist=null",
    "config.policy.enable=true",
];

/// Reads an object as the API does, and refuses keys that its type does not have.
#[track_caller]
fn strict<T: DeserializeOwned + Serialize>(object: &Value) {
    let typed: T =
        serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{error}: {object}"));
    let again = serde_json::to_value(&typed).unwrap();
    let mut lost = Vec::new();
    compare(object, &again, "", &mut lost);
    assert_eq!(lost, [""; 0], "{}", object["metadata"]["name"]);
}

/// Lists the parts of a value that another one does not have.
fn compare(wanted: &Value, found: &Value, at: &str, lost: &mut Vec<String>) {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => {
            for (key, value) in wanted {
                let at = format!("{at}/{key}");
                match found.get(key) {
                    Some(found) => compare(value, found, &at, lost),
                    None => lost.push(at),
                }
            }
        }
        (Value::Array(wanted), Value::Array(found)) if wanted.len() == found.len() => {
            for (place, (wanted, found)) in wanted.iter().zip(found).enumerate() {
                compare(wanted, found, &format!("{at}/{place}"), lost);
            }
        }
        (Value::Number(wanted), Value::Number(found)) if wanted.as_f64() == found.as_f64() => {}
        _ if wanted == found => {}
        _ => lost.push(format!("{at}: {found} for {wanted}")),
    }
}

#[track_caller]
fn decode(object: &Value) {
    match object["kind"].as_str().unwrap_or_default() {
        "ClusterRole" => strict::<ClusterRole>(object),
        "ClusterRoleBinding" => strict::<ClusterRoleBinding>(object),
        "ConfigMap" => strict::<ConfigMap>(object),
        "CustomResourceDefinition" => strict::<CustomResourceDefinition>(object),
        "DaemonSet" => strict::<DaemonSet>(object),
        "Job" => strict::<Job>(object),
        "Role" => strict::<Role>(object),
        "RoleBinding" => strict::<RoleBinding>(object),
        "ServiceAccount" => strict::<ServiceAccount>(object),
        "ValidatingAdmissionPolicy" => strict::<ValidatingAdmissionPolicy>(object),
        "ValidatingAdmissionPolicyBinding" => strict::<ValidatingAdmissionPolicyBinding>(object),
        other => panic!("{other:?} is no kind that the chart may have"),
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn of_kind<'o>(all: &'o [Value], kind: &str) -> impl Iterator<Item = &'o Value> {
    all.iter().filter(move |one| one["kind"] == kind)
}

/// The containers of a DaemonSet, the initial ones first.
fn containers(daemon: &Value) -> impl Iterator<Item = &Value> {
    let pod = &daemon["spec"]["template"]["spec"];
    list(&pod["initContainers"]).chain(list(&pod["containers"]))
}

/// The services whose containers talk to the API server.
const TO_API: [&str; 6] = ["ipam", "multinet", "policy", "remove-routing", "routing", "unlabel"];

/// A container has the rights of its service and no more, only its own mounts, and a token only if
/// it talks to the API server.
#[track_caller]
fn judge(daemon: &Value) {
    let pod = &daemon["spec"]["template"]["spec"];
    assert_eq!(
        daemon["spec"]["selector"]["matchLabels"],
        daemon["spec"]["template"]["metadata"]["labels"]
    );
    assert_eq!(pod["automountServiceAccountToken"], false);
    let volumes: BTreeMap<&str, &Value> =
        list(&pod["volumes"]).map(|one| (text(&one["name"]), one)).collect();
    assert_eq!(volumes.len(), list(&pod["volumes"]).count(), "each is there once");
    let mut mounted = BTreeSet::new();
    for container in containers(daemon) {
        let name = text(&container["name"]);
        let security = &container["securityContext"];
        assert_eq!(security["readOnlyRootFilesystem"], true, "{name}");
        assert!(container["ports"].is_null(), "{name}");
        // The API refuses `allowPrivilegeEscalation: false` beside these (validation of Kubernetes,
        // "cannot set").
        let added: Vec<&str> = list(&security["capabilities"]["add"]).map(text).collect();
        let all = security["privileged"] == true || added.contains(&"SYS_ADMIN");
        assert_eq!(security["allowPrivilegeEscalation"] == false, !all, "{name}");
        match rights::of(name) {
            Some(rights) => {
                assert_eq!(added, rights.capabilities, "{name}");
                for kind in ["readinessProbe", "livenessProbe"] {
                    let command: Vec<&str> =
                        list(&container[kind]["exec"]["command"]).map(text).collect();
                    assert_eq!(
                        (&command[1..3], command.last()),
                        (&["agent", "status"][..], Some(&name))
                    );
                }
            }
            None if name == "install" => assert_eq!(added, ["DAC_OVERRIDE", "FOWNER"]),
            None if name == "remove" => assert_eq!(security["privileged"], true),
            None if name.starts_with("remove-") => {
                let service = name.trim_start_matches("remove-");
                assert_eq!(added, rights::of(service).unwrap().capabilities);
            }
            None => assert_eq!(added, [""; 0], "{name}"),
        }
        if security["privileged"] != true {
            assert_eq!(security["capabilities"]["drop"][0], "ALL", "{name}");
            assert_eq!(security["seccompProfile"]["type"], "RuntimeDefault", "{name}");
        }
        let mut paths = BTreeSet::new();
        for mount in list(&container["volumeMounts"]) {
            let volume = text(&mount["name"]);
            assert!(volumes.contains_key(volume), "{name}: {mount}");
            assert!(paths.insert(text(&mount["mountPath"])), "{name}: {mount}");
            mounted.insert(volume);
            if volume == "token" {
                assert!(TO_API.contains(&name), "{name}");
            }
        }
    }
    assert_eq!(mounted, volumes.into_keys().collect());
}

/// The services that a rendering has containers for.
fn services(all: &[Value]) -> BTreeSet<&str> {
    let names = of_kind(all, "DaemonSet").flat_map(containers).map(|one| text(&one["name"]));
    names.filter(|name| rights::of(name).is_some()).collect()
}

#[test]
fn every_combination_is_sound() {
    testkit::require!("root", "helm");
    let lab = Lab::new("chart-combinations");
    for values in COMBINATIONS {
        let all = objects(&render(values).unwrap_or_else(|error| panic!("{values:?}: {error}")));
        all.iter().for_each(decode);
        of_kind(&all, "DaemonSet").for_each(judge);
        // Each pod has an account of its own.
        let accounts: BTreeSet<&str> =
            of_kind(&all, "ServiceAccount").map(|one| text(&one["metadata"]["name"])).collect();
        let used: Vec<&str> = of_kind(&all, "DaemonSet")
            .map(|one| text(&one["spec"]["template"]["spec"]["serviceAccountName"]))
            .collect();
        let once: BTreeSet<&str> = used.iter().copied().collect();
        assert!(once.len() == used.len() && once.is_subset(&accounts), "{values:?}: {used:?}");
        // Each account whose pod has a token has some right.
        let bound: BTreeSet<&str> = of_kind(&all, "ClusterRoleBinding")
            .flat_map(|one| list(&one["subjects"]))
            .map(|subject| text(&subject["name"]))
            .collect();
        for daemon in of_kind(&all, "DaemonSet") {
            let pod = &daemon["spec"]["template"]["spec"];
            let has_token = list(&pod["volumes"]).any(|volume| volume["name"] == "token");
            let account = text(&pod["serviceAccountName"]);
            assert!(!has_token || bound.contains(account), "{values:?}: {account}");
        }
        // There is one configuration, and it enables the services that have containers.
        let configuration = of_kind(&all, "ConfigMap").next().unwrap();
        let file = lab.dir().join("netwrightd.toml");
        fs::write(&file, text(&configuration["data"]["netwrightd.toml"])).unwrap();
        let around = Surroundings { api_server: true, ..Surroundings::default() };
        let loaded = agent::load(&file, around).unwrap_or_else(|problems| panic!("{problems:?}"));
        let enabled: BTreeSet<&str> = agent::keys::services()
            .filter(|one| agent::keys::is_enabled(&loaded.config, one))
            .collect();
        match values.first() {
            Some(&"mode=remove") => assert_eq!(services(&all), BTreeSet::new()),
            _ => assert_eq!(services(&all), enabled, "{values:?}"),
        }
    }
    let chart = folder().display().to_string();
    for values in [0, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18].map(|number| COMBINATIONS[number]) {
        let mut arguments = vec!["lint", "--strict", &chart];
        arguments.extend(values.iter().flat_map(|value| ["--set", *value]));
        run("helm", &arguments).unwrap_or_else(|error| panic!("{values:?}: {error}"));
    }
}

/// flanneld derives the prefix of its annotations from a flag. The service and its policy do the
/// same.
#[test]
fn flannels_annotations_may_begin_otherwise() {
    testkit::require!("helm");
    for (flag, begin) in [
        ("flannel.alpha.coreos.com", "flannel.alpha.coreos.com/"),
        ("example.com/", "example.com/"),
        ("example.com/net", "example.com/net-"),
        ("example.com/net-", "example.com/net-"),
    ] {
        let flag = format!("config.routing.flannel-prefix={flag}");
        let rendered = render(&[
            "config.routing.enable=true",
            "config.routing.flannel=replace",
            "config.routing.conflist=null",
            &flag,
        ]);
        let rendered = rendered.unwrap();
        let policy = format!("'{begin}backend-type', '{begin}backend-data',");
        assert!(rendered.contains(&policy), "{flag}: {rendered}");
    }
}

/// Only the installer may write to the plugins' folder, and `repair` if it keeps them up to date. A
/// service that runs plugins also sees them at the node's own path, which the installer records.
#[test]
fn plugins_are_written_by_the_installer_and_where_they_are_kept() {
    testkit::require!("helm");
    let folder = "/var/lib/rancher/k3s/data/cni";
    let node = format!("node.plugins={folder}");
    let keep = format!("config.repair.keep-plugins={{{folder}}}");
    let values = ["config.repair.enable=true", node.as_str(), keep.as_str()];
    for (values, writers) in [(&values[..2], &["install"][..]), (&values, &["install", "repair"])] {
        let all = objects(&render(values).unwrap());
        let mut daemons = of_kind(&all, "DaemonSet");
        let daemon = daemons.find(|one| one["metadata"]["name"] == "netwright").unwrap();
        let mut found = Vec::new();
        for container in containers(daemon) {
            let mut mounts = list(&container["volumeMounts"]);
            let mount = mounts.find(|mount| mount["mountPath"] == folder).unwrap();
            if mount["readOnly"] != true {
                found.push(text(&container["name"]));
            }
        }
        assert_eq!(found, writers);
        let install = containers(daemon).next().unwrap();
        let command: Vec<&str> = list(&install["command"]).map(text).collect();
        assert!(command.ends_with(&["--bin-dir", folder]), "{command:?}");
        let record = |mount: &Value| mount["mountPath"] == "/var/lib/netwright/installed";
        assert!(list(&install["volumeMounts"]).any(record));
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_its_place() {
    testkit::require!("helm");
    for (value, want) in [
        ("mode=away", "/mode"),
        ("config.multinet.lable-node=true", "lable-node"),
        ("config.docker.enable=true", "docker"),
        ("config.routing.path=detour", "/config/routing/path"),
        ("config.policy.isolate=pods", "/config/policy/isolate"),
        ("config.agent.listen=8080", "listen"),
        ("config.repair.interval=5", "/config/repair/interval"),
        ("config.multinet.path=/opt/cni/bin", "/config/multinet/path"),
        ("node.plugins=opt", "/node/plugins"),
        ("services.repair=true", "services"),
        ("files.netwrightd\\.toml=x", "netwrightd.toml"),
    ] {
        let refused = render(&[value]).unwrap_err();
        assert!(refused.contains(want), "{value}: {refused}");
    }
}

/// Pods that run are on the bridge, and those that start later are not.
#[test]
fn policy_is_not_switched_on_beside_pods_on_a_bridge_unless_somebody_says_so() {
    testkit::require!("helm");
    let both = ["config.routing.enable=true", "config.policy.enable=true"];
    let of = |more: &[&'static str]| [&both[..], more].concat();
    let refused = render_upgrade(&both).unwrap_err();
    assert!(refused.contains("config.routing.attach=ptp"), "{refused}");
    render(&both).unwrap();
    for sound in ["config.routing.attach=ptp", "config.routing.attach=bridge"] {
        render_upgrade(&of(&[sound])).unwrap();
    }
    render_upgrade(&both[..1]).unwrap();
    render_upgrade(&both[1..]).unwrap();
}

/// A DaemonSet's name, and the names of its containers.
type DaemonSetNames = (&'static str, &'static [&'static str]);

/// The DaemonSets of `mode: remove`: each node is turned back by one pod, which starts when the pod
/// of the services that would restore something has ended. Where routing is enabled, that is one
/// node after the other.
#[test]
fn a_node_is_turned_back_by_one_pod() {
    testkit::require!("helm");
    let routing = ["config.routing.enable=true", "config.routing.cluster={10.244.0.0/16}"];
    let policy = "config.policy.enable=true";
    let open = [policy, "remove.open=true"];
    let removal: [(&[&str], &[DaemonSetNames]); 4] = [
        (&[], &[("netwright", &["unlabel", "remove", "done"])]),
        (
            &routing,
            &[
                ("netwright", &["unlabel", "done"]),
                ("netwright-routing", &["remove", "remove-routing", "done"]),
            ],
        ),
        // What runs keeps its policies, and somebody has to follow them.
        (
            &[policy],
            &[("netwright", &["unlabel", "remove", "done"]), ("netwright-policy", &["policy"])],
        ),
        (&open, &[("netwright", &["unlabel", "remove-policy", "remove", "done"])]),
    ];
    for (values, want) in removal {
        let all = objects(&render(&[&["mode=remove"], values].concat()).unwrap());
        let daemons: BTreeMap<&str, &Value> =
            of_kind(&all, "DaemonSet").map(|one| (text(&one["metadata"]["name"]), one)).collect();
        let found: Vec<(&str, Vec<&str>)> = daemons
            .iter()
            .map(|(name, one)| (*name, containers(one).map(|one| text(&one["name"])).collect()))
            .collect();
        let want: Vec<(&str, Vec<&str>)> =
            want.iter().map(|(name, all)| (*name, all.to_vec())).collect();
        assert_eq!(found, want, "{values:?}");
        for daemon in daemons.values() {
            let removes = containers(daemon).any(|one| one["name"] == "remove");
            let pod = &daemon["spec"]["template"]["spec"];
            assert_eq!(pod["hostPID"] == true, removes, "{values:?}");
        }
        if let Some(routing) = daemons.get("netwright-routing") {
            let strategy = &routing["spec"]["updateStrategy"]["rollingUpdate"];
            assert_eq!(strategy["maxUnavailable"], 1);
            let remove = containers(routing).next().unwrap();
            let flag = "--routing-conflist=/etc/cni/net.d/10-pods.conflist";
            assert!(list(&remove["command"]).any(|word| word == flag), "{remove}");
        }
    }
}

/// `helm uninstall` first does what `mode: remove` does, unless somebody switches that off.
#[test]
fn helm_uninstall_turns_the_nodes_back_first() {
    testkit::require!("helm");
    let values = [
        "config.routing.enable=true",
        "config.routing.cluster={10.244.0.0/16}",
        "config.policy.enable=true",
        "remove.timeout=20m",
    ];
    let hooks = before_uninstall(&values).unwrap();
    hooks.iter().for_each(decode);
    let kinds: BTreeSet<&str> = hooks.iter().map(|one| text(&one["kind"])).collect();
    let want = ["ConfigMap", "Job", "Role", "RoleBinding", "ServiceAccount"];
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), want);
    let weight = |kind: &str| -> i32 {
        let object = of_kind(&hooks, kind).next().unwrap();
        text(&object["metadata"]["annotations"]["helm.sh/hook-weight"]).parse().unwrap()
    };
    assert!(want.iter().all(|kind| *kind == "Job" || weight(kind) < weight("Job")));
    let job = of_kind(&hooks, "Job").next().unwrap();
    let pod = &job["spec"]["template"]["spec"];
    // It starts on a node without any network for pods.
    assert_eq!(pod["hostNetwork"], true);
    let command = list(&pod["containers"][0]["command"]).map(text);
    let command: Vec<&str> = command.skip(1).collect();
    let file = "--daemon-sets=/etc/netwright-removal/daemonsets.json";
    assert_eq!(command, ["agent", "leave", file, "--timeout=20m"]);
    let brought = text(&of_kind(&hooks, "ConfigMap").next().unwrap()["data"]["daemonsets.json"]);
    let brought: Vec<Value> = serde_json::from_str(brought).unwrap();
    let removal = objects(&render(&[&["mode=remove"], &values[..]].concat()).unwrap());
    let rendered: Vec<&Value> = of_kind(&removal, "DaemonSet").collect();
    let by_name = |all: &[&Value]| -> BTreeMap<String, Value> {
        let named = |one: &&Value| (text(&one["metadata"]["name"]).to_owned(), (*one).clone());
        all.iter().map(named).collect()
    };
    assert_eq!(by_name(&brought.iter().collect::<Vec<_>>()), by_name(&rendered));
    let off = before_uninstall(&["remove.onUninstall=false"]).unwrap();
    assert_eq!(off, [Value::Null; 0]);
}

#[test]
fn the_plain_yaml_is_what_the_chart_renders() {
    testkit::require!("helm");
    let rendered = render(&[]).unwrap();
    for (name, want) in plain(&rendered) {
        let path = plain_folder().join(name);
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            fs::write(&path, &want).unwrap();
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(found == want, "{name} is not what the chart renders: cargo xtask chart writes it");
    }
    // No object is lost on the way, and kustomize finds the same ones.
    let key = |object: &Value| {
        (text(&object["kind"]).to_owned(), text(&object["metadata"]["name"]).to_owned())
    };
    let sorted =
        |all: Vec<Value>| all.into_iter().map(|one| (key(&one), one)).collect::<BTreeMap<_, _>>();
    let made = sorted(objects(&rendered));
    assert_eq!(sorted(testkit::real::manifests()), made);
    let built = run("kubectl", &["kustomize", &plain_folder().display().to_string()]).unwrap();
    assert_eq!(sorted(objects(&built)), made);
    // The image's tag is this version.
    let image = format!("ghcr.io/netwright/netwright:{}", env!("CARGO_PKG_VERSION"));
    let daemons = made.values().filter(|one| one["kind"] == "DaemonSet");
    for container in daemons.flat_map(containers) {
        assert_eq!(container["image"], image.as_str());
    }
    assert_eq!(made.keys().filter(|(kind, _)| kind == "DaemonSet").count(), 2);
}

/// Each installed object can be posted to the address of its kind.
#[test]
fn the_api_server_takes_every_object() {
    testkit::require!("root", "helm");
    let lab = Lab::new("chart-post");
    let api = lab.enter(KubeApi::start);
    // The namespace with flanneld's configuration exists, because flannel was installed.
    let flannels =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-flannel"}});
    api.create(&flannels);
    let plural = |kind: &str| match kind {
        "ValidatingAdmissionPolicy" => "validatingadmissionpolicies".to_owned(),
        other => format!("{}s", other.to_lowercase()),
    };
    for object in objects(&render(&MOST).unwrap()) {
        let version = text(&object["apiVersion"]);
        let root = if version.contains('/') { "/apis" } else { "/api" };
        let namespace = match object["metadata"]["namespace"].as_str() {
            Some(namespace) => format!("/namespaces/{namespace}"),
            None => String::new(),
        };
        let path = format!("{root}/{version}{namespace}/{}", plural(text(&object["kind"])));
        let (code, answer) = lab.enter(|| api.send("POST", &path, &object));
        assert_eq!(code, 201, "{path}: {answer}");
    }
    assert_eq!(api.objects("daemonsets").len(), 5);
}

/// If `[agent] listen` is set, one pod on each node listens there, and answers for all services.
#[test]
fn a_pod_of_each_node_answers_for_all_services() {
    testkit::require!("helm");
    let agent = |values: &[&str]| {
        let all = objects(&render(values).unwrap());
        let mut daemons = of_kind(&all, "DaemonSet");
        daemons.find(|one| one["metadata"]["name"] == "netwright-agent").cloned()
    };
    assert_eq!(agent(&[]), None);
    assert_eq!(agent(&["mode=remove", "config.agent.listen=0.0.0.0:9470"]), None);
    for (listen, host) in [
        ("0.0.0.0:9470", "127.0.0.1"),
        ("[::]:9470", "127.0.0.1"),
        ("127.0.0.1:9470", "127.0.0.1"),
        ("[2001:db8::1]:9470", "2001:db8::1"),
    ] {
        let pod = agent(&[&format!("config.agent.listen={listen}")]).unwrap();
        let pod = &pod["spec"]["template"]["spec"];
        assert_eq!(pod["hostNetwork"], true);
        let container = &pod["containers"][0];
        assert_eq!(container["command"], json!(["/opt/netwright/netwrightd", "agent", "serve"]));
        for kind in ["readinessProbe", "livenessProbe"] {
            assert_eq!(container[kind]["tcpSocket"], json!({"host": host, "port": 9470}));
        }
        let mounts = list(&container["volumeMounts"]).map(|mount| text(&mount["mountPath"]));
        assert_eq!(mounts.collect::<Vec<_>>(), ["/etc/netwright", "/run/netwright/agent"]);
    }
    // This pod does not reread its configuration, so a changed configuration means a new pod.
    let listen = "config.agent.listen=0.0.0.0:9470";
    let template = |values: &[&str]| agent(values).unwrap()["spec"]["template"].clone();
    assert_eq!(template(&[listen]), template(&[listen]));
    assert_ne!(template(&[listen]), template(&[listen, "config.repair.enable=true"]));
}
