//! A proxy between the engine and the driver kills the driver at a chosen call.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use testkit::Lab;

use super::support::{Driver, SOCKET};

/// Where the driver listens behind the proxy.
pub(crate) const BEHIND: &str = "/run/behind.sock";

/// The call that is the driver's last.
#[derive(Debug, Clone)]
pub(crate) struct Blow {
    pub(crate) call: String,
    /// The delay after the driver got the call.
    pub(crate) after: Duration,
}

/// Forwards every call to the driver; kills and restarts the driver on request.
pub(crate) fn serve<'lab, T>(
    lab: &'lab Lab,
    driver: Driver<'lab>,
    work: impl FnOnce(&Control<'_, 'lab>) -> T,
) -> T {
    let path = lab.path(SOCKET);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let (restart, restarts) = mpsc::channel::<Option<mpsc::Sender<()>>>();
    let driver = Mutex::new(driver);
    let control = Control {
        driver: &driver,
        restart,
        blow: Arc::new(Mutex::new(None)),
        struck: Arc::new(AtomicBool::new(false)),
    };
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        // A program that a lab runs ends with the thread that started it, so this thread stays.
        let keeper = &driver;
        scope.spawn(move || {
            while let Ok(Some(done)) = restarts.recv() {
                let mut driver = keeper.lock().unwrap();
                driver.kill();
                driver.again();
                done.send(()).unwrap();
            }
        });
        let accepting = scope.spawn(|| {
            for stream in listener.incoming() {
                if end.load(Ordering::SeqCst) {
                    return;
                }
                let (stream, control) = (stream.unwrap(), &control);
                scope.spawn(move || control.forward(stream));
            }
        });
        let guard = EndGuard { end: &end, path: &path, restart: &control.restart };
        let done = work(&control);
        drop(guard);
        accepting.join().unwrap();
        done
    })
}

/// Ends the thread that accepts connections, also when the test fails.
struct EndGuard<'a> {
    end: &'a AtomicBool,
    path: &'a std::path::Path,
    restart: &'a mpsc::Sender<Option<mpsc::Sender<()>>>,
}

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.end.store(true, Ordering::SeqCst);
        let _ = UnixStream::connect(self.path);
        let _ = self.restart.send(None);
    }
}

/// How a test controls the proxy.
#[derive(Debug)]
pub(crate) struct Control<'a, 'lab> {
    driver: &'a Mutex<Driver<'lab>>,
    restart: mpsc::Sender<Option<mpsc::Sender<()>>>,
    blow: Arc<Mutex<Option<Blow>>>,
    struck: Arc<AtomicBool>,
}

impl Control<'_, '_> {
    /// Makes the next call of that name the driver's last, before it is started again.
    pub(crate) fn strike(&self, blow: Blow) {
        self.struck.store(false, Ordering::SeqCst);
        *self.blow.lock().unwrap() = Some(blow);
    }

    /// Whether the driver was killed.
    pub(crate) fn has_struck(&self) -> bool {
        self.struck.load(Ordering::SeqCst)
    }

    fn forward(&self, mut engine: UnixStream) {
        let Some(request) = read_request(&mut engine) else { return };
        let text = String::from_utf8_lossy(&request);
        let call = text.split(' ').nth(1).unwrap_or_default().trim_start_matches('/').to_owned();
        let blow = {
            let mut blow = self.blow.lock().unwrap();
            if blow.as_ref().is_some_and(|blow| blow.call == call) { blow.take() } else { None }
        };
        let socket = self.driver.lock().unwrap().socket();
        let Ok(mut driver) = UnixStream::connect(socket) else { return };
        if driver.write_all(&request).is_err() {
            return;
        }
        let Some(blow) = blow else {
            let mut answer = Vec::new();
            if driver.read_to_end(&mut answer).is_ok() {
                let _ = engine.write_all(&answer);
            }
            return;
        };
        // The moment itself is what the test varies.
        thread::sleep(blow.after);
        let (done, wait) = mpsc::channel();
        self.restart.send(Some(done)).unwrap();
        wait.recv().unwrap();
        self.struck.store(true, Ordering::SeqCst);
    }
}

/// Reads a request as the engine sends it, with its length.
fn read_request(stream: &mut UnixStream) -> Option<Vec<u8>> {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let length = stream.read(&mut buffer).ok().filter(|length| *length != 0)?;
        request.extend_from_slice(&buffer[..length]);
        let Some(end) = request.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&request[..end]).to_lowercase();
        let body =
            head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        let body: usize = body.unwrap_or_default();
        if end + 4 + body <= request.len() {
            return Some(request);
        }
    }
}
