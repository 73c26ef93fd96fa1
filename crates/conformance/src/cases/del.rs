//! DEL: it may come late, twice, out of order, and with little information.

use crate::bench::{Bench, CallDraft, IFNAME, Target};
use crate::case::{ALL, Case, INTERFACE, LINKS, OrBroken as _, Outcome, cases, expect};
use crate::delegate;
use crate::snapshot::Snapshot;

pub(super) const CASES: &[Case] = cases![
    "del-prints-nothing" Should "reference" after "del-succeeds" for ALL []
        "DEL prints nothing to standard output." => silent;
    "del-removes-the-interface" Should "2 DEL" after "del-succeeds" for INTERFACE ["del-undoes"]
        "DEL removes the interface CNI_IFNAME from the container." => removes_interface;
    "del-restores-the-container" Should "2 DEL" after "del-succeeds" for LINKS ["del-undoes"]
        "After DEL the container is as it was before ADD." => restores_container;
    "del-leaves-nothing" Should "2 DEL" after "del-succeeds" for ALL ["del-undoes"]
        "DEL leaves nothing of the attachment on the machine while others stay attached." => leaves_nothing;
    "del-last-restores-the-machine" Should "2 DEL" after "del-succeeds" for ALL ["del-undoes"]
        "After the last DEL the machine's links, addresses, routes, sysctls and files are as before the first ADD. Only forwarding may stay on." => last_restores;
    "del-twice" Must "2 DEL" after "del-succeeds" for ALL ["del-repeatable", "delete-repeated"]
        "A second DEL, with nothing left to remove, succeeds." => twice;
    "del-without-add" Must "2 DEL" after "del-succeeds" for ALL ["del-repeatable", "del-tolerates-missing"]
        "DEL of what was never added succeeds and changes nothing." => without_add;
    "del-in-any-order" Must "3 Lifecycle & Ordering" after "del-succeeds" for ALL ["plugins-concurrent"]
        "Attachments may be deleted in any order." => any_order;
    "del-netns-not-a-namespace" Should "2 DEL" after "del-succeeds" for ALL ["del-tolerates-missing"]
        "DEL succeeds and cleans up when CNI_NETNS is a plain file, as it is once the namespace is unmounted." => plain_file;
    "del-interface-gone" Should "2 DEL" after "del-succeeds" for LINKS ["del-tolerates-missing"]
        "DEL succeeds and cleans up when the container's interface is gone." => interface_gone;
    "del-with-files-gone" Should "2 DEL" after "del-succeeds" for ALL ["del-tolerates-missing"]
        "DEL succeeds when every file below /run and /var is lost." => files_gone;
    "del-delegates" Must "4 Delegated plugin execution procedure" after "del-succeeds" for INTERFACE ["delegate-verbs"]
        "DEL executes the delegate." => delegates;
    "del-delegates-without-netns" Should "2 DEL" after "del-succeeds" for INTERFACE ["del-delegates-when-netns-is-gone"]
        "DEL executes the delegate when the namespace is gone." => delegates_without_netns;
    "del-without-nothing" Should "2 DEL" after "del-succeeds" for ALL ["del-repeatable"]
        "DEL with everything that a runtime gives cleans up." => |bench| lacking(bench, 0);
    "del-without-netns" Should "2 DEL" after "del-succeeds" for ALL ["del-tolerates-missing", "del-required-environment"]
        "DEL without CNI_NETNS succeeds and cleans up when the namespace is gone." => |bench| lacking(bench, 1);
    "del-without-prev-result" Should "2 DEL" after "del-succeeds" for ALL ["del-tolerates-missing"]
        "DEL without `prevResult` succeeds and cleans up." => |bench| lacking(bench, 2);
    "del-without-netns-prev-result" Should "2 DEL" after "del-succeeds" for ALL ["del-tolerates-missing"]
        "DEL without CNI_NETNS and `prevResult` succeeds and cleans up." => |bench| lacking(bench, 3);
    "del-without-runtime-config" Should "2 DEL" after "del-succeeds" for ALL ["del-tolerates-missing"]
        "DEL without `runtimeConfig` succeeds and cleans up." => |bench| lacking(bench, 4);
    "del-without-netns-runtime-config" Should "2 DEL" after "del-succeeds" for ALL ["del-tolerates-missing"]
        "DEL without CNI_NETNS and `runtimeConfig` succeeds and cleans up." => |bench| lacking(bench, 5);
    "del-without-prev-result-runtime-config" Should "2 DEL" after "del-succeeds" for ALL ["del-tolerates-missing"]
        "DEL without `prevResult` and `runtimeConfig` succeeds and cleans up." => |bench| lacking(bench, 6);
    "del-without-netns-prev-result-runtime-config" Should "2 DEL" after "del-succeeds" for ALL ["del-tolerates-missing"]
        "DEL without CNI_NETNS, `prevResult` and `runtimeConfig` succeeds and cleans up." => |bench| lacking(bench, 7);
    "del-without-args" Should "2 DEL" after "del-succeeds" for ALL ["del-tolerates-missing"]
        "DEL without CNI_ARGS succeeds and cleans up." => |bench| lacking(bench, 8);
    "del-without-netns-args" Should "2 DEL" after "del-succeeds" for ALL ["del-tolerates-missing"]
        "DEL without CNI_NETNS and CNI_ARGS succeeds and cleans up." => |bench| lacking(bench, 9);
    "del-without-prev-result-args" Should "2 DEL" after "del-succeeds" for ALL ["del-tolerates-missing"]
        "DEL without `prevResult` and CNI_ARGS succeeds and cleans up." => |bench| lacking(bench, 10);
    "del-without-netns-prev-result-args" Should "2 DEL" after "del-succeeds" for ALL ["del-tolerates-missing"]
        "DEL without CNI_NETNS, `prevResult` and CNI_ARGS succeeds and cleans up." => |bench| lacking(bench, 11);
    "del-without-runtime-config-args" Should "2 DEL" after "del-succeeds" for ALL ["del-tolerates-missing"]
        "DEL without `runtimeConfig` and CNI_ARGS succeeds and cleans up." => |bench| lacking(bench, 12);
    "del-without-netns-runtime-config-args" Should "2 DEL" after "del-succeeds" for ALL ["del-tolerates-missing"]
        "DEL without CNI_NETNS, `runtimeConfig` and CNI_ARGS succeeds and cleans up." => |bench| lacking(bench, 13);
    "del-without-prev-result-runtime-config-args" Should "2 DEL" after "del-succeeds" for ALL ["del-tolerates-missing"]
        "DEL without `prevResult`, `runtimeConfig` and CNI_ARGS succeeds and cleans up." => |bench| lacking(bench, 14);
    "del-without-everything" Should "2 DEL" after "del-succeeds" for ALL ["del-tolerates-missing"]
        "DEL with nothing but the attachment's name succeeds and cleans up." => |bench| lacking(bench, 15);
];

/// Which parts of a runtime's usual input are missing, as bits.
const NETNS: u8 = 1;
const PREV_RESULT: u8 = 2;
const RUNTIME_CONFIG: u8 = 4;
const ARGS: u8 = 8;

/// Begins DEL of an attachment, with some of a runtime's usual input missing.
fn incomplete<'b>(bench: &'b Bench, target: &Target, missing: u8) -> CallDraft<'b> {
    let mut ask = bench.about("DEL", target);
    if missing & NETNS != 0 {
        ask = ask.unset("CNI_NETNS");
    }
    if missing & PREV_RESULT != 0 {
        ask = ask.without("prevResult");
    }
    if missing & RUNTIME_CONFIG != 0 {
        ask = ask.without("runtimeConfig");
    }
    if missing & ARGS != 0 {
        ask = ask.unset("CNI_ARGS");
    }
    ask
}

/// A second attachment beside a first that stays, and the machine as DEL of the second must leave
/// it.
///
/// The second attachment's own container and link (for a chained plugin) exist before ADD and after
/// DEL.
struct Neighbour {
    target: Target,
    before: Snapshot,
}

fn beside(bench: &Bench) -> Outcome<Neighbour> {
    let _first = bench.attach(2)?;
    // An attachment that comes and goes creates what is made only once, such as the record of the
    // last address.
    let guest = bench.attach(3)?;
    bench.detach(&guest)?;
    let target = bench.container(1)?;
    let before = bench.machine()?;
    let target = bench.attach_target(target)?;
    Ok(Neighbour { target, before })
}

/// Expects the machine to be as it was, except for links that went with their namespace.
fn as_before(bench: &Bench, before: &Snapshot, own_link: bool) -> Outcome {
    let mut changes = bench.machine()?.since(before);
    changes.retain(|line| !line.contains("/last_reserved_ip"));
    if own_link {
        // The suite's own link to a container of a chained plugin: it went with the container.
        changes.retain(|line| {
            !line.contains("link1") && !line.contains("89.1.") && !line.contains("fd89:0:0:1:")
        });
    }
    // The link of a host-device comes back to the machine; its neighbour tables may differ.
    expect(changes.is_empty(), "the machine is as before ADD", || changes.join("\n"))
}

fn lacking(bench: &Bench, missing: u8) -> Outcome {
    let Neighbour { target, before } = beside(bench)?;
    let gone = missing & NETNS != 0;
    let target = if gone { bench.remove_namespace(target)? } else { target };
    if gone {
        settle();
    }
    incomplete(bench, &target, missing).send().succeeded()?;
    let moved = bench.job.plugin == "host-device" && gone;
    if moved {
        // The machine's link went with the namespace: nothing could bring it back.
        return Ok(());
    }
    as_before(bench, &before, gone)
}

/// Waits until the kernel has taken a namespace apart; links on the machine go with their other
/// ends.
fn settle() {
    std::thread::sleep(std::time::Duration::from_millis(100));
}

fn silent(bench: &Bench) -> Outcome {
    let target = bench.attach(1)?;
    let answer = bench.about("DEL", &target).send();
    answer.succeeded()?;
    let said = crate::answer::shown(&answer.finished.stdout);
    expect(answer.finished.stdout.is_empty(), "an empty standard output", || said)
}

fn removes_interface(bench: &Bench) -> Outcome {
    let target = bench.attach(1)?;
    bench.detach(&target)?;
    let mut inside = bench.inside(&target.container)?;
    let gone = inside.link_by_name(IFNAME).or_broken("look for a link")?.is_none();
    expect(gone, "eth0 is gone", || "it is there".to_owned())
}

fn restores_container(bench: &Bench) -> Outcome {
    let target = bench.container(1)?;
    let before = Snapshot::of_netns(&target.container.netns)?;
    let target = bench.attach_target(target)?;
    bench.detach(&target)?;
    let after = Snapshot::of_netns(&target.container.netns)?;
    let mut changes = after.since(&before);
    // Interfaces with IPv6 addresses need IPv6 on `lo` as well. The kernel gives `lo` its address
    // when it comes up, and leaves it there.
    changes.retain(|line| !line.contains("disable_ipv6") && !line.starts_with("+ address lo "));
    expect(changes.is_empty(), "the container is as before ADD", || changes.join("\n"))
}

fn leaves_nothing(bench: &Bench) -> Outcome {
    let Neighbour { target, before } = beside(bench)?;
    bench.detach(&target)?;
    as_before(bench, &before, false)
}

fn last_restores(bench: &Bench) -> Outcome {
    let target = bench.container(1)?;
    let before = bench.machine()?.without_frames();
    let target = bench.attach_target(target)?;
    bench.detach(&target)?;
    let changes = bench.machine()?.without_frames().since(&before);
    expect(changes.is_empty(), "the machine is as before ADD", || changes.join("\n"))
}

fn twice(bench: &Bench) -> Outcome {
    let target = bench.attach(1)?;
    bench.detach(&target)?;
    let before = bench.machine()?;
    bench.detach(&target)?;
    let changes = bench.machine()?.since(&before);
    expect(changes.is_empty(), "the second DEL changes nothing", || changes.join("\n"))
}

fn without_add(bench: &Bench) -> Outcome {
    let _other = bench.attach(2)?;
    let target = bench.container(1)?;
    let before = bench.machine()?;
    bench.about("DEL", &target).send().succeeded()?;
    let changes = bench.machine()?.since(&before);
    expect(changes.is_empty(), "DEL changes nothing", || changes.join("\n"))
}

fn any_order(bench: &Bench) -> Outcome {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let mut targets = Vec::new();
        for number in 1..=3_u8 {
            let turn = u8::try_from(order[0]).unwrap_or_default();
            let container = bench.namespace(&format!("c{number}-{turn}"))?;
            targets.push(bench.attach_target(bench.target(
                container,
                IFNAME,
                number + 3 * turn,
            )?)?);
        }
        for index in order {
            bench.detach(&targets[index])?;
        }
    }
    Ok(())
}

fn plain_file(bench: &Bench) -> Outcome {
    let Neighbour { target, before } = beside(bench)?;
    let target = bench.remove_namespace(target)?;
    settle();
    std::fs::write(&target.container.path, "").or_broken("write a file")?;
    bench.detach(&target)?;
    if bench.job.plugin == "host-device" {
        return Ok(());
    }
    as_before(bench, &before, true)
}

fn interface_gone(bench: &Bench) -> Outcome {
    let Neighbour { target, before } = beside(bench)?;
    let mut inside = bench.inside(&target.container)?;
    let Some(link) = inside.link_by_name(IFNAME).or_broken("look for a link")? else {
        return crate::case::not_applicable("it makes no interface of that name");
    };
    inside.delete_link(link.index).or_broken("delete a link")?;
    bench.detach(&target)?;
    if bench.job.plugin == "host-device" {
        return Ok(());
    }
    as_before(bench, &before, true)
}

fn files_gone(bench: &Bench) -> Outcome {
    let target = bench.attach(1)?;
    for dir in ["/run", "/var/lib"] {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let own = path.starts_with(crate::lab::OWN) || path.starts_with(crate::lab::NETNS);
            if !own {
                // A plugin's folder may be below it, read-only.
                let _ = std::fs::remove_dir_all(&path);
            }
        }
    }
    bench.detach(&target)?;
    if bench.profile.makes_link {
        let mut inside = bench.inside(&target.container)?;
        let gone = inside.link_by_name(IFNAME).or_broken("look for a link")?.is_none();
        return expect(gone, "eth0 is gone", || "it is there".to_owned());
    }
    Ok(())
}

fn asked_delegate(target: &Target) -> Outcome {
    let calls = delegate::calls()?;
    let asked =
        calls.iter().any(|call| call.verb == "DEL" && call.container == target.container.name);
    expect(asked, "the delegate is executed with DEL", || {
        format!("{:?}", calls.iter().map(|call| &call.verb).collect::<Vec<_>>())
    })
}

fn delegates(bench: &Bench) -> Outcome {
    bench.delegates()?;
    let target = bench.attach(1)?;
    bench.detach(&target)?;
    asked_delegate(&target)
}

fn delegates_without_netns(bench: &Bench) -> Outcome {
    bench.delegates()?;
    // Each turn uses a new attachment: after a namespace is gone, the kernel needs some time to
    // remove its links.
    for (number, missing) in (1..).zip([0, NETNS, NETNS | PREV_RESULT]) {
        let target = bench.attach(number)?;
        delegate::calls()?;
        let target = bench.remove_namespace(target)?;
        incomplete(bench, &target, missing).send().succeeded()?;
        asked_delegate(&target)?;
        if bench.job.plugin == "host-device" {
            break;
        }
    }
    Ok(())
}
