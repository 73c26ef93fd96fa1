//! A stand-in for `netwrightd multinet`: answers as the test says, and records its requests.

use std::path::PathBuf;

use node_api::multinet::{Answer, Plan, PlannedNetwork, Request};
use node_api::{Message, inbox};

use super::Node;
use super::listener::{self, Listener};

/// The reaction of the stand-in to a request.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// Sends this answer.
    Says(Answer),
    /// Writes these bytes.
    Writes(Vec<u8>),
    /// Dies before it answers.
    Dies,
    /// Keeps silent as long as it lives.
    KeepsSilent,
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Reply::Says(answer)
    }
}

impl Reply {
    fn plain(self) -> listener::Reply {
        match self {
            Reply::Says(answer) => listener::Reply::Writes(answer.to_line().unwrap()),
            Reply::Writes(bytes) => listener::Reply::Writes(bytes),
            Reply::Dies => listener::Reply::Dies,
            Reply::KeepsSilent => listener::Reply::KeepsSilent,
        }
    }
}

/// The stand-in, which ends when dropped.
#[derive(Debug)]
pub(crate) struct Daemon(Listener<Request>);

/// Where a node's daemon listens.
pub(crate) fn socket(node: &Node) -> PathBuf {
    node.roots.run.join("multinet.sock")
}

/// The requests that the daemon finds in its inbox when it starts.
pub(crate) fn left(node: &Node) -> Vec<Request> {
    let read = |(name, line): (String, Vec<u8>)| {
        let request = Request::from_line(&line).unwrap();
        assert_eq!(Some(name), request.todo_name());
        request
    };
    listener::left_in(&inbox::folder(&socket(node))).into_iter().map(read).collect()
}

impl Daemon {
    /// Starts a stand-in that plans these networks and accepts every other request.
    pub(crate) fn planning(node: &Node, networks: Vec<PlannedNetwork>) -> Self {
        let plan = Answer::Plan(Plan { uid: "uid-1".to_owned(), networks });
        Daemon::start(node, move |request| match request {
            Request::Plan(_) => plan.clone().into(),
            _ => Answer::Ok.into(),
        })
    }

    /// Starts a stand-in.
    pub(crate) fn start(
        node: &Node,
        mut script: impl FnMut(&Request) -> Reply + Send + 'static,
    ) -> Self {
        let read = |line: &[u8]| Request::from_line(line).ok();
        Daemon(Listener::start(socket(node), read, move |request| script(request).plain()))
    }

    /// Returns the requests since the last call of this function.
    pub(crate) fn heard(&self) -> Vec<Request> {
        self.0.heard()
    }

    /// The same, as the first word of each request.
    pub(crate) fn words(&self) -> Vec<&'static str> {
        let word = |request: &Request| match request {
            Request::Plan(_) => "plan",
            Request::Attached(_) => "attached",
            Request::Failed(_) => "failed",
            Request::Detached(_) => "detached",
            Request::Status => "status",
        };
        self.heard().iter().map(word).collect()
    }

    /// Keeps it running as long as the test.
    pub(crate) fn forget(self) {
        self.0.forget();
    }
}
