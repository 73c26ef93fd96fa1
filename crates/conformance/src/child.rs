//! The process of one case.

use std::io::{Read, Write};
use std::process::ExitCode;

use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use crate::bench::{Bench, Cost, Job};
use crate::case::{Outcome, Stop, Verdict};
use crate::{cases, lab};

/// The answer of a case's process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Reply {
    pub(crate) verdict: Verdict,
    pub(crate) costs: Vec<Cost>,
    /// The suite's own machinery failed: the verdict says nothing about the plugin.
    pub(crate) broken: bool,
}

/// Runs the case that standard input names and writes its result to standard output.
///
/// Only for the process that [`Launcher`](crate::Launcher) starts, which must not have started
/// threads. The process becomes a private machine and does not return. It ends with the suite, even
/// if that is killed, and all processes of its plugin end with it.
pub fn serve_case(stdin: &mut dyn Read, stdout: &mut dyn Write) -> ExitCode {
    // If the kernel refuses that, the timeouts of calls end it.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let reply = match read(stdin) {
        Ok(job) => run(job),
        Err(error) => broken(&error),
    };
    let text = serde_json::to_vec(&reply).unwrap_or_default();
    match stdout.write_all(&text).and_then(|()| stdout.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn read(stdin: &mut dyn Read) -> Result<Job, String> {
    let mut text = Vec::new();
    stdin.read_to_end(&mut text).map_err(|error| error.to_string())?;
    serde_json::from_slice(&text).map_err(|error| error.to_string())
}

fn broken(why: &str) -> Reply {
    let verdict = Verdict::Failed {
        expected: "a laboratory".to_owned(),
        found: why.to_owned(),
        evidence: Vec::new(),
    };
    Reply { verdict, costs: Vec::new(), broken: true }
}

fn run(job: Job) -> Reply {
    let mut kept = vec![job.bin_dir.clone()];
    kept.extend(job.behind.iter().cloned());
    if let Err(error) = lab::enter(&kept) {
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        return broken(&format!("{error}: {}", cause.unwrap_or_default()));
    }
    let Some(case) = cases::find(&job.case) else {
        return broken(&format!("there is no case {}", job.case));
    };
    let bench = match Bench::new(job) {
        Ok(bench) => bench,
        Err(stop) => return broken(&format!("{stop:?}")),
    };
    let outcome = asked(&bench, case);
    let broken = matches!(outcome, Err(Stop::Broken(_)));
    let verdict = match outcome {
        Ok(()) => Verdict::Passed,
        Err(Stop::Skipped(reason)) => Verdict::Skipped { reason },
        Err(Stop::NotApplicable(reason)) => Verdict::NotApplicable { reason },
        Err(Stop::Failed { expected, found }) => {
            Verdict::Failed { expected, found, evidence: bench.evidence() }
        }
        Err(Stop::Broken(why)) => Verdict::Failed {
            expected: "the private machine works".to_owned(),
            found: why,
            evidence: bench.evidence(),
        },
    };
    Reply { verdict, costs: bench.costs(), broken }
}

fn asked(bench: &Bench, case: &crate::Case) -> Outcome {
    // What applies to every plugin is tested without a network.
    if !case.kinds.contains(&crate::Kind::Unknown) {
        bench.prepare_host()?;
    }
    (case.run)(bench)
}
