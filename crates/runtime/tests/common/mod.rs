//! Targets to attach to, programs that count, and an optimizer that waits until it is told to go
//! on.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use beeline_codegen::{Baseline, Bytecode, Code, Compiler, Error, Machine};
use beeline_isa::{Insn, imm64};
use beeline_runtime::Runtime;
use beeline_runtime::backend::{AttachPoint, Backend, Id, MapSpec, ProgramSpec, SpecialFields};
use beeline_runtime::detach::{Presence, in_process};
use beeline_uapi::{HelperId, MapType, ProgramType};
use object::{Object, ObjectSection, ObjectSymbol};
use parking_lot::{Condvar, Mutex, MutexGuard};

/// The increments of [`counter`] and of [`Gate`]'s code for each call, which show whose code has
/// run.
const ONE: u64 = 1;
const OTHER_ONE: u64 = 1 << 32;

/// Nothing tells sessions of one process apart, so there may be only one at a time.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock()
}

/// Waits for a condition that will come true.
pub fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !happened() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

/// The program of `targets/hits.c`.
pub struct Hits {
    _directory: tempfile::TempDir,
    pub path: PathBuf,
}

impl Hits {
    pub fn build() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hits");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/targets/hits.c");
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-pthread", "-o"]).args([&path, &source]);
        assert!(gcc.status().unwrap().success());
        Self {
            _directory: directory,
            path,
        }
    }

    pub fn start(&self) -> Target {
        let mut child = Command::new(&self.path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut target = Target { child, output };
        assert_eq!(target.line(), "ready");
        target
    }

    /// The offset of `hit` in the file, and its first bytes.
    pub fn hit(&self) -> (u64, Vec<u8>) {
        let bytes = std::fs::read(&self.path).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let symbol = file.symbol_by_name("hit").unwrap();
        let section = file
            .section_by_index(symbol.section_index().unwrap())
            .unwrap();
        let offset = symbol.address() - section.address() + section.file_range().unwrap().0;
        (offset, bytes[offset as usize..][..16].to_vec())
    }
}

pub struct Target {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Target {
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Makes its threads call `hit` until [`Self::stop`].
    pub fn go(&mut self) {
        self.tell();
    }

    /// Returns the number of their calls.
    pub fn stop(&mut self) -> u64 {
        self.tell();
        self.line().parse().unwrap()
    }

    fn tell(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Returns Beeline's presence here.
    pub fn presence(&self) -> Option<Presence> {
        in_process(self.pid()).ok()?.into_iter().next()
    }

    /// Returns the engines whose code runs at `hit`.
    pub fn engines(&self) -> Vec<String> {
        let sites = self.presence().map(|presence| presence.sites);
        let programs = sites.into_iter().flatten().flat_map(|site| site.programs);
        programs.map(|program| program.engine).collect()
    }

    /// Returns the bytes at the file's offset, as they are in memory now.
    pub fn memory_at(&self, path: &Path, offset: u64, bytes: usize) -> Vec<u8> {
        use std::os::unix::fs::FileExt;
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid())).unwrap();
        let name = path.to_str().unwrap();
        let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let mut places = maps
            .lines()
            .filter(|line| line.ends_with(name))
            .map(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                let (start, end) = words[0].split_once('-').unwrap();
                (number(start)..number(end), number(words[2]))
            });
        let (range, from) = places
            .find(|(range, from)| (*from..from + (range.end - range.start)).contains(&offset))
            .unwrap();
        let memory = std::fs::File::open(format!("/proc/{}/mem", self.pid())).unwrap();
        let mut found = vec![0; bytes];
        memory
            .read_exact_at(&mut found, range.start + offset - from)
            .unwrap();
        found
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
    Insn {
        code,
        dst,
        src,
        off,
        imm,
    }
}

const EXIT: u8 = 0x95;
const MOV_IMM: u8 = 0xb7;
const CALL: u8 = 0x85;

/// Adds 1 to the one value of an array, by an atomic addition.
pub fn counter(fd: i32) -> Vec<Insn> {
    let [map, map_high] = imm64(1, 1, fd as u32 as u64);
    let [one, one_high] = imm64(1, 0, ONE);
    vec![
        insn(0x62, 10, 0, -4, 0), // *(u32 *)(r10 - 4) = 0
        insn(0xbf, 2, 10, 0, 0),  // r2 = r10
        insn(0x07, 2, 0, 0, -4),  // r2 += -4
        map,
        map_high,
        insn(CALL, 0, 0, 0, HelperId::MAP_LOOKUP_ELEM.0.cast_signed()),
        insn(0x15, 0, 0, 3, 0), // if r0 == 0 goto +3
        one,
        one_high,
        insn(0xdb, 0, 1, 0, 0), // lock *(u64 *)r0 += r1
        insn(MOV_IMM, 0, 0, 0, 0),
        insn(EXIT, 0, 0, 0, 0),
    ]
}

/// Tail calls the first program of an array.
pub fn tail_caller(fd: i32) -> Vec<Insn> {
    let [map, map_high] = imm64(2, 1, fd as u32 as u64);
    vec![
        map,
        map_high,
        insn(MOV_IMM, 3, 0, 0, 0),
        insn(CALL, 0, 0, 0, HelperId::TAIL_CALL.0.cast_signed()),
        insn(MOV_IMM, 0, 0, 0, 0),
        insn(EXIT, 0, 0, 0, 0),
    ]
}

/// Returns a number.
pub fn constant(value: i32) -> Vec<Insn> {
    vec![insn(MOV_IMM, 0, 0, 0, value), insn(EXIT, 0, 0, 0, 0)]
}

/// Returns the calls counted by the first code, and by the other.
pub fn split(count: u64) -> (u64, u64) {
    (count % OTHER_ONE, count / OTHER_ONE)
}

/// An array, or another map of four-byte keys, of one element.
pub fn map(runtime: &Runtime, map_type: MapType, value_size: u32) -> Id {
    let spec = MapSpec {
        map_type,
        key_size: 4,
        value_size,
        max_entries: 1,
        flags: 0,
        map_extra: 0,
        name: "one".into(),
        inner: None,
        fields: SpecialFields::default(),
        value_type: None,
    };
    runtime.map_create(&spec).unwrap()
}

pub fn value(runtime: &Runtime, map: Id) -> u64 {
    let mut value = [0; 8];
    runtime.map_lookup(map, &[0; 4], &mut value, 0).unwrap();
    u64::from_ne_bytes(value)
}

/// Loads a program whose map descriptors are the maps' ids.
pub fn load(runtime: &Runtime, prog_type: ProgramType, insns: &[Insn], maps: &[Id]) -> Id {
    let spec = ProgramSpec {
        prog_type,
        insns: insns.iter().flat_map(|insn| insn.encode()).collect(),
        maps: maps.iter().map(|map| (map.0 as i32, *map)).collect(),
        name: "count".into(),
        license: "GPL".into(),
        ..ProgramSpec::default()
    };
    runtime.program_load(&spec).unwrap().id
}

/// Attaches to `hit` in every target of the session.
pub fn attach(runtime: &Runtime, program: Id, hits: &Hits, retprobe: bool) -> Id {
    let point = AttachPoint::Uprobe {
        path: hits.path.clone(),
        offset: hits.hit().0,
        retprobe,
        pid: None,
        cookie: 0,
        semaphore: 0,
    };
    runtime.attach(program, &point).unwrap()
}

/// An optimizer that returns nothing before it is opened, and then code with a different count.
#[derive(Default)]
pub struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
    /// The programs that it was asked for.
    pub asked: AtomicU32,
    /// The stack that it claims for its code.
    pub stack_bytes: AtomicU32,
    /// The minimum size of its code.
    pub code_bytes: AtomicU32,
}

impl Gate {
    pub fn open(&self) {
        *self.is_open.lock() = true;
        self.opened.notify_all();
    }
}

/// A session's share in a gate.
pub struct Through(pub Arc<Gate>);

impl Compiler for Through {
    fn name(&self) -> &'static str {
        "other"
    }

    fn identity(&self) -> String {
        "the one of this test".into()
    }

    fn compile(&self, program: &Bytecode<'_>, machine: Machine) -> Result<Code, Error> {
        self.0.asked.fetch_add(1, SeqCst);
        let mut is_open = self.0.is_open.lock();
        self.0.opened.wait_while(&mut is_open, |open| !*open);
        drop(is_open);
        let mut insns = program.insns.to_vec();
        for place in 0..insns.len() - 1 {
            if insns[place..place + 2] == imm64(1, 0, ONE) {
                insns[place..place + 2].copy_from_slice(&imm64(1, 0, OTHER_ONE));
            }
            if insns[place].code == MOV_IMM && insns[place].imm > 1 {
                insns[place].imm += 1;
            }
        }
        let mut code = Baseline.compile(
            &Bytecode {
                insns: &insns,
                ..*program
            },
            machine,
        )?;
        let bytes = self.0.code_bytes.load(SeqCst) as usize;
        code.bytes.resize(code.bytes.len().max(bytes), 0);
        let claimed = self.0.stack_bytes.load(SeqCst);
        Ok(Code {
            stack_bytes: code.stack_bytes.max(claimed),
            ..code
        })
    }
}

/// An invalid compiler.
pub struct Broken;

impl Compiler for Broken {
    fn name(&self) -> &'static str {
        "broken"
    }

    fn compile(&self, _: &Bytecode<'_>, _: Machine) -> Result<Code, Error> {
        Err(Error::NoCodeForMachine)
    }
}
