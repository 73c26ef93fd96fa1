//! Waits for servers: blocking outside, asynchronous inside, with a timeout.

use std::time::Duration;

use cluster_ipam::store::StoreError;
use tokio::runtime::Handle;

/// The timeout for connecting.
pub(super) const CONNECT_TIME: Duration = Duration::from_secs(3);
/// The timeout for an answer.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(10);

/// The least pause after a request without an answer: a repeated request comes no sooner.
const MIN_RETRY_DELAY_MS: u64 = 100;

/// Waits for an answer, on a thread that may block.
pub(super) fn wait<T>(
    handle: &Handle,
    within: Duration,
    question: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    handle.block_on(async {
        let answer = match tokio::time::timeout(within, question).await {
            Ok(answer) => answer,
            Err(_) => Err(StoreError::Away(format!("nothing within {} s", within.as_secs()))),
        };
        if let Err(StoreError::Away(_)) = answer {
            // A random part, so that not all ask again at once.
            let pause = MIN_RETRY_DELAY_MS + service_kit::clock::seed() % MIN_RETRY_DELAY_MS;
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        answer
    })
}
