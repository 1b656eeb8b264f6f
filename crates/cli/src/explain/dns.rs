//! `nearhop explain dns NAME`: the answer of a nearhop DNS server, and why it has these addresses.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{anyhow, bail};
use clap::Args as ClapArgs;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use nearhop_core::answer::{
    Answer, AskedName, Asking, Candidate, Config, Index, Outcome, PodMode, Question, RecordType,
    Spelling, Synced, Zone, answer, explain_headless, service_of,
};
use nearhop_core::locate::{How, Located};
use nearhop_core::model::{ClusterIps, ServiceType};
use nearhop_core::route::{Exclusion, Place, RouteSet};
use nearhop_core::world::{SliceKeeper, World};
use nearhop_core::{Family, Gates, ServiceKey};
use nearhop_runtime::client::{Client, connect, describe_failure};
use serde_json::{Value, json};

use super::live::read_world;
use crate::output::OutputArgs;
use crate::parse::ClusterArgs;
use crate::version::ask_api_server;

/// Exit code if the name has no records.
const NO_RECORDS: u8 = 1;

/// Shows how nearhop's DNS server answers a name for a given client, and why it chooses these
/// endpoints.
///
/// For users who debug name resolution. Reads the cluster and writes nothing. Exit code 0: the name
/// has records. 1: it has none. 2: error.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  nearhop explain dns db --from-pod client
  nearhop explain dns db.shop.svc.cluster.local --from-node node-a1 --type AAAA
  nearhop explain dns _http._tcp.db.shop -t SRV -o json")]
pub(crate) struct Args {
    /// Name to look up: fully qualified, or short as in a Pod, whose search list is then tried.
    #[arg(value_name = "NAME")]
    name: String,

    /// Answer as for this Pod: NAME or NAMESPACE/NAME.
    #[arg(help_heading = "Client", long, value_name = "POD", group = "from")]
    from_pod: Option<String>,

    /// Answer as for a client on this node.
    #[arg(help_heading = "Client", long, value_name = "NODE", group = "from")]
    from_node: Option<String>,

    /// Answer as for a client with this address.
    #[arg(help_heading = "Client", long, value_name = "IP", group = "from")]
    from_address: Option<IpAddr>,

    /// Record type: A, AAAA, SRV, PTR, CNAME, TXT, SOA or NS.
    #[arg(help_heading = "Query", short = 't', long = "type", value_name = "TYPE", default_value = "A", value_parser = parse_type)]
    record_type: (&'static str, RecordType),

    /// Cluster domain of the DNS servers.
    #[arg(help_heading = "Query", long, value_name = "DOMAIN", default_value = "cluster.local")]
    cluster_domain: String,

    /// Feature gates of the DNS servers. Without PodLocator, clients are located by Pod CIDR only.
    #[arg(help_heading = "Query", long, value_name = "NAME=BOOL,…", value_parser = Gates::parse, default_value = "PodLocator=true")]
    feature_gates: Gates,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    cluster: ClusterArgs,
}

/// The record types that can be explained.
const TYPES: [(&str, RecordType); 8] = [
    ("A", RecordType::A),
    ("AAAA", RecordType::Aaaa),
    ("SRV", RecordType::Srv),
    ("PTR", RecordType::Ptr),
    ("CNAME", RecordType::Cname),
    ("TXT", RecordType::Txt),
    ("SOA", RecordType::Soa),
    ("NS", RecordType::Ns),
];

fn parse_type(text: &str) -> Result<(&'static str, RecordType), String> {
    let found = TYPES.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    found.ok_or_else(|| format!("expected one of {}", TYPES.map(|(name, _)| name).join(", ")))
}

/// The client.
struct Asker {
    /// Description for the output; none if no flag names the client.
    words: Option<String>,
    /// The namespace in which short names are looked up.
    namespace: String,
    located: Located,
}

/// Prints the explanation; the exit code says whether there are records.
pub(super) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let client = connect(&args.cluster.client("explain"), None).await?;
    ask_api_server(&client).await?;
    let world = read_world(client.clone(), args.feature_gates.clone()).await?;
    let asker = find_asker(&args, &client, &world).await?;
    let config = config(&args.cluster_domain)?;
    let index = Index::build(&world);
    let asking = Asking {
        world: &world,
        index: &index,
        config: &config,
        serial: 0,
        synced: Synced::Yes,
        asker: &asker.located,
        seed: None,
        most: usize::MAX,
    };
    let lookup = look_up(&asking, &args, &asker)?;
    let answered = &lookup.answered;
    let explanation = Explanation::new(&asking, &lookup, args.record_type.0, &asker);
    args.output.print(&explanation.json(), || explanation.text())?;
    let there = matches!(answered.outcome, Outcome::Data | Outcome::Alias(_));
    Ok(ExitCode::from(if there { 0 } else { NO_RECORDS }))
}

/// The defaults of `nearhop dns`.
fn config(domain: &str) -> anyhow::Result<Config> {
    let wrong = |error| anyhow!("--cluster-domain {domain}: {error}");
    let mut config = Config::new(Zone::parse(domain).map_err(wrong)?);
    for zone in ["in-addr.arpa", "ip6.arpa"] {
        config.zones.push(Zone::parse(zone).expect("a valid name"));
    }
    config.pods = PodMode::Insecure;
    Ok(config)
}

async fn find_asker(args: &Args, client: &Client, world: &World) -> anyhow::Result<Asker> {
    let namespace = "default".to_owned();
    if let Some(pod) = &args.from_pod {
        let (namespace, name) = pod.split_once('/').unwrap_or(("default", pod));
        let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let pod = api.get(name).await.map_err(|error| match error {
            kube::Error::Api(status) if status.is_not_found() => {
                anyhow!("--from-pod: Pod {namespace}/{name} does not exist; give NAMESPACE/NAME")
            }
            other => anyhow!("--from-pod: {}", describe_failure(&other)),
        })?;
        let ip = pod.status.and_then(|status| status.pod_ip).unwrap_or_default();
        let ip: IpAddr =
            ip.parse().map_err(|_| anyhow!("Pod {namespace}/{name} has no address yet"))?;
        let words = format!("Pod {namespace}/{name} at {ip}");
        let (words, namespace) = (Some(words), namespace.to_owned());
        return Ok(Asker { words, namespace, located: world.locate(ip) });
    }
    if let Some(name) = &args.from_node {
        let Some(node) = world.node(name) else {
            let known: Vec<&str> = world.nodes().map(|node| node.name.as_str()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            bail!("--from-node: node {name} does not exist; nodes: {known}");
        };
        let place = Some(Arc::new(Place::of(node)));
        let located = Located { place, how: How::NodeAddress };
        return Ok(Asker { words: Some(format!("node {name}")), namespace, located });
    }
    if let Some(address) = args.from_address {
        let located = world.locate(address);
        return Ok(Asker { words: Some(address.to_string()), namespace, located });
    }
    Ok(Asker { words: None, namespace, located: Located::unknown() })
}

/// The result of a lookup with a search list.
struct Lookup<'a> {
    question: Question,
    answered: Answer<'a>,
    /// The names that were tried, in their order, with the outcome of each.
    tried: Vec<(String, &'static str)>,
}

/// Tries the name as a Pod's resolver does: with its search list, then as it is. If no name exists,
/// the result is that of the first whose Service exists, else that of the name as given.
fn look_up<'a>(asking: &Asking<'a>, args: &Args, asker: &Asker) -> anyhow::Result<Lookup<'a>> {
    let (domain, namespace) = (&args.cluster_domain, &asker.namespace);
    let mut names = Vec::new();
    if !args.name.ends_with('.') && args.name.split('.').count() <= 5 {
        let searches =
            [format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.clone()];
        names.extend(searches.iter().map(|search| format!("{}.{search}", args.name)));
    }
    names.push(args.name.clone());
    let mut best = None;
    let mut service_exists = false;
    let mut tried = Vec::new();
    for name in names {
        let name = AskedName::parse(&name)
            .map_err(|error| anyhow!("{name:?} is not a DNS name: {error}"))?;
        let question = Question { name, record_type: args.record_type.1 };
        let answered = answer(asking, &question);
        tried.push((question.name.to_string(), describe(&answered.outcome)));
        let known = !matches!(answered.outcome, Outcome::NameError | Outcome::PassedOn);
        if known {
            return Ok(Lookup { question, answered, tried });
        }
        if !service_exists {
            let key = service_of(asking.config, &question.name);
            service_exists = key.is_some_and(|key| asking.world.service(&key).is_some());
            best = Some((question, answered));
        }
    }
    let (question, answered) = best.expect("at least the name itself was tried");
    Ok(Lookup { question, answered, tried })
}

/// The explanation.
struct Explanation<'a> {
    name: String,
    record_type: &'static str,
    asker: &'a Asker,
    tried: &'a [(String, &'static str)],
    outcome: String,
    records: Vec<String>,
    choice: Option<(Vec<Candidate>, Option<RouteSet>)>,
    /// The controllers that wrote the slices of the headless Service.
    keepers: Vec<SliceKeeper>,
}

impl<'a> Explanation<'a> {
    fn new(
        asking: &Asking<'_>,
        lookup: &'a Lookup<'_>,
        record_type: &'static str,
        asker: &'a Asker,
    ) -> Self {
        let Lookup { question, answered, tried } = lookup;
        let spelling = Spelling::of(answered, &question.name, asking.config);
        let records = answered.answers.iter().map(|record| spelling.record(record)).collect();
        let family = if record_type == "AAAA" { Family::Ipv6 } else { Family::Ipv4 };
        let service = headless_behind(asking, &question.name);
        let gates = &asking.world.settings().gates;
        let keepers = service.iter().flat_map(|key| asking.world.slice_keepers(key)).collect();
        let choice = service.map(|service| {
            let place = asker.located.place.as_deref();
            explain_headless(asking.index, gates, &service, family, place)
        });
        let (name, outcome) = (question.name.to_string(), conclude(&answered.outcome, tried.len()));
        Self { name, record_type, asker, tried, outcome, records, choice, keepers }
    }

    fn client(&self) -> String {
        match &self.asker.words {
            Some(words) => format!("{words}, {}", self.place()),
            None => "not given (use --from-pod)".to_owned(),
        }
    }

    /// The names of the search list, each with its outcome.
    fn search(&self) -> String {
        let mut text = String::new();
        let width = self.tried.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
        for (at, (name, outcome)) in self.tried.iter().enumerate() {
            let title = if at == 0 { "tried" } else { "" };
            let _ = writeln!(text, "{title:<8} {name:<width$}  {outcome}");
        }
        text
    }

    fn place(&self) -> String {
        let Located { place, how } = &self.asker.located;
        let Some(place) = place else {
            return match how {
                How::Unknown => "location unknown".to_owned(),
                how => format!("location unknown: {how} names no node"),
            };
        };
        let node = place.node.as_ref().map_or("no node", |node| node.as_str());
        let zone = place.zone.as_ref().map_or("no zone", |zone| zone.as_str());
        format!("on {node} in {zone}: {how}")
    }

    fn reason(&self) -> Option<String> {
        let (candidates, set) = self.choice.as_ref()?;
        let set = set.as_ref();
        if candidates.iter().all(|one| one.excluded == Some(Exclusion::NotReady)) {
            return Some("no endpoint is ready".to_owned());
        }
        Some(set.map_or_else(
            || "all: the client's location is unknown".to_owned(),
            |set| set.reason.to_string(),
        ))
    }

    fn text(&self) -> String {
        let mut text = format!("name     {} {}\n", self.name, self.record_type);
        let _ = writeln!(text, "client   {}", self.client());
        if self.tried.len() > 1 {
            text += &self.search();
        }
        let _ = writeln!(text, "answer   {}", self.outcome);
        for record in &self.records {
            let _ = writeln!(text, "         {record}");
        }
        if !self.keepers.is_empty() {
            let _ = writeln!(text, "slices   {}", self.slices());
        }
        if let Some(reason) = self.reason() {
            let _ = writeln!(text, "because  {reason}\n\n{}", self.table());
        }
        text
    }

    /// Which controllers' slices are used, and which are ignored.
    fn slices(&self) -> String {
        let list = |routed: bool| -> String {
            let of = self.keepers.iter().filter(|keeper| keeper.routed == routed);
            let words = of.map(|keeper| {
                let name = keeper.managed_by.as_deref().unwrap_or("no controller");
                format!("{} managed by {name}", keeper.slices)
            });
            words.collect::<Vec<_>>().join(", ")
        };
        match list(false) {
            others if others.is_empty() => list(true),
            others => format!("{}; ignored: {others}", list(true)),
        }
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(NOTHING).set_header(["ENDPOINT", "NODE", "ZONE", "ANSWERED", "WHY NOT"]);
        for one in self.choice.iter().flat_map(|(candidates, _)| candidates) {
            let text =
                |name: &Option<nearhop_core::Name>| name.as_deref().unwrap_or("-").to_owned();
            let why = one.excluded.as_ref().map(ToString::to_string);
            let answered = if why.is_none() { "yes" } else { "no" };
            table.add_row([
                one.address.to_string(),
                text(&one.node),
                text(&one.zone),
                answered.to_owned(),
                why.unwrap_or_default(),
            ]);
        }
        table
    }

    fn json(&self) -> Value {
        let place = self.asker.located.place.as_deref();
        let endpoint = |one: &Candidate| {
            json!({
                "address": one.address,
                "node": one.node.as_deref(),
                "zone": one.zone.as_deref(),
                "weight": one.weight,
                "answered": one.excluded.is_none(),
                "whyNot": one.excluded.as_ref().map(ToString::to_string),
            })
        };
        let keeper = |keeper: &SliceKeeper| {
            json!({
                "managedBy": keeper.managed_by.as_deref(),
                "count": keeper.slices,
                "read": keeper.routed,
            })
        };
        let tried = |(name, outcome): &(String, &str)| json!({"name": name, "outcome": outcome});
        let (candidates, set) = match &self.choice {
            Some((candidates, set)) => (candidates.as_slice(), set.as_ref()),
            None => (&[][..], None),
        };
        json!({
            "name": self.name,
            "type": self.record_type,
            "tried": self.tried.iter().map(tried).collect::<Vec<_>>(),
            "asker": {
                "who": self.asker.words,
                "located": self.asker.located.how.code(),
                "node": place.and_then(|place| place.node.as_deref()),
                "zone": place.and_then(|place| place.zone.as_deref()),
            },
            "outcome": self.outcome,
            "records": self.records,
            "tier": set.map(|set| set.reason.tier.code()),
            "because": self.reason(),
            "slices": self.keepers.iter().map(keeper).collect::<Vec<_>>(),
            "endpoints": candidates.iter().map(endpoint).collect::<Vec<_>>(),
        })
    }
}

/// The headless Service of a name, through ExternalName aliases.
fn headless_behind(asking: &Asking<'_>, name: &AskedName) -> Option<ServiceKey> {
    /// The DNS server follows at most this many aliases.
    const MAX_ALIASES: usize = 11;
    let mut key = service_of(asking.config, name)?;
    for _ in 0..MAX_ALIASES {
        let service = asking.world.service(&key)?;
        if service.service_type != ServiceType::ExternalName {
            return (service.cluster_ips == ClusterIps::Headless).then_some(key);
        }
        let target = AskedName::parse(service.external_name.as_deref()?).ok()?;
        key = service_of(asking.config, &target)?;
    }
    None
}

/// The outcome of the whole lookup. Whether a DNS server has upstream servers is not in the API, so
/// what happens to a name outside the cluster is said for both.
fn conclude(outcome: &Outcome<'_>, tried: usize) -> String {
    if !matches!(outcome, Outcome::PassedOn) {
        return describe(outcome).to_owned();
    }
    let what = if tried > 1 { "no cluster name matches" } else { "not a cluster name" };
    format!(
        "{what}; a DNS server with upstream servers forwards it, one without (such as the lab's) \
         refuses it"
    )
}

fn describe(outcome: &Outcome<'_>) -> &'static str {
    match outcome {
        Outcome::Data => "records",
        Outcome::NoData => "the name exists, but has no records of this type (NODATA)",
        Outcome::NameError => "the name does not exist (NXDOMAIN)",
        Outcome::Unsynced => "initial lists incomplete (SERVFAIL)",
        Outcome::Refused => "refused (REFUSED)",
        Outcome::PassedOn => "not a cluster name",
        Outcome::Alias(_) => "an alias of a name outside the cluster",
    }
}
