//! Processes that behave, and those that do not.

use std::path::Path;
use std::time::{Duration, Instant};

use cni::{CallEnv, code};
use netwright_cni_invoke::{Exec, Executor, InvokeError, Output, Request, Status};

use crate::script;

/// More time than any call here takes, and less than a test may hang.
const LONG: Duration = Duration::from_secs(20);

fn call(executable: &Path, request: &Request, time: Duration) -> Result<Output, InvokeError> {
    let deadline = Some(Instant::now() + time);
    Exec::new(std::env::vars_os()).call(executable, request, deadline)
}

fn run(body: &str) -> Result<Output, InvokeError> {
    let dir = tempfile::tempdir().unwrap();
    call(&script(dir.path(), "plugin", body), &Request::default(), LONG)
}

#[test]
fn in_goes_the_request_and_out_comes_the_answer() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = script(dir.path(), "plugin", "cat; echo \"$CNI_COMMAND $CNI_IFNAME\" >&2; exit 3");
    let env = CallEnv { command: "ADD".into(), ifname: "eth0".into(), ..CallEnv::default() };
    let request = Request { env, stdin: b"in".to_vec() };
    let output = call(&plugin, &request, LONG).unwrap();
    assert_eq!(
        output,
        Output { stdout: b"in".to_vec(), stderr: b"ADD eth0\n".to_vec(), status: Status::Exit(3) }
    );
}

#[test]
fn much_goes_both_ways_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = script(dir.path(), "plugin", "tee /dev/stderr");
    let stdin: Vec<u8> = (0..4 << 20).map(|n: u32| n.to_le_bytes()[0]).collect();
    let request = Request { stdin: stdin.clone(), ..Request::default() };
    let output = call(&plugin, &request, LONG).unwrap();
    assert!(output.stdout == stdin && output.stderr == stdin);
}

#[test]
fn a_plugin_need_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = script(dir.path(), "plugin", "exec <&-; echo done");
    let request = Request { stdin: vec![b' '; 4 << 20], ..Request::default() };
    assert_eq!(call(&plugin, &request, LONG).unwrap().stdout, b"done\n");
}

#[test]
fn how_a_plugin_ended_is_told() {
    for (body, status, text) in [
        ("exit 0", Status::Success, "exit status 0"),
        ("exit 255", Status::Exit(255), "exit status 255"),
        ("kill -9 $$", Status::Signal(9), "signal: killed"),
        ("kill -SEGV $$", Status::Signal(11), "signal: segmentation fault"),
        ("kill -34 $$", Status::Signal(34), "signal: signal 34"),
    ] {
        let output = run(body).unwrap();
        assert_eq!((output.status, output.status.to_string().as_str()), (status, text), "{body}");
    }
}

#[test]
fn the_environment_is_what_was_given() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = script(dir.path(), "plugin", "env | sort");
    let exec = Exec::new([
        ("PATH".into(), std::env::var_os("PATH").unwrap()),
        ("KEPT".into(), "1".into()),
        ("CNI_ARGS".into(), "stale".into()),
        ("CNI_NETNS_OVERRIDE".into(), "stale".into()),
        ("CNI_EXTRA".into(), "inherited".into()),
        ("BAGGAGE".into(), "stale".into()),
    ]);
    let trace = vec![("TRACEPARENT".to_owned(), "t".to_owned())];
    let env = CallEnv { command: "VERSION".into(), trace, ..CallEnv::default() };
    let output = exec.call(&plugin, &Request { env, stdin: Vec::new() }, None).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let ours = |line: &&str| {
        ["CNI_", "KEPT", "TRACE", "BAGGAGE"].iter().any(|start| line.starts_with(start))
    };
    assert_eq!(
        text.lines().filter(ours).collect::<Vec<_>>(),
        [
            "CNI_ARGS=",
            "CNI_COMMAND=VERSION",
            "CNI_CONTAINERID=",
            "CNI_EXTRA=inherited",
            "CNI_IFNAME=",
            "CNI_NETNS=",
            "CNI_PATH=",
            "KEPT=1",
            "TRACEPARENT=t",
        ]
    );
}

#[test]
fn a_plugin_that_hangs_is_killed_with_its_children() {
    let dir = tempfile::tempdir().unwrap();
    let body = format!("sleep 60 & echo $! > {}/child; wait", dir.path().display());
    let plugin = script(dir.path(), "plugin", &body);
    let started = Instant::now();
    let error = call(&plugin, &Request::default(), Duration::from_millis(500)).unwrap_err();
    assert!(matches!(error, InvokeError::Deadline { .. }), "{error}");
    assert_eq!(error.to_cni().code, code::TRY_AGAIN_LATER);
    assert!(started.elapsed() < Duration::from_secs(5));
    let child = std::fs::read_to_string(dir.path().join("child")).unwrap();
    // The process that inherits the child may reap it late: dead is enough.
    let stat = Path::new("/proc").join(child.trim()).join("stat");
    let deadline = Instant::now() + LONG;
    let lives = || std::fs::read_to_string(&stat).is_ok_and(|text| !text.contains(") Z "));
    while lives() {
        assert!(Instant::now() < deadline, "its child still runs");
        std::thread::yield_now();
    }
}

#[test]
fn a_plugin_that_closes_its_files_and_hangs_is_killed() {
    let started = Instant::now();
    let dir = tempfile::tempdir().unwrap();
    let plugin = script(dir.path(), "plugin", "exec <&- >&- 2>&-; sleep 60");
    let error = call(&plugin, &Request::default(), Duration::from_millis(300)).unwrap_err();
    assert!(matches!(error, InvokeError::Deadline { .. }), "{error}");
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_child_that_keeps_the_pipes_does_not_hold_us() {
    let started = Instant::now();
    let output = run("echo result; echo words >&2; sleep 5 & exit 0").unwrap();
    assert_eq!(
        (output.stdout.as_slice(), output.stderr.as_slice()),
        (&b"result\n"[..], &b"words\n"[..])
    );
    assert!(started.elapsed() < Duration::from_secs(4));
}

#[test]
fn output_without_end_is_cut_off() {
    for body in ["yes", "yes >&2", "yes | head -c 100000000"] {
        let started = Instant::now();
        let error = run(body).unwrap_err();
        assert!(matches!(error, InvokeError::TooMuchOutput { .. }), "{body}: {error}");
        assert!(started.elapsed() < Duration::from_secs(10));
    }
}

#[test]
fn what_cannot_be_started_is_named_with_the_kernels_words() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("text"), "no program").unwrap();
    let call = |name: &str| {
        let error = call(&dir.path().join(name), &Request::default(), LONG).unwrap_err();
        assert!(matches!(error, InvokeError::Start { .. }), "{error}");
        error.to_cni()
    };
    let refused = call("text");
    assert_eq!(refused.code, code::IO_FAILURE);
    assert!(refused.msg.starts_with("start plugin "), "{refused}");
    assert!(refused.msg.contains("Permission denied"), "{refused}");
    assert!(call("gone").msg.contains("No such file or directory"));
    let executable = script(dir.path(), "binary", "");
    std::fs::write(&executable, "\x7fELF broken").unwrap();
    assert!(call("binary").msg.contains("Exec format error"), "{}", call("binary"));
}

/// The reference library reports success after its last try.
#[test]
fn an_executable_that_stays_busy_is_an_error_to_try_again() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = dir.path().join("plugin");
    std::fs::copy("/bin/true", &plugin).unwrap();
    let writing = std::fs::OpenOptions::new().append(true).open(&plugin).unwrap();
    let started = Instant::now();
    let error = call(&plugin, &Request::default(), Duration::from_millis(200)).unwrap_err();
    assert!(matches!(error, InvokeError::Start { .. }), "{error}");
    assert_eq!(error.to_cni().code, code::TRY_AGAIN_LATER);
    assert!(Duration::from_millis(200) <= started.elapsed());
    drop(writing);
    assert_eq!(call(&plugin, &Request::default(), LONG).unwrap().status, Status::Success);
}

#[test]
fn an_argument_no_environment_can_hold_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = script(dir.path(), "plugin", "");
    for args in ["a\0b".to_owned(), "x".repeat(4 << 20)] {
        let env = CallEnv { args, ..CallEnv::default() };
        let error = call(&plugin, &Request { env, stdin: Vec::new() }, LONG).unwrap_err();
        assert!(matches!(error, InvokeError::Start { .. }), "{error}");
    }
}

#[test]
fn a_plugin_gets_none_of_our_files() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = script(dir.path(), "plugin", "for fd in /proc/self/fd/*; do readlink $fd; done");
    let secret = dir.path().join("secret");
    let _held = std::fs::File::create(&secret).unwrap();
    let output = call(&plugin, &Request::default(), LONG).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("pipe:") && !text.contains("secret"), "{text}");
}

#[test]
fn many_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = script(dir.path(), "plugin", "cat");
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let plugin = &plugin;
            scope.spawn(move || {
                for number in 0..10 {
                    let stdin = format!("{thread} {number}").into_bytes();
                    let request = Request { stdin: stdin.clone(), ..Request::default() };
                    assert_eq!(call(plugin, &request, LONG).unwrap().stdout, stdin);
                }
            });
        }
    });
}
