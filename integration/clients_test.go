package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
)

// ctl runs `headpond ctl` of the binary under test.
func (g *gateway) ctl(args ...string) (out string, code int) {
	g.t.Helper()
	return run(g.t, patience, built(g.t, g.built), append([]string{"ctl", "-admin", g.admin}, args...)...)
}

// clients lists sessions with `headpond ctl clients -json` until there are n.
func (g *gateway) clients(n int, filters ...string) []admin.Session {
	g.t.Helper()
	var s admin.Sessions
	eventually(g.t, fmt.Sprintf("%d clients %q", n, filters), func() error {
		out, code := g.ctl(append([]string{"clients", "-json"}, filters...)...)
		if code != 0 {
			g.t.Fatalf("exit code %d: %s", code, out)
		}
		s = admin.Sessions{}
		if err := json.Unmarshal([]byte(out), &s); err != nil {
			return err
		}
		if len(s.Sessions) != n {
			return fmt.Errorf("%d: %s", len(s.Sessions), out)
		}
		return nil
	})
	return s.Sessions
}

// clientThatExchanged waits for the only session to have counted this many bytes in each direction. That may be later
// than the client has received them.
func (g *gateway) clientThatExchanged(bytes uint64, filters ...string) (s admin.Session) {
	g.t.Helper()
	eventually(g.t, fmt.Sprintf("%d bytes of client %q are counted", bytes, filters), func() error {
		if s = g.clients(1, filters...)[0]; s.BytesIn != bytes || s.BytesOut != bytes {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	return s
}

// kill ends a session.
func (g *gateway) kill(id string) {
	g.t.Helper()
	if out, code := g.ctl("kill", id); code != 0 || out != "killed "+id+"\n" {
		g.t.Errorf("kill %s: exit code %d: %s", id, code, out)
	}
}

// client is a psql with typed input.
type client struct {
	*process
	in io.Writer
}

func startPsql(t *testing.T, dsn string) *client {
	t.Helper()
	cmd := exec.Command(program(t, "psql"), "-X", "-A", "-t", dsn)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	return &client{start(t, cmd), in}
}

// says types a line and waits for the answer.
func (c *client) says(t *testing.T, line, answer string) {
	t.Helper()
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		t.Fatal(err)
	}
	c.hears(t, answer)
}

func (c *client) hears(t *testing.T, answer string) {
	t.Helper()
	eventually(t, "psql prints "+answer, func() error {
		if !strings.Contains(c.out.String(), answer) {
			return errors.New(c.out.String())
		}
		return nil
	})
}

// TestHoldersAreFoundAndKilled: five silent clients hold all connections of a pool. One command lists them, the log
// names them while they hold, another command ends one, and the waiting client is served.
func TestHoldersAreFoundAndKilled(t *testing.T) {
	db := newDatabase(t, pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM)), "shop")
	listen := address(t)
	g := startGateway(t, "held_warning: 1s\n"+strings.Replace(db.pgConfig(t, listen, "transaction", "max_size: 5, acquire_timeout: 1m"),
		"{mode:", "{show_statements: true, mode:", 1))
	var holders []*client
	for i := range 5 {
		c := startPsql(t, db.dsn(listen))
		c.says(t, fmt.Sprintf("begin; select 'holder %d' as held;", i), fmt.Sprintf("holder %d", i))
		holders = append(holders, c)
	}
	waiter := startPsql(t, db.dsn(listen))
	if _, err := io.WriteString(waiter.in, "select 'served';\n"); err != nil {
		t.Fatal(err)
	}
	if waiting := g.clients(1, "-waiting"); waiting[0].User != "shop" || waiting[0].Upstream != "pg" || waiting[0].Endpoint != "" {
		t.Errorf("%+v", waiting[0])
	}
	list := g.clients(6)
	oldest, servers := list[0], map[uint32]bool{}
	for i, s := range list[:5] {
		servers[s.ServerPID] = true
		if s.State != "idle in transaction" || s.Endpoint != db.server.Addr() || s.HeldSince == nil || s.Application != "psql" || s.Database != "shop" ||
			!strings.HasPrefix(s.Statement, "select 'holder ") || s.BytesIn == 0 {
			t.Errorf("holder %d: %+v", i, s)
		}
	}
	if len(servers) != 5 || !strings.Contains(oldest.Statement, "holder 0") {
		t.Errorf("not the longest holder first, or not five servers: %+v", list)
	}
	out, code := g.ctl("clients", "-state", "idle in transaction")
	row := regexp.MustCompile(`(?m)^` + oldest.ID + ` +db +127\.0\.0\.1:\d+ +shop@shop psql +idle in tx +\S+ +` + db.server.Addr() + fmt.Sprintf(" +%d +", oldest.ServerPID))
	if code != 0 || !row.MatchString(out) || !strings.Contains(out, "\n  select 'holder 0' as held;\n") || !strings.HasSuffix(out, "\n5 shown of 5 that match, 6 in all\n") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	g.awaitLog("holds a connection that others wait for", "session="+oldest.ID, "client="+oldest.Client, "user=shop", "application_name=psql",
		fmt.Sprintf("server_pid=%d", oldest.ServerPID), "waiting=1", "held=")

	g.kill(oldest.ID)
	waiter.hears(t, "served")
	holders[0].says(t, "select 1;", "terminating connection due to administrator command")
	g.awaitLog("session ended by an operator", "session="+oldest.ID, "client="+oldest.Client)
	if out, code := g.ctl("kill", oldest.ID); code == 0 || !strings.Contains(out, "no such session: "+oldest.ID) {
		t.Errorf("killed twice: exit code %d: %s", code, out)
	}
	holders[1].says(t, "commit;", "COMMIT")
	eventually(t, "one session is counted as killed", func() error {
		if n := g.scrape().sum(`headpond_listener_errors_total`, "killed"); n != 1 {
			return fmt.Errorf("%v are", n)
		}
		return nil
	})
}

// TestKilledStatementIsCanceled: killing a client also cancels its statement at the server.
func TestKilledStatementIsCanceled(t *testing.T) {
	server := pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM))
	db := newDatabase(t, server, "shop")
	for _, mode := range []string{"transaction", "session"} {
		t.Run(mode, func(t *testing.T) {
			listen := address(t)
			g := startGateway(t, db.pgConfig(t, listen, mode, "max_size: 1"))
			c := startPsql(t, db.dsn(listen))
			if _, err := io.WriteString(c.in, "select pg_sleep(600);\n"); err != nil {
				t.Fatal(err)
			}
			active := g.clients(1, "-state", "active")
			g.kill(active[0].ID)
			c.hears(t, "terminating connection due to administrator command")
			if out, code := psql(t, db.dsn(listen), "select 'served'"); code != 0 || out != "served" {
				t.Errorf("exit code %d: %s", code, out)
			}
			conn := server.Connect(t)
			eventually(t, "the statement is over", func() error {
				var n int
				err := conn.QueryRow(t.Context(), "select count(*) from pg_stat_activity where query like '%pg_sleep(600)%' and pid <> pg_backend_pid()").Scan(&n)
				if err == nil && n > 0 {
					err = fmt.Errorf("%d run", n)
				}
				return err
			})
		})
	}
}

// TestClientsOfEveryProtocol: sessions of every protocol are listed with their attributes and can
// be killed.
func TestClientsOfEveryProtocol(t *testing.T) {
	echoAddr, _ := startEcho(t)
	web := conntest.Serve(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) }) // a server that never answers
	peers, raw, sites, lite := address(t), address(t), address(t), address(t)
	far := startGateway(t, farConfig(peers, "", map[string]string{"echo": echoAddr}))
	near := nearConfig(peers, raw, "upstream:echo")
	near = strings.Replace(near, "listeners:\n", fmt.Sprintf("listeners:\n  - {name: web, protocol: http, listen: %q, upstream: api}\n"+
		"  - {name: lite, protocol: postgres, listen: %q, upstream: file}\n", sites, lite), 1) +
		fmt.Sprintf("  api: {endpoints: [%q]}\n  file: {endpoints: [\"sqlite:%s/app.db\"]}\n", web, sharedDir(t))
	g := startGateway(t, near)

	stream := dial(t, raw)
	conntest.Exchange(t, stream, "ping")
	tcp := g.clientThatExchanged(4, "-listener", "raw")
	if tcp.Protocol != "tcp" || tcp.State != "active" || tcp.Client != stream.LocalAddr().String() || tcp.Upstream != "echo" || tcp.Endpoint != "upstream:echo" || tcp.BytesIn != 4 {
		t.Errorf("tcp: %+v", tcp)
	}
	tunnelled := far.clientThatExchanged(4, "-state", "active")
	if tunnelled.Protocol != "tunnel" || tunnelled.Listener != "peers" || tunnelled.User != "near" || tunnelled.Host != "upstream:echo" || tunnelled.BytesOut != 4 {
		t.Errorf("tunnel: %+v", tunnelled)
	}
	far.kill(tunnelled.ID)
	conntest.WantGone(t, stream)
	stream = dial(t, raw)
	conntest.Exchange(t, stream, "ping")
	g.kill(g.clients(1, "-listener", "raw")[0].ID)
	if err := conntest.WantGone(t, stream); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the stream ended with %v, want a reset", err)
	}

	page := make(chan error, 1)
	go func() {
		_, err := httpClient(t).Get("http://" + sites + "/slow/page?secret")
		page <- err
	}()
	request := g.clients(1, "-listener", "web")[0]
	eventually(t, "the request is told of", func() error {
		if request = g.clients(1, "-listener", "web")[0]; request.Endpoint == "" {
			return fmt.Errorf("%+v", request)
		}
		return nil
	})
	if request.State != "active" || request.Method != "GET" || request.Host != sites || request.Path != "/slow/page" || request.Endpoint != web ||
		!strings.HasPrefix(request.Application, "Go-http-client") {
		t.Errorf("http: %+v", request)
	}
	g.kill(request.ID)
	if err := <-page; err == nil {
		t.Error("a request that was killed had an answer")
	}

	file := startPsql(t, sqliteDSN(lite))
	file.says(t, "begin; create table t (n int); select 'holds';", "holds")
	writer := g.clients(1, "-listener", "lite", "-state", "idle in transaction")[0]
	if writer.Protocol != "postgres" || writer.User != "me" || writer.Upstream != "file" {
		t.Errorf("sqlite: %+v", writer)
	}
	g.kill(writer.ID)
	file.says(t, "select 1;", "terminating connection due to administrator command")
	if out, code := psql(t, sqliteDSN(lite), "create table t (n int)"); code != 0 {
		t.Errorf("the writer is not free: %s", out)
	}
	g.clients(0, "-listener", "lite") // psql's session may end later than psql
	idle := connect(t, sqliteDSN(lite))
	g.kill(g.clients(1, "-listener", "lite", "-state", "idle")[0].ID)
	if _, err := idle.Exec(t.Context(), "select 1"); err == nil || !strings.Contains(err.Error(), "57P01") {
		t.Errorf("an idle client that was killed: %v", err)
	}
}

// TestSessionsAreProtected: web pages of other origins cannot end sessions.
func TestSessionsAreProtected(t *testing.T) {
	echoAddr, _ := startEcho(t)
	raw := address(t)
	g := startGateway(t, tcpConfig(raw, echoAddr, ""))
	conntest.Exchange(t, dial(t, raw), "ping")
	id := g.clients(1)[0].ID
	req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, "http://"+g.admin+"/api/v1/sessions/"+id, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := adminClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("without the header: %s", resp.Status)
	}
	if s := g.clients(1); s[0].ID != id || time.Since(s[0].Accepted) > time.Hour {
		t.Errorf("%+v", s)
	}
}
