//! The subjects and cases of the measurements, and one attachment.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use cni::{CallEnv, Injection, PluginConfig};
use cni_invoke::find;
use serde_json::value::RawValue;
use testkit::{Container, Lab, Place};

use crate::steps;

/// The newest version that Debian's plugins speak.
const CNI_VERSION: &str = "1.0.0";

/// The plugins that the cases use.
pub(crate) const PLUGINS: [&str; 7] =
    ["bridge", "chain", "firewall", "host-local", "portmap", "ptp", "tuning"];

/// A set of plugins to be measured.
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) bin: PathBuf,
    /// Whether it has the plugin `chain`.
    pub(crate) is_ours: bool,
}

/// A network to attach to.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// The second byte of its subnet, too.
    number: u8,
    interface: &'static str,
    masquerade: bool,
    dual: bool,
    /// Whether portmap, firewall and tuning follow, with one port.
    chained: bool,
    /// Whether ours run in one process.
    together: bool,
}

const PLAIN: Case = Case {
    name: "bridge",
    number: 1,
    interface: "bridge",
    masquerade: false,
    dual: false,
    chained: false,
    together: false,
};

pub(crate) const CHAIN: Case =
    Case { name: "chain of four, one port", number: 5, masquerade: true, chained: true, ..PLAIN };

/// The chain in one process.
pub(crate) const TOGETHER: Case =
    Case { name: "the same, ours in one process", number: 6, together: true, ..CHAIN };

pub(crate) const CASES: [Case; 6] = [
    PLAIN,
    Case { name: "bridge, dual stack", number: 2, dual: true, ..PLAIN },
    Case { name: "bridge + masquerade", number: 3, masquerade: true, ..PLAIN },
    Case { name: "ptp + masquerade", number: 4, interface: "ptp", masquerade: true, ..PLAIN },
    CHAIN,
    TOGETHER,
];

/// One of several bridges, for more attachments than a bridge has ports.
pub(crate) fn ports_of(bridge: usize) -> Case {
    Case { number: 10 + u8::try_from(bridge).expect("a few bridges"), ..PLAIN }
}

impl Case {
    /// A number that no other subject and case have.
    fn place(&self, subject: &Subject) -> u16 {
        u16::from(self.number) * 2 + u16::from(subject.is_ours)
    }

    /// The bridge of a case that has one.
    pub(crate) fn bridge(&self, subject: &Subject) -> String {
        format!("b{}", self.place(subject))
    }

    fn interface(&self, subject: &Subject, data: &Path) -> String {
        let third = self.place(subject);
        let v6 = if self.dual {
            format!(r#",[{{"subnet":"fd00:{third}::/64"}}]"#)
        } else {
            String::new()
        };
        let (own, routes) = if self.interface == "bridge" {
            (format!(r#""bridge":"{}","isDefaultGateway":true"#, self.bridge(subject)), "")
        } else {
            (r#""mtu":1500"#.to_owned(), r#"{"dst":"0.0.0.0/0"}"#)
        };
        format!(
            r#"{{"type":"{}",{own},"ipMasq":{},
               "ipam":{{"type":"host-local","dataDir":{data:?},"ranges":[[{{"subnet":"10.{third}.0.0/16"}}]{v6}],
                        "routes":[{routes}]}}}}"#,
            self.interface, self.masquerade
        )
    }

    fn plugins(&self, subject: &Subject, data: &Path) -> Vec<PluginConfig> {
        let mut plugins = vec![self.interface(subject, data)];
        if self.chained {
            plugins.extend(
                [
                    r#"{"type":"portmap","capabilities":{"portMappings":true}}"#,
                    r#"{"type":"firewall"}"#,
                    r#"{"type":"tuning","sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"},"mtu":1400}"#,
                ]
                .map(str::to_owned),
            );
        }
        if self.together && subject.is_ours {
            let inner = plugins.join(",");
            let outer = r#""type":"chain","capabilities":{"portMappings":true}"#;
            plugins = vec![format!(r#"{{{outer},"plugins":[{inner}]}}"#)];
        }
        let parse = |json: &String| PluginConfig::parse(json.as_bytes()).expect("a case is valid");
        plugins.iter().map(parse).collect()
    }
}

/// One subject on one case, ready to attach.
pub(crate) struct Bench<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) subject: &'a Subject,
    network: String,
    plugins: Vec<PluginConfig>,
}

/// An attachment, and how long it took.
pub(crate) struct Attachment {
    pub(crate) took: Duration,
    result: Box<RawValue>,
    port: u16,
}

impl<'a> Bench<'a> {
    pub(crate) fn new(lab: &'a Lab, subject: &'a Subject, case: &Case) -> Self {
        let data = lab.dir().join(subject.name);
        Bench {
            lab,
            subject,
            network: format!("bench-{}-{}", subject.name, case.number),
            plugins: case.plugins(subject, &data),
        }
    }

    /// A call of one plugin, and the files for its standard input and output.
    #[expect(clippy::disallowed_methods, reason = "the reference's plugins are started too")]
    fn prepare(
        &self,
        verb: &str,
        container: &Container,
        plugin: &PluginConfig,
        previous: Option<&RawValue>,
        port: u16,
    ) -> Result<(Command, [PathBuf; 2]), String> {
        let value = format!(r#"[{{"hostPort":{port},"containerPort":80,"protocol":"tcp"}}]"#);
        let value = RawValue::from_string(value).expect("a list of ports is JSON");
        let capabilities = BTreeMap::from([("portMappings".to_owned(), value)]);
        let injection = Injection {
            capability_args: Some(&capabilities),
            prev_result: previous,
            ..Injection::default()
        };
        let env = CallEnv {
            command: verb.to_owned(),
            container_id: container.name().to_owned(),
            netns: container.netns().display().to_string(),
            ifname: "eth0".to_owned(),
            path: self.subject.bin.display().to_string(),
            ..CallEnv::default()
        };
        let bin = std::slice::from_ref(&self.subject.bin);
        let executable = find(&plugin.plugin_type, bin).map_err(|error| error.to_string())?;
        let files = ["in", "out"].map(|kind| {
            self.lab.dir().join(format!("{}-{}.{kind}", self.subject.name, container.name()))
        });
        let request = plugin.request(&self.network, CNI_VERSION, &injection);
        fs::write(&files[0], request).map_err(|error| error.to_string())?;
        let mut command = Command::new(executable);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").envs(env.to_vars());
        command.stdout(File::create(&files[1]).map_err(|error| error.to_string())?);
        Ok((command, files))
    }

    /// Calls one plugin, with files for standard input and output: the time is that of a process
    /// from its start to its end, without the caller's pipes and wake-ups.
    fn call(
        &self,
        verb: &str,
        container: &Container,
        plugin: &PluginConfig,
        previous: Option<&RawValue>,
        port: u16,
    ) -> Result<(Duration, Vec<u8>), String> {
        let told = |error: std::io::Error| error.to_string();
        let (mut command, [input, output]) =
            self.prepare(verb, container, plugin, previous, port)?;
        command.stdin(File::open(&input).map_err(told)?);
        let started = Instant::now();
        let status = command.status().map_err(told)?;
        let took = started.elapsed();
        let said = fs::read(&output).map_err(told)?;
        if status.success() {
            return Ok((took, said));
        }
        let said = String::from_utf8_lossy(&said).into_owned();
        Err(format!("{} {verb} of {}: {said}", self.subject.name, plugin.plugin_type))
    }

    /// Counts the instructions of a verb in user mode, without a previous result.
    pub(crate) fn instructions(&self, verb: &str, container: &Container) -> u64 {
        let count = |plugin| {
            let (mut command, [input, _]) = self.prepare(verb, container, plugin, None, 0)?;
            let request = fs::read(&input).map_err(|error| error.to_string())?;
            Ok(steps::instructions(&mut command, &request))
        };
        let counted: Result<u64, String> = self.lab.enter(|| self.plugins.iter().map(count).sum());
        counted.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs in the lab.
    pub(crate) fn add_here(&self, container: &Container, port: u16) -> Result<Attachment, String> {
        let mut took = Duration::ZERO;
        let mut result: Option<Box<RawValue>> = None;
        for plugin in &self.plugins {
            let (time, stdout) = self.call("ADD", container, plugin, result.as_deref(), port)?;
            took += time;
            result = Some(serde_json::from_slice(&stdout).map_err(|error| error.to_string())?);
        }
        Ok(Attachment { took, result: result.ok_or("a chain is not empty")?, port })
    }

    /// Runs in the lab. Every plugin is called; the first failure counts.
    pub(crate) fn again_here(
        &self,
        verb: &str,
        container: &Container,
        attached: &Attachment,
    ) -> Result<Duration, String> {
        let mut took = Duration::ZERO;
        let mut failed = None;
        let call =
            |plugin| self.call(verb, container, plugin, Some(&attached.result), attached.port);
        let order: Vec<_> = match verb {
            "DEL" => self.plugins.iter().rev().collect(),
            _ => self.plugins.iter().collect(),
        };
        for plugin in order {
            match call(plugin) {
                Ok((time, _)) => took += time,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(took), Err)
    }

    pub(crate) fn add(&self, container: &Container, port: u16) -> Attachment {
        self.lab.enter(|| self.add_here(container, port)).unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn try_again(
        &self,
        verb: &str,
        container: &Container,
        attached: &Attachment,
    ) -> Result<Duration, String> {
        self.lab.enter(|| self.again_here(verb, container, attached))
    }

    pub(crate) fn again(
        &self,
        verb: &str,
        container: &Container,
        attached: &Attachment,
    ) -> Duration {
        self.try_again(verb, container, attached).unwrap_or_else(|error| panic!("{error}"))
    }
}
