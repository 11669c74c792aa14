//! The finding of a check.

use serde_json::{Value, json};

/// The outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It works.
    Ok,
    /// Something is missing that `beeline run` does without, or with less.
    Warn,
    /// Something is missing that `beeline run` needs.
    No,
}

impl Status {
    const ALL: [Self; 3] = [Self::Ok, Self::Warn, Self::No];

    /// Returns its word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::No => "no",
        }
    }
}

/// The outcome with its reason, and what to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub status: Status,
    pub detail: String,
    pub fix: Option<String>,
}

impl Finding {
    pub fn ok(detail: impl Into<String>) -> Self {
        Self::new(Status::Ok, detail)
    }

    pub fn warn(detail: impl Into<String>) -> Self {
        Self::new(Status::Warn, detail)
    }

    pub fn no(detail: impl Into<String>) -> Self {
        Self::new(Status::No, detail)
    }

    fn new(status: Status, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
            fix: None,
        }
    }

    /// Adds what to change.
    pub fn fix(self, fix: impl Into<String>) -> Self {
        Self {
            fix: Some(fix.into()),
            ..self
        }
    }

    /// Returns it as text that [`Self::parse`] reads.
    pub fn to_text(&self) -> String {
        let (detail, fix) = (&self.detail, &self.fix);
        json!([self.status.word(), detail, fix]).to_string()
    }

    /// Reads what [`Self::to_text`] has written; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let [word, detail, fix] = value.as_array()?.as_slice() else {
            return None;
        };
        let status = |status: &Status| Some(status.word()) == word.as_str();
        Some(Self {
            status: Status::ALL.into_iter().find(status)?,
            detail: detail.as_str()?.to_owned(),
            fix: fix.as_str().map(str::to_owned),
        })
    }
}

/// A finding under the name of its check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub name: &'static str,
    pub finding: Finding,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_survives_as_text() {
        for finding in [
            Finding::ok("yes\n\"quoted\""),
            Finding::warn("").fix("nothing"),
            Finding::no("\u{e9}").fix(""),
        ] {
            assert_eq!(Finding::parse(&finding.to_text()), Some(finding));
        }
        for text in ["", "[]", "[\"ok\"]", "[\"good\",\"\",null]", "{}"] {
            assert_eq!(Finding::parse(text), None, "{text}");
        }
    }
}
