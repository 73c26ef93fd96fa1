//! Why a service ends.

/// Why a service could not start or continue.
#[derive(Debug)]
pub enum Stop {
    /// Text to print to standard output.
    Print(String),
    /// The flags are wrong.
    Usage(String),
    /// The configuration is wrong.
    Configuration(Vec<agent::Problem>),
    /// Something failed.
    Failed(String),
    /// Everything is said; the process ends with this exit code.
    Said(u8),
}

impl Stop {
    /// Returns what is wrong, in lines.
    pub fn lines(&self) -> Vec<String> {
        match self {
            Stop::Configuration(problems) => problems.iter().map(agent::Problem::line).collect(),
            Stop::Usage(text) | Stop::Failed(text) => vec![text.trim_end().to_owned()],
            Stop::Print(_) | Stop::Said(_) => Vec::new(),
        }
    }
}

/// Returns the reason why a service could not start or continue.
pub fn failed<E: std::error::Error + 'static>(error: E) -> Stop {
    Stop::Failed(words(&error))
}

/// Returns an error with its causes, in one line.
pub fn words(error: &dyn std::error::Error) -> String {
    cni::Error::from_chain(0, error).msg
}
