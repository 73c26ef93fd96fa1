//! Which of two versions of a kind is followed. Two kinds stand for the versions here.

use testkit::kube::KubeApi;

use super::*;
use crate::services::outlet::{self, Inlet};

/// Returns the kinds of which lists have begun.
fn begun(inlet: &Inlet<Heard>) -> Vec<Kind> {
    let begins = |heard: Heard| match heard {
        Heard::Event(event, _) => match *event {
            Event::Begin(kind) => Some(kind),
            _ => None,
        },
        _ => None,
    };
    inlet.heard().into_iter().filter_map(begins).collect()
}

#[tokio::test]
async fn the_newer_one_of_two_versions_is_followed_if_it_is_served() {
    const NEWER: Kind = Kind::NetworkPolicies;
    const OLDER: Kind = Kind::ClusterNetworkPolicies;
    let api = KubeApi::start();
    let folder = tempfile::tempdir().unwrap();
    let (inlet, outlet) = outlet::pair().unwrap();
    let kubeconfig = Some(api.kubeconfig(folder.path()));
    let source = Source { kubeconfig, interval: Duration::from_secs(60) };
    let cluster = Cluster::new(source, Arc::new(outlet));
    let client = cluster.client().await;
    let newer = cluster.follower::<slim::NetworkPolicies>(&client, NEWER, watch_config());
    let older =
        cluster.follower::<slim::EarlierClusterNetworkPolicies>(&client, OLDER, watch_config());
    let is_older = AtomicBool::new(false);
    let (again, mut relist) = channel(1);
    for (is_newer_served, expected) in [(true, NEWER), (false, OLDER)] {
        if !is_newer_served {
            api.withdraw("networkpolicies");
        }
        // The test asks it to begin anew after it has passed on the first report.
        again.send(()).await.unwrap();
        let end = follow_either(&newer, &older, &is_older, &mut relist).await;
        assert!(matches!(end, End::Relist));
        assert_eq!(begun(&inlet), [expected]);
        assert_eq!(is_older.load(Ordering::SeqCst), !is_newer_served);
    }
    api.withdraw("clusternetworkpolicies");
    let end = follow_either(&newer, &older, &is_older, &mut relist).await;
    assert!(matches!(end, End::NoKind));
    assert_eq!(begun(&inlet), []);
}
