#![doc = include_str!("../README.md")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod call;
pub mod codes;
mod delegate;
mod info;
mod respond;
mod serve;

use std::fmt::Debug;
use std::time::Instant;

use cni::{AddResult, Error, NetworkList, Version};
use cni_invoke::Executor;

pub use {cni, cni_invoke, state};

pub use call::Call;
pub use delegate::{Delegate, TIMEOUT};
pub use info::{HostRouting, Info, Inner, Role};
pub use respond::{examine, respond};
pub use serve::{ProcessIo, answer, serve};

/// A CNI plugin: what it is, and what it does for each verb.
///
/// VERSION is answered from [`Info::versions`]. Before any method runs, [`respond()`] checks the
/// environment, the network's name, the version and, for ADD and DEL, the namespace, in the order
/// and with the words of the reference library.
pub trait Plugin: Debug + Send + Sync {
    /// Returns what the plugin is.
    fn info(&self) -> &'static Info;

    /// Returns the plugin's type, from [`Plugin::info`].
    fn name(&self) -> &'static str {
        self.info().name
    }

    /// Returns the versions it supports, oldest first, from [`Plugin::info`].
    fn versions(&self) -> &'static [Version] {
        self.info().versions
    }

    /// Connects the container, or changes a connection that the previous plugins created.
    ///
    /// # Errors
    /// Anything that keeps the attachment from being complete. ADD has then undone everything that
    /// it did.
    fn add(&self, call: &Call<'_>) -> Result<AddResult, Error>;

    /// Removes everything that ADD created. What is already gone is success; one failing step does
    /// not stop the others.
    ///
    /// # Errors
    /// When something that ADD created still exists.
    fn del(&self, call: &Call<'_>) -> Result<(), Error>;

    /// Verifies that everything that ADD created exists.
    ///
    /// # Errors
    /// Names what is missing or different.
    fn check(&self, call: &Call<'_>) -> Result<(), Error>;

    /// Restores what ADD created and another program changed, as far as that is possible under a
    /// running container, and returns a line for each restored thing. It runs before
    /// [`Plugin::check`] in a CHECK that asks for it ([`cni::REPAIR`]), and that check judges the
    /// outcome. A plugin that cannot restore anything needs no such method.
    ///
    /// It is idempotent, changes nothing that is as ADD left it, takes nothing from another owner,
    /// and never gives a container an address that is not reserved for it. It restores nothing for
    /// an attachment that a DEL removes at the same time.
    ///
    /// # Errors
    /// What could not be restored, all together.
    fn repair(&self, call: &Call<'_>) -> Result<Vec<String>, Error> {
        let _ = call;
        Ok(Vec::new())
    }

    /// Runs the CHECK that repairs. A plugin that restores and checks with one observation of the
    /// kernel implements this in place of [`Plugin::repair`].
    fn repair_and_check(&self, call: &Call<'_>) -> Outcome {
        Outcome { repaired: self.repair(call), checked: self.check(call) }
    }

    /// Removes what belongs to this network and to none of [`Call::valid_attachments`].
    ///
    /// # Errors
    /// What could not be removed, all together.
    fn gc(&self, call: &Call<'_>) -> Result<(), Error>;

    /// Reads the configuration with the same parser as ADD, and refuses what ADD would refuse on
    /// every host. It reads only the files that the configuration names as part of itself, and
    /// changes nothing. It does not require what a runtime passes only to ADD (`CNI_ARGS`,
    /// `runtimeConfig`). STATUS begins with it; [`examine`] runs it without a verb, for `lint`.
    ///
    /// # Errors
    /// As ADD; the details name the key and what to write instead.
    fn validate(&self, call: &Call<'_>) -> Result<(), Error> {
        let _ = call;
        Ok(())
    }

    /// Names what ADD accepts and is probably a mistake, for `lint`; the details say what to write
    /// instead. It runs after [`Plugin::validate`], and does as little.
    fn doubts(&self, call: &Call<'_>) -> Vec<Error> {
        let _ = call;
        Vec::new()
    }

    /// Refuses what would make every ADD on this host fail: a link of another kind under the
    /// bridge's name, or a parent with a smaller MTU. It needs no privilege and changes nothing.
    /// Something that is missing may appear later and is not an error here; [`Plugin::status`]
    /// reports it. It runs after [`Plugin::validate`].
    ///
    /// # Errors
    /// As ADD, naming the obstacle.
    fn fits_host(&self, call: &Call<'_>) -> Result<(), Error> {
        let _ = call;
        Ok(())
    }

    /// Lists the networks of their own that ADD attaches the container to, as far as the
    /// configuration and the files that it names say so.
    ///
    /// # Errors
    /// As ADD, when they cannot be read.
    fn networks(&self, call: &Call<'_>) -> Result<Vec<NetworkList>, Error> {
        let _ = call;
        Ok(Vec::new())
    }

    /// Reports whether ADD would be served now. [`Plugin::validate`] and [`Plugin::fits_host`] have
    /// run before.
    ///
    /// # Errors
    /// Code 50 or 51, naming the obstacle.
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

    /// Lists the keys that this plugin accepts for configurations of another program and ignores,
    /// each with a clause that gives the reason, for `lint`. Those of an IPAM plugin are keys of
    /// `ipam`.
    fn ignored_keys(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }
}

/// What a CHECK that repairs has done.
#[derive(Debug)]
pub struct Outcome {
    /// A line for each restored thing, or what could not be restored.
    pub repaired: Result<Vec<String>, Error>,
    /// The result of CHECK afterwards, which decides.
    pub checked: Result<(), Error>,
}

/// What a plugin needs besides its call: where its state is, how it calls others, and its deadline.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The folders that hold state.
    pub roots: &'a state::Roots,
    /// How delegated plugins are called.
    pub executor: &'a dyn Executor,
    /// When the call must be over.
    pub deadline: Option<Instant>,
    /// The version printed when the plugin is run without a verb.
    pub build: &'a str,
}
