// Package logfile writes lines to files that may be slow, full or stopped, for callers that must not wait.
//
// A [File] takes lines from any goroutine into chunks of memory, and one goroutine writes these. Each shard of a File has a chunk of its
// own, so that the lines of different threads meet in no lock. Lines that find no room, or that cannot be written, are lost and
// counted; the log of the program gets their number, at most once a minute.
//
// A [Set] has the files of one program by their paths, so that several users of a path share a File. [Set.Open] opens files before
// anything is changed, which also reopens those in use, as a tool that rotates logs wants it.
package logfile
