// Package top is the screen of `headpond top`: what a gateway does now.
//
//	err := top.Run(ctx, top.Options{Source: source, Input: os.Stdin, Output: os.Stdout})
//
// A Model has the state of the screen. Keys and answers of the gateway change it, and Frame draws it; it knows no terminal,
// no clock and no goroutine. Run is the shell around it: it asks the gateway, reads keys and writes frames.
//
// A row is known by its ID, the session's or the names of the others, never by its place: rows move between two answers.
package top
