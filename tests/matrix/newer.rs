//! Tools of a newer Debian, unpacked beside the system: they run with the loader and the libraries
//! that they were built for.

use std::path::PathBuf;

/// Returns the directory that `scripts/matrix.sh` unpacks them into.
pub fn root() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/root".into()));
    match std::env::var_os("BEELINE_MATRIX_NEWER") {
        Some(root) => PathBuf::from(root),
        None => cache
            .unwrap_or_else(|| home().join(".cache"))
            .join("beeline-matrix/sid"),
    }
}

/// Returns the version of a package there.
///
/// # Errors
/// It is not there.
pub fn version(package: &str) -> Result<String, String> {
    let file = root().join("var/lib/dpkg/status");
    let status = std::fs::read_to_string(&file)
        .map_err(|_| format!("no {} (scripts/matrix.sh makes it)", file.display()))?;
    let named = format!("Package: {package}");
    let mut paragraphs = status.split("\n\n");
    paragraphs
        .find(|text| text.lines().any(|line| line == named))
        .and_then(|text| text.lines().find_map(|line| line.strip_prefix("Version: ")))
        .map(|version| format!("{package} {version}, Debian sid"))
        .ok_or_else(|| format!("no {package} in {}", file.display()))
}

/// Returns the programs there, by the end of their names.
pub fn programs(end: &str) -> Vec<String> {
    let files = std::fs::read_dir(root().join("usr/sbin"))
        .into_iter()
        .flatten()
        .flatten();
    let names = files.filter_map(|file| file.file_name().into_string().ok());
    let mut names: Vec<_> = names.filter(|name| name.ends_with(end)).collect();
    names.sort();
    names
}

/// Returns the words by which a program there is started.
pub fn place(tool: &str) -> Vec<PathBuf> {
    let root = root();
    let libraries = root.join("usr/lib/x86_64-linux-gnu");
    let mut words = vec![
        libraries.join("ld-linux-x86-64.so.2"),
        PathBuf::from("--library-path"),
        libraries,
    ];
    let program = |name: &str| {
        root.join(if name == "bpftrace" {
            "usr/bin"
        } else {
            "usr/sbin"
        })
        .join(name)
    };
    if tool.ends_with(".bt") {
        words.push(program("bpftrace"));
    }
    words.push(program(tool));
    words
}
