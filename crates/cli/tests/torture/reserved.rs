//! When an address or an attachment stays. These tests check the order of the engine's steps
//! (`plugins::engine`), which shows only if something fails, or another call comes, at a certain
//! moment.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Value, json};
use testkit::fault::{Blow, Moment, failures, name};
use testkit::{Lab, Place as _, Tally};

use crate::world::{Call, PluginAnswer, World};

/// How many moments are tried of the many that are alike.
const SOME: usize = 16;

/// The file that reserves the pool's address.
const RESERVED: &str = "/var/lib/cni/networks/n/10.1.0.2";

fn bridge(ipam: &Value) -> Value {
    json!({ "type": "bridge", "bridge": "br0", "ipam": ipam })
}

/// A bridge to which the host routes, with a pool of one address. With more, host-local would give
/// out all others before it gives this one again.
fn routed() -> Value {
    let range = json!({
        "subnet": "10.1.0.0/24", "rangeStart": "10.1.0.2", "rangeEnd": "10.1.0.2",
    });
    let mut plugin = bridge(&json!({ "type": "host-local", "ranges": [[range]] }));
    plugin["isGateway"] = json!(true);
    plugin
}

/// Returns the moments of these calls, without those of programs that the plugin starts.
fn own(moments: &[Moment], calls: &[&str]) -> Vec<Moment> {
    let started = moments.iter().filter(|one| name(one.call) == "execve").map(|one| one.task);
    let first = started.min().unwrap_or(usize::MAX);
    let own = moments.iter().filter(|one| one.task < first);
    own.filter(|one| calls.contains(&name(one.call).as_str())).copied().collect()
}

/// Returns at most [`SOME`] of all, spread evenly.
fn some(all: Vec<Moment>) -> Vec<Moment> {
    let step = all.len().div_ceil(SOME).max(1);
    all.into_iter().step_by(step).collect()
}

/// Makes a call whose system call at this moment fails.
fn failing(world: &World<'_>, call: &Call<'_>, at: Moment) -> PluginAnswer {
    let ended = world.follow(call, &mut |moment| match failures(moment.call).first() {
        Some(errno) if moment.is(&at) => Blow::Fail(*errno),
        _ => Blow::Spare,
    });
    PluginAnswer::of(&ended, call.verb)
}

/// ADD fails because the host itself has the address, and is about to remove the link that it made.
#[test]
fn a_failed_add_that_cannot_remove_its_link_keeps_the_address() {
    testkit::require!("root", "ptrace");
    let plugin = routed();
    let lab = Lab::new("reserved-add");
    let tally = lab.enter(|| {
        let world = World::enter(&lab);
        let mut tally = Tally::new();
        world.sh("ip link add p0 type veth peer name p1 && ip link set p0 addrgenmode none up && \
             ip addr add 10.1.0.2/32 dev p0");
        let pod = world.pod("c1");
        let (add, del) = (pod.call("ADD", &plugin), pod.call("DEL", &plugin));
        // The objects that a network's first container leaves for the next one exist already.
        world.call(&add);
        world.done(&del);
        let refused = world.follow(&add, &mut |_| Blow::Spare);
        assert!(matches!(PluginAnswer::of(&refused, "ADD"), PluginAnswer::Error(_)), "{refused:?}");
        world.done(&del);
        let before = world.look();
        let mut kept = 0;
        for at in own(&refused.moments, &["socket", "sendto"]) {
            tally.count("bridge", "ADD", "failed");
            let said = failing(&world, &add, at);
            let text = match &said {
                PluginAnswer::Error(error) => error.to_string(),
                other => format!("it ended with {other:?}"),
            };
            let is_reserved = Path::new(RESERVED).exists();
            let mut wrong = Vec::new();
            if !matches!(said, PluginAnswer::Error(_)) {
                wrong.push("it is no error".to_owned());
            } else if text.contains("could not remove what was made") {
                kept += 1;
                if !is_reserved {
                    wrong.push("the link is left, and its address is free".to_owned());
                }
            } else if !text.contains("could not") {
                wrong.extend(is_reserved.then(|| "the address is still reserved".to_owned()));
            }
            world.done(&del);
            wrong.extend(world.left(&before));
            wrong.extend(pod.left());
            if !wrong.is_empty() {
                let wrong = wrong.join("\n  ");
                tally.found(format!("bridge ADD failed: refused, at {at}:\n  {wrong}\n  {text}"));
                break;
            }
        }
        if kept == 0 {
            tally.found("bridge ADD failed: refused, and no fault kept the link".to_owned());
        }
        tally
    });
    tally.finish();
}

/// Stands in for the plugin `dhcp`: it gives an address, and writes down which verbs it gets.
fn lease(bin: &Path, verbs: &Path) {
    let script = format!(
        "#!/bin/sh\ncat >/dev/null\necho $CNI_COMMAND >>{}\n[ $CNI_COMMAND != ADD ] || \
         echo '{{\"cniVersion\":\"1.1.0\",\"ips\":[{{\"address\":\"10.1.0.2/24\"}}]}}'\n",
        verbs.display()
    );
    // The file is written elsewhere and then moved, because the kernel executes no file that is
    // still open for writing.
    let scratch = bin.join(".dhcp");
    fs::write(&scratch, script).unwrap();
    fs::set_permissions(&scratch, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(scratch, bin.join("dhcp")).unwrap();
}

/// The words of a DEL that could not enter the namespace.
const NOT_ENTERED: [&str; 2] =
    ["open the container's namespace", "take the addresses from the link"];

/// DEL first removes the address from the link, and only then asks the IPAM plugin to release it.
/// It can do neither if it cannot enter the namespace.
#[test]
fn a_del_with_dhcp_that_cannot_enter_the_namespace_releases_nothing() {
    testkit::require!("root", "ptrace");
    let plugin = bridge(&json!({ "type": "dhcp" }));
    let lab = Lab::new("reserved-del");
    let verbs = lab.dir().join("verbs");
    let tally = lab.enter(|| {
        let world = World::enter(&lab);
        lease(&lab.dir().join("bin"), &verbs);
        let mut tally = Tally::new();
        // A DEL that fails elsewhere removes the address from the link, and leaves its release to
        // the next DEL.
        world.sh("mkdir -p /run/netwright/locks && : >/run/netwright/locks/firewall.lock");
        let pod = world.pod("c1");
        let add = pod.call("ADD", &plugin);
        let del = |result: Option<Value>| Call { previous: result, ..pod.call("DEL", &plugin) };
        let sound = del(world.done(&add));
        let sound = world.follow(&sound, &mut |_| Blow::Spare);
        assert!(PluginAnswer::of(&sound, "DEL").is_done(), "{sound:?}");
        let before = world.look();
        let mut all = own(&sound.moments, &["setns"]);
        all.extend(some(own(&sound.moments, &["open", "openat", "openat2"])));
        let mut kept = 0;
        for at in all {
            tally.count("bridge with dhcp", "DEL", "failed");
            let del = del(world.done(&add));
            fs::remove_file(&verbs).unwrap();
            let said = failing(&world, &del, at);
            let is_released = verbs.exists();
            let has_address = world.sh("ip -n c1 -4 addr").contains("10.1.0.2/24");
            let text = format!("{said:?}");
            let mut wrong = Vec::new();
            if is_released && has_address {
                wrong.push("the address is released, and the link has it".to_owned());
            }
            if NOT_ENTERED.iter().any(|words| text.contains(words)) {
                kept += 1;
                let words = "the address is released, and DEL did not enter the namespace";
                wrong.extend(is_released.then(|| words.to_owned()));
            }
            world.done(&del);
            if !verbs.exists() {
                wrong.push("the address is released by no DEL".to_owned());
            }
            wrong.extend(world.left(&before));
            wrong.extend(pod.left());
            if !wrong.is_empty() {
                let wrong = wrong.join("\n  ");
                tally.found(format!(
                    "bridge with dhcp DEL failed: at {at}:\n  {wrong}\n  it said {text}"
                ));
                break;
            }
        }
        if kept == 0 {
            tally.found("bridge with dhcp DEL failed: no fault kept the address".to_owned());
        }
        tally
    });
    tally.finish();
}

/// GC's list is older than an attachment that is made while GC reads. GC removes all of it if it
/// was recorded before GC read the records, and otherwise nothing.
#[test]
fn gc_removes_all_or_nothing_of_an_attachment_that_comes_meanwhile() {
    testkit::require!("root", "ptrace");
    let plugin = routed();
    let lab = Lab::new("reserved-gc");
    let tally = lab.enter(|| {
        let world = World::enter(&lab);
        let mut tally = Tally::new();
        let first = world.pod("first");
        let gc = Call { valid: Some(Vec::new()), ..first.call("GC", &plugin) };
        let result = world.done(&first.call("ADD", &plugin));
        world.done(&Call { previous: result, ..first.call("DEL", &plugin) });
        world.done(&gc);
        let read = world.follow(&gc, &mut |_| Blow::Spare);
        assert!(PluginAnswer::of(&read, "GC").is_done(), "{read:?}");
        let before = world.look();
        // Once GC has a lock, an ADD would wait for it.
        let unlocked = read.moments.iter().take_while(|one| name(one.call) != "flock");
        let unlocked: Vec<Moment> = unlocked.copied().collect();
        let reads = ["open", "openat", "openat2", "getdents64", "sendto", "recvfrom"];
        let all = some(own(&unlocked, &reads));
        let mut whole = 0;
        for (number, at) in all.into_iter().enumerate() {
            tally.count("bridge", "GC", "interleaved");
            let new = world.pod(&format!("new{number}"));
            let mut added = None;
            let ended = world.follow(&gc, &mut |moment| {
                if moment.is(&at) && added.is_none() {
                    added = Some(world.call(&new.call("ADD", &plugin)));
                }
                Blow::Spare
            });
            // If there are no files of another container to read, GC may have ended before that
            // moment.
            let Some(added) = added else { continue };
            let mut wrong = Vec::new();
            let collected = PluginAnswer::of(&ended, "GC");
            if !collected.is_done() {
                wrong.push(format!("GC said {collected:?}"));
            }
            let result = match added {
                PluginAnswer::Done(result) => result,
                other => {
                    wrong.push(format!("ADD said {other:?}"));
                    None
                }
            };
            let check = Call { previous: result.clone(), ..new.call("CHECK", &plugin) };
            let checked = world.call(&check);
            if checked.is_done() {
                whole += 1;
            } else {
                let left = world.left(&before).into_iter().chain(new.left());
                wrong.extend(left.map(|line| format!("{line}, and CHECK said {checked:?}")));
            }
            world.done(&Call { previous: result, ..new.call("DEL", &plugin) });
            world.done(&gc);
            wrong.extend(world.left(&before));
            wrong.extend(new.left());
            if !wrong.is_empty() {
                let wrong = wrong.join("\n  ");
                tally.found(format!("bridge GC interleaved: at {at}:\n  {wrong}"));
                break;
            }
        }
        if whole == 0 {
            tally.found("bridge GC interleaved: no attachment outlived it".to_owned());
        }
        tally
    });
    tally.finish();
}
