//! A stand-in for `netwrightd multinet`: answers as the test says, and remembers what it was told.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use npwg::wire::{self, Answer, Plan, PlannedNetwork, Request};

use super::Node;

/// What the stand-in does about a request.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// Answers.
    Says(Answer),
    /// Writes this.
    Writes(Vec<u8>),
    /// Dies before it answers.
    Dies,
    /// Keeps silent as long as it lives.
    KeepsSilent,
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Reply::Says(answer)
    }
}

/// The stand-in, until it is dropped.
#[derive(Debug)]
pub(crate) struct Daemon {
    socket: PathBuf,
    inode: u64,
    heard: Arc<Mutex<Vec<Request>>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Where a node's daemon listens.
pub(crate) fn socket(node: &Node) -> PathBuf {
    node.roots.run.join("multinet.sock")
}

/// What the daemon finds when it starts.
pub(crate) fn left(node: &Node) -> Vec<Request> {
    let folder = wire::todo_dir(&socket(node));
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let read = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.unwrap().path();
        let request = wire::read_request(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(path.file_name().unwrap().to_str(), request.todo_name().as_deref());
        request
    };
    entries.map(read).collect()
}

impl Daemon {
    /// Starts one that plans these networks and is content with everything else.
    pub(crate) fn planning(node: &Node, networks: Vec<PlannedNetwork>) -> Self {
        let plan = Answer::Plan(Plan { uid: "uid-1".to_owned(), networks });
        Daemon::start(node, move |request| match request {
            Request::Plan(_) => plan.clone().into(),
            _ => Answer::Ok.into(),
        })
    }

    /// Starts one.
    pub(crate) fn start(
        node: &Node,
        mut script: impl FnMut(&Request) -> Reply + Send + 'static,
    ) -> Self {
        let socket = socket(node);
        fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        let inode = fs::metadata(&socket).unwrap().ino();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let is_over = Arc::new(AtomicBool::new(false));
        let (hears, ends) = (Arc::clone(&heard), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            let mut kept = Vec::new();
            for stream in listener.incoming() {
                if ends.load(Ordering::SeqCst) {
                    return;
                }
                let mut stream = stream.unwrap();
                let mut line = Vec::new();
                BufReader::new(&stream).read_until(b'\n', &mut line).unwrap();
                let Ok(request) = wire::read_request(&line) else { continue };
                let reply = script(&request);
                hears.lock().unwrap().push(request);
                match reply {
                    Reply::Says(answer) => {
                        let _ = stream.write_all(&wire::write_answer(&answer).unwrap());
                    }
                    Reply::Writes(bytes) => {
                        let _ = stream.write_all(&bytes);
                    }
                    Reply::Dies => {}
                    Reply::KeepsSilent => kept.push(stream),
                }
            }
        });
        Daemon { socket, inode, heard, is_over, thread: Some(thread) }
    }

    /// Takes what it was told since it was asked last.
    pub(crate) fn heard(&self) -> Vec<Request> {
        std::mem::take(&mut *self.heard.lock().unwrap())
    }

    /// The same, by the first word of each.
    pub(crate) fn words(&self) -> Vec<&'static str> {
        let word = |request: &Request| match request {
            Request::Plan(_) => "plan",
            Request::Attached(_) => "attached",
            Request::Failed(_) => "failed",
            Request::Detached(_) => "detached",
            Request::Status => "status",
        };
        self.heard().iter().map(word).collect()
    }

    /// Leaves it running as long as the test does.
    pub(crate) fn forget(self) {
        std::mem::forget(self);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // It ends when it is called; another one may have taken its place by now, and then it stays where nobody calls it.
        let called = UnixStream::connect(&self.socket);
        if let (Ok(_), Some(thread)) = (called, self.thread.take())
            && fs::metadata(&self.socket).is_ok_and(|found| found.ino() == self.inode)
        {
            let _ = fs::remove_file(&self.socket);
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the stand-in panicked");
        }
    }
}
