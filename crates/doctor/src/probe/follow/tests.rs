use super::*;

fn question(to: &str) -> Question {
    Question { from: None, asked: Probe::Echo { to: to.parse().unwrap() } }
}

fn silent() -> Answer {
    Answer::Silent { hops: Vec::new() }
}

#[test]
fn some_of_what_was_not_answered_is_followed() {
    let scene = Scene::default();
    let mut all = vec![(question("127.0.0.1"), Answer::Reached { after_us: 1 })];
    all.extend((0..5).map(|_| (question("127.0.0.1"), silent())));
    all.push((question("127.0.0.2"), silent()));
    let up_to = Probe::Size { to: "127.0.0.3".parse().unwrap(), up_to: 1500 };
    all.push((Question { from: None, asked: up_to }, silent()));
    let gone = Question { from: Some("gone".to_owned()), ..question("127.0.0.4") };
    all.push((gone, silent()));
    let probes = prepare_all(&scene, &all);
    let numbers: Vec<usize> = probes.iter().map(|probe| probe.number).collect();
    assert_eq!(numbers, [1, 2, 3, 6]);
    assert_eq!(probes[3].flows[0].destination, "127.0.0.2".parse::<std::net::IpAddr>().unwrap());
}

#[test]
fn each_probe_has_a_length_of_its_own() {
    let scene = Scene::default();
    let all: Vec<_> =
        (1..=60).map(|last| (question(&format!("127.0.0.{last}")), silent())).collect();
    let probes = prepare_all(&scene, &all);
    assert_eq!(probes.len(), MOST);
    // A link that receives does not count the header of Ethernet.
    for headers in [&[0, 4][..], &[0, 14, 18]] {
        let mut seen = BTreeSet::new();
        for length in probes.iter().flat_map(|one| headers.iter().map(|more| one.length + more)) {
            assert!(seen.insert(length), "{length}");
        }
    }
    assert!(probes.iter().all(|one| one.length + 18 < 576), "RFC 791 §3.1: every host takes it");
    let ranges = lengths(&probes);
    for probe in &probes {
        for header in HEADERS {
            let length = probe.length + header;
            assert!(ranges.iter().any(|range| range.contains(&length)), "{ranges:?}");
        }
    }
    assert_eq!(ranges.len(), 1);
    // No length is that of an acknowledgement, which every connection sends all the time.
    let connect = FollowedProbe { length: IPV4 + SYN, ..prepare_all(&scene, &all[..1]).remove(0) };
    assert_eq!(lengths(&[connect]), [60..=64, 74..=78]);
}
