use std::fs;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::thread;

use kernel::netns::{Netns, NetnsError, create_at, hold, remove_at, unshare_net, within};
use kernel::route::RouteSocket;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

use crate::guard::{fresh_netns, in_netns, sh};

/// Runs a test on a thread with mounts of its own, an empty folder at `/run` and another at `/mnt`.
fn with_own_mounts(test: impl FnOnce() + Send + 'static) {
    in_netns(|| {
        // SAFETY: no descriptor table is unshared (UnshareFlags::FILES), only mounts, for this
        // thread.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }.unwrap();
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
        for folder in ["/run", "/mnt"] {
            mount("nwt", folder, "tmpfs", MountFlags::empty(), None).unwrap();
        }
        test();
    });
}

#[test]
fn open_tells_what_is_wrong() {
    let missing = PathBuf::from("/proc/nwt/nothing");
    let error = Netns::open(&missing).unwrap_err();
    assert!(error.leads_nowhere());
    assert_eq!(
        error.to_string(),
        r#"failed to open netns "/proc/nwt/nothing": failed to Statfs "/proc/nwt/nothing": no such file or directory"#
    );
    assert!(Netns::open(Path::new("/etc/hostname/x")).unwrap_err().leads_nowhere());
    assert!(Netns::of_pid(u32::MAX).unwrap_err().leads_nowhere());
    let error = Netns::open(Path::new("/dev/null")).unwrap_err();
    assert!(matches!(error, NetnsError::NotANamespace { .. }), "{error}");
    let text = error.to_string();
    let expected = r#"failed to open netns "/dev/null": unknown FS magic on "/dev/null": "#;
    assert!(
        text.starts_with(expected) && u64::from_str_radix(&text[expected.len()..], 16).is_ok(),
        "{text}"
    );
    let error = Netns::open(Path::new("/proc/version")).unwrap_err();
    assert!(error.to_string().ends_with(": 9fa0"), "a file of /proc is none: {error}");
}

#[test]
fn identity() {
    in_netns(|| {
        let here = Netns::current().unwrap();
        let same = Netns::open(Path::new("/proc/thread-self/ns/net")).unwrap();
        assert_eq!((here.id(), &here), (same.id(), &same));
        let process = Netns::of_pid(std::process::id()).unwrap();
        assert_ne!(here, process, "the thread has left");
        let other = fresh_netns();
        assert_ne!(here, other);
        let link = fs::read_link("/proc/thread-self/ns/net").unwrap();
        assert_eq!(link, PathBuf::from(format!("net:[{}]", here.id().ino)));
        assert_eq!(here.to_string(), format!("net:[{}]", here.id().ino));
    });
}

/// Linux 5.14 and later have cookies.
#[test]
fn a_cookie_is_of_one_namespace_only() {
    in_netns(|| {
        let (here, other) = (Netns::current().unwrap(), fresh_netns());
        let Some(cookie) = here.cookie() else { return };
        assert_eq!(here.cookie(), Some(cookie));
        let same = Netns::open(Path::new("/proc/thread-self/ns/net")).unwrap();
        assert_eq!(same.cookie(), Some(cookie));
        assert_ne!(other.cookie(), Some(cookie));
        assert_eq!(Netns::current().unwrap(), here);
    });
}

#[test]
fn within_goes_and_comes_back() {
    in_netns(|| {
        let home = Netns::current().unwrap();
        let other = fresh_netns();
        let inside = within(&other, || Netns::current().unwrap()).unwrap();
        assert_eq!(inside, other);
        assert_eq!(Netns::current().unwrap(), home);
        let nested =
            within(&other, || within(&home, || Netns::current().unwrap()).unwrap()).unwrap();
        assert_eq!(nested, home);
        assert_eq!(Netns::current().unwrap(), home);
        let panicked = std::panic::catch_unwind(|| within(&other, || panic!("on purpose")));
        assert!(panicked.is_err());
        assert_eq!(Netns::current().unwrap(), home, "a panic brings the thread back, too");
    });
}

#[test]
fn within_refuses_a_namespace_of_another_kind() {
    for kind in ["mnt", "pid", "ipc"] {
        let path = PathBuf::from(format!("/proc/thread-self/ns/{kind}"));
        let other = Netns::open(&path).unwrap();
        let error = within(&other, || unreachable!("not entered")).unwrap_err();
        assert!(matches!(error, NetnsError::OtherKind { .. }), "{error}");
        let text =
            format!("netns {path:?} is a namespace of another kind, and no network namespace");
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn a_socket_keeps_its_namespace() {
    in_netns(|| {
        sh("ip link add veth1 type veth peer name veth2");
        let mut here = RouteSocket::open().unwrap();
        let other = fresh_netns();
        let mut there = RouteSocket::open_in(&other).unwrap();
        assert!(there.link_by_name("veth1").unwrap().is_none());
        let found = within(&other, || here.link_by_name("veth1").unwrap()).unwrap();
        assert!(found.is_some());
        let sent = thread::spawn(move || here.link_by_name("veth1").unwrap()).join().unwrap();
        assert!(sent.is_some());
    });
}

#[test]
fn a_namespace_stays_while_it_is_held() {
    in_netns(|| {
        let held = fresh_netns();
        within(&held, || sh("ip link add veth1 type veth peer name veth2")).unwrap();
        let clone = held.clone();
        drop(held);
        assert!(within(&clone, || sh("ip link")).unwrap().contains("veth1"));
    });
}

#[test]
fn made_and_removed_as_ip_netns_does() {
    with_own_mounts(|| {
        let before = Netns::current().unwrap();
        let path = Path::new("/run/netns/nwt-made");
        let made = create_at(path).unwrap();
        assert_eq!(Netns::current().unwrap(), before, "this thread stays");
        assert_ne!(made, before);
        assert_eq!(sh("ip netns list").trim(), "nwt-made");
        sh("ip netns exec nwt-made ip link add veth1 type veth peer name veth2");
        let mut inside = RouteSocket::open_in(&made).unwrap();
        assert!(inside.link_by_name("veth1").unwrap().is_some());
        let shared = sh("grep ' /run/netns ' /proc/thread-self/mountinfo");
        assert!(shared.contains("shared:"), "{shared}");

        let error = create_at(path).unwrap_err();
        assert_eq!(error.to_string(), r#"create netns "/run/netns/nwt-made": make its file"#);
        assert_eq!(Netns::open(path).unwrap(), made, "the first one is untouched");

        sh("ip netns add nwt-theirs");
        assert!(remove_at(Path::new("/run/netns/nwt-theirs")).unwrap());
        assert!(remove_at(path).unwrap());
        assert!(!remove_at(path).unwrap());
        assert_eq!(sh("ip netns list"), "");
        let error = Netns::open(path).unwrap_err();
        assert!(error.leads_nowhere());
    });
}

#[test]
fn another_folder_is_made_but_not_shared() {
    with_own_mounts(|| {
        let path = Path::new("/mnt/of/ours/nwt-made");
        create_at(path).unwrap();
        let mounts = sh("grep /mnt/of/ours /proc/thread-self/mountinfo");
        assert_eq!(mounts.lines().count(), 1, "only the namespace: {mounts}");
        assert!(remove_at(path).unwrap());
        assert!(!path.exists());
        // A file whose mount is gone.
        fs::write(path, "").unwrap();
        assert!(matches!(Netns::open(path), Err(NetnsError::NotANamespace { .. })));
        assert!(remove_at(path).unwrap());
        assert!(!path.exists());
    });
}

#[test]
fn unshared_threads_are_alone() {
    let first = thread::spawn(|| {
        unshare_net().unwrap();
        Netns::current().unwrap()
    });
    let first = first.join().unwrap();
    assert_ne!(first, Netns::current().unwrap());
    let mut route = RouteSocket::open_in(&first).unwrap();
    let links = route.links().unwrap();
    assert!(links.iter().any(|link| link.name == "lo" && !link.up()));
}

#[test]
fn what_is_held_is_opened_once() {
    let path = PathBuf::from(format!("/proc/{}/ns/net", std::process::id()));
    let opened = || Netns::open(&path).unwrap();
    let descriptor = |netns: &Netns| netns.as_fd().as_raw_fd();
    let netns = opened();
    let held = hold(&netns);
    let inner = hold(&Netns::open(Path::new("/proc/thread-self/ns/net")).unwrap());
    assert_eq!(descriptor(&opened()), descriptor(&netns));
    drop(inner);
    assert_eq!(descriptor(&opened()), descriptor(&netns), "the outer one still lives");
    drop(held);
    assert_ne!(descriptor(&opened()), descriptor(&netns));
}
