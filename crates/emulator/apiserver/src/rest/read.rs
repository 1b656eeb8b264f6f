//! get and list.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use jiff::Timestamp;
use nearhop_kinds::{Resource, table};
use serde_json::{Value, json};

use super::options::{Freshness, ListOptions, Selection, parse_version};
use super::page::Token;
use super::view;
use super::{Api, Request};
use crate::http::{Form, Reply};
use crate::status::ApiError;
use crate::store::{Snapshot, Stored};

/// The time that a read waits for a future version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(3);
/// The size of the pieces of a long list, which is never whole in memory.
const PIECE: usize = 64 * 1024;

pub(super) async fn get(api: &Api, request: &Request) -> Result<Reply, ApiError> {
    if let Some(version) = request.query.get("resourceVersion") {
        wait_for(api, parse_version(version)?).await?;
    }
    let object = find(api, request)?;
    view::reply(&request.resource, &object, 200, request.form()?, &request.query)
}

/// The stored object that a request names.
pub(super) fn find(api: &Api, request: &Request) -> Result<Arc<Stored>, ApiError> {
    let key = request.key();
    key.read(api).ok_or_else(|| ApiError::not_found(key.resource, key.name))
}

pub(super) async fn list(api: &Api, request: &Request) -> Result<Reply, ApiError> {
    let options = ListOptions::parse(&request.query)?;
    let selection = Selection::parse(&request.resource, &request.query, None)?;
    let form = request.form()?;
    if let Form::Partial(_) = form {
        return Err(ApiError::not_acceptable(format!(
            "you requested PartialObjectMetadata, but the requested object is a list (*{}.{})",
            view::go_package(&request.resource),
            request.resource.list_kind
        )));
    }
    let page = select_page(api, request, &options, &selection).await?;
    render(request, page, form)
}

pub(super) struct Page {
    pub(super) objects: Vec<Arc<Stored>>,
    pub(super) meta: Value,
}

pub(super) async fn select_page(
    api: &Api,
    request: &Request,
    options: &ListOptions,
    selection: &Selection,
) -> Result<Page, ApiError> {
    let token = options.resume.as_deref().map(Token::decode).transpose()?;
    let snapshot = match &token {
        Some(token) => snapshot_of(api, request, token)?,
        None => snapshot_for(api, request, options.freshness).await?,
    };
    let version = snapshot.version;
    let mut objects = snapshot.objects;
    if let Some(token) = &token {
        let last = token.last();
        objects.drain(..objects.partition_point(|object| object.name <= last));
    }
    let (objects, left) = cut(objects, selection, options.limit.unwrap_or(usize::MAX));
    let mut meta = json!({"resourceVersion": version.to_string()});
    if left > 0
        && let Some(last) = objects.last()
    {
        let token = Token::new(Some(version), &last.name, api.store.life());
        meta["continue"] = token.encode().into();
        if selection.is_everything() {
            meta["remainingItemCount"] = left.into();
        }
    }
    Ok(Page { objects, meta })
}

/// The first objects that match, and the number of objects after them.
fn cut(
    objects: Vec<Arc<Stored>>,
    selection: &Selection,
    limit: usize,
) -> (Vec<Arc<Stored>>, usize) {
    let mut rest = objects.into_iter();
    let matching = rest.by_ref().filter(|object| selection.matches(object));
    let page = matching.take(limit).collect();
    (page, rest.len())
}

async fn snapshot_for(
    api: &Api,
    request: &Request,
    freshness: Freshness,
) -> Result<Snapshot, ApiError> {
    let (storage, namespace) = (&request.resource.storage, request.namespace.as_deref());
    if let Freshness::NotOlderThan(version) | Freshness::Exact(version) = freshness {
        wait_for(api, version).await?;
    }
    let Freshness::Exact(version) = freshness else {
        return Ok(api.store.list(storage, namespace));
    };
    let why = "The resourceVersion for the provided list is too old.";
    let gone = |_| ApiError::expired(why, None);
    api.store.list_at(storage, namespace, version).map_err(gone)
}

fn snapshot_of(api: &Api, request: &Request, token: &Token) -> Result<Snapshot, ApiError> {
    let (storage, namespace) = (&request.resource.storage, request.namespace.as_deref());
    let Some(version) = token.version() else { return Ok(api.store.list(storage, namespace)) };
    let state = token
        .is_of(api.store.life())
        .then(|| api.store.list_at(storage, namespace, version).ok())
        .flatten();
    state.ok_or_else(|| {
        let resume = Token::new(None, &token.last(), api.store.life()).encode();
        ApiError::expired(EXPIRED_TOKEN, Some(resume))
    })
}

const EXPIRED_TOKEN: &str = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";

async fn wait_for(api: &Api, version: u64) -> Result<(), ApiError> {
    if version <= api.store.version() {
        return Ok(());
    }
    let mut changes = api.store.subscribe_all();
    let reached = changes.wait_for(|newest| *newest >= version);
    match tokio::time::timeout(VERSION_TIMEOUT, reached).await {
        Ok(Ok(_)) => Ok(()),
        _ => Err(ApiError::version_too_large(version, api.store.version())),
    }
}

pub(super) fn render(request: &Request, page: Page, form: Form) -> Result<Reply, ApiError> {
    let resource = &request.resource;
    if form == Form::Object {
        return Ok(stream_list(Arc::clone(resource), page));
    }
    let values = page.objects.iter().map(|object| view::to_value(resource, object));
    let list = |kind: &str, api_version: &str, items: Value| json!({"kind": kind, "apiVersion": api_version, "metadata": page.meta, "items": items});
    match form {
        Form::Object | Form::Yaml => {
            let list = list(&resource.list_kind, &resource.api_version(), values.collect());
            Ok(view::yaml(200, &list))
        }
        Form::Table(version) => {
            let (include, values) = (view::include_of(&request.query)?, values.collect::<Vec<_>>());
            let table = table::table(resource, &values, page.meta, include, Timestamp::now());
            Ok(Reply::json(200, &view::in_version(table, version)))
        }
        Form::Partial(version) | Form::PartialList(version) => {
            let items: Vec<Value> = values.map(|value| view::partial(&value, version)).collect();
            let items = if items.is_empty() { Value::Null } else { items.into() };
            let list = list("PartialObjectMetadataList", version.api_version(), items);
            Ok(Reply::json(200, &list))
        }
    }
}

/// Items of built-in kinds carry no kind and version; those of custom resources do.
fn stream_list(resource: Arc<Resource>, mut page: Page) -> Reply {
    if resource.is_custom() && page.meta.get("continue").is_none() {
        page.meta["continue"] = "".into();
    }
    let head = if resource.is_custom() { view::head_of(&resource) } else { String::new() };
    let mut opening = format!(
        "{{\"kind\":{},\"apiVersion\":{},\"metadata\":{},\"items\":[",
        Value::from(&*resource.list_kind),
        Value::from(resource.api_version()),
        page.meta
    )
    .into_bytes();
    let total: usize = page.objects.iter().map(|object| object.len()).sum();
    if total < PIECE {
        write_items(&resource, &head, &page.objects, 0, usize::MAX, &mut opening);
        opening.extend_from_slice(b"]}\n");
        return Reply::json_bytes(200, opening);
    }
    let objects = page.objects;
    let pieces = stream::unfold((0, false), move |(at, done)| {
        let mut text =
            if at == 0 { std::mem::take(&mut opening) } else { Vec::with_capacity(PIECE) };
        let next =
            if done { at } else { write_items(&resource, &head, &objects, at, PIECE, &mut text) };
        let end = !done && next == objects.len();
        if end {
            text.extend_from_slice(b"]}\n");
        }
        std::future::ready((!done).then(|| (Bytes::from(text), (next, end))))
    });
    Reply::stream(pieces)
}

/// Writes items until there are enough bytes; returns the next index.
fn write_items(
    resource: &Resource,
    head: &str,
    objects: &[Arc<Stored>],
    from: usize,
    enough: usize,
    out: &mut Vec<u8>,
) -> usize {
    let mut at = from;
    while let Some(object) = objects.get(at) {
        if at > 0 {
            out.push(b',');
        }
        view::write_json(resource, head, object, out);
        at += 1;
        if out.len() >= enough {
            break;
        }
    }
    at
}
