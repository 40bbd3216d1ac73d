// Package report prints results: as tables in a terminal, and as one HTML page without other files.
package report
