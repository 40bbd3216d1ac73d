package pgproxy

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"
	"unique"
	"unsafe"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/traffic"
)

// ClientSize is the heap size of a Client.
const ClientSize = unsafe.Sizeof(Client{})

// PatiencesAfter returns for how long a resumed session waits for its client after the first request and after the second, if the
// client had been idle for some time before. 0 = it had asked for nothing yet.
func PatiencesAfter(idle time.Duration) (first, second time.Duration) {
	p := &Proxy{}
	p.ticks.now.Store(1000)
	s := &session{c: &Client{Login: &Login{proxy: p}}}
	if idle > 0 {
		s.c.activity.set(1000-uint32(idle/tick), false)
	}
	s.restore(unique.Make(clientView{}))
	ask := func() time.Duration {
		s.asks()
		s.c.Done()
		return s.idlePatience()
	}
	return ask(), ask()
}

// Deallocated exposes deallocates.
var Deallocated = deallocates

// Remains reports whether the text of a statement shows that DISCARD ALL may not undo its effects.
func Remains(text string) bool { return hintsOf([]byte(text))&hintRemains != 0 }

// SettingsIn returns the settings that the text of a statement shows: "!" if it may set some for the session, and the
// names of custom ones.
func SettingsIn(text string) string {
	found := settingsIn([]byte(text))
	names := strings.Join(found.customs, ",")
	if found.unnamed {
		names = "?" + names
	}
	if found.changes {
		return "!" + names
	}
	return names
}

// OnlyForTransaction exposes onlyForTransaction.
func OnlyForTransaction(text string) bool { return onlyForTransaction([]byte(text + "\x00")) }

// Resets exposes resets.
var Resets = resets

func init() { resetTimeout = time.Minute } // machines that run tests may be busy

// ParseOptions exposes parseOptions.
var ParseOptions = parseOptions

// Reaches reports whether a cancel request reaches a client.
func (p *Proxy) Reaches(pid uint32, key []byte) bool { return p.find(pid, key) != nil }

// Aliases returns how many clients are known by the process ID of their server.
func (p *Proxy) Aliases() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, clients := range p.aliases {
		n += len(clients)
	}
	return n
}

// Machine is a driver of the protocol machine for tests: it moves bytes between a client and server connections that
// exist in the test only. Steps and messages to the client and the servers collect in Log and in the queues.
type Machine struct {
	m         machine
	Pool      *FakePool
	srv       *FakeServer
	Log       func(format string, args ...any)
	waiting   []message // of the client: the first one cannot be judged yet
	told      bool      // Log knows
	lingering fakeLingering
	More      bool // the client has sent more: the driver reads that before it ends the lease
}

// FakePool holds the server connections of some Machines.
type FakePool struct {
	Free   []*FakeServer
	tables tables
	rules  pinRules
	made   uint64 // machines
}

// FakeServer is a server connection of a FakePool.
type FakeServer struct {
	Name string
	In   func(msg []byte) // called with each message to the server
	Undo func(sql string) // called with SQL that makes its settings a client's
	// Renewed is called when the server connection is replaced by a new one, which has run a client's BEGIN, unless that is "".
	Renewed func(begin string)
	Owner   *Machine              // nil = it is free
	Gone    bool                  // it was discarded
	Left    traces                // what a look finds
	Rows    func() []pgwire.Param // the settings that it finds; nil = it asks for none
	Doubt   func()                // has the server answer everything; its ReadyForQuery are the client's
	state   serverState
	leases  int
}

// PinAlso has all clients of the pool be pinned for some state.
func (p *FakePool) PinAlso(also PinAlso) { p.rules.also.Store(uint32(also.traces())) }

// Caches has sequences have a CACHE.
func (p *FakePool) Caches() { p.shared().knowledge.caches.Store(true) }

// shared returns the tables of the pool.
func (p *FakePool) shared() *tables {
	p.tables.knowledge = cmp.Or(p.tables.knowledge, new(knowledge))
	return &p.tables
}

// NewServer adds a free server connection.
func (p *FakePool) NewServer(name string, statements int, in func(msg []byte), undo func(sql string)) *FakeServer {
	f := &FakeServer{Name: name, In: in, Undo: undo}
	f.state.stmts.limit, f.state.stmts.texts = statements, &p.tables.texts
	f.state.view, f.state.settings = unique.Make(f.state.params), ""
	p.Free = append(p.Free, f)
	return f
}

// Leave has looks find one kind of state; "" = none.
func (f *FakeServer) Leave(kind string) {
	f.Left = 0
	for _, k := range traceNames {
		if k.name == kind {
			f.Left = k.of
		}
	}
}

// NewMachine returns the machine of a client of the pool.
func NewMachine(p *FakePool, mode Mode, log func(format string, args ...any)) *Machine {
	m := &Machine{Pool: p, Log: log}
	p.made++
	m.m = machine{work: new(work), shared: p.shared(), rules: &p.rules, client: p.made, mode: mode}
	m.m.st.reset()
	m.m.takeSettings(nil)
	return m
}

// Set gives the client settings: the value of a parameter that servers report, and another setting.
func (d *Machine) Set(reported, other pgwire.Param) {
	d.m.takeSettings([]pgwire.Param{reported})
	d.m.settingsKey = keyOf([]pgwire.Param{other})
	d.m.replan()
}

// Report has the server connection have reported a parameter.
func (f *FakeServer) Report(p pgwire.Param) { f.state.parameter(p) }

// Client has a message of the client judged, once those before are.
func (d *Machine) Client(b []byte, toClient func([]byte)) (over bool, err error) {
	d.waiting = append(d.waiting, messageOf(bytes.Clone(b)))
	return d.advance(toClient)
}

// Blocked reports whether a message of the client waits for something.
func (d *Machine) Blocked() bool { return len(d.waiting) > 0 }

// Leased is the server connection that is leased, nil if there is none.
func (d *Machine) Leased() *FakeServer { return d.srv }

// Resume continues with messages of the client that wait for answers, or for a server connection.
func (d *Machine) Resume(toClient func([]byte)) (over bool, err error) { return d.advance(toClient) }

func (d *Machine) advance(toClient func([]byte)) (over bool, err error) {
	m := &d.m
	for len(d.waiting) > 0 {
		msg := d.waiting[0]
		act, err := m.clientMessage(msg)
		if err != nil {
			return true, err
		}
		d.told = d.told && act.do == wait
		switch act.do {
		case pass, passRest:
			if act.do == pass {
				m.toServer = pgwire.AppendHeader(m.toServer, msg.typ, msg.size())
			}
			m.toServer = append(m.toServer, msg.body[act.n:]...)
		case take:
		case wait:
			d.flush(toClient)
			if !m.canJudgeAgain() {
				if !d.told {
					d.Log("wait")
				}
				d.told = true
				return false, nil
			}
			d.told = false
			m.waited()
			if m.refusedReplay {
				d.release()
			}
			continue
		case lease:
			if len(d.Pool.Free) == 0 {
				if !act.later || !m.parseLater(msg) {
					d.Log("no server connection is free")
					return false, nil
				}
				break
			}
			d.take()
			d.srv.Owner = d
			d.Log("lease %s", d.srv.Name)
			m.begin(&d.srv.state)
			if m.inSync() || !m.planReplay() {
				d.adapt()
			}
			continue
		case adapt:
			d.adapt()
			continue
		case renew:
			d.renew()
			continue
		case place:
			m.place = inVain
			continue
		case end:
			d.Log("end")
			return true, nil
		default:
			return true, fmt.Errorf("action %d for a whole message", act.do)
		}
		m.leavePlace()
		d.flush(toClient)
		d.waiting = d.waiting[1:]
		d.Settle()
	}
	return false, nil
}

// renew gives the lease a new server connection, as session.renew does.
func (d *Machine) renew() {
	m, old := &d.m, d.srv
	begun := m.progress == onlyBegun
	m.forgetServer()
	d.Log("renew %s", old.Name)
	old.state.stmts.clear()
	old.state = serverState{params: old.state.params, view: old.state.view, stmts: prepared{limit: old.state.stmts.limit, texts: old.state.stmts.texts}}
	m.begin(&old.state)
	m.declineReplacement()
	d.adapt()
	if begun {
		m.st.tx = pgwire.TxActive
	} else {
		m.opened = nil
	}
	old.Renewed(string(m.opened))
}

// adapt gives the server connection the client's settings.
func (d *Machine) adapt() {
	m := &d.m
	m.replay = false
	sql := m.syncSQL()
	if m.inSync() || sql == "" {
		return
	}
	d.Log("first: %s", sql)
	d.srv.Undo(sql)
	for view, i := m.reported.Value(), 0; i < len(trackedNames); i++ {
		if view.known[i] {
			d.srv.state.parameter(pgwire.Param{Name: trackedNames[i], Value: view.value[i]})
		}
	}
	m.applied()
}

// flush moves the machine's own messages.
func (d *Machine) flush(toClient func([]byte)) {
	for b := d.m.toServer; len(b) > 0; b = b[messageSize(b):] {
		d.srv.In(b[:messageSize(b)])
	}
	for b := d.m.toClient; len(b) > 0; b = b[messageSize(b):] {
		toClient(b[:messageSize(b)])
	}
	d.m.toServer, d.m.toClient = nil, nil
}

// Server has a message of the server judged. An error means that the server connection is lost, and so is the client.
func (d *Machine) Server(b []byte, toClient func([]byte)) error {
	m, msg := &d.m, messageOf(b)
	usual := m.passesUnchanged(msg.typ, msg.body)
	act, err := m.serverMessage(msg)
	if usual && err == nil && (act.do != pass || len(m.toClient) > 0) {
		return fmt.Errorf("a usual message of type %c: action %d", msg.typ, act.do)
	}
	d.flush(toClient)
	if err != nil {
		return err
	}
	switch act.do {
	case pass:
		toClient(b)
	case fatal:
		toClient(b)
		d.Log("lost")
		m.lost()
		d.srv = nil
		return nil
	}
	m.sendLocalAnswers()
	d.flush(toClient)
	return nil
}

// Settle releases the server connection if the machine allows it.
func (d *Machine) Settle() {
	m := &d.m
	if d.srv == nil || m.st.due() || d.More {
		return
	}
	if m.st.serverSilent() {
		m.allAnswered()
	}
	d.endDoubt()
	if len(d.waiting) == 0 && m.due() && m.traces != 0 {
		parts, _ := m.stateCheck()
		d.Log("look for %v", parts)
		m.handleState(d.srv.Left&parts, false)
		if m.channelsOnly { // there is no listening connection here
			m.pinOrUndo(traceChannels)
		}
		if m.keepsServer() {
			m.server.flags &^= leftSettings
		}
	}
	if len(d.waiting) == 0 && m.due() && d.srv.Rows != nil {
		if err := m.keepSettings(d.srv.Rows()); err != nil {
			d.Log("error: %v", err)
		}
	}
	if !m.over() || len(d.waiting) > 0 {
		return
	}
	d.release()
}

// release gives the server connection back.
func (d *Machine) release() {
	srv, fit := d.srv, d.m.reusable()
	d.leave(fit)
	d.srv, srv.Owner = nil, nil
	if !fit {
		srv.Gone = true
		d.Log("discard %s", srv.Name)
		return
	}
	d.Log("release %s", srv.Name)
	d.Pool.Free = append(d.Pool.Free, srv)
}

// Owed returns how many messages of the client are not answered.
func (d *Machine) Owed() int { return d.m.st.owed() }

// Judge returns a function that makes the machine judge a request and its answer, from the lease to the release, as the
// fast path does, and reports success.
func Judge(statement, text string, request, answer []byte) (round func() bool) {
	s, srv := newJudge(&FakePool{})
	m := &s.machine
	if statement != "" {
		m.begin(&srv.state)
		m.parseNamed(statement, nil, []byte(text+"\x00\x00\x00"))
		_, _ = m.st.answer(pgwire.TypeParseComplete, 0)
	}
	return func() bool { return s.judge(srv, request, answer, len(answer)) }
}

// JudgeTurns is Judge for two clients that have different values of a reported parameter, and take turns. answers has the server's answers to
// each, which begin with that to the replay. The last kept bytes, without the report before ReadyForQuery, are for the client.
func JudgeTurns(zones [2]pgwire.Param, request []byte, answers [2][]byte, kept int) (round func() bool) {
	pool := &FakePool{}
	var sessions [2]*session
	var srv *FakeServer
	buf := make([]byte, 1<<10)
	for i := range sessions {
		sessions[i], srv = newJudge(pool)
		sessions[i].machine.takeSettings(zones[i : i+1])
	}
	srv.Report(pgwire.Param{Name: zones[0].Name})
	return func() bool {
		for i, s := range sessions {
			if !s.judge(srv, request, append(buf[:0], answers[i]...), kept) {
				return false
			}
		}
		return true
	}
}

func newJudge(pool *FakePool) (*session, *FakeServer) {
	srv := pool.NewServer("", 10, nil, nil)
	p := &Proxy{traffic: traffic.NewSet(clientTraffic)}
	p.settings.Store(&settings{})
	s := &session{c: &Client{Login: &Login{proxy: p}}, srv: &server{}}
	s.machine = NewMachine(pool, Transaction, nil).m
	s.meter.shard = p.traffic.Cell("", "", "").Shard(0)
	return s, srv
}

// judge is one round of Judge. The last kept bytes of the answer are for the client.
func (s *session) judge(srv *FakeServer, request, answer []byte, kept int) bool {
	m := &s.machine
	s.ensureWork()
	if act, err := m.withoutServer(messageOf(request[:messageSize(request)])); act.do != lease || err != nil {
		return false
	}
	m.begin(&srv.state)
	if !m.inSync() {
		m.planReplay()
	}
	n, _ := s.judgeRequest(request)
	m.toServer = emptied(m.toServer)
	out, done, _ := s.judgeAnswer(answer)
	if n < len(request) || done < len(answer) || len(out) != kept || !m.over() || !m.reusable() {
		return false
	}
	m.release()
	s.returnWork()
	return true
}

// Statements returns how many statements the table has, and how many one server connection has
// and may have.
func (b *Postgres) Statements(ctx context.Context) (shared, onServer, doubtful int) {
	lease, err := b.up.Acquire(ctx)
	if err != nil {
		return -1, -1, -1
	}
	defer lease.Release()
	b.tables.texts.mu.Lock()
	defer b.tables.texts.mu.Unlock()
	return len(b.tables.texts.byKey), len(lease.Value().stmts.at), len(lease.Value().stmts.stale)
}

// Judged exposes judge: kinds of state, behind "?" if there may be any.
func Judged(sql string) string { return judged(nil, sql) }

func judged(c *catalog, sql string) string {
	left := c.judge([]byte(sql)) &^ lasting // see JudgedAlso
	if left&traceUnknown != 0 {
		return "?" + left.String()
	}
	return left.String()
}

// JudgedAlso lists what a text leaves that DISCARD ALL does not take away, for Config.PinAlso.
func JudgedAlso(sql string) string { return ((*catalog)(nil).judge([]byte(sql)) & lasting).String() }

// Defines reports whether a text defines something.
func Defines(sql string) bool { return (*catalog)(nil).judge([]byte(sql))&traceDefines != 0 }

// Hides reports whether statements may call functions after a text that they did not call before, and do not show it.
func Hides(sql string) bool { return (*catalog)(nil).judge([]byte(sql))&traceHides != 0 }

// JudgedByCatalog reads the catalogs of the database, and returns Judged for one that knows them. With setup, the server connection has run that.
func (b *Postgres) JudgedByCatalog(ctx context.Context, setup ...string) (judge func(sql string) string, err error) {
	c, err := b.catalogBehind(ctx, &knowledge{}, setup...)
	return func(sql string) string { return judged(c, sql) }, err
}

// HiddenByCatalog reads the catalogs of the database, and returns what judge says of a text: by its text alone, and with CatalogsHidden.
func (b *Postgres) HiddenByCatalog(ctx context.Context) (judge func(sql string) (alone, hidden uint32), err error) {
	c, err := b.catalogBehind(ctx, &knowledge{})
	if err == nil {
		c.adds = true
	}
	return func(sql string) (alone, hidden uint32) {
		return JudgeText([]byte(sql)), uint32(c.judge([]byte(sql)))
	}, err
}

// JudgedByEvidence reads the catalogs of the database as with CatalogsEvident, and returns Judged for one that knows them.
func (b *Postgres) JudgedByEvidence(ctx context.Context) (judge func(sql string) string, err error) {
	c, err := b.catalogBehind(ctx, &knowledge{evident: true})
	if err == nil {
		c.adds = true
	}
	return func(sql string) string { return judged(c, sql) }, err
}

// HasCaches reads the catalogs of the database, and reports whether values of a CACHE are discarded between clients.
func (b *Postgres) HasCaches(ctx context.Context) (bool, error) {
	c, err := b.catalogBehind(ctx, &knowledge{})
	return err == nil && c.caches, err
}

// catalogBehind reads the catalogs by a server connection that has run setup. A slow machine has tries for some minutes.
func (b *Postgres) catalogBehind(ctx context.Context, k *knowledge, setup ...string) (*catalog, error) {
	for began := time.Now(); ; {
		c, err := b.catalogOnce(ctx, k, setup)
		if !canceled(err) && !isTimeout(err) || time.Since(began) > 2*conntest.Patience {
			return c, err
		}
	}
}

func (b *Postgres) catalogOnce(ctx context.Context, k *knowledge, setup []string) (*catalog, error) {
	lease, err := b.up.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer lease.Discard()
	for _, sql := range setup {
		if err := lease.Value().exec(sql); err != nil {
			return nil, err
		}
	}
	rows, err := lease.Value().readCatalog(ctx, k)
	if err != nil {
		return nil, err
	}
	return rows.build(ctx)
}

// CatalogTimeout bounds a reading.
const CatalogTimeout = catalogTimeout

// ReadCatalog reads the catalogs, unless that is under way: false.
func (b *Postgres) ReadCatalog() bool {
	k := b.tables.knowledge
	k.mu.Lock()
	if !k.reading {
		k.next.Store(0)
	}
	k.mu.Unlock()
	seen, ok := k.begin(clock())
	if ok {
		b.learn(seen)
	}
	return ok
}

// CatalogIsFrom has what was read be from an endpoint.
func (b *Postgres) CatalogIsFrom(endpoint string) {
	k := b.tables.knowledge
	k.mu.Lock()
	defer k.mu.Unlock()
	k.readFrom(endpoint)
}

// CatalogVersion tells what was read last from what was read before that, where they differ.
func (b *Postgres) CatalogVersion() uint32 { return b.tables.knowledge.last().versionOf() }

// CatalogEdges returns how many edges there are between functions of one name which call all functions of that name.
func CatalogEdges(functions int) (edges int) {
	g, sources := newGraph(), map[*node]source{}
	for i := range functions {
		sources[g.add(fmt.Sprint("p", i), "f", true)] = source{text: "select f(1)"}
	}
	_ = g.judgeBodies(context.Background(), sources)
	g.propagate()
	count := func(n *node) { edges += len(n.users) }
	seen := map[*node]bool{}
	var walk func(n *node)
	walk = func(n *node) {
		if !seen[n] {
			seen[n] = true
			count(n)
			for _, u := range n.users {
				walk(u)
			}
		}
	}
	for _, n := range g.nodes {
		walk(n)
	}
	return edges
}

// CatalogSettled reports whether judge uses the catalogs that were read last.
func (b *Postgres) CatalogSettled() bool {
	c := b.tables.knowledge.last()
	return c != nil && b.tables.knowledge.now.Load() == c
}

// ExpireCatalog has what was read count no longer, as if the next reading had failed.
func (b *Postgres) ExpireCatalog() {
	k := b.tables.knowledge
	k.mu.Lock()
	defer k.mu.Unlock()
	k.expire(0)
}

// TextsAlone reports whether the catalogs could not be read.
func (b *Postgres) TextsAlone() bool { return b.tables.knowledge.now.Load() == nil }

// JudgedPlain compares judgePlain with judgeWhole: it reports whether the text is plain, and whether they agree if it is, and nothing else
// finds anything in it.
func JudgedPlain(sql string) (plain, same bool) {
	text := []byte(sql)
	left, plain := (*catalog)(nil).judgePlain(text)
	return plain, !plain || left == (*catalog)(nil).judgeWhole(text) && needsNoLook(sql)
}

// needsNoLook reports whether no look at a text finds anything but what judge does.
func needsNoLook(sql string) bool {
	return !settingsIn([]byte(sql)).any() && !onlyForTransaction([]byte(sql+"\x00")) && len(deallocations(sql, "UTF8")) == 0 && !sweeps([]byte(sql))
}

// QuietAgrees reports whether a text that has come twice before is quiet, and whether that is right.
func (v *Verdicts) QuietAgrees(sql string) (quiet, right bool) {
	for range 3 {
		_, quiet = v.v.judge(nil, []byte(sql))
	}
	return quiet, !quiet || needsNoLook(sql)
}

// JudgeText is judge.
func JudgeText(text []byte) uint32 { return uint32((*catalog)(nil).judge(text)) }

// FirstOf returns the first n of some names.
func FirstOf(names []string, n int) []string { return firstOf(slices.Values(names), n) }

// Executed is executed.
func Executed(text []byte) []string { return executed(text) }

// Verdicts exposes verdicts.
type Verdicts struct{ v verdicts }

// Judge is JudgeText for a text that may have come before.
func (v *Verdicts) Judge(text []byte) uint32 {
	left, _ := v.v.judge(nil, text)
	return uint32(left)
}

// Kept returns how many texts there are.
func (v *Verdicts) Kept() (n int) {
	for i := range v.v.at {
		if v.v.at[i].Load() != nil {
			n++
		}
	}
	return n
}

// A test's machine may be slow.
func init() {
	usualPatience = listenPatience{login: 20 * time.Second, lock: 20 * time.Second, fence: 25 * time.Second}
}

// SetListenPatience has sessions wait for so long for the login of the listening connection, and for PostgreSQL's lock on notifications; 0 = as
// usual.
func (b *Postgres) SetListenPatience(login, lock time.Duration) {
	b.listening.mu.Lock()
	defer b.listening.mu.Unlock()
	b.listening.patience = listenPatience{cmp.Or(login, usualPatience.login), cmp.Or(lock, usualPatience.lock), usualPatience.fence}
}

// Listening returns the process ID of the listening connection, and the channel of its fences.
func (b *Postgres) Listening() (pid uint32, fence string) {
	if conn := b.listening.working(); conn != nil {
		return conn.srv.pid, conn.fence
	}
	return 0, ""
}

// PanicListening has a goroutine of the listening connection's panic.
func (b *Postgres) PanicListening() { b.listening.working().guard(func() { panic("a test") }) }

// PlanChannels has a listening connection on which clients listen to most of all possible channels, and a few have no clients any more, plan
// for a client that wants some more. It returns what becomes of that, and what the server is told.
func PlanChannels(used, unused, wanted int) (sql string, err error) {
	l := &listenConn{channels: map[string]map[*subscription]struct{}{}, emptied: map[string]struct{}{}}
	for i := range used {
		l.channels[fmt.Sprint("used", i)] = map[*subscription]struct{}{{}: {}}
	}
	for i := range unused {
		l.channels[fmt.Sprint("unused", i)], l.emptied[fmt.Sprint("unused", i)] = nil, struct{}{}
	}
	r := &fenceRequest{park: true, done: make(chan error, 1)}
	for i := range wanted {
		r.channels = append(r.channels, fmt.Sprint("wanted", i))
	}
	gone, fresh, rest := l.plan([]*fenceRequest{r})
	if len(rest) == 0 {
		err = <-r.done
	}
	return l.listenSQL(gone, fresh), err
}

// MaxAllChannels exposes maxAllChannels.
const MaxAllChannels = maxAllChannels

// Exposer is a client with statements s0, s1 and so on, which has a server connection.
type Exposer struct{ m *machine }

// NewExposer makes one whose statements are a number of the same text.
func NewExposer(statements int, sql string) *Exposer {
	pool := &FakePool{}
	d := NewMachine(pool, Transaction, func(string, ...any) {})
	m := &d.m
	server := pool.NewServer("A", 100, nil, nil)
	m.begin(&server.state)
	for i := range statements {
		text := m.shared.texts.get(m.plan, present, 0, []byte(sql+"\x00\x00\x00"))
		m.addOwnStatement(fmt.Sprint("s", i), &statement{sharedText: text})
	}
	return &Exposer{m}
}

// Expose exposes executedIn and exposeNames.
func (e *Exposer) Expose(sql string) {
	e.m.exposeNames(e.m.executedIn(traceUnknown, []byte(sql)))
	e.heard()
}

// Bind exposes executedBound and exposeNames.
func (e *Exposer) Bind(name string) {
	e.m.exposeNames(e.m.executedBound(traceUnknown, []byte(name)))
	e.heard()
}

// heard has the server have answered all.
func (e *Exposer) heard() {
	e.m.toServer = e.m.toServer[:0]
	e.m.st.reset()
}

// HoldReading begins a reading of the catalogs, after one that is under way; end ends it: it has found what the last one did, or it has failed.
func (b *Postgres) HoldReading() (end func(read bool)) {
	k := b.tables.knowledge
	k.next.Store(0)
	seen, ok := k.begin(clock())
	for ; !ok; seen, ok = k.begin(clock()) {
		runtime.Gosched()
		k.next.Store(0)
	}
	return func(read bool) {
		o := outcome{}
		if read {
			o.catalog = k.last()
		}
		k.publish(o, seen, clock(), clock())
	}
}

// EndPatience has it be long after the last DDL.
func (b *Postgres) EndPatience() {
	k := b.tables.knowledge
	k.mu.Lock()
	defer k.mu.Unlock()
	k.patience = 0
}
