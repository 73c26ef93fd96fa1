//! The connection.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::time::Instant;

use serde_json::{Value as Json, json};

use crate::error::OvsdbError;
use crate::frame::Framer;
use crate::message::{Message, parse};
use crate::outcome::Outcome;
use crate::remote::Remote;
use crate::schema::Schema;
use crate::stream::{Stream, is_timeout};
use crate::transaction::Transaction;
use crate::value::{Row, Uuid};

/// How much to read at once.
const CHUNK: usize = 16 * 1024;

/// How much of what the server sends the client is prepared to store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one message.
    pub message_bytes: usize,
    /// Updates and notifications waiting to be read.
    pub events: usize,
}

impl Default for Limits {
    /// 32 MiB per message, which is 50,000 interfaces with all their columns; 10,000 events.
    fn default() -> Self {
        Limits { message_bytes: 32 << 20, events: 10_000 }
    }
}

/// Which changes a monitor reports (RFC 7047 §4.1.5 `<monitor-select>`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MonitorSelect {
    /// What exists at the start.
    pub initial: bool,
    /// New rows.
    pub insert: bool,
    /// Deleted rows.
    pub delete: bool,
    /// Changed columns.
    pub modify: bool,
}

impl MonitorSelect {
    /// Everything.
    pub const ALL: MonitorSelect =
        MonitorSelect { initial: true, insert: true, delete: true, modify: true };
    /// All changes from now on.
    pub const CHANGES: MonitorSelect = MonitorSelect { initial: false, ..MonitorSelect::ALL };
}

/// A table to watch.
#[derive(Debug, Clone, Copy)]
pub struct MonitorRequest<'a> {
    /// The table.
    pub table: &'a str,
    /// Its columns.
    pub columns: &'a [&'a str],
    /// Which changes.
    pub select: MonitorSelect,
}

/// A change of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct RowUpdate {
    /// Its table.
    pub table: String,
    /// Which.
    pub uuid: Uuid,
    /// The old values of the changed columns; of all columns if the row is gone. `None` for a new
    /// row.
    pub old: Option<Row>,
    /// The current columns. `None` for a row that is gone.
    pub new: Option<Row>,
}

/// A message that the server sends unasked.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Rows changed.
    Update {
        /// The monitor's name.
        monitor: String,
        /// The rows, in no order.
        rows: Vec<RowUpdate>,
    },
    /// A requested lock is now held.
    Locked(String),
    /// Another client took a lock.
    Stolen(String),
}

/// A connection to a database server.
#[derive(Debug)]
pub struct Client {
    stream: Stream,
    framer: Framer,
    remote: String,
    limits: Limits,
    next_id: u64,
    events: VecDeque<Event>,
}

impl Client {
    /// Connects. No request is sent; over TLS, both sides have authenticated.
    ///
    /// # Errors
    /// [`OvsdbError::Connect`], or [`OvsdbError::Deadline`] if the server does not accept by
    /// `until`; over TLS also [`OvsdbError::Keys`] and [`OvsdbError::Tls`]. If the server rejects
    /// our certificate, only the first call may report it (TLS 1.3).
    pub fn connect(remote: &Remote, limits: Limits, until: Instant) -> Result<Self, OvsdbError> {
        Ok(Client {
            stream: Stream::connect(remote, until)?,
            framer: Framer::new(limits.message_bytes),
            remote: remote.to_string(),
            limits,
            next_id: 0,
            events: VecDeque::new(),
        })
    }

    /// Runs a command of a daemon of Open vSwitch by its control socket (`man 8 ovs-appctl`), such as
    /// `ofproto/trace`, and returns what it prints.
    ///
    /// # Errors
    /// [`OvsdbError::Refused`] with the daemon's words; as all requests, if the daemon does not answer.
    pub fn command(
        &mut self,
        command: &str,
        arguments: &[&str],
        until: Instant,
    ) -> Result<String, OvsdbError> {
        match self.ask("run a command", command, json!(arguments), until)? {
            Json::String(text) => Ok(text),
            other => Err(self.nonsense(format!("{other} as the output of a command"))),
        }
    }

    /// Returns the server's address, for messages.
    #[must_use]
    pub fn remote(&self) -> &str {
        &self.remote
    }

    /// Lists the server's databases (RFC 7047 §4.1.1).
    ///
    /// # Errors
    /// [`OvsdbError`].
    pub fn databases(&mut self, until: Instant) -> Result<Vec<String>, OvsdbError> {
        let answer = self.call("list_dbs", json!([]), until)?;
        serde_json::from_value(answer).map_err(|error| self.nonsense(error.to_string()))
    }

    /// Reads a database's schema (§4.1.2).
    ///
    /// # Errors
    /// [`OvsdbError`].
    pub fn schema(&mut self, database: &str, until: Instant) -> Result<Schema, OvsdbError> {
        let answer = self.call("get_schema", json!([database]), until)?;
        Schema::parse(&answer).map_err(|what| self.nonsense(what))
    }

    /// Executes all operations or none (§4.1.3).
    ///
    /// # Errors
    /// [`OvsdbError::Operation`] or [`OvsdbError::Commit`] when the server refused; then nothing
    /// was changed. After [`OvsdbError::Deadline`] or [`OvsdbError::Closed`] it is unknown whether
    /// it was committed.
    pub fn transact(
        &mut self,
        transaction: &Transaction,
        until: Instant,
    ) -> Result<Outcome, OvsdbError> {
        let answer = self.call("transact", transaction.to_json(), until)?;
        transaction.outcome(&answer, &self.remote)
    }

    /// Starts to watch tables (§4.1.5), and returns their contents. Changes arrive as
    /// [`Event::Update`] with the same name.
    ///
    /// # Errors
    /// [`OvsdbError`].
    pub fn monitor(
        &mut self,
        database: &str,
        name: &str,
        tables: &[MonitorRequest<'_>],
        until: Instant,
    ) -> Result<Vec<RowUpdate>, OvsdbError> {
        let mut requests: BTreeMap<&str, Json> = BTreeMap::new();
        for request in tables {
            let MonitorSelect { initial, insert, delete, modify } = request.select;
            let select =
                json!({"initial": initial, "insert": insert, "delete": delete, "modify": modify});
            let asked = json!([{ "columns": request.columns, "select": select }]);
            requests.insert(request.table, asked);
        }
        let answer = self.call("monitor", json!([database, name, requests]), until)?;
        parse_updates(&answer).map_err(|what| self.nonsense(what))
    }

    /// Ends a monitor (§4.1.7).
    ///
    /// # Errors
    /// [`OvsdbError`].
    pub fn cancel_monitor(&mut self, name: &str, until: Instant) -> Result<(), OvsdbError> {
        self.call("monitor_cancel", json!([name]), until).map(drop)
    }

    /// Requests a lock (§4.1.8) and says whether it is held now; if not, [`Event::Locked`] reports
    /// it later.
    ///
    /// # Errors
    /// [`OvsdbError`].
    pub fn lock(&mut self, lock: &str, until: Instant) -> Result<bool, OvsdbError> {
        self.lock_call("lock", lock, until)
    }

    /// Takes a lock away from its holder.
    ///
    /// # Errors
    /// [`OvsdbError`].
    pub fn steal(&mut self, lock: &str, until: Instant) -> Result<bool, OvsdbError> {
        self.lock_call("steal", lock, until)
    }

    /// Releases a lock, or withdraws the request for it.
    ///
    /// # Errors
    /// [`OvsdbError`].
    pub fn unlock(&mut self, lock: &str, until: Instant) -> Result<(), OvsdbError> {
        self.call("unlock", json!([lock]), until).map(drop)
    }

    fn lock_call(
        &mut self,
        method: &'static str,
        lock: &str,
        until: Instant,
    ) -> Result<bool, OvsdbError> {
        let answer = self.call(method, json!([lock]), until)?;
        let locked = answer.get("locked").and_then(Json::as_bool);
        locked
            .ok_or_else(|| self.nonsense(format!("the answer to {method} does not say \"locked\"")))
    }

    /// Asks whether the server is alive (§4.1.11).
    ///
    /// # Errors
    /// [`OvsdbError`].
    pub fn echo(&mut self, until: Instant) -> Result<(), OvsdbError> {
        self.call("echo", json!(["netwright"]), until).map(drop)
    }

    /// Waits for a message that the server sends unasked; `None` when the deadline passed. Echo
    /// requests are answered meanwhile.
    ///
    /// # Errors
    /// [`OvsdbError`]; the connection can no longer be used.
    pub fn next_event(&mut self, until: Instant) -> Result<Option<Event>, OvsdbError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            match self.receive("wait", until) {
                Ok(message) => self.unasked(message, until)?,
                // Half a message whose rest does not arrive is not silence.
                Err(OvsdbError::Deadline { .. }) if !self.framer.is_within() => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a request and waits for its answer.
    fn call(
        &mut self,
        method: &'static str,
        params: Json,
        until: Instant,
    ) -> Result<Json, OvsdbError> {
        self.ask(method, method, params, until)
    }

    #[expect(clippy::needless_pass_by_value, reason = "it is made for the call")]
    fn ask(
        &mut self,
        doing: &'static str,
        method: &str,
        params: Json,
        until: Instant,
    ) -> Result<Json, OvsdbError> {
        self.next_id += 1;
        let id = json!(self.next_id);
        self.send(doing, &json!({ "id": id, "method": method, "params": params }), until)?;
        loop {
            match self.receive(doing, until)? {
                Message::Response { id: of, result } if of == id => {
                    return result.map_err(|source| OvsdbError::Refused { doing, source });
                }
                Message::Response { id: of, .. } => {
                    return Err(
                        self.nonsense(format!("an answer to request {of}, which was not sent"))
                    );
                }
                other => self.unasked(other, until)?,
            }
        }
    }

    fn send(&mut self, doing: &'static str, json: &Json, until: Instant) -> Result<(), OvsdbError> {
        let sent = self.stream.write_all(json.to_string().as_bytes(), until);
        sent.map_err(|source| self.broken(doing, source))
    }

    fn receive(&mut self, doing: &'static str, until: Instant) -> Result<Message, OvsdbError> {
        loop {
            match self.framer.next_object() {
                Ok(Some(bytes)) => return parse(&bytes).map_err(|what| self.nonsense(what)),
                Ok(None) => {}
                Err(crate::frame::FrameError::TooLong(limit)) => {
                    let remote = self.remote.clone();
                    return Err(OvsdbError::TooMuch { remote, what: "bytes in a message", limit });
                }
                Err(error) => return Err(self.nonsense(error.to_string())),
            }
            let mut chunk = [0; CHUNK];
            match self.stream.read(&mut chunk, until) {
                Ok(0) => return Err(OvsdbError::Closed { remote: self.remote.clone(), doing }),
                Ok(count) => self.framer.push(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(doing, error)),
            }
        }
    }

    /// Handles a message that is not an answer.
    fn unasked(&mut self, message: Message, until: Instant) -> Result<(), OvsdbError> {
        let (method, params) = match message {
            Message::Response { id, .. } => {
                return Err(self.nonsense(format!("an answer to request {id}, which was not sent")));
            }
            Message::Request { id, method, params } => {
                let answer = match method.as_str() {
                    "echo" => json!({ "id": id, "result": params, "error": null }),
                    _ => {
                        json!({ "id": id, "result": null, "error": { "error": "unknown method" } })
                    }
                };
                return self.send("echo", &answer, until);
            }
            Message::Notification { method, params } => (method, params),
        };
        let name = || {
            let name = params.get(0).and_then(Json::as_str);
            name.map(ToOwned::to_owned).ok_or_else(|| format!("{method:?} names no operation"))
        };
        let event = match method.as_str() {
            "update" => name().and_then(|monitor| {
                let rows = parse_updates(params.get(1).unwrap_or(&Json::Null))?;
                Ok(Event::Update { monitor, rows })
            }),
            "locked" => name().map(Event::Locked),
            "stolen" => name().map(Event::Stolen),
            // Messages unknown to us are not meant for us.
            _ => return Ok(()),
        };
        let event = event.map_err(|what| self.nonsense(what))?;
        if self.limits.events <= self.events.len() {
            let (remote, limit) = (self.remote.clone(), self.limits.events);
            return Err(OvsdbError::TooMuch { remote, what: "unread updates", limit });
        }
        self.events.push_back(event);
        Ok(())
    }

    fn nonsense(&self, what: String) -> OvsdbError {
        OvsdbError::Nonsense { remote: self.remote.clone(), what }
    }

    fn broken(&self, doing: &'static str, source: io::Error) -> OvsdbError {
        let remote = self.remote.clone();
        match source.kind() {
            _ if is_timeout(&source) => OvsdbError::Deadline { remote, doing },
            // A socket never returns this: it comes from the TLS layer.
            io::ErrorKind::InvalidData => OvsdbError::Tls { remote, source },
            _ => OvsdbError::Io { remote, doing, source },
        }
    }
}

/// Reads `<table-updates>` (RFC 7047 §4.1.6).
///
/// # Errors
/// What was found instead.
pub fn parse_updates(json: &Json) -> Result<Vec<RowUpdate>, String> {
    let tables = json.as_object().ok_or("an update is not an object")?;
    let mut rows = Vec::new();
    for (table, changes) in tables {
        let changes = changes
            .as_object()
            .ok_or_else(|| format!("the update of {table:?} is not an object"))?;
        for (uuid, change) in changes {
            let uuid =
                Uuid::parse(uuid).ok_or_else(|| format!("{uuid:?} is not the name of a row"))?;
            let row = |key: &str| {
                change.get(key).filter(|row| !row.is_null()).map(Row::parse).transpose()
            };
            rows.push(RowUpdate { table: table.clone(), uuid, old: row("old")?, new: row("new")? });
        }
    }
    Ok(rows)
}
