//! Finds packet filters of kinds that a scene does not hold, to report that we do not judge what
//! they do.

use kernel::netlink::NetlinkError;
use kernel::nft::{Family, HookInfo, HookPoint, NftSocket};

/// The beginnings of the names of such filters' kernel functions, and their usual names.
static OTHERS: [(&str, &str); 3] =
    [("ebt", "ebtables"), ("arpt", "arptables"), ("nf_hook_run_bpf", "a program of BPF")];

/// The hooks at which such a filter would matter to containers.
const POINTS: [(Family, HookPoint); 5] = [
    (Family::Inet, HookPoint::Forward),
    (Family::Inet, HookPoint::Input),
    (Family::Bridge, HookPoint::Prerouting),
    (Family::Bridge, HookPoint::Forward),
    (Family::Arp, HookPoint::Input),
];

/// Lists them in the calling thread's namespace, one line each. A kernel that does not list what is
/// at its hooks (before 5.14) shows none.
///
/// # Errors
/// When the kernel does not answer.
pub(super) fn others() -> Result<Vec<String>, NetlinkError> {
    let mut socket = NftSocket::open()?;
    let mut found: Vec<String> = Vec::new();
    for (number, (family, point)) in POINTS.into_iter().enumerate() {
        match socket.hooks_if_told(family, point)? {
            Some(hooks) => found.extend(hooks.iter().filter_map(line)),
            // It would look for a module each time.
            None if number == 0 => return Ok(found),
            None => {}
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

fn line(hook: &HookInfo) -> Option<String> {
    let name = hook.function.as_deref().filter(|_| hook.chain.is_none())?;
    let (_, what) = OTHERS.iter().find(|(begins, _)| name.starts_with(begins))?;
    let (family, point) = (hook.family, hook.point.name());
    Some(format!("{what} sees packets of {family} at {point}, and is not looked at"))
}
