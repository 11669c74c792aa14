//! The log's text. Only as much is kept as there is room for: its end, or its beginning (`struct
//! bpf_verifier_log`).

/// The text so far. Places in it count from the very beginning, kept or not.
#[derive(Debug)]
pub(super) struct Text {
    kept: String,
    /// The bytes before the kept part.
    before: usize,
    /// The bytes after it.
    after: usize,
    /// The bytes that are wanted in the end.
    room: usize,
    /// True if the beginning is kept (`BPF_LOG_FIXED`).
    fixed: bool,
    /// The largest number of bytes at any time.
    longest: usize,
    /// The start of the last line.
    last_line: usize,
}

impl Text {
    pub(super) fn new(room: usize, fixed: bool) -> Self {
        Self {
            kept: String::new(),
            before: 0,
            after: 0,
            room,
            fixed,
            longest: 0,
            last_line: 0,
        }
    }

    /// Returns the bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.kept.capacity()
    }

    pub(super) fn len(&self) -> usize {
        self.before + self.kept.len() + self.after
    }

    /// Takes back the text since then. Text that was dropped does not come back.
    pub(super) fn back_to(&mut self, place: usize) {
        self.longest = self.longest.max(self.len());
        let kept = place.saturating_sub(self.before);
        if place < self.before {
            self.before = place;
        }
        self.after = kept.saturating_sub(self.kept.len());
        if kept < self.kept.len() {
            let end = boundary(&self.kept, kept);
            self.kept.truncate(end);
        }
    }

    /// Adds one or more lines, without the last newline.
    pub(super) fn line(&mut self, line: &str) {
        self.last_line = self.len() + line.rfind('\n').map_or(0, |at| at + 1);
        self.push(line);
        self.push("\n");
    }

    /// Continues the last line, which ends at `end`.
    pub(super) fn continue_line(&mut self, end: usize, text: &str) {
        self.back_to(end);
        self.push(text);
        self.push("\n");
    }

    /// Returns the distance of a place from the start of the last line.
    pub(super) fn column(&self, place: usize) -> usize {
        place.saturating_sub(self.last_line)
    }

    fn push(&mut self, text: &str) {
        if self.fixed {
            let room = match self.after {
                0 => self.room.saturating_sub(self.kept.len()),
                _ => 0,
            };
            let part = boundary(text, room.min(text.len()));
            let (fits, rest) = text.split_at(part);
            self.kept += fits;
            self.after += rest.len();
            return;
        }
        self.kept += text;
        // Not each time: the kept part has to be moved.
        const SLACK: usize = 1 << 16;
        if self.kept.len() > self.room.saturating_add(self.room.max(SLACK)) {
            self.cut();
        }
    }

    fn cut(&mut self) {
        let mut start = self.kept.len().saturating_sub(self.room);
        while !self.kept.is_char_boundary(start) {
            start += 1;
        }
        self.kept.drain(..start);
        self.before += start;
    }

    /// Returns the largest length, and the kept part.
    pub(super) fn finish(mut self) -> (usize, String) {
        let longest = self.longest.max(self.len());
        if !self.fixed {
            self.cut();
        }
        (longest, self.kept)
    }
}

/// Returns the last place at or before `at` that is between two characters.
fn boundary(text: &str, at: usize) -> usize {
    (0..=at)
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(room: usize, fixed: bool, lines: usize) -> Text {
        let mut text = Text::new(room, fixed);
        for line in 0..lines {
            text.line(&format!("line {line:03}"));
        }
        text
    }

    #[test]
    fn the_end_is_kept_or_the_beginning() {
        let (longest, text) = said(17, false, 100_000).finish();
        assert_eq!(text, "99998\nline 99999\n", "the last bytes");
        assert!(longest > 900_000, "all of it counts");
        let (longest_fixed, text) = said(18, true, 100_000).finish();
        assert_eq!(text, "line 000\nline 001\n");
        assert_eq!(longest_fixed, longest);
    }

    #[test]
    fn no_more_is_held_than_twice_what_is_wanted() {
        let text = said(1 << 17, false, 100_000);
        assert!(text.kept.len() <= 1 << 18);
        assert!(said(100, true, 100_000).kept.len() <= 100);
    }

    #[test]
    fn removed_log_text_is_gone() {
        for fixed in [false, true] {
            let mut text = said(27, fixed, 2);
            let place = text.len();
            text.line("a path");
            text.line("that was good");
            text.back_to(place);
            text.line("line 002");
            let (longest, kept) = text.finish();
            assert_eq!(kept, "line 000\nline 001\nline 002\n");
            assert_eq!(longest, 18 + 7 + 14);
        }
        // Even if it is not kept.
        let mut text = said(9, true, 3);
        text.back_to(18);
        assert_eq!(text.len(), 18);
        let mut text = said(9, false, 100_000);
        text.back_to(18);
        assert_eq!((text.len(), text.finish().1.as_str()), (18, ""));
    }
}
