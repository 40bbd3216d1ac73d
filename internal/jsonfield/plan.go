package jsonfield

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits of a Plan and of a Scanner's memory.
const (
	MaxFields = 32  // of a Plan: each costs a comparison for each key
	MaxParts  = 8   // of a field's path
	MaxText   = 256 // bytes of a name, or of a value that can be compared
	maxRaw    = 6 * MaxText
	// MaxPrompt bounds the prefix of a prompt: common prefixes of many requests are shorter.
	MaxPrompt = 64 << 10
)

// Plan says which fields are wanted. It is immutable, so any number of Scanners may use it.
type Plan struct {
	root    node
	fields  int
	prompts []int // lengths of prefixes of the prompt, rising
	answers bool  // the text is that of an answer
	sized   bool  // the size of the text is wanted
}

// node is an object that may have wanted fields, or one of them.
type node struct {
	name     string
	field    int // index of the field; -1 if the node itself is not wanted
	children []*node
}

// NewPlan makes a plan of paths: a name at the top of the object, or names of objects within objects with dots between
// them. A name with a dot in it cannot be asked for.
func NewPlan(paths []string) (*Plan, error) {
	if len(paths) > MaxFields {
		return nil, fmt.Errorf("%d fields; at most %d are possible", len(paths), MaxFields)
	}
	p := &Plan{root: node{field: -1}, fields: len(paths)}
	for i, path := range paths {
		if err := CheckPath(path); err != nil {
			return nil, fmt.Errorf("field %.40q: %w", path, err)
		}
		n := &p.root
		for name := range strings.SplitSeq(path, ".") {
			n = n.child(name)
		}
		if n.field >= 0 {
			return nil, fmt.Errorf("field %.40q: is there twice", path)
		}
		n.field = i
	}
	return p, nil
}

// CheckPath returns the problem of a field's path, or nil.
func CheckPath(path string) error {
	parts := strings.Split(path, ".")
	if len(parts) > MaxParts {
		return fmt.Errorf("has %d parts; at most %d are possible", len(parts), MaxParts)
	}
	for _, name := range parts {
		switch {
		case name == "":
			return fmt.Errorf("want a name, or names with a dot between two")
		case len(name) > MaxText || !utf8.ValidString(name):
			return fmt.Errorf("a name is text of at most %d bytes", MaxText)
		}
	}
	return nil
}

// WithPrompts returns a copy of p that also wants hashes of prefixes of the prompt. lengths are their lengths in bytes,
// from 1 to MaxPrompt, increasing. See Scanner.Prompt.
func (p *Plan) WithPrompts(lengths []int) *Plan {
	with := *p
	with.prompts = lengths
	return &with
}

// WithPromptSize returns a copy of p that also wants the size of the prompt; see Scanner.TextSize.
func (p *Plan) WithPromptSize() *Plan {
	with := *p
	with.sized = true
	return &with
}

// WithAnswer returns a copy of p that also looks for text of the model in its answer, or in an event of a streamed one;
// see Scanner.TextSize. That is the content, reasoning, refusal or arguments of a tool in a choice ("choices"), or in a
// piece of them ("delta"), as OpenAI and Anthropic name them.
func (p *Plan) WithAnswer() *Plan {
	with := *p
	with.prompts, with.answers, with.sized = nil, true, true
	return &with
}

// child returns the child of that name. It creates a missing one.
func (n *node) child(name string) *node {
	for _, c := range n.children {
		if c.name == name {
			return c
		}
	}
	c := &node{name: name, field: -1}
	n.children = append(n.children, c)
	return c
}
