//! The remains of killed sessions in a process, as a hostile process forges them.

use beeline_agent::abi::Session;
use beeline_inject::{MapFlags, Mapping, Process, ProtFlags};

use super::Sleeper;
use crate::detach::{Beneath, Layers, Presence, open, presences};
use crate::error::{Error, os};
use crate::liveness::SessionId;
use crate::memory::{Memory, PAGE, pages};
use crate::private::Private;

/// A part of a process's memory, by what it pretends to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The home pool of the first session, or of the second.
    Pool(usize),
    /// The page of the first session, or of the second.
    Page(usize),
    /// Private memory, of whichever session claims it.
    Private,
    /// Code.
    Code,
}

impl Part {
    /// All of them, in the order of their addresses.
    pub const ALL: [Self; 6] = [
        Self::Pool(0),
        Self::Page(0),
        Self::Pool(1),
        Self::Page(1),
        Self::Private,
        Self::Code,
    ];

    /// Returns its address in the process.
    pub fn address(self) -> u64 {
        const FIRST: u64 = 0x1000_0000_0000;
        const DISTANCE: u64 = 16 << 20;
        let number = Self::ALL.iter().position(|part| *part == self);
        FIRST + number.unwrap_or_default() as u64 * DISTANCE
    }

    /// Returns its bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::Pool(_) => 16 * PAGE,
            Self::Page(_) => pages(size_of::<Session>()),
            Self::Private => Private::layout(0, 1).len as usize,
            Self::Code => PAGE,
        }
    }

    /// Returns the session that it is of.
    fn session(self) -> Option<SessionId> {
        match self {
            Self::Pool(number) | Self::Page(number) => Some(Remains::session(number)),
            Self::Private | Self::Code => None,
        }
    }

    fn file(self) -> std::io::Result<Memory> {
        let name = match (self, self.session()) {
            (Self::Pool(_), Some(session)) => session.name("trampolines"),
            (Self::Page(_), Some(session)) => session.name("session"),
            _ => "forged".to_owned(),
        };
        Memory::new(&name, self.bytes())
    }

    fn protection(self) -> ProtFlags {
        match self {
            Self::Pool(_) => ProtFlags::READ | ProtFlags::EXEC,
            Self::Page(_) | Self::Private => ProtFlags::READ | ProtFlags::WRITE,
            Self::Code => ProtFlags::READ | ProtFlags::WRITE | ProtFlags::EXEC,
        }
    }
}

/// A process with such memory. Zeros are all that is there at first.
pub struct Remains {
    process: Process,
    files: Vec<Memory>,
    /// True once something was taken out of the process.
    is_broken: bool,
    _sleeper: Sleeper,
}

/// The number of things that were read from a process.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Sessions.
    pub sessions: usize,
    /// Sites that are hooked.
    pub sites: usize,
    /// Jumps for system calls that are or were there, and calls that are made elsewhere.
    pub calls: usize,
    /// Sessions that are no longer there.
    pub cleared: usize,
}

impl Remains {
    /// Returns the name of a dead session, by number.
    pub fn session(number: usize) -> SessionId {
        SessionId {
            pid: i32::MAX - number as i32,
            start: 1,
        }
    }

    /// Returns what is in good private memory of a process with one CPU: offsets and bytes.
    pub fn sound_private() -> Vec<(usize, Vec<u8>)> {
        let base = Part::Private.address();
        // Only the random bytes, for which it asks the kernel, can be missing.
        let stores = Private::layout(base, 1).fill((1, 1), 1);
        let stores = stores.unwrap_or_default().into_iter();
        stores
            .map(|(at, bytes)| ((at - base) as usize, bytes))
            .collect()
    }

    /// Starts the process.
    ///
    /// # Errors
    ///
    /// It cannot be started, its memory cannot be made, or it may not be traced.
    pub fn begin() -> Result<Self, Error> {
        let sleeper = Sleeper::start().map_err(os("starting a process"))?;
        let files: Result<Vec<_>, _> = Part::ALL.iter().map(|part| part.file()).collect();
        let files = files.map_err(os("creating memory"))?;
        let process = open(sleeper.pid())?;
        let mappings = Part::ALL.iter().zip(&files).map(|(part, file)| Mapping {
            file: file.file(),
            offset: 0,
            len: file.len() as u64,
            protection: part.protection(),
            flags: MapFlags::SHARED | MapFlags::FIXED_NOREPLACE,
            address: part.address(),
        });
        let mappings: Vec<_> = mappings.collect();
        process.stopped(|stopped| stopped.map_files(&mappings))??;
        Ok(Self {
            process,
            files,
            is_broken: false,
            _sleeper: sleeper,
        })
    }

    /// True if it is as it was when it began, but for what is in its memory.
    pub fn is_whole(&self) -> bool {
        !self.is_broken && self.process.is_alive()
    }

    /// Zeroes all memory.
    pub fn clear(&self) {
        for file in &self.files {
            // SAFETY: the file is mapped for its length, and nothing here refers into it.
            unsafe { file.base().write_bytes(0, file.len()) };
        }
    }

    /// Writes to a part, as far as there is room.
    pub fn write(&self, part: Part, at: usize, bytes: &[u8]) {
        let number = Part::ALL.iter().position(|known| *known == part);
        let Some(file) = number.and_then(|number| self.files.get(number)) else {
            return;
        };
        let len = bytes.len().min(file.len().saturating_sub(at));
        if len > 0 {
            // SAFETY: the file is mapped for its length, and `at + len` is within that.
            unsafe { std::ptr::copy(bytes.as_ptr(), file.base().add(at), len) };
        }
    }

    /// Reads what is there, as `beeline ps` and a session that comes to the process do.
    pub fn look(&self) -> Seen {
        self.read(&presences(&self.process).unwrap_or_default())
    }

    /// Does that, and takes out what is there: one attempt for each session.
    pub fn take_out(&mut self) -> Seen {
        let present = presences(&self.process).unwrap_or_default();
        let mut seen = self.read(&present);
        for presence in &present {
            // Most fail, as the memory is nonsense.
            if let Ok(Some(is_done)) = presence.remove_once(&self.process) {
                seen.cleared += usize::from(is_done);
                self.is_broken |= is_done;
            }
        }
        // Its threads or handlers may have been sent anywhere.
        self.is_broken |= !present.is_empty();
        seen
    }

    fn read(&self, present: &[Presence]) -> Seen {
        let layers = Layers::among(present);
        let mut seen = Seen {
            sessions: present.len(),
            ..Seen::default()
        };
        for presence in present {
            assert!(!presence.is_live);
            presence.is_abandoned(&self.process, false);
            presence.gives_way();
            presence.hooks_calls(&self.process);
            seen.sites += presence.sites.len();
            seen.calls += presence.calls.patches.len() + presence.calls.moves.len();
            for site in presence.sites.iter().take(4) {
                presence.place_of(site.address);
                layers.is_under(site.address, site.layer);
                layers.underneath(site);
                Beneath::at(present, site.address);
            }
        }
        seen
    }
}
