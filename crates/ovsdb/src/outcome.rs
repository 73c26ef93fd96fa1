//! The result of each operation of a transaction.

use serde_json::Value as Json;

use crate::transaction::Handle;
use crate::value::{Atom, Row, Uuid};

/// The shape of an operation's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Uuid,
    Rows,
    Count,
    Nothing,
}

/// The answer to an operation that succeeded.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum OperationAnswer {
    Inserted(Uuid),
    Rows(Vec<Row>),
    Count(u64),
    Nothing,
}

impl OperationAnswer {
    pub(crate) fn read(shape: Shape, answer: &Json) -> Result<Self, String> {
        let member = |key: &str| answer.get(key).ok_or_else(|| format!("it has no {key:?}"));
        match shape {
            Shape::Nothing => match answer {
                Json::Object(_) => Ok(OperationAnswer::Nothing),
                _ => Err("it is not an object".to_owned()),
            },
            Shape::Uuid => match Atom::parse(member("uuid")?)? {
                Atom::Uuid(uuid) => Ok(OperationAnswer::Inserted(uuid)),
                _ => Err("its \"uuid\" is not a UUID".to_owned()),
            },
            Shape::Count => member("count")?
                .as_u64()
                .map(OperationAnswer::Count)
                .ok_or_else(|| "its \"count\" is not a number".to_owned()),
            Shape::Rows => {
                let rows = member("rows")?.as_array().ok_or("its \"rows\" are not a list")?;
                rows.iter().map(Row::parse).collect::<Result<_, _>>().map(OperationAnswer::Rows)
            }
        }
    }
}

/// The results of a transaction that succeeded as a whole.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome(Vec<OperationAnswer>);

impl Outcome {
    pub(crate) fn new(done: Vec<OperationAnswer>) -> Self {
        Outcome(done)
    }

    /// Returns the rows that a `select` found.
    ///
    /// # Panics
    /// When the handle is not that of a `select` of the same transaction.
    #[must_use]
    pub fn rows(&self, select: Handle) -> &[Row] {
        match self.0.get(select.0) {
            Some(OperationAnswer::Rows(rows)) => rows,
            other => unreachable!("the handle of a select, not of {other:?}"),
        }
    }

    /// Returns the row that an `insert` created.
    ///
    /// # Panics
    /// When the handle is not that of an `insert` of the same transaction.
    #[must_use]
    pub fn inserted(&self, insert: Handle) -> &Uuid {
        match self.0.get(insert.0) {
            Some(OperationAnswer::Inserted(uuid)) => uuid,
            other => unreachable!("the handle of an insert, not of {other:?}"),
        }
    }

    /// Returns how many rows an `update`, `mutate` or `delete` matched.
    ///
    /// # Panics
    /// When the handle is not that of one of them of the same transaction.
    #[must_use]
    pub fn count(&self, change: Handle) -> u64 {
        match self.0.get(change.0) {
            Some(OperationAnswer::Count(count)) => *count,
            other => unreachable!("the handle of a change, not of {other:?}"),
        }
    }
}
