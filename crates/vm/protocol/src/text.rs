//! Texts of the other side, for a terminal.

use std::borrow::Cow;

/// Returns a text without control characters, by which it could move a terminal's cursor, or pretend
/// to be other lines. Each is shown as JSON writes it (`\u001b`), so that a text which is JSON means
/// the same. Line ends and tabs stay.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_harmful = |letter: char| letter.is_control() && !matches!(letter, '\n' | '\t');
    if !text.contains(is_harmful) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match is_harmful(letter) {
            true => shown.push_str(&format!("\\u{:04x}", u32::from(letter))),
            false => shown.push(letter),
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
        let json = serde_json_like("\u{9b}");
        assert_eq!(printable(&json), "{\"a\":\"\\u009b\"}");
    }

    /// A text as a serialiser writes it that escapes ASCII control characters only.
    fn serde_json_like(text: &str) -> String {
        format!("{{\"a\":\"{text}\"}}")
    }
}
