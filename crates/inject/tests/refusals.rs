//! A refusal names the thing that may not be touched, with advice, and leaves it untouched.

mod common;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use beeline_inject::{
    Confinement, Error, Judge, MapFlags, Options, Process, ProtFlags, Seccomp, Verdict,
};
use common::{Target, compile};

fn target(task: &str) -> Target {
    Target::start(&compile("target.c", &[]), &[task])
}

#[test]
fn processes_that_do_not_exist_are_refused() {
    let mut child = Command::new("true").spawn().unwrap();
    let pid = child.id() as i32;
    let process = Process::open(pid).ok();
    child.wait().unwrap();
    assert!(matches!(
        Process::open(pid),
        Err(Error::NoSuchProcess { .. })
    ));
    assert!(process.is_none_or(|process| !process.is_alive() && process.stop().is_err()));
    for pid in [0, -1, i32::MAX, i32::MIN] {
        assert!(matches!(
            Process::open(pid),
            Err(Error::NoSuchProcess { .. })
        ));
    }
}

#[test]
fn a_process_does_not_open_itself() {
    assert!(matches!(
        Process::open(std::process::id() as i32),
        Err(Error::Itself { .. })
    ));
}

#[test]
fn a_zombie_is_refused_as_exited() {
    let mut child = Command::new("true").spawn().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert!(matches!(
        Process::open(child.id() as i32),
        Err(Error::Exited { .. })
    ));
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_thread_of_the_kernel() {
    match std::fs::read_to_string("/proc/2/comm") {
        Ok(name) if name.trim() == "kthreadd" => {}
        _ => {
            eprintln!("skipped: process 2 is no kernel thread here");
            return;
        }
    }
    assert!(matches!(
        Process::open(2),
        Err(Error::KernelThread { pid: 2 })
    ));
}

#[test]
fn somebody_elses_tracee() {
    let target = target("registers");
    let process = target.open();
    let held = process.stop().unwrap();
    let error = Process::open(target.pid()).unwrap_err();
    assert!(
        matches!(error, Error::Traced { tracer, .. } if tracer == std::process::id() as i32),
        "{error}"
    );
    assert!(matches!(process.stop(), Err(Error::Traced { .. })));
    drop(held);
    process.stop().unwrap();

    let strace = Command::new("strace")
        .args(["-o", "/dev/null", "-p", &target.pid().to_string()])
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut strace) = strace else {
        eprintln!("skipped: no strace");
        return;
    };
    let begun = Instant::now();
    let error = loop {
        match Process::open(target.pid()) {
            Err(error) => break error,
            Ok(_) => assert!(begun.elapsed() < Duration::from_secs(10)),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(
        matches!(&error, Error::Traced { comm, .. } if comm == "strace"),
        "{error}"
    );
    assert!(matches!(process.stop(), Err(Error::Traced { .. })));
    strace.kill().unwrap();
    strace.wait().unwrap();
    target.finish_fine();
}

/// The smallest 32-bit program: it waits for a signal.
fn program_of_32_bits() -> PathBuf {
    const BASE: u32 = 0x0804_8000;
    let code = [0xb8, 29, 0, 0, 0, 0xcd, 0x80]; // mov $29, %eax (pause); int $0x80
    let len = (52 + 32 + code.len()) as u32;
    let mut elf = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    for half in [2u16, 3] {
        elf.extend(half.to_le_bytes()); // ET_EXEC, EM_386
    }
    for word in [1, BASE + 84, 52, 0, 0] {
        elf.extend(u32::to_le_bytes(word)); // version, entry, program headers, sections, flags
    }
    for half in [52u16, 32, 1, 0, 0, 0] {
        elf.extend(half.to_le_bytes()); // sizes and counts of the headers
    }
    for word in [1, 0, BASE, BASE, len, len, 5, 0x1000] {
        elf.extend(u32::to_le_bytes(word)); // PT_LOAD, readable and executable
    }
    elf.extend(code);
    let path =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("pause32-{}", std::process::id()));
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(&elf).unwrap();
    file.set_permissions(std::fs::Permissions::from_mode(0o755))
        .unwrap();
    path
}

#[test]
fn a_program_of_32_bits() {
    let program = program_of_32_bits();
    let mut spawned = Command::new(&program).spawn();
    // Another test's child may have the file open for writing until it executes its own program.
    while spawned
        .as_ref()
        .is_err_and(|error| error.raw_os_error() == Some(libc::ETXTBSY))
    {
        std::thread::yield_now();
        spawned = Command::new(&program).spawn();
    }
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => {
            eprintln!("skipped: this kernel runs no 32-bit program: {error}");
            return;
        }
    };
    std::thread::sleep(Duration::from_millis(50));
    let outcome = Process::open(child.id() as i32);
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        matches!(outcome, Err(Error::ThirtyTwoBit { .. })),
        "{outcome:?}"
    );
}

#[test]
fn a_confined_process() {
    let target = target("confined");
    assert!(matches!(
        Process::open(target.pid()),
        Err(Error::Seccomp { .. })
    ));
    let process = Process::open_with(
        target.pid(),
        Options {
            seccomp: Seccomp::Suspend(|_| Ok(())),
        },
    )
    .unwrap();
    for _ in 0..100 {
        let mut stopped = process.stop().unwrap();
        // Its filter would kill it for both.
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let mapped = stopped.mmap_anonymous(4096, access, MapFlags::empty(), 0);
        stopped.munmap(mapped.unwrap(), 4096).unwrap();
        // No filter has been asked about this one.
        let unforeseen = stopped.syscall(libc::SYS_getpid, [0; 6]);
        assert!(matches!(unforeseen, Err(Error::NoAgent { .. })));
    }
    target.finish_fine();
}

/// Its filter would kill it for the call by which the kernel resumes a sleep.
#[test]
fn a_confined_sleeper_is_not_made_to_restart_its_call() {
    let target = target("sleeping");
    let refuse: Judge = |filters| {
        assert!(matches!(filters, [filter] if !filter.is_empty()));
        Err(Confinement::Forbids {
            number: libc::SYS_restart_syscall as u64,
            call: "restart_syscall",
            purpose: "a test",
            verdict: Verdict::Kills,
        })
    };
    let options = Options {
        seccomp: Seccomp::Suspend(refuse),
    };
    let process = Process::open_with(target.pid(), options).unwrap();
    for _ in 0..200 {
        assert!(matches!(process.stop(), Err(Error::Seccomp { .. })));
        std::thread::sleep(Duration::from_millis(1));
    }
    target.finish_fine();
}

#[test]
fn somebody_elses_process() {
    let target = target("registers");
    let process = as_nobody(&target);
    assert!(
        process.contains("OtherUser { owner: 0, us: 65534 }"),
        "{process}"
    );
    target.finish_fine();

    // Its own, but not dumpable.
    let program = compile("target.c", &[]);
    let public = Path::new("/tmp").join(program.file_name().unwrap());
    std::fs::copy(&program, &public).unwrap();
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&public)
        .arg("secretive");
    let mut own = Target::spawn(&mut command);
    own.await_line("ready");
    let process = as_nobody(&own);
    std::fs::remove_file(&public).unwrap();
    assert!(process.contains("NotDumpable"), "{process}");
    own.open().stop().unwrap();
    own.finish_fine();
}

/// Opens it as user nobody, in a separate process, and returns the result.
fn as_nobody(target: &Target) -> String {
    let us = Path::new("/tmp").join(format!(
        "beeline-refusals-{}-{}",
        std::process::id(),
        target.pid()
    ));
    std::fs::copy(std::env::current_exe().unwrap(), &us).unwrap();
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&us);
    command
        .args(["--exact", "helper_that_opens", "--nocapture"])
        .env("BEELINE_TEST_OPENS", target.pid().to_string());
    let output = command.current_dir("/").output().unwrap();
    std::fs::remove_file(us).unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Not a test by itself: [`as_nobody`] runs it.
#[test]
fn helper_that_opens() {
    let Ok(pid) = std::env::var("BEELINE_TEST_OPENS") else {
        return;
    };
    println!("{:?}", Process::open(pid.parse().unwrap()));
}
