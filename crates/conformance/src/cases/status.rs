//! STATUS: whether ADD would be served.

use serde_json::json;

use crate::bench::Bench;
use crate::case::{ALL, Case, INTERFACE, Outcome, cases, expect, not_applicable};
use crate::delegate;

pub(super) const CASES: &[Case] = cases![
    "status-ready" Must "2 STATUS" after "add-succeeds" for ALL ["status-ready"]
        "STATUS succeeds when ADD would be served." => ready;
    "status-changes-nothing" Should "2 STATUS" after "status-ready" for ALL ["status-not-relied-on"]
        "STATUS leaves the machine as it was." => changes_nothing;
    "status-not-ready" Must "2 STATUS" after "status-ready" for ALL ["status-not-ready", "status-dependencies"]
        "STATUS fails when the plugin can know that ADD would not be served." => not_ready;
    "add-after-status-failed" Should "2 STATUS" after "status-ready" for INTERFACE ["status-others-still-called"]
        "Other verbs work after STATUS failed." => others_after;
    "status-delegates" Must "2 STATUS" after "status-ready" for INTERFACE ["status-delegates"]
        "STATUS executes STATUS of the delegate." => delegates;
    "status-delegate-error" Should "2 STATUS" after "status-ready" for INTERFACE ["status-delegate-error", "delegate-errors"]
        "STATUS fails with the error of the delegate." => delegate_error;
];

fn ready(bench: &Bench) -> Outcome {
    bench.needs_verb("STATUS")?;
    if bench.job.plugin == "host-device" && bench.job.config.is_none() {
        crate::profile::veth("dev1", "far1")?;
    }
    bench.configured("STATUS").send().succeeded()
}

fn changes_nothing(bench: &Bench) -> Outcome {
    let before = bench.machine()?;
    ready_again(bench)?;
    let changes = bench.machine()?.since(&before);
    expect(changes.is_empty(), "nothing is changed", || changes.join("\n"))
}

fn ready_again(bench: &Bench) -> Outcome {
    bench.needs_verb("STATUS")?;
    bench.configured("STATUS").send().orderly()
}

fn not_ready(bench: &Bench) -> Outcome {
    bench.needs_verb("STATUS")?;
    let Some(unready) = bench.profile.unready else {
        return not_applicable("the suite does not know how to keep it from serving ADD");
    };
    let keys = unready(bench)?;
    let target = bench.container(1)?;
    // The case is meaningful only if ADD is indeed refused.
    bench.about("ADD", &target).with(&keys).send().failed()?;
    bench.configured("STATUS").with(&keys).send().refused().map(|_| ())
}

fn fail_status() -> Outcome {
    delegate::fail_at("STATUS", &json!({ "code": 50, "msg": "the addresses are used up" }))
}

fn others_after(bench: &Bench) -> Outcome {
    bench.needs_verb("STATUS")?;
    bench.delegates()?;
    fail_status()?;
    bench.configured("STATUS").send().orderly()?;
    let target = bench.attach(1)?;
    bench.detach(&target)
}

fn delegates(bench: &Bench) -> Outcome {
    bench.delegates()?;
    ready(bench)?;
    let asked = delegate::calls()?.iter().any(|call| call.verb == "STATUS");
    expect(asked, "the delegate is executed with STATUS", || "it is not".to_owned())
}

fn delegate_error(bench: &Bench) -> Outcome {
    bench.delegates()?;
    ready(bench)?;
    fail_status()?;
    let refusal = bench.configured("STATUS").send().refused_with(50)?;
    let passed_on = refusal.words().contains("the addresses are used up");
    expect(passed_on, "the delegate's words", || refusal.words())
}
