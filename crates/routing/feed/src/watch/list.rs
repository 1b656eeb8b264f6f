//! Streaming and paged lists. Objects are sent while they arrive.

use nearhop_api::Version;
use serde::Deserialize;

use super::connection::{Answer, Stream};
use super::error::Error;
use super::items::Items;
use super::line::{Bookmark, Line, read_line};
use super::options::Lists;
use super::query::{Page, Query};
use super::task::{Done, Task};
use super::{Decoder, Event, Sink};

impl<D: Decoder, S: Sink<D::Object>> Task<D, S> {
    /// Reads everything as the beginning of a watch, and follows that watch.
    pub(super) async fn list_streaming(&mut self) -> Result<Done, Error> {
        match self.read_initial_events().await {
            Ok(stream) => self.follow(stream).await,
            Err(Error::Refused(refusal)) if refusal.is_about_the_request() => {
                let resource = self.resource();
                tracing::info!(resource, %refusal, "streaming list rejected; using paged lists");
                self.lists = Lists::Paged;
                Ok(Done::Continue)
            }
            Err(error) => {
                // API servers before 1.27 do not know streaming lists, take the request for a
                // watch, and never mark the list as complete.
                if matches!(error, Error::Incomplete) {
                    self.lists = Lists::Paged;
                }
                Err(error)
            }
        }
    }

    async fn read_initial_events(&mut self) -> Result<Stream, Error> {
        self.start_list().await?;
        let timeout = self.options.request_timeout;
        let query = Query::StreamingList { timeout: self.options.next_watch_timeout() };
        let mut stream = Stream::new(self.connection.open(query, timeout).await?);
        self.status.watching();
        loop {
            let line = match stream.line(timeout).await {
                Ok(Some(line)) => line,
                Ok(None) | Err(Error::Silent(_)) => return Err(Error::Incomplete),
                Err(error) => return Err(error),
            };
            match read_line(self.decoder, &line) {
                Line::Put(object) => self.send(Event::Put(object)).await?,
                Line::Gone(object) => self.send(Event::Gone(object)).await?,
                // These objects are in no order, so that no version is one to resume from.
                Line::Bookmark(Bookmark::Progress, _) | Line::Skipped => {}
                Line::Bookmark(Bookmark::InitialEventsEnd, version) => {
                    self.finish_list(version).await?;
                    return Ok(stream);
                }
                Line::Error(refusal) => return Err(Error::Refused(refusal)),
            }
        }
    }

    /// Reads everything page by page.
    ///
    /// If a continue token expires, later pages would show a later state than earlier pages, and
    /// changes in between on earlier pages would be missed. As in client-go, everything is then
    /// read in one request.
    pub(super) async fn list_paged(&mut self) -> Result<Done, Error> {
        let limit = self.options.page_size.max(1);
        self.start_list().await?;
        let mut first = self.read_page(Page::First(limit)).await?;
        while let Some(token) = first.next.take() {
            match self.read_page(Page::Next(limit, &token)).await {
                Ok(page) => first.next = page.next,
                Err(Error::Refused(refusal)) if refusal.is_expired() => {
                    self.start_list().await?;
                    first = self.read_page(Page::Whole).await?;
                }
                Err(error) => return Err(error),
            }
        }
        self.finish_list(first.version).await?;
        Ok(Done::Continue)
    }

    async fn read_page(&mut self, page: Page<'_>) -> Result<PageEnd, Error> {
        let timeout = self.options.request_timeout;
        let mut answer: Answer = self.connection.open(Query::List(page), timeout).await?;
        let mut items = Items::default();
        while let Some(chunk) = answer.chunk(timeout).await? {
            items.push(&chunk);
            while let Some(item) = items.next() {
                if let Some(object) = self.decoder.decode(&item) {
                    self.send(Event::Put(object)).await?;
                }
            }
        }
        read_end(&items.into_envelope())
    }

    async fn finish_list(&mut self, version: Version) -> Result<(), Error> {
        self.version = Some(version.clone());
        self.sent_absent = false;
        self.status.listed();
        self.on_success();
        self.send(Event::Listed(version)).await
    }
}

/// The metadata of a page.
struct PageEnd {
    version: Version,
    next: Option<String>,
}

#[derive(Deserialize)]
struct Envelope {
    metadata: ListMeta,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
    r#continue: String,
}

fn read_end(envelope: &[u8]) -> Result<PageEnd, Error> {
    let Envelope { metadata } = serde_json::from_slice(envelope)?;
    if metadata.resource_version.is_empty() {
        return Err(Error::Versionless);
    }
    let next = (!metadata.r#continue.is_empty()).then_some(metadata.r#continue);
    Ok(PageEnd { version: Version::from(metadata.resource_version.as_str()), next })
}
