//! The verifier's log, as a tool asks for it.

use beeline_runtime::backend::VerifierLog;
use beeline_supervisor::Memory;
use beeline_uapi::{Errno, log};

use crate::syscalls::attr::Log;

/// The bits of a log's level.
const LEVELS: u32 = log::LEVEL1 | log::LEVEL2 | log::STATS | log::FIXED;

impl Log {
    /// Checks the fields. A buffer needs a size and a level, and the other way round; a level alone
    /// asks only for the log's length.
    pub(super) fn check(&self) -> Result<(), Errno> {
        let has_buffer = self.buffer != 0;
        if has_buffer != (self.size != 0) || (has_buffer && self.level == 0) {
            return Err(Errno::EINVAL);
        }
        if self.level & !LEVELS != 0 || self.size > u32::MAX >> 2 {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    /// Writes the log. Returns ENOSPC if the text and its NUL did not fit at some time. If they
    /// still do not, the buffer receives the text's end, or, if the tool asked for that
    /// (`BPF_LOG_FIXED`), its beginning.
    pub(super) fn write(&self, memory: &Memory<'_>, said: &VerifierLog) -> Result<(), Errno> {
        if self.buffer == 0 {
            return Ok(());
        }
        let room = self.size as usize - 1;
        let mut bytes = fitting(said.text.as_bytes(), room, self.level).to_vec();
        bytes.push(0);
        memory.write(self.buffer, &bytes)?;
        if said.longest <= room {
            Ok(())
        } else {
            Err(Errno::ENOSPC)
        }
    }
}

/// Returns the part of a log that fits into `room` bytes.
fn fitting(text: &[u8], room: usize, level: u32) -> &[u8] {
    let cut = text.len().saturating_sub(room);
    let part = if level & log::FIXED != 0 {
        text.get(..text.len() - cut)
    } else {
        text.get(cut..)
    };
    part.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_does_not_fit_keeps_its_end() {
        assert_eq!(fitting(b"0: exit\n", 8, 1), b"0: exit\n");
        assert_eq!(fitting(b"0: exit\n", 5, 1), b"exit\n");
        assert_eq!(fitting(b"0: exit\n", 2, 9), b"0:");
        assert_eq!(fitting(b"", 0, 1), b"");
    }

    #[test]
    fn log_parameters_must_agree() {
        let log = |level, size, buffer| {
            Log {
                level,
                size,
                buffer,
            }
            .check()
        };
        assert_eq!(log(0, 0, 0), Ok(()));
        assert_eq!(log(1, 0, 0), Ok(()));
        assert_eq!(log(1, 10, 4096), Ok(()));
        assert_eq!(log(0, 10, 4096), Err(Errno::EINVAL));
        assert_eq!(log(1, 10, 0), Err(Errno::EINVAL));
        assert_eq!(log(1, 0, 4096), Err(Errno::EINVAL));
        assert_eq!(log(16, 10, 4096), Err(Errno::EINVAL));
        assert_eq!(log(1, u32::MAX, 4096), Err(Errno::EINVAL));
    }
}
