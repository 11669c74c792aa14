//! A tool's actions: raw system calls, with errors as negative numbers.

use std::ffi::CString;
use std::io;

use beeline_uapi::perf::ioc;
use beeline_uapi::{AttachType, Command, MapType, ProgramType};

pub const IOC_ENABLE: u64 = ioc::ENABLE as u64;
pub const IOC_DISABLE: u64 = ioc::DISABLE as u64;
pub const IOC_SET_BPF: u64 = ioc::SET_BPF as u64;

/// Returns the return value, or minus the error number.
pub fn result(value: libc::c_long) -> i64 {
    if value < 0 {
        -i64::from(io::Error::last_os_error().raw_os_error().unwrap())
    } else {
        value
    }
}

/// An attribute, field by field.
#[derive(Clone, Default)]
pub struct Attr(pub Vec<u8>);

impl Attr {
    pub fn zero(len: usize) -> Self {
        Attr(vec![0; len])
    }

    pub fn u32(mut self, at: usize, value: u32) -> Self {
        self.put(at, &value.to_ne_bytes());
        self
    }

    pub fn u64(mut self, at: usize, value: u64) -> Self {
        self.put(at, &value.to_ne_bytes());
        self
    }

    pub fn bytes(mut self, at: usize, value: &[u8]) -> Self {
        self.put(at, value);
        self
    }

    pub fn get_u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.0[at..at + 4].try_into().unwrap())
    }

    fn put(&mut self, at: usize, value: &[u8]) {
        self.0[at..at + value.len()].copy_from_slice(value);
    }
}

pub fn bpf(command: Command, attr: &mut Attr) -> i64 {
    // SAFETY: the attribute and its length; other addresses in it are of live buffers or bad on
    // purpose, and read by the supervisor.
    result(unsafe { libc::syscall(libc::SYS_bpf, command.0, attr.0.as_mut_ptr(), attr.0.len()) })
}

pub fn map_create(
    map_type: MapType,
    key: u32,
    value: u32,
    entries: u32,
    flags: u32,
    name: &str,
) -> i64 {
    let attr = Attr::zero(72)
        .u32(0, map_type.0)
        .u32(4, key)
        .u32(8, value)
        .u32(12, entries)
        .u32(16, flags);
    bpf(Command::MAP_CREATE, &mut attr.bytes(28, name.as_bytes()))
}

pub fn element<V>(command: Command, map: i64, key: &u32, value: &mut V) -> i64 {
    let size = if command == Command::MAP_DELETE_ELEM {
        16
    } else {
        32
    };
    let mut attr = Attr::zero(32)
        .u32(0, map as u32)
        .u64(8, std::ptr::from_ref(key) as u64);
    if command != Command::MAP_DELETE_ELEM {
        attr = attr.u64(16, std::ptr::from_mut(value) as u64);
    }
    attr.0.truncate(size);
    bpf(command, &mut attr)
}

/// `r0 = 0; exit`
pub const RETURN_0: [u64; 2] = [0xb7, 0x95];

pub fn prog_load(prog_type: ProgramType, name: &str, insns: &[u64]) -> i64 {
    bpf(Command::PROG_LOAD, &mut prog_attr(prog_type, name, insns))
}

pub fn prog_attr(prog_type: ProgramType, name: &str, insns: &[u64]) -> Attr {
    let license = c"GPL".as_ptr() as u64;
    let attr = Attr::zero(152)
        .u32(0, prog_type.0)
        .u32(4, insns.len() as u32);
    attr.u64(8, insns.as_ptr() as u64)
        .u64(16, license)
        .bytes(48, name.as_bytes())
}

pub fn test_run(program: i64) -> (i64, u32) {
    let mut attr = Attr::zero(80).u32(0, program as u32);
    (bpf(Command::PROG_TEST_RUN, &mut attr), attr.get_u32(4))
}

pub fn perf_event_open(attr: &mut Attr, pid: i32, cpu: i32) -> i64 {
    // SAFETY: the attribute carries its own length.
    result(unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attr.0.as_mut_ptr(),
            pid,
            cpu,
            -1,
            8,
        )
    })
}

pub fn uprobe_type() -> u32 {
    let file = "/sys/bus/event_source/devices/uprobe/type";
    std::fs::read_to_string(file)
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

/// Opens an event on this program's own file.
pub fn uprobe(offset: u64, disabled: bool) -> i64 {
    let path = c"/proc/self/exe".as_ptr() as u64;
    let attr = Attr::zero(112)
        .u32(0, uprobe_type())
        .u32(4, 112)
        .u64(40, u64::from(disabled));
    perf_event_open(&mut attr.u64(56, path).u64(64, offset), -1, 0)
}

pub fn perf_ring(cpu: i32) -> i64 {
    perf_event_open(&mut Attr::zero(112).u32(0, 1).u64(8, 10), -1, cpu)
}

pub fn ioctl(fd: i64, command: u64, argument: i64) -> i64 {
    // SAFETY: the commands used here take their argument by value.
    result(unsafe { libc::syscall(libc::SYS_ioctl, fd, command, argument) })
}

pub fn close(fd: i64) {
    // SAFETY: closes a descriptor that the test made.
    assert_eq!(unsafe { libc::close(fd as i32) }, 0);
}

pub fn dup(fd: i64) -> i64 {
    // SAFETY: duplicates a descriptor that the test made.
    result(unsafe { libc::dup(fd as i32) }.into())
}

/// Returns a shared mapping, or the error.
pub fn mmap(fd: i64, pages: usize, protection: i32) -> Result<*mut u64, i64> {
    // SAFETY: a new mapping where the kernel likes it.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            pages * 4096,
            protection,
            libc::MAP_SHARED,
            fd as i32,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        Err(result(-1))
    } else {
        Ok(at.cast())
    }
}

/// Returns the id in an object's info.
pub fn id_of(fd: i64) -> u32 {
    let mut info = [0u32; 8];
    let mut attr = Attr::zero(16)
        .u32(0, fd as u32)
        .u32(4, 32)
        .u64(8, info.as_mut_ptr() as u64);
    assert_eq!(bpf(Command::OBJ_GET_INFO_BY_FD, &mut attr), 0);
    info[1]
}

/// Waits until an object is gone: its id is free.
pub fn wait_until_gone(fd_by_id: Command, id: u32) {
    for _ in 0..200 {
        let fd = bpf(fd_by_id, &mut Attr::zero(12).u32(0, id));
        if fd == -i64::from(libc::ENOENT) {
            return;
        }
        assert!(fd >= 0, "{fd}");
        close(fd);
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("object {id} is still there");
}

/// Makes a link, with two words of the attribute that follow its type and flags.
pub fn link(program: i64, kind: AttachType, target: i64, at_16: u64, at_24: u64) -> i64 {
    let attr = Attr::zero(48)
        .u32(0, program as u32)
        .u32(4, target as u32)
        .u32(8, kind.0);
    bpf(
        Command::LINK_CREATE,
        &mut attr.u64(16, at_16).u64(24, at_24),
    )
}

/// Attaches a program to a raw tracepoint.
pub fn raw_open(program: i64, name: Option<&str>, cookie: u64) -> i64 {
    let name = name.map(|name| CString::new(name).unwrap());
    let address = name.as_ref().map_or(0, |name| name.as_ptr() as u64);
    let attr = Attr::zero(24).u64(0, address).u32(8, program as u32);
    bpf(Command::RAW_TRACEPOINT_OPEN, &mut attr.u64(16, cookie))
}
