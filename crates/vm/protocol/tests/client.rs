//! Requests from many threads, and the guest's unsolicited messages.

use std::collections::VecDeque;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{JoinHandle, scope, sleep, spawn};
use std::time::Duration;

use beeline_vm_protocol::VERSION;
use beeline_vm_protocol::address::Address;
use beeline_vm_protocol::channel::Channel;
use beeline_vm_protocol::client::{Client, Failure};
use beeline_vm_protocol::frame;
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;
use beeline_vm_protocol::messages::{
    Done, EventNumber, GuestMessage, HostMessage, Pages, Readable, Refused, Settle, Welcome,
};
use parking_lot::Mutex;

/// A proxy's messages after a request: the numbers of the messages that it answers, and their
/// content.
type Script = Box<dyn FnMut(u64, Asked) -> Vec<(u64, Said)> + Send>;

/// A client, its unsolicited messages, and the reason for its end.
struct Greeted {
    client: Arc<Client>,
    heard: Receiver<Said>,
    lost: Receiver<String>,
    proxy: JoinHandle<()>,
}

/// A proxy that follows a script, and ends the connection where the script has nothing to say. It
/// sends no other signs of life: a message that the client ignores shows as silence.
fn greet(mut script: Script) -> Greeted {
    let (client, lost, proxy) = greet_by(move |mut stream| {
        while let Ok(Some(HostMessage { id, body })) = frame::read(&mut stream) {
            let Some(body) = body else { continue };
            let said = match body {
                Asked::Release(_) => vec![(id, Said::Done(Done {}))],
                body => script(id, body),
            };
            if said.is_empty() {
                break;
            }
            for (id, body) in said {
                let body = Some(body);
                frame::write(&mut stream, &GuestMessage { id, body }).unwrap();
            }
        }
    });
    Greeted {
        heard: hear(&client),
        client,
        lost,
        proxy,
    }
}

/// Starts a client of a proxy that says welcome and then acts as it likes; returns the client and
/// the reason for its end.
fn greet_by(
    go_on: impl FnOnce(UnixStream) + Send + 'static,
) -> (Arc<Client>, Receiver<String>, JoinHandle<()>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let proxy = spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let hello: HostMessage = frame::read(&mut stream).unwrap().unwrap();
        let welcome = GuestMessage {
            id: hello.id,
            body: Some(Said::Welcome(Welcome {
                version: VERSION,
                ..Welcome::default()
            })),
        };
        frame::write(&mut stream, &welcome).unwrap();
        go_on(stream);
    });
    let (to, lost) = channel();
    let to = Mutex::new(to);
    let tell = move |why: &str| to.lock().send(why.to_owned()).unwrap();
    let channel = Channel::connect(&Address::Unix { path }, None).unwrap();
    let client = Client::greet(channel, "a test", Box::new(tell)).unwrap();
    (client, lost, proxy)
}

fn hear(client: &Client) -> Receiver<Said> {
    let (to, heard): (Sender<Said>, _) = channel();
    client.heard_by(Box::new(move |said| to.send(said).unwrap()));
    heard
}

fn number(number: u64) -> Said {
    Said::EventNumber(EventNumber { number })
}

fn readable(handle: u32) -> Said {
    Said::Readable(Readable { handle })
}

/// A request recognisable by its answer.
fn request(handle: u32) -> Asked {
    Asked::Pages(Pages { handle, pages: 0 })
}

fn handle_of(asked: &Asked) -> u32 {
    match asked {
        Asked::Pages(pages) => pages.handle,
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_thread_gets_its_own_answer_in_whatever_order_they_come() {
    const THREADS: u32 = 4;
    const REQUESTS: u32 = 500;
    let mut held = VecDeque::new();
    let mut left = THREADS * REQUESTS;
    // Up to three answers are held back, as long as further requests will come.
    let Greeted {
        client,
        heard,
        lost,
        proxy,
    } = greet(Box::new(move |id, asked| {
        left -= 1;
        held.push_back((id, number(handle_of(&asked).into())));
        let mut said = vec![(0, readable(handle_of(&asked)))];
        while held.len() > 3.min(left as usize / REQUESTS as usize) {
            said.extend(if left.is_multiple_of(3) {
                held.pop_front()
            } else {
                held.pop_back()
            });
        }
        said
    }));
    scope(|scope| {
        for thread in 0..THREADS {
            let client = &client;
            scope.spawn(move || {
                for at in 0..REQUESTS {
                    let handle = thread * REQUESTS + at;
                    let answer = client.ask(request(handle));
                    assert_eq!(answer, Ok(number(handle.into())));
                }
            });
        }
    });
    let mut handles: Vec<u32> = (0..THREADS * REQUESTS)
        .map(|_| match heard.recv() {
            Ok(Said::Readable(Readable { handle })) => handle,
            other => panic!("{other:?}"),
        })
        .collect();
    handles.sort_unstable();
    assert!(handles.into_iter().eq(0..THREADS * REQUESTS));
    assert!(client.close());
    proxy.join().unwrap();
    assert!(lost.try_recv().is_err(), "it was closed from here");
}

#[test]
fn messages_arrive_during_and_after_a_request() {
    let greeted = greet(Box::new(|id, asked| match asked {
        // Only news is sent: the next request brings the answer to this one.
        Asked::Pages(_) => vec![(0, readable(1))],
        _ => vec![
            (0, readable(2)),
            (id - 1, number(7)),
            (id, number(8)),
            (0, readable(3)),
        ],
    }));
    let Greeted { client, heard, .. } = &greeted;
    scope(|scope| {
        let waits = scope.spawn(|| client.ask(request(0)));
        assert_eq!(heard.recv(), Ok(readable(1)));
        assert_eq!(client.ask(Asked::Settle(Settle {})), Ok(number(8)));
        assert_eq!(heard.recv(), Ok(readable(2)));
        assert_eq!(waits.join().unwrap(), Ok(number(7)));
    });
    assert_eq!(heard.recv(), Ok(readable(3)));
    client.tell(request(0));
    assert_eq!(heard.recv(), Ok(readable(1)), "nobody waits for an answer");
}

#[test]
fn waiters_learn_of_the_end_and_the_loss_is_reported_once() {
    let greeted = greet(Box::new(|_, asked| match handle_of(&asked) {
        0 => vec![(0, readable(0))],
        _ => Vec::new(),
    }));
    let Greeted {
        client,
        heard,
        lost,
        ..
    } = &greeted;
    scope(|scope| {
        let waits = scope.spawn(|| client.ask(request(0)));
        assert_eq!(heard.recv(), Ok(readable(0)));
        assert_eq!(client.ask(request(1)), Err(Failure::Lost));
        assert_eq!(waits.join().unwrap(), Err(Failure::Lost));
    });
    let why = "the proxy in the guest has ended the connection";
    assert_eq!(lost.recv().as_deref(), Ok(why));
    assert_eq!(client.ask(request(0)), Err(Failure::Lost));
    assert!(heard.recv().is_err() && lost.try_recv().is_err());
}

#[test]
fn silence_is_a_loss_whether_or_not_somebody_waits() {
    for waits in [false, true] {
        let (end, ended) = channel::<()>();
        let (client, lost, _) = greet_by(move |_stream| ended.recv().unwrap_or_default());
        let asked = waits.then(|| client.ask(request(0)));
        assert!(matches!(asked, None | Some(Err(Failure::Lost))));
        let why = lost.recv();
        assert!(why.is_ok_and(|why| why.contains("nothing has been heard for 5 s")));
        drop(end);
    }
}

/// Reads the client's bytes until it closes.
fn receive_release(stream: &mut UnixStream) -> u64 {
    loop {
        let message: HostMessage = frame::read(&mut *stream).unwrap().unwrap();
        match message.body {
            None => {} // a sign of life
            Some(Asked::Release(_)) => return message.id,
            Some(other) => panic!("{other:?}"),
        }
    }
}

#[test]
fn it_is_closed_when_the_guest_has_released_all() {
    let released = Arc::new(AtomicBool::new(false));
    let (client, lost, proxy) = greet_by({
        let released = Arc::clone(&released);
        move |mut stream| {
            let id = receive_release(&mut stream);
            released.store(true, SeqCst);
            let body = Some(Said::Done(Done {}));
            frame::write(&mut stream, &GuestMessage { id, body }).unwrap();
        }
    });
    assert!(client.close());
    assert!(released.load(SeqCst));
    proxy.join().unwrap();
    assert!(lost.try_recv().is_err(), "it was closed from here");
}

#[test]
fn a_guest_that_does_not_release_or_is_lost_meanwhile_keeps_nobody() {
    let (client, lost, proxy) = greet_by(|mut stream| {
        receive_release(&mut stream);
        // Signs of life, and nothing else, until it is closed.
        while frame::write(&mut stream, &()).is_ok() {
            sleep(Duration::from_secs(1));
        }
    });
    assert!(!client.close());
    proxy.join().unwrap();
    assert!(lost.try_recv().is_err(), "it was closed from here");

    let (client, lost, proxy) = greet_by(|mut stream| {
        receive_release(&mut stream);
    });
    assert!(client.close());
    proxy.join().unwrap();
    assert!(lost.try_recv().is_err(), "nobody wants to know any more");
}

#[test]
fn an_answers_callback_runs_exactly_once() {
    let refused = Refused {
        errno: 2,
        ..Refused::default()
    };
    let greeted = greet(Box::new({
        let refused = refused.clone();
        move |id, asked| match handle_of(&asked) {
            0 => vec![(0, readable(0))],
            1 => Vec::new(),
            2 => vec![(id, Said::Refused(refused.clone()))],
            handle => vec![(id, number(handle.into()))],
        }
    }));
    let Greeted { client, heard, .. } = &greeted;
    let (to, done) = channel();
    let ask = |handle| {
        let to = to.clone();
        let then = move |answer| to.send((handle, answer)).unwrap();
        client.ask_then(request(handle), Box::new(then), &|| ());
    };
    ask(3);
    assert_eq!(done.recv(), Ok((3, Ok(number(3)))));
    ask(2);
    assert_eq!(done.recv(), Ok((2, Err(Failure::Refused(refused)))));
    // One on its way when the connection ends, its cause, and one after it.
    ask(0);
    assert_eq!(heard.recv(), Ok(readable(0)));
    ask(1);
    let mut last = [(); 2].map(|()| done.recv().unwrap());
    last.sort_by_key(|(handle, _)| *handle);
    assert_eq!(last, [(0, Err(Failure::Lost)), (1, Err(Failure::Lost))]);
    ask(3);
    assert_eq!(done.recv(), Ok((3, Err(Failure::Lost))));
    drop(to);
    assert!(done.recv().is_err(), "each once");
}

/// Returns a channel to a socket of ours, and its listener.
fn listen_at(path: &std::path::Path) -> (UnixListener, Address) {
    let listener = UnixListener::bind(path).unwrap();
    let path = path.to_owned();
    (listener, Address::Unix { path })
}

#[test]
fn a_proxy_that_is_full_says_so_before_it_ends_the_connection() {
    let directory = tempfile::tempdir().unwrap();
    let (listener, address) = listen_at(&directory.path().join("s"));
    let channel = Channel::connect(&address, None).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let refused = Refused {
        why: "there are too many".into(),
        ..Refused::default()
    };
    let body = Some(Said::Refused(refused));
    frame::write(&mut stream, &GuestMessage { id: 1, body }).unwrap();
    drop(stream);
    let error = Client::greet(channel, "a test", Box::new(|_| ())).unwrap_err();
    assert_eq!(error.to_string(), "there are too many");
}

#[test]
fn an_unannounced_end_of_the_connection_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let (listener, address) = listen_at(&directory.path().join("s"));
    let channel = Channel::connect(&address, None).unwrap();
    drop(listener.accept().unwrap());
    let error = Client::greet(channel, "a test", Box::new(|_| ())).unwrap_err();
    let words = error.to_string();
    assert!(
        words.contains("ended again before") && words.contains("beeline guest"),
        "{words}"
    );
    assert!(!words.contains("Broken pipe"), "{words}");
}

#[test]
fn a_socket_whose_queue_is_full_is_no_wait_for_ever() {
    let directory = tempfile::tempdir().unwrap();
    let (listener, address) = listen_at(&directory.path().join("s"));
    let fd = std::os::fd::AsRawFd::as_raw_fd(&listener);
    // SAFETY: takes numbers. A thread waits where none may, as the kernel counts.
    let listens = unsafe { libc::listen(fd, 0) };
    assert_eq!(listens, 0);
    let first = Channel::connect(&address, None).unwrap();
    let error = Channel::connect(&address, None).unwrap_err();
    let words = error.to_string();
    assert!(
        words.contains("queue is full") && words.contains("stopped"),
        "{words}"
    );
    drop(first);
}

#[test]
fn a_proxy_that_goes_while_much_is_sent_is_told_as_one_that_has_gone() {
    let (client, lost, proxy) = greet_by(drop);
    proxy.join().unwrap();
    while client.ask(request(1)).is_ok() {}
    let why = lost.recv().unwrap();
    assert!(
        why.contains("the proxy in the guest has ended the connection"),
        "{why}"
    );
}
