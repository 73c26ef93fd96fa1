//! From a source's thread to the loop: what was heard, and a bell that wakes the loop.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use crate::bell::Bell;

/// The loop's end.
#[derive(Debug)]
pub struct Inlet<T> {
    heard: mpsc::Receiver<T>,
    bell: Bell,
    /// The bell was rung, and the loop has not taken anything since.
    rung: Arc<AtomicBool>,
}

impl<T> Inlet<T> {
    /// Returns what is readable when something was heard.
    pub fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Takes what was heard since the last call.
    pub fn heard(&self) -> Vec<T> {
        self.bell.heard();
        // What is passed on from now on rings again; what came before is taken here.
        self.rung.swap(false, Ordering::SeqCst);
        self.heard.try_iter().collect()
    }
}

/// The thread's end.
#[derive(Debug)]
pub struct Outlet<T> {
    to: mpsc::Sender<T>,
    bell: Bell,
    rung: Arc<AtomicBool>,
}

impl<T> Outlet<T> {
    /// Passes on what was heard, and rings unless the loop is about to look. The loop is gone only
    /// when the process ends.
    pub fn tell(&self, heard: T) {
        let _ = self.to.send(heard);
        if !self.rung.swap(true, Ordering::SeqCst) {
            self.bell.ring();
        }
    }
}

/// How many reasons of one silence the thread passes on to the loop: members of a cluster are
/// silent each for its own.
const MOST_REASONS: usize = 8;

/// A source that does not answer. Its thread tries again and again. It passes each reason on to the
/// loop once, and the loop sleeps on.
#[derive(Debug, Default)]
pub struct Silence {
    told: BTreeSet<String>,
}

impl Silence {
    /// Reports whether the loop does not have a reason yet, and takes note that it has it now.
    pub fn is_news(&mut self, why: &str) -> bool {
        self.told.len() < MOST_REASONS && self.told.insert(why.to_owned())
    }

    /// Takes note that the source answers. Reports whether the loop was told that the source is
    /// silent.
    pub fn end(&mut self) -> bool {
        !std::mem::take(&mut self.told).is_empty()
    }
}

/// Creates both ends.
pub fn pair<T>() -> io::Result<(Inlet<T>, Outlet<T>)> {
    let bell = Bell::new()?;
    let (to, heard) = mpsc::channel();
    let rung = Arc::new(AtomicBool::new(false));
    let outlet = Outlet { to, bell: bell.clone(), rung: Arc::clone(&rung) };
    Ok((Inlet { heard, bell, rung }, outlet))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    /// A list of 100,000 objects does not cost 100,000 system calls.
    #[test]
    fn it_rings_once_until_the_loop_looks() {
        let (inlet, outlet) = pair::<u8>().unwrap();
        (1..=3).for_each(|heard| outlet.tell(heard));
        assert_eq!(rustix::io::ioctl_fionread(inlet.bell()), Ok(1));
        assert_eq!(inlet.heard(), [1, 2, 3]);
        assert!(!inlet.bell().heard());
        outlet.tell(4);
        assert_eq!(rustix::io::ioctl_fionread(inlet.bell()), Ok(1));
        assert_eq!(inlet.heard(), [4]);
        assert!(inlet.heard().is_empty());
    }

    #[test]
    fn each_reason_of_a_silence_is_told_once() {
        let mut silence = Silence::default();
        assert!(!silence.end());
        let told = |silence: &mut Silence, reasons: &[&str]| {
            reasons.iter().filter(|why| silence.is_news(why)).count()
        };
        assert_eq!(told(&mut silence, &["a is away", "b is away", "a is away", "b is away"]), 2);
        assert!(silence.end() && !silence.end());
        assert_eq!(told(&mut silence, &["a is away", "a is away"]), 1);
        // A reason may have a number in it.
        let many: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        assert_eq!(many.iter().filter(|why| silence.is_news(why)).count(), MOST_REASONS - 1);
    }

    #[test]
    fn nothing_is_left_behind() {
        const ALL: u32 = 10_000;
        let (inlet, outlet) = pair::<u32>().unwrap();
        let teller = std::thread::spawn(move || (0..ALL).for_each(|number| outlet.tell(number)));
        let mut heard = Vec::new();
        while heard.len() < usize::try_from(ALL).unwrap() {
            // It waits for the bell, as the loop does.
            poll(&mut [PollFd::new(inlet.bell(), PollFlags::IN)], None).unwrap();
            heard.extend(inlet.heard());
        }
        teller.join().unwrap();
        assert!(heard.into_iter().eq(0..ALL));
    }
}
