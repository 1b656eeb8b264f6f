//! How one node uses the endpoints of a Service, and why.
//!
//! The data plane reads only EndpointSlices and traffic policies (KEP-4444): [`collect`] reads
//! them, [`choose`] decides, [`reason`] explains the choice, [`exclude`] explains why an endpoint
//! is not used, [`table`] contains all decisions of a node, [`reach`] finds the nodes that hard
//! topology keys cut off, and `without_local` counts the Service ports with policy Local that have
//! no endpoint on the node.

pub mod choose;
pub mod collect;
pub mod exclude;
pub mod reach;
pub mod reason;
pub mod table;
pub(crate) mod without_local;

pub use choose::{
    Backend, HintGates, Place, PortPolicy, RouteDecision, RouteInput, RouteSet, Verdict,
    choose_route,
};
pub use collect::{Agreed, PortEndpoints, Position, RouteEndpoint, agreed_routing, port_endpoints};
pub use exclude::{Exclusion, explain_excluded};
pub use reach::Reach;
pub use reason::{Candidates, Miss, Reason, Tier, Tried};
pub use table::{Route, RouteKey, RouteTable};
pub use without_local::{WithoutLocal, count_without_local};
