//! The `beeline` command. All of it is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    beeline_cli::main()
}
