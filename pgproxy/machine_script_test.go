package pgproxy_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

var rewrite = flag.Bool("rewrite", false, "write the machine's behaviour into testdata/machine; commit it only if you understand what changed")

// TestMachineScripts plays the conversations in testdata/machine. A line "client> Message" is a message of the client, "b> Message" of
// the client b, "server> Message" of the server connection that client has leased, "b< Message" of the one that b has. The indented lines
// below say what the machine does. Directives: "mode session", "server NAME [STATEMENTS]", and "left CLIENT [KIND]": what looks find in the server
// connection that a client has leased; "also": all of Config.PinAlso; "set CLIENT NAME=VALUE …": which settings looks find there; and "others":
// other clients and server connections follow.
func TestMachineScripts(t *testing.T) {
	if *record {
		recordConversations(t)
	}
	files, err := filepath.Glob("testdata/machine/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			script, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := playMachine(t, string(script))
			if *rewrite {
				err = os.WriteFile(file, []byte(got), 0o644)
			} else if got != string(script) {
				err = fmt.Errorf("the machine does otherwise:\n%s", firstDifference(string(script), got))
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// settingsIn reads a list of settings.
func settingsIn(list string) (rows []pgwire.Param) {
	for word := range strings.FieldsSeq(list) {
		name, value, _ := strings.Cut(word, "=")
		rows = append(rows, pgwire.Param{Name: name, Value: value})
	}
	return rows
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range g {
		if i >= len(w) || w[i] != g[i] {
			from := max(0, i-5)
			return fmt.Sprintf("line %d: want\n%s\ngot\n%s", i+1, strings.Join(w[from:min(len(w), i+3)], "\n"), strings.Join(g[from:min(len(g), i+3)], "\n"))
		}
	}
	return "it ends early"
}

// player plays one script.
type player struct {
	t       *testing.T
	out     strings.Builder
	pool    *pgproxy.FakePool
	mode    pgproxy.Mode
	clients map[string]*pgproxy.Machine
}

func playMachine(t *testing.T, script string) string {
	p := &player{t: t, pool: new(pgproxy.FakePool), clients: map[string]*pgproxy.Machine{}}
	for line := range strings.Lines(script) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "  ") {
			continue
		}
		p.out.WriteString(line + "\n")
		word, rest, _ := strings.Cut(line, " ")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case word == "mode":
			p.mode = pgproxy.Session
		case line == "others":
			p.pool, p.clients = new(pgproxy.FakePool), map[string]*pgproxy.Machine{}
		case line == "also":
			p.pool.PinAlso(pinAll)
		case word == "left":
			name, kind, _ := strings.Cut(rest, " ")
			p.clients[name].Leased().Leave(kind)
		case word == "set":
			name, list, _ := strings.Cut(rest, " ")
			p.clients[name].Leased().Rows = func() []pgwire.Param { return settingsIn(list) }
		case word == "server" && rest != "":
			p.addServer(rest)
		case strings.HasSuffix(word, ">") && word != "server>":
			p.client(strings.TrimSuffix(word, ">"), rest)
		case word == "server>" || strings.HasSuffix(word, "<"):
			name := "client"
			if word != "server>" {
				name = strings.TrimSuffix(word, "<")
			}
			p.server(name, rest)
		default:
			t.Fatalf("what is %q?", line)
		}
	}
	return new(ownNames).number(p.out.String())
}

func (p *player) say(format string, args ...any) { fmt.Fprintf(&p.out, "  "+format+"\n", args...) }

func (p *player) addServer(line string) {
	words := strings.Fields(line)
	limit := 200
	if len(words) > 1 {
		limit, _ = strconv.Atoi(words[1])
	}
	p.pool.NewServer(words[0], limit, func(b []byte) { p.say("to server: %s", textOf(b, true)) }, func(string) {})
}

// machine returns the client of a name.
func (p *player) machine(name string) (*pgproxy.Machine, func([]byte)) {
	m := p.clients[name]
	if m == nil {
		m = pgproxy.NewMachine(p.pool, p.mode, p.say)
		p.clients[name] = m
	}
	return m, func(b []byte) { p.say("to %s: %s", name, textOf(b, false)) }
}

func (p *player) client(name, line string) {
	m, toClient := p.machine(name)
	if _, err := m.Client(p.parse(line), toClient); err != nil {
		p.say("error: %v", err)
	}
}

func (p *player) server(name, line string) {
	m, toClient := p.machine(name)
	if m.Leased() == nil {
		p.t.Fatalf("%s\n%s has no server connection to say %q", p.out.String(), name, line)
	}
	if err := m.Server(p.parse(line), toClient); err != nil {
		p.say("error: %v", err)
		return
	}
	if _, err := m.Resume(toClient); err != nil {
		p.say("error: %v", err)
	}
	m.Settle()
}

// parse makes a message of a line: its name as package pgwire has it, and its fields.
func (p *player) parse(line string) []byte {
	words := fields(line)
	arg := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	object := func() byte { return arg(1)[0] }
	var m pgwire.Message
	switch words[0] {
	case "Query":
		m = query(arg(1))
	case "Parse":
		m = &pgwire.Parse{Name: arg(1), Query: arg(2)}
	case "Bind":
		m = &pgwire.Bind{Portal: arg(1), Statement: arg(2)}
	case "Describe":
		m = &pgwire.Describe{Object: object(), Name: arg(2)}
	case "Close":
		m = &pgwire.Close{Object: object(), Name: arg(2)}
	case "Execute":
		m = &pgwire.Execute{Portal: arg(1)}
	case "CopyFail":
		m = &pgwire.CopyFail{Message: arg(1)}
	case "CopyData":
		m = &pgwire.CopyData{Data: []byte(arg(1))}
	case "FunctionCall":
		m = &pgwire.FunctionCall{}
	case "CommandComplete":
		m = &pgwire.CommandComplete{Tag: arg(1)}
	case "ReadyForQuery":
		m = &pgwire.ReadyForQuery{Status: pgwire.TxStatus(arg(1)[0])}
	case "ErrorResponse":
		m = errorOf(arg(1))
	case "Fatal":
		m = &pgwire.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: arg(1), Message: "over"}
	case "RowDescription":
		m = &pgwire.RowDescription{Fields: []pgwire.Field{{Name: arg(1), TypeOID: 25}}}
	case "DataRow":
		m = &pgwire.DataRow{Values: [][]byte{[]byte(arg(1))}}
	case "ParameterDescription":
		m = &pgwire.ParameterDescription{}
	case "ParameterStatus":
		m = &pgwire.ParameterStatus{Name: arg(1), Value: arg(2)}
	default:
		return p.plain(line)
	}
	return bytesOf(m)
}

// fields splits a line at spaces; "..." may have some.
func fields(line string) (words []string) {
	for line = strings.TrimSpace(line); line != ""; line = strings.TrimSpace(line) {
		if word, err := strconv.QuotedPrefix(line); err == nil {
			text, _ := strconv.Unquote(word)
			words, line = append(words, text), line[len(word):]
			continue
		}
		word, rest, _ := strings.Cut(line, " ")
		words, line = append(words, word), rest
	}
	return words
}

// plain are the messages without fields that matter, by name and type.
func (p *player) plain(line string) []byte {
	for _, m := range plainMessages {
		if m.name == line {
			return bytesOf(m.message)
		}
	}
	p.t.Fatalf("no message %q", line)
	return nil
}

var plainMessages = []struct {
	name    string
	message pgwire.Message
}{
	{"Sync", &pgwire.Sync{}}, {"Flush", &pgwire.Flush{}}, {"Terminate", &pgwire.Terminate{}}, {"CopyDone", &pgwire.CopyDone{}},
	{"ParseComplete", &pgwire.ParseComplete{}}, {"BindComplete", &pgwire.BindComplete{}}, {"CloseComplete", &pgwire.CloseComplete{}},
	{"NoData", &pgwire.NoData{}}, {"EmptyQueryResponse", &pgwire.EmptyQueryResponse{}}, {"PortalSuspended", &pgwire.PortalSuspended{}},
	{"CopyInResponse", &pgwire.CopyInResponse{}}, {"CopyOutResponse", &pgwire.CopyOutResponse{}}, {"CopyBothResponse", &pgwire.CopyBothResponse{}},
	{"FunctionCallResponse", &pgwire.FunctionCallResponse{}}, {"NoticeResponse", &pgwire.NoticeResponse{}},
	{"NotificationResponse", &pgwire.NotificationResponse{Channel: "c"}},
}

// messageNames are the names of messages by their type: of clients, and of servers.
var messageNames = [2]map[byte]string{
	{
		'Q': "Query", 'P': "Parse", 'B': "Bind", 'D': "Describe", 'E': "Execute", 'C': "Close", 'S': "Sync", 'H': "Flush",
		'd': "CopyData", 'c': "CopyDone", 'f': "CopyFail", 'F': "FunctionCall", 'X': "Terminate",
	},
	{
		'1': "ParseComplete", '2': "BindComplete", '3': "CloseComplete", 'T': "RowDescription", 't': "ParameterDescription", 'n': "NoData",
		'D': "DataRow", 'C': "CommandComplete", 'Z': "ReadyForQuery", 'E': "ErrorResponse", 'I': "EmptyQueryResponse", 's': "PortalSuspended",
		'G': "CopyInResponse", 'H': "CopyOutResponse", 'W': "CopyBothResponse", 'd': "CopyData", 'c': "CopyDone", 'V': "FunctionCallResponse",
		'N': "NoticeResponse", 'A': "NotificationResponse", 'S': "ParameterStatus",
	},
}

// textOf describes a message.
func textOf(b []byte, ofClient bool) string {
	names, strs := messageNames[1], bytes.Split(b[5:], []byte{0})
	if ofClient {
		names = messageNames[0]
	}
	name, n := names[b[0]], 0
	switch name {
	case "Parse", "Bind", "ParameterStatus":
		n = 2
	case "Query", "Execute", "CommandComplete", "ReadyForQuery":
		n = 1
	case "Close", "Describe":
		return fmt.Sprintf("%s %c %q", name, b[5], strs[0][1:])
	case "DataRow":
		return fmt.Sprintf("%s %q", name, b[5+2+4:])
	case "RowDescription":
		column, _, _ := bytes.Cut(b[5+2:], []byte{0})
		return fmt.Sprintf("%s %q", name, column)
	case "ErrorResponse":
		var m pgwire.ErrorResponse
		_ = m.Decode(b[5:])
		return fmt.Sprintf("%s %s %s %q", name, m.Severity, m.Code, m.Message)
	}
	if name == "" {
		name = fmt.Sprintf("%q", b)
	}
	for _, s := range strs[:min(n, len(strs))] {
		name += fmt.Sprintf(" %q", s)
	}
	return name
}
