//! What must not compile: an outbox record that is added outside a transaction.

#[test]
fn adding_to_an_outbox_without_an_open_transaction_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
