package jsonfield

// FNV-1a with 64 bits.
const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

// prompt hashes the text of a prompt: all strings in the top-level fields that hold it in requests to language models,
// without strings that are not text, such as "role" and "type". It finds the text of an answer in the same way.
type prompt struct {
	inside  bool // the current top-level field holds a part of the prompt
	text    bool // the next string is text of the prompt
	hashing bool // the current string is text of the prompt
	size    int  // bytes of the prompt so far, as written
	hash    uint64
	hashes  []uint64 // hashes of the prefixes that are complete
}

// isPrompt reports whether a field at the top of a request to a language model has its prompt, or a part of it.
func isPrompt(name string) bool {
	switch name {
	case "prompt", "messages", "input", "system", "instructions":
		return true
	}
	return false
}

// isAnswer reports whether a field at the top of an answer, or of an event of one, has text of the model, or a part of it.
func isAnswer(name string) bool { return name == "choices" || name == "delta" }

// isPromptText reports whether a string of that name, within a part of the prompt, is text.
func isPromptText(name string) bool { return name == "content" || name == "text" }

// isAnswerText reports whether a string of that name, within a part of the answer, was made by the model.
func isAnswerText(name string) bool {
	switch name {
	case "content", "text", "reasoning_content", "reasoning", "thinking", "refusal", "arguments", "partial_json":
		return true
	}
	return false
}

// looksForPrompt reports whether a wanted prefix is not complete, or the size of the text is wanted.
func (s *Scanner) looksForPrompt() bool { return s.plan.sized || s.hashes() }

// hashes reports whether a wanted prefix is not complete.
func (s *Scanner) hashes() bool { return len(s.prompt.hashes) < len(s.plan.prompts) }

// endPromptKey is called for each key while looksForPrompt.
func (s *Scanner) endPromptKey(name string) {
	holds, isText := isPrompt, isPromptText
	if s.plan.answers {
		holds, isText = isAnswer, isAnswerText
	}
	if s.depth == 1 {
		s.prompt.inside = holds(name)
		s.prompt.text = s.prompt.inside
	} else if s.prompt.inside {
		s.prompt.text = isText(name)
	}
}

// beginString is called for each string value.
func (s *Scanner) beginString() { s.prompt.hashing = s.prompt.text && s.looksForPrompt() }

// hashText adds text of the prompt.
func (s *Scanner) hashText(b []byte) {
	p := &s.prompt
	for i, c := range b {
		if !s.hashes() {
			if p.hashing = s.plan.sized; p.hashing {
				p.size += len(b) - i
			}
			return
		}
		p.hash = (p.hash ^ uint64(c)) * fnvPrime
		if p.size++; p.size == s.plan.prompts[len(p.hashes)] {
			p.hashes = append(p.hashes, p.hash)
		}
	}
}

// endString is called at the end of each string. A byte that no string contains separates strings.
func (s *Scanner) endString() {
	if s.prompt.hashing {
		s.prompt.hash *= fnvPrime // as for a zero
		s.prompt.hashing = false
	}
}

// Prompt returns the hash of the first bytes of the prompt found so far: as many as the i-th length of the plan, or all
// if the prompt is shorter. ok is false if there is no prompt. The prompt is the text of the top-level fields
// "messages", "prompt", "input", "system" and "instructions", in the order of the object and as written: all strings,
// but of objects within them only "content" and "text".
func (s *Scanner) Prompt(i int) (hash uint64, ok bool) {
	if i < len(s.prompt.hashes) {
		return s.prompt.hashes[i], true
	}
	return s.prompt.hash, s.prompt.size > 0
}

// TextSize returns the bytes of the text found so far, as written: of the prompt (Plan.WithPromptSize; see Prompt for what
// belongs to it), or of the model (Plan.WithAnswer).
func (s *Scanner) TextSize() int { return s.prompt.size }

// Enough reports whether all wanted data was found.
func (s *Scanner) Enough() bool { return s.plan.fields == 0 && !s.looksForPrompt() }
