//! The checks that every call passes before a plugin sees it, and the form of every answer.
//!
//! GC without a list of valid attachments warns, succeeds and collects nothing: a runtime that
//! knows nothing may send none, and one without containers sends an empty list. If an entry of the
//! list is incomplete, GC refuses the list with code 7.

use std::cell::OnceCell;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;

use cni::{
    AttachmentKey, CallEnv, Command, CommonConfig, ContainerId, Error, GcAttachment, IfName,
    NetworkName, RepairReport, Version, code, version,
};
use cni_invoke::{Output, Status};
use kernel::netns::Netns;
use serde::Serialize;

use crate::{Call, Context, Outcome, Plugin};

/// The largest configuration that is accepted. Real ones are a few kilobytes, and a list of valid
/// attachments is a few megabytes on the largest node; endless input must not exhaust the node's
/// memory.
const STDIN_LIMIT: u64 = 16 << 20;

/// How much VERSION reads at most. Callers send a version, some a whole configuration.
const VERSION_LIMIT: usize = 64 << 10;

/// Answers one call of a plugin: the checks, the plugin's method, the answer's form.
///
/// The order decides which of several errors is reported. It is the reference library's, with one
/// exception: the namespace guard runs before ADD and DEL, not after them. If the environment is
/// already wrong, standard input is not read. VERSION reads it to the end of one object, to learn
/// the version for the answer, and works without input: a process whose caller may leave standard
/// input open must end it by itself.
///
/// 1. No verb at all: a line about the plugin on standard error, success. VERSION: the versions,
///    success.
/// 2. Environment: a malformed ID or interface name, then all missing variables at once (code 4).
/// 3. Standard input (code 5), JSON (6), the network's name (7), the verb (4).
/// 4. Whether the configuration's version has the verb (1 or 6), whether the plugin supports it
///    (1), and only then the keys that every plugin has (6): we do not judge what a later version
///    means by them.
/// 5. ADD: the container's namespace is not the plugin's own (8). If it is, DEL works without a
///    namespace: the path's process is gone, and another process of the host has its number.
/// 6. GC: a list of valid attachments with an incomplete entry is refused (7); without a list GC
///    collects nothing.
///
/// A panic of the plugin becomes code 999 if the profile unwinds; if it aborts, `main` sets a hook.
pub fn respond(
    plugin: &dyn Plugin,
    env: &CallEnv,
    stdin: &mut dyn Read,
    context: &Context<'_>,
) -> Output {
    let stderr = Mutex::new(Vec::new());
    let mut answer_version = None;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        run(plugin, env, stdin, context, &stderr, &mut answer_version)
    }))
    .unwrap_or_else(|_| {
        Err(Error::new(code::INTERNAL, format!("plugin {} has a bug: it panicked", plugin.name()))
            .with_details("please report it with the lines on standard error"))
    });
    let stderr = stderr.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    match outcome {
        Ok(stdout) => Output { stdout, stderr, status: Status::Success },
        Err(error) => {
            let mut error = with_remedy(error);
            if error.cni_version.is_none() {
                error.cni_version = answer_version;
            }
            Output { stdout: error.to_json(), stderr, status: Status::Exit(1) }
        }
    }
}

/// Adds what to do about the system's answer, if that is the cause: an administrator who reads the
/// runtime's log sees nothing else.
fn with_remedy(error: Error) -> Error {
    let told = format!("{}; {}", error.msg, error.details);
    match kernel::remedy::of(&told) {
        // Whether a plugin's file can be run depends on its mode, not on the caller.
        _ if error.code == crate::codes::DELEGATE => error,
        Some(remedy) if !told.contains(remedy) => error.with_details(remedy),
        _ => error,
    }
}

fn run(
    plugin: &dyn Plugin,
    env: &CallEnv,
    stdin: &mut dyn Read,
    context: &Context<'_>,
    stderr: &Mutex<Vec<u8>>,
    answer_version: &mut Option<String>,
) -> Result<Vec<u8>, Error> {
    if env.command.is_empty() {
        *stderr.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
            about(plugin, context).into_bytes();
        return Ok(Vec::new());
    }
    let command = Command::parse(&env.command);
    if command == Some(Command::Version) {
        return Ok(version_reply(plugin, stdin));
    }
    check_environment(command, env)?;

    let document = read_stdin(stdin)?;
    let network = network_name(&document)?;
    let Some(command) = command else {
        return Err(Error::new(
            code::INVALID_ENVIRONMENT,
            format!("unknown CNI_COMMAND: {}", env.command),
        ));
    };
    let config_version = config_version(&document)?;
    *answer_version = Version::parse(&config_version).map(|version| version.to_string());
    let version = check_version(plugin, command, &config_version)?;
    let config: CommonConfig = cni::json::from_slice(&document).map_err(undecodable)?;
    let ifname = match command {
        Command::Add | Command::Del | Command::Check => Some(IfName::new(&env.ifname)?),
        Command::Gc | Command::Status | Command::Version => None,
    };
    let attached_as = config.attached_as.as_deref().filter(|_| command == Command::Check);
    let attachment = match &ifname {
        Some(ifname) => Some(AttachmentKey {
            network: network.clone(),
            container_id: ContainerId::new(&env.container_id)?,
            ifname: attached_as.map_or_else(|| Ok(ifname.clone()), IfName::new)?,
        }),
        None => None,
    };
    let netns = match command {
        Command::Add | Command::Del => container_netns(env),
        _ => None,
    };
    let guarded = netns.as_ref().map_or(Ok(()), |netns| guard_netns(env, netns));
    let without;
    let (netns, env) = match guarded {
        Ok(()) => (netns, env),
        // Marks and records lead to what a plugin created; nothing in this namespace is the
        // container's.
        Err(_) if command == Command::Del => {
            without = CallEnv { netns: String::new(), ..env.clone() };
            (None, &without)
        }
        Err(error) => return Err(error),
    };
    let _held = netns.as_ref().map(kernel::netns::hold);
    let trace = env.trace.iter().find(|(name, _)| name == "TRACEPARENT").map(|(_, value)| value);
    let roots = context.roots.for_one_call();
    let context = &Context { roots: &roots, ..*context };
    let span = tracing::info_span!(
        "call",
        plugin = plugin.name(),
        cmd = %command,
        network = %network,
        container_id = env.container_id,
        ifname = env.ifname,
        netns = env.netns,
        traceparent = trace,
    );
    let _within = span.enter();
    let call = Call {
        plugin: plugin.name(),
        command,
        env,
        config,
        document: &document,
        version,
        network,
        attachment,
        ifname,
        netns,
        is_another: OnceCell::new(),
        context,
        stderr,
    };
    let answer = dispatch(plugin, &call);
    match &answer {
        // A repairing caller checks often, and reports the result itself.
        Ok(_) if call.config.repair.is_some() => tracing::debug!("done"),
        Err(error) if call.config.repair.is_some() => {
            tracing::debug!(code = error.code, err = %error, "not as it was made");
        }
        Ok(_) => tracing::info!("done"),
        Err(error) => tracing::error!(code = error.code, err = %error, "failed"),
    }
    answer
}

fn dispatch(plugin: &dyn Plugin, call: &Call<'_>) -> Result<Vec<u8>, Error> {
    match call.command {
        Command::Add => {
            let result = plugin.add(call)?;
            result.write_indented(call.version).map_err(|error| {
                // The version cannot express the result, so what was created must be removed.
                match plugin.del(call) {
                    Ok(()) => error,
                    Err(undo) => error.with_left(format!("undoing it failed too: {undo}")),
                }
            })
        }
        // A plugin's ADD that another attachment of the key stands in the way of has made nothing,
        // and nothing of that one is undone.
        Command::Del if call.is_undo() && call.leads_to_another() => Ok(Vec::new()),
        Command::Del => {
            call.refuse_if_back()?;
            plugin.del(call)?;
            refuse_unread(call).map(|()| Vec::new())
        }
        Command::Check if call.config.repair == Some(true) => repair(plugin, call),
        Command::Check => plugin.check(call).map(|()| Vec::new()),
        Command::Gc if call.names_valid_attachments() => {
            refuse_half_names(call)?;
            plugin.gc(call)?;
            state::Index::new(call.roots()).sweep();
            refuse_unread(call).map(|()| Vec::new())
        }
        Command::Gc => {
            call.warn("nothing was collected: the runtime did not say which attachments are valid");
            Ok(Vec::new())
        }
        Command::Status => {
            plugin.validate(call)?;
            plugin.fits_host(call).map_err(as_unavailable)?;
            plugin.status(call).map(|()| Vec::new())
        }
        Command::Version => Ok(version_reply(plugin, &mut std::io::empty())),
    }
}

/// Turns what ADD would refuse because of the host into STATUS's answer that the plugin is not
/// available.
fn as_unavailable(error: Error) -> Error {
    Error { code: code::PLUGIN_NOT_AVAILABLE, ..error }
}

/// Shows a plugin a configuration outside of any verb, as a call without a container: for
/// [`Plugin::validate`] and [`Plugin::fits_host`].
///
/// # Errors
/// Those of the checks that every call passes: the network's name, the version, the keys that every
/// plugin has.
pub fn examine<T>(
    plugin: &dyn Plugin,
    document: &[u8],
    env: &CallEnv,
    context: &Context<'_>,
    ask: impl FnOnce(&Call<'_>) -> T,
) -> Result<T, Error> {
    let network = network_name(document)?;
    let version = check_version(plugin, Command::Version, &config_version(document)?)?;
    let config: CommonConfig = cni::json::from_slice(document).map_err(undecodable)?;
    let stderr = Mutex::default();
    let call = Call {
        plugin: plugin.name(),
        // The verb that concerns no container and changes nothing.
        command: Command::Status,
        env,
        config,
        document,
        version,
        network,
        attachment: None,
        ifname: None,
        netns: None,
        is_another: OnceCell::new(),
        context,
        stderr: &stderr,
    };
    Ok(ask(&call))
}

/// Refuses to report that everything is removed if a record that may name more could not be read.
fn refuse_unread(call: &Call<'_>) -> Result<(), Error> {
    match call.context.roots.unread() {
        None => Ok(()),
        Some(damaged) => {
            let path = damaged.path.display();
            Err(Error::new(crate::codes::STATE, format!("read {path}: {}", damaged.reason)).with_details(
                "everything found without it is removed; it may name more, which another call finds once it can be read",
            ))
        }
    }
}

/// Repairs, then checks: the check decides. The answer, or the details of the error, list what was
/// restored.
fn repair(plugin: &dyn Plugin, call: &Call<'_>) -> Result<Vec<u8>, Error> {
    let Outcome { repaired, checked } = plugin.repair_and_check(call);
    match (repaired, checked) {
        (Ok(lines), Ok(())) => Ok(RepairReport { lines }.to_json()),
        (Err(failed), Ok(())) => {
            // The check passed in spite of it.
            call.warn(format_args!("could not put back everything: {failed}"));
            Ok(RepairReport::default().to_json())
        }
        (Ok(lines), Err(drift)) if lines.is_empty() => Err(drift),
        (Ok(lines), Err(drift)) => {
            Err(drift.with_details(format!("put back: {}", lines.join(", "))))
        }
        (Err(failed), Err(drift)) if failed.msg == drift.msg => Err(failed),
        (Err(failed), Err(drift)) => {
            Err(drift.with_details(format!("could not put it back: {failed}")))
        }
    }
}

/// Refuses a list with an incomplete attachment: its author meant to protect one that GC would
/// collect.
fn refuse_half_names(call: &Call<'_>) -> Result<(), Error> {
    let by_halves =
        |valid: &&GcAttachment| valid.container_id.is_empty() || valid.ifname.is_empty();
    match call.valid_attachments().iter().find(by_halves) {
        None => Ok(()),
        Some(valid) => Err(Error::new(
            code::INVALID_CONFIG,
            "a valid attachment lacks its containerID or ifname: nothing was collected",
        )
        .with_details(format!(
            "containerID {:?}, ifname {:?} in cni.dev/valid-attachments",
            valid.container_id, valid.ifname
        ))),
    }
}

fn about(plugin: &dyn Plugin, context: &Context<'_>) -> String {
    let versions: Vec<_> = plugin.versions().iter().map(|version| version.as_str()).collect();
    format!(
        "CNI {} plugin {}\nCNI protocol versions supported: {}\n",
        plugin.name(),
        context.build,
        versions.join(", ")
    )
}

/// Answers VERSION. CNI 1.1.0 §5 "Version": `cniVersion` is the value on input. If that is missing
/// or is not a version, it is the newest, as the reference's always is.
fn version_reply(plugin: &dyn Plugin, stdin: &mut dyn Read) -> Vec<u8> {
    #[derive(Serialize)]
    struct Reply<'v> {
        #[serde(rename = "cniVersion")]
        cni_version: &'v str,
        #[serde(rename = "supportedVersions")]
        supported_versions: &'static [Version],
    }
    let asked = config_version(&one_object(stdin)).ok();
    let asked = asked.filter(|text| !text.is_empty() && version::triple(text).is_ok());
    let cni_version = asked.as_deref().unwrap_or(Version::CURRENT.as_str());
    let reply = Reply { cni_version, supported_versions: plugin.versions() };
    let mut text = serde_json::to_vec(&reply).expect("versions serialise to JSON");
    text.push(b'\n');
    text
}

/// Reads until an object has ended, without waiting for what follows it; an error ends it too.
fn one_object(stdin: &mut dyn Read) -> Vec<u8> {
    let (mut document, mut chunk) = (Vec::new(), [0; 512]);
    while document.len() < VERSION_LIMIT {
        match stdin.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => document.extend_from_slice(&chunk[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
        if document.trim_ascii_end().ends_with(b"}") && config_version(&document).is_ok() {
            break;
        }
    }
    document
}

/// Checks the variables that a verb requires. Malformed values are reported before missing ones.
fn check_environment(command: Option<Command>, env: &CallEnv) -> Result<(), Error> {
    use Command::{Add, Check, Del, Gc, Status};
    let about_container = matches!(command, Some(Add | Del | Check));
    let mut missing = Vec::new();
    if about_container {
        if env.container_id.is_empty() {
            missing.push("CNI_CONTAINERID");
        } else {
            ContainerId::new(&env.container_id)?;
        }
        if env.netns.is_empty() {
            if command != Some(Del) {
                missing.push("CNI_NETNS");
            }
        } else {
            refuse_replaced("CNI_NETNS", &env.netns)?;
        }
        if env.ifname.is_empty() {
            missing.push("CNI_IFNAME");
        } else {
            IfName::new(&env.ifname)?;
            refuse_replaced("CNI_IFNAME", &env.ifname)?;
        }
    }
    if env.path.is_empty() && matches!(command, Some(Add | Del | Check | Gc | Status)) {
        missing.push("CNI_PATH");
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::new(
        code::INVALID_ENVIRONMENT,
        format!("required env variables [{}] missing", missing.join(",")),
    ))
}

/// Refuses a value that was not UTF-8 and now contains replacement characters: it would be another
/// path, which DEL would consider a namespace that is gone, or another interface.
fn refuse_replaced(variable: &str, value: &str) -> Result<(), Error> {
    if !value.contains(char::REPLACEMENT_CHARACTER) {
        return Ok(());
    }
    Err(Error::new(code::INVALID_ENVIRONMENT, format!("{variable} is not UTF-8"))
        .with_details(format!("it was read as {value}")))
}

fn read_stdin(stdin: &mut dyn Read) -> Result<Vec<u8>, Error> {
    let failed = |reason: &dyn std::fmt::Display| {
        Error::new(code::IO_FAILURE, format!("error reading from stdin: {reason}"))
    };
    let mut document = Vec::new();
    let read = stdin.take(STDIN_LIMIT + 1).read_to_end(&mut document);
    read.map_err(|error| failed(&error))?;
    if u64::try_from(document.len()).is_ok_and(|length| length <= STDIN_LIMIT) {
        return Ok(document);
    }
    Err(failed(&format_args!("more than {STDIN_LIMIT} bytes")))
}

fn undecodable(error: cni::json::JsonError) -> Error {
    Error::new(code::DECODE_FAILURE, format!("error unmarshall network config: {error}"))
}

fn network_name(document: &[u8]) -> Result<NetworkName, Error> {
    #[derive(serde::Deserialize, Default)]
    #[serde(default)]
    struct OnlyName {
        name: String,
    }
    let OnlyName { name } = cni::json::from_slice(document).map_err(undecodable)?;
    NetworkName::new(&name)
}

fn config_version(document: &[u8]) -> Result<String, Error> {
    #[derive(serde::Deserialize, Default)]
    #[serde(default)]
    struct OnlyVersion {
        #[serde(rename = "cniVersion")]
        cni_version: String,
    }
    let read = cni::json::from_slice(document).map_err(|error| {
        let text = format!("decoding version from network config: {error}");
        Error::new(code::DECODE_FAILURE, text)
    });
    read.map(|OnlyVersion { cni_version }| cni_version)
}

fn check_version(
    plugin: &dyn Plugin,
    command: Command,
    config_version: &str,
) -> Result<Version, Error> {
    let unparsable =
        |error: version::InvalidVersion| Error::new(code::DECODE_FAILURE, error.to_string());
    let first = command.since();
    // The reference asks this of the younger verbs alone.
    if Version::V0_2_0 < first {
        let asked = version::triple(config_version).map_err(unparsable)?;
        let refuse = |who: &str| {
            Error::new(
                code::INCOMPATIBLE_VERSION,
                format!("{who} version does not allow {command}"),
            )
        };
        if asked < version::triple(first.as_str()).map_err(unparsable)? {
            return Err(refuse("config"));
        }
        let newest = plugin.versions().last().copied().unwrap_or(Version::V0_1_0);
        if version::triple(newest.as_str()).map_err(unparsable)? < asked {
            return Err(refuse("plugin"));
        }
    }
    // DEL needs nothing but the key: a runtime undoes an ADD that this plugin refused for its
    // version by a DEL of the list, and stops at the first plugin that fails.
    let speaks = |version: &Version| command == Command::Del || plugin.versions().contains(version);
    Version::parse(config_version).filter(speaks).ok_or_else(|| {
        let supported: Vec<_> =
            plugin.versions().iter().map(|version| format!("\"{version}\"")).collect();
        let asked = if config_version.is_empty() { "0.1.0" } else { config_version };
        Error::new(code::INCOMPATIBLE_VERSION, "incompatible CNI versions").with_details(format!(
            "config is \"{asked}\", plugin supports [{}]",
            supported.join(" ")
        ))
    })
}

/// Opens the container's namespace, once for the whole call. The verb handles a path that cannot be
/// opened.
fn container_netns(env: &CallEnv) -> Option<Netns> {
    if env.netns.is_empty() || env.overrides_netns() {
        return None;
    }
    Netns::open(Path::new(&env.netns)).ok()
}

/// Refuses to work on the plugin's own namespace.
fn guard_netns(env: &CallEnv, container: &Netns) -> Result<(), Error> {
    let own =
        Netns::current_id().map_err(|error| Error::from_chain(code::INVALID_NETNS, &error))?;
    if container.id() != own {
        return Ok(());
    }
    Err(Error::new(
        code::INVALID_NETNS,
        "plugin's netns and netns from CNI_NETNS should not be the same",
    )
    .with_details(format!(
        "{} is the namespace the plugin runs in; nothing was changed",
        env.netns
    )))
}
