//! One connection: a tool on the host, and everything that it has here. It ends with the
//! connection.

use std::sync::Arc;

use beeline_uapi::Command;
use beeline_uapi::fields::u32_at;
use beeline_uapi::linux::PAGE_SIZE;
use beeline_uapi::perf::ioc;
use beeline_vm_protocol::clocks;
use beeline_vm_protocol::conversation::{Receiver, Sender};
use beeline_vm_protocol::info::Kind;
use beeline_vm_protocol::layout::{changes_elements, layout};
use beeline_vm_protocol::messages::guest_message::Body as Answer;
use beeline_vm_protocol::messages::host_message::Body as Request;
use beeline_vm_protocol::messages::{
    Bpf, Done, EventNumber, GuestMessage, HostMessage, Opened, PerfEventControl, PerfEventOpen,
    Store,
};
use beeline_vm_protocol::peer::Peer;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::greeting::Greeted;
use crate::handles::Handles;
use crate::host::Host;
use crate::limits::Portion;
use crate::lookup_channel::Token;
use crate::memory::{self, Incoming};
use crate::perf;
use crate::queues::Queue;
use crate::refusal::Refusal;
use crate::shared::Shared;
use crate::watch::{Watched, Watches};
use crate::{bpf, elements, files, iterators, pages, rings};

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
    peer: Peer,
    /// The name of the connection's other end.
    name: String,
    tool: String,
    /// The secret that its look-up channels must know.
    token: Token,
    slow: Queue,
}

/// Ends the connection if its thread ends, even by a panic: the host would wait for its answer
/// forever.
struct Ends<'a>(&'a Session);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.slow.close();
        self.0.sender.end();
    }
}

/// Serves a host until it or its connection ends. `first` is the id of its greeting, which has not
/// been answered yet.
///
/// # Errors
///
/// The system's, if a connection cannot be begun: no more threads, descriptors or random numbers.
pub fn serve(greeted: Greeted, first: u64, tool: String, host: &Arc<Host>) -> std::io::Result<()> {
    let Greeted {
        mut receiver,
        sender,
        name,
        peer,
    } = greeted;
    sender.keep_alive()?;
    let handles = Arc::new(Handles::of(&peer, &host.objects));
    let open = host.lookup_channels.open(&handles, &peer)?;
    let session = Session {
        host: Arc::clone(host),
        handles,
        token: *open.token(),
        watches: Watches::new(sender.clone())?,
        mark: Mutex::new(None),
        sender,
        peer,
        name,
        tool,
        slow: Queue::default(),
    };
    session.audit("connect", json!({}));
    let why = std::thread::scope(|scope| {
        let _ends = Ends(&session);
        let thread = std::thread::Builder::new().name("beeline-host".into());
        let worker = || {
            let _ends = Ends(&session);
            while let Some((request, memory)) = session.slow.pop() {
                if session.carry_out(request, memory).is_err() {
                    break;
                }
            }
        };
        if let Err(error) = thread.spawn_scoped(scope, worker) {
            return error.to_string();
        }
        let why = match session.welcome(first) {
            Ok(()) => session.receive(&mut receiver),
            Err(error) => error.to_string(),
        };
        drop(open);
        why
    });
    session.audit("disconnect", json!({ "why": why }));
    Ok(())
}

impl Session {
    /// Returns the peer that it is of.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Writes a line for the owner.
    pub fn audit(&self, event: &str, what: Value) {
        self.host.audit.line(&self.name, &self.tool, event, what);
    }

    fn welcome(&self, id: u64) -> std::io::Result<()> {
        let policy = self.host.policy.title();
        let welcome = Answer::Welcome(self.host.facts.welcome(policy, &self.token));
        self.answer(id, Ok(welcome))?;
        self.audit("hello", json!({}));
        Ok(())
    }

    /// Receives requests, and returns the reason for the end.
    fn receive(&self, receiver: &mut Receiver) -> String {
        loop {
            let mut memory = self.host.memory.nothing(&self.peer);
            let message = match receiver.receive_metered(&mut Incoming(&mut memory)) {
                Ok(Some(message)) => message,
                Ok(None) => return "the host has ended it".into(),
                Err(error) => return error.to_string(),
            };
            let HostMessage { id, body } = message;
            let body = match body {
                Some(Request::Hello(_)) => {
                    return "the conversation does not begin with one Hello".into();
                }
                Some(body) if id != 0 || matches!(body, Request::Credit(_)) => body,
                _ => return "a message without an id or a content".into(),
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
                true => self.slow.push(request, memory),
                false => self.carry_out(request, memory).is_ok(),
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

    /// `memory` is what the request takes; its answer's is added.
    fn carry_out(&self, request: HostMessage, mut memory: Portion) -> std::io::Result<()> {
        let Some(body) = request.body else {
            return Ok(());
        };
        let counted = memory::add(&mut memory, self.answer_bytes(&body));
        if let Err(refusal) = counted.and_then(|()| self.count_ring(&body)) {
            return self.answer(request.id, Err(refusal));
        }
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
        let answer = self.carry_out_body(body, &mut memory);
        if settles {
            self.watches.settle()?;
        }
        self.answer(request.id, answer)
    }

    fn carry_out_body(&self, body: Request, memory: &mut Portion) -> Result<Answer, Refusal> {
        let cpus = self.host.facts.possible_cpus;
        Ok(match body {
            Request::Bpf(request) => Answer::BpfDone(bpf::bpf(self, request, memory)?),
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
            Request::Look(request) => Answer::File(files::look(
                &request,
                &self.host.digests,
                &self.host.policy,
            )?),
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
            Request::ReadClocks(_) => Answer::Clocks(clocks::read()),
            Request::Hello(_)
            | Request::Join(_)
            | Request::Credit(_)
            | Request::Watch(_)
            | Request::Pages(_) => {
                return Err(Refusal::new(libc::EPROTO, "not now"));
            }
        })
    }

    /// Returns the most bytes that an answer takes, except for those of `bpf(2)`.
    fn answer_bytes(&self, body: &Request) -> usize {
        let facts = |handle| {
            let map = self.handles.get(handle);
            map.ok().and_then(|map| map.facts).unwrap_or_default()
        };
        let cpus = self.host.facts.possible_cpus;
        match body {
            Request::Look(look) if look.content => files::MOST,
            Request::Iterate(_) => elements::MOST,
            Request::Read(_) => iterators::MOST,
            Request::LookUp(look_up) => facts(look_up.handle).value_len(cpus),
            Request::Watch(watch) => {
                let facts = facts(watch.handle);
                let entries = facts.max_entries as usize;
                match facts.is_mappable_array() {
                    true => entries.saturating_mul(facts.value_len(cpus)),
                    false => 0,
                }
            }
            _ => 0,
        }
    }

    /// Counts the memory of an event's ring, which is made when it is asked for first.
    fn count_ring(&self, body: &Request) -> Result<(), Refusal> {
        let (handle, pages) = match body {
            Request::Watch(watch) => (watch.handle, watch.pages),
            Request::Pages(of) => (of.handle, of.pages),
            _ => return Ok(()),
        };
        let Ok(event) = self.handles.of_kind(handle, Kind::Event) else {
            return Ok(());
        };
        let mut share = event.share();
        if share.is_none() {
            let bytes = (1 + u64::from(pages)) * PAGE_SIZE;
            *share = Some(self.host.policy.map(bytes, &self.peer, &self.host.taken)?);
        }
        Ok(())
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
