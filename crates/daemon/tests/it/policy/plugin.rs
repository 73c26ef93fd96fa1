//! STUB: what the plugin `policy` does, until that is merged (`node_api::policy`, "Order").

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use firewall::pods::{Logging, PodsTable, close, forget};
use node_api::Message as _;
use node_api::policy::{Answer, Enforced, LOCK, Owner, PLUGIN, Recorded, Request, Started};
use state::{Index, Record, Roots};

const TIME: Duration = Duration::from_secs(2);

fn key(owner: &Owner) -> cni::AttachmentKey {
    cni::AttachmentKey {
        network: owner.network.parse().unwrap(),
        container_id: owner.container.parse().unwrap(),
        ifname: owner.ifname.parse().unwrap(),
    }
}

fn ask(socket: &Path, request: &Request) -> Option<Answer> {
    use std::io::{BufRead as _, Write as _};
    let mut stream = std::os::unix::net::UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(TIME)).ok()?;
    stream.write_all(&request.to_line().unwrap()).ok()?;
    let mut line = Vec::new();
    std::io::BufReader::new(stream).read_until(b'\n', &mut line).ok()?;
    Answer::from_line(&line).ok()
}

/// ADD.
pub(super) fn add(roots: &Roots, socket: &Path, started: &Started) -> Option<Enforced> {
    let index = Index::new(roots);
    {
        let _lock = index.lock(LOCK, TIME).unwrap();
        let mut table = PodsTable::open(Logging { rate: 0, ..Logging::default() }).unwrap();
        close(&mut table, &started.addresses).unwrap();
        let recorded = Recorded { started: started.clone(), ..Recorded::default() };
        let data = serde_json::to_value(recorded).unwrap();
        index.put(&Record::new(key(&started.owner), PLUGIN, "boot", data)).unwrap();
    }
    match ask(socket, &Request::Start(started.clone())) {
        Some(Answer::Enforced(enforced)) => Some(enforced),
        _ => None,
    }
}

/// DEL.
pub(super) fn del(roots: &Roots, socket: &Path, owner: &Owner, addresses: &[IpAddr]) {
    let index = Index::new(roots);
    if ask(socket, &Request::End(owner.clone())) != Some(Answer::Ok) {
        let _lock = index.lock(LOCK, TIME).unwrap();
        let mut table = PodsTable::open(Logging::default()).unwrap();
        forget(&mut table, addresses).unwrap();
    }
    index.remove(&key(owner), PLUGIN).unwrap();
}

/// CHECK.
pub(super) fn check(socket: &Path, owner: &Owner) -> Answer {
    ask(socket, &Request::Verdicts(owner.clone())).unwrap()
}
