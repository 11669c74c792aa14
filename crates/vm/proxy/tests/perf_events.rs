//! Perf events of this machine's kernel, over the wire.

mod harness;

use std::time::{Duration, Instant};

use beeline_uapi::fields::{put_u64, u32_at, u64_at};
use beeline_uapi::perf::ioc;
use beeline_uapi::{HelperId, MapType, ProgramType};
use beeline_vm_protocol::messages::guest_message::Body as Answer;
use beeline_vm_protocol::messages::host_message::Body as Request;
use beeline_vm_protocol::messages::{PerfEventControl, PerfEventOpen, Watch};
use harness::*;

/// `struct perf_event_attr`.
fn event(kind: u32, config: u64) -> Vec<u8> {
    longs(&[(8, config)], words(&[kind, 112], 112))
}

fn open(attr: Vec<u8>, name: &str) -> PerfEventOpen {
    PerfEventOpen {
        attr,
        name: name.into(),
        pid: -1,
        cpu: 0,
        ..PerfEventOpen::default()
    }
}

fn opened(host: &mut Host, event: PerfEventOpen) -> u32 {
    match host.ask(Request::PerfEventOpen(event)) {
        Ok(Answer::Opened(opened)) => opened.handle,
        other => panic!("{other:?}"),
    }
}

fn control(handle: u32, command: u32, argument: u64) -> Request {
    Request::PerfEventControl(PerfEventControl {
        handle,
        command,
        argument,
        text: String::new(),
    })
}

#[test]
fn rings_of_events_count_as_maps_do() {
    if !may() {
        return;
    }
    let proxy = Proxy::with_policy("[maps]\nbytes = 100000\npeer-bytes = 100000\n");
    let mut host = Host::connect(&proxy);
    let mut ring = |pages| {
        let handle = opened(&mut host, open(event(1, 10), ""));
        let watch = Watch {
            handle,
            pages,
            ..Watch::default()
        };
        host.ask(Request::Watch(watch))
            .map_err(|refused| refused.rule)
    };
    assert_eq!(ring(64), Err("maps.bytes".into()));
    assert!(ring(16).is_ok());
    assert_eq!(ring(16), Err("maps.peer-bytes".into()));
}

#[test]
fn programs_at_tracepoints_write_perf_rings() {
    if !may() {
        return;
    }
    let proxy = Proxy::start();
    let mut host = Host::connect(&proxy);
    let id = look(
        &mut host,
        "/sys/kernel/tracing/events/syscalls/sys_enter_getpgid/id",
        true,
    );
    let id = String::from_utf8(id.unwrap().content).unwrap();
    let cpus = u64::from(host.welcome.possible_cpus);
    let array = host.make_map(MapType::PERF_EVENT_ARRAY, [4, 4, cpus as u32, 0]);
    // bpf_perf_event_output(ctx, array, BPF_F_CURRENT_CPU, "the call's argument", 8)
    let mut insns = vec![insn(0x79, 6, 1, 16, 0), insn(0x7b, 10, 6, -8, 0)];
    insns.extend(map(2, array));
    insns.extend([
        insn(0xb4, 3, 0, 0, -1),
        insn(0xbf, 4, 10, 0, 0),
        insn(0x07, 4, 0, 0, -8),
        mov(5, 8),
        call(HelperId::PERF_EVENT_OUTPUT),
        mov(0, 0),
        exit(),
    ]);
    let program = host.load(ProgramType::TRACEPOINT, &insns);
    assert_eq!(program.errno, 0, "{program:?}");
    let mut rings = Vec::new();
    for cpu in 0..cpus {
        // PERF_COUNT_SW_BPF_OUTPUT, raw samples, woken by each.
        let mut attr = event(1, 10);
        put_u64(&mut attr, 16, 1);
        put_u64(&mut attr, 24, 1 << 10);
        attr[48] = 1;
        let mut output = open(attr, "");
        output.cpu = cpu as i32;
        let handle = opened(&mut host, output);
        let set = host.update(array, &(cpu as u32).to_ne_bytes(), &handle.to_ne_bytes());
        assert_eq!(set.errno, 0);
        let watch = Watch {
            handle,
            pages: 8,
            credit: 1 << 20,
            ..Watch::default()
        };
        host.ask(Request::Watch(watch)).unwrap();
        host.ask(control(handle, ioc::ENABLE, 0)).unwrap();
        rings.push(handle);
    }
    let handle = opened(&mut host, open(event(2, id.trim().parse().unwrap()), ""));
    host.ask(control(handle, ioc::SET_BPF, program.handle.into()))
        .unwrap();
    host.ask(control(handle, ioc::ENABLE, 0)).unwrap();
    assert!(matches!(
        host.ask(control(handle, ioc::ID, 0)),
        Ok(Answer::EventNumber(number)) if number.number > 0
    ));
    // SAFETY: a call without pointers, for a nonexistent process.
    unsafe { libc::getpgid(-0x1234_5678) };
    let deadline = Instant::now() + Duration::from_secs(60);
    let found = loop {
        let Answer::Records(records) = host.next_told() else {
            panic!("something else was told");
        };
        assert!(rings.contains(&records.handle));
        // `struct perf_event_header`, a size, then the data.
        let mut rest = &records.data[..];
        let mut found = false;
        while !rest.is_empty() {
            let len = (u64_at(rest, 0) >> 48) as usize;
            found |= u32_at(rest, 0) == 9 && u64_at(rest, 12) as i32 == -0x1234_5678;
            rest = &rest[len..];
        }
        if found || Instant::now() > deadline {
            break found;
        }
    };
    assert!(found);
    let audit = proxy.audit();
    let attach = audit.iter().find(|line| line["event"] == "attach").unwrap();
    assert_eq!(attach["places"][0], "tracepoint:syscalls:sys_enter_getpgid");
    assert_eq!(attach["tool"], "a test");
}

#[test]
fn events_that_lead_elsewhere_are_not_opened() {
    if !may() {
        return;
    }
    let proxy = Proxy::start();
    let mut host = Host::connect(&proxy);
    let uprobe = std::fs::read_to_string("/sys/bus/event_source/devices/uprobe/type");
    let Ok(uprobe) = uprobe.map(|number| number.trim().parse().unwrap()) else {
        println!("skipped: this kernel has no uprobes");
        return;
    };
    let me = std::env::current_exe().unwrap().display().to_string();
    let mut probe = open(longs(&[(64, 0x1000)], event(uprobe, 0)), &me);
    probe.build_id = vec![1; 20];
    let refused = host.refused(Request::PerfEventOpen(probe.clone()));
    assert_eq!(refused.errno, libc::ENOEXEC as u32);
    assert!(refused.why.contains("build id"), "{}", refused.why);
    // An address in place of a name is not used.
    probe.build_id.clear();
    put_u64(&mut probe.attr, 56, 0x4000_0000);
    probe.name = "/nonexistent".into();
    let refused = host.refused(Request::PerfEventOpen(probe));
    assert_eq!(refused.errno, libc::ENOENT as u32);
    // A cgroup's descriptor, a name for a type without one, an unknown type, an invalid length.
    let mut of_cgroup = open(event(1, 0), "");
    of_cgroup.flags = 4;
    let mut long = open(event(1, 0), "");
    long.attr.push(0);
    for (odd, errno) in [
        (of_cgroup, libc::EOPNOTSUPP),
        (open(event(1, 0), "x"), libc::EINVAL),
        (open(event(4000, 0), ""), libc::EOPNOTSUPP),
        (long, libc::EINVAL),
    ] {
        let refused = host.refused(Request::PerfEventOpen(odd));
        assert_eq!(refused.errno, errno as u32);
    }
    let clock = opened(&mut host, open(longs(&[(16, 1_000_000)], event(1, 0)), ""));
    host.ask(control(clock, ioc::PERIOD, 2_000_000)).unwrap();
    let modify = control(clock, ioc::MODIFY_ATTRIBUTES, 0x1000);
    assert_eq!(host.refused(modify).errno, libc::EOPNOTSUPP as u32);
    let program = control(clock, ioc::SET_BPF, clock.into());
    assert_eq!(host.refused(program).errno, libc::EINVAL as u32);
}
