//! The audit log of the actions of hosts, a line of JSON each: every connection, load, attach and
//! refusal.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde_json::{Value, json};

/// The longest text of a host that is written down, in bytes.
const TEXT: usize = 1024;

/// The most lines in a second on connections that are not served: peers that only connect must not
/// fill the disk.
const STRANGERS: u32 = 16;

/// The destination of the lines.
#[derive(Debug)]
pub struct Audit {
    file: Mutex<Option<File>>,
    strangers: Mutex<Strangers>,
}

/// The lines on connections that are not served.
#[derive(Debug)]
struct Strangers {
    /// The beginning of the current second, and the number of its lines.
    since: Instant,
    lines: u32,
    /// Lines that were not written, since the last that was.
    left_out: u64,
}

impl Audit {
    /// Writes to the end of a file, or to stderr.
    ///
    /// # Errors
    ///
    /// The file cannot be opened or created.
    pub fn new(path: Option<&Path>) -> io::Result<Self> {
        let file = path.map(|path| {
            use std::os::unix::fs::OpenOptionsExt;
            let mut options = File::options();
            options.append(true).create(true).mode(0o600).open(path)
        });
        Ok(Self {
            file: Mutex::new(file.transpose()?),
            strangers: Mutex::new(Strangers {
                since: Instant::now(),
                lines: 0,
                left_out: 0,
            }),
        })
    }

    /// Writes one line on a connection that is not served. Of many at once only some are written,
    /// and how many were left out.
    pub fn stranger(&self, name: &str, why: &str) {
        let left_out = self.strangers.lock().next(Instant::now());
        if let Some(left_out) = left_out {
            let what = json!({ "why": why, "left-out": left_out });
            self.line(name, "", "refused", what);
        }
    }

    /// Writes one line, with more fields. A log that cannot be written stops nothing.
    pub fn line(&self, peer: &str, tool: &str, event: &str, what: Value) {
        let mut line = json!({
            "time": time(SystemTime::now()),
            "peer": peer,
            "tool": short(tool),
            "event": event,
        });
        if let (Some(line), Value::Object(what)) = (line.as_object_mut(), what) {
            line.extend(what);
        }
        let line = format!("{line}\n");
        let mut file = self.file.lock();
        let _ = match &mut *file {
            Some(file) => file.write_all(line.as_bytes()),
            None => io::stderr().write_all(line.as_bytes()),
        };
    }
}

impl Strangers {
    /// Returns how many lines were left out before this one; `None` if it is left out, too.
    fn next(&mut self, now: Instant) -> Option<u64> {
        if now.saturating_duration_since(self.since) >= Duration::from_secs(1) {
            (self.since, self.lines) = (now, 0);
        }
        if self.lines >= STRANGERS {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// Returns the beginning of a text that a host has chosen.
pub fn short(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT)]
}

/// Formats a time as in RFC 3339, in UTC, with milliseconds.
fn time(now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        since.subsec_millis()
    )
}

/// Returns year, month and day of a day since 1970, by the Gregorian calendar. Years begin in
/// March, so that the leap day is the last.
fn date(days: u64) -> (u64, u64, u64) {
    const ERA: u64 = 146_097;
    let days = days + 719_468;
    let (era, day) = (days / ERA, days % ERA);
    let year = (day - day / 1460 + day / 36_524 - day / (ERA - 1)) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let of_month = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (era * 400 + year + next, month, of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_strangers_get_few_lines() {
        let since = Instant::now();
        let mut strangers = Strangers {
            since,
            lines: 0,
            left_out: 0,
        };
        for _ in 0..STRANGERS {
            assert_eq!(strangers.next(since), Some(0));
        }
        for _ in 0..1000 {
            assert_eq!(strangers.next(since), None);
        }
        let later = since + Duration::from_secs(1);
        assert_eq!(strangers.next(later), Some(1000));
        assert_eq!(strangers.next(later), Some(0));
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(time(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
