//! A link: a program and where it is attached.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use beeline_agent::abi;
use beeline_hook::{Exit, Function, Incoming, Plan};
use beeline_inject::Region;
use parking_lot::Mutex;

use crate::backend::{AttachPoint, CallContext, Edge, Id};
use crate::binary::Binary;
use crate::error::Error;
use crate::program::Program;

/// Bytes that a link takes here: itself, and what is kept of the places that it leads to.
const BYTES: u64 = 16 << 10;
/// Bytes that each further place of a link takes.
const BYTES_OF_PLACE: u64 = 1 << 10;

/// Returns the bytes that a link to a place, or to many, takes here.
pub fn bytes_of(point: &AttachPoint) -> u64 {
    match point {
        AttachPoint::UprobeMulti { probes, .. } => BYTES + BYTES_OF_PLACE * probes.len() as u64,
        _ => BYTES,
    }
}

/// A program attached to places in a file.
#[derive(Debug)]
pub struct Uprobe {
    /// Its id.
    pub id: Id,
    /// The program.
    pub program: Arc<Program>,
    /// The places, at least one, all in the same file.
    pub probes: Vec<Probe>,
    /// True to run at the return.
    pub retprobe: bool,
    /// Only this process.
    pub pid: Option<i32>,
}

/// One of a link's places.
#[derive(Debug)]
pub struct Probe {
    /// The place.
    pub place: FilePlace,
    /// The function's exits, where the program runs if it is to run at the return and return
    /// addresses must stay as they are.
    pub exits: Option<Vec<FilePlace>>,
    /// For `bpf_get_attach_cookie`.
    pub cookie: u64,
    /// The file offset of the semaphore that is raised while the place is probed.
    pub semaphore: Option<u64>,
}

/// One of a link's places, where a process has it.
#[derive(Debug, Clone, Copy)]
pub struct Mapped<'a> {
    /// The address.
    pub address: u64,
    /// The place, or one of its exits.
    pub place: &'a FilePlace,
    /// The request.
    pub probe: &'a Probe,
}

impl Probe {
    /// Returns the places at which the program runs.
    fn places(&self) -> &[FilePlace] {
        match &self.exits {
            Some(exits) => exits,
            None => std::slice::from_ref(&self.place),
        }
    }
}

impl Uprobe {
    /// Returns the place that stands for all of them in messages and where only the file matters.
    ///
    /// # Panics
    ///
    /// There is no place: no link is made without one.
    pub fn first(&self) -> &FilePlace {
        &self.probes[0].place
    }

    /// Returns the places at which the program runs.
    pub fn places(&self) -> impl Iterator<Item = &FilePlace> {
        self.probes.iter().flat_map(Probe::places)
    }

    /// Returns the addresses at which a process has these places.
    pub fn addresses(&self, regions: &[Region]) -> Vec<Mapped<'_>> {
        let texts = self.first().texts(regions);
        let mut found = Vec::new();
        for probe in &self.probes {
            for place in probe.places() {
                let addresses = texts.iter().filter_map(|region| place.address_in(region));
                found.extend(addresses.map(|address| Mapped {
                    address,
                    place,
                    probe,
                }));
            }
        }
        found
    }

    /// True if it has a semaphore.
    pub fn has_semaphore(&self) -> bool {
        self.probes.iter().any(|probe| probe.semaphore.is_some())
    }
}

/// A place in a file's text.
#[derive(Debug)]
pub struct FilePlace {
    /// As the tool named it.
    pub path: PathBuf,
    /// Bytes from the start of the file.
    pub offset: u64,
    /// Set if it was found as an exit of its function.
    exit: Option<Exit>,
    /// The function around it: its file offset, and its bytes.
    function: (u64, Vec<u8>),
    file: Arc<ProbedFile>,
}

/// A file that probes are placed in, read once in a session.
#[derive(Debug)]
pub struct ProbedFile {
    binary: Binary,
    bytes: Vec<u8>,
    device: u64,
    inode: u64,
    /// Branches between its functions, at file offsets.
    incoming: Incoming,
}

impl ProbedFile {
    fn read(path: &Path) -> Result<Self, Error> {
        let open = |source| Error::Open {
            path: path.into(),
            source,
        };
        let facts = fs::metadata(path).map_err(open)?;
        let bytes = fs::read(path).map_err(open)?;
        let binary = Binary::parse(&bytes).map_err(|why| Error::Binary {
            path: path.into(),
            why,
        })?;
        let functions = binary.functions();
        let incoming = Incoming::of(functions.iter().filter_map(|range| {
            let code = bytes.get(range.start as usize..range.end as usize)?;
            Some(Function {
                start: range.start,
                code,
            })
        }));
        Ok(Self {
            binary,
            bytes,
            device: facts.dev(),
            inode: facts.ino(),
            incoming,
        })
    }
}

/// The files of a session, by what identifies their contents.
#[derive(Debug, Default)]
pub struct Files(Mutex<HashMap<FileId, Arc<ProbedFile>>>);

/// Device, inode, and the time of the last change in seconds and nanoseconds.
pub type FileId = (u64, u64, i64, i64);

/// Returns what identifies the contents of a file now.
///
/// # Errors
///
/// [`Error::Open`] if `stat(2)` fails.
pub fn file_id(path: &Path) -> Result<FileId, Error> {
    let facts = fs::metadata(path).map_err(|source| Error::Open {
        path: path.into(),
        source,
    })?;
    Ok((facts.dev(), facts.ino(), facts.mtime(), facts.mtime_nsec()))
}

impl Files {
    /// Looks up a place.
    ///
    /// # Errors
    ///
    /// [`Error::Site`] with the file and the reason that no probe can be there.
    pub fn place(&self, path: &Path, offset: u64) -> Result<FilePlace, Error> {
        let file = self.file(path)?;
        let why = |why| Error::Site {
            path: path.into(),
            offset,
            why,
        };
        let function = file.binary.place(offset).map_err(why)?.function;
        let code = file
            .bytes
            .get(function.start as usize..function.end as usize);
        let code = code
            .ok_or_else(|| why("the file is shorter than its headers say".into()))?
            .to_vec();
        Ok(FilePlace {
            path: path.into(),
            offset,
            exit: None,
            function: (function.start, code),
            file,
        })
    }

    /// Returns the exits of the function that begins at a place, and the file offsets at which it
    /// jumps to others.
    ///
    /// # Errors
    ///
    /// [`Error::Site`] if the function does not begin there or it is not known where it returns,
    /// and those of [`Self::place`].
    pub fn exits(&self, place: &FilePlace) -> Result<(Vec<FilePlace>, Vec<u64>), Error> {
        let (start, code) = (place.function.0, &place.function.1);
        let why = |why: &str| Error::Site {
            path: place.path.clone(),
            offset: place.offset,
            why: why.into(),
        };
        if start != place.offset {
            return Err(why("a return probe needs the function's first address"));
        }
        let found = beeline_hook::exits(&Function { start, code }, &place.file.incoming);
        if found.hidden.is_some() {
            return Err(why(
                "not all of the function is code, so it is not known where it returns",
            ));
        }
        let at = |exit: &Exit| {
            let place = self.place(&place.path, exit.site)?;
            Ok(FilePlace {
                exit: Some(*exit),
                ..place
            })
        };
        let returns: Result<Vec<_>, Error> = found.returns.iter().map(at).collect();
        Ok((returns?, found.jumps))
    }

    /// Returns the place of a function that Beeline itself looks for, if the file has it.
    pub fn wanted(&self, path: &Path, name: &str) -> Option<FilePlace> {
        let offset = self.file(path).ok()?.binary.wanted(name)?;
        self.place(path, offset).ok()
    }

    /// True if the file has been read.
    pub fn knows(&self, path: &Path) -> bool {
        let known = self.0.lock();
        file_id(path).is_ok_and(|id| known.contains_key(&id))
    }

    fn file(&self, path: &Path) -> Result<Arc<ProbedFile>, Error> {
        let key = file_id(path)?;
        let mut known = self.0.lock();
        if let Some(file) = known.get(&key) {
            return Ok(file.clone());
        }
        let file = Arc::new(ProbedFile::read(path)?);
        known.insert(key, file.clone());
        Ok(file)
    }
}

impl FilePlace {
    /// Returns the addresses at which a process has this place mapped executable.
    pub fn addresses(&self, regions: &[Region]) -> Vec<u64> {
        let texts = self.texts(regions);
        let addresses = texts.iter().filter_map(|region| self.address_in(region));
        addresses.collect()
    }

    /// Returns the executable private mappings of the file.
    fn texts<'r>(&self, regions: &'r [Region]) -> Vec<&'r Region> {
        let is_text = |region: &&Region| {
            region.permissions.execute && !region.permissions.shared && self.is_mapped_by(region)
        };
        regions.iter().filter(is_text).collect()
    }

    /// Returns the address of this place in a mapping of its file, if it is there.
    fn address_in(&self, region: &Region) -> Option<u64> {
        let inside = self.offset.checked_sub(region.offset)?;
        (inside < region.end - region.start).then(|| region.start + inside)
    }

    /// True if a part of the file that may be written in memory holds this offset, as far as whole
    /// pages are mapped.
    pub fn may_write(&self, offset: u64) -> bool {
        self.file.binary.may_write(offset)
    }

    /// Returns device and inode of the file.
    pub fn inode(&self) -> (u64, u64) {
        (self.file.device, self.file.inode)
    }

    /// Returns the start and the bytes of the function around the place, for a process that has the
    /// place at `address`.
    pub fn function_at(&self, address: u64) -> (u64, &[u8]) {
        let (start, code) = &self.function;
        (address - (self.offset - start), code)
    }

    /// Returns where the same part of the file has these bytes, for a process that has the place at
    /// `address`.
    pub fn find_beside(&self, address: u64, bytes: &[u8]) -> Option<u64> {
        let part = self.file.binary.code_around(self.offset)?;
        let code = self
            .file
            .bytes
            .get(part.start as usize..part.end as usize)?;
        let found = memchr::memmem::find(code, bytes)?;
        Some(address - self.offset + part.start + found as u64)
    }

    /// True if the instructions that a plan for the place displaces are the file's own, and not a
    /// patch.
    pub fn holds(&self, plan: &Plan) -> bool {
        let (start, code) = self.function_at(plan.site);
        let mut rest = &code[(plan.site - start) as usize..];
        plan.displaced_bytes().all(|bytes| {
            let (own, behind) = rest.split_at(bytes.len().min(rest.len()));
            rest = behind;
            own == bytes
        })
    }

    /// True if the function there returns more often than it is called.
    pub fn returns_twice(&self) -> bool {
        self.file.binary.returns_twice(self.offset)
    }

    /// Returns its [`abi::Site::flags`] as an exit.
    pub fn exit_flags(&self) -> Option<u64> {
        let exit = self.exit?;
        let distance = u32::try_from(self.offset - self.function.0).ok()?;
        Some(abi::exit_flags(
            distance,
            exit.frame,
            exit.pops_frame_pointer,
        ))
    }

    /// See [`Binary::moves_stacks`].
    pub fn moves_stacks(&self) -> bool {
        self.file.binary.moves_stacks()
    }

    /// See [`Binary::has_small_stacks`].
    pub fn has_small_stacks(&self) -> bool {
        self.file.binary.has_small_stacks()
    }

    /// Returns branches from other functions, for a process that has the place at `address`.
    pub fn incoming_at(&self, address: u64) -> Incoming {
        self.file
            .incoming
            .shifted(address.wrapping_sub(self.offset))
    }

    /// Some file systems give `stat` another device than `maps`; then inode and name have to do.
    fn is_mapped_by(&self, region: &Region) -> bool {
        let same_name = || {
            let mapped = region.path.file_name();
            mapped.is_some()
                && mapped
                    == fs::canonicalize(&self.path)
                        .ok()
                        .as_deref()
                        .and_then(Path::file_name)
        };
        region.inode == self.file.inode && (region.device == self.file.device || same_name())
    }
}

/// A program attached to system calls.
#[derive(Debug)]
pub struct CallLink {
    /// Its id.
    pub id: Id,
    /// The program.
    pub program: Arc<Program>,
    /// The call's number; `None` for all.
    pub number: Option<u32>,
    /// Run before or after the call.
    pub edge: Edge,
    /// The context that the program gets.
    pub context: CallContext,
    /// For `bpf_get_attach_cookie`.
    pub cookie: u64,
}

/// The attachment behind a link's id.
#[derive(Debug, Clone)]
pub enum Link {
    /// In processes.
    Uprobe(Arc<Uprobe>),
    /// In processes, at their system calls.
    Call(Arc<CallLink>),
    /// In Beeline.
    Timer(Arc<Program>),
}

impl Link {
    /// Returns its program.
    pub fn program(&self) -> &Arc<Program> {
        match self {
            Self::Uprobe(uprobe) => &uprobe.program,
            Self::Call(call) => &call.program,
            Self::Timer(program) => program,
        }
    }
}
