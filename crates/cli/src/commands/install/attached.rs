//! What our plugins have attached: it keeps what it needs, is detached, or is left and named.

use std::path::PathBuf;

use cni::{AttachmentKey, code};
use cni_runtime::{Inventory, Presence};
use state::Roots;

use super::EXECUTABLE;
use super::removal::RemovalReport;
use crate::commands::gc;
use crate::failure::Failure;
use crate::net::attachments::{self, KnownAttachment};
use crate::net::session::Session;

/// How many attachments an error lists.
const LISTED: usize = 5;

/// What our plugins have attached, of containers that are not known to be gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::commands) struct LivingAttachments {
    pub(in crate::commands) keys: Vec<AttachmentKey>,
    /// Damaged records, which may each be of such a container.
    damaged: Vec<PathBuf>,
}

impl LivingAttachments {
    /// Returns what to call them.
    pub(in crate::commands) fn names(&self) -> Vec<String> {
        let damaged = self.damaged.iter().map(|path| format!("{} (damaged)", path.display()));
        self.keys.iter().map(ToString::to_string).chain(damaged).collect()
    }

    /// Refuses while there are any.
    pub(super) fn refuse(&self) -> Result<(), Failure> {
        let names = self.names();
        if names.is_empty() {
            return Ok(());
        }
        Err(Failure::new(code::INVALID_CONFIG, "containers are still attached")
            .because(listed(&names))
            .hint("stop them first, or give --force to detach them now"))
    }
}

/// Returns what our plugins have attached.
pub(in crate::commands) fn living(session: &Session) -> Result<LivingAttachments, Failure> {
    let (known, damaged) = ours(session)?;
    let living = known.into_iter().filter(is_living);
    Ok(LivingAttachments { keys: living.map(|known| known.key).collect(), damaged })
}

/// Returns the attachments of our plugins, and damaged records that may be of others.
pub(super) fn ours(session: &Session) -> Result<(Vec<KnownAttachment>, Vec<PathBuf>), Failure> {
    let Inventory { mut known, nameless, .. } = attachments::all(session)?;
    known.retain(|known| !known.records.is_empty());
    Ok((known, nameless.into_iter().map(|damaged| damaged.path).collect()))
}

pub(super) fn is_living(known: &KnownAttachment) -> bool {
    known.presence != Presence::Gone
}

pub(super) fn name(known: &KnownAttachment) -> String {
    known.key.to_string()
}

/// Returns the first of these names, and how many more there are.
pub(in crate::commands) fn listed(names: &[String]) -> String {
    let more = names.len().saturating_sub(LISTED);
    let mut listed = names[..names.len() - more].join(", ");
    if more != 0 {
        listed.push_str(&format!(" and {more} more"));
    }
    listed
}

/// Detaches what our plugins have attached, or refuses to.
pub(in crate::commands) fn detach(
    force: bool,
    session: &Session,
    report: &mut RemovalReport,
) -> Result<(), Failure> {
    if !force {
        living(session)?.refuse()?;
    }
    detach_each(&ours(session)?.0, session, report);
    Ok(())
}

/// Detaches what containers that are gone had, and leaves the others attached.
pub(in crate::commands) fn detach_ended(
    session: &Session,
    report: &mut RemovalReport,
) -> Result<(), Failure> {
    detach_gone(false, session, report).map(drop)
}

/// Detaches what containers that are gone had, or everything if it is forced. Returns a list of
/// what is still attached.
pub(super) fn detach_gone(
    force: bool,
    session: &Session,
    report: &mut RemovalReport,
) -> Result<Option<String>, Failure> {
    let (known, mut damaged) = ours(session)?;
    let (rest, gone): (Vec<KnownAttachment>, Vec<KnownAttachment>) =
        known.into_iter().partition(|known| is_living(known) && !force);
    detach_each(&gone, session, report);
    damaged.retain(|_| !force);
    let keys = rest.into_iter().map(|known| known.key).collect();
    let rest = LivingAttachments { keys, damaged }.names();
    Ok((!rest.is_empty()).then(|| listed(&rest)))
}

fn detach_each(all: &[KnownAttachment], session: &Session, report: &mut RemovalReport) {
    for known in all {
        match gc::remove(known, session) {
            Ok(stays) => {
                report.detached.push(name(known));
                report.attached_again.extend(stays);
            }
            Err(failure) => report.left.push(format!("{}: {}", known.key, failure.message())),
        }
    }
}

/// Refuses while containers are attached: another plugin's DEL knows nothing of our tables.
pub(super) fn refuse_living(session: &Session) -> Result<(), Failure> {
    let living = living(session)?.names();
    if living.is_empty() {
        return Ok(());
    }
    Err(Failure::new(code::INVALID_CONFIG, "containers are still attached")
        .because(listed(&living))
        .because("other plugins do not remove their published ports and masquerade")
        .hint(
            "stop them first, or detach them by `netwright gc --all`; --force leaves them attached \
             (for a package: NETWRIGHT_LEAVE_ATTACHED=1 in the environment)",
        ))
}

/// Says what stays of attached containers when our plugins go, and what removes it.
pub(in crate::commands) fn stays(attached: &str, session: &Session) -> String {
    format!(
        "{attached} are attached, and keep their networks; their published ports and masquerade \
         outlive them. Once they have ended: `{} gc --all && rm -rf {} {}`",
        kept_executable(&session.roots).display(),
        session.roots.run.display(),
        session.roots.lib.display()
    )
}

fn kept_executable(roots: &Roots) -> PathBuf {
    roots.lib.join(EXECUTABLE)
}

/// Keeps a copy of this executable: every other one may be removed, and what containers leave needs
/// one.
pub(in crate::commands) fn keep_executable(roots: &Roots) -> Result<(), Failure> {
    let kept = kept_executable(roots);
    let new = roots.lib.join(format!(".{EXECUTABLE}.{}.new", std::process::id()));
    let copied = std::fs::create_dir_all(&roots.lib)
        .and_then(|()| std::fs::copy("/proc/self/exe", &new))
        .and_then(|_| std::fs::rename(&new, &kept));
    copied.map_err(|error| {
        let _ = std::fs::remove_file(&new);
        let what = format!("keep the executable in {kept:?} for what attached containers leave");
        Failure::new(code::IO_FAILURE, what).because(&error)
    })
}
