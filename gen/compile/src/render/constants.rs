//! Numbers that a rendered kernel has as `constexpr`.

use serde::Serialize;

/// `constexpr kind name = value;  // note`, perhaps below a heading.
#[derive(Serialize)]
pub(super) struct Constant {
    heading: Option<&'static str>,
    kind: &'static str,
    name: &'static str,
    value: String,
    note: &'static str,
}

/// Constants in the order in which they are printed.
#[derive(Default)]
pub(super) struct Constants {
    list: Vec<Constant>,
    heading: Option<&'static str>,
}

impl Constants {
    pub fn section(&mut self, heading: &'static str) {
        self.heading = Some(heading);
    }

    pub fn u32(&mut self, name: &'static str, value: impl Into<u64>, note: &'static str) {
        self.push("u32", name, value.into().to_string(), note);
    }

    pub fn u64(&mut self, name: &'static str, value: u64, note: &'static str) {
        self.push("u64", name, value.to_string(), note);
    }

    pub fn push(
        &mut self,
        kind: &'static str,
        name: &'static str,
        value: String,
        note: &'static str,
    ) {
        self.list.push(Constant {
            heading: self.heading.take(),
            kind,
            name,
            value,
            note,
        });
    }

    pub fn into_list(self) -> Vec<Constant> {
        self.list
    }
}
