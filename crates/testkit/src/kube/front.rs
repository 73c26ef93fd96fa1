//! The API server as pods reach it: over TLS, with a service account's files.

use std::path::PathBuf;
use std::process::{Child, Stdio};

use super::KubeApi;
use crate::lab::Lab;
use crate::place::Place as _;

/// The port at which pods reach the server.
const PORT: u16 = 6443;

/// Terminates TLS in front of the API server; stops when dropped.
///
/// A test that uses it needs `require!("program:openssl", "program:socat")`.
#[derive(Debug)]
pub struct Front {
    child: Child,
    /// The folder that a kubelet mounts at `/var/run/secrets/kubernetes.io/serviceaccount`.
    pub account: PathBuf,
}

impl Drop for Front {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Front {
    /// What a kubelet sets in every container's environment.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, &'static str); 2] {
        [("KUBERNETES_SERVICE_HOST", "127.0.0.1"), ("KUBERNETES_SERVICE_PORT", "6443")]
    }
}

impl KubeApi {
    /// Serves pods on the host's network, whose service account has this token.
    ///
    /// # Panics
    /// When openssl or socat cannot.
    #[must_use]
    pub fn serve_pods(&self, lab: &Lab, token: &str) -> Front {
        let dir = lab.dir().display();
        let account = lab.dir().join("account");
        lab.sh(&format!(
            "mkdir -p {0} && printf {token} >{0}/token && printf kube-system >{0}/namespace && \
             openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=api \
               -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE \
               -keyout {dir}/front.pem -out {0}/ca.crt 2>/dev/null",
            account.display()
        ));
        let certificate = account.join("ca.crt");
        let mut command = lab.command("socat");
        command
            .arg(format!(
                "OPENSSL-LISTEN:{PORT},bind=127.0.0.1,reuseaddr,fork,verify=0,key={dir}/front.pem,cert={}",
                certificate.display()
            ))
            .arg(format!("TCP:{}", self.address))
            .stderr(Stdio::null());
        let child = command.spawn().unwrap_or_else(|error| panic!("socat: {error}"));
        Front { child, account }
    }
}
