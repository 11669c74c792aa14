//! Clients that know every answer in advance.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use beeline_e2e::Dice;
use parking_lot::Mutex;

/// An answer that takes longer counts as none.
const SLOW: Duration = Duration::from_secs(20);
/// The number of concurrent clients.
const CLIENTS: u64 = 2;
/// The most requests on one connection.
const KEPT: u64 = 60;

/// The requests of one connection: each asks, and checks the answer.
pub trait Ask {
    fn ask(&mut self, number: u64, dice: &mut Dice) -> Result<(), String>;
}

/// Makes connections.
pub type Connect = Arc<dyn Fn() -> Result<Box<dyn Ask>, String> + Send + Sync>;

/// Clients that send requests without pause until they are stopped, or until an answer is wrong.
pub struct Clients {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    answered: AtomicU64,
    wrong: Mutex<Option<String>>,
}

impl Clients {
    /// Starts clients; `kept` says whether a connection serves more than one request.
    pub fn start(connect: &Connect, is_kept: bool, seed: u64) -> Clients {
        let shared = Arc::<Shared>::default();
        let start = |who: u64| {
            let (shared, connect) = (Arc::clone(&shared), Arc::clone(connect));
            let mut dice = Dice((seed ^ (who << 32)) | 1);
            std::thread::spawn(move || {
                while !shared.stop.load(Ordering::Relaxed) {
                    let requests = if is_kept { 1 + dice.below(KEPT) } else { 1 };
                    if let Err(why) = ask_some(&connect, requests, &mut dice, &shared) {
                        let mut wrong = shared.wrong.lock();
                        wrong.get_or_insert(why);
                        return;
                    }
                }
            })
        };
        let threads = (1..=CLIENTS).map(start).collect();
        Clients { shared, threads }
    }

    /// No clients.
    pub fn none() -> Clients {
        Clients {
            shared: Arc::default(),
            threads: Vec::new(),
        }
    }

    /// Returns an error that names a wrong answer.
    pub fn check(&self) -> Result<(), String> {
        let wrong = self.shared.wrong.lock();
        wrong.clone().map_or(Ok(()), Err)
    }

    pub fn answered(&self) -> u64 {
        self.shared.answered.load(Ordering::Relaxed)
    }

    /// Stops the clients; returns the number of right answers.
    pub fn stop(mut self) -> Result<u64, String> {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| "a client panicked")?;
        }
        self.check().map(|()| self.answered())
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

fn ask_some(
    connect: &Connect,
    requests: u64,
    dice: &mut Dice,
    shared: &Shared,
) -> Result<(), String> {
    let mut connection = connect().map_err(|why| format!("connecting: {why}"))?;
    for turn in 0..requests {
        let number = shared.answered.load(Ordering::Relaxed);
        connection
            .ask(number, dice)
            .map_err(|why| format!("request {turn} of a connection: {why}"))?;
        shared.answered.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// A stream that waits for an answer only so long.
fn connected(port: u16) -> Result<BufReader<TcpStream>, String> {
    let stream = TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.to_string())?;
    let set = stream
        .set_nodelay(true)
        .and_then(|()| stream.set_read_timeout(Some(SLOW)))
        .and_then(|()| stream.set_write_timeout(Some(SLOW)));
    set.map_err(|error| error.to_string())?;
    Ok(BufReader::new(stream))
}

fn send(stream: &mut BufReader<TcpStream>, bytes: &[u8]) -> Result<(), String> {
    let sent = stream.get_mut().write_all(bytes);
    sent.map_err(|error| format!("sending: {error}"))
}

fn take(stream: &mut BufReader<TcpStream>, length: usize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; length];
    let read = stream.read_exact(&mut bytes);
    read.map_err(|error| format!("reading {length} bytes: {error}"))?;
    Ok(bytes)
}

fn line(stream: &mut BufReader<TcpStream>) -> Result<String, String> {
    let mut line = String::new();
    let read = stream.read_line(&mut line);
    read.map_err(|error| format!("reading a line: {error}"))?;
    match line.strip_suffix("\r\n") {
        Some(text) => Ok(text.to_owned()),
        None => Err(format!("the connection ended within a line: {line:?}")),
    }
}

fn same(answer: &[u8], wanted: &[u8], what: &str) -> Result<(), String> {
    let at = answer
        .iter()
        .zip(wanted)
        .position(|(one, other)| one != other);
    if at.is_none() && answer.len() == wanted.len() {
        return Ok(());
    }
    let shown = |bytes: &[u8]| {
        let from = at.unwrap_or(0).saturating_sub(8);
        let until = bytes.len().min(from + 64);
        String::from_utf8_lossy(&bytes[from.min(until)..until]).into_owned()
    };
    Err(format!(
        "{what}: {} bytes, {} wanted, the first to differ is {at:?}: {:?} for {:?}",
        answer.len(),
        wanted.len(),
        shown(answer),
        shown(wanted),
    ))
}

/// Returns letters, different ones each time.
fn letters(dice: &mut Dice) -> Vec<u8> {
    let most = [40, 40, 1500, 30_000][dice.below(4) as usize];
    let length = dice.below(most);
    (0..length).map(|_| b'a' + dice.below(26) as u8).collect()
}

/// Returns the body of a valid HTTP answer.
fn http_body(stream: &mut BufReader<TcpStream>) -> Result<Vec<u8>, String> {
    let status = line(stream)?;
    if status.split(' ').nth(1) != Some("200") {
        return Err(format!("the status is {status:?}"));
    }
    let mut length = None;
    loop {
        let header = line(stream)?.to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(number) = header.strip_prefix("content-length:") {
            length = number.trim().parse().ok();
        }
    }
    take(stream, length.ok_or("an answer without a length")?)
}

/// A server that answers with the path and the body reversed.
pub struct Turning(BufReader<TcpStream>);

impl Turning {
    pub fn connect(port: u16) -> Connect {
        Arc::new(move || Ok(Box::new(Turning(connected(port)?))))
    }
}

impl Ask for Turning {
    fn ask(&mut self, number: u64, dice: &mut Dice) -> Result<(), String> {
        let mut body = letters(dice);
        let length = body.len();
        let head = format!(
            "POST /{number} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
        );
        send(&mut self.0, &[head.as_bytes(), &body].concat())?;
        body.reverse();
        let wanted = [format!("/{number}").as_bytes(), &body].concat();
        same(&http_body(&mut self.0)?, &wanted, "the body")
    }
}

/// nginx with a file and a fixed answer; a connection for each request, as it closes kept ones when
/// it likes.
pub struct Nginx(BufReader<TcpStream>, Arc<Vec<u8>>);

impl Nginx {
    pub fn connect(port: u16, file: Arc<Vec<u8>>) -> Connect {
        Arc::new(move || Ok(Box::new(Nginx(connected(port)?, Arc::clone(&file)))))
    }
}

impl Ask for Nginx {
    fn ask(&mut self, number: u64, dice: &mut Dice) -> Result<(), String> {
        let is_file = dice.below(3) == 0;
        let path = if is_file {
            "/file".to_owned()
        } else {
            format!("/say/{number}")
        };
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        send(&mut self.0, head.as_bytes())?;
        let body = http_body(&mut self.0)?;
        let said = format!("hello {path}");
        same(
            &body,
            if is_file { &self.1 } else { said.as_bytes() },
            &path,
        )
    }
}

/// Redis: a value that was set is read back, and nothing is counted twice.
pub struct Redis(BufReader<TcpStream>, String, u64);

impl Redis {
    pub fn connect(port: u16) -> Connect {
        let names = AtomicU64::new(0);
        Arc::new(move || {
            let name = format!("key{}", names.fetch_add(1, Ordering::Relaxed));
            Ok(Box::new(Redis(connected(port)?, name, 0)))
        })
    }

    fn command(&mut self, words: &[&[u8]]) -> Result<(), String> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend(format!("${}\r\n", word.len()).bytes());
            bytes.extend_from_slice(word);
            bytes.extend(b"\r\n");
        }
        send(&mut self.0, &bytes)
    }

    fn expect(&mut self, wanted: &str) -> Result<(), String> {
        let said = line(&mut self.0)?;
        same(said.as_bytes(), wanted.as_bytes(), "redis says")
    }
}

impl Ask for Redis {
    fn ask(&mut self, _number: u64, dice: &mut Dice) -> Result<(), String> {
        let (value, name) = (letters(dice), self.1.clone());
        self.command(&[b"SET", name.as_bytes(), &value])?;
        self.expect("+OK")?;
        self.command(&[b"INCR", format!("count{name}").as_bytes()])?;
        self.2 += 1;
        self.expect(&format!(":{}", self.2))?;
        self.command(&[b"GET", name.as_bytes()])?;
        self.expect(&format!("${}", value.len()))?;
        same(&take(&mut self.0, value.len())?, &value, "the value")?;
        self.expect("")
    }
}

/// Postgres, in its protocol's simple form; each connection is a process.
pub struct Postgres(BufReader<TcpStream>);

impl Postgres {
    pub fn connect(port: u16) -> Connect {
        Arc::new(move || {
            let mut connection = Postgres(connected(port)?);
            let words = b"user\0storm\0database\0postgres\0\0";
            let length = (8 + words.len()) as u32;
            let version = 3_u32 << 16;
            let hello = [&length.to_be_bytes()[..], &version.to_be_bytes(), words].concat();
            send(&mut connection.0, &hello)?;
            connection.rows()?;
            Ok(Box::new(connection))
        })
    }

    /// Returns the first column of all rows until the server is ready for more.
    fn rows(&mut self) -> Result<Vec<Vec<u8>>, String> {
        let mut rows = Vec::new();
        loop {
            let head = take(&mut self.0, 5)?;
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
            let rest = length.checked_sub(4).ok_or("a message of no length")?;
            let body = take(&mut self.0, rest)?;
            match head[0] {
                b'Z' => return Ok(rows),
                b'E' => return Err(String::from_utf8_lossy(&body).into_owned()),
                b'D' => rows.push(body.get(6..).unwrap_or_default().to_vec()),
                _ => {}
            }
        }
    }

    fn query(&mut self, text: &str) -> Result<Vec<Vec<u8>>, String> {
        let length = (text.len() + 5) as u32;
        send(
            &mut self.0,
            &[b"Q", &length.to_be_bytes()[..], text.as_bytes(), b"\0"].concat(),
        )?;
        self.rows()
    }
}

impl Ask for Postgres {
    fn ask(&mut self, number: u64, dice: &mut Dice) -> Result<(), String> {
        let text = String::from_utf8(letters(dice)).expect("letters are text");
        let rows = self.query(&format!("select reverse('{text}')"))?;
        let reversed: String = text.chars().rev().collect();
        same(&rows.concat(), reversed.as_bytes(), "the text")?;
        let few = 1 + number % 400;
        let rows = self.query(&format!(
            "create temp table if not exists t(n bigint); truncate t; insert into t select generate_series(1, {few}); \
             select sum(n) from t; select count(*) from t where n * 2 <= {few}"
        ))?;
        let wanted = format!("{} {}", few * (few + 1) / 2, few / 2);
        same(&rows.join(&b' '), wanted.as_bytes(), "sum and count")
    }
}
