//! Several workers attach and detach in any order, with faults, beside the daemon's services, until
//! the count is reached.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::fault::{Blow, ProgramEnd, failures};
use testkit::{Chance, Lab, Place as _, RunningProgram, Tally, feature, share};

use crate::scenario::Scenario;
use crate::world::{Call, EXECUTABLE, NETWORK, PluginAnswer, Pod, World};

/// The number of calls in every run, with `--full`, and in a run that tries all.
const CALLS: usize = 400;
const CALLS_OF_A_SHARE: usize = 3_000;
const ALL_CALLS: usize = 20_000;

/// How many workers there are, and how many containers each has at most.
const WORKERS: usize = 4;
const CROWD: usize = 2;

/// This many of the containers' places have ports of UDP too.
const UDP: usize = 2;

/// After this many calls of each worker everything is detached, and the host must be as before.
const STRETCH: usize = 50;

/// The last system call at which a fault may come, of a plugin's call, and of a command, whose
/// start counts too.
const DEEP: [usize; 2] = [400, 900];

/// How often a run prints memory.
const TOLD: usize = 10;

/// By how much the daemon's memory may differ, in KiB: the size of a momentarily larger number of
/// containers.
const FLAT_KIB: u64 = 1024;

/// The services that run meanwhile, both at their busiest.
const SERVICES: [&[&str]; 2] = [
    &["repair", "--interval", "200ms"],
    &["collect", "--act", "--grace", "200ms", "--interval", "200ms"],
];

/// How the calls for a place are made.
enum Door {
    /// The plugin, by itself.
    Plugin(Value),
    /// `netwright add` and `del`, which keep a cache; with these published ports.
    Runtime(Vec<String>),
}

/// A place for a container.
struct Spot {
    door: Door,
    living: Option<(Pod, Option<Value>)>,
}

/// One worker.
struct Worker {
    number: usize,
    chance: Chance,
    spots: Vec<Spot>,
    made: usize,
    /// How many calls were repeated because the kernel did not answer in time.
    late: usize,
    tally: Tally,
}

impl Door {
    /// One network and one set of host ports can have only one holder, so each spot has its own.
    fn of(number: usize, plugin: &Value) -> Self {
        let mut ports = plugin["runtimeConfig"]["portMappings"].clone();
        let ports = ports.as_array_mut().unwrap();
        // For a UDP port the kernel goes through the machine's whole table of flows, twice for each
        // call: some such ports are enough.
        if UDP <= number {
            ports.retain(|port| port["protocol"] != "udp");
        }
        for port in &mut *ports {
            port["hostPort"] = (port["hostPort"].as_u64().unwrap() + 10 * number as u64).into();
        }
        if number % 2 == 1 {
            let publish = ports.iter().map(|port| {
                let protocol = port["protocol"].as_str().unwrap();
                format!("{}:{}/{protocol}", port["hostPort"], port["containerPort"])
            });
            return Door::Runtime(publish.collect());
        }
        let mut list = plugin.clone();
        list["runtimeConfig"]["portMappings"] = json!(ports);
        Door::Plugin(list)
    }

    fn name(&self) -> &'static str {
        match self {
            Door::Plugin(_) => "soak",
            Door::Runtime(_) => "soak with a runtime",
        }
    }

    /// Makes a call, with the fault `at` if there is one.
    fn call(
        &self,
        world: &World<'_>,
        verb: &'static str,
        pod: &Pod,
        previous: Option<Value>,
        strike: Option<Strike>,
    ) -> (PluginAnswer, bool) {
        let mut seen = 0;
        let mut hand = |call| {
            seen += 1;
            strike.map_or(Blow::Spare, |strike| strike.blow(seen, call))
        };
        match self {
            Door::Plugin(plugin) => {
                let call = Call { previous, ..pod.call(verb, plugin) };
                if strike.is_none() {
                    return (world.call(&call), false);
                }
                let ended = world.follow(&call, &mut |moment| hand(moment.call));
                (PluginAnswer::of(&ended, verb), ended.struck)
            }
            Door::Runtime(publish) => {
                let verb = if verb == "ADD" { "add" } else { "del" };
                let mut arguments = vec![verb, NETWORK, pod.netns(), "--container-id", &pod.id];
                arguments.extend(publish.iter().flat_map(|port| ["-p", port.as_str()]));
                let ended = match strike {
                    None => world.netwright(&arguments),
                    Some(_) => world.follow_netwright(&arguments, &mut |moment| hand(moment.call)),
                };
                (of_runtime(&ended), ended.struck)
            }
        }
    }
}

/// The signal of abort(3).
const ABORTED: i32 = 6;

/// The outcome of a command.
fn of_runtime(ended: &ProgramEnd) -> PluginAnswer {
    let errors = String::from_utf8_lossy(&ended.stderr);
    match (ended.code, ended.signal) {
        // Rust's runtime gives up when it has no memory for the first thread: no code of ours has
        // run.
        (None, Some(ABORTED)) if ended.struck && errors.contains("an alternative stack") => {
            PluginAnswer::Died(ABORTED)
        }
        _ if ended.hung || errors.contains("panicked") => {
            PluginAnswer::Nonsense(format!("hung {}: {errors}", ended.hung))
        }
        (Some(0), _) => PluginAnswer::Done(None),
        (Some(_), _) => PluginAnswer::Error(errors.into()),
        (None, signal) => PluginAnswer::Died(signal.unwrap_or_default()),
    }
}

/// A fault: its kind, and the number of the system call.
#[derive(Debug, Clone, Copy)]
struct Strike {
    at: usize,
    /// `None` kills; otherwise the index of the error among those that the call may have.
    error: Option<usize>,
}

impl Strike {
    fn blow(self, seen: usize, call: i64) -> Blow {
        let errors = failures(call);
        match self.error {
            _ if seen != self.at => Blow::Spare,
            None => Blow::Kill,
            Some(_) if errors.is_empty() => Blow::Spare,
            Some(which) => Blow::Fail(errors[which % errors.len()]),
        }
    }
}

impl Worker {
    fn new(number: usize, plugin: &Value) -> Self {
        let spots = (0..CROWD)
            .map(|spot| Spot { door: Door::of(number * CROWD + spot, plugin), living: None })
            .collect();
        let chance = Chance::new(20_000 + number as u64);
        Worker { number, chance, spots, made: 0, late: 0, tally: Tally::new() }
    }

    /// Decides whether the next call gets a fault, and where.
    fn strike(&mut self, door: &Door) -> Option<Strike> {
        if !self.chance.once_in(10) {
            return None;
        }
        let deep = DEEP[usize::from(matches!(door, Door::Runtime(_)))];
        let kill = self.chance.once_in(2);
        let (at, which) = (self.chance.below(deep), self.chance.below(8));
        Some(Strike { at, error: (!kill).then_some(which) })
    }

    /// Attaches or detaches at a spot.
    fn step(&mut self, world: &World<'_>, at: usize) {
        let mut spot = self.spots.swap_remove(at);
        match spot.living.take() {
            Some((pod, result)) => self.del(world, &mut spot, pod, result),
            None => self.add(world, &mut spot),
        }
        self.spots.push(spot);
    }

    fn count(&mut self, door: &Door, verb: &str, strike: Option<Strike>) {
        let how = match strike {
            None => "left alone",
            Some(Strike { error: None, .. }) => "killed",
            Some(_) => "failed",
        };
        self.tally.count(door.name(), verb, how);
    }

    fn found(&mut self, door: &Door, verb: &str, what: &str) {
        self.tally.found(format!("{} {verb} left alone: {what}", door.name()));
    }

    fn add(&mut self, world: &World<'_>, spot: &mut Spot) {
        self.made += 1;
        let pod = world.pod(&format!("s{}-{}", self.number, self.made));
        let strike = self.strike(&spot.door);
        self.count(&spot.door, "ADD", strike);
        let (said, struck) = spot.door.call(world, "ADD", &pod, None, strike);
        match said {
            PluginAnswer::Done(result) => spot.living = Some((pod, result)),
            // A later step detaches it like any other.
            PluginAnswer::Died(_) | PluginAnswer::Error(_) if struck => {
                spot.living = Some((pod, None));
            }
            // On a busy machine the call is repeated, as a runtime does.
            PluginAnswer::Error(error) if is_late(&error) => {
                self.late += 1;
                spot.living = Some((pod, None));
            }
            other => self.found(&spot.door, "ADD", &format!("{} said {other:?}", pod.id)),
        }
    }

    fn del(&mut self, world: &World<'_>, spot: &mut Spot, pod: Pod, result: Option<Value>) {
        // Half of the containers are gone before they are detached.
        if self.chance.once_in(2) {
            pod.end();
        }
        let previous = result.clone().filter(|_| self.chance.once_in(2));
        let strike = self.strike(&spot.door);
        self.count(&spot.door, "DEL", strike);
        let (said, struck) = spot.door.call(world, "DEL", &pod, previous, strike);
        match said {
            PluginAnswer::Done(_) => {
                for line in pod.left() {
                    self.found(&spot.door, "DEL", &format!("in {}: {line}", pod.id));
                }
            }
            PluginAnswer::Died(_) | PluginAnswer::Error(_) if struck => {
                spot.living = Some((pod, result));
            }
            PluginAnswer::Error(error) if is_late(&error) => {
                self.late += 1;
                spot.living = Some((pod, result));
            }
            other => self.found(&spot.door, "DEL", &format!("{} said {other:?}", pod.id)),
        }
    }

    /// Makes this many calls, and then as many as it takes until nothing is attached. Returns their
    /// number.
    fn work(&mut self, world: &World<'_>) {
        for _ in 0..STRETCH {
            let at = self.chance.below(CROWD);
            self.step(world, at);
        }
        while let Some(at) = self.spots.iter().position(|spot| spot.living.is_some()) {
            self.step(world, at);
        }
    }
}

/// Whether the kernel did not answer in time.
fn is_late(error: &Value) -> bool {
    error["code"] == json!(cni::code::TRY_AGAIN_LATER)
        && error["msg"].as_str().is_some_and(|message| message.contains("no reply from the kernel"))
}

/// A service's private memory, in KiB.
fn memory_kib(service: &mut RunningProgram) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", service.child().id()));
    let status = status.expect("the service runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Starts the services, and waits for what they leave while they run.
fn services(lab: &Lab) -> Vec<RunningProgram> {
    let daemon = Path::new(EXECUTABLE).with_file_name("netwrightd");
    assert!(daemon.exists(), "{} is missing: cargo build -p netwright-daemon", daemon.display());
    let bin = lab.dir().join("bin");
    let start = |arguments: &&[&str]| {
        let mut command = lab.command(daemon.to_str().unwrap());
        command.args(*arguments).args(["--path", bin.to_str().unwrap()]);
        // The service logs each call, and everything that is gone when it looks.
        command.stdin(Stdio::null()).stderr(Stdio::null());
        RunningProgram::from(command.spawn().unwrap())
    };
    let started = SERVICES.iter().map(start).collect();
    for service in SERVICES {
        let socket = lab.path(format!("/run/netwright/agent/{}.sock", service[0]));
        testkit::wait_until("the status socket, which stays", || socket.exists());
    }
    let own = lab.path("/run/netwright/plugins");
    testkit::wait_until("the links to the services' plugins, which stay", || {
        let folders = std::fs::read_dir(&own).into_iter().flatten().flatten();
        let links = folders.filter_map(|one| Some(std::fs::read_dir(one.path()).ok()?.count()));
        links.filter(|links| *links == plugins::all().len()).count() == SERVICES.len()
    });
    started
}

#[test]
fn a_host_is_as_before_after_many_calls_and_faults() {
    testkit::require!("root", "ptrace");
    let calls = match feature::available("full") {
        true => share::count(ALL_CALLS, CALLS_OF_A_SHARE),
        false => CALLS,
    };
    let scenario = Scenario::chain();
    let plugin = &scenario.plugins[0];
    let lab = Lab::new("soak");
    let mut workers: Vec<Worker> = (0..WORKERS).map(|one| Worker::new(one, plugin)).collect();
    let mut found = Tally::new();
    let mut memory: Vec<Vec<u64>> = Vec::new();
    let (mut done, mut rounds, began) = (0, 0, Instant::now());
    lab.enter(|| {
        let world = World::enter(&lab);
        let list = json!({ "cniVersion": "1.1.0", "name": NETWORK, "plugins": plugin["plugins"] });
        std::fs::create_dir_all("/etc/cni/net.d").unwrap();
        std::fs::write("/etc/cni/net.d/10-n.conflist", list.to_string()).unwrap();
        // The objects that a network's first container leaves for the next one exist already.
        let first = world.pod("first");
        for door in [Door::of(0, plugin), Door::of(1, plugin)] {
            for verb in ["ADD", "DEL"] {
                let (said, _) = door.call(&world, verb, &first, None, None);
                assert!(said.is_done(), "{said:?}");
            }
        }
        let mut services = services(&lab);
        let before = world.look();
        while done < calls && found.findings() == 0 {
            std::thread::scope(|scope| {
                for worker in &mut workers {
                    scope.spawn(|| lab.enter(|| worker.work(&World::enter(&lab))));
                }
            });
            rounds += 1;
            done += WORKERS * STRETCH;
            for line in world.left(&before) {
                found.found(format!("soak DEL left alone: after {done} calls: {line}"));
            }
            if workers.iter().any(|worker| 0 < worker.tally.findings()) {
                break;
            }
            if done * TOLD / calls > memory.len() {
                memory.push(services.iter_mut().map(memory_kib).collect());
                let seconds = began.elapsed().as_secs();
                eprintln!("after {done} calls, {seconds} s: {:?} KiB", memory.last());
            }
        }
        let gc = Call { valid: Some(Vec::new()), ..world.pod("none").call("GC", plugin) };
        world.done(&gc);
        for line in world.left(&before) {
            found.found(format!("soak DEL left alone: in the end: {line}"));
        }
    });
    let late: usize = workers.iter().map(|worker| worker.late).sum();
    for worker in workers {
        found.absorb(worker.tally);
    }
    eprintln!("MEASURED {late} calls made again, since the kernel did not answer in time");
    assert!(late <= 1 + done / 1000, "{late} of {done} calls had no answer from the kernel");
    let took = began.elapsed().max(Duration::from_millis(1)).as_secs_f64();
    eprintln!(
        "MEASURED {done} calls by {WORKERS} at a time in {took:.0} s, {rounds} times the host was as before"
    );
    for (number, service) in SERVICES.iter().enumerate() {
        let series: Vec<u64> = memory.iter().map(|sample| sample[number]).collect();
        eprintln!("MEASURED memory of netwrightd {} meanwhile, KiB: {series:?}", service[0]);
        let (early, late) = (series.first(), series.iter().max());
        let is_flat = early.zip(late).is_some_and(|(early, late)| late - early < FLAT_KIB);
        assert!(is_flat || 0 < found.findings(), "{}: {series:?}", service[0]);
    }
    found.finish();
}
