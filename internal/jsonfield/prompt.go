package jsonfield

// FNV-1a with 64 bits.
const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

// prompt hashes the text of a prompt: all strings in the top-level fields that hold it in requests to language models,
// without strings that are not text, such as "role" and "type".
type prompt struct {
	inside  bool // the field at the top is one of them
	text    bool // the next string is text of the prompt
	hashing bool // the string is
	size    int  // bytes of it, as they are written
	hash    uint64
	hashes  []uint64 // of the prefixes that were wanted and are passed
}

// isPrompt reports whether a field at the top of a request to a language model has its prompt, or a part of it.
func isPrompt(name string) bool {
	switch name {
	case "prompt", "messages", "input", "system", "instructions":
		return true
	}
	return false
}

// looksForPrompt reports whether there are prefixes that are wanted and not passed.
func (s *Scanner) looksForPrompt() bool { return len(s.prompt.hashes) < len(s.plan.prompts) }

// endPromptKey is called with each key while a prompt is looked for.
func (s *Scanner) endPromptKey(name string) {
	if s.depth == 1 {
		s.prompt.inside = isPrompt(name)
		s.prompt.text = s.prompt.inside
	} else if s.prompt.inside {
		s.prompt.text = name == "content" || name == "text"
	}
}

// beginString is called for each string that is a value.
func (s *Scanner) beginString() { s.prompt.hashing = s.prompt.text && s.looksForPrompt() }

// hashText adds text of the prompt.
func (s *Scanner) hashText(b []byte) {
	p := &s.prompt
	for _, c := range b {
		p.hash = (p.hash ^ uint64(c)) * fnvPrime
		if p.size++; p.size == s.plan.prompts[len(p.hashes)] {
			if p.hashes = append(p.hashes, p.hash); !s.looksForPrompt() {
				p.hashing = false
				return
			}
		}
	}
}

// endString is called at the end of each string: strings are separated by a byte that no string
// has.
func (s *Scanner) endString() {
	if s.prompt.hashing {
		s.prompt.hash *= fnvPrime // as for a zero
		s.prompt.hashing = false
	}
}

// Prompt returns the hash of the first bytes of the prompt that the object has so far: the i-th length of the plan, or
// all if there are fewer. It is false if there are none. The prompt is the text of the fields "messages", "prompt",
// "input", "system" and "instructions" at the top, in the order of the object, as it is written: strings, and of
// objects within them those called "content" or "text".
func (s *Scanner) Prompt(i int) (hash uint64, ok bool) {
	if i < len(s.prompt.hashes) {
		return s.prompt.hashes[i], true
	}
	return s.prompt.hash, s.prompt.size > 0
}

// Enough reports whether nothing more is wanted.
func (s *Scanner) Enough() bool { return s.plan.fields == 0 && !s.looksForPrompt() }
