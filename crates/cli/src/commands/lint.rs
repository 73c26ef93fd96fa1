//! `lint`: mistakes in network configurations, found before a container does.
//!
//! An error would make an attachment fail; a warning is allowed, but probably a mistake.

mod chain;
mod keys;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cni::excerpt::{Place, excerpt};
use cni::text::one_line;
use cni::{NetworkList, NetworkName, Version, code};
use cni_runtime::{ConfigFolder, Kind, Outcome as FileOutcome, Refusal, load_file};
use doctor::trust;
use plugins::judge;
use serde::Serialize;

use super::Outcome;
use crate::args::{Common, Lint};
use crate::failure::{EXIT_PERMANENT, Failure};
use crate::net::runtimes::{self, Runtimes};
use crate::net::session::{PluginSource, Session, load_failure};
use crate::shell::{Report, Shell};
use crate::world::World;

/// Returns the excerpt of a file, as far as it can be read.
pub(crate) fn excerpt_of_file(path: &Path, line: usize, column: usize) -> String {
    let bytes = state::read_optional(path).ok().flatten().unwrap_or_default();
    excerpt(&String::from_utf8_lossy(&bytes), Place { line, column })
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Severity {
    Error,
    Warning,
}

/// One mistake.
#[derive(Debug, Serialize)]
struct Finding {
    severity: Severity,
    file: PathBuf,
    #[serde(flatten)]
    place: Place,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    /// The lines of the file around the place, for people to read.
    #[serde(skip)]
    excerpt: String,
}

/// A configuration that is being checked: its text, its origin, and the findings so far.
struct Examination<'a> {
    file: &'a Path,
    text: &'a str,
    findings: &'a mut Vec<Finding>,
}

impl Examination<'_> {
    fn find(&mut self, severity: Severity, place: Place, message: String, hint: Option<String>) {
        self.findings.push(Finding {
            severity,
            file: self.file.to_owned(),
            place,
            message,
            hint,
            excerpt: excerpt(self.text, place),
        });
    }
}

#[derive(Debug, Serialize)]
struct Findings {
    findings: Vec<Finding>,
    /// The files that were checked.
    files: Vec<PathBuf>,
}

impl Findings {
    fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }
}

impl Report for Findings {
    fn text(&self) -> String {
        let mut text = String::new();
        for finding in &self.findings {
            let word = match finding.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
            };
            text.push_str(&format!(
                "{word}: {}\n  --> {}{}\n{}",
                one_line(&finding.message),
                one_line(finding.file.display()),
                finding.place,
                finding.excerpt
            ));
            if let Some(hint) = &finding.hint {
                text.push_str(&format!("  hint: {}\n", one_line(hint)));
            }
            text.push('\n');
        }
        text.push_str(&format!(
            "{} looked at: {}, {}\n",
            counted(self.files.len(), "file"),
            counted(self.count(Severity::Error), "error"),
            counted(self.count(Severity::Warning), "warning"),
        ));
        text
    }
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

pub(crate) fn main(args: &Lint, common: &Common, world: &World, shell: &mut Shell) -> Outcome {
    let session = Session::open(world, common, shell, PluginSource::None)?;
    let path = args.path.as_ref().map_or_else(|| session.conf_dir.clone(), |p| world.absolute(p));
    let mut report = Findings { findings: Vec::new(), files: Vec::new() };
    let world = Surroundings { session: &session, runtimes: &Runtimes::find(world) };
    if path.is_dir() {
        lint_folder(&path, &world, &mut report)?;
    } else if path.exists() {
        lint_file(&path, &world, &mut report);
    } else {
        return Err(Failure::new(
            code::INVALID_CONFIG,
            format!("{} does not exist", path.display()),
        )
        .hint("name a file or a folder, or set NETCONFPATH"));
    }
    shell.print(&report);
    let errors = report.count(Severity::Error) != 0;
    let warnings = report.count(Severity::Warning) != 0;
    Ok(ExitCode::from(if errors || (args.strict && warnings) { EXIT_PERMANENT } else { 0 }))
}

/// What a network is checked against beside its text.
struct Surroundings<'a> {
    session: &'a Session,
    runtimes: &'a Runtimes,
}

fn lint_folder(dir: &Path, world: &Surroundings<'_>, report: &mut Findings) -> Result<(), Failure> {
    let folder = ConfigFolder::scan(dir).map_err(|error| load_failure(&error))?;
    let mut before: Vec<&NetworkList> = Vec::new();
    for considered in folder.considered() {
        if considered.kind != Kind::Other {
            report.files.push(considered.path.clone());
        }
        let text = read(&considered.path);
        let mut examined =
            Examination { file: &considered.path, text: &text, findings: &mut report.findings };
        match &considered.outcome {
            FileOutcome::Refused(refusal) => refused(refusal, &mut examined),
            FileOutcome::Network(list) => {
                lint_list(list, world, &mut examined);
                for clash in
                    before.iter().filter_map(|other| judge::exclude_each_other(list, other))
                {
                    let hint = Some(clash.remedy.to_owned());
                    examined.find(Severity::Warning, Place::default(), clash.text, hint);
                }
                before.push(list);
            }
            FileOutcome::Shadowed { network, by } => examined.find(
                Severity::Warning,
                Place::default(),
                format!("network {network:?} is defined by {} before this file", by.display()),
                Some("runtimes use the first file in the order of names".to_owned()),
            ),
            FileOutcome::DroppedIn { .. } => {
                // The list around it does not matter to it.
                let around = keys::Context {
                    session: world.session,
                    network: "network",
                    cni_version: Version::CURRENT.as_str(),
                };
                keys::lint_object(&text, around, &mut examined);
            }
            _ => {}
        }
    }
    Ok(())
}

fn lint_file(path: &Path, world: &Surroundings<'_>, report: &mut Findings) {
    report.files.push(path.to_owned());
    let text = read(path);
    let mut examined = Examination { file: path, text: &text, findings: &mut report.findings };
    match load_file(path) {
        Ok(list) => lint_list(&list, world, &mut examined),
        Err(refusal) => refused(&refusal, &mut examined),
    }
}

fn read(path: &Path) -> String {
    let bytes = state::read_optional(path).ok().flatten().unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn refused(refusal: &Refusal, examined: &mut Examination<'_>) {
    // A broken file in a drop-in folder is reported on the network that needs it.
    let text = if refusal.path == examined.file { String::new() } else { read(&refusal.path) };
    let text = if text.is_empty() { examined.text } else { &text };
    let mut examined = Examination { file: &refusal.path, text, findings: &mut *examined.findings };
    let place = Place { line: refusal.line, column: refusal.column };
    examined.find(Severity::Error, place, refusal.reason.clone(), None);
}

fn lint_list(list: &NetworkList, world: &Surroundings<'_>, examined: &mut Examination<'_>) {
    let top = keys::Top::of(examined.text);
    let at =
        |key: &str| top.value(key).map(|raw| Place::of(examined.text, raw)).unwrap_or_default();
    let (name, cni_version) = (at("name"), at("cniVersion"));
    if let Err(error) = NetworkName::new(&list.name) {
        examined.find(
            Severity::Error,
            name,
            error.msg,
            Some(
                "letters, digits, `_`, `.` and `-` are allowed, the first a letter or digit"
                    .to_owned(),
            ),
        );
    }
    if list.cni_version.is_empty() {
        examined.find(
            Severity::Warning,
            cni_version,
            "without `cniVersion` the version is 0.1.0, which has no CHECK, GC or STATUS"
                .to_owned(),
            Some(format!("add \"cniVersion\": \"{}\"", Version::CURRENT)),
        );
    } else if Version::parse(&list.cni_version).is_none() {
        let known: Vec<_> = Version::ALL.iter().map(|version| version.as_str()).collect();
        examined.find(
            Severity::Error,
            cni_version,
            format!("no plugin supports version {:?}", list.cni_version),
            Some(format!("the versions are {}", known.join(", "))),
        );
    }
    for line in world.runtimes.too_old_for(list, examined.file) {
        let hint = Some(runtimes::VERSION_HINT.to_owned());
        examined.find(Severity::Warning, cni_version, line, hint);
    }
    for line in trust::warnings(list, &world.session.runtime) {
        let hint = Some(trust::HINT.to_owned());
        examined.find(Severity::Warning, Place::default(), line, hint);
    }
    keys::lint_document(list, world.session, examined);
    chain::lint(list, &top, examined);
}
