//! The daemon in a pod: it reaches the API server by TLS, and its account's token is renewed.

use std::fs;
use std::process::{Child, Stdio};

use testkit::{Place as _, wait_for};

use super::rig::Cluster;

/// The proxy that ends TLS before the API server.
struct Front(Child);

impl Drop for Front {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn it_finds_the_api_server_as_pods_do() {
    testkit::require!("root", "program:openssl", "program:socat");
    let cluster = Cluster::new("mn-pod");
    let uid = cluster.pod("p", None);
    cluster.api.require_token("first-token");
    let account = "/var/run/secrets/kubernetes.io/serviceaccount";
    let dir = cluster.dir.display().to_string();
    let port = cluster.api.url().rsplit(':').next().unwrap().to_owned();
    cluster.lab.sh(&format!(
        "mkdir -p {account} && printf first-token >{account}/token && printf kube-system >{account}/namespace && \
         openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=api \
           -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE \
           -keyout {dir}/key.pem -out {account}/ca.crt 2>/dev/null"
    ));
    let front = cluster
        .lab
        .command("socat")
        .arg(format!("OPENSSL-LISTEN:6443,bind=127.0.0.1,reuseaddr,fork,verify=0,key={dir}/key.pem,cert={account}/ca.crt"))
        .arg(format!("TCP:127.0.0.1:{port}"))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _front = Front(front);
    let mut daemon = cluster.spawn_in_pod(&["--cluster-network", "cluster"], "127.0.0.1", "6443");
    daemon.wait_until_listening();
    assert_eq!(cluster.planned("p", &uid).uid, uid);
    let lines: Vec<_> = cluster.api.asked().into_iter().map(|asked| asked.code).collect();
    assert!(lines.iter().all(|code| *code == 200), "{lines:?}");
    // The daemon does not trust another server's certificate.
    drop(daemon);
    fs::remove_dir_all(cluster.dir.join("lib")).unwrap();
    cluster.lab.sh(&format!(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=other \
           -addext subjectAltName=IP:127.0.0.1 -keyout {dir}/other.pem -out {account}/ca.crt 2>/dev/null"
    ));
    cluster.api.forget();
    let mut daemon = cluster.spawn_in_pod(&["--cluster-network", "cluster"], "127.0.0.1", "6443");
    daemon.wait_until_listening();
    let refusal = wait_for("a refusal", || cluster.plan("p", &uid).err());
    assert!(refusal.retry && refusal.msg.contains("certificate"), "{refusal:?}");
    assert!(cluster.api.asked().is_empty(), "nothing was asked of it");
}
