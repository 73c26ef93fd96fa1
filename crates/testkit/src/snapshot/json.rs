//! Converts the output of `ip -json` and `nft -json` to a form that can be compared.

use serde_json::Value;

/// Removes keys at every level.
pub(super) fn without(value: &mut Value, keys: &[&str]) {
    match value {
        Value::Object(map) => {
            map.retain(|key, _| !keys.contains(&key.as_str()));
            map.values_mut().for_each(|inner| without(inner, keys));
        }
        Value::Array(items) => items.iter_mut().for_each(|inner| without(inner, keys)),
        _ => {}
    }
}

/// Sorts the arrays under these keys at every level: their order means nothing.
pub(super) fn sorted(value: &mut Value, keys: &[&str]) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map.iter_mut() {
                if let (true, Value::Array(items)) = (keys.contains(&key.as_str()), &mut *inner) {
                    items.sort_by_key(ToString::to_string);
                }
                sorted(inner, keys);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|inner| sorted(inner, keys)),
        _ => {}
    }
}

/// Returns a text field of an object.
pub(super) fn text(value: &Value, key: &str) -> String {
    match value.get(key) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    }
}

/// Parses a program's output; an empty one is null.
///
/// # Panics
/// When it is not JSON: unreadable output must not look empty.
pub(super) fn parse(output: &str) -> Value {
    let output = output.trim();
    if output.is_empty() {
        return Value::Null;
    }
    serde_json::from_str(output).unwrap_or_else(|error| panic!("{error} in:\n{output}"))
}

/// Returns the elements in a program's output; an empty output has none.
pub(super) fn list(output: &str) -> Vec<Value> {
    match parse(output) {
        Value::Array(items) => items,
        _ => Vec::new(),
    }
}
