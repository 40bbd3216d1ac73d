package gateway_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/pgwire"
)

// rawClient is a connection to a console that has logged in, without a driver.
type rawClient struct {
	net.Conn
	t *testing.T
	r *pgwire.Reader
}

func (c *consoleTest) raw() *rawClient {
	c.t.Helper()
	conn := conntest.Dial(c.t, c.Addr("db"))
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	r := &rawClient{conn, c.t, pgwire.NewReader(conn)}
	r.send(&pgwire.StartupMessage{Version: pgwire.Version30, Params: []pgwire.Param{{Name: "user", Value: "alice"}, {Name: "database", Value: "pgbouncer"}}})
	r.types('Z', 1)
	return r
}

// trusting is a listener without passwords.
const trusting = "auth: trust, " + consoleKeys

func (r *rawClient) send(messages ...pgwire.Message) {
	r.t.Helper()
	var b []byte
	for _, m := range messages {
		b = m.Append(b)
	}
	if _, err := r.Write(b); err != nil {
		r.t.Fatal(err)
	}
}

// types reads messages until there are n of a type, and returns the types of all.
func (r *rawClient) types(until byte, n int) string {
	r.t.Helper()
	var b strings.Builder
	for n > 0 {
		h, err := r.r.Next()
		if err == nil {
			err = r.r.Skip()
		}
		if err != nil {
			r.t.Fatalf("after %.200q: %v", b.String(), err)
		}
		b.WriteByte(h.Type)
		if h.Type == until {
			n--
		}
	}
	return b.String()
}

// ends reads to the end of the connection, and returns the code of the last error.
func (r *rawClient) ends() (code string) {
	r.t.Helper()
	for {
		h, err := r.r.Next()
		if err == io.EOF {
			return code
		}
		var body []byte
		if err == nil {
			body, err = r.r.Body()
		}
		if err != nil {
			r.t.Fatal(err)
		}
		if h.Type == pgwire.TypeErrorResponse {
			var e pgwire.ErrorResponse
			if err := e.Decode(body); err != nil {
				r.t.Fatal(err)
			}
			code = e.Code
		}
	}
}

// TestConsoleHostile: what no driver sends. The gateway answers, or ends the session, and keeps nothing.
func TestConsoleHostile(t *testing.T) {
	show := &pgwire.Query{SQL: "show version"}
	parse := &pgwire.Parse{Query: "show config"}
	eachConsole(t, trusting, func(c *consoleTest) {
		r := c.raw()
		var pipeline []pgwire.Message
		for range 500 {
			pipeline = append(pipeline, show)
		}
		r.send(pipeline...)
		if got := r.types('Z', 500); got != strings.Repeat("TDCZ", 500) {
			c.t.Errorf("a pipeline: %.100s", got)
		}
		for what, x := range map[string]struct {
			send []pgwire.Message
			want string
		}{
			"unnamed":            {[]pgwire.Message{parse, &pgwire.Bind{}, &pgwire.Describe{Object: 'P'}, &pgwire.Execute{MaxRows: 2}, &pgwire.Sync{}}, "12TDDsZ"},
			"rest of a portal":   {[]pgwire.Message{parse, &pgwire.Bind{}, &pgwire.Execute{MaxRows: 1}, &pgwire.Execute{}, &pgwire.Sync{}}, "12Ds" + strings.Repeat("D", 25) + "CZ"},
			"portal after Sync":  {[]pgwire.Message{parse, &pgwire.Bind{}, &pgwire.Sync{}, &pgwire.Execute{}, &pgwire.Sync{}}, "12ZEZ"},
			"skipped":            {[]pgwire.Message{&pgwire.Parse{Query: "nonsense"}, &pgwire.Bind{}, &pgwire.Execute{}, parse, show, &pgwire.Sync{}}, "EZ"},
			"parameters":         {[]pgwire.Message{parse, &pgwire.Bind{Params: [][]byte{[]byte("x")}}, &pgwire.Sync{}}, "1EZ"},
			"formats":            {[]pgwire.Message{parse, &pgwire.Bind{ResultFormats: []int16{1, 1}}, &pgwire.Sync{}}, "1EZ"},
			"two commands":       {[]pgwire.Message{&pgwire.Parse{Query: "show pools; show pools"}, &pgwire.Sync{}}, "EZ"},
			"empty":              {[]pgwire.Message{&pgwire.Parse{Query: ";"}, &pgwire.Bind{}, &pgwire.Describe{Object: 'P'}, &pgwire.Execute{}, &pgwire.Sync{}}, "12nIZ"},
			"statement":          {[]pgwire.Message{&pgwire.Parse{Name: "s", Query: "select 1"}, &pgwire.Describe{Object: 'S', Name: "s"}, &pgwire.Close{Object: 'S', Name: "s"}, &pgwire.Sync{}}, "1tT3Z"},
			"unknown statement":  {[]pgwire.Message{&pgwire.Bind{Statement: "none"}, &pgwire.Sync{}}, "EZ"},
			"COPY out of place":  {[]pgwire.Message{&pgwire.CopyData{Data: []byte("x")}, &pgwire.CopyDone{}, show}, "TDCZ"},
			"a long text":        {[]pgwire.Message{&pgwire.Parse{Query: "show pools" + strings.Repeat(" ", 5000)}, &pgwire.Sync{}}, "EZ"},
			"a long name":        {[]pgwire.Message{&pgwire.Parse{Name: strings.Repeat("x", 5000), Query: "show pools"}, &pgwire.Sync{}}, "EZ"},
			"a long portal":      {[]pgwire.Message{parse, &pgwire.Bind{Portal: strings.Repeat("x", 5000)}, &pgwire.Sync{}}, "1EZ"},
			"many words":         {[]pgwire.Message{&pgwire.Query{SQL: "show pools" + strings.Repeat(" x", 5000)}}, "EZ"},
			"a large message":    {[]pgwire.Message{&pgwire.Parse{Query: strings.Repeat("x", 1<<20)}, &pgwire.Sync{}, show}, "EZTDCZ"},
			"function call":      {[]pgwire.Message{&pgwire.FunctionCall{}, show}, "EZTDCZ"},
			"Sync alone":         {[]pgwire.Message{&pgwire.Sync{}, &pgwire.Sync{}}, "ZZ"},
			"too many":           {append(manyStatements(), &pgwire.Sync{}), strings.Repeat("1", 100) + "EZ"},
			"discarded":          {[]pgwire.Message{&pgwire.Query{SQL: "discard all"}, &pgwire.Bind{Statement: "s1"}, &pgwire.Sync{}}, "CZEZ"},
			"notices and a word": {[]pgwire.Message{&pgwire.Query{SQL: "set datestyle = iso; show help"}}, "NCNCZ"},
		} {
			r := r
			if what == "too many" || what == "discarded" {
				r = c.raw()
			}
			r.send(x.send...)
			if got := r.types('Z', strings.Count(x.want, "Z")); got != x.want {
				c.t.Errorf("%s: %.200s, want %.200s", what, got, x.want)
			}
		}
		c.hostileEnds()
	})
}

// manyStatements prepares one statement more than a session may have.
func manyStatements() (list []pgwire.Message) {
	for i := range 101 {
		list = append(list, &pgwire.Parse{Name: "s" + strings.Repeat("x", i), Query: "show pools"})
	}
	return list
}

// hostileEnds are messages that end the session.
func (c *consoleTest) hostileEnds() {
	c.t.Helper()
	for what, x := range map[string]struct{ bytes, code string }{
		"NUL":          {"Q\x00\x00\x00\x10show\x00pools\x00\x00", "08P01"},
		"no NUL":       {"Q\x00\x00\x00\x08show", "08P01"},
		"length 3":     {"Q\x00\x00\x00\x03", "08P01"},
		"huge":         {"Q\x7f\xff\xff\xff", "08P01"},
		"unknown type": {"!\x00\x00\x00\x04", "08P01"},
		"Bind":         {"B\x00\x00\x00\x08\x00\x00\xff\xff", "08P01"},
		"Describe":     {"D\x00\x00\x00\x06x\x00", "08P01"},
		"Terminate":    {"X\x00\x00\x00\x04", ""},
		"half a head":  {"Q\x00\x00", ""},
	} {
		r := c.raw()
		if _, err := io.WriteString(r, x.bytes); err != nil {
			c.t.Fatal(err)
		}
		if what == "half a head" {
			_ = r.Conn.(*net.TCPConn).CloseWrite() //nolint:forcetypeassert // as raw dials
		}
		if code := r.ends(); code != x.code {
			c.t.Errorf("%s: %q, want %q", what, code, x.code)
		}
	}
	r := c.raw() // a client that closes its side behind a command gets the answer
	r.send(&pgwire.Query{SQL: "show version"})
	_ = r.Conn.(*net.TCPConn).CloseWrite() //nolint:forcetypeassert // likewise
	if got := r.types('Z', 1); got != "TDCZ" {
		c.t.Errorf("after a half-close: %s", got)
	}
	r.ends()
}

// TestConsoleOpenPipeline: neither a drain nor an operator waits for a client that never sends Sync.
func TestConsoleOpenPipeline(t *testing.T) {
	eachConsole(t, trusting, func(c *consoleTest) {
		begin := func() *rawClient {
			r := c.raw()
			r.send(&pgwire.Parse{Query: "show pools"}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Flush{})
			r.types('C', 1)
			return r
		}
		killed, drained := begin(), begin()
		admin := c.connect("alice", "pgbouncer")
		_, port, _ := net.SplitHostPort(killed.LocalAddr().String())
		c.want(admin, "kill_client "+c.row(admin, "show clients", "port", port)["id"])
		if code := killed.ends(); code != "57P01" {
			c.t.Errorf("killed: %q", code)
		}
		conntest.Eventually(c.t, "the session is suspended", func() bool { return c.idle() })
		drained.send(&pgwire.Parse{Name: "later", Query: "show pools"}, &pgwire.Flush{})
		drained.types('1', 1)
		c.Stop()
		if code := drained.ends(); code != "57P01" {
			c.t.Errorf("drained: %q", code)
		}
		if err := <-c.Result; err != nil {
			c.t.Error(err)
		}
	})
}

// TestConsoleReloadsBesideShow: the configuration changes all the time while consoles show everything, and in the end has none.
func TestConsoleReloadsBesideShow(t *testing.T) {
	eachConsole(t, trusting, func(c *consoleTest) {
		failures := make(chan error, 3)
		for range cap(failures) {
			conn := c.connect("alice", "pgbouncer")
			go func() { failures <- showUntil(conn) }()
		}
		for i := range 21 {
			keys := []string{consoleKeys, consoleKeys + ", max_pinned: 1", "console: {admins: [alice, bob]}"}[i%3]
			if i == 20 {
				keys = "mode: transaction"
			}
			if err := c.Reload(parse(c.t, consoleText, append(c.pairs[:len(c.pairs):len(c.pairs)], "{console}", keys)...)); err != nil {
				c.t.Error(err)
			}
		}
		for range cap(failures) {
			if e, ok := errors.AsType[*pgconn.PgError](<-failures); !ok || e.Code != "57P01" {
				c.t.Errorf("without a console: %v", e)
			}
		}
	})
}

// showUntil runs SHOW commands until one fails.
func showUntil(conn *pgconn.PgConn) error {
	for {
		if _, err := ask(conn, "show pools; show clients; show servers; show stats; show databases; show lists; show config; show users; show totals"); err != nil {
			return err
		}
	}
}
