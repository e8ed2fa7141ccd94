//! How a close ended.

/// What a close left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shutdown {
    pub(crate) abandoned: usize,
}

impl Shutdown {
    /// Returns whether every running handler finished in time.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.abandoned == 0
    }

    /// Returns how many handlers were abandoned at the deadline. Their messages were not
    /// acknowledged: the broker delivers them again.
    #[must_use]
    pub fn abandoned(&self) -> usize {
        self.abandoned
    }
}
