package top

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/headpond/headpond/gateway/admin"
)

// Key is a key: the character, or the name of another.
type Key string

// Keys that are no characters.
const (
	KeyUp        Key = "up"
	KeyDown      Key = "down"
	KeyPageUp    Key = "page up"
	KeyPageDown  Key = "page down"
	KeyHome      Key = "home"
	KeyEnd       Key = "end"
	KeyEnter     Key = "enter"
	KeyEscape    Key = "escape"
	KeyTab       Key = "tab"
	KeyBackspace Key = "backspace"
	KeyInterrupt Key = "^C"
	KeyRedraw    Key = "^L"
	KeyClear     Key = "^U"
	KeySuspend   Key = "^Z"
	keyUnknown   Key = "unknown"
)

// sequences are what terminals send for keys, after ESC and "[" or "O".
var sequences = map[string]Key{
	"A": KeyUp, "B": KeyDown, "H": KeyHome, "F": KeyEnd, "1~": KeyHome, "7~": KeyHome, "4~": KeyEnd, "8~": KeyEnd, "5~": KeyPageUp, "6~": KeyPageDown, "M": KeyEnter,
}

// controls are the keys of control characters.
var controls = map[byte]Key{
	'\r': KeyEnter, '\n': KeyEnter, '\t': KeyTab, 0x7f: KeyBackspace, 0x08: KeyBackspace, 0x03: KeyInterrupt, 0x0c: KeyRedraw, 0x15: KeyClear, 0x1a: KeySuspend,
}

// maxSequence bounds what is kept of a key that is not complete: no sequence is longer.
const maxSequence = 32

// decode returns the keys of what a terminal has sent. rest is the beginning of a key whose end has not come; with last
// there is none, and an ESC stands for itself.
func decode(input []byte, last bool) (keys []Key, rest []byte) {
	for len(input) > 0 {
		k, n := decodeKey(input, last || len(input) > maxSequence)
		if n == 0 {
			return keys, input
		}
		keys, input = append(keys, k), input[n:]
	}
	return keys, nil
}

// decodeKey returns the first key and its length, 0 if its end has not come.
func decodeKey(input []byte, last bool) (Key, int) {
	switch c := input[0]; {
	case c == 0x1b:
		return decodeEscape(input, last)
	case c < ' ' || c == 0x7f:
		if k, ok := controls[c]; ok {
			return k, 1
		}
		return keyUnknown, 1
	}
	if !utf8.FullRune(input) && !last {
		return "", 0
	}
	r, n := utf8.DecodeRune(input)
	if r == utf8.RuneError {
		return keyUnknown, n
	}
	return Key(string(r)), n
}

// decodeEscape is decodeKey for what begins with ESC.
func decodeEscape(input []byte, last bool) (Key, int) {
	switch {
	case len(input) == 1 && !last:
		return "", 0
	case len(input) == 1 || input[1] != '[' && input[1] != 'O':
		return KeyEscape, 1
	}
	for i := 2; i < len(input); i++ {
		if c := input[i]; c >= '@' && c <= '~' {
			if k, ok := sequences[string(input[2:i+1])]; ok {
				return k, i + 1
			}
			return keyUnknown, i + 1
		}
	}
	if last {
		return KeyEscape, len(input)
	}
	return "", 0
}

// Press handles a key.
func (m *Model) Press(k Key) []Action {
	switch k {
	case KeyInterrupt:
		return []Action{{Do: Quit}}
	case KeySuspend:
		return []Action{{Do: Suspend}}
	case KeyRedraw:
		return []Action{{Do: Redraw}}
	case keyUnknown:
		return nil
	}
	m.message = ""
	switch {
	case m.asked != nil:
		return m.answer(k)
	case m.typing != nil:
		return m.edit(k)
	case m.help:
		m.help = false
		return nil
	case m.details != "" && (k == KeyEscape || k == "q" || k == KeyEnter):
		m.details = ""
		return []Action{{Do: Poll}}
	case m.details != "" && k != "k" && k != "p" && k != "?":
		return nil
	}
	return m.command(k)
}

// answer handles the answer to "y/n".
func (m *Model) answer(k Key) []Action {
	id := m.asked.id
	m.asked = nil
	if k != "y" && k != "Y" {
		m.say("nothing was ended")
		return nil
	}
	return []Action{{Do: Kill, ID: id}}
}

// maxFilter bounds the text of a filter, in bytes.
const maxFilter = 100

// edit handles a key while the filter is being typed.
func (m *Model) edit(k Key) []Action {
	s := m.state()
	switch r, n := utf8.DecodeRuneInString(string(k)); {
	case k == KeyEnter:
		m.typing = nil
		return nil
	case k == KeyEscape:
		s.filter, m.typing = *m.typing, nil
	case k == KeyBackspace:
		_, n := utf8.DecodeLastRuneInString(s.filter)
		s.filter = s.filter[:len(s.filter)-n]
	case k == KeyClear:
		s.filter = ""
	case n == len(k) && unicode.IsPrint(r) && len(s.filter)+n <= maxFilter:
		s.filter += string(k)
	default:
		return nil
	}
	return m.refresh()
}

// command handles a key of the table.
func (m *Model) command(k Key) []Action {
	s := m.state()
	switch k {
	case "q":
		return []Action{{Do: Quit}}
	case "?", "h":
		m.help = true
	case "1", "2", "3", "4", "5":
		return m.show(View(k[0] - '1'))
	case KeyTab:
		return m.show((m.view + 1) % View(views))
	case KeyUp, KeyDown, KeyPageUp, KeyPageDown, KeyEnd:
		return m.move(k)
	case KeyHome:
		s.selected, s.at, s.top, s.all = "", 0, 0, false
		return m.refresh()
	case KeyEscape:
		s.selected, s.filter, s.all = "", "", false
		m.states = 0
		return m.refresh()
	case KeyEnter:
		if s.selected == "" {
			m.say("choose a row with ↑ and ↓ first")
			return nil
		}
		m.details = s.selected
		return []Action{{Do: Poll}}
	case "/":
		before := s.filter
		m.typing = &before
	case "<", ">", "r", "s":
		return m.arrange(k)
	case "p", " ":
		if m.paused = !m.paused; !m.paused {
			return []Action{{Do: Poll}}
		}
	case "+", "-":
		m.faster(k == "-")
	case "k":
		m.askKill()
	}
	return nil
}

// show changes the view.
func (m *Model) show(v View) []Action {
	m.view = v
	return m.refresh()
}

// refresh shows what a key has changed: sessions come from the gateway.
func (m *Model) refresh() []Action {
	if m.view == Sessions && m.queried != m.Query() {
		return []Action{{Do: Poll}}
	}
	return m.follow()
}

// move moves the cursor.
func (m *Model) move(k Key) []Action {
	s, rows := m.state(), m.table().rows
	if len(rows) == 0 {
		return nil
	}
	at := map[Key]int{KeyUp: s.at - 1, KeyDown: s.at + 1, KeyPageUp: s.at - m.room(), KeyPageDown: s.at + m.room(), KeyEnd: len(rows) - 1}[k]
	if s.selected == "" && k != KeyEnd {
		at = s.top // the cursor appears
	}
	s.at = max(min(at, len(rows)-1), 0)
	s.selected = rows[s.at].id
	m.scroll(len(rows))
	if m.view == Sessions && m.queried != m.Query() {
		return []Action{{Do: Poll}} // further sessions
	}
	return nil
}

// arrange changes the order, or which states are shown.
func (m *Model) arrange(k Key) []Action {
	s, n := m.state(), len(orders[m.view])
	switch k {
	case "<":
		s.order, s.reversed = (s.order+n-1)%n, false
	case ">":
		s.order, s.reversed = (s.order+1)%n, false
	case "r":
		s.reversed = !s.reversed
	case "s":
		if m.view != Sessions {
			m.say("only sessions have states to choose from: key 2")
			return nil
		}
		m.states = (m.states + 1) % len(sessionStates)
	}
	return m.refresh()
}

// faster chooses the next shorter interval, or the next longer one.
func (m *Model) faster(shorter bool) {
	longer := slices.IndexFunc(intervals, func(d time.Duration) bool { return d > m.Interval })
	if shorter {
		longer, _ = slices.BinarySearch(intervals, m.Interval)
		longer--
	}
	if longer >= 0 {
		m.Interval = intervals[longer]
	}
}

// askKill asks whether the selected session is to be ended.
func (m *Model) askKill() {
	id := m.state().selected
	if m.details != "" {
		id = m.details
	}
	i := slices.IndexFunc(m.sessions.Sessions, func(c admin.Session) bool { return c.ID == id })
	switch {
	case m.view != Sessions:
		m.say("only sessions can be ended: key 2")
	case id == "":
		m.say("choose a session with ↑ and ↓ first")
	case i < 0:
		m.say(fmt.Sprintf("session %s has ended", id))
	default:
		c := &m.sessions.Sessions[i]
		m.asked = &target{id, strings.Join([]string{c.Who(), "from", c.Client + ",", c.Doing(), "for", Age(c.StateSeconds)}, " ")}
	}
}
