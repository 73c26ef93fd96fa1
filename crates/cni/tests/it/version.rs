//! Versions: as text, and in order.

use netwright_cni::Version;
use netwright_cni::version::{ResultFamily, compare, triple};

#[test]
fn versions_are_matched_literally() {
    for version in Version::ALL {
        assert_eq!(Version::parse(version.as_str()), Some(*version));
    }
    assert_eq!(Version::parse(""), Some(Version::V0_1_0));
    for other in ["1.0", "1.1", "v1.0.0", "1.0.0 ", "9.9.0", "abc"] {
        assert_eq!(Version::parse(other), None, "{other}");
    }
}

#[test]
fn versions_of_the_plugins_start_somewhere() {
    assert_eq!(Version::starting_from(Version::V0_1_0), Version::ALL);
    assert_eq!(
        Version::starting_from(Version::V0_4_0),
        [Version::V0_4_0, Version::V1_0_0, Version::V1_1_0]
    );
    assert_eq!(Version::starting_from(Version::CURRENT), [Version::V1_1_0]);
}

#[test]
fn results_come_in_three_families() {
    let families: Vec<ResultFamily> = Version::ALL.iter().map(|v| v.family()).collect();
    use ResultFamily::{V0_2, V0_4, V1};
    assert_eq!(families, [V0_2, V0_2, V0_4, V0_4, V0_4, V1, V1]);
}

#[test]
fn versions_order_by_up_to_three_numbers() {
    let table = [
        ("", (0, 1, 0)),
        ("1", (1, 0, 0)),
        ("1.2", (1, 2, 0)),
        ("01.02.03", (1, 2, 3)),
        ("99999999999.0.0", (u32::MAX, 0, 0)),
    ];
    for (text, expected) in table {
        assert_eq!(triple(text), Ok(expected), "{text}");
    }
    assert!(compare("0.4.0", "0.10").unwrap().is_lt());
    assert!(compare("1.0", "1.0.0").unwrap().is_eq());
}

#[test]
fn versions_that_cannot_be_ordered_say_why() {
    let table = [
        ("abc", r#"failed to convert major version part "abc": not a number"#),
        ("1.x", r#"failed to convert minor version part "x": not a number"#),
        ("1.0.", r#"failed to convert micro version part "": not a number"#),
        ("1.0.0-rc1", r#"failed to convert micro version part "0-rc1": not a number"#),
        ("+1", r#"failed to convert major version part "+1": not a number"#),
        ("1.2.3.4", r#"invalid version "1.2.3.4": too many parts"#),
        ("...", r#"invalid version "...": too many parts"#),
    ];
    for (text, expected) in table {
        assert_eq!(triple(text).unwrap_err().to_string(), expected);
    }
}
