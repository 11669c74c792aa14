use beeline_inject::{MapFlags, Mapping, ProtFlags};

use super::find::MAX_SESSIONS;
use super::*;
use crate::fuzz_api::Sleeper;
use crate::memory::{Memory, PAGE};

const FILE: [u8; 5] = [0x8b, 0x47, 0x10, 0x89, 0xc2];
const PATCH: [u8; 5] = [JUMP, 0x47, 0x10, INT3, 0x02];

fn site(number: usize, len: usize, patch: [u8; 5]) -> SiteFacts {
    SiteFacts {
        address: 0x1000,
        is_breakpoint: patch[0] == INT3,
        original: FILE[..len].into(),
        patch: patch[..len].into(),
        file: FILE[..len].into(),
        is_patched: number == 0,
        number,
        layer: 0,
        traps: Default::default(),
        body: 0,
        programs: Vec::new(),
    }
}

/// Returns the remains of a session killed as it was about to replace a jump by a breakpoint.
fn killed() -> Presence {
    let session = SessionId { pid: 1, start: 1 };
    Presence {
        pid: 1,
        session,
        is_live: false,
        restored: Restored::default(),
        is_listed: false,
        tool: String::new(),
        sites: Vec::new(),
        records: vec![site(1, 1, [INT3; 5]), site(0, 5, PATCH)],
        calls: CallFacts::default(),
        mappings: Vec::new(),
        private: None,
        // SAFETY: a manifest consists of integers and bytes, for which zeros are valid.
        manifest: unsafe { MaybeUninit::zeroed().assume_init() },
        home: 0,
    }
}

#[test]
fn a_jump_under_a_kernel_uprobe_is_not_taken_for_the_breakpoint_that_was_to_replace_it() {
    let hooked = |code: [u8; 5]| {
        let killed = killed();
        let read = |_, into: &mut [u8]| {
            into.copy_from_slice(&code[..into.len()]);
            true
        };
        let hooked = killed.hooked(read).into_iter();
        let hooked = hooked.map(|(site, hook)| (site.number, hook));
        hooked.collect::<Vec<_>>()
    };
    let uprobe = |code: [u8; 5]| [INT3, code[1], code[2], code[3], code[4]];
    assert_eq!(hooked(uprobe(PATCH)), [(0, Hook::Covered)]);
    assert_eq!(hooked(uprobe(FILE)), [(1, Hook::Ours)]);
    assert_eq!(hooked(FILE), []);
}

/// A process can map files of any name, and each session that is read takes time and memory.
#[test]
fn a_process_with_too_many_sessions_is_not_read() {
    let sleeper = Sleeper::start().unwrap();
    let process = match open(sleeper.pid()) {
        Ok(process) => process,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let map = |number: usize| {
        let session = SessionId {
            pid: i32::MAX,
            start: number as u64,
        };
        let pool = Memory::new(&session.name("trampolines"), PAGE).unwrap();
        let mapping = Mapping {
            file: pool.file(),
            offset: 0,
            len: PAGE as u64,
            protection: ProtFlags::READ,
            flags: MapFlags::SHARED,
            address: 0,
        };
        process
            .stopped(|stopped| stopped.map_files(&[mapping]))
            .unwrap()
            .unwrap();
    };
    (0..MAX_SESSIONS).for_each(map);
    assert_eq!(presences(&process).unwrap().len(), MAX_SESSIONS);
    map(MAX_SESSIONS);
    let refused = presences(&process).unwrap_err().to_string();
    assert!(refused.contains("more sessions of Beeline"), "{refused}");
}
