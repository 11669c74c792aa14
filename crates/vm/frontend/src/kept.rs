//! Large contents of guests' kernels, kept on the disk for the next tool.
//!
//! A file holds the last content of a name in kernels of one version. It is no more than a guess:
//! its sum is offered to the guest, and it is used only if the guest confirms that its own content
//! has that sum. So neither the content of a file nor its author matters.

use std::fs::{DirBuilder, File};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use beeline_codegen::CodeStore;
use beeline_vm_protocol::content::{Sum, sum};
use beeline_vm_protocol::messages::Welcome;

/// The number of files in the directory. Those that have been unused for longest are removed.
const FILES: usize = 16;
/// The bytes of the longest file.
const LONGEST: u64 = 32 << 20;
/// The name below the directory where code is kept.
const DIRECTORY: &str = "guests";

/// A directory of contents. All its errors mean that nothing is kept.
pub(crate) struct Kept {
    directory: Option<PathBuf>,
    kernel: String,
}

/// A content that was kept.
pub(super) struct Guess {
    pub(super) content: Vec<u8>,
    pub(super) sum: Sum,
}

impl Kept {
    /// Opens the directory for this user and for the kernel that the proxy described.
    pub(crate) fn new(welcome: &Welcome) -> Self {
        let directory = CodeStore::standard_directory();
        Self::at(
            directory.map(|directory| directory.join(DIRECTORY)),
            welcome,
        )
    }

    fn at(directory: Option<PathBuf>, welcome: &Welcome) -> Self {
        let kernel = [
            &welcome.sysname,
            &welcome.release,
            &welcome.kernel_version,
            &welcome.machine,
        ];
        Self {
            directory,
            kernel: kernel.map(String::as_str).join("\n"),
        }
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        let name = sum(format!("{}\n{name}", self.kernel).as_bytes());
        let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        Some(self.directory.as_ref()?.join(name))
    }

    /// Returns the content that the name may have now.
    pub(super) fn guess(&self, name: &str) -> Option<Guess> {
        let mut options = File::options();
        let options = options
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = options.open(self.path(name)?).ok()?;
        let facts = file.metadata().ok()?;
        if !facts.is_file() || facts.len() > LONGEST {
            return None;
        }
        let mut content = Vec::with_capacity(facts.len() as usize);
        (&file).take(LONGEST).read_to_end(&mut content).ok()?;
        // Contents that are no longer requested are removed first.
        let _ = file.set_modified(SystemTime::now());
        let sum = sum(&content);
        Some(Guess { content, sum })
    }

    /// Keeps the content of a name for next time, completely or not at all.
    pub(super) fn keep(&self, name: &str, content: &[u8]) {
        if content.len() as u64 > LONGEST {
            return;
        }
        let Some(path) = self.path(name) else { return };
        let Some(directory) = path.parent() else {
            return;
        };
        let _ = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory);
        remove_oldest(directory);
        let coming = path.with_extension(std::process::id().to_string());
        let mut options = File::options();
        let file = options.write(true).create_new(true).mode(0o600);
        let written = file
            .open(&coming)
            .and_then(|mut file| file.write_all(content))
            .and_then(|()| std::fs::rename(&coming, &path));
        if written.is_err() {
            let _ = std::fs::remove_file(&coming);
        }
    }
}

/// Makes room for one more file.
fn remove_oldest(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return;
    };
    let mut files: Vec<(SystemTime, PathBuf)> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            Some((entry.metadata().ok()?.modified().ok()?, entry.path()))
        })
        .collect();
    files.sort();
    let many = (files.len() + 1).saturating_sub(FILES);
    for (_, path) in files.into_iter().take(many) {
        let _ = std::fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(release: &str) -> Welcome {
        Welcome {
            release: release.into(),
            ..Welcome::default()
        }
    }

    #[test]
    fn a_kept_file_is_the_guess_for_its_name_and_kernel() {
        let folder = tempfile::tempdir().unwrap();
        let at = |release| Kept::at(Some(folder.path().join("x/y")), &kernel(release));
        let kept = at("6.1");
        assert!(kept.guess("types").is_none());
        kept.keep("types", b"one");
        kept.keep("types", b"two");
        let guess = at("6.1").guess("types").unwrap();
        assert_eq!(guess.content, b"two");
        assert_eq!(guess.sum, sum(b"two"));
        assert!(kept.guess("functions").is_none());
        assert!(at("6.12").guess("types").is_none());
    }

    #[test]
    fn old_contents_go() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Kept::at(Some(folder.path().into()), &kernel("6.1"));
        for number in 0..2 * FILES {
            kept.keep(&number.to_string(), b"content");
        }
        let count = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(count, FILES);
        let last = (2 * FILES - 1).to_string();
        assert!(kept.guess(&last).is_some());
    }

    #[test]
    fn a_pipe_is_no_content() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Kept::at(Some(folder.path().into()), &kernel("6.1"));
        let path = kept.path("types").unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        assert!(kept.guess("types").is_none());
        assert!(Kept::at(None, &kernel("6.1")).guess("types").is_none());
    }
}
