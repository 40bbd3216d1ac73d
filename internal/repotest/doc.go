// Package repotest keeps the repository's rules as tests: which package may import which,
// how long a function may be, that every package has a doc and a runnable example, that the
// documentation's links lead somewhere, and the keys and defaults it tells are those there are.
//
// A rule that must be broken is broken in the table of its test, with the reason beside it.
package repotest
