//! What follows from the table of backends.

/// Makes, of a line for each backend: its number, the field of what a node offers, and the key of the
/// annotation.
macro_rules! backends {
    ($($name:ident: $field:ty = $module:ident::$Backend:ident;)*) => {
        /// A backend. Their order is that in which a path is looked for.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum BackendId {
            $(#[doc = concat!("`", stringify!($name), "`")] $Backend,)*
        }

        impl BackendId {
            /// All of them.
            pub const ALL: &[BackendId] = &[$(BackendId::$Backend),*];

            /// Returns the word for it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(BackendId::$Backend => stringify!($name),)*
                }
            }

            pub(crate) fn backend(self) -> &'static dyn Backend {
                match self {
                    $(BackendId::$Backend => &$module::$Backend,)*
                }
            }
        }

        /// The paths by which a node can be reached, and reaches others.
        ///
        /// An offer of a newer version that is not known here is passed over.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
        pub struct Offers {
            /// The network between the nodes knows the way to its pods. It is offered alone.
            #[serde(default)]
            pub native: bool,
            $(
                #[doc = concat!("What is said of `", stringify!($name), "`.")]
                #[serde(default, skip_serializing_if = "OfferField::is_left_out")]
                pub $name: $field,
            )*
        }

        impl Offers {
            /// Reads those of an annotation.
            ///
            /// # Errors
            /// What is wrong with them, after the path of the key.
            pub(crate) fn read(at: &KeyedValue<'_>, underlay: Underlay) -> Result<Offers, Fault> {
                Ok(Offers {
                    native: read_field(at, "native", underlay)?,
                    $($name: read_field(at, stringify!($name), underlay)?,)*
                })
            }

            /// Reads those of an annotation of the plain form; `None` if something is wrong.
            pub(crate) fn of_plain(plain: PlainOffers, underlay: Underlay) -> Option<Offers> {
                Some(Offers {
                    native: plain_field(plain.native, underlay)?,
                    $($name: plain_field(plain.$name, underlay)?,)*
                })
            }

            /// Returns them as the annotation has them.
            pub(crate) fn written(&self) -> WrittenOffers {
                WrittenOffers {
                    native: OfferField::terms(self.native),
                    $($name: OfferField::terms(self.$name),)*
                }
            }
        }

        /// Offers as the annotation has them.
        #[derive(Serialize)]
        pub(crate) struct WrittenOffers {
            #[serde(skip_serializing_if = "Option::is_none")]
            native: Option<NoTerms>,
            $(
                #[serde(skip_serializing_if = "Option::is_none")]
                $name: Option<<$field as OfferField>::Terms>,
            )*
        }

        /// Offers in an annotation of the plain form.
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct PlainOffers {
            native: Option<PlainOf<bool>>,
            $($name: Option<PlainOf<$field>>,)*
        }
    };
}

pub(crate) use backends;
