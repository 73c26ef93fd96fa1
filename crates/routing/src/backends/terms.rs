//! What a node says of a backend, as documents and the annotation have it.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::node::Underlay;
use crate::reader::{Fault, KeyedValue};

/// With what a node offers a backend.
pub(crate) trait Terms: Copy + Serialize {
    /// As nodes write it in the annotation, with nothing else in it.
    type Plain: DeserializeOwned;

    /// Reads a value of the annotation of a node with these underlay addresses.
    ///
    /// # Errors
    /// What is wrong with it, after the path of the key.
    fn read(at: &KeyedValue<'_>, underlay: Underlay) -> Result<Self, Fault>;

    /// Reads the same in its plain form; `None` if something is wrong with it.
    fn of_plain(plain: Self::Plain, underlay: Underlay) -> Option<Self>;
}

/// A field of what a node offers.
pub(crate) trait OfferField: Copy {
    /// With what it is offered.
    type Terms: Terms;

    /// Returns with what it is offered, if it is.
    fn terms(self) -> Option<Self::Terms>;

    /// Returns the field for that.
    fn of(terms: Option<Self::Terms>) -> Self;

    /// Reports whether a document has no such field.
    fn is_left_out(&self) -> bool;
}

impl<T: Terms> OfferField for Option<T> {
    type Terms = T;

    fn terms(self) -> Option<T> {
        self
    }

    fn of(terms: Option<T>) -> Self {
        terms
    }

    fn is_left_out(&self) -> bool {
        self.is_none()
    }
}

/// The first offers, of which documents always say whether they are made.
impl OfferField for bool {
    type Terms = NoTerms;

    fn terms(self) -> Option<NoTerms> {
        self.then_some(NoTerms {})
    }

    fn of(terms: Option<NoTerms>) -> Self {
        terms.is_some()
    }

    fn is_left_out(&self) -> bool {
        false
    }
}

/// There is nothing more to say of the offer: `{}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NoTerms {}

/// `{}`, and nothing in it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

impl Terms for NoTerms {
    type Plain = Nothing;

    /// A newer node may have more to say.
    fn read(_at: &KeyedValue<'_>, _underlay: Underlay) -> Result<Self, Fault> {
        Ok(NoTerms {})
    }

    fn of_plain(_plain: Nothing, _underlay: Underlay) -> Option<Self> {
        Some(NoTerms {})
    }
}

/// What the annotation's plain form has for a field.
pub(crate) type PlainOf<F> = <<F as OfferField>::Terms as Terms>::Plain;

/// Reads a field of the annotation's offers.
pub(crate) fn read_field<F: OfferField>(
    offers: &KeyedValue<'_>,
    key: &str,
    underlay: Underlay,
) -> Result<F, Fault> {
    let terms = offers.get(key)?.map(|at| F::Terms::read(&at, underlay)).transpose()?;
    Ok(F::of(terms))
}

/// Reads the same in its plain form; `None` if something is wrong.
pub(crate) fn plain_field<F: OfferField>(
    plain: Option<PlainOf<F>>,
    underlay: Underlay,
) -> Option<F> {
    let Some(plain) = plain else { return Some(F::of(None)) };
    Some(F::of(Some(F::Terms::of_plain(plain, underlay)?)))
}
