//! Entry points for fuzzing: they do everything that is done with a host's bytes before the kernel
//! is asked. All is taken apart and put together, and no call is made.

use std::os::fd::OwnedFd;

use beeline_uapi::{Command, MapType, ProgramType};
use beeline_vm_protocol::info::Kind;
use beeline_vm_protocol::layout::{MapFacts, layout};
use beeline_vm_protocol::look_up::Asked;
use beeline_vm_protocol::messages::host_message::Body;
use beeline_vm_protocol::messages::{HostMessage, LookUp};
use prost::Message;

use crate::call::Call;
use crate::handles::{Handles, Object};
use crate::policy::Policy;
use crate::{attach_points, executed, files, glob, perf};

/// Possible CPUs.
const CPUS: u32 = 4;

/// Returns a table with objects that are not the kernel's: handles 1 to 4 are a hash, an array per
/// CPU, a program array and a ring; 5 a program, 6 types, 7 an event.
fn pretended() -> std::io::Result<Handles> {
    let handles = Handles::default();
    let map = |map_type, key_size, value_size| MapFacts {
        map_type,
        key_size,
        value_size,
        max_entries: 16,
        flags: 0,
    };
    let maps = [
        map(MapType::HASH, 4, 8),
        map(MapType::PERCPU_ARRAY, 4, 3),
        map(MapType::PROG_ARRAY, 4, 4),
        map(MapType::RINGBUF, 0, 0),
    ];
    let maps = maps.map(|facts| (Kind::Map, Some(facts)));
    let others = [Kind::Program, Kind::Btf, Kind::Event].map(|kind| (kind, None));
    for (kind, facts) in maps.into_iter().chain(others) {
        let nothing: OwnedFd = std::fs::File::open("/dev/null")?.into();
        let object = Object::pretended(nothing, kind, facts);
        // There are fewer than handles.
        let _ = handles.add(object);
    }
    Ok(handles)
}

/// Handles a host's message.
pub fn host_message(data: &[u8]) {
    let message = HostMessage::decode(data);
    if let Some(Asked { id, handle, key }) = Asked::read(data) {
        let key = key.to_vec();
        let body = Some(Body::LookUp(LookUp { handle, key }));
        assert_eq!(message, Ok(HostMessage { id, body }));
    }
    let Ok(message) = message else {
        return;
    };
    let Ok(handles) = pretended() else {
        return;
    };
    match message.body {
        Some(Body::Bpf(request)) => {
            let command = Command(request.command);
            let Some(layout) = layout(command, &request.attr) else {
                return;
            };
            for part in &request.parts {
                // The verdict does not matter here.
                let _ =
                    Policy::default().program(ProgramType::KPROBE, &part.data, &request.signature);
                beeline_vm_protocol::instructions::digest(&part.data);
            }
            if let Ok(mut call) = Call::new(request, layout, &handles, CPUS) {
                call.check();
                let _ = attach_points::of_link(command, &mut call);
                let _ = call.kind();
            }
        }
        Some(Body::PerfEventOpen(mut request)) => {
            // The existing files depend on this machine.
            request.name.retain(|letter| letter != '/');
            let _ = perf::Event::new(request);
        }
        Some(Body::Look(request)) => {
            files::is_served(&request.path);
            let _ = executed::of(&request.path);
        }
        _ => {}
    }
}

/// Parses a policy's text; then matches a pattern with a text.
pub fn policy(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(policy) = Policy::parse(text) {
        let _ = policy.program(ProgramType::KPROBE, data, data);
        let _ = policy.attach(text);
    }
    if let Some((pattern, name)) = text.split_once('\n') {
        glob::fits(pattern, name);
    }
}
