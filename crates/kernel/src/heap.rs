//! The heap of what ships: of plugins, which run for a few milliseconds, and of the daemon.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use dlmalloc::Dlmalloc;

/// How much memory to request from the kernel at a time, in bytes: what a plugin's call needs.
const GRANULARITY: usize = 256 * 1024;

/// How often a taken lock is tried before the thread yields: it is held for some dozen nanoseconds,
/// unless the thread that holds it was put aside.
const TRIES: u32 = 16;

/// An allocator behind a lock that costs next to nothing while only one thread runs, as in plugins
/// and most commands, and most of the time in the daemon. A second thread that finds the lock taken tries again, and yields in the end.
///
/// ```
/// #[global_allocator]
/// static HEAP: kernel::heap::Heap = kernel::heap::Heap::new();
/// # fn main() {}
/// ```
pub struct Heap {
    taken: AtomicBool,
    inner: UnsafeCell<Inner>,
}

struct Inner {
    blocks: Dlmalloc,
    asked: HeapRequests,
}

/// What a program has requested from a [`Heap`] since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeapRequests {
    /// The number of blocks, including resized ones.
    pub blocks: u64,
    /// Their total size in bytes, including freed ones.
    pub bytes: u64,
}

// SAFETY: `inner` is reached only through `Heap::with`, by the thread that has set `taken`.
unsafe impl Sync for Heap {}

impl Heap {
    /// An empty heap.
    #[must_use]
    pub const fn new() -> Self {
        let mut blocks = Dlmalloc::new();
        blocks.set_granularity(GRANULARITY);
        let inner = Inner { blocks, asked: HeapRequests { blocks: 0, bytes: 0 } };
        Self { taken: AtomicBool::new(false), inner: UnsafeCell::new(inner) }
    }

    /// Returns what has been requested so far.
    pub fn asked(&self) -> HeapRequests {
        self.with(|inner| inner.asked)
    }

    fn allocate(&self, size: usize, work: impl FnOnce(&mut Dlmalloc) -> *mut u8) -> *mut u8 {
        self.with(|inner| {
            inner.asked.blocks += 1;
            inner.asked.bytes += size as u64;
            work(&mut inner.blocks)
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        let mut tries = 0;
        while self.taken.swap(true, Ordering::Acquire) {
            if tries < TRIES {
                tries += 1;
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        // SAFETY: `taken` was false and is now true, so no other thread is here. `work` does not
        // allocate through this heap.
        let done = work(unsafe { &mut *self.inner.get() });
        self.taken.store(false, Ordering::Release);
        done
    }
}

impl Default for Heap {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heap").finish_non_exhaustive()
    }
}

// SAFETY: memory is Dlmalloc's. It hands out each block once until it is freed, with the requested
// size and alignment; a failure is a null pointer. Nothing here unwinds.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout has a size that is not zero.
        self.allocate(layout.size(), |heap| unsafe { heap.malloc(layout.size(), layout.align()) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        self.allocate(layout.size(), |heap| unsafe { heap.calloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller got the block from here, with this layout.
        self.with(|inner| unsafe { inner.blocks.free(block, layout.size(), layout.align()) });
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if size == 0 {
            return ptr::null_mut();
        }
        // SAFETY: the caller got the block from here, with this layout.
        self.allocate(size, |heap| unsafe {
            heap.realloc(block, layout.size(), layout.align(), size)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "they are about the same block")]
    fn threads_do_not_get_each_others_memory() {
        static HEAP: Heap = Heap::new();
        std::thread::scope(|scope| {
            for mark in 0..8_u8 {
                scope.spawn(move || {
                    for round in 1..500_usize {
                        let layout = Layout::from_size_align(round * 7, 16).unwrap();
                        let larger = Layout::from_size_align(round * 9, 16).unwrap();
                        // SAFETY: the block is written and read within its size, and freed once
                        // with the layout it has.
                        unsafe {
                            let block = HEAP.alloc(layout);
                            block.write_bytes(mark, layout.size());
                            std::thread::yield_now();
                            let block = HEAP.realloc(block, layout, larger.size());
                            let kept = std::slice::from_raw_parts(block, layout.size());
                            assert!(kept.iter().all(|byte| *byte == mark));
                            HEAP.dealloc(block, larger);
                            let zeroed = HEAP.alloc_zeroed(layout);
                            assert_eq!(zeroed.addr() % 16, 0);
                            let zeros = std::slice::from_raw_parts(zeroed, layout.size());
                            assert!(zeros.iter().all(|byte| *byte == 0));
                            HEAP.dealloc(zeroed, layout);
                        }
                    }
                });
            }
        });
    }
}
