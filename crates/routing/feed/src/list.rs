//! Lists, of both sorts. Objects are handed on while they arrive; the end of the list says that
//! there are no others.

use nearhop_api::Version;
use nearhop_core::Roll;
use serde::Deserialize;

use crate::backoff::jittered;
use crate::connection::{Answer, Stream};
use crate::decode::{Bookmark, Line, change_of, read_line};
use crate::error::Error;
use crate::event::{Changed, Event};
use crate::items::Items;
use crate::options::Lists;
use crate::query::{Page, Query};
use crate::roll;
use crate::task::{Done, Task};

/// The names on a list that is arriving, where they will be needed.
struct Names(Option<Box<Roll>>);

impl Task {
    /// Reads everything as the beginning of a watch, and goes on with that watch.
    pub(crate) async fn list_streaming(&mut self) -> Result<Done, Error> {
        match self.read_initial_events().await {
            Ok(stream) => self.follow(stream).await,
            Err(Error::Refused(refusal)) if refusal.is_about_the_request() => {
                tracing::info!(kind = %self.kind, %refusal, "streaming lists are refused, so lists are paged");
                self.lists = Lists::Paged;
                Ok(Done::GoOn)
            }
            Err(error) => {
                // Servers older than 1.27 know nothing of streaming lists, take the request for a
                // watch, and never say that the list is complete.
                if matches!(error, Error::Incomplete) {
                    self.lists = Lists::Paged;
                }
                Err(error)
            }
        }
    }

    async fn read_initial_events(&mut self) -> Result<Stream, Error> {
        let patience = self.options.request_timeout;
        let query = Query::StreamingList { timeout: jittered(self.options.watch_timeout) };
        let mut stream = Stream::new(self.connection.open(query, patience).await?);
        self.board.watching();
        let mut names = self.begin_list();
        loop {
            let line = match stream.line(patience).await {
                Ok(Some(line)) => line,
                Ok(None) | Err(Error::Silent(_)) => return Err(Error::Incomplete),
                Err(error) => return Err(error),
            };
            match read_line(self.kind, &line) {
                Line::Changed(changed) => self.hand_on(&mut names, changed).await?,
                // These objects come in no order, so that no version is one to resume from.
                Line::Bookmark(Bookmark::Progress, _) => {}
                Line::Bookmark(Bookmark::InitialEventsEnd, version) => {
                    self.finish_list(names, version).await?;
                    return Ok(stream);
                }
                Line::Error(refusal) => return Err(Error::Refused(refusal)),
            }
        }
    }

    /// Reads everything page by page.
    ///
    /// A token that expires on the way would let the pages after it show a later state than those
    /// before, and what happened in between on the earlier ones would go unseen; the server's
    /// offer to go on so is not taken. As in client-go, everything is then read at once.
    pub(crate) async fn list_paged(&mut self) -> Result<Done, Error> {
        let limit = self.options.page_size.max(1);
        let mut names = self.begin_list();
        let mut first = self.read_page(Page::First(limit), &mut names).await?;
        while let Some(token) = first.next.take() {
            match self.read_page(Page::Next(limit, &token), &mut names).await {
                Ok(page) => first.next = page.next,
                Err(Error::Refused(refusal)) if refusal.is_expired() => {
                    names = self.begin_list();
                    first = self.read_page(Page::Whole, &mut names).await?;
                }
                Err(error) => return Err(error),
            }
        }
        self.finish_list(names, first.version).await?;
        Ok(Done::GoOn)
    }

    async fn read_page(&mut self, page: Page<'_>, names: &mut Names) -> Result<PageEnd, Error> {
        let patience = self.options.request_timeout;
        let mut answer: Answer = self.connection.open(Query::List(page), patience).await?;
        let mut items = Items::default();
        while let Some(chunk) = answer.chunk(patience).await? {
            items.push(&chunk);
            while let Some(item) = items.next() {
                self.hand_on(names, change_of(self.kind, &item)).await?;
            }
        }
        read_end(&items.into_envelope())
    }

    /// Names are needed where something was handed on before this list, be it by one that broke
    /// off: what has gone since will not be told otherwise.
    fn begin_list(&self) -> Names {
        Names(self.delivered.then(|| Box::new(roll::empty(self.kind))))
    }

    async fn hand_on(&mut self, names: &mut Names, changed: Changed) -> Result<(), Error> {
        if let Some(roll) = &mut names.0 {
            roll::note(roll, &changed);
        }
        self.send(Event::Changed(changed)).await
    }

    /// Says once that there are no objects of a kind that the server does not know: nobody is to
    /// wait for them. They are listed as soon as it does.
    pub(crate) fn do_without(&mut self) {
        if std::mem::replace(&mut self.said_undefined, true) {
            return;
        }
        let (kind, roll) = (self.kind, self.begin_list().0);
        self.outbox.push(Event::Listed { kind, version: Version::from(""), roll });
        self.delivered = false;
    }

    async fn finish_list(&mut self, names: Names, version: Version) -> Result<(), Error> {
        self.version = Some(version.clone());
        self.said_undefined = false;
        self.board.listed();
        self.all_is_well();
        self.send(Event::Listed { kind: self.kind, version, roll: names.0 }).await
    }
}

/// What a page says besides its items.
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
