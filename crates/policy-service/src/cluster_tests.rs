//! Which of two versions of a kind is followed.

use serde_json::{Value, json};
use service_kit::outlet::{self, Inlet};
use testkit::kube::KubeApi;

use super::*;

/// Longer than the server may need for anything.
const LONGEST: Duration = Duration::from_secs(30);

/// An API server, and what a cluster's thread says of it.
struct Server {
    api: KubeApi,
    inlet: Inlet<ThreadEvent>,
    cluster: Cluster,
    client: Client,
    /// It has the kubeconfig, which is read again after a refusal.
    _folder: tempfile::TempDir,
}

impl Server {
    async fn new() -> Self {
        let api = KubeApi::start();
        let folder = tempfile::tempdir().unwrap();
        let (inlet, outlet) = outlet::pair().unwrap();
        let kubeconfig = Some(api.kubeconfig(folder.path()));
        let source = Source { kubeconfig, interval: LONGEST };
        let cluster = Cluster::new(source, Arc::new(outlet));
        let client = cluster.client().await;
        Server { api, inlet, cluster, client, _folder: folder }
    }

    /// Returns in short what is said, until that has this.
    async fn until(&self, last: &str) -> Vec<String> {
        let mut said: Vec<String> = Vec::new();
        let listening = async {
            while !said.iter().any(|one| one == last) {
                self.inlet.bell().rung().await.unwrap();
                said.extend(self.inlet.heard().into_iter().map(short));
            }
        };
        let result = tokio::time::timeout(LONGEST, listening).await;
        assert!(result.is_ok(), "{last}: not within time; heard: {said:?}");
        said
    }
}

fn short(heard: ThreadEvent) -> String {
    let event = match heard {
        ThreadEvent::Event(event, _) => event,
        other => return format!("{other:?}"),
    };
    match *event {
        Event::Begin(_) => "begin".to_owned(),
        Event::Listed(object) => object.key().to_string(),
        Event::Complete(_) => "complete".to_owned(),
        Event::Silent(_, why) if why.contains("is forbidden") => "forbidden".to_owned(),
        other => format!("{other:?}"),
    }
}

/// The versions that are served change under a service that runs. Its objects stay: no list is
/// empty, and nothing is said to be gone.
async fn go_through_versions<N: SlimObject, O: SlimObject>(kind: Kind, object: &Value) {
    let server = Server::new().await;
    let plural = kind.to_string();
    let (older, newer) = (O::KIND.version, N::KIND.version);
    let serve = |versions: &[&str]| server.api.serve(&plural, versions);
    let made = server.api.create(object);
    let name = Object::of(kind, &made).unwrap().key().to_string();
    let listed = ["begin", name.as_str(), "complete"];
    let (again, relist) = channel(1);
    let is_older = Arc::new(AtomicBool::new(false));
    let follows_older = || is_older.load(Ordering::SeqCst);

    serve(&[older]);
    let following =
        server.cluster.spawn_either::<N, O>(&server.client, kind, (relist, is_older.clone()));
    assert_eq!(server.until("complete").await, listed);
    assert!(follows_older());

    // The newer one comes later. It is followed from the next list on.
    serve(&[older, newer]);
    again.send(()).await.unwrap();
    assert_eq!(server.until("complete").await, listed);
    assert!(!follows_older());

    // It goes while it is followed, and comes back when the older one goes.
    for (served, expects_older) in [(older, true), (newer, false)] {
        serve(&[served]);
        assert_eq!(server.until("complete").await, listed);
        assert_eq!(follows_older(), expects_older);
    }

    // The service has no right to list it in any version. Then it has, and the older one is served.
    server.api.allow_only(&[]);
    server.api.end_watches();
    assert!(server.until("forbidden").await.iter().all(|one| one == "forbidden"));
    serve(&[older]);
    let all = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
    server.api.allow_only(&[(all, None)]);
    let mut said = server.until("complete").await;
    said.retain(|one| one != "forbidden");
    assert_eq!(said, listed);
    assert!(follows_older());

    // There is no version: an empty list. What it means is decided elsewhere (`lists`).
    serve(&[]);
    assert_eq!(server.until("complete").await, ["begin", "complete"]);
    following.abort();
}

#[tokio::test]
async fn cluster_policies_stay_while_their_versions_come_and_go() {
    let policy = json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "c"},
        "spec": {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}},
    });
    go_through_versions::<slim::ClusterNetworkPolicies, slim::EarlierClusterNetworkPolicies>(
        Kind::ClusterNetworkPolicies,
        &policy,
    )
    .await;
}

#[tokio::test]
async fn multi_network_policies_stay_while_their_versions_come_and_go() {
    let policy = json!({
        "apiVersion": "k8s.cni.cncf.io/v1beta1", "kind": "MultiNetworkPolicy",
        "metadata": {
            "namespace": "shop", "name": "m", "annotations": {"k8s.v1.cni.cncf.io/policy-for": "a"},
        },
        "spec": {"podSelector": {}},
    });
    go_through_versions::<slim::MultiNetworkPolicies, slim::EarlierMultiNetworkPolicies>(
        Kind::MultiNetworkPolicies,
        &policy,
    )
    .await;
}
