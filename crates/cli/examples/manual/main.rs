//! Writes Beeline's manual pages and shell completions, made from the command's own definition.
//!
//! `manual DIRECTORY` makes `DIRECTORY/man` with a page for each command, and
//! `DIRECTORY/completions` with a file for each of bash, zsh and fish.

mod page;
mod texts;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Command;
use clap_complete::{Shell, generate_to};

/// The shells, each with the name that its completion files have in packages.
const SHELLS: [(Shell, &str); 3] = [
    (Shell::Bash, "beeline"),
    (Shell::Zsh, "_beeline"),
    (Shell::Fish, "beeline.fish"),
];

fn main() -> ExitCode {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("manual: name the directory to write to: manual DIRECTORY");
        return ExitCode::from(2);
    };
    let written = pages(&directory.join("man"));
    match written.and_then(|()| completions(&directory.join("completions"))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("manual: writing to {}: {error}", directory.display());
            ExitCode::FAILURE
        }
    }
}

/// Writes a page for each command into a directory.
fn pages(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let mut all = beeline_cli::definition().disable_help_subcommand(true);
    all.build();
    let mut commands = vec![(&all, None)];
    while let Some((command, above)) = commands.pop() {
        let mut page = Vec::new();
        page::write(command, above, &mut page)?;
        fs::write(directory.join(format!("{}.1", page::name(command))), page)?;
        commands.extend(shown(command).map(|below| (below, Some(command))));
    }
    Ok(())
}

/// Returns the subcommands that users know of.
fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
}

/// Writes a file of completions for each shell into a directory.
fn completions(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for (shell, name) in SHELLS {
        let written = generate_to(shell, &mut beeline_cli::definition(), "beeline", directory)?;
        fs::rename(written, directory.join(name))?;
    }
    Ok(())
}
