//! Decides which case runs when: as many at the same time as there are workers, none before the
//! case that it depends on.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::case::{Case, Verdict};
use crate::report::CaseReport;

/// Jobs that are waiting, and jobs that are done, of several subjects, which are identified by
/// number.
#[derive(Debug)]
pub(crate) struct Schedule {
    state: Mutex<State>,
    /// A job is done: others that wait for it may start.
    done: Condvar,
}

#[derive(Debug)]
struct State {
    waiting: VecDeque<Job>,
    /// The result of each case, in order for each subject; none for a case that is not done.
    results: Vec<Vec<(&'static Case, Option<CaseReport>)>>,
}

/// One case of one subject.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job {
    pub(crate) subject: usize,
    pub(crate) case: &'static Case,
    place: usize,
}

impl Schedule {
    /// Plans the cases of each subject, in order.
    pub(crate) fn new(subjects: Vec<Vec<&'static Case>>) -> Self {
        let jobs = subjects.iter().enumerate().flat_map(|(subject, cases)| {
            let cases = cases.iter().enumerate();
            cases.map(move |(place, case)| Job { subject, case, place })
        });
        let waiting = jobs.collect();
        let of = |cases: Vec<&'static Case>| cases.into_iter().map(|case| (case, None)).collect();
        let results = subjects.into_iter().map(of).collect();
        Schedule { state: Mutex::new(State { waiting, results }), done: Condvar::new() }
    }

    /// Works until nothing is left: `run` runs a case, or gets the reason why it cannot run when
    /// the case that it depends on did not pass.
    pub(crate) fn work(&self, run: impl Fn(Job, Option<String>) -> CaseReport) {
        while let Some((job, missing)) = self.next() {
            let report = run(job, missing);
            self.lock().results[job.subject][job.place].1 = Some(report);
            self.done.notify_all();
        }
    }

    /// Returns every subject's reports, in the order of their cases.
    pub(crate) fn reports(self) -> Vec<Vec<CaseReport>> {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let of = |cases: Vec<(_, Option<CaseReport>)>| {
            cases.into_iter().filter_map(|(_, report)| report).collect()
        };
        state.results.into_iter().map(of).collect()
    }

    /// Returns the next case that can start, with the reason if it cannot be tested.
    fn next(&self) -> Option<(Job, Option<String>)> {
        let mut state = self.lock();
        while !state.waiting.is_empty() {
            let ready = state.waiting.iter().position(|job| state.is_ready(*job));
            if let Some(job) = ready.and_then(|at| state.waiting.remove(at)) {
                return Some((job, state.missing(job)));
            }
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the case that a case depends on, if that one is in the schedule at all.
    fn before(&self, job: Job) -> Option<&Option<CaseReport>> {
        let id = job.case.after?;
        let mut all = self.results[job.subject].iter();
        all.find(|(case, _)| case.id == id).map(|(_, report)| report)
    }

    fn is_ready(&self, job: Job) -> bool {
        self.before(job).is_none_or(Option::is_some)
    }

    fn missing(&self, job: Job) -> Option<String> {
        match &self.before(job)?.as_ref()?.verdict {
            Verdict::Passed => None,
            Verdict::Skipped { reason } | Verdict::NotApplicable { reason } => Some(reason.clone()),
            Verdict::Failed { .. } => {
                Some(format!("it depends on {}, which failed", job.case.after.unwrap_or_default()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::Schedule;
    use crate::case::Verdict;
    use crate::report::CaseReport;

    fn failed() -> Verdict {
        Verdict::Failed { expected: String::new(), found: String::new(), evidence: Vec::new() }
    }

    #[test]
    fn none_is_run_before_the_case_it_stands_on_and_none_is_lost() {
        let all: Vec<_> = crate::cases().collect();
        let schedule = Schedule::new(vec![all.clone(), all.clone()]);
        let seen = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    schedule.work(|job, missing| {
                        assert_eq!(missing, None);
                        let before = seen.lock().unwrap();
                        if let Some(after) = job.case.after {
                            assert!(before.contains(&(job.subject, after)), "{}", job.case.id);
                        }
                        drop(before);
                        std::thread::yield_now();
                        seen.lock().unwrap().push((job.subject, job.case.id));
                        CaseReport::new(job.case, Verdict::Passed)
                    });
                });
            }
        });
        for reports in schedule.reports() {
            let ids: Vec<_> = reports.iter().map(|report| report.id).collect();
            assert_eq!(ids, all.iter().map(|case| case.id).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_stands_on_a_failed_case_is_skipped_and_one_alone_is_run() {
        let chosen = ["version-answers", "add-succeeds", "del-succeeds"];
        let chosen: Vec<_> = chosen.iter().filter_map(|id| crate::find(id)).collect();
        let schedule = Schedule::new(vec![chosen.clone(), chosen[1..].to_vec()]);
        schedule.work(|job, missing| {
            let verdict = missing.map(|reason| Verdict::Skipped { reason });
            let verdict = verdict.or_else(|| (job.place == 0).then(failed));
            CaseReport::new(job.case, verdict.unwrap_or(Verdict::Passed))
        });
        for reports in schedule.reports() {
            let (first, rest) = reports.split_first().unwrap();
            assert!(first.failed());
            for report in rest {
                let Verdict::Skipped { reason } = &report.verdict else { panic!("{report:?}") };
                assert_eq!(reason, &format!("it depends on {}, which failed", first.id));
            }
        }
    }
}
