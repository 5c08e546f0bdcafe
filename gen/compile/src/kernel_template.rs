//! [`KernelTemplate`]: a kernel whose text has not been rendered.

use crate::key::{Key, hash_parts};
use mkernel_spec::{Arch, Backend};
use mkernel_templates::TEMPLATES;
use serde::Serialize;
use std::borrow::Cow;

/// A kernel whose text has not been rendered: the name of a template, and the values of its variables. The text depends
/// on nothing else except the templates themselves, so a stored kernel is found without rendering it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelTemplate {
    /// The symbol of the kernel, which is also the name of its file without the extension.
    pub id: String,
    /// The architecture that the text is for.
    pub arch: Arch,
    /// The compiler of the text. All compilers get the same text.
    pub backend: Backend,
    /// The name of the template.
    pub(crate) template: String,
    /// The variables as a JSON object with sorted keys.
    pub(crate) variables: serde_json::Value,
    /// Templates whose texts are the variable `bodies` of this template.
    pub(crate) bodies: Vec<Self>,
}

impl KernelTemplate {
    pub(crate) fn new(
        id: &str,
        (arch, backend): (Arch, Backend),
        template: &str,
        variables: &impl Serialize,
    ) -> Self {
        let mut variables = serde_json::to_value(variables)
            .expect("a struct of texts and numbers can be serialised");
        // Another crate may enable serde_json's `preserve_order`. Keys must be equal in all programs.
        variables.sort_all_objects();
        Self {
            id: id.to_owned(),
            arch,
            backend,
            template: template.to_owned(),
            variables,
            bodies: Vec::new(),
        }
    }

    /// The template, with the templates `bodies` inside.
    pub(crate) fn with_bodies(self, bodies: Vec<Self>) -> Self {
        Self { bodies, ..self }
    }

    /// A digest of all inputs that determine the text.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        hash_parts(self.parts())
    }

    /// The texts that determine the rendered text, the templates included.
    fn parts(&self) -> Vec<Cow<'_, str>> {
        let of_bodies = self.bodies.iter().flat_map(Self::own_parts);
        let templates = TEMPLATES.iter().flat_map(|&(name, text)| [name, text]);
        let own = self.own_parts().into_iter().chain(of_bodies);
        own.chain(templates.map(Cow::from)).collect()
    }

    fn own_parts(&self) -> [Cow<'_, str>; 3] {
        [
            (&self.id).into(),
            (&self.template).into(),
            self.variables.to_string().into(),
        ]
    }
}

impl Key {
    /// The key of the kernel that `template` describes, and of the compiler of its backend. See [`Key::of`].
    #[must_use]
    pub fn of_template(template: &KernelTemplate) -> Self {
        Self::for_parts(template.arch, template.backend, &template.parts())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_the_text_depends_on_changes_the_digest_and_the_key() {
        let base = KernelTemplate::new(
            "k",
            (Arch::Sm90a, Backend::Nvrtc),
            "kernel.cu.tera",
            &[("n", 1)],
        );
        let changed = [
            KernelTemplate {
                id: "other".into(),
                ..base.clone()
            },
            KernelTemplate {
                template: "buckets.cu.tera".into(),
                ..base.clone()
            },
            KernelTemplate {
                variables: serde_json::json!({}),
                ..base.clone()
            },
            base.clone().with_bodies(vec![base.clone()]),
        ];
        for other in changed {
            assert_ne!(base.digest(), other.digest(), "{other:?}");
            assert_ne!(Key::of_template(&base), Key::of_template(&other));
        }
    }
}
