//! Role-based access control, limited to groups, resources, verbs and names.

use serde_json::Value;

use super::log::LoggedRequest;

/// A rule of a role, for one namespace or for all.
#[derive(Debug, Clone)]
pub(super) struct Rule {
    namespace: Option<String>,
    groups: Vec<String>,
    resources: Vec<String>,
    verbs: Vec<String>,
    names: Vec<String>,
}

impl Rule {
    /// Reads a role's `rules`; those of a role, not of a cluster role, apply to its namespace.
    pub(super) fn read(rules: &Value, namespace: Option<&str>) -> Vec<Self> {
        let texts = |value: &Value| -> Vec<String> {
            let list = value.as_array().into_iter().flatten();
            list.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let rule = |rule: &Value| Rule {
            namespace: namespace.map(str::to_owned),
            groups: texts(&rule["apiGroups"]),
            resources: texts(&rule["resources"]),
            verbs: texts(&rule["verbs"]),
            names: texts(&rule["resourceNames"]),
        };
        rules.as_array().into_iter().flatten().map(rule).collect()
    }

    pub(super) fn allows(&self, asked: &LoggedRequest) -> bool {
        let has = |list: &[String], what: &str| list.iter().any(|item| item == "*" || item == what);
        has(&self.groups, &asked.group)
            && has(&self.resources, &asked.resource)
            && has(&self.verbs, &asked.verb)
            && (self.names.is_empty() || self.names.contains(&asked.name))
            && self.namespace.as_ref().is_none_or(|namespace| *namespace == asked.namespace)
    }
}
