package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/gateway/admin"
)

// huntTarget is a server or gateway to which clients connect.
type huntTarget struct {
	name   string // in testdata/leakhunt.txt
	addr   string
	kind   string // of target, for way.only: "direct", "headpond" or "pgbouncer"
	shares bool   // another client may use the server connection while the client is idle
	kill   func(p *player) error
}

// hunter tries cases one after the other, and has its own connection to the server.
type hunter struct {
	server *pgx.Conn
	target *huntTarget
	sub    map[string]*strings.Replacer // by name of kind and value
	oids   map[string]uint32
}

// player is a client in a case.
type player struct {
	*wireClient
	hunter *hunter
	kind   *kind
	addr   string
	value  string // of {v}
	sub    *strings.Replacer
}

func (p *player) text(s string) string { return p.sub.Replace(s) }

func (p *player) texts(all []string) []string {
	some := make([]string, len(all))
	for i, s := range all {
		some[i] = p.text(s)
	}
	return some
}

// verdict is the result of a case; "" where it is the same as without a gateway.
type verdict struct {
	leak string // another client saw something
	loss string // the client itself missed something
}

// seen are the answers in a case.
type seen struct {
	made    string // when the client made the state
	other   string // to another client meanwhile; "" without one
	self    string // when the client looked again; "" if it had disconnected
	next    string // to a client that connected afterwards
	refused bool   // the other client got no connection
}

const (
	huntDatabase = "hunt"
	// huntSettles limits the wait for effects that come a moment later even without a gateway. Only cases that go wrong
	// wait that long.
	huntSettles = 10 * time.Second
	huntTick    = 20 * time.Millisecond
	// protocolViolation is the SQLSTATE of all errors of PgBouncer itself.
	protocolViolation = "08P01"
	// noServerConnection is the SQLSTATE of a wait for a server connection that is over.
	noServerConnection = "53300"
)

// role is the role of a kind's clients, and their database at a gateway.
func (k *kind) role() string { return "hunt_" + strings.ReplaceAll(k.name, "-", "_") }

func (h *hunter) exec(sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), wirePatience)
	defer cancel()
	_, err := h.server.PgConn().Exec(ctx, sql).ReadAll()
	return err
}

// queryValue returns the last value of a query of the hunter itself.
func (h *hunter) queryValue(sql string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), wirePatience)
	defer cancel()
	results, err := h.server.PgConn().Exec(ctx, sql).ReadAll()
	if err != nil {
		return "", err
	}
	last := results[len(results)-1]
	if len(last.Rows) == 0 {
		return "", nil
	}
	return string(last.Rows[0][0]), nil
}

func (h *hunter) functionOID(signature string) (uint32, error) {
	if oid := h.oids[signature]; oid != 0 {
		return oid, nil
	}
	text, err := h.queryValue("select '" + signature + "'::regprocedure::oid::int")
	if err != nil {
		return 0, err
	}
	var oid uint32
	_, err = fmt.Sscan(text, &oid)
	h.oids[signature] = oid
	return oid, err
}

// killServerConnections ends the server connections of the kind's clients, and waits until they have ended.
func (h *hunter) killServerConnections(k *kind) error {
	return h.exec("select pg_terminate_backend(pid, 10000) from pg_stat_activity where usename = '" + k.role() + "'")
}

// awaitRunning waits until a client of the kind runs pg_sleep.
func (h *hunter) awaitRunning(k *kind) error {
	until := time.Now().Add(huntSettles)
	var err error
	retry(func() bool {
		var n string
		n, err = h.queryValue("select count(*) from pg_stat_activity where usename = '" + k.role() + "' and state = 'active' and query like '%pg_sleep%'")
		return err != nil || n != "0" || time.Now().After(until) // after that it has failed or ended, and the case continues
	})
	return err
}

// join logs in. Only the client that makes the state has the kind's settings in its startup packet.
func (h *hunter) join(k *kind, value string, maker bool) (*player, error) {
	p := &player{hunter: h, kind: k, addr: h.target.addr, value: value}
	p.sub = h.sub[k.name+"/"+value]
	params := map[string]string{"user": k.role(), "database": huntDatabase, "application_name": "hunt"}
	if h.target.kind != "direct" {
		params["database"] = k.role()
	}
	if maker {
		for name, text := range k.startup {
			params[name] = p.text(text)
		}
	}
	var err error
	p.wireClient, err = connectWire(p.addr, params)
	return p, err
}

// begin logs in a client on an unused server connection, and has it make the state. It begins again once if there is no server
// connection for that in time: the machine stood still.
func (h *hunter) begin(k *kind) (p *player, made string, err error) {
	if err := h.killServerConnections(k); err != nil {
		return nil, "", err
	}
	again := false
	retry(func() bool {
		if p, err = h.join(k, k.values[0], true); err != nil {
			return !lostServer(err.Error()) || strings.Contains(err.Error(), protocolViolation) // a refused login is a result
		}
		answer := p.query("select 1")
		if answer == "1" {
			if made = k.leave(p); again || !strings.Contains(made, noServerConnection) {
				return true
			}
			again = true
			p.close()
			err = h.killServerConnections(k)
			return err != nil
		}
		err = errors.New(answer)
		p.close()
		return !lostServer(answer)
	})
	return p, made, err
}

// catalogPatience bounds the wait for a reading of the catalogs. After readings that were slow, on a busy machine, the next one is ten
// minutes later.
const catalogPatience = 12 * time.Minute

// awaitCatalogs waits until the gateway has read the catalogs for clients of a kind: until then it does not see what views and triggers do.
func (h *hunter) awaitCatalogs(target *huntTarget, k *kind) error {
	h.target = target
	var answer string
	retryFor(catalogPatience, func() bool {
		var p *player
		if p, answer = h.probe(k, "select * from hunt_probe"); p == nil {
			return false
		}
		defer p.close()
		var other *player
		if other, answer = h.probe(k, "show work_mem"); other != nil {
			other.close()
		}
		return answer == "4MB" // not that of the view
	})
	if answer != "4MB" {
		return fmt.Errorf("%s: the gateway has not read the catalogs within %v: after a view's set_config another client got %q", k.name, catalogPatience, answer)
	}
	return h.killServerConnections(k)
}

// probe connects a client that makes a query and stays. It returns no client if there was none, or no answer.
func (h *hunter) probe(k *kind, sql string) (*player, string) {
	p, err := h.join(k, k.values[0], false)
	if err != nil {
		return nil, err.Error()
	}
	answer := p.query(sql)
	if lostServer(answer) {
		p.close()
		return nil, answer
	}
	return p, answer
}

// next connects a client after all others and returns what it sees. It must be served.
func (h *hunter) next(k *kind, want []string) string {
	answer := ""
	settling := time.Now().Add(huntSettles)
	retry(func() bool {
		p, err := h.join(k, k.values[1], false)
		if err != nil {
			answer = err.Error()
			return !lostServer(answer)
		}
		defer p.terminate()
		answer = k.see(p)
		if k.settles && !slices.Contains(want, answer) && time.Now().Before(settling) {
			return false
		}
		return !lostServer(answer)
	})
	return answer
}

// retry calls f until it returns true, or for wirePatience.
func retry(f func() bool) { retryFor(wirePatience, f) }

func retryFor(limit time.Duration, f func() bool) {
	tick := time.NewTicker(huntTick)
	defer tick.Stop()
	for until := time.Now().Add(limit); !f() && time.Now().Before(until); <-tick.C {
	}
}

// lostServer reports whether an answer says that there was no server connection, or that it ended, possibly earlier.
func lostServer(answer string) bool {
	if strings.Contains(answer, "gone") || strings.Contains(answer, "connection re") {
		return true
	}
	return slices.ContainsFunc([]string{"57P01", "08006", "08003", protocolViolation, noServerConnection, "57P03"}, func(code string) bool { return strings.Contains(answer, code) })
}

// try runs a case and returns the answers. want are those of the same case without a gateway, if they are known.
func (h *hunter) try(k *kind, w *way, want *seen) (seen, error) {
	var s seen
	p, made, err := h.begin(k)
	if err != nil {
		s.made = "refused: " + err.Error()
		return s, nil
	}
	defer p.close()
	s.made = made
	if err := w.do(p); err != nil {
		return s, fmt.Errorf("%s, %s on %s: %w", k.name, w.name, h.target.name, err)
	}
	if w.stays {
		h.stay(k, w, p, want, &s)
	}
	s.next = h.next(k, want.nexts())
	return s, nil
}

// nexts returns the answers that a later client may get.
func (s *seen) nexts() []string {
	if s == nil {
		return nil
	}
	return []string{s.next}
}

// stay lets another client visit, makes the client look again, and ends it.
func (h *hunter) stay(k *kind, w *way, p *player, want, s *seen) {
	if h.target.shares && (p.tx == 'I' || p.gone != "" || h.target.kind == "direct") {
		s.other, s.refused = h.visit(k, w)
	}
	until := time.Now().Add(huntSettles)
	s.self = k.see(p)
	for (lostServer(s.self) || k.settles && want != nil && s.self != want.self) && p.gone == "" && time.Now().Before(until) {
		s.self = k.see(p)
	}
	p.terminate()
}

// visit runs another client's part while the first client is idle.
func (h *hunter) visit(k *kind, w *way) (answer string, refused bool) {
	retry(func() bool {
		var p *player
		var err error
		p, err = h.join(k, k.values[1], w.other != nil)
		if err != nil {
			answer = err.Error()
		} else {
			if w.other != nil {
				answer = w.other(p)
			} else {
				answer = k.see(p)
			}
			p.terminate()
		}
		refused = strings.Contains(answer, noServerConnection)
		return refused || !lostServer(answer)
	})
	return answer, refused
}

// killSession ends a client's session through a gateway's admin page.
func killSession(adminAddr string) func(p *player) error {
	base := "http://" + adminAddr + "/api/v1/sessions"
	return func(p *player) error {
		defer p.close()
		resp, err := adminClient.Get(base + "?user=" + p.kind.role())
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		var all admin.Sessions
		if err := json.NewDecoder(resp.Body).Decode(&all); err != nil {
			return err
		}
		i := slices.IndexFunc(all.Sessions, func(s admin.Session) bool { return s.Client == p.conn.LocalAddr().String() })
		if i < 0 {
			return fmt.Errorf("no session of %s among %d", p.conn.LocalAddr(), len(all.Sessions))
		}
		req, err := http.NewRequest(http.MethodDelete, base+"/"+all.Sessions[i].ID, nil)
		if err != nil {
			return err
		}
		req.Header.Set(admin.ReloadHeader, "1")
		gone, err := adminClient.Do(req)
		if err != nil {
			return err
		}
		defer gone.Body.Close()
		if gone.StatusCode/100 != 2 {
			return fmt.Errorf("kill: %s", gone.Status)
		}
		return nil
	}
}
