//! Who may talk to whom: what the service knows, for whoever asks.

#[expect(dead_code, reason = "the service, which is still to come, answers with it")]
pub(crate) mod answers;
#[cfg_attr(not(test), expect(dead_code, reason = "the service, still to come, starts it"))]
pub(crate) mod drops;
pub(crate) mod listing;
pub(crate) mod log;
pub(crate) mod objects;
pub(crate) mod of_files;
pub(crate) mod question;
#[expect(dead_code, reason = "the service, which is still to come, has an engine")]
mod shared;
