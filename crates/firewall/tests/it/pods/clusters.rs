//! Random clusters of the crate `policy`'s own tests, placed in a lab.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use policy::{Change, Pod};

#[allow(dead_code, reason = "other tests use the rest of it")]
#[path = "../../../../policy/tests/it/case.rs"]
mod case;
#[allow(dead_code, reason = "other tests use the rest of it")]
#[path = "../../../../policy/tests/it/support.rs"]
pub(super) mod support;

pub(super) use case::Case;

/// The node whose table is tested.
pub(super) const NODE: &str = "one";
/// The node of all other pods.
const ELSEWHERE: &str = "three";
/// How many pods the lab has.
pub(super) const PODS: u8 = 6;

/// Moves the pods of a case. Most of them get the lab's node, and the addresses of the lab's pods.
/// The others get one other node.
pub(super) fn placed(mut case: Case) -> Case {
    for change in case.objects.iter_mut().chain(&mut case.changes) {
        if let Change::Pod(_, Some(pod)) = change
            && !pod.host_network
        {
            place(pod);
        }
    }
    case
}

fn place(pod: &mut Pod) {
    let Some((on, serial)) = pod.addresses.first().map(|address| numbers(*address)) else { return };
    let is_here = serial <= u16::from(PODS) && on != 3;
    pod.node = Some(if is_here { NODE } else { ELSEWHERE }.into());
    let on = if is_here { 1 } else { 3 };
    for address in &mut pod.addresses {
        *address = match address {
            IpAddr::V4(_) => {
                let (on, serial) = (u8::try_from(on).unwrap(), u8::try_from(serial).unwrap());
                Ipv4Addr::new(10, 244, on, serial).into()
            }
            IpAddr::V6(_) => Ipv6Addr::new(0xfd00, 0x244, on, 0, 0, 0, 0, serial).into(),
        };
    }
}

/// The generator's addresses: 10.244.NODE.SERIAL, and fd00:244:NODE::SERIAL with the same digits.
fn numbers(address: IpAddr) -> (u16, u16) {
    match address {
        IpAddr::V4(v4) => {
            let [.., on, serial] = v4.octets();
            (on.into(), serial.into())
        }
        IpAddr::V6(v6) => {
            let segments = v6.segments();
            let digits = format!("{:x}", segments[7]);
            (segments[2], digits.parse().unwrap())
        }
    }
}

/// The addresses of a pod of the lab.
pub(super) fn of_pod(number: u8) -> [IpAddr; 2] {
    [
        Ipv4Addr::new(10, 244, 1, number).into(),
        Ipv6Addr::new(0xfd00, 0x244, 1, 0, 0, 0, 0, number.into()).into(),
    ]
}
