//! A target held by the calling thread, and the ways to shorten a short stop.

mod common;

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use beeline_inject::{Error, MapFlags, Mapping, Process, ProtFlags, Stopped, must_end, trace_here};
use beeline_uapi::linux::PAGE_SIZE;
use common::{Target, compile, memory_file};

const PAGE: u64 = PAGE_SIZE;

fn c_target() -> PathBuf {
    compile("target.c", &["-fPIE", "-pie"])
}

fn holder(process: &Process) -> std::thread::ThreadId {
    process.stopped(|_| std::thread::current().id()).unwrap()
}

/// Returns the thread that traces a process, 0 for none.
fn tracer(pid: i32) -> i32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mut lines = status.lines();
    let tracer = lines.find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.unwrap().trim().parse().unwrap()
}

#[test]
fn a_permitted_caller_holds_a_single_threaded_process_itself() {
    let us = std::thread::current().id();
    let (one, many) = (["blocked", "read"], ["threads", "5"]);
    for (arguments, is_single) in [(one, true), (many, false)] {
        let target = Target::start(&c_target(), &arguments);
        let process = target.open();
        assert_eq!(process.is_single(), is_single);
        assert_ne!(holder(&process), us);
        assert_eq!(trace_here(|| holder(&process)) == us, is_single);
        assert_ne!(holder(&process), us);
        assert!(!must_end());
        assert_eq!(tracer(target.pid()), 0);
        target.finish_fine();
    }
}

#[test]
fn a_tracer_thread_that_cannot_let_go_ends() {
    let target = Target::start(&c_target(), &["vforked alone"]);
    let (pid, process) = (target.pid(), target.open());
    let sleeps_deeply = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('D')
    };
    while !sleeps_deeply() {
        std::thread::yield_now();
    }
    let attempt = || {
        match trace_here(|| process.stopped(|_| ())) {
            Err(Error::Stuck { state: 'D', .. }) => {}
            other => panic!("{other:?}"),
        }
        (must_end(), tracer(pid))
    };
    let (must, by) = std::thread::scope(|scope| scope.spawn(attempt).join().unwrap());
    assert!(must && by != 0);
    // The kernel releases the target a moment after the thread can be joined.
    while tracer(pid) != 0 {
        std::thread::yield_now();
    }
    target.finish_fine();
}

/// It is another process's child: a tracer keeps its end from its parent.
#[test]
fn a_tracer_thread_of_a_dead_process_ends() {
    let mut shell = Command::new("sh");
    shell.args(["-c", "sleep 1000 & echo $!; wait $!; echo $?"]);
    let mut shell = shell.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines();
    let pid: i32 = lines.next().unwrap().unwrap().parse().unwrap();
    let process = Process::open(pid).unwrap();
    let attempt = || {
        let killed = trace_here(|| {
            // SAFETY: a plain number: the process that this test has started.
            process.stopped(|_| unsafe { libc::kill(pid, libc::SIGKILL) })
        });
        assert!(
            matches!(killed, Ok(0) | Err(Error::Exited { .. })),
            "{killed:?}"
        );
        must_end()
    };
    let must = std::thread::scope(|scope| scope.spawn(attempt).join().unwrap());
    assert!(must);
    assert_eq!(lines.next().unwrap().unwrap(), "137");
    shell.wait().unwrap();
}

#[test]
fn files_are_mapped_through_memory_that_is_there() {
    let target = Target::start(&c_target(), &["blocked", "read"]);
    let process = target.open();
    let mut stopped = process.stop().unwrap();
    let before = stopped.regions().unwrap();
    let writable = ProtFlags::READ | ProtFlags::WRITE;
    let scratch = stopped.mmap_anonymous(PAGE, writable, MapFlags::empty(), 0);
    let scratch = scratch.unwrap();
    let is_mapped = |stopped: &Stopped, address: u64| {
        let regions = stopped.regions().unwrap();
        regions.iter().any(|region| region.contains(address))
    };
    assert!(!before.iter().any(|region| region.contains(scratch)));
    assert!(is_mapped(&stopped, scratch));
    // The second time, the first visit's mappings are there.
    for content in [b"first", b"other"] {
        let file = memory_file(content, PAGE);
        let mapping = Mapping {
            file: file.as_fd(),
            offset: 0,
            len: PAGE,
            protection: ProtFlags::READ,
            flags: MapFlags::SHARED,
            address: 0,
        };
        let placed = stopped.map_files_through(scratch, &[mapping]).unwrap();
        let mut there = [0; 5];
        stopped.read(placed[0], &mut there).unwrap();
        assert_eq!(&there, content);
        stopped.munmap(placed[0], PAGE).unwrap();
        assert!(!is_mapped(&stopped, placed[0]));
    }
    stopped.munmap(scratch, PAGE).unwrap();
    stopped.resume().unwrap();
    target.finish_fine();
}

#[test]
fn pieces_are_read_together_whatever_they_are() {
    let target = Target::start(&c_target(), &["blocked", "read"]);
    let process = target.open();
    let mut stopped = process.stop().unwrap();
    let writable = ProtFlags::READ | ProtFlags::WRITE;
    let place = stopped.mmap_anonymous(3 * PAGE, writable, MapFlags::empty(), 0);
    let place = place.unwrap();
    for page in 0..3 {
        stopped
            .write(place + page * PAGE, &[page as u8 + 1; 16])
            .unwrap();
    }
    // Not for the process itself, nor for readers with the same view.
    let unreadable = [place + PAGE, PAGE, libc::PROT_NONE as u64, 0, 0, 0];
    stopped.syscall(libc::SYS_mprotect, unreadable).unwrap();
    let piece = |page: u64| (place + page * PAGE, vec![0; 16]);
    let mut pieces = [piece(0), piece(1), piece(2)];
    stopped.read_all(&mut pieces).unwrap();
    for (page, (_, bytes)) in pieces.iter().enumerate() {
        assert_eq!(bytes[..], [page as u8 + 1; 16]);
    }
    let mut many: Vec<_> = (0..1500).map(|at| (place + at % 16, vec![0])).collect();
    stopped.read_all(&mut many).unwrap();
    assert!(many.iter().all(|(_, byte)| byte[..] == [1]));
    stopped.munmap(place, 3 * PAGE).unwrap();
    assert!(stopped.read_all(&mut [piece(0)]).is_err());
    stopped.resume().unwrap();
    target.finish_fine();
}
