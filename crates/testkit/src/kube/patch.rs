//! JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7386).

use serde_json::Value;

/// Applies a merge patch: `null` removes.
pub(super) fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Some(map) = target.as_object_mut() else { return };
    for (key, value) in patch {
        if value.is_null() {
            map.remove(key);
        } else {
            merge(map.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// The only list here that a strategic merge patch merges by a key, `type`.
pub(super) const CONDITIONS: &str = "conditions";

/// Applies a strategic merge patch. The only list that it may contain is `status.conditions`.
pub(super) fn merge_conditions(target: &mut Value, patch: &Value) {
    let mut rest = patch.clone();
    let wanted = rest.get_mut("status").and_then(Value::as_object_mut);
    let wanted = wanted.and_then(|status| status.remove(CONDITIONS)).unwrap_or_default();
    merge(target, &rest);
    for condition in wanted.as_array().into_iter().flatten() {
        let there = &mut target["status"][CONDITIONS];
        if !there.is_array() {
            *there = Value::Array(Vec::new());
        }
        let Some(there) = there.as_array_mut() else { return };
        match there.iter_mut().find(|one| one["type"] == condition["type"]) {
            Some(one) => merge(one, condition),
            None => there.push(condition.clone()),
        }
    }
}

/// Applies a list of operations; the error says which of them failed.
pub(super) fn apply(target: &mut Value, operations: &Value) -> Result<(), String> {
    let operations = operations.as_array().ok_or("a JSON patch is a list")?;
    for operation in operations {
        step(target, operation)?;
    }
    Ok(())
}

fn step(target: &mut Value, operation: &Value) -> Result<(), String> {
    let path = operation["path"].as_str().ok_or("an operation has no path")?;
    let value = || operation.get("value").cloned().ok_or_else(|| format!("no value for {path:?}"));
    match operation["op"].as_str().unwrap_or_default() {
        "test" => {
            let found = target.pointer(path).cloned().unwrap_or(Value::Null);
            if found == value()? {
                return Ok(());
            }
            Err(format!("testing path {path} value failed: test failed"))
        }
        "add" => put(target, path, value()?, true),
        "replace" => {
            target.pointer(path).ok_or_else(|| {
                format!("replace operation does not apply: doc is missing key: {path}")
            })?;
            put(target, path, value()?, false)
        }
        "remove" => remove(target, path).map(|_| ()),
        "move" | "copy" => {
            let from = operation["from"].as_str().ok_or("an operation has no from")?;
            let value = if operation["op"] == "move" {
                remove(target, from)?
            } else {
                target
                    .pointer(from)
                    .cloned()
                    .ok_or_else(|| format!("doc is missing path: {from}"))?
            };
            put(target, path, value, true)
        }
        other => Err(format!("unknown operation {other:?}")),
    }
}

fn split(path: &str) -> Result<(&str, String), String> {
    let (parent, last) = path.rsplit_once('/').ok_or_else(|| format!("no pointer: {path:?}"))?;
    Ok((parent, last.replace("~1", "/").replace("~0", "~")))
}

fn put(target: &mut Value, path: &str, value: Value, insert: bool) -> Result<(), String> {
    if path.is_empty() {
        *target = value;
        return Ok(());
    }
    let (parent, last) = split(path)?;
    let missing = || format!("add operation does not apply: doc is missing path: {path:?}");
    match target.pointer_mut(parent).ok_or_else(missing)? {
        Value::Object(map) => {
            map.insert(last, value);
        }
        Value::Array(list) if last == "-" => list.push(value),
        Value::Array(list) => {
            let index: usize = last.parse().map_err(|_| missing())?;
            if insert && index <= list.len() {
                list.insert(index, value);
            } else {
                *list.get_mut(index).ok_or_else(missing)? = value;
            }
        }
        _ => return Err(missing()),
    }
    Ok(())
}

fn remove(target: &mut Value, path: &str) -> Result<Value, String> {
    let (parent, last) = split(path)?;
    let missing = || format!("remove operation does not apply: doc is missing path: {path:?}");
    match target.pointer_mut(parent).ok_or_else(missing)? {
        Value::Object(map) => map.remove(&last).ok_or_else(missing),
        Value::Array(list) => {
            let index: usize = last.parse().map_err(|_| missing())?;
            if list.len() <= index {
                return Err(missing());
            }
            Ok(list.remove(index))
        }
        _ => Err(missing()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn merging_as_the_standards_examples() {
        // RFC 7386, appendix A.
        for (target, patch, wanted) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ] {
            let mut merged = target.clone();
            merge(&mut merged, &patch);
            assert_eq!(merged, wanted, "{target} {patch}");
        }
    }

    #[test]
    fn operations_stop_at_a_test_that_fails() {
        let mut object = json!({"m": {"v": "7"}, "a": {"x/y": 1}});
        let operations = json!([
            {"op": "test", "path": "/m/v", "value": "7"},
            {"op": "replace", "path": "/a/x~1y", "value": 2},
            {"op": "add", "path": "/a/z", "value": [1]},
            {"op": "add", "path": "/a/z/-", "value": 2},
            {"op": "remove", "path": "/a/z/0"},
        ]);
        apply(&mut object, &operations).unwrap();
        assert_eq!(object, json!({"m": {"v": "7"}, "a": {"x/y": 2, "z": [2]}}));
        let stale = json!([{"op": "test", "path": "/m/v", "value": "6"}]);
        assert!(apply(&mut object, &stale).unwrap_err().contains("test failed"));
        let missing = json!([{"op": "replace", "path": "/m/w", "value": "6"}]);
        assert!(apply(&mut object, &missing).is_err());
    }
}
