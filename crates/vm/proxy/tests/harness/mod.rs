//! A proxy on this machine's own kernel, and a host that speaks to it as `beeline run --guest`
//! does, but by hand.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{self, Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use beeline_uapi::fields::{put_u32, put_u64, u32_at};
use beeline_uapi::{Command, HelperId, MapType, ProgramType};
use beeline_vm_protocol::VERSION;
use beeline_vm_protocol::address::Address;
use beeline_vm_protocol::channel::Channel;
use beeline_vm_protocol::conversation::{self, Receiver, Sender};
use beeline_vm_protocol::messages::guest_message::Body as Answer;
use beeline_vm_protocol::messages::host_message::Body as Request;
use beeline_vm_protocol::messages::{
    Bpf, BpfDone, File, GuestMessage, Hello, HostMessage, Look, Part, Refused, Welcome,
};

/// Returns whether programs can be loaded here.
pub fn may() -> bool {
    let may = rustix::process::geteuid().is_root();
    if !may {
        println!("skipped: it takes root to load programs");
    }
    may
}

/// The proxy, in a process of its own.
pub struct Proxy {
    child: Child,
    dir: tempfile::TempDir,
    said: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    pub fn start() -> Self {
        Self::with_policy("")
    }

    pub fn with_policy(policy: &str) -> Self {
        Self::listening(policy, &[])
    }

    /// Starts it with a policy, and further addresses to listen to.
    pub fn listening(policy: &str, addresses: &[&str]) -> Self {
        let mut command = process::Command::new(env!("CARGO_BIN_EXE_guest"));
        command.arg("guest");
        command.args(addresses.iter().flat_map(|address| ["--listen", address]));
        Self::by(command, policy)
    }

    /// Starts it where the kernel's file systems are mounted nowhere.
    pub fn in_a_bare_place() -> Self {
        let mut command = process::Command::new("unshare");
        command.args([
            "--mount",
            "sh",
            "-c",
            "umount -l /sys && umount -l /proc && exec \"$@\"",
            "-",
        ]);
        command.args([env!("CARGO_BIN_EXE_guest"), "guest"]);
        Self::by(command, "")
    }

    fn by(mut command: process::Command, policy: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("policy"), policy).unwrap();
        command.arg("--listen");
        command.arg(format!("unix:{}", dir.path().join("s").display()));
        command.arg("--policy").arg(dir.path().join("policy"));
        command.arg("--audit").arg(dir.path().join("audit"));
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let said = Arc::<Mutex<Vec<String>>>::default();
        let (says, stderr) = (Arc::clone(&said), child.stderr.take().unwrap());
        std::thread::spawn(move || {
            let lines = BufReader::new(stderr).lines().map_while(Result::ok);
            lines.for_each(|line| says.lock().unwrap().push(line));
        });
        let proxy = Self { child, dir, said };
        // Without a connection, which would be there for a moment longer.
        let socket = format!("listening to unix:{}", proxy.path().display());
        eventually(|| proxy.said().iter().any(|line| line.ends_with(&socket)));
        proxy
    }

    /// Returns the lines on its stderr.
    pub fn said(&self) -> Vec<String> {
        self.said.lock().unwrap().clone()
    }

    /// Returns the TCP address that it listens to.
    pub fn tcp(&self) -> Address {
        let said = self.said();
        let mut addresses = said
            .iter()
            .filter_map(|line| line.split_once("listening to tcp"));
        let (_, address) = addresses.next().expect("it listens to TCP");
        format!("tcp{address}").parse().unwrap()
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn audit(&self) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(self.dir.path().join("audit")).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Returns its descriptors and threads, once its start is complete.
    pub fn size(&self) -> (usize, usize) {
        eventually(|| self.has_begun());
        let count = |what| {
            let entries = std::fs::read_dir(format!("/proc/{}/{what}", self.pid()));
            entries.unwrap().count()
        };
        (count("fd"), count("task"))
    }

    /// It listens, and has computed its digests. A new thread still has the first one's name.
    fn has_begun(&self) -> bool {
        let tasks = PathBuf::from(format!("/proc/{}/task", self.pid()));
        let name = |thread: &std::path::Path| {
            let name = std::fs::read_to_string(thread.join("comm")).unwrap_or_default();
            name.trim().to_owned()
        };
        let first = tasks.join(self.pid().to_string());
        let threads = std::fs::read_dir(&tasks).unwrap().flatten();
        let others = threads
            .map(|thread| thread.path())
            .filter(|path| *path != first);
        let names: Vec<String> = others.map(|path| name(&path)).collect();
        names.iter().any(|name| name == "beeline-listen")
            && !names.contains(&name(&first))
            && !names.iter().any(|name| name == "beeline-sums")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const PATIENCE: Duration = Duration::from_secs(600);

/// Waits until the condition holds. On a busy machine that takes long, so the time limit is
/// generous.
#[track_caller]
pub fn eventually(mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < deadline, "that does not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A host's side of a connection.
pub struct Host {
    pub welcome: Welcome,
    sender: Sender,
    receiver: Receiver,
    last: u64,
    /// The guest's unsolicited messages.
    pub told: VecDeque<Answer>,
}

impl Host {
    pub fn connect(proxy: &Proxy) -> Self {
        Self::connect_to(&Address::Unix { path: proxy.path() })
    }

    pub fn connect_to(address: &Address) -> Self {
        let channel = Channel::connect(address, None).unwrap();
        let (receiver, sender) = conversation::begin(channel).unwrap();
        let mut host = Self {
            welcome: Welcome::default(),
            sender,
            receiver,
            last: 0,
            told: VecDeque::new(),
        };
        let hello = Hello {
            version: VERSION,
            tool: "a test".into(),
            ..Hello::default()
        };
        match host.ask(Request::Hello(hello)) {
            Ok(Answer::Welcome(welcome)) => host.welcome = welcome,
            other => panic!("{other:?}"),
        }
        host
    }

    pub fn send(&mut self, body: Request) -> u64 {
        self.last += 1;
        let id = self.last;
        let body = Some(body);
        self.sender.send(&HostMessage { id, body }).unwrap();
        id
    }

    pub fn receive(&mut self) -> Option<GuestMessage> {
        self.receiver.receive().unwrap()
    }

    pub fn ask(&mut self, body: Request) -> Result<Answer, Refused> {
        let id = self.send(body);
        loop {
            let message = self.receive().expect("the guest has ended the connection");
            match (message.id, message.body.unwrap()) {
                (0, told) => self.told.push_back(told),
                (of, Answer::Refused(refused)) if of == id => return Err(refused),
                (of, answer) => {
                    assert_eq!(of, id);
                    return Ok(answer);
                }
            }
        }
    }

    /// Returns the guest's next unsolicited message.
    pub fn next_told(&mut self) -> Answer {
        if let Some(told) = self.told.pop_front() {
            return told;
        }
        let message = self.receive().unwrap();
        assert_eq!(message.id, 0);
        message.body.unwrap()
    }

    pub fn bpf(&mut self, command: Command, attr: Vec<u8>, parts: Vec<Part>) -> BpfDone {
        match self.ask(bpf(command, attr, parts)) {
            Ok(Answer::BpfDone(done)) => done,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the errno and message of a refusal.
    pub fn refused(&mut self, body: Request) -> Refused {
        match self.ask(body) {
            Err(refused) => refused,
            other => panic!("{other:?}"),
        }
    }

    /// Creates a map by the sizes of its keys and values, the number of its elements, and its
    /// flags.
    pub fn make_map(&mut self, map_type: MapType, [key, value, entries, flags]: [u32; 4]) -> u32 {
        let map = [map_type.0, key, value, entries, flags];
        let done = self.bpf(Command::MAP_CREATE, words(&map, 80), vec![]);
        assert_eq!(done.errno, 0, "{done:?}");
        done.handle
    }

    /// Returns the kernel's id of an object.
    pub fn id(&mut self, handle: u32) -> u32 {
        let info = self.info(handle, 80, vec![]);
        u32_at(&info[0].data, 4)
    }

    /// Returns the structure, and the buffers in it.
    pub fn info(&mut self, handle: u32, len: u32, inside: Vec<Part>) -> Vec<Part> {
        let attr = words(&[handle, len], 16);
        let mut parts = vec![given(8, vec![0; len as usize])];
        parts.extend(inside);
        let done = self.bpf(Command::OBJ_GET_INFO_BY_FD, attr, parts);
        assert_eq!(done.errno, 0, "{done:?}");
        done.parts
    }

    pub fn update(&mut self, map: u32, key: &[u8], value: &[u8]) -> BpfDone {
        let parts = vec![given(8, key.to_vec()), given(16, value.to_vec())];
        self.bpf(Command::MAP_UPDATE_ELEM, words(&[map], 32), parts)
    }

    pub fn look_up(&mut self, map: u32, key: &[u8], len: u32) -> Result<Vec<u8>, u32> {
        let parts = vec![given(8, key.to_vec()), room(16, len)];
        let mut done = self.bpf(Command::MAP_LOOKUP_ELEM, words(&[map], 32), parts);
        match done.errno {
            0 => Ok(done.parts.remove(0).data),
            errno => Err(errno),
        }
    }

    pub fn load(&mut self, kind: ProgramType, insns: &[[u8; 8]]) -> BpfDone {
        let request = load(kind, insns);
        match self.ask(request) {
            Ok(Answer::BpfDone(done)) => done,
            other => panic!("{other:?}"),
        }
    }

    /// Runs a program of type `raw_tracepoint` once; returns its result.
    pub fn run(&mut self, program: u32) -> u32 {
        let attr = words(&[program], 80);
        let done = self.bpf(Command::PROG_TEST_RUN, attr, vec![]);
        assert_eq!(done.errno, 0, "{done:?}");
        u32_at(&done.attr, 4)
    }
}

pub fn bpf(command: Command, attr: Vec<u8>, parts: Vec<Part>) -> Request {
    Request::Bpf(Bpf {
        command: command.0,
        attr,
        parts,
        ..Bpf::default()
    })
}

pub fn load(kind: ProgramType, insns: &[[u8; 8]]) -> Request {
    const LOG: u32 = 4 << 20;
    let mut attr = words(&[kind.0, insns.len() as u32], 152);
    put_u32(&mut attr, 24, 1);
    put_u32(&mut attr, 28, LOG);
    let parts = vec![
        given(8, insns.concat()),
        given(16, b"GPL".to_vec()),
        room(32, LOG),
    ];
    bpf(Command::PROG_LOAD, attr, parts)
}

pub fn words(words: &[u32], len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (number, word) in words.iter().enumerate() {
        put_u32(&mut bytes, number * 4, *word);
    }
    bytes
}

pub fn longs(longs: &[(usize, u64)], mut bytes: Vec<u8>) -> Vec<u8> {
    for (at, long) in longs {
        put_u64(&mut bytes, *at, *long);
    }
    bytes
}

pub fn given(at: u32, data: Vec<u8>) -> Part {
    Part { at, data, room: 0 }
}

pub fn room(at: u32, room: u32) -> Part {
    Part {
        at,
        data: Vec::new(),
        room,
    }
}

/// Returns an instruction.
pub fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> [u8; 8] {
    let mut insn = [code, src << 4 | dst, 0, 0, 0, 0, 0, 0];
    insn[2..4].copy_from_slice(&off.to_le_bytes());
    insn[4..].copy_from_slice(&imm.to_le_bytes());
    insn
}

pub fn mov(dst: u8, imm: i32) -> [u8; 8] {
    insn(0xb7, dst, 0, 0, imm)
}

pub fn call(helper: HelperId) -> [u8; 8] {
    insn(0x85, 0, 0, 0, helper.0.cast_signed())
}

pub fn exit() -> [u8; 8] {
    insn(0x95, 0, 0, 0, 0)
}

pub fn map(dst: u8, handle: u32) -> [[u8; 8]; 2] {
    [insn(0x18, dst, 1, 0, handle as i32), [0; 8]]
}

/// Returns a program that writes so many records into a ring buffer, of 8 bytes each: the first
/// word of an array that counts them.
pub fn writes_records(ring: u32, counter: u32, count: i32) -> Vec<[u8; 8]> {
    let mut insns = vec![
        // A key of 0, and the counter's address.
        insn(0x62, 10, 0, -4, 0),
        insn(0xbf, 2, 10, 0, 0),
        insn(0x07, 2, 0, 0, -4),
    ];
    insns.extend(map(1, counter));
    insns.extend([
        call(HelperId::MAP_LOOKUP_ELEM),
        insn(0x15, 0, 0, 13, 0),
        insn(0xbf, 6, 0, 0, 0),
        mov(7, count),
    ]);
    let turn = insns.len() as i16;
    insns.extend([
        // r1 = fetch_add(counter, 1), to the stack.
        mov(1, 1),
        insn(0xdb, 6, 1, 0, 1),
        insn(0x7b, 10, 1, -16, 0),
    ]);
    insns.extend(map(1, ring));
    insns.extend([
        insn(0xbf, 2, 10, 0, 0),
        insn(0x07, 2, 0, 0, -16),
        mov(3, 8),
        mov(4, 0),
        call(HelperId::RINGBUF_OUTPUT),
        insn(0x07, 7, 0, 0, -1),
    ]);
    let back = turn - insns.len() as i16 - 1;
    insns.push(insn(0x55, 7, 0, back, 0));
    let end = insns.len() as i16;
    insns[6] = insn(0x15, 0, 0, end - 7, 0);
    insns.extend([mov(0, 0), exit()]);
    insns
}

/// Returns a descriptor of an object by its id, opened by this process itself; `None` if there is
/// none any more.
pub fn is_there(command: Command, id: u32) -> bool {
    let mut attr = [id, 0, 0, 0];
    // SAFETY: the command reads numbers only; the descriptor is closed at once.
    unsafe {
        let fd = libc::syscall(libc::SYS_bpf, command.0, attr.as_mut_ptr(), 12);
        if fd >= 0 {
            libc::close(fd as i32);
        }
        fd >= 0
    }
}

/// Looks at a file of the guest; the error is an errno.
pub fn look(host: &mut Host, path: &str, content: bool) -> Result<File, u32> {
    let look = Look {
        path: path.into(),
        content,
        ..Look::default()
    };
    match host.ask(Request::Look(look)) {
        Ok(Answer::File(file)) => Ok(file),
        Err(refused) => Err(refused.errno),
        other => panic!("{other:?}"),
    }
}
