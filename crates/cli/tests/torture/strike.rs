//! One fault at one call, and what comes after it.

use serde_json::Value;
use testkit::fault::{self, Blow, Moment, failures};
use testkit::real::Ovs;
use testkit::{Glance, Tally};

use crate::scenario::Scenario;
use crate::world::{Call, PluginAnswer, Pod, World};

/// What comes after the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aftermath {
    /// The runtime detaches.
    Del,
    /// The runtime attaches once more, and then detaches.
    AddAgain,
    /// The container's namespace is gone, and the runtime detaches.
    GoneDel,
    /// The container's namespace is gone, and the runtime calls GC.
    GoneGc,
    /// Nothing: ADD failed with an error, so it has undone what it did.
    Nothing,
    /// The runtime detaches, and that call gets a fault too, after this many system calls; the
    /// runtime detaches once more.
    StruckDel(usize),
}

/// The words of an ADD's error if the object that it would make exists, with the object's owner.
const CLEAR: [&str; 4] = ["already exists", "has been allocated to", "already has", "File exists"];

pub(crate) struct Torture<'w> {
    world: &'w World<'w>,
    pub(crate) scenario: &'w Scenario,
    resident: Option<Pod>,
    pod: Option<Pod>,
    before: Glance,
    /// Open vSwitch, and the content of its database.
    switch: Option<(&'w Ovs<'w>, String)>,
    tally: &'w mut Tally,
    /// Whether the host is no longer as it was; later tries on it would show nothing.
    pub(crate) spoilt: bool,
}

impl<'w> Torture<'w> {
    pub(crate) fn prepare(
        world: &'w World<'w>,
        scenario: &'w Scenario,
        switch: Option<&'w Ovs<'w>>,
        beside: bool,
        tally: &'w mut Tally,
    ) -> Self {
        world.sh(scenario.host);
        let resident = (beside && !scenario.lends).then(|| world.pod("resident"));
        let before = world.look();
        let mut torture = Torture {
            world,
            scenario,
            resident,
            pod: None,
            before,
            switch: None,
            tally,
            spoilt: false,
        };
        // From then on the objects that a network's first container leaves for the next one exist.
        torture.fresh();
        let last = torture.add_all(torture.pod());
        torture.del_all(torture.pod(), last.as_ref());
        torture.gc_all();
        if let Some(resident) = &torture.resident {
            torture.add_all(resident);
        }
        torture.before = world.look();
        torture.switch = switch.map(|switch| (switch, switch.content()));
        torture
    }

    fn pod(&self) -> &Pod {
        self.pod.as_ref().unwrap()
    }

    /// Makes a new container if there is none or the last has ended.
    fn fresh(&mut self) {
        if self.pod.as_ref().is_none_or(Pod::has_ended) {
            self.pod = Some(self.world.pod("c1"));
        }
    }

    /// Attaches with all plugins, and returns the last result.
    #[track_caller]
    fn add_all(&self, pod: &Pod) -> Option<Value> {
        let mut last = None;
        for plugin in &self.scenario.plugins {
            last = self.world.done(&Call { previous: last, ..pod.call("ADD", plugin) });
        }
        last
    }

    /// Detaches with all plugins; returns what failed.
    fn del_all(&self, pod: &Pod, last: Option<&Value>) -> Vec<String> {
        self.del_these(pod, last, 0..self.scenario.plugins.len())
    }

    fn del_these(
        &self,
        pod: &Pod,
        last: Option<&Value>,
        which: std::ops::Range<usize>,
    ) -> Vec<String> {
        let mut failed = Vec::new();
        for plugin in self.scenario.plugins[which].iter().rev() {
            let call = Call { previous: last.cloned(), ..pod.call("DEL", plugin) };
            let said = self.world.call(&call);
            if !said.is_done() {
                failed.push(format!("DEL {} said {said:?}", plugin["type"]));
            }
        }
        failed
    }

    fn collect<'c>(&self, plugin: &'c Value) -> Call<'c> {
        let valid = self.resident.iter().map(|pod| pod.id.clone()).collect();
        Call { valid: Some(valid), ..self.pod().call("GC", plugin) }
    }

    fn gc_all(&self) -> Vec<String> {
        let mut failed = Vec::new();
        for plugin in &self.scenario.plugins {
            let said = self.world.call(&self.collect(plugin));
            if !said.is_done() {
                failed.push(format!("GC {} said {said:?}", plugin["type"]));
            }
        }
        failed
    }

    /// The moments of a verb: its system calls without a fault.
    pub(crate) fn moments(&mut self, verb: &'static str) -> Vec<Moment> {
        let (moments, failed) = self.struck(verb, &mut |_| Blow::Spare, Aftermath::Del);
        assert!(
            failed.is_empty(),
            "{} {verb} that nothing happens to: {failed:#?}",
            self.scenario.name
        );
        moments
    }

    pub(crate) fn try_one(&mut self, verb: &'static str, at: Moment, blow: Blow, after: Aftermath) {
        let how = match blow {
            Blow::Fail(_) => "failed",
            _ => "killed",
        };
        self.tally.count(self.scenario.name, verb, how);
        let mut hand = |moment: Moment| {
            if moment.is(&at) { blow } else { Blow::Spare }
        };
        let (_, failed) = self.struck(verb, &mut hand, after);
        if !failed.is_empty() {
            let Scenario { name, family, .. } = self.scenario;
            let beside = self.resident.is_some();
            let beside = if beside { "beside another" } else { "alone" };
            self.tally.found(format!(
                "{name} {verb} {how}: {family}{beside}, {at} {blow}, then {after:?}:\n  {}",
                failed.join("\n  ")
            ));
            self.spoilt = true;
        }
    }

    /// Makes one attachment with a fault in one call, and what comes after; returns the moments of
    /// that call, and what is wrong.
    fn struck(
        &mut self,
        verb: &'static str,
        hand: fault::Hand<'_>,
        after: Aftermath,
    ) -> (Vec<Moment>, Vec<String>) {
        self.fresh();
        let (world, victim) = (self.world, self.scenario.victim);
        let plugin = &self.scenario.plugins[victim];
        let mut wrong = Vec::new();
        let mut last = None;
        let before = &self.scenario.plugins[..victim];
        let mut memory = false;
        let mut stdout = false;
        let mut watched = |moment: Moment| {
            let blow = hand(moment);
            // The name is looked up only for a fault: a call has hundreds of moments, and the
            // lookup searches a list.
            if blow != Blow::Spare {
                let name = fault::name(moment.call);
                memory |= matches!(name.as_str(), "mmap" | "mremap" | "brk");
                stdout |= moment.first == 1;
            }
            blow
        };
        let ended = match verb {
            "ADD" => {
                for plugin in before {
                    last = world.done(&Call { previous: last, ..self.pod().call("ADD", plugin) });
                }
                let call = Call { previous: last.clone(), ..self.pod().call("ADD", plugin) };
                world.follow(&call, &mut watched)
            }
            "DEL" => {
                last = self.add_all(self.pod());
                let later = victim + 1..self.scenario.plugins.len();
                wrong.extend(self.del_these(self.pod(), last.as_ref(), later));
                let call = Call { previous: last.clone(), ..self.pod().call("DEL", plugin) };
                world.follow(&call, &mut watched)
            }
            _ => {
                last = self.add_all(self.pod());
                if !self.scenario.lends {
                    self.pod().end();
                }
                world.follow(&self.collect(plugin), &mut watched)
            }
        };
        let said = PluginAnswer::of(&ended, verb);
        match &said {
            PluginAnswer::Nonsense(what) if !(stdout && ended.stdout.is_empty() && !ended.hung) => {
                wrong.push(format!("it ended with {what}"));
            }
            // No process can continue without memory.
            PluginAnswer::Died(signal) if *signal != 9 && !(memory && *signal == 6) => {
                wrong.push(format!(
                    "it died of signal {signal}: {}",
                    String::from_utf8_lossy(&ended.stderr)
                ));
            }
            PluginAnswer::Done(result) if verb == "ADD" => {
                last.clone_from(result);
                if ended.struck {
                    let call = Call { previous: last.clone(), ..self.pod().call("CHECK", plugin) };
                    let checked = world.call(&call);
                    if !checked.is_done() {
                        wrong.push(format!("ADD succeeded, but CHECK says {checked:?}"));
                    }
                }
            }
            _ => {}
        }
        wrong.extend(self.afterwards(verb, &said, last.as_ref(), after));
        wrong.extend(self.world.left(&self.before));
        if let Some((switch, before)) = &self.switch {
            let after = switch.content();
            if after != *before {
                wrong.push(format!("the switch's database was\n{before}\nand is\n{after}"));
            }
        }
        wrong.extend(self.pod().left().into_iter().map(|line| format!("in the container: {line}")));
        (ended.moments, wrong)
    }

    /// Detaches with a fault after this many system calls: a kill, or an error if the call can have
    /// one.
    fn strike_del(&self, last: Option<&Value>, at: usize) {
        let plugin = &self.scenario.plugins[self.scenario.victim];
        let call = Call { previous: last.cloned(), ..self.pod().call("DEL", plugin) };
        let mut seen = 0;
        let _ = self.world.follow(&call, &mut |moment| {
            seen += 1;
            match failures(moment.call).first() {
                _ if seen != at + 1 => Blow::Spare,
                Some(errno) if at % 2 == 1 => Blow::Fail(*errno),
                _ => Blow::Kill,
            }
        });
    }

    fn afterwards(
        &self,
        verb: &str,
        said: &PluginAnswer,
        last: Option<&Value>,
        after: Aftermath,
    ) -> Vec<String> {
        let all = self.scenario.plugins.len();
        let victim = self.scenario.victim;
        match (verb, after, said) {
            // A DEL that succeeded has done its work, and an ADD that failed has undone it.
            ("DEL", Aftermath::Del, PluginAnswer::Done(_)) => {
                self.del_these(self.pod(), last, 0..victim)
            }
            ("ADD", Aftermath::Nothing, PluginAnswer::Error(_)) => {
                self.del_these(self.pod(), last, 0..victim)
            }
            ("GC", _, PluginAnswer::Done(_)) if all == 1 => Vec::new(),
            ("GC", _, _) => self.gc_all(),
            (_, Aftermath::AddAgain, _) => {
                let mut wrong = Vec::new();
                let mut last = None;
                for plugin in &self.scenario.plugins {
                    let call = Call { previous: last.clone(), ..self.pod().call("ADD", plugin) };
                    match self.world.call(&call) {
                        PluginAnswer::Done(result) => last = result,
                        PluginAnswer::Error(error)
                            if CLEAR.iter().any(|words| error.to_string().contains(words)) =>
                        {
                            break;
                        }
                        other => {
                            wrong.push(format!("another ADD of {} said {other:?}", plugin["type"]));
                            break;
                        }
                    }
                }
                wrong.extend(self.del_all(self.pod(), last.as_ref()));
                wrong
            }
            (_, Aftermath::StruckDel(at), _) => {
                self.strike_del(last, at);
                self.del_all(self.pod(), last)
            }
            (_, Aftermath::GoneDel, _) => {
                self.pod().end();
                self.del_all(self.pod(), None)
            }
            (_, Aftermath::GoneGc, _) => {
                self.pod().end();
                self.gc_all()
            }
            _ => self.del_all(self.pod(), None),
        }
    }
}
