//! `chain` does the same as its plugins one by one.

mod matrix;

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{Container, ModuleRequests, Place};

use crate::support::matrix::Family;
use crate::support::{Node, Run, matrix as families, versions};

/// A plugin that records its calls, and answers: `$DIR/log` gets a line, `$DIR/TYPE.VERB` gets its
/// standard input.
const WITNESS: &str = r#"
    type=$(basename "$0"); read_from=$(cat)
    echo "$type $CNI_COMMAND" >> DIR/log
    printf '%s' "$read_from" > "DIR/$type.$CNI_COMMAND"
    if [ -e "DIR/$type.$CNI_COMMAND.fails" ]; then cat "DIR/$type.$CNI_COMMAND.fails"; exit 1; fi
    [ "$CNI_COMMAND" != ADD ] || echo '{"cniVersion":"1.1.0","interfaces":[{"name":"by-'$type'"}]}'
"#;

fn witnesses(name: &str, types: &[&str]) -> Node {
    let node = Node::new(name);
    let script = WITNESS.replace("DIR", node.lab.dir().to_str().unwrap());
    for plugin in types {
        node.stub(plugin, &script);
    }
    node
}

fn fails(node: &Node, plugin: &str, verb: &str, code: u32) {
    let error = json!({ "cniVersion": "1.1.0", "code": code, "msg": format!("{plugin} cannot") });
    std::fs::write(node.lab.dir().join(format!("{plugin}.{verb}.fails")), error.to_string())
        .unwrap();
}

fn log(node: &Node) -> Vec<String> {
    let path = node.lab.dir().join("log");
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let _ = std::fs::remove_file(path);
    text.lines().map(str::to_owned).collect()
}

fn read_by(node: &Node, plugin: &str, verb: &str) -> Value {
    let path = node.lab.dir().join(format!("{plugin}.{verb}"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn of<'n>(node: &'n Node, verb: &str, to: &Container, plugins: Value) -> Run<'n> {
    node.run("chain", verb).to(to).config(json!({ "plugins": plugins }))
}

fn three() -> Value {
    json!([{ "type": "one" }, { "type": "two" }, { "type": "three" }])
}

/// The result without its random values.
fn plain(mut result: Value) -> Value {
    for interface in result["interfaces"].as_array_mut().unwrap() {
        interface.as_object_mut().unwrap().remove("mac");
    }
    result
}

#[test]
fn the_result_is_that_of_the_plugins_one_by_one() {
    testkit::require!("root");
    let plugins = |node: &Node| {
        json!([
            { "type": "bridge", "isDefaultGateway": true, "ipMasq": true, "ipam": families::ipam(node, Family::Dual) },
            { "type": "portmap", "capabilities": { "portMappings": true } },
            { "type": "firewall" },
            { "type": "tuning", "mtu": 1400, "capabilities": { "mac": true } },
        ])
    };
    let args = json!({
        "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }],
        "mac": "02:00:00:00:00:07",
    });
    let apart = Node::new("apart");
    let c1 = apart.container("c1");
    let mut previous: Option<Value> = None;
    for plugin in plugins(&apart).as_array().unwrap() {
        let kind = plugin["type"].as_str().unwrap();
        let wanted: serde_json::Map<_, _> = plugin["capabilities"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, _)| (key.clone(), args[key].clone()))
            .collect();
        let mut run = apart.run(kind, "ADD").to(&c1).config(plugin.clone()).without("capabilities");
        if !wanted.is_empty() {
            run = run.config(json!({ "runtimeConfig": wanted }));
        }
        if let Some(previous) = &previous {
            run = run.prev(previous);
        }
        previous = Some(run.call().ok());
    }
    let together = Node::new("together");
    let c1 = together.container("c1");
    let call = |verb: &str| {
        of(&together, verb, &c1, plugins(&together)).config(json!({ "runtimeConfig": args }))
    };
    let result = call("ADD").call().ok();
    let expected = plain(previous.unwrap()).to_string();
    let expected =
        expected.replace(apart.lab.dir().to_str().unwrap(), together.lab.dir().to_str().unwrap());
    assert_eq!(plain(result.clone()).to_string(), expected);
    c1.sh("ip link show eth0 | grep -q 02:00:00:00:00:07");
    together.sh("nft list ruleset | grep -q 8080");
    call("CHECK").prev(&result).call().silent();
    call("DEL").prev(&result).call().silent();
    c1.sh("! ip link show eth0 2>/dev/null");
    together.sh("! nft list ruleset | grep -q 8080");
}

#[test]
fn every_plugin_is_given_what_a_runtime_would_give_it() {
    testkit::require!("root");
    let node = witnesses("given", &["one", "two"]);
    let c1 = node.container("c1");
    let plugins = json!([
        { "type": "one", "capabilities": { "bandwidth": true, "mac": false }, "own": [1.50] },
        { "type": "two", "name": "mine", "cniVersion": "0.4.0" },
    ]);
    let labels = json!({ "cni": { "labels": [{ "key": "app", "value": "web" }] } });
    let given = json!({
        "runtimeConfig": { "bandwidth": { "ingressRate": 1 }, "mac": "x", "ips": [] },
        "args": labels,
    });
    let result = of(&node, "ADD", &c1, plugins.clone()).config(given.clone()).call().ok();
    assert_eq!(result["interfaces"], json!([{ "name": "by-two" }]));
    assert_eq!(
        read_by(&node, "one", "ADD"),
        json!({ "cniVersion": "1.1.0", "name": "n", "type": "one", "own": [1.50],
                "runtimeConfig": { "bandwidth": { "ingressRate": 1 } }, "args": labels })
    );
    let two = read_by(&node, "two", "ADD");
    assert_eq!((&two["name"], &two["cniVersion"]), (&json!("n"), &json!("1.1.0")));
    assert_eq!(two["prevResult"]["interfaces"], json!([{ "name": "by-one" }]));

    of(&node, "CHECK", &c1, plugins.clone()).prev(&result).call().silent();
    of(&node, "DEL", &c1, plugins.clone()).prev(&result).call().silent();
    for (plugin, verb) in [("one", "CHECK"), ("two", "CHECK"), ("one", "DEL"), ("two", "DEL")] {
        assert_eq!(read_by(&node, plugin, verb)["prevResult"], result, "{plugin} {verb}");
    }
    let gc = of(&node, "GC", &c1, plugins).valid(&[("c1", "eth0")]).without("prevResult");
    gc.call().silent();
    let valid = json!([{ "containerID": "c1", "ifname": "eth0" }]);
    assert_eq!(read_by(&node, "two", "GC")["cni.dev/valid-attachments"], valid);
    let order =
        ["one ADD", "two ADD", "one CHECK", "two CHECK", "two DEL", "one DEL", "one GC", "two GC"];
    assert_eq!(log(&node), order);
}

#[test]
fn a_failed_add_is_undone_from_where_it_failed() {
    testkit::require!("root");
    let node = witnesses("undo", &["one", "two", "three"]);
    let c1 = node.container("c1");
    fails(&node, "two", "ADD", 11);
    of(&node, "ADD", &c1, three()).call().fails(11, "plugin \"two\": two cannot");
    assert_eq!(log(&node), ["one ADD", "two ADD", "two DEL", "one DEL"]);
    let previous = &read_by(&node, "one", "DEL")["prevResult"]["interfaces"];
    assert_eq!(*previous, json!([{ "name": "by-one" }]));

    fails(&node, "one", "DEL", 999);
    let error = of(&node, "ADD", &c1, three()).call().error();
    assert_eq!(error.code, 11);
    assert!(error.details.contains("one cannot"), "{error:?}");
}

/// What a plugin refuses at DEL as it did at ADD it has not made.
#[test]
fn a_plugin_that_refuses_its_configuration_at_every_verb_leaves_nothing() {
    testkit::require!("root");
    let node = witnesses("refusing", &["one", "two"]);
    let c1 = node.container("c1");
    let two = json!([{ "type": "one" }, { "type": "two" }]);
    fails(&node, "two", "ADD", 7);
    fails(&node, "two", "DEL", 7);
    let error = of(&node, "ADD", &c1, two.clone()).call().error();
    assert_eq!((error.code, error.left, error.details.as_str()), (7, false, ""), "{error:?}");
    assert_eq!(log(&node), ["one ADD", "two ADD", "two DEL", "one DEL"]);
    // The one before it has made something.
    fails(&node, "one", "DEL", 7);
    let error = of(&node, "ADD", &c1, two).call().error();
    assert!(error.left && error.details.contains("one cannot"), "{error:?}");
}

/// Only ours undo what they did.
#[test]
fn another_projects_plugin_of_our_name_is_called_with_del() {
    testkit::require!("root");
    let node = witnesses("namesake", &["dummy"]);
    let c1 = node.container("c1");
    fails(&node, "dummy", "ADD", 11);
    of(&node, "ADD", &c1, json!([{ "type": "dummy" }])).call().fails(11, "dummy cannot");
    assert_eq!(log(&node), ["dummy ADD", "dummy DEL"]);
}

#[test]
fn del_and_gc_go_on_and_check_and_status_stop() {
    testkit::require!("root");
    let node = witnesses("goes-on", &["one", "two", "three"]);
    let c1 = node.container("c1");
    for verb in ["DEL", "GC", "CHECK", "STATUS"] {
        fails(&node, "two", verb, 50);
    }
    let prev = json!({ "cniVersion": "1.1.0" });
    of(&node, "DEL", &c1, three()).prev(&prev).call().fails(50, "two cannot");
    assert_eq!(log(&node), ["three DEL", "two DEL", "one DEL"]);
    of(&node, "GC", &c1, three()).valid(&[]).call().fails(50, "two cannot");
    assert_eq!(log(&node), ["one GC", "two GC", "three GC"]);
    of(&node, "CHECK", &c1, three()).prev(&prev).call().fails(50, "plugin \"two\": two cannot");
    assert_eq!(log(&node), ["one CHECK", "two CHECK"]);
    of(&node, "STATUS", &c1, three()).call().fails(50, "plugin \"two\": two cannot");
    assert_eq!(log(&node), ["one STATUS", "two STATUS"]);
    // Code 3: nothing to clean up.
    fails(&node, "two", "DEL", 3);
    of(&node, "DEL", &c1, three()).prev(&prev).call().silent();
}

#[test]
fn what_cannot_be_run_is_told_before_anything_runs() {
    testkit::require!("root");
    let node = witnesses("bad", &["one"]);
    let c1 = node.container("c1");
    for (plugins, code, words) in [
        (json!([]), 7, "names no plugin"),
        (json!(null), 7, "names no plugin"),
        (json!([{ "type": "one" }, { "type": "missing" }]), 7, "missing"),
        (json!([{ "type": "one" }, {}]), 7, "plugins[1]"),
        (json!([{ "type": "one" }, { "type": "../one" }]), 7, "plugins[1]"),
        (
            json!([{ "type": "one" }, { "type": "chain", "plugins": [] }]),
            7,
            "plugins[1] is a chain",
        ),
        (json!([{ "type": "one" }, 5]), 6, "plugins"),
        (json!({}), 6, "plugins"),
        // Packets of these would bypass the packet filter.
        (
            json!([{ "type": "one" }, { "type": "macvlan" }, { "type": "policy" }]),
            7,
            "cannot judge packets of \"macvlan\"",
        ),
    ] {
        of(&node, "ADD", &c1, plugins).call().fails(code, words);
    }
    assert_eq!(log(&node), [""; 0]);
}

#[test]
fn all_versions_are_spoken() {
    testkit::require!("root");
    let node = Node::new("versions");
    let ipam = families::ipam(&node, Family::Dual);
    let plugins =
        json!([{ "type": "bridge", "isGateway": true, "ipam": ipam }, { "type": "tuning" }]);
    versions::all_are_spoken(&node, "chain", &json!({ "plugins": plugins }));
}

#[test]
fn misspelt_keys_are_found() {
    let unknown = |config: &str| plugins::find("chain").unwrap().unknown_keys(config).unwrap();
    assert_eq!(unknown(r#"{"type":"chain","plugins":[{"type":"tuning","anything":1}]}"#), []);
    let found = unknown(r#"{"type":"chain","plugin":[]}"#);
    assert_eq!((found[0].key.as_str(), found.len()), ("plugin", 1));
}

/// How many containers are attached at once.
const STORM: u16 = 50;

/// Many containers are attached and detached at once, and the kernel looks for no module: each look
/// would start a process or two, for which the call would wait.
#[test]
fn vm_a_storm_asks_for_no_module() {
    testkit::require!("root", "full", "module-requests");
    let node = Node::new("storm");
    let run = |verb: &str, to: &Container, port: u16| {
        let ports = json!([{ "hostPort": port, "containerPort": 80, "protocol": "tcp" }]);
        let ipam = families::ipam(&node, Family::V4);
        let plugins = json!([
            { "type": "bridge", "isDefaultGateway": true, "ipMasq": true, "ipam": ipam },
            { "type": "portmap", "capabilities": { "portMappings": true } },
            { "type": "firewall" },
            { "type": "tuning", "mtu": 1400 },
        ]);
        let keys = json!({ "plugins": plugins, "runtimeConfig": { "portMappings": ports } });
        node.run("chain", verb).to(to).config(keys).call()
    };
    let life = |to: &Container, port: u16| -> Duration {
        let begun = Instant::now();
        run("ADD", to, port).ok();
        let took = begun.elapsed();
        run("DEL", to, port).silent();
        took
    };
    // What the first container needs is loaded by now.
    life(&node.container("first"), 8000);
    let containers: Vec<Container> =
        (1..=STORM).map(|number| node.container(&format!("c{number}"))).collect();
    let requests = ModuleRequests::new();
    let barrier = Barrier::new(STORM.into());
    let storm = || -> Vec<Duration> {
        thread::scope(|scope| {
            let (life, barrier) = (&life, &barrier);
            let begin = |(container, port)| {
                scope.spawn(move || {
                    barrier.wait();
                    life(container, port)
                })
            };
            let running: Vec<_> = containers.iter().zip(8001..).map(begin).collect();
            running.into_iter().map(|one| one.join().unwrap()).collect()
        })
    };
    let (mut times, asked) = requests.during(storm);
    times.sort();
    eprintln!("MEASURED storm: {STORM} ADDs at once, median {:?}", times[times.len() / 2]);
    assert_eq!(asked, Vec::<String>::new(), "a storm has the kernel look for modules");
}
