//! `beeline inject`: runs programs of an object file in a guest, and prints their reports, a line
//! each.

mod lines;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Context;
use beeline_trusted_dir::{MOST, read_bounded};
use beeline_vm_loader::{Attachment, Error, Loaded, Selection, Watching};
use clap::Args;

use crate::proxy::Proxy;
use crate::{ending, say};
use lines::Printer;

#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    proxy: Proxy,
    /// Only this program (may be repeated; the default is all whose section's name does not begin
    /// with `?`)
    #[arg(long, value_name = "NAME")]
    program: Vec<String>,
    /// Watch this map only (may be repeated; the default is all rings and all maps that can change)
    #[arg(long, value_name = "NAME")]
    map: Vec<String>,
    /// The type of records: a structure's name in the file's types
    #[arg(long, value_name = "TYPE")]
    record: Option<String>,
    /// Seconds between two looks at maps
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Seconds after which to end
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<Duration>,
    /// Samples per second on each CPU, for programs in perf_event sections
    #[arg(long, value_name = "HZ", default_value_t = Attachment::default().frequency)]
    frequency: u64,
    /// Print JSON, for scripts: an object for each event, one a line
    #[arg(long)]
    json: bool,
    /// The object file, as clang -target bpf -g makes it
    file: PathBuf,
}

/// The exit code for a file that cannot be used, regardless of the guest.
const UNUSABLE: u8 = 2;
/// The silence after which everything in transit at the end has arrived; after `LAST`, it is given
/// up.
const SILENCE: Duration = Duration::from_millis(100);
const LAST: Duration = Duration::from_secs(2);

/// Parses seconds: at least a millisecond, at most a year.
///
/// # Errors
///
/// The words for a text that is no number, or is out of range.
pub fn seconds(text: &str) -> Result<Duration, String> {
    const MOST: f64 = 365.0 * 86_400.0;
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    if !(0.001..=MOST).contains(&seconds) {
        return Err("from 0.001 to a year".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Runs programs of a file in a guest and prints their events.
///
/// # Errors
///
/// Fails if the guest cannot be reached or refuses a program, or the connection to it is lost.
pub fn inject(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let name = arguments.file.display();
    let data = match read_bounded(&arguments.file, MOST) {
        Ok(data) => data,
        Err(error) => {
            say(&format!("{name}: {error}"));
            return Ok(ExitCode::from(UNUSABLE));
        }
    };
    ending::prepare().context("starting a thread")?;
    let guest = arguments.proxy.connect(&format!("inject {name}"))?;
    let object = match guest.parse(&data) {
        Ok(object) => object,
        Err(error) => {
            say(&format!("{name}: {error}"));
            return Ok(ExitCode::from(UNUSABLE));
        }
    };
    let printer = match Printer::new(&object, arguments.record.as_deref(), arguments.json) {
        Ok(printer) => printer,
        Err(error) => {
            say(&format!("{name}: {error}"));
            return Ok(ExitCode::from(UNUSABLE));
        }
    };
    let interrupter = guest.interrupter();
    let selection = Selection {
        programs: arguments.program.clone(),
    };
    let loaded = guest.load(&object, &selection).and_then(|mut loaded| {
        loaded.watch(&Watching {
            maps: arguments.map.clone(),
            interval: arguments.interval,
        })?;
        Ok(loaded)
    });
    let mut loaded = match loaded {
        Err(error @ Error::NoSuch { .. }) => {
            say(&format!("{name}: {error}"));
            return Ok(ExitCode::from(UNUSABLE));
        }
        loaded => loaded?,
    };
    let over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&over);
    ending::at_end(move || {
        ends.store(true, Relaxed);
        interrupter.interrupt();
    });
    loaded.attach(&Attachment {
        frequency: arguments.frequency,
    })?;
    say_what_is_attached(&loaded);
    let deadline = arguments.duration.map(|duration| Instant::now() + duration);
    let mut out = io::stdout().lock();
    let listened = listen(&mut loaded, &printer, deadline, &over, &mut out)?;
    if let Err(error) = listened
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        return Err(error).context("writing to standard output");
    }
    Ok(ExitCode::SUCCESS)
}

fn say_what_is_attached(loaded: &Loaded) {
    let attached = loaded.attached().iter();
    let attached = attached.map(|it| format!("{} ({})", it.program, it.section));
    let release = &loaded.guest().welcome().release;
    let attached = attached.collect::<Vec<_>>().join(", ");
    say(&format!(
        "attached in the guest, Linux {release}: {attached}"
    ));
    if let rest @ [_, ..] = loaded.unattached().as_slice() {
        let rest = rest.join(", ");
        say(&format!(
            "loaded, and not attached by their sections: {rest}"
        ));
    }
}

/// Prints events until the deadline, until the user ends it, or until the output's reader is gone.
fn listen(
    loaded: &mut Loaded,
    printer: &Printer,
    deadline: Option<Instant>,
    over: &AtomicBool,
    out: &mut impl Write,
) -> Result<io::Result<()>, beeline_vm_loader::Error> {
    let is_over = || over.load(Relaxed) || deadline.is_some_and(|it| it <= Instant::now());
    while !is_over() {
        while let Some(event) = loaded.next_event(deadline)? {
            if let Err(error) = printer.print(&event, loaded.maps(), out) {
                return Ok(Err(error));
            }
            if is_over() {
                break;
            }
        }
    }
    // Nothing more happens now, except for changes since the last look, and records in transit.
    loaded.detach();
    loaded.look()?;
    let end = Instant::now() + LAST;
    while let Some(event) = loaded.next_event(Some(end.min(Instant::now() + SILENCE)))? {
        if let Err(error) = printer.print(&event, loaded.maps(), out) {
            return Ok(Err(error));
        }
        if Instant::now() >= end {
            break;
        }
    }
    Ok(Ok(()))
}
