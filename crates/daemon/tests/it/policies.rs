//! `netwrightd policies` as people, scripts and CI call it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

const SHOP: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec: {template: {metadata: {labels: {app: web}}}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: shop}
spec: {template: {metadata: {labels: {app: db}}}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: web}}}]
    ports: [{port: 5432}]
";

#[expect(clippy::disallowed_methods, reason = "the program that is tested")]
fn policies(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netwrightd"));
    command.arg("policies").args(words).current_dir(folder).env_clear();
    command.env("NETWRIGHT_RUN_DIR", folder).stdin(Stdio::null());
    command
}

fn run(folder: &Path, words: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = policies(folder, words).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn exit_codes_are_for_ci() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("shop")).unwrap();
    std::fs::write(at("shop/all.yaml"), SHOP).unwrap();
    let explain =
        |words: &[&str]| run(folder.path(), &[&["explain", "--file", "shop"], words].concat());
    let good = ["shop/web", "shop/db", "5432"];
    let bad = ["shop/web", "shop/db", "80"];
    for (words, expected, code) in [
        (good, None, 0),
        (bad, None, 0),
        (good, Some("allow"), 0),
        (bad, Some("deny"), 0),
        (good, Some("deny"), 1),
        (bad, Some("allow"), 1),
    ] {
        let expect = expected.map(|word| ["--expect", word]);
        let words: Vec<&str> = words.into_iter().chain(expect.into_iter().flatten()).collect();
        let (found, said, told) = explain(&words);
        assert_eq!(found, Some(code), "{words:?}: {said}{told}");
        let word = if words[2] == "80" { ": denied." } else { ": allowed." };
        assert!(said.lines().next().unwrap().ends_with(word), "{said}");
    }
    let (_, _, told) = explain(&["shop/web", "shop/db", "80", "--expect", "allow"]);
    let told = told.lines().last().unwrap();
    assert_eq!(
        told,
        "error: shop/web to shop/db, TCP port 80, is denied, and allowed was expected"
    );
    // These command lines are wrong.
    assert_eq!(explain(&["shop/web", "shop/db", "http"]).0, Some(2));
    assert_eq!(explain(&["shop/web", "shop/db", "80", "--expect", "maybe"]).0, Some(2));
    // In these cases nothing was judged.
    for (words, why) in [
        (["shop/web", "shop/dbb", "80"], "there is no pod shop/dbb; its namespace has db and web"),
        (["web", "shop/db", "80"], "there is no node web, but a pod shop/web"),
    ] {
        let (code, said, told) = explain(&words);
        assert_eq!((code, said.as_str()), (Some(3), ""), "{told}");
        assert!(told.ends_with(&format!("error: {why}\n")), "{told}");
    }
    std::fs::write(at("shop/broken.yaml"), "kind: Pod\n---\nkind: {\n").unwrap();
    let (code, said, told) = explain(&good);
    assert_eq!((code, said.as_str()), (Some(3), ""));
    assert!(told.starts_with("error: shop/broken.yaml: document 2: line "), "{told}");
    let (code, _, told) = run(folder.path(), &["list", "--file", "nowhere"]);
    assert_eq!(code, Some(3));
    assert_eq!(told, "error: nowhere: there is no such file or folder\n");
    // No service runs.
    let (code, _, told) = run(folder.path(), &["explain", "shop/web", "shop/db", "80"]);
    assert_eq!(code, Some(3));
    assert!(told.contains("the service policy does not run here"), "{told}");
    assert!(told.contains("/agent/policy.sock"), "{told}");
}

/// With files, the configuration and the flags say which namespaces are isolated.
#[test]
fn files_are_judged_as_the_configuration_isolates_namespaces() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let others = "
{apiVersion: v1, kind: Namespace, metadata: {name: other}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: other}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: shut, labels: {policy.netwright.io/isolate: 'true'}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shut}}
";
    std::fs::write(at("shop.yaml"), format!("{SHOP}---{others}")).unwrap();
    std::fs::write(at("nothing.toml"), "").unwrap();
    std::fs::write(at("isolated.toml"), "[policy]\nisolate = \"namespaces\"\n").unwrap();
    let explain = |configuration: &str, more: &[&str], ends: [&str; 2]| {
        let words = ["explain", "--file", "shop.yaml", "--configuration", configuration];
        run(folder.path(), &[&words[..], more, &ends[..], &["80"][..]].concat())
    };
    let is_allowed = |configuration: &str, more: &[&str], ends: [&str; 2]| {
        let (code, said, told) = explain(configuration, more, ends);
        assert_eq!(code, Some(0), "{told}");
        (said.lines().next().unwrap().ends_with(": allowed."), said, told)
    };
    let into = ["other/web", "shop/web"];
    assert!(is_allowed("nothing.toml", &[], into).0);
    // A namespace's label counts even if isolation is not enabled.
    assert!(!is_allowed("nothing.toml", &[], ["other/web", "shut/web"]).0);
    for (configuration, more, source) in [
        ("isolated.toml", Vec::new(), "isolated.toml"),
        ("nothing.toml", vec!["--isolate", "namespaces"], "--isolate"),
    ] {
        let (is_allowed, said, told) = is_allowed(configuration, &more, into);
        assert!(!is_allowed && said.contains("the isolation of namespace"), "{said}");
        let note = format!("note: namespaces are isolated by default, as {source} says");
        assert!(told.lines().any(|line| line == note), "{told}");
    }
    // Flags take precedence over the file, and a NetworkPolicy over the isolation.
    assert!(is_allowed("isolated.toml", &["--isolate", "none"], into).0);
    let ends = ["--isolate-from", "other", "--isolate-to", "shop"];
    assert!(is_allowed("isolated.toml", &ends, into).0);
    let words = ["list", "--file", "shop.yaml", "--configuration", "isolated.toml"];
    let (code, said, _) = run(folder.path(), &words);
    assert_eq!(code, Some(0));
    assert!(said.contains("isolated by the isolation of namespace other"), "{said}");
    assert!(said.contains("isolated by NetworkPolicy shop/db"), "{said}");
    // Errors in the file and in the flags are reported.
    let (code, said, told) = explain("none.toml", &[], into);
    assert_eq!((code, said.as_str()), (Some(3), ""));
    assert_eq!(told, "error: none.toml: there is no such file\n");
    std::fs::write(at("wrong.toml"), "[policy]\nisolate = \"all\"\n").unwrap();
    let (code, _, told) = explain("wrong.toml", &[], into);
    assert_eq!(code, Some(3));
    assert!(told.starts_with("error: wrong.toml:2:"), "{told}");
    assert_eq!(explain("nothing.toml", &["--isolate", "all"], into).0, Some(2));
    // These flags are for files only.
    let words = ["explain", "--isolate", "namespaces", "shop/web", "shop/db", "80"];
    assert_eq!(run(folder.path(), &words).0, Some(2));
}

#[test]
fn files_are_judged_from_standard_input_and_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["explain", "--file", "-", "-o", "json", "shop/web", "shop/db", "53/udp"];
    let mut child = policies(folder.path(), &words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(SHOP.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&said["version"], &said["allowed"]), (&json!(1), &json!(false)));
    let families = said["families"].as_array().unwrap();
    assert_eq!(families.len(), 2);
    assert_eq!(families[0]["source_address"], Value::Null);
    assert_eq!(
        families[0]["causes"],
        json!([{
            "direction": "ingress",
            "cause": "NetworkPolicy shop/db, spec.ingress[0] allows TCP port 5432 from pods with app=web of \
                      namespace shop: this is UDP",
        }])
    );
    // The command shows no made-up address.
    assert!(!String::from_utf8(output.stdout).unwrap().contains("0.0.0."));
}

#[test]
fn what_may_not_be_read_is_named() {
    testkit::require!("root");
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(at("secret.yaml"), SHOP).unwrap();
    std::fs::set_permissions(at("secret.yaml"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let program = at("netwrightd");
    std::fs::copy(env!("CARGO_BIN_EXE_netwrightd"), &program).unwrap();
    for path in [".", "secret.yaml"] {
        #[expect(clippy::disallowed_methods, reason = "the program that is tested")]
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        command.arg(&program).args(["policies", "list", "--file", path]);
        let output = command.current_dir(folder.path()).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{told}");
        let name = if path == "." { "./secret.yaml" } else { "secret.yaml" };
        assert_eq!(told, format!("error: {name}: it may not be read: Permission denied\n"));
    }
}

/// Answers each question with the next of these bodies; after the last, nothing listens.
fn serve(path: &Path, answers: Vec<Value>) -> std::thread::JoinHandle<Vec<String>> {
    let listener = UnixListener::bind(path).unwrap();
    let path = path.to_owned();
    std::thread::spawn(move || {
        let mut asked = Vec::new();
        for body in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = [0; 1024];
            let count = stream.read(&mut bytes).unwrap();
            let line = String::from_utf8_lossy(&bytes[..count]).lines().next().unwrap().to_owned();
            asked.push(line);
            let body = body.to_string();
            write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            )
            .unwrap();
        }
        std::fs::remove_file(path).unwrap();
        asked
    })
}

fn page(numbers: &[u64], last: u64, counted: u64) -> Value {
    let drops = numbers.iter().map(|number| {
        json!({
            "number": number, "time": 1_700_000_000_000_u64 + number, "direction": "ingress",
            "pod": "shop/db", "pod_address": "10.0.0.2",
            "peer": "shop/web", "peer_address": "10.0.0.1",
            "protocol": "TCP", "port": 8000 + number, "policies": ["NetworkPolicy shop/db"],
            "cause": "no rule is about it",
        })
    });
    json!({
        "version": 1, "drops": drops.collect::<Vec<_>>(), "next": last, "gone": 0,
        "counted": null, "since_start": {"ingress": counted, "egress": 0, "reset": 0}, "listed": last,
        "overrun": 0, "fault": null,
    })
}

#[test]
fn drops_are_followed_from_where_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let pages = vec![page(&[1, 2], 2, 2), page(&[], 2, 2), page(&[3, 4], 4, 9)];
    let server = serve(&socket, pages);
    let words = ["drops", "--follow", "--socketpath", socket.to_str().unwrap()];
    let mut child = policies(folder.path(), &words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let lines: Vec<String> = told.by_ref().take(3).collect();
    child.kill().unwrap();
    assert_eq!(
        lines[0],
        "2 dropped since the service began to listen (2 into pods, 0 out of pods), 2 listed"
    );
    assert_eq!(
        lines[1],
        "9 dropped since the service began to listen (9 into pods, 0 out of pods), 4 listed; 5 were more \
         than are logged in a second"
    );
    // The service is gone, and the command keeps asking.
    let gone = &lines[2];
    assert!(gone.contains("no program listens at") && gone.ends_with("; asking again"), "{gone}");
    let said: Vec<String> =
        BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap).collect();
    child.wait().unwrap();
    assert_eq!(said.len(), 12, "{said:#?}");
    assert_eq!(
        said[..3],
        [
            "2023-11-14T22:13:20.001Z shop/web (10.0.0.1) to shop/db (10.0.0.2), TCP port 8001: dropped at ingress of shop/db",
            "  no rule is about it",
            "  asked: NetworkPolicy shop/db",
        ]
    );
    assert_eq!(
        server.join().unwrap(),
        ["GET /drops/0 HTTP/1.1", "GET /drops/2 HTTP/1.1", "GET /drops/2 HTTP/1.1"]
    );
}

#[test]
fn drops_are_one_object_a_line_for_programs() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let server = serve(&socket, vec![page(&[1, 2], 2, 2), page(&[1, 2], 2, 2)]);
    let socket = socket.to_str().unwrap();
    let (code, said, told) = run(folder.path(), &["drops", "-o", "json", "--socketpath", socket]);
    assert_eq!((code, told.as_str()), (Some(0), ""));
    let whole: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(whole, page(&[1, 2], 2, 2));
    let words = ["drops", "-f", "-o", "json", "--socketpath", socket];
    let mut child = policies(folder.path(), &words)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    for number in [1, 2] {
        let line: Value = serde_json::from_str(&said.next().unwrap()).unwrap();
        assert_eq!(line["number"], number);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    server.join().unwrap();
}
