//! Which ends the pods of an isolated namespace may talk to all the same.

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::setting::Item;

/// Pods, or addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReachableEnd {
    /// The addresses of a range, such as `192.0.2.0/24`.
    Range(IpNet),
    /// The pods of a namespace, such as `monitoring`; of these the ones with a label, such as
    /// `kube-system:k8s-app=kube-dns`.
    Pods {
        /// The namespace.
        namespace: String,
        /// Key and value.
        label: Option<(String, String)>,
    },
}

/// Reports whether a text is the name of a namespace (RFC 1123 label).
fn is_namespace(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Reports whether a text may be a part of a label.
fn is_label(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_alphanumeric() || b"-_./".contains(&c);
    !text.is_empty() && text.len() <= 317 && text.bytes().all(inner)
}

impl Item for ReachableEnd {
    const WANTED: &'static str = "a namespace such as monitoring, some pods of one such as kube-system:k8s-app=kube-dns, or a range of addresses such as 192.0.2.0/24";
    const PLACEHOLDER: &'static str = "WHO";
    const PLACEHOLDERS: &'static str = "WHO[,WHO…]";

    fn parse(text: &str) -> Option<Self> {
        if let Some(range) = <IpNet as Item>::parse(text) {
            return Some(ReachableEnd::Range(range));
        }
        let (namespace, label) = match text.split_once(':') {
            Some((namespace, label)) => (namespace, Some(label.split_once('=')?)),
            None => (text, None),
        };
        let fits = label.is_none_or(|(key, value)| is_label(key) && is_label(value));
        let label = label.map(|(key, value)| (key.to_owned(), value.to_owned()));
        (fits && is_namespace(namespace))
            .then(|| ReachableEnd::Pods { namespace: namespace.to_owned(), label })
    }

    fn text(&self) -> String {
        match self {
            ReachableEnd::Range(range) => range.to_string(),
            ReachableEnd::Pods { namespace, label: None } => namespace.clone(),
            ReachableEnd::Pods { namespace, label: Some((key, value)) } => {
                format!("{namespace}:{key}={value}")
            }
        }
    }

    fn schema() -> Value {
        json!({"type": "string", "pattern": "^[-a-z0-9]+(:[^=]+=.+)?$|^[0-9a-fA-F.:]+/[0-9]+$"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_reached_is_read_and_written() {
        for text in [
            "monitoring",
            "kube-system:k8s-app=kube-dns",
            "192.0.2.0/24",
            "2001:db8::/32",
            "a:b/c=d",
        ] {
            assert_eq!(ReachableEnd::parse(text).unwrap().text(), text);
        }
        for bad in
            ["", "Monitoring", "-a", "a:", "a:b", "a:=b", "a:b=", "192.0.2.1/24", "a/b", "a b"]
        {
            assert_eq!(ReachableEnd::parse(bad), None, "{bad}");
        }
    }
}
