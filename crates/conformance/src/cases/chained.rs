//! Chains: what a plugin does with `prevResult`.

use serde_json::Value;

use crate::bench::Bench;
use crate::case::{CHAINED, Case, Outcome, cases, expect};
use crate::shape;

pub(super) const CASES: &[Case] = cases![
    "prev-result-passed-on" Must "5 ADD Success" after "add-succeeds" for CHAINED ["add-handles-prev-result", "result-is-prev-result"]
        "A plugin given `prevResult` prints it, with its own changes." => passed_on;
    "prev-result-wrong-version" Should "reference" after "add-succeeds" for CHAINED []
        "A `prevResult` whose shape cannot be the configuration's version is refused." => wrong_version;
    "prev-result-wrong-type" Must "5 Error" after "add-succeeds" for CHAINED []
        "A `prevResult` that is not a result is refused with an error object." => wrong_type;
    "prev-result-missing" Should "2 ADD" after "add-succeeds" for CHAINED []
        "ADD without `prevResult` ends with a result or with an error object." => missing;
];

fn passed_on(bench: &Bench) -> Outcome {
    let target = bench.attach(1)?;
    let before = target.before.clone().unwrap_or_default();
    for address in shape::addresses(&before) {
        let kept = shape::addresses(&target.result).contains(&address);
        expect(kept, &format!("the result has {address}"), || target.result.to_string())?;
    }
    let names = |result: &Value| -> Vec<String> {
        let list = result["interfaces"].as_array().into_iter().flatten();
        list.filter_map(|one| one["name"].as_str().map(str::to_owned)).collect()
    };
    for name in names(&before) {
        let kept = names(&target.result).contains(&name);
        expect(kept, &format!("the result has interface {name}"), || target.result.to_string())?;
    }
    let routes = |result: &Value| result["routes"].as_array().map_or(0, Vec::len);
    expect(routes(&before) <= routes(&target.result), "the result has the routes", || {
        target.result.to_string()
    })
}

fn wrong_version(bench: &Bench) -> Outcome {
    let target = bench.container(1)?;
    let mut ask = bench.about("ADD", &target);
    ask.config["prevResult"]["cniVersion"] = "0.4.0".into();
    ask.send().refused().map(|_| ())
}

fn wrong_type(bench: &Bench) -> Outcome {
    let target = bench.container(1)?;
    for wrong in [Value::from("words"), Value::from(5), serde_json::json!({ "ips": "none" })] {
        let mut ask = bench.about("ADD", &target);
        ask.config["prevResult"] = wrong;
        ask.send().refused()?;
    }
    Ok(())
}

fn missing(bench: &Bench) -> Outcome {
    let target = bench.container(1)?;
    let answer = bench.about("ADD", &target).without("prevResult").send();
    if answer.finished.code == Some(0) {
        return answer.result().map(|_| ());
    }
    answer.refused().map(|_| ())
}
