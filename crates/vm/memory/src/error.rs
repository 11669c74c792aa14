use std::io;
use std::path::PathBuf;

/// The reason why a machine's memory cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The monitor.
    #[error(transparent)]
    Monitor(#[from] beeline_vm_qmp::Error),
    /// A file.
    #[error("{}: {source}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The monitor named no memory.
    #[error("QEMU names no memory of its machine")]
    NoMemory,
    /// The memory is not shared with any process but QEMU.
    #[error(
        "QEMU's memory at {address:#x} is not shared: it takes -object memory-backend-file,share=on (or memory-backend-memfd) and -machine memory-backend=ID"
    )]
    NotShared {
        /// Guest-physical.
        address: u64,
    },
    /// The process behind the monitor could not be looked at, or does not have the memory.
    #[error("process {pid}, which listens at the monitor, does not show its memory: {source}")]
    Process {
        /// Its number.
        pid: i32,
        /// The cause.
        source: io::Error,
    },
    /// The file is so long that the positions of its parts have to be given.
    #[error(
        "{} is longer than 2 GiB, so machines have parts of it behind a gap: name each part, as {}@ADDRESS,LENGTH,OFFSET",
        path.display(), path.display()
    )]
    NeedsParts {
        /// The path of the file.
        path: PathBuf,
    },
    /// A part is not in its file, or not in whole pages, or two have the same addresses.
    #[error("{}: no good part of memory at {address:#x}: {why}", path.display())]
    BadPart {
        /// The path of the file.
        path: PathBuf,
        /// Guest-physical.
        address: u64,
        /// The defect.
        why: &'static str,
    },
    /// A ring or an array is smaller than a page of the file.
    #[error("the guest's memory is a file of huge pages, of which parts cannot be mapped")]
    HugePages,
    /// The guest named an address that is in no part.
    #[error("the guest names memory at {address:#x} that its machine does not share")]
    Elsewhere {
        /// Guest-physical.
        address: u64,
    },
}
