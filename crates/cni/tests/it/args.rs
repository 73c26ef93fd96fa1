//! `CNI_ARGS`, verbs and the environment.

use netwright_cni::{Args, CallEnv, Command};

fn check(args: &str, known: &[&str], expected: Result<(), &str>) {
    let got = Args::parse(args).and_then(|args| args.require_known(known));
    let got = got.map_err(|error| {
        assert_eq!(error.code, 4, "{args}");
        error.msg
    });
    assert_eq!(got, expected.map_err(str::to_owned), "{args}");
}

#[test]
fn cni_args_are_pairs_with_exactly_one_equals_sign() {
    check("", &["MAC"], Ok(()));
    check("MAC=02:00:00:00:00:01", &["MAC"], Ok(()));
    check("MAC=", &["MAC"], Ok(()));
    check("MAC=a=b", &["MAC"], Err(r#"ARGS: invalid pair "MAC=a=b""#));
    check("MAC", &["MAC"], Err(r#"ARGS: invalid pair "MAC""#));
    check("MAC=a;", &["MAC"], Err(r#"ARGS: invalid pair """#));
    check(";", &["MAC"], Err(r#"ARGS: invalid pair """#));
    check("a\"b\n", &[], Err(r#"ARGS: invalid pair "a\"b\n""#));
}

#[test]
fn unknown_args_are_refused_unless_ignored() {
    check("FOO=1", &["MAC"], Err(r#"ARGS: unknown args ["FOO=1"]"#));
    check("FOO=1;MAC=x;BAR=2", &["MAC"], Err(r#"ARGS: unknown args ["FOO=1" "BAR=2"]"#));
    check("mac=x", &["MAC"], Err(r#"ARGS: unknown args ["mac=x"]"#));
    for yes in ["1", "true", "True", "TRUE"] {
        check(&format!("FOO=1;IgnoreUnknown={yes}"), &[], Ok(()));
    }
    for no in ["0", "false", "FALSE"] {
        check(&format!("IgnoreUnknown={no};FOO=1"), &[], Err(r#"ARGS: unknown args ["FOO=1"]"#));
    }
    check("ignoreunknown=1", &[], Err(r#"ARGS: unknown args ["ignoreunknown=1"]"#));
}

#[test]
fn every_ignore_unknown_is_read_and_the_last_counts() {
    check("IgnoreUnknown=1;FOO=1;IgnoreUnknown=0", &[], Err(r#"ARGS: unknown args ["FOO=1"]"#));
    check("IgnoreUnknown=0;FOO=1;IgnoreUnknown=1", &[], Ok(()));
    let odd = r#"ARGS: error parsing value of pair "IgnoreUnknown=Yes": boolean unmarshal error: invalid input yes"#;
    check("IgnoreUnknown=Yes;IgnoreUnknown=1", &[], Err(odd));
}

#[test]
fn the_last_of_equal_args_counts() {
    let args = Args::parse("IP=192.0.2.1;IP=192.0.2.2").unwrap();
    assert_eq!(args.get("IP"), Some("192.0.2.2"));
    assert_eq!(args.get("ip"), None);
    assert_eq!(args.to_string(), "IP=192.0.2.1;IP=192.0.2.2");
}

#[test]
fn lenient_args_pass_over_junk() {
    let args = Args::parse_lenient("A=1=2;junk;;B=;C=3;");
    assert_eq!(args.iter().collect::<Vec<_>>(), [("A", "1=2"), ("B", ""), ("C", "3")]);
}

#[test]
fn verbs_are_upper_case() {
    for command in Command::ALL {
        assert_eq!(Command::parse(command.as_str()), Some(*command));
        assert_eq!(Command::parse(&command.as_str().to_lowercase()), None);
    }
    assert_eq!(Command::ALL.len(), 6);
    assert_eq!(Command::parse("NOPE"), None);
    assert_eq!(Command::parse(""), None);
}

fn vars(pairs: &[(&str, &str)]) -> CallEnv {
    CallEnv::from_vars(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())))
}

#[test]
fn all_six_variables_are_set_even_when_empty() {
    let env = vars(&[
        ("CNI_COMMAND", "DEL"),
        ("CNI_IFNAME", "eth0"),
        ("HOME", "/root"),
        ("CNI_VERSION", "x"),
    ]);
    let keys: Vec<&str> = env.to_vars().iter().map(|(key, _)| *key).collect();
    let six = ["CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_ARGS", "CNI_IFNAME", "CNI_PATH"];
    assert_eq!(keys, six);
}

#[test]
fn trace_context_and_the_override_pass_through() {
    let given = [
        ("CNI_NETNS_OVERRIDE", "TRUE"),
        ("TRACEPARENT", "00-a"),
        ("TRACESTATE", "t"),
        ("BAGGAGE", "b"),
    ];
    let env = vars(&given);
    assert_eq!(&env.to_vars()[6..], given);
    assert!(env.overrides_netns());
    assert!(vars(&[("CNI_NETNS_OVERRIDE", "1")]).overrides_netns());
    for no in ["", "0", "yes", "2"] {
        assert!(!vars(&[("CNI_NETNS_OVERRIDE", no)]).overrides_netns(), "{no}");
    }
}

#[test]
fn the_plugin_path_has_no_empty_folders() {
    let env = vars(&[("CNI_PATH", ":/opt/cni/bin::/usr/lib/cni:")]);
    let dirs: Vec<_> = env.plugin_path();
    assert_eq!(dirs.len(), 2);
    assert_eq!(dirs[0].to_str(), Some("/opt/cni/bin"));
}
