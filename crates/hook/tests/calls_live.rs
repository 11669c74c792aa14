//! The C library goes on working with every system call hooked, in a child of this process.

mod support;

use std::io::{Read, Write};
use std::os::fd::FromRawFd;

use support::calls::{self, Hooks, Mode};
use support::child::in_a_child;
use support::elf::Library;

fn with_libc(test: impl FnOnce()) {
    let Some(library) = Library::find("libc.so.6") else {
        eprintln!("skipped: no libc.so.6");
        return;
    };
    in_a_child(|| {
        calls::reset(Mode::Look, 0);
        let hooked = Hooks::near(&library).hook_library(&library);
        assert!(hooked > 400, "{hooked}");
        test();
    });
}

/// Something of files, memory, sockets and time.
fn calls_of_all_kinds() -> String {
    let directory = std::env::temp_dir().join(format!("beeline-calls-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let path = directory.join("file");
    std::fs::write(&path, "one\ntwo\n").unwrap();
    let link = directory.join("link");
    std::os::unix::fs::symlink("file", &link).unwrap();
    let mut out = std::fs::read_to_string(&link).unwrap();
    let missing = std::fs::metadata(directory.join("missing"));
    out += &format!("{:?}", missing.unwrap_err().raw_os_error());
    out += &format!("{}", std::fs::read_dir(&directory).unwrap().count());
    out += &format!("{}", std::fs::metadata(&path).unwrap().len());
    std::fs::remove_dir_all(&directory).unwrap();
    let (mut one, mut other) = std::os::unix::net::UnixStream::pair().unwrap();
    one.write_all(b"through a socket").unwrap();
    drop(one);
    other.read_to_string(&mut out).unwrap();
    let big = vec![1u8; 8 << 20];
    out += &format!("{}", big.iter().map(|byte| u64::from(*byte)).sum::<u64>());
    std::thread::sleep(std::time::Duration::from_millis(2));
    out
}

#[test]
fn calls_of_all_kinds_have_an_entry_and_an_exit() {
    with_libc(|| {
        let wanted = calls_of_all_kinds();
        assert_eq!(calls::numbers(), []);
        calls::watch_all();
        let got = calls_of_all_kinds();
        calls::watch(|_| (false, false));
        let numbers = calls::numbers();
        assert_eq!(got, wanted);
        assert!(numbers.len() > 50, "{numbers:?}");
        for pair in numbers.chunks(2) {
            assert_eq!(pair, [(pair[0].0, false), (pair[0].0, true)]);
        }
    });
}

#[test]
fn each_kind_of_call_is_seen_once() {
    with_libc(|| {
        calls::watch_all();
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors, each owned by one file afterwards.
        let (mut reader, mut writer) = unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            (
                std::fs::File::from_raw_fd(ends[0]),
                std::fs::File::from_raw_fd(ends[1]),
            )
        };
        writer.write_all(b"12345").unwrap();
        let mut got = [0; 5];
        reader.read_exact(&mut got).unwrap();
        // SAFETY: calls without pointers.
        unsafe {
            libc::getppid();
            libc::syscall(libc::SYS_getppid);
            libc::syscall(libc::SYS_close, -1);
        }
        calls::watch(|_| (false, false));
        let results: Vec<_> = calls::seen()
            .iter()
            .filter(|seen| seen.is_exit)
            .map(|seen| (seen.number() as i64, seen.result() as i64))
            .collect();
        // SAFETY: as above.
        let parent = i64::from(unsafe { libc::getppid() });
        assert_eq!(&got, b"12345");
        assert_eq!(
            results,
            [
                (libc::SYS_pipe2, 0),
                (libc::SYS_write, 5),
                (libc::SYS_read, 5),
                (libc::SYS_getppid, parent),
                (libc::SYS_getppid, parent),
                (libc::SYS_close, -9),
            ]
        );
    });
}

#[test]
fn threads_and_processes() {
    with_libc(|| {
        calls::watch_all();
        let threads: Vec<_> = (0..4)
            .map(|i| {
                std::thread::spawn(move || {
                    let status = std::process::Command::new("/bin/sh")
                        .args(["-c", "exit 7"])
                        .status()
                        .unwrap();
                    (i, status.code())
                })
            })
            .collect();
        for (i, thread) in threads.into_iter().enumerate() {
            assert_eq!(thread.join().unwrap(), (i, Some(7)));
        }
        calls::watch(|_| (false, false));
        let numbers = calls::numbers();
        let count = |number: i64, is_exit| {
            numbers
                .iter()
                .filter(|seen| **seen == (number as u64, is_exit))
                .count()
        };
        // Those of the children are in this process's memory too where they share it.
        assert_eq!(
            count(libc::SYS_wait4, true) + count(libc::SYS_waitid, true),
            4
        );
        assert!(count(libc::SYS_clone3, false) + count(libc::SYS_clone, false) >= 8);
        assert!(count(libc::SYS_clone3, true) + count(libc::SYS_clone, true) >= 12);
        assert_eq!(count(libc::SYS_execve, false), 4);
        assert_eq!(count(libc::SYS_exit, false), 4);
    });
}
