//! Judges whether a container could be attached to a network now.

use std::time::Instant;

use cni::NetworkList;
use cni_runtime::Runtime;
use kernel::remedy;
use plugins::inquiry::Inquiry;
use plugins::{judge, own_folder};

use crate::node::Network;
use crate::trust;

/// Whether ADD would succeed.
#[derive(Debug)]
pub struct Judgement {
    /// Why it would not.
    pub failure: Option<cni::Error>,
    /// There is a failure, but perhaps only because this caller lacks rights.
    pub unknown: bool,
    /// The plugins that could not be asked, each with the reason.
    pub unasked: Vec<String>,
}

/// Asks every plugin of a network, unless plugins cannot be called at all: `refused` says why.
/// Distinguishes a missing plugin from one that is not ready. A refusal to an unprivileged caller
/// says nothing about the network.
#[must_use]
pub fn of(
    runtime: &Runtime<'static>,
    list: &NetworkList,
    refused: Option<&cni::Error>,
    deadline: Option<Instant>,
) -> Judgement {
    let asked = match refused {
        Some(refused) => Err(refused.clone()),
        None => ask(runtime, list, deadline),
    };
    let (failure, unasked) = match asked {
        Ok(unasked) => (None, unasked),
        Err(error) => (Some(error), Vec::new()),
    };
    let unknown = failure.is_some() && (!remedy::is_root() || remedy::lacks_net_admin());
    Judgement { failure, unknown, unasked }
}

fn ask(
    runtime: &Runtime<'static>,
    list: &NetworkList,
    deadline: Option<Instant>,
) -> Result<Vec<String>, cni::Error> {
    let is_own = |plugin_type: &str| {
        runtime.find_plugin(plugin_type).is_ok_and(|executable| own_folder::is_own(&executable))
    };
    let asked = Inquiry::new(runtime, &is_own, deadline).ask(list);
    asked.map_err(|mut error| {
        error.msg = own_folder::without_folder(&error.msg);
        error.details = own_folder::without_folder(&error.details);
        error
    })
}

/// Lists what does not stop ADD: other networks that cannot be used beside this one, and plugins
/// that users other than root can change.
#[must_use]
pub fn warnings(runtime: &Runtime<'static>, list: &NetworkList, all: &[Network]) -> Vec<String> {
    let excluded = all.iter().filter_map(|other| judge::exclude_each_other(list, &other.list));
    let mut warnings: Vec<String> = excluded.map(|clash| clash.text).collect();
    warnings.extend(trust::warnings(list, runtime));
    warnings
}
