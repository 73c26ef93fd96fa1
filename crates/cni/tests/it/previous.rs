//! `prevResult` must fit the configuration's version.

use netwright_cni::result::check_family;
use netwright_cni::{AddResult, CommonConfig, Version, json};

fn previous(version: Version, prev_result: &str) -> Result<Option<AddResult>, (u32, String)> {
    let config: CommonConfig =
        json::from_str(&format!(r#"{{"cniVersion":"{version}","prevResult":{prev_result}}}"#))
            .unwrap();
    config.previous(version).map_err(|error| (error.code, error.msg))
}

const IPS: &str = r#""ips":[{"address":"192.0.2.2/24"}]"#;

#[test]
fn a_previous_result_of_the_same_family_is_accepted() {
    for config in Version::ALL {
        for said in Version::ALL.iter().filter(|said| said.family() == config.family()) {
            let result = previous(*config, &format!(r#"{{"cniVersion":"{said}"}}"#)).unwrap();
            assert_eq!(result, Some(AddResult::default()), "{said} in {config}");
        }
    }
}

#[test]
fn a_previous_result_of_another_family_is_refused() {
    let table = [
        (Version::V1_1_0, "0.4.0", r#"[1.0.0 1.1.0] but unmarshalled CNIVersion is "0.4.0""#),
        (Version::V1_0_0, "9.9.9", r#"[1.0.0 1.1.0] but unmarshalled CNIVersion is "9.9.9""#),
        (Version::V0_4_0, "1.0.0", r#"[0.3.0 0.3.1 0.4.0] but unmarshalled CNIVersion is "1.0.0""#),
        (Version::V0_2_0, "0.3.1", r#"[ 0.1.0 0.2.0] but unmarshalled CNIVersion is "0.3.1""#),
    ];
    for (config, said, tail) in table {
        let expected = (6, format!("could not parse prevResult: result type supports {tail}"));
        assert_eq!(previous(config, &format!(r#"{{"cniVersion":"{said}"}}"#)), Err(expected));
    }
    assert!(check_family(Version::V1_1_0, Version::V1_0_0).is_ok());
    let error = check_family(Version::V0_4_0, Version::V1_0_0).unwrap_err();
    assert!(
        error.msg.starts_with("could not parse prevResult: result type supports [1.0.0 1.1.0]")
    );
}

#[test]
fn a_previous_result_without_version_is_of_the_configurations() {
    for text in [
        format!("{{{IPS}}}"),
        format!(r#"{{"cniVersion":"",{IPS}}}"#),
        format!(r#"{{"cniVersion":null,{IPS}}}"#),
    ] {
        assert_eq!(previous(Version::V1_0_0, &text).unwrap().unwrap().ips.len(), 1);
        assert_eq!(previous(Version::V0_3_1, &text).unwrap().unwrap().ips.len(), 1);
        // 0.2.0 has no `ips`.
        assert_eq!(previous(Version::V0_2_0, &text).unwrap().unwrap().ips.len(), 0);
    }
}

#[test]
fn null_is_no_previous_result_and_an_empty_object_is_one() {
    assert_eq!(previous(Version::V1_0_0, "null"), Ok(None));
    assert_eq!(previous(Version::V1_0_0, "{}"), Ok(Some(AddResult::default())));
    let error = previous(Version::V1_0_0, "5").unwrap_err();
    assert_eq!(error.0, 6);
    assert!(error.1.starts_with("could not parse prevResult: "), "{}", error.1);
}
