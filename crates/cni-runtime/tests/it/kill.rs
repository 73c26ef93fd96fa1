//! A kill at any moment: a file of the cache is the old one or the new one, never a part.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cni::NetworkList;
use cni_invoke::{Executor, InvokeError, Output, Request};
use netwright_cni_runtime::{Cache, Runtime};
use serde_json::json;

use crate::lab::container;

/// The variable with the child's folder.
const CHILD: &str = "NWT_RUNTIME_CHILD";

/// The length of a configuration in bytes, so that writing it takes a while.
const LENGTH: usize = 10_000;

/// How long the child may take to write something.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A plugin that costs nothing: the time goes into the cache.
#[derive(Debug)]
struct Free;

impl Executor for Free {
    fn call(&self, _: &Path, _: &Request, _: Option<Instant>) -> Result<Output, InvokeError> {
        Ok(Output { stdout: br#"{"cniVersion":"1.0.0"}"#.to_vec(), ..Output::default() })
    }
}

fn runtime(dir: &Path) -> Runtime<'static> {
    Runtime::new([dir.join("bin")], Arc::new(Free))
        .with_cache(Cache::new(dir.join("cache")).volatile())
}

fn network() -> NetworkList {
    let document = json!({ "name": "net", "cniVersion": "1.0.0",
        "plugins": [{ "type": "a", "unheard": "x".repeat(LENGTH) }] });
    NetworkList::parse(document.to_string().as_bytes()).unwrap()
}

/// The child's body. Without its variable, as in an ordinary run, it does nothing.
#[test]
fn the_child() {
    let Ok(dir) = std::env::var(CHILD) else { return };
    let (runtime, network) = (runtime(Path::new(&dir)), network());
    println!("busy");
    for turn in 0_u64.. {
        let container = container(&format!("c{}", turn % 3));
        // The first call writes a file, the second and third replace it.
        runtime.add_list(&network, &container, None).unwrap();
        if turn % 2 == 0 {
            runtime.del_list(&network, &container, None).unwrap();
        }
    }
}

#[test]
fn files_of_the_cache_are_whole_whenever_the_runtime_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("bin")).unwrap();
    std::fs::write(dir.path().join("bin/a"), "").unwrap();
    let (runtime, network) = (runtime(dir.path()), network());
    let results = dir.path().join("cache/results");
    for cycle in 0_u64..10 {
        #[expect(
            clippy::disallowed_methods,
            reason = "a process of its own is what is to be killed"
        )]
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill::the_child", "--nocapture"])
            .env(CHILD, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("busy")));
        // A reader sees what would be left if the writer died now. The writer dies after some
        // writes, and a little later.
        let mut writes = std::collections::BTreeSet::new();
        let mut death = None;
        let deadline = Instant::now() + TIMEOUT;
        while death.is_none_or(|death| Instant::now() < death) {
            assert!(Instant::now() < deadline, "cycle {cycle}: the child writes nothing");
            for id in ["c0", "c1", "c2"] {
                let Ok(mut file) = File::open(results.join(format!("net-{id}-eth0"))) else {
                    continue;
                };
                let mut seen = Vec::new();
                file.read_to_end(&mut seen).unwrap();
                let sound = LENGTH < seen.len() && seen.ends_with(b"}");
                assert!(sound, "cycle {cycle}: {} bytes", seen.len());
                let metadata = file.metadata().unwrap();
                writes.insert((id, metadata.ino(), metadata.mtime_nsec()));
            }
            if death.is_none() && 15 + cycle % 4 < u64::try_from(writes.len()).unwrap() {
                death = Some(Instant::now() + Duration::from_micros(cycle * 1613 % 9000));
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();

        let listing = runtime.cached_attachments(None).unwrap();
        assert!(listing.passed_over.is_empty(), "cycle {cycle}: {:?}", listing.passed_over);
        for cached in &listing.attachments {
            assert_eq!(cached.list().unwrap().plugins.len(), 1, "cycle {cycle}");
            assert!(cached.config.len() > LENGTH, "cycle {cycle}");
        }
        let files = || std::fs::read_dir(&results).unwrap().flatten();
        // DEL is enough, whatever the writer was doing.
        for id in ["c0", "c1", "c2"] {
            runtime.del_list(&network, &container(id), None).unwrap();
        }
        let left: Vec<_> = files().map(|file| file.file_name()).collect();
        assert!(left.iter().all(|name| name.to_string_lossy().ends_with(".tmp")), "{left:?}");
    }
}
