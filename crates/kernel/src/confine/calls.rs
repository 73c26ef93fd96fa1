//! The filters of system calls (`man 2 seccomp`).
//!
//! The kernel asks all filters and does what the strictest one says. One allows what the service may
//! call at all; the others refuse what depends on arguments, each with an error of its own.

use std::collections::BTreeMap;
use std::error::Error as StdError;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};
use syscalls::Sysno;

use super::{ConfineError, Confinement, Family, Namespaces};

/// The flags of clone(2), unshare(2) and setns(2) that a service may never use: every kind of
/// namespace but the network's (`linux include/uapi/linux/sched.h`).
const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWTIME,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWUTS,
];

/// The scheduling policies that are not real time (`man 7 sched`).
const POLICIES: [i32; 3] = [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE];

/// The bits of a mode that let a program run with the rights of its file's owner or group.
const SET_ID: [u32; 2] = [libc::S_ISUID, libc::S_ISGID];

/// The calls that give a file a mode, and the position of the mode among their arguments.
const GIVE_MODE: [(&str, u8); 9] = [
    ("chmod", 1),
    ("creat", 1),
    ("fchmod", 1),
    ("fchmodat", 2),
    ("fchmodat2", 2),
    ("mkdir", 1),
    ("mkdirat", 2),
    ("mknod", 1),
    ("mknodat", 2),
];

/// The calls that open a file and may make it, and the positions of flags and mode.
const OPEN: [(&str, u8, u8); 2] = [("open", 1, 2), ("openat", 2, 3)];

/// The bit of O_TMPFILE that O_DIRECTORY does not have (`linux
/// include/uapi/asm-generic/fcntl.h` __O_TMPFILE).
const TMPFILE: i32 = 0o20_000_000;

/// For shmat(2): the segment becomes executable (`linux include/uapi/linux/shm.h` SHM_EXEC).
const SHM_EXEC: i32 = 0o100_000;

/// Filters that have been made and not yet applied.
pub(super) struct Filters(Vec<BpfProgram>);

impl Filters {
    /// Makes the filters.
    pub(super) fn new(what: &Confinement<'_>) -> Result<Self, ConfineError> {
        filters(what)
            .map(Self)
            .map_err(|source| ConfineError::MakeFilter { source: Box::new(source) })
    }

    /// Applies them to the process.
    pub(super) fn apply(&self) -> Result<(), ConfineError> {
        for filter in &self.0 {
            seccompiler::apply_filter_all_threads(filter).map_err(|error| {
                let source: Box<dyn StdError + Send + Sync> = match error {
                    seccompiler::Error::Prctl(source) | seccompiler::Error::Seccomp(source) => {
                        Box::new(source)
                    }
                    other => other.to_string().into(),
                };
                ConfineError::Filter { source }
            })?;
        }
        Ok(())
    }
}

/// The last filter refuses the call that applies a filter.
fn filters(what: &Confinement<'_>) -> Result<Vec<BpfProgram>, BackendError> {
    let mut allowed = Calls::default();
    for name in what.system_calls {
        allowed.always(name);
    }
    Ok(vec![
        other_families(what.families)?.refused_with(libc::EAFNOSUPPORT)?,
        unseen()?.refused_with(libc::ENOSYS)?,
        dangerous(what.namespaces)?.refused_with(libc::EPERM)?,
        allowed.alone_allowed()?,
    ])
}

/// socket(2) with another family.
fn other_families(families: &[Family]) -> Result<Calls, BackendError> {
    let mut calls = Calls::default();
    if families.is_empty() {
        calls.always("socket");
    } else {
        let others = families.iter().map(|family| differs(0, number_of(*family)));
        calls.when("socket", others.collect::<Result<_, _>>()?)?;
    }
    Ok(calls)
}

fn number_of(family: Family) -> i32 {
    match family {
        Family::Inet => libc::AF_INET,
        Family::Inet6 => libc::AF_INET6,
        Family::Netlink => libc::AF_NETLINK,
        Family::Packet => libc::AF_PACKET,
        Family::Unix => libc::AF_UNIX,
    }
}

/// Calls whose flags no filter can see, since they are in memory. They fail as on a kernel that does
/// not have them, so that programs make the older call, whose flags a filter sees.
fn unseen() -> Result<Calls, BackendError> {
    let mut calls = Calls::default();
    calls.always("clone3");
    calls.always("openat2");
    Ok(calls)
}

/// Refuses arguments that no service may use in calls that it may make.
fn dangerous(namespaces: Namespaces) -> Result<Calls, BackendError> {
    let mut calls = Calls::default();
    other_namespaces(&mut calls, namespaces)?;
    // LockPersonality=. 0 is the default, and 0xffffffff asks.
    calls.when("personality", vec![differs(0, 0)?, differs(0, -1)?])?;
    // MemoryDenyWriteExecute=
    calls.when("mmap", vec![has(2, libc::PROT_WRITE | libc::PROT_EXEC)?])?;
    calls.when("mprotect", vec![has(2, libc::PROT_EXEC)?])?;
    calls.when("pkey_mprotect", vec![has(2, libc::PROT_EXEC)?])?;
    calls.when("shmat", vec![has(2, SHM_EXEC)?])?;
    // RestrictRealtime=
    let others = POLICIES.iter().map(|policy| differs(1, *policy));
    calls.when("sched_setscheduler", others.collect::<Result<_, _>>()?)?;
    // Its policy is in memory, and there is no older call that does the same.
    calls.always("sched_setattr");
    // RestrictSUIDSGID=
    for bit in SET_ID.map(u32::cast_signed) {
        for (call, mode) in GIVE_MODE {
            calls.when(call, vec![has(mode, bit)?])?;
        }
        for (call, flags, mode) in OPEN {
            for makes in [libc::O_CREAT, TMPFILE] {
                calls.when(call, vec![has(flags, makes)?, has(mode, bit)?])?;
            }
        }
    }
    // No filter sees the calls that a ring makes.
    calls.always("io_uring_setup");
    Ok(calls)
}

/// RestrictNamespaces=
fn other_namespaces(calls: &mut Calls, allowed: Namespaces) -> Result<(), BackendError> {
    let network = match allowed {
        Namespaces::None => Some(libc::CLONE_NEWNET),
        Namespaces::Network => None,
    };
    for flag in NAMESPACES.into_iter().chain(network) {
        calls.when("unshare", vec![has(0, flag)?])?;
        // Among clone's flags this bit belongs to the signal that the new process ends with.
        if flag != libc::CLONE_NEWTIME {
            calls.when("clone", vec![has(0, flag)?])?;
        }
        if allowed == Namespaces::Network {
            calls.when("setns", vec![has(1, flag)?])?;
        }
    }
    match allowed {
        Namespaces::None => calls.always("setns"),
        // Without a flag it enters a namespace of any kind.
        Namespaces::Network => calls.when("setns", vec![equals(1, 0)?])?,
    }
    Ok(())
}

/// System calls by number, each with alternatives of which one must match, or with none if it
/// matches with any arguments.
#[derive(Default)]
struct Calls(BTreeMap<i64, Vec<SeccompRule>>);

impl Calls {
    /// Adds a call with any arguments.
    fn always(&mut self, name: &str) {
        if let Some(number) = number(name) {
            self.0.insert(number, Vec::new());
        }
    }

    /// Adds a call whose arguments fulfil all of the conditions.
    fn when(&mut self, name: &str, all: Vec<SeccompCondition>) -> Result<(), BackendError> {
        if let Some(number) = number(name) {
            self.0.entry(number).or_default().push(SeccompRule::new(all)?);
        }
        Ok(())
    }

    /// The filter that refuses these calls.
    fn refused_with(self, errno: i32) -> Result<BpfProgram, BackendError> {
        let refused = SeccompAction::Errno(errno.cast_unsigned());
        self.compiled(SeccompAction::Allow, refused)
    }

    /// The filter that refuses all other calls.
    fn alone_allowed(self) -> Result<BpfProgram, BackendError> {
        let refused = SeccompAction::Errno(libc::EPERM.cast_unsigned());
        self.compiled(refused, SeccompAction::Allow)
    }

    /// The filter also kills a process that makes a call of another architecture.
    fn compiled(
        self,
        others: SeccompAction,
        these: SeccompAction,
    ) -> Result<BpfProgram, BackendError> {
        let here = TargetArch::try_from(std::env::consts::ARCH)?;
        SeccompFilter::new(self.0, others, these, here)?.try_into()
    }
}

/// A call's number, if this architecture has it.
fn number(name: &str) -> Option<i64> {
    name.parse::<Sysno>().ok().map(|call| i64::from(call.id()))
}

/// The argument has all of these bits. The kernel reads only the lower half of all arguments that are
/// examined here, or uses no more than that of it.
fn has(argument: u8, bits: i32) -> Result<SeccompCondition, BackendError> {
    let bits = lower_half(bits);
    condition(argument, SeccompCmpOp::MaskedEq(bits), bits)
}

fn equals(argument: u8, value: i32) -> Result<SeccompCondition, BackendError> {
    condition(argument, SeccompCmpOp::Eq, lower_half(value))
}

fn differs(argument: u8, value: i32) -> Result<SeccompCondition, BackendError> {
    condition(argument, SeccompCmpOp::Ne, lower_half(value))
}

fn condition(argument: u8, is: SeccompCmpOp, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, is, value)
}

fn lower_half(value: i32) -> u64 {
    u64::from(value.cast_unsigned())
}
