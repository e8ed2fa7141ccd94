//! The only code that names lapin.
