//! Runs cases: each in its own process, several at the same time.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::thread::UnshareFlags;
use serde_json::Value;
use thiserror::Error;

use crate::again::RerunCommand;
use crate::bench::{CALL_DEADLINE, Job};
use crate::case::{Case, Kind, Verdict};
use crate::child::Reply;
use crate::process::{Program, ProgramOutput};
use crate::profile::Profile;
use crate::report::{CaseReport, PluginReport, Report};
use crate::schedule::Schedule;
use crate::subjects::{plugin_object, plugins_in};
use crate::{cases, lab};

/// The timeout of a case, in timeouts of a call; after a few calls it is clear that a plugin hangs
/// at every one.
const CASE_DEADLINE_CALLS: u32 = 6;

/// The most bytes that a case's process may answer.
const CASE_LIMIT: usize = 16 << 20;

/// How many cases run at the same time: a case waits for the kernel for half of its time.
const WORKERS_PER_CORE: usize = 2;

/// The most workers: one thread of the kernel takes all namespaces apart.
const MOST_WORKERS: usize = 8;

/// How to start the process of a case: a program that calls [`serve_case`](crate::serve_case).
#[derive(Debug, Clone)]
pub struct Launcher {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

/// What to run.
#[derive(Debug, Clone)]
pub struct Suite {
    launcher: Launcher,
    bin_dir: PathBuf,
    behind: Vec<PathBuf>,
    plugins: Vec<String>,
    cases: Vec<&'static Case>,
    config: Option<Value>,
    path: String,
    workers: usize,
    call_timeout: Duration,
    again: RerunCommand,
}

/// Why the suite cannot be run as requested.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SuiteError {
    /// The folder cannot be read.
    #[error("read the folder of plugins {dir:?}")]
    Folder {
        /// The folder.
        dir: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Nothing in the folder can be executed.
    #[error("there is no plugin in {dir:?}: it holds no executable file")]
    NoPlugins {
        /// The folder.
        dir: PathBuf,
    },
    /// The folder lacks a requested plugin.
    #[error("there is no plugin {plugin:?} in {dir:?}; there is: {}", .there.join(", "))]
    NoSuchPlugin {
        /// The plugin.
        plugin: String,
        /// The folder.
        dir: PathBuf,
        /// What it holds.
        there: Vec<String>,
    },
    /// The case does not exist.
    #[error("there is no case {case:?}; --list names them all")]
    NoSuchCase {
        /// The case.
        case: String,
    },
    /// The configuration is invalid.
    #[error("the configuration {problem}")]
    Config {
        /// What is wrong.
        problem: String,
    },
    /// Creating namespaces needs privileges.
    #[error("the suite creates namespaces: it needs root")]
    NotRoot,
}

impl Suite {
    /// Plans every case for every plugin of a folder (an absolute path). `path` is the `PATH` for
    /// plugins.
    ///
    /// # Errors
    /// [`SuiteError::Folder`], [`SuiteError::NoPlugins`].
    pub fn new(launcher: Launcher, bin_dir: &Path, path: &str) -> Result<Self, SuiteError> {
        let (plugins, behind) = plugins_in(bin_dir)?;
        if plugins.is_empty() {
            return Err(SuiteError::NoPlugins { dir: bin_dir.to_owned() });
        }
        let workers = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let workers = (workers * WORKERS_PER_CORE).min(MOST_WORKERS);
        Ok(Suite {
            launcher,
            bin_dir: bin_dir.to_owned(),
            behind,
            plugins,
            cases: cases::cases().collect(),
            config: None,
            path: path.to_owned(),
            workers,
            call_timeout: CALL_DEADLINE,
            again: RerunCommand::new(),
        })
    }

    /// Runs only these plugins.
    ///
    /// # Errors
    /// [`SuiteError::NoSuchPlugin`].
    pub fn plugins(mut self, plugins: &[String]) -> Result<Self, SuiteError> {
        if let Some(plugin) = plugins.iter().find(|plugin| !self.plugins.contains(plugin)) {
            let (plugin, there) = (plugin.clone(), self.plugins);
            return Err(SuiteError::NoSuchPlugin { plugin, dir: self.bin_dir, there });
        }
        if !plugins.is_empty() {
            self.plugins.retain(|plugin| plugins.contains(plugin));
        }
        Ok(self)
    }

    /// Runs only these cases, without those that they depend on.
    ///
    /// # Errors
    /// [`SuiteError::NoSuchCase`].
    pub fn cases(mut self, ids: &[String]) -> Result<Self, SuiteError> {
        let mut chosen = Vec::new();
        for id in ids {
            let found = cases::find(id);
            chosen.push(found.ok_or_else(|| SuiteError::NoSuchCase { case: id.clone() })?);
        }
        if !chosen.is_empty() {
            self.cases = chosen;
        }
        Ok(self)
    }

    /// Configures plugins as this network list, or single plugin's configuration, does; plugins
    /// that it does not name are not run. `file` is its path, for the command that runs a case
    /// again.
    ///
    /// # Errors
    /// [`SuiteError::Config`].
    pub fn config(mut self, file: &Path, text: &[u8]) -> Result<Self, SuiteError> {
        let wrong = |problem: String| SuiteError::Config { problem };
        let config: Value =
            serde_json::from_slice(text).map_err(|error| wrong(format!("is not JSON: {error}")))?;
        let named = |plugin: &String| plugin_object(&config, plugin).is_some();
        let plugins: Vec<String> =
            self.plugins.iter().filter(|name| named(name)).cloned().collect();
        if plugins.is_empty() {
            let there = self.plugins.join(", ");
            return Err(wrong(format!("names none of the plugins to be tested: {there}")));
        }
        self.plugins = plugins;
        self.config = Some(config);
        self.again.option("--config", &file.display().to_string());
        Ok(self)
    }

    /// Sets how many cases run at the same time.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// Sets the timeout of a call of a plugin: more than ten seconds for a slow machine. A case may
    /// take six times that.
    #[must_use]
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = timeout;
        self.again.option("--call-timeout", &timeout.as_secs().to_string());
        self
    }

    /// Sets how the program that runs the suite is called, for the command that runs a case again;
    /// otherwise `netwright`.
    #[must_use]
    pub fn called_as(mut self, program: &str) -> Self {
        self.again.program(program);
        self
    }

    /// Returns how many cases will be run.
    #[must_use]
    pub fn len(&self) -> usize {
        self.plugins.iter().map(|plugin| self.cases_for(plugin).count()).sum()
    }

    /// Says whether there is nothing to run.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Runs everything, and calls `progress` after each case.
    ///
    /// # Errors
    /// [`SuiteError::NotRoot`].
    pub fn run(&self, progress: &(dyn Fn(&str, &CaseReport) + Sync)) -> Result<Report, SuiteError> {
        if !rustix::process::geteuid().is_root() {
            return Err(SuiteError::NotRoot);
        }
        let cases = self.plugins.iter().map(|plugin| self.cases_for(plugin).collect());
        let schedule = Schedule::new(cases.collect());
        let costs = Mutex::new(vec![Vec::new(); self.plugins.len()]);
        thread::scope(|scope| {
            for _ in 0..self.workers {
                scope.spawn(|| {
                    schedule.work(|job, missing| {
                        let plugin = &self.plugins[job.subject];
                        let (done, cost) = match missing {
                            Some(reason) => {
                                (CaseReport::new(job.case, Verdict::Skipped { reason }), Vec::new())
                            }
                            None => self.run_case(plugin, job.case),
                        };
                        progress(plugin, &done);
                        let mut costs = costs.lock().unwrap_or_else(PoisonError::into_inner);
                        costs[job.subject].extend(cost);
                        done
                    });
                });
            }
        });
        let costs = costs.into_inner().unwrap_or_else(PoisonError::into_inner);
        let plugins = self.plugins.iter().zip(schedule.reports()).zip(costs);
        let plugins = plugins.map(|((plugin, cases), costs)| {
            let mut report = PluginReport::new(plugin, self.kind(plugin));
            report.add_costs(&costs);
            report.cases = cases;
            report
        });
        Ok(Report { bin_dir: self.bin_dir.clone(), plugins: plugins.collect() })
    }

    fn kind(&self, plugin: &str) -> Kind {
        let given = self.config.as_ref().and_then(|config| plugin_object(config, plugin));
        given.map_or_else(|| Profile::of(plugin).kind, |(_, kind)| kind)
    }

    fn cases_for(&self, plugin: &str) -> impl Iterator<Item = &'static Case> {
        let kind = self.kind(plugin);
        self.cases.iter().copied().filter(move |case| case.kinds.contains(&kind))
    }

    fn run_case(&self, plugin: &str, case: &Case) -> (CaseReport, Vec<crate::bench::Cost>) {
        let given = self.config.as_ref().and_then(|config| plugin_object(config, plugin));
        let (config, kind) =
            given.map_or((None, None), |(config, kind)| (Some(config), Some(kind)));
        let job = Job {
            bin_dir: self.bin_dir.clone(),
            behind: self.behind.clone(),
            plugin: plugin.to_owned(),
            config,
            kind,
            case: case.id.to_owned(),
            path: self.path.clone(),
            call_timeout: self.call_timeout,
        };
        let job = serde_json::to_vec(&job).unwrap_or_default();
        let finished = self.in_pid_namespace(&job);
        let reply: Option<Reply> = serde_json::from_slice(&finished.stdout).ok();
        let (verdict, costs, broken) = match reply {
            Some(reply) => (reply.verdict, reply.costs, reply.broken),
            None => (no_reply(&finished), Vec::new(), finished.trouble.is_none()),
        };
        let mut done = CaseReport::new(case, verdict);
        done.millis = u64::try_from(finished.elapsed.as_millis()).unwrap_or(u64::MAX);
        done.broken = broken;
        done.again = self.again.line(&self.bin_dir, plugin, case.id);
        (done, costs)
    }

    /// Runs a case's process as the first of a new PID namespace: when it ends, every process that
    /// a plugin left ends too. The thread that asks for such a namespace can start only that one
    /// process.
    fn in_pid_namespace(&self, job: &[u8]) -> ProgramOutput {
        let run = || {
            if let Err(errno) = lab::unshare(UnshareFlags::NEWPID) {
                let why = format!("make a PID namespace: {errno}");
                let trouble = Some(crate::process::Trouble::NotStarted(why));
                return ProgramOutput { trouble, ..ProgramOutput::default() };
            }
            let program = Program {
                executable: &self.launcher.program,
                arguments: &self.launcher.arguments,
                environment: &[("PATH".into(), (&self.path).into())],
                stdin: job,
                deadline: self.call_timeout.saturating_mul(CASE_DEADLINE_CALLS),
                limit: CASE_LIMIT,
            };
            program.run()
        };
        thread::scope(|scope| scope.spawn(run).join()).unwrap_or_default()
    }
}

fn no_reply(finished: &ProgramOutput) -> Verdict {
    let trouble = finished.trouble.as_ref().map(ToString::to_string);
    let stderr = crate::answer::shown(&finished.stderr);
    let code = finished.code;
    Verdict::Failed {
        expected: "the case ends".to_owned(),
        found: trouble.unwrap_or_else(|| format!("its process ended with {code:?}: {stderr}")),
        evidence: Vec::new(),
    }
}
