//! Many calls at once: how many attachments a second, and how many fail.

use std::sync::Barrier;
use std::time::Instant;

use testkit::{Lab, Place as _};

use crate::subject::{Bench, CHAIN, Subject};

const SIZES: [u16; 2] = [8, 64];

pub(crate) fn measure(lab: &Lab, subjects: &[Subject; 2]) {
    println!(
        "\n| chain of four, at once | verb | Go, a second | failed | ours, a second | failed | times |"
    );
    println!("|---|---|---|---|---|---|---|");
    for size in SIZES {
        let [ours, theirs] = subjects.each_ref().map(|subject| crowd(lab, subject, size));
        for (verb, (ours, theirs)) in ["ADD", "DEL"].iter().zip(ours.iter().zip(&theirs)) {
            println!(
                "| {size} | {verb} | {:.0} | {} | {:.0} | {} | {:.1} |",
                theirs.rate,
                theirs.failed,
                ours.rate,
                ours.failed,
                ours.rate / theirs.rate
            );
        }
    }
}

struct Outcome {
    rate: f64,
    failed: usize,
}

/// ADD and DEL of this many containers at once, each with the chain that a runtime runs for it.
fn crowd(lab: &Lab, subject: &Subject, size: u16) -> [Outcome; 2] {
    let bench = Bench::new(lab, subject, &CHAIN);
    let resident = lab.container("resident");
    let first = bench.add(&resident, 20_000);
    let containers: Vec<_> = (0..size).map(|n| lab.container(&format!("crowd{n}"))).collect();
    let all_at_once = |work: &(dyn Fn(usize) -> bool + Sync)| {
        let barrier = Barrier::new(containers.len() + 1);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..containers.len())
                .map(|n| {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        lab.enter(|| {
                            barrier.wait();
                            work(n)
                        })
                    })
                })
                .collect();
            barrier.wait();
            let started = Instant::now();
            let done = threads.into_iter().map(|thread| thread.join().unwrap_or_default());
            let failed = done.filter(|succeeded| !succeeded).count();
            Outcome { rate: f64::from(size) / started.elapsed().as_secs_f64(), failed }
        })
    };
    let attached: Vec<_> = containers.iter().map(|_| std::sync::Mutex::new(None)).collect();
    let add = all_at_once(&|n| {
        let made = bench.add_here(&containers[n], 30_000 + u16::try_from(n).unwrap_or_default());
        if let Err(error) = &made {
            eprintln!("{error}");
        }
        let succeeded = made.is_ok();
        if let Ok(mut place) = attached[n].lock() {
            *place = made.ok();
        }
        succeeded
    });
    let del = all_at_once(&|n| {
        let made = attached[n].lock().ok().and_then(|mut place| place.take());
        made.is_none_or(|made| bench.again_here("DEL", &containers[n], &made).is_ok())
    });
    bench.again("DEL", &resident, &first);
    [add, del]
}
