use proptest::prelude::*;

use super::*;

/// As dockerd 20.10 sends it, the empty Host included.
const CAPTURED: &[u8] =
    b"POST /NetworkDriver.Leave HTTP/1.1\r\nHost: \r\nUser-Agent: Go-http-client/1.1\r\n\
    Content-Length: 38\r\nAccept: application/vnd.docker.plugins.v1.2+json\r\n\r\n\
    {\"NetworkID\":\"n1\",\"EndpointID\":\"e1....\"}";

fn whole(kind: Kind, bytes: &[u8]) -> Result<Option<Message>, HttpError> {
    IncomingMessage::new(kind, 1000).feed(bytes)
}

#[test]
fn an_engines_request_with_an_empty_host() {
    let body_at = CAPTURED.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let text = String::from_utf8(CAPTURED.to_vec()).unwrap();
    let text = text.replace("38", &(CAPTURED.len() - body_at).to_string());
    let message = whole(Kind::Request, text.as_bytes()).unwrap().unwrap();
    assert_eq!(
        (message.method.as_str(), message.target.as_str()),
        ("POST", "/NetworkDriver.Leave")
    );
    assert_eq!(message.body, &CAPTURED[body_at..]);
    assert!(!message.close);
}

#[test]
fn what_follows_a_message_is_the_next_one() {
    let both = [request("/a", b"1", false), request("/b", b"", true)].concat();
    let mut incoming = IncomingMessage::new(Kind::Request, 10);
    let first = incoming.feed(&both).unwrap().unwrap();
    assert_eq!((first.target.as_str(), first.body.as_slice()), ("/a", &b"1"[..]));
    let second = incoming.feed(b"").unwrap().unwrap();
    assert_eq!((second.target.as_str(), second.close), ("/b", true));
    assert!(incoming.is_empty());
}

#[test]
fn answers_in_chunks_and_to_the_end() {
    let chunks =
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
        3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: t\r\n\r\n";
    for split in 0..chunks.len() {
        let mut incoming = IncomingMessage::new(Kind::Answer, 10);
        let first = incoming.feed(&chunks[..split]).unwrap();
        assert_eq!(first, None, "{split}");
        let message = incoming.feed(&chunks[split..]).unwrap().unwrap();
        assert_eq!((message.status, message.body.as_slice()), (200, &b"abcde"[..]));
    }
    let mut incoming = IncomingMessage::new(Kind::Answer, 10);
    assert_eq!(incoming.feed(b"HTTP/1.0 500 no\r\n\r\noops").unwrap(), None);
    let message = incoming.end().unwrap();
    assert_eq!((message.status, message.body.as_slice(), message.close), (500, &b"oops"[..], true));
}

#[test]
fn what_is_too_long_or_unclear_is_refused() {
    let head = |fields: &str| format!("POST / HTTP/1.1\r\n{fields}\r\n");
    let error = |text: String| whole(Kind::Request, text.as_bytes()).unwrap_err();
    assert_eq!(error(head("Content-Length: 1001\r\n")), HttpError::LongBody { limit: 1000 });
    let chunk = head("Transfer-Encoding: chunked\r\n") + "ffffff\r\n";
    assert_eq!(error(chunk), HttpError::LongBody { limit: 1000 });
    for fields in [
        "Content-Length: 1\r\nContent-Length: 2\r\n",
        "Content-Length: +1\r\n",
        "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
    ] {
        assert!(matches!(error(head(fields)), HttpError::Length(_)), "{fields}");
    }
    assert!(matches!(error("GET\r\n\r\n".to_owned()), HttpError::Head(_)));
    assert_eq!(error(format!("POST / HTTP/1.1\r\nA: {}", "a".repeat(20_000))), HttpError::LongHead);
    let mut incoming = IncomingMessage::new(Kind::Request, 10);
    assert_eq!(incoming.feed(b"POST / HT"), Ok(None));
    assert_eq!(incoming.end(), Err(HttpError::Truncated));
}

proptest! {
    #[test]
    fn written_is_read_however_it_is_cut(body in prop::collection::vec(any::<u8>(), 0..200), cut in 0usize..400) {
        for (kind, text) in [
            (Kind::Request, request("/x", &body, true)),
            (Kind::Answer, answer(200, &body, true)),
        ] {
            let cut = cut.min(text.len());
            let mut incoming = IncomingMessage::new(kind, 200);
            let first = incoming.feed(&text[..cut]).unwrap();
            let message = match first {
                Some(message) => message,
                None => incoming.feed(&text[cut..]).unwrap().unwrap(),
            };
            prop_assert_eq!(&message.body, &body);
            prop_assert!(message.close);
        }
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        for kind in [Kind::Request, Kind::Answer] {
            let mut incoming = IncomingMessage::new(kind, 100);
            for part in bytes.chunks(7) {
                if incoming.feed(part).is_err() {
                    break;
                }
            }
            let _ = incoming.end();
        }
    }
}
