//! The messages of a database server.

use netwright_ovsdb::client::parse_updates;
use netwright_ovsdb::frame::Framer;
use netwright_ovsdb::message::{Message, parse};
use netwright_ovsdb::{Remote, Row, Schema, Transaction};

/// The maximal length of a message here, in bytes.
const LIMIT: usize = 1 << 12;

/// A stream of messages, read as a whole and in pieces, gives the same objects; and each of them,
/// written and read again, stays the same.
pub fn messages(data: &[u8]) {
    let whole = objects(data, data.len().max(1));
    assert_eq!(whole, objects(data, 7));
    let mut asked = Transaction::new("db");
    asked.insert("Port", "p", &Row::new());
    asked.select("Port", vec![], &[]);
    for object in whole.0 {
        let Ok(message) = parse(&object) else { continue };
        let (Message::Response { result: Ok(json), .. }
        | Message::Request { params: json, .. }
        | Message::Notification { params: json, .. }) = message
        else {
            continue;
        };
        let _ = asked.outcome(&json, "fuzz");
        let _ = Schema::parse(&json);
        let updates = parse_updates(json.get(1).unwrap_or(&json));
        for row in
            updates.into_iter().flatten().flat_map(|update| [update.old, update.new]).flatten()
        {
            let again = Row::parse(&row.to_json());
            assert_eq!(again.as_ref(), Ok(&row));
        }
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(remote) = text.parse::<Remote>()
    {
        assert_eq!(remote.to_string().parse::<Remote>().ok(), Some(remote));
    }
}

/// The objects in a stream, and whether an error follows them.
fn objects(data: &[u8], size: usize) -> (Vec<Vec<u8>>, bool) {
    let mut framer = Framer::new(LIMIT);
    let mut found = Vec::new();
    for piece in data.chunks(size) {
        framer.push(piece);
        loop {
            match framer.next_object() {
                Ok(Some(object)) => found.push(object),
                Ok(None) => break,
                Err(_) => return (found, true),
            }
        }
    }
    (found, false)
}
