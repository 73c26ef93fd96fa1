//! The DEL of a bridge's last container, which removes the bridge; the reference's plugin leaves
//! it.

use testkit::Lab;

use crate::spread::Spread;
use crate::subject::{Bench, CASES, Subject};
use crate::{QUIET, SETTLE};

/// Prints a row as those of the cases are: each container is alone on its bridge.
pub(crate) fn measure(lab: &Lab, subjects: &[Subject; 2], rounds: usize) {
    let benches = subjects.each_ref().map(|subject| Bench::new(lab, subject, &CASES[0]));
    let containers: Vec<_> = (0..rounds * 2).map(|n| lab.container(&format!("last{n}"))).collect();
    std::thread::sleep(QUIET);
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for which in order {
            let (bench, container) = (&benches[which], &containers[round * 2 + which]);
            std::thread::sleep(SETTLE);
            let attached = bench.add(container, 30_000);
            std::thread::sleep(SETTLE);
            times[which].push(bench.again("DEL", container, &attached));
        }
    }
    let [Some(ours), Some(theirs)] = times.map(|times| Spread::of(&times)) else { return };
    let faster = theirs.median / ours.median;
    println!("| bridge, the last container | DEL | {theirs} | {ours} | {faster:.1} |");
}
