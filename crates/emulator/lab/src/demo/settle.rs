//! Waits until every proxy has applied the predicted choice, so that the measurement shows the policy
//! and not the transition.

use nearhop_core::ServiceKey;
use nearhop_core::world::Settings;

use super::predict::{Prediction, predict};
use crate::LabError;
use crate::cluster::{Cluster, wait_for};
use crate::lab::Lab;
use crate::ready::proxies_behind;

pub(super) async fn settle(
    lab: &Lab,
    cluster: &Cluster,
    namespace: &str,
    service: &str,
) -> Result<Prediction, LabError> {
    let key = ServiceKey::new(namespace, service);
    wait_for("proxies", || async {
        let prediction = predict(cluster, Settings::default(), namespace, service).await?;
        let behind = proxies_behind(&lab.status(), &prediction, &key).await;
        Ok(if behind.is_empty() { Ok(prediction) } else { Err(behind) })
    })
    .await
}
