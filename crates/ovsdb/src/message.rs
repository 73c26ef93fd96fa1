//! JSON-RPC 1.0, as OVSDB uses it (RFC 7047 §4).

use serde_json::Value as Json;

use crate::error::ServerError;

/// A message from the server.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// The answer to a request.
    Response {
        /// The request's number.
        id: Json,
        /// The result.
        result: Result<Json, ServerError>,
    },
    /// The server asks: `echo`.
    Request {
        /// The ID to answer with.
        id: Json,
        /// The called method.
        method: String,
        /// Its parameters.
        params: Json,
    },
    /// A notification from the server: `update`, `locked`, `stolen`.
    Notification {
        /// What.
        method: String,
        /// The rest.
        params: Json,
    },
}

/// Reads a message.
///
/// # Errors
/// What is wrong with it.
pub fn parse(bytes: &[u8]) -> Result<Message, String> {
    let json: Json = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let Json::Object(mut members) = json else {
        return Err("a message is not an object".to_owned());
    };
    let mut take = |key: &str| members.remove(key).unwrap_or(Json::Null);
    let (id, method) = (take("id"), take("method"));
    if let Json::String(method) = method {
        let params = take("params");
        return Ok(match id {
            Json::Null => Message::Notification { method, params },
            id => Message::Request { id, method, params },
        });
    }
    let result = match take("error") {
        Json::Null => Ok(take("result")),
        error => Err(server_error(&error)),
    };
    match id {
        Json::Null => Err("a message is neither a reply nor a request".to_owned()),
        id => Ok(Message::Response { id, result }),
    }
}

/// Reads an `<error>` of any shape: some servers send text instead of an object.
#[must_use]
pub fn server_error(json: &Json) -> ServerError {
    let text = |key: &str| json.get(key).and_then(Json::as_str).unwrap_or_default().to_owned();
    match json {
        Json::Object(_) => ServerError { error: text("error"), details: text("details") },
        Json::String(error) => ServerError { error: error.clone(), details: String::new() },
        other => ServerError { error: other.to_string(), details: String::new() },
    }
}
