//! Refusals, as the API's `Status` objects.
//!
//! Kubernetes API concepts: "Resource API" and `meta/v1` "Status": `reason` is for programs,
//! `message` for people.

use serde_json::{Value, json};

use super::kinds::Kind;

/// A refusal: the HTTP status, the reason and the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: u16,
    reason: &'static str,
    message: String,
    details: Value,
}

impl Refusal {
    pub(super) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Refusal { code, reason, message: message.into(), details: Value::Null }
    }

    pub(super) fn of(mut self, kind: &Kind, name: &str) -> Self {
        self.details = json!({"name": name, "group": kind.group, "kind": kind.plural});
        self
    }

    pub(super) fn not_found(kind: &Kind, name: &str) -> Self {
        let message = format!("{} {name:?} not found", kind.qualified());
        Self::new(404, "NotFound", message).of(kind, name)
    }

    pub(super) fn exists(kind: &Kind, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", kind.qualified());
        Self::new(409, "AlreadyExists", message).of(kind, name)
    }

    pub(super) fn modified(kind: &Kind, name: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {name:?}: the object has been modified; please apply your changes to the latest version and try again",
            kind.qualified()
        );
        Self::new(409, "Conflict", message).of(kind, name)
    }

    pub(super) fn precondition(
        kind: &Kind,
        name: &str,
        field: &str,
        wanted: &str,
        found: &str,
    ) -> Self {
        let what = if field == "uid" { "UID" } else { "ResourceVersion" };
        let message = format!(
            "Operation cannot be fulfilled on {} {name:?}: Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}",
            kind.qualified()
        );
        Self::new(409, "Conflict", message).of(kind, name)
    }

    pub(super) fn invalid(kind: &Kind, name: &str, field: &str, what: &str) -> Self {
        let message = format!("{} {name:?} is invalid: {field}: {what}", kind.kind);
        Self::new(422, "Invalid", message).of(kind, name)
    }

    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// The requested version is older than what is kept.
    pub(super) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// The object that is sent.
    pub(super) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        status
    }
}
