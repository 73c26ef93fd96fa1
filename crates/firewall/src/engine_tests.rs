//! The engine against in-memory tables that fail at a chosen step.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use cni::AttachmentKey;
use state::{Index, Roots};

use super::*;
use crate::element::Table;
use crate::tables::TablesError;
use crate::{hostport, masquerade, pod_link, policy};

/// What is in the kernel, and when it fails.
#[derive(Debug, Default)]
struct World {
    elements: RefCell<BTreeMap<String, (Set, ObservedElement)>>,
    chains: RefCell<BTreeMap<String, usize>>,
    switched: RefCell<Vec<SharedObject>>,
    /// Counts down with each step; the step at zero fails.
    fuse: Cell<Option<usize>>,
}

impl World {
    fn step(&self) -> Result<(), TablesError> {
        match self.fuse.get() {
            Some(0) => Err(TablesError {
                operation: "step".to_owned(),
                absent: false,
                source: "told to fail".into(),
            }),
            Some(left) => {
                self.fuse.set(Some(left - 1));
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn name(set: Set, key: &[Field]) -> String {
        Element::new(set, key.to_vec()).to_string()
    }

    fn is_empty(&self) -> bool {
        self.elements.borrow().is_empty()
            && self.chains.borrow().is_empty()
            && self.switched.borrow().is_empty()
    }
}

#[derive(Debug)]
struct Fake(Rc<World>);

impl Tables for Fake {
    fn exists(&mut self, _: Table) -> Result<bool, TablesError> {
        self.0.step().map(|()| true)
    }

    fn is_laid_out(&mut self, _: Table) -> Result<bool, TablesError> {
        self.0.step().map(|()| true)
    }

    fn altered(
        &mut self,
        _: Table,
        _: &BTreeSet<masquerade::Outbound>,
    ) -> Result<Option<Alteration>, TablesError> {
        self.0.step().map(|()| Some(Alteration::default()))
    }

    fn get(&mut self, set: Set, key: &[Field]) -> Result<Option<ObservedElement>, TablesError> {
        self.0.step()?;
        let elements = self.0.elements.borrow();
        Ok(elements.get(&World::name(set, key)).map(|(_, found)| found.clone()))
    }

    fn list(&mut self, set: Set) -> Result<Vec<ObservedElement>, TablesError> {
        self.0.step()?;
        let elements = self.0.elements.borrow();
        let own = elements.values().filter(|(of, _)| *of == set);
        Ok(own.map(|(_, found)| found.clone()).collect())
    }

    fn jumps_to(&mut self, chain: &str) -> Result<Option<usize>, TablesError> {
        self.0.step()?;
        Ok(self.0.chains.borrow().get(chain).copied())
    }

    fn masquerade_chains(&mut self) -> Result<Vec<(String, usize)>, TablesError> {
        self.0.step()?;
        Ok(self.0.chains.borrow().iter().map(|(name, jumps)| (name.clone(), *jumps)).collect())
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), TablesError> {
        self.0.step()?;
        let mut elements = self.0.elements.borrow_mut();
        let mut chains = self.0.chains.borrow_mut();
        for change in changes {
            match change {
                Change::Layout(_) => {}
                Change::AddMasquerade(outbound) => {
                    chains.insert(outbound.chain_name(), 0);
                }
                Change::DeleteChain { chain, .. } => {
                    assert_eq!(chains.remove(chain), Some(0), "the kernel says EBUSY: {chain}");
                }
                Change::AddElement { element, comment } => {
                    let value = match (&element.value, element.chain()) {
                        (Value::Endpoint { address, port }, _) => {
                            ObservedValue::Endpoint(*address, *port)
                        }
                        (_, Some(chain)) => {
                            *chains.get_mut(&chain).expect("the kernel says ENOENT") += 1;
                            ObservedValue::Jump(chain)
                        }
                        (_, None) => ObservedValue::Nothing,
                    };
                    let found = ObservedElement {
                        key: element.key.clone(),
                        value,
                        comment: comment.clone(),
                    };
                    let name = World::name(element.set, &element.key);
                    let old = elements.insert(name, (element.set, found));
                    assert_eq!(old, None, "the kernel says EEXIST");
                }
                Change::DeleteElement { set, key } => {
                    let (_, found) =
                        elements.remove(&World::name(*set, key)).expect("the kernel says ENOENT");
                    if let ObservedValue::Jump(chain) = found.value {
                        *chains.get_mut(&chain).expect("it was jumped to") -= 1;
                    }
                }
            }
        }
        Ok(())
    }

    fn delete_tables(&mut self) -> Result<(), TablesError> {
        self.0.step()?;
        self.0.elements.borrow_mut().clear();
        self.0.chains.borrow_mut().clear();
        Ok(())
    }
}

#[derive(Debug)]
struct FakeSysctls(Rc<World>);

impl SharedSysctls for FakeSysctls {
    fn on(&mut self, _: &Index, shared: &SharedObject) -> Result<(), FirewallError> {
        self.0.step()?;
        let mut switched = self.0.switched.borrow_mut();
        let has_switch = matches!(shared, SharedObject::Localnet(_) | SharedObject::Loopback6(_));
        if has_switch && !switched.contains(shared) {
            switched.push(shared.clone());
        }
        Ok(())
    }

    fn off(&mut self, _: &Index, shared: &SharedObject) -> Result<bool, FirewallError> {
        self.0.step()?;
        self.0.switched.borrow_mut().retain(|known| known != shared);
        Ok(true)
    }

    fn check(&mut self, _: &SharedObject) -> Result<Option<String>, FirewallError> {
        self.0.step()?;
        Ok(None)
    }
}

struct Bench {
    dir: tempfile::TempDir,
    index: Index,
    world: Rc<World>,
}

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let index = Index::new(&Roots::new(dir.path().join("run"), dir.path().join("lib")));
        Bench { dir, index, world: Rc::new(World::default()) }
    }

    fn firewall(&self) -> Firewall<'_> {
        Firewall {
            _lock: None,
            index: &self.index,
            tables: Box::new(Fake(Rc::clone(&self.world))),
            switches: Box::new(FakeSysctls(Rc::clone(&self.world))),
            passed_over: false,
            outlived: Vec::new(),
        }
    }

    fn assert_clean(&self, what: &str) {
        assert!(self.world.is_empty(), "{what}: {:?}", self.world);
        let held: Vec<String> = self
            .index
            .objects()
            .found
            .into_iter()
            .filter(|object| !self.index.holders(object).found.is_empty())
            .collect();
        assert_eq!(held, Vec::<String>::new(), "{what}");
    }
}

fn key(container: &str) -> AttachmentKey {
    AttachmentKey {
        network: "n".parse().unwrap(),
        container_id: container.parse().unwrap(),
        ifname: "eth0".parse().unwrap(),
    }
}

/// A plan with something of everything.
fn plan(last: u8) -> Plan {
    let address = std::net::IpAddr::from([10, 1, 0, last]);
    let forward = |host_ip: Option<&str>| hostport::Forward {
        protocol: crate::element::Protocol::Tcp,
        host_port: 8000 + u16::from(last),
        container_port: 80,
        host_ip: host_ip.map(|at| at.parse().unwrap()),
    };
    let target = hostport::Target { address, host_ifname: Some("cni0".to_owned()) };
    let mut plan = masquerade::plan("n", "cni0", ipnet::IpNet::new(address, 24).unwrap());
    let forwards = [forward(None), forward(Some("192.0.2.1"))];
    plan.join(hostport::plan(&forwards, &[target], hostport::Snat::All).unwrap());
    plan.join(policy::plan(policy::IngressPolicy::Isolated, "cni0", &format!("veth{last}")));
    plan
}

/// Fails at the first step, the second, …: nothing stays, or DEL removes it.
#[test]
fn whatever_step_of_add_fails_nothing_stays() {
    for step in 0.. {
        let bench = Bench::new();
        bench.world.fuse.set(Some(step));
        let added = bench.firewall().add(&key("c1"), &plan(2));
        let finished = added.is_ok();
        bench.world.fuse.set(None);
        // Undoing needed the kernel too, which kept failing: DEL comes later.
        bench.firewall().remove(&key("c1"), &plan(2)).unwrap();
        bench.assert_clean(&format!("add failed at step {step}"));
        if finished {
            assert!(10 < step, "the plan is too small to show anything: {step}");
            return;
        }
    }
}

/// One failing step: the kernel recovers before ADD undoes what it did.
#[test]
fn a_passing_failure_is_undone_by_add_itself() {
    #[derive(Debug)]
    struct OneFailure(Fake);
    impl Tables for OneFailure {
        fn exists(&mut self, table: Table) -> Result<bool, TablesError> {
            self.0.exists(table)
        }

        fn is_laid_out(&mut self, table: Table) -> Result<bool, TablesError> {
            self.0.is_laid_out(table)
        }
        fn altered(
            &mut self,
            table: Table,
            masquerades: &BTreeSet<masquerade::Outbound>,
        ) -> Result<Option<Alteration>, TablesError> {
            self.0.altered(table, masquerades)
        }
        fn get(&mut self, set: Set, key: &[Field]) -> Result<Option<ObservedElement>, TablesError> {
            self.0.get(set, key)
        }
        fn list(&mut self, set: Set) -> Result<Vec<ObservedElement>, TablesError> {
            self.0.list(set)
        }
        fn jumps_to(&mut self, chain: &str) -> Result<Option<usize>, TablesError> {
            self.0.jumps_to(chain)
        }
        fn masquerade_chains(&mut self) -> Result<Vec<(String, usize)>, TablesError> {
            self.0.masquerade_chains()
        }
        fn commit(&mut self, changes: &[Change]) -> Result<(), TablesError> {
            if matches!(self.0.0.fuse.get(), Some(0)) {
                self.0.0.fuse.set(None);
                return Err(TablesError {
                    operation: "commit".to_owned(),
                    absent: false,
                    source: "once".into(),
                });
            }
            self.0.commit(changes)
        }
        fn delete_tables(&mut self) -> Result<(), TablesError> {
            self.0.delete_tables()
        }
    }
    let bench = Bench::new();
    let mut firewall = bench.firewall();
    // Counts everything before the commit: a dry run.
    bench.world.fuse.set(Some(usize::MAX));
    firewall.plan_add(&key("c1"), &plan(2)).unwrap();
    let before_commit = usize::MAX - bench.world.fuse.get().unwrap();
    bench.world.fuse.set(Some(before_commit));
    firewall.tables = Box::new(OneFailure(Fake(Rc::clone(&bench.world))));
    firewall.add(&key("c1"), &plan(2)).unwrap_err();
    bench.assert_clean("add undid itself");
}

#[test]
fn whatever_step_of_remove_fails_the_next_one_finishes() {
    for step in 0.. {
        let bench = Bench::new();
        bench.firewall().add(&key("c1"), &plan(2)).unwrap();
        bench.world.fuse.set(Some(step));
        let removed = bench.firewall().remove(&key("c1"), &plan(2));
        bench.world.fuse.set(None);
        bench.firewall().remove(&key("c1"), &plan(2)).unwrap();
        bench.assert_clean(&format!("remove failed at step {step}"));
        if removed.is_ok() {
            return;
        }
    }
}

/// The kernel answers one query with an error and all later ones correctly: what could not be read
/// is read by the next call.
#[test]
fn whatever_question_of_remove_fails_the_next_one_finishes() {
    #[derive(Debug)]
    struct OneFailure(Fake);
    impl OneFailure {
        fn ask<T>(
            &mut self,
            what: impl FnOnce(&mut Fake) -> Result<T, TablesError>,
        ) -> Result<T, TablesError> {
            let answer = what(&mut self.0);
            if answer.is_err() {
                self.0.0.fuse.set(None);
            }
            answer
        }
    }
    impl Tables for OneFailure {
        fn exists(&mut self, table: Table) -> Result<bool, TablesError> {
            self.0.exists(table)
        }

        fn is_laid_out(&mut self, table: Table) -> Result<bool, TablesError> {
            self.ask(|fake| fake.is_laid_out(table))
        }
        fn altered(
            &mut self,
            table: Table,
            masquerades: &BTreeSet<masquerade::Outbound>,
        ) -> Result<Option<Alteration>, TablesError> {
            self.ask(|fake| fake.altered(table, masquerades))
        }
        fn get(&mut self, set: Set, key: &[Field]) -> Result<Option<ObservedElement>, TablesError> {
            self.ask(|fake| fake.get(set, key))
        }
        fn list(&mut self, set: Set) -> Result<Vec<ObservedElement>, TablesError> {
            self.ask(|fake| fake.list(set))
        }
        fn jumps_to(&mut self, chain: &str) -> Result<Option<usize>, TablesError> {
            self.ask(|fake| fake.jumps_to(chain))
        }
        fn masquerade_chains(&mut self) -> Result<Vec<(String, usize)>, TablesError> {
            self.ask(Tables::masquerade_chains)
        }
        fn commit(&mut self, changes: &[Change]) -> Result<(), TablesError> {
            self.ask(|fake| fake.commit(changes))
        }
        fn delete_tables(&mut self) -> Result<(), TablesError> {
            self.ask(Tables::delete_tables)
        }
    }
    for step in 0.. {
        let bench = Bench::new();
        bench.firewall().add(&key("c1"), &plan(2)).unwrap();
        let mut firewall = bench.firewall();
        firewall.tables = Box::new(OneFailure(Fake(Rc::clone(&bench.world))));
        bench.world.fuse.set(Some(step));
        let removed = firewall.remove(&key("c1"), &plan(2));
        bench.world.fuse.set(None);
        bench.firewall().remove(&key("c1"), &plan(2)).unwrap();
        bench.assert_clean(&format!("remove failed once at step {step}: {removed:?}"));
        if removed.is_ok() {
            return;
        }
    }
}

#[test]
fn what_has_no_record_is_found_by_its_mark() {
    let bench = Bench::new();
    bench.firewall().add(&key("c1"), &plan(2)).unwrap();
    bench.firewall().add(&key("c2"), &plan(3)).unwrap();
    bench.firewall().remove_unrecorded(&key("c1"), Concern::ALL).unwrap();
    assert_eq!(bench.firewall().check(&key("c2"), &plan(3)).unwrap(), Vec::<String>::new());
    bench.firewall().remove_unrecorded(&key("c2"), Concern::ALL).unwrap();
    bench.assert_clean("both removed by their marks");
}

/// Elements of several attachments change together, or not at all.
#[test]
fn elements_of_attachments_are_exchanged() {
    let bench = Bench::new();
    let passes = |ifname: &str, last: Option<u8>| {
        let addresses: Vec<IpAddr> = last.map(|last| [10, 1, 0, last].into()).into_iter().collect();
        pod_link::plan(ifname, pod_link::Place::Routed, &addresses)
    };
    let owned = || {
        let owned = bench.firewall().owned(&[Concern::PodLink]).unwrap();
        owned.into_values().map(|elements| elements.len()).collect::<Vec<_>>()
    };
    bench.firewall().add(&key("c1"), &passes("veth1", Some(1))).unwrap();
    let opens = |container: &str, last| {
        let add = passes(&format!("veth{last}"), Some(last));
        Exchange { key: key(container), add, remove: Vec::new() }
    };
    let address = passes("veth1", Some(1)).own.split_off(1);
    let closes = Exchange { key: key("c1"), add: Plan::default(), remove: address };
    let both = [closes, opens("c2", 2)];
    for step in 0..10 {
        bench.world.fuse.set(Some(step));
        let done = bench.firewall().exchange(&both);
        bench.world.fuse.set(None);
        match done {
            Ok(()) => break,
            Err(_) => assert_eq!(owned(), [2], "failed at step {step}"),
        }
    }
    let mut left = owned();
    left.sort_unstable();
    assert_eq!(left, [1, 2], "the one is closed, and the other is open");
    assert!(bench.firewall().has(&key("c1"), &passes("veth1", None)).unwrap());
    assert!(bench.firewall().has(&key("c2"), &passes("veth2", Some(2))).unwrap());
}

#[test]
fn gc_keeps_the_valid_and_other_networks() {
    let bench = Bench::new();
    let mut other = key("c1");
    other.network = "m".parse().unwrap();
    let foreign = policy::plan(policy::IngressPolicy::SameBridge, "br9", "");
    bench.firewall().add(&key("c1"), &plan(2)).unwrap();
    bench.firewall().add(&key("c2"), &plan(3)).unwrap();
    bench.firewall().add(&other, &foreign).unwrap();
    let collected =
        bench.firewall().gc("n", &|hash| hash == key("c2").hash(), Concern::ALL).unwrap();
    assert_eq!(collected.owners.into_iter().collect::<Vec<_>>(), [key("c1").hash()]);
    assert_eq!(bench.firewall().check(&key("c2"), &plan(3)).unwrap(), Vec::<String>::new());
    assert_eq!(bench.firewall().check(&other, &foreign).unwrap(), Vec::<String>::new());
    bench.firewall().gc("n", &|_| false, Concern::ALL).unwrap();
    bench.firewall().gc("m", &|_| false, Concern::ALL).unwrap();
    bench.assert_clean("all collected");
}

/// Without any record, a port's holder cannot be shown to be gone.
#[test]
fn an_unknown_holder_counts_as_alive() {
    let bench = Bench::new();
    bench.firewall().add(&key("c1"), &plan(2)).unwrap();
    let mut same_port = plan(2);
    same_port.own.retain(|element| element.set.is_exclusive());
    same_port.shared.clear();
    let error = bench.firewall().add(&key("c2"), &same_port).unwrap_err();
    assert!(matches!(error, FirewallError::Held { .. }), "{error}");
}

/// A setting that could not be read used to count as sound.
#[test]
fn whatever_question_of_check_fails_it_finds_nothing_sound() {
    const ENOUGH: usize = 1000;
    let bench = Bench::new();
    bench.firewall().add(&key("c1"), &plan(2)).unwrap();
    let check = |fuse| {
        bench.world.fuse.set(Some(fuse));
        bench.firewall().check(&key("c1"), &plan(2))
    };
    assert_eq!(check(ENOUGH).unwrap(), Vec::<String>::new());
    let questions = ENOUGH - bench.world.fuse.get().unwrap();
    for question in 0..questions {
        assert!(check(question).is_err(), "question {question} of {questions}");
    }
}

#[test]
fn a_holder_that_cannot_be_read_keeps_the_tables() {
    let bench = Bench::new();
    bench.index.hold(&SharedObject::Localnet("cni0".to_owned()).object(), &key("c1")).unwrap();
    for object in std::fs::read_dir(bench.dir.path().join("run/shared")).unwrap() {
        for holder in std::fs::read_dir(object.unwrap().path()).unwrap() {
            std::fs::write(holder.unwrap().path(), "garbage").unwrap();
        }
    }
    assert!(!bench.firewall().prune().unwrap());
}
