//! The recordings: their format and how one refers to another.
//!
//! Bodies are plain JSON values, because this module must not depend on the schema of any kind.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;

/// One recorded session.
#[derive(Debug, Deserialize)]
pub struct Transcript {
    /// File name without ending.
    pub name: String,
    /// What was exchanged, in order.
    pub exchanges: Vec<Exchange>,
}

/// One request and its answer.
#[derive(Debug, Deserialize)]
pub struct Exchange {
    /// Number, from 1.
    pub seq: u64,
    /// Seconds since the start of the session; shows which exchanges ran during an open watch.
    pub t: f64,
    /// The request.
    pub request: RecordedRequest,
    /// The answer.
    pub response: RecordedResponse,
    /// Paths whose values change from run to run.
    #[serde(default)]
    pub volatile: Vec<String>,
}

/// A recorded request.
#[derive(Debug, Deserialize)]
pub struct RecordedRequest {
    /// Method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Headers that matter.
    pub headers: BTreeMap<String, String>,
    /// The user, if it was not the administrator.
    #[serde(rename = "authenticatedAs")]
    pub authenticated_as: Option<String>,
    /// JSON body.
    pub body: Option<Value>,
    /// Body that is text but not JSON.
    pub text: Option<String>,
    /// Binary body.
    pub base64: Option<String>,
}

/// A recorded answer.
#[derive(Debug, Deserialize)]
pub struct RecordedResponse {
    /// Status code.
    pub status: u16,
    /// Headers that matter; one value or a list of them.
    pub headers: BTreeMap<String, Value>,
    /// JSON body.
    pub body: Option<Value>,
    /// Body that is text but not JSON.
    pub text: Option<String>,
    /// The answer was protobuf; its content is not recorded.
    #[serde(default)]
    pub binary: bool,
    /// Same body as that exchange (`file#seq`).
    #[serde(rename = "bodySameAs")]
    pub body_same_as: Option<String>,
    /// Lines of a watch.
    pub frames: Option<Vec<Frame>>,
    /// Which side ended a watch.
    #[serde(rename = "closedBy")]
    pub closed_by: Option<String>,
}

/// One line of a watch.
#[derive(Debug, Deserialize)]
pub struct Frame {
    /// When it arrived, in seconds since the start of the session.
    pub t: f64,
    /// The line.
    pub frame: Value,
}

impl RecordedRequest {
    /// The body as it goes over the wire, before volatile values are replaced.
    pub fn bytes(&self) -> Result<Bytes> {
        if let Some(encoded) = &self.base64 {
            return Ok(STANDARD.decode(encoded)?.into());
        }
        if let Some(text) = &self.text {
            return Ok(text.clone().into());
        }
        Ok(self.body.as_ref().map(|b| b.to_string().into()).unwrap_or_default())
    }
}

impl Exchange {
    /// Whether this is a watch: its answer comes in lines, over time.
    pub fn is_watch(&self) -> bool {
        self.response.frames.is_some() || self.response.closed_by.is_some()
    }

    /// When the watch ended, in seconds since the start of the session.
    pub fn watched_until(&self) -> f64 {
        let frames = self.response.frames.as_deref().unwrap_or_default();
        frames.last().map_or(self.t, |f| f.t)
    }
}

/// All recordings.
pub struct Library {
    /// By name.
    pub transcripts: BTreeMap<String, Transcript>,
}

impl Library {
    /// Reads `data/transcripts`.
    pub fn read() -> Result<Self> {
        let mut transcripts = BTreeMap::new();
        for entry in fs::read_dir(data().join("transcripts"))? {
            let path = entry?.path();
            let text = fs::read_to_string(&path)?;
            let transcript: Transcript =
                serde_json::from_str(&text).with_context(|| path.display().to_string())?;
            transcripts.insert(transcript.name.clone(), transcript);
        }
        Ok(Self { transcripts })
    }

    /// The exchange that `file#seq` means.
    pub fn exchange(&self, reference: &str) -> Result<&Exchange> {
        let (file, seq) = reference.split_once('#').context("a reference is file#seq")?;
        let found = self
            .transcripts
            .get(file)
            .and_then(|t| t.exchanges.iter().find(|e| Some(e.seq) == seq.parse().ok()));
        found.with_context(|| format!("no exchange {reference}"))
    }

    /// The JSON body of an answer, followed through `bodySameAs`.
    pub fn body<'a>(&'a self, response: &'a RecordedResponse) -> Result<Option<&'a Value>> {
        let mut response = response;
        while let Some(same) = &response.body_same_as {
            response = &self.exchange(same)?.response;
        }
        Ok(response.body.as_ref())
    }

    /// A recorded object: `file#seq` (the body) or `file#seq/pointer` into the answer. An item of a list gets the kind and
    /// apiVersion that lists leave out.
    pub fn object(&self, reference: &str) -> Result<Value> {
        let (exchange, pointer) = match reference.find('/') {
            Some(at) => reference.split_at(at),
            None => (reference, "/body"),
        };
        let response = &self.exchange(exchange)?.response;
        let mut object = if let Some(rest) = pointer.strip_prefix("/frames/") {
            let (index, _) = rest.split_once('/').context("frames/INDEX/frame/object")?;
            let frames = response.frames.as_deref().unwrap_or_default();
            let frame = frames.get(index.parse::<usize>()?).context("no such frame")?;
            frame.frame["object"].clone()
        } else {
            let body = self.body(response)?.context("no body")?;
            let inner = pointer.strip_prefix("/body").context("a pointer starts with /body")?;
            let mut object = body.pointer(inner).context("no value at this pointer")?.clone();
            if inner.starts_with("/items/") && object["kind"].is_null() {
                let kind = body["kind"].as_str().unwrap_or_default();
                object["kind"] = kind.trim_end_matches("List").into();
                object["apiVersion"] = body["apiVersion"].clone();
            }
            object
        };
        anyhow::ensure!(object["metadata"]["name"].is_string(), "{reference} is not an object");
        Ok(object.take())
    }
}

/// Directory of the recordings and tables.
pub fn data() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("data")
}
