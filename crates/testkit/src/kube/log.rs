//! What was asked.

/// A request, as access control sees it, and what became of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// `get`, `list`, `watch`, `create`, `update`, `patch` or `delete`.
    pub verb: String,
    /// The API's group.
    pub group: String,
    /// The resource, with its sub-resource: `pods/status`.
    pub resource: String,
    /// The namespace; empty where all are meant, or there is none.
    pub namespace: String,
    /// The object's name; empty for a collection. For a list or watch of one name, that.
    pub name: String,
    /// Method and address as they were sent.
    pub line: String,
    /// What kind of body it had.
    pub content_type: String,
    /// The body.
    pub body: String,
    /// Who asked.
    pub user_agent: String,
    /// The answer's code.
    pub code: u16,
}
