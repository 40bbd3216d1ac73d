package pgproxy_test

import (
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/headpond/headpond/internal/clienttest"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgwire"
)

var record = flag.Bool("record", false, "record what drivers and a server say to each other in testdata/machine/recorded-*.txt; with -rewrite")

// recordConversations has the programs of TestCrossedAnswers, which use all of a driver, speak straight to a server, and writes what both say in
// the form of scripts.
func recordConversations(t *testing.T) {
	db := pgtest.Shared(t)
	for name, run := range map[string]func(at string) *exec.Cmd{
		"asyncpg": func(at string) *exec.Cmd { // later it prepares a text again: the gateway then closes a statement, which no server here has answered
			return clienttest.Python(t, clienttest.Program(t, "crossed.py"), "asyncpg", "postgresql://postgres@"+at+"/postgres?sslmode=disable", "3", "6", "calm")
		},
		"psycopg": func(at string) *exec.Cmd {
			return clienttest.Python(t, clienttest.Program(t, "crossed.py"), "psycopg", "postgresql://postgres@"+at+"/postgres?sslmode=disable", "3", "8", "calm", "0")
		},
		"node-pg": func(at string) *exec.Cmd {
			return clienttest.Node(t, clienttest.Program(t, "crossed.cjs"), "postgres://postgres@"+at+"/postgres", "3", "8", "calm")
		},
		"jdbc": func(at string) *exec.Cmd {
			return clienttest.Java(t, clienttest.Program(t, "Crossed.java"), "jdbc:postgresql://"+at+"/postgres?user=postgres&sslmode=disable", "3", "8", "calm")
		},
	} {
		db.Exec(t, "drop table if exists crossed", "create table crossed (tag text, n int)")
		tape := &tape{to: db.Addr()}
		out, err := run(conntest.Serve(t, tape.serve)).Output()
		if err != nil || !strings.HasPrefix(string(out), "done ") || !strings.HasSuffix(string(out), " 0\n") {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		if err := os.WriteFile("testdata/machine/recorded-"+name+".txt", []byte(tape.script(name)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// tape records connections to a server, each in the order in which its messages came.
type tape struct {
	to    string
	mu    sync.Mutex
	lines [][]string // of each connection
}

// script returns the recorded connections one after the other, each with a server connection of its own.
func (t *tape) script(name string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "# What %s and a server say to each other, recorded by `go test ./pgproxy -run MachineScripts -record -rewrite`: of several\n# rows one behind the other there are two.\n", name)
	for _, lines := range t.lines {
		fmt.Fprintf(&b, "\nothers\nserver A\n")
		rows := 0
		var closes []string
		for _, line := range lines {
			_, message, _ := strings.Cut(line, " ")
			if rows++; message != "DataRow" && message != "CopyData" {
				rows = 0
			}
			switch {
			case rows > 2:
				continue
			case strings.HasPrefix(message, "Close "):
				closes = append(closes, message)
			case message == "CloseComplete":
				closed := closes[0]
				closes = closes[1:]
				if strings.HasPrefix(closed, "Close S ") {
					continue // the gateway answers it
				}
			}
			fmt.Fprintf(&b, "%s\n", line)
		}
	}
	return b.String()
}

// count returns how many of the recorded lines have a prefix.
func (t *tape) count(prefix string) (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, lines := range t.lines {
		for _, line := range lines {
			if strings.HasPrefix(line, prefix) {
				n++
			}
		}
	}
	return n
}

// serve passes on a connection, and records it unless it is a cancel request. The server's messages end with the client.
func (t *tape) serve(c *net.TCPConn) {
	conn, err := net.Dial("tcp", t.to)
	if err != nil {
		return
	}
	defer conn.Close()
	hello := make([]byte, 4)
	if _, err := io.ReadFull(c, hello); err != nil {
		return
	}
	hello = append(hello, make([]byte, binary.BigEndian.Uint32(hello)-4)...)
	if _, err := io.ReadFull(c, hello[4:]); err != nil {
		return
	}
	if _, err := conn.Write(hello); err != nil || binary.BigEndian.Uint32(hello[4:]) != pgwire.Version30 {
		return
	}
	t.mu.Lock()
	i := len(t.lines)
	t.lines = append(t.lines, nil)
	t.mu.Unlock()
	begun := make(chan struct{})
	go func() {
		defer c.Close()
		t.pass(c, conn, i, false, begun)
	}()
	t.pass(conn, c, i, true, begun)
}

// pass records and passes on messages of one direction; those of the login, up to the server's ReadyForQuery, are not recorded.
func (t *tape) pass(to, from net.Conn, i int, ofClient bool, begun chan struct{}) {
	header := make([]byte, 5)
	for {
		if _, err := io.ReadFull(from, header); err != nil {
			return
		}
		message := make([]byte, 1+binary.BigEndian.Uint32(header[1:]))
		copy(message, header)
		if _, err := io.ReadFull(from, message[5:]); err != nil {
			return
		}
		select {
		case <-begun:
			t.mu.Lock()
			t.lines[i] = append(t.lines[i], lineOf(message, ofClient))
			t.mu.Unlock()
		default:
			if !ofClient && message[0] == pgwire.TypeReadyForQuery {
				close(begun)
			}
		}
		if _, err := to.Write(message); err != nil {
			return
		}
	}
}

// lineOf is a line of a script.
func lineOf(message []byte, ofClient bool) string {
	switch {
	case ofClient:
		return "client> " + textOf(message, true)
	case message[0] == pgwire.TypeDataRow:
		return "server> DataRow"
	case message[0] == pgwire.TypeErrorResponse:
		var m pgwire.ErrorResponse
		_ = m.Decode(message[5:])
		return "server> ErrorResponse " + m.Code
	}
	return "server> " + textOf(message, false)
}
