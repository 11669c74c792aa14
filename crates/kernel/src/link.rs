//! Programs at cgroups, devices, network namespaces and sockets, and iterators.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use beeline_uapi::info::{LinkInfo, LinkInfoAny, LinkInfoIter, LinkInfoNamed, LinkInfoPerfEvent};
use beeline_uapi::{AttachType, Command, LinkType, PerfEventType, fields};

use crate::attr::{Attr, word};

/// The thing that a program is linked to.
#[derive(Debug, Clone, Copy)]
pub enum Target<'a> {
    /// The one that the program was loaded for, or that the options name.
    Own,
    /// A cgroup, a network namespace, a map of sockets.
    File(BorrowedFd<'a>),
    /// A network device, by its number.
    Device(u32),
}

/// The options of a link.
#[derive(Debug, Clone, Copy)]
pub enum Options<'a> {
    /// None.
    Plain,
    /// The place among other programs: before or after one, as the flags say.
    Relative {
        /// A program or link; or its id, with `BPF_F_ID`.
        to: Relative<'a>,
        /// The expected number of changes; 0 for any.
        revision: u64,
    },
    /// The things to go through, if not all: `union bpf_iter_link_info`.
    Iterator(&'a [u8]),
    /// The hook of netfilter.
    Netfilter {
        /// `NFPROTO_*`.
        family: u32,
        /// `NF_INET_*`.
        hook: u32,
        /// The place among other hooks.
        priority: i32,
        /// `BPF_F_NETFILTER_IP_DEFRAG`.
        flags: u32,
    },
}

/// Another program or link at the same place.
#[derive(Debug, Clone, Copy)]
pub enum Relative<'a> {
    /// By its descriptor.
    File(BorrowedFd<'a>),
    /// By its id; 0 for none.
    Id(u32),
}

impl<'a> Relative<'a> {
    /// Names a program or link by its descriptor, or none.
    pub fn to(file: Option<&'a OwnedFd>) -> Self {
        file.map_or(Self::Id(0), |file| Self::File(file.as_fd()))
    }

    fn number(&self) -> u32 {
        match self {
            Self::File(file) => file.as_raw_fd().cast_unsigned(),
            Self::Id(id) => *id,
        }
    }
}

/// A link to be made: `BPF_LINK_CREATE`.
#[derive(Debug, Clone, Copy)]
pub struct LinkSpec<'a> {
    /// The kind of place.
    pub attach_type: AttachType,
    /// The place.
    pub target: Target<'a>,
    /// `flags`.
    pub flags: u32,
    /// The options of its kind.
    pub options: Options<'a>,
}

/// Links a program.
///
/// # Errors
/// The errno of bpf(2): `EINVAL` for a program of another type or a wrong option, `EBADF` for
/// another kind of file, `ENODEV` for no device, `EEXIST` or `EBUSY` if the place is taken.
pub fn create(program: impl AsFd, spec: &LinkSpec<'_>) -> io::Result<OwnedFd> {
    let mut attr = Attr::default();
    attr.put_fd(word!(LinkCreate.prog_fd), Some(program.as_fd()));
    match spec.target {
        Target::Own => {}
        Target::File(file) => attr.put_fd(word!(LinkCreate.target_fd), Some(file)),
        Target::Device(number) => attr.put(word!(LinkCreate.target_fd), number),
    }
    attr.put(word!(LinkCreate.attach_type), spec.attach_type.0);
    attr.put(word!(LinkCreate.flags), spec.flags);
    match spec.options {
        Options::Plain => {}
        Options::Relative { to, revision } => {
            attr.put(word!(LinkCreateRelative.relative_fd), to.number());
            attr.put_long(word!(LinkCreateRelative.expected_revision), revision);
        }
        Options::Iterator(info) => attr.lend(
            word!(LinkCreateIter.iter_info),
            word!(LinkCreateIter.iter_info_len),
            info,
        ),
        Options::Netfilter {
            family,
            hook,
            priority,
            flags,
        } => {
            attr.put(word!(LinkCreateNetfilter.pf), family);
            attr.put(word!(LinkCreateNetfilter.hooknum), hook);
            attr.put(
                word!(LinkCreateNetfilter.priority),
                priority.cast_unsigned(),
            );
            attr.put(word!(LinkCreateNetfilter.flags), flags);
        }
    }
    attr.make(Command::LINK_CREATE)
}

/// Detaches a link's program, though the link lives on (`BPF_LINK_DETACH`).
///
/// # Errors
/// The errno of bpf(2): `EOPNOTSUPP` for a link that cannot be detached so.
pub fn detach(link: BorrowedFd<'_>) -> io::Result<()> {
    let mut attr = Attr::default();
    attr.put_fd(word!(LinkDetach.link_fd), Some(link));
    attr.call(Command::LINK_DETACH).map(drop)
}

/// Returns a file of what an iterator's program writes (`BPF_ITER_CREATE`).
///
/// # Errors
/// The errno of bpf(2): `EINVAL` for another kind of link.
pub fn iterate(link: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut attr = Attr::default();
    attr.put_fd(word!(IterCreate.link_fd), Some(link));
    attr.make(Command::ITER_CREATE)
}

/// Attaches a program for as long as its place is there (`BPF_PROG_ATTACH`), by the options of
/// a link.
///
/// # Errors
/// As those of [`create`].
pub fn attach(
    program: impl AsFd,
    spec: &LinkSpec<'_>,
    replaces: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut attr = attachment(spec);
    attr.put_fd(word!(ProgAttach.attach_bpf_fd), Some(program.as_fd()));
    attr.put_fd(word!(ProgAttach.replace_bpf_fd), replaces);
    attr.call(Command::PROG_ATTACH).map(drop)
}

/// Takes a program away again (`BPF_PROG_DETACH`): this one, or the only one.
///
/// # Errors
/// The errno of bpf(2): `ENOENT` if it is not there.
pub fn take_away(program: Option<BorrowedFd<'_>>, spec: &LinkSpec<'_>) -> io::Result<()> {
    let mut attr = attachment(spec);
    attr.put_fd(word!(ProgAttach.attach_bpf_fd), program);
    attr.call(Command::PROG_DETACH).map(drop)
}

/// The answer to a question for the programs at a place.
#[derive(Debug, Default)]
pub struct Programs {
    /// `attach_flags`.
    pub flags: u32,
    /// The number of programs there, of which there may be more than room.
    pub count: u32,
    /// The number of changes so far.
    pub revision: u64,
    /// The numbers of what is there, of 4 bytes each, one array for each that was asked for:
    /// programs, their flags, links, their flags.
    pub arrays: [Option<Vec<u8>>; 4],
}

/// Asks for the programs at a place (`BPF_PROG_QUERY`): for the arrays that are `wanted`, with
/// `room` for as many elements.
///
/// # Errors
/// The errno of bpf(2). `ENOSPC`, for more than there is room for, comes with the answer.
pub fn query(spec: &LinkSpec<'_>, wanted: [bool; 4], room: u32) -> (Programs, io::Result<()>) {
    let mut arrays = wanted.map(|wanted| wanted.then(|| vec![0; room as usize * size_of::<u32>()]));
    let mut attr = Attr::default();
    let target = match spec.target {
        Target::Own => 0,
        Target::File(file) => file.as_raw_fd().cast_unsigned(),
        Target::Device(number) => number,
    };
    attr.put(word!(ProgQuery.target_fd), target);
    attr.put(word!(ProgQuery.attach_type), spec.attach_type.0);
    attr.put(word!(ProgQuery.query_flags), spec.flags);
    let places = [
        word!(ProgQuery.prog_ids),
        word!(ProgQuery.prog_attach_flags),
        word!(ProgQuery.link_ids),
        word!(ProgQuery.link_attach_flags),
    ];
    for (array, at) in arrays.iter_mut().zip(places) {
        if let Some(array) = array {
            attr.lend_mut(at, word!(ProgQuery.prog_cnt), array);
        }
    }
    attr.put(word!(ProgQuery.prog_cnt), room);
    let outcome = attr.call(Command::PROG_QUERY).map(drop);
    let revision = word!(ProgQuery.revision);
    let (flags, count, revision) = (
        attr.get(word!(ProgQuery.attach_flags)),
        attr.get(word!(ProgQuery.prog_cnt)),
        u64::from(attr.get(revision)) | u64::from(attr.get(revision + 1)) << 32,
    );
    let programs = Programs {
        flags,
        count,
        revision,
        arrays,
    };
    (programs, outcome)
}

fn attachment(spec: &LinkSpec<'_>) -> Attr<'static> {
    let mut attr = Attr::default();
    match spec.target {
        Target::Own => {}
        Target::File(file) => attr.put_fd(word!(ProgAttach.target_fd), Some(file)),
        Target::Device(number) => attr.put(word!(ProgAttach.target_fd), number),
    }
    attr.put(word!(ProgAttach.attach_type), spec.attach_type.0);
    attr.put(word!(ProgAttach.attach_flags), spec.flags);
    if let Options::Relative { to, revision } = spec.options {
        attr.put(word!(ProgAttach.relative_fd), to.number());
        attr.put_long(word!(ProgAttach.expected_revision), revision);
    }
    attr
}

/// Sets a socket's option to a program: `SO_ATTACH_BPF`, `SO_ATTACH_REUSEPORT_EBPF`.
///
/// # Errors
/// The errno of setsockopt(2): `EINVAL` for a program of another type, `ENOTSOCK`.
pub fn attach_to_socket(program: impl AsFd, socket: BorrowedFd<'_>, option: i32) -> io::Result<()> {
    let number = program.as_fd().as_raw_fd();
    // SAFETY: the kernel reads the number, no more bytes than it is told.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const number).cast(),
            size_of_val(&number) as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The bytes of the longest name of a place.
const LONGEST_NAME: usize = 512;

/// A link's facts.
#[derive(Debug)]
pub struct Facts {
    /// `struct bpf_link_info`, with the kernel's ids, and without addresses.
    pub info: [u8; size_of::<LinkInfoAny>()],
    /// The name of its place, and the offset of the fields with the name's address and length.
    pub name: Option<(usize, String)>,
}

impl Facts {
    /// Returns the link's type.
    pub fn kind(&self) -> LinkType {
        kind(&self.info)
    }
}

/// Returns a link's facts (`BPF_OBJ_GET_INFO_BY_FD`).
///
/// # Errors
/// The errno of bpf(2).
pub fn facts(link: BorrowedFd<'_>) -> io::Result<Facts> {
    let mut info = [0; size_of::<LinkInfoAny>()];
    ask(link, &mut info)?;
    let Some(at) = name_field(&info) else {
        return Ok(Facts { info, name: None });
    };
    let mut name = [0; LONGEST_NAME];
    info = [0; size_of::<LinkInfoAny>()];
    // The kernel writes the name before this function reads it.
    let address = (name.as_mut_ptr().expose_provenance() as u64).to_ne_bytes();
    info[at..at + 8].copy_from_slice(&address);
    info[at + 8..at + 12].copy_from_slice(&(LONGEST_NAME as u32).to_ne_bytes());
    ask(link, &mut info)?;
    info[at..at + 12].fill(0);
    let len = name.iter().position(|&byte| byte == 0).unwrap_or_default();
    let name = String::from_utf8_lossy(&name[..len]).into_owned();
    Ok(Facts {
        info,
        name: Some((at, name)),
    })
}

fn ask(link: BorrowedFd<'_>, info: &mut [u8]) -> io::Result<()> {
    let mut attr = Attr::default();
    attr.put_fd(word!(Info.bpf_fd), Some(link));
    attr.lend_mut(word!(Info.info), word!(Info.info_len), info);
    attr.call(Command::OBJ_GET_INFO_BY_FD).map(drop)
}

fn kind(info: &[u8]) -> LinkType {
    LinkType(fields::u32_at(info, offset_of!(LinkInfo, r#type)))
}

/// Returns the offset of a name's address, which its length follows.
fn name_field(info: &[u8]) -> Option<usize> {
    let named = [
        PerfEventType::UPROBE,
        PerfEventType::URETPROBE,
        PerfEventType::KPROBE,
        PerfEventType::KRETPROBE,
        PerfEventType::TRACEPOINT,
    ];
    match kind(info) {
        // A raw tracepoint's is in the same place.
        LinkType::ITER | LinkType::RAW_TRACEPOINT => Some(offset_of!(LinkInfoIter, target_name)),
        LinkType::PERF_EVENT => {
            let event = fields::u32_at(info, offset_of!(LinkInfoPerfEvent, r#type));
            named
                .contains(&PerfEventType(event))
                .then_some(offset_of!(LinkInfoNamed, name))
        }
        _ => None,
    }
}
