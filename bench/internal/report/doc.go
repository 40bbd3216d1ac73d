// Package report shows results: as tables in a terminal and as one page of HTML that needs nothing else.
package report
