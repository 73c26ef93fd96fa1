//! A process that does not run because its control group is frozen.

use std::fs;

use crate::real::cgroup::Cgroup;
use crate::service::wait_until;

/// A control group, of either version, that is frozen with a process in it. Once this is dropped,
/// the process is killed and the group is removed.
///
/// If the test process is killed, the other one may stay frozen. The next test that makes a control
/// group kills it then, and removes the group.
#[derive(Debug)]
pub struct FrozenCgroup {
    _cgroup: Cgroup,
}

impl FrozenCgroup {
    /// Moves a process into a group, and waits until it is frozen.
    ///
    /// # Panics
    /// When the machine has no control groups that freeze processes, or this is not root.
    #[must_use]
    pub fn new(pid: u32) -> Self {
        let cgroup = Cgroup::new();
        let group = cgroup.freezer();
        let is_first = group.join("freezer.state").exists();
        let [by, word] =
            if is_first { ["freezer.state", "FROZEN"] } else { ["cgroup.freeze", "1"] };
        let [file, says] =
            if is_first { ["freezer.state", "FROZEN"] } else { ["cgroup.events", "frozen 1"] };
        for (file, text) in [("cgroup.procs", pid.to_string()), (by, word.to_owned())] {
            let path = group.join(file);
            fs::write(&path, text)
                .unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
        }
        let file = group.join(file);
        wait_until("the frozen process", || {
            fs::read_to_string(&file).is_ok_and(|text| text.lines().any(|line| line.trim() == says))
        });
        Self { _cgroup: cgroup }
    }
}
