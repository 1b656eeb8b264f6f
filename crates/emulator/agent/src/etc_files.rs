//! The Pod's `/etc/hosts` and `/etc/resolv.conf`, as text. Pure.

use std::fmt::Write as _;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{HostAlias, Pod};

/// The names and addresses of a Pod.
#[derive(Clone, Debug)]
pub(crate) struct Identity<'a> {
    pub(crate) addresses: &'a [IpAddr],
    pub(crate) hostname: &'a str,
    /// The FQDN of a Pod with a subdomain.
    pub(crate) full_name: Option<String>,
    pub(crate) aliases: &'a [HostAlias],
}

pub(crate) fn hosts(identity: &Identity<'_>) -> String {
    let mut text = String::from(
        "# Written by nearhop's agent.\n\
         127.0.0.1\tlocalhost\n\
         ::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::0\tip6-localnet\n\
         fe00::1\tip6-allnodes\n\
         fe00::2\tip6-allrouters\n",
    );
    for address in identity.addresses {
        let full = identity.full_name.as_ref().map(|name| format!("{name}\t")).unwrap_or_default();
        line(&mut text, format_args!("{address}\t{full}{}", identity.hostname));
    }
    for alias in identity.aliases {
        let names = alias.hostnames.clone().unwrap_or_default();
        line(&mut text, format_args!("{}\t{}", alias.ip, names.join("\t")));
    }
    text
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("writing to a string");
}

/// The hostname of a Pod.
pub(crate) fn hostname(pod: &Pod) -> String {
    let spec = pod.spec.as_ref();
    let own = spec.and_then(|spec| spec.hostname.clone()).filter(|name| !name.is_empty());
    let name = own.or_else(|| pod.metadata.name.clone()).unwrap_or_default();
    // The kernel's limit; a hostname does not end in a dash or a dot.
    let cut: String = name.chars().take(63).collect();
    cut.trim_end_matches(['-', '.']).to_owned()
}

/// The FQDN of a Pod with a subdomain.
pub(crate) fn full_name(pod: &Pod, domain: &str) -> Option<String> {
    let subdomain = pod.spec.as_ref()?.subdomain.clone().filter(|name| !name.is_empty())?;
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    Some(format!("{}.{subdomain}.{namespace}.svc.{domain}", hostname(pod)))
}

/// The Pod's `/etc/resolv.conf`; `host` is the node's file.
pub(crate) fn resolv_conf(pod: &Pod, dns: Option<IpAddr>, domain: &str, host: &str) -> String {
    let spec = pod.spec.clone().unwrap_or_default();
    let policy = spec.dns_policy.as_deref().unwrap_or("ClusterFirst");
    let in_host = spec.host_network.unwrap_or(false) && policy == "ClusterFirst";
    let mut file = match policy {
        "None" => Resolver::default(),
        "Default" => Resolver::parse(host),
        _ if in_host => Resolver::parse(host),
        _ => {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let mut searches: Vec<String> = vec![
                format!("{namespace}.svc.{domain}"),
                format!("svc.{domain}"),
                domain.to_owned(),
            ];
            searches.extend(Resolver::parse(host).searches);
            Resolver {
                servers: dns.iter().map(ToString::to_string).collect(),
                searches,
                options: vec!["ndots:5".to_owned()],
            }
        }
    };
    if let Some(config) = spec.dns_config {
        file.servers.extend(config.nameservers.unwrap_or_default());
        file.searches.extend(config.searches.unwrap_or_default());
        for option in config.options.unwrap_or_default() {
            let name = option.name.unwrap_or_default();
            let start = format!("{name}:");
            file.options.retain(|it| *it != name && !it.starts_with(&start));
            file.options.push(option.value.map_or(name.clone(), |value| format!("{name}:{value}")));
        }
    }
    file.text()
}

#[derive(Default)]
struct Resolver {
    servers: Vec<String>,
    searches: Vec<String>,
    options: Vec<String>,
}

impl Resolver {
    fn parse(text: &str) -> Self {
        let mut found = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let first = words.next();
            let rest = words.map(str::to_owned);
            match first {
                Some("nameserver") => found.servers.extend(rest.take(1)),
                Some("search") => found.searches = rest.filter(|it| it != ".").collect(),
                Some("options") => found.options.extend(rest),
                _ => {}
            }
        }
        found
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut seen: Vec<&String> = Vec::new();
        for search in &self.searches {
            if !seen.contains(&search) {
                seen.push(search);
            }
        }
        if !seen.is_empty() {
            let words: Vec<&str> = seen.iter().map(|it| it.as_str()).collect();
            line(&mut text, format_args!("search {}", words.join(" ")));
        }
        for server in &self.servers {
            line(&mut text, format_args!("nameserver {server}"));
        }
        if !self.options.is_empty() {
            line(&mut text, format_args!("options {}", self.options.join(" ")));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{PodDNSConfig, PodDNSConfigOption, PodSpec};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    fn pod(spec: PodSpec) -> Pod {
        let metadata = ObjectMeta {
            name: Some("web-0".to_owned()),
            namespace: Some("shop".to_owned()),
            ..ObjectMeta::default()
        };
        Pod { metadata, spec: Some(spec), ..Pod::default() }
    }

    #[test]
    fn hosts_has_the_pods_names() {
        let addresses = ["10.244.0.3".parse::<IpAddr>().unwrap()];
        let identity = Identity {
            addresses: &addresses,
            hostname: "web-0",
            full_name: Some("web-0.web.shop.svc.c".to_owned()),
            aliases: &[],
        };
        let text = hosts(&identity);
        assert_eq!(
            text.lines().skip(6).collect::<Vec<_>>(),
            ["10.244.0.3\tweb-0.web.shop.svc.c\tweb-0"]
        );
    }

    #[test]
    fn cluster_first_uses_the_cluster_dns() {
        let dns: IpAddr = "10.96.0.10".parse().unwrap();
        let host = "nameserver 9.9.9.9\nsearch example.com\noptions edns0\n";
        let text = resolv_conf(&pod(PodSpec::default()), Some(dns), "cluster.local", host);
        assert_eq!(
            text,
            "search shop.svc.cluster.local svc.cluster.local cluster.local example.com\n\
             nameserver 10.96.0.10\noptions ndots:5\n"
        );
        let text = resolv_conf(&pod(PodSpec::default()), None, "c", "");
        assert_eq!(text, "search shop.svc.c svc.c c\noptions ndots:5\n");
    }

    #[test]
    fn dns_policy_and_dns_config_apply() {
        let host = "nameserver 9.9.9.9\nsearch example.com\n";
        let asks = |policy: &str, config| {
            let spec = PodSpec {
                dns_policy: Some(policy.to_owned()),
                dns_config: config,
                ..PodSpec::default()
            };
            resolv_conf(&pod(spec), "10.96.0.10".parse().ok(), "cluster.local", host)
        };
        assert_eq!(asks("Default", None), "search example.com\nnameserver 9.9.9.9\n");
        let option = PodDNSConfigOption { name: Some("ndots".into()), value: Some("2".into()) };
        let config = PodDNSConfig {
            nameservers: Some(vec!["1.1.1.1".to_owned()]),
            searches: None,
            options: Some(vec![option]),
        };
        assert_eq!(asks("None", Some(config.clone())), "nameserver 1.1.1.1\noptions ndots:2\n");
        let merged = asks("ClusterFirst", Some(config));
        assert!(merged.ends_with("nameserver 10.96.0.10\nnameserver 1.1.1.1\noptions ndots:2\n"));
    }

    #[test]
    fn hostnames_are_truncated() {
        let mut long = pod(PodSpec::default());
        long.metadata.name = Some(format!("{}-tail", "a".repeat(62)));
        assert_eq!(hostname(&long), "a".repeat(62));
        let spec = PodSpec { subdomain: Some("web".to_owned()), ..PodSpec::default() };
        assert_eq!(full_name(&pod(spec), "c").as_deref(), Some("web-0.web.shop.svc.c"));
    }
}
