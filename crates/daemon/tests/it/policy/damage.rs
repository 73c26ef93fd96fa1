//! What other programs do to the packet filter's table.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use serde_json::json;
use testkit::{Place as _, wait_until};

use super::{Cluster, Pod, allow};

/// The table as `nft` lists it, without counters.
pub(super) fn table(cluster: &Cluster) -> String {
    let listed = cluster.node.lab.try_sh("nft -s list table inet netwright-policy");
    String::from_utf8_lossy(&listed.stdout).into_owned()
}

/// The sorted words of a table: `nft` lists chains in the order in which they were made, and
/// elements as they are stored.
pub(super) fn words(table: &str) -> Vec<&str> {
    let mut words: Vec<_> = table.split([' ', '\t', '\n', ',']).collect();
    words.retain(|word| !word.is_empty());
    words.sort_unstable();
    words
}

#[test]
fn what_others_remove_comes_back() {
    testkit::require!("root", "program:nft", "program:curl");
    let mut cluster = Cluster::new("policy-damage");
    cluster.api.create(&allow("db", "db", &["web"]));
    cluster.start();
    let [db, web, other] = ["db", "web", "other"].map(|name| cluster.pod(name));
    web.assert_reaches(&db, true);
    let whole = table(&cluster);
    let class = {
        let start = whole.find("chain ci-").expect("a chain for the pod");
        whole[start..].split_whitespace().nth(1).unwrap().to_owned()
    };
    for damage in [
        "nft flush ruleset".to_owned(),
        "nft delete table inet netwright-policy".to_owned(),
        format!("nft delete element inet netwright-policy in4 '{{ {} }}'", db.v4()),
        format!("nft flush chain inet netwright-policy {class}"),
        "nft flush chain inet netwright-policy ingress".to_owned(),
    ] {
        let begin = Instant::now();
        cluster.node.sh(&damage);
        wait_until("the table to be as before", || words(&table(&cluster)) == words(&whole));
        eprintln!("{damage}: right again after {:?}, two calls of nft included", begin.elapsed());
        other.assert_reaches(&db, false);
        web.assert_reaches(&db, true);
    }
    let log = cluster.log();
    let told = log.matches("put back what another program has changed").count();
    assert_eq!(told, 5, "each is told once: {log}");
    assert_eq!(log.matches("has removed the packet filter's table").count(), 2, "{log}");
    // The metrics count it, and that the first also took the rules of pods' links. Each pod has two
    // addresses.
    for (line, value) in [
        ("netwright_policy_policies{kind=\"NetworkPolicy\"} ", 1),
        ("netwright_policy_pods ", 3),
        ("netwright_policy_local_pods{state=\"judged\"} ", 2),
        ("netwright_policy_local_pods{state=\"open\"} ", 4),
        ("netwright_policy_local_pods{state=\"closed\"} ", 0),
        ("netwright_policy_put_back_total ", 6),
    ] {
        assert_eq!(cluster.metric(line), value, "{line}");
    }
    assert!(0 < cluster.metric("netwright_policy_drops_total{direction=\"ingress\"} "));
}

/// CHECK reports what the packet filter lacks. The service cannot restore it, because it is not
/// running.
#[test]
fn check_tells_what_is_missing() {
    testkit::require!("root", "program:nft");
    let mut cluster = Cluster::new("policy-check");
    cluster.api.create(&allow("db", "db", &["web"]));
    cluster.start();
    let db = cluster.pod("db");
    cluster.check(&db).silent();
    cluster.kill();
    cluster.check(&db).silent();
    cluster.node.sh("nft delete table inet netwright-policy");
    assert!(!cluster.check(&db).succeeded());
    cluster.start();
    cluster.check(&db).silent();
}

/// However the service ends, it changes nothing. A start changes nothing before the service knows
/// the policies.
#[test]
fn a_service_that_ends_leaves_the_table_as_it_is() {
    testkit::require!("root", "program:nft");
    let mut cluster = Cluster::new("policy-ends");
    cluster.api.create(&allow("db", "db", &["web"]));
    cluster.start();
    let [db, web, other] = ["db", "web", "other"].map(|name| cluster.pod(name));
    // The service knows all three pods by then.
    web.assert_reaches(&db, true);
    db.assert_reaches(&other, true);
    let whole = table(&cluster);
    assert!(whole.contains(&db.v4()), "{whole}");
    assert_eq!(cluster.service.take().unwrap().stop(), Some(0));
    assert_eq!(table(&cluster), whole, "it was stopped");
    cluster.start();
    assert_eq!(words(&table(&cluster)), words(&whole), "it has started again");
    let whole = table(&cluster);
    cluster.kill();
    assert_eq!(table(&cluster), whole, "it was killed");
    cluster.api.refuse();
    cluster.spawn();
    assert_eq!(table(&cluster), whole, "it has started, and knows nothing");
    web.assert_reaches(&db, true);
    other.assert_reaches(&db, false);
}

/// If the table is deleted before the service knows the policies, the service restores it closed.
#[test]
fn without_policies_a_table_comes_back_closed() {
    testkit::require!("root", "program:nft");
    let mut cluster = Cluster::new("policy-damage-early");
    cluster.api.create(&allow("db", "db", &["web"]));
    cluster.start();
    let [db, web] = ["db", "web"].map(|name| cluster.pod(name));
    web.assert_reaches(&db, true);
    cluster.kill();
    cluster.api.refuse();
    cluster.node.sh("nft flush ruleset");
    cluster.spawn();
    wait_until("the pods to be closed", || table(&cluster).contains(&format!("{} : ", db.v4())));
    web.assert_reaches(&db, false);
    cluster.node.sh("nft flush ruleset");
    wait_until("the pods to be closed", || table(&cluster).contains(&format!("{} : ", db.v4())));
    web.assert_reaches(&db, false);
    // It does the same with a table that has lost its rules.
    cluster.node.sh("nft flush table inet netwright-policy");
    wait_until("the rules to be back", || !web.reaches(&db));
    cluster.api.restore();
    wait_until("policies to be enforced", || web.reaches(&db));
}

/// Nor is what leads pods to their policies, or a chain of a policy, lost then.
#[test]
fn without_policies_a_pod_that_others_have_opened_is_closed() {
    testkit::require!("root", "program:nft");
    let mut cluster = Cluster::new("policy-lost-early");
    cluster.api.create(&allow("db", "db", &["web"]));
    cluster.start();
    let [db, web, other] = ["db", "web", "other"].map(|name| cluster.pod(name));
    web.assert_reaches(&db, true);
    other.assert_reaches(&db, false);
    let whole = table(&cluster);
    let class = whole[whole.find("chain ci-").unwrap()..].split_whitespace().nth(1).unwrap();
    for damage in [
        format!("nft delete element inet netwright-policy in4 '{{ {} }}'", db.v4()),
        "nft flush set inet netwright-policy has-in4".to_owned(),
        format!("nft flush chain inet netwright-policy {class}"),
    ] {
        cluster.kill();
        cluster.api.refuse();
        cluster.spawn();
        web.assert_reaches(&db, true);
        cluster.node.sh(&damage);
        wait_until("the pod to be closed", || !web.reaches(&db));
        other.assert_reaches(&db, false);
        cluster.api.restore();
        wait_until("policies to be enforced", || web.reaches(&db));
        other.assert_reaches(&db, false);
    }
}

/// A plugin that does not find the service removes a pod's verdicts itself. Then the pod's address
/// is not closed again with those that others have opened.
#[test]
fn without_policies_a_pod_that_goes_untold_is_not_closed_again() {
    testkit::require!("root", "program:nft");
    let mut cluster = Cluster::new("policy-untold-early");
    cluster.api.create(&allow("db", "db", &["web"]));
    cluster.api.create(&allow("web", "web", &["db"]));
    cluster.start();
    let [db, web] = ["db", "web"].map(|name| cluster.pod(name));
    web.assert_reaches(&db, true);
    db.assert_reaches(&web, true);
    cluster.kill();
    cluster.api.refuse();
    cluster.spawn();
    // It hears of both at once, when the record of the one is gone.
    let pid = cluster.service.as_ref().unwrap().pid();
    cluster.node.sh(&format!("kill -STOP {pid}"));
    let nobody = json!({"socketpath": cluster.node.lab.dir().join("nobody.sock")});
    assert!(cluster.policy("DEL", &db).config(nobody).call().succeeded());
    let leads = |pod: &Pod| table(&cluster).contains(&format!("{} : ", pod.v4()));
    assert!(leads(&web) && !leads(&db));
    let damage = format!("nft delete element inet netwright-policy in4 '{{ {} }}'", web.v4());
    cluster.node.sh(&damage);
    cluster.node.sh(&format!("kill -CONT {pid}"));
    wait_until("the other pod to be closed", || leads(&web));
    assert!(!leads(&db), "{}", table(&cluster));
}

/// A damaged record opens nothing: a service that has read it before goes on as it was, and one
/// that starts beside it closes the address.
#[test]
fn a_damaged_record_opens_nothing() {
    testkit::require!("root");
    let mut cluster = Cluster::new("policy-garbled");
    cluster.api.create(&allow("db", "db", &["web"]));
    cluster.start();
    let [db, web, other] = ["db", "web", "other"].map(|name| cluster.pod(name));
    web.assert_reaches(&db, true);
    let owners = cluster.node.roots.run.join("owners");
    let find = format!("grep -l '\"container\":\"db\"' {}/*/policy.json", owners.display());
    let record = PathBuf::from(cluster.node.sh(&find).trim());
    let whole = fs::read(&record).unwrap();
    // The service lists the records.
    let collect = |cluster: &Cluster| {
        let run = cluster.node.run("policy", "GC").of_network().network("pods");
        let run = run.valid(&[("db", "eth0"), ("web", "eth0"), ("other", "eth0")]);
        run.config(json!({"socketpath": cluster.socket()})).call().silent();
    };
    fs::write(&record, "{").unwrap();
    collect(&cluster);
    other.assert_reaches(&db, false);
    web.assert_reaches(&db, true);
    cluster.kill();
    cluster.start();
    collect(&cluster);
    for pod in [&web, &other] {
        pod.assert_reaches(&db, false);
    }
    fs::write(&record, whole).unwrap();
    wait_until("the record to count", || web.reaches(&db));
    other.assert_reaches(&db, false);
    db.assert_reaches(&other, true);
}
