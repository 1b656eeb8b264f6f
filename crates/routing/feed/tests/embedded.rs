//! The feed with the embedded API server: both kinds of lists, resumed watches, relists and faults.

mod support;

use nearhop_core::{Kind, Object};
use nearhop_feed::{Lists, Options};
use serde_json::json;
use support::gate::Gate;
use support::{Cluster, Listener, client, names, pods};

fn paged(lists: Lists, page_size: u32) -> Options {
    let mut options = pods(lists);
    options.watch.page_size = page_size;
    options
}

#[tokio::test]
async fn streaming_and_paged_lists_give_the_same_objects() {
    let cluster = Cluster::start().await;
    let wanted = names("pod", 10);
    cluster.create_pods(wanted.clone()).await;
    for lists in [Lists::Streaming, Lists::Paged] {
        let mut seen = Listener::start(&cluster.client, paged(lists, 3));
        seen.until_pods(&wanted).await;
        assert_eq!(seen.lists, [None], "{lists:?}: the first list contains no names");
        assert_eq!(seen.problems, [""; 0]);
        seen.until_status(|status| status.watches == 1).await;
        assert_eq!(seen.feed.status()[0].lists, 1);
        assert!(seen.feed.status()[0].last_contact.is_some());
    }
}

#[tokio::test]
async fn an_empty_list_is_reported() {
    let cluster = Cluster::start().await;
    for lists in [Lists::Streaming, Lists::Paged] {
        let mut seen = Listener::start(&cluster.client, pods(lists));
        seen.until("a list", |seen| seen.lists == [None]).await;
        assert!(seen.pods.is_empty());
    }
}

#[tokio::test]
async fn all_kinds_are_watched_at_once() {
    let cluster = Cluster::start().await;
    let kinds = [Kind::Node, Kind::Namespace, Kind::Service, Kind::Pod, Kind::Slice];
    let watches = kinds.into_iter().map(|kind| (kind, Default::default())).collect();
    let (feed, mut events) = nearhop_feed::Feed::start(
        cluster.client.clone(),
        Options { watches, ..Options::default() },
    );
    let mut listed = Vec::new();
    let mut changed = 0;
    while listed.len() < kinds.len() {
        for event in events.recv().await.unwrap() {
            match event {
                nearhop_feed::Event::Listed { kind, .. } => listed.push(kind),
                nearhop_feed::Event::Changed(object) => {
                    assert_eq!(object.problems, []);
                    assert!(object.change.is_some() && !object.meta.uid.is_empty());
                    changed += 1;
                }
            }
        }
    }
    listed.sort();
    assert_eq!(listed, kinds);
    assert!(changed > 3, "a new server has namespaces and a Service: {changed}");
    assert_eq!(feed.status().len(), 5);
    drop(feed);
    while events.recv().await.is_some() {}
}

#[tokio::test]
async fn changes_follow_the_list() {
    let cluster = Cluster::start().await;
    cluster.create_pod("pod-0").await;
    for lists in [Lists::Streaming, Lists::Paged] {
        let mut seen = Listener::start(&cluster.client, pods(lists));
        seen.until_pods(&names("pod", 1)).await;
        cluster.create_pod("pod-1").await;
        seen.until_pods(&names("pod", 2)).await;
        cluster.delete_pod("pod-1").await;
        seen.until_pods(&names("pod", 1)).await;
        assert_eq!(seen.gone, ["pod-1"]);
        assert_eq!(seen.lists, [None]);
    }
}

#[tokio::test]
async fn dropped_watches_are_resumed_without_a_list_or_lost_events() {
    let cluster = Cluster::start().await;
    for lists in [Lists::Streaming, Lists::Paged] {
        let mut seen = Listener::start(&cluster.client, pods(lists));
        seen.until("a list", |seen| seen.lists.len() == 1).await;
        let prefix = format!("{lists:?}").to_lowercase();
        let before = seen.pods.clone();
        for name in names(&prefix, 12) {
            cluster.fault(json!({"dropWatches": true})).await;
            cluster.create_pod(&name).await;
        }
        seen.until_pods(&before.into_iter().chain(names(&prefix, 12)).collect()).await;
        let status = &seen.feed.status()[0];
        assert_eq!((status.lists, seen.lists.len()), (1, 1));
        assert!(status.watches > 1);
    }
}

/// The feed finds a missed deletion by the next list.
#[tokio::test]
async fn the_feed_relists_after_compaction() {
    for lists in [Lists::Streaming, Lists::Paged] {
        let cluster = Cluster::start().await;
        cluster.create_pods(names("pod", 5)).await;
        let gate = Gate::start(cluster.server.address()).await;
        let client = client(&cluster.server, &gate.url).await;
        let mut seen = Listener::start(&client, paged(lists, 2));
        seen.until_pods(&names("pod", 5)).await;
        gate.close();
        seen.until_status(|status| status.error.is_some()).await;
        cluster.delete_pod("pod-4").await;
        cluster.fault(json!({"compact": true})).await;
        gate.open();
        seen.until("a second list", |seen| seen.lists.len() == 2).await;
        assert_eq!(seen.lists[1], Some(names("pod", 4)), "{lists:?}");
        assert_eq!(seen.pods, names("pod", 4));
        assert_eq!(seen.gone, [""; 0], "{lists:?}: there is no event for the deletion");
        cluster.create_pod("pod-4").await;
        seen.until_pods(&names("pod", 5)).await;
    }
}

#[tokio::test]
async fn the_feed_reconnects_after_a_server_restart() {
    let cluster = Cluster::start().await;
    cluster.create_pod("pod-0").await;
    let mut seen = Listener::start(&cluster.client, pods(Lists::Streaming));
    seen.until_pods(&names("pod", 1)).await;
    cluster.fault(json!({"restart": true})).await;
    while cluster.client.apiserver_version().await.is_err() {}
    cluster.create_pod("pod-1").await;
    seen.until_pods(&names("pod", 2)).await;
}

#[tokio::test]
async fn the_feed_works_despite_frequent_server_errors() {
    for lists in [Lists::Streaming, Lists::Paged] {
        let cluster = Cluster::start().await;
        cluster.create_pods(names("pod", 10)).await;
        let failing = json!({"answer": {"code": 500, "share": 0.3}});
        cluster.fault(failing.clone()).await;
        let mut seen = Listener::start(&cluster.client, paged(lists, 3));
        seen.until_pods(&names("pod", 10)).await;
        for i in 0..6 {
            cluster.fault(json!({"dropWatches": true})).await;
            cluster.fault(json!({})).await;
            cluster.delete_pod(&format!("pod-{}", 9 - i)).await;
            cluster.fault(failing.clone()).await;
        }
        seen.until_pods(&names("pod", 4)).await;
    }
}

#[tokio::test]
async fn a_rejected_token_is_reported() {
    let cluster = Cluster::start().await;
    let mut config = kube::Config::new(cluster.server.url().parse().unwrap());
    config.accept_invalid_certs = true;
    config.auth_info.token = Some("unknown".to_owned().into());
    let client = kube::Client::try_from(config).unwrap();
    let seen = Listener::start(&client, pods(Lists::Streaming));
    seen.until_status(|status| status.error.is_some()).await;
    let error = seen.feed.status()[0].error.clone().unwrap();
    assert!(error.starts_with("401") && error.contains("credentials"), "{error}");
}

#[tokio::test]
async fn a_read_object_decodes_like_an_event() {
    let cluster = Cluster::start().await;
    cluster.create_pod("pod-0").await;
    let path = "/api/v1/namespaces/default/pods/pod-0";
    let reply = cluster.ask(http::Request::get(path), &json!({})).await.unwrap();
    let decoded = nearhop_api::decode_object(Kind::Pod, reply.as_bytes());
    let options = pods(Lists::Streaming);
    let (_feed, mut events) = nearhop_feed::Feed::start(cluster.client.clone(), options);
    assert_eq!(events.recv().await.unwrap()[0], nearhop_feed::Event::Changed(decoded));
}

fn locators() -> Options {
    let watches = [(Kind::Locator, Default::default())].into();
    Options { watches, ..pods(Lists::Streaming) }
}

/// Waits for the next list and returns its version and the number of names in it.
async fn next_list(
    events: &mut tokio::sync::mpsc::Receiver<Vec<nearhop_feed::Event>>,
) -> (String, Option<usize>) {
    loop {
        for event in events.recv().await.expect("the feed runs") {
            if let nearhop_feed::Event::Listed { version, objects, .. } = event {
                return (version.as_str().to_owned(), objects.map(|objects| objects.len()));
            }
        }
    }
}

#[tokio::test]
async fn a_kind_without_crd_is_an_empty_list_until_the_crd_exists() {
    let cluster = Cluster::start().await;
    let (feed, mut events) = nearhop_feed::Feed::start(cluster.client.clone(), locators());
    assert_eq!(
        next_list(&mut events).await,
        (String::new(), None),
        "the feed reports an empty list"
    );
    // The status is written after the event.
    let reported = |status: &nearhop_feed::Status| {
        status.error.as_ref().is_some_and(|e| e.contains("nearhop manifests | kubectl apply -f -"))
    };
    while !reported(&feed.status()[0]) {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }

    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let definition = nearhop_api::locator::definition();
    cluster.ask(http::Request::post(definitions), &definition).await.expect("the CRD is created");
    let (version, named) = next_list(&mut events).await;
    assert!(!version.is_empty() && named.is_none(), "{version:?} {named:?}");

    let locator = json!({
        "apiVersion": "nearhop.dev/v1alpha1", "kind": "PodLocator", "metadata": {"name": "p"},
    });
    let path = "/apis/nearhop.dev/v1alpha1/namespaces/default/podlocators";
    cluster.ask(http::Request::post(path), &locator).await.expect("the PodLocator is created");
    let batch = events.recv().await.expect("the feed runs");
    assert!(matches!(&batch[..], [nearhop_feed::Event::Changed(_)]), "{batch:?}");

    let path = format!("{definitions}/podlocators.nearhop.dev");
    cluster.ask(http::Request::delete(path), &json!({})).await.expect("the CRD is deleted");
    cluster.fault(json!({"dropWatches": true})).await;
    assert_eq!(
        next_list(&mut events).await,
        (String::new(), Some(0)),
        "the objects of the deleted CRD are removed"
    );
}

/// The API server denies access to ServiceCIDRs, because RBAC rules for an older version lack them.
#[tokio::test]
async fn forbidden_service_cidrs_are_skipped_until_access_is_granted() {
    let cluster = Cluster::start().await;
    let path = "/apis/networking.k8s.io/v1/servicecidrs";
    let object = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": "more"}, "spec": {"cidrs": ["10.112.0.0/16"]},
    });
    cluster.ask(http::Request::post(path), &object).await.expect("the ServiceCIDR is created");
    let answers = json!([{"code": 403, "share": 1.0}]);
    cluster.fault(json!({"answers": answers, "path": "servicecidrs", "watches": true})).await;
    let watches = [(Kind::ServiceCidr, Default::default())].into();
    let options = Options { watches, ..pods(Lists::Streaming) };
    let (feed, mut events) = nearhop_feed::Feed::start(cluster.client.clone(), options);
    let batch = events.recv().await.expect("the feed runs");
    assert!(matches!(&batch[..], [nearhop_feed::Event::Listed { objects: None, .. }]), "{batch:?}");
    let reported = |status: &nearhop_feed::Status| {
        status.error.as_ref().is_some_and(|error| error.contains("ServiceCIDRs are not used"))
    };
    while !reported(&feed.status()[0]) {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    cluster.fault(json!({})).await;
    let batch = events.recv().await.expect("the feed runs");
    let nearhop_feed::Event::Changed(changed) = &batch[0] else { panic!("{batch:?}") };
    let Some(nearhop_core::Change::Put(Object::ServiceCidr(found))) = &changed.change else {
        panic!("{changed:?}")
    };
    assert_eq!(found.name, "more");
    assert_eq!(found.cidrs.len(), 1);
}
