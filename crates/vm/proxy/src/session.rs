//! One connection: a tool on the host, and everything that it has here. It ends with the
//! connection.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use beeline_uapi::Command;
use beeline_uapi::fields::u32_at;
use beeline_uapi::perf::ioc;
use beeline_vm_protocol::VERSION;
use beeline_vm_protocol::channel::Channel;
use beeline_vm_protocol::conversation::{self, Receiver, Sender};
use beeline_vm_protocol::frame;
use beeline_vm_protocol::info::Kind;
use beeline_vm_protocol::layout::{changes_elements, layout};
use beeline_vm_protocol::messages::guest_message::Body as Answer;
use beeline_vm_protocol::messages::host_message::Body as Request;
use beeline_vm_protocol::messages::{
    Bpf, Done, EventNumber, GuestMessage, HostMessage, Opened, PerfEventControl, PerfEventOpen,
    Store,
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::audit::Audit;
use crate::digests::Digests;
use crate::facts::Facts;
use crate::handles::Handles;
use crate::holder::Holder;
use crate::lookup_channel::{LookupChannels, Token};
use crate::perf;
use crate::policy::Policy;
use crate::queues::Queue;
use crate::refusal::Refusal;
use crate::shared::Shared;
use crate::watch::{Watched, Watches};
use crate::{bpf, elements, files, iterators, pages, rings};

/// The state that all connections share.
#[derive(Debug)]
pub struct Host {
    /// The rules for hosts.
    pub policy: Policy,
    /// The log of their actions.
    pub audit: Audit,
    /// The kernel.
    pub facts: Facts,
    /// Bytes of all maps.
    pub taken: Arc<AtomicU64>,
    /// Holds memory that hosts have mapped.
    pub holder: Arc<Holder>,
    /// The digests of the kernel's large files.
    pub digests: Arc<Digests>,
    /// Further connections.
    pub lookup_channels: LookupChannels,
}

/// A connection.
#[derive(Debug)]
pub struct Session {
    /// The state that it shares with others.
    pub host: Arc<Host>,
    /// Its objects.
    pub handles: Arc<Handles>,
    watches: Watches,
    /// A page that the host looks for.
    mark: Mutex<Option<Shared>>,
    sender: Sender,
    peer: String,
    tool: OnceLock<String>,
    /// The secret that its look-up channels must know.
    token: Token,
    slow: Queue,
}

/// The outcome of receiving a message.
type Received = Result<Option<HostMessage>, frame::Error>;

/// Ends the connection if its thread ends, even by a panic: the host would wait for its answer
/// forever.
struct Ends<'a>(&'a Session);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.slow.close();
        self.0.sender.end();
    }
}

/// Serves a host until it or its connection ends.
///
/// # Errors
///
/// The system's, if a connection cannot be begun: no more threads, descriptors or random numbers.
pub fn serve(channel: Channel, host: Arc<Host>) -> std::io::Result<()> {
    let peer = channel.peer().to_owned();
    let (mut receiver, sender) = conversation::begin(channel)?;
    let first = match receiver.receive::<HostMessage>() {
        Ok(Some(HostMessage {
            id,
            body: Some(Request::Join(join)),
        })) => {
            let why = host.lookup_channels.serve(
                id,
                &join,
                &mut receiver,
                &sender,
                host.facts.possible_cpus,
            );
            host.audit.line(&peer, "", "line", json!({ "why": why }));
            return Ok(());
        }
        first => first,
    };
    let handles = Arc::default();
    let joined = Arc::clone(&host);
    let open = joined.lookup_channels.open(&handles)?;
    let session = Session {
        host,
        handles,
        token: *open.token(),
        watches: Watches::new(sender.clone())?,
        mark: Mutex::new(None),
        sender,
        peer,
        tool: OnceLock::new(),
        slow: Queue::default(),
    };
    session.audit("connect", json!({}));
    let why = std::thread::scope(|scope| {
        let _ends = Ends(&session);
        let thread = std::thread::Builder::new().name("beeline-host".into());
        let worker = || {
            let _ends = Ends(&session);
            while let Some(request) = session.slow.pop() {
                if session.carry_out(request).is_err() {
                    break;
                }
            }
        };
        if let Err(error) = thread.spawn_scoped(scope, worker) {
            return error.to_string();
        }
        let why = session.receive(first, &mut receiver);
        drop(open);
        why
    });
    session.audit("disconnect", json!({ "why": why }));
    Ok(())
}

impl Session {
    /// Writes a line for the owner.
    pub fn audit(&self, event: &str, what: Value) {
        let tool = self.tool.get().map_or("", String::as_str);
        self.host.audit.line(&self.peer, tool, event, what);
    }

    /// Receives requests, and returns the reason for the end.
    fn receive(&self, first: Received, receiver: &mut Receiver) -> String {
        let mut first = Some(first);
        loop {
            let next = first.take().unwrap_or_else(|| receiver.receive());
            let message = match next {
                Ok(Some(message)) => message,
                Ok(None) => return "the host has ended it".into(),
                Err(error) => return error.to_string(),
            };
            let id = message.id;
            let body = match message.body {
                Some(body) if id != 0 || matches!(body, Request::Credit(_)) => body,
                _ => return "a message without an id or a content".into(),
            };
            let body = match (self.tool.get(), body) {
                (None, Request::Hello(hello)) => {
                    if hello.version != VERSION {
                        let why = format!(
                            "the host speaks version {} of the protocol, the guest {VERSION}: both need the same beeline",
                            hello.version
                        );
                        let refusal = Refusal::new(libc::EPROTONOSUPPORT, why.as_str());
                        // It is over in any case.
                        let _ = self.answer(id, Err(refusal));
                        return why;
                    }
                    let _ = self.tool.set(hello.tool);
                    let policy = self.host.policy.title();
                    let welcome = Answer::Welcome(self.host.facts.welcome(policy, &self.token));
                    if let Err(error) = self.answer(id, Ok(welcome)) {
                        return error.to_string();
                    }
                    self.audit("hello", json!({}));
                    continue;
                }
                (None, _) | (Some(_), Request::Hello(_)) => {
                    return "the conversation does not begin with one Hello".into();
                }
                (Some(_), body) => body,
            };
            if let Request::Credit(credit) = body {
                self.watches.credit(credit.handle, credit.bytes);
                continue;
            }
            let long = self.takes_long(&body);
            let request = HostMessage {
                id,
                body: Some(body),
            };
            // A slow request begins when everything that was asked before is done, and is overtaken
            // by later requests. All others are done here: handing them to another thread costs
            // more than most of them.
            let goes_on = match long {
                true => self.slow.push(request),
                false => self.carry_out(request).is_ok(),
            };
            if !goes_on {
                return "an answer could not be sent".into();
            }
        }
    }

    fn answer(&self, id: u64, answer: Result<Answer, Refusal>) -> std::io::Result<()> {
        let answer = answer.unwrap_or_else(|refusal| {
            if !refusal.rule.is_empty() {
                let why = json!({ "rule": refusal.rule, "why": refusal.why });
                self.audit("refused", why);
            }
            Answer::Refused(refusal.into())
        });
        let body = Some(answer);
        self.sender.send(&GuestMessage { id, body })
    }

    fn carry_out(&self, request: HostMessage) -> std::io::Result<()> {
        let Some(body) = request.body else {
            return Ok(());
        };
        // The host is told of a watched object only after the answer.
        if let Request::Watch(watch) = &body {
            let watched = Watched::new(watch, &self.handles);
            let free = watched.and_then(|watched| self.watches.check(watched));
            return match free {
                Err(refusal) => self.answer(request.id, Err(refusal)),
                Ok(watched) => {
                    let answer = watched
                        .content()
                        .map_or(Answer::Done(Done {}), Answer::Changed);
                    self.answer(request.id, Ok(answer))?;
                    self.watches.add(watched)
                }
            };
        }
        if let Request::Pages(pages) = &body {
            let found = pages::pages(pages, &self.handles, &self.host.holder);
            return match found {
                Err(refusal) => self.answer(request.id, Err(refusal)),
                Ok((runs, left)) => {
                    self.answer(request.id, Ok(Answer::PageRuns(runs)))?;
                    drop(left);
                    Ok(())
                }
            };
        }
        let settles = self.settles(&body);
        let answer = self.carry_out_body(body);
        if settles {
            self.watches.settle()?;
        }
        self.answer(request.id, answer)
    }

    fn carry_out_body(&self, body: Request) -> Result<Answer, Refusal> {
        let cpus = self.host.facts.possible_cpus;
        Ok(match body {
            Request::Bpf(request) => Answer::BpfDone(bpf::bpf(self, request)?),
            Request::PerfEventOpen(request) => Answer::Opened(self.open_event(request)?),
            Request::PerfEventControl(request) => self.control_event(&request)?,
            Request::Release(request) => {
                for handle in request.handles {
                    self.watches.remove(handle);
                    let object = self.handles.remove(handle);
                    if let Some(held) = object.and_then(|object| object.held().take()) {
                        held.release();
                    }
                }
                Answer::Done(Done {})
            }
            Request::Look(request) => Answer::File(files::look(&request, &self.host.digests)?),
            Request::Iterate(request) => {
                Answer::Iterated(elements::iterate(&request, &self.handles, cpus)?)
            }
            Request::LookUp(request) => {
                Answer::Content(elements::look_up(request, &self.handles, cpus)?)
            }
            Request::Store(request) => {
                self.store(&request)?;
                Answer::Done(Done {})
            }
            Request::Mark(request) => {
                let (mark, runs) = pages::mark(&request.content)?;
                *self.mark.lock() = Some(mark);
                Answer::PageRuns(runs)
            }
            Request::Settle(_) => Answer::Done(Done {}),
            Request::Describe(request) => {
                Answer::Described(iterators::describe(request.handle, &self.handles)?)
            }
            Request::Read(request) => Answer::Content(iterators::read(&request, &self.handles)?),
            Request::Hello(_)
            | Request::Join(_)
            | Request::Credit(_)
            | Request::Watch(_)
            | Request::Pages(_) => {
                return Err(Refusal::new(libc::EPROTO, "not now"));
            }
        })
    }

    fn open_event(&self, request: PerfEventOpen) -> Result<Opened, Refusal> {
        let event = perf::Event::new(request)?;
        self.host.policy.attach(&event.place)?;
        let handle = self.handles.add(event.open(&self.handles)?)?;
        Ok(Opened { handle })
    }

    fn control_event(&self, request: &PerfEventControl) -> Result<Answer, Refusal> {
        let event = self.handles.of_kind(request.handle, Kind::Event)?;
        let done = perf::control(request, &event, &self.handles);
        if request.command == ioc::SET_BPF {
            let program = u32::try_from(request.argument).unwrap_or(0);
            let program = self.handles.get(program).map(|program| program.id);
            let errno = done.as_ref().err().map_or(0, |refusal| refusal.errno);
            self.audit(
                "attach",
                json!({
                    "places": [event.place.as_deref().unwrap_or_default()],
                    "program": program.ok(),
                    "errno": errno,
                }),
            );
        }
        Ok(match done? {
            None => Answer::Done(Done {}),
            Some(number) => Answer::EventNumber(EventNumber { number }),
        })
    }

    fn store(&self, request: &Store) -> Result<(), Refusal> {
        let map = self.handles.of_kind(request.handle, Kind::Map)?;
        // Mapped for this only: as long as an array is mapped for writing it cannot be frozen.
        let memory = rings::array(&map, true)?;
        let offset = usize::try_from(request.offset).unwrap_or(usize::MAX);
        let end = offset.checked_add(request.data.len());
        if end.is_none_or(|end| end > memory.len()) {
            return Err(Refusal::new(libc::EINVAL, "that is behind the array's end"));
        }
        memory.store_bytes(offset, &request.data);
        self.watches.stored(request.handle, offset, &request.data);
        Ok(())
    }

    /// True for calls that may take seconds. Others are answered meanwhile.
    fn takes_long(&self, body: &Request) -> bool {
        match body {
            Request::Bpf(request) => matches!(
                Command(request.command),
                Command::PROG_LOAD | Command::PROG_TEST_RUN | Command::LINK_CREATE
            ),
            // A read with a room is one of an event's value.
            Request::Read(read) => read.room == 0,
            Request::Iterate(request) => elements::takes_long(request, &self.handles),
            Request::Look(_) => true,
            _ => false,
        }
    }

    /// True for a call after which a tool that has mapped arrays finds in them what its programs
    /// have written, and what it has changed itself.
    fn settles(&self, body: &Request) -> bool {
        match body {
            Request::Bpf(request) if Command(request.command).is_for_elements() => {
                changes_elements(Command(request.command)) && self.is_mappable_array(request)
            }
            Request::Bpf(_) | Request::PerfEventControl(_) | Request::Settle(_) => true,
            _ => false,
        }
    }

    /// True if a command on elements is for a map that can be mapped.
    fn is_mappable_array(&self, request: &Bpf) -> bool {
        let layout = layout(Command(request.command), &request.attr);
        let map = layout.and_then(|layout| layout.objects.first());
        let map = map.map(|map| self.handles.get(u32_at(&request.attr, map.at)));
        let facts = map.and_then(Result::ok).and_then(|map| map.facts);
        facts.is_some_and(|facts| facts.is_mappable_array())
    }
}
