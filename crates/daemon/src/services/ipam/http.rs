//! How servers are waited for: blocking outside, asynchronous inside, bounded both.

use std::time::Duration;

use cluster::store::StoreError;
use tokio::runtime::Handle;

/// How long a connection may take to be there.
pub(super) const CONNECT_TIME: Duration = Duration::from_secs(3);
/// How long an answer may take.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(10);

/// The least pause behind a question that was not answered: whoever asks again gives the server that long.
const MIN_RETRY_DELAY_MS: u64 = 100;

/// Waits for an answer, on a thread that may wait.
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
            // Not all at once.
            let pause = MIN_RETRY_DELAY_MS + crate::clock::seed() % MIN_RETRY_DELAY_MS;
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        answer
    })
}
