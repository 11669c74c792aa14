//! The Unix sockets of this machine, as the kernel lists them: who listens, and if a client is there.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use beeline_uapi::linux::{__SO_ACCEPTCON, SS_CONNECTED};

/// The use of a socket that serves one client at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Nobody is connected.
    Free,
    /// A client is.
    Taken,
    /// Nothing listens there, as far as this process's network namespace shows.
    Unknown,
}

/// All sockets with a path.
#[derive(Debug, Default)]
pub struct Sockets(HashMap<Vec<u8>, Use>);

impl Sockets {
    /// Reads the kernel's list; empty if there is none.
    pub fn read() -> Self {
        Self::parse(&std::fs::read("/proc/net/unix").unwrap_or_default())
    }

    fn parse(list: &[u8]) -> Self {
        let mut sockets = Self::default();
        for line in list.split(|byte| *byte == b'\n') {
            // Number, count, protocol, flags, type, state, inode; then the path.
            let words: Vec<_> = line
                .split(u8::is_ascii_whitespace)
                .filter(|word| !word.is_empty())
                .collect();
            let number = |at: usize| {
                let word = std::str::from_utf8(words.get(at)?).ok()?;
                u32::from_str_radix(word, 16).ok()
            };
            let (Some(flags), Some(state)) = (number(3), number(5)) else {
                continue;
            };
            // A name that does not begin so is an abstract one, or of some unknown directory.
            let Some(path) = name(line).filter(|name| name.starts_with(b"/")) else {
                continue;
            };
            let is = match (state == SS_CONNECTED, flags & __SO_ACCEPTCON != 0) {
                (true, _) => Use::Taken,
                (false, true) => Use::Free,
                (false, false) => continue,
            };
            let known = sockets.0.entry(path.to_owned()).or_insert(is);
            if is == Use::Taken {
                *known = is;
            }
        }
        sockets
    }

    /// Returns the use of a socket.
    pub fn use_of(&self, path: &Path) -> Use {
        let known = self.0.get(path.as_os_str().as_bytes());
        known.copied().unwrap_or(Use::Unknown)
    }
}

/// Returns what stands behind a line's seven words.
fn name(line: &[u8]) -> Option<&[u8]> {
    let mut rest = line;
    for _ in 0..7 {
        rest = rest.trim_ascii_start();
        rest = &rest[rest.iter().position(|byte| *byte == b' ')?..];
    }
    rest.strip_prefix(b" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn a_socket_is_free_until_a_client_is_there() {
        let path = std::env::temp_dir().join(format!("beeline sockets {}", std::process::id()));
        let use_of = || Sockets::read().use_of(&path);
        assert_eq!(use_of(), Use::Unknown);
        let listener = UnixListener::bind(&path).unwrap();
        assert_eq!(use_of(), Use::Free);
        let client = UnixStream::connect(&path).unwrap();
        let served = listener.accept().unwrap();
        assert_eq!(use_of(), Use::Taken);
        drop((client, served));
        assert_eq!(use_of(), Use::Free);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn nonsense_is_no_socket() {
        let list = b"Num\n\n/x\nx: 1 0 zz 0001 03\n0: 2 0 10000 1 01     7 /a\n0: 2 0 0 1 01 7 /b\n\
            0: 2 0 10000 1 01 7 @/c\n0: 2 0 10000 1 01 7 @ /d\n0: 2 0 10000 1 01 7 e/f\n0: 2 0 10000 1 01 /g\n";
        let sockets = Sockets::parse(list);
        assert_eq!(sockets.use_of(Path::new("/a")), Use::Free);
        assert_eq!(sockets.use_of(Path::new("/b")), Use::Unknown);
        for other in ["/x", "/c", "/d", "/f", "/g", " /d"] {
            assert_eq!(sockets.use_of(Path::new(other)), Use::Unknown, "{other}");
        }
    }
}
