//! The running kernel's eBPF, as the oracle that ours is compared to.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;

use beeline_isa::Insn;

const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const PROG_LOAD: libc::c_long = 5;
const PROG_TEST_RUN: libc::c_long = 10;
const BTF_LOAD: libc::c_long = 18;

/// `BPF_PROG_TYPE_SOCKET_FILTER`.
pub const SOCKET_FILTER: u32 = 1;
/// `BPF_PROG_TYPE_SYSCALL`: programs whose context is any memory, which they may write.
pub const SYSCALL: u32 = 31;
/// `BPF_F_SLEEPABLE`: what programs of that type have to be.
const SLEEPABLE: u32 = 1 << 4;

/// `union bpf_attr`, as far as it is needed: 32-bit words.
type Attr = [u32; 32];

/// Why the kernel refused a program.
#[derive(Debug)]
pub struct Refusal {
    /// The error number.
    pub errno: i32,
    /// The verifier's words.
    pub log: String,
}

fn bpf(command: libc::c_long, attr: &mut Attr) -> io::Result<i32> {
    // SAFETY: the kernel reads and writes `attr` within its size; what its pointers lead to, each caller says.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_mut_ptr(), size_of::<Attr>()) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result as i32)
    }
}

fn set_pointer<T>(attr: &mut Attr, word: usize, pointer: *const T) {
    let address = pointer.expose_provenance();
    (attr[word], attr[word + 1]) = (address as u32, (address >> 32) as u32);
}

/// Can this process load programs? If not, says so on stderr: the test has to be skipped.
pub fn is_usable() -> bool {
    let minimal = [0xb7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
    let insns: Vec<Insn> = Insn::decode_all(&minimal)
        .expect("two instructions")
        .collect();
    match load(SOCKET_FILTER, &insns) {
        Ok(_) => true,
        Err(refusal) => {
            eprintln!(
                "skipped: the kernel loads no eBPF program for us (errno {})",
                refusal.errno
            );
            false
        }
    }
}

/// Loads a program.
pub fn load(prog_type: u32, insns: &[Insn]) -> Result<File, Refusal> {
    load_with(prog_type, insns, &mut [0; 32])
}

/// As [`load`], saying where functions begin: programs have to, if they take the address of one. All are `static int`.
pub fn load_functions(prog_type: u32, insns: &[Insn], starts: &[usize]) -> Result<File, Refusal> {
    let info: Vec<[u32; 2]> = (0..)
        .zip(starts)
        .map(|(number, &start)| [start as u32, FIRST_FUNCTION + number])
        .collect();
    let types = described(starts.len() as u32);
    let mut attr: Attr = [0; 32];
    (attr[18], attr[19], attr[22]) = (types.as_raw_fd() as u32, 8, info.len() as u32);
    set_pointer(&mut attr, 20, info.as_ptr());
    load_with(prog_type, insns, &mut attr)
}

/// The type id of the first function that [`describe`] tells of.
const FIRST_FUNCTION: u32 = 3;

/// As [`describe`], made once.
fn described(functions: u32) -> Rc<File> {
    thread_local! {
        static MADE: RefCell<HashMap<u32, Rc<File>>> = RefCell::default();
    }
    let make = || Rc::new(describe(functions).expect("good type information"));
    MADE.with_borrow_mut(|made| made.entry(functions).or_insert_with(make).clone())
}

/// Type information (`include/uapi/linux/btf.h`) with so many functions `static int f(void)`.
fn describe(functions: u32) -> io::Result<File> {
    const NAMES: &[u8] = b"\0int\0f\0";
    const INT: u32 = 1 << 24;
    const FUNC: u32 = 12 << 24;
    const FUNC_PROTO: u32 = 13 << 24;
    const SIGNED_32_BITS: u32 = 1 << 24 | 32;
    let mut types = vec![1, INT, 4, SIGNED_32_BITS, 0, FUNC_PROTO, 1];
    for _ in 0..functions {
        types.extend([5, FUNC, 2]);
    }
    let types: Vec<u8> = types.into_iter().flat_map(u32::to_ne_bytes).collect();
    let (len, names) = (types.len() as u32, NAMES.len() as u32);
    let header: [u32; 6] = [0x0001_eb9f, 24, 0, len, len, names];
    let bytes: Vec<u8> = header.into_iter().flat_map(u32::to_ne_bytes).collect();
    let bytes = [&bytes, &types, NAMES].concat();
    let mut attr: Attr = [0; 32];
    set_pointer(&mut attr, 0, bytes.as_ptr());
    attr[4] = bytes.len() as u32;
    let fd = bpf(BTF_LOAD, &mut attr)?;
    Ok(owned(fd))
}

fn load_with(prog_type: u32, insns: &[Insn], attr: &mut Attr) -> Result<File, Refusal> {
    let bytes: Vec<u8> = insns.iter().flat_map(|insn| insn.encode()).collect();
    (attr[0], attr[1]) = (prog_type, insns.len() as u32);
    set_pointer(attr, 2, bytes.as_ptr());
    set_pointer(attr, 4, c"GPL".as_ptr());
    attr[11] = if prog_type == SYSCALL { SLEEPABLE } else { 0 };
    // Its words take the verifier much longer than its work.
    if let Ok(fd) = bpf(PROG_LOAD, attr) {
        return Ok(owned(fd));
    }
    let mut log = vec![0_u8; 1 << 20];
    (attr[6], attr[7]) = (1, log.len() as u32);
    set_pointer(attr, 8, log.as_mut_ptr());
    match bpf(PROG_LOAD, attr) {
        Ok(fd) => Ok(owned(fd)),
        Err(error) => {
            log.truncate(log.iter().position(|&byte| byte == 0).unwrap_or(0));
            Err(Refusal {
                errno: error.raw_os_error().unwrap_or(0),
                log: String::from_utf8_lossy(&log).into_owned(),
            })
        }
    }
}

/// A descriptor that the kernel just made for us.
fn owned(fd: i32) -> File {
    // SAFETY: nobody else has it.
    unsafe { OwnedFd::from_raw_fd(fd) }.into()
}

/// Runs a program once on an empty packet; its result is the low half of r0.
pub fn test_run(program: &File) -> io::Result<u32> {
    timed_run(program, 1).map(|(result, _)| result)
}

/// The same so many times; the last result, and the average time of a run in nanoseconds.
pub fn timed_run(program: &File, times: u32) -> io::Result<(u32, u32)> {
    let packet = [0_u8; 64];
    let mut attr: Attr = [0; 32];
    attr[0] = program.as_raw_fd() as u32;
    attr[2] = packet.len() as u32;
    set_pointer(&mut attr, 4, packet.as_ptr());
    attr[8] = times;
    bpf(PROG_TEST_RUN, &mut attr)?;
    Ok((attr[1], attr[9]))
}

/// Runs a program of type [`SYSCALL`] once on a context, which it may change; its result is the low half of r0.
pub fn test_run_on(program: &File, context: &mut [u8]) -> io::Result<u32> {
    let mut attr: Attr = [0; 32];
    attr[0] = program.as_raw_fd() as u32;
    attr[10] = context.len() as u32;
    set_pointer(&mut attr, 12, context.as_mut_ptr());
    bpf(PROG_TEST_RUN, &mut attr)?;
    Ok(attr[1])
}

/// An array map.
pub fn array(value_size: u32, max_entries: u32) -> io::Result<File> {
    map(2, 4, value_size, max_entries)
}

/// A map of any type.
pub fn map(map_type: u32, key_size: u32, value_size: u32, max_entries: u32) -> io::Result<File> {
    let mut attr: Attr = [0; 32];
    (attr[0], attr[1], attr[2], attr[3]) = (map_type, key_size, value_size, max_entries);
    let fd = bpf(MAP_CREATE, &mut attr)?;
    Ok(owned(fd))
}

/// Sets an element of a map with keys of 4 bytes; the descriptor of a program, in a program array.
pub fn set(map: &File, key: u32, value: u32) -> io::Result<()> {
    set_bytes(map, key, &value.to_ne_bytes())
}

/// The same with a value of any size, which is the map's.
pub fn set_bytes(map: &File, key: u32, value: &[u8]) -> io::Result<()> {
    let mut attr: Attr = [0; 32];
    attr[0] = map.as_raw_fd() as u32;
    set_pointer(&mut attr, 2, &raw const key);
    set_pointer(&mut attr, 4, value.as_ptr());
    bpf(MAP_UPDATE_ELEM, &mut attr).map(drop)
}
