//! The answers on the socket.

use npwg::wire::{self, Answer, Refusal};

use super::super::line_server::{Answers, Said};
use super::service::Service;

impl Answers for Service {
    async fn answer(&self, line: Vec<u8>) -> Said {
        let (answer, go_on) = match wire::read_request(&line) {
            Ok(request) => {
                drop(line);
                (Service::answer(self, request).await, true)
            }
            Err(error) => {
                tracing::warn!(%error, "refused a message");
                let text = format!("netwrightd does not understand the plugin: {error}");
                (Answer::Refused(Refusal::new(cni::code::INTERNAL, text)), false)
            }
        };
        let text = wire::write_answer(&answer).unwrap_or_else(|error| {
            let text = format!("the pod's networks do not fit into an answer: {error}");
            let refused = Answer::Refused(Refusal::new(cni::code::INVALID_CONFIG, text));
            wire::write_answer(&refused).unwrap_or_default()
        });
        Said { text, go_on }
    }
}
