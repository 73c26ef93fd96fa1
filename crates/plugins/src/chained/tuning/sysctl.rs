//! Names of sysctls.

use cni::{IfName, code};
use kernel::sysctl::Sysctl as KernelSysctl;

use crate::shared::failure::Failure;

/// The placeholder for the interface's name in a key.
const PLACEHOLDER: &str = "IFNAME";

/// A sysctl of a network namespace: its path below `/proc/sys` begins with `net/` and stays there.
///
/// The reference treats every dot as a separator, so `net.ipv4.conf.IFNAME.arp_notify` works with
/// any interface, but `net.ipv4.conf.eth0.100.arp_notify` cannot mean `eth0.100`. As an addition, a
/// key with both separators may be read as `man 8 sysctl` does (the first separator decides, the
/// other is literal), if the file that the reference would mean does not exist:
/// `net/ipv4/conf/eth0.100/arp_notify` and `net.ipv4.conf.eth0/100.arp_notify`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SysctlKey {
    written: String,
    path: String,
    alternative: Option<String>,
}

impl SysctlKey {
    /// Reads a key; the first `IFNAME` in it becomes the interface's name, and dots in that name
    /// stay.
    ///
    /// # Errors
    /// Code 7, `invalid net sysctl key: "…"`, when the path would not be below `net/`.
    pub(super) fn parse(written: &str, ifname: &IfName) -> Result<Self, Failure> {
        let insert = |path: &str| path.replacen(PLACEHOLDER, ifname.as_str(), 1);
        let path = insert(&written.replace('.', "/"));
        let Some(path) = below_net(&path) else {
            return Err(Failure::new(
                code::INVALID_CONFIG,
                format!("invalid net sysctl key: {path:?}"),
            )
            .with_details(
                "only what belongs to a network namespace can be set: keys that begin with net.",
            ));
        };
        let alternative = match (written.find('.'), written.find('/')) {
            (Some(dot), Some(slash)) if dot < slash => Some(insert(&swap(written))),
            (Some(_), Some(_)) => Some(insert(written)),
            _ => None,
        };
        let alternative = alternative.as_deref().and_then(below_net).filter(|other| *other != path);
        Ok(SysctlKey { written: written.to_owned(), path, alternative })
    }

    /// Returns the key as configured.
    pub(super) fn written(&self) -> &str {
        &self.written
    }

    /// Returns the path below `/proc/sys` that the reference means.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Lists the paths that it may mean: the first one that exists counts.
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        [Some(self.path()), self.alternative.as_deref()].into_iter().flatten()
    }
}

fn swap(text: &str) -> String {
    let swapped = text.chars().map(|c| match c {
        '.' => '/',
        '/' => '.',
        other => other,
    });
    swapped.collect()
}

/// Returns the path without a leading separator if it is below `net/` and has only plain parts.
fn below_net(path: &str) -> Option<String> {
    let path = path.strip_prefix('/').unwrap_or(path);
    let mut parts = path.split('/');
    let plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    let inside = parts.next() == Some("net") && parts.next().is_some();
    (inside && path.split('/').all(plain)).then(|| path.to_owned())
}

/// Reports whether a path belongs to an interface itself: `net/ipv4/conf/eth0/…`,
/// `net/ipv6/neigh/eth0/…`.
pub(super) fn is_of_interface(path: &str, ifname: &IfName) -> bool {
    let mut parts = path.split('/').skip(2);
    matches!(parts.next(), Some("conf" | "neigh"))
        && parts.next() == Some(ifname.as_str())
        && parts.next().is_some()
}

/// Returns the path of an interface's own sysctl ([`is_of_interface`]) for another interface.
pub(super) fn of_interface(path: &str, ifname: &str) -> String {
    let mut parts: Vec<&str> = path.split('/').collect();
    if let Some(name) = parts.get_mut(3) {
        *name = ifname;
    }
    parts.join("/")
}

/// Returns the path of an interface's own sysctl as every interface has it, under the name that
/// stands for new ones; any other path as it is.
pub(super) fn of_every_interface(path: &str) -> String {
    let is_of_one = match path.split('/').collect::<Vec<_>>()[..] {
        ["net", "ipv4" | "ipv6", "conf" | "neigh", name, _] => !matches!(name, "all" | "lo"),
        _ => false,
    };
    if is_of_one { of_interface(path, "default") } else { path.to_owned() }
}

/// Reports whether a namespace without interfaces tells that a container has no sysctl of this path.
/// What a module adds that is not loaded yet (`net/netfilter/nf_conntrack_max`) may be there for
/// ADD, and what only a link of some kind has, too.
pub(super) fn is_known_before(path: &str) -> bool {
    let mut parts = path.split('/');
    let part = (parts.next(), parts.next());
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    matches!(part, (Some("net"), Some("core" | "ipv4" | "ipv6" | "unix")))
        && KernelSysctl::parse(folder).is_ok_and(|folder| folder.file().is_dir())
}

/// Reports whether two values of a sysctl are equal: the kernel separates with tabs what people
/// separate with spaces.
pub(super) fn same_value(a: &str, b: &str) -> bool {
    a.split_whitespace().eq(b.split_whitespace())
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    #[track_caller]
    fn check(key: &str, ifname: &str, expect: Expect) {
        let text = match SysctlKey::parse(key, &ifname.parse().unwrap()) {
            Ok(SysctlKey { path, alternative: None, .. }) => path,
            Ok(SysctlKey { path, alternative: Some(other), .. }) => format!("{path} or {other}"),
            Err(error) => format!("code {}: {}", error.code(), error.message()),
        };
        expect.assert_eq(&text);
    }

    #[test]
    fn dots_separate_and_the_interface_keeps_its_own() {
        check("net.ipv4.ip_forward", "eth0", expect!["net/ipv4/ip_forward"]);
        check("net/ipv4/ip_forward", "eth0", expect!["net/ipv4/ip_forward"]);
        check("/net/ipv4/ip_forward", "eth0", expect!["net/ipv4/ip_forward"]);
        check(
            "net.ipv4.conf.IFNAME.arp_notify",
            "eth0.100",
            expect!["net/ipv4/conf/eth0.100/arp_notify"],
        );
        check("net.IFNAME.IFNAME", "e", expect!["net/e/IFNAME"]);
    }

    #[test]
    fn what_is_the_interfaces_own() {
        let own = |path, ifname: &str| is_of_interface(path, &ifname.parse().unwrap());
        assert!(own("net/ipv4/conf/eth0/arp_notify", "eth0"));
        assert!(own("net/ipv6/neigh/eth0.1/gc_stale_time", "eth0.1"));
        assert!(!own("net/ipv4/conf/all/arp_notify", "eth0"));
        assert!(!own("net/ipv4/conf/eth0", "eth0"));
        assert!(!own("net/core/somaxconn", "core"));
    }

    #[test]
    fn mixed_separators_have_a_second_reading() {
        check(
            "net/ipv4/conf/eth0.100/x",
            "e",
            expect!["net/ipv4/conf/eth0/100/x or net/ipv4/conf/eth0.100/x"],
        );
        check(
            "net.ipv4.conf.eth0/100.x",
            "e",
            expect!["net/ipv4/conf/eth0/100/x or net/ipv4/conf/eth0.100/x"],
        );
        check("net/ipv4.ip_forward", "e", expect!["net/ipv4/ip_forward or net/ipv4.ip_forward"]);
    }

    #[test]
    fn nothing_outside_net_can_be_named() {
        check(
            "kernel.hostname",
            "e",
            expect![[r#"code 7: invalid net sysctl key: "kernel/hostname""#]],
        );
        check("net", "e", expect![[r#"code 7: invalid net sysctl key: "net""#]]);
        check("network.x", "e", expect![[r#"code 7: invalid net sysctl key: "network/x""#]]);
        check("", "e", expect![[r#"code 7: invalid net sysctl key: """#]]);
        check(
            "net/../kernel/hostname",
            "e",
            expect![[r#"code 7: invalid net sysctl key: "net////kernel/hostname""#]],
        );
        check("net.ipv4..x", "e", expect![[r#"code 7: invalid net sysctl key: "net/ipv4//x""#]]);
        check("net.ipv4.", "e", expect![[r#"code 7: invalid net sysctl key: "net/ipv4/""#]]);
        check("net.a\0b", "e", expect![[r#"code 7: invalid net sysctl key: "net/a\0b""#]]);
    }

    #[test]
    fn white_space_in_values_does_not_count() {
        assert!(same_value("4096 87380 6291456", "4096\t87380\t6291456\n"));
        assert!(!same_value("4096 8738", "4096\t87380"));
    }
}
