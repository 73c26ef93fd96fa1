//! `doctor`: says why a container, or the node, has no network. It changes nothing.

mod bundle;
mod explain;
mod text;
mod watch;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use diagnose::model::{Container, Scene};
use diagnose::{Answers, Diagnosis, Ignore, Look, RootCause};
use doctor::probe::{self as probes, DropCounters};
use doctor::runtime_names::RuntimeNames;
use doctor::{observe, presence};

use super::{Outcome, probe};
use crate::args::{Common, Doctor};
use crate::failure::{EXIT_ENVIRONMENT, EXIT_PERMANENT, Failure};
use crate::net::container::{self, ContainerName};
use crate::net::session::{PluginSource, Session};
use crate::shell::Shell;
use crate::world::World;
use explain::Section;
use text::DoctorReport;
use watch::Watch;

/// The file with findings that the administrator does not want to see: `ID` or `ID=OBJECT`, one per
/// line.
const IGNORED: &str = "/etc/netwright/doctor.ignore";

pub(crate) fn main(args: &Doctor, common: &Common, world: &World, shell: &mut Shell) -> Outcome {
    if let Some(id) = &args.explain {
        let unknown = || Failure::usage(format!("--explain {id:?}: no finding has this ID"));
        shell.print(&Section::of(id).ok_or_else(unknown)?);
        return Ok(ExitCode::SUCCESS);
    }
    let to = args.to.as_deref().map(probe::target).transpose()?;
    let to = to.as_ref();
    if let Some(file) = &args.from {
        let began = Instant::now();
        let (scene, answers) = bundle::read(&world.absolute(file))?;
        let seen = judge(scene, Some(answers), args, to, world, shell, began)?;
        shell.print(&seen.report(args, world));
        return Ok(ExitCode::from(exit_code(&seen.diagnosis, args.strict)));
    }
    let session = Session::open(world, common, shell, PluginSource::WithOwn)
        .or_else(|_| Session::open(world, common, shell, PluginSource::None))?;
    if args.watch {
        return watch_all(&session, args, to, world, shell);
    }
    let mut seen = look(&session, args, to, world, shell)?;
    if let Some(seconds) = args.wait {
        let latest = Instant::now() + Duration::from_secs(seconds.into());
        let mut watch = Watch::begin(&session, IGNORED.as_ref())?;
        while exit_code(&seen.diagnosis, args.strict) != 0 && watch.rest(latest) {
            seen = look(&session, args, to, world, shell)?;
        }
    }
    if let Some(file) = &args.bundle {
        bundle::write(&world.absolute(file), &seen.scene, &seen.answers)?;
        shell.say(format_args!(
            "wrote {}: addresses, routes, rules, names of containers and programs; no secrets and no payloads",
            file.display()
        ));
    }
    shell.print(&seen.report(args, world));
    Ok(ExitCode::from(exit_code(&seen.diagnosis, args.strict)))
}

/// Looks again at each change, and prints what it finds if that differs from before. A signal ends
/// it, and so does a reader that is gone.
fn watch_all(
    session: &Session,
    args: &Doctor,
    to: Option<&(String, u16)>,
    world: &World,
    shell: &mut Shell,
) -> Outcome {
    let mut watch = Watch::begin(session, IGNORED.as_ref())?;
    let mut before = None;
    loop {
        let seen = look(session, args, to, world, shell)?;
        let told = watch::summary(&seen.diagnosis);
        if before.as_ref() != Some(&told) {
            shell.print_next(&seen.report(args, world), before.is_none());
            before = Some(told);
        }
        if shell.unread() || !watch.wait()? {
            return Ok(ExitCode::from(exit_code(&seen.diagnosis, args.strict)));
        }
    }
}

/// What one look has found.
struct LookOutcome {
    scene: Scene,
    answers: Answers,
    diagnosis: Diagnosis,
    only: Option<String>,
    took: Duration,
}

impl LookOutcome {
    fn report(&self, args: &Doctor, world: &World) -> DoctorReport<'_> {
        DoctorReport {
            diagnosis: &self.diagnosis,
            answers: &self.answers,
            scene: &self.scene,
            only: self.only.as_deref(),
            verbose: args.verbose,
            took: self.took,
            plain: !writes_unicode(world),
        }
    }
}

/// Looks at the node.
fn look(
    session: &Session,
    args: &Doctor,
    to: Option<&(String, u16)>,
    world: &World,
    shell: &Shell,
) -> Result<LookOutcome, Failure> {
    let began = Instant::now();
    let waiting = shell.waiting("looking at the node");
    let mut progress = |what: &str| waiting.now(what);
    let name = args.container.as_deref().map(|name| container::resolve(name, world));
    // What names nothing is refused when the container is looked for.
    let only = name.and_then(Result::ok).map(ContainerName::into_choice);
    let scene = observe::read(&session.node(), only.as_ref(), &mut progress);
    drop(waiting);
    judge(scene, None, args, to, world, shell, began)
}

/// Judges a scene with the answers that came with it; of this node's own it sends the probes, if
/// they are wanted.
fn judge(
    mut scene: Scene,
    answers: Option<Answers>,
    args: &Doctor,
    to: Option<&(String, u16)>,
    world: &World,
    shell: &Shell,
    began: Instant,
) -> Result<LookOutcome, Failure> {
    let ignore = ignored(args)?;
    let only = args.container.as_deref().map(|name| find(&scene, name, world)).transpose()?;
    call_as_asked(&mut scene, only.as_deref(), args.container.as_deref());
    let none = Answers::default();
    let container = only.as_deref().and_then(|id| scene.container(id));
    let is_silent = args.no_probe || args.from.is_some();
    let found = to.map(|(host, port)| {
        let address = match is_silent {
            true => host.parse().map_err(|_| "no probe was sent".to_owned()),
            false => probes::address(host, container),
        };
        address.map(|address| SocketAddr::new(address, *port))
    });
    let (tried, unknown) = match found.transpose() {
        Ok(tried) => (tried, None),
        // No address of the name is known.
        Err(reason) => {
            let told = |(host, port): &(String, u16)| {
                diagnose::not_tried(&format!("{host}:{port}"), container, &reason)
            };
            (None, to.map(told))
        }
    };
    let look = Look { scene: &scene, answers: &none, only: only.as_deref(), to: tried };
    let answers = match answers {
        Some(answers) => answers,
        None if args.no_probe => Answers::default(),
        None => {
            let questions = diagnose::questions(look);
            let waiting = shell.waiting(format!("sending {} probes", questions.len()));
            let before = DropCounters::read();
            let answers = probes::ask(&scene, &questions);
            before.note(&DropCounters::read(), &mut scene.host);
            drop(waiting);
            answers
        }
    };
    let look = Look { scene: &scene, answers: &answers, only: only.as_deref(), to: tried };
    let mut diagnosis = diagnose::diagnose(look, &ignore);
    let unknown = unknown.filter(|one| !ignore.iter().any(|ignore| ignore.is_of(one)));
    let alone = |finding| RootCause { finding, explains: Vec::new() };
    diagnosis.causes.extend(unknown.map(alone));
    Ok(LookOutcome { scene, answers, diagnosis, only, took: began.elapsed() })
}

/// 0: nothing is wrong; 1: an error was found, or a warning with `--strict`; 3: no error was found, and
/// something could not be looked at.
fn exit_code(diagnosis: &Diagnosis, strict: bool) -> u8 {
    if 0 < diagnosis.errors() || (strict && 0 < diagnosis.warnings()) {
        EXIT_PERMANENT
    } else if 0 < diagnosis.unknown() {
        EXIT_ENVIRONMENT
    } else {
        0
    }
}

/// Calls a container that has no name but its ID by the name that the user has for it.
fn call_as_asked(scene: &mut Scene, only: Option<&str>, asked: Option<&str>) {
    let (Some(only), Some(asked)) = (only, asked) else { return };
    // The beginning of an ID is no name.
    if only.starts_with(asked) {
        return;
    }
    if let Some(container) = scene.containers.iter_mut().find(|one| one.id == only) {
        container.name.get_or_insert_with(|| asked.to_owned());
    }
}

/// Refuses an ID that no finding has: a misspelt one would leave out nothing.
fn known(ignore: Ignore) -> Result<Ignore, Failure> {
    let mut ids = diagnose::RULES.iter().flat_map(|rule| rule.ids);
    if ids.any(|id| *id == ignore.id) {
        return Ok(ignore);
    }
    let text = format!("--ignore {:?}: no finding has this ID", ignore.id);
    Err(Failure::usage(text).hint("docs/findings.md lists the IDs"))
}

/// Returns the findings not to report: those of the options and of [`IGNORED`]. A line of the file
/// may be of a newer version.
fn ignored(args: &Doctor) -> Result<Vec<Ignore>, Failure> {
    let file = state::read_optional(IGNORED.as_ref())
        .map_err(|error| Failure::of(cni::code::IO_FAILURE, &error))?
        .unwrap_or_default();
    let text = String::from_utf8_lossy(&file).into_owned();
    let lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let given = args.ignore.iter().map(|text| known(Ignore::parse(text)));
    given.chain(lines.map(Ignore::parse).map(Ok)).collect()
}

/// Says whether the terminal takes more than ASCII, as the locale says (`man 7 locale`).
fn writes_unicode(world: &World) -> bool {
    let value = |name: &str| {
        let found = world.environment.iter().find(|(key, _)| key.to_string_lossy() == name);
        found
            .map(|(_, value)| value.to_string_lossy().to_uppercase())
            .filter(|value| !value.is_empty())
    };
    let locale = value("LC_ALL").or_else(|| value("LC_CTYPE")).or_else(|| value("LANG"));
    locale.is_some_and(|locale| locale.contains("UTF-8") || locale.contains("UTF8"))
}

/// Finds the container that a name means: its ID or the beginning of one, its pod, its namespace or
/// a process in it.
fn find(scene: &Scene, name: &str, world: &World) -> Result<String, Failure> {
    let path = container::resolve(name, world)?;
    let same = |netns: &str| {
        let identity = presence::identity;
        netns == path.netns_text()
            || identity(netns).is_some_and(|id| identity(&path.netns_text()) == Some(id))
    };
    let is_named = |container: &&Container| {
        let pod = container.name.as_deref();
        container.id == name
            || pod == Some(name)
            || pod.and_then(|pod| pod.rsplit('/').next()) == Some(name)
            || same(&container.netns)
    };
    let mut found: Vec<&Container> = scene.containers.iter().filter(is_named).collect();
    if found.is_empty() {
        found = scene.containers.iter().filter(|one| one.id.starts_with(name)).collect();
    }
    match found.as_slice() {
        [one] => Ok(one.id.clone()),
        [] => {
            let why = RuntimeNames::read().why_not(name);
            let text =
                why.unwrap_or_else(|| format!("no container {name:?} is attached to a network"));
            Err(Failure::new(cni::code::UNKNOWN_CONTAINER, text)
                .hint("`netwright list` shows what is attached"))
        }
        several => {
            let names: Vec<&str> = several.iter().map(|one| one.called()).collect();
            Err(Failure::usage(format!("{name:?} means several containers: {}", names.join(", "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use diagnose::Finding;

    /// Many sound nodes have things that `doctor` cannot judge.
    #[test]
    fn a_note_is_no_reason_to_fail() {
        let finding = Finding::unknown("filter-unknown", "this node", "it has filters");
        let noted = Diagnosis { notes: vec![finding.clone()], ..Diagnosis::default() };
        assert_eq!(exit_code(&noted, true), 0);
        // `--watch` reports it all the same.
        assert_ne!(watch::summary(&noted), watch::summary(&Diagnosis::default()));
        let causes = vec![RootCause { finding, explains: Vec::new() }];
        let unknown = Diagnosis { causes, ..Diagnosis::default() };
        assert_eq!(exit_code(&unknown, false), EXIT_ENVIRONMENT);
    }

    /// The table of docs/doctor.md.
    #[test]
    fn the_worst_finding_decides_how_it_ends() {
        let of = |all: &[fn() -> Finding]| {
            let cause = |one: &fn() -> Finding| RootCause { finding: one(), explains: Vec::new() };
            let causes = all.iter().map(cause).collect();
            let found = Diagnosis { causes, ..Diagnosis::default() };
            [exit_code(&found, false), exit_code(&found, true)]
        };
        let error: fn() -> Finding = || Finding::error("link-down", "up0", "down");
        let warning: fn() -> Finding = || Finding::warning("attachment-differs", "c1", "differs");
        let unknown: fn() -> Finding = || Finding::unknown("not-seen", "routes", "not read");
        assert_eq!(of(&[]), [0, 0]);
        assert_eq!(of(&[warning]), [0, 1]);
        assert_eq!(of(&[unknown]), [3, 3]);
        assert_eq!(of(&[warning, unknown]), [3, 1]);
        assert_eq!(of(&[error, warning, unknown]), [1, 1]);
    }

    #[test]
    fn a_container_has_several_names() {
        let container = |id: &str, name: &str| Container {
            id: id.to_owned(),
            name: Some(name.to_owned()),
            netns: format!("/run/netns/{id}"),
            ..Container::default()
        };
        let scene = Scene {
            containers: vec![container("4711aa", "shop/web"), container("4712bb", "shop/db")],
            ..Scene::default()
        };
        let world = World { environment: Vec::new(), directory: "/srv".into() };
        for name in ["4711aa", "shop/web", "web", "4711", "/run/netns/4711aa"] {
            assert_eq!(find(&scene, name, &world).unwrap(), "4711aa", "{name}");
        }
        assert!(find(&scene, "471", &world).is_err());
        assert!(find(&scene, "cache", &world).is_err());
    }

    #[test]
    fn a_misspelt_id_is_refused() {
        assert!(known(Ignore::parse("no-carier")).is_err());
        assert!(known(Ignore::parse("no-carrier=up0")).is_ok());
        assert!(known(Ignore::parse("not-judged")).is_ok());
    }

    #[test]
    fn a_container_is_called_as_it_was_asked_for() {
        let container = Container { id: "cnitool-1".to_owned(), ..Container::default() };
        let mut scene = Scene { containers: vec![container], ..Scene::default() };
        call_as_asked(&mut scene, Some("cnitool-1"), Some("cni"));
        assert_eq!(scene.containers[0].called(), "cnitool-1");
        call_as_asked(&mut scene, Some("cnitool-1"), Some("web"));
        assert_eq!(scene.containers[0].called(), "web");
    }

    #[test]
    fn targets_are_read() {
        let (host, port) = probe::target("192.0.2.1:80").unwrap();
        assert_eq!(
            probes::address(&host, None).map(|own| SocketAddr::new(own, port)),
            Ok("192.0.2.1:80".parse().unwrap())
        );
        assert!(probe::target("192.0.2.1").is_err());
    }
}
