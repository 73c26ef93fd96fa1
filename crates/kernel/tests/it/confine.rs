//! Processes that confine themselves, and then try allowed and forbidden operations.
//!
//! Each is another run of this test executable for one case, with the test's namespace and mounts.
//! It makes a process with one thread, which confines itself.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_long};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kernel::confine::{
    Capability, ConfineError, Confinement, Devices, Family, Mounts, Namespaces, OwnMounts,
    SYSTEM_SERVICE, Step, User, confine, may_become_another,
};
use rustix::fs::StatVfsMountFlags;
use rustix::mount::{
    MountFlags, MountPropagationFlags, mount, mount_bind, mount_change, mount_remount,
};
use rustix::thread::{CapabilitySet, UnshareFlags};

use crate::guard::{in_netns, sh, skip, try_sh};

/// The variable that names the case to the executable.
const CASE: &str = "NWT_CONFINE_CASE";

/// `linux include/uapi/asm-generic/unistd.h` __NR_fchmodat2, which libc lacks for aarch64.
const FCHMODAT2: c_long = 452;

/// A device that a service needs, if this machine has it.
const TUN: &str = "/dev/net/tun";

const CASES: [(&str, fn()); 11] = [
    ("service", service),
    ("before_mount_setattr", before_mount_setattr),
    ("client", client),
    ("mounter", mounter),
    ("without_rights", without_rights),
    ("several_threads", several_threads),
    ("folder_missing", folder_missing),
    ("too_many_files", too_many_files),
    ("no_family", no_family),
    ("another_user", another_user),
    ("no_other_user", no_other_user),
];

/// Like netwrightd@repair.service, with folders of the test.
fn like_repair() -> Confinement<'static> {
    Confinement {
        capabilities: &[
            Capability::SysAdmin,
            Capability::SysPtrace,
            Capability::NetAdmin,
            Capability::NetRaw,
            Capability::DacOverride,
        ],
        system_calls: SYSTEM_SERVICE,
        families: &[Family::Unix, Family::Netlink, Family::Inet, Family::Inet6, Family::Packet],
        namespaces: Namespaces::Network,
        mounts: Mounts::Own(own_mounts()),
        user: None,
        open_files: Some(1234),
    }
}

fn own_mounts() -> OwnMounts<'static> {
    let tun: &[_] = if Path::new(TUN).exists() { &[TUN] } else { &[] };
    OwnMounts {
        writable: leaked(&["/mnt/state", "/run/own"]),
        devices: Devices::Only(leaked(tun)),
        hidden: &[],
        private_tmp: false,
    }
}

fn leaked(paths: &[&'static str]) -> &'static [&'static Path] {
    Vec::leak(paths.iter().map(|path| Path::new(*path)).collect())
}

/// The capabilities of [`like_repair`].
const KEPT: CapabilitySet = CapabilitySet::SYS_ADMIN
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::DAC_OVERRIDE);

/// Runs a test on a thread with a network namespace and mounts of its own, which other processes
/// may enter.
fn in_world(test: impl FnOnce() + Send + 'static) {
    in_netns(|| {
        // SAFETY: no descriptor table is unshared (UnshareFlags::FILES), only mounts, for this
        // thread.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }.unwrap();
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
        for folder in ["/run", "/mnt"] {
            mount("nwt", folder, "tmpfs", MountFlags::empty(), None).unwrap();
        }
        for folder in ["/run/own", "/run/netns", "/mnt/state/fixed", "/mnt/other", "/mnt/home"] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write("/mnt/home/secret", "secret").unwrap();
        fs::write("/run/netns/late", "").unwrap();
        let flags =
            MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOATIME;
        mount("nwt", "/mnt/other", "tmpfs", flags, None).unwrap();
        // The mount is read-only, not the file system: a process that makes the mount writable can
        // write.
        mount_bind("/mnt/state/fixed", "/mnt/state/fixed").unwrap();
        let flags = MountFlags::BIND | MountFlags::RDONLY;
        mount_remount("/mnt/state/fixed", flags, c"").unwrap();
        mount_change("/", MountPropagationFlags::SHARED | MountPropagationFlags::REC).unwrap();
        test();
    });
}

/// Starts this executable for a case.
#[expect(clippy::disallowed_methods, reason = "a process of its own is what is to be confined")]
fn start(case: &str) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "confine::the_process", "--nocapture"])
        .env(CASE, case)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Runs a case to its end.
fn run(case: &'static str) {
    let ended = start(case).wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
}

/// The body of the executable. Without its variable, as in an ordinary run, it does nothing.
#[test]
fn the_process() {
    let Ok(case) = std::env::var(CASE) else { return };
    let (_, body) = CASES.iter().find(|(name, _)| *name == case).unwrap();
    assert_eq!(ended_by(*body), 0, "{case}");
}

/// Runs a function in a process of one thread. Returns the wait status with which the process ends.
fn ended_by(body: fn()) -> i32 {
    // SAFETY: the other thread of this process waits for this one. So it holds no lock that the new
    // process, in which it does not exist, could wait for.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let status = i32::from(catch_unwind(body).is_err());
        // SAFETY: it ends the process, and runs nothing that belongs to the old one.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: the kernel writes one number to `status`.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid);
    status
}

/// Makes a system call, which may fail. Returns its error, 0 if there is none.
fn call(number: c_long, arguments: [usize; 6]) -> i32 {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the tests pass pointers to what is alive, or no valid pointers, and descriptors that
    // have no owner. What maps memory maps new memory, which nothing uses.
    let done = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if done < 0 { std::io::Error::last_os_error().raw_os_error().unwrap() } else { 0 }
}

/// The same with fewer arguments.
fn try_call<const N: usize>(number: c_long, arguments: [usize; N]) -> i32 {
    let mut all = [0; 6];
    all[..N].copy_from_slice(&arguments);
    call(number, all)
}

fn number(value: impl TryInto<i64>) -> usize {
    let value = value.try_into().unwrap_or_else(|_| panic!("a small number"));
    // Negative numbers, such as AT_FDCWD, as the registers have them.
    usize::try_from(value.cast_unsigned()).unwrap()
}

fn pointer(text: &CStr) -> usize {
    text.as_ptr().expose_provenance()
}

fn socket(family: i32, kind: i32) -> i32 {
    try_call(libc::SYS_socket, [number(family), number(kind), 0])
}

/// The `/proc/self/status` of a program that the process starts.
#[expect(clippy::disallowed_methods, reason = "what a program inherits is tested")]
fn status_of_program() -> String {
    let output = Command::new("/bin/cat").arg("/proc/self/status").output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

fn line<'a>(status: &'a str, key: &str) -> &'a str {
    status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(":\t")).unwrap()
}

/// Asserts on the sets of capabilities and on the two flags, as the kernel shows them.
fn assert_status(status: &str, keys: &[&str], capabilities: CapabilitySet) {
    for key in keys {
        assert_eq!(line(status, key), format!("{:016x}", capabilities.bits()), "{key}");
    }
    assert_eq!(line(status, "CapAmb"), "0000000000000000");
    assert_eq!(line(status, "NoNewPrivs"), "1");
    assert_eq!(line(status, "Seccomp"), "2");
}

fn is_read_only(path: &str) -> bool {
    rustix::fs::statvfs(path).unwrap().f_flag.contains(StatVfsMountFlags::RDONLY)
}

fn write_error(path: &str) -> Option<i32> {
    fs::write(path, "x").err().map(|error| error.raw_os_error().unwrap())
}

fn namespace(kind: &str) -> PathBuf {
    fs::read_link(format!("/proc/thread-self/ns/{kind}")).unwrap()
}

fn entries(folder: &str) -> BTreeSet<String> {
    let names = fs::read_dir(folder).unwrap();
    names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// A service sees mounts that other processes make later, and can do its work and nothing else.
#[test]
fn a_service_does_its_work_and_nothing_else() {
    in_world(|| {
        let mut child = start("service");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let confined = lines.by_ref().any(|line| line.unwrap().contains("confined"));
        assert!(confined);
        mount_bind("/proc/thread-self/ns/net", "/run/netns/late").unwrap();
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        let rest: Vec<_> = lines.map_while(Result::ok).collect();
        assert!(child.wait().unwrap().success(), "{}", rest.join("\n"));
        // Its files are on the host's file systems.
        assert_eq!(fs::read_to_string("/mnt/state/a").unwrap(), "x");
    });
}

fn service() {
    // The tests may run as idle processes, which may not become others without CAP_SYS_NICE.
    assert_eq!(schedule(libc::SCHED_OTHER, 0), 0);
    #[cfg(target_arch = "x86_64")]
    let has_i386 = ended_by(ask_as_i386) == 0;
    let before = (is_read_only("/proc"), is_read_only("/sys"), namespace("uts"), namespace("mnt"));
    let undone = confine(&like_repair()).unwrap();
    assert!(undone.is_empty(), "{undone:?}");
    let after = (is_read_only("/proc"), is_read_only("/sys"), namespace("uts"), namespace("mnt"));
    assert_eq!((before.0, before.1), (after.0, after.1));
    assert!(before.2 != after.2 && before.3 != after.3);
    std::io::stdout().write_all(b"confined\n").unwrap();
    std::io::stdin().lines().next().unwrap().unwrap();
    assert!(rustix::fs::statfs("/run/netns/late").unwrap().f_type == 0x6e73_6673);

    assert_status(
        &fs::read_to_string("/proc/self/status").unwrap(),
        &["CapPrm", "CapEff", "CapBnd"],
        KEPT,
    );
    assert_status(&status_of_program(), &["CapPrm", "CapEff", "CapBnd"], KEPT);
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    assert_eq!((limit.current, limit.maximum), (Some(1234), Some(1234)));
    assert_eq!(std::env::current_dir().unwrap(), Path::new("/"));

    files();
    devices();
    sockets();
    namespaces();
    calls_of_others();
    memory();
    scheduling();
    modes();
    #[cfg(target_arch = "x86_64")]
    architectures(has_i386);
}

fn files() {
    for writable in ["/mnt/state/a", "/run/own/a"] {
        assert_eq!(write_error(writable), None, "{writable}");
        assert_eq!(fs::metadata(writable).unwrap().permissions().mode() & 0o777, 0o600);
    }
    for fixed in ["/mnt/a", "/mnt/other/a", "/run/a", "/mnt/state/fixed/a"] {
        assert_eq!(write_error(fixed), Some(libc::EROFS), "{fixed}");
    }
    for fixed in ["/", "/etc", "/usr", "/var/lib", "/tmp", "/root", "/home"] {
        assert!(!Path::new(fixed).exists() || is_read_only(fixed), "{fixed}");
    }
    if Path::new("/sys/fs/cgroup").exists() {
        assert!(is_read_only("/sys/fs/cgroup"));
    }
    fs::write("/proc/sys/net/ipv4/conf/lo/log_martians", "1").unwrap();
    assert_eq!(fs::read("/proc/kmsg").unwrap(), b"");
    for hidden in ["/lib/modules", "/usr/lib/modules"] {
        if Path::new(hidden).exists() {
            assert!(entries(hidden).is_empty(), "{hidden}");
        }
    }
    // Files of others can be read, because the case hides nothing.
    assert_eq!(fs::read_to_string("/mnt/home/secret").unwrap(), "secret");
}

fn devices() {
    let few = [
        "fd", "full", "net", "null", "ptmx", "pts", "random", "stderr", "stdin", "stdout", "tty",
        "urandom", "zero",
    ];
    let found = entries("/dev");
    assert!(found.iter().all(|name| few.contains(&name.as_str())), "{found:?}");
    if found.contains("net") {
        assert_eq!(entries("/dev/net"), BTreeSet::from(["tun".to_owned()]));
        fs::File::options().read(true).write(true).open(TUN).unwrap();
    }
    fs::write("/dev/null", "x").unwrap();
    let mut random = [0; 8];
    let urandom = fs::File::open("/dev/urandom").unwrap();
    rustix::io::read(&urandom, &mut random).unwrap();
    if found.contains("ptmx") {
        fs::File::options().read(true).write(true).open("/dev/ptmx").unwrap();
    }
    assert_eq!(write_error("/dev/x"), Some(libc::EROFS));
    let made = try_call(
        libc::SYS_mknodat,
        [
            number(libc::AT_FDCWD),
            pointer(c"/mnt/state/disk"),
            number(libc::S_IFBLK | 0o600),
            number(libc::makedev(8, 0).cast_signed()),
        ],
    );
    assert_eq!(made, libc::EPERM, "CAP_MKNOD");
}

fn sockets() {
    for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6] {
        assert_eq!(socket(family, libc::SOCK_DGRAM), 0, "{family}");
    }
    for family in [libc::AF_NETLINK, libc::AF_PACKET] {
        assert_eq!(socket(family, libc::SOCK_RAW), 0, "{family}");
    }
    for family in [libc::AF_ALG, libc::AF_VSOCK, libc::AF_KEY, libc::AF_BLUETOOTH, 0, -1] {
        assert_eq!(socket(family, libc::SOCK_RAW), libc::EAFNOSUPPORT, "{family}");
    }
}

fn namespaces() {
    let unshare = |flags: i32| try_call(libc::SYS_unshare, [number(flags)]);
    let net = fs::File::open("/proc/thread-self/ns/net").unwrap();
    let mounts = fs::File::open("/proc/thread-self/ns/mnt").unwrap();
    let setns = |of: &fs::File, flags: i32| {
        try_call(libc::SYS_setns, [number(of.as_raw_fd()), number(flags)])
    };
    assert_eq!(unshare(libc::CLONE_NEWNET), 0);
    assert_eq!(setns(&net, libc::CLONE_NEWNET), 0);
    assert_eq!(setns(&net, 0), libc::EPERM);
    assert_eq!(setns(&mounts, 0), libc::EPERM);
    let others = [
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWNS,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWTIME,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWUTS,
    ];
    for flag in others {
        assert_eq!(unshare(flag), libc::EPERM, "{flag:x}");
        assert_eq!(unshare(flag | libc::CLONE_NEWNET), libc::EPERM, "{flag:x}");
        assert_eq!(setns(&mounts, flag), libc::EPERM, "{flag:x}");
        if flag != libc::CLONE_NEWTIME {
            let cloned = try_call(libc::SYS_clone, [number(flag | libc::SIGCHLD)]);
            assert_eq!(cloned, libc::EPERM, "{flag:x}");
        }
    }
    assert_eq!(try_call(libc::SYS_clone3, [0]), libc::ENOSYS);
    std::thread::spawn(|| ()).join().unwrap();
    assert_eq!(ended_by(|| ()), 0);
}

/// The calls have arguments that do no harm if the kernel reads them.
fn calls_of_others() {
    let others = [
        libc::SYS_acct,
        libc::SYS_adjtimex,
        libc::SYS_bpf,
        libc::SYS_chroot,
        libc::SYS_clock_adjtime,
        libc::SYS_clock_settime,
        libc::SYS_delete_module,
        libc::SYS_fanotify_init,
        libc::SYS_finit_module,
        libc::SYS_fsopen,
        libc::SYS_init_module,
        libc::SYS_io_uring_setup,
        libc::SYS_kexec_load,
        libc::SYS_mount,
        libc::SYS_mount_setattr,
        libc::SYS_move_mount,
        libc::SYS_open_by_handle_at,
        libc::SYS_open_tree,
        libc::SYS_perf_event_open,
        libc::SYS_pivot_root,
        libc::SYS_ptrace,
        libc::SYS_quotactl,
        libc::SYS_reboot,
        libc::SYS_seccomp,
        libc::SYS_setdomainname,
        libc::SYS_sethostname,
        libc::SYS_settimeofday,
        libc::SYS_swapoff,
        libc::SYS_swapon,
        libc::SYS_syslog,
        libc::SYS_umount2,
        libc::SYS_vhangup,
    ];
    for other in others {
        assert_eq!(call(other, [usize::MAX; 6]), libc::EPERM, "{other}");
    }
    assert_eq!(call(100_000, [0; 6]), libc::EPERM, "a call that does not exist");
    let personality = |value: i64| try_call(libc::SYS_personality, [number(value)]);
    assert_eq!((personality(0), personality(0xffff_ffff)), (0, 0));
    assert_eq!(personality(i64::from(libc::ADDR_NO_RANDOMIZE)), libc::EPERM);
}

fn memory() {
    const SIZE: usize = 4096;
    let map = |protection: i32| {
        let flags = number(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        call(libc::SYS_mmap, [0, SIZE, number(protection), flags, number(-1), 0])
    };
    let (read, write, execute) = (libc::PROT_READ, libc::PROT_WRITE, libc::PROT_EXEC);
    assert_eq!((map(read | write), map(read | execute)), (0, 0));
    assert_eq!((map(read | write | execute), map(write | execute)), (libc::EPERM, libc::EPERM));
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: it maps new memory, which nothing uses.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), SIZE, read | write, flags, -1, 0) };
    assert_ne!(page, libc::MAP_FAILED);
    let page = page.expose_provenance();
    let protect = |protection: i32| try_call(libc::SYS_mprotect, [page, SIZE, number(protection)]);
    assert_eq!((protect(read), protect(read | write)), (0, 0));
    assert_eq!((protect(read | execute), protect(execute)), (libc::EPERM, libc::EPERM));
}

fn schedule(policy: i32, priority: i32) -> i32 {
    let parameters = libc::sched_param { sched_priority: priority };
    let at = (&raw const parameters).expose_provenance();
    try_call(libc::SYS_sched_setscheduler, [0, number(policy), at])
}

fn scheduling() {
    for policy in [libc::SCHED_BATCH, libc::SCHED_OTHER, libc::SCHED_IDLE] {
        assert_eq!(schedule(policy, 0), 0, "{policy}");
    }
    for policy in [libc::SCHED_FIFO, libc::SCHED_RR, libc::SCHED_DEADLINE] {
        assert_eq!(schedule(policy, 1), libc::EPERM, "{policy}");
    }
    assert_eq!(try_call(libc::SYS_sched_setattr, [0, 0, 0]), libc::EPERM);
}

fn modes() {
    let (here, path) = (number(libc::AT_FDCWD), pointer(c"/mnt/state/a"));
    let open = |path: &CStr, flags: i32, mode: u32| {
        try_call(libc::SYS_openat, [here, pointer(path), number(flags), number(mode)])
    };
    let (new, read) = (libc::O_CREAT | libc::O_WRONLY, libc::O_RDONLY);
    for bit in [0o4000, 0o2000] {
        let mode = number(bit | 0o755_u32);
        assert_eq!(try_call(libc::SYS_fchmodat, [here, path, mode]), libc::EPERM);
        assert_eq!(try_call(FCHMODAT2, [here, path, mode, 0]), libc::EPERM);
        assert_eq!(try_call(libc::SYS_fchmod, [number(-1), mode]), libc::EPERM);
        let folder = pointer(c"/mnt/state/folder");
        assert_eq!(try_call(libc::SYS_mkdirat, [here, folder, mode]), libc::EPERM);
        let file = number(libc::S_IFREG | bit | 0o755);
        assert_eq!(try_call(libc::SYS_mknodat, [here, folder, file, 0]), libc::EPERM);
        assert_eq!(open(c"/mnt/state/new", new, bit | 0o700), libc::EPERM);
        let nameless = libc::O_TMPFILE | libc::O_WRONLY;
        assert_eq!(open(c"/mnt/state", nameless, bit | 0o700), libc::EPERM);
        assert_eq!(open(c"/mnt/state/a", read, bit), 0, "no file is made");
    }
    assert_eq!(try_call(libc::SYS_fchmodat, [here, path, 0o1755]), 0);
    assert_eq!(open(c"/mnt/state/new", new, 0o700), 0);
    assert_eq!(open(c"/mnt/state", libc::O_TMPFILE | libc::O_WRONLY, 0o700), 0);
    assert_eq!(try_call(libc::SYS_openat2, [here, path, 0, 0]), libc::ENOSYS);
    #[cfg(target_arch = "x86_64")]
    {
        assert_eq!(try_call(libc::SYS_chmod, [path, 0o4755]), libc::EPERM);
        assert_eq!(try_call(libc::SYS_chmod, [path, 0o755]), 0);
        let flags = number(libc::O_CREAT | libc::O_WRONLY);
        assert_eq!(try_call(libc::SYS_open, [path, flags, 0o4700]), libc::EPERM);
        assert_eq!(try_call(libc::SYS_creat, [path, 0o2700]), libc::EPERM);
        assert_eq!(try_call(libc::SYS_mkdir, [path, 0o2700]), libc::EPERM);
    }
}

/// A call of i386 ends the process. A call of x32 is not among those that are allowed.
#[cfg(target_arch = "x86_64")]
fn architectures(has_i386: bool) {
    const X32: c_long = 0x4000_0000;
    assert_eq!(try_call(X32 + libc::SYS_getpid, []), libc::EPERM);
    if has_i386 {
        let status = ended_by(ask_as_i386);
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSYS, "{status:x}");
    }
}

/// Asks for the process's ID as a program for i386 does. A kernel without calls of i386 ends the
/// process.
#[cfg(target_arch = "x86_64")]
fn ask_as_i386() {
    let answer: i32;
    // SAFETY: getpid takes no arguments, and changes no register but those that are named.
    unsafe {
        std::arch::asm!("int 0x80", inout("eax") 20 => answer, out("r8") _, out("r9") _,
            out("r10") _, out("r11") _);
    }
    assert_eq!(answer, std::process::id().cast_signed());
}

/// On a kernel without mount_setattr(2) the mounts become read-only one after the other, and keep
/// their flags.
#[test]
fn an_old_kernel_makes_everything_read_only_too() {
    in_world(|| run("before_mount_setattr"));
}

fn before_mount_setattr() {
    let missing = [(libc::SYS_mount_setattr, Vec::new())].into_iter().collect();
    let filter: seccompiler::BpfProgram = seccompiler::SeccompFilter::new(
        missing,
        seccompiler::SeccompAction::Allow,
        seccompiler::SeccompAction::Errno(libc::ENOSYS.cast_unsigned()),
        std::env::consts::ARCH.try_into().unwrap(),
    )
    .unwrap()
    .try_into()
    .unwrap();
    seccompiler::apply_filter(&filter).unwrap();
    let before = rustix::fs::statvfs("/mnt/other").unwrap().f_flag;
    let undone = confine(&like_repair()).unwrap();
    assert!(undone.is_empty(), "{undone:?}");
    files();
    devices();
    let after = rustix::fs::statvfs("/mnt/other").unwrap().f_flag;
    assert_eq!(after, before | StatVfsMountFlags::RDONLY);
}

/// Like netwrightd@ipam.service: it only talks to others and keeps its files.
#[test]
fn a_client_has_no_capability_and_sees_no_ones_files() {
    in_world(|| {
        run("client");
        assert!(!Path::new("/tmp/nwt-private").exists());
    });
}

fn client() {
    // Before that the files could be opened.
    assert_eq!(
        (socket(libc::AF_NETLINK, libc::SOCK_RAW), socket(libc::AF_PACKET, libc::SOCK_RAW)),
        (0, 0)
    );
    let undone = confine(&Confinement {
        capabilities: &[],
        families: &[Family::Unix, Family::Inet, Family::Inet6],
        namespaces: Namespaces::None,
        mounts: Mounts::Own(OwnMounts {
            writable: leaked(&["/mnt/state"]),
            hidden: leaked(&["/mnt/home", "/mnt/home", "/mnt/none"]),
            private_tmp: true,
            ..own_mounts()
        }),
        ..like_repair()
    })
    .unwrap();
    assert!(undone.is_empty(), "{undone:?}");
    let none = CapabilitySet::empty();
    let sets = ["CapInh", "CapPrm", "CapEff", "CapBnd"];
    assert_status(&fs::read_to_string("/proc/self/status").unwrap(), &sets, none);
    assert_status(&status_of_program(), &sets, none);
    assert_eq!(socket(libc::AF_INET, libc::SOCK_STREAM), 0);
    for family in [libc::AF_NETLINK, libc::AF_PACKET] {
        assert_eq!(socket(family, libc::SOCK_RAW), libc::EAFNOSUPPORT, "{family}");
    }
    let flag = number(libc::CLONE_NEWNET);
    assert_eq!(try_call(libc::SYS_unshare, [flag]), libc::EPERM);
    assert_eq!(try_call(libc::SYS_clone, [flag | number(libc::SIGCHLD)]), libc::EPERM);
    assert_eq!(try_call(libc::SYS_setns, [number(-1), flag]), libc::EPERM);

    assert_eq!(write_error("/mnt/state/b"), None);
    assert_eq!(write_error("/run/own/b"), Some(libc::EROFS));
    assert!(is_read_only("/mnt/home"));
    assert_eq!(fs::read_dir("/mnt/home").unwrap_err().raw_os_error(), Some(libc::EACCES));
    for temporary in ["/tmp", "/var/tmp"] {
        assert!(entries(temporary).is_empty(), "{temporary}");
        assert_eq!(write_error(&format!("{temporary}/nwt-private")), None);
    }
}

/// Like netwrightd@docker.service: other processes see its mounts, which outlive it.
#[test]
fn a_service_can_mount_for_others() {
    in_world(|| {
        run("mounter");
        let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        assert!(mounts.contains(" /run/netns/late "), "{mounts}");
    });
}

fn mounter() {
    let before = namespace("mnt");
    let calls = [SYSTEM_SERVICE, &["mount", "umount2", "no_such_call"]].concat();
    let undone =
        confine(&Confinement { system_calls: &calls, mounts: Mounts::Shared, ..like_repair() })
            .unwrap();
    assert!(undone.is_empty(), "{undone:?}");
    assert_eq!(namespace("mnt"), before);
    assert_status(&status_of_program(), &["CapEff", "CapBnd"], KEPT);
    mount_bind("/proc/thread-self/ns/net", "/run/netns/late").unwrap();
    assert_eq!(write_error("/mnt/a"), None);
    assert_eq!(call(libc::SYS_pivot_root, [usize::MAX; 6]), libc::EPERM);
}

/// In a container the function returns what is not permitted, and does the rest.
#[test]
fn what_is_not_permitted_is_returned_and_the_rest_is_done() {
    in_world(|| run("without_rights"));
}

fn without_rights() {
    let mut sets = rustix::thread::capabilities(None).unwrap();
    let gone = CapabilitySet::SYS_ADMIN | CapabilitySet::SETPCAP;
    sets.effective &= !gone;
    sets.permitted &= !gone;
    rustix::thread::set_capabilities(None, sets).unwrap();
    let before = (namespace("mnt"), namespace("uts"));
    let undone = confine(&like_repair()).unwrap();
    let steps: Vec<_> = undone.iter().map(|undone| undone.step.clone()).collect();
    assert_eq!(steps, [Step::OwnMounts, Step::HostName, Step::BoundingSet]);
    let messages: Vec<_> = undone.iter().map(ToString::to_string).collect();
    let expected = [
        "move to mounts of its own",
        "move to a host name of its own",
        "cut down the bounding set of capabilities",
    ];
    assert_eq!(messages, expected);
    assert_eq!((namespace("mnt"), namespace("uts")), before);
    assert_eq!(write_error("/mnt/a"), None);

    let left = KEPT - gone;
    let sets = ["CapPrm", "CapEff"];
    assert_status(&fs::read_to_string("/proc/self/status").unwrap(), &sets, left);
    // The bounding set is larger, but a program of root still gets no more.
    assert_status(&status_of_program(), &sets, left);
    sockets();
    calls_of_others();
    memory();
    modes_are_refused();
}

fn modes_are_refused() {
    fs::write("/mnt/state/a", "x").unwrap();
    modes();
}

/// Another thread would keep its capabilities and mounts.
#[test]
fn a_process_of_several_threads_is_not_confined() {
    in_world(|| run("several_threads"));
}

fn several_threads() {
    let before = (namespace("mnt"), namespace("uts"));
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let other = std::thread::spawn(move || ended.recv());
    let error = confine(&like_repair()).unwrap_err();
    assert!(matches!(error, ConfineError::Threads { count: 2 }), "{error:?}");
    assert_eq!(error.to_string(), "confine a process of 2 threads");
    assert_eq!((namespace("mnt"), namespace("uts")), before);
    let status = fs::read_to_string("/proc/self/status").unwrap();
    assert_eq!((line(&status, "NoNewPrivs"), line(&status, "Seccomp")), ("0", "0"));
    drop(end);
    assert!(other.join().unwrap().is_err());
}

#[test]
fn a_missing_folder_is_named() {
    in_world(|| run("folder_missing"));
}

fn folder_missing() {
    let undone = confine(&Confinement {
        mounts: Mounts::Own(OwnMounts {
            writable: leaked(&["/mnt/none", "/mnt/state"]),
            devices: Devices::Only(leaked(&["/dev/nwt-none"])),
            ..own_mounts()
        }),
        ..like_repair()
    })
    .unwrap();
    let [folder, device] = &undone[..] else { panic!("{undone:?}") };
    assert_eq!(folder.step, Step::Writable("/mnt/none".into()));
    assert_eq!(folder.to_string(), r#"keep "/mnt/none" writable"#);
    assert_eq!(folder.source.kind(), std::io::ErrorKind::NotFound);
    assert_eq!(device.step, Step::Device("/dev/nwt-none".into()));
    assert_eq!(write_error("/mnt/state/a"), None);
    assert_eq!(write_error("/mnt/a"), Some(libc::EROFS));
}

#[test]
fn open_files_are_limited_as_far_as_is_permitted() {
    in_world(|| run("too_many_files"));
}

fn too_many_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    setrlimit(Resource::Nofile, Rlimit { current: Some(100), maximum: Some(2000) }).unwrap();
    let mut sets = rustix::thread::capabilities(None).unwrap();
    sets.effective &= !CapabilitySet::SYS_RESOURCE;
    sets.permitted &= !CapabilitySet::SYS_RESOURCE;
    rustix::thread::set_capabilities(None, sets).unwrap();
    let undone = confine(&Confinement { open_files: Some(5000), ..like_repair() }).unwrap();
    assert_eq!(undone.len(), 1, "{undone:?}");
    assert_eq!(undone[0].step, Step::OpenFiles(5000));
    let limit = getrlimit(Resource::Nofile);
    assert_eq!((limit.current, limit.maximum), (Some(2000), Some(2000)));
}

#[test]
fn no_family_is_no_socket() {
    in_world(|| run("no_family"));
}

fn no_family() {
    let all = Mounts::Own(OwnMounts { devices: Devices::All, ..own_mounts() });
    let before = entries("/dev");
    let undone =
        confine(&Confinement { families: &[], open_files: None, mounts: all, ..like_repair() })
            .unwrap();
    assert!(undone.is_empty(), "{undone:?}");
    for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_NETLINK] {
        assert_eq!(socket(family, libc::SOCK_DGRAM), libc::EAFNOSUPPORT, "{family}");
    }
    assert_eq!(entries("/dev"), before);
    if before.contains("kmsg") {
        assert_eq!(fs::read("/dev/kmsg").unwrap(), b"");
    }
}

/// The user does not exist.
const ANOTHER: User = User { uid: 65_521, gid: 65_522 };

#[test]
fn a_process_becomes_another_user_for_good() {
    in_world(|| {
        fs::write("/run/own/secret", "").unwrap();
        fs::set_permissions("/run/own/secret", fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::chown("/mnt/state", Some(ANOTHER.uid), Some(ANOTHER.gid)).unwrap();
        run("another_user");
    });
}

fn another_user() {
    assert!(may_become_another());
    let what = Confinement { capabilities: &[], user: Some(ANOTHER), ..like_repair() };
    let undone = confine(&what).unwrap();
    assert!(undone.is_empty(), "{undone:?}");
    assert!(!may_become_another());
    let status = fs::read_to_string("/proc/self/status").unwrap();
    for line in ["Uid:\t65521\t65521\t65521\t65521", "Gid:\t65522\t65522\t65522\t65522"] {
        assert!(status.contains(line), "{status}");
    }
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap();
    assert_eq!(groups.trim(), "", "{status}");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(status.contains(&format!("{set}:\t0000000000000000")), "{set}: {status}");
    }
    let root = rustix::process::Uid::ROOT;
    let back = rustix::thread::set_thread_res_uid(root, root, root);
    assert_eq!(back, Err(rustix::io::Errno::PERM));
    assert_eq!(write_error("/mnt/state/a"), None);
    assert_eq!(write_error("/run/own/a"), Some(libc::EACCES));
    assert_eq!(fs::read("/run/own/secret").unwrap_err().raw_os_error(), Some(libc::EACCES));
}

#[test]
fn a_process_that_may_not_become_another_user_says_so() {
    in_world(|| run("no_other_user"));
}

fn no_other_user() {
    let groups = rustix::process::getgroups().unwrap();
    let mut sets = rustix::thread::capabilities(None).unwrap();
    sets.effective &= !CapabilitySet::SETUID;
    sets.permitted &= !CapabilitySet::SETUID;
    rustix::thread::set_capabilities(None, sets).unwrap();
    assert!(!may_become_another());
    let undone = confine(&Confinement { user: Some(ANOTHER), ..like_repair() }).unwrap();
    let [user] = &undone[..] else { panic!("{undone:?}") };
    assert_eq!(user.step, Step::User(ANOTHER.uid));
    assert_eq!(user.to_string(), "become the user 65521");
    assert!(rustix::process::getuid().is_root() && rustix::process::getgid().is_root());
    assert_eq!(rustix::process::getgroups().unwrap(), groups);
}

/// The list of system calls equals systemd's.
#[test]
fn the_calls_of_services_are_those_of_systemd() {
    if try_sh("command -v systemd-analyze").0 != Some(0) {
        return skip("the_calls_of_services_are_those_of_systemd", "systemd-analyze is missing");
    }
    let (mut theirs, mut open) = (BTreeSet::new(), vec!["@system-service".to_owned()]);
    while let Some(word) = open.pop() {
        if word.starts_with('@') {
            let text = sh(&format!("systemd-analyze --no-pager syscall-filter {word}"));
            let words = text.lines().skip(1).map(str::trim);
            let names = words.filter(|word| !word.starts_with('#') && !word.is_empty());
            open.extend(names.map(str::to_owned));
        } else {
            theirs.insert(word);
        }
    }
    let ours: BTreeSet<String> = SYSTEM_SERVICE.iter().map(|name| (*name).to_owned()).collect();
    let missing: Vec<_> = theirs.difference(&ours).collect();
    let extra: Vec<_> = ours.difference(&theirs).collect();
    assert!(missing.is_empty() && extra.is_empty(), "missing: {missing:?}; extra: {extra:?}");
    assert!(SYSTEM_SERVICE.is_sorted());
}
