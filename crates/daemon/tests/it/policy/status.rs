//! What the service writes to the API server. The services of all nodes write the same, and it is
//! written once.

use serde_json::{Value, json};
use testkit::{Place as _, Service, wait_until};

use super::{Cluster, daemon};

const CONDITION: &str = "policy.netwright.io/Accepted";

fn cluster_policy(name: &str, priority: u32, to: &Value) -> Value {
    json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": name},
        "spec": {
            "tier": "Admin", "priority": priority, "subject": {"namespaces": {}},
            "egress": [{"action": "Accept", "to": [to]}],
        },
    })
}

/// The condition of a policy: status, reason, generation, and the message.
pub(super) fn condition(cluster: &Cluster, name: &str) -> Option<(String, String, u64, String)> {
    let policy = cluster.api.object("clusternetworkpolicies", "", name)?;
    let all = policy["status"]["conditions"].as_array()?.clone();
    let found = all.iter().find(|one| one["type"] == CONDITION)?;
    let text = |key: &str| found[key].as_str().unwrap().to_owned();
    let generation = found["observedGeneration"].as_u64().unwrap();
    Some((text("status"), text("reason"), generation, text("message")))
}

fn short(cluster: &Cluster, name: &str) -> Option<(String, String, u64)> {
    condition(cluster, name).map(|(status, reason, generation, _)| (status, reason, generation))
}

fn is(status: &str, reason: &str, generation: u64) -> Option<(String, String, u64)> {
    Some((status.to_owned(), reason.to_owned(), generation))
}

#[test]
fn conditions_and_events_say_what_holds() {
    testkit::require!("root");
    let mut cluster = Cluster::new("policy-status");
    cluster.start();
    // The other node is a host in its own lab.
    let kubeconfig = cluster.api.kubeconfig(cluster.node.lab.dir());
    let dir = cluster.node.dir("n2");
    let mut command = cluster.others.command(&daemon());
    command
        .args(["policy", "--node", "n2", "--source", "kubernetes", "--interval", "1h"])
        .args(["--kubeconfig", kubeconfig.to_str().unwrap()])
        .args(["--socketpath", dir.join("policy.sock").to_str().unwrap()])
        .env("NETWRIGHT_RUN_DIR", dir.join("run"))
        .env("NETWRIGHT_STATE_DIR", dir.join("lib"));
    let other = Service::start(command, &dir.join("log"));
    wait_until("the other node", || other.log().contains("policies are enforced"));

    let anywhere = json!({"networks": ["0.0.0.0/0"]});
    cluster.api.create(&cluster_policy("sound", 1, &anywhere));
    cluster.api.create(&cluster_policy("names", 2, &json!({"domainNames": ["example.org"]})));
    cluster.api.create(&cluster_policy("one", 3, &anywhere));
    cluster.api.create(&cluster_policy("two", 3, &anywhere));
    let theirs = json!({
        "type": "Theirs", "status": "True", "reason": "R", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    cluster.api.change(
        "clusternetworkpolicies",
        "",
        "sound",
        &json!({"status": {"conditions": [theirs]}}),
    );
    wait_until("the conditions", || {
        short(&cluster, "sound") == is("True", "AsWritten", 1)
            && short(&cluster, "names") == is("False", "Refused", 1)
            && short(&cluster, "one") == is("True", "SharedPriority", 1)
            && short(&cluster, "two") == is("True", "SharedPriority", 1)
    });
    let refused = condition(&cluster, "names").unwrap().3;
    assert!(refused.contains("spec.egress[0].to[0].domainNames"), "{refused}");
    assert!(refused.ends_with("the rule allows nothing"), "{refused}");
    let policy = cluster.api.object("clusternetworkpolicies", "", "sound").unwrap();
    assert_eq!(policy["status"]["conditions"][0], theirs);

    // The policy changes, and then a client damages the status.
    cluster.api.change("clusternetworkpolicies", "", "two", &json!({"spec": {"priority": 4}}));
    wait_until("the change", || {
        short(&cluster, "one") == is("True", "AsWritten", 1)
            && short(&cluster, "two") == is("True", "AsWritten", 2)
    });
    cluster.api.change("clusternetworkpolicies", "", "two", &json!({"status": null}));
    wait_until("the status again", || short(&cluster, "two") == is("True", "AsWritten", 2));

    // There is an Event about a mistake for which no status exists.
    let wrong = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": "wrong"},
        "spec": {"podSelector": {}, "ingress": [{"ports": [{"port": 70_000}]}]},
    });
    cluster.api.create(&wrong);
    let annotation = json!({"net.beta.kubernetes.io/network-policy": "{\"ingress\": 7}"});
    cluster.api.create(&json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "odd", "annotations": annotation},
    }));
    wait_until("the Events", || cluster.api.objects("events").len() == 2);
    let events = cluster.api.objects("events");
    let about = |name: &str| {
        let found = events.iter().find(|event| event["involvedObject"]["name"] == name);
        found.unwrap_or_else(|| panic!("none about {name}: {events:?}"))
    };
    let message = about("wrong")["message"].as_str().unwrap();
    assert_eq!(
        message,
        "spec.ingress[0].ports[0].port: 70000 is not in 1..65535; the rule allows nothing"
    );
    assert_eq!(about("wrong")["metadata"]["namespace"], "shop");
    assert_eq!(about("odd")["metadata"]["namespace"], "default");

    // One service does not write again what the other has written.
    let asked = cluster.api.asked();
    let writes = asked.iter().filter(|asked| asked.resource == "clusternetworkpolicies/status");
    let done = writes.clone().filter(|asked| asked.code == 200).count();
    assert!((7..=12).contains(&done), "{done} writes of 4 policies");
    assert!(writes.count() <= 2 * done);
    assert_eq!(other.stop(), Some(0));
}
