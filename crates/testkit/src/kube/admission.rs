//! Validating admission policies: their expressions decide which creations and updates are allowed.

use serde_json::{Value, json};

use super::kinds::Kind;
use super::status::Refusal;
use crate::cel::{Expression, Variables};

/// Policies, and the requesting user.
#[derive(Debug)]
pub(super) struct Admission {
    policies: Vec<Policy>,
    user: Value,
}

#[derive(Debug)]
struct Policy {
    name: String,
    /// The groups, versions, resources and operations that the policy applies to.
    rules: Vec<[Vec<String>; 4]>,
    conditions: Vec<Expression>,
    variables: Vec<(String, Expression)>,
    validations: Vec<(Expression, String)>,
}

fn texts(value: &Value) -> Vec<String> {
    let list = value.as_array().into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn all<'v>(value: &'v Value, pointer: &str) -> impl Iterator<Item = &'v Value> {
    value.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

fn expression(value: &Value) -> Expression {
    let text = text(&value["expression"]);
    Expression::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

impl Admission {
    /// Reads policies as they are installed.
    pub(super) fn new(policies: &[Value], user: &Value) -> Self {
        let policy = |policy: &Value| {
            assert_eq!(policy["spec"]["failurePolicy"], "Fail", "no other is known here");
            let matched = &policy["spec"]["matchConstraints"]["matchPolicy"];
            assert!(matched.is_null(), "only the default, `Equivalent`, is known here");
            Policy {
                name: text(&policy["metadata"]["name"]),
                rules: all(policy, "/spec/matchConstraints/resourceRules")
                    .map(|rule| {
                        let keys = ["apiGroups", "apiVersions", "resources", "operations"];
                        keys.map(|key| texts(&rule[key]))
                    })
                    .collect(),
                conditions: all(policy, "/spec/matchConditions").map(expression).collect(),
                variables: all(policy, "/spec/variables")
                    .map(|variable| (text(&variable["name"]), expression(variable)))
                    .collect(),
                validations: all(policy, "/spec/validations")
                    .map(|validation| (expression(validation), text(&validation["message"])))
                    .collect(),
            }
        };
        Admission { policies: policies.iter().map(policy).collect(), user: user.clone() }
    }

    /// Judges a change: `before` is `None` for a creation. A rule that names one of the versions in
    /// which the kind is served is about requests in all of them (admissionregistration/v1
    /// MatchResources, `matchPolicy: Equivalent`).
    pub(super) fn judge(
        &self,
        (kind, served): (&Kind, &[&str]),
        resource: &str,
        before: Option<&Value>,
        after: &Value,
    ) -> Result<(), Refusal> {
        let operation = if before.is_some() { "UPDATE" } else { "CREATE" };
        let mut known = Variables::from([
            ("object".to_owned(), after.clone()),
            ("oldObject".to_owned(), before.cloned().unwrap_or_default()),
            ("request".to_owned(), json!({"userInfo": self.user, "operation": operation})),
        ]);
        for policy in &self.policies {
            let is_about = |[groups, versions, resources, operations]: &[Vec<String>; 4]| {
                let has = |listed: &[String], asked: &str| listed.iter().any(|one| one == asked);
                has(groups, kind.group)
                    && served.iter().any(|version| has(versions, version))
                    && has(resources, resource)
                    && has(operations, operation)
            };
            if !policy.rules.iter().any(is_about) {
                continue;
            }
            let denied = |why: String| {
                let name = text(&after["metadata"]["name"]);
                let message = format!(
                    "{} {name:?} is forbidden: ValidatingAdmissionPolicy '{}' denied request: {why}",
                    kind.qualified(),
                    policy.name
                );
                Refusal::new(422, "Invalid", message).of(kind, &name)
            };
            let mut is_meant = true;
            for condition in &policy.conditions {
                is_meant &= condition.evaluate(&known).map_err(denied)? == json!(true);
            }
            if !is_meant {
                continue;
            }
            known.insert("variables".to_owned(), json!({}));
            for (name, variable) in &policy.variables {
                let value = variable.evaluate(&known).map_err(denied)?;
                known.entry("variables".to_owned()).or_default()[name] = value;
            }
            for (validation, message) in &policy.validations {
                match validation.evaluate(&known) {
                    Ok(Value::Bool(true)) => {}
                    Ok(_) => return Err(denied(message.clone())),
                    // "failurePolicy: Fail".
                    Err(error) => return Err(denied(error)),
                }
            }
        }
        Ok(())
    }
}
