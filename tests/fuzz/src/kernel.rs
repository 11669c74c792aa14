//! The running kernel's eBPF, as the oracle for Beeline's.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;

use beeline_isa::Insn;
use beeline_kernel::{MapSpec, ProgramSpec, ProgramTypes, Run};
use beeline_uapi::{AttachType, MapType, ProgramType};

pub use beeline_kernel::Refusal;

/// `BPF_F_SLEEPABLE`: required for programs of type [`ProgramType::SYSCALL`].
const SLEEPABLE: u32 = 1 << 4;

/// Returns whether this process can load programs. If not, says so on stderr: skip the test then.
pub fn is_usable() -> bool {
    let minimal = [0xb7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
    let insns: Vec<Insn> = Insn::decode_all(&minimal)
        .expect("two instructions")
        .collect();
    match load(ProgramType::SOCKET_FILTER, &insns) {
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
///
/// # Errors
/// The kernel's refusal, with its errno and log.
pub fn load(prog_type: ProgramType, insns: &[Insn]) -> Result<File, Refusal> {
    load_with(prog_type, insns, None)
}

/// Does the same as [`load`], with the beginnings of functions: required for programs that take the
/// address of one. All are `static int`.
///
/// # Errors
/// As for [`load`].
pub fn load_functions(
    prog_type: ProgramType,
    insns: &[Insn],
    starts: &[usize],
) -> Result<File, Refusal> {
    let functions = func_info(starts);
    let types = described(starts.len() as u32);
    let types = ProgramTypes {
        btf: types.as_fd(),
        functions: &functions,
        lines: &[],
    };
    load_with(prog_type, insns, Some(types))
}

/// The type id of the first function that [`describe`] describes.
const FIRST_FUNCTION: u32 = 3;

/// The description of a program for [`load_functions`]: its BTF, and its `func_info`.
pub fn functions(starts: &[usize]) -> (Vec<u8>, Vec<[u32; 2]>) {
    (type_information(starts.len() as u32), func_info(starts))
}

fn func_info(starts: &[usize]) -> Vec<[u32; 2]> {
    let numbered = (FIRST_FUNCTION..).zip(starts);
    numbered.map(|(id, &start)| [start as u32, id]).collect()
}

/// [`type_information`] loaded into the kernel, made once.
fn described(functions: u32) -> Rc<File> {
    thread_local! {
        static MADE: RefCell<HashMap<u32, Rc<File>>> = RefCell::default();
    }
    let make = || Rc::new(load_btf(&type_information(functions)).expect("good type information"));
    MADE.with_borrow_mut(|made| made.entry(functions).or_insert_with(make).clone())
}

/// Returns type information (`include/uapi/linux/btf.h`) with so many functions `static int
/// f(void)`.
fn type_information(functions: u32) -> Vec<u8> {
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
    [&bytes, &types, NAMES].concat()
}

fn load_with(
    prog_type: ProgramType,
    insns: &[Insn],
    types: Option<ProgramTypes<'_>>,
) -> Result<File, Refusal> {
    let spec = ProgramSpec {
        prog_type,
        flags: if prog_type == ProgramType::SYSCALL {
            SLEEPABLE
        } else {
            0
        },
        license: "GPL",
        insns,
        types,
        ..ProgramSpec::default()
    };
    // The log takes the verifier much longer than its work.
    let quiet = beeline_kernel::load_program(&spec);
    let loaded = quiet.or_else(|_| {
        let spec = ProgramSpec {
            log_level: 1,
            ..spec
        };
        beeline_kernel::load_program(&spec)
    });
    loaded.map(|(program, _)| program.into())
}

/// Runs a program once on an empty packet; returns the low half of r0.
///
/// # Errors
/// Fails with the errno of `bpf(2)`.
pub fn test_run(program: &File) -> io::Result<u32> {
    timed_run(program, 1).map(|(result, _)| result)
}

/// Runs it so many times; returns the last result, and the average time of a run in nanoseconds.
///
/// # Errors
/// Fails with the errno of `bpf(2)`.
pub fn timed_run(program: &File, times: u32) -> io::Result<(u32, u32)> {
    let run = Run {
        packet: &[0; 64],
        repeat: times,
        ..Run::default()
    };
    beeline_kernel::test_run(program, run)
}

/// Runs a program of type [`ProgramType::SYSCALL`] once on a context, which it may change; returns
/// the low half of r0.
///
/// # Errors
/// Fails with the errno of `bpf(2)`.
pub fn test_run_on(program: &File, context: &mut [u8]) -> io::Result<u32> {
    let run = Run {
        context,
        ..Run::default()
    };
    beeline_kernel::test_run(program, run).map(|(result, _)| result)
}

/// Makes an array map.
///
/// # Errors
/// Fails with the errno of `bpf(2)`.
pub fn array(value_size: u32, max_entries: u32) -> io::Result<File> {
    map(MapType::ARRAY, 4, value_size, max_entries)
}

/// Makes a map of any type.
///
/// # Errors
/// Fails with the errno of `bpf(2)`.
pub fn map(
    map_type: MapType,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
) -> io::Result<File> {
    let spec = MapSpec {
        map_type,
        key_size,
        value_size,
        max_entries,
        ..MapSpec::default()
    };
    beeline_kernel::create_map(&spec).map(File::from)
}

/// Sets an element of a map with keys of 4 bytes; in a program array, to a program's descriptor.
///
/// # Errors
/// Fails with the errno of `bpf(2)`.
pub fn set(map: &File, key: u32, value: u32) -> io::Result<()> {
    set_bytes(map, key, &value.to_ne_bytes())
}

/// Does the same with a value of any size, which must be the map's.
///
/// # Errors
/// Fails with the errno of `bpf(2)`.
pub fn set_bytes(map: &File, key: u32, value: &[u8]) -> io::Result<()> {
    beeline_kernel::update(map, &key.to_ne_bytes(), value)
}

/// Returns every path of the verifier through a program, with the states of the registers after
/// each instruction; and whether it accepts the program.
pub fn follow(prog_type: ProgramType, insns: &[Insn]) -> (io::Result<File>, String) {
    let spec = ProgramSpec {
        prog_type,
        license: "GPL",
        insns,
        log_level: 2,
        ..ProgramSpec::default()
    };
    match beeline_kernel::load_program(&spec) {
        Ok((program, log)) => (Ok(program.into()), log),
        Err(refusal) => (
            Err(io::Error::from_raw_os_error(refusal.errno)),
            refusal.log,
        ),
    }
}

/// A program to load only for its verdict.
#[derive(Debug, Clone, Copy, Default)]
pub struct Trial<'a> {
    /// `prog_type`.
    pub prog_type: ProgramType,
    /// `expected_attach_type`.
    pub attach_type: AttachType,
    /// `BPF_F_*`.
    pub flags: u32,
    /// Its attach target, in the kernel's BTF or that of `attach_to`.
    pub attach_btf_id: u32,
    /// The program or the module's types that it attaches to.
    pub attach_to: Option<&'a File>,
    /// Descriptors that instructions name by their indices.
    pub fd_array: &'a [i32],
    /// Its instructions.
    pub insns: &'a [Insn],
    /// Its own BTF.
    pub btf: Option<&'a File>,
    /// `struct bpf_func_info`.
    pub func_info: &'a [[u32; 2]],
    /// `struct bpf_line_info`.
    pub line_info: &'a [[u32; 4]],
}

/// Returns the kernel's answer: an errno, 0 if it accepts, and its log at a level.
pub fn verdict(trial: &Trial<'_>, log_level: u32) -> (i32, String) {
    let (made, log) = load_trial(trial, log_level);
    (made.err().unwrap_or(0), log)
}

/// Does the same, with the program if the kernel accepts it.
pub fn load_trial(trial: &Trial<'_>, log_level: u32) -> (Result<File, i32>, String) {
    let types = trial.btf.map(|btf| ProgramTypes {
        btf: btf.as_fd(),
        functions: trial.func_info,
        lines: trial.line_info,
    });
    let spec = ProgramSpec {
        prog_type: trial.prog_type,
        expected_attach_type: trial.attach_type,
        flags: trial.flags,
        attach_btf_id: trial.attach_btf_id,
        attach_to: trial.attach_to.map(AsFd::as_fd),
        fd_array: trial.fd_array,
        license: "GPL",
        insns: trial.insns,
        types,
        log_level,
        ..ProgramSpec::default()
    };
    match beeline_kernel::load_program(&spec) {
        Ok((made, log)) => (Ok(made.into()), log),
        Err(refusal) => (Err(refusal.errno), refusal.log),
    }
}

/// Makes an array of values of a type of the given BTF, with numbers for keys.
///
/// # Errors
/// Fails with the errno of `bpf(2)`.
pub fn typed_array(btf: &File, (key, value): (u32, u32), value_size: u32) -> io::Result<File> {
    let spec = MapSpec {
        map_type: MapType::ARRAY,
        key_size: 4,
        value_size,
        max_entries: 1,
        types: Some((btf.as_fd(), key, value)),
        ..MapSpec::default()
    };
    beeline_kernel::create_map(&spec).map(File::from)
}

/// Loads type information into the kernel.
///
/// # Errors
/// Fails with the errno of `bpf(2)`.
pub fn load_btf(btf: &[u8]) -> io::Result<File> {
    let made = beeline_kernel::load_types(btf);
    made.map(File::from)
        .map_err(|refusal| io::Error::from_raw_os_error(refusal.errno))
}
