//! The work bench of a case: one plugin, on a private machine, with containers and a delegate.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use kernel::netns::{self, Netns};
use kernel::route::{AddressOptions, Change, LinkKind, LinkSet, NewLink, RouteSocket, VethPeer};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::answer::{Answer, shown};
use crate::case::{Kind, OrBroken as _, Outcome, Stop, fail};
use crate::process::Program;
use crate::profile::Profile;
use crate::shape::{self, ResultAddress};
use crate::snapshot::Snapshot;
use crate::{delegate, lab};

/// The network's name in every configuration.
pub(crate) const NETWORK: &str = "conformance";

/// The interface in every container.
pub(crate) const IFNAME: &str = "eth0";

/// A variable without a meaning that a delegating plugin has to pass on.
pub(crate) const MARK: (&str, &str) = ("CONFORMANCE_MARK", "passed on");

/// The default timeout of a call. IPv6's duplicate address detection takes seconds where a plugin
/// waits for it, and a busy machine takes some more.
pub(crate) const CALL_DEADLINE: Duration = Duration::from_secs(30);

/// How much a plugin may print.
const CALL_LIMIT: usize = 4 << 20;

/// How many calls a report of a failure shows.
const CALLS_SHOWN: usize = 6;

/// What a case's process needs to know.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The folder of the plugins.
    pub(crate) bin_dir: PathBuf,
    /// The folders of the files to which its links lead.
    pub(crate) behind: Vec<PathBuf>,
    pub(crate) plugin: String,
    /// The plugin's configuration object, if the user gave one.
    pub(crate) config: Option<Value>,
    /// What kind of plugin the user's configuration shows it to be.
    pub(crate) kind: Option<Kind>,
    pub(crate) case: String,
    /// The `PATH` for plugins.
    pub(crate) path: String,
    /// The timeout of a call.
    pub(crate) call_timeout: Duration,
}

/// The cost of a call.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Cost {
    pub(crate) verb: String,
    pub(crate) micros: u64,
    pub(crate) peak_kib: u64,
}

/// A container: a named namespace.
#[derive(Debug, Clone)]
pub(crate) struct Container {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) netns: Netns,
}

/// One attachment of a container, made or to be made.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) container: Container,
    pub(crate) ifname: String,
    /// Counted from 1; addresses and ports follow from it.
    pub(crate) number: u8,
    /// The `prevResult` of ADD.
    pub(crate) before: Option<Value>,
    /// What ADD returned.
    pub(crate) result: Value,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Bench {
    pub(crate) job: Job,
    pub(crate) profile: Profile,
    versions: OnceCell<Vec<String>>,
    log: RefCell<Vec<String>>,
    costs: RefCell<Vec<Cost>>,
}

impl Bench {
    /// Creates the bench of a job. The calling process already runs on its private machine.
    pub(crate) fn new(job: Job) -> Outcome<Self> {
        delegate::install()?;
        let profile = Profile::of(&job.plugin);
        let (log, costs) = (RefCell::default(), RefCell::default());
        Ok(Bench { job, profile, versions: OnceCell::new(), log, costs })
    }

    /// Returns what the plugin is for.
    pub(crate) fn kind(&self) -> Kind {
        self.job.kind.unwrap_or(self.profile.kind)
    }

    /// Returns the calls so far, for a report.
    pub(crate) fn evidence(&self) -> Vec<String> {
        let log = self.log.borrow();
        log[log.len().saturating_sub(CALLS_SHOWN)..].to_vec()
    }

    pub(crate) fn costs(&self) -> Vec<Cost> {
        self.costs.borrow().clone()
    }

    /// Returns the versions that the plugin reports.
    pub(crate) fn versions(&self) -> Outcome<&[String]> {
        if let Some(known) = self.versions.get() {
            return Ok(known);
        }
        let reply = self.ask("VERSION").send().result()?;
        let list = reply["supportedVersions"].as_array().into_iter().flatten();
        let list = list.filter_map(|version| version.as_str().map(str::to_owned)).collect();
        Ok(self.versions.get_or_init(|| list))
    }

    /// Returns the newest version that both sides know.
    pub(crate) fn version(&self) -> Outcome<String> {
        let own = self.versions()?;
        let newest = shape::VERSIONS.iter().rev().find(|known| own.iter().any(|own| own == *known));
        match newest {
            Some(version) => Ok((*version).to_owned()),
            None => fail("VERSION lists a version of the specification", format!("{own:?}")),
        }
    }

    /// Ends the case when the plugin's newest version does not have a verb.
    pub(crate) fn needs_verb(&self, verb: &str) -> Outcome {
        let version = self.version()?;
        if shape::has_verb(&version, verb) {
            return Ok(());
        }
        let reason = format!("{verb} came after {version}, the newest version it supports");
        Err(Stop::NotApplicable(reason))
    }

    /// Returns the plugin's configuration for the n-th attachment, without `name`, `cniVersion`,
    /// `prevResult` and `runtimeConfig`.
    fn plugin_config(&self, number: u8) -> Value {
        match &self.job.config {
            Some(given) => given.clone(),
            None => (self.profile.config)(number),
        }
    }

    /// Checks that the plugin is configured to ask our delegate for addresses.
    pub(crate) fn delegates(&self) -> Outcome {
        if self.plugin_config(1)["ipam"]["type"] == delegate::NAME {
            return Ok(());
        }
        Err(Stop::NotApplicable("its configuration does not name the suite's delegate".to_owned()))
    }

    /// Prepares what the plugin needs on its machine.
    pub(crate) fn prepare_host(&self) -> Outcome {
        if self.job.config.is_none() && matches!(self.kind(), Kind::Unknown) {
            let reason = "the suite has no configuration for this plugin: give one with --config";
            return Err(Stop::Skipped(reason.to_owned()));
        }
        (self.profile.host)(self)
    }

    /// Creates a namespace.
    pub(crate) fn namespace(&self, name: &str) -> Outcome<Container> {
        let path = Path::new(lab::NETNS).join(name);
        let netns = netns::create_at(&path).or_broken("make a container")?;
        Ok(Container { name: name.to_owned(), path, netns })
    }

    /// Creates the n-th container, ready for the plugin's ADD.
    pub(crate) fn container(&self, number: u8) -> Outcome<Target> {
        let container = self.namespace(&format!("c{number}"))?;
        self.target(container, IFNAME, number)
    }

    /// Describes the n-th attachment, of this container.
    pub(crate) fn target(&self, container: Container, ifname: &str, number: u8) -> Outcome<Target> {
        let mut target = Target {
            container,
            ifname: ifname.to_owned(),
            number,
            before: None,
            result: Value::Null,
        };
        match self.kind() {
            Kind::Chained => {
                target.before = Some(self.make_link(&target)?);
                (self.profile.each)(self, &target)?;
            }
            Kind::Interface => (self.profile.each)(self, &target)?,
            Kind::Ipam | Kind::Unknown => {}
        }
        self.set_reply(&target, &self.version()?)?;
        Ok(target)
    }

    /// Tells the delegate which addresses the target gets.
    pub(crate) fn set_reply(&self, target: &Target, version: &str) -> Outcome {
        let reply = shape::write(version, &[], &given(target.number, None));
        delegate::reply(&target.container.name, &target.ifname, &reply)
    }

    /// Attaches the n-th container, which must succeed.
    pub(crate) fn attach(&self, number: u8) -> Outcome<Target> {
        let target = self.container(number)?;
        self.attach_target(target)
    }

    /// Attaches a container, which must succeed.
    pub(crate) fn attach_target(&self, mut target: Target) -> Outcome<Target> {
        let answer = self.about("ADD", &target).send();
        if let (Some(feature), Ok(refusal)) = (self.profile.feature, answer.refused())
            && refusal.words().to_lowercase().contains("not supported")
        {
            return Err(Stop::Skipped(format!("this machine's kernel has no {feature}")));
        }
        target.result = answer.result()?;
        Ok(target)
    }

    /// Detaches, which must succeed.
    pub(crate) fn detach(&self, target: &Target) -> Outcome {
        self.about("DEL", target).send().succeeded()
    }

    /// Calls CHECK, which must succeed.
    pub(crate) fn check(&self, target: &Target) -> Outcome {
        self.about("CHECK", target).send().succeeded()
    }

    /// Begins a call without a subject.
    pub(crate) fn ask<'b>(&'b self, verb: &str) -> CallDraft<'b> {
        let environment = BTreeMap::from([
            ("CNI_COMMAND".to_owned(), verb.to_owned()),
            ("CNI_PATH".to_owned(), self.cni_path()),
            ("PATH".to_owned(), self.job.path.clone()),
            (MARK.0.to_owned(), MARK.1.to_owned()),
        ]);
        let version = match verb {
            "VERSION" => Some("1.1.0".to_owned()),
            _ => self.version().ok(),
        };
        let mut config = json!({ "name": NETWORK, "type": self.job.plugin });
        config["cniVersion"] = version.unwrap_or_else(|| "1.1.0".to_owned()).into();
        CallDraft {
            bench: self,
            verb: verb.to_owned(),
            environment,
            config,
            stdin: None,
            notes: Vec::new(),
        }
    }

    /// Begins a call with the plugin's own configuration.
    pub(crate) fn configured(&self, verb: &str) -> CallDraft<'_> {
        self.ask(verb).with(&self.plugin_config(1))
    }

    /// Begins a call for an attachment, with everything that a runtime gives.
    pub(crate) fn about(&self, verb: &str, target: &Target) -> CallDraft<'_> {
        let mut ask = self.ask(verb).with(&self.plugin_config(target.number));
        for (key, value) in [
            ("CNI_CONTAINERID", target.container.name.clone()),
            ("CNI_NETNS", target.container.path.display().to_string()),
            ("CNI_IFNAME", target.ifname.clone()),
            ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=conformance".to_owned()),
        ] {
            ask.environment.insert(key.to_owned(), value);
        }
        if let Some(runtime) = (self.profile.runtime)(target.number) {
            ask.config["runtimeConfig"] = runtime;
        }
        let previous = if verb == "ADD" { target.before.as_ref() } else { Some(&target.result) };
        if let Some(previous) = previous.filter(|previous| previous.is_object()) {
            ask.config["prevResult"] = previous.clone();
        }
        ask
    }

    /// Begins GC of the network; the given attachments are valid.
    pub(crate) fn collect(&self, valid: &[&Target]) -> CallDraft<'_> {
        let valid: Vec<Value> = valid
            .iter()
            .map(|target| json!({ "containerID": target.container.name, "ifname": target.ifname }))
            .collect();
        let mut ask = self.configured("GC");
        ask.config["cni.dev/valid-attachments"] = valid.clone().into();
        ask.config["cni.dev/attachments"] = valid.into();
        ask
    }

    /// Returns `CNI_PATH`: the folder of the plugins, and the delegate's.
    pub(crate) fn cni_path(&self) -> String {
        format!("{}:{}", self.job.bin_dir.display(), delegate::FOLDER)
    }

    /// Takes a snapshot of the whole machine.
    pub(crate) fn machine(&self) -> Outcome<Snapshot> {
        Snapshot::of_machine()
    }

    /// Creates a link to a container as an earlier plugin would, and returns the result that
    /// describes it.
    fn make_link(&self, target: &Target) -> Outcome<Value> {
        let host_name = format!("link{}", target.number);
        let version = self.version()?;
        let mut given = given(target.number, Some(1));
        // Each container is on its own network: the host routes between them.
        for one in &mut given {
            (one.address, one.gateway) = routed(target.number, one.address.addr().is_ipv4());
        }
        let mut peer = VethPeer::new(&target.ifname);
        peer.netns = Some(target.container.netns.clone());
        let mut host = RouteSocket::open().or_broken("open netlink")?;
        let made = host
            .create_link(&NewLink::new(&host_name, LinkKind::Veth(peer)))
            .or_broken("make a link")?;
        let mut inside = self.inside(&target.container)?;
        let link = find(&mut inside, &target.ifname)?;
        let up = |ifindex| Change::SetLink { ifindex, set: LinkSet::default().up(true) };
        let options = AddressOptions { nodad: true, ..AddressOptions::default() };
        let lo = find(&mut inside, "lo")?.index;
        inside.apply(&[up(lo), up(link.index)]).or_broken("set a link up")?;
        host.apply_one(&up(made.index)).or_broken("set a link up")?;
        for one in &given {
            let far = IpNet::new(one.gateway, one.address.prefix_len()).or_broken("address")?;
            let add = |ifindex, address| Change::AddAddress { ifindex, address, options };
            host.apply_one(&add(made.index, far)).or_broken("give an address")?;
            inside.apply_one(&add(link.index, one.address)).or_broken("give an address")?;
            let any = if one.gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
            let mut route = kernel::route::Route::new(any.parse().or_broken("default route")?);
            (route.gateway, route.oif) = (Some(one.gateway), Some(link.index));
            inside.apply_one(&Change::AddRoute(route)).or_broken("add a route")?;
        }
        let mac = |mac: Option<kernel::MacAddr>| mac.map(|mac| mac.to_string()).unwrap_or_default();
        let interfaces = [
            json!({ "name": host_name, "mac": mac(made.mac) }),
            json!({ "name": target.ifname, "mac": mac(link.mac), "sandbox": target.container.path }),
        ];
        Ok(shape::write(&version, &interfaces, &given))
    }

    /// Opens netlink in a container.
    pub(crate) fn inside(&self, container: &Container) -> Outcome<RouteSocket> {
        RouteSocket::open_in(&container.netns).or_broken("open netlink in a container")
    }

    /// Removes a container's namespace, as a runtime that is faster than DEL does.
    pub(crate) fn remove_namespace(&self, target: Target) -> Outcome<Target> {
        let Target { container, ifname, number, before, result } = target;
        netns::remove_at(&container.path).or_broken("remove a container")?;
        // The value held the namespace: from here on it holds another one.
        let here = Netns::current().or_broken("open the own namespace")?;
        let container = Container { netns: here, ..container };
        Ok(Target { container, ifname, number, before, result })
    }
}

/// Finds a link that must exist.
pub(crate) fn find(netlink: &mut RouteSocket, name: &str) -> Outcome<kernel::route::Link> {
    match netlink.link_by_name(name).or_broken("look for a link")? {
        Some(link) => Ok(link),
        None => fail(format!("there is a link {name}"), "there is none"),
    }
}

/// Returns the addresses that the n-th attachment gets from our delegate.
pub(crate) fn given(number: u8, interface: Option<usize>) -> Vec<ResultAddress> {
    let v4 = |last| IpAddr::from(Ipv4Addr::new(10, 88, 0, last));
    let v6 = |last| IpAddr::from(Ipv6Addr::new(0xfd88, 0, 0, 0, 0, 0, 0, last));
    let last = number + 1;
    let net = |address, length| IpNet::new(address, length).expect("the lengths are in range");
    vec![
        ResultAddress { address: net(v4(last), 24), gateway: v4(1), interface },
        ResultAddress { address: net(v6(u16::from(last)), 64), gateway: v6(1), interface },
    ]
}

/// Returns address and gateway of the n-th container, which is on its own network.
fn routed(number: u8, v4: bool) -> (IpNet, IpAddr) {
    let host = |last: u8| match v4 {
        true => IpAddr::from(Ipv4Addr::new(10, 89, number, last)),
        false => Ipv6Addr::new(0xfd89, 0, 0, number.into(), 0, 0, 0, last.into()).into(),
    };
    let net = IpNet::new(host(2), if v4 { 24 } else { 64 });
    (net.expect("the lengths are in range"), host(1))
}

/// A call that is being prepared.
#[derive(Debug)]
pub(crate) struct CallDraft<'b> {
    bench: &'b Bench,
    verb: String,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) config: Value,
    stdin: Option<Vec<u8>>,
    notes: Vec<String>,
}

impl CallDraft<'_> {
    /// Adds keys to the configuration.
    #[must_use]
    pub(crate) fn with(mut self, keys: &Value) -> Self {
        for (key, value) in keys.as_object().into_iter().flatten() {
            self.config[key] = value.clone();
        }
        self
    }

    /// Removes a key from the configuration.
    #[must_use]
    pub(crate) fn without(mut self, key: &str) -> Self {
        if let Some(config) = self.config.as_object_mut() {
            config.remove(key);
        }
        self.notes.push(format!("without {key}"));
        self
    }

    /// Sets the version of the configuration.
    #[must_use]
    pub(crate) fn version(self, version: &str) -> Self {
        self.with(&json!({ "cniVersion": version }))
    }

    /// Sets a variable.
    #[must_use]
    pub(crate) fn set(mut self, variable: &str, value: &str) -> Self {
        self.environment.insert(variable.to_owned(), value.to_owned());
        self.notes.push(format!("with {variable}={value}"));
        self
    }

    /// Leaves a variable unset.
    #[must_use]
    pub(crate) fn unset(mut self, variable: &str) -> Self {
        self.environment.remove(variable);
        self.notes.push(format!("without {variable}"));
        self
    }

    /// Sends this in place of the configuration.
    #[must_use]
    pub(crate) fn stdin(mut self, bytes: &[u8]) -> Self {
        self.stdin = Some(bytes.to_vec());
        self
    }

    /// Returns the bytes of the configuration.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.stdin.clone().unwrap_or_else(|| self.config.to_string().into_bytes())
    }

    /// Makes the call one that any thread can send; it is not recorded.
    pub(crate) fn detached(self) -> PreparedCall {
        PreparedCall {
            executable: self.bench.job.bin_dir.join(&self.bench.job.plugin),
            stdin: self.bytes(),
            environment: self
                .environment
                .iter()
                .map(|(key, value)| (key.into(), value.into()))
                .collect(),
            question: [&[self.verb][..], &self.notes].concat().join(" "),
            deadline: self.bench.job.call_timeout,
        }
    }

    /// Calls the plugin.
    pub(crate) fn send(self) -> Answer {
        let bench = self.bench;
        let verb = self.verb.clone();
        let variables = self.environment.iter().filter(|(key, _)| key.starts_with("CNI_"));
        let variables: Vec<_> = variables.map(|(key, value)| format!("{key}='{value}'")).collect();
        let call = self.detached();
        let answer = call.send();
        let finished = &answer.finished;
        bench.log.borrow_mut().push(format!(
            "{} {} <<< '{}' -> exit {:?} in {} ms; standard output: {}; standard error: {}",
            variables.join(" "),
            call.executable.display(),
            shown(&call.stdin),
            finished.code,
            finished.elapsed.as_millis(),
            shown(&finished.stdout),
            shown(&finished.stderr),
        ));
        bench.costs.borrow_mut().push(Cost {
            verb,
            micros: u64::try_from(finished.elapsed.as_micros()).unwrap_or(u64::MAX),
            peak_kib: finished.peak_kib,
        });
        answer
    }
}

/// A call that is ready to be sent.
#[derive(Debug)]
pub(crate) struct PreparedCall {
    executable: PathBuf,
    stdin: Vec<u8>,
    environment: Vec<(OsString, OsString)>,
    question: String,
    deadline: Duration,
}

impl PreparedCall {
    /// Calls the plugin.
    pub(crate) fn send(&self) -> Answer {
        let program = Program {
            executable: &self.executable,
            arguments: &[],
            environment: &self.environment,
            stdin: &self.stdin,
            deadline: self.deadline,
            limit: CALL_LIMIT,
        };
        Answer { finished: program.run(), question: self.question.clone() }
    }
}
