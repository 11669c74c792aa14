//! The licences and sources of the linked libraries are those of `deny.toml`.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use toml::Table;

/// Returns whether the licences that `is_allowed` accepts satisfy a licence expression (SPDX, or
/// with `/` for OR).
fn is_met(expression: &str, is_allowed: &dyn Fn(&str) -> bool) -> bool {
    let all = expression.replace('/', " OR ").replace(['(', ')'], " ");
    let any_of = |part: &str| part.split(" OR ").any(|one| is_allowed(one.trim()));
    all.split(" AND ").all(any_of)
}

/// Returns the strings of a list in `deny.toml`.
fn list(rules: &Table, section: &str, key: &str) -> Vec<String> {
    let list = rules[section][key].as_array().expect("a list");
    let strings = list.iter().map(|one| one.as_str().expect("a string"));
    strings.map(str::to_owned).collect()
}

/// Returns every package of the workspace and its dependencies, as `cargo metadata` describes it.
fn packages(root: &Path) -> Vec<Value> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version", "1", "--offline"]);
    let output = cargo.current_dir(root).output().expect("cargo runs");
    assert!(output.status.success(), "{output:?}");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    metadata["packages"].as_array().expect("a list").clone()
}

#[test]
fn licences_and_sources_are_allowed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let rules = std::fs::read_to_string(root.join("deny.toml")).expect("it is there");
    let rules: Table = rules.parse().expect("it is TOML");
    let licences = list(&rules, "licenses", "allow");
    let registries = list(&rules, "sources", "allow-registry");
    let is_allowed = |licence: &str| licences.iter().any(|one| one == licence);
    let packages = packages(&root);
    assert!(packages.len() > 100, "{} found only", packages.len());
    for package in &packages {
        let (name, licence) = (&package["name"], package["license"].as_str());
        assert!(
            licence.is_some_and(|licence| is_met(licence, &is_allowed)),
            "{name}: {licence:?}"
        );
        let source = package["source"].as_str();
        let is_known = |source: &str| {
            let registry = source.strip_prefix("registry+");
            registry.is_some_and(|url| registries.iter().any(|one| one == url))
        };
        assert!(source.is_none_or(is_known), "{name}: {source:?}");
    }
}

#[test]
fn expressions_are_met_as_spdx_says() {
    let is_allowed = |licence: &str| ["MIT", "ISC"].contains(&licence);
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-2.0", false),
        ("Apache-2.0 OR MIT", true),
        ("Apache-2.0/MIT", true),
        ("MIT AND ISC", true),
        ("MIT AND GPL-2.0", false),
        ("(MIT OR Apache-2.0) AND ISC", true),
        ("(GPL-2.0 OR Apache-2.0) AND ISC", false),
    ] {
        assert_eq!(is_met(expression, &is_allowed), expected, "{expression}");
    }
}
