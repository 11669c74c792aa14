//! The kernel's maps and programs, by bpf(2): the oracle.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use beeline_maps::{Kind, Spec};
use beeline_uapi::{Command, Errno, HelperId, MapType, ProgramType};

/// Returns whether the kernel allows no maps, and says on stderr that the test does not run then.
pub fn is_missing() -> bool {
    let spec = super::spec(MapType::HASH, 4, 4, 1);
    match KernelMap::new(&spec) {
        Ok(_) => false,
        Err(error) => {
            eprintln!("skipped: bpf(2) gives no map here ({error:?})");
            true
        }
    }
}

/// Returns the kernel's count of possible CPUs.
pub fn cpus() -> u32 {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap();
    text.trim()
        .rsplit(['-', ','])
        .next()
        .unwrap()
        .parse::<u32>()
        .unwrap()
        + 1
}

fn bpf(command: Command, attr: &mut [u64]) -> Result<i32, Errno> {
    // SAFETY: the attributes are readable and writable; the callers vouch for the memory that they
    // point to.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command.0,
            attr.as_mut_ptr(),
            std::mem::size_of_val(attr),
        )
    };
    if result < 0 {
        return Err(Errno(
            std::io::Error::last_os_error().raw_os_error().unwrap(),
        ));
    }
    Ok(result as i32)
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// BTF with an `int` (1) and more types: `int`, `main` and `callback` are the names at 1, 5 and 10.
fn types(more: &[u32]) -> OwnedFd {
    const STRINGS: &[u8; 19] = b"\0int\0main\0callback\0";
    let int = [1, 1 << 24, 4, 1 << 24 | 32];
    let len = (size_of_val(&int) + size_of_val(more)) as u32;
    let header = [0x0001_eb9f, 24, 0, len, len, STRINGS.len() as u32];
    let words = header.iter().chain(&int).chain(more);
    let mut btf: Vec<u8> = words.flat_map(|word| word.to_ne_bytes()).collect();
    btf.extend(STRINGS);
    let mut attr = [btf.as_ptr() as u64, 0, btf.len() as u64];
    let fd = bpf(Command::BTF_LOAD, &mut attr).expect("the types are loaded");
    // SAFETY: a descriptor that nobody else owns.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A map of the kernel's.
pub struct KernelMap {
    pub fd: OwnedFd,
    key_size: usize,
}

impl KernelMap {
    pub fn new(spec: &Spec) -> Result<Self, Errno> {
        let mut attr = [0u64; 9];
        attr[0] = pair(spec.map_type.0, spec.key_size);
        attr[1] = pair(spec.value_size, spec.max_entries);
        attr[2] = pair(spec.flags, 0);
        attr[8] = spec.map_extra;
        // The further requirements of such a map: a map of maps takes an inner map, a task storage
        // types of key and value.
        let inner = match spec.kind() {
            Some(Kind::ArrayOfMaps | Kind::HashOfMaps) => {
                Some(Self::new(&super::spec(MapType::ARRAY, 4, 4, 1))?)
            }
            _ => None,
        };
        if let Some(inner) = &inner {
            attr[2] |= pair(0, inner.fd.as_raw_fd() as u32);
        }
        // Type 2 is a structure of the value's size.
        let types = (spec.kind() == Some(Kind::TaskStorage))
            .then(|| types(&[0, 4 << 24, spec.value_size.max(1)]));
        if let Some(types) = &types {
            attr[6] = pair(types.as_raw_fd() as u32, 1);
            attr[7] = pair(2, 0);
        }
        let fd = bpf(Command::MAP_CREATE, &mut attr)?;
        // SAFETY: a descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self {
            fd,
            key_size: spec.key_size as usize,
        })
    }

    fn element(
        &self,
        command: Command,
        key: *const u8,
        value: *mut u8,
        flags: u64,
    ) -> Result<(), Errno> {
        // A map without keys takes no pointer to one.
        let key = if self.key_size == 0 {
            std::ptr::null()
        } else {
            key
        };
        let mut attr = [self.fd.as_raw_fd() as u64, key as u64, value as u64, flags];
        bpf(command, &mut attr).map(drop)
    }

    pub fn lookup(&self, key: &[u8], out: &mut [u8]) -> Result<(), Errno> {
        assert_eq!(key.len(), self.key_size);
        self.element(Command::MAP_LOOKUP_ELEM, key.as_ptr(), out.as_mut_ptr(), 0)
    }

    pub fn lookup_and_delete(&self, key: &[u8], out: &mut [u8]) -> Result<(), Errno> {
        assert_eq!(key.len(), self.key_size);
        self.element(
            Command::MAP_LOOKUP_AND_DELETE_ELEM,
            key.as_ptr(),
            out.as_mut_ptr(),
            0,
        )
    }

    pub fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        assert_eq!(key.len(), self.key_size);
        self.element(
            Command::MAP_UPDATE_ELEM,
            key.as_ptr(),
            value.as_ptr().cast_mut(),
            flags,
        )
    }

    pub fn delete(&self, key: &[u8]) -> Result<(), Errno> {
        assert_eq!(key.len(), self.key_size);
        self.element(
            Command::MAP_DELETE_ELEM,
            key.as_ptr(),
            std::ptr::null_mut(),
            0,
        )
    }

    /// Allows no more changes from here, and, with the flag for it, none by programs.
    pub fn freeze(&self) -> Result<(), Errno> {
        bpf(Command::MAP_FREEZE, &mut [self.fd.as_raw_fd() as u64]).map(drop)
    }

    pub fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), Errno> {
        let key = key.map_or(std::ptr::null(), <[u8]>::as_ptr);
        self.element(Command::MAP_GET_NEXT_KEY, key, out.as_mut_ptr(), 0)
    }
}

/// The results of a batch call: its result, its count, and the cursor if it wrote one.
#[derive(Debug, PartialEq)]
pub struct Batch {
    pub result: Result<(), Errno>,
    pub count: u32,
    pub cursor: Option<u32>,
}

impl KernelMap {
    /// Reads as many elements as `keys` and `values` have room for, after `cursor`.
    pub fn read_batch(
        &self,
        cursor: Option<u32>,
        keys: &mut [u8],
        values: &mut [u8],
        delete: bool,
    ) -> Batch {
        const NOT_WRITTEN: u32 = u32::MAX;
        let mut next = NOT_WRITTEN;
        let mut attr = [0u64; 7];
        attr[0] = cursor
            .as_ref()
            .map_or(0, |cursor| std::ptr::from_ref(cursor) as u64);
        attr[1] = &raw mut next as u64;
        attr[2] = keys.as_mut_ptr() as u64;
        attr[3] = values.as_mut_ptr() as u64;
        let room = keys.len() / self.key_size;
        attr[4] = pair(room as u32, self.fd.as_raw_fd() as u32);
        let command = if delete {
            Command::MAP_LOOKUP_AND_DELETE_BATCH
        } else {
            Command::MAP_LOOKUP_BATCH
        };
        let result = bpf(command, &mut attr).map(drop);
        Batch {
            result,
            count: attr[4] as u32,
            cursor: (next != NOT_WRITTEN).then_some(next),
        }
    }
}

/// One instruction.
pub fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> u64 {
    u64::from(code)
        | u64::from(dst) << 8
        | u64::from(src) << 12
        | u64::from(off as u16) << 16
        | u64::from(imm as u32) << 32
}

/// Returns the instructions that put `bytes` on the stack, from r10 - `at`.
pub fn stack_bytes(at: i16, bytes: &[u8]) -> Vec<u64> {
    let store = |(i, byte): (usize, &u8)| insn(0x72, 10, 0, i as i16 - at, i32::from(*byte));
    bytes.iter().enumerate().map(store).collect()
}

/// dst = r10 - at
pub fn stack_address(dst: u8, at: i16) -> [u64; 2] {
    [
        insn(0xbf, dst, 10, 0, 0),
        insn(0x07, dst, 0, 0, -i32::from(at)),
    ]
}

/// dst = the map
pub fn map_address(dst: u8, map: &KernelMap) -> [u64; 2] {
    [insn(0x18, dst, 1, 0, map.fd.as_raw_fd()), 0]
}

/// dst = the first value of an array, plus `offset`
pub fn value_address(dst: u8, map: &KernelMap, offset: i32) -> [u64; 2] {
    let second = insn(0, 0, 0, 0, offset);
    [insn(0x18, dst, 2, 0, map.fd.as_raw_fd()), second]
}

pub fn move_imm(dst: u8, imm: i32) -> u64 {
    insn(0xb7, dst, 0, 0, imm)
}

pub fn call(helper: HelperId) -> [u64; 2] {
    let call = insn(0x85, 0, 0, 0, helper.0.cast_signed());
    [call, insn(0x95, 0, 0, 0, 0)]
}

/// Returns the kernel's id of a map or program.
pub fn id(object: &OwnedFd) -> u32 {
    // Type and id are first in both structures.
    let mut info = [0u32; 2];
    let len = size_of_val(&info) as u32;
    let mut attr = [
        pair(object.as_raw_fd() as u32, len),
        info.as_mut_ptr() as u64,
    ];
    bpf(Command::OBJ_GET_INFO_BY_FD, &mut attr).expect("an object has information");
    info[1]
}

/// Loads a program as a traffic classifier.
pub fn load(insns: &[u64]) -> OwnedFd {
    load_with(insns, [0; 16])
}

/// Does the same for a program with a callback that begins at that instruction.
pub fn load_with_callback(insns: &[u64], callback: u32) -> OwnedFd {
    // 2 is a function without parameters that gives an int; 3 and 4 are of that type.
    let types = types(&[0, 13 << 24, 1, 5, 12 << 24, 2, 10, 12 << 24, 2]);
    let functions = [0, 3, callback, 4];
    let mut attr = [0; 16];
    attr[9] = pair(types.as_raw_fd() as u32, 8);
    attr[10] = functions.as_ptr() as u64;
    attr[11] = 2;
    load_with(insns, attr)
}

fn load_with(insns: &[u64], attr: [u64; 16]) -> OwnedFd {
    let mut log = vec![0u8; 1 << 16];
    try_load_with(ProgramType::SCHED_CLS, insns, attr, &mut log)
        .unwrap_or_else(|error| panic!("{error:?}: {}", String::from_utf8_lossy(&log)))
}

/// Loads a program of a type; returns the error and the verifier's log if it is refused.
pub fn try_load(prog_type: ProgramType, insns: &[u64], log: &mut [u8]) -> Result<OwnedFd, Errno> {
    try_load_with(prog_type, insns, [0; 16], log)
}

fn try_load_with(
    prog_type: ProgramType,
    insns: &[u64],
    mut attr: [u64; 16],
    log: &mut [u8],
) -> Result<OwnedFd, Errno> {
    attr[0] = pair(prog_type.0, insns.len() as u32);
    attr[1] = insns.as_ptr() as u64;
    attr[2] = c"GPL".as_ptr() as u64;
    attr[3] = pair(1, log.len() as u32);
    attr[4] = log.as_mut_ptr() as u64;
    let fd = bpf(Command::PROG_LOAD, &mut attr)?;
    // SAFETY: a descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Runs a program once, on the thread's current CPU; returns its result.
pub fn run(insns: &[u64]) -> i32 {
    run_loaded(&load(insns))
}

/// Does the same as [`run`]; returns the error and the verifier's log if the program is not loaded.
pub fn try_run(insns: &[u64], log: &mut [u8]) -> Result<i32, Errno> {
    try_load(ProgramType::SCHED_CLS, insns, log).map(|program| run_loaded(&program))
}

/// Does the same for a loaded program.
pub fn run_loaded(program: &OwnedFd) -> i32 {
    run_on(program, &[0; 64])
}

/// Does the same, with this packet.
fn run_on(program: &OwnedFd, packet: &[u8; 64]) -> i32 {
    let mut attr = [0u64; 10];
    attr[0] = pair(program.as_raw_fd() as u32, 0);
    attr[1] = pair(packet.len() as u32, 0);
    attr[2] = packet.as_ptr() as u64;
    bpf(Command::PROG_TEST_RUN, &mut attr).expect("test run");
    (attr[0] >> 32) as i32
}

/// Returns a program that looks up a key of 8 bytes.
pub struct LookUp(OwnedFd);

impl LookUp {
    pub fn new(map: &KernelMap) -> Self {
        const KEY_IN_PACKET: i32 = 24;
        // r3 = r10 - 8: bpf_skb_load_bytes puts the key there.
        let mut insns = vec![move_imm(2, KEY_IN_PACKET)];
        insns.extend(stack_address(3, 8));
        insns.push(move_imm(4, 8));
        insns.push(call(HelperId::SKB_LOAD_BYTES)[0]);
        insns.extend(map_address(1, map));
        insns.extend(stack_address(2, 8));
        insns.push(call(HelperId::MAP_LOOKUP_ELEM)[0]);
        // if r0 != 0 then r0 = 1
        insns.push(insn(0x15, 0, 0, 1, 0));
        insns.push(move_imm(0, 1));
        insns.push(insn(0x95, 0, 0, 0, 0));
        Self(load(&insns))
    }

    pub fn has(&self, key: u64) -> bool {
        let mut packet = [0u8; 64];
        packet[24..32].copy_from_slice(&key.to_ne_bytes());
        run_on(&self.0, &packet) == 1
    }
}

/// Keeps the calling thread on one CPU.
pub fn stay_on(cpu: u32) {
    // SAFETY: the set is plain data, and initialised.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu as usize, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
}
