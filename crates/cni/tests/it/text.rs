//! Addresses and quotes.

use netwright_cni::text::{
    lines, one_line, parse_cidr, parse_ip, printable, quote, quote_list, shortened,
};

#[test]
fn addresses_with_a_prefix_keep_their_host_bits() {
    for text in ["192.0.2.1/24", "0.0.0.0/0", "192.0.2.1/32", "2001:db8::1/64", "::/0", "::1/128"] {
        assert_eq!(parse_cidr(text).unwrap().to_string(), text);
    }
    assert_eq!(parse_cidr("2001:DB8:0:0::1/064").unwrap().to_string(), "2001:db8::1/64");
}

#[test]
fn what_other_programs_read_differently_is_refused() {
    let bad = [
        "192.0.2.010/24",
        "192.0.2.1",
        "192.0.2.1/",
        "192.0.2.1/33",
        "192.0.2.1/+8",
        "192.0.2.1/-1",
        "192.0.2.1/8/8",
        "192.0.2/24",
        "2001:db8::/129",
        "fe80::1%eth0/64",
        " 192.0.2.1/24",
        "192.0.2.1/ 24",
        "",
        "/",
    ];
    for text in bad {
        assert_eq!(parse_cidr(text), None, "{text}");
    }
    for text in ["192.0.2.010", "fe80::1%eth0", "192.0.2", "192.0.2.1/24", ""] {
        assert_eq!(parse_ip(text), None, "{text}");
    }
}

#[test]
fn an_ipv4_address_in_ipv6_clothes_is_ipv4() {
    assert_eq!(parse_ip("::ffff:192.0.2.1").unwrap().to_string(), "192.0.2.1");
    assert_eq!(parse_cidr("::ffff:192.0.2.1/120").unwrap().to_string(), "192.0.2.1/24");
    assert_eq!(parse_cidr("::ffff:192.0.2.1/95"), None);
}

#[test]
fn words_are_quoted_as_go_does() {
    assert_eq!(quote("a\"b\\c\n\t\u{1}\u{7f}\u{85}é"), r#""a\"b\\c\n\t\x01\x7f\u0085é""#);
    assert_eq!(quote_list(["0.1.0", "a b"]), r#"["0.1.0" "a b"]"#);
    assert_eq!(quote_list([]), "[]");
}

#[test]
fn a_terminal_obeys_nothing_of_what_is_shown() {
    let nasty = "a\u{1b}[31m\u{9b}2J\u{7f}\r\u{202e}\u{2066}\u{200f}\u{2028}é\tb\nc";
    let shown = r"a\u{1b}[31m\u{9b}2J\u{7f}\r\u{202e}\u{2066}\u{200f}\u{2028}é";
    assert_eq!(one_line(nasty), format!(r"{shown}\tb\nc"));
    assert_eq!(lines(nasty), format!("{shown}\tb\nc"));
    // What is shortened too, and what a message quotes.
    assert_eq!(printable(nasty), one_line(nasty));
    assert_eq!(format!("{:?}", shortened(nasty)), format!(r#""{shown}\tb\nc""#));
    assert_eq!(printable(&format!("{}\u{7}", "a".repeat(80))), format!("{}…", "a".repeat(80)));
}
