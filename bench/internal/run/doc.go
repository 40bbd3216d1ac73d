// Package run takes the arms of each case in turn, A B C A B C, keeps what is finished through an interrupt, and tells how long it
// will still take.
package run
