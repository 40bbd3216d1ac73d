package console

import (
	"time"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/upstream"
)

// Gateway is what a Console shows and controls: the listener that it belongs to, and its databases. The methods may be
// called from any goroutine and may wait, but not for a session of the listener to end.
type Gateway interface {
	// State returns the present state.
	State() State
	// Sessions describes the sessions of the listener, in no order, the console's among them.
	Sessions() []listener.Info
	// Usage returns what clients have used so far, and what they had used some time ago.
	Usage() (now, then []pgproxy.Usage, ago time.Duration)
	// Kill ends the session with an ID of Sessions, and reports whether there was one.
	Kill(id string) bool
	// Pause stops the use of an upstream's servers: connections are closed when they are idle, and none is opened, until
	// Resume or for so long. It does not wait for connections in use.
	// A pause that is in force stays as it is. undo takes the request back: it ends the pause, unless it was ended, or
	// somebody else has asked for it too.
	Pause(upstream string, limit time.Duration) (undo func(), err error)
	// Resume ends a pause. It is an error if there is none.
	Resume(upstream string) error
	// Reload reads the configuration again and applies it.
	Reload() error
}

// State is a listener and its databases.
type State struct {
	Address  string // that the listener is bound to: host:port or unix:/path
	MaxConns int
	PoolMode string
	// Databases are in the order of the configuration. The name "*" stands for every other name.
	Databases []Database
	// Users are the names of configured users.
	Users []string
	// Settings are the rows of SHOW CONFIG.
	Settings []Setting
}

// Database is a name that clients request.
type Database struct {
	Name     string
	Upstream upstream.Status
	User     string        // of the server connections; with PerPair, of the gateway's own
	DBName   string        // at the servers; with PerPair, empty if it is the name that the client requests
	Lifetime time.Duration // of server connections; 0 = no limit
	Pausable bool          // the upstream can be paused
	// PerPair says that each pair of user and database has server connections of its own, and pools of PoolSize at each
	// endpoint. Pairs are those of the upstream.
	PerPair  bool
	PoolSize int
	Pairs    []pgproxy.PairStatus
}

// Setting is a setting by PgBouncer's name.
type Setting struct{ Key, Value string }

// index returns the databases by name.
func (s *State) index() map[string]*Database {
	byName := make(map[string]*Database, len(s.Databases))
	for i := range s.Databases {
		byName[s.Databases[i].Name] = &s.Databases[i]
	}
	return byName
}

// find returns the database that clients get for a name, nil if there is none.
func find(byName map[string]*Database, name string) *Database {
	if d := byName[name]; d != nil {
		return d
	}
	return byName["*"]
}

// connections returns how many connections an upstream has, those that are being opened or closed included.
func connections(u *upstream.Status) (n int) {
	for i := range u.Endpoints {
		p := &u.Endpoints[i].Pool
		n += p.Idle + p.InUse + p.Opening + p.Busy + p.Direct
	}
	return n
}
