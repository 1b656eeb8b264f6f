//! No function panics for any object: wrong types, missing fields, extreme numbers.

use std::net::IpAddr;

use nearhop_core::ip::parse_ip_sloppy;
use nearhop_kinds::allocate::Allocator;
use nearhop_kinds::config::{ClusterConfig, ServiceCidrs};
use nearhop_kinds::{endpoints, endpointslice, ip, names, service};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const WORDS: [&str; 40] = [
    "metadata",
    "name",
    "annotations",
    "labels",
    "generation",
    "spec",
    "status",
    "type",
    "ports",
    "port",
    "nodePort",
    "targetPort",
    "protocol",
    "clusterIP",
    "clusterIPs",
    "ipFamilies",
    "ipFamilyPolicy",
    "externalIPs",
    "selector",
    "sessionAffinity",
    "sessionAffinityConfig",
    "clientIP",
    "timeoutSeconds",
    "healthCheckNodePort",
    "loadBalancer",
    "ingress",
    "ip",
    "addressType",
    "endpoints",
    "addresses",
    "hints",
    "forZones",
    "forNodes",
    "subsets",
    "topologyKeys",
    "trafficDistribution",
    "externalTrafficPolicy",
    "deprecatedTopology",
    "loadBalancerSourceRanges",
    "nodeName",
];

const VALUES: [&str; 22] = [
    "",
    "None",
    "ClusterIP",
    "NodePort",
    "LoadBalancer",
    "ExternalName",
    "Local",
    "IPv4",
    "IPv6",
    "FQDN",
    "SingleStack",
    "PreferDualStack",
    "RequireDualStack",
    "ClientIP",
    "10.96.0.5",
    "fd00:10:96::5",
    "010.0.0.1",
    "::ffff:1.2.3.4",
    "10.0.0.0/8",
    "*",
    "é-",
    "a/b/c",
];

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0..70_000i64).prop_map(Value::from),
        prop::sample::select(&VALUES[..]).prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 96, 6, |inner| {
        let key = prop::sample::select(&WORDS[..]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..6).prop_map(|pairs| {
                let pairs = pairs.into_iter().map(|(key, value)| (key.to_owned(), value));
                Value::Object(pairs.collect::<Map<String, Value>>())
            }),
        ]
    })
}

/// Random objects that often have valid field names, so that many checks run.
fn any_object() -> impl Strategy<Value = Value> {
    let spec = prop::collection::vec((prop::sample::select(&WORDS[..]), any_value()), 0..12);
    (any_value(), spec, any_value()).prop_map(|(metadata, spec, status)| {
        let spec = spec.into_iter().map(|(key, value)| (key.to_owned(), value));
        let spec: Map<String, Value> = spec.collect();
        let mut object = json!({"metadata": metadata, "status": status});
        for (name, value) in &spec {
            object[name.as_str()] = value.clone();
        }
        object["spec"] = Value::Object(spec);
        object
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_service_is_handled_without_panic(new in any_object(), old in prop::option::of(any_object()), chance: u64) {
        let cidrs = ServiceCidrs::parse("10.96.0.0/16,fd00:10:96::/112").expect("the ranges are valid");
        let config = ClusterConfig::new(cidrs);
        let mut allocator = Allocator::new(&config);
        let mut new = new;
        service::default(&mut new);
        let _ = allocator.dry_run(&mut new.clone(), old.as_ref());
        if let Ok(reserved) = allocator.allocate(&mut new, old.as_ref(), &mut |_| chance) {
            allocator.commit(reserved);
        }
        match &old {
            None => {
                service::prepare_create(&mut new, &config);
                service::validate_create(&new, &config);
            }
            Some(old) => {
                service::prepare_update(&mut new, old, &config);
                service::validate_update(&new, old, &config);
                service::validate_status_update(&new, old);
            }
        }
        service::warnings(&new);
        service::status_warnings(&new);
        allocator.adopt(&new);
        allocator.release(&new);
    }

    #[test]
    fn any_slice_and_endpoints_are_handled_without_panic(new in any_object(), old in any_object()) {
        let cidrs = ServiceCidrs::parse("10.96.0.0/16").expect("the range is valid");
        let config = ClusterConfig::new(cidrs);
        let mut new = new;
        endpointslice::default(&mut new);
        endpointslice::prepare_create(&mut new, &config);
        endpointslice::validate_create(&new);
        endpointslice::prepare_update(&mut new, &old, &config);
        endpointslice::validate_update(&new, &old);
        endpointslice::warnings(&new, None);
        endpoints::default(&mut new);
        endpoints::validate(&new, Some(&old));
        endpoints::warnings(&new);
    }

    #[test]
    fn any_text_is_handled_without_panic(text in "\\PC{0,20}|[a-z0-9./:%-]{0,70}") {
        names::mask_trailing_dash(&text);
        names::qualified_name(&text);
        names::port_name(&text);
        ip::warn_cidr("f", &text);
        ip::check_legacy_cidr("f", &text, &[]);
    }

    /// The sloppy parser accepts every strict address and returns the same value.
    #[test]
    fn strict_addresses_parse_the_same_in_the_sloppy_parser(v4: u32, v6: u128, zeros in 0..8u32) {
        let v6 = std::net::Ipv6Addr::from(v6 & (u128::MAX << (zeros * 16)));
        let v4 = std::net::Ipv4Addr::from(v4);
        for ip in [IpAddr::V4(v4), IpAddr::V6(v6), IpAddr::V6(v4.to_ipv6_mapped())] {
            assert_eq!(parse_ip_sloppy(&ip.to_string()), Some(ip));
        }
        let long = v6.segments().map(|group| format!("{group:04X}")).join(":");
        assert_eq!(parse_ip_sloppy(&long), Some(IpAddr::V6(v6)));
    }
}
