//! CHECK: right after ADD, and after each thing that can go wrong.

use kernel::route::{AddressOptions, Change, LinkSet, Route, RouteFilter};
use serde_json::json;

use crate::bench::{Bench, IFNAME, Target, find};
use crate::case::{
    ALL, Case, INTERFACE, LINKS, OrBroken as _, Outcome, cases, expect, not_applicable,
};
use crate::snapshot::Snapshot;
use crate::{delegate, shape};

pub(super) const CASES: &[Case] = cases![
    "check-after-add" Must "2 CHECK" after "add-succeeds" for ALL ["check-right-after-add"]
        "CHECK succeeds right after ADD." => |bench| attached(bench).map(|_| ());
    "check-changes-nothing" Should "2 CHECK" after "check-after-add" for ALL []
        "CHECK leaves machine and container as they were, and prints nothing." => changes_nothing;
    "check-allows-later-plugins" Must "2 CHECK" after "check-after-add" for LINKS ["check-allows-later-changes"]
        "CHECK allows what a later plugin added: an address, a route." => allows_more;
    "check-link-gone" Should "2 CHECK" after "check-after-add" for INTERFACE ["check-result-resources"]
        "CHECK fails when the interface is gone." => link_gone;
    "check-link-down" Should "2 CHECK" after "check-after-add" for INTERFACE ["check-unreachable"]
        "CHECK fails when the interface is down." => link_down;
    "check-address-gone" Should "2 CHECK" after "check-after-add" for INTERFACE ["check-result-resources"]
        "CHECK fails when an address of the result is gone." => address_gone;
    "check-route-gone" Should "2 CHECK" after "check-after-add" for INTERFACE ["check-result-resources"]
        "CHECK fails when a route of the result is gone." => route_gone;
    "check-mac-changed" Should "2 CHECK" after "check-after-add" for INTERFACE ["check-result-resources"]
        "CHECK fails when the interface does not have the result's hardware address." => mac_changed;
    "check-consults-prev-result" Must "2 CHECK" after "check-after-add" for INTERFACE ["check-consults-prev-result"]
        "CHECK fails when `prevResult` lists an address that the interface does not have." => prev_result;
    "check-without-prev-result" Should "reference" after "check-after-add" for INTERFACE ["check-consults-prev-result"]
        "CHECK without `prevResult` fails: there is nothing to compare with." => without_prev_result;
    "check-own-resources" Should "2 CHECK" after "check-after-add" for ALL ["check-other-resources"]
        "CHECK fails when something that the result does not list is gone: rules, shaping, sysctls, reservations." => own_resources;
    "check-after-del" Should "2 CHECK" after "check-after-add" for ALL ["check-result-resources"]
        "CHECK fails when the attachment was deleted." => after_del;
    "check-delegates" Must "4 Delegated plugin execution procedure" after "check-after-add" for INTERFACE ["check-delegates", "delegate-verbs"]
        "CHECK executes the delegate, and fails with its error." => delegates;
];

fn attached(bench: &Bench) -> Outcome<Target> {
    bench.needs_verb("CHECK")?;
    let target = bench.attach(1)?;
    bench.check(&target)?;
    Ok(target)
}

/// Expects CHECK to fail.
fn notices(bench: &Bench, target: &Target) -> Outcome {
    bench.about("CHECK", target).send().refused().map(|_| ())
}

fn changes_nothing(bench: &Bench) -> Outcome {
    let target = attached(bench)?;
    let (machine, inside) = (bench.machine()?, Snapshot::of_netns(&target.container.netns)?);
    let answer = bench.about("CHECK", &target).send();
    answer.succeeded()?;
    let said = crate::answer::shown(&answer.finished.stdout);
    expect(answer.finished.stdout.is_empty(), "an empty standard output", || said)?;
    let mut changes = bench.machine()?.since(&machine);
    changes.extend(Snapshot::of_netns(&target.container.netns)?.since(&inside));
    expect(changes.is_empty(), "CHECK changes nothing", || changes.join("\n"))
}

/// Changes a link of the container.
fn change(bench: &Bench, target: &Target, set: LinkSet) -> Outcome {
    let mut inside = bench.inside(&target.container)?;
    let ifindex = find(&mut inside, name_of(bench))?.index;
    inside.apply_one(&Change::SetLink { ifindex, set }).or_broken("change a link")
}

/// Returns the interface that the plugin configures.
fn name_of(bench: &Bench) -> &'static str {
    if bench.job.plugin == "loopback" { "lo" } else { IFNAME }
}

fn allows_more(bench: &Bench) -> Outcome {
    let target = attached(bench)?;
    let mut inside = bench.inside(&target.container)?;
    let ifindex = find(&mut inside, name_of(bench))?.index;
    if name_of(bench) == "lo" {
        return not_applicable("nothing is added to `lo`");
    }
    let address = "192.0.2.7/24".parse().or_broken("an address")?;
    let options = AddressOptions::default();
    let mut route = Route::new("198.51.100.0/24".parse().or_broken("a prefix")?);
    route.oif = Some(ifindex);
    let more = [Change::AddAddress { ifindex, address, options }, Change::AddRoute(route)];
    inside.apply(&more).or_broken("add an address and a route")?;
    bench.check(&target)
}

fn link_gone(bench: &Bench) -> Outcome {
    let target = attached(bench)?;
    let mut inside = bench.inside(&target.container)?;
    if name_of(bench) == "lo" {
        return not_applicable("`lo` cannot be deleted");
    }
    let ifindex = find(&mut inside, IFNAME)?.index;
    inside.delete_link(ifindex).or_broken("delete a link")?;
    notices(bench, &target)
}

fn link_down(bench: &Bench) -> Outcome {
    let target = attached(bench)?;
    change(bench, &target, LinkSet::default().up(false))?;
    notices(bench, &target)
}

fn has_addresses(target: &Target, bench: &Bench) -> Outcome {
    if shape::addresses(&target.result).is_empty() || name_of(bench) == "lo" {
        return not_applicable("it gives the interface no addresses");
    }
    Ok(())
}

fn address_gone(bench: &Bench) -> Outcome {
    let target = attached(bench)?;
    has_addresses(&target, bench)?;
    let mut inside = bench.inside(&target.container)?;
    let ifindex = find(&mut inside, IFNAME)?.index;
    for text in shape::addresses(&target.result) {
        let address = text.parse().or_broken("read an address")?;
        inside.apply_one(&Change::DelAddress { ifindex, address }).or_broken("take an address")?;
        notices(bench, &target)?;
        let options = AddressOptions { nodad: true, ..AddressOptions::default() };
        inside.apply_one(&Change::AddAddress { ifindex, address, options }).or_broken("give it")?;
    }
    Ok(())
}

fn route_gone(bench: &Bench) -> Outcome {
    let target = attached(bench)?;
    let mut inside = bench.inside(&target.container)?;
    let mut gone = 0;
    for family in [kernel::route::IpFamily::V4, kernel::route::IpFamily::V6] {
        let routes = inside.routes(RouteFilter::main(family)).or_broken("list routes")?;
        for route in routes.into_iter().filter(Route::is_default) {
            inside.apply_one(&Change::DelRoute(route)).or_broken("remove a route")?;
            gone += 1;
        }
    }
    if gone == 0 {
        return not_applicable("it makes no default route");
    }
    notices(bench, &target)
}

fn mac_changed(bench: &Bench) -> Outcome {
    let target = attached(bench)?;
    has_addresses(&target, bench)?;
    if bench.job.plugin == "ipvlan" {
        return not_applicable("the hardware address is the parent's");
    }
    let mac = kernel::MacAddr([2, 0, 0, 0, 0, 99]);
    change(bench, &target, LinkSet { mac: Some(mac), ..LinkSet::default() })?;
    notices(bench, &target)
}

fn prev_result(bench: &Bench) -> Outcome {
    let mut target = attached(bench)?;
    has_addresses(&target, bench)?;
    if let Some(ip) = target.result["ips"].as_array_mut().and_then(|ips| ips.first_mut()) {
        ip["address"] = "10.88.0.200/24".into();
    }
    notices(bench, &target)
}

fn without_prev_result(bench: &Bench) -> Outcome {
    let target = attached(bench)?;
    if name_of(bench) == "lo" {
        return not_applicable("what `lo` must have does not depend on `prevResult`");
    }
    bench.about("CHECK", &target).without("prevResult").send().refused().map(|_| ())
}

fn own_resources(bench: &Bench) -> Outcome {
    let Some(damage) = bench.profile.damage else {
        return not_applicable("the suite knows of nothing that it makes beyond the result");
    };
    let target = attached(bench)?;
    damage(bench, &target)?;
    notices(bench, &target)
}

fn after_del(bench: &Bench) -> Outcome {
    let target = attached(bench)?;
    if bench.job.plugin == "static" {
        return not_applicable("it keeps nothing of an attachment");
    }
    if bench.kind() == crate::Kind::Chained && bench.profile.damage.is_none() {
        return not_applicable("the suite knows of nothing that it makes beyond the result");
    }
    bench.detach(&target)?;
    notices(bench, &target)
}

fn delegates(bench: &Bench) -> Outcome {
    bench.delegates()?;
    let target = attached(bench)?;
    let asked = delegate::calls()?.iter().any(|call| call.verb == "CHECK");
    expect(asked, "the delegate is executed with CHECK", || "it is not".to_owned())?;
    delegate::fail_at("CHECK", &json!({ "code": 142, "msg": "the address is lost" }))?;
    let refusal = bench.about("CHECK", &target).send().refused()?;
    expect(refusal.words().contains("the address is lost"), "the delegate's error", || {
        refusal.words()
    })
}
