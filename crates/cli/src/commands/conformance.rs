//! `conformance`: tests whether plugins keep the specification.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cni::code;
use cni::nearest::nearest;
use conformance::{CaseReport, Launcher, Level, Suite, SuiteError};
use serde::Serialize;

use super::Outcome;
use crate::args::{Conformance, ReportFormat};
use crate::failure::{EXIT_ENVIRONMENT, EXIT_PERMANENT, Failure};
use crate::shell::{Format, Report, Shell};
use crate::world::World;

/// Where plugins find programs (nft, iptables, ip) when our caller has no PATH.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How few cases are done before a user wonders about the time.
const FEW: usize = 200;

/// The largest configuration that is read, in bytes.
const CONFIG_LIMIT: u64 = 1 << 20;

#[derive(Debug, Serialize)]
struct Cases {
    cases: Vec<Line>,
}

#[derive(Debug, Serialize)]
struct Line {
    id: &'static str,
    level: Level,
    section: &'static str,
    text: &'static str,
}

impl Report for Cases {
    fn text(&self) -> String {
        let line = |case: &Line| {
            format!("{:<32} {:<6} §{}: {}\n", case.id, case.level, case.section, case.text)
        };
        self.cases.iter().map(line).collect()
    }
}

pub(crate) fn main(args: &Conformance, world: &World, shell: &mut Shell) -> Outcome {
    if args.serve_case {
        return Ok(conformance::serve_case(&mut io::stdin(), &mut kernel::stdout::Stdout));
    }
    if args.list {
        let line = |case: &conformance::Case| Line {
            id: case.id,
            level: case.level,
            section: case.section,
            text: case.text,
        };
        shell.print(&Cases { cases: conformance::cases().map(line).collect() });
        return Ok(ExitCode::SUCCESS);
    }
    let folders: Vec<PathBuf> = args.bin_dir.iter().map(|dir| world.absolute(dir)).collect();
    let format = args.report.or((shell.format == Format::Json).then_some(ReportFormat::Json));
    if 1 < folders.len() && !matches!(format, None | Some(ReportFormat::Md)) {
        return Err(Failure::usage(
            "several folders can only be reported as a table or as Markdown",
        ));
    }
    let plans: Result<Vec<Suite>, SuiteError> =
        folders.iter().map(|dir| plan(args, world, dir)).collect();
    let plans = plans.map_err(refused)?;
    // Opened before the minutes that the suite takes, not after.
    let file = args.report_file.as_ref().map(|file| world.absolute(file));
    let file = file.map(|file| open(&file).map(|opened| (file, opened))).transpose()?;
    let mut reports = Vec::new();
    for suite in plans {
        reports.push(run(&suite, args.verbose, shell)?);
    }
    let text = match &reports[..] {
        [report] => written(report, format),
        all => beside_each_other(&folders, all),
    };
    let written = match file {
        Some((path, file)) => write(&path, file, &text),
        None => {
            shell.raw(cni::text::lines(text).as_bytes());
            Ok(())
        }
    };
    for report in &reports {
        if format.is_some() || 1 < reports.len() || written.is_err() {
            shell.say(report.table().trim_end());
        }
        shell.say(summary(report));
    }
    written?;
    Ok(if reports.iter().all(conformance::Report::conforms) {
        ExitCode::SUCCESS
    } else if reports.iter().any(conformance::Report::is_broken) {
        ExitCode::from(EXIT_ENVIRONMENT)
    } else {
        ExitCode::from(EXIT_PERMANENT)
    })
}

/// Runs the suite on one folder; prints failures as they come, and the progress after each tenth.
fn run(suite: &Suite, verbose: bool, shell: &mut Shell) -> Result<conformance::Report, Failure> {
    let all = suite.len();
    shell.say(format_args!("{all} case{}", if all == 1 { "" } else { "s" }));
    let say = shell.sink();
    let (done, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let progress = |plugin: &str, case: &CaseReport| {
        if verbose || case.failed() {
            say(&format!("{}\n", case.text(plugin)));
        }
        let failed = failed.fetch_add(usize::from(case.failed()), Ordering::Relaxed)
            + usize::from(case.failed());
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if FEW < all && done < all && done * 10 / all != (done - 1) * 10 / all {
            say(&format!("{done} of {all} cases, {failed} failed\n"));
        }
    };
    suite.run(&progress).map_err(refused)
}

fn written(report: &conformance::Report, format: Option<ReportFormat>) -> String {
    match format {
        None => report.table(),
        Some(ReportFormat::Junit) => report.junit(),
        Some(ReportFormat::Json) => report.json(),
        Some(ReportFormat::Md) => report.markdown(),
        Some(ReportFormat::Html) => report.html(),
    }
}

fn beside_each_other(folders: &[PathBuf], reports: &[conformance::Report]) -> String {
    let names: Vec<String> = folders.iter().map(|dir| dir.display().to_string()).collect();
    let subjects: Vec<_> = names.iter().map(String::as_str).zip(reports).collect();
    conformance::side_by_side(&subjects)
}

fn plan(args: &Conformance, world: &World, dir: &Path) -> Result<Suite, SuiteError> {
    let launcher = Launcher {
        program: "/proc/self/exe".into(),
        arguments: vec!["conformance".into(), "--serve-case".into()],
    };
    let path = world.variable("PATH").unwrap_or_else(|| PATH.to_owned());
    let mut suite = Suite::new(launcher, dir, &path)?.plugins(&args.plugin)?.cases(&args.case)?;
    suite = suite.called_as(&own_name(&path));
    if let Some(file) = &args.config {
        let file = world.absolute(file);
        suite = suite.config(&file, &read(&file)?)?;
    }
    if let Some(seconds) = args.call_timeout {
        suite = suite.call_timeout(Duration::from_secs(seconds.into()));
    }
    Ok(match args.workers {
        Some(workers) => suite.workers(workers),
        None => suite,
    })
}

/// Returns what a user types to run this executable: its name, if the shell finds it by that.
fn own_name(path: &str) -> String {
    const NAME: &str = "netwright";
    let Ok(own) = fs::read_link("/proc/self/exe") else { return NAME.to_owned() };
    let found = path.split(':').map(|dir| Path::new(dir).join(NAME)).find(|file| file.exists());
    match found.and_then(|file| file.canonicalize().ok()) {
        Some(found) if found == own => NAME.to_owned(),
        _ => own.display().to_string(),
    }
}

fn read(file: &Path) -> Result<Vec<u8>, SuiteError> {
    let unread = |problem: String| SuiteError::Config { problem };
    let size = fs::metadata(file).map(|meta| meta.len());
    match size {
        Ok(size) if CONFIG_LIMIT < size => Err(unread(format!("{file:?} is too large"))),
        _ => fs::read(file).map_err(|error| unread(format!("{file:?} cannot be read: {error}"))),
    }
}

/// Opens the report's file; its old content stays until there is a new report.
fn open(path: &Path) -> Result<fs::File, Failure> {
    let opened = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path);
    opened.map_err(|error| unwritten(path, error))
}

fn write(path: &Path, mut file: fs::File, text: &str) -> Result<(), Failure> {
    let regular = file.metadata().is_ok_and(|meta| meta.is_file());
    let emptied = if regular { file.set_len(0) } else { Ok(()) };
    let written = emptied.and_then(|()| file.write_all(text.as_bytes()));
    written.map_err(|error| unwritten(path, error))
}

fn unwritten(path: &Path, error: io::Error) -> Failure {
    Failure::new(code::IO_FAILURE, format!("write {path:?}")).because(error)
}

/// Maps an error: a wrong request is the command line's fault, a problem of the machine is not.
fn refused(error: SuiteError) -> Failure {
    if matches!(error, SuiteError::NotRoot) {
        return Failure::of(code::IO_FAILURE, &error).hint("run it as root");
    }
    let mut failure = Failure::usage(error.to_string());
    let meant = match &error {
        SuiteError::NoSuchCase { case } => nearest(case, conformance::cases().map(|case| case.id)),
        SuiteError::NoSuchPlugin { plugin, there, .. } => {
            nearest(plugin, there.iter().map(String::as_str))
        }
        _ => None,
    };
    if let Some(meant) = meant {
        failure = failure.hint(format!("did you mean {meant:?}?"));
    }
    if let Some(cause) = std::error::Error::source(&error) {
        failure = failure.because(cause);
    }
    failure
}

fn summary(report: &conformance::Report) -> String {
    let part = |level: Level| {
        let tally = report.tally(level);
        format!(
            "{level}: {} passed, {} failed, {} skipped, {} not applicable",
            tally.passed, tally.failed, tally.skipped, tally.not_applicable
        )
    };
    format!("{}\n{}", part(Level::Must), part(Level::Should))
}
