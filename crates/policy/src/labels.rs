//! Labels, and what selects objects by them.
//!
//! Authority: Kubernetes, `staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/types.go`
//! "LabelSelector", and its validation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::reader::{Fault, KeyedValue};
use crate::refused::Cause;

/// The labels of an object.
pub type Labels = BTreeMap<String, String>;

/// The label that the API server gives to each namespace: its name.
pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Selects objects by their labels: those that meet every requirement.
///
/// Equal selectors are equal values, in any order of their requirements: that is why they can share
/// a set.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Selector {
    requirements: Vec<Requirement>,
}

/// What a selector asks of one key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Requirement {
    /// The label's key.
    pub key: String,
    /// What is asked of it.
    pub must: Operator,
}

/// What is asked of a label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operator {
    /// It has one of these values.
    In(BTreeSet<String>),
    /// It is missing, or has none of these values.
    NotIn(BTreeSet<String>),
    /// It is there.
    Exist,
    /// It is missing.
    NotExist,
}

impl Requirement {
    /// Reports whether labels meet it.
    #[must_use]
    pub fn is_met(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match &self.must {
            Operator::In(values) => value.is_some_and(|value| values.contains(value)),
            Operator::NotIn(values) => !value.is_some_and(|value| values.contains(value)),
            Operator::Exist => value.is_some(),
            Operator::NotExist => value.is_none(),
        }
    }
}

impl Selector {
    /// Creates a selector.
    #[must_use]
    pub fn new(requirements: impl IntoIterator<Item = Requirement>) -> Self {
        let mut requirements: Vec<Requirement> = requirements.into_iter().collect();
        requirements.sort();
        requirements.dedup();
        requirements.shrink_to_fit();
        Selector { requirements }
    }

    /// Returns the selector that selects every object.
    #[must_use]
    pub fn all() -> Self {
        Selector::default()
    }

    /// Reports whether it selects every object.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Reports whether it selects an object with these labels.
    #[must_use]
    pub fn matches(&self, labels: &Labels) -> bool {
        self.requirements.iter().all(|requirement| requirement.is_met(labels))
    }

    /// Returns what it asks for, sorted.
    #[must_use]
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Returns labels of which an object must have one, if the selector asks for such: an index
    /// finds the selector by these.
    pub(crate) fn one_of(&self) -> Option<impl Iterator<Item = (&str, &str)>> {
        self.requirements.iter().find_map(|requirement| match &requirement.must {
            Operator::In(values) => {
                let key = requirement.key.as_str();
                Some(values.iter().map(move |value| (key, value.as_str())))
            }
            _ => None,
        })
    }

    /// Reads a `LabelSelector`.
    ///
    /// A requirement that cannot be read is taken as met. So what is read selects all that was
    /// meant, and perhaps more.
    pub(crate) fn read(at: &KeyedValue<'_>, faults: &mut Vec<Fault>) -> Self {
        let mut requirements = Vec::new();
        if let Some(fault) = at.only(&["matchLabels", "matchExpressions"]) {
            faults.push(fault);
            if !at.is_object() {
                return Selector::all();
            }
        }
        match at.get("matchLabels") {
            Ok(Some(labels)) => read_labels(&labels, &mut requirements, faults),
            Ok(None) => {}
            Err(fault) => faults.push(fault),
        }
        match at.get("matchExpressions").and_then(|list| list.map_or(Ok(vec![]), |at| at.list())) {
            Ok(expressions) => {
                for expression in &expressions {
                    match read_expression(expression) {
                        Ok(requirement) => requirements.push(requirement),
                        Err(fault) => faults.push(fault),
                    }
                }
            }
            Err(fault) => faults.push(fault),
        }
        Selector::new(requirements)
    }
}

fn read_labels(at: &KeyedValue<'_>, requirements: &mut Vec<Requirement>, faults: &mut Vec<Fault>) {
    let labels = match at.entries() {
        Ok(labels) => labels,
        Err(fault) => return faults.push(fault),
    };
    for (key, value) in labels {
        let read = is_key(key).map_err(|why| value.fault(Cause::Invalid { why })).and_then(|()| {
            let text = value.text()?;
            is_value(text).map_err(|why| value.fault(Cause::Invalid { why }))?;
            Ok(BTreeSet::from([text.to_owned()]))
        });
        match read {
            Ok(values) => {
                requirements.push(Requirement { key: key.to_owned(), must: Operator::In(values) });
            }
            Err(fault) => faults.push(fault),
        }
    }
}

fn read_expression(at: &KeyedValue<'_>) -> Result<Requirement, Fault> {
    if let Some(fault) = at.only(&["key", "operator", "values"]) {
        return Err(fault);
    }
    let key = at.required("key")?;
    is_key(key.text()?).map_err(|why| key.fault(Cause::Invalid { why }))?;
    let operator = at.required("operator")?;
    let mut values = BTreeSet::new();
    let listed = at.get("values")?;
    if let Some(listed) = &listed {
        for value in listed.list()? {
            is_value(value.text()?).map_err(|why| value.fault(Cause::Invalid { why }))?;
            values.insert(value.text()?.to_owned());
        }
    }
    let name = operator.text()?;
    let needs_values = match name {
        "In" | "NotIn" => true,
        "Exists" | "DoesNotExist" => false,
        _ => {
            let wanted = "one of In, NotIn, Exists, DoesNotExist";
            return Err(operator.fault(Cause::not_a(name, wanted)));
        }
    };
    if needs_values == values.is_empty() {
        let why = if needs_values { "it needs values" } else { "it takes no values" };
        let why = format!("the operator is {name}, and {why}");
        return Err(listed.unwrap_or_else(|| at.clone()).fault(Cause::Invalid { why }));
    }
    let must = match name {
        "In" => Operator::In(values),
        "NotIn" => Operator::NotIn(values),
        "Exists" => Operator::Exist,
        _ => Operator::NotExist,
    };
    Ok(Requirement { key: key.text()?.to_owned(), must })
}

/// The longest name and value of a label.
const LONGEST: usize = 63;

/// The longest prefix of a label's key: a name of RFC 1123.
const LONGEST_PREFIX: usize = 253;

/// Says why a text is not a label's key.
fn is_key(key: &str) -> Result<(), String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let is_domain = |prefix: &str| {
        let part = |part: &str| {
            let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
            !part.is_empty()
                && part.bytes().all(inner)
                && !part.starts_with('-')
                && !part.ends_with('-')
        };
        prefix.len() <= LONGEST_PREFIX && prefix.split('.').all(part)
    };
    if name.is_empty() || !is_word(name) || prefix.is_some_and(|prefix| !is_domain(prefix)) {
        return Err(format!("{:?} is not a label's key", cni::text::shortened(key)));
    }
    Ok(())
}

/// Says why a text is not a label's value.
fn is_value(value: &str) -> Result<(), String> {
    if value.is_empty() || is_word(value) {
        return Ok(());
    }
    Err(format!("{:?} is not a label's value", cni::text::shortened(value)))
}

fn is_word(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
    let ends = [text.bytes().next(), text.bytes().last()];
    text.len() <= LONGEST
        && text.bytes().all(inner)
        && ends.iter().all(|end| end.is_some_and(|end| end.is_ascii_alphanumeric()))
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, requirement) in self.requirements.iter().enumerate() {
            if number > 0 {
                f.write_str(", ")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Requirement { key, must } = self;
        let list = |values: &BTreeSet<String>| {
            values.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
        };
        match must {
            Operator::In(values) if values.len() == 1 => write!(f, "{key}={}", list(values)),
            Operator::In(values) => write!(f, "{key} in ({})", list(values)),
            Operator::NotIn(values) => write!(f, "{key} not in ({})", list(values)),
            Operator::Exist => write!(f, "{key}"),
            Operator::NotExist => write!(f, "no {key}"),
        }
    }
}
