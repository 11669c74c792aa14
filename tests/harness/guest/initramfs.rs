//! The file system that a guest boots from: a cpio archive of the "new ASCII" form, as the kernel
//! unpacks it (Documentation/driver-api/early-userspace/buffer-format.rst).

use super::kit::Kit;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

const INIT: &str = include_str!("init.sh");
const CONTROL: &str = include_str!("control.sh");

const FOLDER: u32 = 0o040_755;
const LINK: u32 = 0o120_777;
const PROGRAM: u32 = 0o100_755;
const DATA: u32 = 0o100_644;

/// Links to the mounted disk of tools, in the place of these directories.
const LINKS: [(&str, &str); 4] = [
    ("usr", "tools/usr"),
    ("lib", "tools/usr/lib"),
    ("lib64", "tools/lib64"),
    ("sbin", "bin"),
];

/// Makes the archive: busybox, the kernel's modules, the guest's start script, and `files` as pairs
/// of a path on this machine and one in the guest.
pub(super) fn make(kit: &Kit, kernel: &str, files: &[(impl AsRef<Path>, String)]) -> Vec<u8> {
    let mut archive = Archive::default();
    for folder in ["dev", "proc", "sys", "tmp", "run", "tools", "etc", "root"] {
        archive.folder(folder);
    }
    for (name, goal) in LINKS {
        archive.entry(name, LINK, goal.as_bytes());
    }
    archive.file("bin/busybox", PROGRAM, &kit.busybox());
    for applet in applets(kit) {
        archive.entry(&format!("bin/{applet}"), LINK, b"busybox");
    }
    let mut order = String::new();
    for module in kit.modules(kernel) {
        let name = module.file_name().expect("a module's name");
        let name = format!("modules/{}", name.display());
        archive.file(&name, DATA, &module);
        order += &format!("/{name}\n");
    }
    archive.folder("modules");
    archive.entry("modules/order", DATA, order.as_bytes());
    archive.entry("init", PROGRAM, INIT.as_bytes());
    archive.entry("control", PROGRAM, CONTROL.as_bytes());
    archive.entry("etc/inittab", DATA, b"::once:/control\n");
    for (from, to) in files {
        archive.file(to.trim_start_matches('/'), PROGRAM, from.as_ref());
    }
    archive.end()
}

/// Returns the names of busybox's commands.
fn applets(kit: &Kit) -> Vec<String> {
    let output = Command::new(kit.busybox())
        .arg("--list")
        .output()
        .expect("cannot run busybox");
    let names = String::from_utf8(output.stdout).expect("names in ASCII");
    names
        .lines()
        .filter(|&name| name != "busybox")
        .map(str::to_owned)
        .collect()
}

#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    folders: BTreeSet<String>,
    entries: u32,
}

impl Archive {
    fn file(&mut self, name: &str, mode: u32, from: &Path) {
        let content =
            std::fs::read(from).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        self.entry(name, mode, &content);
    }

    fn folder(&mut self, name: &str) {
        if self.folders.insert(name.to_owned()) {
            self.entry(name, FOLDER, &[]);
        }
    }

    /// Adds an entry, and the folders above it.
    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        for (end, _) in name.match_indices('/') {
            self.folder(&name[..end]);
        }
        self.entries += 1;
        let size = u32::try_from(content.len()).expect("files of less than 4 GiB");
        let name_size = u32::try_from(name.len() + 1).expect("a short name");
        // inode, mode, owner, group, links, time, size, device (two numbers), device of a node
        // (two), name's size, sum.
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            size,
            0,
            0,
            0,
            0,
            name_size,
            0,
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        let whole = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(whole, 0);
    }

    fn end(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_once_and_before_what_is_in_them() {
        let mut archive = Archive::default();
        archive.entry("a/b/c", DATA, b"text");
        archive.entry("a/b/d", DATA, b"");
        let bytes = archive.end();
        let names: Vec<_> = names(&bytes);
        assert_eq!(names, ["a", "a/b", "a/b/c", "a/b/d", "TRAILER!!!"]);
    }

    /// Reads names as the kernel does: a header of 110 bytes, the name, the content, each padded to
    /// four bytes.
    fn names(mut bytes: &[u8]) -> Vec<String> {
        let mut names = Vec::new();
        while bytes.len() > 110 {
            assert_eq!(&bytes[..6], b"070701");
            let field = |n: usize| {
                let digits = std::str::from_utf8(&bytes[6 + 8 * n..][..8]).unwrap();
                usize::from_str_radix(digits, 16).unwrap()
            };
            let (size, name_size) = (field(6), field(11));
            let name = &bytes[110..110 + name_size - 1];
            names.push(String::from_utf8(name.to_vec()).unwrap());
            let content = (110 + name_size).next_multiple_of(4);
            bytes = &bytes[(content + size).next_multiple_of(4)..];
        }
        names
    }
}
