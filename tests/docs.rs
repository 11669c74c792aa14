//! Checks that code named in the documents exists.

use std::fs;
use std::path::{Path, PathBuf};

/// The documents that name code.
fn documents(root: &Path) -> Vec<PathBuf> {
    let of = |directory: &str| {
        let files = fs::read_dir(root.join(directory)).expect("it is there");
        files.flatten().map(|file| file.path()).collect::<Vec<_>>()
    };
    let all = ["", "docs", "docs/design"].into_iter().flat_map(of);
    all.filter(|path| path.extension().is_some_and(|end| end == "md"))
        .collect()
}

/// Returns the names between backticks that read `crate::...`, with the crate's directory.
fn paths<'a>(root: &'a Path, text: &'a str) -> impl Iterator<Item = (&'a str, PathBuf)> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter_map(|path| {
        let is_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | ':');
        let (name, _) = path
            .split_once("::")
            .filter(|_| path.chars().all(is_path))?;
        let directory = match name.strip_prefix("vm-") {
            Some(part) => root.join("crates/vm").join(part),
            None => root.join("crates").join(name),
        };
        directory.is_dir().then_some((path, directory))
    })
}

/// Follows modules as far as there are files; the rest must be an identifier in the last of them.
fn is_there(path: &str, directory: &Path) -> bool {
    let (mut place, mut file) = (directory.join("src"), directory.join("src/lib.rs"));
    for name in path.split("::").skip(1) {
        let (flat, nested) = (place.join(name).with_extension("rs"), place.join(name));
        let module = [flat, nested.join("mod.rs")]
            .into_iter()
            .find(|path| path.is_file());
        match module {
            Some(module) => (place, file) = (nested, module),
            None => {
                let code = fs::read_to_string(&file).unwrap_or_default();
                let mut words = code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                return words.any(|word| word == name);
            }
        }
    }
    true
}

#[test]
fn modules_that_documents_name_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut named, mut missing) = (0, Vec::new());
    for document in documents(&root) {
        let text = fs::read_to_string(&document).expect("it is text");
        for (path, directory) in paths(&root, &text) {
            named += 1;
            if !is_there(path, &directory) {
                missing.push(format!("{}: {path}", document.display()));
            }
        }
    }
    assert!(named > 100, "{named} found only");
    assert!(missing.is_empty(), "{missing:#?}");
}
