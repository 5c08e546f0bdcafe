//! Fills in the embedded templates.

use crate::error::GenError;
use crate::source::CudaSource;
use crate::templates::templates;
use mkernel_spec::Target;
use serde::Serialize;
use std::sync::LazyLock;
use tera::{Context, Tera};

/// The embedded templates, parsed once.
static TERA: LazyLock<Result<Tera, tera::Error>> = LazyLock::new(|| {
    let mut tera = Tera::default();
    tera.autoescape_on(Vec::<&str>::new());
    tera.add_raw_templates(templates())?;
    Ok(tera)
});

/// Fills in `template` with the fields of `context`. The result is the source of the kernel `id`.
pub(super) fn print(
    id: &str,
    target: Target,
    template: &str,
    context: &impl Serialize,
) -> Result<CudaSource, GenError> {
    let failed = |source| GenError::Render {
        id: id.to_owned(),
        source,
    };
    let tera = TERA
        .as_ref()
        .map_err(|e| failed(tera::Error::message(e.to_string())))?;
    let context = Context::from_serialize(context).map_err(failed)?;
    let text = tera.render(template, &context).map_err(failed)?;
    Ok(CudaSource {
        id: id.to_owned(),
        target,
        text: tidy(&text),
    })
}

/// Removes trailing blanks and repeated blank lines, and ends the text with one newline.
fn tidy(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut blank = true;
    for line in text.lines().map(str::trim_end) {
        if line.is_empty() && blank {
            continue;
        }
        blank = line.is_empty();
        out.push_str(line);
        out.push('\n');
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}
