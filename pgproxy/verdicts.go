package pgproxy

import (
	"hash/maphash"
	"sync/atomic"
)

// verdicts remembers judge's results for texts that come repeatedly, as those of programs do. Judging takes a
// microsecond for each 200 bytes, looking up a fraction of that. The zero value is empty. Any goroutine may use it.
type verdicts struct {
	at [maxVerdicts]atomic.Pointer[verdict]
	// missed has, for each place, the hash of the text that was not found there last. A text is kept when it is missed
	// a second time, so that a text that comes only once, because it has values in it, costs no memory.
	missed [maxVerdicts]atomic.Uint64
}

// verdict has what is known about a text.
type verdict struct {
	text  string
	by    uint32 // catalog.version
	left  traces // judge's result
	quiet bool   // see needsNoExamination
}

// needsNoExamination reports whether a text neither changes settings nor deallocates statements, so that it needs no
// further examination.
func needsNoExamination(text []byte) bool {
	return !settingsIn(text).any() && !firstWord(text, "set") && !mentionsDeallocate(text) && !sweeps(text)
}

// maxVerdicts is how many texts a backend's verdicts keep, and maxVerdictText how long they may be, in bytes:
// together 512 KiB. Few programs repeat more statements than that, and longer statements take the server so long that
// the time for judging them does not count.
const (
	maxVerdicts    = 256
	maxVerdictText = 2 << 10
)

// verdictSeed seeds the hashes of texts, so that clients cannot know which texts share a place.
var verdictSeed = maphash.MakeSeed()

// judge returns catalog.judge's result for the body of a message. quiet means that quietly returns true; for a text
// that has not been remembered, quiet is false unless the text is a plain one.
func (v *verdicts) judge(c *catalog, body []byte) (left traces, quiet bool) {
	left, quiet = v.judgeText(c, withoutNul(body))
	return left | c.parameters(body), quiet
}

// judgeText is judge for the text alone, without what follows it in the message.
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
		v.at[place].Store(&verdict{text: string(text), by: c.versionOf(), left: left, quiet: needsNoExamination(text)})
	}
	return left, false
}
