//! [`CudaSource`]: the source of a kernel.

use crate::templates::{header_of, included, is_inlined};
use mkernel_spec::{Arch, Backend};
use std::collections::BTreeSet;

/// The rendered source of a kernel. It includes only the [`headers`](crate::headers) of its backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaSource {
    /// The symbol of the kernel, which is also the name of its file without the extension.
    pub id: String,
    /// The architecture that the text is for.
    pub arch: Arch,
    /// The compiler of the text. All compilers get the same text.
    pub backend: Backend,
    /// The source text.
    pub text: String,
}

impl CudaSource {
    /// The text with inlined headers, and with `#line` directives at the start and the end of each header. The
    /// simulator can then quote headers, and tests can plant mistakes in headers. Headers that the simulator replaces,
    /// and the headers that they include, are not inlined.
    ///
    /// ```
    /// # use mkernel_compile::CudaSource;
    /// # use mkernel_spec::{Arch, Backend};
    /// let text = "#include <mk/memory.cuh>\n#include <mk/pipeline.cuh>\n".to_owned();
    /// let (arch, backend) = (Arch::Sm90a, Backend::HostCxx);
    /// let source = CudaSource { id: "k".into(), arch, backend, text };
    /// let whole = source.with_headers();
    /// assert!(whole.starts_with("#include <mk/memory.cuh>\n#line 1 \"mk/pipeline.cuh\"\n"));
    /// assert!(whole.contains("struct Pipeline"));
    /// ```
    #[must_use]
    pub fn with_headers(&self) -> String {
        let mut text = String::with_capacity(self.text.len());
        let mut seen = BTreeSet::new();
        inline(&self.text, &file_name(&self.id), &mut seen, &mut text);
        text
    }
}

fn inline(text: &str, file: &str, seen: &mut BTreeSet<&'static str>, out: &mut String) {
    for (number, line) in (1..).zip(text.lines()) {
        let header = included(line).and_then(header_of);
        match header {
            Some((name, body)) if is_inlined(name) => {
                if seen.insert(name) {
                    out.push_str(&format!("#line 1 \"{name}\"\n"));
                    inline(body, name, seen, out);
                }
                out.push_str(&format!("#line {} \"{file}\"\n", number + 1));
            }
            _ if line == "#pragma once" => out.push('\n'),
            _ => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
}

/// The name of the file that contains the kernel `id`, as compilers see it and print it in messages.
pub(crate) fn file_name(id: &str) -> String {
    format!("{id}.cu")
}
