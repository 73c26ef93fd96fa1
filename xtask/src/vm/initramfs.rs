//! The first file system: busybox, the modules needed to reach the root file system, and a script.

use std::fs;
use std::path::Path;

use super::kernel::Kernel;
use crate::run::Program;

/// The modules needed to mount this machine's root.
const MODULES: [&str; 4] = ["virtio_pci", "9pnet_virtio", "9p", "overlay"];

const BUSYBOX: &str = "/bin/busybox";

/// File types and permissions in the archive.
const DIRECTORY: u32 = 0o040_755;
const EXECUTABLE: u32 = 0o100_755;

/// Makes the archive. Its script continues with `stage` in the machine's root, with the settings in
/// its environment.
pub(super) fn make(
    kernel: &Kernel,
    stage: &Path,
    settings: &[(&str, String)],
) -> Result<Vec<u8>, String> {
    let mut archive = Archive::default();
    for dir in ["bin", "dev", "proc", "root", "modules"] {
        archive.add(dir, DIRECTORY, &[]);
    }
    let busybox =
        read(Path::new(BUSYBOX)).map_err(|error| format!("{error} (package busybox-static)"))?;
    archive.add("bin/busybox", EXECUTABLE, &busybox);
    let modules = load_order(kernel)?;
    let mut insert = String::new();
    for (number, path) in modules.iter().enumerate() {
        archive.add(&format!("modules/{number}"), EXECUTABLE, &read(Path::new(path))?);
        insert.push_str(&format!("$b insmod /modules/{number}\n"));
    }
    let environment: String =
        settings.iter().map(|(name, value)| format!("export {name}='{value}'\n")).collect();
    let init = format!(
        "#!/bin/busybox sh\nb=/bin/busybox\n\
         $b mount -t proc proc /proc\n$b mount -t devtmpfs dev /dev\n{insert}\
         $b mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576,cache=loose,ro root /root || $b poweroff -f\n\
         $b mount --move /proc /root/proc\n$b mount --move /dev /root/dev\n{environment}\
         exec $b switch_root /root /bin/bash '{}'\n",
        stage.display()
    );
    archive.add("init", EXECUTABLE, init.as_bytes());
    Ok(archive.finish())
}

/// Returns the modules' files, each after those it needs.
fn load_order(kernel: &Kernel) -> Result<Vec<String>, String> {
    let mut order: Vec<String> = Vec::new();
    for module in MODULES {
        let shown = Program::new("modprobe --show-depends --dirname")
            .arg(kernel.dir.display().to_string())
            .arg("--set-version")
            .arg(&kernel.version)
            .arg(module)
            .output()?;
        for path in shown.lines().filter_map(|line| line.strip_prefix("insmod ")) {
            let path = path.trim().to_owned();
            if !order.contains(&path) {
                order.push(path);
            }
        }
    }
    Ok(order)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("read {}: {error}", path.display()))
}

/// A cpio archive in the "newc" format (linux
/// Documentation/driver-api/early-userspace/buffer-format.rst).
#[derive(Debug, Default)]
struct Archive {
    bytes: Vec<u8>,
    inode: u32,
}

impl Archive {
    fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.inode += 1;
        let links = 1;
        let (size, name_size) = (content.len(), name.len() + 1);
        let header = format!(
            "070701{:08x}{mode:08x}{zero:08x}{zero:08x}{links:08x}{zero:08x}{size:08x}{zero:08x}{zero:08x}{zero:08x}{zero:08x}{name_size:08x}{zero:08x}",
            self.inode,
            zero = 0
        );
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::{Archive, EXECUTABLE};

    #[test]
    fn entries_are_aligned_and_described() {
        let mut archive = Archive::default();
        archive.add("ab", EXECUTABLE, b"hello");
        let bytes = archive.finish();
        let text = String::from_utf8(bytes.clone()).unwrap();
        assert!(text.starts_with("07070100000001000081ed"), "{text}");
        assert_eq!(&text[54..62], "00000005", "size");
        assert_eq!(&text[94..102], "00000003", "size of the name with its end");
        assert_eq!(&text[110..124], "ab\0\0\0\0hello\0\0\0");
        assert_eq!(bytes.len() % 4, 0);
        assert!(text.contains("TRAILER!!!"));
    }
}
