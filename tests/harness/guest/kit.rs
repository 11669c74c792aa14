//! The parts of guests: the folder that `scripts/guest-deps.sh` fills.

use std::path::{Path, PathBuf};

/// The folder with QEMU, kernels and tools.
#[derive(Clone, Debug)]
pub(super) struct Kit(PathBuf);

impl Kit {
    /// Finds the folder where the script puts it: `BEELINE_GUEST_KIT`, else in the user's cache.
    /// The error says what is missing.
    pub(super) fn find(kernel: &str) -> Result<Kit, String> {
        let kit = Kit(place());
        for part in [
            kit.qemu(),
            kit.vhost_vsock(),
            kit.busybox(),
            kit.tools(),
            kit.vmlinux(kernel),
        ] {
            if !part.is_file() {
                return Err(format!(
                    "no guests here: {} is not there (scripts/guest-deps.sh fetches it)",
                    part.display()
                ));
            }
        }
        Ok(kit)
    }

    pub(super) fn qemu(&self) -> PathBuf {
        self.0.join("qemu-system-x86_64")
    }

    pub(super) fn vhost_vsock(&self) -> PathBuf {
        self.0.join("vhost-device-vsock")
    }

    pub(super) fn busybox(&self) -> PathBuf {
        self.0.join("busybox")
    }

    /// Returns a disk with an ext4 file system of tools and libraries.
    pub(super) fn tools(&self) -> PathBuf {
        self.0.join("tools.ext4")
    }

    /// Returns the kernel as an ELF file.
    pub(super) fn vmlinux(&self, kernel: &str) -> PathBuf {
        self.kernel(kernel).join("vmlinux")
    }

    /// Returns the kernel's modules, in the order in which they must be loaded.
    pub(super) fn modules(&self, kernel: &str) -> Vec<PathBuf> {
        let folder = self.kernel(kernel).join("modules");
        let order = std::fs::read_to_string(folder.join("order"))
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        order
            .lines()
            .map(|name| folder.join(format!("{name}.ko")))
            .collect()
    }

    fn kernel(&self, series: &str) -> PathBuf {
        self.0.join(format!("kernel-{series}"))
    }
}

fn place() -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(kit) = variable("BEELINE_GUEST_KIT") {
        return kit.into();
    }
    let cache = variable("XDG_CACHE_HOME").map_or_else(
        || Path::new(&variable("HOME").unwrap_or_else(|| "/root".into())).join(".cache"),
        PathBuf::from,
    );
    cache.join("beeline-guests")
}
