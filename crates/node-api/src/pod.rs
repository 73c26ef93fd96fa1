//! Pods, as runtimes name them.

use cni::Args;
use serde::{Deserialize, Serialize};

/// A pod, as `CNI_ARGS` names it (`K8S_POD_NAMESPACE`, `K8S_POD_NAME`, `K8S_POD_UID`).
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID; empty if the runtime does not pass it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

impl Pod {
    /// Reads `CNI_ARGS`; `None` if the runtime names no pod.
    #[must_use]
    pub fn of_args(args: &str) -> Option<Self> {
        let args = Args::parse_lenient(args);
        let get = |key| args.get(key).unwrap_or_default().to_owned();
        let (namespace, name) = (get("K8S_POD_NAMESPACE"), get("K8S_POD_NAME"));
        let is_named = !namespace.is_empty() && !name.is_empty();
        is_named.then(|| Pod { namespace, name, uid: get("K8S_POD_UID") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_a_namespace_and_a_name() {
        let pod = Pod::of_args("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web;junk");
        let want = Pod { namespace: "ns".into(), name: "web".into(), uid: String::new() };
        assert_eq!(pod, Some(want));
        assert_eq!(Pod::of_args("K8S_POD_NAME=web"), None);
        assert_eq!(Pod::of_args(""), None);
    }
}
