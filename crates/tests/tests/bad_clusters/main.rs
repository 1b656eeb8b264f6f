//! Clusters with missing, invalid or very many objects: the controller continues, the slices equal the plan of the core,
//! and conditions give the reason if a request cannot be fulfilled.

mod bad_places;
mod bad_pods;
mod bad_services;
mod big;
mod refused;

use anyhow::{Context, Result, ensure};
use nearhop_core::Family;
use nearhop_core::model::{AddressType, Slice};
use nearhop_tests::scene::{RunningController, Scene, TIMEOUT, replace};
use serde_json::Value;

/// A cluster with bad objects, and a controller that must continue to run.
struct Bad {
    scene: Scene,
    controller: RunningController,
}

impl Bad {
    async fn new() -> Result<Self> {
        Self::on(Scene::new().await?).await
    }

    async fn on(scene: Scene) -> Result<Self> {
        let controller = scene.start(replace()).await?;
        Ok(Self { scene, controller })
    }

    /// Waits until the slices are correct, and checks that the controller runs.
    async fn settled(&self) -> Result<()> {
        self.scene.settled().await?;
        ensure!(self.controller.is_running(), "the controller ended");
        Ok(())
    }

    /// Waits for a condition whose type ends in `suffix` (`Programmed`, `Accepted`), with this status and reason; returns
    /// its message.
    async fn condition(
        &self,
        service: &str,
        suffix: &str,
        status: &str,
        reason: &str,
    ) -> Result<String> {
        let fits = |condition: &Value| {
            condition["type"].as_str().is_some_and(|kind| kind.ends_with(suffix))
                && condition["status"] == status
                && condition["reason"] == reason
        };
        let what = format!("{service}: {suffix} {status} because of {reason}");
        let look = || async {
            let conditions = self.scene.conditions(service).await?;
            let found = conditions.iter().any(&fits);
            Ok(if found { Ok(()) } else { Err(Value::from(conditions).to_string()) })
        };
        self.scene.until(&what, TIMEOUT, look).await?;
        let conditions = self.scene.conditions(service).await?;
        let found =
            conditions.iter().find(|condition| fits(condition)).context("the condition is gone")?;
        Ok(found["message"].as_str().unwrap_or_default().to_owned())
    }

    /// Waits for an event with this reason; returns its message.
    async fn event(&self, service: &str, reason: &str) -> Result<String> {
        let with_reason = || async {
            let events = self.scene.events(service).await?;
            anyhow::Ok(events.into_iter().find(|event| event["reason"] == reason))
        };
        let look = || async { Ok(with_reason().await?.map(drop).ok_or("none".to_owned())) };
        self.scene.until(&format!("{service}: an event {reason}"), TIMEOUT, look).await?;
        let event = with_reason().await?.context("the event is gone")?;
        Ok(event["message"].as_str().unwrap_or_default().to_owned())
    }

    /// Addresses in a Service's slices of a family, sorted, including endpoints that are not ready.
    async fn addresses(&self, service: &str, family: Family) -> Result<Vec<String>> {
        let slices = self.scene.slices(service).await?;
        let of_family = slices.iter().filter(|slice| slice.address_type == AddressType::Ip(family));
        let mut addresses: Vec<String> = of_family.flat_map(addresses_of).collect();
        addresses.sort();
        Ok(addresses)
    }
}

fn addresses_of(slice: &Slice) -> Vec<String> {
    let addresses = slice.endpoints.iter().filter_map(|endpoint| endpoint.addresses.first());
    addresses.map(|ip| ip.to_string()).collect()
}
