//! A stand-in for a daemon of ours that is asked by lines: answers as the test says, and remembers
//! what it was told.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What the stand-in does about a request.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// Writes this.
    Writes(Vec<u8>),
    /// Dies before it answers.
    Dies,
    /// Keeps silent as long as it lives.
    KeepsSilent,
}

/// The stand-in, until it is dropped.
#[derive(Debug)]
pub(crate) struct Listener<Q> {
    socket: PathBuf,
    inode: u64,
    heard: Arc<Mutex<Vec<Q>>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl<Q: Send + 'static> Listener<Q> {
    /// Starts one that reads requests so, and passes over what is none.
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

    /// Takes what it was told since it was asked last.
    pub(crate) fn heard(&self) -> Vec<Q> {
        std::mem::take(&mut *self.heard.lock().unwrap())
    }

    /// Leaves it running as long as the test does.
    pub(crate) fn forget(self) {
        std::mem::forget(self);
    }
}

impl<Q> Drop for Listener<Q> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // It ends when it is called; another one may have taken its place by now, and then it stays
        // where nobody calls it.
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

/// What is left in a folder for a daemon that did not hear it, as bytes by the files' names.
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
