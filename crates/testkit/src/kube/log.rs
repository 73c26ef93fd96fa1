//! The log of requests.

/// A request, as access control sees it, and its outcome.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoggedRequest {
    /// `get`, `list`, `watch`, `create`, `update`, `patch` or `delete`.
    pub verb: String,
    /// The API's group.
    pub group: String,
    /// The resource, with its sub-resource: `pods/status`.
    pub resource: String,
    /// The namespace; empty if all are meant, or there is none.
    pub namespace: String,
    /// The object's name; empty for a collection. For a list or watch of one name, that name.
    pub name: String,
    /// Method and address as they were sent.
    pub line: String,
    /// The media type of its body.
    pub content_type: String,
    /// The body.
    pub body: String,
    /// Only metadata was asked for.
    pub is_metadata_only: bool,
    /// The client.
    pub user_agent: String,
    /// The answer's code.
    pub code: u16,
}
