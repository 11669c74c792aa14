//! A tool's messages on a look-up channel, and the answers there, follow the protocol.

use beeline_agent::fast_path::lookup_channel::{Answer, KEY, ROOM, VALUE, answer, request};
use beeline_vm_protocol::frame;
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;
use beeline_vm_protocol::messages::{Content, Done, GuestMessage, HostMessage, LookUp, Refused};

const NUMBERS: [u32; 8] = [1, 127, 128, 300, 16_383, 16_384, 1 << 28, u32::MAX];

#[test]
fn requests_are_those_of_the_protocol() {
    for id in NUMBERS {
        for handle in NUMBERS {
            for len in [1, 4, 8, 100, KEY] {
                let key: Vec<u8> = (0..len).map(|byte| (byte * 7) as u8).collect();
                let mut room = [0xaa; ROOM];
                let end = request(&mut room, id, handle, &key).unwrap();
                let body = Some(Asked::LookUp(LookUp { handle, key }));
                let id = id.into();
                let mut whole = Vec::new();
                frame::write(&mut whole, &HostMessage { id, body }).unwrap();
                assert_eq!(room[..end], whole);
            }
        }
    }
    assert_eq!(request(&mut [0; ROOM], 1, 1, &[0; ROOM]), None);
}

fn framed(id: u32, body: Said) -> Vec<u8> {
    let mut whole = Vec::new();
    let (id, body) = (id.into(), Some(body));
    frame::write(&mut whole, &GuestMessage { id, body }).unwrap();
    whole
}

fn content(data: &[u8], end: bool) -> Said {
    let data = data.to_vec();
    Said::Content(Content { data, end })
}

fn refused(errno: i32, why: &str) -> Said {
    let (errno, why) = (errno as u32, why.to_owned());
    let rule = String::new();
    Said::Refused(Refused { errno, why, rule })
}

#[test]
fn answers_are_those_of_the_protocol() {
    for id in NUMBERS {
        for len in [1, 8, 127, 128, VALUE] {
            let value: Vec<u8> = (0..len).map(|byte| (byte * 5) as u8).collect();
            let whole = framed(id, content(&value, false));
            assert!(whole.len() <= ROOM);
            assert_eq!(answer(&whole, id, len), Some(Answer::Value(&value)));
            // Another request's, of another length, cut, or changed.
            assert_eq!(answer(&whole, id ^ 1, len), None);
            assert_eq!(answer(&whole, id, len + 1), None);
            assert_eq!(answer(&whole[..whole.len() - 1], id, len), None);
            for at in 0..whole.len() {
                let mut changed = whole.clone();
                changed[at] ^= 0x10;
                assert_eq!(answer(&changed, id, len), None, "byte {at}");
            }
        }
        let missing = framed(id, refused(libc::ENOENT, ""));
        assert_eq!(answer(&missing, id, 8), Some(Answer::Refused(libc::ENOENT)));
        let forbidden = framed(id, refused(libc::EPERM, "no"));
        assert_eq!(answer(&forbidden, id, 8), Some(Answer::Explained));
        for other in [
            Said::Done(Done {}),
            content(&[1; 8], true),
            content(&[], false),
        ] {
            assert_eq!(answer(&framed(id, other), id, 8), None);
        }
    }
    assert_eq!(answer(&[], 1, 8), None);
}
