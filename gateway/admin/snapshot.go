package admin

import (
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/traffic"
	"github.com/headpond/headpond/upstream"
)

// Snapshot is the state of a gateway at one moment, as Config.Snapshot returns it.
type Snapshot struct {
	Version      string // of Headpond
	Engine       string // how sessions run: "uring", "epoll" or "goroutine"
	EngineReason string // why that one
	EngineStats  fiber.Stats
	Process      ProcessUse
	ConfigFile   string
	Started      time.Time
	Draining     bool
	NotReady     []string // why clients are not served, other than draining; empty: ready
	Reloads      Reloads
	Log          LogState
	Listeners    []listener.Stats
	Certificates map[string]time.Time // expiry of the certificates of TLS listeners, by the listener's name
	// RevocationLists is when the first of the revocation lists of a listener expires, by its name; zero: never, or there is none.
	RevocationLists map[string]time.Time
	Recent          map[string]Recent // of listeners that count, by name
	Upstreams       []Upstream
	Additions       []Addition // of protocols and extensions
	Retiring        []Retiring
}

// ProcessUse is what the process uses; what is not known is 0.
type ProcessUse struct {
	CPU      time.Duration // processor time since its start
	CPUs     int           // processors that it may use at once
	Resident uint64        // bytes of memory
}

// Recent is the recent activity of a listener.
type Recent struct {
	Unit  string // the counted thing: "requests", "transactions"
	Total traffic.Total
	Over  time.Duration // how long that took: a minute, less after the listener's start
}

// Kinds of Retiring. Extensions have their own.
const (
	RetiringListener = "listener"
	RetiringUpstream = "upstream"
)

// Retiring is a part of the gateway that a reload has removed or replaced, and that is still used.
type Retiring struct {
	Kind     string // RetiringListener, RetiringUpstream or an extension's
	Name     string
	Protocol string
	Active   int // a listener's sessions, an upstream's sessions or connections, an extension's connections
	Since    time.Time
}

// Upstream is an upstream's state and its users.
type Upstream struct {
	Protocol string
	Reuses   bool // its connections serve one session after the other
	Heavy    bool // its connections cost a server much, so that max_size should fit their use
	// Recent is what each of Endpoints has counted in the last minute, nil if the protocol counts no answers.
	Recent []traffic.Total
	upstream.Status
}

// LogState is the state of writing the gateway's own log. It is zero if the program passed a Logger.
type LogState struct {
	// Lines that are missing, since the start: their reader was too slow, the disk was full, or writing failed otherwise.
	TooSlow, DiskFull, Failed uint64
	// Error is why the last attempt to write failed; empty: it did not.
	Error string
}

// Reloads counts the attempts to reload the configuration.
type Reloads struct {
	Applied, Refused uint64
	Last             time.Time // zero: none yet
	LastError        string    // empty: the last one was applied
	LastChanges      string    // what the last one that was applied has changed, such as "listener db changed"; "nothing" if nothing
	LastWarnings     []string  // of the file that was applied last, with their positions
}
