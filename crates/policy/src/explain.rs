pub fn explain() {}
