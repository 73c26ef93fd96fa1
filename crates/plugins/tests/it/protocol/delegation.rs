//! Delegation, with `bridge` and its address plugin as the example.

use std::fs;
use std::path::PathBuf;

use cni::code;
use serde_json::{Value, json};

use super::lacks;
use crate::support::{Node, Picture, Run};

fn bridge<'n>(node: &'n Node, verb: &str, ipam: &str) -> Run<'n> {
    node.run("bridge", verb).config(json!({ "bridge": "br0", "ipam": { "type": ipam } }))
}

#[test]
fn delegate_lookup() {
    if lacks("delegate_lookup", &["bridge"]) {
        return;
    }
    let node = Node::new("lookup");
    let c1 = node.container("c1");
    let before = Picture::of(&c1);
    let dirs = format!("/nonexistent:{}", node.bin().display());
    let add = |ipam: &str| bridge(&node, "ADD", ipam).to(&c1).path(&dirs).call();
    let listed = dirs.replace(':', " ");
    add("x")
        .fails(code::INVALID_CONFIG, &format!("failed to find plugin \"x\" in path [{listed}]"));
    add("../bridge").fails(code::INVALID_CONFIG, "invalid plugin name: ../bridge");
    before.assert_same(&Picture::of(&c1));
}

#[test]
fn delegate_error_passthrough() {
    if lacks("delegate_error_passthrough", &["bridge"]) {
        return;
    }
    let node = Node::new("passthrough");
    let c1 = node.container("c1");
    let before = Picture::of(&c1);
    node.stub(
        "fails",
        r#"echo words >&2; echo '{"code":123,"msg":"no luck","details":"at all"}'; exit 1"#,
    );
    let answer = bridge(&node, "ADD", "fails").to(&c1).call();
    assert!(answer.stderr().contains("words"), "{answer:?}");
    let error = answer.error();
    assert_eq!((error.code, error.msg.as_str()), (123, "no luck"));
    assert!(error.details.starts_with("at all"), "{error}");
    before.assert_same(&Picture::of(&c1));
}

/// An address plugin that keeps its standard input and environment in files named after the verb.
fn recorder(node: &Node) -> PathBuf {
    let dir = node.dir("recorded");
    let script = format!(
        r#"
        cat > {dir}/$CNI_COMMAND.stdin; env > {dir}/$CNI_COMMAND.env
        [ $CNI_COMMAND != ADD ] || echo '{{"cniVersion":"1.1.0","ips":[{{"address":"192.0.2.2/24"}}]}}'
        "#,
        dir = dir.display()
    );
    node.stub("recorder", &script);
    dir
}

#[test]
fn delegate_sees_whole_config() {
    if lacks("delegate_sees_whole_config", &["bridge"]) {
        return;
    }
    let node = Node::new("recorder");
    let c1 = node.container("c1");
    let dir = recorder(&node);
    // Spaces, order, numbers beyond 2^53 and unknown keys must arrive unchanged.
    let text = r#"{ "name":"n","unknown": {"big":1152921504606846976, "é<>&": 1e400},
        "cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}],
        "ipam":{"type":"recorder","x":[1.50]} , "cniVersion":"1.1.0","type":"bridge","bridge":"br0"}"#;
    let call = |verb: &str| {
        let run = node.run("bridge", verb).to(&c1).stdin(text).env(|env| {
            env.trace = vec![(
                "TRACEPARENT".to_owned(),
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned(),
            )];
        });
        run.args("IgnoreUnknown=1;X=Y").call()
    };
    call("ADD").ok();
    call("STATUS").silent();
    call("GC").silent();
    call("DEL").silent();
    for verb in ["ADD", "STATUS", "GC", "DEL"] {
        let stdin = fs::read_to_string(dir.join(format!("{verb}.stdin"))).unwrap();
        assert_eq!(stdin, text, "{verb}");
        let env = fs::read_to_string(dir.join(format!("{verb}.env"))).unwrap();
        let path = format!("CNI_PATH={}", node.bin().display());
        for line in [
            "CNI_CONTAINERID=c1",
            "CNI_IFNAME=eth0",
            "CNI_NETNS=/run/netns/c1",
            "CNI_ARGS=IgnoreUnknown=1;X=Y",
            &path,
            // trace env: the plugin passes on the runtime's trace variables.
            "TRACEPARENT=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(env.lines().filter(|have| *have == line).count(), 1, "{verb} {line}: {env}");
        }
    }
}

#[test]
fn delegate_cleanup() {
    if lacks("delegate_cleanup", &["bridge", "host-local"]) {
        return;
    }
    let node = Node::new("cleanup");
    let c1 = node.container("c1");
    let before = Picture::of(&c1);
    let data_dir = node.dir("ipam");
    // The plugin finds the gateway's address impossible after it has the container's.
    node.sh("ip link add br0 type bridge && ip addr add 192.0.2.200/24 dev br0");
    let ipam = json!({ "type": "host-local", "dataDir": data_dir, "subnet": "192.0.2.0/24" });
    let keys = json!({ "bridge": "br0", "isGateway": true, "ipam": ipam });
    let error = node.run("bridge", "ADD").to(&c1).config(keys).call().error();
    assert!(error.msg.contains("already has an IP address different from"), "{error}");
    assert!(data_dir.join("n").exists(), "the address plugin ran");
    assert!(!data_dir.join("n/192.0.2.2").exists());
    before.assert_same(&Picture::of(&c1));
}

#[test]
fn delegated_and_direct_calls_answer_the_same() {
    if lacks("delegated_and_direct_calls_answer_the_same", &["bridge", "host-local"]) {
        return;
    }
    let node = Node::new("both-ways");
    let ipam = |dir: &str| json!({ "type": "host-local", "dataDir": node.dir(dir), "subnet": "10.0.0.0/99" });
    let direct = node.run("host-local", "ADD").netns("/n").config(json!({ "ipam": ipam("a") }));
    let c1 = node.container("c1");
    let through = node.run("bridge", "ADD").to(&c1).config(json!({ "ipam": ipam("a") }));
    let (direct, through) = (direct.call().error(), through.call().error());
    assert_eq!((direct.code, &direct.msg), (through.code, &through.msg));
}

#[test]
fn result_without_an_address_is_refused() {
    if lacks("result_without_an_address_is_refused", &["bridge"]) {
        return;
    }
    let node = Node::new("no-address");
    let c1 = node.container("c1");
    let before = Picture::of(&c1);
    node.stub("empty", r#"[ $CNI_COMMAND != ADD ] || echo '{"cniVersion":"1.1.0"}'"#);
    let error = bridge(&node, "ADD", "empty").to(&c1).call().error();
    assert_ne!(error.code, code::INTERNAL, "{error}");
    before.assert_same(&Picture::of(&c1));
    node.stub("noise", "echo this is no JSON");
    let answer: Value =
        serde_json::from_slice(&bridge(&node, "ADD", "noise").to(&c1).call().output.stdout)
            .unwrap();
    assert_eq!(answer["code"], code::DECODE_FAILURE);
    before.assert_same(&Picture::of(&c1));
}
