// Package repotest checks the repository's rules: imports between packages, the length of
// functions, that every package has a doc and a runnable example, that links in the documentation
// work, and that its keys and defaults are those of the configuration.
//
// Exceptions from a rule are in the table of its test, with their reasons.
package repotest
