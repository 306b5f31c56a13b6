//! No code. The tests of the packages turn on features of dependencies that the facade does not need.
//! The facade's examples depend on this package, which turns on the same ones. So the tests after
//! the quickstart build none of its dependencies a second time.
