//! flanneld's configuration on the disk.

use netwright_routing::Routing;
use netwright_routing::flannel::config::Config;
use netwright_routing::flannel::kept;

use crate::support::{Random, settings};

const CONFIGURATION: &str = r#"{
  "Network": "10.244.0.0/16",
  "IPv6Network": "fd00:244::/32",
  "EnableIPv6": true,
  "Backend": {"Type": "vxlan", "VNI": 7, "Port": 8473}
}"#;

fn why(document: &[u8]) -> String {
    kept::read(document).unwrap_err().to_string()
}

/// If the text were kept without a checksum, one flipped bit could describe another cluster.
#[test]
fn any_damage_is_found_and_no_other_cluster_is_read() {
    let good = kept::write(CONFIGURATION).into_bytes();
    assert_eq!(kept::read(&good).as_deref(), Ok(CONFIGURATION));
    let mut tried = 0;
    let mut check = |bad: &[u8]| {
        if bad != good {
            assert!(kept::read(bad).is_err(), "{}", String::from_utf8_lossy(bad));
            tried += 1;
        }
    };
    for place in 0..good.len() {
        check(&good[..place]);
        for bit in 0..8 {
            let mut bad = good.clone();
            bad[place] ^= 1 << bit;
            check(&bad);
        }
    }
    let mut random = Random(7);
    for _ in 0..1_000 {
        let size = 1 + random.below(16);
        let [one, other] = [(); 2].map(|()| random.below(good.len() - size));
        let mut bad = good.clone();
        bad[one..one + size].copy_from_slice(&good[other..other + size]);
        bad[other..other + size].copy_from_slice(&good[one..one + size]);
        check(&bad);
    }
    assert!(3_000 < tried, "{tried}");
    // The text alone does not show the damage: this is the result of a flipped bit.
    let other = CONFIGURATION.replacen("10.244.", "10.245.", 1);
    assert!(Config::read(&other).is_ok());
}

#[test]
fn what_is_none_of_its_documents_is_refused_in_a_sentence() {
    let begin = "the copy of flanneld's configuration on the disk cannot be used: ";
    for garbage in [&b""[..], b"null", b"[]", b"{}", b"\"\"", b"\xff\xfe", &[0; 4096]] {
        assert!(why(garbage).starts_with(begin), "{}", why(garbage));
    }
    let good = kept::write(CONFIGURATION);
    let newer = good.replacen("\"version\":1", "\"version\":2", 1);
    assert_eq!(why(newer.as_bytes()), format!("{begin}it has version 2"));
    let other = good.replacen("10.244.", "10.245.", 1);
    assert_eq!(why(other.as_bytes()), format!("{begin}its sum is wrong"));
    // The format from before there were checksums.
    assert_eq!(why(CONFIGURATION.as_bytes()), format!("{begin}it has no sum"));
    // The last known peers are a document of the same kind.
    let peers = Routing::new(settings(), "a").document();
    assert!(why(peers.as_bytes()).starts_with(begin));
    let huge = kept::write(&"x".repeat(1 << 20));
    assert!(why(huge.as_bytes()).starts_with(&format!("{begin}it has 1048")), "{}", huge.len());
}
