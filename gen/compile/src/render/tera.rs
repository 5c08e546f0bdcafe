//! [`KernelTemplate::render`]: fills in the embedded templates.

use crate::error::GenError;
use crate::kernel_template::KernelTemplate;
use crate::source::CudaSource;
use mkernel_templates::TEMPLATES;
use std::sync::LazyLock;
use tera::{Context, Tera};

/// The embedded templates, parsed once.
static TERA: LazyLock<Result<Tera, tera::Error>> = LazyLock::new(|| {
    let mut tera = Tera::default();
    tera.autoescape_on(Vec::<&str>::new());
    tera.add_raw_templates(TEMPLATES.to_vec())?;
    Ok(tera)
});

impl KernelTemplate {
    /// Renders the text of the kernel.
    ///
    /// # Errors
    /// [`GenError::Render`] if a template is wrong, which is a defect of this crate.
    pub fn render(&self) -> Result<CudaSource, GenError> {
        let failed = |source| GenError::Render {
            id: self.id.clone(),
            source,
        };
        let tera = TERA
            .as_ref()
            .map_err(|e| failed(tera::Error::message(e.to_string())))?;
        let mut context = Context::from_serialize(&self.variables).map_err(failed)?;
        let bodies = self.bodies.iter().map(Self::render);
        let bodies = bodies.map(|body| body.map(|source| source.text));
        context.insert("bodies", &bodies.collect::<Result<Vec<_>, _>>()?);
        let text = tera.render(&self.template, &context).map_err(failed)?;
        Ok(CudaSource {
            id: self.id.clone(),
            arch: self.arch,
            backend: self.backend,
            text: tidy(&text),
        })
    }
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
