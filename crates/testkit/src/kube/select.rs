//! Field and label selectors.

use serde_json::Value;

use super::kinds::Kind;
use super::status::Refusal;

/// The selectors of a list or watch.
#[derive(Debug, Clone, Default)]
pub(super) struct Selector {
    /// JSON pointer, value, and whether it must be equal.
    fields: Vec<(String, String, bool)>,
    labels: Vec<(String, Option<String>, bool)>,
}

impl Selector {
    pub(super) fn parse(kind: &Kind, fields: &str, labels: &str) -> Result<Self, Refusal> {
        let mut selector = Selector::default();
        for term in fields.split(',').filter(|term| !term.is_empty()) {
            let (field, value, equal) = split(term).ok_or_else(|| {
                Refusal::bad(format!("invalid selector: '{term}'; can't understand '{term}'"))
            })?;
            if !kind.selects(field) {
                let text = format!("field label not supported: {field}");
                return Err(Refusal::bad(text));
            }
            selector.fields.push((
                format!("/{}", field.replace('.', "/")),
                value.to_owned(),
                equal,
            ));
        }
        for term in labels.split(',').filter(|term| !term.is_empty()) {
            let parsed = match split(term) {
                Some((key, value, equal)) => (key.to_owned(), Some(value.to_owned()), equal),
                None => match term.strip_prefix('!') {
                    Some(key) => (key.to_owned(), None, false),
                    None => (term.to_owned(), None, true),
                },
            };
            selector.labels.push(parsed);
        }
        Ok(selector)
    }

    pub(super) fn selects_all(&self) -> bool {
        self.fields.is_empty() && self.labels.is_empty()
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        let fields = self.fields.iter().all(|(pointer, value, equal)| {
            let found = object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            (found == value) == *equal
        });
        let label = |key: &str| object["metadata"]["labels"][key].as_str();
        fields
            && self.labels.iter().all(|(key, value, equal)| match value {
                Some(value) => (label(key) == Some(value)) == *equal,
                None => label(key).is_some() == *equal,
            })
    }
}

fn split(term: &str) -> Option<(&str, &str, bool)> {
    if let Some((key, value)) = term.split_once("!=") {
        return Some((key, value, false));
    }
    let (key, value) = term.split_once("==").or_else(|| term.split_once('='))?;
    Some((key, value, true))
}
