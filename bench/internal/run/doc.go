// Package run measures the arms of each case alternately, A B C A B C. It keeps completed rounds through an interrupt
// and estimates the remaining time.
package run
