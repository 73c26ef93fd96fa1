//! Answers requests.

use std::io::{self, BufReader};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use super::http::{self, Request};
use super::kinds::{KINDS, Kind};
use super::log::LoggedRequest;
use super::select::Selector;
use super::status::Refusal;
use super::store::{Key, Page, Part, StoredObject, kind};
use super::{Mode, SharedState, State, patch, policies};

/// The default page size of a list.
const ALL: usize = usize::MAX;
/// How often a watch checks whether it should end.
const BEAT: Duration = Duration::from_millis(50);

/// A parsed address.
#[derive(Debug)]
struct Target {
    number: usize,
    kind: &'static Kind,
    version: &'static str,
    namespace: String,
    name: String,
    sub: String,
}

/// The answer to send.
enum Reply {
    Whole(u16, Value),
    /// A list, as text.
    List(String),
    Watch(Target, Selector, WatchStart, Vec<Value>),
}

/// Where a watch begins.
struct WatchStart {
    version: u64,
    /// How often all watches had been ended when this one began.
    ends: u64,
}

/// Answers the requests on a connection, until it ends.
pub(super) fn serve(shared: &SharedState, stream: &TcpStream) -> io::Result<()> {
    let mut from = BufReader::new(stream);
    let mut to = stream;
    while let Some(request) = Request::read(&mut from)? {
        let (latency, mode) = shared.faults();
        if !latency.is_zero() {
            std::thread::sleep(latency);
        }
        match mode {
            Mode::Hang => return shared.wait_while(Mode::Hang),
            Mode::Refuse => return Ok(()),
            Mode::Answer(code) => {
                let text = "the server is currently unable to handle the request";
                let refusal = Refusal::new(code, "ServiceUnavailable", text);
                note(shared, &request, None, code);
                http::answer(&mut to, code, &refusal.status().to_string())?;
                continue;
            }
            Mode::Up => {}
        }
        let mut state = shared.lock();
        let (asked, reply) = match target(&request.path) {
            Ok(target) => (asked(&request, Some(&target)), answer(&mut state, &request, target)),
            Err(None) => (asked(&request, None), Ok(Reply::Whole(200, other(&request.path)))),
            Err(Some(refusal)) => (asked(&request, None), Err(refusal)),
        };
        let code = match &reply {
            Ok(Reply::Whole(code, _)) => *code,
            Ok(Reply::List(_) | Reply::Watch(..)) => 200,
            Err(refusal) => refusal.code,
        };
        state.log.push(LoggedRequest { code, ..asked });
        drop(state);
        shared.changed.notify_all();
        match reply {
            Ok(Reply::Whole(code, value)) => http::answer(&mut to, code, &value.to_string())?,
            Ok(Reply::List(text)) => http::answer(&mut to, 200, &text)?,
            Ok(Reply::Watch(target, selector, since, first)) => {
                watch(shared, &request, &target, &selector, since, first, stream)?;
            }
            Err(refusal) => http::answer(&mut to, refusal.code, &refusal.status().to_string())?,
        }
    }
    Ok(())
}

fn note(shared: &SharedState, request: &Request, target: Option<&Target>, code: u16) {
    shared.lock().log.push(LoggedRequest { code, ..asked(request, target) });
    shared.changed.notify_all();
}

fn asked(request: &Request, target: Option<&Target>) -> LoggedRequest {
    let mut asked = LoggedRequest {
        line: format!("{} {}", request.method, request.raw_target),
        content_type: request.header("content-type").to_owned(),
        body: String::from_utf8_lossy(&request.body).into_owned(),
        is_metadata_only: metadata_only(request),
        user_agent: request.header("user-agent").to_owned(),
        ..LoggedRequest::default()
    };
    let Some(target) = target else { return asked };
    let one = request.asks("fieldSelector").strip_prefix("metadata.name=").unwrap_or_default();
    asked.verb = verb(request, target).to_owned();
    asked.group = target.kind.group.to_owned();
    asked.resource = match target.sub.as_str() {
        "" => target.kind.plural.to_owned(),
        sub => format!("{}/{sub}", target.kind.plural),
    };
    asked.namespace.clone_from(&target.namespace);
    asked.name = if target.name.is_empty() { one.to_owned() } else { target.name.clone() };
    asked
}

fn verb(request: &Request, target: &Target) -> &'static str {
    let watching = matches!(request.asks("watch"), "1" | "true");
    match (request.method.as_str(), target.name.is_empty()) {
        ("GET", _) if watching => "watch",
        ("GET", true) => "list",
        ("GET", false) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", true) => "deletecollection",
        ("DELETE", false) => "delete",
        _ => "",
    }
}

/// The address does not belong to a kind that is served.
fn no_resource() -> Refusal {
    Refusal::new(404, "NotFound", "the server could not find the requested resource")
}

/// Parses an address. An address that is not about objects, such as `/healthz`, is an error without
/// a refusal.
fn target(path: &str) -> Result<Target, Option<Refusal>> {
    let gone = || Some(no_resource());
    let mut parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, version) = match parts.as_slice() {
        ["version" | "healthz" | "livez" | "readyz"] => return Err(None),
        ["api", version, _, ..] => ("", *version),
        ["apis", group, version, _, ..] => (*group, *version),
        _ => return Err(gone()),
    };
    parts.drain(..if group.is_empty() { 2 } else { 3 });
    let mut namespace = "";
    // A namespace is an object itself, and contains others.
    if parts.len() >= 3 && parts[0] == "namespaces" && !matches!(parts[2], "status" | "finalize") {
        namespace = parts[1];
        parts.drain(..2);
    }
    let (number, kind) = kind(group, version, parts[0]).ok_or_else(gone)?;
    let version = kind.version_named(version).ok_or_else(gone)?;
    if kind.namespaced && namespace.is_empty() && 1 < parts.len()
        || !kind.namespaced && !namespace.is_empty()
    {
        return Err(gone());
    }
    let (name, sub) = match parts.as_slice() {
        [_] => ("", ""),
        [_, name] => (*name, ""),
        [_, name, "status"] if kind.status => (*name, "status"),
        _ => return Err(gone()),
    };
    let owned = str::to_owned;
    let (namespace, name, sub) = (owned(namespace), owned(name), owned(sub));
    Ok(Target { number, kind, version, namespace, name, sub })
}

fn other(path: &str) -> Value {
    match path {
        "/version" => {
            json!({"major": "1", "minor": "33", "gitVersion": "v1.33.0", "platform": "linux/amd64"})
        }
        _ => json!("ok"),
    }
}

/// Answers a request about objects. A client that may not ask for a resource does not get to know
/// whether it is served.
fn answer(state: &mut State, request: &Request, target: Target) -> Result<Reply, Refusal> {
    permitted(state, request, &target)?;
    if !state.versions(target.number).contains(&target.version) {
        return Err(no_resource());
    }
    fail_once(state, request, &target)?;
    handle(state, request, target)
}

fn permitted(state: &State, request: &Request, target: &Target) -> Result<(), Refusal> {
    if let Some(token) = &state.token
        && request.header("authorization") != format!("Bearer {token}")
    {
        return Err(Refusal::new(401, "Unauthorized", "Unauthorized"));
    }
    let asked = asked(request, Some(target));
    if let Some(rules) = &state.rules
        && !rules.iter().any(|rule| rule.allows(&asked))
    {
        let scope = match asked.namespace.as_str() {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace {namespace:?}"),
        };
        let text = format!(
            "{} {:?} is forbidden: User \"system:serviceaccount:test\" cannot {} resource {:?} in API group {:?} {scope}",
            target.kind.qualified(),
            asked.name,
            asked.verb,
            asked.resource,
            asked.group
        );
        return Err(Refusal::new(403, "Forbidden", text).of(target.kind, &asked.name));
    }
    Ok(())
}

/// Refuses a request that a test wants to fail.
fn fail_once(state: &mut State, request: &Request, target: &Target) -> Result<(), Refusal> {
    let asked = asked(request, Some(target));
    let found = state
        .failures
        .iter()
        .position(|(verb, resource, _)| *verb == asked.verb && *resource == asked.resource);
    if let Some((_, _, code)) = found.and_then(|index| state.failures.remove(index)) {
        return Err(match code {
            409 => Refusal::modified(target.kind, &target.name),
            410 => Refusal::expired(
                "The provided continue parameter is too old to display a consistent list result.",
            ),
            429 => {
                Refusal::new(429, "TooManyRequests", "Too many requests, please try again later.")
            }
            code => Refusal::new(
                code,
                "InternalError",
                "an error on the server (\"asked for by a test\") has prevented the request from succeeding",
            ),
        });
    }
    Ok(())
}

fn handle(state: &mut State, request: &Request, target: Target) -> Result<Reply, Refusal> {
    let key: Key = (target.number, target.namespace.clone(), target.name.clone());
    let part = if target.sub.is_empty() { Part::Main } else { Part::Status };
    let body = || -> Result<Value, Refusal> {
        serde_json::from_slice(&request.body)
            .map_err(|error| Refusal::bad(format!("the object provided is unrecognized: {error}")))
    };
    let resource = match part {
        Part::Main => target.kind.plural.to_owned(),
        Part::Status => format!("{}/status", target.kind.plural),
    };
    let served = state.versions(target.number);
    let admission = state.admission.as_ref();
    let admit = |before: Option<&Value>, after: &Value| {
        policies::check(target.kind, part, &key.2, after)?;
        match admission {
            Some(admission) => {
                admission.judge((target.kind, served.as_slice()), &resource, before, after)
            }
            None => Ok(()),
        }
    };
    let (kind, version) = (target.kind, target.version);
    let shown = |object: Value| match metadata_only(request) {
        true => Kind::metadata_only(&object),
        false => kind.in_version(version, object),
    };
    match verb(request, &target) {
        "get" => Ok(Reply::Whole(200, shown(state.store.get(&key)?.clone()))),
        "list" => list(state, request, &target).map(Reply::List),
        "watch" => begin_watch(state, request, target),
        "create" => {
            if part == Part::Status || !target.name.is_empty() {
                return Err(Refusal::new(
                    405,
                    "MethodNotAllowed",
                    "the server does not allow this method on the requested resource",
                ));
            }
            let object = body()?;
            typed(&object, &target)?;
            admit(None, &object)?;
            let made = state.store.create(target.number, &target.namespace, object)?;
            Ok(Reply::Whole(201, shown(made)))
        }
        "update" => {
            let object = body()?;
            typed(&object, &target)?;
            // A client that does not know what it replaces may not replace a custom object.
            if target.kind.custom
                && object["metadata"]["resourceVersion"].as_str().unwrap_or_default().is_empty()
            {
                let what = "Invalid value: 0x0: must be specified for an update";
                let field = "metadata.resourceVersion";
                return Err(Refusal::invalid(target.kind, &key.2, field, what));
            }
            // A UID in the body of a put is a precondition.
            let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
            let has = state.store.get(&key)?["metadata"]["uid"].as_str().unwrap_or_default();
            if !uid.is_empty() && uid != has {
                return Err(Refusal::precondition(target.kind, &key.2, "uid", uid, has));
            }
            let admit = |before: &Value, after: &Value| admit(Some(before), after);
            let made = state.store.update_if(&key, part, |_| Ok(object), admit)?;
            Ok(Reply::Whole(200, shown(made)))
        }
        "patch" => {
            let patch = body()?;
            let change = |before: &Value| patched(request, kind, before, &patch);
            let admit = |before: &Value, after: &Value| admit(Some(before), after);
            let made = state.store.update_if(&key, part, change, admit)?;
            Ok(Reply::Whole(200, shown(made)))
        }
        "delete" => {
            let options: Value = serde_json::from_slice(&request.body).unwrap_or_default();
            let gone = state.store.delete(&key, &options["preconditions"])?;
            // For a built-in object the answer is the object, for a custom object it is a status.
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                "details": {"name": key.2, "group": target.kind.group, "kind": target.kind.plural, "uid": gone["metadata"]["uid"]}});
            Ok(Reply::Whole(200, if target.kind.custom { status } else { gone }))
        }
        _ => Err(Refusal::new(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )),
    }
}

fn typed(object: &Value, target: &Target) -> Result<(), Refusal> {
    let kind = target.kind;
    let (version, name) = (kind.api_version(target.version), kind.kind);
    let same = |value: &Value, wanted: &str| value.as_str().is_none_or(|text| text == wanted);
    // Custom objects must contain their kind. For built-in objects the address says it.
    if same(&object["apiVersion"], &version)
        && same(&object["kind"], name)
        && (!kind.custom || object["kind"].is_string())
    {
        return Ok(());
    }
    Err(Refusal::bad(format!(
        "the API version or kind in the data does not match the expected {version}, {name}"
    )))
}

fn patched(
    request: &Request,
    kind: &Kind,
    before: &Value,
    change: &Value,
) -> Result<Value, Refusal> {
    let mut after = before.clone();
    let unsupported = || {
        let text = "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json";
        Refusal::new(415, "UnsupportedMediaType", text)
    };
    match request.header("content-type") {
        "application/json-patch+json" => patch::apply(&mut after, change).map_err(|error| {
            Refusal::new(
                422,
                "Invalid",
                format!("the server rejected our request due to an error in our request: {error}"),
            )
        })?,
        "application/merge-patch+json" => patch::merge(&mut after, change),
        // The two kinds of patch differ in lists, which a strategic one merges by a key. This
        // server knows only the key of conditions.
        "application/strategic-merge-patch+json" if !kind.custom && !has_list(change) => {
            patch::merge_conditions(&mut after, change);
        }
        _ => return Err(unsupported()),
    }
    Ok(after)
}

/// Whether a patch has a list whose key this server does not know.
fn has_list(value: &Value) -> bool {
    match value {
        Value::Array(_) => true,
        Value::Object(map) => {
            map.iter().any(|(key, value)| key != patch::CONDITIONS && has_list(value))
        }
        _ => false,
    }
}

fn metadata_only(request: &Request) -> bool {
    request
        .header("accept")
        .split(',')
        .any(|one| one.contains("as=PartialObjectMetadata") && one.contains("g=meta.k8s.io"))
}

fn selector(request: &Request, kind: &Kind) -> Result<Selector, Refusal> {
    Selector::parse(kind, request.asks("fieldSelector"), request.asks("labelSelector"))
}

fn list(state: &State, request: &Request, target: &Target) -> Result<String, Refusal> {
    let kind = target.kind;
    let selector = selector(request, kind)?;
    let limit: usize = match request.asks("limit") {
        "" | "0" => ALL,
        text => text.parse().map_err(|_| Refusal::bad(format!("invalid limit {text:?}")))?,
    };
    // A page has the version of its list's beginning. The content here is the current one, as with
    // a list that continues "inconsistently" (API concepts, "Retrieving large results sets in
    // chunks").
    let (after, version, left) = match request.asks("continue") {
        "" => (None, None, None),
        token => {
            let bad = || Refusal::bad("continue key is not valid");
            let mut parts = token.splitn(3, '!');
            let mut part = || parts.next().ok_or_else(bad);
            let (version, left, place) = (part()?, part()?, part()?);
            let number = version.parse().map_err(|_| bad())?;
            state.store.since(number).map_err(|_| {
                Refusal::expired("The provided continue parameter is too old to display a consistent list result.")
            })?;
            let (namespace, name) = place.split_once('/').ok_or_else(bad)?;
            let left: Option<usize> = left.parse().ok();
            (Some((namespace.to_owned(), name.to_owned())), Some(number), left)
        }
    };
    let Page { items, version: now, more } =
        state.store.list(target.number, &target.namespace, &selector, limit, after);
    let version = version.unwrap_or(now);
    let mut metadata = json!({"resourceVersion": version.to_string()});
    if let Some(place) = more {
        // With a selector the API does not count the rest. Without one the number is an estimate
        // (meta/v1 ListMeta, `remainingItemCount`): what the first page has counted serves for all.
        let rest = selector.selects_all().then(|| {
            let all = || state.store.count(target.number, &target.namespace);
            left.unwrap_or_else(all).saturating_sub(items.len())
        });
        let shown = rest.map_or(String::new(), |rest| rest.to_string());
        metadata["continue"] = json!(format!("{version}!{shown}!{place}"));
        if let Some(rest) = rest {
            metadata["remainingItemCount"] = json!(rest);
        }
    }
    let partial = metadata_only(request);
    let (list, version) = if partial {
        ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned())
    } else {
        (format!("{}List", kind.kind), kind.api_version(target.version))
    };
    // As from a real server, the items come last.
    let mut text =
        format!(r#"{{"kind":"{list}","apiVersion":"{version}","metadata":{metadata},"items":["#);
    for (number, stored) in items.into_iter().enumerate() {
        if 0 < number {
            text.push(',');
        }
        if partial {
            text.push_str(&Kind::metadata_only(&stored.object).to_string());
        } else if target.version == kind.version {
            text.push_str(stored.text(kind));
        } else {
            let object = kind.in_version(target.version, stored.object.clone());
            text.push_str(&kind.item(object).to_string());
        }
    }
    text.push_str("]}");
    Ok(text)
}

fn begin_watch(state: &mut State, request: &Request, target: Target) -> Result<Reply, Refusal> {
    let selector = selector(request, target.kind)?;
    match request.asks("resourceVersion") {
        "" | "0" => {
            let page = state.store.list(target.number, &target.namespace, &selector, ALL, None);
            let event = |stored: &StoredObject| json!({"type": "ADDED", "object": stored.object});
            let first = page.items.into_iter().map(event).collect();
            let since = WatchStart { version: page.version, ends: state.ends };
            Ok(Reply::Watch(target, selector, since, first))
        }
        text => {
            let since: u64 = text
                .parse()
                .map_err(|_| Refusal::bad(format!("invalid resource version {text:?}")))?;
            // A version that is too old is reported within the stream.
            let first = match state.store.since(since) {
                Ok(_) => Vec::new(),
                Err(refusal) => vec![json!({"type": "ERROR", "object": refusal.status()})],
            };
            let since = WatchStart { version: since, ends: state.ends };
            Ok(Reply::Watch(target, selector, since, first))
        }
    }
}

/// Sends events until the time is over, the peer is gone, or the test ends the watch.
fn watch(
    shared: &SharedState,
    request: &Request,
    target: &Target,
    selector: &Selector,
    since: WatchStart,
    first: Vec<Value>,
    stream: &TcpStream,
) -> io::Result<()> {
    let mut to = stream;
    let partial = metadata_only(request);
    let end = request
        .asks("timeoutSeconds")
        .parse()
        .ok()
        .map(|s| Instant::now() + Duration::from_secs(s));
    let bookmarks = matches!(request.asks("allowWatchBookmarks"), "1" | "true");
    let show = |event: &Value| {
        let mut event = event.clone();
        if event["type"] != "ERROR" {
            let object = event["object"].take();
            event["object"] = match partial {
                true => Kind::metadata_only(&object),
                false => target.kind.in_version(target.version, object),
            };
        }
        format!("{event}\n")
    };
    http::begin(&mut to)?;
    for event in &first {
        http::piece(&mut to, &show(event))?;
        if event["type"] == "ERROR" {
            return http::piece(&mut to, "");
        }
    }
    let (mut seen, mut marked) = (since.version, shared.lock().bookmarks);
    loop {
        let mut state = shared.lock();
        let is_over = end.is_some_and(|end| end <= Instant::now()) || since.ends < state.ends;
        let is_withdrawn = !state.versions(target.number).contains(&target.version);
        if state.ended || state.mode != Mode::Up || is_over || is_left(stream) {
            break;
        }
        let begin = state.store.history.partition_point(|change| change.version <= seen);
        let mut events: Vec<Value> = Vec::new();
        for change in state.store.history.range(begin..) {
            seen = change.version;
            if change.key.0 != target.number
                || !target.namespace.is_empty() && change.key.1 != target.namespace
            {
                continue;
            }
            let was = change.before.as_ref().filter(|object| selector.matches(object));
            let is = change.after.as_ref().filter(|object| selector.matches(object));
            let (what, object) = match (was, is) {
                (None, Some(is)) => ("ADDED", is.clone()),
                (Some(_), Some(is)) => ("MODIFIED", is.clone()),
                (Some(was), None) => {
                    let mut was = was.clone();
                    was["metadata"]["resourceVersion"] = json!(change.version.to_string());
                    ("DELETED", was)
                }
                (None, None) => continue,
            };
            events.push(json!({"type": what, "object": object}));
        }
        if bookmarks && marked < state.bookmarks {
            marked = state.bookmarks;
            seen = state.store.version();
            events.push(json!({"type": "BOOKMARK", "object": {
                "kind": target.kind.kind, "apiVersion": target.kind.api_version(target.version),
                "metadata": {"resourceVersion": seen.to_string(), "creationTimestamp": null},
            }}));
        }
        if events.is_empty() && is_withdrawn {
            break;
        }
        if events.is_empty() {
            state = shared.wait(state, BEAT);
            drop(state);
            continue;
        }
        drop(state);
        for event in &events {
            http::piece(&mut to, &show(event))?;
        }
    }
    http::piece(&mut to, "")
}

/// Reports whether the peer has closed its end of a connection. For a process that was killed the
/// kernel does that.
fn is_left(stream: &TcpStream) -> bool {
    let mut ready = [PollFd::new(stream, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut ready, Some(&now)).is_ok_and(|count| 0 < count)
}

/// Returns all kinds with objects, for messages.
pub(super) fn known(state: &State) -> String {
    state
        .store
        .kinds()
        .iter()
        .map(|number| KINDS[*number].qualified())
        .collect::<Vec<_>>()
        .join(", ")
}
