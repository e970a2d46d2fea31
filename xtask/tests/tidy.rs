//! The tree keeps its own invariants.

#[test]
fn the_tree_is_tidy() {
    if let Err(message) = xtask::tidy::run(&xtask::root()) {
        panic!("{message}");
    }
}
