//! The API server: requests and answers.
#![expect(clippy::unwrap_used, reason = "a client of a test: what fails ends it")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::kube::KubeApi;

const MERGE: &str = "Content-Type: application/merge-patch+json\r\n";

/// A connection with the simplest possible client.
struct Client(BufReader<TcpStream>);

impl Client {
    fn new(api: &KubeApi) -> Self {
        let stream = TcpStream::connect(api.url().trim_start_matches("http://")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Client(BufReader::new(stream))
    }

    /// Sends a request; returns the code, and the body's length if it has one.
    fn send(&mut self, line: &str, headers: &str, body: &str) -> (u16, Option<usize>) {
        let length = body.len();
        let text = format!(
            "{line} HTTP/1.1\r\nHost: api\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
        );
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
        let (mut code, mut length) = (0, None);
        loop {
            let mut line = String::new();
            assert!(0 < self.0.read_line(&mut line).unwrap(), "the connection ended");
            if let Some(status) = line.strip_prefix("HTTP/1.1 ") {
                code = status[..3].parse().unwrap();
            } else if let Some(value) = line.strip_prefix("Content-Length: ") {
                length = Some(value.trim().parse().unwrap());
            } else if line == "\r\n" {
                return (code, length);
            }
        }
    }

    fn ask(&mut self, line: &str, headers: &str, body: &str) -> (u16, Value) {
        let (code, length) = self.send(line, headers, body);
        let mut text = vec![0; length.unwrap()];
        self.0.read_exact(&mut text).unwrap();
        (code, serde_json::from_slice(&text).unwrap())
    }

    /// The next event of a watch; `None` when it has ended.
    fn event(&mut self) -> Option<Value> {
        let mut size = String::new();
        self.0.read_line(&mut size).unwrap();
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        let mut text = vec![0; size + 2];
        self.0.read_exact(&mut text).unwrap();
        (0 < size).then(|| serde_json::from_slice(&text[..size]).unwrap())
    }
}

fn pod(name: &str, node: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ns"},
           "spec": {"nodeName": node}})
}

fn reason(value: &Value) -> &str {
    value["reason"].as_str().unwrap_or_default()
}

#[test]
fn golden_exchanges() {
    let api = KubeApi::start();
    let mut client = Client::new(&api);
    let (code, missing) = client.ask("GET /api/v1/namespaces/ns/pods/p", "", "");
    assert_eq!(code, 404);
    assert_eq!(
        missing,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
               "message": "pods \"p\" not found", "reason": "NotFound", "code": 404,
               "details": {"name": "p", "group": "", "kind": "pods"}})
    );
    let (code, refused) =
        client.ask("POST /api/v1/namespaces/ns/pods", "", &pod("p", "n").to_string());
    assert_eq!((code, refused["message"].as_str()), (404, Some("namespaces \"ns\" not found")));
    let namespace = json!({"metadata": {"name": "ns"}}).to_string();
    assert_eq!(client.ask("POST /api/v1/namespaces", "", &namespace).0, 201);
    let (code, made) =
        client.ask("POST /api/v1/namespaces/ns/pods", "", &pod("p", "n").to_string());
    assert_eq!(code, 201);
    let uid = made["metadata"]["uid"].as_str().unwrap();
    assert_eq!(made["kind"], "Pod");
    let (code, again) =
        client.ask("POST /api/v1/namespaces/ns/pods", "", &pod("p", "n").to_string());
    assert_eq!((code, reason(&again)), (409, "AlreadyExists"));
    // The same object with another UID is another object.
    let other = json!({"metadata": {"uid": "other", "annotations": {"a": "1"}}}).to_string();
    let (code, refused) = client.ask("PATCH /api/v1/namespaces/ns/pods/p/status", MERGE, &other);
    assert_eq!((code, reason(&refused)), (422, "Invalid"));
    assert!(refused["message"].as_str().unwrap().contains("metadata.uid"), "{refused}");
    let same =
        json!({"metadata": {"uid": uid, "annotations": {"a": "1"}}, "spec": {"nodeName": "m"}})
            .to_string();
    let (code, patched) = client.ask("PATCH /api/v1/namespaces/ns/pods/p/status", MERGE, &same);
    assert_eq!((code, &patched["metadata"]["annotations"]["a"]), (200, &json!("1")));
    assert_eq!(patched["spec"]["nodeName"], "n", "a status has no spec");
    // A change without an effect does not get a version of its own.
    let (_, unchanged) = client.ask("PATCH /api/v1/namespaces/ns/pods/p/status", MERGE, &same);
    assert_eq!(unchanged["metadata"]["resourceVersion"], patched["metadata"]["resourceVersion"]);
    // A client that has an older version gets an error.
    let put = |version: &Value| {
        let mut object = patched.clone();
        object["metadata"]["resourceVersion"] = version.clone();
        object["metadata"]["labels"] = json!({"l": "1"});
        object.to_string()
    };
    let (code, refused) = client.ask(
        "PUT /api/v1/namespaces/ns/pods/p",
        "",
        &put(&made["metadata"]["resourceVersion"]),
    );
    assert_eq!((code, reason(&refused)), (409, "Conflict"));
    assert_eq!(
        client
            .ask(
                "PUT /api/v1/namespaces/ns/pods/p",
                "",
                &put(&patched["metadata"]["resourceVersion"])
            )
            .0,
        200
    );
    let stale =
        json!([{"op": "test", "path": "/metadata/resourceVersion", "value": "1"}]).to_string();
    let (code, _) = client.ask(
        "PATCH /api/v1/namespaces/ns/pods/p",
        "Content-Type: application/json-patch+json\r\n",
        &stale,
    );
    assert_eq!(code, 422);
    let (code, _) =
        client.ask("PATCH /api/v1/namespaces/ns/pods/p", "Content-Type: text/plain\r\n", "{}");
    assert_eq!(code, 415);
    let wrong = json!({"preconditions": {"uid": "other"}}).to_string();
    let (code, refused) = client.ask("DELETE /api/v1/namespaces/ns/pods/p", "", &wrong);
    assert_eq!((code, reason(&refused)), (409, "Conflict"));
    assert_eq!(client.ask("DELETE /api/v1/namespaces/ns/pods/p", "", "").0, 200);
    let verbs: Vec<_> =
        api.asked().into_iter().map(|asked| (asked.verb, asked.resource, asked.code)).collect();
    assert_eq!(verbs[0], ("get".to_owned(), "pods".to_owned(), 404));
    assert!(verbs.contains(&("patch".to_owned(), "pods/status".to_owned(), 422)));
}

#[test]
fn lists_come_in_pages_and_by_selectors() {
    let api = KubeApi::start();
    for name in ["a", "b", "c", "d"] {
        api.create(&pod(name, if name == "d" { "n2" } else { "n1" }));
    }
    let mut client = Client::new(&api);
    let names = |list: &Value| -> Vec<String> {
        let items = list["items"].as_array().unwrap();
        items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let query = "fieldSelector=spec.nodeName%3Dn1";
    let (_, list) = client.ask(&format!("GET /api/v1/pods?{query}&limit=2"), "", "");
    assert_eq!(
        (list["kind"].as_str(), names(&list)),
        (Some("PodList"), vec!["a".to_owned(), "b".to_owned()])
    );
    let count = |list: &Value| list["metadata"]["remainingItemCount"].clone();
    assert_eq!(count(&list), Value::Null, "with a selector the server does not count them");
    let (_, all) = client.ask("GET /api/v1/pods?limit=1", "", "");
    assert_eq!(count(&all), 3);
    let more = all["metadata"]["continue"].as_str().unwrap();
    let (_, next) = client.ask(&format!("GET /api/v1/pods?limit=1&continue={more}"), "", "");
    assert_eq!((names(&next), count(&next)), (vec!["b".to_owned()], json!(2)));
    assert!(list["items"][0]["kind"].is_null(), "items of built-in lists do not say what they are");
    let more = list["metadata"]["continue"].as_str().unwrap();
    let (_, rest) =
        client.ask(&format!("GET /api/v1/pods?{query}&limit=2&continue={more}"), "", "");
    assert_eq!(names(&rest), ["c"]);
    assert!(rest["metadata"]["continue"].is_null());
    let partial = "Accept: application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1\r\n";
    let (_, list) = client.ask("GET /api/v1/namespaces/ns/pods", partial, "");
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert!(list["items"][0]["spec"].is_null());
    assert_eq!(client.ask("GET /api/v1/pods?fieldSelector=spec.colour%3Dred", "", "").0, 400);
    api.change("pods", "ns", "a", &json!({"metadata": {"labels": {"l": "1"}}}));
    let (_, all) = client.ask("GET /api/v1/pods?limit=1", "", "");
    assert_eq!(all["items"][0]["metadata"]["labels"]["l"], "1", "it has changed since");
    api.compact();
    let (code, gone) =
        client.ask(&format!("GET /api/v1/pods?{query}&limit=2&continue={more}"), "", "");
    assert_eq!((code, reason(&gone)), (410, "Expired"));
}

#[test]
fn watches_tell_what_happens_from_a_version_on() {
    let api = KubeApi::start();
    api.create(&pod("a", "n1"));
    let mut client = Client::new(&api);
    let (_, list) = client.ask("GET /api/v1/pods", "", "");
    let version = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let watch = format!(
        "GET /api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dn1&allowWatchBookmarks=true&resourceVersion={version}"
    );
    assert_eq!(client.send(&watch, "", ""), (200, None));
    api.create(&pod("b", "n2"));
    api.create(&pod("c", "n1"));
    let mut next = || {
        let event = client.event().unwrap();
        (
            event["type"].as_str().unwrap().to_owned(),
            event["object"]["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
        )
    };
    let is = |what: &str, name: &str| (what.to_owned(), name.to_owned());
    assert_eq!(next(), is("ADDED", "c"));
    api.change("pods", "ns", "c", &json!({"metadata": {"labels": {"l": "1"}}}));
    assert_eq!(next(), is("MODIFIED", "c"));
    // An object that leaves the selection is deleted, and one that enters it is added.
    api.change("pods", "ns", "c", &json!({"spec": {"nodeName": "n2"}}));
    assert_eq!(next(), is("DELETED", "c"));
    api.change("pods", "ns", "b", &json!({"spec": {"nodeName": "n1"}}));
    assert_eq!(next(), is("ADDED", "b"));
    api.bookmark();
    assert_eq!(next(), is("BOOKMARK", ""));
    api.remove("pods", "ns", "a");
    assert_eq!(next(), is("DELETED", "a"));
    // The stream reports a version that is too old.
    api.compact();
    let mut late = Client::new(&api);
    assert_eq!(late.send(&watch, "", "").0, 200);
    let event = late.event().unwrap();
    assert_eq!(
        (event["type"].as_str(), event["object"]["code"].as_u64()),
        (Some("ERROR"), Some(410))
    );
    assert_eq!(late.event(), None);
    // A watch ends at the time that the client asked for.
    assert_eq!(late.send("GET /api/v1/pods?watch=1&timeoutSeconds=0", "", "").0, 200);
    while late.event().is_some() {}
    // And when nobody takes its events any longer.
    assert_eq!(late.send("GET /api/v1/pods?watch=1", "", "").0, 200);
    late.0.get_ref().shutdown(Shutdown::Write).unwrap();
    while late.event().is_some() {}
}

#[test]
fn who_may_not_is_refused() {
    let api = KubeApi::start();
    api.create(&pod("a", "n1"));
    api.require_token("secret");
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    api.allow_only(&[(rules, Some("ns"))]);
    let mut client = Client::new(&api);
    assert_eq!(client.ask("GET /api/v1/namespaces/ns/pods/a", "", "").0, 401);
    let token = "Authorization: Bearer secret\r\n";
    assert_eq!(client.ask("GET /api/v1/namespaces/ns/pods/a", token, "").0, 200);
    let (code, refused) = client.ask("GET /api/v1/pods", token, "");
    assert_eq!((code, reason(&refused)), (403, "Forbidden"));
    assert_eq!(client.ask("DELETE /api/v1/namespaces/ns/pods/a", token, "").0, 403);
    assert_eq!(client.ask("GET /api/v1/namespaces/default/pods/a", token, "").0, 403);
}

#[test]
fn it_is_gone_on_demand() {
    let api = KubeApi::start();
    let address = api.url().trim_start_matches("http://").to_owned();
    let mut open = Client::new(&api);
    assert_eq!(open.ask("GET /version", "", "").0, 200);
    api.refuse();
    assert!(TcpStream::connect(&address).is_err());
    assert_eq!(open.0.read(&mut [0; 1]).unwrap_or(0), 0, "open connections end");
    api.restore();
    api.fail(503);
    let mut client = loop {
        // The server listens again in a moment.
        if TcpStream::connect(&address).is_ok() {
            break Client::new(&api);
        }
    };
    assert_eq!(client.ask("GET /api/v1/pods", "", "").0, 503);
    api.restore();
    api.fail_next("list", "pods", 409);
    assert_eq!(client.ask("GET /api/v1/pods", "", "").0, 409);
    assert_eq!(client.ask("GET /api/v1/pods", "", "").0, 200);
}

/// The server validates policies as a real one does, and conditions by their kind's definition.
#[test]
fn policies_are_validated() {
    let api = KubeApi::start();
    let mut client = Client::new(&api);
    let namespace = json!({"metadata": {"name": "ns"}}).to_string();
    assert_eq!(client.ask("POST /api/v1/namespaces", "", &namespace).0, 201);
    let mut name = 0;
    let mut policy = |client: &mut Client, spec: Value| -> String {
        name += 1;
        let object = json!({"metadata": {"name": format!("p{name}")}, "spec": spec});
        let path = "POST /apis/networking.k8s.io/v1/namespaces/ns/networkpolicies";
        let (code, answer) = client.ask(path, "", &object.to_string());
        if code == 201 { String::new() } else { answer["message"].as_str().unwrap().to_owned() }
    };
    let block = |cidr: &str, except: &str| json!({"ingress": [{"from": [{"ipBlock": {"cidr": cidr, "except": [except]}}]}]});
    let port = |port: Value| json!({"egress": [{"ports": [port]}]});
    for sound in [
        json!({}),
        block("10.0.0.0/8", "10.1.0.0/16"),
        // With a warning.
        block("10.0.0.1/8", "10.1.0.0/16"),
        block("2001:db8::/32", "2001:db8:1::/48"),
        port(json!({"port": "dns", "protocol": "SCTP"})),
        port(json!({"port": 1, "endPort": 65535})),
    ] {
        assert_eq!(policy(&mut client, sound), "");
    }
    for (unsound, field) in [
        (block("10.0.0.0/8", "10.0.0.0/8"), "except[0]"),
        (block("10.0.0.0/8", "11.0.0.0/16"), "except[0]"),
        (block("10.0.0/8", "11.0.0.0/16"), "ipBlock.cidr"),
        (port(json!({"port": 0})), "ports[0].port"),
        (port(json!({"port": 2, "endPort": 1})), "endPort"),
        (port(json!({"port": "dns", "endPort": 1})), "endPort"),
        (json!({"policyTypes": ["ingress"]}), "policyTypes[0]"),
        (json!({"ingress": [{"from": [{}]}]}), "from[0]"),
        (json!({"podSelector": {"matchLabels": {"a b": "c"}}}), "podSelector.matchLabels"),
        (
            json!({"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}),
            "matchExpressions[0].values",
        ),
    ] {
        let refused = policy(&mut client, unsound);
        assert!(refused.contains(field), "{field}: {refused:?}");
    }

    let path = "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies";
    let whole = json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "c"},
        "spec": {
            "tier": "Admin", "priority": 10, "subject": {"namespaces": {}},
            "egress": [{"action": "Deny", "to": [{"networks": ["10.0.0.0/8"]}]}],
        },
    });
    for (pointer, wrong) in [
        ("/spec/tier", json!("admin")),
        ("/spec/priority", json!(1001)),
        ("/spec/subject", json!({})),
        ("/spec/egress/0/to", json!([])),
        ("/spec/egress/0/to/0", json!({"networks": ["10.0.0.0/8"], "nodes": {}})),
        ("/spec/egress/0/action", json!("Allow")),
    ] {
        let mut unsound = whole.clone();
        *unsound.pointer_mut(pointer).unwrap() = wrong;
        let (code, answer) = client.ask(&format!("POST {path}"), "", &unsound.to_string());
        assert_eq!(code, 422, "{pointer}: {answer}");
    }
    let (code, made) = client.ask(&format!("POST {path}"), "", &whole.to_string());
    assert_eq!((code, &made["metadata"]["generation"]), (201, &json!(1)), "{made}");
    let mut write =
        |at: &str, by: Value| client.ask(&format!("PATCH {path}/c{at}"), MERGE, &by.to_string());
    let condition = json!({
        "type": "policy.netwright.io/Accepted", "status": "True", "reason": "AsWritten",
        "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
    });
    let status = |all: &[&Value]| json!({"status": {"conditions": all}});
    let (code, written) = write("/status", status(&[&condition]));
    assert_eq!((code, &written["status"]["conditions"][0]), (200, &condition), "{written}");
    for (key, wrong) in [
        ("type", json!("")),
        ("status", json!("true")),
        ("reason", json!("as written")),
        ("message", Value::Null),
        ("lastTransitionTime", json!("now")),
    ] {
        let mut unsound = condition.clone();
        unsound[key] = wrong;
        assert_eq!(write("/status", status(&[&unsound])).0, 422, "{key}");
    }
    assert_eq!(write("/status", status(&[&condition, &condition])).0, 422);
    // A status is not a part of the policy, and only a change of the policy increases its
    // generation.
    let (_, changed) = write("", json!({"spec": {"priority": 11}, "status": {"conditions": []}}));
    assert_eq!(changed["metadata"]["generation"], 2);
    assert_eq!(changed["status"], written["status"]);
}

/// A kind whose definition is missing does not exist.
#[test]
fn kinds_come_and_go() {
    let api = KubeApi::start();
    api.create(&json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "c"}, "spec": {},
    }));
    let path = "GET /apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies";
    let mut client = Client::new(&api);
    let mut watching = Client::new(&api);
    assert_eq!(watching.send(&format!("{path}?watch=1"), "", "").0, 200);
    assert_eq!(watching.event().unwrap()["type"], "ADDED");
    api.withdraw("clusternetworkpolicies");
    assert_eq!(watching.event().unwrap()["type"], "DELETED");
    assert_eq!(watching.event(), None);
    let (code, refused) = client.ask(path, "", "");
    assert_eq!((code, reason(&refused)), (404, "NotFound"));
    api.serve("clusternetworkpolicies", &["v1alpha2"]);
    let (code, list) = client.ask(path, "", "");
    assert_eq!((code, &list["items"]), (200, &json!([])));
}

/// A kind with two versions is served in those that a test wants. Its objects are the same in both,
/// and so is what an admission policy says of them.
#[test]
fn kinds_are_served_in_one_version_or_in_two() {
    const VERSIONS: [&str; 2] = ["v1alpha2", "v1beta1"];
    const KIND: &str = "clusternetworkpolicies";
    let api = KubeApi::start();
    let [earlier, later] = VERSIONS.map(|version| format!("policy.networking.k8s.io/{version}"));
    let [earlier_path, later_path] =
        [&earlier, &later].map(|version| format!("/apis/{version}/{KIND}"));
    let lists = |client: &mut Client| {
        [&earlier_path, &later_path].map(|path| client.ask(&format!("GET {path}"), "", "").0)
    };
    api.create(&json!({
        "apiVersion": later, "kind": "ClusterNetworkPolicy", "metadata": {"name": "c"},
        "spec": {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}},
    }));
    let mut client = Client::new(&api);
    assert_eq!(lists(&mut client), [200, 404]);
    let mut watching = Client::new(&api);
    assert_eq!(watching.send(&format!("GET {earlier_path}?watch=1"), "", "").0, 200);
    assert_eq!(watching.event().unwrap()["object"]["apiVersion"], earlier);

    api.serve(KIND, &VERSIONS);
    assert_eq!(lists(&mut client), [200, 200]);
    let (_, list) = client.ask(&format!("GET {later_path}"), "", "");
    assert_eq!(list["apiVersion"], later);
    assert_eq!(list["items"][0]["apiVersion"], later);
    let patch = |client: &mut Client, path: &str, priority: u32| {
        let by = json!({"spec": {"priority": priority}}).to_string();
        client.ask(&format!("PATCH {path}/c"), MERGE, &by)
    };
    let (code, patched) = patch(&mut client, &later_path, 2);
    assert_eq!((code, &patched["apiVersion"]), (200, &json!(later)), "{patched}");
    let event = watching.event().unwrap();
    assert_eq!(event["object"]["apiVersion"], earlier);
    assert_eq!(event["object"]["spec"]["priority"], 2);
    // The body names the version of the address.
    let object = list["items"][0].to_string();
    assert_eq!(client.ask(&format!("POST {earlier_path}"), "", &object).0, 400);

    let admit = |version: &str| {
        api.admit(
            &[json!({
                "metadata": {"name": "no"},
                "spec": {
                    "failurePolicy": "Fail",
                    "matchConstraints": {"resourceRules": [{
                        "apiGroups": ["policy.networking.k8s.io"], "apiVersions": [version],
                        "operations": ["UPDATE"], "resources": [KIND],
                    }]},
                    "validations": [{"expression": "object.kind == 'Pod'", "message": "no"}],
                },
            })],
            &json!({"username": "somebody"}),
        );
    };
    admit("v1beta1");
    assert_eq!(patch(&mut client, &earlier_path, 3).0, 422);
    assert_eq!(patch(&mut client, &later_path, 3).0, 422);
    api.serve(KIND, &["v1alpha2"]);
    assert_eq!(patch(&mut client, &earlier_path, 3).0, 200);

    assert_eq!(watching.event().unwrap()["object"]["spec"]["priority"], 3);
    api.serve(KIND, &["v1beta1"]);
    assert_eq!(watching.event(), None);
    assert_eq!(lists(&mut client), [404, 200]);
    // A client without rights does not get to know what is served.
    api.allow_only(&[]);
    assert_eq!(lists(&mut client), [403, 403]);
}
