//! Lists, of both sorts. Objects are handed on while they arrive; the end of the list says that
//! there are no others.

use std::collections::BTreeSet;

use nearhop_api::{Changed, Version, decode_object};
use nearhop_core::{Change, ObjectRef, Subject};
use serde::Deserialize;

use crate::backoff::jittered;
use crate::connection::{Answer, Stream};
use crate::error::Error;
use crate::event::Event;
use crate::items::Items;
use crate::line::{Bookmark, Line, read_line};
use crate::options::Lists;
use crate::query::{Page, Query};
use crate::task::{Done, Task};

/// The objects of a list that is arriving, if [`Event::Listed`] has to name them.
struct ListedObjects(Option<BTreeSet<ObjectRef>>);

impl ListedObjects {
    /// Adds an object, or removes an object that was deleted while the list arrived. An unreadable
    /// object exists all the same if its problem can name it.
    fn note(&mut self, changed: &Changed) {
        let Some(objects) = &mut self.0 else { return };
        match &changed.change {
            Some(Change::Put(object)) => _ = objects.insert(object.reference()),
            Some(Change::Gone(object)) => _ = objects.remove(object),
            _ => objects.extend(changed.problems.iter().filter_map(
                |problem| match &problem.subject {
                    Subject::Object(object) => Some(object.clone()),
                    Subject::Setting(_) | Subject::Unknown(_) => None,
                },
            )),
        }
    }
}

impl Task {
    /// Reads everything as the beginning of a watch, and goes on with that watch.
    pub(crate) async fn list_streaming(&mut self) -> Result<Done, Error> {
        match self.read_initial_events().await {
            Ok(stream) => self.follow(stream).await,
            Err(Error::Refused(refusal)) if refusal.is_about_the_request() => {
                tracing::info!(kind = self.kind.resource(), %refusal, "streaming lists are refused, so lists are paged");
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
        let mut listed = self.begin_list();
        loop {
            let line = match stream.line(patience).await {
                Ok(Some(line)) => line,
                Ok(None) | Err(Error::Silent(_)) => return Err(Error::Incomplete),
                Err(error) => return Err(error),
            };
            match read_line(self.kind, &line) {
                Line::Changed(changed) => self.hand_on(&mut listed, changed).await?,
                // These objects come in no order, so that no version is one to resume from.
                Line::Bookmark(Bookmark::Progress, _) => {}
                Line::Bookmark(Bookmark::InitialEventsEnd, version) => {
                    self.finish_list(listed, version).await?;
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
        let mut listed = self.begin_list();
        let mut first = self.read_page(Page::First(limit), &mut listed).await?;
        while let Some(token) = first.next.take() {
            match self.read_page(Page::Next(limit, &token), &mut listed).await {
                Ok(page) => first.next = page.next,
                Err(Error::Refused(refusal)) if refusal.is_expired() => {
                    listed = self.begin_list();
                    first = self.read_page(Page::Whole, &mut listed).await?;
                }
                Err(error) => return Err(error),
            }
        }
        self.finish_list(listed, first.version).await?;
        Ok(Done::GoOn)
    }

    async fn read_page(
        &mut self,
        page: Page<'_>,
        listed: &mut ListedObjects,
    ) -> Result<PageEnd, Error> {
        let patience = self.options.request_timeout;
        let mut answer: Answer = self.connection.open(Query::List(page), patience).await?;
        let mut items = Items::default();
        while let Some(chunk) = answer.chunk(patience).await? {
            items.push(&chunk);
            while let Some(item) = items.next() {
                self.hand_on(listed, decode_object(self.kind, &item)).await?;
            }
        }
        read_end(&items.into_envelope())
    }

    /// Names are needed where something was handed on before this list, be it by one that broke
    /// off: what has gone since will not be told otherwise.
    fn begin_list(&self) -> ListedObjects {
        ListedObjects(self.delivered.then(BTreeSet::new))
    }

    async fn hand_on(&mut self, listed: &mut ListedObjects, changed: Changed) -> Result<(), Error> {
        listed.note(&changed);
        self.send(Event::Changed(changed)).await
    }

    /// Says once that there are no objects of a kind that the server does not know: nobody is to
    /// wait for them. They are listed as soon as it does.
    pub(crate) fn do_without(&mut self) {
        if std::mem::replace(&mut self.said_undefined, true) {
            return;
        }
        let (kind, objects) = (self.kind, self.begin_list().0);
        self.outbox.push(Event::Listed { kind, version: Version::from(""), objects });
        self.delivered = false;
    }

    async fn finish_list(&mut self, listed: ListedObjects, version: Version) -> Result<(), Error> {
        self.version = Some(version.clone());
        self.said_undefined = false;
        self.board.listed();
        self.all_is_well();
        self.send(Event::Listed { kind: self.kind, version, objects: listed.0 }).await
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
