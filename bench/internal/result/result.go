package result

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/headpond/headpond/bench/internal/hist"
)

// Schema is the version of the format. A field that changes its meaning or goes makes a new one; a new field does not.
const Schema = 1

// ErrSchema means that a file was written by another version of the program.
var ErrSchema = errors.New("not the results of this version")

// ErrFormat means that a file is no results at all, or damaged.
var ErrFormat = errors.New("not a results.json of headpond bench")

// Results is one benchmark run.
type Results struct {
	Schema    int               `json:"schema"`
	Command   string            `json:"command"`
	Started   time.Time         `json:"started"`
	Machine   Machine           `json:"machine"`
	Versions  map[string]string `json:"versions"` // of Headpond, Go and the peers
	Settings  Settings          `json:"settings"`
	Generator Generator         `json:"generator"`
	Missing   []string          `json:"missing,omitempty"` // what was not measured, and what to install for it
	Cases     []*Case           `json:"cases"`
}

// Machine is where it ran.
type Machine struct {
	CPU    string  `json:"cpu"`
	Cores  int     `json:"cores"`
	Memory int64   `json:"memory_bytes"`
	Kernel string  `json:"kernel"`
	OS     string  `json:"os"`
	TCP    string  `json:"tcp,omitempty"`    // the congestion control that is the default: one that paces makes loopback expensive
	Shares string  `json:"shares,omitempty"` // whose shares of the processors are equal: sessions (each program measured has one) or threads
	Load   float64 `json:"load"`             // the average of the last minute when it began: above 0.5 something else was running
}

// Settings are what a resumed run must share with the one it continues.
type Settings struct {
	Rounds  int     `json:"rounds"`
	Seconds float64 `json:"seconds"` // of each round
	Quick   bool    `json:"quick"`
	Loops   int     `json:"loops"` // of the gateway; threads of HAProxy and workers of nginx
}

// Generator is how good the load generator was on this machine.
type Generator struct {
	Threads int `json:"threads"`
	// KnownMicros is the delay of a server, and MeasuredMicros what the generator made of it.
	KnownMicros    float64 `json:"known_us"`
	MeasuredMicros float64 `json:"measured_us"`
	Omitted        float64 `json:"omitted"`
	Problem        string  `json:"problem,omitempty"`
}

// Case is one table: a workload, measured on several arms.
type Case struct {
	ID       string   `json:"id"` // "W1c/64"
	Suite    string   `json:"suite"`
	Title    string   `json:"title"`
	Note     string   `json:"note,omitempty"`
	Claim    string   `json:"claim,omitempty"`   // what the study published
	Because  string   `json:"because,omitempty"` // why we measure something else
	Baseline string   `json:"baseline"`          // the arm that ratios are to
	Floor    string   `json:"floor,omitempty"`   // the arm that costs what measuring costs; see Net
	Metrics  []string `json:"metrics"`           // the first is the one that counts
	Rate     float64  `json:"rate,omitempty"`    // operations per second asked for; 0 = as many as can be
	Conns    int      `json:"conns,omitempty"`
	// Others is the part of the processors' time, from 0 to 1, that other programs have used meanwhile.
	Others float64 `json:"others,omitempty"`
	Arms   []*Arm  `json:"arms"`
}

// Arm is one contestant.
type Arm struct {
	Name   string   `json:"name"`
	Error  string   `json:"error,omitempty"` // why there is no figure, or not every round
	Rounds []Sample `json:"rounds"`
	// Extra are figures that were taken once, outside the rounds.
	Extra map[string]float64 `json:"extra,omitempty"`
	// Latency is that of the operations of all rounds; nil when none was taken.
	Latency *hist.Histogram `json:"latency,omitempty"`
}

// Sample is one round of one arm.
type Sample struct {
	Values  map[string]float64 `json:"values"`
	Latency *hist.Histogram    `json:"-"` // kept in the arm
}

// Add appends a round.
func (a *Arm) Add(s Sample) {
	a.Rounds = append(a.Rounds, s)
	if s.Latency == nil {
		return
	}
	if a.Latency == nil {
		a.Latency = new(hist.Histogram)
	}
	a.Latency.Merge(s.Latency)
}

// Net is the case with what measuring costs subtracted: from each round of an arm the same round of the floor. It is nil without a floor
// that was measured.
func (c *Case) Net() *Case {
	floor := c.Arm(c.Floor)
	if floor == nil || len(floor.Rounds) == 0 {
		return nil
	}
	net := *c
	net.Arms = nil
	for _, a := range c.Arms {
		if a == floor {
			continue
		}
		n := &Arm{Name: a.Name, Error: a.Error}
		for i := range min(len(a.Rounds), len(floor.Rounds)) {
			v := map[string]float64{}
			for id, x := range a.Rounds[i].Values {
				v[id] = x - floor.Rounds[i].Values[id]
			}
			n.Rounds = append(n.Rounds, Sample{Values: v})
		}
		net.Arms = append(net.Arms, n)
	}
	return &net
}

// Load reads a file that Save wrote.
func Load(path string) (*Results, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var version struct{ Schema int }
	if err := json.Unmarshal(data, &version); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", path, ErrFormat, err)
	}
	if version.Schema != Schema {
		return nil, fmt.Errorf("%s: %w: it has schema %d, this program reads %d; measure again, or use the headpond-bench that wrote it", path, ErrSchema, version.Schema, Schema)
	}
	var r Results
	err = json.Unmarshal(data, &r)
	if err == nil {
		err = r.whole()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", path, ErrFormat, err)
	}
	return &r, nil
}

// whole is an error if something is missing that every file has which Save wrote.
func (r *Results) whole() error {
	for i, c := range r.Cases {
		if c == nil || c.ID == "" || len(c.Metrics) == 0 {
			return fmt.Errorf("case %d has no name or no metrics", i)
		}
		if slices.Contains(c.Arms, nil) {
			return fmt.Errorf("case %s has an arm that is none", c.ID)
		}
	}
	return nil
}

// Save replaces the file at once, so that an interrupt leaves the old or the new one.
func (r *Results) Save(path string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// Case returns the case with the id, or nil.
func (r *Results) Case(id string) *Case {
	i := slices.IndexFunc(r.Cases, func(c *Case) bool { return c.ID == id })
	if i < 0 {
		return nil
	}
	return r.Cases[i]
}

// Arm returns the arm with the name, or nil.
func (c *Case) Arm(name string) *Arm {
	i := slices.IndexFunc(c.Arms, func(a *Arm) bool { return a.Name == name })
	if i < 0 {
		return nil
	}
	return c.Arms[i]
}
