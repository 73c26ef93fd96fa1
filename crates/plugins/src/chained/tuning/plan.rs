//! Decides what to do, in which order, and how to undo it, as data, before anything is changed.

use std::path::PathBuf;

use cni_plugin::codes;
use serde::{Deserialize, Serialize};

use crate::shared::failure::Failure;

use super::config::{Config, LinkValues};
use super::sysctl::{of_interface, same_value};

/// What is recorded about an attachment besides the reference's backup.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RecordData {
    /// The link whose values the backup holds, or whose own sysctls were configured.
    pub(super) ifindex: Option<u32>,
    /// The backup, if there is one.
    pub(super) backup: Option<PathBuf>,
    /// The sysctls that were configured.
    pub(super) sysctls: Vec<RecordedSysctl>,
}

impl RecordData {
    /// Builds a record from the claims of an attachment whose own is lost; `None` if it has none.
    pub(super) fn from_claims(claimed: Vec<String>) -> Option<Self> {
        let sysctl = |path| RecordedSysctl { path, ..RecordedSysctl::default() };
        let sysctls: Vec<RecordedSysctl> = claimed.into_iter().map(sysctl).collect();
        (!sysctls.is_empty()).then(|| RecordData { sysctls, ..RecordData::default() })
    }

    /// Returns the sysctls whose original values are kept with the container.
    pub(super) fn claimed(&self) -> impl Iterator<Item = &RecordedSysctl> {
        self.sysctls.iter().filter(|sysctl| sysctl.was.is_none())
    }

    /// Returns the sysctls that belong to the interface itself.
    pub(super) fn own(&self) -> impl Iterator<Item = &RecordedSysctl> {
        self.sysctls.iter().filter(|sysctl| sysctl.was.is_some())
    }

    /// Moves the interface's own sysctls to another name of its link.
    pub(super) fn rename_own(&mut self, ifname: &str) {
        for own in self.sysctls.iter_mut().filter(|sysctl| sysctl.was.is_some()) {
            own.path = of_interface(&own.path, ifname);
        }
    }
}

/// A sysctl that an attachment asked for. The original value of its own interface's sysctl is kept
/// here. Any other is kept with the container: several attachments of one container may ask for the
/// same sysctl.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RecordedSysctl {
    /// Below `/proc/sys`.
    pub(super) path: String,
    /// The value that the configuration gave.
    pub(super) asked: String,
    /// The value that the kernel reports, if it differs: some sysctls sort or merge what is
    /// written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) became: Option<String>,
    /// Its original value, if it is the interface's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) was: Option<String>,
}

/// The link as it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LinkState {
    pub(super) ifindex: u32,
    /// Every value except an address that the link does not have.
    pub(super) values: LinkValues,
}

/// A sysctl as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SysctlState {
    /// Below `/proc/sys`.
    pub(super) path: String,
    /// `None` for a sysctl that can only be written.
    pub(super) value: Option<String>,
    /// Whether it belongs to the attachment's own interface.
    pub(super) own: bool,
}

/// What ADD observed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AddObservation {
    /// The container's link, if the configuration concerns it or its own sysctls.
    pub(super) link: Option<LinkState>,
    /// One for each sysctl of the configuration, in its order.
    pub(super) sysctls: Vec<SysctlState>,
    /// The existing backup.
    pub(super) backup: Option<LinkValues>,
    /// What an earlier ADD of the same attachment to the same namespace recorded.
    pub(super) recorded: Option<RecordData>,
    /// What an earlier ADD recorded for another namespace.
    pub(super) stale: Option<RecordData>,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Writes our record of the attachment, or removes it.
    WriteRecord(Option<RecordData>),
    /// Writes the reference's backup, or removes it.
    WriteBackup { path: PathBuf, values: Option<LinkValues> },
    /// Sets a link's values in one message.
    SetLink { ifindex: u32, to: LinkValues },
    /// Records that the attachment uses a sysctl and, unless it is already recorded, the original
    /// value. Repeating it changes nothing.
    ClaimSysctl { path: String, was: Option<String> },
    /// Writes a sysctl.
    WriteSysctl { path: String, value: String },
    /// Writes a sysctl, which may have been deleted with its interface.
    RestoreSysctl { path: String, value: String },
    /// Releases a claim; the last of a container's attachments to do so restores the sysctl.
    ReleaseSysctl { path: String },
    /// Releases a claim and leaves the sysctl alone.
    ForgetSysctl { path: String },
}

/// What ADD does and, if any of it fails, what undoes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    /// All of them run after a failure of any step: restoring what was not changed has no effect.
    pub(super) undo: Vec<Step>,
}

/// Plans ADD. Records come before changes, so DEL can restore everything that a crash leaves. The
/// link comes before sysctls, because setting its MTU resets the one of IPv6.
pub(super) fn add(config: &Config, backup_path: PathBuf, observed: &AddObservation) -> Plan {
    let mut plan = Plan { steps: Vec::new(), undo: Vec::new() };
    let forget = observed.stale.iter().flat_map(RecordData::claimed);
    plan.steps.extend(forget.map(|old| Step::ForgetSysctl { path: old.path.clone() }));
    let stale_backup = observed.stale.iter().filter_map(|stale| stale.backup.clone());
    let stale_backup = stale_backup.filter(|path| *path != backup_path);
    plan.steps.extend(stale_backup.map(|path| Step::WriteBackup { path, values: None }));

    let link = observed.link.filter(|_| !config.link.is_empty());
    let originals = link.map(|link| originals(&config.link, link, observed));
    let recorded = planned_record(config, link, &backup_path, observed);
    let with_the_container: Vec<String> =
        recorded.claimed().map(|entry| entry.path.clone()).collect();
    plan.steps.push(Step::WriteRecord(Some(recorded)));
    if let Some(values) = originals {
        plan.steps.push(Step::WriteBackup { path: backup_path.clone(), values: Some(values) });
    }
    if let Some(LinkState { ifindex, values: now }) = link {
        let to = config.link.where_different(&now);
        if !to.is_empty() {
            plan.steps.push(Step::SetLink { ifindex, to });
            plan.undo.push(Step::SetLink { ifindex, to: now.only_keys_of(&to) });
        }
    }
    for (wanted, now) in config.sysctls.iter().zip(&observed.sysctls) {
        let path = || now.path.clone();
        let earlier = observed.recorded.as_ref();
        let claims = with_the_container.contains(&now.path);
        let claimed =
            earlier.is_some_and(|recorded| recorded.claimed().any(|s| s.path == now.path));
        if claims {
            // Done even if it is recorded: a crash may have come between our record and the claim.
            plan.steps.push(Step::ClaimSysctl { path: path(), was: now.value.clone() });
        }
        if now.value.as_ref().is_none_or(|value| !same_value(value, &wanted.value)) {
            plan.steps.push(Step::WriteSysctl { path: path(), value: wanted.value.clone() });
            plan.undo
                .extend(now.value.clone().map(|value| Step::RestoreSysctl { path: path(), value }));
        }
        if claims && !claimed {
            plan.undo.push(Step::ForgetSysctl { path: path() });
        }
    }
    if originals.is_some() {
        let values = observed.backup;
        plan.undo.push(Step::WriteBackup { path: backup_path, values });
    }
    plan.undo.push(Step::WriteRecord(observed.recorded.clone()));
    plan
}

/// What DEL or GC observed of an attachment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DelObservation {
    /// The backup's path, whether or not the file exists; `None` if it is not the attachment's to
    /// remove.
    pub(super) backup_path: Option<PathBuf>,
    pub(super) backup: Option<LinkValues>,
    pub(super) recorded: Option<RecordData>,
    /// Whether the container's namespace exists and is the one that ADD saw.
    pub(super) namespace: bool,
    /// The link in it whose values the backup holds.
    pub(super) link: Option<LinkState>,
}

/// Plans DEL: everything that still exists is restored, and no record stays.
pub(super) fn del(observed: &DelObservation) -> Vec<Step> {
    let mut steps = Vec::new();
    let recorded_ifindex = observed.recorded.as_ref().and_then(|recorded| recorded.ifindex);
    if let Some((backup, link)) = observed.backup.zip(observed.link)
        && observed.namespace
        // Another link may have this name by now.
        && recorded_ifindex.is_none_or(|ifindex| ifindex == link.ifindex)
    {
        let to = backup.where_different(&link.values);
        if !to.is_empty() {
            steps.push(Step::SetLink { ifindex: link.ifindex, to });
        }
    }
    for sysctl in observed.recorded.iter().flat_map(|recorded| &recorded.sysctls) {
        let path = sysctl.path.clone();
        match (&sysctl.was, observed.namespace) {
            (Some(was), true) => steps.push(Step::RestoreSysctl { path, value: was.clone() }),
            (Some(_), false) => {}
            (None, true) => steps.push(Step::ReleaseSysctl { path }),
            (None, false) => steps.push(Step::ForgetSysctl { path }),
        }
    }
    let file = observed.backup_path.iter().cloned();
    steps.extend(file.map(|path| Step::WriteBackup { path, values: None }));
    steps
}

/// Returns the values for the backup: for each wanted value, what it was before the first ADD.
fn originals(wanted: &LinkValues, link: LinkState, observed: &AddObservation) -> LinkValues {
    let now = link.values.only_keys_of(wanted);
    let Some(backup) = observed.backup.filter(|_| observed.stale.is_none()) else { return now };
    match observed.recorded.as_ref().filter(|recorded| recorded.backup.is_some()) {
        Some(recorded) if recorded.ifindex == Some(link.ifindex) => backup.or(&now),
        // Our record says that the backup is of a link that is gone.
        Some(RecordData { ifindex: Some(_), .. }) => now,
        // The reference made this backup, perhaps for an earlier container with the same ID. It is
        // trusted for values that are already as wanted: another program has set them then.
        _ => backup.only_keys_of(&wanted.where_same(&link.values)).or(&now),
    }
}

fn planned_record(
    config: &Config,
    link: Option<LinkState>,
    backup_path: &std::path::Path,
    observed: &AddObservation,
) -> RecordData {
    let earlier = observed.recorded.clone().unwrap_or_default();
    let mut recorded = RecordData {
        ifindex: observed.link.map(|link| link.ifindex).or(earlier.ifindex),
        backup: link.map(|_| backup_path.to_owned()).or(earlier.backup),
        sysctls: earlier.sysctls,
    };
    for (wanted, now) in config.sysctls.iter().zip(&observed.sysctls) {
        let path = &now.path;
        let asked = wanted.value.clone();
        let new = RecordedSysctl { path: path.clone(), asked, became: None, was: None };
        match recorded.sysctls.iter_mut().find(|known| known.path == *path) {
            Some(known) if known.asked == new.asked => {}
            Some(known) => *known = RecordedSysctl { was: known.was.take(), ..new },
            None => {
                let was = now.value.clone().filter(|_| now.own);
                recorded.sysctls.push(RecordedSysctl { was, ..new });
            }
        }
    }
    recorded
}

impl Step {
    /// Completes "could not …".
    pub(super) fn describe(&self) -> String {
        match self {
            Step::WriteRecord(Some(_)) => "write the record of the attachment".to_owned(),
            Step::WriteRecord(None) => "remove the record of the attachment".to_owned(),
            Step::WriteBackup { path, values: Some(_) } => format!("write backup {path:?}"),
            Step::WriteBackup { path, values: None } => format!("remove backup {path:?}"),
            Step::SetLink { to, .. } => format!("set {to}"),
            Step::ClaimSysctl { path, .. } => format!("remember sysctl {path:?}"),
            Step::WriteSysctl { path, value } => format!("set sysctl {path:?} to {value:?}"),
            Step::RestoreSysctl { path, value } => format!("restore sysctl {path:?} to {value:?}"),
            Step::ReleaseSysctl { path } => format!("restore sysctl {path:?}"),
            Step::ForgetSysctl { path } => format!("forget sysctl {path:?}"),
        }
    }
}

/// Applies steps, to the kernel or, in tests, to a model of it.
pub(super) trait Apply {
    /// Applies one step.
    ///
    /// # Errors
    /// The step may have been applied in part.
    fn apply(&mut self, step: &Step) -> Result<(), Failure>;
}

/// Applies all steps of a plan; if one fails, restores everything.
///
/// # Errors
/// The failure; its details list what could not be restored.
pub(super) fn run(plan: &Plan, target: &mut dyn Apply) -> Result<(), Failure> {
    plan.steps.iter().try_for_each(|step| target.apply(step)).map_err(|cause| {
        run_all(&plan.undo, target, true).into_iter().fold(cause, |cause, (step, error)| {
            cause.with_details(format!("could not {}: {error}", step.describe()))
        })
    })
}

/// Applies every step that does not depend on a failed one: the original values of a link that
/// outlives the container stay recorded until the link has them again. Returns the failures.
pub(super) fn run_all<'s>(
    steps: &'s [Step],
    target: &mut dyn Apply,
    outlives: bool,
) -> Vec<(&'s Step, Failure)> {
    let mut failures: Vec<(&Step, Failure)> = Vec::new();
    for step in steps {
        let keeps = |(failed, error): &(&Step, Failure)| match failed {
            Step::SetLink { .. } => outlives,
            // Only the record leads to a backup that still exists.
            Step::WriteBackup { .. } => true,
            // Our own files: only the record leads to a claim that is not released.
            Step::ReleaseSysctl { .. } | Step::ForgetSysctl { .. } => error.code() == codes::STATE,
            _ => false,
        };
        let forgets = matches!(step, Step::WriteBackup { .. } | Step::WriteRecord(_));
        if forgets && failures.iter().any(keeps) {
            continue;
        }
        if let Err(error) = target.apply(step) {
            failures.push((step, error));
        }
    }
    failures
}

macro_rules! each_value {
    ($self:ident, $other:ident, |$a:ident, $b:ident| $rule:expr) => {{
        macro_rules! one {
            ($field:ident) => {{
                let ($a, $b) = ($self.$field, $other.$field);
                $rule
            }};
        }
        LinkValues {
            mac: one!(mac),
            mtu: one!(mtu),
            promisc: one!(promisc),
            allmulti: one!(allmulti),
            tx_queue_length: one!(tx_queue_length),
        }
    }};
}

impl LinkValues {
    /// Keeps only the values that `other` has too.
    fn only_keys_of(&self, other: &LinkValues) -> LinkValues {
        each_value!(self, other, |a, b| b.and(a))
    }

    /// Keeps the values that `other` lacks or that differ there.
    fn where_different(&self, other: &LinkValues) -> LinkValues {
        each_value!(self, other, |a, b| a.filter(|_| a != b))
    }

    /// Keeps the values that are the same in `other`.
    fn where_same(&self, other: &LinkValues) -> LinkValues {
        each_value!(self, other, |a, b| a.filter(|_| a == b))
    }

    /// Fills missing values from `other`.
    fn or(&self, other: &LinkValues) -> LinkValues {
        each_value!(self, other, |a, b| a.or(b))
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
