//! Judges whether a container could be attached to a network now.

use cni::NetworkList;
use kernel::remedy;
use plugins::inquiry::Inquiry;
use plugins::{judge, own_folder};

use super::session::{Network, Session};
use super::trust;
use crate::failure::Failure;

/// Whether ADD would succeed.
#[derive(Debug)]
pub(crate) struct Judgement {
    /// Why it would not.
    pub(crate) failure: Option<cni::Error>,
    /// There is a failure, but perhaps only because this caller lacks rights.
    pub(crate) unknown: bool,
    /// The plugins that could not be asked, each with the reason.
    pub(crate) unasked: Vec<String>,
}

/// Asks every plugin of a network. Distinguishes a missing plugin from one that is not ready. A
/// refusal to an unprivileged caller says nothing about the network.
pub(crate) fn of(session: &Session, list: &NetworkList, refused: Option<&cni::Error>) -> Judgement {
    let asked = match refused {
        Some(refused) => Err(refused.clone()),
        None => ask(session, list),
    };
    let (failure, unasked) = match asked {
        Ok(unasked) => (None, unasked),
        Err(error) => (Some(error), Vec::new()),
    };
    let unknown = failure.is_some() && (!remedy::is_root() || remedy::lacks_net_admin());
    let failure = failure.map(|error| match unknown {
        true if !remedy::is_root() => with_root(error),
        true => Failure::from(error).to_cni(),
        false => Failure::from(error).into_cni(),
    });
    Judgement { failure, unknown, unasked }
}

fn ask(session: &Session, list: &NetworkList) -> Result<Vec<String>, cni::Error> {
    let runtime = &session.runtime;
    let is_own = |plugin_type: &str| {
        runtime.find_plugin(plugin_type).is_ok_and(|executable| own_folder::is_own(&executable))
    };
    Inquiry::new(runtime, &is_own, session.deadline()).ask(list)
}

/// Lists what does not stop ADD: other networks that cannot be used beside this one, and plugins
/// that users other than root can change.
pub(crate) fn warnings(session: &Session, list: &NetworkList, all: &[Network]) -> Vec<String> {
    let excluded = all.iter().filter_map(|other| judge::exclude_each_other(list, &other.list));
    let mut warnings: Vec<String> = excluded.map(|clash| clash.text).collect();
    warnings.extend(trust::warnings(list, &session.runtime));
    warnings
}

/// Adds that root gets more details.
fn with_root(error: cni::Error) -> cni::Error {
    let error = Failure::from(error).to_cni();
    match error.details.contains(remedy::BE_ROOT) {
        true => error,
        false => error.with_details(remedy::BE_ROOT),
    }
}
