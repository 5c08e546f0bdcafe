//! The contribution of a rank to the step that compares requests and frees blocks.

/// The parts of a contribution.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Parts<'a> {
    pub request: &'a [u8],
    pub number: u32,
    /// The blocks that the rank has dropped.
    pub dropped: &'a [u8],
}

/// Returns the contribution: the length of the request, the number, the request, and the blocks that the rank has dropped.
pub(super) fn join(request: &[u8], number: u32, dropped: &[u8]) -> Vec<u8> {
    let length = (request.len() as u32).to_le_bytes();
    [&length[..], &number.to_le_bytes(), request, dropped].concat()
}

/// Splits a contribution. A malformed contribution counts as a request as a whole, and so differs from rank 0's request.
pub(super) fn split(contribution: &[u8]) -> Parts<'_> {
    let parts = || {
        let (length, rest) = contribution.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (request, dropped) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        Some(Parts {
            request,
            number: u32::from_le_bytes(*number),
            dropped,
        })
    };
    parts().unwrap_or(Parts {
        request: contribution,
        ..Parts::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contributions_are_split_as_they_were_joined() {
        let joined = join(b"request", 7, b"dropped");
        let parts = Parts {
            request: b"request",
            number: 7,
            dropped: b"dropped",
        };
        assert_eq!(split(&joined), parts);
        for malformed in [
            &b"abc"[..],
            &[1, 0, 0, 0, 0],
            &[255, 0, 0, 0, 0, 0, 0, 0, 1],
        ] {
            let all = Parts {
                request: malformed,
                ..Parts::default()
            };
            assert_eq!(split(malformed), all);
        }
    }
}
