//! Operations (RFC 7047 §5.2).

use serde_json::{Value as Json, json};

use crate::error::OvsdbError;
use crate::message::server_error;
use crate::outcome::{OperationAnswer, Outcome, Shape};
use crate::value::{Row, Uuid, Value};

/// How a column is compared (RFC 7047 §5.1 `<function>`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    /// `==`.
    Equal,
    /// `!=`.
    NotEqual,
    /// The column has all of the given values.
    Includes,
    /// The column has none of the given values.
    Excludes,
}

/// Which rows an operation applies to.
#[derive(Debug, Clone, PartialEq)]
pub struct Condition {
    column: String,
    function: Function,
    value: Value,
}

impl Condition {
    /// A column, how to compare it, and with what.
    pub fn new(column: &str, function: Function, value: impl Into<Value>) -> Self {
        Condition { column: column.to_owned(), function, value: value.into() }
    }

    /// The column is the value.
    pub fn equals(column: &str, value: impl Into<Value>) -> Self {
        Condition::new(column, Function::Equal, value)
    }

    /// The column contains the value.
    pub fn includes(column: &str, value: impl Into<Value>) -> Self {
        Condition::new(column, Function::Includes, value)
    }

    /// The row is this one.
    #[must_use]
    pub fn is(uuid: &Uuid) -> Self {
        Condition::equals("_uuid", uuid.clone())
    }

    fn to_json(&self) -> Json {
        let function = match self.function {
            Function::Equal => "==",
            Function::NotEqual => "!=",
            Function::Includes => "includes",
            Function::Excludes => "excludes",
        };
        json!([self.column, function, self.value.to_json()])
    }
}

/// A change of a column (RFC 7047 §5.1 `<mutation>`).
#[derive(Debug, Clone, PartialEq)]
pub struct Mutation {
    column: String,
    mutator: &'static str,
    value: Value,
}

impl Mutation {
    /// Adds values to a set or pairs to a map; an existing key keeps its value.
    pub fn insert(column: &str, value: impl Into<Value>) -> Self {
        Mutation { column: column.to_owned(), mutator: "insert", value: value.into() }
    }

    /// Removes values from a set, or pairs or keys from a map.
    pub fn delete(column: &str, value: impl Into<Value>) -> Self {
        Mutation { column: column.to_owned(), mutator: "delete", value: value.into() }
    }

    /// Adds to a number.
    #[must_use]
    pub fn add(column: &str, number: i64) -> Self {
        Mutation { column: column.to_owned(), mutator: "+=", value: number.into() }
    }

    fn to_json(&self) -> Json {
        json!([self.column, self.mutator, self.value.to_json()])
    }
}

/// The condition of a `wait`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitCondition {
    /// The found rows are those given.
    Equal,
    /// The rows found are others.
    NotEqual,
}

/// Refers to the result of an operation: the operation's index in its transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle(pub(crate) usize);

#[derive(Debug, Clone, PartialEq)]
struct Operation {
    kind: &'static str,
    table: String,
    shape: Shape,
    json: Json,
}

/// Operations that are all done or not at all.
#[derive(Debug, Clone, PartialEq)]
pub struct Transaction {
    database: String,
    operations: Vec<Operation>,
}

impl Transaction {
    /// A transaction without operations yet.
    #[must_use]
    pub fn new(database: &str) -> Self {
        Transaction { database: database.to_owned(), operations: Vec::new() }
    }

    /// Says whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Inserts a row; other operations of the same transaction refer to it as
    /// [`Atom::Named`](crate::Atom::Named).
    pub fn insert(&mut self, table: &str, name: &str, row: &Row) -> Handle {
        let json = json!({ "row": row.to_json(), "uuid-name": name });
        self.push("insert", table, Shape::Uuid, json)
    }

    /// Reads columns of rows.
    pub fn select(&mut self, table: &str, conditions: Vec<Condition>, columns: &[&str]) -> Handle {
        let json = json!({ "where": wheres(&conditions), "columns": columns });
        self.push("select", table, Shape::Rows, json)
    }

    /// Sets columns of rows.
    pub fn update(&mut self, table: &str, conditions: Vec<Condition>, row: &Row) -> Handle {
        let json = json!({ "where": wheres(&conditions), "row": row.to_json() });
        self.push("update", table, Shape::Count, json)
    }

    /// Changes columns of rows relative to their values.
    pub fn mutate(
        &mut self,
        table: &str,
        conditions: Vec<Condition>,
        mutations: &[Mutation],
    ) -> Handle {
        let mutations: Vec<Json> = mutations.iter().map(Mutation::to_json).collect();
        let json = json!({ "where": wheres(&conditions), "mutations": mutations });
        self.push("mutate", table, Shape::Count, json)
    }

    /// Deletes rows.
    pub fn delete(&mut self, table: &str, conditions: Vec<Condition>) -> Handle {
        self.push("delete", table, Shape::Count, json!({ "where": wheres(&conditions) }))
    }

    /// Continues only if the rows' columns have, or do not have, these values now. It does not
    /// wait: if the condition does not hold, the error is [`OvsdbError::is_conflict`].
    pub fn assume(
        &mut self,
        table: &str,
        conditions: Vec<Condition>,
        columns: &[&str],
        until: WaitCondition,
        rows: &[Row],
    ) -> Handle {
        self.wait(table, conditions, columns, until, rows, 0)
    }

    /// Continues once the rows' columns have, or do not have, these values; fails after this many
    /// milliseconds.
    pub fn wait(
        &mut self,
        table: &str,
        conditions: Vec<Condition>,
        columns: &[&str],
        until: WaitCondition,
        rows: &[Row],
        timeout_ms: u32,
    ) -> Handle {
        let until = match until {
            WaitCondition::Equal => "==",
            WaitCondition::NotEqual => "!=",
        };
        let json = json!({
            "where": wheres(&conditions),
            "columns": columns,
            "until": until,
            "rows": rows.iter().map(Row::to_json).collect::<Vec<_>>(),
            "timeout": timeout_ms,
        });
        self.push("wait", table, Shape::Nothing, json)
    }

    /// Requests that the transaction be on the disk before it is answered.
    pub fn commit_durably(&mut self) -> Handle {
        self.push("commit", "", Shape::Nothing, json!({ "durable": true }))
    }

    /// Undoes everything.
    pub fn abort(&mut self) -> Handle {
        self.push("abort", "", Shape::Nothing, json!({}))
    }

    /// Writes a line for readers of the database's journal.
    pub fn comment(&mut self, text: &str) -> Handle {
        self.push("comment", "", Shape::Nothing, json!({ "comment": text }))
    }

    /// Continues only if this connection holds the lock.
    pub fn assert_lock(&mut self, lock: &str) -> Handle {
        self.push("assert", "", Shape::Nothing, json!({ "lock": lock }))
    }

    fn push(&mut self, kind: &'static str, table: &str, shape: Shape, mut json: Json) -> Handle {
        json["op"] = kind.into();
        if !table.is_empty() {
            json["table"] = table.into();
        }
        self.operations.push(Operation { kind, table: table.to_owned(), shape, json });
        Handle(self.operations.len() - 1)
    }

    /// Writes the parameters of the method `transact`.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let operations = self.operations.iter().map(|operation| operation.json.clone());
        Json::Array(std::iter::once(self.database.clone().into()).chain(operations).collect())
    }

    /// Reads the answer: one part per operation, and one more if the whole was refused (RFC 7047
    /// §4.1.3).
    ///
    /// # Errors
    /// [`OvsdbError::Operation`] and [`OvsdbError::Commit`] when the server refused;
    /// [`OvsdbError::Nonsense`] when the answer does not fit the operations, with `remote` as the
    /// server's name.
    pub fn outcome(&self, answer: &Json, remote: &str) -> Result<Outcome, OvsdbError> {
        let nonsense = |what: String| OvsdbError::Nonsense { remote: remote.to_owned(), what };
        let answers = answer
            .as_array()
            .ok_or_else(|| nonsense("the answer to a transaction is not a list".to_owned()))?;
        let is_error = |answer: &&Json| answer.get("error").is_some_and(|error| !error.is_null());
        if let Some((index, answer)) =
            answers.iter().enumerate().find(|(_, answer)| is_error(answer))
        {
            let source = server_error(answer);
            return Err(match self.operations.get(index) {
                Some(operation) => OvsdbError::Operation {
                    index,
                    operation: operation.kind,
                    table: operation.table.clone(),
                    source,
                },
                None => OvsdbError::Commit { source },
            });
        }
        if answers.len() != self.operations.len() {
            return Err(nonsense(format!(
                "{} operations have {} answers",
                self.operations.len(),
                answers.len()
            )));
        }
        let done = self.operations.iter().zip(answers).map(|(operation, answer)| {
            OperationAnswer::read(operation.shape, answer)
                .map_err(|what| nonsense(format!("the answer to {}: {what}", operation.kind)))
        });
        done.collect::<Result<_, _>>().map(Outcome::new)
    }
}

fn wheres(conditions: &[Condition]) -> Json {
    Json::Array(conditions.iter().map(Condition::to_json).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> (Transaction, Handle, Handle) {
        let mut transaction = Transaction::new("db");
        let insert = transaction.insert("Port", "p", &Row::new().with("name", "p0"));
        let update = transaction.update("Bridge", vec![], &Row::new());
        (transaction, insert, update)
    }

    fn fails(answer: Json) -> String {
        let error = two().0.outcome(&answer, "unix:/x").unwrap_err();
        let source = std::error::Error::source(&error).map(ToString::to_string);
        source.into_iter().fold(error.to_string(), |text, source| format!("{text}: {source}"))
    }

    const UUID: &str = "00000000-0000-0000-0000-000000000001";

    #[test]
    fn outcomes_are_by_operation() {
        let (transaction, insert, update) = two();
        let answer = json!([{ "uuid": ["uuid", UUID] }, { "count": 3 }]);
        let outcome = transaction.outcome(&answer, "").unwrap();
        assert_eq!(outcome.inserted(insert).as_str(), UUID);
        assert_eq!(outcome.count(update), 3);
    }

    #[test]
    fn every_operations_answer_is_looked_at() {
        let fine = json!({ "uuid": ["uuid", UUID] });
        let refused = json!({ "error": "constraint violation", "details": "taken" });
        assert_eq!(
            fails(json!([refused, null])),
            "operation 0 (insert Port) was refused: constraint violation: taken"
        );
        assert_eq!(
            fails(json!([fine, { "error": "syntax error" }])),
            "operation 1 (update Bridge) was refused: syntax error"
        );
        assert_eq!(
            fails(json!([fine, { "count": 1 }, refused])),
            "the transaction was refused: constraint violation: taken"
        );
        for answer in [
            json!({}),
            json!([]),
            json!([fine]),
            json!([fine, null]),
            json!([fine, { "count": -1 }]),
            json!([{ "uuid": "x" }, { "count": 1 }]),
            json!([fine, { "count": 1 }, {}]),
        ] {
            assert!(fails(answer).starts_with("unix:/x sent an invalid answer: "));
        }
    }
}
