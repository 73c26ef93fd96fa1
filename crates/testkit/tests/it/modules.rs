//! The record of the kernel's module requests has those of its own thread, and no others.

use testkit::{Lab, ModuleRequests, Place as _};

#[test]
fn vm_requests_for_modules_are_recorded_for_the_thread_that_causes_them() {
    testkit::require!("root", "module-requests", "program:busybox");
    let lab = Lab::new("modules");
    let requests = ModuleRequests::new();
    // Every ioctl that names a missing link makes the kernel look for its module.
    lab.sh("busybox ifconfig nwt-before || true");
    let (_, asked) = requests.during(|| lab.sh("busybox ifconfig nwt-during || true"));
    assert!(asked.contains(&"netdev-nwt-during".to_owned()), "{asked:?}");
    assert!(!asked.contains(&"netdev-nwt-before".to_owned()), "{asked:?}");
    let other = std::thread::spawn(move || lab.sh("busybox ifconfig nwt-other || true"));
    let ((), asked) = requests.during(|| drop(other.join()));
    assert_eq!(asked, Vec::<String>::new());
}
