//! `/debug/services`: what the proxy does with Services, and why. To loopback, or for a token.

use http::StatusCode;
use nearhop_core::{Cidr, ServiceKey};
use nearhop_netfilter::config::Masquerade;
use nearhop_netfilter::conntrack::Rehome;
use nearhop_proxy::options::{DetectLocal, NodePortChoice, Options};
use nearhop_proxy::run::Question;
use nearhop_runtime::server::{Answer, Ask, Route};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

const PATH: &str = "/debug/services";

/// The route, with everything below it: `/debug/services/NAMESPACE/NAME`.
pub(super) fn route(ask: mpsc::Sender<Question>, token: Option<String>) -> Route {
    Route::at_async(PATH, move |request| {
        let (ask, token) = (ask.clone(), token.clone());
        async move {
            if !may_ask(&request, token.as_deref()) {
                let why = "ask from loopback, or send the token of --admin-token-file\n";
                return Answer::text(StatusCode::FORBIDDEN, why);
            }
            answer(&request, ask).await
        }
    })
    .and_below()
}

fn may_ask(request: &Ask, token: Option<&str>) -> bool {
    let loopback = request.peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback());
    loopback || (token.is_some() && request.bearer.as_deref() == token)
}

async fn answer(request: &Ask, ask: mpsc::Sender<Question>) -> Answer {
    let rest = request.path.strip_prefix(PATH).unwrap_or_default().trim_matches('/');
    let service = match (rest, rest.split_once('/')) {
        ("", _) => None,
        (_, Some((namespace, name))) if !name.contains('/') => {
            Some(ServiceKey::new(namespace, name))
        }
        _ => {
            let why = format!("ask for {PATH} or {PATH}/NAMESPACE/NAME\n");
            return Answer::text(StatusCode::NOT_FOUND, why);
        }
    };
    let (answer, answered) = oneshot::channel();
    let asked = ask.send(Question { service: service.clone(), answer }).await.is_ok();
    match answered.await {
        Ok(Some(value)) if asked => Answer::json(StatusCode::OK, format!("{value:#}\n")),
        Ok(_) => {
            let name = service.map_or_else(String::new, |service| service.to_string());
            let why = format!(
                "this proxy serves no Service {name}: look at its name, its label \
                               service.kubernetes.io/service-proxy-name, and whether it is headless\n"
            );
            Answer::text(StatusCode::NOT_FOUND, why)
        }
        Err(_) => Answer::text(StatusCode::SERVICE_UNAVAILABLE, "the proxy is shutting down\n"),
    }
}

/// What `/configz` shows: the choices that rules depend on, under the names of kube-proxy's
/// configuration where it has them.
pub(super) fn configz(options: &Options) -> Value {
    let list = |ranges: &[Cidr]| ranges.iter().map(ToString::to_string).collect::<Vec<_>>();
    let (mode, cluster, bridge, prefix) = match &options.local {
        DetectLocal::ClusterCidr(ranges) => {
            ("ClusterCIDR", Some(list(ranges).join(",")), None, None)
        }
        DetectLocal::NodeCidr => ("NodeCIDR", None, None, None),
        DetectLocal::Bridge(name) => ("BridgeInterface", None, Some(name.as_str()), None),
        DetectLocal::InterfacePrefix(prefix) => {
            ("InterfaceNamePrefix", None, None, Some(prefix.as_str()))
        }
    };
    json!({
        "node": options.node.as_str(),
        "families": options.families.iter().map(|family| family.as_str()).collect::<Vec<_>>(),
        "serviceProxyName": options.service_proxy_name,
        "table": options.table.as_str(),
        "masqueradeMark": format!("{:#010x}", options.masquerade_mark),
        "masqueradeAll": options.masquerade == Masquerade::All,
        "detectLocalMode": mode,
        "clusterCIDR": cluster,
        "bridgeInterface": bridge,
        "interfaceNamePrefix": prefix,
        "nodePortAddresses": match &options.nodeport_addresses {
            NodePortChoice::Primary => vec!["primary".to_owned()],
            NodePortChoice::Within(ranges) => list(ranges),
        },
        "serviceCIDRs": list(&options.service_cidrs),
        "minSyncPeriodSeconds": options.min_sync_period.map(|period| period.as_secs_f64()),
        "syncPeriodSeconds": options.sync_period.as_secs_f64(),
        "verifyPeriodSeconds": options.verify_period.as_secs_f64(),
        "udpRehome": match options.udp_rehome {
            Rehome::NewOnly => "new-only",
            Rehome::Immediate => "immediate",
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configz_has_values_as_the_flags_take_them() {
        let range = |text| Cidr::parse(text).unwrap();
        let ranges = vec![range("10.244.0.0/16"), range("fd00:10:244::/48")];
        let options = Options {
            local: DetectLocal::ClusterCidr(ranges),
            nodeport_addresses: NodePortChoice::Within(vec![range("192.168.0.0/24")]),
            ..Options::new("n1")
        };
        let config = configz(&options);
        assert_eq!(config["detectLocalMode"], "ClusterCIDR");
        assert_eq!(config["clusterCIDR"], "10.244.0.0/16,fd00:10:244::/48");
        assert_eq!(config["nodePortAddresses"], json!(["192.168.0.0/24"]));
        assert_eq!(
            (&config["masqueradeAll"], &config["udpRehome"]),
            (&json!(false), &json!("new-only"))
        );
        let bridge = Options { local: DetectLocal::Bridge("cni0".into()), ..options };
        let config = configz(&bridge);
        assert_eq!(
            (&config["bridgeInterface"], &config["clusterCIDR"]),
            (&json!("cni0"), &Value::Null)
        );
    }
}
