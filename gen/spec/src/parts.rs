//! The parts of plans, which all kinds of operators share.

pub(crate) mod body;
pub(crate) mod copies;
pub(crate) mod id;
pub(crate) mod network;
pub(crate) mod region;
pub(crate) mod role;
pub mod schedule;
pub(crate) mod wait_graph;
pub(crate) mod waits;
pub(crate) mod workspace;

pub use body::{BodyPlan, Launch};
pub use copies::Copies;
pub use network::{MAX_PUT_BYTES, Network};
pub use region::{Element, Index, Region, RegionId};
pub use role::{Role, RoleKind};
pub use wait_graph::{Agent, AgentKind, faults};
pub use waits::{CallSteps, Signal, Step, Wait, Whose, Word};
pub use workspace::Workspace;
