package pgproxy

import (
	"hash/maphash"
	"sync/atomic"
)

// verdicts remember what judge says of texts that come again and again, as those of programs do: reading one of them takes a microsecond for
// each 200 bytes, and finding it here a fraction of that. The zero value is empty. Any goroutine may use it.
type verdicts struct {
	at [maxVerdicts]atomic.Pointer[verdict]
	// missed has the hash of the text that was last missing in each place. A text is kept when it is missing a second time: one that never comes
	// again, because of the values in it, costs no memory.
	missed [maxVerdicts]atomic.Uint64
}

// verdict is what is known of a text.
type verdict struct {
	text  string
	by    uint32 // catalog.version
	left  traces // as judge has it
	quiet bool   // see quietly
}

// quietly reports whether a text says nothing of settings, and of statements that are deallocated: then it needs no further looks.
func quietly(text []byte) bool {
	return !settingsIn(text).any() && !firstWord(text, "set") && !mentionsDeallocate(text) && !sweeps(text)
}

// maxVerdicts is how many texts a backend's verdicts have, and maxVerdictText how long they may be, in bytes: together 512 KiB. Few programs
// have more statements than that which they repeat, and longer ones take the server so long that judging them is nothing.
const (
	maxVerdicts    = 256
	maxVerdictText = 2 << 10
)

// verdictSeed is that of the hashes of texts: clients cannot know which texts share a place.
var verdictSeed = maphash.MakeSeed()

// judge is judge for a text that may have come before. quiet means that quietly is true; it is unknown for a text that has not come before,
// and always true for a plain one.
func (v *verdicts) judge(c *catalog, body []byte) (left traces, quiet bool) {
	left, quiet = v.judgeText(c, withoutNul(body))
	return left | c.parameters(body), quiet
}

// judgeText is judge for a text without what comes behind it.
func (v *verdicts) judgeText(c *catalog, text []byte) (left traces, quiet bool) {
	if left, ok := c.judgePlain(text); ok {
		return left, true
	}
	if len(text) > maxVerdictText {
		return c.judge(text), false
	}
	hash := maphash.Bytes(verdictSeed, text)
	place := hash % maxVerdicts
	if known := v.at[place].Load(); known != nil && known.by == c.versionOf() && known.text == string(text) {
		return known.left, known.quiet
	}
	left = c.judgeWhole(text)
	if v.missed[place].Swap(hash) == hash {
		v.at[place].Store(&verdict{text: string(text), by: c.versionOf(), left: left, quiet: quietly(text)})
	}
	return left, false
}
