//! A tool's further connections, over the wire.

mod harness;

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use beeline_uapi::MapType;
use beeline_vm_protocol::address::Address;
use beeline_vm_protocol::frame;
use beeline_vm_protocol::lookup_channel::LookupChannel;
use beeline_vm_protocol::messages::guest_message::Body as Answer;
use beeline_vm_protocol::messages::host_message::Body as Request;
use beeline_vm_protocol::messages::{Content, GuestMessage, HostMessage, LookUp, Release};
use harness::*;

/// A channel, and the tool's end of it.
fn join(proxy: &Proxy, host: &Host) -> (LookupChannel, UnixStream) {
    let channel =
        LookupChannel::join(&Address::Unix { path: proxy.path() }, &host.welcome.token).unwrap();
    let tools = channel.as_fd().try_clone_to_owned().unwrap();
    (channel, tools.into())
}

fn ask(mut stream: &UnixStream, id: u64, body: Request) -> Option<GuestMessage> {
    let body = Some(body);
    frame::write(&mut stream, &HostMessage { id, body }).ok()?;
    frame::read(&mut stream).ok()?
}

fn look_up(stream: &UnixStream, id: u64, handle: u32, key: u32) -> Option<Answer> {
    let key = key.to_ne_bytes().to_vec();
    let answer = ask(stream, id, Request::LookUp(LookUp { handle, key }))?;
    assert_eq!(answer.id, id);
    answer.body
}

fn is_over(mut stream: &UnixStream) -> bool {
    matches!(stream.read(&mut [0; 64]), Ok(0))
}

#[test]
fn lines_look_up_what_their_session_has() {
    if !may() {
        return;
    }
    let proxy = Proxy::start();
    let mut host = Host::connect(&proxy);
    let map = host.make_map(MapType::HASH, [4, 8, 100, 0]);
    let done = host.update(map, &5_u32.to_ne_bytes(), &55_u64.to_ne_bytes());
    assert_eq!(done.errno, 0);
    let (_line, tools) = join(&proxy, &host);
    let data = 55_u64.to_ne_bytes().to_vec();
    let found = Answer::Content(Content { data, end: false });
    assert_eq!(look_up(&tools, 1, map, 5), Some(found));
    for (handle, key, errno) in [(map, 6, libc::ENOENT), (map + 1, 5, libc::EBADF)] {
        let Some(Answer::Refused(refused)) = look_up(&tools, 9, handle, key) else {
            panic!("{handle}, {key}");
        };
        assert_eq!(refused.errno, errno as u32, "{}", refused.why);
    }
    // Another session's have the same numbers.
    let mut other = Host::connect(&proxy);
    let others = other.make_map(MapType::HASH, [4, 8, 100, 0]);
    assert_eq!(others, map);
    let (_line, others_tools) = join(&proxy, &other);
    let missing = look_up(&others_tools, 3, map, 5);
    assert!(matches!(missing, Some(Answer::Refused(_))));
}

/// A channel carries only answers to requests, however long it takes; and it ends with its session.
#[test]
fn lines_are_silent_and_end_with_their_session() {
    let proxy = Proxy::start();
    let mut size = proxy.size();
    eventually(|| std::mem::replace(&mut size, proxy.size()) == size);
    let host = Host::connect(&proxy);
    let (_line, mut tools) = join(&proxy, &host);
    // Longer than a peer may be silent, or than the time between two signs of life.
    let error = tools.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    assert!(look_up(&tools, 1, 1, 1).is_some());
    drop(host);
    assert!(is_over(&tools));
    eventually(|| proxy.size() == size);
}

#[test]
fn lines_do_nothing_else_and_join_nobody_else() {
    let proxy = Proxy::start();
    let host = Host::connect(&proxy);
    let address = Address::Unix { path: proxy.path() };
    let mut token = host.welcome.token.clone();
    assert_eq!(token.len(), 16);
    token[15] ^= 1;
    for wrong in [&token[..], &token[..15], &[]] {
        assert!(LookupChannel::join(&address, wrong).is_err());
    }
    let handles = vec![1];
    let (_line, tools) = join(&proxy, &host);
    let answer = ask(&tools, 1, Request::Release(Release { handles }));
    assert_eq!(answer, None);
    let channels: Vec<_> = (0..16).map(|_| join(&proxy, &host)).collect();
    assert!(LookupChannel::join(&address, &host.welcome.token).is_err());
    // The end of a channel makes room for another.
    drop(channels);
    eventually(|| LookupChannel::join(&address, &host.welcome.token).is_ok());
}
