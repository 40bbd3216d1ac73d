package cli

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// mapping is a range of this process's memory that shows a file.
type mapping struct {
	start, end uintptr
	resident   int // KiB
}

// releaseProgramPages tells the kernel that the program's code and constants are not needed at the moment. Those that
// are come back from the page cache when they are next used. Most are used only at the start: each package that is
// linked in initialises itself, and a page brings its neighbours into memory.
func releaseProgramPages() {
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return
	}
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	for _, m := range unchangedMappings(smaps, program) {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED) // advice: without it nothing is lost
	}
}

// unchangedMappings returns the ranges of smaps, as in proc(5), which show file, cannot be written to, and have no page
// that differs from the file, in memory or swapped out, as those with a debugger's breakpoint or with relocated addresses
// do: a page given back is read from the file again.
func unchangedMappings(smaps []byte, file string) []mapping {
	var all []mapping
	var last *mapping // whose properties follow
	for line := range bytes.Lines(smaps) {
		switch {
		case line[0] >= '0' && line[0] <= '9', line[0] >= 'a' && line[0] <= 'f': // the names of properties are upper case
			var m mapping
			var access string
			last = nil
			if _, err := fmt.Sscanf(string(line), "%x-%x %s", &m.start, &m.end, &access); err == nil &&
				bytes.HasSuffix(line, []byte(" "+file+"\n")) && strings.HasSuffix(access, "p") && !strings.Contains(access, "w") {
				last = &m
			}
		case last == nil:
		case bytes.HasPrefix(line, []byte("Rss:")):
			last.resident = kibOf(line)
		case bytes.HasPrefix(line, []byte("Anonymous:")) && kibOf(line) > 0:
			last = nil
		case bytes.HasPrefix(line, []byte("Swap:")): // it follows the others
			if kibOf(line) == 0 {
				all = append(all, *last)
			}
			last = nil
		}
	}
	return all
}

// kibOf returns the number of a line such as "Rss:   12 kB".
func kibOf(line []byte) (kib int) {
	_, number, _ := bytes.Cut(line, []byte(":"))
	_, _ = fmt.Sscanf(string(number), "%d", &kib)
	return kib
}
