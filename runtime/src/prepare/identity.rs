//! The identity of an operator, which must be equal on all ranks that prepare the operator, and the description of differences.

use crate::bootstrap::Description;
use crate::fabric::transport::Transport;
use mkernel_spec::KernelPlan;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The byte that ends the readable description in an identity.
const END: u8 = 0;

/// The description of identities in errors.
pub(super) const DESCRIPTION: Description = Description {
    of: kernel,
    difference,
};

/// Returns a digest of everything that must be equal on all ranks, followed by a readable description and by the configuration
/// with its sizes.
pub(super) fn identity(
    plan: &KernelPlan,
    code: [u8; 32],
    transport: Option<&Transport>,
) -> Vec<u8> {
    let mut hash = Sha256::new();
    // The plan contains information that the code of the kernel does not, such as the copies that the host makes.
    hash.update(serde_json::to_vec(plan).unwrap_or_default());
    hash.update([0]);
    hash.update(code);
    let mut identity = hash.finalize().to_vec();
    identity.extend_from_slice(format!("{} on {}", plan.id, plan.device.name).as_bytes());
    if plan.tuned.is_some() {
        identity.extend_from_slice(b" by measured choices (MKERNEL_TUNED)");
    }
    if let Some(transport) = transport {
        identity.extend_from_slice(format!(", transport {}", transport.identity()).as_bytes());
    }
    identity.push(END);
    identity.extend(serde_json::to_vec(plan.spec.config()).unwrap_or_default());
    identity
}

/// Splits an identity into its digest, its description and its configuration.
fn parts(identity: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (digest, rest) = identity.split_at_checked(32)?;
    let end = rest.iter().position(|byte| *byte == END)?;
    Some((digest, &rest[..end], &rest[end + 1..]))
}

/// Describes the kernel of an identity.
fn kernel(identity: &[u8]) -> String {
    match parts(identity) {
        Some((digest, text, _)) => {
            let digest: String = digest[..4]
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            format!("{}, digest {digest}", String::from_utf8_lossy(text))
        }
        None => "something malformed".to_owned(),
    }
}

/// Returns the first option or size in which two identities differ, as in `m: 33 instead of 32`.
fn difference(reference: &[u8], theirs: &[u8]) -> Option<String> {
    let config = |identity| serde_json::from_slice::<Value>(parts(identity)?.2).ok();
    let (reference, theirs) = (config(reference)?, config(theirs)?);
    let (path, reference, theirs) = first_difference(&reference, &theirs)?;
    Some(format!(
        "{path}: {} instead of {}",
        shown(theirs),
        shown(reference)
    ))
}

/// Returns the first option that differs between two configurations, and its two values. The value of an absent option is null.
fn first_difference<'a>(
    reference: &'a Value,
    theirs: &'a Value,
) -> Option<(String, &'a Value, &'a Value)> {
    let (reference, theirs) = (reference.as_object()?, theirs.as_object()?);
    let names = reference.keys().chain(theirs.keys());
    for name in names {
        let value = |of: &'a serde_json::Map<String, Value>| of.get(name).unwrap_or(&Value::Null);
        let (one, other) = (value(reference), value(theirs));
        if one != other {
            let inner = first_difference(one, other);
            return Some(inner.unwrap_or_else(|| (name.clone(), one, other)));
        }
    }
    None
}

/// Formats a value as it is written in a declaration.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::ensure_equal;
    use crate::error::Error;

    fn identity(digest: u8, text: &str, config: &str) -> Vec<u8> {
        [&[digest; 32], text.as_bytes(), &[END], config.as_bytes()].concat()
    }

    #[test]
    fn ranks_with_another_kernel_are_named() {
        let same = identity(1, "ag_gemm on H200", r#"{"k":64,"m":32}"#);
        let other = identity(2, "other", r#"{"k":64,"m":33}"#);
        let third = identity(3, "third", "{}");
        let error = ensure_equal(&[&same[..], &other, &same, &third], &DESCRIPTION);
        let text = error.expect_err("two differ").to_string();
        for part in [
            "ranks 1, 3 are out of step with rank 0 (m: 33 instead of 32; other, digest 02020202",
            "ag_gemm on H200, digest 01010101",
        ] {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
    }

    #[test]
    fn the_first_difference_is_said_in_words() {
        let different = |one: &str, other: &str| {
            difference(&identity(1, "", one), &identity(1, "", other)).unwrap_or_default()
        };
        assert_eq!(
            different(r#"{"m":"..=32"}"#, r#"{"m":"..=33"}"#),
            "m: ..=33 instead of ..=32"
        );
        assert_eq!(
            different(
                r#"{"epilogue":{"bias":true}}"#,
                r#"{"epilogue":{"bias":false}}"#
            ),
            "bias: false instead of true"
        );
        assert_eq!(
            different("{}", r#"{"tile_m":128}"#),
            "tile_m: 128 instead of nothing"
        );
        assert_eq!(different(r#"{"m":1}"#, r#"{"m":1}"#), "");
    }

    #[test]
    fn a_malformed_identity_is_a_mismatch() {
        let error = ensure_equal(&[&identity(1, "a", "{}")[..], b"short"], &DESCRIPTION);
        let error = error.expect_err("malformed");
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    }
}
