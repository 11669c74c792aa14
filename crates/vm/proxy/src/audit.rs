//! The audit log of the actions of hosts, a line of JSON each: every connection, load, attach and
//! refusal.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde_json::{Value, json};

/// The longest text of a host that is written down, in bytes.
const TEXT: usize = 1024;

/// The destination of the lines.
#[derive(Debug)]
pub struct Audit(Mutex<Option<File>>);

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
        Ok(Self(Mutex::new(file.transpose()?)))
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
        let mut file = self.0.lock();
        let _ = match &mut *file {
            Some(file) => file.write_all(line.as_bytes()),
            None => io::stderr().write_all(line.as_bytes()),
        };
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
    use std::time::Duration;

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
