// Package logfile writes lines to files that may be slow, full or stopped, for callers that must not wait.
//
// A [File] takes lines from any goroutine into chunks of memory, and one goroutine writes the chunks.
// Each shard of a File has its own chunk, so that lines of different threads do not contend for a
// lock. Lines that find no room, or that cannot be written, are lost and counted; the program's log
// gets their number, at most once a minute.
//
// A [Set] has the files of one program by their paths, so that several users of a path share a File.
// [Set.Open] opens files before anything is changed. It also reopens files in use, as tools that
// rotate logs require.
package logfile
