package cli

import (
	"os"
	"slices"
	"testing"
)

// An idle program takes no memory for the code that only its start has run.
func TestIdleProgramGivesItsCodeBack(t *testing.T) {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	resident := func() (kib int) {
		smaps, err := os.ReadFile("/proc/self/smaps")
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range unchangedMappings(smaps, program) {
			kib += m.resident
		}
		return kib
	}
	before := resident()
	releaseProgramPages()
	if after := resident(); after >= before*3/4 {
		t.Errorf("%d KiB of the program are in memory, as before (%d KiB)", after, before)
	}
}

// Pages that differ from the file, as of a debugger's breakpoints or of addresses that were relocated, are kept, also those
// that are swapped out.
func TestChangedPagesAreKept(t *testing.T) {
	const smaps = `00400000-01aa2000 r-xp 00000000 fd:00 123  /bin/headpond
Rss:               17276 kB
Anonymous:             0 kB
Swap:                  0 kB
01aa3000-03535000 r--p 016a3000 fd:00 123  /bin/headpond
Rss:               13640 kB
Anonymous:             4 kB
Swap:                  0 kB
03535000-03600000 rw-p 03135000 fd:00 123  /bin/headpond
Rss:                 724 kB
Anonymous:             0 kB
Swap:                  0 kB
03600000-03700000 r--s 00000000 fd:00 124  /bin/headpond
Rss:                   4 kB
Anonymous:             0 kB
Swap:                  0 kB
03700000-03800000 r--p 00000000 fd:00 123  /bin/headpond
Rss:                   4 kB
Anonymous:             0 kB
Swap:                  8 kB
7f0000000000-7f0000010000 r--p 00000000 fd:00 125  /other/bin/headpond
Rss:                  64 kB
Anonymous:             0 kB
Swap:                  0 kB
c000000000-c000400000 rw-p 00000000 00:00 0
Rss:                3000 kB
Anonymous:          3000 kB
Swap:                  0 kB
`
	want := []mapping{{0x400000, 0x1aa2000, 17276}}
	if got := unchangedMappings([]byte(smaps), "/bin/headpond"); !slices.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
}
