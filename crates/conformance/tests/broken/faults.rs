//! The faults. Each breaks one promise.

#![expect(
    clippy::disallowed_methods,
    reason = "a plugin that leaves processes behind has to start them"
)]

use std::io::Write as _;
use std::process::{Command, ExitCode, Stdio};

use cni::CallEnv;
use cni_invoke::{Output, Request, Status};
use serde_json::{Value, json};

/// The faults' names, for tests; `none` means no fault.
const NAMES: [(&str, Fault); 38] = [
    ("none", Fault::None),
    ("hangs", Fault::Hangs),
    ("prints-garbage", Fault::PrintsGarbage),
    ("prints-100-megabytes", Fault::PrintsMegabytes),
    ("leaves-a-child", Fault::LeavesAChild),
    ("kills-itself", Fault::KillsItself),
    ("hangs-at-add", Fault::HangsAtAdd),
    ("version-without-list", Fault::VersionWithoutList),
    ("version-is-the-newest", Fault::VersionIsTheNewest),
    ("errors-on-stderr", Fault::ErrorsOnStderr),
    ("errors-exit-0", Fault::ErrorsExitZero),
    ("errors-are-999", Fault::ErrorsAre999),
    ("errors-name-nothing", Fault::ErrorsNameNothing),
    ("any-version", Fault::AnyVersion),
    ("any-container-id", Fault::AnyContainerId),
    ("any-ifname", Fault::AnyIfname),
    ("any-network-name", Fault::AnyNetworkName),
    ("result-always-1.1.0", Fault::ResultAlwaysNewest),
    ("result-without-host-links", Fault::ResultWithoutHostLinks),
    ("result-without-sandbox", Fault::ResultWithoutSandbox),
    ("result-with-another-mac", Fault::ResultWithAnotherMac),
    ("del-fails-without-netns", Fault::DelNeedsNetns),
    ("del-fails-without-prev-result", Fault::DelNeedsPrevResult),
    ("del-does-nothing", Fault::DelDoesNothing),
    ("del-fails-the-second-time", Fault::DelFailsTwice),
    ("del-prints", Fault::DelPrints),
    ("check-always-succeeds", Fault::CheckAlwaysSucceeds),
    ("check-always-fails", Fault::CheckAlwaysFails),
    ("gc-does-nothing", Fault::GcDoesNothing),
    ("gc-removes-everything", Fault::GcRemovesEverything),
    ("status-always-ready", Fault::StatusAlwaysReady),
    ("status-never-ready", Fault::StatusNeverReady),
    ("delegate-gets-part", Fault::DelegateGetsPart),
    ("delegate-silent", Fault::DelegateSilent),
    ("delegate-never-deleted", Fault::DelegateNeverDeleted),
    ("leaves-a-file", Fault::LeavesAFile),
    ("leaves-a-sysctl", Fault::LeavesASysctl),
    ("answers-no-pings", Fault::AnswersNoPings),
];

/// One broken promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    Hangs,
    PrintsGarbage,
    PrintsMegabytes,
    LeavesAChild,
    KillsItself,
    HangsAtAdd,
    VersionWithoutList,
    VersionIsTheNewest,
    ErrorsOnStderr,
    ErrorsExitZero,
    ErrorsAre999,
    ErrorsNameNothing,
    AnyVersion,
    AnyContainerId,
    AnyIfname,
    AnyNetworkName,
    ResultAlwaysNewest,
    ResultWithoutHostLinks,
    ResultWithoutSandbox,
    ResultWithAnotherMac,
    DelNeedsNetns,
    DelNeedsPrevResult,
    DelDoesNothing,
    DelFailsTwice,
    DelPrints,
    CheckAlwaysSucceeds,
    CheckAlwaysFails,
    GcDoesNothing,
    GcRemovesEverything,
    StatusAlwaysReady,
    StatusNeverReady,
    DelegateGetsPart,
    DelegateSilent,
    DelegateNeverDeleted,
    LeavesAFile,
    LeavesASysctl,
    AnswersNoPings,
}

impl Fault {
    pub(crate) fn named(name: &str) -> Option<Self> {
        let name = if name.is_empty() { "none" } else { name };
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, fault)| *fault)
    }

    /// Returns the exit code, if the fault replaces the answer.
    pub(crate) fn instead(self, verb: &str) -> Option<ExitCode> {
        match self {
            Fault::Hangs => sleep(),
            Fault::HangsAtAdd if verb == "ADD" => sleep(),
            Fault::PrintsGarbage => {
                let _ =
                    std::io::stdout().write_all(b"\x00\xff panic: runtime error {\"cniVersion\":");
            }
            Fault::PrintsMegabytes => {
                let line = [b'x'; 1 << 16];
                let mut stdout = std::io::stdout();
                // The reader may stop before the end.
                let _ = (0..1600).try_for_each(|_| stdout.write_all(&line));
            }
            Fault::KillsItself => {
                let _ = Command::new("/bin/sh").args(["-c", "kill -KILL $PPID"]).status();
                sleep();
            }
            Fault::LeavesAChild => {
                let _ =
                    Command::new("/bin/sh").args(["-c", "sleep 60"]).stdin(Stdio::null()).spawn();
                return None;
            }
            _ => return None,
        }
        Some(ExitCode::SUCCESS)
    }

    /// Changes the request.
    pub(crate) fn before(self, env: &mut CallEnv, stdin: &mut Vec<u8>) {
        let mut config: Value = serde_json::from_slice(stdin).unwrap_or_default();
        let before = config.clone();
        match self {
            Fault::AnyVersion if config["cniVersion"] == "9.9.9" => {
                config["cniVersion"] = "1.1.0".into();
            }
            Fault::AnyContainerId if !env.container_id.is_empty() => {
                env.container_id.retain(|c| c.is_ascii_alphanumeric() || c == '-');
                env.container_id = env.container_id.trim_start_matches('-').to_owned();
            }
            Fault::AnyIfname if !env.ifname.is_empty() => {
                env.ifname.retain(|c| c.is_ascii_alphanumeric());
                env.ifname.truncate(15);
                if env.ifname.is_empty() {
                    env.ifname.push('x');
                }
            }
            Fault::AnyNetworkName if config["name"].is_string() => {
                config["name"] = "conformance".into();
            }
            Fault::GcRemovesEverything if env.command == "GC" => {
                config["cni.dev/valid-attachments"] = json!([]);
                config["cni.dev/attachments"] = json!([]);
            }
            _ => {}
        }
        if config != before {
            *stdin = config.to_string().into_bytes();
        }
        if env.command == "DEL" {
            self.before_del(env, stdin);
        }
    }

    fn before_del(self, env: &mut CallEnv, stdin: &[u8]) {
        let config: Value = serde_json::from_slice(stdin).unwrap_or_default();
        let marker = format!("/run/deleted-{}-{}", env.container_id, env.ifname);
        let refuses = match self {
            Fault::DelNeedsNetns => !std::path::Path::new(&env.netns).exists(),
            Fault::DelNeedsPrevResult => config.get("prevResult").is_none(),
            Fault::DelFailsTwice => {
                std::path::Path::new(&marker).exists() || std::fs::write(&marker, "x").is_err()
            }
            _ => false,
        };
        if refuses {
            // The plugin refuses an unknown verb with an error object, whatever it stands for.
            env.command = "REFUSED".to_owned();
        }
    }

    /// Whether the fault skips the verb.
    pub(crate) fn skips(self, verb: &str) -> bool {
        matches!(
            (self, verb),
            (Fault::DelDoesNothing, "DEL")
                | (Fault::CheckAlwaysSucceeds, "CHECK")
                | (Fault::GcDoesNothing, "GC")
                | (Fault::StatusAlwaysReady, "STATUS")
        )
    }

    /// Changes the answer; returns the exit code.
    pub(crate) fn after(self, verb: &str, env: &CallEnv, output: &mut Output) -> u8 {
        let failed = output.status != Status::Success;
        let mut answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        match self {
            Fault::VersionWithoutList if verb == "VERSION" => {
                answer.as_object_mut().map(|object| object.remove("supportedVersions"));
            }
            Fault::VersionIsTheNewest if verb == "VERSION" => answer["cniVersion"] = "1.1.0".into(),
            Fault::ErrorsOnStderr if failed => {
                output.stderr = std::mem::take(&mut output.stdout);
                return 1;
            }
            Fault::ErrorsExitZero if failed => return 0,
            Fault::ErrorsAre999 if failed => answer["code"] = 999.into(),
            Fault::ErrorsNameNothing if failed => {
                answer["msg"] = "something is wrong".into();
                answer["details"] = "".into();
            }
            Fault::CheckAlwaysFails if verb == "CHECK" && !failed => return refuse(output),
            Fault::StatusNeverReady if verb == "STATUS" && !failed => return refuse(output),
            Fault::DelPrints if verb == "DEL" && !failed => {
                output.stdout = b"deleted\n".to_vec();
                return 0;
            }
            Fault::LeavesAFile if verb == "ADD" && !failed => {
                let _ = std::fs::write(format!("/run/left-by-{}", env.container_id), "x");
            }
            Fault::LeavesASysctl if verb == "ADD" && !failed => {
                let count = "/proc/sys/net/core/somaxconn";
                let old = std::fs::read_to_string(count).unwrap_or_default();
                let next = old.trim().parse::<u32>().unwrap_or_default() + 1;
                let _ = std::fs::write(count, next.to_string());
            }
            Fault::AnswersNoPings if verb == "ADD" && !failed => {
                let _ = kernel::netns::Netns::open(std::path::Path::new(&env.netns))
                    .map(|netns| kernel::netns::within(&netns, deaf_to_pings));
            }
            _ if verb == "ADD" && !failed => self.tamper(&mut answer),
            _ => {}
        }
        if answer.is_object() {
            output.stdout = answer.to_string().into_bytes();
        }
        u8::from(failed)
    }

    /// Changes a result.
    fn tamper(self, result: &mut Value) {
        if self == Fault::ResultAlwaysNewest {
            result["cniVersion"] = "1.1.0".into();
        }
        let Some(interfaces) = result.get_mut("interfaces").and_then(Value::as_array_mut) else {
            return;
        };
        match self {
            Fault::ResultWithoutHostLinks => {
                interfaces.retain(|one| one["sandbox"].is_string());
                for ip in result["ips"].as_array_mut().into_iter().flatten() {
                    ip["interface"] = 0.into();
                }
            }
            Fault::ResultWithoutSandbox => {
                for one in interfaces.iter_mut().filter_map(Value::as_object_mut) {
                    one.remove("sandbox");
                }
            }
            Fault::ResultWithAnotherMac => {
                for one in interfaces {
                    one["mac"] = "02:11:22:33:44:55".into();
                }
            }
            _ => {}
        }
    }

    /// Changes a delegate's request; returns whether to skip it.
    pub(crate) fn delegate(self, request: &mut Request) -> bool {
        if self == Fault::DelegateGetsPart {
            let config: Value = serde_json::from_slice(&request.stdin).unwrap_or_default();
            let part = json!({ "cniVersion": config["cniVersion"], "name": config["name"],
                               "type": config["type"], "ipam": config["ipam"],
                               "cni.dev/valid-attachments": config["cni.dev/valid-attachments"] });
            request.stdin = part.to_string().into_bytes();
        }
        self == Fault::DelegateNeverDeleted && request.env.command == "DEL"
    }

    /// Changes a delegate's answer.
    pub(crate) fn delegated(self, output: &mut Output) {
        if self == Fault::DelegateSilent {
            output.stderr.clear();
        }
    }
}

fn deaf_to_pings() {
    for file in ["ipv4/icmp_echo_ignore_all", "ipv6/icmp/echo_ignore_all"] {
        let _ = std::fs::write(format!("/proc/sys/net/{file}"), "1");
    }
}

fn refuse(output: &mut Output) -> u8 {
    output.stdout = br#"{"cniVersion":"1.1.0","code":100,"msg":"no"}"#.to_vec();
    1
}

fn sleep() {
    std::thread::sleep(std::time::Duration::from_secs(3600));
}
