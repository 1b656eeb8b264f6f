//! Counts a client's requests as client-go does, as a layer around kube's client.
//!
//! A request ends when the headers of its reply arrive, because the body may be a watch. As in
//! client-go, watches are counted but not timed.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use http::{Method, Request, Response};
use tower::{Layer, Service};

use super::{HistogramVec, IntCounterVec, Metrics, is_watch};

/// client-go's buckets.
const BUCKETS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
/// client-go's code for a request without a reply.
const NO_ANSWER: &str = "<error>";

#[derive(Clone)]
pub(super) struct RestSeries {
    requests: IntCounterVec,
    durations: HistogramVec,
}

impl RestSeries {
    pub(super) fn register(metrics: &Metrics) -> Self {
        Self {
            requests: metrics.counter_vec(
                "rest_client_requests_total",
                "Number of HTTP requests, partitioned by status code, method, and host.",
                &["code", "host", "method"],
            ),
            durations: metrics.histogram_vec(
                "rest_client_request_duration_seconds",
                "Request latency in seconds. Broken down by verb, and host.",
                &BUCKETS,
                &["host", "verb"],
            ),
        }
    }
}

/// The layer that counts the requests of a client; see [`Metrics::rest_client`].
#[derive(Clone)]
pub(crate) struct RestMetricsLayer {
    series: RestSeries,
    host: String,
}

impl RestMetricsLayer {
    pub(super) fn new(series: RestSeries, host: &str) -> Self {
        Self { series, host: host.to_owned() }
    }
}

impl<S> Layer<S> for RestMetricsLayer {
    type Service = RestMetricsService<S>;

    fn layer(&self, inner: S) -> RestMetricsService<S> {
        RestMetricsService { inner, counting: self.clone() }
    }
}

/// A client whose requests are counted.
#[derive(Clone)]
pub(crate) struct RestMetricsService<S> {
    inner: S,
    counting: RestMetricsLayer,
}

impl<S, B, R> Service<Request<B>> for RestMetricsService<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let mut pending = Pending::begin(&self.counting, &request);
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            pending.answered(answer.status());
            Ok(answer)
        })
    }
}

/// A running request. It is counted when dropped, so that a request that the caller cancels counts,
/// too.
struct Pending {
    counting: RestMetricsLayer,
    method: Method,
    /// None for a watch.
    timed_since: Option<Instant>,
    code: Option<http::StatusCode>,
}

impl Pending {
    fn begin<B>(counting: &RestMetricsLayer, request: &Request<B>) -> Self {
        Self {
            counting: counting.clone(),
            method: request.method().clone(),
            timed_since: (!is_watch(request)).then(Instant::now),
            code: None,
        }
    }

    /// A method, so that the caller's future captures the whole value and not only the field.
    fn answered(&mut self, code: http::StatusCode) {
        self.code = Some(code);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let RestMetricsLayer { series, host } = &self.counting;
        let (host, method) = (host.as_str(), self.method.as_str());
        let code = self.code.as_ref().map_or(NO_ANSWER, http::StatusCode::as_str);
        series.requests.with_label_values(&[code, host, method]).inc();
        if let Some(since) = self.timed_since {
            let took = since.elapsed().as_secs_f64();
            series.durations.with_label_values(&[host, method]).observe(took);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::{pending, ready};

    use tower::{ServiceExt, service_fn};

    use super::*;

    fn get(uri: &str) -> Request<()> {
        Request::get(uri).body(()).unwrap()
    }

    #[tokio::test]
    async fn replies_failures_and_cancelled_requests_are_counted() {
        let metrics = Metrics::new();
        let layer = metrics.rest_client("10.0.0.1:6443");
        let answered = service_fn(|_| ready(Ok::<_, Infallible>(Response::new(()))));
        layer.layer(answered).oneshot(get("/api?limit=1")).await.unwrap();
        layer.layer(answered).oneshot(get("/api?watch=true")).await.unwrap();
        let refused = service_fn(|_: Request<()>| ready(Err::<Response<()>, _>("refused")));
        layer.layer(refused).oneshot(get("/api")).await.unwrap_err();
        let hanging = service_fn(|_| pending::<Result<Response<()>, Infallible>>());
        drop(layer.layer(hanging).call(get("/api")));
        let text = metrics.encode();
        for line in [
            "rest_client_requests_total{code=\"200\",host=\"10.0.0.1:6443\",method=\"GET\"} 2",
            "rest_client_requests_total{code=\"<error>\",host=\"10.0.0.1:6443\",method=\"GET\"} 2",
            "rest_client_request_duration_seconds_count{host=\"10.0.0.1:6443\",verb=\"GET\"} 3",
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line} in:\n{text}");
        }
    }
}
