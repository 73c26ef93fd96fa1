#![doc = include_str!("../README.md")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod call;
pub mod codes;
mod delegate;
mod respond;
mod serve;

use std::fmt::Debug;
use std::time::Instant;

use cni::{AddResult, Error, Version};
use cni_invoke::Executor;

pub use {cni, cni_invoke, state};

pub use call::Call;
pub use delegate::{Delegate, TIMEOUT};
pub use respond::{examine, respond};
pub use serve::{Serve, answer, serve};

/// A CNI plugin: what it does for each verb.
///
/// VERSION is answered from [`Plugin::versions`]. Before any method runs, the environment, the network's
/// name, the version and, for ADD and DEL, the namespace have been checked in the order and with the words
/// of the reference library; see [`respond()`].
pub trait Plugin: Debug + Send + Sync {
    /// Returns the plugin's type: the name of its executable.
    fn name(&self) -> &'static str;

    /// Returns the versions it supports, oldest first.
    fn versions(&self) -> &'static [Version] {
        Version::ALL
    }

    /// Connects the container, or changes a connection that the plugins before it made.
    ///
    /// # Errors
    /// Anything that keeps the attachment from being complete. Whatever was done has been undone.
    fn add(&self, call: &Call<'_>) -> Result<AddResult, Error>;

    /// Removes everything that ADD made. What is already gone is success; one failing step does not stop
    /// the others.
    ///
    /// # Errors
    /// When something that ADD made is still there.
    fn del(&self, call: &Call<'_>) -> Result<(), Error>;

    /// Verifies that everything ADD made is there.
    ///
    /// # Errors
    /// Names what is missing or different.
    fn check(&self, call: &Call<'_>) -> Result<(), Error>;

    /// Puts back what ADD made and somebody changed, as far as that is possible under a running container, and returns a
    /// line for each thing put back. It runs before [`Plugin::check`] in a CHECK that asks for it ([`cni::REPAIR`]), which
    /// judges what came of it; a plugin that has nothing it could put back needs no such method.
    ///
    /// It is idempotent, changes nothing that is as ADD left it, takes nothing from another owner, and never gives a
    /// container an address that is not reserved for it. Nothing is put back for an attachment that a DEL removes at the same time.
    ///
    /// # Errors
    /// What could not be put back, all together.
    fn repair(&self, call: &Call<'_>) -> Result<Vec<String>, Error> {
        let _ = call;
        Ok(Vec::new())
    }

    /// Removes what belongs to this network and to none of [`Call::valid_attachments`].
    ///
    /// # Errors
    /// What could not be removed, all together.
    fn gc(&self, call: &Call<'_>) -> Result<(), Error>;

    /// Reads the configuration with the same parser as ADD, and refuses what ADD would refuse on every host. It looks at
    /// nothing but the files that the configuration names as part of itself, and changes nothing. What a runtime says at ADD alone
    /// (`CNI_ARGS`, `runtimeConfig`) is not missed. STATUS begins with it; [`examine`] asks it without a verb, for `lint`.
    ///
    /// # Errors
    /// As ADD; the details name the key and what to write instead.
    fn validate(&self, call: &Call<'_>) -> Result<(), Error> {
        let _ = call;
        Ok(())
    }

    /// Refuses what stands in the way of every ADD on this host: a link of another kind under the bridge's name, a parent that carries
    /// less than the MTU. It needs no privilege and changes nothing. What is missing may come, and is no error here: that is told
    /// by [`Plugin::status`]. It is asked behind [`Plugin::validate`].
    ///
    /// # Errors
    /// As ADD, naming what stands in the way.
    fn fits_host(&self, call: &Call<'_>) -> Result<(), Error> {
        let _ = call;
        Ok(())
    }

    /// Says whether ADD would be served now. [`Plugin::validate`] and [`Plugin::fits_host`] have been asked before.
    ///
    /// # Errors
    /// Code 50 or 51 with what is in the way.
    fn status(&self, call: &Call<'_>) -> Result<(), Error>;

    /// Lists the keys of a configuration that this plugin would not read, for `lint`.
    ///
    /// # Errors
    /// When the configuration cannot be read at all.
    fn unknown_keys(
        &self,
        config: &str,
    ) -> Result<Vec<cni::json::UnknownKey>, cni::json::JsonError> {
        let _ = config;
        Ok(Vec::new())
    }

    /// Lists the keys that this plugin takes for the sake of configurations written for another program and passes over, each with a clause
    /// that says why, for `lint`. Those of a plugin that hands out addresses are keys of `ipam`.
    fn ignored_keys(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }
}

/// What a plugin needs beside its call: where its state lives, how it calls others, until when.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The folders for state.
    pub roots: &'a state::Roots,
    /// How delegated plugins are called.
    pub executor: &'a dyn Executor,
    /// When the call must be over.
    pub deadline: Option<Instant>,
    /// The version printed when the plugin is run without a verb.
    pub build: &'a str,
}
