//! A manual page for one command.

use std::io::{self, Write};

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};

use crate::shown;
use crate::texts::{COMMON, Example, Text, text};

/// Returns the name of a command's page, such as `beeline-prog-run`.
pub fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or(command.get_name())
}

/// Writes the page of a command that has been built; `above` is the command that it belongs to.
///
/// # Errors
///
/// Those of the writer.
pub fn write(command: &Command, above: Option<&Command>, to: &mut dyn Write) -> io::Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let man = Man::new(command.clone())
        .source(format!("beeline {version}"))
        .manual("Beeline");
    let text = text(name(command));
    man.render_title(to)?;
    man.render_name_section(to)?;
    synopsis(command).to_writer(to)?;
    match text {
        Some(Text { description, .. }) => paragraphs("DESCRIPTION", description).to_writer(to)?,
        None => man.render_description_section(to)?,
    }
    if command
        .get_arguments()
        .any(|argument| !argument.is_hide_set())
    {
        let mut options = Vec::new();
        man.render_options_section(&mut options)?;
        to.write_all(&with_bold_code(&options))?;
    }
    if shown(command).next().is_some() {
        let mut commands = Vec::new();
        man.render_subcommands_section(&mut commands)?;
        to.write_all(&with_bold_code(&commands))?;
    }
    if let Some(text) = text {
        examples(text.examples).to_writer(to)?;
    }
    for (heading, lines) in text.map_or(COMMON, |text| text.sections) {
        paragraphs(heading, lines).to_writer(to)?;
    }
    see_also(command, above).to_writer(to)
}

/// Returns the usage as the command's help has it.
fn synopsis(command: &Command) -> Roff {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let words = command.get_bin_name().unwrap_or(command.get_name());
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    for (at, line) in usage.lines().map(str::trim).enumerate() {
        if at > 0 {
            roff.control("br", []);
        }
        match line.strip_prefix(words) {
            Some(rest) => roff.text([bold(words), roman(rest)]),
            None => roff.text([roman(line)]),
        };
    }
    roff
}

fn paragraphs(heading: &str, paragraphs: &[&str]) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [heading]);
    for (at, paragraph) in paragraphs.iter().enumerate() {
        if at > 0 {
            roff.control("PP", []);
        }
        roff.text(inline(paragraph));
    }
    roff
}

fn examples(examples: &[Example]) -> Roff {
    let mut roff = Roff::new();
    if examples.is_empty() {
        return roff;
    }
    roff.control("SH", ["EXAMPLES"]);
    for (at, (purpose, lines)) in examples.iter().enumerate() {
        if at > 0 {
            roff.control("PP", []);
        }
        roff.text(inline(purpose));
        roff.control("PP", []);
        roff.control("nf", []).control("RS", ["4"]);
        for line in lines.lines() {
            roff.text([bold(line)]);
        }
        roff.control("RE", []).control("fi", []);
    }
    roff
}

/// Returns the pages of the commands above and below this one, and what the texts add.
fn see_also(command: &Command, above: Option<&Command>) -> Roff {
    let near = above.into_iter().chain(shown(command));
    let mut pages: Vec<String> = near
        .map(|command| format!("{}(1)", name(command)))
        .collect();
    let others = text(name(command)).map_or([].as_slice(), |text| text.see_also);
    pages.extend(others.iter().map(|page| (*page).to_owned()));
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]);
    let last = pages.len().saturating_sub(1);
    for (at, page) in pages.iter().enumerate() {
        let (name, section) = page.split_once('(').unwrap_or((page, ""));
        let end = if at < last { "," } else { "" };
        roff.text([bold(name), roman(format!("({section}{end}"))]);
    }
    roff
}

/// Sets what stands between backticks in bold.
fn inline(text: &str) -> Vec<Inline> {
    let parts = text.split('`').enumerate();
    let parts = parts.map(|(at, part)| match at % 2 {
        0 => roman(part),
        _ => bold(part),
    });
    parts.collect()
}

/// Does the same in a text that is set already.
fn with_bold_code(set: &[u8]) -> Vec<u8> {
    let set = String::from_utf8_lossy(set);
    let parts = set.split('`').enumerate();
    let parts = parts.map(|(at, part)| match at % 2 {
        0 => part.to_owned(),
        _ => format!("\\fB{part}\\fR"),
    });
    parts.collect::<String>().into_bytes()
}
