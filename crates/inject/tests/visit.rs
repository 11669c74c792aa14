//! A visit to a target (stop, system calls, mappings, patch, release) leaves no trace, whatever the
//! target is doing.

mod common;

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use beeline_inject::{Errno, Error, MapFlags, Mapping, Process, ProtFlags, Stopped, signal_frames};
use common::{FINE, LATE, Portrait, Target, compile, memory_file};

const LEN: u64 = 8192;

fn mapping(file: &std::fs::File) -> Mapping<'_> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    Mapping {
        file: file.as_fd(),
        offset: 0,
        len: LEN,
        protection,
        flags: MapFlags::SHARED,
        address: 0,
    }
}

/// Does one of everything.
fn visit(process: &Process, files: &[std::fs::File]) -> Duration {
    let mut stopped = process.stop().unwrap();
    let pid = process.pid() as u64;
    assert_eq!(stopped.syscall(libc::SYS_getpid, [0; 6]).unwrap(), pid);

    let mappings: Vec<Mapping<'_>> = files.iter().map(mapping).collect();
    let places = stopped.map_files(&mappings).unwrap();
    assert_eq!(places.len(), files.len());
    for (place, file) in places.iter().zip(files) {
        let (mut there, mut here) = ([0; 4], [0; 4]);
        stopped.read(*place, &mut there).unwrap();
        std::os::unix::fs::FileExt::read_exact_at(file, &mut here, 0).unwrap();
        assert_eq!(there, here);
        stopped.write(place + 4096, &pid.to_ne_bytes()).unwrap();
        let mut back = [0; 8];
        std::os::unix::fs::FileExt::read_exact_at(file, &mut back, 4096).unwrap();
        assert_eq!(u64::from_ne_bytes(back), pid);
    }
    rewrite_code(&mut stopped);
    for place in places {
        stopped.munmap(place, LEN).unwrap();
    }
    stopped.resume().unwrap()
}

/// Overwrites code with the same bytes.
fn rewrite_code(stopped: &mut Stopped) {
    let ip = stopped.threads()[0].ip();
    let mut code = [0; 16];
    stopped.read(ip & !15, &mut code).unwrap();
    stopped.write(ip & !15, &code).unwrap();
}

fn three_files() -> [std::fs::File; 3] {
    [1u8, 2, 3].map(|byte| memory_file(&[byte; 4], LEN))
}

/// Visits the target many times and checks that it is unchanged.
fn visit_often(target: &Target, rounds: u32, pause: Duration) -> Process {
    let process = target.open();
    let files = three_files();
    let before = Portrait::of(&process);
    for round in 0..rounds {
        visit(&process, &files[..round as usize % 4]);
        std::thread::sleep(pause);
    }
    before.assert_restored(&process);
    process
}

fn c_target() -> PathBuf {
    compile("target.c", &["-fPIE", "-pie"])
}

#[test]
fn every_kind_of_program_keeps_its_registers() {
    for options in [
        &["-fPIE", "-pie"][..],
        &["-fno-pie", "-no-pie"],
        &["-static"],
        &["-static-pie"],
    ] {
        let target = Target::start(&compile("target.c", options), &["registers"]);
        visit_often(&target, 150, Duration::from_millis(1));
        target.finish_fine();
    }
}

#[test]
fn many_threads_count_right() {
    let program = c_target();
    for many in ["50", "200"] {
        let target = Target::start(&program, &["threads", many]);
        let process = visit_often(&target, 60, Duration::from_millis(2));
        let stopped = process.stop().unwrap();
        assert_eq!(stopped.threads().len(), many.parse::<usize>().unwrap());
        assert!(
            stopped
                .threads()
                .iter()
                .all(|thread| thread.thread_pointer() != 0)
        );
        drop(stopped);
        target.finish_fine();
    }
}

#[test]
fn threads_that_come_and_go() {
    let target = Target::start(&c_target(), &["churn"]);
    let process = target.open();
    let files = three_files();
    for _ in 0..200 {
        visit(&process, &files);
    }
    target.finish_fine();
}

#[test]
fn a_process_whose_first_thread_has_ended() {
    let target = Target::start(&c_target(), &["headless"]);
    std::thread::sleep(Duration::from_millis(100));
    let process = target.open();
    for _ in 0..100 {
        visit(&process, &three_files());
    }
    assert_eq!(target.finish().code(), Some(0));
}

#[test]
fn no_signal_is_lost_or_doubled() {
    let target = Target::start(&c_target(), &["storm"]);
    let process = target.open();
    let files = three_files();
    for _ in 0..400 {
        visit(&process, &files[..1]);
        std::thread::sleep(Duration::from_micros(300));
    }
    target.finish_fine();
}

/// The signals by which a batch of calls could end have a handler here, or are blocked.
#[test]
fn a_process_that_takes_notice_of_signals_gets_only_its_own() {
    let target = Target::start(&c_target(), &["noticing"]);
    visit_often(&target, 150, Duration::from_millis(1));
    target.finish_fine();
}

/// Others send it a signal by which a batch of calls could end.
#[test]
fn a_process_that_others_send_signals_to_is_as_it_was() {
    let target = Target::start(&c_target(), &["registers"]);
    let pid = target.pid();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                // SAFETY: the target is not waited for before this ends, so the number is its own.
                unsafe { libc::kill(pid, libc::SIGWINCH) };
            }
        });
        let visited = std::panic::catch_unwind(|| {
            visit_often(&target, 150, Duration::from_millis(1));
        });
        is_over.store(true, Relaxed);
        visited.expect("all visits succeed");
    });
    target.finish_fine();
}

#[test]
fn blocking_calls_take_their_time_and_no_eintr() {
    let program = c_target();
    let exact = ["nanosleep", "poll", "futex"];
    let later = ["ppoll", "epoll", "epoll_pwait", "sigtimedwait", "recv"];
    for call in exact
        .into_iter()
        .chain(later)
        .chain(["read", "epoll-input"])
    {
        // A restarted wait is late every time; on a busy machine any wait may be.
        let mut codes = (0..4).map(|_| visit_while_it_blocks(&program, call));
        assert_eq!(codes.find(|code| *code != LATE), Some(FINE), "{call}");
    }
}

/// The exit code of a target that was visited for half of the second that it blocks.
fn visit_while_it_blocks(program: &Path, call: &str) -> i32 {
    let target = Target::start(program, &["blocked", call]);
    std::thread::sleep(Duration::from_millis(20));
    let (process, files) = (target.open(), three_files());
    let before = Portrait::of(&process);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(500) {
        visit(&process, &files[..1]);
    }
    before.assert_restored(&process);
    target.finish().code().unwrap()
}

#[test]
fn a_handler_still_interrupts_what_it_would() {
    let mut target = Target::start(&c_target(), &["interrupted"]);
    std::thread::sleep(Duration::from_millis(50));
    let process = target.open();
    let mut stopped = process.stop().unwrap();
    target.signal(libc::SIGUSR1);
    stopped.syscall(libc::SYS_getpid, [0; 6]).unwrap();
    stopped.resume().unwrap();
    target.await_line("ready");
    target.finish_fine();
}

#[test]
fn sigsuspend_keeps_its_mask() {
    let mut target = Target::start(&c_target(), &["suspended"]);
    std::thread::sleep(Duration::from_millis(50));
    let process = target.open();
    target.signal(libc::SIGHUP);
    let files = three_files();
    for _ in 0..10 {
        visit(&process, &files);
        std::thread::sleep(Duration::from_millis(2));
    }
    target.signal(libc::SIGUSR1);
    target.await_line("ready");
    target.finish_fine();
}

#[test]
fn restartable_sequences_start_anew() {
    let target = Target::start(&c_target(), &["restartable"]);
    visit_often(&target, 200, Duration::from_micros(500));
    target.finish_fine();
}

#[test]
fn calls_that_a_thread_sends_to_itself() {
    let target = Target::start(&c_target(), &["dispatching"]);
    visit_often(&target, 100, Duration::from_micros(500));
    target.finish_fine();
}

#[test]
fn a_process_that_runs_itself_again_and_again() {
    let target = Target::start(&c_target(), &["executing", "1000"]);
    let process = target.open();
    let (mut visits, begun) = (0, Instant::now());
    while begun.elapsed() < Duration::from_secs(60) {
        match process.stop() {
            Ok(mut stopped) => {
                assert_eq!(
                    stopped.syscall(libc::SYS_getpid, [0; 6]).unwrap(),
                    target.pid() as u64
                );
                visits += 1;
            }
            Err(Error::Exited { .. }) => {
                assert!(!process.is_alive());
                break;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(visits > 10, "{visits}");
    target.finish_fine();
}

#[test]
fn a_stopped_job_stays_stopped() {
    let target = Target::start(&c_target(), &["registers"]);
    let process = target.open();
    target.signal(libc::SIGSTOP);
    std::thread::sleep(Duration::from_millis(50));
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", target.pid())).unwrap();
    for _ in 0..100 {
        visit(&process, &three_files());
    }
    std::thread::sleep(Duration::from_millis(50));
    assert!(state().contains(") T "), "{}", state());
    target.signal(libc::SIGCONT);
    std::thread::sleep(Duration::from_millis(50));
    assert!(!state().contains(") T "), "{}", state());
    target.finish_fine();
}

#[test]
fn job_control_while_it_is_held() {
    let target = Target::start(&c_target(), &["threads", "5"]);
    let process = target.open();
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", target.pid())).unwrap();
    let mut stopped = process.stop().unwrap();
    target.signal(libc::SIGSTOP);
    stopped.map_file(&mapping(&three_files()[0])).unwrap();
    drop(stopped);
    std::thread::sleep(Duration::from_millis(50));
    assert!(state().contains(") T "), "{}", state());

    let mut stopped = process.stop().unwrap();
    target.signal(libc::SIGCONT);
    stopped.syscall(libc::SYS_getpid, [0; 6]).unwrap();
    drop(stopped);
    std::thread::sleep(Duration::from_millis(50));
    assert!(!state().contains(") T "), "{}", state());
    target.finish_fine();
}

#[test]
fn python_and_go_programs_run_on_after_visits() {
    let source = "import sys,threading\nt=[threading.Thread(target=lambda: sum(range(3000000))) for _ in range(4)]\n\
        [x.start() for x in t]\nprint('ready',flush=True)\n[x.join() for x in t]\nsys.stdin.read()\nsys.exit(42)";
    let mut python = Target::spawn(Command::new("python3").args(["-c", source]));
    python.await_line("ready");
    let process = python.open();
    for _ in 0..150 {
        visit(&process, &three_files());
    }
    python.finish_fine();

    let Some(program) = go_target() else {
        eprintln!("skipped: no go compiler");
        return;
    };
    let go = Target::start(&program, &[]);
    let process = go.open();
    for _ in 0..150 {
        visit(&process, &three_files());
        std::thread::sleep(Duration::from_millis(1));
    }
    go.finish_fine();
}

fn go_target() -> Option<PathBuf> {
    let go = ["go", "/usr/local/go/bin/go"]
        .into_iter()
        .find(|go| Command::new(go).arg("version").output().is_ok())?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/targets/target.go");
    let program =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("target-go-{}", std::process::id()));
    let mut build = Command::new(go);
    build
        .args(["build", "-o"])
        .arg(&program)
        .arg(source)
        .env("CGO_ENABLED", "0")
        .env("GO111MODULE", "off");
    assert!(build.status().unwrap().success());
    Some(program)
}

#[test]
fn errors_leave_nothing_behind() {
    let target = Target::start(&c_target(), &["threads", "5"]);
    let process = target.open();
    let before = Portrait::of(&process);
    let maps = |process: &Process| process.regions().unwrap().len();
    let regions = maps(&process);
    let files = three_files();

    let mut stopped = process.stop().unwrap();
    let bad = stopped
        .syscall(libc::SYS_close, [u64::MAX, 0, 0, 0, 0, 0])
        .unwrap_err();
    assert_eq!(bad.errno(), Some(Errno::BADF));
    let mut second = mapping(&files[1]);
    second.offset = 1;
    let error = stopped
        .map_files(&[mapping(&files[0]), second, mapping(&files[2])])
        .unwrap_err();
    assert_eq!(error.errno(), Some(Errno::INVAL));
    let taken = stopped.threads()[0].ip() & !4095;
    let wanted = Mapping {
        address: taken,
        flags: MapFlags::SHARED | MapFlags::FIXED_NOREPLACE,
        ..mapping(&files[0])
    };
    assert_eq!(
        stopped.map_file(&wanted).unwrap_err().errno(),
        Some(Errno::EXIST)
    );
    assert!(matches!(
        stopped.set_ip(1, 0),
        Err(Error::NoSuchThread { tid: 1, .. })
    ));
    assert!(matches!(stopped.write(8, &[0]), Err(Error::Memory { .. })));
    drop(stopped);
    before.assert_restored(&process);
    assert_eq!(regions, maps(&process));

    // Room for the sockets and one more.
    let room = (0u32..)
        .filter(|fd| std::fs::symlink_metadata(format!("/proc/{}/fd/{fd}", target.pid())).is_err());
    let tight = room.take(3).last().unwrap() + 1;
    let limits = || std::fs::read_to_string(format!("/proc/{}/limits", target.pid())).unwrap();
    // A limit that it may raise itself is raised for the moment. One that it may not takes
    // CAP_SYS_RESOURCE.
    for (limit, is_its_own) in [
        (format!("{tight}:"), true),
        (format!("{tight}:{tight}"), false),
    ] {
        let mut command = Command::new("prlimit");
        command.args([
            "--pid",
            &target.pid().to_string(),
            &format!("--nofile={limit}"),
        ]);
        assert!(command.status().unwrap().success());
        let tight = limits();
        let mut stopped = process.stop().unwrap();
        let wanted = files.each_ref().map(mapping);
        match stopped.map_files(&wanted) {
            Ok(places) => {
                for (start, file) in places.into_iter().zip(&wanted) {
                    stopped.munmap(start, file.len).unwrap();
                }
            }
            Err(error) => {
                let is_told = matches!(
                    error,
                    Error::DescriptorLimit {
                        got: 1,
                        sent: 3,
                        ..
                    }
                );
                assert!(is_told && !is_its_own, "{error}");
                assert!(error.to_string().contains("prlimit --pid"), "{error}");
            }
        }
        drop(stopped);
        assert_eq!(limits(), tight);
    }
    before.assert_restored(&process);
    assert_eq!(regions, maps(&process));
    target.finish_fine();
}

#[test]
fn hundreds_of_files_in_one_go() {
    let target = Target::start(&c_target(), &["registers"]);
    let process = target.open();
    let before = Portrait::of(&process);
    let files: Vec<_> = (0..300u32)
        .map(|number| memory_file(&number.to_ne_bytes(), LEN))
        .collect();
    visit(&process, &files);
    before.assert_restored(&process);
    target.finish_fine();
}

#[test]
fn a_gap_can_be_mapped() {
    for options in [&["-fPIE", "-pie"][..], &["-fno-pie", "-no-pie"]] {
        let target = Target::start(&compile("target.c", options), &["registers"]);
        let process = target.open();
        let mut stopped = process.stop().unwrap();
        let near = stopped.threads()[0].ip();
        let reach = near.saturating_sub(1 << 31)..=near + (1 << 31);
        let gap = process.find_gap(reach.clone(), 3 * 4096).unwrap().unwrap();
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        let got = stopped
            .mmap_anonymous(3 * 4096, ProtFlags::READ, flags, gap)
            .unwrap();
        assert!(got == gap && reach.contains(&got));
        stopped.madvise(got, 4096, libc::MADV_DONTNEED).unwrap();
        drop(stopped);
        target.finish_fine();
    }
}

#[test]
fn interrupted_code_is_found() {
    for task in ["handler", "handler-alternate"] {
        let mut target = Target::spawn(Command::new(c_target()).arg(task));
        let address = target.await_line("spin_here 0x");
        target.await_line("ready");
        let start = u64::from_str_radix(&address, 16).unwrap();
        let process = target.open();
        let stopped = process.stop().unwrap();
        let (inside, before) = (start..start + 16, 1..start);
        let frames = signal_frames(&stopped, std::slice::from_ref(&inside)).unwrap();
        assert_eq!(frames.len(), 1, "{task}: {frames:?}");
        assert_eq!(frames[0].tid, target.pid());
        assert!(
            signal_frames(&stopped, std::slice::from_ref(&before))
                .unwrap()
                .iter()
                .all(|frame| frame.ip < start)
        );
        drop(stopped);
        assert_eq!(target.finish().code(), Some(0));
    }
}

#[test]
fn a_thread_can_be_sent_elsewhere() {
    let target = Target::start(&c_target(), &["registers"]);
    let process = target.open();
    let mut stopped = process.stop().unwrap();
    // `ud2`, written beside the program's own code, ends it by SIGILL: so it did run there.
    let page = stopped
        .mmap_anonymous(
            4096,
            ProtFlags::READ | ProtFlags::EXEC,
            MapFlags::PRIVATE,
            0,
        )
        .unwrap();
    stopped.write(page, &[0x0f, 0x0b]).unwrap();
    stopped.set_ip(process.pid(), page).unwrap();
    stopped.resume().unwrap();
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(target.finish().signal(), Some(libc::SIGILL));
    assert!(!process.is_alive());
}

#[test]
fn killed_while_it_is_held() {
    let target = Target::start(&c_target(), &["threads", "20"]);
    let process = target.open();
    let mut stopped = process.stop().unwrap();
    target.signal(libc::SIGKILL);
    std::thread::sleep(Duration::from_millis(50));
    let error = stopped.syscall(libc::SYS_getpid, [0; 6]).unwrap_err();
    assert!(matches!(error, Error::Exited { .. }), "{error}");
    assert!(matches!(stopped.resume(), Err(Error::Exited { .. })));
    // The status is still there for its parent.
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(target.finish().signal(), Some(libc::SIGKILL));
    assert!(matches!(process.stop(), Err(Error::Exited { .. })));
}

#[test]
fn a_thread_in_vfork_is_given_up_and_harmed_no_more() {
    let target = Target::start(&c_target(), &["vforked"]);
    std::thread::sleep(Duration::from_millis(100));
    let process = target.open();
    match process.stop() {
        Err(Error::Stuck { state: 'D', .. }) => {}
        other => panic!("{other:?}"),
    }
    target.finish_fine();
}

#[test]
fn visits_let_the_target_go_unharmed() {
    let program = c_target();
    for (what, arguments) in [
        ("1 thread", ["blocked", "read"]),
        ("50 threads", ["threads", "50"]),
    ] {
        let target = Target::start(&program, &arguments);
        let process = target.open();
        let files = three_files();
        let best = |visit: &dyn Fn() -> Duration| (0..100).map(|_| visit()).min().unwrap();
        let bare = best(&|| process.stop().unwrap().resume().unwrap());
        let full = best(&|| {
            let mut stopped = process.stop().unwrap();
            let places = stopped.map_files(&files.each_ref().map(mapping)).unwrap();
            let held = stopped.resume().unwrap();
            let mut stopped = process.stop().unwrap();
            places
                .iter()
                .for_each(|&place| stopped.munmap(place, LEN).unwrap());
            held
        });
        eprintln!("{what}: held {bare:?} at the least, {full:?} while 3 files are mapped");
        target.finish_fine();
    }
}
