//! Records when each watch last received data from the API server, as a layer around kube's client
//! that all watches of the process use.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Instant;

use http::{Request, Response};
use http_body_util::BodyExt as _;
use http_body_util::combinators::MapFrame;
use hyper::body::{Body, Bytes, Frame};
use tower::{Layer, Service};

use super::{GaugeVec, Metrics, is_watch};
use crate::lock;

/// When a watch of one kind last received data.
type Contact = Arc<Mutex<Instant>>;

#[derive(Clone)]
pub(super) struct ContactSeries {
    ages: GaugeVec,
    contacts: Arc<Mutex<BTreeMap<String, Contact>>>,
}

impl ContactSeries {
    pub(super) fn register(metrics: &Metrics) -> Self {
        let ages = metrics.gauge_vec(
            "nearhop_watch_last_contact_seconds",
            "Seconds since the API server last sent anything on the watch of a kind, or since it \
             got the first request.",
            &["kind"],
        );
        Self { ages, contacts: Arc::default() }
    }

    /// Computes the ages at the time of the scrape.
    pub(super) fn refresh(&self) {
        for (kind, contact) in lock(&self.contacts).iter() {
            let age = lock(contact).elapsed();
            self.ages.with_label_values(&[kind]).set(age.as_secs_f64());
        }
    }

    /// The entry for the kind of a watch; none for other requests.
    fn contact<B>(&self, request: &Request<B>) -> Option<Contact> {
        let kind =
            request.uri().path().rsplit('/').next().filter(|_| is_watch(request))?.to_owned();
        let mut contacts = lock(&self.contacts);
        Some(contacts.entry(kind).or_insert_with(|| Arc::new(Mutex::new(Instant::now()))).clone())
    }
}

/// The layer that records contact; see [`Metrics::watch_contact`].
#[derive(Clone)]
pub(crate) struct ContactLayer(pub(super) Option<ContactSeries>);

impl ContactLayer {
    /// A layer that records nothing.
    pub(crate) fn idle() -> Self {
        Self(None)
    }
}

impl<S> Layer<S> for ContactLayer {
    type Service = ContactService<S>;

    fn layer(&self, inner: S) -> ContactService<S> {
        ContactService { inner, series: self.0.clone() }
    }
}

/// A client whose watches are recorded.
#[derive(Clone)]
pub(crate) struct ContactService<S> {
    inner: S,
    series: Option<ContactSeries>,
}

type Note = Box<dyn FnMut(Frame<Bytes>) -> Frame<Bytes> + Send>;

impl<S, B, R> Service<Request<B>> for ContactService<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    R: Body<Data = Bytes>,
{
    type Response = Response<MapFrame<R, Note>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let contact = self.series.as_ref().and_then(|series| series.contact(&request));
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            let note: Note = match contact {
                None => Box::new(|frame| frame),
                Some(contact) => {
                    *lock(&contact) = Instant::now();
                    Box::new(move |frame| {
                        *lock(&contact) = Instant::now();
                        frame
                    })
                }
            };
            Ok(answer.map(|body| body.map_frame(note)))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::ready;
    use std::time::Duration;

    use http_body_util::Full;
    use tower::{ServiceExt as _, service_fn};

    use super::*;

    #[tokio::test]
    async fn each_frame_resets_the_age_of_a_watch() {
        let metrics = Metrics::new();
        let layer = metrics.watch_contact();
        let answered = service_fn(|_| {
            ready(Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"{}")))))
        });
        let get = |uri: &str| Request::get(uri).body(()).unwrap();
        let age = |metrics: &Metrics| {
            let text = metrics.encode();
            let line = "nearhop_watch_last_contact_seconds{kind=\"pods\"} ";
            let found = text.lines().find_map(|text| text.strip_prefix(line).map(str::to_owned));
            found.map(|age| age.parse::<f64>().unwrap())
        };
        layer.layer(answered).oneshot(get("/api/v1/pods?limit=500")).await.unwrap();
        assert_eq!(age(&metrics), None, "a list is not a watch");
        let watch = get("/api/v1/pods?labelSelector=a&watch=true");
        let mut body = layer.layer(answered).oneshot(watch).await.unwrap().into_body();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let silent = age(&metrics).unwrap();
        assert!(silent >= 0.3, "{silent}");
        let before = Instant::now();
        body.frame().await.unwrap().unwrap();
        let heard = age(&metrics).unwrap();
        assert!(heard <= before.elapsed().as_secs_f64(), "{heard}");
    }
}
