//! Perf events, links and rings, between a real child process and a backend in memory.

#[macro_use]
mod common;

use std::time::Duration;

use beeline_uapi::{AttachType, Command, MapType, ProgramType};
use common::fake::{PANIC_OFFSET, SLOW, SLOW_OFFSET};
use common::play;
use common::tool::*;

const EBADF: i64 = -(libc::EBADF as i64);
const EINVAL: i64 = -(libc::EINVAL as i64);
const E2BIG: i64 = -(libc::E2BIG as i64);
const ENOENT: i64 = -(libc::ENOENT as i64);
const EPERM: i64 = -(libc::EPERM as i64);

/// Not a test of its own: the tool's side of all the others.
#[test]
fn helper_that_plays_the_tool() {
    common::play_as_tool(&[
        ("events", events),
        ("links", links),
        ("event_errors", event_errors),
        ("rings", rings),
        ("ring_buffer", ring_buffer),
        ("polling", polling),
        ("slow_attach", slow_attach),
        ("panic", panic_in_backend),
    ]);
}

played! {
    a_slow_attach_blocks_nobody: "slow_attach",
    a_panic_fails_the_call_only: "panic",
}

#[test]
fn events_attach_and_detach() {
    let fake = play("events");
    let attached = |at: &str| {
        fake.log()
            .iter()
            .filter(|line| line.starts_with("attach ") && line.contains(at))
            .count()
    };
    assert_eq!(attached("offset: 16,"), 1, "{:#?}", fake.log());
    assert_eq!(attached("offset: 32,"), 2);
    assert_eq!(attached("offset: 48,"), 0);
    assert_eq!(attached("Timer { period: 250ms }"), 1);
    assert_eq!(
        attached("/proc/self"),
        0,
        "a path of the tool's own must name the tool"
    );
    assert!(fake.saw("unsupported profile probes"));
}

fn events() {
    let program = prog_load(ProgramType::KPROBE, "p", &RETURN_0);
    // Enabled from the start: it only needs a program, and enabling it again has no effect.
    let event = uprobe(16, false);
    assert_eq!(ioctl(event, IOC_SET_BPF, program), 0);
    assert_eq!(ioctl(event, IOC_SET_BPF, program), -i64::from(libc::EEXIST));
    assert_eq!(ioctl(event, IOC_ENABLE, 0), 0);
    close(event);
    // Disabled: attached by enabling, detached, attached again.
    let event = uprobe(32, true);
    assert_eq!(ioctl(event, IOC_SET_BPF, program), 0);
    assert_eq!(ioctl(event, IOC_ENABLE, 0), 0);
    assert_eq!(ioctl(event, IOC_DISABLE, 0), 0);
    assert_eq!(ioctl(event, IOC_ENABLE, 0), 0);
    // Without a program.
    let event = uprobe(48, true);
    assert_eq!(ioctl(event, IOC_ENABLE, 0), 0);
    assert_eq!(ioctl(event, 0x2499, 0), -i64::from(libc::ENOTTY));

    let clock = |cpu: i32, frequency: bool, number: u64| {
        let attr = Attr::zero(112)
            .u32(0, 1)
            .u64(16, number)
            .u64(40, u64::from(frequency) << 10);
        perf_event_open(&mut attr.clone(), -1, cpu)
    };
    let timer = clock(0, true, 4);
    assert_eq!(ioctl(timer, IOC_SET_BPF, program), EINVAL);
    let ticks = prog_load(ProgramType::PERF_EVENT, "t", &RETURN_0);
    assert_eq!(ioctl(timer, IOC_SET_BPF, ticks), 0);
    assert_eq!(clock(1, true, 4), -i64::from(libc::EOPNOTSUPP));
    assert_eq!(clock(0, true, 0), EINVAL);
}

#[test]
fn links_hold_their_event() {
    let fake = play("links");
    let log = fake.log();
    assert!(
        log.iter()
            .any(|line| line.contains("cookie: 77") && line.starts_with("attach")),
        "{log:#?}"
    );
}

fn links() {
    let program = prog_load(ProgramType::KPROBE, "p", &RETURN_0);
    let link_to = |program: i64, event: i64, kind: AttachType, cookie: u64| {
        let attr = Attr::zero(64)
            .u32(0, program as u32)
            .u32(4, event as u32)
            .u32(8, kind.0);
        bpf(Command::LINK_CREATE, &mut attr.u64(16, cookie))
    };
    assert_eq!(link_to(program, -1, AttachType::PERF_EVENT, 0), EBADF);
    assert_eq!(link_to(program, 0, AttachType::PERF_EVENT, 0), EBADF);
    assert_eq!(link_to(-1, 0, AttachType::PERF_EVENT, 0), EBADF);
    assert_eq!(link_to(0, 0, AttachType::PERF_EVENT, 0), EINVAL);
    assert_eq!(link_to(program, 0, AttachType(99), 0), EINVAL);
    assert_eq!(
        link_to(program, -1, AttachType::TRACE_UPROBE_MULTI, 0),
        EINVAL,
        "a program for one place only"
    );
    let event = uprobe(16, false);
    let link = link_to(program, event, AttachType::PERF_EVENT, 77);
    assert!(link >= 0, "{link}");
    assert_eq!(
        link_to(program, event, AttachType::PERF_EVENT, 0),
        -i64::from(libc::EEXIST)
    );
    assert_eq!(ioctl(event, IOC_ENABLE, 0), 0);
    let program_id = id_of(program);
    close(program);
    close(event);
    std::thread::sleep(Duration::from_millis(100));
    let link_id = id_of(link);
    close(link);
    wait_until_gone(Command::LINK_GET_FD_BY_ID, link_id);
    wait_until_gone(Command::PROG_GET_FD_BY_ID, program_id);
}

#[test]
fn events_of_the_kernel_are_refused() {
    let fake = play("event_errors");
    for what in [
        "tracepoint",
        "programs at events that count or sample",
        "hardware event cpu-cycles",
        "perf events of type 99",
    ] {
        assert!(
            fake.saw(&format!("unsupported {what}")),
            "{what}: {:#?}",
            fake.log()
        );
    }
}

fn event_errors() {
    let path = c"/proc/self/exe".as_ptr() as u64;
    let attr = |kind: u32| Attr::zero(112).u32(0, kind).u32(4, 112);
    let of = |mut attr: Attr, pid, cpu| perf_event_open(&mut attr, pid, cpu);
    // What counts goes to the kernel, unless it may be for such a program.
    let counts = of(attr(1).u64(8, 3).u64(32, 1), 0, -1);
    assert!(counts >= 0, "{counts}");
    let samples = prog_load(ProgramType::PERF_EVENT, "s", &RETURN_0);
    assert_eq!(
        ioctl(counts, IOC_SET_BPF, samples),
        -i64::from(libc::EOPNOTSUPP)
    );
    let probe = attr(uprobe_type()).u64(56, path);
    assert_eq!(of(probe.clone(), -1, -1), EINVAL);
    assert_eq!(of(probe.clone(), 0x3fff_ffff, -1), -i64::from(libc::ESRCH));
    assert_eq!(of(probe.clone(), -1, 99), EINVAL);
    // The tool waits while it is answered, so it cannot be a target.
    assert_eq!(of(probe.clone(), 0, -1), -i64::from(libc::EOPNOTSUPP));
    assert_eq!(of(probe.clone().u64(56, 0), -1, 0), EINVAL);
    assert_eq!(
        of(probe.clone().u64(56, c"/none".as_ptr() as u64), -1, 0),
        ENOENT
    );
    // A semaphore at an odd place, and one at a place that is probed without one.
    assert!(of(probe.clone(), -1, 0) >= 0);
    assert_eq!(of(probe.clone().u64(8, 0x11 << 32), -1, 0), EINVAL);
    assert_eq!(of(probe.u64(8, 0x10 << 32), -1, 0), EINVAL);
    assert_eq!(of(attr(2).u64(8, 999_999), -1, 0), EINVAL);
    assert_eq!(of(attr(0), -1, 0), ENOENT);
    assert_eq!(of(attr(99), -1, 0), ENOENT);
    let mut wrong_size = attr(1).u32(4, 8);
    assert_eq!(perf_event_open(&mut wrong_size, -1, 0), E2BIG);
    assert_eq!(wrong_size.get_u32(4), 136);
}

#[test]
fn perf_rings_are_mapped_and_waited_for() {
    let fake = play("rings");
    assert!(
        fake.log()
            .iter()
            .any(|line| line.starts_with("ring_resize") && line.ends_with(" 8"))
    );
    assert!(fake.saw("perf_array_set"));
    assert!(
        fake.log()
            .iter()
            .any(|line| line.starts_with("ring_enable") && line.ends_with("true"))
    );
}

/// Adds, changes or removes a descriptor of an epoll set, with this data.
fn epoll_ctl(epoll: i64, operation: i32, fd: i64, data: u64) -> i64 {
    let mut event = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: data,
    };
    // SAFETY: one event, exclusively borrowed.
    result(unsafe { libc::epoll_ctl(epoll as i32, operation, fd as i32, &raw mut event) }.into())
}

/// Returns the data of the ready descriptors within a time.
fn epoll_wait(epoll: i64, milliseconds: i32) -> Vec<u64> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
    // SAFETY: as many events as said.
    let count = unsafe { libc::epoll_wait(epoll as i32, events.as_mut_ptr(), 8, milliseconds) };
    events
        .iter()
        .take(count.max(0) as usize)
        .map(|event| event.u64)
        .collect()
}

fn rings() {
    let (ring, other) = (perf_ring(0), perf_ring(1));
    assert_eq!(perf_ring(2), EINVAL, "no such CPU");
    let both = libc::PROT_READ | libc::PROT_WRITE;
    assert_eq!(mmap(ring, 4, both), Err(EINVAL));
    let memory = mmap(ring, 9, both).unwrap();
    // SAFETY: the last word of the nine pages.
    unsafe { memory.add(9 * 512 - 1).write_volatile(1) };
    assert_eq!(mmap(ring, 5, both), Err(EINVAL), "the size is settled");
    assert_eq!(ioctl(ring, IOC_ENABLE, 0), 0);
    let array = map_create(MapType::PERF_EVENT_ARRAY, 4, 4, 2, 0, "events");
    assert_eq!(
        element(Command::MAP_UPDATE_ELEM, array, &1, &mut (ring as u32)),
        0
    );
    assert_eq!(
        element(Command::MAP_UPDATE_ELEM, array, &1, &mut 0u32),
        EBADF
    );

    let program = prog_load(ProgramType::RAW_TRACEPOINT, "p", &RETURN_0);
    // SAFETY: no pointers.
    let epoll: i64 = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }.into();
    assert_eq!(epoll_ctl(epoll, libc::EPOLL_CTL_ADD, ring, 5), 0);
    assert_eq!(
        epoll_ctl(epoll, libc::EPOLL_CTL_ADD, ring, 5),
        -i64::from(libc::EEXIST)
    );
    assert_eq!(epoll_ctl(epoll, libc::EPOLL_CTL_ADD, other, 6), 0);
    assert_eq!(epoll_ctl(epoll, libc::EPOLL_CTL_DEL, other, 0), 0);
    assert_eq!(epoll_ctl(epoll, libc::EPOLL_CTL_DEL, other, 0), ENOENT);
    assert_eq!(epoll_ctl(999, libc::EPOLL_CTL_ADD, other, 0), EBADF);
    assert!(epoll_wait(epoll, 0).is_empty());
    for _ in 0..3 {
        assert_eq!(test_run(program).0, 0);
        assert_eq!(epoll_wait(epoll, 2000), [5]);
        assert!(epoll_wait(epoll, 0).is_empty());
    }
    assert_eq!(epoll_ctl(epoll, libc::EPOLL_CTL_MOD, ring, 9), 0);
    assert_eq!(epoll_wait(epoll, 2000), [9]);
    // A ring that already has something to read.
    assert_eq!(epoll_ctl(epoll, libc::EPOLL_CTL_ADD, other, 6), 0);
    assert_eq!(epoll_wait(epoll, 2000), [6]);
}

#[test]
fn ring_buffers_are_waited_for() {
    play("ring_buffer");
}

fn ring_buffer() {
    let map = map_create(MapType::RINGBUF, 0, 0, 4096, 0, "rb");
    let program = prog_load(ProgramType::RAW_TRACEPOINT, "p", &RETURN_0);
    // SAFETY: no pointers.
    let epoll: i64 = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }.into();
    assert_eq!(epoll_ctl(epoll, libc::EPOLL_CTL_ADD, map, 5), 0);
    let waker = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        test_run(program)
    });
    assert_eq!(epoll_wait(epoll, 5000), [5]);
    assert_eq!(waker.join().unwrap(), (0, 42));
    // Other files are the kernel's.
    let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    assert_eq!(
        epoll_ctl(
            epoll,
            libc::EPOLL_CTL_ADD,
            std::os::fd::AsRawFd::as_raw_fd(&ours).into(),
            1
        ),
        0
    );
    assert_eq!(
        epoll_ctl(
            epoll,
            libc::EPOLL_CTL_ADD,
            map_create(MapType::HASH, 4, 4, 1, 0, "h"),
            1
        ),
        EPERM
    );
}

#[test]
fn rings_are_polled() {
    play("polling");
}

fn polling() {
    let (ring, other) = (perf_ring(0), perf_ring(1));
    let program = prog_load(ProgramType::RAW_TRACEPOINT, "p", &RETURN_0);
    let poll = |milliseconds| {
        let mut fds = [ring, other, -1].map(|fd| libc::pollfd {
            fd: fd as i32,
            events: libc::POLLIN,
            revents: 0,
        });
        // SAFETY: three entries, exclusively borrowed.
        let count = unsafe { libc::poll(fds.as_mut_ptr(), 3, milliseconds) };
        (count, fds.map(|entry| entry.revents & libc::POLLIN != 0))
    };
    assert_eq!(poll(20), (0, [false; 3]));
    let waker = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        test_run(program)
    });
    assert!(poll(20_000).0 > 0);
    assert_eq!(waker.join().unwrap(), (0, 42));
    // As long as there is something to read, and no longer.
    assert_eq!(poll(0), (2, [true, true, false]));
    assert_eq!(ioctl(ring, IOC_DISABLE, 0), 0);
    assert_eq!(poll(0), (1, [false, true, false]));
    // They are unchanged for all other calls, and can be mapped after all.
    assert!(mmap(ring, 2, libc::PROT_READ | libc::PROT_WRITE).is_ok());
    assert_eq!(ioctl(ring, IOC_ENABLE, 0), 0);
    assert_eq!(poll(0), (1, [false, true, false]));
}

fn slow_attach() {
    let program = prog_load(ProgramType::KPROBE, "p", &RETURN_0);
    let map = map_create(MapType::HASH, 4, 8, 10, 0, "m");
    let attaching: Vec<_> = (0..6)
        .map(|_| {
            std::thread::spawn(move || ioctl(uprobe(SLOW_OFFSET, false), IOC_SET_BPF, program))
        })
        .collect();
    std::thread::sleep(SLOW / 7);
    for key in 0..20 {
        assert_eq!(element(Command::MAP_UPDATE_ELEM, map, &key, &mut 1u64), 0);
    }
    assert!(attaching.iter().all(|thread| !thread.is_finished()));
    for thread in attaching {
        assert_eq!(thread.join().unwrap(), 0);
    }
}

fn panic_in_backend() {
    let program = prog_load(ProgramType::KPROBE, "p", &RETURN_0);
    assert_eq!(
        ioctl(uprobe(PANIC_OFFSET, false), IOC_SET_BPF, program),
        -i64::from(libc::EIO)
    );
    assert_eq!(ioctl(uprobe(16, false), IOC_SET_BPF, program), 0);
}
