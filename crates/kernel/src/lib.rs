//! The running kernel's `bpf(2)`: its verdict on a program, the result of a test run, and programs
//! that run at the kernel's events.
//!
//! Maps, types, programs and links are descriptors, so nothing stays behind when they are dropped.
//! Nothing is pinned; what others have pinned can be opened.
//!
//! Its terms are in docs/glossary.md.

pub mod attach;
mod attr;
pub mod link;
mod map;
pub mod pinned;

use std::ffi::CString;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use beeline_isa::opcode::{
    CALL, DW, IMM, JMP, LD, PSEUDO_KFUNC_CALL, PSEUDO_MAP_IDX, PSEUDO_MAP_IDX_VALUE,
};
use beeline_isa::{INSN_BYTES, Insn};
use beeline_uapi::attr::BPF_OBJ_NAME_LEN;
use beeline_uapi::fields::u32_at;
use beeline_uapi::info::{BtfInfo, MapInfo, ProgInfo};
use beeline_uapi::{AttachType, Command, MapType, ProgramType, log, offset_behind};

use attr::{Attr, word};
pub use map::Map;

/// The bytes of log that one load may write.
const LOG_BYTES: usize = 16 << 20;
/// The bytes that suffice for nearly every log: clearing the pages of a long one takes longer than
/// most loads.
const SHORT_LOG_BYTES: usize = 64 << 10;

/// A map to be made: `BPF_MAP_CREATE`.
#[derive(Debug, Clone, Copy, Default)]
pub struct MapSpec<'a> {
    /// Its type.
    pub map_type: MapType,
    /// The bytes of a key.
    pub key_size: u32,
    /// The bytes of a value.
    pub value_size: u32,
    /// The number of elements; bytes for `RINGBUF`.
    pub max_entries: u32,
    /// `BPF_F_*`.
    pub flags: u32,
    /// `map_extra`.
    pub map_extra: u64,
    /// Its name, of which the kernel keeps 15 bytes.
    pub name: &'a str,
    /// For a map of maps: a map that its maps resemble.
    pub inner: Option<BorrowedFd<'a>>,
    /// The types, and the numbers of the key's and the value's.
    pub types: Option<(BorrowedFd<'a>, u32, u32)>,
}

/// A program to be loaded: `BPF_PROG_LOAD`.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProgramSpec<'a> {
    /// `prog_type`.
    pub prog_type: ProgramType,
    /// `expected_attach_type`.
    pub expected_attach_type: AttachType,
    /// Its name, of which the kernel keeps 15 bytes: letters, digits, dots and underscores.
    pub name: &'a str,
    /// `BPF_F_*`.
    pub flags: u32,
    /// The type in the kernel's BTF, or in that of [`ProgramSpec::attach_to`]; 0 for none.
    pub attach_btf_id: u32,
    /// The types of a module of the kernel, or a program, that contain `attach_btf_id`
    /// (`attach_prog_fd`, `attach_btf_obj_fd`).
    pub attach_to: Option<BorrowedFd<'a>>,
    /// The descriptors that instructions name by their places (`fd_array`).
    pub fd_array: &'a [i32],
    /// The licence, such as `GPL`.
    pub license: &'a str,
    /// `LINUX_VERSION_CODE`, which only kernels before 5.0 need.
    pub kernel_version: u32,
    /// The instructions, with maps by descriptor.
    pub insns: &'a [Insn],
    /// The types of its functions and lines.
    pub types: Option<ProgramTypes<'a>>,
    /// The bits of `log_level`; 0 for no log.
    pub log_level: u32,
}

/// A program's types.
#[derive(Debug, Clone, Copy)]
pub struct ProgramTypes<'a> {
    /// The BTF, made by [`load_types`].
    pub btf: BorrowedFd<'a>,
    /// `struct bpf_func_info`: instruction and type.
    pub functions: &'a [[u32; 2]],
    /// `struct bpf_line_info`: instruction, file's name, line's text, line and column.
    pub lines: &'a [[u32; 4]],
}

/// The reason why the kernel refused a program or types.
#[derive(Debug)]
pub struct Refusal {
    /// The error number, positive.
    pub errno: i32,
    /// The verifier's log.
    pub log: String,
    /// The greatest length that the log had, of which the verifier drops parts; 0 if the kernel does
    /// not say.
    pub longest_log: usize,
}

/// A program that the kernel has loaded.
#[derive(Debug)]
pub struct Loaded {
    /// The program.
    pub program: OwnedFd,
    /// The verifier's log.
    pub log: String,
    /// As [`Refusal::longest_log`].
    pub longest_log: usize,
}

/// Creates a map (`BPF_MAP_CREATE`).
///
/// # Errors
/// The errno of bpf(2): `EINVAL` or `E2BIG` for a map that the kernel does not make, `EPERM`
/// without the capability, `ENOMEM`.
pub fn create_map(spec: &MapSpec<'_>) -> io::Result<OwnedFd> {
    let mut attr = Attr::default();
    attr.put(word!(MapCreate.map_type), spec.map_type.0);
    attr.put(word!(MapCreate.key_size), spec.key_size);
    attr.put(word!(MapCreate.value_size), spec.value_size);
    attr.put(word!(MapCreate.max_entries), spec.max_entries);
    attr.put(word!(MapCreate.map_flags), spec.flags);
    attr.put_text(word!(MapCreate.map_name), &name_field(spec.name));
    attr.put_fd(word!(MapCreate.inner_map_fd), spec.inner);
    if let Some((btf, key, value)) = spec.types {
        attr.put_fd(word!(MapCreate.btf_fd), Some(btf));
        attr.put(word!(MapCreate.btf_key_type_id), key);
        attr.put(word!(MapCreate.btf_value_type_id), value);
    }
    attr.put_long(word!(MapCreate.map_extra), spec.map_extra);
    attr.make(Command::MAP_CREATE)
}

/// Sets an element of a map that is not per CPU (`BPF_MAP_UPDATE_ELEM` with `BPF_ANY`).
///
/// # Errors
/// `EINVAL` if `key` and `value` do not have the map's sizes, or if the map is per CPU; else the
/// errno of bpf(2), such as `E2BIG` if the map is full.
pub fn update(map: impl AsFd, key: &[u8], value: &[u8]) -> io::Result<()> {
    let [map_type, key_size, value_size] = map_info(map.as_fd())?;
    let fits = [key.len(), value.len()] == [key_size, value_size].map(|it| it as usize);
    if !fits || MapType(map_type).is_per_cpu() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut attr = Attr::default();
    attr.put_fd(word!(Element.map_fd), Some(map.as_fd()));
    // SAFETY: the check above has found both to have the sizes that the kernel reads.
    unsafe {
        attr.point(word!(Element.key), key);
        attr.point(word!(Element.value), value);
    }
    attr.call(Command::MAP_UPDATE_ELEM).map(drop)
}

/// Returns a map's type, the size of its keys, and that of its values.
fn map_info(map: BorrowedFd<'_>) -> io::Result<[u32; 3]> {
    let mut start = [0; offset_behind!(MapInfo, value_size)];
    let mut attr = Attr::default();
    attr.put_fd(word!(Info.bpf_fd), Some(map));
    attr.lend_mut(word!(Info.info), word!(Info.info_len), &mut start);
    attr.call(Command::OBJ_GET_INFO_BY_FD)?;
    let fields = [
        offset_of!(MapInfo, r#type),
        offset_of!(MapInfo, key_size),
        offset_of!(MapInfo, value_size),
    ];
    Ok(fields.map(|at| u32_at(&start, at)))
}

/// Makes a map read-only for system calls (`BPF_MAP_FREEZE`).
///
/// # Errors
/// The errno of bpf(2): `EBUSY` if it is frozen, or mapped writable; `ENOTSUPP` if it is of a type
/// that cannot be frozen, or has special fields.
pub fn freeze(map: impl AsFd) -> io::Result<()> {
    let mut attr = Attr::default();
    attr.put_fd(word!(Element.map_fd), Some(map.as_fd()));
    attr.call(Command::MAP_FREEZE).map(drop)
}

/// Loads type information (`BPF_BTF_LOAD`; `include/uapi/linux/btf.h`).
///
/// # Errors
/// The errno of bpf(2), `EINVAL` for malformed types, with the first 64 KiB of the kernel's log.
pub fn load_types(btf: &[u8]) -> Result<OwnedFd, Refusal> {
    let mut attr = Attr::default();
    attr.lend(word!(BtfLoad.btf), word!(BtfLoad.btf_size), btf);
    if let Ok(fd) = attr.make(Command::BTF_LOAD) {
        return Ok(fd);
    }
    let mut log = vec![0; 1 << 16];
    attr.lend_mut(
        word!(BtfLoad.btf_log_buf),
        word!(BtfLoad.btf_log_size),
        &mut log,
    );
    attr.put(word!(BtfLoad.btf_log_level), log::LEVEL1);
    let made = attr.make(Command::BTF_LOAD);
    made.map_err(refusal(&log))
}

/// Loads a program (`BPF_PROG_LOAD`); returns its log too.
///
/// # Errors
/// The verifier's errno and log. `EFAULT`, without a call of the kernel, if an instruction names a
/// place behind the end of `fd_array`. A log that is too long costs no verdict: the part that fits
/// is kept.
pub fn load_program(spec: &ProgramSpec<'_>) -> Result<(OwnedFd, String), Refusal> {
    load(spec).map(|loaded| (loaded.program, loaded.log))
}

/// As [`load_program`], with all that the kernel says of the log.
///
/// # Errors
/// Those of [`load_program`].
pub fn load(spec: &ProgramSpec<'_>) -> Result<Loaded, Refusal> {
    match load_with_log(spec, SHORT_LOG_BYTES) {
        Err(whole) if whole.errno == libc::ENOSPC => load_with_log(spec, LOG_BYTES),
        made => made,
    }
}

fn load_with_log(spec: &ProgramSpec<'_>, log_bytes: usize) -> Result<Loaded, Refusal> {
    if !places_are_there(spec) {
        let log = "an instruction names a descriptor behind the end of fd_array\n".to_owned();
        return Err(Refusal {
            errno: libc::EFAULT,
            longest_log: log.len(),
            log,
        });
    }
    let insns: Vec<[u8; INSN_BYTES]> = spec.insns.iter().map(|insn| insn.encode()).collect();
    let license = CString::new(spec.license).unwrap_or_default();
    let mut attr = Attr::default();
    attr.put(word!(ProgLoad.prog_type), spec.prog_type.0);
    attr.lend(word!(ProgLoad.insns), word!(ProgLoad.insn_cnt), &insns);
    // SAFETY: the kernel reads up to the 0 at its end.
    unsafe { attr.point(word!(ProgLoad.license), license.as_bytes_with_nul()) };
    attr.put(word!(ProgLoad.kern_version), spec.kernel_version);
    attr.put(word!(ProgLoad.prog_flags), spec.flags);
    attr.put_text(word!(ProgLoad.prog_name), &name_field(spec.name));
    attr.put(
        word!(ProgLoad.expected_attach_type),
        spec.expected_attach_type.0,
    );
    if let Some(types) = spec.types {
        attr.put_fd(word!(ProgLoad.prog_btf_fd), Some(types.btf));
        attr.put(
            word!(ProgLoad.func_info_rec_size),
            size_of::<[u32; 2]>() as u32,
        );
        attr.lend(
            word!(ProgLoad.func_info),
            word!(ProgLoad.func_info_cnt),
            types.functions,
        );
        attr.put(
            word!(ProgLoad.line_info_rec_size),
            size_of::<[u32; 4]>() as u32,
        );
        attr.lend(
            word!(ProgLoad.line_info),
            word!(ProgLoad.line_info_cnt),
            types.lines,
        );
    }
    attr.put(word!(ProgLoad.attach_btf_id), spec.attach_btf_id);
    attr.put_fd(word!(ProgLoad.attach_prog_fd), spec.attach_to);
    if !spec.fd_array.is_empty() {
        // SAFETY: the kernel reads the elements that instructions name, and `places_are_there` has
        // checked that `fd_array` has them.
        unsafe { attr.point(word!(ProgLoad.fd_array), as_bytes(spec.fd_array)) };
    }
    let mut log = Vec::new();
    if spec.log_level != 0 {
        log = vec![0; log_bytes];
        attr.put(word!(ProgLoad.log_level), spec.log_level);
        attr.lend_mut(word!(ProgLoad.log_buf), word!(ProgLoad.log_size), &mut log);
    }
    let made = attr.make(Command::PROG_LOAD);
    // With the 0 at its end.
    let longest_log = (attr.get(word!(ProgLoad.log_true_size)) as usize).saturating_sub(1);
    match made.map_err(refusal(&log)) {
        Err(whole)
            if whole.errno == libc::ENOSPC
                && log_bytes == LOG_BYTES
                && spec.log_level & !log::STATS != 0 =>
        {
            // The log is longer than the room for it. That must not cost the verdict.
            let brief = ProgramSpec {
                log_level: log::STATS,
                ..*spec
            };
            load_with_log(&brief, LOG_BYTES).map_err(|brief| brief.after(&whole.log))
        }
        Ok(program) => Ok(Loaded {
            program,
            log: text(&log),
            longest_log,
        }),
        Err(refused) => Err(Refusal {
            longest_log,
            ..refused
        }),
    }
}

/// Returns a name as a field of an attribute, with a 0 at its end.
fn name_field(name: &str) -> [u8; BPF_OBJ_NAME_LEN] {
    let mut field = [0; BPF_OBJ_NAME_LEN];
    for (to, byte) in field
        .iter_mut()
        .zip(name.bytes().take(BPF_OBJ_NAME_LEN - 1))
    {
        *to = byte;
    }
    field
}

/// Returns whether `fd_array` has every element that an instruction may name. Maps and
/// functions of modules name some.
fn places_are_there(spec: &ProgramSpec<'_>) -> bool {
    const IMM64: u8 = LD | IMM | DW;
    const CALLS: u8 = JMP | CALL;
    let has = |place: i64| (0..spec.fd_array.len() as i64).contains(&place);
    spec.fd_array.is_empty()
        || spec.insns.iter().all(|insn| match (insn.code, insn.src) {
            (IMM64, PSEUDO_MAP_IDX | PSEUDO_MAP_IDX_VALUE) => has(insn.imm.into()),
            // The kernel refuses negative places without reading.
            (CALLS, PSEUDO_KFUNC_CALL) => insn.off <= 0 || has(insn.off.into()),
            _ => true,
        })
}

fn as_bytes(words: &[i32]) -> &[u8] {
    // SAFETY: any four bytes of a number are valid bytes; the lifetime is the numbers'.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}

/// Returns the type and the name of the program with an id (`BPF_PROG_GET_FD_BY_ID`).
///
/// # Errors
/// `ENOENT` if there is none; `EPERM` without the capability.
pub fn program_by_id(id: u32) -> io::Result<(ProgramType, String)> {
    let mut attr = Attr::default();
    attr.put(word!(GetId.start_id), id);
    let program = attr.make(Command::PROG_GET_FD_BY_ID)?;
    let mut about = [0; offset_behind!(ProgInfo, name)];
    let mut attr = Attr::default();
    attr.put_fd(word!(Info.bpf_fd), Some(program.as_fd()));
    attr.lend_mut(word!(Info.info), word!(Info.info_len), &mut about);
    attr.call(Command::OBJ_GET_INFO_BY_FD)?;
    let prog_type = ProgramType(u32_at(&about, offset_of!(ProgInfo, r#type)));
    Ok((prog_type, text(&about[offset_of!(ProgInfo, name)..])))
}

/// A program's number in the kernel, and what it has done there while runs were counted.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProgramFacts {
    /// Its id.
    pub id: u32,
    /// The number of its runs.
    pub runs: u64,
    /// Their time, in nanoseconds.
    pub run_time: u64,
}

/// Returns a program's facts (`BPF_OBJ_GET_INFO_BY_FD`).
///
/// # Errors
/// The errno of bpf(2).
pub fn program_facts(program: impl AsFd) -> io::Result<ProgramFacts> {
    let mut about = [0; size_of::<ProgInfo>()];
    let mut attr = Attr::default();
    attr.put_fd(word!(Info.bpf_fd), Some(program.as_fd()));
    attr.lend_mut(word!(Info.info), word!(Info.info_len), &mut about);
    attr.call(Command::OBJ_GET_INFO_BY_FD)?;
    let long = |at| u64::from(u32_at(&about, at)) | u64::from(u32_at(&about, at + 4)) << 32;
    Ok(ProgramFacts {
        id: u32_at(&about, offset_of!(ProgInfo, id)),
        runs: long(offset_of!(ProgInfo, run_cnt)),
        run_time: long(offset_of!(ProgInfo, run_time_ns)),
    })
}

/// Returns the types of a loaded module of the kernel (`BPF_BTF_GET_FD_BY_ID`), by its name.
///
/// # Errors
/// `ENOENT` if no module has it; `EPERM` without the capability.
pub fn module_types(name: &str) -> io::Result<OwnedFd> {
    let mut id = 0;
    loop {
        let mut attr = Attr::default();
        attr.put(word!(GetId.start_id), id);
        // ENOENT after the last one.
        attr.call(Command::BTF_GET_NEXT_ID)?;
        id = attr.get(word!(GetId.next_id));
        let mut attr = Attr::default();
        attr.put(word!(GetId.start_id), id);
        // Some are gone by now.
        if let Ok(btf) = attr.make(Command::BTF_GET_FD_BY_ID)
            && is_module(&btf, name)?
        {
            return Ok(btf);
        }
    }
}

/// Returns whether it is the kernel's, with this name (`struct bpf_btf_info`).
fn is_module(btf: &OwnedFd, name: &str) -> io::Result<bool> {
    const INFO: usize = size_of::<BtfInfo>();
    const NAME: usize = offset_of!(BtfInfo, name);
    const NAME_LEN: usize = offset_of!(BtfInfo, name_len);
    let mut found = [0_u8; 64];
    let mut about = [0_u8; INFO];
    // The kernel writes the name there, no more than the room it is told.
    let address = found.as_mut_ptr().expose_provenance() as u64;
    about[NAME..NAME + size_of::<u64>()].copy_from_slice(&address.to_ne_bytes());
    let room = (found.len() as u32).to_ne_bytes();
    about[NAME_LEN..NAME_LEN + room.len()].copy_from_slice(&room);
    let mut attr = Attr::default();
    attr.put_fd(word!(Info.bpf_fd), Some(btf.as_fd()));
    attr.lend_mut(word!(Info.info), word!(Info.info_len), &mut about);
    attr.call(Command::OBJ_GET_INFO_BY_FD)?;
    let of_kernel = u32_at(&about, offset_of!(BtfInfo, kernel_btf));
    Ok(of_kernel != 0 && text(&found) == name)
}

impl Refusal {
    /// Adds the kept part of a longer log.
    fn after(self, log: &str) -> Self {
        Self {
            log: format!("{log}\n{}", self.log),
            ..self
        }
    }
}

/// The input of a test run (`BPF_PROG_TEST_RUN`).
#[derive(Debug, Default)]
pub struct Run<'a> {
    /// A packet, for programs that look at packets.
    pub packet: &'a [u8],
    /// The context, for programs that take any memory; they may change it.
    pub context: &'a mut [u8],
    /// The number of runs; 0 for one run.
    pub repeat: u32,
}

/// Runs a program (`BPF_PROG_TEST_RUN`); returns the result of the last run, and the mean time of a
/// run in nanoseconds.
///
/// # Errors
/// The errno of bpf(2): `ENOTSUPP` for types of programs that cannot be run so, `EINVAL` for a
/// packet or context that is too short or too long.
pub fn test_run(program: impl AsFd, run: Run<'_>) -> io::Result<(u32, u32)> {
    let mut attr = Attr::default();
    attr.put_fd(word!(TestRun.prog_fd), Some(program.as_fd()));
    if !run.packet.is_empty() {
        attr.lend(
            word!(TestRun.data_in),
            word!(TestRun.data_size_in),
            run.packet,
        );
    }
    attr.put(word!(TestRun.repeat), run.repeat);
    if !run.context.is_empty() {
        attr.lend_mut(
            word!(TestRun.ctx_in),
            word!(TestRun.ctx_size_in),
            run.context,
        );
    }
    attr.call(Command::PROG_TEST_RUN)?;
    Ok((
        attr.get(word!(TestRun.retval)),
        attr.get(word!(TestRun.duration)),
    ))
}

/// Returns the text before the first 0.
fn text(log: &[u8]) -> String {
    let end = log.iter().position(|&byte| byte == 0);
    String::from_utf8_lossy(log.get(..end.unwrap_or(log.len())).unwrap_or_default()).into_owned()
}

fn refusal(log: &[u8]) -> impl Fn(io::Error) -> Refusal + '_ {
    |error| Refusal {
        errno: error.raw_os_error().unwrap_or(0),
        log: text(log),
        longest_log: 0,
    }
}

impl Attr<'_> {
    fn put_fd(&mut self, word: usize, fd: Option<BorrowedFd<'_>>) {
        if let Some(fd) = fd {
            self.put(word, fd.as_raw_fd().cast_unsigned());
        }
    }
}
