// Package repotest keeps the repository's rules as tests: which package may import which, how long
// a function may be, that every package has a doc and a runnable example, that the documentation's
// links work, and that its keys and defaults are the configuration's.
//
// Exceptions from a rule are in the table of its test, with their reasons.
package repotest
