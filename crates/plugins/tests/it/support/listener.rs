//! A stand-in for a daemon of ours with a line protocol: answers as the test says, and records its
//! requests.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// The reaction of the stand-in to a request.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// Writes these bytes.
    Writes(Vec<u8>),
    /// Dies before it answers.
    Dies,
    /// Keeps silent as long as it lives.
    KeepsSilent,
}

/// The stand-in, which ends when dropped.
#[derive(Debug)]
pub(crate) struct Listener<Q> {
    socket: PathBuf,
    inode: u64,
    heard: Arc<Mutex<Vec<Q>>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl<Q: Send + 'static> Listener<Q> {
    /// Starts a stand-in that parses requests with this function, and ignores what does not parse.
    pub(crate) fn start(
        socket: PathBuf,
        read: impl Fn(&[u8]) -> Option<Q> + Send + 'static,
        mut script: impl FnMut(&Q) -> Reply + Send + 'static,
    ) -> Self {
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
                let Some(request) = read(&line) else { continue };
                let reply = script(&request);
                hears.lock().unwrap().push(request);
                match reply {
                    Reply::Writes(bytes) => {
                        let _ = stream.write_all(&bytes);
                    }
                    Reply::Dies => {}
                    Reply::KeepsSilent => kept.push(stream),
                }
            }
        });
        Listener { socket, inode, heard, is_over, thread: Some(thread) }
    }

    /// Returns the requests since the last call of this function.
    pub(crate) fn heard(&self) -> Vec<Q> {
        std::mem::take(&mut *self.heard.lock().unwrap())
    }

    /// Keeps it running as long as the test.
    pub(crate) fn forget(self) {
        std::mem::forget(self);
    }
}

impl<Q> Drop for Listener<Q> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // The thread ends at the next connection. If another stand-in has taken the socket's place
        // by now, the thread stays where no connection comes.
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

/// The requests in a folder that a daemon did not receive, as bytes by the files' names.
pub(crate) fn left_in(folder: &std::path::Path) -> Vec<(String, Vec<u8>)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = paths
        .map(|path| {
            (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap())
        })
        .collect();
    all.sort();
    all
}
