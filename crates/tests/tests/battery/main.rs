//! Behaviour of the Kubernetes API: the same tests run against the embedded server and, if
//! `NEARHOP_TEST_KUBECONFIG` names one, a real cluster.

mod apply;
mod concurrency;
mod definitions;
mod deletion;
mod lists;
mod patches;
mod recovery;
mod tokens;
mod verbs;
mod watches;
