package jsonfield

import (
	"encoding/json"
	"strings"
	"unicode/utf8"
	"unsafe"
)

// Verdict tells how far an object has been read.
type Verdict int

const (
	// More: the object is not complete.
	More Verdict = iota
	// Complete: the object was read to its end. Bytes after it are ignored.
	Complete
	// Malformed: the bytes are not a JSON object, or it is nested more than 256 levels deep.
	Malformed
	// Ambiguous: the object has a wanted field twice.
	Ambiguous
)

// maxDepth bounds the nesting of objects and arrays.
const maxDepth = 256

// state is the next thing that a Scanner expects.
type state uint8

const (
	atTop       state = iota // the object
	atFirstKey               // a key, or the end of the object
	atKey                    // a key
	atColon                  //
	atValue                  //
	atFirstItem              // a value, or the end of the array
	atNext                   // a comma, or the end of the object or array
	inString                 //
	inEscape                 // after a backslash
	inHex                    // of \u, with left digits to come
	inLiteral                // of true, false or null
	afterMinus               // of a number, from here on
	afterZero                //
	inInteger                //
	afterPoint               //
	inFraction               //
	afterE                   //
	afterESign               //
	inExponent               //
)

// Scanner reads one object. It stores only wanted values. Reset reuses its memory.
type Scanner struct {
	plan    *Plan
	state   state
	verdict Verdict
	key     bool // the string is a key
	keeps   bool // the string, number or literal is kept in raw
	left    int  // hexadecimal digits still expected
	literal string

	depth  int                   // number of open objects and arrays
	arrays [maxDepth / 64]uint64 // which of them are arrays
	// frames are the open wanted objects, outermost first. The innermost open object is wanted if there are depth of
	// them.
	frames [MaxParts + 1]frame
	wanted int
	next   *node // node of the next value; nil if nothing in it is wanted

	prompt prompt

	at     int // offset of the byte that is being read
	begin  int // offset of the object
	opened int // the wanted field whose object or array was opened last; -1 = that one is not wanted

	raw    []byte // bytes of a key or value, as written
	values []value
	texts  []byte
}

type frame struct {
	node *node
	seen uint64 // children seen so far
}

// value is the value of a wanted field.
type value struct {
	found, text bool
	empty       bool // an object or array with nothing in it
	from, to    int  // in texts
	place       Place
}

// Place is where a value stands: offsets of its first byte and of the byte behind it, from the first byte that was fed. Of
// an object or array, To is behind its first byte.
type Place struct{ From, To int }

// Reset prepares the scanner for an object.
func (s *Scanner) Reset(p *Plan) {
	values := s.values[:0]
	for range p.fields {
		values = append(values, value{})
	}
	*s = Scanner{plan: p, raw: s.raw[:0], texts: s.texts[:0], values: values, prompt: prompt{hash: fnvOffset, hashes: s.prompt.hashes[:0]}}
}

// Found reports whether field i of the plan was found, whatever its value.
func (s *Scanner) Found(i int) bool { return s.values[i].found }

// Text returns the value of field i: strings decoded; numbers, true, false and null as written. ok is false if the
// field was not found, is an object or array, or is longer than MaxText. The text is valid until Reset.
func (s *Scanner) Text(i int) (string, bool) {
	v := s.values[i]
	return view(s.texts[v.from:v.to]), v.text
}

func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// Place returns where the value of field i is. ok is false if the field was not found.
func (s *Scanner) Place(i int) (p Place, ok bool) { return s.values[i].place, s.values[i].found }

// Empty reports whether the value of field i is an object or array with nothing in it.
func (s *Scanner) Empty(i int) bool { return s.values[i].empty }

// Start returns the offset of the object's first byte.
func (s *Scanner) Start() int { return s.begin }

// Feed reads the next bytes of the object. It does not keep b. Once the verdict is not More it does not change.
func (s *Scanner) Feed(b []byte) Verdict {
	base := s.at
	for i := 0; i < len(b) && s.verdict == More; {
		if s.state == inString && !s.keeps {
			n := plain(b[i:])
			if s.prompt.hashing {
				s.hashText(b[i : i+n])
			}
			if i += n; i == len(b) {
				break
			}
		}
		s.at = base + i
		if !s.step(b[i]) {
			continue // the byte ended a number: read it again
		}
		i++
	}
	s.at = base + len(b)
	return s.verdict
}

// plain returns the number of bytes before a quote, escape or control character.
func plain(b []byte) int {
	for i, c := range b {
		if c == '"' || c == '\\' || c < ' ' {
			return i
		}
	}
	return len(b)
}

// step reads c. It returns false if c ended a number and must be read again.
func (s *Scanner) step(c byte) bool {
	switch {
	case s.state == inString:
		s.inString(c)
		return true
	case s.state >= inEscape && s.state <= inLiteral:
		s.inText(c)
		return true
	case s.state > inLiteral:
		return s.inNumber(c)
	case c == ' ' || c == '\t' || c == '\n' || c == '\r':
		return true
	}
	s.between(c)
	return true
}

// between reads a byte outside strings, numbers and literals that is not a space.
func (s *Scanner) between(c byte) {
	switch {
	case s.state == atTop && c == '{':
		s.next, s.begin = &s.plan.root, s.at
		s.open(c)
	case (s.state == atFirstKey || s.state == atKey) && c == '"':
		s.key, s.state = true, inString
		s.keep(s.depth == s.wanted || s.looksForPrompt() && (s.depth == 1 || s.prompt.inside))
	case s.state == atFirstKey && c == '}', s.state == atFirstItem && c == ']':
		if s.opened >= 0 {
			s.values[s.opened].empty = true
		}
		s.close()
	case s.state == atColon && c == ':':
		s.state = atValue
	case s.state == atNext && c == ',':
		if s.state = atKey; s.inArray() {
			s.state = atValue
		}
	case s.state == atNext && (c == '}' && !s.inArray() || c == ']' && s.inArray()):
		s.close()
	case s.state == atValue || s.state == atFirstItem:
		s.value(c)
	default:
		s.verdict = Malformed
	}
}

// value begins a value.
func (s *Scanner) value(c byte) {
	if s.keep(s.next != nil && s.next.field >= 0); s.keeps {
		s.values[s.next.field].place.From = s.at
	}
	switch c {
	case '{', '[':
		s.open(c)
		return
	case '"':
		s.key, s.state = false, inString
		s.beginString()
		return
	case 't':
		s.state, s.literal = inLiteral, "rue"
	case 'f':
		s.state, s.literal = inLiteral, "alse"
	case 'n':
		s.state, s.literal = inLiteral, "ull"
	case '-':
		s.state = afterMinus
	case '0':
		s.state = afterZero
	default:
		if c < '1' || c > '9' {
			s.verdict = Malformed
			return
		}
		s.state = inInteger
	}
	s.add(c)
}

// keep begins a string, number or literal.
func (s *Scanner) keep(keeps bool) { s.keeps, s.raw = keeps, s.raw[:0] }

// add stores a byte if the value is wanted. It stores one byte more than the longest wanted name, to detect longer
// ones.
func (s *Scanner) add(c byte) {
	if s.prompt.hashing {
		s.hashText([]byte{c})
	}
	if s.keeps && len(s.raw) <= maxRaw {
		s.raw = append(s.raw, c)
	}
}

// open begins an object or array.
func (s *Scanner) open(c byte) {
	if s.depth == maxDepth {
		s.verdict = Malformed
		return
	}
	n := s.next
	s.next, s.opened = nil, -1
	if n != nil && n.field >= 0 {
		s.opened = n.field
		v := &s.values[n.field]
		v.found, v.place.To = true, s.at+1
	}
	bit := uint64(1) << (s.depth % 64)
	s.arrays[s.depth/64] &^= bit
	s.state = atFirstKey
	if c == '[' {
		s.arrays[s.depth/64] |= bit
		s.state = atFirstItem
	} else if n != nil && len(n.children) > 0 {
		s.frames[s.wanted] = frame{node: n}
		s.wanted++
	}
	s.depth++
}

// inArray reports whether the innermost open value is an array.
func (s *Scanner) inArray() bool {
	d := s.depth - 1
	return s.arrays[d/64]&(1<<(d%64)) != 0
}

// close ends an object or array.
func (s *Scanner) close() {
	if s.wanted == s.depth {
		s.wanted--
	}
	s.depth--
	if s.state = atNext; s.depth == 0 {
		s.verdict = Complete
	}
}

// inString reads a byte of a string.
func (s *Scanner) inString(c byte) {
	switch {
	case c == '"' && s.key:
		s.state = atColon
		s.endKey()
	case c == '"':
		s.endString()
		s.endValue(true)
	case c < ' ':
		s.verdict = Malformed
	default:
		if c == '\\' {
			s.state = inEscape
		}
		s.add(c)
	}
}

// inText reads a byte of an escape sequence or literal.
func (s *Scanner) inText(c byte) {
	s.add(c)
	switch s.state {
	case inEscape:
		switch c {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			s.state = inString
		case 'u':
			s.state, s.left = inHex, 4
		default:
			s.verdict = Malformed
		}
	case inHex:
		if !('0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F') {
			s.verdict = Malformed
		}
		if s.left--; s.left == 0 {
			s.state = inString
		}
	default:
		if c != s.literal[0] {
			s.verdict = Malformed
			return
		}
		if s.literal = s.literal[1:]; s.literal == "" {
			s.endValue(false)
		}
	}
}

// inNumber reads a byte of a number. It returns false if c does not belong to it.
func (s *Scanner) inNumber(c byte) bool {
	digit := '0' <= c && c <= '9'
	switch {
	case s.state == afterMinus && c == '0':
		s.state = afterZero
	case s.state == afterMinus && digit:
		s.state = inInteger
	case digit && (s.state == afterPoint || s.state == inFraction):
		s.state = inFraction
	case digit && (s.state == afterE || s.state == afterESign || s.state == inExponent):
		s.state = inExponent
	case digit && s.state == inInteger:
	case c == '.' && (s.state == afterZero || s.state == inInteger):
		s.state = afterPoint
	case (c == 'e' || c == 'E') && (s.state == afterZero || s.state == inInteger || s.state == inFraction):
		s.state = afterE
	case (c == '+' || c == '-') && s.state == afterE:
		s.state = afterESign
	case s.state == afterZero || s.state == inInteger || s.state == inFraction || s.state == inExponent:
		s.at-- // c is not a part of it
		s.endValue(false)
		return false
	default:
		s.verdict = Malformed
	}
	s.add(c)
	return true
}

// endKey looks the key up among the wanted fields.
func (s *Scanner) endKey() {
	s.next = nil
	if !s.keeps {
		return
	}
	name, ok := s.decoded()
	if s.looksForPrompt() {
		s.endPromptKey(name) // "" if it is longer than any wanted name
	}
	if !ok || s.depth != s.wanted {
		return
	}
	f := &s.frames[s.wanted-1]
	for i, c := range f.node.children {
		if !strings.EqualFold(c.name, name) {
			continue
		}
		if bit := uint64(1) << i; f.seen&bit != 0 {
			s.verdict = Ambiguous
		} else {
			f.seen |= bit
		}
		if c.name == name {
			s.next = c
		}
	}
}

// endValue stores a string, number or literal.
func (s *Scanner) endValue(quoted bool) {
	s.state = atNext
	n := s.next
	if s.next = nil; !s.keeps {
		return
	}
	v := &s.values[n.field]
	v.found, v.from, v.place.To = true, len(s.texts), s.at+1
	text, ok := view(s.raw), len(s.raw) <= MaxText
	if quoted {
		text, ok = s.decoded()
	}
	if ok {
		s.texts = append(s.texts, text...)
		v.text = true
	}
	v.to = len(s.texts)
}

// decoded returns the text of the string in raw, valid until raw changes. ok is false if it is longer than MaxText.
func (s *Scanner) decoded() (text string, ok bool) {
	switch {
	case len(s.raw) > maxRaw:
		return "", false
	case utf8.Valid(s.raw) && strings.IndexByte(view(s.raw), '\\') < 0:
		text = view(s.raw)
	default:
		text = unquoted(s.raw)
	}
	return text, len(text) <= MaxText
}

// unquoted decodes the content of a string with escapes, or with bytes that are not UTF-8, as encoding/json does.
func unquoted(raw []byte) string {
	var text string
	_ = json.Unmarshal([]byte(`"`+view(raw)+`"`), &text) // cannot fail: the scanner has accepted the string
	return text
}
