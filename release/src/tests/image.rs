//! The image, as containerd sees it.

use testkit::Lab;
use testkit::real::Containerd;

use crate::contents;
use crate::goods::Architecture::{Aarch64, X86_64};
use crate::goods::tests::{built, texts};

#[test]
fn containerd_imports_the_image_and_has_all_of_it() {
    testkit::require!(
        "root",
        "program:containerd",
        "program:runc",
        "program:curl",
        "file:/usr/bin/busybox"
    );
    let lab = Lab::with_processes("release-image");
    let containerd = Containerd::without_network(&lab, "/opt/cni/bin");
    let image = contents::image(&texts(), &[built(X86_64), built(Aarch64)]).unwrap();
    let archive = lab.dir().join("image.tar");
    std::fs::write(&archive, image.write(texts().epoch).unwrap()).unwrap();
    containerd.take(&archive);
    let known = containerd.images();
    let lines: Vec<&str> = known
        .lines()
        .filter(|line| line.starts_with("ghcr.io/netwright/netwright:0.1.0 "))
        .collect();
    let [listed, checked] = lines[..] else { panic!("{known}") };
    assert!(listed.contains("linux/amd64,linux/arm64"), "{listed}");
    assert!(checked.contains("complete"), "{checked}");
}
