//! TLS with the real server, with keys of Open vSwitch's own tool, and with servers that misbehave.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use netwright_ovsdb::vswitch::{Bridge, DATABASE, TypedRow as _};
use netwright_ovsdb::{Client, Condition, Keys, Limits, OvsdbError, Remote, Transaction};
use testkit::real::{Ovs, Pki};
use testkit::{Lab, Place as _};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn keys(pki: &Pki, name: &str) -> Keys {
    let [private_key, certificate, ca_cert] = pki.files(name);
    Keys { private_key, certificate, ca_cert }
}

fn pki(lab: &Lab, dir: &str, names: &[&str]) -> Pki {
    let dir = lab.dir().join(dir);
    std::fs::create_dir_all(&dir).unwrap();
    Pki::new(dir, names)
}

/// The error's whole chain.
fn chain_text(error: &OvsdbError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text.push_str(&format!(": {error}"));
        source = error.source();
    }
    text
}

/// Connects and sends a request: a server may reject our certificate only then.
fn ask(lab: &Lab, remote: &Remote) -> Result<Vec<String>, String> {
    lab.enter(|| {
        let client = Client::connect(remote, Limits::default(), soon());
        client.and_then(|mut client| client.databases(soon())).map_err(|error| chain_text(&error))
    })
}

#[test]
fn a_server_of_the_authority_is_spoken_to_and_no_other() {
    testkit::require!("root", "program:ovsdb-server", "program:ovs-pki", "program:openssl");
    let lab = Lab::new("ovsdb-tls");
    let mut ovs = Ovs::database_only(&lab);
    let ours = pki(&lab, "ours", &["sc", "cl"]);
    let theirs = pki(&lab, "theirs", &["cl"]);
    let remote: Remote = ovs.speak_tls(&ours, "sc").parse().unwrap();
    let with = |keys: Keys| ask(&lab, &remote.clone().with_keys(keys));

    // The whole protocol works over it, also with messages larger than a TLS record.
    let whole = remote.clone().with_keys(keys(&ours, "cl"));
    assert_eq!(whole.to_string(), "ssl:127.0.0.1:6640");
    lab.enter(|| {
        let mut client = Client::connect(&whole, Limits::default(), soon()).unwrap();
        assert!(client.databases(soon()).unwrap().contains(&DATABASE.to_owned()));
        // The schema has 40 KB.
        client.schema(DATABASE, soon()).unwrap().require(&[("Bridge", Bridge::COLUMNS)]).unwrap();
        let mut long = Transaction::new(DATABASE);
        long.comment(&"x".repeat(200_000));
        long.select("Bridge", vec![Condition::equals("name", "br0")], Bridge::COLUMNS);
        client.transact(&long, soon()).unwrap();
        assert_eq!(client.next_event(Instant::now() + Duration::from_millis(20)).unwrap(), None);
        client.echo(soon()).unwrap();
    });
    let log = ovs.log();
    assert!(!log.contains("unexpected SSL connection close"), "{log}");

    // Another authority: we reject the server's certificate, and the server rejects ours.
    let wrong = Keys { ca_cert: keys(&theirs, "cl").ca_cert, ..keys(&ours, "cl") };
    let error = with(wrong).unwrap_err();
    assert!(error.contains("TLS with ssl:127.0.0.1:6640: invalid peer certificate"), "{error}");
    let foreign = Keys { ca_cert: keys(&ours, "cl").ca_cert, ..keys(&theirs, "cl") };
    let error = with(foreign).unwrap_err();
    assert!(error.contains("TLS with") && error.contains("alert"), "{error}");

    // Files that are missing or have other contents.
    let none = ask(&lab, &remote).unwrap_err();
    assert!(none.starts_with("no keys for ssl:127.0.0.1:6640: give a private key"), "{none}");
    let missing = Keys { private_key: "/nonexistent".into(), ..keys(&ours, "cl") };
    let error = with(missing).unwrap_err();
    assert!(error.starts_with("private key \"/nonexistent\" for ssl:"), "{error}");
    let swapped = Keys { certificate: keys(&ours, "cl").private_key, ..keys(&ours, "cl") };
    assert!(with(swapped).unwrap_err().contains("it holds no certificate (PEM)"));
    let swapped = Keys { private_key: keys(&ours, "cl").certificate, ..keys(&ours, "cl") };
    assert!(with(swapped).unwrap_err().contains("it holds no private key"));
    let mixed = Keys { private_key: keys(&ours, "sc").private_key, ..keys(&ours, "cl") };
    let error = with(mixed).unwrap_err();
    assert!(error.starts_with("certificate \""), "{error}");
}

#[test]
fn a_certificate_whose_time_is_over_is_told() {
    testkit::require!("root", "program:ovsdb-server", "program:ovs-pki", "program:openssl");
    let lab = Lab::new("ovsdb-tls-old");
    let mut ovs = Ovs::database_only(&lab);
    let pki = pki(&lab, "pki", &["sc", "cl", "oldcl"]);
    pki.expire("oldcl");
    let remote: Remote = ovs.speak_tls(&pki, "sc").parse().unwrap();
    let error = ask(&lab, &remote.clone().with_keys(keys(&pki, "oldcl"))).unwrap_err();
    assert!(error.contains("CertificateExpired"), "{error}");
    pki.expire("sc");
    ovs.speak_tls(&pki, "sc");
    let error = ask(&lab, &remote.with_keys(keys(&pki, "cl"))).unwrap_err();
    assert!(error.contains("certificate expired"), "{error}");
}

/// A server that accepts, sends these bytes, and then nothing.
fn server(says: &'static [u8]) -> (Remote, thread::JoinHandle<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let remote = Remote::Tls(listener.local_addr().unwrap(), None);
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(says);
        stream
    });
    (remote, thread)
}

#[test]
fn silence_half_a_handshake_and_nonsense_end_in_time() {
    testkit::require!("root", "program:ovs-pki", "program:openssl");
    let lab = Lab::new("ovsdb-tls-half");
    let pki = pki(&lab, "pki", &["cl"]);
    let connect = |says| {
        let (remote, thread) = server(says);
        let until = Instant::now() + Duration::from_millis(200);
        let with = remote.with_keys(keys(&pki, "cl"));
        let error = Client::connect(&with, Limits::default(), until).unwrap_err();
        drop(thread.join().unwrap());
        error
    };
    // Nothing; a record that is announced and does not come; the beginning of a server's first
    // message.
    for half in [&b""[..], b"\x16\x03\x03\x00\x7a", b"\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x03\x03"]
    {
        let error = connect(half);
        assert!(
            matches!(error, OvsdbError::Deadline { doing: "the TLS handshake", .. }),
            "{half:x?}: {error:?}"
        );
    }
    // A server that speaks plain OVSDB, another protocol, or none at all.
    for nonsense in
        [&b"{\"id\":\"echo\",\"method\":\"echo\",\"params\":[]}"[..], b"HTTP/1.1 400\r\n\r\n"]
    {
        let error = connect(nonsense);
        assert!(matches!(error, OvsdbError::Tls { .. }), "{error:?}");
    }
    // A server that closes the connection.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let remote = Remote::Tls(listener.local_addr().unwrap(), Some(keys(&pki, "cl")));
    let thread = thread::spawn(move || drop(listener.accept()));
    let error = Client::connect(&remote, Limits::default(), soon()).unwrap_err();
    assert!(error.is_temporary(), "{error:?}");
    thread.join().unwrap();
}
