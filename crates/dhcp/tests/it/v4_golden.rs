//! The messages, octet for octet.

use netwright_dhcp::v4::{Client, Config, RawOption, Start, key_client_id};

use crate::support::*;

/// The message without its transaction identifier, zeros at the end, and the parts that are always
/// zero.
fn dump(payload: &[u8]) -> String {
    let hex = |octets: &[u8]| octets.iter().map(|octet| format!("{octet:02x}")).collect::<String>();
    assert!(payload[34..236].iter().all(|octet| *octet == 0), "chaddr's padding, sname, file");
    assert_eq!(payload.len(), 300, "padded as BOOTP wants it");
    let end = payload.iter().rposition(|octet| *octet != 0).unwrap() + 1;
    format!("{} {} {}", hex(&payload[..4]), hex(&payload[8..34]), hex(&payload[236..end]))
}

fn config() -> Config {
    let mut config = plain();
    config.client_id = Some(key_client_id("c1/net/eth0"));
    config.send = vec![RawOption::new(12, *b"web")];
    config
}

/// `00` and the key.
const ID: &str = "3d0c0063312f6e65742f65746830";
/// Maximum message size, parameter request list, host name.
const COMMON: &str = "390205dc370b01792103060f771a0c1c2a0c03776562";

#[test]
fn all_of_them() {
    let mut bench = Bench::new(config(), Start::Fresh);
    let nobody = "0000000000000000000000000000000000000000020000000001";
    assert_eq!(dump(&bench.last()), format!("01010600 {nobody} 63825363350101{ID}{COMMON}ff"));
    bench.reply(&Reply::new(OFFER, &bench.last()));
    assert_eq!(
        dump(&bench.last()),
        format!("01010600 {nobody} 63825363350103{ID}{COMMON}3204c00002323604c0000201ff")
    );
    bench.reply(&Reply::new(ACK, &bench.last()));
    bench.run(seconds(3600));
    let bound = "00000000c0000232000000000000000000000000020000000001";
    assert_eq!(dump(&bench.last())[9 + 8..], {
        let whole = format!("01010600 {bound} 63825363350103{ID}{COMMON}ff");
        whole[9 + 8..].to_owned()
    });
    bench.with(Client::release);
    assert_eq!(dump(&bench.last()), format!("01010600 {bound} 63825363350107{ID}3604c0000201ff"));

    let mut bench = Bench::bound(config(), 7200);
    bench.with(|client, now| client.on_conflict(now, OTHER_MAC));
    assert_eq!(
        dump(&bench.last()),
        format!(
            "01010600 {nobody} 63825363350104{ID}3204c00002323604c0000201380e6164647265737320696e20757365ff"
        )
    );
}

#[test]
fn the_broadcast_flag_is_for_clients_without_address() {
    let mut config = plain();
    config.broadcast = true;
    let mut bench = Bench::new(config, Start::Fresh);
    assert_eq!(ParsedMessage::new(&bench.last()).flags, 0x8000);
    bench.reply(&Reply::new(OFFER, &bench.last()));
    assert_eq!(ParsedMessage::new(&bench.last()).flags, 0x8000);
    bench.reply(&Reply::new(ACK, &bench.last()));
    bench.run(seconds(3600));
    assert_eq!(ParsedMessage::new(&bench.last()).flags, 0);
}

#[test]
fn options_to_send_win_over_ours_but_not_over_the_protocol() {
    let mut config = config();
    config.request = vec![];
    let option = |code: u8, value: &[u8]| RawOption::new(code, value);
    config.send = vec![
        option(61, b"\0first"),
        option(61, b"\x01second"),
        option(57, &[2, 64]),
        option(55, &[1, 3]),
        option(77, &[b'u'; 300]),
        option(53, &[7]),
        option(50, &[192, 0, 2, 99]),
        option(54, &[192, 0, 2, 99]),
        option(52, &[3]),
        option(0, &[1]),
        option(255, &[1]),
        option(80, &[]),
    ];
    let mut bench = Bench::new(config, Start::Fresh);
    let codes =
        |read: &ParsedMessage| read.options.iter().map(|(code, _)| *code).collect::<Vec<_>>();
    let read = ParsedMessage::new(&bench.last());
    assert_eq!(codes(&read), [53, 61, 57, 55, 77, 80]);
    assert_eq!((read.kind(), read.option(61)), (1, Some(&b"\x01second"[..])));
    assert_eq!(read.option(57), Some(&[2, 64][..]));
    assert_eq!(read.option(77).unwrap().len(), 300);
    // The client compares the reply's client identifier with its own, and later messages carry it
    // too.
    bench.reply(&Reply::new(OFFER, &bench.last()).with(61, b"\x01second"));
    bench.reply(&Reply::new(ACK, &bench.last()));
    assert_eq!(bench.saved().client_id.as_deref(), Some(&b"\x01second"[..]));
    bench.with(Client::release);
    let read = ParsedMessage::new(&bench.last());
    assert_eq!((codes(&read), read.option(61)), (vec![53, 61, 54], Some(&b"\x01second"[..])));
}

#[test]
fn an_empty_request_list_is_not_sent_and_small_sizes_are_raised() {
    let mut config = plain();
    config.request = vec![];
    config.max_message_size = 100;
    let bench = Bench::new(config, Start::Fresh);
    let read = ParsedMessage::new(&bench.last());
    assert_eq!((read.option(55), read.option(57)), (None, Some(&[2, 64][..])));
}

#[test]
fn client_identifiers_are_cut_as_the_reference_cuts_them() {
    assert_eq!(key_client_id("c1/net/eth0"), b"\0c1/net/eth0");
    let long = "x".repeat(300);
    assert_eq!(key_client_id(&long).len(), 255);
}
