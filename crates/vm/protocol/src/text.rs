//! Texts of the other side, for a terminal.

use std::borrow::Cow;
use std::ops::RangeInclusive;

/// Characters that no terminal shows, but by which it shows others elsewhere or in another order:
/// marks and overrides of direction, joiners, separators of lines, tags.
const INVISIBLE: [RangeInclusive<char>; 9] = [
    '\u{ad}'..='\u{ad}',
    '\u{61c}'..='\u{61c}',
    '\u{180e}'..='\u{180e}',
    '\u{200b}'..='\u{200f}',
    '\u{2028}'..='\u{202e}',
    '\u{2060}'..='\u{206f}',
    '\u{feff}'..='\u{feff}',
    '\u{fff9}'..='\u{fffb}',
    '\u{e0000}'..='\u{e007f}',
];

/// Returns whether a character of another side's must not get to a terminal as it is.
fn is_harmful(letter: char) -> bool {
    letter.is_control() && !matches!(letter, '\n' | '\t')
        || INVISIBLE.iter().any(|range| range.contains(&letter))
}

/// Returns a text without control characters, by which it could move a terminal's cursor, or pretend
/// to be other lines, and without invisible ones, by which it could look like another text. Each is
/// shown as JSON writes it (`\u001b`), so that a text which is JSON means the same. Line ends and
/// tabs stay.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_harmful) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if !is_harmful(letter) {
            shown.push(letter);
            continue;
        }
        for unit in letter.encode_utf16(&mut [0; 2]) {
            shown.push_str(&format!("\\u{unit:04x}"));
        }
    }
    shown.into()
}

/// Returns a text for one line: line ends are shown as well.
pub fn printable_line(text: &str) -> Cow<'_, str> {
    match printable(text) {
        shown if shown.contains('\n') => shown.replace('\n', "\\n").into(),
        shown => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_a_terminal_that_would_control_it() {
        assert_eq!(printable("plain\ttext\n"), "plain\ttext\n");
        assert!(matches!(printable("plain"), Cow::Borrowed(_)));
        assert_eq!(
            printable("\u{1b}[31m\u{9b}A\r\u{7f}"),
            "\\u001b[31m\\u009bA\\u000d\\u007f"
        );
        assert_eq!(printable_line("a\nbeeline: b"), "a\\nbeeline: b");
        // As a machine's name `web-1` would look like another one's.
        assert_eq!(
            printable("a\u{202e}1-bew\u{2069}\u{200f}\u{e0041}"),
            "a\\u202e1-bew\\u2069\\u200f\\udb40\\udc41"
        );
        assert_eq!(printable_line("\u{2028}"), "\\u2028");
        assert_eq!(
            printable("\u{5e9}\u{e9}\u{1f41d}"),
            "\u{5e9}\u{e9}\u{1f41d}"
        );
        let json = serde_json_like("\u{9b}");
        assert_eq!(printable(&json), "{\"a\":\"\\u009b\"}");
    }

    /// A text as a serialiser writes it that escapes ASCII control characters only.
    fn serde_json_like(text: &str) -> String {
        format!("{{\"a\":\"{text}\"}}")
    }
}
