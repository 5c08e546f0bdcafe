//! [`with_causes`]: an error and its causes, as one text.
//!
//! The texts of this crate's errors have their causes. Such a cause is not returned by `Error::source` as well, since a
//! report of the whole chain would then show it twice. thiserror takes a field named `source` for that, unless the name
//! is raw (`r#source`).

/// Joins the texts of `error` and of its causes. The result can be sent to other ranks.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::error::{Error, GenError, Peer, ProtocolFault, RendezvousError, SimulatorError};
    use std::error::Error as _;
    use std::io;
    use std::sync::Arc;
    use std::time::Duration;

    /// A test error for each variant that has a cause.
    fn errors(cause: &'static str) -> Vec<Error> {
        let io = || Arc::new(io::Error::other(cause));
        let unavailable = GenError::CxxCall {
            compiler: "g++".into(),
            id: "k".into(),
            source: io::Error::other(cause),
        };
        let (call, source) = ("open", io());
        let address = "node1:29500".to_owned();
        vec![
            Error::Os { call, source },
            Error::OpenFiles {
                call,
                limit: Some(64),
                source: io(),
            },
            Error::Build {
                id: "k".into(),
                source: Arc::new(unavailable),
            },
            Error::Protocol {
                peer: Peer::Rank(1),
                step: "planning",
                source: ProtocolFault::Refused {
                    reason: cause.into(),
                },
            },
            Error::Simulator(SimulatorError::Driver(io())),
            Error::Rendezvous(RendezvousError::LookUp {
                host: "node1".into(),
                source: io(),
            }),
            Error::Rendezvous(RendezvousError::Listen {
                address: address.clone(),
                source: io(),
            }),
            Error::Rendezvous(RendezvousError::Connect {
                address,
                waited: Duration::from_secs(1),
                source: io(),
            }),
        ]
    }

    #[test]
    fn texts_have_their_causes_once() {
        for error in errors("the cause") {
            let text = error.to_string();
            assert_eq!(text.matches("the cause").count(), 1, "{text}");
            assert_eq!(super::with_causes(&error), text);
            assert_eq!(format!("{error:?}"), text, "main prints this");
            assert!(error.source().is_none(), "{text}");
        }
    }
}
