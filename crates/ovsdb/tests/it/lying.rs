//! Servers that answer nonsense, half of it, too much, or nothing.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use netwright_ovsdb::{Client, Event, Limits, OvsdbError, Remote, Transaction};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn in_a_moment() -> Instant {
    Instant::now() + Duration::from_millis(100)
}

/// A server that answers its first request with these bytes, then waits for the client to close the
/// connection.
fn server(answer: Vec<u8>) -> (Remote, JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let remote = Remote::Tcp(listener.local_addr().unwrap());
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut heard = vec![0; 4096];
        let count = stream.read(&mut heard).unwrap();
        heard.truncate(count);
        let _ = stream.write_all(&answer);
        let _ = stream.read_to_end(&mut heard);
        heard
    });
    (remote, thread)
}

fn ask(answer: impl Into<Vec<u8>>, until: Instant) -> OvsdbError {
    let limits = Limits { message_bytes: 1 << 16, events: 3 };
    let (remote, thread) = server(answer.into());
    let mut client = Client::connect(&remote, limits, soon()).unwrap();
    let mut transaction = Transaction::new("Open_vSwitch");
    transaction.select("Bridge", vec![], &["name"]);
    let error = client.transact(&transaction, until).unwrap_err();
    drop(client);
    thread.join().unwrap();
    error
}

#[test]
fn nonsense_is_called_that() {
    for answer in [
        "HTTP/1.1 400 Bad Request\r\n\r\n",
        "{]",
        "{\"a\":\"\\x\"}",
        "{\"id\":1}}",
        r#"{"id":null,"result":[],"error":null}"#,
        r#"{"id":7,"result":[],"error":null}"#,
        r#"{"id":1,"result":{},"error":null}"#,
        r#"{"id":1,"result":[],"error":null}"#,
        r#"{"id":1,"result":[{"rows":5}],"error":null}"#,
        r#"{"id":1,"result":[{"rows":[{"name":{}}]}],"error":null}"#,
        r#"{"id":null,"method":"update","params":[]}"#,
        r#"{"id":null,"method":"update","params":["m",{"Port":{"x":{}}}]}"#,
    ] {
        let error = ask(answer, soon());
        assert!(matches!(error, OvsdbError::Nonsense { .. }), "{answer}: {error:?}");
    }
}

#[test]
fn silence_and_half_a_message_end_at_the_deadline() {
    for answer in ["", r#"{"id":1,"result":[{"rows":["#, r#"{"id":null,"method":"x","params":[]}"#]
    {
        let error = ask(answer, in_a_moment());
        assert!(
            matches!(error, OvsdbError::Deadline { doing: "transact", .. }),
            "{answer}: {error:?}"
        );
    }
}

#[test]
fn too_much_is_not_held() {
    let huge = format!(r#"{{"id":1,"result":"{}"}}"#, "x".repeat(1 << 17));
    let error = ask(huge, soon());
    assert!(matches!(error, OvsdbError::TooMuch { limit: 65536, .. }), "{error:?}");
    let updates = r#"{"id":null,"method":"update","params":["m",{}]}"#.repeat(4);
    let error = ask(updates, soon());
    assert!(matches!(error, OvsdbError::TooMuch { limit: 3, .. }), "{error:?}");
}

#[test]
fn a_refusal_is_told_in_the_servers_words() {
    let refused = r#"{"id":1,"result":null,"error":{"error":"unknown database","details":"no Open_vSwitch"}}"#;
    let error = ask(refused, soon());
    assert_eq!(error.refusal().unwrap().to_string(), "unknown database: no Open_vSwitch");
    let error = ask(r#"{"id":1,"result":null,"error":"canceled"}"#, soon());
    assert_eq!(error.refusal().unwrap().to_string(), "canceled");
}

#[test]
fn echo_is_answered_and_what_is_new_passed_over() {
    let script = concat!(
        r#"{"id":"echo","method":"echo","params":["are you there"]}"#,
        r#"{"id":null,"method":"update3","params":["m",{}]}"#,
        r#"{"id":null,"method":"locked","params":["l"]}"#,
        r#"{"id":1,"result":["x"],"error":null}"#,
    );
    let (remote, thread) = server(script.into());
    let mut client = Client::connect(&remote, Limits::default(), soon()).unwrap();
    assert_eq!(client.databases(soon()).unwrap(), ["x"]);
    assert_eq!(client.next_event(soon()).unwrap(), Some(Event::Locked("l".to_owned())));
    drop(client);
    let heard = String::from_utf8(thread.join().unwrap()).unwrap();
    assert!(heard.contains(r#"{"error":null,"id":"echo","result":["are you there"]}"#), "{heard}");
}

#[test]
fn a_server_that_hangs_up_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let remote = Remote::Tcp(listener.local_addr().unwrap());
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]);
    });
    let mut client = Client::connect(&remote, Limits::default(), soon()).unwrap();
    let error = client.echo(soon()).unwrap_err();
    assert!(error.is_temporary(), "{error:?}");
    thread.join().unwrap();
}

/// Without the feature the client has no TLS; with it, the client has no keys here.
#[test]
fn tls_without_what_it_takes_is_refused() {
    let remote: Remote = "ssl:127.0.0.1:1".parse().unwrap();
    let error = Client::connect(&remote, Limits::default(), soon()).unwrap_err();
    let refused = match cfg!(feature = "tls") {
        true => matches!(error, OvsdbError::Keys { .. }),
        false => matches!(error, OvsdbError::Connect { .. }),
    };
    assert!(refused, "{error:?}");
}
