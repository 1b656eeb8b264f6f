//! What the API must do, judged by its effects: the same tests against the embedded server and, where
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
