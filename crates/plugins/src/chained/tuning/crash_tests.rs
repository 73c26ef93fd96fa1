//! Stops every plan at every step: the undo leaves nothing behind, and without the undo DEL leaves
//! nothing behind.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::shared::failure::Failure;

use super::config::{Config, LinkValues, Sysctl};
use super::plan::{
    AddObservation, Apply, DelObservation, LinkState, Plan, RecordData, Step, SysctlState, add,
    del, run, run_all,
};
use super::sysctl::SysctlKey;

const BACKUP: &str = "/data/c1_eth0.json";

/// A model of the node with one attachment.
#[derive(Debug, Clone, Default, PartialEq)]
struct World {
    link: LinkValues,
    sysctls: BTreeMap<String, String>,
    claims: BTreeSet<String>,
    notes: BTreeMap<String, Option<String>>,
    backup: Option<LinkValues>,
    record: Option<RecordData>,
}

/// Applies steps to a world, and fails at some.
struct Flaky<'w> {
    world: &'w mut World,
    taken: usize,
    fail_at: Option<usize>,
}

impl World {
    fn fresh() -> Self {
        World {
            link: LinkValues {
                mac: Some("02:00:00:00:00:aa".parse().unwrap()),
                mtu: Some(1500),
                promisc: Some(false),
                allmulti: Some(false),
                tx_queue_length: Some(1000),
            },
            sysctls: [("net/a", "1"), ("net/b", "2")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ..World::default()
        }
    }

    fn plan(&self, config: &Config) -> Plan {
        let sysctls = config.sysctls.iter().map(|sysctl| SysctlState {
            path: sysctl.key.path().to_owned(),
            value: self.sysctls.get(sysctl.key.path()).cloned(),
            // One of each kind.
            own: sysctl.key.path() == "net/b",
        });
        let observed = AddObservation {
            link: Some(LinkState { ifindex: 2, values: self.link }),
            sysctls: sysctls.collect(),
            backup: self.backup,
            recorded: self.record.clone(),
            stale: None,
        };
        add(config, PathBuf::from(BACKUP), &observed)
    }

    fn del(&self) -> Vec<Step> {
        del(&DelObservation {
            backup_path: Some(BACKUP.into()),
            backup: self.backup,
            recorded: self.record.clone(),
            namespace: true,
            link: Some(LinkState { ifindex: 2, values: self.link }),
        })
    }

    fn take(&mut self, step: &Step) {
        match step.clone() {
            Step::WriteRecord(recorded) => self.record = recorded,
            Step::WriteBackup { values, .. } => self.backup = values,
            Step::SetLink { to, .. } => {
                let LinkValues { mac, mtu, promisc, allmulti, tx_queue_length } = &mut self.link;
                *mac = to.mac.or(*mac);
                *mtu = to.mtu.or(*mtu);
                *promisc = to.promisc.or(*promisc);
                *allmulti = to.allmulti.or(*allmulti);
                *tx_queue_length = to.tx_queue_length.or(*tx_queue_length);
            }
            Step::ClaimSysctl { path, was } => {
                self.claims.insert(path.clone());
                self.notes.entry(path).or_insert(was);
            }
            Step::WriteSysctl { path, value } | Step::RestoreSysctl { path, value } => {
                self.sysctls.insert(path, value);
            }
            Step::ReleaseSysctl { path } => {
                self.claims.remove(&path);
                if let Some(was) = self.notes.remove(&path).flatten() {
                    self.sysctls.insert(path, was);
                }
            }
            Step::ForgetSysctl { path } => {
                self.claims.remove(&path);
                self.notes.remove(&path);
            }
        }
    }
}

impl Apply for Flaky<'_> {
    fn apply(&mut self, step: &Step) -> Result<(), Failure> {
        let fails = self.fail_at == Some(self.taken);
        self.taken += 1;
        if fails {
            // The kernel sets a link's values one after the other: some of them may be set.
            if let Step::SetLink { ifindex, to } = step {
                let to = LinkValues { mac: to.mac, mtu: to.mtu, ..LinkValues::default() };
                self.world.take(&Step::SetLink { ifindex: *ifindex, to });
            }
            return Err(Failure::new(100, "refused"));
        }
        self.world.take(step);
        Ok(())
    }
}

fn config(mtu: u32, a: &str) -> Config {
    let sysctl = |key: &str, value: &str| Sysctl {
        key: SysctlKey::parse(key, &"eth0".parse().unwrap()).unwrap(),
        value: value.to_owned(),
    };
    Config {
        data_dir: "/data".into(),
        sysctls: vec![sysctl("net.a", a), sysctl("net.b", "7")],
        link: LinkValues {
            mac: Some("02:00:5e:00:53:01".parse().unwrap()),
            mtu: Some(mtu),
            promisc: Some(true),
            allmulti: Some(true),
            tx_queue_length: Some(5),
        },
    }
}

fn succeed(world: &mut World, plan: &Plan) {
    run(plan, &mut Flaky { world, taken: 0, fail_at: None }).unwrap();
}

fn take_down(world: &mut World) {
    let steps = world.del();
    assert!(run_all(&steps, &mut Flaky { world, taken: 0, fail_at: None }, true).is_empty());
    // The engine removes the record of what is taken down.
    world.record = None;
}

#[test]
fn add_and_del_leave_nothing() {
    let mut world = World::fresh();
    let plan = world.plan(&config(1400, "5"));
    succeed(&mut world, &plan);
    assert_eq!(world.link, config(1400, "5").link);
    assert_eq!(world.sysctls["net/a"], "5");
    // Again with other values, as after the configuration was edited.
    let plan = world.plan(&config(1300, "6"));
    succeed(&mut world, &plan);
    take_down(&mut world);
    assert_eq!(world, World::fresh());
    take_down(&mut world);
    assert_eq!(world, World::fresh());
}

#[test]
fn a_failure_at_any_step_is_undone() {
    for again in [false, true] {
        let mut before = World::fresh();
        if again {
            let plan = before.plan(&config(1300, "6"));
            succeed(&mut before, &plan);
        }
        let plan = before.plan(&config(1400, "5"));
        for step in 0..plan.steps.len() {
            let mut world = before.clone();
            let mut target = Flaky { world: &mut world, taken: 0, fail_at: Some(step) };
            let error = run(&plan, &mut target).unwrap_err();
            assert_eq!(error.to_string(), "refused");
            assert_eq!(world, before, "again {again}, step {step}: {:?}", plan.steps[step]);
        }
    }
}

#[test]
fn a_stop_at_any_step_is_cleaned_up_by_del() {
    let config = config(1400, "5");
    let plan = World::fresh().plan(&config);
    for stop in 0..=plan.steps.len() {
        let mut world = World::fresh();
        plan.steps[..stop].iter().for_each(|step| world.take(step));
        take_down(&mut world);
        assert_eq!(world, World::fresh(), "stopped before step {stop}");
    }
    // Stopped in DEL, at any step, and called again.
    let mut attached = World::fresh();
    succeed(&mut attached, &plan);
    let steps = attached.del();
    for stop in 0..=steps.len() {
        let mut world = attached.clone();
        steps[..stop].iter().for_each(|step| world.take(step));
        take_down(&mut world);
        assert_eq!(world, World::fresh(), "stopped before step {stop} of DEL");
    }
    // Stopped in ADD, and ADD called again: the original values are still known.
    for stop in 0..=plan.steps.len() {
        let mut world = World::fresh();
        plan.steps[..stop].iter().for_each(|step| world.take(step));
        let again = world.plan(&config);
        succeed(&mut world, &again);
        take_down(&mut world);
        assert_eq!(world, World::fresh(), "stopped before step {stop} of the first ADD");
    }
}

#[test]
fn a_link_that_cannot_be_brought_back_stays_remembered() {
    let mut world = World::fresh();
    let plan = world.plan(&config(1400, "5"));
    succeed(&mut world, &plan);
    let steps = world.del();
    let failures =
        run_all(&steps, &mut Flaky { world: &mut world, taken: 0, fail_at: Some(0) }, true);
    assert!(matches!(failures[..], [(Step::SetLink { .. }, _)]), "{failures:?}");
    assert!(world.backup.is_some() && world.record.is_some());
    assert_eq!(world.sysctls, World::fresh().sysctls);
    take_down(&mut world);
    assert_eq!(world, World::fresh());
}

#[test]
fn a_backup_that_cannot_be_removed_stays_remembered() {
    let mut world = World::fresh();
    let plan = world.plan(&config(1400, "5"));
    succeed(&mut world, &plan);
    let steps = world.del();
    let backup = steps.iter().position(|step| matches!(step, Step::WriteBackup { .. })).unwrap();
    let mut target = Flaky { world: &mut world, taken: 0, fail_at: Some(backup) };
    let failures = run_all(&steps, &mut target, true);
    assert!(matches!(failures[..], [(Step::WriteBackup { .. }, _)]), "{failures:?}");
    // GC learns of it only from the record.
    assert!(world.backup.is_some() && world.record.is_some());
    take_down(&mut world);
    assert_eq!(world, World::fresh());
}
